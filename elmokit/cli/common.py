"""What the commands share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import click

PROGRAM = "elmokit"
SECONDS_BETWEEN_LINES = 30.0

# A model is a string here: a Path would fold the slashes of an address.
model_option = click.option(
    "--model", help="A model's path, address, published name or Hub id.  [default: the one inside the package]"
)
options_option = click.option("--options", help="The options file of an HDF5 file, if it stands elsewhere.")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace what stands at the output path.")


def n_bytes(paths: Iterable[Path]) -> int | None:
    """The size of all files as they stand on disk; None where one is a pipe, whose size no one knows."""
    paths = list(paths)
    return sum(path.stat().st_size for path in paths) if all(path.is_file() for path in paths) else None


class Progress:
    """What is done and the time left: a bar on a terminal, else a line on standard error every half minute.

    Args:
        total: how much there is to do, in ``unit``; None where that is unknown.
    """

    def __init__(self, total: int | None, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        from tqdm import tqdm

        self.total, self.unit, self.clock = total, unit, clock
        self.n_done = 0
        self.started = self.said = clock()
        self.as_lines = not sys.stderr.isatty()
        self.bar = tqdm(total=total, unit=unit, unit_scale=True, disable=self.as_lines, leave=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def __call__(self, n: int) -> None:
        """So much more is done."""
        self.n_done += n
        self.bar.update(n)
        now = self.clock()
        if not self.as_lines or now - self.said < SECONDS_BETWEEN_LINES:
            return
        self.said = now
        line = f"{self.n_done:,} {self.unit}"
        if self.total:
            minutes, seconds = divmod(round((now - self.started) * max(0, self.total / self.n_done - 1)), 60)
            line = f"{min(1, self.n_done / self.total):4.0%} of {self.total:,} {self.unit}, {minutes}:{seconds:02} left"
        click.echo(line, err=True)
