"""What a training of a biLM was started with, as its run directory holds it.

::

    settings.json           the settings, and sizes and checksums of the text
    vocab.txt               the words of the softmax
    held-out.txt            the sentences to evaluate on
    old-text.txt            for fine-tuning: sentences of the old domain
    card.json               the model card, without results
    initial/                for fine-tuning: the model that training started from
    initial-optimizer.safetensors
                            for fine-tuning: the state of the optimizer, if it was kept from a checkpoint
    teacher/                for distillation: the model that the trained one learns from

The training adds log and checkpoints (``training/run.py``), and::

    model/                  the best model so far, by held-out perplexity
    curves.png, curves.svg  training loss and held-out perplexity, drawn at the end
    tensorboard/            the log for TensorBoard, if the settings ask for it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from elmokit.config import from_dict, read_json, to_dict, write_json
from elmokit.errors import ModelNotFoundError, OutputError, TrainingError
from elmokit.formats.folder import RUN_MODEL, load_folder, save_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.network.bilm import BiLM
from elmokit.network.softmax_module import build_softmax
from elmokit.network.tensors import save_tensors
from elmokit.storage.atomic import atomic_write
from elmokit.storage.text_files import read_sentences
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.config import TrainingConfig
from elmokit.training.corpus import TrainingCorpus
from elmokit.training.run import Run, run_origin

SETTINGS, VOCABULARY, HELD_OUT, OLD_TEXT = "settings.json", "vocab.txt", "held-out.txt", "old-text.txt"
CARD, INITIAL, TEACHER, INITIAL_OPTIMIZER = "card.json", "initial", "teacher", "initial-optimizer.safetensors"
FILES = (
    *(SETTINGS, VOCABULARY, HELD_OUT, OLD_TEXT, CARD, INITIAL, TEACHER, INITIAL_OPTIMIZER),
    *(RUN_MODEL, "curves.*", "tensorboard"),
)
RUN_VERSION = 3  # raised when a change makes earlier runs impossible to resume


def bilm_run(path: str | Path) -> Run:
    """The run of a biLM training in a directory."""
    return Run(path, FILES)


@dataclass(frozen=True)
class RunSettings:
    """The content of ``settings.json``."""

    config: TrainingConfig
    request: dict[str, Any]
    """What identifies the call that started the run: the same call continues it."""
    shards: tuple[str, ...]
    """The paths of the text."""
    n_sentences: int
    n_tokens: int
    version: int = RUN_VERSION

    @classmethod
    def open(cls, run: Path) -> RunSettings:
        """Read a run's settings."""
        path = run / SETTINGS
        try:
            table = read_json(path)
        except ModelNotFoundError:
            raise TrainingError(f"{run} is not a training run: it has no {SETTINGS}.") from None
        if table.get("version") != RUN_VERSION:
            raise TrainingError(
                f"{run} was trained with another version of elmokit and cannot be resumed with this one; elmokit "
                f"finetune can start a new run from {run / RUN_MODEL}."
            )
        return from_dict(cls, table, str(path))

    def save(self, run: Path) -> None:
        """Write ``settings.json``."""
        write_json(run / SETTINGS, to_dict(self))


@dataclass(frozen=True)
class TrainingSetup:
    """What a training starts from."""

    config: TrainingConfig
    corpus: TrainingCorpus
    card: Mapping[str, Any] = field(default_factory=dict)
    """What the model card says besides the results."""
    initial: PretrainedBiLM | None = None
    """The model to start from, with a softmax over the corpus's vocabulary; None for random weights. It is evaluated
    first, and stays the best model until training improves on it."""
    initial_optimizer: Mapping[str, Tensor] | None = None
    """The state of the optimizer to start from, as in a checkpoint; None for a new optimizer."""
    teacher: PretrainedBiLM | None = None
    """The model to learn from, if the config has a ``distillation``."""
    old_text: Sequence[Sequence[str]] = ()
    """Sentences of the domain that ``initial`` was trained on, scored before and after."""

    def write(self, run: Run, n_processes: int, request: Mapping[str, Any], overwrite: bool = False) -> None:
        """Write the run directory of a new training, with copies of the models."""
        config, corpus = self.config, self.corpus
        corpus.check(config, n_processes)
        with torch.device("meta"):  # find out whether the softmax fits before anything is written, without its memory
            token_layer = BiLM(config.model).token_layer
            build_softmax(config.softmax, len(corpus.vocabulary), config.model.projection_dim, token_layer)
        if run.check_start(overwrite):
            raise OutputError(
                f"Another process has just started a run in {run.path}. Run the command again to resume it."
            )
        if overwrite and run.path.exists():
            run.remove()
        with atomic_write(run.path, overwrite=True, folder=True) as folder:
            (folder / VOCABULARY).write_text(corpus.vocabulary.to_text(), encoding="utf-8", newline="\n")
            for name, sentences in ((HELD_OUT, corpus.held_out), (OLD_TEXT, self.old_text)):
                if sentences:
                    text = "".join(" ".join(sentence) + "\n" for sentence in sentences)
                    # A byte order mark of the first token would be left out when it is read, as one of the file is.
                    mark = "\ufeff" if text.startswith("\ufeff") else ""
                    (folder / name).write_text(mark + text, encoding="utf-8", newline="\n")
            write_json(folder / CARD, {**self.card, **self._origin()})
            shards = tuple(str(shard.resolve()) for shard in corpus.shards)
            RunSettings(config, dict(request), shards, corpus.n_sentences, corpus.n_tokens).save(folder)
            for name, model in ((INITIAL, self.initial), (TEACHER, self.teacher)):
                if model is not None:
                    save_folder(model, folder / name)
            if self.initial_optimizer is not None:
                save_tensors(self.initial_optimizer, folder / INITIAL_OPTIMIZER)

    def _origin(self) -> dict[str, Any]:
        """What the model card says about how the training was started."""
        left_out = {"model", "softmax"} | ({"distillation"} if self.config.distillation is None else set())
        settings = {name: value for name, value in dataclasses.asdict(self.config).items() if name not in left_out}
        origin = {"vocabulary_size": len(self.corpus.vocabulary), **run_origin(), "train": settings}
        for key, model in (("initial", self.initial), ("teacher", self.teacher)):
            if model is not None:
                origin[key] = {"source": model.source_name, "card": model.card}
        return origin

    @classmethod
    def open(cls, run: Run) -> TrainingSetup:
        """Read what a run was started with."""
        settings, path = RunSettings.open(run.path), run.path
        config = settings.config
        corpus = TrainingCorpus(
            list(map(Path, settings.shards)),
            list(read_sentences(path / HELD_OUT)),
            Vocabulary.from_file(path / VOCABULARY),
            settings.n_sentences,
            settings.n_tokens,
            config.bilm_tf_lines,
        )
        setup = cls(config, corpus, read_json(path / CARD))
        if config.distillation is not None:
            setup = dataclasses.replace(setup, teacher=load_folder(path / TEACHER))
        if run.checkpoints():  # which are where the training starts now
            return setup
        if (path / INITIAL).exists():
            setup = dataclasses.replace(setup, initial=load_folder(path / INITIAL))
        if (path / INITIAL_OPTIMIZER).exists():
            setup = dataclasses.replace(setup, initial_optimizer=load_file(path / INITIAL_OPTIMIZER))
        return setup
