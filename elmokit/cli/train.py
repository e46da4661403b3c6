"""``elmokit train``: pre-train a biLM."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import click

from elmokit.cli.common import overwrite_option, resumable_command, resume_command
from elmokit.cli.options import GroupedOption, OutputPath, SettingsCommand, ThreadCount, name_flags, setting_options
from elmokit.errors import ConfigError

PATH = click.Path(path_type=Path)
texts_argument = click.argument("texts", metavar="TEXT...", nargs=-1, type=PATH)
out_option = partial(click.option, "--out", "--run", "out", cls=GroupedOption, group="Run", type=OutputPath())
device_option = click.option(
    "--device", default="auto", show_default=True, help="cpu, cuda, or auto: a GPU if there is one."
)
threads_option = click.option("--threads", type=ThreadCount(), help="Number of threads.  [default: PyTorch's choice]")
in_run = partial(click.option, cls=GroupedOption, group="Run")


class TrainCommand(SettingsCommand):
    """``train`` with an option for each setting of the training, its text and its model."""

    @staticmethod
    def setting_options() -> list[click.Option]:
        """Return the options, with the defaults of training."""
        from elmokit.engine.config import BiLMConfig
        from elmokit.engine.softmax import SoftmaxConfig
        from elmokit.training.config import MAX_WORDS, NEW_MODEL_SETTINGS, BaseConfig, DataConfig, TrainingConfig
        from elmokit.training.settings import DATA_SETTINGS, MODEL_SETTINGS, SOFTMAX_SETTINGS

        sizes = dict.fromkeys(MODEL_SETTINGS, "the preset's") | {"bidirectional": True, "backward_only": False}
        return [
            *setting_options(DataConfig, {"max_words": MAX_WORDS}, DATA_SETTINGS),
            *setting_options(BaseConfig, {}, NEW_MODEL_SETTINGS),
            *setting_options(BiLMConfig, sizes, MODEL_SETTINGS, "Model"),
            *setting_options(SoftmaxConfig, {}, SOFTMAX_SETTINGS, "Model"),
            *setting_options(TrainingConfig, {"epochs": 1.0}),
        ]


@click.command(cls=TrainCommand)
@texts_argument
@out_option(help="Directory for checkpoints, log and model.")
@overwrite_option
@in_run("--resume", type=PATH, help="Resume the run in this directory. TEXT is not needed.")
@in_run("--config", type=PATH, help="TOML file of settings, or bilm-tf's options.json. Flags override it.")
@device_option
@threads_option
def train(
    texts: tuple[Path, ...], out: Path | None, overwrite: bool, resume: Path | None, device: str, **settings: Any
) -> None:
    """Pre-train a biLM on TEXT.

    TEXT is one or more files (.txt, .gz, .xz, .zst), directories or quoted patterns of tokenized text: one sentence per
    line, tokens separated by spaces. All settings can also be given in a TOML file (--config). If the training is
    interrupted, the same command continues it.

    \b
    Examples:
      elmokit train corpus/ --held-out dev.txt --preset small --epochs 3 --out my-run
      elmokit train --resume my-run
      torchrun --nproc-per-node 4 -m elmokit train corpus/ --held-out dev.txt --out my-run
    """
    from elmokit.training import api

    given = given_options(settings)
    if resume is not None and out is None and not overwrite:
        with name_flags(given), resumable_run(resume, texts):
            result = api.resume(resume, texts, device=device, **given)
    elif out is not None and resume is None:
        with name_flags(given), resumable_run(out):
            result = api.train(texts, out=out, device=device, overwrite=overwrite, **given)
    else:
        raise ConfigError("Give a directory with --out, or a run to resume with --resume.")
    if result.is_main_process:
        click.echo(str(result))


def resumable_run(run: Path, texts: tuple[Path, ...] = ()) -> contextlib.AbstractContextManager[None]:
    """Print the command that resumes a training run if the user stops what runs in the block.

    Args:
        run: The run directory.
        texts: The text, if it has moved since the run was started.
    """
    from elmokit.training.setup import SETTINGS

    command = resume_command("train", "--resume", str(run), *map(str, texts))
    return resumable_command(lambda: command if (run / SETTINGS).exists() else None)


def given_options(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given on the command line; set the number of threads."""
    import torch

    threads = settings.pop("threads")
    if threads is not None:
        torch.set_num_threads(threads)
    return {name: value for name, value in settings.items() if value not in (None, ())}
