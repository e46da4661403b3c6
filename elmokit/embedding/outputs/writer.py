"""Write the vectors of a corpus so that an interrupted run can be resumed.

Until ``OUT`` is complete, it grows in the directory ``OUT.partial``, a
:class:`~elmokit.storage.workspace.Workspace`:

===========  ===========================================================================================
``tokens``   the text: the tokens of each sentence, as a line of JSON
``names``    each sentence or identifier, as a line of UTF-8
``lengths``  the number of tokens of each sentence, int64
``offsets``  the start of each sentence in ``vectors``, int64
``vectors``  the vectors of all sentences. In HDF5, this file becomes ``OUT``: it has all datasets, still empty
``output``   in other formats: becomes ``OUT``; written from the other files when they are complete
===========  ===========================================================================================

The text is read once, before any vector is computed, so all lengths are known, and standard input can be used, too.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.reading import CorpusSentence, SentenceCounts
from elmokit.engine.state import State
from elmokit.errors import OutputError, TextError, cannot_write
from elmokit.storage.atomic import check_has_name, check_output_path
from elmokit.storage.progress import ProgressCallback, Stage
from elmokit.storage.workspace import OtherVersionError, Workspace, read_workspace
from elmokit.text.batching import read_ahead

TOKENS, NAMES, LENGTHS, OFFSETS, VECTORS, OUTPUT = "tokens", "names", "lengths", "offsets", "vectors", "output"
READING = Stage("reading the text", "sentences")
SENTENCES_AT_ONCE = 1000
_LENGTHS_AT_ONCE = 65536


@dataclass(frozen=True)
class WriteProgress:
    """The complete part of an output: all pools up to some sentence, and some batches of the next pool."""

    # Within a pool, batches with the longest sentences are computed first, so a partial pool does not end at a
    # sentence.

    text: SentenceCounts = field(default_factory=SentenceCounts)
    """The size and hash of the whole text."""
    n_sentences: int = 0
    n_tokens: int = 0
    n_batches: int = 0
    """Number of complete batches of the next pool."""
    replaces: bool = False
    """Whether the run was started to overwrite an output."""
    is_laid_out: bool = True
    """Whether the file of vectors has been laid out; if not, only the text is complete."""


class ResumableWriter:
    """The growing output of a run, from :func:`open_resumable`. Methods raise an OSError if writing fails."""

    def __init__(self, workspace: Workspace, replaces: bool) -> None:
        self._workspace = workspace
        self._published = VECTORS
        self.is_new = not workspace.progress
        """Whether no earlier run is continued."""
        self.progress = WriteProgress(replaces=replaces, is_laid_out=False)
        if workspace.progress:
            self.progress = msgspec.convert(workspace.progress, WriteProgress)
        content = workspace.committed.read_state()
        self.state = None if content is None else _load_state(content)
        """With ``start="stateful"``, the LSTM state after the complete pools."""

    def read_text(self, corpus: Iterable[CorpusSentence], progress: ProgressCallback | None = None) -> SentenceCounts:
        """Read a text to its end and store it; when resuming, check that it is the same text."""
        counts, digest = SentenceCounts(), hashlib.blake2b(digest_size=16)
        if self.is_new:
            for name in (TOKENS, NAMES, LENGTHS, OFFSETS, VECTORS):  # an empty text also has an output
                self._workspace.create(name)
        for sentences in read_ahead(corpus, max_items=SENTENCES_AT_ONCE):
            lengths = np.array([len(sentence.tokens) for sentence in sentences], "<i8")
            names = "".join(f"{sentence.name}\n" for sentence in sentences).encode()
            digest.update("".join(f"{sentence.text}\n" for sentence in sentences).encode())
            counts = SentenceCounts(
                counts.n_sentences + len(sentences),
                counts.n_tokens + int(lengths.sum()),
                counts.n_blank + int((lengths == 0).sum()),
                counts.n_text_bytes + len(names) - len(sentences),
                digest.hexdigest(),
            )
            if self.is_new:
                self._append_text(sentences, names, lengths)
            if progress is not None and len(sentences) == SENTENCES_AT_ONCE:
                progress(READING, counts.n_sentences, None)
        if self.is_new:
            self.progress = replace(self.progress, text=counts)
        elif counts != self.progress.text:
            raise TextError(
                "The text differs from that of the interrupted run: restore it, or start over with --overwrite."
            )
        return counts

    def _append_text(self, sentences: Iterable[CorpusSentence], names: bytes, lengths: NDArray[np.int64]) -> None:
        tokens = "".join(f"{json.dumps(sentence.tokens)}\n" for sentence in sentences)
        self._workspace.append(TOKENS, tokens.encode("ascii"))
        self._workspace.append(NAMES, names)
        self._workspace.append(LENGTHS, lengths)

    @property
    def vectors_path(self) -> Path:
        """The file of vectors."""
        return self._workspace.folder / VECTORS

    def add_offsets(self, offsets: NDArray[np.int64]) -> None:
        """Record where the next sentences begin in the file of vectors."""
        self._workspace.append(OFFSETS, offsets.astype("<i8"))

    def offsets(self) -> NDArray[np.int64]:
        """Return where each sentence begins in the file of vectors."""
        return np.frombuffer((self._workspace.folder / OFFSETS).read_bytes(), "<i8")

    def write_vectors(self, offset: int, vectors: NDArray[Any]) -> None:
        """Write vectors at an offset of the file."""
        self._workspace.write_at(VECTORS, offset, vectors)

    def end_batch(self) -> None:
        """Count a batch of the next pool as written, and commit if it is due."""
        # The vectors of a pool are written in the order of computation, and counted by batch.
        self._advance(replace(self.progress, n_batches=self.progress.n_batches + 1))

    def end_pool(self, n_sentences: int, n_tokens: int, state: State | None = None) -> None:
        """Count a pool as written, and commit if it is due; ``state`` is the LSTM state after the pool."""
        self.state = state
        done = self.progress
        self._advance(
            replace(done, n_sentences=done.n_sentences + n_sentences, n_tokens=done.n_tokens + n_tokens, n_batches=0)
        )

    def _advance(self, progress: WriteProgress) -> None:
        self.progress = progress
        # Commits wait for the disk, and losing a batch costs less than committing each one.
        if self._workspace.commit_is_due():
            self.commit()

    def commit(self) -> None:
        """Make everything written so far survive an interruption."""
        state = None if self.state is None else _save_state(self.state)
        self._workspace.commit(asdict(self.progress), state)

    def end_layout(self) -> None:
        """Count the file of vectors as laid out."""
        self._advance(replace(self.progress, is_laid_out=True))

    def commit_text(self) -> None:
        """Keep only the text if the run is interrupted before the file of vectors is laid out."""
        for name in (OFFSETS, VECTORS):
            os.truncate(self._workspace.folder / name, 0)
        self.commit()

    def create_output(self) -> Path:
        """Create an empty file that will become the output, instead of the file of vectors."""
        self._published = OUTPUT
        return self._workspace.create(OUTPUT)

    def publish(self, target: Path) -> None:
        """Move the output to its final path, and delete everything else."""
        self._workspace.publish(self._published, target)

    def read_names(self) -> Iterator[str]:
        """Yield the names of the sentences in order."""
        return self._read_lines(NAMES)

    def read_tokens(self, first: int = 0) -> Iterator[list[str]]:
        """Yield the tokens of the sentences in order, starting at sentence ``first``."""
        return map(msgspec.json.Decoder(list[str]).decode, self._read_lines(TOKENS, first))

    def _read_lines(self, name: str, first: int = 0) -> Iterator[str]:
        # newline="\n", because by default, a carriage return inside a sentence would end its line.
        with (self._workspace.folder / name).open(encoding="utf-8", newline="\n") as file:
            for line in islice(file, first, None):
                yield line.removesuffix("\n")

    def read_lengths(self, n_at_once: int = _LENGTHS_AT_ONCE) -> Iterator[NDArray[np.int64]]:
        """Yield the number of tokens of each sentence in order, in arrays, because a corpus can have many millions."""
        with (self._workspace.folder / LENGTHS).open("rb") as file:
            for start in range(0, self.progress.text.n_sentences, n_at_once):
                yield read_numbers(file, "<i8", min(n_at_once, self.progress.text.n_sentences - start))


def read_numbers(file: BinaryIO, dtype: str, n: int) -> NDArray[Any]:
    """Read ``n`` numbers at the current position of a file, or raise an OSError if there are fewer."""
    # `np.fromfile` would return fewer, and an incomplete output would replace the partial one.
    n_bytes = n * np.dtype(dtype).itemsize
    content = file.read(n_bytes)
    if len(content) < n_bytes:
        raise OSError(errno.EIO, f"{file.name} ends too early")
    return np.frombuffer(content, dtype)


@contextlib.contextmanager
def open_resumable(output: str | Path, settings: dict[str, Any], overwrite: bool = False) -> Iterator[ResumableWriter]:
    """Start an output or resume a partial one; at the end of the block, move the finished file to ``output``.

    If the block raises an error, committed work is kept for the next run; without any, nothing is left behind. Only a
    run with the same ``settings``, JSON values that the vectors depend on, can be resumed.
    """
    output = Path(output)
    check_resumable_output(output, overwrite)
    replaces = output.exists()
    locked = f"{output} is being written by another process. Wait for it, or choose another name."
    with Workspace(partial_folder(output), settings, overwrite=overwrite, locked_message=locked) as workspace:
        writer = ResumableWriter(workspace, replaces)
        yield writer
        # Only reached if the block succeeds: an exception leaves through `yield`.
        writer.publish(output)


def check_resumable_output(output: str | Path, overwrite: bool) -> None:
    """Check, before any work is done, that an output can be started, resumed or, with ``overwrite``, replaced.

    Raises:
        OutputError: Its name is empty or too long, or it exists and may not be overwritten.
    """
    check_has_name(output)
    try:
        # What is replaced may be from another version.
        partial = None if overwrite else read_workspace(partial_folder(output), "to start over, pass --overwrite")
        # The call that started to overwrite it is resumed without `overwrite`.
        is_replaced = partial is not None and partial.can_continue and partial.progress.get("replaces", False)
        check_output_path(output, overwrite or is_replaced)
    except OSError as error:  # for example, a name that is too long with the suffix of the partial output
        raise cannot_write(output, error.strerror) from None


def has_partial_output(output: str | Path) -> bool:
    """Check whether an interrupted run has left a resumable output."""
    with contextlib.suppress(OtherVersionError):  # the run had not yet replaced it
        partial = read_workspace(partial_folder(output))
        return partial is not None and partial.can_continue
    return False


def partial_folder(output: str | Path) -> Path:
    """Return the directory of a partial output."""
    return Path(output).with_name(Path(output).name + ".partial")


def check_disk_space(output: str | Path, n_bytes: int, n_temporary_bytes: int) -> None:
    """Raise an OutputError if an output and its temporary files do not fit on the disk."""
    free = shutil.disk_usage(partial_folder(output)).free
    if n_bytes + n_temporary_bytes > free:
        raise OutputError(
            f"{output} will take {format_size(n_bytes, n_temporary_bytes)}, but its disk has {format_bytes(free)} "
            "left. Store less (--dtype float16, --top), or pass --force to start anyway."
        )


def format_size(n_bytes: int, n_temporary_bytes: int) -> str:
    """Return the size of an output, such as "1.6 GB (and 1.5 GB more until it is complete)"."""
    more = f" (and {format_bytes(n_temporary_bytes)} more until it is complete)" if n_temporary_bytes else ""
    return format_bytes(n_bytes) + more


def format_bytes(n: float) -> str:
    """Return a size such as "1.6 GB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "bytes" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:,.1f} TB"


def _save_state(state: State) -> bytes:
    # Imported here because only stateful runs need it.
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(array) for name, array in state._asdict().items()})


def _load_state(content: bytes) -> State:
    from safetensors.numpy import load

    return State(**load(content))
