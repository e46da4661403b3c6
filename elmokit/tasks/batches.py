"""Which training examples share a batch, and which part of the data is trained on."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence

LENGTH_NOISE = 0.1  # as in AllenNLP: lengths are varied by up to this ratio, so that batches differ between epochs


def epoch_batches(
    lengths: Sequence[tuple[int, ...]], batch_size: int, bucketed: bool, seed: int, epoch: int
) -> list[list[int]]:
    """Plan the batches of one training epoch. The result depends on the arguments alone.

    Args:
        lengths: What to sort each example by. The first number counts first.
        batch_size: Examples per batch.
        bucketed: Put examples of similar length into one batch. The order of the batches is random in any case.
        seed: The random seed.
        epoch: The number of the epoch.

    Returns:
        The indices of each batch's examples in ``lengths``.
    """
    rng = random.Random(f"{seed} {epoch}")
    order = list(range(len(lengths)))
    rng.shuffle(order)
    if bucketed:
        noisy = [tuple(length * rng.uniform(1 - LENGTH_NOISE, 1 + LENGTH_NOISE) for length in each) for each in lengths]
        order.sort(key=noisy.__getitem__)
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    rng.shuffle(batches)
    return batches


def sample_texts(texts: Sequence[Hashable], ratio: float) -> list[int]:
    """Draw a random sample of the distinct texts. A smaller sample is a subset of every larger one.

    Args:
        texts: The text of each example. Examples of one text stay together.
        ratio: The size of the sample, from above 0 to 1. At least one text is drawn.

    Returns:
        The indices of the examples of these texts, in order.
    """
    if ratio >= 1:
        return list(range(len(texts)))
    distinct = list(dict.fromkeys(texts))
    random.Random(0).shuffle(distinct)
    chosen = set(distinct[: max(1, math.ceil(round(ratio * len(distinct), 6)))])
    return [index for index, text in enumerate(texts) if text in chosen]
