"""Count the words of a corpus of any size, and build vocabulary files."""

from __future__ import annotations

import gzip
import heapq
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from elmokit.errors import ConfigError, OutputError
from elmokit.storage.atomic import atomic_write, check_output_path
from elmokit.storage.progress import ProgressCallback, StageCounter, count_of
from elmokit.storage.text_files import TextPaths, check_not_input, total_bytes
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE, UNKNOWN
from elmokit.text.foreign import UNKNOWN_MARKS, warn_of_foreign
from elmokit.text.text import Text, as_text
from elmokit.text.vocabulary import (
    SPECIALS,
    Vocabulary,
    check_limits,
    most_frequent,
    rank_words,
    warn_of_counted,
)


@dataclass(frozen=True)
class VocabularyReport:
    """Statistics of a corpus and of the vocabulary built from it."""

    n_sentences: int
    n_tokens: int
    """Without sentence boundaries."""
    n_types: int
    """Distinct tokens of the text."""
    n_words: int
    """Words of the vocabulary, including the special words."""
    unknown_ratio: float
    """The fraction of tokens that are not in the vocabulary and read as ``<UNK>``."""
    n_boundaries_in_text: int
    """Tokens that are literally ``<S>`` or ``</S>``. A text should have none."""
    unknown_words: tuple[str, ...] = ()
    """The most frequent words that are not in the vocabulary, ten at most."""


def build_vocabulary(
    texts: Text | TextPaths,
    path: str | Path,
    max_words: int | None = None,
    min_count: int = 1,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> VocabularyReport:
    """Count the words of tokenized text and write a vocabulary file.

    The special words come first, then the others by descending frequency. A word that begins or ends with white space,
    such as a no-break space, is left out, because the file cannot hold it.

    Args:
        texts: A text; or files, directories or patterns of tokenized text, one sentence per line.
        path: The vocabulary file to write. It is compressed if the name ends in ``.gz``.
        max_words: Number of words, including <S>, </S> and <UNK>: the most frequent ones.
        min_count: Leave out words that occur less often.
        overwrite: Replace an existing file.
        progress: Called with the number of bytes read.

    Raises:
        TextError, MissingExtraError: A text cannot be read or contains no sentence.
        ConfigError: No word is left, or ``path`` asks for a compression other than gzip.
        OutputError: The output exists, is one of the texts, or cannot be written.
    """
    path = Path(path)
    if path.suffix in (".xz", ".zst"):
        raise ConfigError(f"A vocabulary is written as plain text or .gz, not as {path.suffix}: {path}")
    check_limits(max_words, min_count)
    text = as_text(texts)
    check_not_input(path, text.files)
    check_output_path(path, overwrite)
    with count_words(text, progress) as counts:
        ranked = rank_words(counts, max_words, min_count)
        if not ranked:
            raise ConfigError(f"No word of the text occurs {count_of(min_count, 'time')}.")
        vocabulary = Vocabulary([*SPECIALS, *(word for word, _ in ranked)])
        n_types = n_boundaries = 0
        has_unknown = False
        for word, count in counts.items():
            n_types += 1
            if word in (BEGIN_SENTENCE, END_SENTENCE):
                n_boundaries += count
            elif word in UNKNOWN_MARKS and word != UNKNOWN:
                has_unknown = True
        unknown_words = most_frequent(entry for entry in counts.items() if entry[0] not in vocabulary.ids)
    if has_unknown:
        warn_of_foreign("unknown", f"count as {UNKNOWN}")
    warn_of_counted(vocabulary)
    content = vocabulary.to_text().encode("utf-8")
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    with atomic_write(path, overwrite) as temporary:
        temporary.write_bytes(content)
    n_known = n_boundaries + sum(count for _, count in ranked)
    return VocabularyReport(
        n_sentences=counts.n_sentences,
        n_tokens=counts.n_tokens,
        n_types=n_types,
        n_words=len(vocabulary),
        unknown_ratio=(counts.n_tokens - n_known) / counts.n_tokens,
        n_boundaries_in_text=n_boundaries,
        unknown_words=unknown_words,
    )


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

    def add(self, text: Text, on_bytes: Callable[[int], object] | None = None) -> None:
        """Count the sentences of a text."""
        words = self.words
        for tokens in text.token_lists(on_bytes):
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


def count_words(text: Text, progress: ProgressCallback | None = None) -> WordCounts:
    """Count the words of a text. Use the result as a context manager."""
    counts, on_bytes = WordCounts(), StageCounter(progress, "count words", total_bytes(text.files))
    try:
        counts.add(text, on_bytes)
    except BaseException:
        counts.__exit__()
        raise
    return counts


def _read(path: Path) -> Iterator[tuple[str, int]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            count, word = line[:-1].split("\t", 1)
            yield word, int(count)
