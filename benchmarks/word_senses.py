"""Find out what limits the word sense probe: dimensions, dominant directions, or frequencies that it ignores.

    python benchmarks/word_senses.py SEMCOR TEST [TEST...] --inventory FILE [--model en-mini] [--layer 2]

The arguments are those of `elmokit evaluate wsd`. The first row is that probe: the sense whose mean has the largest
cosine with the vector of the word. The other rows transform the vectors of training and test alike. All of them
subtract the mean of the training vectors. Some keep only the directions with the largest variance; the last two divide
each direction by a power of its variance in training (whitened: by its standard deviation). With a prior, a multiple of
the logarithm of a sense's relative frequency in training (counts plus one half) is added to the cosine. Its factor is
the best one on the first test set.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from elmokit import Elmo
from elmokit.evaluation.probe_corpus import read_chunks
from elmokit.evaluation.result import Table
from elmokit.evaluation.sense_files import Instance, SenseSet, find_sense_set, read_inventory, read_keys, read_sense_xml
from elmokit.evaluation.senses import Inventory, SenseMeans, score_senses

Vectors = NDArray[np.float32]
FACTORS = (0.02, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3)
"""The factors of the prior to choose from."""


def main() -> None:
    """Embed the sets once, and print the scores of each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--inventory", required=True, help="senses of each lemma, in order")
    parser.add_argument("--model", default="en-mini")
    parser.add_argument("--layer", type=int, default=2)
    args = parser.parse_args()
    elmo = Elmo.from_pretrained(args.model)
    inventory = read_inventory(args.inventory)
    train, *tests = (find_sense_set(path) for path in (args.train, *args.tests))
    train_vectors, train_instances = embed(elmo, train, args.layer)
    found = {test.name: embed(elmo, test, args.layer) for test in tests}
    gold = {test.name: read_keys(test.gold) for test in tests}
    train_keys = read_keys(train.gold)

    mean = train_vectors.mean(axis=0)
    variances, directions = np.linalg.eigh(np.cov((train_vectors - mean).T))
    variances, directions = variances[::-1], directions[:, ::-1]

    def changed(n_directions: int, power: float) -> Callable[[Vectors], Vectors]:
        matrix = directions[:, :n_directions] / variances[:n_directions] ** power
        return lambda vectors: np.asarray((vectors - mean) @ matrix, np.float32)

    dim = len(mean)
    variants = {
        "the probe": lambda vectors: vectors,
        "mean subtracted": changed(dim, 0.0),
        **{f"{n} of {dim} directions": changed(n, 0.0) for n in (256, 128, 64) if n < dim},
        "divided by the root of the standard deviation": changed(dim, 0.25),
        "whitened": changed(dim, 0.5),
    }
    rows = []
    for name, change in variants.items():
        means = SenseMeans(1, change(train_vectors[:1]).shape[1])
        for instance, vector in zip(train_instances, change(train_vectors), strict=True):
            means.add(instance, train_keys[instance.id], vector[None])
        changed_tests = {test: (change(vectors), instances) for test, (vectors, instances) in found.items()}
        for factors in ((0.0,), FACTORS):
            scores = {factor: score(means, changed_tests, gold, inventory, factor) for factor in factors}
            best = max(scores, key=lambda factor: scores[factor][0])
            title = f"{name}, prior {best}" if best else name
            rows.append([title, *(f"{100 * value:.1f}" for value in scores[best])])
    print(Table(["F1 in percent", *gold, "all"], rows).to_text())


def embed(elmo: Elmo, source: SenseSet, layer: int) -> tuple[Vectors, list[Instance]]:
    """Return a vector for each instance, the mean over its words, and the instances."""
    sentences = (sentence for sentence in read_sense_xml(source.data) if sentence.instances)
    vectors, instances = [], []
    for chunk in read_chunks(sentences, lambda sentence: len(sentence.words)):
        for sentence, layers in zip(chunk, elmo.embed([sentence.words for sentence in chunk]), strict=True):
            instances += sentence.instances
            vectors += [layers[layer, one.start : one.stop].mean(axis=0) for one in sentence.instances]
    return np.stack(vectors), instances


def score(
    means: SenseMeans,
    tests: dict[str, tuple[Vectors, list[Instance]]],
    gold: dict[str, dict[str, tuple[str, ...]]],
    inventory: Inventory,
    factor: float,
) -> list[float]:
    """Return the F1 of each test set and of all together."""
    answers = {
        f"{test} {instance.id}": answer(means, vector, instance, inventory, factor)
        for test, (vectors, instances) in tests.items()
        for instance, vector in zip(instances, vectors, strict=True)
    }
    by_test = [{f"{test} {one}": senses for one, senses in of_test.items()} for test, of_test in gold.items()]
    together = {one: senses for part in by_test for one, senses in part.items()}
    return [score_senses(part, answers).f1 for part in (*by_test, together)]


def answer(means: SenseMeans, vector: Vectors, instance: Instance, inventory: Inventory, factor: float) -> list[str]:
    """Return the best sense of a word, or the first one of the inventory if training has none."""
    lemma_pos = (instance.lemma, instance.pos)
    senses = means.candidates(lemma_pos, inventory)
    if not senses:
        return list(inventory.get(lemma_pos, ())[:1])
    sums = means.sums[[means.rows[sense] for sense in senses], 0]
    cosines = sums @ vector / (np.linalg.norm(sums, axis=1) * np.linalg.norm(vector))
    counts = np.array([means.tagged[lemma_pos][sense] for sense in senses]) + 0.5
    return [senses[int(np.argmax(cosines + factor * np.log(counts / counts.sum())))]]


if __name__ == "__main__":
    main()
