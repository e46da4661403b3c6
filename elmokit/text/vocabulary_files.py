"""Count the words of a corpus of any size, and build or repair vocabulary files."""

from __future__ import annotations

import contextlib
import gzip
import heapq
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
    """Words of the vocabulary, including the special words."""
    unknown_ratio: float
    """The fraction of tokens that are not in the vocabulary and read as ``<UNK>``."""
    n_boundaries_in_text: int
    """Tokens that are literally ``<S>`` or ``</S>``. A text should have none."""
    unknown_words: tuple[str, ...] = ()
    """The most frequent words that are not in the vocabulary, ten at most."""
    unwritable: tuple[str, ...] = ()
    """Words that begin or end with white space, such as a no-break space, which a vocabulary file cannot hold."""


def build_vocabulary(
    texts: Text | TextPaths,
    path: str | Path,
    max_words: int | None = None,
    min_count: int = 1,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> VocabularyReport:
    """Count the words of tokenized text and write a vocabulary file, with the counts in a second file next to it.

    The special words come first, then the others by descending frequency. The second file, ``counts_path(path)``, has
    one line ``word<TAB>count`` per word in the same order. ``<S>`` and ``</S>`` count as often as there are sentences,
    and ``<UNK>`` as often as there are tokens outside the vocabulary.

    Args:
        texts: A text; or files, directories or patterns of tokenized text, one sentence per line.
        path: The vocabulary file to write. It is compressed if the name ends in ``.gz``.
        max_words: Number of words, including <S>, </S> and <UNK>: the most frequent ones.
        min_count: Leave out words that occur less often.
        overwrite: Replace existing files.
        progress: Called with the number of bytes read.

    Raises:
        TextError, MissingExtraError: A text cannot be read or contains no sentence.
        ConfigError: No word is left, or ``path`` asks for a compression other than gzip.
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
    """What the words of a text are."""

    n_types: int
    n_boundaries: int
    """Tokens that are ``<S>`` or ``</S>``."""
    has_unknown: bool
    """Whether there is a mark of another program for unknown words."""
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
    """Return where the counts of a vocabulary file are: ``vocab.counts.tsv`` for ``vocab.txt`` and ``vocab.txt.gz``."""
    path = Path(path)
    return path.with_name(path.name.removesuffix(".gz").removesuffix(".txt") + COUNTS_SUFFIX)


def repair_vocabulary(
    source: str | Path,
    path: str | Path,
    overwrite: bool = False,
    texts: Text | TextPaths = (),
    progress: ProgressCallback | None = None,
) -> list[str]:
    """Write a valid vocabulary from a word list, and return the changes as one phrase each; none if it was valid.

    With ``texts``, as in :func:`build_vocabulary`, the words are also sorted by their frequency there.
    """
    path = Path(path)
    check_output_path(path, overwrite)
    words, changes = repaired_words(read_rows(source))
    if len(words) == len(SPECIALS):
        raise TextError(f"{source} contains no word to repair a vocabulary from.")
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
    """Return a word list by descending frequency, after its special words, and the changes it took.

    Words that occur equally often stay in their order.
    """
    by_frequency = sorted(words, key=lambda word: (word not in SPECIALS, word not in SPECIALS and -counts.get(word, 0)))
    moved = [number for number, pair in enumerate(zip(words, by_frequency, strict=True), start=1) if len(set(pair)) > 1]
    if not moved:
        return by_frequency, []
    first = moved[0]
    new, old = by_frequency[first - 1], words[first - 1]
    return by_frequency, [f"sorted by frequency: from line {first}, which has {new} instead of {old}"]


def repaired_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a valid word list and the changes it took.

    Of a file with several columns, such as counts or vectors, the words are kept. Special words in another case
    (``<unk>``) are renamed where they are. Of a repeated word, the first is kept.
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
            changes.append(f"line {number}: removed {word!r}, which no token equals because of its space")
            continue
        if (special := other_case.get(word.lower())) is not None and special not in valid:
            changes.append(f"line {number}: renamed {word} to {special}")
            word = special
        if word in valid:
            changes.append(f"line {number}: removed {word}, which is on line {valid[word]} already")
            continue
        valid[word] = number
    missing = [special for special in SPECIALS if special not in valid]
    changes += [f"added {special}, which was missing, to the first lines" for special in missing]
    return [*missing, *valid], changes


def _without_columns(words: Sequence[str]) -> tuple[list[tuple[int, str]], list[str]]:
    """Return the words of a list with the numbers of their lines, and the changes that drop its other columns."""
    columns = find_columns(words)
    if columns is None:
        return list(enumerate(words, start=1)), []
    changes = [f"kept the words alone: {columns.problem.removesuffix('.')}"]
    numbered = [(number, columns.word(row)) for number, row in enumerate(columns.rows, start=1)]
    if is_vector_header(columns.rows):
        changes.append(f"line 1: removed the size of the table, {' '.join(columns.rows[0])!r}")
        del numbered[0]
    return numbered, changes


def is_vector_header(rows: Sequence[Sequence[str]]) -> bool:
    """Say whether the first line is the number and the size of the vectors, as in the text format of word2vec."""
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
