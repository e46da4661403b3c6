"""The words that the softmax predicts (and that a word-input model reads)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ConfigError, FormatError
from elmokit.files import read_lines, split_tokens
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE, UNKNOWN

SPECIALS = (BEGIN_SENTENCE, END_SENTENCE, UNKNOWN)
_IGNORED_LINE = "!!!MAXTERMID"  # some published files end with it; it stands for no word


class Vocabulary:
    """A list of words; a word's id is its place in the list.

    Raises:
        FormatError: one of ``<S>``, ``</S>``, ``<UNK>`` is missing, or a word stands twice.
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
        self.begin_id, self.end_id, self.unknown_id = (self.ids[special] for special in SPECIALS)

    def __len__(self) -> int:
        return len(self.words)

    def word_ids(self, tokens: Iterable[str]) -> NDArray[np.int64]:
        """The ids of tokens, ``(tokens,)``; that of ``<UNK>`` for one not in the list."""
        return np.array([self.ids.get(token, self.unknown_id) for token in tokens], dtype=np.int64)

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], max_words: int) -> Vocabulary:
        """The specials, then the most frequent words (ties in alphabetical order), ``max_words`` in all."""
        if max_words <= len(SPECIALS):
            raise ConfigError(f"max_words is {max_words}; the three special words alone need {len(SPECIALS)}.")
        ranked = sorted((-count, word) for word, count in counts.items() if word not in SPECIALS)
        return cls([*SPECIALS, *(word for _, word in ranked[: max_words - len(SPECIALS)])])

    @classmethod
    def from_file(cls, path: str | Path) -> Vocabulary:
        """Read one word per line, UTF-8, as bilm-tf's vocabulary files are."""
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise FormatError(
                f"{path} is not UTF-8 ({error.reason} at byte {error.start}). Convert it to UTF-8."
            ) from None
        if lines and not lines[-1]:
            lines.pop()
        words = [line.strip() for line in lines]
        if "" in words:
            raise FormatError(f"Line {words.index('') + 1} of the vocabulary {path} is blank. Take it out.")
        try:
            return cls([word for word in words if word != _IGNORED_LINE])
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None

    def to_text(self) -> str:
        """The content of a vocabulary file."""
        return "".join(f"{word}\n" for word in self.words)


class WordCounts:
    """How often each word stands in a corpus, and the corpus's size."""

    def __init__(self) -> None:
        self.words: Counter[str] = Counter()
        self.n_sentences = 0

    @property
    def n_tokens(self) -> int:
        """Tokens, boundaries not counted."""
        return self.words.total()

    def add(self, path: str | Path) -> None:
        """Count one file of tokenised sentences, one per line; blank lines are passed over."""
        for line in read_lines(path):
            if tokens := split_tokens(line):
                self.words.update(tokens)
                self.n_sentences += 1
