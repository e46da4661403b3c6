"""The words that the softmax predicts (and that a word-input model reads)."""

from __future__ import annotations

import codecs
import gzip
import heapq
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ConfigError, FormatError, ModelNotFoundError, TextError
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE, UNKNOWN

SPECIALS = (BEGIN_SENTENCE, END_SENTENCE, UNKNOWN)
IGNORED_LINE = "!!!MAXTERMID"
"""Some published files end with it; it stands for no word."""
MAX_BYTES = 2**30


class Counts(Protocol):
    """Words and how often each stands in a corpus: a dict, or ``WordCounts``."""

    def items(self) -> Iterable[tuple[str, int]]:
        """Each word once, in any order."""


class Vocabulary:
    """A list of words; a word's id is its place in the list.

    Raises:
        FormatError: one of ``<S>``, ``</S>``, ``<UNK>`` is missing, a word stands twice, or one is empty.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.ids = {word: index for index, word in enumerate(self.words)}
        missing = [special for special in SPECIALS if special not in self.ids]
        if missing:
            raise FormatError(
                f"A vocabulary needs the words {', '.join(SPECIALS)}; missing: {', '.join(missing)}. "
                "Add them as the first lines, in that order, and train with that file."
            )
        if len(self.ids) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise FormatError(f"A vocabulary holds each word once; {twice!r} stands in it more than once.")
        if "" in self.ids:
            raise FormatError(f"A vocabulary holds no empty word; word {self.ids[''] + 1} is one. Take it out.")
        self.begin_id, self.end_id, self.unknown_id = (self.ids[special] for special in SPECIALS)

    def __len__(self) -> int:
        return len(self.words)

    def word_ids(self, tokens: Iterable[str]) -> NDArray[np.int64]:
        """The ids of tokens, ``(tokens,)``; that of ``<UNK>`` for one not in the list."""
        return np.array([self.ids.get(token, self.unknown_id) for token in tokens], dtype=np.int64)

    @classmethod
    def from_counts(cls, counts: Counts, max_words: int | None = None, min_count: int = 1) -> Vocabulary:
        """The specials, then the most frequent words; arguments and errors as in ``rank_words``."""
        return cls([*SPECIALS, *(word for word, _ in rank_words(counts, max_words, min_count))])

    @classmethod
    def from_file(cls, path: str | Path) -> Vocabulary:
        """Read a file that must be a sound vocabulary.

        Raises:
            ModelNotFoundError, FormatError: as in ``read_words``, or it is none.
        """
        words = read_words(path)
        mend = f"Mend it for a new model with: elmokit vocab --repair {path} OUT"
        if "" in words:
            raise FormatError(f"Line {words.index('') + 1} of the vocabulary {path} is blank. {mend}")
        try:
            return cls(words)
        except FormatError as error:
            raise FormatError(f"{path}: {error} {mend}") from None

    def to_text(self) -> str:
        """The content of a vocabulary file."""
        return "".join(f"{word}\n" for word in self.words)


class RowVocabulary(Vocabulary):
    """The words of a table's rows, as a published list has them.

    Raises:
        FormatError: a sentence boundary is missing, so that no sentence can be read.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.ids = {word: row for row, word in enumerate(self.words)}
        missing = [word for word in (BEGIN_SENTENCE, END_SENTENCE) if word not in self.ids]
        if missing:
            raise FormatError(f"it lacks {' and '.join(missing)}, with which every sentence is read")
        self.begin_id, self.end_id = self.ids[BEGIN_SENTENCE], self.ids[END_SENTENCE]
        self.unknown_id = self.ids.get(UNKNOWN, -1)

    def word_ids(self, tokens: Iterable[str]) -> NDArray[np.int64]:
        """The rows of tokens, ``(tokens,)``; that of ``<UNK>`` for one not in the list.

        Raises:
            TextError: a token is not in the list, and neither is ``<UNK>``.
        """
        tokens = list(tokens)
        ids = super().word_ids(tokens)
        if (ids < 0).any():
            token = tokens[int(np.argmin(ids))]
            raise TextError(
                f"The word {token!r} is not in the model's vocabulary ({len(self):,} words), which has no {UNKNOWN} "
                "for such words. Replace it, or use a model that reads characters."
            )
        return ids


def rank_words(counts: Counts, max_words: int | None = None, min_count: int = 1) -> list[tuple[str, int]]:
    """The words of a vocabulary after its specials, with their counts: the most frequent first, ties alphabetical.

    A word that no line of a file can hold, such as an ideographic space alone, stays unknown.

    Args:
        max_words: of the whole vocabulary, the three specials included; None for all words.
        min_count: words counted less often are left out.

    Raises:
        ConfigError: the limits leave no room for a word.
    """
    check_limits(max_words, min_count)
    left_out = {*SPECIALS, IGNORED_LINE}
    listed = (
        (-count, word)
        for word, count in counts.items()
        if count >= min_count and word and word == word.strip() and word not in left_out
    )
    ranked = sorted(listed) if max_words is None else heapq.nsmallest(max_words - len(SPECIALS), listed)
    return [(word, -count) for count, word in ranked]


def check_limits(max_words: int | None, min_count: int) -> None:
    """Refuse limits of ``rank_words`` that no vocabulary can keep.

    Raises:
        ConfigError: they leave no room for a word.
    """
    if max_words is not None and max_words <= len(SPECIALS):
        raise ConfigError(f"max_words is {max_words}; the three special words alone need {len(SPECIALS)}.")
    if min_count < 1:
        raise ConfigError(f"min_count is {min_count}; it must be at least 1.")


def read_words(path: str | Path) -> list[str]:
    """The words of a list in the order of their rows, one a line, UTF-8, ``.gz`` or plain; as bilm-tf reads it.

    Raises:
        ModelNotFoundError, FormatError: it is not there, or no such list.
    """
    path = Path(path)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            data: bytes = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ModelNotFoundError(f"There is no vocabulary {path}.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path} cannot be read ({error}). Download or copy it again.") from None
    if len(data) > MAX_BYTES:
        raise FormatError(f"{path} holds more than {MAX_BYTES:,} bytes of text; it is no vocabulary.")
    try:
        lines = data.removeprefix(codecs.BOM_UTF8).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}). Convert it to UTF-8.") from None
    if not lines[-1]:
        lines.pop()
    return [word for line in lines if (word := line.strip()) != IGNORED_LINE]
