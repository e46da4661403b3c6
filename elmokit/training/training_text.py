"""The text of a training: its files, held-out sentences, vocabulary, and word counts."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit.config import check_at_least
from elmokit.errors import TextError
from elmokit.storage.progress import count_of
from elmokit.storage.text_files import TextPaths, check_names, find_text_files
from elmokit.text.text import Text
from elmokit.text.vocabulary import (
    SPECIALS,
    UnknownWords,
    Vocabulary,
    most_frequent,
    warn_of_counted,
)
from elmokit.text.vocabulary_files import count_words
from elmokit.training.reports import (
    CountingProgress,
    CountingStart,
    TextCounts,
    TrainingCallback,
    TrainingNotice,
    ignore,
)
from elmokit.training.training_config import MAX_WORDS, TrainingConfig

MAX_MEAN_LENGTH = 1000
"""Lines with more tokens on average are not sentences. Some corpora, such as text8, are a single line."""


@dataclass(frozen=True)
class TrainingCorpus:
    """The text of a training."""

    shards: Sequence[Path]
    """Text files with one tokenized sentence per line."""
    held_out: Sequence[Sequence[str]]
    """Sentences to evaluate on."""
    vocabulary: Vocabulary
    """The words that the softmax predicts."""
    n_sentences: int
    n_tokens: int
    """In all shards, without sentence boundaries."""
    bilm_tf_lines: bool = False
    """As in ``TrainingConfig``."""

    @property
    def text(self) -> Text:
        """The files, and how they are read."""
        return tokenized_text(self.shards, self.bilm_tf_lines)

    def held_out_unknown(self) -> UnknownWords:
        """Count the held-out words outside the vocabulary."""
        unknown = UnknownWords()
        for sentence in self.held_out:
            unknown.add(sentence, self.vocabulary.known_ids(map(self.vocabulary.read, sentence)) < 0)
        return unknown

    @property
    def n_predictions(self) -> int:
        """Predictions of one epoch per direction: a sentence of n tokens has n + 1."""
        return self.n_tokens + self.n_sentences

    def length(self, config: TrainingConfig) -> int:
        """The length of a training in predictions per direction."""
        return config.tokens or max(1, round((config.epochs or 1.0) * self.n_predictions))

    def check(self, config: TrainingConfig, n_processes: int) -> None:
        """Check, before any work is done, that the corpus is large enough for the settings."""
        n_rows, window_length = config.batch_size * n_processes, config.window_length
        if self.n_sentences < n_rows or self.n_predictions < n_rows * window_length:
            largest = min(self.n_sentences // n_processes, self.n_predictions // (window_length * n_processes))
            lower = f"batch_size (--batch-size) to at most {max(1, largest):,}"
            if not largest:
                lower += f" and window_length (--window-length) to at most {self.n_predictions // n_processes:,}"
            cure = f"Lower {lower}, or add text."
            if self.n_predictions > MAX_MEAN_LENGTH * self.n_sentences:
                cure = "Put each sentence on its own line, or at least shorten the lines: fold -s -w 1000 OLD > NEW"
            raise TextError(
                f"The text has {count_of(self.n_sentences, 'sentence')} and {self.n_predictions:,} predictions, too "
                f"few for a window of {n_rows:,} rows x {window_length} positions. {cure}"
            )


def tokenized_text(paths: TextPaths, bilm_tf_lines: bool = False) -> Text:
    """Return tokenized text as a training reads it: with ``bilm_tf_lines`` as bilm-tf did."""
    return Text(paths, kind="bilm-tf" if bilm_tf_lines else "tokens")


def find_shards(texts: TextPaths) -> list[Path]:
    """Find the files of a training's text, whose full names its run records."""
    shards = find_text_files(texts, reread=True)
    check_names(map(os.path.realpath, shards))
    return shards


def count_corpus(
    texts: TextPaths,
    held_out: Sequence[Sequence[str]],
    vocabulary: Vocabulary | None,
    max_words: int | None,
    report: TrainingCallback = ignore,
    bilm_tf_lines: bool = False,
    exact_marks: bool = False,
) -> tuple[TrainingCorpus, TextCounts, dict[str, int]]:
    """Count a text, choose the words of the softmax, and count each of them; all others count as ``<UNK>``."""
    shards = find_shards(texts)
    report(CountingStart(len(shards)))
    text = tokenized_text(shards, bilm_tf_lines)
    with count_words(text, lambda _, done, total: report(CountingProgress(done, total or 0))) as counts:
        if vocabulary is None:
            vocabulary = Vocabulary.from_counts(counts, MAX_WORDS if max_words is None else max_words)
            warn_of_counted(vocabulary)
        read_word = vocabulary.read_exactly if exact_marks else vocabulary.read
        word_counts, n_types = dict.fromkeys(vocabulary.words, 0), 0
        for word, count in counts.items():
            n_types += 1
            known = read_word(word)
            if known in word_counts:
                word_counts[known] += count
        # Read a second time, because the words of a large text may be on disk.
        unknown = ((word, count) for word, count in counts.items() if read_word(word) not in word_counts)
        unknown_words = most_frequent(unknown)
    n_known = sum(word_counts.values())
    word_counts[vocabulary.words[vocabulary.unknown_id]] += counts.n_tokens - n_known
    summary = TextCounts(
        files=tuple(shard.name for shard in shards),
        n_sentences=counts.n_sentences,
        n_tokens=counts.n_tokens,
        n_types=n_types,
        unknown_ratio=1 - n_known / max(1, counts.n_tokens),
        vocabulary_size=len(vocabulary),
        unknown_words=unknown_words,
    )
    report(summary)
    corpus = TrainingCorpus(shards, held_out, vocabulary, counts.n_sentences, counts.n_tokens, bilm_tf_lines)
    return corpus, summary, word_counts


def read_held_out(texts: TextPaths, max_sentences: int, bilm_tf_lines: bool = False) -> list[list[str]]:
    """Read the sentences of some files; if there are more than ``max_sentences``, draw that many at random."""
    check_at_least("held_out_sentences", max_sentences, 1)
    sentences = [tokens for tokens in tokenized_text(texts, bilm_tf_lines).token_lists() if tokens]
    return random.Random(0).sample(sentences, max_sentences) if len(sentences) > max_sentences else sentences


def word_order_notice(
    config: TrainingConfig, vocabulary: Vocabulary, word_counts: Mapping[str, int]
) -> TrainingNotice | None:
    """Return a warning if a vocabulary that must be sorted by descending frequency is not."""
    # The sampled softmax draws words from a distribution over their ranks. A sample of all words is the full softmax.
    if not 0 < config.n_samples < len(vocabulary):
        return None
    words = [word for word in vocabulary.words if word not in SPECIALS]
    counts = np.array([word_counts[word] for word in words], np.float64)
    if _looks_sorted(words, counts):
        return None
    log_ranks = _log_ranks(len(counts))
    best_ranks = np.empty_like(log_ranks)
    best_ranks[np.argsort(-counts, kind="stable")] = log_ranks
    worst = words[int(np.argmax(counts * (log_ranks - best_ranks)))]
    return TrainingNotice(
        "The vocabulary is not sorted by frequency, as the sampled softmax assumes (n_samples), so perplexity "
        f"will be higher: {worst!r} occurs {count_of(word_counts[worst], 'time')} in this text "
        f"but is word {vocabulary.ids[worst] + 1:,} of {len(vocabulary):,}. Sort it: elmokit vocab OLD NEW --repair "
        "--text TEXT"
    )


def _looks_sorted(words: Sequence[str], counts: NDArray[np.float64]) -> bool:
    """Check whether words are listed roughly by descending frequency, from their counts in a text."""
    if counts.var() <= 2 * counts.mean():  # words occur about equally often: what is left is chance
        return True
    # By the mean logarithm of a token's rank, about what a word costs in a Zipfian distribution over ranks: in this
    # order, in a random one and in the best one.
    log_ranks = _log_ranks(len(counts))
    by_frequency = np.sort(counts)[::-1]
    this = counts @ log_ranks / counts.sum()
    best = by_frequency @ log_ranks / counts.sum()
    random = log_ranks.mean()
    if this - best < 0.3:
        return True
    lengths = [len(word) for word in words]
    if lengths == sorted(lengths) and len(set(lengths)) > 2:  # far better than chance, because frequent words are short
        return False
    # Lists from another kind of text come 55 % of the way from the random order to the best one, or further: measured
    # with lists of 50 to 30,000 words from an encyclopedia, conversations, novels and textbooks, and 300 tokens or more
    # of each other, of tweets and of medical abstracts. An alphabetical list comes at most 28 % of the way.
    return bool(random - this >= 0.55 * (random - best))


def _log_ranks(n_words: int) -> NDArray[np.float64]:
    log_ranks: NDArray[np.float64] = np.log(np.arange(1.0, n_words + 1))
    return log_ranks
