"""The page about billions of tokens states numbers that follow from measurements, sizes of models, and files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elmokit import Elmo, embed_file
from elmokit.engine.config import PRESETS
from elmokit.formats.open import open_model
from tests.conftest import random_model
from tests.helpers.paths import ROOT

PAGE = (ROOT / "docs" / "how-to" / "scale.md").read_text(encoding="utf-8")
SPEEDS = (ROOT / "results" / "speed.md").read_text(encoding="utf-8").replace(",", "")
N_TOKENS = 10**10
SECONDS = {"s": 1, "min": 60, "h": 3600, "days": 86400}
SENTENCE_LENGTH = 25


def rows(heading: str) -> list[list[str]]:
    """The cells of the table whose header starts with ``heading``."""
    table = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def number(text: str) -> float:
    return float(re.sub(r"[^\d.]", "", text))


@pytest.mark.parametrize("row", rows("model"), ids=lambda row: " ".join(row[:3]))
def test_times_follow_from_a_speed_that_was_measured(row: list[str]) -> None:
    model, speed = row[0], number(row[3])
    measured = [speed] if model == "en-mini" else [2 * speed, 2 * speed + 1]  # two cores, rounded down
    assert any(re.search(rf"\| {int(value)} [(|]", SPEEDS) for value in measured)
    core_hours = N_TOKENS / speed / 3600
    assert number(row[4]) == pytest.approx(core_hours, rel=0.01)
    for cell, n_cores in zip(row[5:], (1, 100, 10_000), strict=True):
        value, unit = cell.split()
        assert float(value) * SECONDS[unit] == pytest.approx(core_hours * 3600 / n_cores, rel=0.04)


def test_bytes_per_token_follow_from_the_sizes_of_the_models() -> None:
    n_stored = {"all layers": 3, "top layer": 1, "one vector per sentence of 25 tokens": 1 / SENTENCE_LENGTH}
    for what, *cells in rows("what you keep"):
        kept, dtype = what.rsplit(", ", 1)
        for config, bytes_, total in zip((open_model().config, PRESETS["original"]), cells[:2], cells[2:], strict=True):
            expected = n_stored[kept] * config.output_dim * {"float32": 4, "float16": 2}[dtype]
            assert number(bytes_) == pytest.approx(expected, rel=0.01)
            assert number(total) * 1e12 == pytest.approx(expected * N_TOKENS, rel=0.03)


@pytest.mark.parametrize("row", rows("format"), ids=lambda row: row[0])
def test_files_take_the_bytes_besides_the_vectors_that_the_page_states(row: list[str], tmp_path: Path) -> None:
    if row[0] in ("Parquet", "Arrow"):
        pytest.importorskip("pyarrow")
    elmo = Elmo(random_model())
    words = [
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        "while",
        "its",
        "older",
        "sister",
        "slept",
        "under",
        "another",
        "one",
    ]
    lines = [" ".join(words[(row + column) % len(words)] for column in range(25)) + f" {row}" for row in range(200)]
    text, vectors = tmp_path / "text.txt", tmp_path / f"vectors.{row[0].lower()}"
    text.write_text("\n".join(lines) + "\n")
    n_tokens = embed_file(elmo, text, vectors, layers="all").n_tokens
    further = vectors.stat().st_size / n_tokens - 3 * elmo.output_dim * 4
    assert number(row[1]) / 2 < further <= number(row[1]) + 1
