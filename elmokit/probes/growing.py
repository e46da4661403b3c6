"""A folder of files that grow chunk by chunk, so that a long computation can go on after a kill.

The files hold plain rows (little-endian numbers, or lines of text). ``record.json`` says what the folder is, how long
each file was after the last whole chunk, and whether the work is finished. Whoever goes on cuts the files to those
lengths first, so that half a chunk never stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from elmokit.embedder import Elmo
from elmokit.errors import ConfigError, OutputError
from elmokit.fingerprint import fingerprint
from elmokit.io.atomic import atomic_write, recover_interrupted

RECORD = "record.json"
CHUNK_TOKENS = 16_384
"""Tokens embedded at a time. The same after a kill as before, as it decides which sentences share a batch."""

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, how much of it is done, and how much there is."""
Item = TypeVar("Item")


def no_progress(stage: str, done: int, total: int) -> None:
    """Say nothing."""


class GrowingFolder:
    """A folder of growing files.

    Args:
        path: the folder; made where there is none.
        about: what is being made, of what; plain JSON values. A folder that says something else is refused.

    Raises:
        OutputError: something else stands there, another process is writing there, or it cannot be written.
    """

    def __init__(self, path: str | Path, about: dict[str, Any]) -> None:
        self.path = Path(path)
        self.about = about
        self._files: dict[str, IO[bytes]] = {}
        is_new = not (self.path / RECORD).exists()
        if is_new and self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise OutputError(f"{path} holds something else. Choose another name.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.path / ".lock")
            recover_interrupted(self.path)
        except OSError as error:
            raise OutputError(f"Cannot write to {path}: {error.strerror or error}.") from None
        found: dict[str, Any] = {"about": about} if is_new else read_record(self.path)
        if found["about"] != about:
            differs = sorted(key for key in {*about, *found["about"]} if about.get(key) != found["about"].get(key))
            self._lock.close()
            raise OutputError(
                f"{path} was made from something else (it differs in: {', '.join(differs)}). "
                "Choose another folder, or delete this one."
            )
        self.sizes: dict[str, int] = found.get("sizes", {})
        self.done: int = found.get("done", 0)
        self.finished: bool = found.get("finished", False)
        if is_new:
            self._write_record()

    def __enter__(self) -> GrowingFolder:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # of a full disk: what counts is cut to size when the work goes on
                file.close()
        self._lock.close()

    def append(self, name: str, data: bytes | NDArray[Any]) -> None:
        """Add rows to the end of a file.

        Raises:
            OutputError: they cannot be written.
        """
        try:
            if name not in self._files:
                file = self._files[name] = (self.path / name).open("ab")
                file.truncate(self.sizes.setdefault(name, 0))
                file.seek(0, os.SEEK_END)
            self._files[name].write(data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes())
        except OSError as error:
            raise self._failed(error) from None

    def commit(self, n_done: int, finished: bool = False) -> None:
        """What was appended stays; ``n_done`` is how many items that makes in all.

        Raises:
            OutputError: it cannot be written.
        """
        try:
            for name, file in self._files.items():
                file.flush()
                self.sizes[name] = file.tell()
        except OSError as error:
            raise self._failed(error) from None
        self.done, self.finished = n_done, finished
        self._write_record()

    def _write_record(self) -> None:
        content = {"about": self.about, "done": self.done, "finished": self.finished, "sizes": self.sizes}
        with atomic_write(self.path / RECORD, overwrite=True) as beside:
            beside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def _failed(self, error: OSError) -> OutputError:
        return OutputError(f"Writing to {self.path} failed: {error.strerror or error}. The same call goes on there.")


def read_record(path: Path) -> dict[str, Any]:
    """The record of a growing folder.

    Raises:
        OutputError: there is none, or it is damaged.
    """
    try:
        content: dict[str, Any] = json.loads((path / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OutputError(f"{path} has no {RECORD}: no folder that elmokit made.") from None
    except (OSError, ValueError) as error:
        raise OutputError(f"{path / RECORD} cannot be read ({error}). Delete the folder and make it again.") from None
    kinds = {"about": dict, "done": int, "finished": bool, "sizes": dict}
    is_sound = isinstance(content, dict) and all(isinstance(content.get(key), kind) for key, kind in kinds.items())
    if not is_sound or not all(isinstance(size, int) and size >= 0 for size in content["sizes"].values()):
        raise OutputError(f"{path / RECORD} is damaged. Delete the folder and make it again.")
    return content


def mapped(path: Path, name: str, dtype: DTypeLike, sizes: dict[str, int], width: int | None = None) -> NDArray[Any]:
    """Rows of a file, memory-mapped: ``(rows, width)``, or ``(rows,)``.

    Raises:
        OutputError: the file is missing or shorter than the record says.
    """
    n_bytes = sizes.get(name, 0)
    shape: tuple[int, ...] = (n_bytes // np.dtype(dtype).itemsize,)
    if width is not None:
        shape = (shape[0] // width, width)
    if not n_bytes:
        return np.zeros(shape, dtype)
    try:
        return np.memmap(path / name, dtype=dtype, mode="r", shape=shape)
    except (OSError, ValueError):
        raise OutputError(f"{path / name} is missing or cut short. Delete the folder and make it again.") from None


def chunks(items: Iterable[Item], length: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in order, in lists of at most ``CHUNK_TOKENS`` tokens; an item above that is a list of its own."""
    chunk: list[Item] = []
    n_tokens = 0
    for item in items:
        if chunk and n_tokens + length(item) > CHUNK_TOKENS:
            yield chunk
            chunk, n_tokens = [], 0
        chunk.append(item)
        n_tokens += length(item)
    if chunk:
        yield chunk


def model_digest(elmo: Elmo) -> str:
    """A short text that is the same for models that give the same vectors, and differs for others."""
    if elmo.start == "stateful":
        raise ConfigError("With start='stateful' vectors depend on the sentences before. Take start='warm' or 'zero'.")
    return fingerprint(elmo.model, elmo.start)[:16]


def text_digest(sentences: Iterable[Iterable[str]]) -> str:
    """A short text that is the same for the same sentences, and differs for others."""
    digest = hashlib.sha256()
    for sentence in sentences:
        digest.update("\0".join(sentence).encode("utf-8", errors="surrogatepass") + b"\n")
    return digest.hexdigest()[:16]


def _locked(path: Path) -> IO[bytes]:
    """An open file that only one process holds; the system lets go of it when the process ends, however it ends.

    Raises:
        OutputError: another process holds it.
    """
    file = path.open("ab")
    try:
        import fcntl
    except ImportError:  # Windows; there two writers are not told apart
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise OutputError(
            f"Another process is writing to {path.parent}. Wait for it, or choose another folder."
        ) from None
    return file
