"""A corpus as an endless stream of training windows.

Packing is bilm-tf's: every batch row reads sentence after sentence without gap or padding and goes on in
the next window where it stopped; rows take sentences from one shared order, on demand. The backward
direction reads the same sentences, each from its end, so that both directions of a window nearly share
their distinct tokens. The order of shards and sentences follows from the seed alone, and the position can be
saved and restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import TextError
from elmokit.files import read_lines, split_tokens
from elmokit.text.batches import TokenEncoder
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE
from elmokit.text.vocabulary import Vocabulary

BLOCK_LINES = 20_000  # lines in memory at a time, and the range of the shuffle
OPEN_SHARDS = 32  # shards read side by side, an equal part of each block from each: their kinds of text mix


@dataclass(frozen=True)
class Window:
    """One training step's input."""

    tokens: NDArray[np.int64]  # (distinct, chars) char ids, or (distinct,) word ids; 0 means no token
    inputs: NDArray[np.int64]  # (directions, batch, n_steps): rows of ``tokens``
    targets: NDArray[np.int64]  # (directions, batch, n_steps): word ids of the vocabulary


@dataclass
class _Row:
    """A sentence with its boundaries, and how many of its tokens were read."""

    tokens: list[str] = field(default_factory=list)
    n_read: int = 0

    @property
    def n_left(self) -> int:
        """Predictions left: the last token is never an input."""
        return max(0, len(self.tokens) - 1 - self.n_read)


class WindowStream:
    """Endless passes over a corpus, window by window.

    Args:
        shards: text files of one tokenised sentence per line; blank lines are passed over.
        encode: distinct tokens to what the token layer reads.
        batch_size: rows.
        n_steps: positions per row and window.
        n_directions: 2 for a bidirectional model, else 1.
        shuffle: shuffle the shards of each pass, and the sentences of each block.
    """

    def __init__(
        self,
        shards: Sequence[Path],
        vocabulary: Vocabulary,
        encode: TokenEncoder,
        batch_size: int,
        n_steps: int,
        n_directions: int = 2,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self.shards = list(shards)
        self.vocabulary = vocabulary
        self.encode = encode
        self.n_steps = n_steps
        self.n_directions = n_directions
        self.seed = seed
        self.shuffle = shuffle
        self._rows = [_Row() for _ in range(batch_size)]
        self._place = {"n_passes": 0, "n_groups": 0, "n_blocks": 0, "n_sentences": 0}
        self._sentences = self._read()

    def __iter__(self) -> Iterator[Window]:
        return self

    def __next__(self) -> Window:
        shape = (self.n_directions, len(self._rows), self.n_steps)
        inputs, targets = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        places: dict[str, int] = {}
        word_id = self.vocabulary.ids
        unknown = self.vocabulary.unknown_id
        for index in range(len(self._rows)):
            filled = 0
            while filled < self.n_steps:
                row = self._rows[index]
                if not row.n_left:
                    row = self._rows[index] = _Row([BEGIN_SENTENCE, *next(self._sentences), END_SENTENCE])
                n_taken = min(row.n_left, self.n_steps - filled)
                here = slice(filled, filled + n_taken)
                for direction in range(self.n_directions):
                    tokens = row.tokens if direction == 0 else row.tokens[::-1]
                    read = tokens[row.n_read : row.n_read + n_taken + 1]
                    inputs[direction, index, here] = [places.setdefault(token, len(places)) for token in read[:-1]]
                    targets[direction, index, here] = [word_id.get(token, unknown) for token in read[1:]]
                row.n_read += n_taken
                filled += n_taken
        return Window(self.encode(list(places)), inputs, targets)

    @property
    def n_passes(self) -> int:
        """Passes over the corpus that are complete."""
        return self._place["n_passes"]

    def position(self) -> dict[str, Any]:
        """All that ``restore`` needs to go on from here, as plain JSON."""
        return {**self._place, "rows": [[row.tokens, row.n_read] for row in self._rows]}

    def restore(self, position: dict[str, Any]) -> None:
        """Go on from a saved position; the corpus and all settings must be those of the stream that saved it."""
        self._place = {name: int(position[name]) for name in self._place}
        self._rows = [_Row(list(tokens), n_read) for tokens, n_read in position["rows"]]
        self._sentences = self._read()

    def _read(self) -> Iterator[list[str]]:
        """Sentences from ``self._place`` on, pass after pass."""
        place = self._place
        found_any = any(place.values())
        while True:
            order = self._order(len(self.shards), place["n_passes"])
            while shards := order[place["n_groups"] * OPEN_SHARDS :][:OPEN_SHARDS]:
                n_lines = -(-BLOCK_LINES // len(shards))
                readers = [read_lines(self.shards[shard]) for shard in shards]
                for reader in readers:
                    for _ in islice(reader, place["n_blocks"] * n_lines):
                        pass
                while block := [line for reader in readers for line in islice(reader, n_lines)]:
                    inside = self._order(len(block), place["n_passes"], place["n_groups"], place["n_blocks"])
                    while place["n_sentences"] < len(block):
                        tokens = split_tokens(block[inside[place["n_sentences"]]])
                        place["n_sentences"] += 1
                        if tokens:
                            found_any = True
                            yield tokens
                    place["n_blocks"] += 1
                    place["n_sentences"] = 0
                place["n_groups"] += 1
                place["n_blocks"] = 0
            if not found_any:
                raise TextError(f"No sentence in {', '.join(map(str, self.shards))}: nothing to train on.")
            place["n_passes"] += 1
            place["n_groups"] = 0

    def _order(self, n_items: int, *where: int) -> list[int]:
        """The order in which the items at a place of the stream are read."""
        if not self.shuffle:
            return list(range(n_items))
        return [int(item) for item in np.random.default_rng([self.seed, *where]).permutation(n_items)]
