"""``elmokit train``: pre-train a biLM."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from elmokit.cli.options import CommaSeparated, GroupedOption, SettingsCommand, setting_options
from elmokit.errors import ConfigError

PATH = click.Path(path_type=Path)
texts_argument = click.argument("texts", metavar="TEXT...", nargs=-1, type=PATH)
out_option = partial(click.option, "--out", "--run", "out", cls=GroupedOption, group="Run", type=PATH)
device_option = click.option(
    "--device", default="auto", show_default=True, help="cpu, cuda, or auto: a GPU if there is one."
)
threads_option = click.option("--threads", type=int, help="Number of threads.  [default: PyTorch's choice]")
in_run = partial(click.option, cls=GroupedOption, group="Run")
in_text = partial(click.option, cls=GroupedOption, group="Text")
in_model = partial(click.option, cls=GroupedOption, group="Model")


class TrainCommand(SettingsCommand):
    """``train`` with an option for each field of ``TrainingConfig``."""

    @staticmethod
    def setting_options() -> list[click.Option]:
        """Return the options, with the defaults of training."""
        from elmokit.training.config import TrainingConfig

        return setting_options(TrainingConfig, {"epochs": 1.0})


@click.command(cls=TrainCommand)
@texts_argument
@out_option(help="New directory for checkpoints, log and model.")
@in_run("--resume", type=PATH, help="Resume the run in this directory. TEXT is not needed.")
@in_run("--config", type=PATH, help="TOML file of settings. Flags override it.")
@in_run("--recipe", help="Settings to start from: modern or bilm-tf.  [default: modern]")
@in_text("--held-out", multiple=True, type=PATH, help="Text to evaluate on.")
@in_text("--held-out-sentences", type=int, help="Sample the held-out text if it is larger.  [default: 2000]")
@in_text("--vocabulary", type=PATH, help="Vocabulary file, as written by elmokit vocab.")
@in_text("--max-words", type=int, help="Vocabulary of the most frequent words (alternative).  [default: 30000]")
@in_model("--preset", help="Size: tiny, mini, small, medium or original.  [default: the recipe's]")
@in_model("--input", type=click.Choice(["characters", "words"]), help="Input of the model.  [default: characters]")
@in_model("--hidden-dim", type=int, help="Size of the LSTM cell.  [default: the preset's]")
@in_model("--projection-dim", type=int, help="Size of the LSTM's output.  [default: the preset's]")
@in_model("--n-layers", type=int, help="Number of LSTM layers.  [default: the preset's]")
@in_model("--dropout", type=float, help="Dropout of LSTM inputs and of the top output.  [default: the preset's]")
@in_model("--bidirectional/--forward-only", default=None, help="Train both directions.  [default: bidirectional]")
@in_model("--softmax", type=click.Choice(["full", "tied", "adaptive"]), help="Kind of softmax.  [default: full]")
@in_model("--cutoffs", type=CommaSeparated(), help="First word of each tail of an adaptive softmax: 2000,10000.")
@device_option
@threads_option
def train(texts: tuple[Path, ...], out: Path | None, resume: Path | None, device: str, **settings: Any) -> None:
    """Pre-train a biLM on TEXT.

    TEXT is one or more files (.txt, .gz, .xz, .zst), directories or quoted patterns of tokenized text: one sentence per
    line, tokens separated by spaces. All settings can also be given in a TOML file (--config).

    \b
    Examples:
      elmokit train corpus/ --held-out dev.txt --preset small --epochs 3 --out my-run
      elmokit train --resume my-run
      torchrun --nproc-per-node 4 -m elmokit train corpus/ --held-out dev.txt --out my-run
    """
    from elmokit.training import api

    given = given_options(settings)
    if resume is not None and out is None:
        result = api.resume(resume, texts, device=device, **given)
    elif out is not None and resume is None:
        result = api.train(texts, out=out, device=device, **given)
    else:
        raise ConfigError("Give a new directory with --out, or a run to resume with --resume.")
    if result.is_main_process:
        click.echo(str(result))


def given_options(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given on the command line; set the number of threads."""
    import torch

    threads = settings.pop("threads")
    if threads is not None:
        torch.set_num_threads(max(1, threads))
    return {name: value for name, value in settings.items() if value not in (None, ())}
