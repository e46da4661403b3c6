"""Count the words in a corpus of any size, and build or repair vocabulary files."""

from __future__ import annotations

import contextlib
import gzip
import heapq
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from elmokit.errors import ConfigError, OutputError, TextError
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
    find_columns,
    has_space,
    most_frequent,
    rank_words,
    read_rows,
    warn_of_counted,
)

COUNTS_SUFFIX = ".counts.tsv"


@dataclass(frozen=True)
class VocabularyReport:
    """Statistics of a corpus and of the vocabulary built from it."""

    n_sentences: int
    n_tokens: int
    """Without sentence boundaries."""
    n_types: int
    """Distinct tokens of the text."""
    n_words: int
    """Number of words in the vocabulary, including the special words."""
    unknown_ratio: float
    """The fraction of tokens outside the vocabulary, which are read as ``<UNK>``."""
    n_boundaries_in_text: int
    """Tokens that are literally ``<S>`` or ``</S>``. Texts should not have any."""
    unknown_words: tuple[str, ...] = ()
    """The most frequent words outside the vocabulary, at most ten."""
    unwritable: tuple[str, ...] = ()
    """Words with white space at the beginning or end, such as a no-break space, which vocabulary files cannot hold."""


def build_vocabulary(
    texts: Text | TextPaths,
    path: str | Path,
    max_words: int | None = None,
    min_count: int = 1,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> VocabularyReport:
    """Count the words in tokenized text, and write a vocabulary file and a file with the counts.

    The special words come first, then the others by descending frequency. The second file, ``counts_path(path)``, has
    one line ``word<TAB>count`` per word in the same order. The counts of ``<S>`` and ``</S>`` are the number of
    sentences, and that of ``<UNK>`` is the number of tokens outside the vocabulary.

    Args:
        texts: A text; or files, directories or patterns of tokenized text, one sentence per line.
        path: The vocabulary file to write. It is compressed if the name ends in ``.gz``.
        max_words: Keep the most frequent words, up to this number, including <S>, </S> and <UNK>.
        min_count: Drop words that occur less often.
        overwrite: Replace existing files.
        progress: Called with the number of bytes read.

    Raises:
        TextError, MissingExtraError: A text cannot be read or contains no sentences.
        ConfigError: No words are left, or the extension of ``path`` is a compression other than gzip.
        OutputError: An output exists, is one of the texts, or cannot be written.
    """
    path = Path(path)
    if path.suffix in (".xz", ".zst"):
        raise ConfigError(f"A vocabulary is written as plain text or .gz, not as {path.suffix}: {path}")
    check_limits(max_words, min_count)
    text = as_text(texts)
    for output in (path, counts_path(path)):
        check_not_input(output, text.files)
        check_output_path(output, overwrite)
    with count_words(text, progress) as counts:
        found = _words_of(counts)
        ranked = rank_words(counts, max_words, min_count)
        if not ranked:
            raise ConfigError(f"No word of the text occurs {count_of(min_count, 'time')}.")
        vocabulary = Vocabulary([*SPECIALS, *(word for word, _ in ranked)])
        unknown_words = most_frequent(entry for entry in counts.items() if entry[0] not in vocabulary.ids)
    if found.has_unknown:
        warn_of_foreign("unknown", f"count as {UNKNOWN}")
    n_known = sum(count for _, count in ranked)
    n_unknown = counts.n_tokens - found.n_boundaries - n_known
    warn_of_counted(vocabulary)
    of_specials = [(BEGIN_SENTENCE, counts.n_sentences), (END_SENTENCE, counts.n_sentences), (UNKNOWN, n_unknown)]
    lines = [f"{word}\t{count}\n" for word, count in [*of_specials, *ranked]]
    with (  # the two files appear together
        _written(path, vocabulary.to_text(), overwrite),
        _written(counts_path(path), "".join(lines), overwrite),
    ):
        pass
    return VocabularyReport(
        n_sentences=counts.n_sentences,
        n_tokens=counts.n_tokens,
        n_types=found.n_types,
        n_words=len(vocabulary),
        unknown_ratio=n_unknown / counts.n_tokens,
        n_boundaries_in_text=found.n_boundaries,
        unknown_words=unknown_words,
        unwritable=tuple(found.unwritable),
    )


class _Words(NamedTuple):
    """Statistics about the words of a text."""

    n_types: int
    n_boundaries: int
    """Tokens that are ``<S>`` or ``</S>``."""
    has_unknown: bool
    """Whether the text has another program's marks of unknown words."""
    unwritable: list[str]


def _words_of(counts: WordCounts) -> _Words:
    n_types = n_boundaries = 0
    has_unknown = False
    unwritable = []
    for word, count in counts.items():
        n_types += 1
        if word in (BEGIN_SENTENCE, END_SENTENCE):
            n_boundaries += count
        if word in UNKNOWN_MARKS and word != UNKNOWN:
            has_unknown = True
        if word != word.strip():
            unwritable.append(word)
    return _Words(n_types, n_boundaries, has_unknown, unwritable)


def counts_path(path: str | Path) -> Path:
    """Return the path of a vocabulary's counts: ``vocab.counts.tsv`` for ``vocab.txt`` and ``vocab.txt.gz``."""
    path = Path(path)
    return path.with_name(path.name.removesuffix(".gz").removesuffix(".txt") + COUNTS_SUFFIX)


def repair_vocabulary(
    source: str | Path,
    path: str | Path,
    overwrite: bool = False,
    texts: Text | TextPaths = (),
    progress: ProgressCallback | None = None,
) -> list[str]:
    """Write a valid vocabulary from a word list, and return a phrase for each change; none if it was valid.

    With ``texts``, as in :func:`build_vocabulary`, the words are also sorted by their frequency in them.
    """
    path = Path(path)
    check_output_path(path, overwrite)
    words, changes = repaired_words(read_rows(source))
    if len(words) == len(SPECIALS):
        raise TextError(f"{source} contains no words to repair.")
    if texts:
        text = as_text(texts)
        check_not_input(path, text.files)
        with count_words(text, progress) as counts:
            ids = set(words)
            words, sorting = sorted_words(words, {word: n for word, n in counts.items() if word in ids})
        changes += sorting
    with _written(path, Vocabulary(words).to_text(), overwrite):
        pass
    return changes


def sorted_words(words: Sequence[str], counts: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Sort a word list by descending frequency, after the special words; also return the changes.

    Words with equal counts stay in order.
    """

    def rank(word: str) -> float:
        if word in SPECIALS:
            return -math.inf
        return -counts.get(word, 0)

    by_frequency = sorted(words, key=rank)
    for line, (old, new) in enumerate(zip(words, by_frequency, strict=True), start=1):
        if old != new:
            return by_frequency, [f"sorted by frequency: from line {line}, which has {new} instead of {old}"]
    return by_frequency, []


def repaired_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a valid word list, and the changes.

    From a file with several columns, such as counts or vectors, only the words are kept. Special words in another case
    (``<unk>``) are renamed in place. The first of repeated words is kept.
    """
    numbered, changes = _without_columns(words)
    valid: dict[str, int] = {}
    listed = {word for _, word in numbered}
    other_case = {special.lower(): special for special in SPECIALS if special not in listed}
    for number, word in numbered:
        if not word:
            changes.append(f"line {number}: removed a blank line")
            continue
        if has_space(word):
            changes.append(f"line {number}: removed {word!r}, because tokens have no spaces")
            continue
        if (special := other_case.get(word.lower())) is not None and special not in valid:
            changes.append(f"line {number}: renamed {word} to {special}")
            word = special
        if word in valid:
            changes.append(f"line {number}: removed {word}, which is already on line {valid[word]}")
            continue
        valid[word] = number
    missing = [special for special in SPECIALS if special not in valid]
    changes += [f"added {special}, which was missing, at the top" for special in missing]
    return [*missing, *valid], changes


def _without_columns(words: Sequence[str]) -> tuple[list[tuple[int, str]], list[str]]:
    """Return the words of a list with their line numbers, and the changes that drop other columns."""
    columns = find_columns(words)
    if columns is None:
        return list(enumerate(words, start=1)), []
    changes = [f"kept only the words: {columns.problem.removesuffix('.')}"]
    numbered = [(number, columns.word(row)) for number, row in enumerate(columns.rows, start=1)]
    if is_vector_header(columns.rows):
        changes.append(f"line 1: removed the size of the table, {' '.join(columns.rows[0])!r}")
        del numbered[0]
    return numbered, changes


def is_vector_header(rows: Sequence[Sequence[str]]) -> bool:
    """Check whether the first line is the number and size of the vectors, as in word2vec's text format."""
    first = rows[0]
    if len(first) != 2 or len(rows) < 2 or not all(map(str.isdecimal, first)):
        return False
    return len(rows[1]) == int(first[1]) + 1


@contextlib.contextmanager
def _written(path: Path, text: str, overwrite: bool) -> Iterator[None]:
    """Write a file that appears only if the block ends without an exception."""
    data = text.encode("utf-8")
    with atomic_write(path, overwrite) as temporary:
        temporary.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        yield


MAX_TYPES = 5_000_000  # distinct words in memory at once: about 1 GB


class WordCounts:
    """Word counts of a corpus, and its size. Use it as a context manager, which removes temporary files.

    When more than ``max_types`` distinct words are in memory, the counts are written to a sorted temporary file. These
    files are merged when the counts are read, so the counts are exact for a corpus of any size.
    """

    def __init__(self, max_types: int = MAX_TYPES) -> None:
        self.words: Counter[str] = Counter()
        """The counts in memory, which are all counts as long as there are no temporary files."""
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
            raise OutputError(
                f"{path.parent}: {error.strerror}. Set TMPDIR to a directory on a larger disk."
            ) from error
        self._spilled.append(path)
        self.words.clear()


def count_words(text: Text, progress: ProgressCallback | None = None) -> WordCounts:
    """Count the words in a text. Use the result as a context manager."""
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
