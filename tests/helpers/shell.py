"""Run the ``elmokit`` command inside the test process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from elmokit.cli.main import main


class CommandResult(NamedTuple):
    """What a command returned and printed."""

    code: int
    out: str
    err: str


Shell = Callable[..., CommandResult]
"""Call it with a command's arguments."""


def command_runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *prefix: str) -> Shell:
    """Return a function that runs ``elmokit`` with ``prefix`` and the arguments that it is given."""

    def run(*arguments: str) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["elmokit", *prefix, *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        code = exit_.value.code
        return CommandResult(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run
