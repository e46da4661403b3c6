from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmokit.text import counts as counts_module
from elmokit.text.counts import WordCounts


def test_tokens_and_sentences_are_counted_and_blank_lines_are_not(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("b a b\n\nc b a <S>\n", encoding="utf-8")
    counts = WordCounts()
    counts.add(text)
    counts.add(text)
    assert (counts.n_sentences, counts.n_tokens) == (4, 14)
    assert dict(counts.items()) == {"b": 6, "a": 4, "c": 2, "<S>": 2}


WORDS = st.text(st.characters(exclude_characters=" \t\n", exclude_categories=["Cs"]), min_size=1, max_size=3)


@pytest.mark.filterwarnings("ignore:.* looks like raw text:UserWarning")  # such as "AA:", which is one word here
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(lines=st.lists(st.lists(WORDS, min_size=1), min_size=1, max_size=12), max_types=st.integers(1, 5))
def test_counts_that_were_spilled_to_disk_are_exact(lines: list[list[str]], max_types: int, tmp_path: Path) -> None:
    lines = [[word for word in line if word.strip("\r")] or ["x"] for line in lines]
    lines = [[word.strip("\r") for word in line] for line in lines]
    text = tmp_path / "text.txt"
    text.write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8", newline="\n")
    with WordCounts(max_types) as counts:
        counts.add(text)
        items = list(counts.items())
        assert len(counts.words) <= max_types
    expected = Counter(word for line in lines for word in line)
    assert dict(items) == expected
    assert len(items) == len(expected)


def test_temporary_files_are_removed_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b\nc d\ne f\n")
    aside = tmp_path / "aside"
    aside.mkdir()
    monkeypatch.setattr(counts_module.tempfile, "tempdir", str(aside))
    with WordCounts(1) as counts:
        counts.add(text)
        assert len(list(aside.rglob("*"))) == 4  # a folder and three parts
    assert not list(aside.iterdir())
