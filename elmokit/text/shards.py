"""A corpus as an endless, seeded order of sentences, read block by block and ahead of use.

Lines are shuffled over a wide range (neighbours are of one text, and a model that reads many of them soon after one
another learns that text), held as they stand in the file, and split into tokens a block at a time. The order follows
from the seed alone, so a place in it is four numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elmokit.errors import TextError
from elmokit.io.text_files import read_lines, split_tokens

RANGE_LINES = 200_000  # lines in memory at a time, over which they are shuffled
BLOCK_LINES = 5_000  # of these, as tokens
OPEN_SHARDS = 32  # shards read side by side, an equal part of each range from each: their kinds of text mix


class Place(NamedTuple):
    """Where a block stands in the order."""

    n_passes: int = 0
    """Passes over the corpus before this one."""
    n_groups: int = 0
    """Groups of shards before, in this pass."""
    n_ranges: int = 0
    """Ranges of the shuffle before, in this group."""
    n_blocks: int = 0
    """Blocks before, in this range."""


class Block(NamedTuple):
    """Some sentences in the order in which they are read."""

    place: Place
    sentences: list[list[str]]


class Part(NamedTuple):
    """Which part of the corpus to read, where several processes share it."""

    number: int = 0
    n_parts: int = 1


class SentenceBlocks:
    """Endless passes over a corpus; the next block is read in the background while one is used.

    Args:
        shards: text files of one tokenised sentence per line; blank lines are passed over.
        shuffle: shuffle the shards of each pass, and the lines of each range.
        part: read this part of the corpus: every ``n_parts``-th sentence of each range, so that all parts are through
            with a pass together, however unequal the shards are.
        place: where to begin.

    Raises:
        TextError: in a whole pass there is no sentence; a shard cannot be read.
    """

    def __init__(
        self,
        shards: Sequence[Path],
        seed: Sequence[int],
        shuffle: bool = True,
        part: Part = Part(),  # noqa: B008 (frozen)
        place: Place = Place(),  # noqa: B008 (frozen)
    ) -> None:
        self._shards = list(shards)
        self._seed = list(seed)
        self._shuffle = shuffle
        self._part = part
        self._blocks = self._read(place)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="elmokit-text")
        self._ahead: Future[Block] | None = None

    def __iter__(self) -> Iterator[Block]:
        return self

    def __next__(self) -> Block:
        block = (self._ahead or self._reader.submit(next, self._blocks)).result()
        self._ahead = self._reader.submit(next, self._blocks)
        return block

    def close(self) -> None:
        """Stop reading ahead."""
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _read(self, start: Place) -> Iterator[Block]:
        n_passes, n_groups, n_ranges, n_blocks = start
        found_any = any(start)
        while True:
            order = self._order(len(self._shards), n_passes)
            while shards := order[n_groups * OPEN_SHARDS :][:OPEN_SHARDS]:
                n_lines = -(-RANGE_LINES // len(shards))
                readers = [read_lines(self._shards[shard]) for shard in shards]
                for reader in readers:
                    for _ in islice(reader, n_ranges * n_lines):
                        pass
                while (lines := self._own_lines(readers, n_lines)) is not None:
                    inside = self._order(len(lines), n_passes, n_groups, n_ranges)
                    for first in range(n_blocks * BLOCK_LINES, len(lines), BLOCK_LINES):
                        here = inside[first : first + BLOCK_LINES]
                        found_any = True
                        sentences = [split_tokens(lines[place]) for place in here]
                        yield Block(Place(n_passes, n_groups, n_ranges, first // BLOCK_LINES), sentences)
                    n_ranges, n_blocks = n_ranges + 1, 0
                n_groups, n_ranges = n_groups + 1, 0
            if not found_any:
                raise TextError(f"No sentence in {', '.join(map(str, self._shards))}: nothing to train on.")
            n_passes, n_groups = n_passes + 1, 0

    def _own_lines(self, readers: Sequence[Iterator[str]], n_lines: int) -> list[str] | None:
        """This part's share of the next range, without blank lines; None where nothing is left."""
        lines = [line for reader in readers for line in islice(reader, n_lines)]
        return [line for line in lines if line.strip(" \t")][self._part.number :: self._part.n_parts] if lines else None

    def _order(self, n_items: int, *where: int) -> list[int]:
        """The order in which the items at a place of the corpus are read."""
        if not self._shuffle:
            return list(range(n_items))
        return [int(item) for item in np.random.default_rng([*self._seed, *where]).permutation(n_items)]
