"""A file of vectors while it grows: a kill at any moment costs the last seconds, and the rest is taken up again.

Beside ``OUT`` stands the folder ``OUT.partial`` until ``OUT`` is complete:

=================  =================================================================================
``vectors.hdf5``   what becomes ``OUT``: vectors, one sentence after another; at the end their index
``lengths``        the number of tokens of each sentence, int64
``names``          each sentence as a line of UTF-8, or each identifier
``state-N``        where state is carried: the state after N sentences (safetensors)
``journal.json``   how much of the above is complete and on the disk for sure; and the settings of the run
``lock``           held by the process that writes
=================  =================================================================================

Files only grow. Every few seconds they are brought to the disk, and then the journal is replaced by one that says so.
What stands behind the journal's numbers was cut off in the middle, and is dropped on resuming.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from elmokit.bilm import BiLMState
from elmokit.corpus.hdf5_format import DATA_START
from elmokit.errors import OutputError
from elmokit.io.atomic import check_output_path
from elmokit.io.lock import file_lock

COMMIT_SECONDS = 2.0
VECTORS = "vectors.hdf5"
_FILES = (VECTORS, "lengths", "names", "journal.new", "journal.json", "lock")
Settings = dict[str, Any]


@dataclass(frozen=True)
class Done:
    """What is complete: the pools up to some sentence, where that ends in each file, and batches of the pool after."""

    n_sentences: int = 0
    n_tokens: int = 0
    n_blank: int = 0
    data_end: int = DATA_START
    names_end: int = 0
    checksum: int = 0
    """CRC-32 of the text that was read, to see on resuming whether it is still the same."""
    n_batches: int = 0
    """Of the pool that follows. Its vectors stand in the file; its lengths and names do not yet."""
    pool_checksum: int = 0
    """``checksum`` as it will be after that pool."""

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to go on from."""
        return not (self.n_sentences or self.n_batches)


class ResumableWriter:
    """The folder beside an output, open for writing; made by ``begun``."""

    def __init__(self, folder: Path, settings: Settings, done: Done, state: BiLMState | None) -> None:
        self.folder, self.settings, self.state = folder, settings, state
        self.committed = self.done = done
        with contextlib.ExitStack() as files:
            # Behind data_end may stand batches of the next pool: vectors are not cut off, but written over.
            at_least = 0 if done.data_end == DATA_START else done.data_end
            self.vectors = files.enter_context(_opened(folder / VECTORS, at_least))
            self.lengths = files.enter_context(_opened(folder / "lengths", done.n_sentences * 8, cut=True))
            self.names = files.enter_context(_opened(folder / "names", done.names_end, cut=True))
            self._files = files.pop_all()
        self._said = time.monotonic()

    def write(self, place: int, vectors: NDArray[Any]) -> None:
        """Put numbers at a place in the file of vectors.

        Raises:
            OSError: they cannot be written.
        """
        self.vectors.seek(place)
        _write(self.vectors, vectors)

    def end_batch(self, pool_checksum: int) -> None:
        """All vectors of one more batch were written.

        Args:
            pool_checksum: ``checksum`` once the batch's pool is complete.

        Raises:
            OSError: they cannot be brought to the disk.
        """
        self._advance(replace(self.done, n_batches=self.done.n_batches + 1, pool_checksum=pool_checksum))

    def forget_batches(self) -> None:
        """The batches of the incomplete pool count as not done; their place will be written over.

        Raises:
            OSError: that cannot be brought to the disk.
        """
        self.done = replace(self.done, n_batches=0, pool_checksum=0)
        self.commit()

    def end_pool(self, done: Done, lengths: NDArray[np.int64], names: bytes, state: BiLMState | None = None) -> None:
        """All vectors up to ``done`` were written.

        Raises:
            OSError: they cannot be brought to the disk.
        """
        _write(self.lengths, lengths)
        _write(self.names, np.frombuffer(names, dtype=np.uint8))
        self.state = state
        self._advance(done)

    def _advance(self, done: Done) -> None:
        self.done = done
        if time.monotonic() - self._said >= COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """From here on a kill costs nothing of what was written."""
        for file in (self.vectors, self.lengths, self.names):
            os.fsync(file.fileno())
        journal: dict[str, Any] = {"settings": self.settings, "done": asdict(self.done)}
        if self.state is not None:
            journal["state"] = f"state-{self.done.n_sentences}"
            _save_state(self.state, self.folder / journal["state"])
        beside = self.folder / "journal.new"
        with beside.open("w", encoding="utf-8") as text:
            json.dump(journal, text, indent=1)
            text.flush()
            os.fsync(text.fileno())
        beside.replace(self.folder / "journal.json")
        _sync_folder(self.folder)
        for old in self.folder.glob("state-*"):
            if old.name != journal.get("state"):
                old.unlink()
        self.committed = self.done
        self._said = time.monotonic()

    def read_names(self) -> Iterator[str]:
        """The complete sentences, in order."""
        left = self.done.n_sentences
        with (self.folder / "names").open(encoding="utf-8", newline="\n") as file:
            for line in file:
                if not left:
                    return
                left -= 1
                yield line.removesuffix("\n")

    def read_lengths(self, n_at_once: int = 65536) -> Iterator[NDArray[np.int64]]:
        """The numbers of tokens, in order, block by block."""
        with (self.folder / "lengths").open("rb") as file:
            for start in range(0, self.done.n_sentences, n_at_once):
                yield np.fromfile(file, dtype="<i8", count=min(n_at_once, self.done.n_sentences - start))

    def close(self) -> None:
        """Close the files."""
        self._files.close()


@contextlib.contextmanager
def begun(
    output: str | Path, settings: Settings, resume: bool = False, overwrite: bool = False
) -> Iterator[ResumableWriter]:
    """Begin an output or take up an unfinished one; when the block ends well, ``vectors.hdf5`` becomes the output.

    When it ends badly, what was committed is kept for resuming; if there is nothing, nothing is left behind.

    Args:
        settings: plain values that make vectors what they are; resuming wants the same.
        resume: go on where an unfinished run stopped, or begin where there is none.
        overwrite: replace what stands at the output; and without ``resume`` discard an unfinished run.

    Raises:
        OutputError: the output exists and may not be overwritten; an unfinished run is there and neither is set; it was
            begun with other settings, or is being written; or something cannot be written.
    """
    output = Path(output)
    check_output_path(output, overwrite)
    folder = partial_folder(output)
    with file_lock(
        folder / "lock", f"{output} is being written by another process. Wait for it, or choose another name."
    ):
        found = _read_journal(folder) if resume or not overwrite else None
        if found is not None and not resume:
            raise OutputError(
                f"{folder} holds an unfinished run, {found.done.n_sentences:,} sentences and more done. Go on with it "
                "(--resume in the shell), or discard it (--overwrite)."
            )
        if found is None:
            (folder / "journal.json").unlink(missing_ok=True)
            found = _Journal(settings, Done())
        _refuse_other_settings(folder, found.settings, settings)
        done, unfinished = found.done, None
        try:
            state = _load_state(folder / found.state) if found.state else None
            unfinished = ResumableWriter(folder, settings, done, state)
            yield unfinished
            os.fsync(unfinished.vectors.fileno())
            unfinished.close()
            (folder / VECTORS).replace(output)
            done = Done()
        except OSError as error:
            reason = f"Writing {output} failed: {error.strerror or error}."
            done = done if unfinished is None else unfinished.committed
            kept = "What stood there before is untouched."
            if not done.nothing:
                kept = f"What was done is kept in {folder}: mend it and go on with --resume."
            raise OutputError(f"{reason} {kept}") from error
        except BaseException:
            done = done if unfinished is None else unfinished.committed
            raise
        finally:
            if unfinished is not None:
                unfinished.close()
            if done.nothing:
                _remove(folder)


def partial_folder(output: str | Path) -> Path:
    """Where an output grows."""
    return Path(output).with_name(Path(output).name + ".partial")


@dataclass(frozen=True)
class _Journal:
    settings: Settings
    done: Done
    state: str | None = None


def _read_journal(folder: Path) -> _Journal | None:
    try:
        content = (folder / "journal.json").read_bytes()
    except FileNotFoundError:
        return None
    if not (folder / VECTORS).exists():  # it became the output, and a kill came before the rest was cleared away
        return None
    try:
        return msgspec.json.decode(content, type=_Journal)
    except msgspec.DecodeError as error:
        raise OutputError(f"{folder / 'journal.json'} is damaged ({error}). Start anew with --overwrite.") from None


def _refuse_other_settings(folder: Path, begun_with: Settings, given: Settings) -> None:
    given = json.loads(json.dumps(given))
    for name in sorted(begun_with.keys() | given.keys()):
        old, new = begun_with.get(name), given.get(name)
        if old != new:
            raise OutputError(
                f"{folder} was begun with {name} {old!r}, and now it is {new!r}. Go on with the same, or start anew "
                "with --overwrite."
            )


def _opened(path: Path, end: int, cut: bool = False) -> IO[bytes]:
    """A file open for writing at its end, which holds all that was complete; and no more, if ``cut`` is set.

    Raises:
        OSError: it cannot be opened, or is shorter than it should be.
    """
    path.touch()
    file = path.open("r+b", buffering=0)
    size = file.seek(0, os.SEEK_END)
    if size < end:
        file.close()
        raise OSError(f"{path} is cut short: {size:,} bytes, expected {end:,}")
    if cut:
        file.truncate(end)
        file.seek(end)
    return file


def _write(file: IO[bytes], numbers: NDArray[Any]) -> None:
    rest = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data
    while rest:
        rest = rest[file.write(rest) :]


def _remove(folder: Path) -> None:
    """Remove what is ours, and the folder if nothing else is in it."""
    with contextlib.suppress(OSError):
        for path in [*folder.glob("state-*"), *(folder / name for name in _FILES)]:
            path.unlink(missing_ok=True)
        folder.rmdir()


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # Windows cannot open folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _save_state(state: BiLMState, path: Path) -> None:
    from elmokit.weights.folder import save_tensors

    save_tensors(state._asdict(), path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _load_state(path: Path) -> BiLMState:
    from safetensors.torch import load_file

    return BiLMState(**load_file(path))
