"""The run directory of a biLM training.

::

    settings.json           the settings and the text's fingerprint
    vocab.txt               the words of the softmax
    held-out.txt            the sentences to evaluate on
    old-text.txt            for fine-tuning: sentences of the old domain
    card.json               the model card, without results
    initial/                for fine-tuning: the model that training started from
    teacher/                for distillation: the model that the trained one learns from
    initial-optimizer.safetensors
                            for fine-tuning: the state of the optimizer, if it was kept from a checkpoint
    metrics.jsonl           one line for each logged step
    checkpoints/step-N/     the two newest checkpoints
    model/                  the best model so far, by held-out perplexity
    curves.png, curves.svg  training loss and held-out perplexity, drawn at the end
    lock                    held by the process that trains there
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.config import from_dict, read_json, to_dict
from elmokit.errors import ConfigError, ModelError, ModelNotFoundError, TrainingError
from elmokit.formats.folder import RUN_MODEL, save_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.network.bilm import BiLM
from elmokit.network.softmax import build_softmax
from elmokit.network.tensors import save_tensors
from elmokit.storage.atomic import atomic_write
from elmokit.storage.bounded import MAX_RECORD_BYTES
from elmokit.training.config import MAY_CHANGE, TrainingConfig
from elmokit.training.corpus import TrainingCorpus
from elmokit.training.run_folder import check_settings, write_json

SETTINGS, LOG, VOCABULARY = "settings.json", "metrics.jsonl", "vocab.txt"
HELD_OUT, OLD_TEXT, CARD, INITIAL = "held-out.txt", "old-text.txt", "card.json", "initial"
INITIAL_OPTIMIZER = "initial-optimizer"  # a safetensors file
TEACHER = "teacher"
RUN_VERSION = 2  # raised when a change makes earlier runs impossible to resume
PROGRAM = "elmokit"


@dataclass(frozen=True)
class RunSettings:
    """What a run was started with: the content of ``settings.json``."""

    config: TrainingConfig
    shards: tuple[tuple[str, int], ...]
    """Each shard's path and size in bytes."""
    n_sentences: int
    n_tokens: int
    held_out_crc32: int
    vocabulary_crc32: int
    n_predictions: int
    """The length of the training, as it was last computed from epochs, tokens or hours."""
    version: int = RUN_VERSION

    @classmethod
    def of(cls, config: TrainingConfig, corpus: TrainingCorpus, n_predictions: int) -> RunSettings:
        """The settings of a run that starts now."""
        return cls(
            config,
            tuple((str(shard.resolve()), shard.stat().st_size) for shard in corpus.shards),
            corpus.n_sentences,
            corpus.n_tokens,
            _crc32("\n".join(" ".join(sentence) for sentence in corpus.held_out)),
            _crc32(corpus.vocabulary.to_text()),
            n_predictions,
        )

    @classmethod
    def open(cls, run: Path) -> RunSettings:
        """Read a run's settings.

        Raises:
            TrainingError: There is no run, its settings are damaged, or another version of elmokit wrote them.
        """
        path = run / SETTINGS
        try:
            table = read_json(path, max_bytes=MAX_RECORD_BYTES)
            if table.get("version") != RUN_VERSION:
                raise TrainingError(
                    f"{run} was trained with another version of elmokit and cannot be resumed with this one. Start a "
                    f"new run; elmokit finetune can start it from {run / RUN_MODEL}."
                )
            return from_dict(cls, table, str(path))
        except ModelNotFoundError:
            what = f"is not a training run ({SETTINGS} not found)" if run.exists() else "does not exist"
            raise TrainingError(f"{run} {what}. To start a new run, pass --out {run}.") from None
        except (ConfigError, ModelError) as error:
            raise TrainingError(f"{path} is damaged ({error}). Start a new run.") from None

    def save(self, run: Path) -> None:
        """Write ``settings.json``."""
        write_json(run / SETTINGS, to_dict(self))

    def check_resumes(self, run: Path, earlier: RunSettings) -> None:
        """Refuse to resume a run whose settings or text differ.

        Raises:
            TrainingError: Something differs that may not change.
        """
        check_settings(run, earlier._comparable(), self._comparable(), {*MAY_CHANGE, "n_predictions"})

    def _comparable(self) -> dict[str, Any]:
        table = to_dict(self)
        table |= table.pop("config")
        # The corpus may have moved to another directory: names and sizes identify its files.
        table["shards"] = [[Path(name).name, size] for name, size in table["shards"]]
        return table


def create_run(
    run: Path,
    config: TrainingConfig,
    corpus: TrainingCorpus,
    facts: Mapping[str, Any],
    n_processes: int,
    initial: PretrainedBiLM | None = None,
    old_text: Sequence[Sequence[str]] = (),
    initial_optimizer: Mapping[str, Tensor] | None = None,
    teacher: PretrainedBiLM | None = None,
) -> None:
    """Write the run directory of a new training.

    Args:
        run: The directory. It must not exist.
        config: The settings.
        corpus: The text.
        facts: What the model card says about the text.
        n_processes: Number of processes that will train.
        initial: The model to start from. The run keeps a copy, and its model card says where it came from.
        old_text: Sentences of the domain that ``initial`` was trained on, scored before and after.
        initial_optimizer: The state of the optimizer to start from, as in a checkpoint; None for a new optimizer.
        teacher: The model to learn from. The run keeps a copy, so that it can be resumed wherever the original is.

    Raises:
        TextError: The corpus is too small for the settings.
        ConfigError: The softmax does not fit the vocabulary.
        OutputError: The directory exists already, or cannot be written.
    """
    corpus.check(config, n_processes)
    with torch.device("meta"):  # find out whether the softmax fits before anything is written, without its memory
        token_layer = BiLM(config.model).token_layer
        build_softmax(config.softmax, len(corpus.vocabulary), config.model.projection_dim, token_layer)
    left_out = {"model", "softmax"} | ({"distillation"} if config.distillation is None else set())
    settings = {name: value for name, value in asdict(config).items() if name not in left_out}
    card = {
        "corpus": dict(facts),
        "vocabulary_size": len(corpus.vocabulary),
        "command": _command(),
        "elmokit": _version(),
        "train": settings,
    }
    for name, model in (("initial", initial), ("teacher", teacher)):
        if model is not None:
            card[name] = {"source": None if model.source is None else model.source.name, "card": model.card}
    with atomic_write(run, folder=True) as folder:
        (folder / VOCABULARY).write_text(corpus.vocabulary.to_text(), encoding="utf-8", newline="\n")
        for name, sentences in ((HELD_OUT, corpus.held_out), (OLD_TEXT, old_text)):
            if sentences:
                lines = [" ".join(sentence) + "\n" for sentence in sentences]
                (folder / name).write_text("".join(lines), encoding="utf-8", newline="\n")
        write_json(folder / CARD, card)
        RunSettings.of(config, corpus, 0).save(folder)
        if initial is not None:
            save_folder(initial, folder / INITIAL)
        if teacher is not None:
            save_folder(teacher, folder / TEACHER)
        if initial_optimizer is not None:
            save_tensors(initial_optimizer, folder / f"{INITIAL_OPTIMIZER}.safetensors")


def _command() -> str:
    """Return how this process was started, for the model card."""
    program = Path(sys.argv[0])
    name = PROGRAM if program.stem in (PROGRAM, "__main__") else program.name
    return shlex.join([name, *sys.argv[1:]])


def _version() -> str:
    """Return the version of the package, and the commit if it runs from a git checkout."""
    package = Path(__file__).parents[1]
    if (package.parent / ".git").exists():
        command = ["git", "-C", str(package), "rev-parse", "--short", "HEAD"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return f"{version(PROGRAM)} at commit {ran.stdout.strip()}"
    return version(PROGRAM)


def _crc32(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "replace"))
