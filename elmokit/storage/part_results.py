"""Results of the parts of a long computation, kept on disk so that an interrupted run can be resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from elmokit.errors import OutputError
from elmokit.storage.resumable import ResumableStore

FILE = "results.jsonl"
Value = TypeVar("Value")


class PartResults:
    """The results of named parts, each computed once.

    Use it as a context manager. :meth:`compute` returns the stored result of a part, or computes and stores it. Without
    a directory nothing is stored. In both cases a result goes through JSON, which keeps floats exactly, so that a
    resumed run returns the same values as an uninterrupted one.

    Args:
        folder: The directory, a :class:`~elmokit.storage.resumable.ResumableStore`; None to store nothing.
        settings: JSON values that the results depend on, such as the model's fingerprint. Results of other settings are
            rejected.
        restore: As in :class:`~elmokit.storage.resumable.ResumableStore`.
        overwrite: Start anew: discard stored results.

    Raises:
        LockedError: Another process is using the directory.
        OutputError: The directory holds other files, or results of other settings, or is damaged.

    Example:
        >>> with PartResults("partial", {"model": fingerprint}) as parts:
        ...     scores = {name: parts.compute(name, lambda: score(name)) for name in names}
    """

    def __init__(
        self,
        folder: str | Path | None,
        settings: Mapping[str, Any],
        restore: Mapping[str, Callable[[Any], str]] = {},
        *,
        overwrite: bool = False,
    ) -> None:
        self._store: ResumableStore | None = None
        if folder is not None:
            self._store = ResumableStore(folder, settings, restore=restore, overwrite=overwrite)
        self._results: dict[str, Any] = {}
        self._open = ExitStack()

    def __enter__(self) -> PartResults:
        with ExitStack() as stack:
            if self._store is not None:
                stack.enter_context(self._store)
                if self._store.progress:
                    self._results = _read(self._store.folder / FILE)
            self._open = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.__exit__(kind, error, at)

    def __contains__(self, name: str) -> bool:
        return name in self._results

    @property
    def can_resume(self) -> bool:
        """Whether a later run finds finished parts."""
        return self._store is not None and bool(self._results)

    def compute(self, name: str, function: Callable[[], Value]) -> Value:
        """Return the stored result of a part (JSON values), or compute and store it."""
        if name not in self._results:
            line = json.dumps({"name": name, "result": function()}, ensure_ascii=False)
            if self._store is not None:
                self._store.append(FILE, f"{line}\n".encode("utf-8", "surrogatepass"))
                self._store.commit({"n_parts": len(self._results) + 1})
            self._results[name] = json.loads(line)["result"]
        result: Value = self._results[name]
        return result


def _read(path: Path) -> dict[str, Any]:
    try:
        lines = path.read_bytes().decode("utf-8", "surrogatepass").split("\n")
        return {row["name"]: row["result"] for row in map(json.loads, filter(None, lines))}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{path} cannot be read ({error}). To start from scratch, delete {path.parent}.") from None
