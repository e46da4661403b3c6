"""Write the vectors of a corpus so that an interrupted run can be resumed.

Until ``OUT`` is complete, it grows in the directory ``OUT.partial``, a
:class:`~elmokit.storage.resumable.ResumableStore`:

=================  =====================================================================================
``vectors.hdf5``   the vectors of one sentence after another. An HDF5 ``OUT`` is this file, with an index at its end
``lengths``        the number of tokens of each sentence, int64
``names``          each sentence as a line of UTF-8, or each identifier
``tokens``         for formats that store tokens: those of each sentence, as a line of JSON
``output``         in formats other than HDF5: becomes ``OUT``, written from the others when they are complete
``state-N``        with ``start="stateful"``: the LSTM state after the sentences so far (safetensors)
``journal.json``   how much of these files is complete, and the settings of the run
=================  =====================================================================================

Why not write HDF5 directly? h5py needs 0.3 ms to create a small dataset, and an HDF5 file whose process dies while it
is open cannot be read again. So the index is written once, at the end, behind the data (``hdf5.py``). Other formats
cannot be appended to after a crash either, so they too are written at the end.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.fingerprint import RESTORE
from elmokit.engine.state import State
from elmokit.errors import cannot_write
from elmokit.storage.atomic import check_has_name, check_output_path
from elmokit.storage.resumable import ResumableStore
from elmokit.storage.store_journal import read_journal

DATA_START = 512
"""Where the vectors begin: behind room for the header of a format that is completed in place (of HDF5, 96 bytes). A
multiple of the block size of disks."""
VECTORS, LENGTHS, NAMES, TOKENS, OUTPUT = "vectors.hdf5", "lengths", "names", "tokens", "output"
REPLACES = "replaces"  # a file of one byte: the output existed when the run was started, with overwrite


@dataclass(frozen=True)
class WriteProgress:
    """How much of an output is complete: all pools up to some sentence, and batches of the pool after that."""

    # Batches of a pool are computed longest sentences first, so a part of a pool does not end at a sentence.

    n_sentences: int = 0
    n_tokens: int = 0
    n_blank: int = 0
    data_end: int = DATA_START
    """Where the vectors of the complete pools end in the file."""
    checksum: int = 0
    """CRC-32 of the text of the complete pools, to check on resume that the text is still the same."""
    n_batches: int = 0
    """Batches of the next pool. Their vectors are in the file; lengths and names follow with the whole pool."""
    pool_checksum: int = 0
    """``checksum`` as it will be after that pool."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to resume."""
        return not (self.n_sentences or self.n_batches)


class ResumableWriter:
    """The growing output of one run, from :func:`open_resumable`. An OSError says that a file cannot be written."""

    def __init__(self, store: ResumableStore) -> None:
        self._store = store
        for name in (VECTORS, LENGTHS, NAMES):
            store.size(name)  # creates the file: an empty text has an output, too
        self._published = VECTORS
        self.progress = store.committed.progress_as(WriteProgress)
        content = store.committed.read_state()
        self.state = None if content is None else _load_state(content)
        """With ``start="stateful"``, the LSTM state after the complete pools."""

    @property
    def vectors_path(self) -> Path:
        """The growing file of vectors."""
        return self._store.folder / VECTORS

    def create_output(self) -> Path:
        """Create an empty file that will become the output, instead of the file of vectors."""
        self._published = OUTPUT
        self._store.size(OUTPUT)  # creates the file, or empties one that an interrupted run left
        return self._store.folder / OUTPUT

    def publish(self, target: Path) -> None:
        """Move the output to its final place, and delete everything else."""
        self._store.publish(self._published, target)

    def write_vectors(self, offset: int, vectors: NDArray[Any]) -> None:
        """Write vectors at an offset of the file."""
        self._store.write_at(VECTORS, offset, vectors)

    def end_batch(self, pool_checksum: int) -> None:
        """Count a batch of the next pool as written, and commit if it is time to."""
        # The vectors of a pool are written at their final offsets, in the order of computation. They count batch by
        # batch, while lengths and names are appended in text order when the pool is complete.
        self._advance(replace(self.progress, n_batches=self.progress.n_batches + 1, pool_checksum=pool_checksum))

    def discard_batches(self) -> None:
        """Count the batches of the incomplete pool as not written. They will be overwritten."""
        # Committed at once: after a crash, the new run must not take overwritten batches for the old ones.
        self.progress = replace(self.progress, n_batches=0, pool_checksum=0)
        self.end_data()

    def end_pool(
        self,
        progress: WriteProgress,
        lengths: NDArray[np.int64],
        names: bytes,
        state: State | None = None,
        tokens: bytes = b"",
    ) -> None:
        """Append a pool to the files of lengths, names and tokens, and commit if it is time to.

        ``names`` and ``tokens`` are the lines of these files; ``state`` is the LSTM state after the pool.
        """
        # Fixed byte order: the file is read back with "<i8" on any machine.
        self._store.append(LENGTHS, lengths.astype("<i8"))
        self._store.append(NAMES, names)
        if tokens:
            self._store.append(TOKENS, tokens)
        self.state = state
        self._advance(progress)

    def _advance(self, progress: WriteProgress) -> None:
        self.progress = progress
        # Not after every batch: a commit waits for the disk, and a lost batch costs less than many waits.
        if self._store.commit_is_due():
            self.commit()

    def commit(self) -> None:
        """Make everything written so far survive an interruption."""
        self._commit({})

    def _commit(self, truncate: dict[str, int]) -> None:
        state = None if self.state is None else _save_state(self.state)
        self._store.commit(asdict(self.progress), state=state, truncate=truncate)

    def end_data(self) -> None:
        """Commit, and cut off the vectors behind the complete pools."""
        # These are batches that count no more, because the text has changed or has become shorter.
        self._commit({VECTORS: self.progress.data_end})

    def read_names(self) -> Iterator[str]:
        """Yield the names of the sentences in order."""
        return self._read_lines(NAMES)

    def read_tokens(self) -> Iterator[list[str]]:
        """Yield the tokens of the sentences in order; nothing if they are not stored."""
        self._store.size(TOKENS)  # creates the file, in case there is no sentence
        return map(json.loads, self._read_lines(TOKENS))

    def _read_lines(self, name: str) -> Iterator[str]:
        with (self._store.folder / name).open(encoding="utf-8", newline="\n") as file:
            # newline="\n": by default, a carriage return inside a sentence would end its line.
            for line in islice(file, self.progress.n_sentences):
                yield line.removesuffix("\n")

    def read_lengths(self, n_at_once: int = 65536) -> Iterator[NDArray[np.int64]]:
        """Yield the number of tokens of the sentences in order, in arrays."""
        with (self._store.folder / LENGTHS).open("rb") as file:
            for start in range(0, self.progress.n_sentences, n_at_once):
                # In blocks: a corpus can have many millions of sentences.
                yield read_numbers(file, "<i8", min(n_at_once, self.progress.n_sentences - start))


def read_numbers(file: BinaryIO, dtype: str, n: int) -> NDArray[Any]:
    """Read numbers from the position of a file, or raise an OSError if it has fewer."""
    # `np.fromfile` would return fewer, and an output without them would replace the partial one.
    n_bytes = n * np.dtype(dtype).itemsize
    content = file.read(n_bytes)
    if len(content) < n_bytes:
        raise OSError(errno.EIO, f"{file.name} ends too early")
    return np.frombuffer(content, dtype)


@contextlib.contextmanager
def open_resumable(output: str | Path, settings: dict[str, Any], overwrite: bool = False) -> Iterator[ResumableWriter]:
    """Start an output or resume a partial one; at the end of the block, move the finished file to ``output``.

    If the block raises an error, what was committed is kept for the next run. If nothing was, nothing is left behind.
    Only a run with the same ``settings``, JSON values that the vectors depend on, can be resumed.
    """
    output = Path(output)
    check_resumable_output(output, overwrite)
    replaces = output.exists()
    store = ResumableStore(
        partial_folder(output),
        settings,
        restore=RESTORE,
        overwrite=overwrite,
        locked_message=f"{output} is being written by another process. Wait for it, or choose another name.",
    )
    with store:
        if replaces and not store.size(REPLACES):
            store.append(REPLACES, b"1")
        writer = ResumableWriter(store)
        yield writer
        # Reached only if the block raised nothing: an exception leaves through `yield`.
        writer.publish(output)


def check_resumable_output(output: str | Path, overwrite: bool) -> None:
    """Check before any work is done that an output can be started, continued or, with ``overwrite``, started anew.

    Raises:
        OutputError: It has no name or one that is too long, or it exists and may not be overwritten.
    """
    check_has_name(output)
    # The call that started to overwrite it is resumed without `overwrite`.
    try:
        check_output_path(output, overwrite or _is_replaced(output))
    except OSError as error:  # a name that is too long with the ending of its partial output, for example
        raise cannot_write(output, error.strerror) from None


def _is_replaced(output: str | Path) -> bool:
    marker = partial_folder(output) / REPLACES
    return has_partial_output(output) and marker.exists() and marker.stat().st_size > 0


def has_partial_output(output: str | Path) -> bool:
    """Check whether an interrupted run has left an output that can be resumed."""
    folder = partial_folder(output)
    journal = read_journal(folder) if folder.is_dir() else None
    if journal is None or not journal.progress:
        return False
    # Without its file, it was moved to its final place by a process that died before it removed the rest.
    return journal.published is None or (folder / journal.published).exists()


def partial_folder(output: str | Path) -> Path:
    """Return the directory in which an output grows."""
    return Path(output).with_name(Path(output).name + ".partial")


def _save_state(state: State) -> bytes:
    # Imported here, because only stateful runs need it.
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(array) for name, array in state._asdict().items()})


def _load_state(content: bytes) -> State:
    from safetensors.numpy import load

    return State(**load(content))
