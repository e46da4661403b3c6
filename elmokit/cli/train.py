"""``elmokit train``: raw text to a biLM."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.options import SettingsCommand, given_settings, setting_options
from elmokit.config import Table, deep_merge, read_toml
from elmokit.errors import ConfigError, ElmoError, OutputError

if TYPE_CHECKING:
    from elmokit.training.config import TrainingConfig
    from elmokit.training.distributed import World

N_WORDS_TO_TRY = 3
MODEL_FLAGS = ("hidden_dim", "projection_dim", "n_layers", "dropout", "bidirectional")


class TrainCommand(SettingsCommand):
    """``train`` with a flag for every setting of a training."""

    @staticmethod
    def setting_options() -> list[click.Option]:
        """The fields of ``TrainingConfig``."""
        from elmokit.training.config import TrainingConfig

        return setting_options(TrainingConfig, {"epochs": 1.0})


@click.command(cls=TrainCommand, short_help="Raw text to a biLM.")
@click.argument("texts", metavar="[TEXT]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--out", "--run", "run", type=click.Path(path_type=Path), help="A new folder for checkpoints, log and model."
)
@click.option("--resume", type=click.Path(path_type=Path), help="Go on with the run in this folder; no TEXT is needed.")
@click.option("--held-out", multiple=True, type=click.Path(path_type=Path), help="Text to judge by.")
@click.option("--config", "file", type=click.Path(path_type=Path), help="A TOML file of settings; flags go before it.")
@click.option("--recipe", help="Settings to begin with: modern or bilm-tf.  [default: modern]")
@click.option("--preset", help="Sizes: tiny, mini, small, medium, original.  [default: those of the recipe]")
@click.option("--vocab", type=click.Path(path_type=Path), help="A vocabulary file, as from elmokit vocab.")
@click.option("--max-words", type=int, help="Instead: the most frequent words of TEXT.  [default: 30000]")
@click.option("--held-out-sentences", type=int, help="At most so many of the held-out text, at random. [default: 2000]")
@click.option("--input", "inputs", type=click.Choice(["characters", "words"]), help="[default: characters]")
@click.option("--softmax", type=click.Choice(["full", "tied", "adaptive"]), help="[default: full]")
@click.option("--cutoffs", help="Of an adaptive softmax: the first word of each tail, such as 2000,10000.")
@click.option("--hidden-dim", type=int, help="Size of the LSTM cell.  [default: the preset's]")
@click.option("--projection-dim", type=int, help="Size of the LSTM's outputs.  [default: the preset's]")
@click.option("--n-layers", type=int, help="LSTM layers.  [default: the preset's]")
@click.option(
    "--dropout", type=float, help="On every LSTM layer's input and on the top output. [default: the preset's]"
)
@click.option("--bidirectional/--forward-only", default=None, help="[default: bidirectional]")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, or auto: a GPU where there is one.")
@click.option("--threads", type=int, help="Threads of this process.  [default: torch's choice]")
def train(texts: tuple[Path, ...], run: Path | None, resume: Path | None, **settings: Any) -> None:
    """Pre-train a biLM on TEXT: tokenised sentences, one per line.

    TEXT is files (.txt, .gz, .xz, .zst), folders or quoted patterns. Settings may stand in a TOML file: those of
    the flags below by their names; sizes, dropout and bidirectional in a table [model]; kind and cutoffs in a table
    [softmax]; texts, held_out, vocab, max_words and held_out_sentences in a table [data].

    On several CPUs or GPUs: torchrun --nproc-per-node N -m elmokit train TEXT ... --out RUN
    """
    import torch

    from elmokit.cli.training import carry_on, device_of
    from elmokit.training.distributed import joined_world

    device, threads = device_of(settings.pop("device")), settings.pop("threads")
    if threads is not None:
        torch.set_num_threads(max(1, threads))
    if (run is None) == (resume is None):
        raise ConfigError("Give a new folder with --out, or a run to go on with as --resume.")
    with joined_world(device) as world:
        if resume is not None:
            carry_on(
                resume,
                texts,
                {name: value for name, value in settings.items() if value not in (None, ())},
                world,
                device,
            )
        elif run is not None:
            error: ElmoError | None = None
            if world.is_main_process:
                try:
                    _begin(texts, run, world, settings)
                except ElmoError as raised:
                    error = raised
            if (error := world.broadcast(error)) is not None:
                raise error
            carry_on(run, (), {}, world, device)


def _begin(texts: tuple[Path, ...], run: Path, world: World, settings: Table) -> None:
    """Count the text and write down all that a run is begun with."""
    from elmokit.cli.training import begin_run, counted_corpus, tell_word_order

    if run.exists():
        raise OutputError(
            f"{run} exists already. Go on with the run there by --resume {run}, or choose another folder."
        )
    table = _table(settings)
    data = _data(texts, settings, table.pop("data", {}), str(settings["file"]))
    _config(table, settings, N_WORDS_TO_TRY)  # what cannot be is refused before the text is counted
    corpus, facts, counts = counted_corpus(**data)
    config = _config(table, settings, len(corpus.vocabulary))
    tell_word_order(config, corpus.vocabulary, counts)
    begin_run(run, config, corpus, facts, world.size)


def _table(settings: Table) -> Table:
    """The settings as one table: recipe, preset, file, flags, each over the one before."""
    from elmokit.bilm import PRESETS
    from elmokit.config import to_dict
    from elmokit.training.config import RECIPES

    file = read_toml(settings["file"]) if settings["file"] is not None else {}
    recipe = settings["recipe"] or file.pop("recipe", "modern")
    preset = settings["preset"] or file.pop("preset", None)
    for name in ("recipe", "preset"):
        file.pop(name, None)
    if recipe not in list(RECIPES):  # a file may say anything, also what no dict looks up
        raise ConfigError(f"There is no recipe {recipe!r}. Choose one of: {', '.join(RECIPES)}.")
    if preset is not None and preset not in list(PRESETS):
        raise ConfigError(f"There is no preset {preset!r}. Choose one of: {', '.join(PRESETS)}.")
    table = to_dict(RECIPES[recipe])
    if preset is not None:
        table["model"] = to_dict(PRESETS[preset])
    budgets = ("epochs", "tokens", "hours")
    if any(name in file for name in budgets) or any(settings[name] is not None for name in budgets):
        table |= dict.fromkeys(budgets)  # a budget of one's own stands instead of the recipe's
    return deep_merge(table, file)


@dataclass(frozen=True)
class DataTable:
    """The table [data] of a file of settings."""

    texts: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    vocab: str | None = None
    max_words: int | None = None
    held_out_sentences: int = 2000


def _data(texts: tuple[Path, ...], settings: Table, data: Any, file: str) -> Table:
    from elmokit.config import from_dict

    in_file = asdict(from_dict(DataTable, data, f"{file}, data"))
    flags = {name: settings[name] for name in in_file if settings.get(name) not in (None, ())}
    merged: Table = {**in_file, **flags}
    merged["texts"] = texts or [Path(name) for name in in_file["texts"]]
    merged["held_out"] = [Path(name) for name in merged["held_out"]]
    merged["vocab"] = None if merged["vocab"] is None else Path(merged["vocab"])
    if not merged["texts"] or not merged["held_out"]:
        raise ConfigError("Give the TEXT to train on, and --held-out text to judge by.")
    if merged["vocab"] is not None and merged["max_words"] is not None:
        raise ConfigError("The words come from --vocab or from --max-words of the text: give one of them.")
    return merged


def _config(table: Table, settings: Table, n_words: int) -> TrainingConfig:
    from elmokit.config import from_dict
    from elmokit.training.config import TrainingConfig

    inputs = settings["inputs"] or table.get("input", "characters")
    table = {name: value for name, value in table.items() if name != "input"}
    if inputs not in ("characters", "words"):
        raise ConfigError(f"input is {inputs!r}; it is 'characters' or 'words'.")
    model = {name: settings[name] for name in MODEL_FLAGS if settings[name] is not None}
    if inputs == "words":
        model |= {"char_cnn": None, "n_words": n_words}
    flags = given_settings(TrainingConfig, settings)
    softmax: Table = {"kind": settings["softmax"]} if settings["softmax"] else {}
    if settings["cutoffs"]:
        try:
            softmax["cutoffs"] = [int(part) for part in settings["cutoffs"].split(",")]
        except ValueError:
            raise ConfigError(f"--cutoffs {settings['cutoffs']!r} is no list of numbers such as 2000,10000.") from None
    for name, part in (("model", model), ("softmax", softmax)):
        if part:  # an empty table would hide what stands in the file instead of one
            flags[name] = part
    return from_dict(
        TrainingConfig,
        deep_merge(table, flags),
        "the settings" if settings["file"] is None else str(settings["file"]),
    )
