"""Train a head for sentence vectors on pairs of sentences, with PyTorch: a linear map, and a weight for each word.

    python recipes/sentence_head.py pairs.csv entailed.jsonl --held-out dev.csv --out my-model

Pairs are rows of two sentences and a score, in CSV, or JSON lines with labels as SNLI, whose entailed pairs are used.
Cosines of scored pairs are to correlate with their scores, and the second sentence of an entailed pair is to be closer
to the first one than those of other pairs are. The head reads layer 0 and, if the model has a table of words, the row
of the word. Both are fixed, so that a word has one vector and a step costs milliseconds.

The head is stored with the model. ``SentenceEmbedder.by_name(elmo, "trained")`` and ``elmokit embed --pool trained``
use it. The defaults were chosen on the STS benchmark's dev set (results/similarity.md).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit import Elmo, SentenceEmbedder, SentencePooling, save_model
from elmokit.embedding.sentence_vectors import fit_whitening, words_only
from elmokit.evaluation.similarity import read_scored_pairs, score_similarity
from elmokit.pretrained.sentence_pooling import SentenceHead, head_word_id
from elmokit.text.tokenize import get_tokenizer

Pair = tuple[Sequence[str], Sequence[str]]
SCORED_AT_ONCE, ENTAILED_AT_ONCE = 512, 256  # pairs of a step
SCORED_WEIGHT, TEMPERATURE = 4.0, 0.05
WORD_DECAY = 5e-4  # the pull on the logarithms of the word weights against that on the map
WORD_DROPOUT, DROPPED_WEIGHT = 0.2, 1e-3  # of a word that is left out; not 0, as all words of a sentence may be


class Words:
    """The distinct words of sentences, with what a sentence vector is made of."""

    def __init__(self, embedder: SentenceEmbedder, sentences: Sequence[Sequence[str]], seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        folded = [embedder.fold(list(sentence)) for sentence in sentences]
        counted = [[word for word, counts in zip(one, words_only(one), strict=True) if counts] for one in folded]
        numbers = {word: number for number, word in enumerate(dict.fromkeys(word for one in counted for word in one))}
        self.sentences = [torch.tensor([numbers[word] for word in one]) for one in counted]
        vectors = np.concatenate(list(embedder.elmo.embed(([word] for word in numbers), layers=0)))
        if embedder.elmo.model.config.word_features is not None:
            vectors = np.hstack([vectors, embedder.elmo.computer.table_rows([*numbers])])
        self.vectors = torch.from_numpy(vectors)
        self.weights = torch.tensor([*map(embedder.weight, numbers)])
        ids = torch.tensor([head_word_id(word, embedder.elmo.model.vocabulary) for word in numbers])
        self.ids, self.is_known = ids.clamp(min=0), (ids >= 0).float()  # -1: a vocabulary without <UNK>

    def units(self, chosen: Sequence[int], log_weights: Tensor, mean: Tensor, projection: Tensor) -> Tensor:
        """Return the vectors of sentences, of length 1: weighted means of their words' mapped vectors, without some."""
        sentences = [self.sentences[number] for number in chosen]
        words = torch.cat(sentences)
        rows = torch.repeat_interleave(torch.arange(len(sentences)), torch.tensor([*map(len, sentences)]))
        weights = self.weights[words] * (log_weights[self.ids[words]] * self.is_known[words]).exp()
        weights = weights * ((torch.rand(len(words), generator=self.generator) > WORD_DROPOUT) + DROPPED_WEIGHT)
        shares = weights / torch.zeros(len(sentences)).index_add(0, rows, weights)[rows]
        distinct, places = torch.unique(words, return_inverse=True)
        mapped = F.normalize((self.vectors[distinct] - mean) @ projection, dim=1)
        means = torch.zeros(len(sentences), mapped.shape[1]).index_add(0, rows, shares[:, None] * mapped[places])
        return F.normalize(means, dim=1)


def scored_loss(first: Tensor, second: Tensor, scores: Tensor) -> Tensor:
    """Return 1 - the correlation of cosines with scores."""
    cosines, scores = (first * second).sum(dim=1), scores - scores.mean()
    cosines = cosines - cosines.mean()
    return 1 - (cosines * scores).sum() / (cosines.norm() * scores.norm()).clamp(min=1e-12)


def entailed_loss(first: Tensor, second: Tensor) -> Tensor:
    """Return the cross entropy of finding each sentence's partner among those of a batch."""
    similarities, partners = first @ second.T / TEMPERATURE, torch.arange(len(first))
    return (F.cross_entropy(similarities, partners) + F.cross_entropy(similarities.T, partners)) / 2


def train_head(
    elmo: Elmo, scored: Sequence[Pair], scores: Sequence[float], entailed: Sequence[Pair], given: argparse.Namespace
) -> SentenceHead:
    """Train a head, from the whitening that the model stores or from one of the sentences of the pairs."""
    pairs, pooling = [*scored, *entailed], SentencePooling()
    start = elmo.model.whitening
    if start is None or start.pooling != pooling:
        embedder = SentenceEmbedder(elmo, pooling)
        start = fit_whitening((embedder.embed(list(pair)) for pair in pairs), pooling)
    # A pair's sentences have the numbers 2 n and 2 n + 1.
    words = Words(SentenceEmbedder(elmo, pooling), [sentence for pair in pairs for sentence in pair], given.seed)
    padding = words.vectors.shape[1] - len(start.mean)  # a row of the table of words counts nothing at first
    mean = F.pad(torch.from_numpy(start.mean), (0, padding)).requires_grad_()
    projection = F.pad(torch.from_numpy(start.projection), (0, 0, 0, padding)).requires_grad_()
    log_weights = torch.zeros(len(elmo.model.vocabulary or ()), requires_grad=True)
    start_projection, targets = projection.detach().clone(), torch.tensor(scores)
    rates = [given.learning_rate, given.learning_rate, given.word_learning_rate]
    optimizer = torch.optim.Adam([{"params": [part]} for part in (mean, projection, log_weights)])
    rng = Random(given.seed)

    def both(chosen: Sequence[int]) -> tuple[Tensor, ...]:
        return words.units([2 * n + side for side in (0, 1) for n in chosen], log_weights, mean, projection).chunk(2)

    for step in range(given.steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - step / given.steps)
        moved = (projection - start_projection).square().sum() / start_projection.square().sum()
        loss = given.decay * (moved + WORD_DECAY * log_weights.square().sum())
        if scored:
            chosen = rng.sample(range(len(scored)), min(SCORED_AT_ONCE, len(scored)))
            loss = loss + SCORED_WEIGHT * scored_loss(*both(chosen), targets[chosen])
        if len(entailed) > 1:
            chosen = rng.sample(range(len(scored), len(pairs)), min(ENTAILED_AT_ONCE, len(entailed)))
            loss = loss + entailed_loss(*both(chosen))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    arrays = [part.detach().numpy() for part in (mean, projection, log_weights.exp())]
    return SentenceHead(pooling, *arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", type=Path, help="CSV of scored pairs, or .jsonl of labeled ones")
    parser.add_argument("--model", help="the model  [default: the one in the package]")
    parser.add_argument("--out", type=Path, required=True, help="directory for the model with its head")
    parser.add_argument("--held-out", type=Path, help="scored pairs to measure on, before and after")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="of the map")
    parser.add_argument("--word-learning-rate", type=float, default=1e-2, help="of the logarithms of the word weights")
    parser.add_argument("--decay", type=float, default=1.0, help="pull of map and weights to their initial values")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.out.exists() or given.out.suffix in (".hdf5", ".h5"):  # now, not after the training
        parser.error(f"{given.out} is not a new directory; HDF5 files cannot hold a head")

    tokens = get_tokenizer("treebank")
    labeled = [path for path in given.pairs if path.suffix == ".jsonl"]
    scored = [pair for path in given.pairs if path not in labeled for pair in read_scored_pairs(path, tokens)]
    scored = [pair for pair in scored if pair.first and pair.second]
    rows = [json.loads(line) for path in labeled for line in path.read_text(encoding="utf-8").splitlines()]
    entailed = [
        (tokens(row["sentence1"]), tokens(row["sentence2"])) for row in rows if row["gold_label"] == "entailment"
    ]
    elmo = Elmo.from_pretrained(given.model)
    measured = [] if given.held_out is None else read_scored_pairs(given.held_out, tokens)
    if measured:
        print(f"Spearman correlation before: {score_similarity(SentenceEmbedder(elmo), measured).spearman:.3f}")
    sentences = [(pair.first, pair.second) for pair in scored]
    head = train_head(elmo, sentences, [pair.score for pair in scored], entailed, given)
    print(f"Trained on {len(scored):,} scored and {len(entailed):,} entailed pairs.")
    card = {**elmo.model.card, "sentence_head": {"pairs": [path.name for path in given.pairs]}}
    model = elmo.model.replace(sentence_head=head, card=card)
    if measured:
        after = score_similarity(SentenceEmbedder.by_name(Elmo(model), "trained"), measured).spearman
        print(f"Spearman correlation after: {after:.3f}")
    save_model(model, given.out, model.storage)  # as it was stored: only the head is new


if __name__ == "__main__":
    main()
