"""Train a linear map of sentence vectors and a weight for each word, on pairs: :func:`train_sentence_head`.

The token vectors of layer 0 are fixed, so that a word has one vector and an optimizer step costs milliseconds. What is
trained is small on purpose: the pairs that people have compared are thousands, and a network has millions of weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.config import check_at_least, check_not_negative, check_positive
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.sentence_vectors import SentenceEmbedder, words_only
from elmokit.errors import ConfigError, TextError, TrainingError
from elmokit.evaluation.similarity import ScoredPair
from elmokit.formats.sentence_pooling import SentenceHead, SentenceMap, SentencePooling, Whitening, head_word_id
from elmokit.storage.progress import ProgressCallback
from elmokit.text.vocabulary import Vocabulary

Pair = tuple[Sequence[str], Sequence[str]]

SCORED_AT_ONCE, ENTAILED_AT_ONCE = 512, 256
"""Pairs of a step. A correlation is measured, and the wrong sentences are drawn, among them."""
SCORED_WEIGHT = 3.0
"""The loss of scored pairs, from 0 to 2, against that of entailed ones, from 0 to the logarithm of their number."""
TEMPERATURE = 0.05
WORD_DECAY = 1e-3
"""The pull on the logarithms of the word weights against that on the map: their squares are summed over the words."""


@dataclass(frozen=True)
class HeadConfig:
    """How a head for sentences is trained. The defaults were chosen on the STS benchmark's dev set.

    Attributes:
        n_steps: Number of optimizer steps. The learning rates fall to 0 over them.
        learning_rate: Of the linear map.
        word_learning_rate: Of the logarithms of the word weights. 0 leaves the weights as they are.
        decay: How strongly the map is pulled to the whitening, and the logarithms to 0.
        seed: Seed of the order of the pairs.

    Raises:
        ConfigError: A value is not valid.
    """

    n_steps: int = 300
    learning_rate: float = 2e-3
    word_learning_rate: float = 1e-2
    decay: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least("n_steps", self.n_steps, 1)
        check_at_least("seed", self.seed, 0)
        check_positive("learning_rate", self.learning_rate)
        for name in ("word_learning_rate", "decay"):
            check_not_negative(name, getattr(self, name))


def train_sentence_head(
    elmo: Elmo,
    scored: Sequence[ScoredPair] = (),
    entailed: Sequence[Pair] = (),
    config: HeadConfig = HeadConfig(),
    progress: ProgressCallback | None = None,
) -> SentenceHead:
    """Train a linear map of sentence vectors, and a weight for each word of the vocabulary.

    It starts from the whitening that the model stores, if that is one of layer 0 with "sif", or from one of the
    sentences of the pairs. Cosines of scored pairs are to correlate with their scores (Pearson, within a batch). In
    an entailed pair, the second sentence is to be closer to the first one than those of other pairs are.

    Args:
        elmo: The model. It needs a vocabulary.
        scored: Pairs with the similarity that people gave them, as of
            :func:`~elmokit.evaluation.similarity.read_scored_pairs`.
        entailed: Pairs of tokenized sentences of which the first says what the second says.
        config: The settings of the training.
        progress: Called with the number of steps.

    Returns:
        The map. ``elmo.model.sentence_head = head`` makes it part of the model, and ``SentenceEmbedder.by_name(elmo,
        "trained")`` uses it.

    Raises:
        ConfigError: The model has no vocabulary.
        TrainingError: Training diverged.
        TextError: There are neither two scored pairs of different scores nor two entailed ones. Pairs with an empty
            sentence do not count.

    Example:
        >>> elmo = Elmo.from_pretrained()
        >>> pairs = read_scored_pairs("sts-train.csv", treebank_tokenizer())
        >>> elmo.model.sentence_head = train_sentence_head(elmo, pairs)
        >>> save_model(elmo.model, "my-model")
    """
    if elmo.model.vocabulary is None:
        raise ConfigError("A head for sentences has a weight for each word, and this model has no vocabulary.")
    scored = [pair for pair in scored if pair.first and pair.second]
    entailed = [pair for pair in entailed if all(pair)]
    has_scores = len({pair.score for pair in scored}) > 1
    if not has_scores and len(entailed) < 2:
        raise TextError(
            "A head needs at least two scored pairs with different scores, or two entailed ones, and some thousands "
            f"are better; there are {len(scored)} and {len(entailed)}."
        )
    pairs = [*((pair.first, pair.second) for pair in scored), *entailed]
    start = _starting_map(elmo, pairs)
    words = _Words(SentenceEmbedder(elmo, start.pooling), elmo.model.vocabulary, pairs)
    mean, projection = (torch.from_numpy(array.copy()).requires_grad_() for array in (start.mean, start.projection))
    log_weights = torch.zeros(len(elmo.model.vocabulary), requires_grad=True)

    def unit(sentences: Sequence[Tensor], chosen: Sequence[int]) -> Tensor:
        return F.normalize(words.means([sentences[number] for number in chosen], log_weights, mean, projection), dim=1)

    first, second = ([words.numbers(pair[which]) for pair in pairs] for which in (0, 1))
    # A correlation does not depend on their scale, and float32 has no room for numbers like 1e39.
    scores = torch.tensor([pair.score for pair in scored], dtype=torch.float64)
    if has_scores:
        scores = scores / scores.abs().max()
    scores = scores.float()
    start_projection = projection.detach().clone()
    rates = [config.learning_rate, config.learning_rate, config.word_learning_rate]
    optimizer = torch.optim.Adam([{"params": [part]} for part in (mean, projection, log_weights)])
    rng = Random(config.seed)
    for step in range(config.n_steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - step / config.n_steps)
        moved = (projection - start_projection).square().sum() / start_projection.square().sum()
        loss = config.decay * (moved + WORD_DECAY * log_weights.square().sum())
        if has_scores:
            chosen = rng.sample(range(len(scored)), min(SCORED_AT_ONCE, len(scored)))
            loss = loss + SCORED_WEIGHT * _scored_loss(unit(first, chosen), unit(second, chosen), scores[chosen])
        if len(entailed) > 1:
            chosen = rng.sample(range(len(scored), len(pairs)), min(ENTAILED_AT_ONCE, len(entailed)))
            loss = loss + _entailed_loss(unit(first, chosen), unit(second, chosen))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if progress is not None:
            progress("training", step + 1, config.n_steps)
    arrays = [part.detach().numpy() for part in (mean, projection, log_weights.exp())]
    if not all(np.isfinite(array).all() for array in arrays) or not (arrays[2] > 0).all():
        raise TrainingError("Training diverged: the head contains NaN or infinity.")
    return SentenceHead(start.pooling, *arrays)


def _starting_map(elmo: Elmo, pairs: Sequence[Pair]) -> SentenceMap:
    """Return the map to start from."""
    pooling, stored = SentencePooling(), elmo.model.whitening
    if stored is not None and stored.pooling == pooling:
        return stored
    embedder = SentenceEmbedder(elmo, pooling)
    vectors = (embedder.embed(list(pair)) for pair in pairs)
    return Whitening.fit(vectors, pooling)


def _scored_loss(first: Tensor, second: Tensor, scores: Tensor) -> Tensor:
    """Return 1 - the correlation of cosines with scores."""
    cosines, scores = (first * second).sum(dim=1), scores - scores.mean()
    cosines = cosines - cosines.mean()
    # The limit is for batches in which all scores are the same.
    loss: Tensor = 1 - (cosines * scores).sum() / (cosines.norm() * scores.norm()).clamp(min=1e-12)
    return loss


def _entailed_loss(first: Tensor, second: Tensor) -> Tensor:
    """Return the cross entropy of finding each sentence's partner among those of a batch."""
    similarities, partners = first @ second.T / TEMPERATURE, torch.arange(len(first))
    return (F.cross_entropy(similarities, partners) + F.cross_entropy(similarities.T, partners)) / 2


class _Words:
    """The distinct words of sentences, with what a sentence vector is made of."""

    def __init__(self, embedder: SentenceEmbedder, vocabulary: Vocabulary, pairs: Iterable[Pair]) -> None:
        self._fold, self._numbers = embedder.fold, dict[str, int]()
        for pair in pairs:
            for sentence in pair:
                for word in self._counted(sentence):
                    self._numbers.setdefault(word, len(self._numbers))
        words = list(self._numbers)
        vectors = [array[0] for array in embedder.elmo.embed(iter([word] for word in words), layers=0)]
        self._vectors = torch.from_numpy(np.stack(vectors))
        self._weights = torch.tensor([*map(embedder.weight, words)])
        ids = torch.tensor([head_word_id(word, vocabulary) for word in words])
        # A vocabulary without <UNK> has no weight for other words.
        self._ids, self._is_known = ids.clamp(min=0), (ids >= 0).to(torch.float32)

    def _counted(self, sentence: Sequence[str]) -> list[str]:
        folded = self._fold(list(sentence))
        return [word for word, counts in zip(folded, words_only(folded), strict=True) if counts]

    def numbers(self, sentence: Sequence[str]) -> Tensor:
        """Return the numbers of the words of a sentence."""
        return torch.tensor([self._numbers[word] for word in self._counted(sentence)])

    def means(self, sentences: Sequence[Tensor], log_weights: Tensor, mean: Tensor, projection: Tensor) -> Tensor:
        """Return the weighted means of the words' mapped vectors; sentences are words' numbers."""
        # Without padding, since one sentence may be thousands of times as long as another. Not `embedding_bag`: PyTorch
        # 2.4 cannot differentiate it by the weights alone.
        words = torch.cat(list(sentences))
        rows = torch.repeat_interleave(torch.arange(len(sentences)), torch.tensor([*map(len, sentences)]))
        weights = self._weights[words] * (log_weights[self._ids[words]] * self._is_known[words]).exp()
        shares = weights / torch.zeros(len(sentences)).index_add(0, rows, weights)[rows]
        distinct, places = torch.unique(words, return_inverse=True)
        mapped = F.normalize((self._vectors[distinct] - mean) @ projection, dim=1)
        return torch.zeros(len(sentences), mapped.shape[1]).index_add(0, rows, shares[:, None] * mapped[places])
