"""``elmokit finetune``: a trained model, trained further on one's own text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.common import options_option
from elmokit.cli.options import SettingsCommand, given_settings, setting_options
from elmokit.config import Table, deep_merge, read_toml
from elmokit.errors import ConfigError, ElmoError, FormatError, OutputError

if TYPE_CHECKING:
    from elmokit.text.vocabulary import Vocabulary
    from elmokit.training.config import TrainingConfig
    from elmokit.training.distributed import World
    from elmokit.weights.model import PretrainedBiLM

DEFAULTS = {"epochs": 1.0, "learning_rate": 1e-3, "patience": 3, "eval_every": 200, "save_every": 200}


class FinetuneCommand(SettingsCommand):
    """``finetune`` with a flag for every setting of a training."""

    @staticmethod
    def setting_options() -> list[click.Option]:
        """The fields of ``TrainingConfig``, with the defaults of fine-tuning."""
        from elmokit.training.config import TrainingConfig

        return setting_options(TrainingConfig, DEFAULTS)


@click.command(cls=FinetuneCommand, short_help="A trained model, trained further on your text.")
@click.argument("model", metavar="MODEL")
@click.argument("texts", metavar="TEXT...", nargs=-1, type=click.Path(path_type=Path))
@options_option
@click.option(
    "--out",
    "--run",
    "run",
    required=True,
    type=click.Path(path_type=Path),
    help="A new folder for checkpoints and model.",
)
@click.option("--held-out", multiple=True, type=click.Path(path_type=Path), help="Text of the new domain to judge by.")
@click.option("--old-text", multiple=True, type=click.Path(path_type=Path), help="Text of the old domain.")
@click.option("--config", "file", type=click.Path(path_type=Path), help="A TOML file of settings; flags go before it.")
@click.option("--vocab", type=click.Path(path_type=Path), help="Words for the softmax.  [default: the model's own]")
@click.option("--max-words", type=int, help="Instead: the most frequent words of TEXT.")
@click.option("--held-out-sentences", type=int, default=2000, show_default=True, help="At most so many, at random.")
@click.option("--dropout", type=float, help="[default: the model's]")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, or auto: a GPU where there is one.")
@click.option("--threads", type=int, help="Threads of this process.  [default: torch's choice]")
def finetune(model: str, texts: tuple[Path, ...], run: Path, **settings: Any) -> None:
    """Train MODEL further on TEXT, by default for one pass, as the paper did before each task.

    MODEL is a folder of ours, a run, a bilm-tf checkpoint, or a published model (whose softmax is drawn anew, over
    the words of --vocab, or of TEXT). With another vocabulary the softmax's rows are carried over by word. Training
    stops after --patience looks without a better held-out perplexity; RUN/model is the best model, the one given
    included. A run that was stopped goes on with: elmokit train --resume RUN
    """
    import torch

    from elmokit.cli.training import carry_on, device_of
    from elmokit.training.distributed import joined_world

    device, threads = device_of(settings["device"]), settings["threads"]
    if threads is not None:
        torch.set_num_threads(max(1, threads))
    with joined_world(device) as world:
        error: ElmoError | None = None
        if world.is_main_process:
            try:
                _begin(model, texts, run, world, settings)
            except ElmoError as raised:
                error = raised
        if (error := world.broadcast(error)) is not None:
            raise error
        carry_on(run, (), {}, world, device)


def _begin(name: str, texts: tuple[Path, ...], run: Path, world: World, settings: Table) -> None:
    """Open the model, count the text, and write down all that the run is begun with."""
    from elmokit.cli.training import begin_run, counted_corpus, read_held_out, tell_word_order
    from elmokit.training.finetune import with_dropout, with_softmax_over
    from elmokit.weights.open import open_model

    if run.exists():
        raise OutputError(f"{run} exists already. Go on with a run by train --resume {run}, or choose another folder.")
    if not texts or not settings["held_out"]:
        raise ConfigError("Give the TEXT to train on, and --held-out text to judge by.")
    vocab, max_words = settings["vocab"], settings["max_words"]
    if vocab is not None and max_words is not None:
        raise ConfigError("The words come from --vocab or from --max-words of the text: give one of them.")
    file = {} if settings["file"] is None else read_toml(settings["file"])
    stored = open_model(name, options=settings["options"])
    config = _config(stored, file, settings)  # what cannot be is refused before the text is counted
    if config.freeze_softmax and stored.softmax is None and config.softmax.kind != "tied":
        raise ConfigError(f"{name} has no softmax, and --freeze-softmax would keep one drawn at random. Leave it out.")
    if vocab is None and max_words is None:
        vocab = own_words(stored)
    most = settings["held_out_sentences"]
    old_text = read_held_out(settings["old_text"], most)
    corpus, facts, counts = counted_corpus(texts, settings["held_out"], vocab, max_words, most)
    tell_word_order(config, corpus.vocabulary, counts)
    initial = with_softmax_over(stored, corpus.vocabulary, counts, corpus.n_sentences, config.softmax, config.seed)
    is_drawn, kept = _kept_rows(stored, initial)
    click.echo(kept, err=True)
    if config.freeze_softmax and is_drawn:
        raise ConfigError(f"--freeze-softmax would keep a softmax drawn at random: {kept}. Leave it out.")
    dropout = config.model.dropout
    config = dataclasses.replace(config, model=dataclasses.replace(initial.bilm.config, dropout=dropout))
    # A warm state was calibrated for the old weights.
    initial = dataclasses.replace(with_dropout(initial, dropout), initial_state=None)
    begin_run(run, config, corpus, facts, world.size, initial, old_text)


def _config(stored: PretrainedBiLM, file: Table, settings: Table) -> TrainingConfig:
    """The settings of a training that begins with a model, whose sizes and kind of softmax are the defaults."""
    from elmokit.config import from_dict, to_dict
    from elmokit.training.config import TrainingConfig
    from elmokit.weights.softmaxes import SoftmaxConfig, softmax_config

    flags = given_settings(TrainingConfig, settings)
    if settings["dropout"] is not None:
        flags["model"] = {"dropout": settings["dropout"]}
    budgets = {"epochs", "tokens", "hours"}
    table: Table = {
        name: value for name, value in DEFAULTS.items() if name != "epochs" or not budgets & {*file, *flags}
    }
    table["model"] = to_dict(stored.bilm.config)
    if "softmax" not in file:  # a table of one's own says all of it
        table["softmax"] = to_dict(SoftmaxConfig() if stored.softmax is None else softmax_config(stored.softmax))
    config = from_dict(
        TrainingConfig, deep_merge(deep_merge(table, file), flags), str(settings["file"] or "the settings")
    )
    if dataclasses.replace(config.model, dropout=0.0) != dataclasses.replace(stored.bilm.config, dropout=0.0):
        raise ConfigError(f"{settings['file']}, model: a trained model's sizes cannot change, but for its dropout.")
    return config


def _kept_rows(old: PretrainedBiLM, new: PretrainedBiLM) -> tuple[bool, str]:
    """Whether the softmax is drawn anew, and what became of the old one's rows, in a line."""
    from elmokit.nn.softmax import AdaptiveSoftmax, TiedSoftmax

    assert new.vocabulary is not None
    n_words = len(new.vocabulary)
    if new.softmax is old.softmax:
        return False, f"the softmax over {n_words:,} words is the model's own"
    if isinstance(new.softmax, TiedSoftmax):
        return False, f"the softmax over {n_words:,} words takes its rows from the table of words"
    if old.softmax is None or old.vocabulary is None:
        return True, f"the model came without a softmax: one over {n_words:,} words is drawn anew"
    if isinstance(old.softmax, AdaptiveSoftmax) or isinstance(new.softmax, AdaptiveSoftmax):
        return True, f"an adaptive softmax carries no rows over: one over {n_words:,} words is drawn anew"
    n_kept = sum(word in old.vocabulary.ids for word in new.vocabulary.words)
    return False, f"the softmax keeps the rows of {n_kept:,} of {n_words:,} words; the others begin as the unknown word"


def own_words(model: PretrainedBiLM) -> Vocabulary | None:
    """The words of the model's softmax or table; None where it has neither, so that the text's words are taken."""
    from elmokit.text.vocabulary import Vocabulary

    if model.vocabulary is None or (model.softmax is None and model.bilm.config.n_words is None):
        return None
    try:
        return Vocabulary(model.vocabulary.words)
    except FormatError as error:
        raise FormatError(
            f"The words of {model.source} are no sound vocabulary: {error} Or give other words here, with --vocab or "
            "--max-words: rows are carried over by word."
        ) from None
