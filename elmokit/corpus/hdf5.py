"""Vectors in HDF5, in the layout of ``allennlp elmo``.

One dataset per sentence, named by its line number from 0 (or by its text), ``(layers, tokens, dim)`` or
``(tokens, dim)``; and ``sentence_to_index``, one JSON text that maps each sentence to its number as a string.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from elmokit.errors import FormatError, TextError

SENTENCE_MAP = "sentence_to_index"
OLD_SENTENCE_MAP = "sentence_indices"  # the name that early tutorials gave it
MAX_KEY_BYTES = 60_000  # HDF5 keeps a dataset's name in one 64 KiB header

Keys = Literal["numbers", "sentences"]
Vectors = NDArray[np.float32] | NDArray[np.float16]

_ESCAPES = {"%2F": "/", "%2E": ".", "%00": "\0", "%25": "%"}
_ESCAPED = re.compile("|".join(_ESCAPES))
_LOOKS_ESCAPED = re.compile("%(?=2F|2E|00|25|#)")
_OCCURRENCE = re.compile(r"%#\d+$")


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
        keys: Keys = "numbers",
        with_map: bool = True,
        with_old_map: bool = False,
        dtype: Literal["float32", "float16"] = "float32",
    ) -> None:
        self.file = file
        self.keys: Keys = keys
        self.map: dict[str, str] | None = {} if with_map and keys == "numbers" else None
        self.map_names = [SENTENCE_MAP, OLD_SENTENCE_MAP] if with_old_map else [SENTENCE_MAP]
        self.dtype = dtype
        self.n_sentences = 0
        self._seen: Counter[str] = Counter()

    def write(self, sentence: str, vectors: Vectors) -> None:
        """Write the next sentence.

        Raises:
            TextError: the sentence is too long to be a dataset's name.
        """
        if self.keys == "numbers":
            key = str(self.n_sentences)
        else:
            self._seen[sentence] += 1
            key = sentence_key(sentence, self._seen[sentence])
            if len(key.encode("utf-8")) > MAX_KEY_BYTES:
                raise TextError(
                    f"Sentence {self.n_sentences} has {len(sentence)} characters, too many for the name of an HDF5 "
                    "dataset. Leave out --use-sentence-keys."
                )
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


def sentence_key(sentence: str, occurrence: int = 1) -> str:
    """A dataset's name for a sentence: the text itself wherever HDF5 allows it.

    ``/`` would open a group, a lone ``.`` is the group itself, and names are unique; so these become ``%2F``
    and ``%2E``, the second ``the same`` becomes ``the same%#2``, and a ``%`` that would read as one of these
    becomes ``%25``.
    """
    key = _LOOKS_ESCAPED.sub("%25", sentence).replace("/", "%2F").replace("\0", "%00")
    if key == ".":
        key = "%2E"
    return key if occurrence == 1 and key else f"{key}%#{occurrence}"


def sentence_of_key(key: str) -> str:
    """The sentence that ``sentence_key`` made a name of."""
    text = _OCCURRENCE.sub("", key)
    return _ESCAPED.sub(lambda match: _ESCAPES[match.group()], text)


def read_sentence_map(file: h5py.File) -> dict[str, int]:
    """Sentence to line number, from a file written here or by ``allennlp elmo``, under either name of the map.

    Raises:
        FormatError: the file holds no map.
    """
    for name in (SENTENCE_MAP, OLD_SENTENCE_MAP):
        if name in file:
            content = json.loads(file[name].asstr()[0])
            return {sentence: int(index) for sentence, index in content.items()}
    raise FormatError(
        f"{Path(file.filename).name} holds no sentence map ({SENTENCE_MAP}): it was written with --forget-sentences or "
        "--use-sentence-keys."
    )
