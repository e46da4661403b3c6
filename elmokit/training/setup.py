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
    words-1M/               the model after a million words, for each number in ``save_words``
    curves.png, curves.svg  training loss and held-out perplexity, drawn at the end
    tensorboard/            the log for TensorBoard, if the settings ask for it
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from elmokit.config import from_dict, read_json, to_dict, write_json
from elmokit.errors import ModelNotFoundError, OutputError, TextError, TrainingError
from elmokit.formats.folder import RUN_MODEL, load_folder, save_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.network.bilm import BiLM
from elmokit.network.softmax import build_softmax
from elmokit.network.tensors import save_tensors
from elmokit.storage.atomic import atomic_write
from elmokit.storage.checksums import as_read_back, size_and_crc32
from elmokit.storage.text_files import TextPaths, read_sentences
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.config import MAY_CHANGE, TrainingConfig
from elmokit.training.corpus import TrainingCorpus, find_shards
from elmokit.training.run import Run, check_settings, run_origin

SETTINGS, VOCABULARY, HELD_OUT, OLD_TEXT = "settings.json", "vocab.txt", "held-out.txt", "old-text.txt"
CARD, INITIAL, TEACHER, INITIAL_OPTIMIZER = "card.json", "initial", "teacher", "initial-optimizer.safetensors"
FILES = (
    *(SETTINGS, VOCABULARY, HELD_OUT, OLD_TEXT, CARD, INITIAL, TEACHER, INITIAL_OPTIMIZER),
    *(RUN_MODEL, "words-*", "curves.*", "tensorboard"),
)
RUN_VERSION = 2  # raised when a change makes earlier runs impossible to resume


def bilm_run(path: str | Path) -> Run:
    """The run of a biLM training in a directory."""
    return Run(path, FILES)


@dataclass(frozen=True)
class RunSettings:
    """The content of ``settings.json``."""

    config: TrainingConfig
    shards: tuple[tuple[str, int], ...]
    """Each shard's path and size in bytes."""
    n_sentences: int
    n_tokens: int
    held_out_crc32: int
    vocabulary_crc32: int
    n_predictions: int
    """The length of the training, as it was last computed from epochs, tokens or hours."""
    request: dict[str, Any] = field(default_factory=dict)
    """What the call that started the run asked for; the same call continues it."""
    shards_crc32: tuple[int, ...] = ()
    """Each shard's checksum; empty in a run of an earlier version."""
    version: int = RUN_VERSION

    @classmethod
    def of(cls, setup: TrainingSetup, n_predictions: int) -> RunSettings:
        """The settings of a run that starts or is resumed now."""
        corpus = setup.corpus
        sizes_and_checksums = [_size_and_crc32(shard) for shard in corpus.shards]
        return cls(
            setup.config,
            shards=tuple(
                (str(shard.resolve()), size)
                for shard, (size, _) in zip(corpus.shards, sizes_and_checksums, strict=True)
            ),
            shards_crc32=tuple(checksum for _, checksum in sizes_and_checksums),
            n_sentences=corpus.n_sentences,
            n_tokens=corpus.n_tokens,
            held_out_crc32=sentences_crc32(corpus.held_out),
            vocabulary_crc32=text_crc32(corpus.vocabulary.to_text()),
            n_predictions=n_predictions,
            request=setup.request,
        )

    @classmethod
    def open(cls, run: Path) -> RunSettings:
        """Read a run's settings."""
        path = run / SETTINGS
        try:
            table = read_json(path)
            if table.get("version") != RUN_VERSION:
                raise TrainingError(
                    f"{run} was trained with another version of elmokit and cannot be resumed with this one; elmokit "
                    f"finetune can start a new run from {run / RUN_MODEL}."
                )
            return from_dict(cls, table, str(path))
        except ModelNotFoundError:
            raise TrainingError(f"{run} is not a training run: it has no {SETTINGS}. Start one with --out.") from None

    def full_request(self) -> dict[str, Any]:
        """The call that started the run, with the defaults of the settings that are newer than the run."""
        names = {one.name for one in dataclasses.fields(TrainingConfig)}
        given = {name: value for name, value in self.request.items() if name in names}
        return {**self.request, **as_read_back(to_dict(from_dict(TrainingConfig, given, SETTINGS)))}

    def save(self, run: Path) -> None:
        """Write ``settings.json``."""
        write_json(run / SETTINGS, to_dict(self))

    def check_resumes(self, run: Path, earlier: RunSettings) -> None:
        """Refuse to resume a run whose settings or text differ."""
        check_settings(run, earlier._comparable(), self._comparable(), {*MAY_CHANGE, "n_predictions", "shards_crc32"})
        checksums = zip(self.shards, self.shards_crc32, earlier.shards_crc32, strict=False)
        if changed := [name for (name, _), now, before in checksums if now != before]:
            raise TrainingError(f"{changed[0]} has changed since {run} was started.")

    def _comparable(self) -> dict[str, Any]:
        table = to_dict(self)
        table |= table.pop("config")
        del table["request"]  # compared before the run is opened, if at all
        # The corpus may have moved to another directory: names and sizes identify its files.
        table["shards"] = [[Path(name).name, size] for name, size in table["shards"]]
        return table


@dataclass(frozen=True)
class TrainingSetup:
    """What a training starts from."""

    config: TrainingConfig
    corpus: TrainingCorpus
    card: Mapping[str, Any] = field(default_factory=dict)
    """What the model card says besides the results."""
    request: dict[str, Any] = field(default_factory=dict)
    """As in :class:`RunSettings`."""
    initial: PretrainedBiLM | None = None
    """The model to start from, with a softmax over the corpus's vocabulary; None for random weights. It is evaluated
    first, and stays the best model until training improves on it."""
    initial_optimizer: Mapping[str, Tensor] | None = None
    """The state of the optimizer to start from, as in a checkpoint; None for a new optimizer."""
    teacher: PretrainedBiLM | None = None
    """The model to learn from, if the config has a ``distillation``."""
    old_text: Sequence[Sequence[str]] = ()
    """Sentences of the domain that ``initial`` was trained on, scored before and after."""

    def write(self, run: Run, n_processes: int, overwrite: bool = False) -> None:
        """Write the run directory of a new training, with copies of the models, so it can be resumed without them."""
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
            RunSettings.of(self, 0).save(folder)
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
    def open(cls, run: Run, texts: TextPaths, changes: Mapping[str, Any]) -> TrainingSetup:
        """Read what a run was started with, with some fields of the config changed, and its text where it is now."""
        settings, path = RunSettings.open(run.path), run.path
        shards = find_shards(texts) if texts else [Path(name) for name, _ in settings.shards]
        if missing := [shard for shard in shards if not shard.is_file()]:
            raise TextError(f"{missing[0]}, which the run reads, is missing. If it has moved, give its new path.")
        config = from_dict(TrainingConfig, {**to_dict(settings.config), **changes}, "") if changes else settings.config
        corpus = TrainingCorpus(
            shards,
            list(read_sentences(path / HELD_OUT)),
            Vocabulary.from_file(path / VOCABULARY),
            settings.n_sentences,
            settings.n_tokens,
            config.bilm_tf_lines,
        )
        setup = cls(config, corpus, read_json(path / CARD), settings.request)
        if config.distillation is not None:
            setup = dataclasses.replace(setup, teacher=load_folder(path / TEACHER))
        if run.checkpoints():  # which are where the training starts now
            return setup
        if (path / INITIAL).exists():
            setup = dataclasses.replace(setup, initial=load_folder(path / INITIAL))
        if (path / INITIAL_OPTIMIZER).exists():
            setup = dataclasses.replace(setup, initial_optimizer=load_file(path / INITIAL_OPTIMIZER))
        return setup


def sentences_crc32(sentences: Sequence[Sequence[str]]) -> int:
    """The checksum of sentences."""
    return text_crc32("\n".join(" ".join(sentence) for sentence in sentences))


def text_crc32(text: str) -> int:
    """The checksum of a text."""
    return zlib.crc32(text.encode("utf-8", "replace"))


def _size_and_crc32(path: Path) -> tuple[int, int]:
    with path.open("rb") as file:
        return size_and_crc32(file)
