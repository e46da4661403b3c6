"""AllenNLP's ``ElmoEmbedder``: sentences to arrays, and lines to a file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Literal

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmokit.compat.allennlp_layers import (
    ConfigurationError,
    Source,
    lengths_of,
    on_cuda_device,
    remove_sentence_boundaries,
)
from elmokit.compat.allennlp_modules import DEFAULT_MODEL, _ElmoBiLm
from elmokit.compat.allennlp_text import (
    ELMoTokenCharactersIndexer,
    batch_to_ids,
)
from elmokit.io.atomic import atomic_write
from elmokit.io.hdf5 import create_hdf5

OutputFormat = Literal["all", "top", "average"]
Vectors = NDArray[np.float32]


class ElmoEmbedder:
    """Sentences to NumPy arrays of all layers: the ``ElmoEmbedder`` of AllenNLP 0.4 to 0.9.

    State is carried over all calls on one instance, unless ``stateful`` is False. Arrays own their memory, and an
    empty sentence has the model's own shape, ``(layers, 0, dim)`` in float32.
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
        """Forget the carried state."""
        self.elmo_bilm.reset_states()

    @torch.no_grad()
    def batch_to_embeddings(self, batch: list[list[str]]) -> tuple[Tensor, Tensor]:
        """Tensors ``(batch, layers, time, dim)`` and their mask ``(batch, time)``, boundaries off."""
        encoder = self.elmo_bilm._token_embedder
        ids = batch_to_ids(batch, encoder.max_chars).to(encoder._char_embedding_weights.device)
        output = self.elmo_bilm(ids)
        layers, masks = zip(
            *(remove_sentence_boundaries(layer, output["mask"]) for layer in output["activations"]), strict=True
        )
        return torch.stack(layers, dim=1), masks[0]

    def embed_sentence(self, sentence: list[str]) -> Vectors:
        """``(layers, tokens, dim)``."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: list[list[str]]) -> list[Vectors]:
        """One array per sentence, ``(layers, tokens, dim)``. As there, nothing is read where there is no token."""
        if not any(batch):
            shape = (self.elmo_bilm.num_layers, 0, self.elmo_bilm.get_output_dim())
            return [np.zeros(shape, dtype=np.float32) for _ in batch]
        layers, mask = self.batch_to_embeddings(batch)
        rows = layers.float().cpu().numpy()
        return [row[:, :length].copy() for row, length in zip(rows, lengths_of(mask).tolist(), strict=True)]

    def embed_sentences(self, sentences: Iterable[list[str]], batch_size: int = 64) -> Iterator[Vectors]:
        """The arrays of many sentences, read and embedded batch by batch, in their order.

        Raises:
            ConfigurationError: ``batch_size`` is below 1.
        """
        if batch_size < 1:
            raise ConfigurationError(f"batch_size is {batch_size}; at least 1.")
        return self._embed_sentences(iter(sentences), batch_size)

    def _embed_sentences(self, sentences: Iterator[list[str]], batch_size: int) -> Iterator[Vectors]:
        while batch := list(itertools.islice(sentences, batch_size)):
            yield from self.embed_batch(batch)

    def embed_file(
        self,
        input_file: IO[str] | Iterable[str],
        output_file_path: str | Path,
        output_format: OutputFormat = "all",
        batch_size: int = 64,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Lines of tokens to an HDF5 file; unlike there it appears when it is complete.

        Datasets are named by line numbers from 0, or by the sentences (in whose names a ``/`` opens a group, so
        that ``file[sentence]`` finds it); ``sentence_to_index`` maps sentences to numbers, as JSON.

        Args:
            input_file: an open text file, or lines.
            output_format: "all" ``(layers, tokens, dim)``; "top" or "average" ``(tokens, dim)``.
            forget_sentences: leave out ``sentence_to_index``, as ``use_sentence_keys`` does.

        Raises:
            ConfigurationError: no such format, a batch size below 1, blank lines, or a sentence that cannot be a key.
            OutputError: the file cannot be written.
        """
        combine = {"all": lambda layers: layers, "top": lambda layers: layers[-1], "average": _average}
        if output_format not in combine:
            raise ConfigurationError(f"output_format is {output_format!r}; one of {', '.join(combine)}.")
        sentences = [line.strip() for line in input_file]
        blank = [number for number, sentence in enumerate(sentences) if not sentence]
        if blank:
            raise ConfigurationError(f"Lines {blank} (counted from 0) are blank. Take them out.")
        if use_sentence_keys and len(set(sentences)) < len(sentences):
            raise ConfigurationError("A sentence stands on several lines, and each key can be in the file once.")
        stream = self.embed_sentences([sentence.split() for sentence in sentences], batch_size)
        # The layout is that of elmokit.corpus.hdf5 (a test holds the two equal). It is written here a second time
        # because compat may not import corpus, and because old readers look up file[sentence], which needs the sentence
        # itself as the key where the corpus writer escapes it.
        with atomic_write(output_file_path, overwrite=True) as beside, create_hdf5(beside) as (file, check):
            for number, (sentence, layers) in enumerate(zip(sentences, stream, strict=True)):
                key = sentence if use_sentence_keys else str(number)
                try:
                    file.create_dataset(key, data=combine[output_format](layers))
                except (TypeError, ValueError) as error:
                    raise ConfigurationError(
                        f"Sentence {number}, {sentence!r}, cannot be a key in an HDF5 file ({error}). "
                        "Leave out use_sentence_keys."
                    ) from None
                check()
            if not (forget_sentences or use_sentence_keys):
                numbers = {sentence: str(number) for number, sentence in enumerate(sentences)}
                text = h5py.string_dtype("utf-8")
                file.create_dataset("sentence_to_index", (1,), dtype=text, data=[json.dumps(numbers)])


def _average(layers: Vectors) -> Vectors:
    mean: Vectors = layers.mean(axis=0)
    return mean
