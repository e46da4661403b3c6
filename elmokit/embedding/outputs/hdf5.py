"""Store vectors in HDF5, in the format of ``allennlp elmo``.

There is one dataset per sentence, named by its line number from 0 (or by its text), of shape ``(layers, tokens, dim)``
or ``(tokens, dim)``. With one vector per sentence, there is instead a single dataset ``vectors`` of shape ``(sentences,
dim)``, because thousands of tiny datasets are slow to read. ``sentence_to_index`` is a JSON text that maps each
sentence to its number as a string. The file's attribute ``elmokit`` says what computed it.

h5py creates the file with all datasets before any vector is computed, and closes it. From then on, it is a valid file
of its final size. Vectors are written into the allocated space without HDF5, because a process that dies while HDF5
has a file open often leaves it unreadable.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmokit.embedding.outputs.output_format import ABOUT, OutputFormat, VectorFileLayout
from elmokit.embedding.outputs.writer import SENTENCES_AT_ONCE, ResumableWriter
from elmokit.embedding.reading import SentenceCounts
from elmokit.errors import FormatError, OutputError, TextError
from elmokit.storage.hdf5_files import (
    HDF5_ERRORS,
    HDF5_SUFFIXES,
    HEADER_BYTES,
    DroppedInterrupts,
    create_hdf5,
    damage_as_format_error,
    open_hdf5,
)
from elmokit.storage.progress import StageCounter

if TYPE_CHECKING:
    import h5py

MAPS = ["sentence_to_index", "sentence_indices"]
"""The name of the map, and its name in early tutorials."""
POOLED = "vectors"
"""The dataset of sentence vectors."""
MAX_TEXT_BYTES = 2**32 - 1  # the length of a string is stored in four bytes
MAX_KEY_BYTES = 60_000  # HDF5 stores the name of a dataset in one 64 KiB header

_ESCAPES = {"%2F": "/", "%2E": ".", "%00": "\0", "%25": "%"}
_ESCAPED = re.compile("|".join(_ESCAPES))
_LOOKS_ESCAPED = re.compile("%(?=2F|2E|00|25|#)")
_OCCURRENCE = re.compile(r"%#\d+$")


class HDF5Format(OutputFormat):
    """HDF5 files."""

    name = "HDF5"
    extensions = HDF5_SUFFIXES
    stores = "keys"

    def file_bytes(self, layout: VectorFileLayout, counts: SentenceCounts) -> int:
        """Estimate the vectors, dataset headers with names, and maps."""
        n, n_text_bytes = counts.n_sentences, counts.n_text_bytes
        n_maps, n_datasets = len(_maps(layout)), 1 if layout.pooled else n
        n_name_bytes = n_text_bytes if _is_keyed(layout) else 0
        map_bytes = n_text_bytes + (len(str(n)) + 8) * n + 4096
        return layout.vector_bytes(counts) + HEADER_BYTES * n_datasets + n_name_bytes + n_maps * map_bytes + 8192

    def temporary_bytes(self, layout: VectorFileLayout, counts: SentenceCounts) -> int:
        """Return 0, because the file of vectors becomes the output."""
        return 0

    def allocate(self, writer: ResumableWriter, layout: VectorFileLayout, count: StageCounter) -> None:
        """Create the file: datasets with space for their vectors, the maps and the attribute."""
        import h5py

        text, maps = "", _maps(layout)
        if maps:
            # A sentence that occurs on several lines is mapped to the last one, as in AllenNLP.
            text = _json({name: number for number, name in enumerate(writer.read_names())})
            if len(text) > MAX_TEXT_BYTES:
                raise OutputError(
                    f"The map from sentences to numbers takes {len(text):,} bytes, more than HDF5 can store as a text. "
                    "Omit it with --forget-sentences."
                )
        counts = writer.progress.text
        n_datasets = 1 if layout.pooled else counts.n_sentences
        n_name_bytes = counts.n_text_bytes if _is_keyed(layout) else 16 * n_datasets
        with (
            create_hdf5(writer.vectors_path, 0, n_datasets, n_name_bytes) as file,
            DroppedInterrupts() as interrupts,
        ):
            file.attrs[ABOUT] = layout.about
            for name in maps:
                file.create_dataset(name, (1,), h5py.string_dtype(), [text])
            room = _Room(file, layout)
            if layout.pooled:
                first = room.add(POOLED, counts.n_sentences)
                writer.add_offsets(first + layout.row_bytes * np.arange(counts.n_sentences))
                return
            keys = _keys(writer, layout)
            for lengths in writer.read_lengths(SENTENCES_AT_ONCE):
                offsets = []
                for n_tokens in lengths.tolist():
                    offsets.append(room.add(next(keys), n_tokens))
                writer.add_offsets(np.array(offsets))
                interrupts.check()
                count(len(lengths))

    def write(self, writer: ResumableWriter, layout: VectorFileLayout) -> None:
        """Do nothing: the file of vectors is complete."""

    def read_about(self, path: Path) -> str:
        """Read the attribute of the file."""
        with open_hdf5(path) as file:
            text: str = file.attrs[ABOUT]
            return text


def _is_keyed(layout: VectorFileLayout) -> bool:
    # Sentence vectors are rows of one dataset, without names.
    return not layout.pooled and (layout.fasta or layout.keys == "sentences")


def _maps(layout: VectorFileLayout) -> list[str]:
    """Return the names of the maps from sentences to numbers."""
    if _is_keyed(layout) or not layout.with_sentences:  # datasets named by sentences need no map
        return []
    return MAPS if layout.with_old_map else MAPS[:1]


def _json(numbers: Mapping[str, int]) -> str:
    """Return the JSON of a map from sentences to numbers as strings, using less memory than ``json.dumps``."""
    entries = (f'{json.dumps(sentence)}: "{number}"' for sentence, number in numbers.items())
    return "{" + ", ".join(entries) + "}"


class _Room:
    """Creates datasets with allocated space in a file."""

    def __init__(self, file: h5py.File, layout: VectorFileLayout) -> None:
        from h5py import h5d, h5p, h5s, h5t

        self._create, self._space = h5d.create, h5s.create_simple
        self._file, self._layout = file.id, layout
        self._kind = {"float32": h5t.IEEE_F32LE, "float16": h5t.IEEE_F16LE}[layout.dtype]
        self._properties = h5p.create(h5p.DATASET_CREATE)
        self._properties.set_layout(h5d.CONTIGUOUS)
        self._properties.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        self._properties.set_fill_time(h5d.FILL_TIME_NEVER)
        self._properties.set_obj_track_times(False)
        self._spaces: dict[int, Any] = {}

    def add(self, name: str, n_rows: int) -> int:
        """Create a dataset, and return the file offset of its numbers; 0 if it has none."""
        if n_rows not in self._spaces:
            n_layers = self._layout.n_layers
            shape = (n_rows, self._layout.dim)
            self._spaces[n_rows] = self._space(shape if n_layers is None else (n_layers, *shape))
        dataset = self._create(self._file, name.encode(), self._kind, self._spaces[n_rows], self._properties)
        return dataset.get_offset() or 0


def _keys(writer: ResumableWriter, layout: VectorFileLayout) -> Iterator[str]:
    if not _is_keyed(layout):
        return map(str, range(writer.progress.text.n_sentences))
    return sentence_keys(writer.read_names())


def sentence_keys(sentences: Iterable[str]) -> Iterator[str]:
    """Yield the dataset name of each sentence, or raise a TextError if it is too long for one."""
    seen: Counter[str] = Counter()
    for number, sentence in enumerate(sentences):
        seen[sentence] += 1
        key = sentence_key(sentence, seen[sentence])
        if len(key.encode()) > MAX_KEY_BYTES:
            raise TextError(
                f"Sentence {number} has {len(sentence)} characters, too many for the name of an HDF5 dataset "
                "(--use-sentence-keys)."
            )
        yield key


def sentence_key(sentence: str, occurrence: int = 1) -> str:
    """Return the dataset name of a sentence: its text, as far as HDF5 allows it."""
    # In HDF5, "/" separates groups, "." is the group itself, and names are unique. So these become %2F and %2E, a
    # second "the same" becomes "the same%#2", and a "%" that could be mistaken for one of these becomes %25.
    key = _LOOKS_ESCAPED.sub("%25", sentence).replace("/", "%2F").replace("\0", "%00")
    if key == ".":
        key = "%2E"
    return key if occurrence == 1 and key else f"{key}%#{occurrence}"


def sentence_of_key(key: str) -> str:
    """Return the sentence for a dataset name made by :func:`sentence_key`."""
    text = _OCCURRENCE.sub("", key)
    return _ESCAPED.sub(lambda match: _ESCAPES[match.group()], text)


def read_sentence_map(file: h5py.File | str | Path) -> dict[str, int]:
    """Return the map from sentences to line numbers in a file written by elmokit or ``allennlp elmo``.

    Args:
        file: The file, or its path.

    Raises:
        FormatError: The file has no map under either name, or cannot be read.
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
            f"{file.filename} has no sentence map (--forget-sentences, --use-sentence-keys): {error}"
        ) from None


FORMATS = (HDF5Format(),)
