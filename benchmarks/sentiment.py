"""Compare linear sentiment classifiers on bags of words and on a biLM's vectors.

    python benchmarks/sentiment.py TRAIN DEV [MODEL]

TRAIN and DEV are files of SST trees. The examples are whole sentences, in five classes. The vectors are the means of
each layer over a sentence's tokens, frozen. The classifier is a logistic regression, fitted by L-BFGS. The script
prints a Markdown table of dev accuracies; results/tasks.md reports the better of two penalties.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit import Elmo
from elmokit.tasks.sst import read_trees

MIN_COUNT = 3
PENALTIES = (1e-3, 1e-2)  # on the squared weights
BAG_PENALTY_FACTOR = 0.2  # bags of words get a smaller penalty, because their features are not standardized
N_CLASSES = 5


def main() -> None:
    """Print a table of accuracies on dev."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="SST trees to train on")
    parser.add_argument("dev", help="SST trees to evaluate on")
    parser.add_argument("model", nargs="?", help="path, URL or published name  [default: en-mini]")
    arguments = parser.parse_args()
    train, dev = (list(read_trees(path)) for path in (arguments.train, arguments.dev))
    elmo = Elmo.from_pretrained(arguments.model)
    labels = [torch.tensor([int(tree.nodes[0].label) for tree in trees]) for trees in (train, dev)]
    sentences = [[tree.tokens for tree in trees] for trees in (train, dev)]
    counts = Counter(word.lower() for tokens in sentences[0] for word in set(tokens))
    words = {word: index for index, word in enumerate(word for word, count in counts.items() if count >= MIN_COUNT)}
    bags = [bags_of_words(split, words) for split in sentences]
    means = [means_of_layers(elmo, split) for split in sentences]
    print("| features | dev accuracy by penalty | best |\n|---|---|---|")
    report("bag of words", bags, labels, BAG_PENALTY_FACTOR)
    for layer in range(means[0].shape[1]):
        report(f"mean of layer {layer}", standardize([split[:, layer] for split in means]), labels)
    all_layers = standardize([split.flatten(1) for split in means])
    report("means of all layers", all_layers, labels)
    both = [torch.cat(features, dim=1) for features in zip(bags, all_layers, strict=True)]
    report("means of all layers and bag of words", both, labels)


def bags_of_words(sentences: Sequence[Sequence[str]], words: dict[str, int]) -> Tensor:
    """Return 1 for each listed word of a sentence, else 0: ``(sentences, words)``."""
    bags = torch.zeros(len(sentences), len(words))
    for row, tokens in zip(bags, sentences, strict=True):
        row[[words[token.lower()] for token in tokens if token.lower() in words]] = 1
    return bags


def means_of_layers(elmo: Elmo, sentences: Sequence[Sequence[str]]) -> Tensor:
    """Return each layer's mean over a sentence's tokens: ``(sentences, layers, dim)``."""
    return torch.from_numpy(np.stack([layers.mean(axis=1) for layers in elmo.embed(sentences)]))


def standardize(splits: Sequence[Tensor]) -> list[Tensor]:
    """Shift and scale features to mean 0 and standard deviation 1 over the first split (train)."""
    mean, deviation = splits[0].mean(dim=0), splits[0].std(dim=0) + 1e-6
    return [(split - mean) / deviation for split in splits]


def report(name: str, features: Sequence[Tensor], labels: Sequence[Tensor], factor: float = 1.0) -> None:
    """Print one row of the table. Penalties are multiplied by ``factor``."""
    scores = [accuracy(features, labels, penalty * factor) for penalty in PENALTIES]
    print(f"| {name} | {' '.join(f'{value:.1f}' for value in scores)} | {max(scores):.1f} |", flush=True)


def accuracy(features: Sequence[Tensor], labels: Sequence[Tensor], penalty: float) -> float:
    """Fit a logistic regression to the first split and return its accuracy on the second, in percent."""
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
        correct = (features[1] @ weight + bias).argmax(dim=1) == labels[1]
    return float(correct.float().mean()) * 100


if __name__ == "__main__":
    main()
