"""How often each word stands in a corpus, exactly, in bounded memory."""

from __future__ import annotations

import heapq
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import TracebackType

from elmokit.errors import OutputError
from elmokit.io.text_files import read_sentences

MOST_TYPES = 5_000_000  # in memory at a time: about 1 GB


class WordCounts:
    """How often each word stands in a corpus, and the corpus's size.

    Words beyond ``most_types`` distinct ones are set aside in sorted files of a temporary folder and merged when they
    are asked for, so that the counts are exact whatever the corpus's size. Use it as a context where that may happen.
    """

    def __init__(self, most_types: int = MOST_TYPES) -> None:
        self.words: Counter[str] = Counter()
        """What is in memory: all counts, as long as nothing was set aside."""
        self.n_sentences = 0
        self.n_tokens = 0
        """Tokens, boundaries not counted."""
        self.most_types = most_types
        self._set_aside: list[Path] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> WordCounts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, path: str | Path, progress: Callable[[int], object] | None = None) -> None:
        """Count one file of tokenised sentences, one per line; blank lines are passed over.

        Raises:
            TextError, MissingExtraError: as in ``read_sentences``.
            OutputError: the temporary folder is full.
        """
        words = self.words
        for tokens in read_sentences(path, progress):
            words.update(tokens)
            self.n_sentences += 1
            self.n_tokens += len(tokens)
            if len(words) > self.most_types:
                self._put_aside()

    def items(self) -> Iterator[tuple[str, int]]:
        """Each word and how often it was counted, in no particular order."""
        if not self._set_aside:
            yield from self.words.items()
            return
        parts = [_read(path) for path in self._set_aside]
        merged = heapq.merge(*parts, sorted(self.words.items()), key=itemgetter(0))
        for word, same in groupby(merged, key=itemgetter(0)):
            yield word, sum(count for _, count in same)

    def _put_aside(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="elmokit-counts-")
        path = Path(self._folder.name) / str(len(self._set_aside))
        try:
            with path.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{count}\t{word}\n" for word, count in sorted(self.words.items()))
        except OSError as error:
            raise OutputError(
                f"Setting counts aside in {path.parent} failed: {error.strerror}. Point TMPDIR to a larger disk."
            ) from error
        self._set_aside.append(path)
        self.words.clear()


def _read(path: Path) -> Iterator[tuple[str, int]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            count, word = line[:-1].split("\t", 1)
            yield word, int(count)
