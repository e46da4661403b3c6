"""Vocabulary files: one made from a corpus, one made sound."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elmokit.errors import ConfigError
from elmokit.io.atomic import atomic_write, check_output_path
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE, UNKNOWN
from elmokit.text.counts import WordCounts
from elmokit.text.vocabulary import SPECIALS, Vocabulary, check_limits, rank_words, read_words

COUNTS_SUFFIX = ".counts.tsv"


@dataclass(frozen=True)
class VocabularyReport:
    """What was counted, and what of it the vocabulary holds."""

    n_sentences: int
    n_tokens: int
    """Boundaries not counted."""
    n_types: int
    """Distinct tokens of the text."""
    n_words: int
    """Of the vocabulary, specials included."""
    unknown_share: float
    """Share of the tokens that are read as ``<UNK>``."""
    n_boundaries_in_text: int
    """Tokens that are literally ``<S>`` or ``</S>``, which no text should hold."""


def build_vocabulary(
    texts: Iterable[Path],
    path: Path,
    max_words: int | None = None,
    min_count: int = 1,
    overwrite: bool = False,
    progress: Callable[[int], object] | None = None,
) -> VocabularyReport:
    """Count tokenised text once and write its words, with their counts in ``counts_path(path)``.

    The words are the specials, then the others by descending frequency, ties in alphabetical order, as the log-uniform
    sampler and bilm-tf want them. The counts have one line per word in the same order: ``word<TAB>count``; those of
    ``<S>`` and ``</S>`` are the sentences', that of ``<UNK>`` is the number of tokens that are read as it.

    Args:
        texts: files of one sentence per line, read once each.
        path: the vocabulary file to write; compressed if it ends in ``.gz``.
        max_words, min_count: as in ``Vocabulary.from_counts``.
        progress: as in ``read_lines``.

    Raises:
        TextError, MissingExtraError: a text cannot be read or holds no sentence.
        ConfigError: no word is left, or ``path`` ends in another way of compressing.
        OutputError: an output exists and may not be overwritten, or cannot be written.
    """
    if path.suffix in (".xz", ".zst"):
        raise ConfigError(f"A vocabulary is written plain or as .gz; {path} asks for {path.suffix}.")
    check_limits(max_words, min_count)
    check_output_path(path, overwrite)
    check_output_path(counts_path(path), overwrite)
    with WordCounts() as counts:
        for text in texts:
            counts.add(text, progress)
        n_types, special_counts = 0, dict.fromkeys(SPECIALS, 0)
        for word, count in counts.items():
            n_types += 1
            if word in special_counts:
                special_counts[word] = count
        ranked = rank_words(counts, max_words, min_count)
    if not ranked:
        raise ConfigError(f"No word of the text stands in it {min_count:,} times. Lower the minimum count.")
    n_boundaries = special_counts[BEGIN_SENTENCE] + special_counts[END_SENTENCE]
    n_unknown = counts.n_tokens - n_boundaries - sum(count for _, count in ranked)
    vocabulary = Vocabulary([*SPECIALS, *(word for word, _ in ranked)])
    of_specials = {BEGIN_SENTENCE: counts.n_sentences, END_SENTENCE: counts.n_sentences, UNKNOWN: n_unknown}
    lines = (f"{word}\t{count}\n" for word, count in (*of_specials.items(), *ranked))
    with (  # the two appear together
        _written(path, vocabulary.to_text(), overwrite),
        _written(counts_path(path), "".join(lines), overwrite),
    ):
        pass
    return VocabularyReport(
        n_sentences=counts.n_sentences,
        n_tokens=counts.n_tokens,
        n_types=n_types,
        n_words=len(vocabulary),
        unknown_share=n_unknown / counts.n_tokens,
        n_boundaries_in_text=n_boundaries,
    )


def counts_path(path: Path) -> Path:
    """Where the counts of a vocabulary file stand: ``vocab.counts.tsv`` beside ``vocab.txt`` and ``vocab.txt.gz``."""
    return path.with_name(path.name.removesuffix(".gz").removesuffix(".txt") + COUNTS_SUFFIX)


def repair_vocabulary(source: Path, path: Path, overwrite: bool = False) -> list[str]:
    """Write a sound vocabulary from a file that may lack specials, or hold blank lines or words twice.

    Returns:
        what was mended, a phrase each; none if the file was sound.

    Raises:
        ModelNotFoundError, FormatError: it is not there, or no list of words.
        OutputError: the output exists and may not be overwritten, or cannot be written.
    """
    check_output_path(path, overwrite)
    words, mended = repaired_words(read_words(source))
    with _written(path, Vocabulary(words).to_text(), overwrite):
        pass
    return mended


def repaired_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A sound list of words, and what was mended in it.

    Specials in another case (``<unk>``) are renamed in their place, missing ones put first; of a word that stands
    twice the first place stays; blank lines go.
    """
    mended = []
    sound: dict[str, int] = {}
    other_case = {special.lower(): special for special in SPECIALS if special not in words}
    for number, word in enumerate(words, start=1):
        if not word:
            mended.append(f"line {number} was blank and is gone")
            continue
        if (special := other_case.get(word.lower())) is not None and special not in sound:
            mended.append(f"line {number}: {word} is now {special}")
            word = special
        if word in sound:
            mended.append(f"line {number}: {word} stood on line {sound[word]} already and is gone")
            continue
        sound[word] = number
    missing = [special for special in SPECIALS if special not in sound]
    mended += [f"{special} was missing and now stands among the first lines" for special in missing]
    return [*missing, *sound], mended


@contextlib.contextmanager
def _written(path: Path, text: str, overwrite: bool) -> Iterator[None]:
    """The text stands at the path when the block ends well."""
    data = text.encode("utf-8")
    with atomic_write(path, overwrite) as beside:
        beside.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        yield
