"""``elmokit serve`` as a process of its own, for tests of signals and connections."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.http_client import Client


class Process(Client):
    """A running server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"Serving tiny at (?:http://127\.0\.0\.1:(\d+)|/.*) \(stop with Ctrl-C\)\n", line)
        assert found, line + process.stderr.read()
        super().__init__(int(found[1] or 0))

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM, and return the exit code and what was printed."""
        self.process.send_signal(signal.SIGTERM)
        _, printed = self.process.communicate(timeout=60)
        return self.process.returncode, printed


@contextmanager
def serving(model: Path, *options: str, before: str = "", **environment: str) -> Iterator[Process]:
    """Serve a model with a process of its own.

    Args:
        model: The model; its name is ``tiny``.
        options: Further options.
        before: Python code that the process runs first.
        environment: Environment variables to set.
    """
    code = f"{before}\nfrom elmokit.cli.main import main\nmain()"
    command = [sys.executable, "-c", code, "serve", "--model", str(model), "--port", "0", "--threads", "1", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
        try:
            yield Process(process)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
