"""The formats of outputs, as one table: the extension of the output chooses one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from elmokit.embedding.outputs.arrow import arrow_bytes, check_pyarrow, write_arrow, write_parquet
from elmokit.embedding.outputs.hdf5 import check_key, hdf5_bytes, write_index
from elmokit.embedding.outputs.layout import DatasetNames, StoredDtype, VectorFileLayout
from elmokit.embedding.outputs.npz import npz_bytes, write_npz
from elmokit.embedding.outputs.writer import ResumableWriter
from elmokit.embedding.reading import SentenceCounts
from elmokit.errors import ConfigError
from elmokit.storage.atomic import check_extension
from elmokit.storage.hdf5 import HDF5_SUFFIXES


class OutputFormat(NamedTuple):
    """How an output is written."""

    name: str
    finish: Callable[[ResumableWriter, VectorFileLayout], None]
    """Makes the output from vectors, lengths, names and tokens, after the last pool."""
    file_bytes: Callable[[VectorFileLayout, SentenceCounts], int]
    """Estimates the size of the output."""
    is_hdf5: bool = False
    """Whether the file of vectors becomes the output, by an index at its end that gives names to datasets. Otherwise
    the output is written next to that file, and both need space until it is complete."""
    check: Callable[[VectorFileLayout], None] = lambda layout: None
    """Raises an error, before any work is done, if the format cannot be written."""
    check_name: Callable[[str, int], None] = lambda name, number: None
    """Raises an error if a row cannot have a name. Called with the name and the number of its sentence."""

    def layout(
        self,
        layers: tuple[int, ...] | None,
        dim: int,
        dtype: StoredDtype,
        keys: DatasetNames,
        with_map: bool,
        with_old_map: bool,
        fasta: bool,
        pooled: bool,
    ) -> VectorFileLayout:
        """Return the layout of an output, and check that the format can be written so.

        Args:
            layers, dim, dtype: As in :class:`~elmokit.embedding.outputs.layout.VectorFileLayout`.
            keys, with_map, with_old_map, fasta: As in :func:`~elmokit.embedding.corpus.embed_file`.
            pooled: Whether there is one vector per sentence.

        Raises:
            ConfigError: The format cannot have these names or layers.
            MissingExtraError: A library for the format is not installed.
        """
        if keys == "sentences" and (pooled or not self.is_hdf5):
            what = "Sentence vectors are rows of one table" if pooled else f"A {self.name} output has no datasets"
            raise ConfigError(f"{what}, so use_sentence_keys has nothing to name. Leave it out.")
        if with_old_map and not self.is_hdf5:
            raise ConfigError(
                f"A {self.name} output has no map of sentences, so include_sentence_indices cannot be used. Leave it "
                "out."
            )
        layout = VectorFileLayout(
            layers,
            dim,
            dtype,
            # The sentence vectors of HDF5 are rows of one dataset, which have no names.
            "sentences" if fasta and not (self.is_hdf5 and pooled) else keys,
            0 if keys == "sentences" or (fasta and not pooled) else with_map * (1 + with_old_map),
            pooled,
            with_map and not self.is_hdf5,
        )
        self.check(layout)
        return layout

    def temporary_bytes(self, layout: VectorFileLayout, counts: SentenceCounts) -> int:
        """Return the size of what needs space next to the output until it is complete."""
        return 0 if self.is_hdf5 else layout.vector_bytes(counts)


HDF5 = OutputFormat("HDF5", write_index, hdf5_bytes, is_hdf5=True, check_name=check_key)
FORMATS = {
    **dict.fromkeys(HDF5_SUFFIXES, HDF5),
    ".parquet": OutputFormat("Parquet", write_parquet, arrow_bytes, check=check_pyarrow),
    ".arrow": OutputFormat("Arrow", write_arrow, arrow_bytes, check=check_pyarrow),
    ".npz": OutputFormat("NumPy", write_npz, npz_bytes),
}
"""The formats by extension."""


def output_format(output: str | Path) -> OutputFormat:
    """Return the format of an output; HDF5 if its name has no extension.

    Raises:
        OutputError: It has the extension of another format.
    """
    check_extension(output, list(FORMATS))
    return FORMATS.get(Path(output).suffix, HDF5)
