"""Results of the parts of a long computation, kept on disk so that an interrupted run can be resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from elmokit.storage.workspace import WHAT, Workspace

FILE = "results.jsonl"
KIND = "results of parts"
Value = TypeVar("Value")


class PartResults:
    """The results of named parts, each computed once.

    Use it as a context manager. :meth:`compute` returns the stored result of a part, or computes and stores it. Without
    a directory nothing is stored. In both cases a result goes through JSON, which keeps floats exactly, so that a
    resumed run returns the same values as an uninterrupted one.

    Args:
        folder: The directory, a :class:`~elmokit.storage.workspace.Workspace`; None to store nothing.
        settings: JSON values that the results depend on, such as the model's fingerprint. Results of other settings are
            refused.
        overwrite: Start anew: discard stored results.

    Example:
        >>> with PartResults("partial", {"model": fingerprint}) as parts:
        ...     scores = {name: parts.compute(name, lambda: score(name)) for name in names}
    """

    def __init__(self, folder: str | Path | None, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self._workspace = None if folder is None else Workspace(folder, {WHAT: KIND, **settings}, overwrite=overwrite)
        self._results: dict[str, Any] = {}
        self._open = ExitStack()

    def __enter__(self) -> PartResults:
        if self._workspace is not None:
            self._open.enter_context(self._workspace)
            rows = map(json.loads, self._workspace.committed.read_bytes(FILE).splitlines())
            self._results = {row["name"]: row["result"] for row in rows}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.__exit__(kind, error, at)

    def __contains__(self, name: str) -> bool:
        return name in self._results

    @property
    def can_resume(self) -> bool:
        """Whether a later run finds finished parts."""
        return self._workspace is not None and bool(self._results)

    def compute(self, name: str, function: Callable[[], Value]) -> Value:
        """Return the stored result of a part (JSON values), or compute and store it."""
        if name not in self._results:
            line = json.dumps({"name": name, "result": function()})
            if self._workspace is not None:
                self._workspace.append(FILE, f"{line}\n".encode("ascii"))
                self._workspace.commit({"n_parts": len(self._results) + 1})
            self._results[name] = json.loads(line)["result"]
        result: Value = self._results[name]
        return result
