"""``elmokit vocab``, ``train``, ``distill`` and ``finetune``: from text to a trained biLM."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from elmokit.cli.command import MORE, Flag, HeadedOption, setting_options, with_settings
from elmokit.cli.parameters import Model, Output, OutputPath, Threads
from elmokit.cli.running import check_needed, given_settings, print_note, resumable_command
from elmokit.errors import ConfigError
from elmokit.storage.progress import ProgressBar, count_of

if TYPE_CHECKING:
    from elmokit.training.results import TrainingResult

OUT = Flag(
    "Directory for checkpoints, logs and the final model. If the command is interrupted, run it again to resume.",
    names=("--run",),
)
Out = Annotated[Path, OutputPath(), OUT]
TrainingThreads = Annotated[Threads, Flag("Number of threads.  [default: PyTorch's choice]", MORE)]


@dataclass(frozen=True)
class Running:
    """Options of all training commands."""

    config: Annotated[
        Path | None, Flag("TOML file of settings, or bilm-tf's options.json. Other arguments override it.")
    ] = None
    device: Annotated[str, Flag("cpu, cuda, or auto: a GPU if there is one.")] = "auto"
    overwrite: Annotated[bool, Flag("Start over: replace the run.")] = False


def train_settings() -> list[HeadedOption]:
    """Make an option for each setting of training, text and model."""
    from elmokit.engine.architecture import BiLMConfig
    from elmokit.engine.softmax import SoftmaxConfig
    from elmokit.training.settings import DATA_SETTINGS, MODEL_SETTINGS, SOFTMAX_SETTINGS
    from elmokit.training.training_config import NEW_MODEL_SETTINGS, TRAINING, BaseConfig, DataConfig, TrainingConfig

    sizes = dict.fromkeys(MODEL_SETTINGS, "the preset's") | {"bidirectional": True}
    return [
        *setting_options(DataConfig, TRAINING, DATA_SETTINGS),
        *setting_options(BaseConfig, {}, NEW_MODEL_SETTINGS),
        *setting_options(BiLMConfig, sizes, MODEL_SETTINGS),
        *setting_options(SoftmaxConfig, {}, SOFTMAX_SETTINGS),
        *setting_options(TrainingConfig, TRAINING),
    ]


def distill_settings() -> list[HeadedOption]:
    """Make an option for each setting of distillation and of ``train``."""
    from elmokit.training.training_config import DistillationConfig

    return [*setting_options(DistillationConfig), *train_settings()]


def finetune_settings() -> list[HeadedOption]:
    """Make an option for each setting of training and text, with the defaults of fine-tuning."""
    from elmokit.engine.architecture import BiLMConfig
    from elmokit.engine.softmax import SoftmaxConfig
    from elmokit.training.settings import DATA_SETTINGS
    from elmokit.training.training_config import FINETUNING, FINETUNING_SETTINGS, BaseConfig, DataConfig, TrainingConfig

    rates = f"{FINETUNING['learning_rate']}, and {TrainingConfig.learning_rate} if the softmax is new"
    return [
        *setting_options(BaseConfig, {}, FINETUNING_SETTINGS),
        *setting_options(DataConfig, {"vocabulary": "the model's own"}, DATA_SETTINGS),
        *setting_options(BiLMConfig, {"dropout": "the model's"}, ["dropout"]),
        *setting_options(SoftmaxConfig, {"inner_dim": "the model's"}, {"softmax_inner_dim": "inner_dim"}),
        *setting_options(TrainingConfig, {**FINETUNING, "learning_rate": rates}),
    ]


@with_settings(train_settings)
def train(
    texts: tuple[Path, ...] = (),
    *,
    out: Out,
    threads: TrainingThreads = None,
    running: Running,
    **settings: Any,
) -> None:
    """Pre-train a biLM on TEXTS.

    TEXTS are files (.txt, .gz, .xz, .zst), directories or quoted patterns of tokenized text: one sentence per line,
    tokens separated by spaces. All settings can also be given in a TOML file (--config).

    Args:
        held_out, vocabulary, max_words, preset, epochs, tokens, batch_size:

    Examples:
        elmokit train corpus/ --held-out dev.txt --preset small --epochs 3 --out my-run
        torchrun --nproc-per-node 4 -m elmokit train corpus/ --held-out dev.txt --out my-run
    """
    from elmokit.training import api

    with _training(out, threads, settings) as given:
        result = api.train(texts, out=out, **vars(running), **given)
    _print(result)


@with_settings(distill_settings)
def distill(
    teacher: str,
    texts: tuple[Path, ...] = (),
    *,
    out: Out,
    threads: TrainingThreads = None,
    options: Annotated[
        str | None, Flag("The options file of an HDF5 teacher, if it is not next to the weights.", MORE)
    ] = None,
    running: Running,
    **settings: Any,
) -> None:
    """Train a small biLM on TEXTS to imitate TEACHER.

    TEACHER is a model directory, a run, a published name such as "original", or a TensorFlow checkpoint. TEXTS are
    files or directories of tokenized text; TEACHER need not have been trained on them. The options describe the
    student. It learns the vectors of TEACHER's layers. If TEACHER has a softmax, it also learns the predictions and
    uses TEACHER's vocabulary.

    Args:
        held_out, preset, epochs, tokens, batch_size:

    Examples:
        elmokit distill original corpus/ --held-out dev.txt --preset mini --out student
        elmokit distill my-elmo corpus/ --held-out dev.txt --preset small --epochs 3 --out student
    """
    from elmokit.training import api

    with _training(out, threads, settings) as given:
        result = api.distill(teacher, texts, out=out, options=options, **vars(running), **given)
    _print(result)


@with_settings(finetune_settings)
def finetune(
    texts: tuple[Path, ...] = (),
    *,
    model: Model = None,
    out: Out,
    old_text: Annotated[
        tuple[Path, ...], Flag("Text from the domain of the original training, to measure forgetting.")
    ] = (),
    threads: TrainingThreads = None,
    options: Annotated[
        str | None, Flag("The options file of an HDF5 model, if it is not next to the weights.", MORE)
    ] = None,
    exact_marks: Annotated[
        bool, Flag("Read typographic marks unchanged, like bilm-tf, instead of as ASCII.", MORE)
    ] = False,
    running: Running,
    **settings: Any,
) -> None:
    """Continue training a model on your own text.

    TEXTS are files or directories of tokenized text. The model can also be a run directory or a TensorFlow checkpoint.
    A model without a softmax, like most published ones, gets a new one for the words of TEXTS.

    Args:
        held_out, recipe, epochs, tokens, batch_size, learning_rate:

    Examples:
        elmokit finetune clinical-notes/ --held-out dev.txt --out clinical
        elmokit finetune reviews.txt.gz --model original --held-out dev.txt --epochs 3 --out reviews
        elmokit finetune notes.txt --model bilm-tf-run/ --held-out dev.txt --recipe bilm-tf --out continued
    """
    from elmokit.training import api

    _refuse_models(texts)
    with _training(out, threads, settings) as given:
        result = api.finetune(
            model,
            texts,
            out=out,
            old_text=old_text,
            options=options,
            exact_marks=exact_marks,
            **vars(running),
            **given,
        )
    _print(result)


@contextlib.contextmanager
def _training(run: Path, threads: int | None, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings given on the command line; print how to resume if interrupted."""
    import torch

    from elmokit.storage.workspace import JOURNAL

    if threads is not None:
        torch.set_num_threads(threads)
    with resumable_command((run / JOURNAL).exists):
        yield given_settings(settings)


def _print(result: TrainingResult) -> None:
    if result.is_main_process:
        click.echo(str(result))


def _refuse_models(texts: tuple[Path, ...]) -> None:
    """Refuse models among the texts. The .txt files in a model directory would be used as training text."""
    from elmokit.formats.folder import DEFAULT_MODEL, FORMAT
    from elmokit.formats.sources import find_published

    for text in texts:
        is_name = str(text) == DEFAULT_MODEL or find_published(str(text)) is not None
        if (is_name and not text.exists()) or FORMAT.recognizes(text):
            raise ConfigError(f"{text} is a model, but the arguments are texts; pass it with --model.")


def vocab(
    texts: tuple[str, ...],
    out: Output,
    *,
    repair: bool = False,
    text: tuple[str, ...] = (),
    max_words: int | None = None,
    min_count: int = 1,
    overwrite: Annotated[bool, Flag("Replace existing files.")] = False,
) -> None:
    """Build a vocabulary from tokenized text.

    TEXTS are tokenized, one sentence per line: files (.txt, .gz, .xz, .zst), directories, quoted patterns, or - for
    standard input. OUT gets one word per line: <S>, </S>, <UNK>, then words by descending frequency. Counts are
    written to OUT.counts.tsv (without the .txt of OUT).

    Args:
        max_words: Keep the most frequent words, up to this number, including <S>, </S> and <UNK>.
        min_count: Drop words that occur less often.
        repair: Repair TEXTS, which is one vocabulary file, and list the changes.
        text: With --repair, sort the words by frequency in this tokenized text. Can be repeated.

    Examples:
        elmokit vocab corpus/ vocab.txt --max-words 30000
        elmokit vocab old-vocab.txt vocab.txt --repair
        elmokit vocab old-vocab.txt vocab.txt --repair --text corpus/
    """
    from elmokit.text.vocabulary import name_words
    from elmokit.text.vocabulary_files import build_vocabulary, counts_path, repair_vocabulary

    if repair:
        if len(texts) != 1 or max_words is not None or min_count != 1:
            raise ConfigError("--repair takes one vocabulary file and an output, without --max-words and --min-count.")
        with ProgressBar("B") as progress:
            changes = repair_vocabulary(texts[0], out, overwrite, text, progress)
        for line in changes or ("nothing to repair",):
            click.echo(line)
        if not changes:
            print_note(f"wrote {out}, with the same words")
        else:
            click.echo(f"wrote {out}. Use it for new models only: in models trained with {texts[0]}, the rows differ.")
        if not text:
            print_note("The order of the words was not checked. To sort them by frequency in a text, pass --text TEXT.")
        return
    check_needed("--text", text, "--repair", repair)
    with ProgressBar("B") as progress:
        report = build_vocabulary(texts, out, max_words, min_count, overwrite, progress)
    if report.n_boundaries_in_text:
        click.echo(
            f"The text contains <S> or </S> {count_of(report.n_boundaries_in_text, 'time')}. Remove them: "
            "sentence boundaries "
            "are added when the text is read.",
            err=True,
        )
    if words := report.unwritable:
        click.echo(
            f"Left out {count_of(len(words), 'word')} with white space at the beginning or end, such as {words[0]!r}: "
            "a vocabulary file cannot hold them.",
            err=True,
        )
    named = f" ({name_words(report.unknown_words)})" if report.unknown_words else ""
    click.echo(
        f"{count_of(report.n_sentences, 'sentence')}, {count_of(report.n_tokens, 'token')}, "
        f"{count_of(report.n_types, 'type')}; "
        f"{report.unknown_ratio:.2%} of the tokens{named} are outside the vocabulary of {report.n_words:,}"
    )
    print_note(f"wrote {out} and {counts_path(out)}")
