"""Read a text of any length in bounded memory, with exact results.

The two directions of a biLM do not depend on each other. So the backward LSTM first reads the whole text from its end
and keeps only its state at the edge of each chunk. Then both directions are computed chunk by chunk from the beginning,
the backward one again from the state that was kept for its chunk.

This runs the backward LSTM twice, and keeps one state per chunk (37 KB in the original sizes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from elmokit.engine.network import Network, NetworkInput
from elmokit.engine.state import Floats, Ids, State


def read_in_chunks(
    network: Network,
    vectors_of: Callable[[int, int], tuple[Floats, Ids]],
    edges: Sequence[int],
    start: State,
    wanted: Sequence[int],
) -> Iterator[Floats]:
    """Yield the layers ``(wanted, chunk, output_dim)`` of each chunk of one text.

    Args:
        network: The network.
        vectors_of: Returns token vectors ``(words, projection_dim)``, and for each of the positions ``[start, stop)``
            the row of its own.
        edges: The first position of each chunk, then the length of the text.
        start: The state that both directions start from, for one row.
        wanted: The numbers of the layers.
    """
    chunks = list(pairwise(edges))
    read_backward = network.config.read_backward

    def read(direction: int, chunk: tuple[Floats, Ids], state: State, layers: Sequence[int]) -> tuple[Floats, State]:
        vectors, words = chunk
        (computed,), after = network.direction(
            direction, NetworkInput(vectors, words, np.array([len(words)]), state), layers
        )
        return computed, after

    # The backward states before each chunk, for the last chunk first. The first chunk is not read here: no chunk needs
    # the state after it.
    backward_states: list[State] = []
    if read_backward[-1]:
        # A chunk is read backward from the state after its last position, which comes from the chunk that follows it in
        # the text.
        state = start
        for first, stop in reversed(chunks):
            backward_states.append(state)
            if first > edges[0]:
                _, state = read(len(read_backward) - 1, vectors_of(first, stop), state, ())
    state = start
    for first, stop in chunks:
        chunk = vectors_of(first, stop)
        directions: list[Floats] = []
        for number, backward in enumerate(read_backward):
            if backward:
                # The list was filled from the end of the text, so `pop` returns the first chunk's state first. Each
                # state is freed once it has been used.
                layers, _ = read(number, chunk, backward_states.pop(), wanted)
            else:
                layers, state = read(number, chunk, state, wanted)
            directions.append(layers)
        # Layer 0, the token vector, is the same in both directions and is stored twice, as in the published format.
        yield np.concatenate(directions, axis=-1)
