"""Vectors in HDF5 by h5py alone: slow, obvious, and what the corpus writer's files are compared with."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Literal

import h5py
from numpy.typing import NDArray

from elmokit.embedding.outputs.hdf5 import sentence_key
from elmokit.embedding.outputs.output_format import DatasetNames

Vectors = NDArray[Any]


class VectorWriter:
    """Writes sentences' vectors in order.

    Args:
        file: an HDF5 file open for writing.
        keys: name datasets by line number, or by the sentence's text.
        with_map: keep the sentences, and write ``sentence_to_index`` at the end (with numbers as keys only,
            as in AllenNLP).
        with_old_map: write the map under its old name too.
        dtype: how to store the vectors.
    """

    def __init__(
        self,
        file: h5py.File,
        keys: DatasetNames = "numbers",
        with_map: bool = True,
        with_old_map: bool = False,
        dtype: Literal["float32", "float16"] = "float32",
    ) -> None:
        self.file = file
        self.keys: DatasetNames = keys
        self.map: dict[str, str] | None = {} if with_map and keys == "numbers" else None
        self.map_names = ["sentence_to_index", "sentence_indices"][: 1 + with_old_map]
        self.dtype = dtype
        self.n_sentences = 0
        self._seen: Counter[str] = Counter()

    def write(self, sentence: str, vectors: Vectors) -> None:
        """Write the next sentence."""
        if self.keys == "numbers":
            key = str(self.n_sentences)
        else:
            self._seen[sentence] += 1
            key = sentence_key(sentence, self._seen[sentence])
        self.file.create_dataset(key, data=vectors.astype(self.dtype))
        if self.map is not None:
            self.map[sentence] = str(self.n_sentences)
        self.n_sentences += 1

    def finish(self) -> None:
        """Write the sentence map; a sentence that stands on several lines is mapped to the last, as in AllenNLP."""
        if self.map is not None:
            content = json.dumps(self.map)
            for name in self.map_names:
                self.file.create_dataset(name, (1,), dtype=h5py.string_dtype("utf-8"), data=[content])
