"""How much a linear classifier makes of a sentence's sentiment: from its bag of words, or from a biLM's vectors.

python benchmarks/sentiment.py TRAIN DEV [MODEL]

TRAIN and DEV are trees of SST; sentences are the examples, five classes. The vectors are means over a sentence's
tokens, of each layer, frozen. Logistic regression, fitted by L-BFGS; the better of two penalties on dev stands in
results/tasks.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit import Elmo
from elmokit.tasks.readers.trees import read_trees

MIN_COUNT = 3
PENALTIES = (1e-3, 1e-2)  # on the squared weights
BAG_SHARE = 0.2  # a bag of words takes less of the penalty: its features are not scaled
N_CLASSES = 5


def main() -> None:
    """Print a table of accuracies on dev."""
    train, dev = (list(read_trees(path)) for path in sys.argv[1:3])
    elmo = Elmo.from_pretrained(sys.argv[3] if len(sys.argv) > 3 else None, n_mixes=0)
    labels = [torch.tensor([int(tree.nodes[0].label) for tree in part]) for part in (train, dev)]
    sentences = [[tree.tokens for tree in part] for part in (train, dev)]
    counts = Counter(word.lower() for tokens in sentences[0] for word in set(tokens))
    words = {word: place for place, word in enumerate(word for word, count in counts.items() if count >= MIN_COUNT)}
    bags = [bags_of_words(part, words) for part in sentences]
    means = [means_of_layers(elmo, part) for part in sentences]
    print("| features | dev accuracy by penalty | best |\n|---|---|---|")
    report("bag of words", bags, labels, BAG_SHARE)
    for layer in range(means[0].shape[1]):
        report(f"mean of layer {layer}", scaled([part[:, layer] for part in means]), labels)
    every = scaled([part.flatten(1) for part in means])
    report("means of all layers", every, labels)
    both = [torch.cat(parts, dim=1) for parts in zip(bags, every, strict=True)]
    report("means of all layers and bag of words", both, labels)


def bags_of_words(sentences: Sequence[Sequence[str]], words: dict[str, int]) -> Tensor:
    """1 for each listed word of a sentence, ``(sentences, words)``."""
    bags = torch.zeros(len(sentences), len(words))
    for row, tokens in zip(bags, sentences, strict=True):
        row[[words[token.lower()] for token in tokens if token.lower() in words]] = 1
    return bags


def means_of_layers(elmo: Elmo, sentences: Sequence[Sequence[str]]) -> Tensor:
    """Each layer's mean over a sentence's tokens, ``(sentences, layers, dim)``."""
    return torch.from_numpy(np.stack([layers.mean(axis=1) for layers in elmo.embed(sentences)]))


def scaled(parts: Sequence[Tensor]) -> list[Tensor]:
    """Features of mean 0 and deviation 1 over the first part."""
    mean, deviation = parts[0].mean(dim=0), parts[0].std(dim=0) + 1e-6
    return [(part - mean) / deviation for part in parts]


def report(name: str, features: Sequence[Tensor], labels: Sequence[Tensor], share: float = 1.0) -> None:
    """One row of the table."""
    found = [accuracy(features, labels, penalty * share) for penalty in PENALTIES]
    print(f"| {name} | {' '.join(f'{value:.1f}' for value in found)} | {max(found):.1f} |", flush=True)


def accuracy(features: Sequence[Tensor], labels: Sequence[Tensor], penalty: float) -> float:
    """Of a logistic regression fitted to the first part, on the second, in percent."""
    weight = torch.zeros(features[0].shape[1], N_CLASSES, requires_grad=True)
    bias = torch.zeros(N_CLASSES, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(features[0] @ weight + bias, labels[0]) + penalty * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)
    with torch.no_grad():
        right = (features[1] @ weight + bias).argmax(dim=1) == labels[1]
    return float(right.float().mean()) * 100


if __name__ == "__main__":
    main()
