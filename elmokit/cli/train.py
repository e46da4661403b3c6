"""``elmokit train``, ``distill`` and ``finetune``: the three ways to train a biLM."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from elmokit.cli.command import Flag, setting_options, with_settings
from elmokit.cli.parameters import Model, ModelOptions, OutputPath, Threads
from elmokit.cli.running import given_settings, resumable_command
from elmokit.errors import ConfigError

if TYPE_CHECKING:
    from elmokit.training.results import TrainingResult

OUT = Flag(
    "Directory for checkpoints, logs and the final model. If the command is interrupted, run it again to resume.",
    "Run",
    names=("--run",),
)
Out = Annotated[Path, OutputPath(), OUT]
Config = Annotated[Path | None, Flag("TOML file of settings, or bilm-tf's options.json. Flags override it.", "Run")]
OverwriteRun = Annotated[bool, Flag("Start anew: replace the run in --out.", "Run")]
TrainingDevice = Annotated[str, Flag("cpu, cuda, or auto: a GPU if there is one.")]
TrainingThreads = Annotated[Threads, Flag("Number of threads.  [default: PyTorch's choice]")]


def train_settings() -> list[click.Option]:
    """Make an option for each setting of the training, its text and its model."""
    from elmokit.engine.config import BiLMConfig
    from elmokit.engine.softmax import SoftmaxConfig
    from elmokit.training.settings import DATA_SETTINGS, MODEL_SETTINGS, SOFTMAX_SETTINGS
    from elmokit.training.training_config import MAX_WORDS, NEW_MODEL_SETTINGS, BaseConfig, DataConfig, TrainingConfig

    sizes = dict.fromkeys(MODEL_SETTINGS, "the preset's") | {"bidirectional": True}
    return [
        *setting_options(DataConfig, {"max_words": MAX_WORDS}, DATA_SETTINGS),
        *setting_options(BaseConfig, {}, NEW_MODEL_SETTINGS),
        *setting_options(BiLMConfig, sizes, MODEL_SETTINGS, "Model"),
        *setting_options(SoftmaxConfig, {}, SOFTMAX_SETTINGS, "Model"),
        *setting_options(TrainingConfig, {"epochs": 1.0}),
    ]


def distill_settings() -> list[click.Option]:
    """Make an option for each setting of the distillation, and those of ``train``."""
    from elmokit.training.training_config import DistillationConfig

    return [*setting_options(DistillationConfig), *train_settings()]


def finetune_settings() -> list[click.Option]:
    """Make an option for each setting of the training and its text, with the defaults of fine-tuning."""
    from elmokit.engine.config import BiLMConfig
    from elmokit.engine.softmax import SoftmaxConfig
    from elmokit.training.settings import DATA_SETTINGS
    from elmokit.training.training_config import FINETUNING, FINETUNING_SETTINGS, BaseConfig, DataConfig, TrainingConfig

    return [
        *setting_options(BaseConfig, {}, FINETUNING_SETTINGS),
        *setting_options(DataConfig, {"vocabulary": "the model's own"}, DATA_SETTINGS),
        *setting_options(BiLMConfig, {"dropout": "the model's"}, ["dropout"], "Model"),
        *setting_options(SoftmaxConfig, {"inner_dim": "the model's"}, {"softmax_inner_dim": "inner_dim"}, "Model"),
        *setting_options(TrainingConfig, FINETUNING),
    ]


@with_settings(train_settings)
def train(
    texts: tuple[Path, ...] = (),
    *,
    out: Out,
    config: Config = None,
    overwrite: OverwriteRun = False,
    device: TrainingDevice = "auto",
    threads: TrainingThreads = None,
    **settings: Any,
) -> None:
    """Pre-train a biLM on TEXTS.

    TEXTS are files (.txt, .gz, .xz, .zst), directories or quoted patterns of tokenized text: one sentence per line,
    tokens separated by spaces. All settings can also be given in a TOML file (--config).

    Examples:
        elmokit train corpus/ --held-out dev.txt --preset small --epochs 3 --out my-run
        torchrun --nproc-per-node 4 -m elmokit train corpus/ --held-out dev.txt --out my-run
    """
    from elmokit.training import api

    if config is not None:
        settings["config"] = config
    with _training(out, threads, settings) as given:
        result = api.train(texts, out=out, overwrite=overwrite, device=device, **given)
    _print(result)


@with_settings(distill_settings)
def distill(
    teacher: str,
    texts: tuple[Path, ...] = (),
    *,
    out: Out,
    config: Config = None,
    overwrite: OverwriteRun = False,
    options: ModelOptions = None,
    device: TrainingDevice = "auto",
    threads: TrainingThreads = None,
    **settings: Any,
) -> None:
    """Train a small biLM on TEXTS to do what TEACHER does.

    TEACHER is a model directory, a run, a published name such as "original", or a TensorFlow checkpoint. TEXTS are
    files or directories of tokenized text, which TEACHER may have seen before or not. The options describe the student.
    It learns the vectors of TEACHER's layers and, if TEACHER has a softmax, its predictions; it then takes TEACHER's
    vocabulary.

    Examples:
        elmokit distill original corpus/ --held-out dev.txt --preset mini --out student
        elmokit distill my-elmo corpus/ --held-out dev.txt --preset small --epochs 3 --out student
    """
    from elmokit.training import api

    with _training(out, threads, settings) as given:
        result = api.distill(
            teacher, texts, out=out, config=config, overwrite=overwrite, options=options, device=device, **given
        )
    _print(result)


@with_settings(finetune_settings)
def finetune(
    texts: tuple[Path, ...] = (),
    *,
    model: Model = None,
    options: ModelOptions = None,
    out: Out,
    config: Config = None,
    overwrite: OverwriteRun = False,
    old_text: tuple[Path, ...] = (),
    device: TrainingDevice = "auto",
    threads: TrainingThreads = None,
    **settings: Any,
) -> None:
    """Continue training a model on your own text.

    TEXTS are files or directories of tokenized text. The model can also be a run directory or a TensorFlow checkpoint.
    A model without a softmax, as most published ones are, gets a new one over the words of TEXTS.

    Text:
        old_text: Text from the original training domain, to measure forgetting.

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
            config=config,
            overwrite=overwrite,
            options=options,
            old_text=old_text,
            device=device,
            **given,
        )
    _print(result)


@contextlib.contextmanager
def _training(run: Path, threads: int | None, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings that were given, and say how to resume."""
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
    """Check that no text is the model. A model directory has .txt files, so it would be trained on."""
    from elmokit.formats.folder import DEFAULT_MODEL, FORMAT
    from elmokit.formats.published import find_published

    for text in texts:
        is_name = str(text) == DEFAULT_MODEL or find_published(str(text)) is not None
        if (is_name and not text.exists()) or FORMAT.recognizes(text):
            raise ConfigError(f"{text} is a model, but the arguments are texts; pass it with --model.")
