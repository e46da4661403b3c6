"""Vectors in HDF5, in the layout of ``allennlp elmo``.

One dataset per sentence, named by its line number from 0 (or by its text), ``(layers, tokens, dim)`` or
``(tokens, dim)``; and ``sentence_to_index``, one JSON text that maps each sentence to its number as a string.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Literal

import h5py
import numpy as np

from elmokit.corpus.hdf5_format import (
    DATA_START,
    dataset_headers,
    group_bytes,
    header_bytes,
    name_bytes,
    number_name_bytes,
    numbers_by_name,
    write_group,
    write_text_dataset,
)
from elmokit.corpus.unfinished import VECTORS, ResumableWriter
from elmokit.errors import FormatError, TextError

MAPS = ["sentence_to_index", "sentence_indices"]
"""The map's name, and the name that early tutorials gave it."""
MAX_KEY_BYTES = 60_000  # HDF5 keeps a dataset's name in one 64 KiB header

Keys = Literal["numbers", "sentences"]

_ESCAPES = {"%2F": "/", "%2E": ".", "%00": "\0", "%25": "%"}
_ESCAPED = re.compile("|".join(_ESCAPES))
_LOOKS_ESCAPED = re.compile("%(?=2F|2E|00|25|#)")
_OCCURRENCE = re.compile(r"%#\d+$")


def write_index(
    unfinished: ResumableWriter,
    n_layers: int | None,
    dim: int,
    dtype: str,
    keys: Keys = "numbers",
    with_map: bool = True,
    with_old_map: bool = False,
) -> None:
    """Make an HDF5 file of the vectors that were written.

    Args:
        n_layers, dim, dtype: datasets are ``(n_layers, tokens, dim)``; None for ``(tokens, dim)``.
        keys: name datasets by line number, or by the sentence's text.
        with_map: write ``sentence_to_index`` (with numbers as keys only, as in AllenNLP). A sentence that stands on
            several lines is mapped to the last, as in AllenNLP.
        with_old_map: write the map under its old name too.

    Raises:
        OutputError: the map is too long for HDF5.
    """
    with (unfinished.folder / VECTORS).open("r+b") as file:
        done = unfinished.done
        file.truncate(done.data_end)
        first = position = -(-done.data_end // 8) * 8
        file.seek(position)
        data_end = DATA_START
        for lengths in unfinished.read_lengths():
            headers, data_end = dataset_headers(data_end, lengths, n_layers, dim, dtype)
            position += file.write(headers)
        size = header_bytes(n_layers)
        if keys == "sentences":
            named = enumerate(sentence_keys(unfinished.read_names()))
            entries = sorted((key.encode("utf-8"), first + row * size) for row, key in named)
            write_group(file, position, entries, sum(name_bytes(name) for name, _ in entries))
            return
        maps: list[tuple[bytes, int]] = []
        for name in MAPS[: with_map * (1 + with_old_map)]:
            address, position = write_text_dataset(file, position, sentence_map(unfinished.read_names))
            maps.append((name.encode("ascii"), address))
        numbers = ((b"%d" % number, first + number * size) for number in numbers_by_name(done.n_sentences))
        n_name_bytes = number_name_bytes(done.n_sentences) + sum(name_bytes(name) for name, _ in maps)
        write_group(file, position, chain(numbers, sorted(maps)), n_name_bytes)


def index_bytes(n_sentences: int, n_text_bytes: int, n_layers: int | None, keys: Keys, n_maps: int) -> int:
    """About what ``write_index`` writes."""
    n_name_bytes = number_name_bytes(n_sentences) if keys == "numbers" else n_text_bytes + 5 * n_sentences
    of_a_map = 160 + max(4096, n_text_bytes + (len(str(n_sentences)) + 8) * n_sentences)
    maps = n_maps * of_a_map if keys == "numbers" else 0
    return n_sentences * header_bytes(n_layers) + group_bytes(n_sentences + n_maps, n_name_bytes) + maps


def sentence_map(read_names: Callable[[], Iterable[str]]) -> Iterator[bytes]:
    """``json.dumps`` of the dict from each sentence to its last number as a string, in parts.

    Only sentences that stand on several lines are held in memory, and eight bytes for each line.

    Args:
        read_names: a fresh iterator over the sentences; it is read three times.
    """
    hashes = np.fromiter(map(hash, read_names()), dtype=np.int64)
    distinct, counts = np.unique(hashes, return_counts=True)
    repeated = set(distinct[counts > 1].tolist())
    last = {name: row for row, name in enumerate(read_names()) if hash(name) in repeated}
    yield b"{"
    between = ""
    for row, name in enumerate(read_names()):
        # A repeated sentence stands in the map where it stood first.
        number = last.pop(name, None) if hash(name) in repeated else row
        if number is not None:
            yield f'{between}{json.dumps(name)}: "{number}"'.encode("ascii")
            between = ", "
    yield b"}"


def sentence_keys(sentences: Iterable[str]) -> Iterator[str]:
    """The names of the sentences' datasets."""
    seen: Counter[str] = Counter()
    for sentence in sentences:
        seen[sentence] += 1
        yield sentence_key(sentence, seen[sentence])


def check_key(sentence: str, number: int) -> None:
    """Whether a sentence can be the name of a dataset.

    Raises:
        TextError: it is too long.
    """
    if len(sentence_key(sentence, number + 2).encode("utf-8")) > MAX_KEY_BYTES:
        raise TextError(
            f"Sentence {number} has {len(sentence)} characters, too many for the name of an HDF5 dataset. Leave out "
            "--use-sentence-keys."
        )


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
    for name in MAPS:
        if name in file:
            content = json.loads(file[name].asstr()[0])
            return {sentence: int(index) for sentence, index in content.items()}
    raise FormatError(
        f"{Path(file.filename).name} holds no sentence map ({MAPS[0]}): it was written with --forget-sentences or "
        "--use-sentence-keys."
    )
