"""AllenNLP's ``ElmoEmbedder``, and the functions that its ``elmo`` command uses, for programs with a copy of either.

AllenNLP 1.0 removed ``allennlp.commands.elmo``, so many programs include the file from 0.9.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, TextIO, TypeVar, get_args

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from elmokit.compat.allennlp_common import ConfigurationError, Source, on_cuda_device
from elmokit.compat.allennlp_modules import DEFAULT_MODEL, _ElmoBiLm
from elmokit.compat.allennlp_text import ELMoTokenCharactersIndexer, batch_to_ids
from elmokit.compat.token_lists import token_lists
from elmokit.config import check_at_least, check_choice
from elmokit.network.tensors import parse_device
from elmokit.storage.atomic import atomic_write
from elmokit.storage.hdf5_files import create_hdf5
from elmokit.text.batching import read_ahead

CombinedLayers = Literal["all", "top", "average"]
Vectors = NDArray[np.float32]


class ElmoEmbedder:
    """The ``ElmoEmbedder`` of AllenNLP 0.4 to 0.9, which embeds sentences as NumPy arrays of all layers.

    State is carried across all calls on one instance, unless ``stateful`` is False. Arrays own their memory. An empty
    sentence has the shape ``(layers, 0, dim)``, with the model's own ``dim``, in float32.
    """

    def __init__(
        self,
        options_file: Source = None,
        weight_file: Source = DEFAULT_MODEL,
        cuda_device: int = -1,
        *,
        stateful: bool = True,
    ) -> None:
        self.indexer = ELMoTokenCharactersIndexer()
        self.elmo_bilm = on_cuda_device(_ElmoBiLm(options_file, weight_file, stateful=stateful).eval(), cuda_device)
        self.cuda_device = cuda_device

    def reset_states(self) -> None:
        """Reset the carried state."""
        self.elmo_bilm.reset_states()

    @torch.no_grad()
    def batch_to_embeddings(self, batch: Iterable[Iterable[str]]) -> tuple[Tensor, Tensor]:
        """Return tensors ``(batch, layers, time, dim)`` and their mask ``(batch, time)``, without boundaries."""
        encoder = self.elmo_bilm._token_embedder
        ids = batch_to_ids(token_lists(batch), encoder.max_chars).to(encoder._char_embedding_weights.device)
        output = self.elmo_bilm(ids)
        layers, inside = torch.stack(output["activations"], dim=1), output["mask"][:, 2:]
        # A row's last real position is its </S>. Without boundaries, everything moves one position to the left.
        return layers[:, :, 1:-1] * inside[:, None, :, None], inside

    def embed_sentence(self, sentence: Iterable[str]) -> Vectors:
        """Embed one sentence as ``(layers, tokens, dim)``."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Iterable[Iterable[str]]) -> list[Vectors]:
        """Embed each sentence as ``(layers, tokens, dim)``. A batch without tokens does not change the state."""
        sentences = token_lists(batch)
        if not any(sentences):
            shape = (self.elmo_bilm.num_layers, 0, self.elmo_bilm.get_output_dim())
            return [np.zeros(shape, dtype=np.float32) for _ in sentences]
        rows = self.batch_to_embeddings(sentences)[0].float().cpu().numpy()
        return [row[:, : len(sentence)].copy() for row, sentence in zip(rows, sentences, strict=True)]

    def embed_sentences(self, sentences: Iterable[Iterable[str]], batch_size: int = 64) -> Iterator[Vectors]:
        """Embed many sentences, batch by batch, in order.

        Raises:
            ConfigurationError: ``batch_size`` is below 1.
        """
        check_at_least("batch_size", batch_size, 1)
        batches = read_ahead(sentences, max_items=batch_size)
        return (vectors for batch in batches for vectors in self.embed_batch(batch))

    def embed_file(
        self,
        input_file: IO[str] | Iterable[str],
        output_file_path: str | Path,
        output_format: CombinedLayers = "all",
        batch_size: int = 64,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Embed lines of tokens and write the vectors to an HDF5 file, which appears once it is complete.

        Datasets are named by line numbers from 0, or by the sentences. (A ``/`` in a name creates a group, but
        ``file[sentence]`` finds the dataset.) ``sentence_to_index`` maps sentences to numbers, as JSON.

        Args:
            input_file: An open text file, or lines.
            output_file_path: The HDF5 file; an existing one is replaced.
            output_format: "all" ``(layers, tokens, dim)``; "top" or "average" ``(tokens, dim)``.
            batch_size: Sentences per batch.
            forget_sentences: Omit ``sentence_to_index``.
            use_sentence_keys: Name datasets by sentences, and omit ``sentence_to_index``.

        Raises:
            ConfigurationError: The format is unknown, the batch size is below 1, lines are blank, or a sentence cannot
                be a key.
            OutputError: The file cannot be written.
        """
        check_choice("output_format", output_format, get_args(CombinedLayers))
        sentences = [line.strip() for line in input_file]
        blank = [number for number, sentence in enumerate(sentences) if not sentence]
        if blank:
            raise ConfigurationError(f"Lines {blank} (counted from 0) are blank.")
        tokens = [sentence.split() for sentence in sentences]
        stream = self.embed_sentences(tokens, batch_size)
        # The layout is the same as in elmokit.embedding.outputs.hdf5; a test compares the two. That module writes
        # resumable files and escapes sentences used as keys, but old readers look up file[sentence] without escaping.
        n_layers = self.elmo_bilm.num_layers if output_format == "all" else 1
        n_bytes = 4 * n_layers * self.elmo_bilm.get_output_dim() * sum(map(len, tokens))
        with (
            atomic_write(output_file_path, overwrite=True) as partial,
            create_hdf5(partial, n_bytes, len(sentences), sum(map(len, sentences))) as file,
        ):
            for number, (sentence, layers) in enumerate(zip(sentences, stream, strict=True)):
                key = sentence if use_sentence_keys else str(number)
                try:
                    file.create_dataset(key, data=_combined(layers, output_format))
                except (TypeError, ValueError) as error:
                    raise ConfigurationError(
                        f"Sentence {number}, {sentence!r}, cannot be a key in an HDF5 file: {error}"
                    ) from None
            if not forget_sentences and not use_sentence_keys:
                numbers = {sentence: str(number) for number, sentence in enumerate(sentences)}
                text = h5py.string_dtype("utf-8")
                file.create_dataset("sentence_to_index", (1,), dtype=text, data=[json.dumps(numbers)])


def _combined(layers: Vectors, output_format: CombinedLayers) -> Vectors:
    """Select what to write from the vectors ``(layers, tokens, dim)`` of a sentence."""
    combined = layers
    if output_format == "top":
        combined = layers[-1]
    elif output_format == "average":
        combined = layers.mean(axis=0)
    return combined


Item = TypeVar("Item")
SLOW_INTERVAL = 10.0  # seconds between two lines of a progress bar in a log file


class Subcommand:
    """A subcommand of ``allennlp``. Subclasses add its options to a parser."""

    name: ClassVar[str] = ""

    @classmethod
    def register(cls, name: str, constructor: str | None = None, exist_ok: bool = False) -> Callable[[type], type]:
        """Return a decorator that names a command (1.0)."""

        def named(command: type) -> type:
            command.name = name  # type: ignore[attr-defined]
            return command

        return named

    def add_subparser(self, *arguments: Any) -> argparse.ArgumentParser:
        """Add the command to a parser: ``(name, parser)`` in 0.x, ``(parser)`` in 1.0."""
        raise NotImplementedError


class Tqdm:
    """A progress bar from the package ``tqdm``."""

    default_mininterval: ClassVar[float] = 0.1

    @staticmethod
    def set_default_mininterval(value: float) -> None:
        """Set the seconds between two updates."""
        Tqdm.default_mininterval = value

    @staticmethod
    def set_slower_interval(use_slower_interval: bool) -> None:
        """Update rarely, for log files."""
        Tqdm.default_mininterval = SLOW_INTERVAL if use_slower_interval else 0.1

    @staticmethod
    def tqdm(*arguments: Any, **settings: Any) -> Any:
        """Return a progress bar over the first argument."""
        return tqdm(*arguments, **{"mininterval": Tqdm.default_mininterval, **settings})


def lazy_groups_of(iterator: Iterable[Item], group_size: int) -> Iterator[list[Item]]:
    """Yield lists of the given size; the last one may be shorter."""
    return read_ahead(iterator, max_items=group_size)


class _Tee:
    """A stream whose text is also written to a file."""

    def __init__(self, path: Path, stream: TextIO, separate_lines: bool) -> None:
        self.stream = stream
        self.log = path.open("a", encoding="utf-8")
        self._separate_lines = separate_lines

    def write(self, text: str) -> int:
        logged = text.replace("\r", "\n") if self._separate_lines else text
        self.log.write(logged)
        self.log.flush()
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def prepare_global_logging(serialization_dir: str | Path, file_friendly_logging: bool = False) -> logging.FileHandler:
    """Copy printed text to ``stdout.log`` and ``stderr.log`` in a directory, and log records to the former.

    Args:
        serialization_dir: An existing directory.
        file_friendly_logging: Update progress bars rarely and on separate lines, as is always done without a terminal.
    """
    separate_lines = file_friendly_logging or not sys.stdout.isatty()
    Tqdm.set_slower_interval(separate_lines)
    folder = Path(serialization_dir)
    sys.stdout = _Tee(folder / "stdout.log", sys.stdout, separate_lines)
    sys.stderr = _Tee(folder / "stderr.log", sys.stderr, separate_lines)
    handler = logging.FileHandler(folder / "stdout.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s - %(levelname)s - %(name)s - %(message)s"))
    logging.getLogger().addHandler(handler)
    return handler


def check_for_gpu(device_id: int | Sequence[int] | None) -> None:
    """Check that CUDA devices with these numbers exist; -1 is the CPU.

    Raises:
        ConfigurationError: A device does not exist.
    """
    numbers: Sequence[int] = [device_id] if isinstance(device_id, int) else device_id or []
    for number in numbers:
        if int(number) >= 0:
            parse_device(f"cuda:{number}")


def get_device_of(tensor: Tensor) -> int:
    """Return the number of a tensor's CUDA device; -1 for the CPU."""
    return tensor.get_device() if tensor.is_cuda else -1


def get_lengths_from_binary_sequence_mask(mask: Tensor) -> Tensor:
    """Return the number of real positions of each row of a mask."""
    return mask.long().sum(-1)
