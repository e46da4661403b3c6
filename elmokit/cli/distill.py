"""``elmokit distill``: train a small biLM to do what a large one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from elmokit.cli.common import options_option, overwrite_option
from elmokit.cli.options import name_flags, setting_options
from elmokit.cli.train import (
    PATH,
    TrainCommand,
    device_option,
    given_options,
    in_run,
    out_option,
    resumable_run,
    texts_argument,
    threads_option,
)


class DistillCommand(TrainCommand):
    """``distill`` with an option for each setting of the distillation, and those of ``train``."""

    @staticmethod
    def setting_options() -> list[click.Option]:
        """Return the options."""
        from elmokit.training.config import DistillationConfig

        return [*setting_options(DistillationConfig), *TrainCommand.setting_options()]


@click.command(cls=DistillCommand)
@click.argument("teacher", metavar="TEACHER")
@texts_argument
@out_option(required=True, help="Directory for checkpoints, logs and the final model.")
@overwrite_option
@in_run("--config", type=PATH, help="TOML file of settings, or bilm-tf's options.json. Flags override it.")
@options_option
@device_option
@threads_option
def distill(teacher: str, texts: tuple[Path, ...], out: Path, overwrite: bool, device: str, **settings: Any) -> None:
    """Train a small biLM on TEXT to do what TEACHER does.

    TEACHER is a model directory, a run, a published name such as "original", or a TensorFlow checkpoint. TEXT is one or
    more files or directories of tokenized text, which TEACHER may have seen before or not. The options describe the
    student. It learns the vectors of TEACHER's layers and, if TEACHER has a softmax, its predictions; it then takes
    TEACHER's vocabulary. If the training is interrupted, the same command continues it.

    \b
    Examples:
      elmokit distill original corpus/ --held-out dev.txt --preset mini --out student
      elmokit distill my-elmo corpus/ --held-out dev.txt --preset small --epochs 3 --out student
    """
    from elmokit.training import api

    given = given_options(settings)
    with name_flags(given), resumable_run(out):
        result = api.distill(teacher, texts, out=out, device=device, overwrite=overwrite, **given)
    if result.is_main_process:
        click.echo(str(result))
