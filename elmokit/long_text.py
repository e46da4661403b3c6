"""A text of any length in bounded memory: the biLM walks over it in chunks, exactly.

The directions of a biLM never look at each other. So the backward one walks over the whole text once, from its end, and
leaves behind nothing but its state at each chunk's edge; then both are read chunk by chunk from the text's beginning,
the backward one again from the state that was left there. That costs one direction more than reading at once, and
the states: 37 KB a chunk in the original sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from elmokit.bilm import BiLM, BiLMState
from elmokit.nn.lstm import LSTMState


@torch.no_grad()
def walk(
    bilm: BiLM, vectors_of: Callable[[int, int], Tensor], edges: Sequence[int], start: BiLMState
) -> Iterator[Tensor]:
    """All layers of one text, chunk by chunk.

    Args:
        vectors_of: from the positions ``[start, stop)`` to their token vectors ``(1, stop - start, projection_dim)``;
            asked for each chunk once from the text's end, and once from its beginning.
        edges: where chunks begin, and last the text's length.
        start: of one row, what both directions start from.

    Yields:
        ``(n_layers + 1, 1, chunk, output_dim)``
    """
    chunks = list(pairwise(edges))
    behind: list[list[LSTMState]] = []
    if bilm.config.bidirectional:
        states = start.of_direction(1)
        for first, stop in reversed(chunks):
            behind.append(states)
            if first > edges[0]:
                _, states = bilm.read(1, vectors_of(first, stop), states, reverse=True)
    states = start.of_direction(0)
    for first, stop in chunks:
        vectors = vectors_of(first, stop)
        outputs, states = bilm.read(0, vectors, states)
        sides = [[vectors, *outputs]]
        if behind:
            sides.append([vectors, *bilm.read(1, vectors, behind.pop(), reverse=True)[0]])
        yield torch.stack([torch.cat(layer, dim=-1) for layer in zip(*sides, strict=True)])
