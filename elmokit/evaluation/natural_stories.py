"""Read Natural Stories (Futrell et al. 2021): ten stories and how long people take to read each of their words.

The directory has the files of the release, which can be compressed (.gz, .xz, .zst):

- ``words.tsv``: a code ``story.word.kind`` and a text. Kind ``whole`` is the word with its punctuation, 1, 2, ... are
  its tokens; other kinds are ignored.
- ``processed_wordinfo.tsv``: the mean reading time ``meanItemRT`` of each word (``item`` is the story, ``zone`` the
  word).
- ``all_stories_gpt3.csv`` (optional): log probabilities of a large model by ``story`` (from 0), for tokens of its own.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import TextError
from elmokit.storage.text_files import or_packed, read_lines

WORDS, READING_TIMES, LARGE_MODEL = "words.tsv", "processed_wordinfo.tsv", "all_stories_gpt3.csv"
WORD_LINE = re.compile(r"(\d+)\.(\d+)\.([^.\t]*)\t([^\t]*[^\t ][^\t]*)")
MAX_DIFFERENT = 0.01
"""The ratio of words that may differ between the files of words and of reading times. One does, by a typing error;
in releases before May 2025 the reading times are one word off, so that most differ."""
SENTENCE_ENDS = (".", "!", "?")
CLOSING = ("'", '"', "''", ")", "]", "\u2019", "\u201d")


@dataclass(frozen=True)
class StoryWord:
    """A word as it was shown to the readers, with its punctuation."""

    text: str
    tokens: tuple[str, ...]
    milliseconds: float
    """Mean reading time; NaN if there is none."""

    @property
    def ends_sentence(self) -> bool:
        """Whether its last token, quotes and brackets apart, ends a sentence: not "Mr.", which is one token."""
        tokens = list(self.tokens)
        while len(tokens) > 1 and tokens[-1] in CLOSING:
            tokens.pop()
        return tokens[-1] in SENTENCE_ENDS


@dataclass(frozen=True)
class Story:
    """The words of a story."""

    number: int
    words: list[StoryWord]

    def sentences(self) -> Iterator[slice]:
        """Yield the ranges of words that form sentences. A word in lower case does not start one."""
        start = 0
        for stop in range(1, len(self.words) + 1):
            is_last = stop == len(self.words)
            if is_last or (self.words[stop - 1].ends_sentence and not self.words[stop].text[0].islower()):
                yield slice(start, stop)
                start = stop


def read_natural_stories(folder: str | Path) -> list[Story]:
    """Read the stories and the reading times.

    Raises:
        TextError: A file is missing or cannot be read, or the words of the two files do not agree.
    """
    path = _needed_file(folder, WORDS)
    texts: dict[tuple[int, int], str] = {}
    tokens: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for number, line in enumerate(read_lines(path), start=1):
        match = WORD_LINE.fullmatch(line)
        if match is None:
            raise TextError(f"{path}, line {number}: expected 'story.word.kind<TAB>text', but got {line[:80]!r}.")
        key, kind, text = (int(match[1]), int(match[2])), match[3], match[4]
        if kind == "whole":
            texts[key] = text.replace(" ", "")
        elif kind.isdigit():
            tokens[key].append(text)
    times = _read_times(_needed_file(folder, READING_TIMES))
    different = [key for key, text in texts.items() if key in times and times[key][0] != text]
    if len(different) > MAX_DIFFERENT * len(texts) or not times.keys() & texts.keys():
        raise TextError(
            f"{folder}: {len(different):,} words of {WORDS} are others in {READING_TIMES}, or all are missing there; "
            "expected the release of May 2025 or later."
        )
    stories: defaultdict[int, list[StoryWord]] = defaultdict(list)
    for key in sorted(texts):
        milliseconds = times[key][1] if key in times else math.nan
        joined = _join_hyphens(tokens[key] or [texts[key]])
        stories[key[0]].append(StoryWord(texts[key], tuple(joined), milliseconds))
    return [Story(number, words) for number, words in stories.items()]


def read_large_model(folder: str | Path, stories: Sequence[Story]) -> list[NDArray[np.float64]] | None:
    """Read the surprisal of each word by the large model, the sum over the model's tokens in it; None without its file.

    ``(words,)`` for each story, in nats; NaN for the first word of a story.
    """
    path = find_file(folder, LARGE_MODEL)
    if path is None:
        return None
    by_story: defaultdict[int, list[tuple[str, float]]] = defaultdict(list)
    for token, nats, story in _rows(path, ",", {"token": str, "logprob": _nats, "story": int}):
        words = by_story[story + 1]
        if token.startswith(" ") or not words:
            words.append((token.strip(), nats))
        else:
            words[-1] = words[-1][0] + token.strip(), words[-1][1] + nats
    for known in stories:
        if [text for text, _ in by_story[known.number]] != [word.text for word in known.words]:
            raise TextError(f"{path}: the words of story {known.number} are not those of {WORDS}.")
    return [np.array([nats for _, nats in by_story[known.number]]) for known in stories]


def find_file(folder: str | Path, name: str) -> Path | None:
    """Find a file of the release, compressed or not; None if there is none."""
    paths = (Path(folder) / file for file in or_packed(name))
    return next((path for path in paths if path.is_file()), None)


def _needed_file(folder: str | Path, name: str) -> Path:
    path = find_file(folder, name)
    if path is None:
        raise TextError(
            f"{folder} has no file {name}, expected that of Natural Stories (github.com/languageMIT/naturalstories)."
        )
    return path


def _read_times(path: Path) -> dict[tuple[int, int], tuple[str, float]]:
    columns = {"word": str, "item": int, "zone": int, "meanItemRT": float}
    return {(story, number): (word, time) for word, story, number, time in _rows(path, "\t", columns)}


def _nats(log_probability: str) -> float:
    return -float(log_probability or "nan")


def _rows(path: Path, delimiter: str, columns: Mapping[str, Callable[[str], Any]]) -> Iterator[list[Any]]:
    """Yield some columns of each row of a table whose first line names the columns, converted to their types."""
    # Tables separated by tabs are not quoted: a word can start with a quote.
    quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    lines = (f"{line}\n" for line in read_lines(path))
    reader = csv.DictReader(lines, delimiter=delimiter, quoting=quoting, restval="")
    try:
        for row in reader:
            yield [convert(row[name]) for name, convert in columns.items()]
    except (csv.Error, KeyError, ValueError) as error:
        raise TextError(
            f"{path}, line {reader.line_num}: expected a table with the columns {', '.join(columns)} ({error})."
        ) from None


def _join_hyphens(tokens: list[str]) -> list[str]:
    """Join compounds: the release splits *forty-seven* into three tokens, but tokenizers of running text do not."""
    joined: list[str] = []
    for number, token in enumerate(tokens):
        is_inner_hyphen = token == "-" and 0 < number < len(tokens) - 1
        follows_hyphen = number > 1 and tokens[number - 1] == "-"
        if is_inner_hyphen or follows_hyphen:
            joined[-1] += token
        else:
            joined.append(token)
    return joined
