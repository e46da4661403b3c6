"""Fuzz one target in this process: ``python -m tests.fuzz.one TARGET SECONDS CORPUS SEEDS [flags of libFuzzer]``.

An input may take SECONDS of a processor: libFuzzer's own limit is one of the clock, which a busy machine exceeds.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path

import atheris


def main() -> None:
    """Read the target's name, and give the rest of the command line to libFuzzer."""
    name, most_seconds = sys.argv.pop(1), float(sys.argv.pop(1))
    logging.disable()
    with atheris.instrument_imports(include=["elmokit"]):
        from tests.fuzz.targets import TARGETS, let_checksums_be_right
    # As on the command line, a warning may be shown and is no error; here it would fill the log.
    warnings.simplefilter("ignore")
    let_checksums_be_right()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        read = TARGETS[name]
        read.prepare(Path(folder))

        def run(data: bytes) -> None:
            started = time.process_time()
            read(data, Path(folder))
            if (seconds := time.process_time() - started) > most_seconds:
                raise AssertionError(f"this took {seconds:.0f} seconds of a processor")

        atheris.Setup(sys.argv, run)
        atheris.Fuzz()


main()
