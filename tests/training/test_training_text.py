"""What is said about the text of a training before it starts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from elmokit.errors import TextError
from elmokit.text.vocabulary import SPECIALS, Vocabulary
from elmokit.training.training_config import TrainingConfig
from elmokit.training.training_text import TrainingCorpus, word_order_notice

SAMPLED = TrainingConfig(n_samples=64)
ORDERS: dict[str, Callable[[list[str]], list[str]]] = {
    "alphabetical": sorted,
    "reversed": lambda words: words[::-1],
    "random": lambda words: np.random.default_rng(1).permutation(words).tolist(),
    "by length": lambda words: sorted(words, key=len),
    "rare words first": lambda words: words[-len(words) // 5 :] + words[: -len(words) // 5],
}


def language(n_words: int, seed: int = 0) -> dict[str, int]:
    """Return made-up words and their counts: a few occur often and are short, as in every language."""
    generator = np.random.default_rng(seed)
    words: dict[str, int] = {}
    while len(words) < n_words:
        length = 1 + int(generator.poisson(0.7 * np.log(2 + len(words))))
        words.setdefault(
            "".join(generator.choice(list("abcdefghijklmnop"), length)), round(20 * n_words / (len(words) + 2))
        )
    return words


def other_text(words: dict[str, int], n_tokens: int = 20_000) -> dict[str, int]:
    """Draw a text with the same words and other frequencies: a factor of about 4 up or down."""
    generator = np.random.default_rng(2)
    weights = np.array([*words.values()]) * np.exp(1.4 * generator.standard_normal(len(words)))
    return dict(zip(words, generator.multinomial(n_tokens, weights / weights.sum()).tolist(), strict=True))


def notice_for(words: list[str], counts: dict[str, int], config: TrainingConfig = SAMPLED) -> str:
    vocabulary = Vocabulary([*SPECIALS, *words])
    return str(word_order_notice(config, vocabulary, {**dict.fromkeys(SPECIALS, 0), **counts}) or "")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n_words", [200, 3000])
def test_a_vocabulary_in_another_order_than_that_of_frequency_is_reported(n_words: int, order: str) -> None:
    counts = language(n_words)
    said = notice_for(ORDERS[order](list(counts)), counts)
    assert "The vocabulary is not sorted by frequency" in said
    if order == "reversed":
        times = f"occurs {max(counts.values()):,} times in this text but is word {n_words + 3:,} of {n_words + 3:,}"
        assert f"{next(iter(counts))!r} {times}" in said


@pytest.mark.parametrize("n_tokens", [2000, 200_000])
@pytest.mark.parametrize("n_words", [200, 3000])
def test_a_vocabulary_from_another_text_is_not_reported(n_words: int, n_tokens: int) -> None:
    words = language(n_words)
    assert not notice_for(list(words), words)
    assert not notice_for(list(words), other_text(words, n_tokens))


def test_ties_and_chance_are_not_reported() -> None:
    words = sorted(language(1000))
    assert not notice_for(words, dict.fromkeys(words, 3))
    chance = np.random.default_rng(0).poisson(1, len(words)).tolist()
    assert not notice_for(words, dict(zip(words, chance, strict=True)))
    assert not notice_for(words, dict.fromkeys(words, 0))  # a text with none of them
    assert not notice_for(["the"], {"the": 5})


def test_a_full_softmax_needs_no_order() -> None:
    counts = language(500)
    words = sorted(counts)
    assert notice_for(words, counts)
    assert not notice_for(words, counts, TrainingConfig(n_samples=0))
    assert not notice_for(words, counts, TrainingConfig(n_samples=1000))  # all are drawn


@pytest.mark.parametrize(("n_sentences", "cure"), [(1, "fold -s -w 1000"), (40, "Lower batch_size")])
def test_a_text_of_too_few_sentences_is_refused_with_the_cure(n_sentences: int, cure: str) -> None:
    corpus = TrainingCorpus([], [], Vocabulary([*SPECIALS, "the"]), n_sentences, 10_873)
    with pytest.raises(TextError, match=cure):
        corpus.check(TrainingConfig(), n_processes=1)
