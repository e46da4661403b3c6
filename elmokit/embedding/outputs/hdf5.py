"""Store vectors in HDF5, in the format of ``allennlp elmo``.

There is one dataset per sentence, named by its line number from 0 (or by its text), of shape ``(layers, tokens, dim)``
or ``(tokens, dim)``. With one vector per sentence there is a single dataset ``vectors`` of shape ``(sentences, dim)``
instead, because thousands of tiny datasets are slow to read. ``sentence_to_index`` is one JSON text that maps each
sentence to its number as a string. The attribute ``elmokit`` of the file says what computed it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmokit.embedding.outputs.hdf5_index import (
    attribute_bytes,
    dataset_headers,
    group_bytes,
    header_bytes,
    name_bytes,
    number_name_bytes,
    numbers_by_name,
    write_group,
    write_text_attribute,
    write_text_dataset,
)
from elmokit.embedding.outputs.layout import VectorFileLayout
from elmokit.embedding.outputs.output_format import ABOUT, OutputFormat
from elmokit.embedding.outputs.writer import DATA_START, ResumableWriter
from elmokit.embedding.reading import SentenceCounts
from elmokit.errors import FormatError, TextError
from elmokit.storage.hdf5 import HDF5_ERRORS, HDF5_SUFFIXES, damage_as_format_error, open_hdf5

if TYPE_CHECKING:
    import h5py

MAPS = ["sentence_to_index", "sentence_indices"]
"""The name of the map, and the name that it has in early tutorials."""
POOLED = "vectors"
"""The dataset of sentence vectors. It sorts after the maps, as :meth:`HDF5Format.write` needs."""
MAX_KEY_BYTES = 60_000  # HDF5 stores the name of a dataset in one 64 KiB header

_ESCAPES = {"%2F": "/", "%2E": ".", "%00": "\0", "%25": "%"}
_ESCAPED = re.compile("|".join(_ESCAPES))
_LOOKS_ESCAPED = re.compile("%(?=2F|2E|00|25|#)")
_OCCURRENCE = re.compile(r"%#\d+$")


class HDF5Format(OutputFormat):
    """HDF5 files: the growing file of vectors, with an index at its end that gives names to datasets."""

    name = "HDF5"
    extensions = HDF5_SUFFIXES
    stores = "keys"

    def check_names(self, layout: VectorFileLayout, names: Sequence[str], first: int) -> None:
        """Check that sentences that name datasets are not too long."""
        if _is_keyed(layout):
            for number, name in enumerate(names, start=first):
                check_key(name, number)

    def file_bytes(self, layout: VectorFileLayout, counts: SentenceCounts) -> int:
        """Estimate the vectors, the index of datasets, the maps and the attribute."""
        n, n_text_bytes = counts.n_sentences, counts.n_text_bytes
        map_bytes = 160 + max(4096, n_text_bytes + (len(str(n)) + 8) * n)
        n_name_bytes = n_text_bytes + 5 * n if _is_keyed(layout) else number_name_bytes(n)
        n_datasets, n_maps = n, len(_maps(layout))
        if layout.pooled:
            n_datasets, n_name_bytes = 1, name_bytes(POOLED.encode("ascii"))
        index = n_datasets * header_bytes(layout.n_layers) + group_bytes(n_datasets + n_maps, n_name_bytes)
        about = attribute_bytes(ABOUT.encode("ascii"), len(layout.about))
        return layout.vector_bytes(counts) + index + n_maps * map_bytes + about

    def temporary_bytes(self, layout: VectorFileLayout, counts: SentenceCounts) -> int:
        """Return 0, because the file of vectors becomes the output."""
        return 0

    def write(self, writer: ResumableWriter, layout: VectorFileLayout) -> None:
        """Write the index behind the vectors. An OutputError if the map of sentences is too long for HDF5."""
        done, n = writer.progress, writer.progress.n_sentences
        with writer.vectors_path.open("r+b") as file:
            # First the headers of all datasets, in order: the header of dataset n is at first_header + n * size.
            first_header = position = -(-done.data_end // 8) * 8
            file.seek(position)
            data_end = DATA_START
            # With one vector per sentence, all sentences are the rows of one dataset.
            for lengths in [np.array([n])] if layout.pooled else writer.read_lengths():
                headers, data_end = dataset_headers(data_end, lengths, layout.n_layers, layout.dim, layout.dtype)
                position += file.write(headers)
            size = header_bytes(layout.n_layers)
            about, position = write_text_attribute(file, position, ABOUT.encode("ascii"), layout.about.encode("ascii"))
            # Then the group that lists them. HDF5 looks names up by bisection, so they must be sorted as bytes.
            maps: list[tuple[bytes, int]] = []
            for name in _maps(layout):
                address, position = write_text_dataset(file, position, sentence_map(writer.read_names))
                maps.append((name.encode("ascii"), address))
            maps.sort()
            if not layout.pooled and not _is_keyed(layout):
                # Every digit sorts before "s", so the maps follow the numbers.
                numbers = ((b"%d" % number, first_header + number * size) for number in numbers_by_name(n))
                n_name_bytes = number_name_bytes(n) + sum(name_bytes(name) for name, _ in maps)
                write_group(file, position, chain(numbers, maps), n_name_bytes, about)
                return
            if layout.pooled:
                entries = [*maps, (POOLED.encode("ascii"), first_header)]
            else:
                keys = enumerate(sentence_keys(writer.read_names()))
                entries = sorted((key.encode("utf-8"), first_header + number * size) for number, key in keys)
            write_group(file, position, entries, sum(name_bytes(name) for name, _ in entries), about)

    def read_about(self, path: Path) -> str:
        """Read the attribute of the file."""
        with open_hdf5(path) as file:
            text: str = file.attrs[ABOUT]
            return text


def _is_keyed(layout: VectorFileLayout) -> bool:
    # Sentence vectors are rows of one dataset, which have no names.
    return not layout.pooled and (layout.fasta or layout.keys == "sentences")


def _maps(layout: VectorFileLayout) -> list[str]:
    # Datasets that are named by sentences need no map.
    return [] if _is_keyed(layout) else MAPS[: layout.with_sentences * (1 + layout.with_old_map)]


def sentence_map(read_names: Callable[[], Iterable[str]]) -> Iterator[bytes]:
    """Yield, piece by piece, ``json.dumps`` of the dict from each sentence to its last number as a string."""
    # Memory holds only the sentences that occur on several lines, and eight bytes per line for the hashes that find
    # them.
    hashes = np.fromiter(map(hash, read_names()), dtype=np.int64)
    distinct, counts = np.unique(hashes, return_counts=True)
    repeated = set(distinct[counts > 1].tolist())
    last = {name: row for row, name in enumerate(read_names()) if hash(name) in repeated}
    yield b"{"
    between = ""
    for row, name in enumerate(read_names()):
        # Like a dict, the map has a repeated sentence at the position of its first occurrence.
        number = last.pop(name, None) if hash(name) in repeated else row
        if number is not None:
            yield f'{between}{json.dumps(name)}: "{number}"'.encode("ascii")
            between = ", "
    yield b"}"


def sentence_keys(sentences: Iterable[str]) -> Iterator[str]:
    """Yield the dataset name of each sentence."""
    seen: Counter[str] = Counter()
    for sentence in sentences:
        seen[sentence] += 1
        yield sentence_key(sentence, seen[sentence])


def check_key(sentence: str, number: int) -> None:
    """Raise a TextError if a sentence is too long for the name of a dataset."""
    if len(sentence_key(sentence, number + 2).encode("utf-8")) > MAX_KEY_BYTES:
        raise TextError(
            f"Sentence {number} has {len(sentence)} characters, too many for the name of an HDF5 dataset "
            "(--use-sentence-keys)."
        )


def sentence_key(sentence: str, occurrence: int = 1) -> str:
    """Return the name of the dataset of a sentence: its text, wherever HDF5 allows it."""
    # In HDF5, "/" separates groups, a lone "." is the group itself, and names are unique. So these become %2F and %2E,
    # the second "the same" becomes "the same%#2", and a "%" that could be mistaken for one of these becomes %25.
    key = _LOOKS_ESCAPED.sub("%25", sentence).replace("/", "%2F").replace("\0", "%00")
    if key == ".":
        key = "%2E"
    return key if occurrence == 1 and key else f"{key}%#{occurrence}"


def sentence_of_key(key: str) -> str:
    """Return the sentence of a dataset name made by :func:`sentence_key`."""
    text = _OCCURRENCE.sub("", key)
    return _ESCAPED.sub(lambda match: _ESCAPES[match.group()], text)


def read_sentence_map(file: h5py.File | str | Path) -> dict[str, int]:
    """Return the map from sentence to line number of a file written by elmokit or by ``allennlp elmo``.

    Args:
        file: The file, or its path.

    Raises:
        FormatError: The file has no map, under either of its names, or cannot be read.
    """
    if isinstance(file, str | Path):
        with damage_as_format_error(file), open_hdf5(file) as opened:
            return read_sentence_map(opened)
    name = next((name for name in MAPS if name in file), MAPS[0])
    try:
        content = json.loads(file[name].asstr()[0])
        return {sentence: int(index) for sentence, index in content.items()}
    except (*HDF5_ERRORS, AttributeError, IndexError) as error:
        raise FormatError(
            f"{file.filename} has no sentence map (--forget-sentences, --use-sentence-keys) that can be read: {error}"
        ) from None
