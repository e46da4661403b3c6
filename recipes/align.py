"""Learn an alignment: rotations that bring the vectors of one model into the space of another, with NumPy.

    python recipes/align.py german-elmo english-elmo de.txt en.txt de-en.txt german-aligned

Both models need the same number of layers and dimensions. The texts are tokenized, one sentence per line, and need not
be translations; the dictionary has a word and its translation on each line, separated by a tab or spaces.

This follows Schuster et al. (2019). A word is represented by its anchor, the mean of its vectors over a text. For each
layer, the rotation is found that brings the anchors of translations closest to each other (Procrustes). A tenth of the
dictionary's words is not learned from: for them, the program prints how often the nearest anchor of the other language
is a translation, before and after. The first model is saved with its alignment, which ``Elmo`` then applies.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit import Elmo, open_model, save_model
from elmokit.engine.layer_selection import LayerAlignment

Vectors = NDArray[np.float32]
N_NEIGHBORS = 10  # whose mean cosine CSLS subtracts


def anchors(elmo: Elmo, text: Path, words: Iterable[str], min_count: int) -> dict[str, Vectors]:
    """Return the mean vectors ``(layers, dim)`` of the words that occur often enough in a text."""
    wanted, sums, counts = set(words), {}, {}
    lines = (line.split() for line in text.read_text(encoding="utf-8").splitlines())
    sentences = [tokens for tokens in lines if not wanted.isdisjoint(tokens)]
    for tokens, vectors in zip(sentences, elmo.embed(iter(sentences)), strict=True):
        for position, token in enumerate(tokens):
            if token in wanted:  # in float64: a frequent word sums up many vectors
                sums[token] = sums.get(token, 0.0) + vectors[:, position].astype(np.float64)
                counts[token] = counts.get(token, 0) + 1
    return {word: np.float32(sums[word] / counts[word]) for word in sums if counts[word] >= min_count}


def unit(vectors: NDArray[np.floating]) -> NDArray[np.floating]:
    """Scale vectors to length 1."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True).clip(min=1e-12)


def fit(source: Vectors, target: Vectors, centered: bool) -> LayerAlignment:
    """Find the rotation of each layer that maximizes the mean cosine of pairs of vectors ``(layers, pairs, dim)``."""
    wide = [np.asarray(one, np.float64) for one in (source, target)]
    means = [one.mean(axis=1) if centered else np.zeros_like(one[:, 0]) for one in wide]
    x, y = (unit(one - mean[:, None]) for one, mean in zip(wide, means, strict=True))
    left, _, right = np.linalg.svd(y.swapaxes(1, 2) @ x)
    matrices = left @ right
    offsets = means[1] - (matrices @ means[0][..., None])[..., 0]  # matrices @ (x - its mean) + the other mean
    return LayerAlignment(matrices.astype(np.float32), offsets.astype(np.float32))


def precision(queries: Vectors, others: Vectors, source: Vectors, right: Sequence[set[int]], csls: bool) -> float:
    """Return how often the nearest of ``others`` is right; CSLS takes off what words are near to everything."""
    queries, others, source = unit(queries), unit(others), unit(source)
    density = np.zeros(len(others))
    if csls:
        n_neighbors = min(N_NEIGHBORS, len(source))
        density = np.sort(others @ source.T, axis=1)[:, -n_neighbors:].mean(axis=1)
    nearest = (2 * queries @ others.T - density).argmax(axis=1)
    return float(np.mean([int(row) in rows for row, rows in zip(nearest, right, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("source", "target"):
        parser.add_argument(name, help=f"the {name} model")
    for name in ("source_text", "target_text", "dictionary"):
        parser.add_argument(name, type=Path)
    parser.add_argument("out", type=Path, help="directory for the source model with its alignment")
    parser.add_argument("--centered", action="store_true", help="align the means of the two spaces, too")
    parser.add_argument("--min-count", type=int, default=1, help="leave out pairs with a rarer word")
    parser.add_argument("--test-ratio", type=float, default=0.1, help="fraction of the words to test on")
    parser.add_argument("--max-pairs", type=int, help="learn from the first N pairs alone")
    parser.add_argument("--seed", type=int, default=0, help="chooses the words to test on")
    given = parser.parse_args()
    if given.out.exists() or given.out.suffix in (".hdf5", ".h5"):  # now, not after the training
        parser.error(f"{given.out} is not a new directory; HDF5 files cannot hold an alignment")

    lines = given.dictionary.read_text(encoding="utf-8").splitlines()
    pairs = list(dict.fromkeys(tuple(line.split()) for line in lines if line.strip()))
    models = open_model(given.source).replace(alignment=None), open_model(given.target)
    sides = [
        anchors(Elmo(model), text, (pair[side] for pair in pairs), given.min_count)
        for side, (model, text) in enumerate(zip(models, (given.source_text, given.target_text), strict=True))
    ]
    usable = [pair for pair in pairs if pair[0] in sides[0] and pair[1] in sides[1]]
    words = list(dict.fromkeys(word for word, _ in usable))
    order = np.random.default_rng(given.seed).permutation(len(words))
    tested = {words[index] for index in order[: round(given.test_ratio * len(words))]}
    learned = [pair for pair in usable if pair[0] not in tested][: given.max_pairs]
    if not learned:
        raise SystemExit(f"{given.dictionary}: no pair of words that both occur in their texts is left to learn from.")
    x, y = (np.stack([side[pair[n]] for pair in learned], axis=1) for n, side in enumerate(sides))
    alignment = fit(x, y, given.centered)
    print(f"Learned from {len(learned):,} pairs; {len(tested):,} words tested among {len(sides[1]):,}, in percent:")
    if tested:
        print("layer  cosine, before  after  CSLS, before  after")
        everything = [np.stack(list(side.values()), axis=1) for side in sides]
        rows = [{word: row for row, word in enumerate(side)} for side in sides]
        queries = [rows[0][word] for word in words if word in tested]
        right = [{rows[1][b] for a, b in usable if a == word} for word in words if word in tested]
        aligned = alignment.apply(everything[0], range(len(x)))
        for layer, other in enumerate(everything[1]):
            found = [
                100 * precision(source[layer][queries], other, source[layer], right, csls)
                for csls in (False, True)
                for source in (everything[0], aligned)
            ]
            print(f"{layer:5}  {found[0]:14.1f}  {found[1]:5.1f}  {found[2]:12.1f}  {found[3]:5.1f}")
    save_model(models[0].without_fitted_maps().replace(alignment=alignment), given.out)


if __name__ == "__main__":
    main()
