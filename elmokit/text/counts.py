"""Exact word counts of a corpus of any size, in bounded memory."""

from __future__ import annotations

import heapq
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from elmokit.errors import OutputError
from elmokit.storage.progress import ProgressCallback, StageCounter
from elmokit.storage.text_files import read_sentences, total_bytes

MAX_TYPES = 5_000_000  # distinct words in memory at a time: about 1 GB


class WordCounts:
    """How often each word occurs in a corpus, and the size of the corpus: a context manager for its temporary files.

    When more than ``max_types`` distinct words are in memory, the counts are written to a sorted temporary file. The
    files are merged when the counts are read, so the counts are exact for a corpus of any size.
    """

    def __init__(self, max_types: int = MAX_TYPES) -> None:
        self.words: Counter[str] = Counter()
        """The counts in memory: all counts, as long as there is no temporary file."""
        self.n_sentences = 0
        self.n_tokens = 0
        """Without sentence boundaries."""
        self.max_types = max_types
        self._spilled: list[Path] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> WordCounts:
        return self

    def __exit__(self, *error: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(
        self, path: str | Path, on_bytes: Callable[[int], object] | None = None, like_bilm_tf: bool = False
    ) -> None:
        """Count one file of tokenized sentences, one per line, as ``read_sentences`` reads it."""
        words = self.words
        for tokens in read_sentences(path, on_bytes, like_bilm_tf=like_bilm_tf):
            words.update(tokens)
            self.n_sentences += 1
            self.n_tokens += len(tokens)
            if len(words) > self.max_types:
                self._spill()

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield each word and its count, in no particular order."""
        if not self._spilled:
            yield from self.words.items()
            return
        files = [_read(path) for path in self._spilled]
        merged = heapq.merge(*files, sorted(self.words.items()), key=itemgetter(0))
        for word, same in groupby(merged, key=itemgetter(0)):
            yield word, sum(count for _, count in same)

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="elmokit-counts-")
        path = Path(self._folder.name) / str(len(self._spilled))
        try:
            with path.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{count}\t{word}\n" for word, count in sorted(self.words.items()))
        except OSError as error:
            raise OutputError(f"{path.parent}: {error.strerror}. Set TMPDIR to a larger disk.") from error
        self._spilled.append(path)
        self.words.clear()


def count_words(
    files: Sequence[Path], progress: ProgressCallback | None = None, like_bilm_tf: bool = False
) -> WordCounts:
    """Count the words of tokenized text files. Use the result as a context manager."""
    counts, on_bytes = WordCounts(), StageCounter(progress, "count words", total_bytes(files))
    try:
        for file in files:
            counts.add(file, on_bytes, like_bilm_tf)
    except BaseException:
        counts.__exit__()
        raise
    return counts


def _read(path: Path) -> Iterator[tuple[str, int]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            count, word = line[:-1].split("\t", 1)
            yield word, int(count)
