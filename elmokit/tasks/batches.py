"""Which examples share a batch, and which part of the data is trained on."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence

LENGTH_NOISE = 0.1  # AllenNLP's: lengths count up to so much more or less, so that batches differ between epochs


Lengths = tuple[int, ...]


def epoch_batches(
    lengths: Sequence[Lengths], batch_size: int, bucketed: bool, seed: int, epoch: int
) -> list[list[int]]:
    """The batches of one epoch, a function of its arguments alone.

    Args:
        lengths: of the examples, each a tuple; the first number counts first.
        bucketed: put examples of similar length together; the order of the batches is random all the same.

    Returns:
        for each batch the places of its examples in ``lengths``.
    """
    randomness = random.Random(f"{seed} {epoch}")
    order = list(range(len(lengths)))
    randomness.shuffle(order)
    if bucketed:
        noisy = [
            tuple(length * randomness.uniform(1 - LENGTH_NOISE, 1 + LENGTH_NOISE) for length in each)
            for each in lengths
        ]
        order.sort(key=noisy.__getitem__)
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    randomness.shuffle(batches)
    return batches


def sorted_batches(lengths: Sequence[Lengths], batch_size: int) -> list[list[int]]:
    """Batches of similar lengths for evaluation, the longest first."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def subset(texts: Sequence[Hashable], share: float) -> list[int]:
    """The places of a random share of the distinct texts, in order; a smaller share is a part of every larger one.

    Args:
        texts: of the examples; examples of one text stay together.
    """
    if share >= 1:
        return list(range(len(texts)))
    distinct = list(dict.fromkeys(texts))
    random.Random(0).shuffle(distinct)
    chosen = set(distinct[: max(1, math.ceil(share * len(distinct)))])
    return [place for place, text in enumerate(texts) if text in chosen]
