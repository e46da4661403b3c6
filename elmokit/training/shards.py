"""Read a corpus endlessly, in a reproducible and resumable shuffled order.

A corpus can be larger than memory, so it cannot be shuffled as a whole. Instead, each epoch runs through four levels:

* **group**: the files (shards) are shuffled, and ``OPEN_SHARDS`` of them are read at the same time;
* **range**: about ``RANGE_LINES`` lines, an equal number from each file of the group, are held in memory and shuffled;
* **block**: ``BLOCK_LINES`` of these lines are split into tokens at a time;
* **passage**: lines that stay in the order of the text: one sentence, or about as many as requested.

Shuffling over a wide range matters: neighboring lines come from the same document, and a language model that reads
many of them in a row adapts to that document instead of the language. Lines are not split into tokens before their
block is needed, because lists of tokens take several times the memory.

Each order is drawn from a fresh generator, seeded with the seed and the position (epoch, group, range). So a position
is four small numbers, and resuming only requires skipping lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
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
    """The position of a block in the endless order of a corpus."""

    epoch: int = 0
    group: int = 0
    """In this epoch."""
    range: int = 0
    """In this group."""
    block: int = 0
    """In this range."""


class SentenceBlock(NamedTuple):
    """Some passages of tokenized sentences, in reading order."""

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
    """Read the files in order instead of ``OPEN_SHARDS`` at the same time."""
    passage_length: int = 1
    """The mean number of sentences in a passage; blank lines also end it. Half of the passages are split into
    sentences, so the model learns to read with and without context. 1 shuffles all sentences."""
    lower_case: float = 0.0
    """The fraction of sentences to lower-case: half of them entirely, the other half only the first word."""
    rank: int = 0
    """Number of this process, if several share the text."""
    n_ranks: int = 1
    """Number of processes. Each reads every ``n_ranks``-th sentence of each range (instead of every
    ``n_ranks``-th file), so all processes finish an epoch together even if the files are unequal."""


class SentenceBlocks:
    """Iterate over the blocks of a text, endlessly unless the order has an end.

    The next block is read in a thread while the current one is used.

    Args:
        text: Tokenized text; in bilm-tf's, blank lines are sentences without tokens.
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
        # One thread, because it runs a generator, and blocks must come in order.
        self._blocks = self._read(start)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="elmokit-text")
        self._next: Future[SentenceBlock] | None = None

    def starting_at(self, start: BlockPosition) -> SentenceBlocks:
        """Return the same blocks from another position."""
        return SentenceBlocks(self._text, self._order, self._reader, start)

    def __iter__(self) -> Iterator[SentenceBlock]:
        return self

    def __next__(self) -> SentenceBlock:
        # The first block is only requested on demand, so a reader that is only restored reads nothing.
        block = (self._next or self._thread.submit(next, self._blocks)).result()
        self._next = self._thread.submit(next, self._blocks)
        return block

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _read(self, start: BlockPosition) -> Iterator[SentenceBlock]:
        """Yield the blocks from a position."""
        epoch, group, range_, block = start
        is_empty = not any(start)  # no blocks so far: this would loop forever
        while epoch != self._order.n_epochs:
            shards = self._shuffled(len(self._text.files), epoch)
            firsts = range(0, len(shards), self._n_open)
            groups = [shards[first : first + self._n_open] for first in firsts]
            while group < len(groups):
                for passages in self._read_ranges(groups[group], BlockPosition(epoch, group, range_)):
                    if passages:
                        is_empty = False
                    yield from self._blocks_of(passages, BlockPosition(epoch, group, range_, block))
                    range_, block = range_ + 1, 0
                group, range_ = group + 1, 0
            if is_empty:
                files = ", ".join(map(str, self._text.files))
                raise TextError(f"No sentence in {files}: nothing to train on.")
            epoch, group = epoch + 1, 0

    def _read_ranges(self, shards: Sequence[int], start: BlockPosition) -> Iterator[list[list[str]]]:
        """Yield the passages of each range in a group, for all processes."""
        n_lines = -(-RANGE_LINES // len(shards))  # of each file
        readers = [self._read_file(self._text.files[shard]) for shard in shards]
        for reader in readers:
            # Line offsets are unknown, and compressed files have no random access, so lines of earlier ranges are read
            # and dropped.
            for _ in islice(reader, start.range * n_lines):
                pass
        for range_ in count(start.range):
            lines_of_files = [list(islice(reader, n_lines)) for reader in readers]
            if not any(lines_of_files):
                return
            # A stream of its own: the order of lines that stay alone is that of earlier versions.
            generator = np.random.default_rng([*self._seed, start.epoch, start.group, range_, _PASSAGES])
            passages: list[list[str]] = []
            for lines in lines_of_files:
                passages += self._passages(lines, generator)
            yield [self._cased(passage, generator) for passage in passages]

    def _read_file(self, path: Path) -> Iterator[str]:
        return (line for _, line in self._text.numbered_lines(path))

    def _blocks_of(self, everyone: Sequence[list[str]], start: BlockPosition) -> Iterator[SentenceBlock]:
        """Yield the blocks of a range for this process, from ``start``."""
        # A process may get no passages in an epoch if they are few and long.
        passages = everyone[self._order.rank :: self._order.n_ranks]
        order = self._shuffled(len(passages), start.epoch, start.group, start.range)
        split = self._text.split
        for first in range(start.block * BLOCK_LINES, len(passages), BLOCK_LINES):
            chosen = [passages[number] for number in order[first : first + BLOCK_LINES]]
            sentences = [[split(line) for line in lines] for lines in chosen]
            yield SentenceBlock(start._replace(block=first // BLOCK_LINES), sentences)

    def _passages(self, lines: list[str], generator: np.random.Generator) -> Iterator[list[str]]:
        """Split the lines of a file into passages."""
        mean_length = self._order.passage_length
        if mean_length == 1:
            keeps_blank = self._text.kind == "bilm-tf"
            for line in lines:
                if keeps_blank or line.strip(" \t"):
                    yield [line]
            return
        passage: list[str] = []
        length = mean_length  # of the present passage
        for line in [*lines, ""]:
            is_blank = not line.strip(" \t")
            if passage and (is_blank or len(passage) == length):
                if generator.random() < 0.5:
                    yield passage
                else:
                    for alone in passage:
                        yield [alone]
                passage = []
            if is_blank:
                continue
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
        order: list[int] = np.random.default_rng([*self._seed, *position]).permutation(n_items).tolist()
        return order
