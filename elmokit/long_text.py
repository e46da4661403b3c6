"""Read a text of any length in bounded memory, with exact results.

The two directions of a biLM do not depend on each other. So the backward LSTM first reads the whole text from its end
and keeps only its state at the edge of each chunk. Then both directions are computed chunk by chunk from the beginning,
the backward one again from the state that was kept for its chunk.

This runs the backward LSTM twice, and keeps one state per chunk (37 KB in the original sizes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from elmokit.bilm import BiLM, BiLMState
from elmokit.nn.lstm import LSTMState


@torch.no_grad()
def read_in_chunks(
    bilm: BiLM, vectors_of: Callable[[int, int], Tensor], edges: Sequence[int], start: BiLMState
) -> Iterator[Tensor]:
    """Compute all layers of one text, chunk by chunk.

    Args:
        bilm: The network.
        vectors_of: Returns the token vectors ``(1, stop - start, projection_dim)`` of the positions ``[start, stop)``.
            It is called for each chunk once from the end of the text, and once from the beginning.
        edges: The first position of each chunk, then the length of the text.
        start: The state that both directions start from, for one row.

    Yields:
        ``(n_layers + 1, 1, chunk, output_dim)``.
    """
    chunks = list(pairwise(edges))
    # The backward states before each chunk, for the last chunk first. The first chunk is not read here: no chunk needs
    # the state after it.
    backward_states: list[list[LSTMState]] = []
    last = bilm.config.n_directions - 1
    if bilm.config.read_backward[last]:
        # A chunk is read backward from the state after its last position, which comes from the chunk that follows it in
        # the text.
        states = start.of_direction(last)
        for first, stop in reversed(chunks):
            backward_states.append(states)
            if first > edges[0]:
                _, states = bilm.run_direction(last, vectors_of(first, stop), states, reverse=True)
    states = start.of_direction(0)
    for first, stop in chunks:
        vectors = vectors_of(first, stop)
        directions: list[list[Tensor]] = []
        if not bilm.config.backward_only:
            outputs, states = bilm.run_direction(0, vectors, states)
            # Layer 0, the token vector, is the same in both directions and is stored twice, as in the published format.
            directions.append([vectors, *outputs])
        if backward_states:
            # The list was filled from the end of the text, so `pop` returns the first chunk's state first. Each state
            # is freed once it has been used.
            outputs, _ = bilm.run_direction(last, vectors, backward_states.pop(), reverse=True)
            directions.append([vectors, *outputs])
        yield torch.stack([torch.cat(layer, dim=-1) for layer in zip(*directions, strict=True)])
