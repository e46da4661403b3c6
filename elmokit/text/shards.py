"""Read a corpus endlessly, in a shuffled order that can be reproduced and resumed.

A corpus can be larger than memory, so it cannot be shuffled as a whole. Instead, each epoch runs through four levels:

* **group**: the files (shards) are shuffled, and ``OPEN_SHARDS`` of them are read at the same time;
* **range**: about ``RANGE_LINES`` lines, an equal number from each file of the group, are held in memory and shuffled;
* **block**: ``BLOCK_LINES`` of these lines are split into tokens at a time;
* **passage**: lines that stay in the order of the text: one sentence, or about as many as were asked for.

Shuffling over a wide range matters: neighboring lines come from the same document, and a language model that reads
many of them in a row adapts to that document instead of the language. Lines are not split into tokens before their
block is needed, because lists of tokens take several times the memory.

Every order is drawn from a fresh generator that is seeded with the seed and the position (epoch, group, range).
Therefore a position is four small numbers: to resume there, nothing needs to be replayed but the lines to skip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elmokit.errors import TextError
from elmokit.text.text import Text

RANGE_LINES = 200_000
BLOCK_LINES = 5_000
_PASSAGES = 1  # seeds what is drawn within a range
OPEN_SHARDS = 32  # files of one corpus often hold one kind of text each; reading many at a time mixes them


class BlockPosition(NamedTuple):
    """The position of a block in the endless order of a corpus. Each number counts what came before it."""

    epoch: int = 0
    group: int = 0
    """In this epoch."""
    range: int = 0
    """In this group."""
    block: int = 0
    """In this range."""


class SentenceBlock(NamedTuple):
    """Some passages of tokenized sentences, in the order in which they are read."""

    position: BlockPosition
    passages: list[list[list[str]]]


@dataclass(frozen=True)
class ReadingOrder:
    """The order in which a training reads a text."""

    seed: int = 0
    """Seeds all orders."""
    shuffle: bool = True
    n_epochs: int | None = None
    """End after this many epochs; None never ends."""
    one_by_one: bool = False
    """Read one file after the other, and not ``OPEN_SHARDS`` at the same time."""
    passage_length: int = 1
    """The mean number of sentences of a passage, which ends at a blank line. Half of the passages are divided into
    their sentences again, so that a model learns to read with and without what comes before. 1 shuffles all
    sentences."""
    lower_case: float = 0.0
    """The fraction of the sentences to read in lower case: a half of them all words, the others the first."""
    rank: int = 0
    """Number of this process, if several share the text."""
    n_ranks: int = 1
    """Number of processes. Each reads every ``n_ranks``-th sentence of each range (and not every ``n_ranks``-th file),
    so that all processes finish an epoch together however unequal the files are."""


class SentenceBlocks:
    """Iterate over the blocks of a text, endlessly unless the order has an end.

    The next block is read in a thread while one is used.

    Args:
        text: Tokenized text; of bilm-tf's, blank lines are sentences without tokens.
        order: The order.
        reader: Readers with different numbers read the text in independent orders.
        start: The first block.
    """

    def __init__(
        self,
        text: Text,
        order: ReadingOrder,
        reader: int = 0,
        start: BlockPosition = BlockPosition(),  # noqa: B008 (immutable)
    ) -> None:
        self._text, self._order, self._reader = text, order, reader
        self._seed = [order.seed, reader] if reader else [order.seed]
        self._n_open = 1 if order.one_by_one else OPEN_SHARDS
        # One thread: it runs a generator, which cannot be advanced by two at once, and blocks must come in order.
        self._blocks = self._read(start)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="elmokit-text")
        self._next: Future[SentenceBlock] | None = None

    def starting_at(self, start: BlockPosition) -> SentenceBlocks:
        """Return the same blocks from another one on."""
        return SentenceBlocks(self._text, self._order, self._reader, start)

    def __iter__(self) -> Iterator[SentenceBlock]:
        return self

    def __next__(self) -> SentenceBlock:
        # The first block is not requested before it is needed: a reader that is only restored reads nothing.
        block = (self._next or self._thread.submit(next, self._blocks)).result()
        self._next = self._thread.submit(next, self._blocks)
        return block

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _read(self, start: BlockPosition) -> Iterator[SentenceBlock]:
        epoch, group, range_, block = start
        files, split = self._text.files, self._text.split
        is_empty = not any(start)  # no block so far: this would loop forever
        while epoch != self._order.n_epochs:
            shard_order = self._shuffled(len(files), epoch)
            while shards := shard_order[group * self._n_open :][: self._n_open]:
                n_lines = -(-RANGE_LINES // len(shards))  # of each file
                readers = [self._read_shard(files[shard]) for shard in shards]
                for reader in readers:
                    # The offset of a line is unknown, and a compressed file cannot be entered in the middle: earlier
                    # lines are read and dropped.
                    for _ in islice(reader, range_ * n_lines):  # skip the ranges before the start
                        pass
                while (everyone := self._range_passages(readers, n_lines, (epoch, group, range_))) is not None:
                    # A process may get none in this epoch, if the passages are few and long.
                    passages = everyone[self._order.rank :: self._order.n_ranks]
                    is_empty = is_empty and not everyone
                    order = self._shuffled(len(passages), epoch, group, range_)
                    for first in range(block * BLOCK_LINES, len(passages), BLOCK_LINES):
                        position = BlockPosition(epoch, group, range_, first // BLOCK_LINES)
                        here = [passages[number] for number in order[first : first + BLOCK_LINES]]
                        yield SentenceBlock(position, [[split(line) for line in lines] for lines in here])
                    range_, block = range_ + 1, 0
                group, range_ = group + 1, 0
            if is_empty:
                raise TextError(f"No sentence in {', '.join(map(str, files))}: nothing to train on.")
            epoch, group = epoch + 1, 0

    def _read_shard(self, path: Path) -> Iterator[str]:
        return (line for _, line in self._text.numbered_lines(path))

    def _range_passages(
        self, readers: Sequence[Iterator[str]], n_lines: int, position: tuple[int, ...]
    ) -> list[list[str]] | None:
        """Read the passages of the next range, those of all processes; None at the end of all files."""
        by_file = [list(islice(reader, n_lines)) for reader in readers]
        if not any(by_file):
            return None
        # A stream of its own: the order of lines that stay alone is that of earlier versions.
        generator = np.random.default_rng([*self._seed, *position, _PASSAGES])
        passages = [passage for lines in by_file for passage in self._passages(lines, generator)]
        return [self._cased(lines, generator) for lines in passages]

    def _passages(self, lines: list[str], generator: np.random.Generator) -> Iterator[list[str]]:
        if self._order.passage_length == 1:
            keeps_blank = self._text.kind == "bilm-tf"
            yield from ([line] for line in lines if keeps_blank or line.strip(" \t"))
            return
        passage: list[str] = []
        mean_length = self._order.passage_length
        length = mean_length  # of the present passage
        for line in [*lines, ""]:
            is_blank = not line.strip(" \t")
            if passage and (is_blank or len(passage) == length):
                if generator.random() < 0.5:
                    yield passage
                else:
                    yield from ([alone] for alone in passage)
                passage = []
            if not is_blank:
                if not passage:
                    length = int(generator.integers(mean_length // 2, 3 * mean_length // 2 + 1))
                passage.append(line)

    def _cased(self, lines: list[str], generator: np.random.Generator) -> list[str]:
        if not self._order.lower_case:
            return lines
        cased = []
        for line, number in zip(lines, generator.random(len(lines)) / self._order.lower_case, strict=True):
            if number < 0.5:
                line = line.lower()
            elif number < 1:
                first, blank, others = line.partition(" ")
                line = first.lower() + blank + others
            cased.append(line)
        return cased

    def _shuffled(self, n_items: int, *position: int) -> list[int]:
        # Of the files of an epoch, or of the lines of a range.
        if not self._order.shuffle:
            return list(range(n_items))
        return [int(item) for item in np.random.default_rng([*self._seed, *position]).permutation(n_items)]
