from __future__ import annotations

import lzma
import warnings
from collections.abc import Iterable
from itertools import islice

import pytest

from elmokit.storage.text_formats import MAX_LOOKED_AT, SegmentationCheck
from tests.conftest import SHARED

TOKENIZED = sorted((SHARED / "data").glob("lm-*/dev.txt.xz"))


def _warnings(lines: Iterable[str], is_split: bool = False) -> list[str]:
    check = SegmentationCheck("text.txt", is_split)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for line in lines:
            check(line.split())
        check.end()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    "lines",
    [
        ["The cat sat on the mat."],
        ["no mark here", "It rained, so we left."],
        ["Is it raining?"],
        ['He said: "Stop!"'],
        ["Das ist schön, ja?"],
        ["One line.", "Another line.", "A third line.", "A mark , too late ."],
    ],
)
def test_raw_text_is_recognized_by_punctuation_that_is_attached_to_words(lines: list[str]) -> None:
    (message,) = _warnings(lines)
    assert message.startswith("text.txt looks like raw text: '")
    assert "--raw" in message
    assert "elmokit.tokenize" in message
    assert not _warnings(lines, is_split=True)


@pytest.mark.parametrize(
    "lines",
    [
        ["The cat sat on the mat ."],
        ["Mr. Smith of Acme Inc. left ."],
        ["The cat sat on the mat .", "A raw line. Another. And a third."],  # the first one decides
        ["no mark at all", "nor here"],
        ["3.5 % of 1,000"],
        ["a.b x=1; http://example.org/?q=1 @you"],
        ["a word, then"] * 0 + ["word"] * MAX_LOOKED_AT + ["One. Two. Three. Four."],
    ],
)
def test_tokenized_text_is_not_taken_for_raw_text(lines: list[str]) -> None:
    assert not _warnings(lines)


@pytest.mark.skipif(not TOKENIZED, reason="ELMOKIT_SHARED is not set")
def test_no_tokenized_corpus_is_taken_for_raw_text() -> None:
    for path in TOKENIZED:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            assert not _warnings(islice(file, 1000)), path
