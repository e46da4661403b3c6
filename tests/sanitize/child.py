"""Call the functions of one library at random, in a process that a sanitizer or valgrind watches.

    python -m tests.sanitize.child LIBRARY SET BUFFERS SECONDS FIRST_SEED PLACE

The parent cannot ask a process that was killed what it did, so every scenario is written to the file PLACE before it
starts. The last line of the output counts the scenarios and the calls of each function, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path

from elmokit.engine.c_sources import header_text
from elmokit.engine.library import Library
from tests.sanitize.buffers import GuardedBuffers, HeapBuffers
from tests.sanitize.calls import SCENARIOS, CountedLibrary, run

BUFFERS = {"guarded": GuardedBuffers, "heap": HeapBuffers, "unmarked": partial(HeapBuffers, marks=False)}


def main(path: str, instructions: str, buffers: str, seconds: str, first_seed: str, place: str) -> None:
    """Run scenarios until the time is over, but each of them once at least."""
    library = CountedLibrary(Library(Path(path), instructions, header_text()))
    assert library.library.is_permitted_here, f"this processor does not permit {instructions}"
    end = time.monotonic() + float(seconds)
    ran: Counter[str] = Counter()
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT, 0o600)
    for seed in count(int(first_seed)):
        for name in SCENARIOS:
            os.pwrite(descriptor, f"{name} {seed}".ljust(40).encode(), 0)
            run(library, name, seed, BUFFERS[buffers])
            ran[name] += 1
            if time.monotonic() > end and len(ran) == len(SCENARIOS):
                print(json.dumps({"scenarios": ran, "calls": library.calls}))
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
