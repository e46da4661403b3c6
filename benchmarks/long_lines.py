"""Measure how the time to split a line into tokens and sentences grows with its length.

    python benchmarks/long_lines.py [--characters 100000]

Lines that made a regular expression look at the same characters again and again: the time grew with the square of the
length. Each is split at a length and at four times that length. The script prints a Markdown table of seconds of the
processor, the smaller of three measurements, and of how many times as long the longer line takes: about 4, or about 16
where the time grows with the square.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from elmokit.text.english import sentence_spans, token_spans

PARTS = ["'", ". ", "a.)", '." ', "a\u2019", "can not ", "\u200b.", " "]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--characters", type=int, default=100_000, help="length of the shorter lines  [default: 100000]"
    )
    n_chars = parser.parse_args().characters
    print("| repeated | tokens, s | four times the text | sentences, s | four times the text |")
    print("|---|---|---|---|---|")
    for part in PARTS:
        cells = [f"`{part!r}`"]
        for split in (token_spans, sentence_spans):
            short, long = (seconds(split, line(part, length)) for length in (n_chars, 4 * n_chars))
            cells += [f"{short:.3f}", f"{long / max(short, 1e-9):.1f} times"]
        print(f"| {' | '.join(cells)} |")


def line(part: str, length: int) -> str:
    """Return a line of a length, between two words of other letters."""
    return "." + part * (length // len(part)) + "x"


def seconds(split: Callable[[str], object], text: str) -> float:
    """Return how long a processor splits a text, in the fastest of three rounds."""
    measured = []
    for _ in range(3):
        started = time.process_time()
        split(text)
        measured.append(time.process_time() - started)
    return min(measured)


if __name__ == "__main__":
    main()
