"""The run of a biLM: its initial state, in memory and on disk. ``training/start.py`` creates it.

The run's settings, which identify the call, the resolved config, and the paths and sizes of the text are in the journal
(``training_run.py``). Next to it are::

    vocab.txt               the words of the softmax
    held-out.txt            the sentences to evaluate on
    old-text.txt            for fine-tuning: sentences of the old domain
    card.json               the model card, without results
    initial/                for fine-tuning: the model that training started from
    initial-optimizer.safetensors
                                for fine-tuning: the optimizer state, if it was kept from a checkpoint
    teacher/                for distillation: the model that the trained one learns from

The training adds log and checkpoints, and::

    model/                  the best model so far, by held-out perplexity
    tensorboard/            the log for TensorBoard, if requested
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from elmokit.config import from_dict, read_json, to_dict, write_json
from elmokit.errors import TrainingError
from elmokit.formats.folder import RUN_MODEL, load_folder, save_folder
from elmokit.network.bilm import BiLM
from elmokit.network.softmax_module import build_softmax
from elmokit.network.tensors import save_tensors
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.atomic import sync
from elmokit.storage.text_files import open_binary
from elmokit.storage.workspace import Committed, read_workspace
from elmokit.text.tokenize import split_tokens
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.training_config import TrainingConfig
from elmokit.training.training_run import Run, last_checkpoint
from elmokit.training.training_text import TrainingCorpus

VOCABULARY, HELD_OUT, OLD_TEXT = "vocab.txt", "held-out.txt", "old-text.txt"
CARD, INITIAL, TEACHER, INITIAL_OPTIMIZER = "card.json", "initial", "teacher", "initial-optimizer.safetensors"
FILES = (
    *(VOCABULARY, HELD_OUT, OLD_TEXT, CARD, INITIAL, TEACHER, INITIAL_OPTIMIZER),
    *(RUN_MODEL, "tensorboard"),
)
FORMER = ("settings.json", CARD, VOCABULARY)
"""Files by which a run of version 0.2 is recognized."""


@dataclass(frozen=True)
class TrainingSetup:
    """The initial state of a training."""

    config: TrainingConfig
    corpus: TrainingCorpus
    card: Mapping[str, Any] = field(default_factory=dict)
    """The model card, except the results."""
    initial: PretrainedBiLM | None = None
    """The model to start from, with a softmax over the corpus's vocabulary; None for random weights. It is evaluated
    first, and stays the best model until training improves on it."""
    initial_optimizer: Mapping[str, Tensor] | None = None
    """The state of the optimizer to start from, as in a checkpoint; None for a new optimizer."""
    teacher: PretrainedBiLM | None = None
    """The model to learn from, if the config has a ``distillation``."""
    old_text: Sequence[Sequence[str]] = ()
    """Sentences of the domain that ``initial`` was trained on, scored before and after."""

    def check(self, n_processes: int) -> None:
        """Check that the model can be trained, before anything is written."""
        config, corpus = self.config, self.corpus
        corpus.check(config, n_processes)
        with torch.device("meta"):  # checks whether the softmax fits, without allocating memory
            token_layer = BiLM(config.model).token_layer
            build_softmax(config.softmax, len(corpus.vocabulary), config.model.projection_dim, token_layer)

    def write(self, run: Run) -> None:
        """Write the initial state of a new run, with copies of the models, and commit it."""
        folder, corpus = run.folder, self.corpus
        (folder / VOCABULARY).write_text(corpus.vocabulary.to_text(), encoding="utf-8", newline="\n")
        _write_sentences(folder / HELD_OUT, corpus.held_out)
        _write_sentences(folder / OLD_TEXT, self.old_text)
        write_json(folder / CARD, self.card)
        for name, model in ((INITIAL, self.initial), (TEACHER, self.teacher)):
            if model is not None:
                save_folder(model, folder / name)
        if self.initial_optimizer is not None:
            save_tensors(self.initial_optimizer, folder / INITIAL_OPTIMIZER)
        for name in (VOCABULARY, HELD_OUT, OLD_TEXT, INITIAL_OPTIMIZER):
            if (folder / name).exists():
                sync(folder / name)
        record(run, self.config, corpus.shards, n_sentences=corpus.n_sentences, n_tokens=corpus.n_tokens)

    @classmethod
    def open(cls, path: Path) -> TrainingSetup:
        """Read the initial state of the run in a directory; see :meth:`of`."""
        return cls.of(read_workspace(path) or Committed(path, {}, {}, {}))

    @classmethod
    def of(cls, committed: Committed) -> TrainingSetup:
        """Read the initial state of a run.

        A run with a checkpoint continues from there, so the initial model and optimizer state are not read.

        Raises:
            TrainingError: There is no run, or it is from another version of elmokit.
        """
        folder, progress = committed.folder, committed.progress
        if "config" not in progress:
            raise TrainingError(f"{folder} is not a training run of this version of elmokit.")
        config = from_dict(TrainingConfig, progress["config"], str(folder))
        corpus = TrainingCorpus(
            list(map(Path, progress["shards"])),
            read_written_sentences(folder / HELD_OUT),
            Vocabulary.from_file(folder / VOCABULARY),
            progress["n_sentences"],
            progress["n_tokens"],
            config.bilm_tf_lines,
        )
        initial = initial_optimizer = teacher = None
        if config.distillation is not None:
            teacher = load_folder(folder / TEACHER)
        if last_checkpoint(committed) is None:
            if (folder / INITIAL).exists():
                initial = load_folder(folder / INITIAL)
            if (folder / INITIAL_OPTIMIZER).exists():
                initial_optimizer = load_file(folder / INITIAL_OPTIMIZER)
        return cls(config, corpus, read_json(folder / CARD), initial, initial_optimizer, teacher)


def _write_sentences(path: Path, sentences: Sequence[Sequence[str]]) -> None:
    """Write sentences, if any, as a text with one per line."""
    if not sentences:
        return
    text = "".join(" ".join(sentence) + "\n" for sentence in sentences)
    # A byte order mark in the first token would be dropped when the file is read.
    if text.startswith("\ufeff"):
        text = "\ufeff" + text
    path.write_text(text, encoding="utf-8", newline="\n")


def read_written_sentences(path: Path) -> list[list[str]]:
    """Read sentences that a run has written, without checks, because the original text was checked."""
    with open_binary(path) as file:
        data = file.read()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise TrainingError(f"{path} is damaged: it is not UTF-8.") from None
    return [split_tokens(line) for line in text.removeprefix("\ufeff").split("\n") if line]


def record(run: Run, config: TrainingConfig, shards: Sequence[Path], **counts: int) -> None:
    """Record in a run's journal what it is trained with from now on."""
    paths = [str(shard.resolve()) for shard in shards]
    run.commit({**run.progress, "config": to_dict(config), "shards": paths, **counts})
