"""A corpus as an endless stream of training windows.

Packing is bilm-tf's: every batch row reads sentence after sentence without gap or padding and goes on in
the next window where it stopped; rows take sentences from one shared order, on demand. The backward
direction reads each sentence from its end. Both directions read the same sentences, so that they nearly share their
distinct tokens; or, as in bilm-tf, each reads the corpus in an order of its own. The position can be saved and
restored.

A token becomes a number when its block is read; windows are cut from arrays of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.text.batching import TokenEncoder
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE
from elmokit.text.shards import Block, Part, Place, SentenceBlocks
from elmokit.text.vocabulary import Vocabulary

MOST_UNKNOWN = 200_000  # words outside the vocabulary whose characters are held at a time


@dataclass(frozen=True)
class Window:
    """One training step's input."""

    tokens: NDArray[np.int64]  # (distinct, chars) char ids, or (distinct,) word ids; 0 means no token
    inputs: NDArray[np.int64]  # (directions, batch, n_steps): rows of ``tokens``
    targets: NDArray[np.int64]  # (directions, batch, n_steps): word ids of the vocabulary


class _TokenTable:
    """A number for every token, and what the token layer reads for it: the vocabulary first, then other words."""

    def __init__(self, vocabulary: Vocabulary, encode: TokenEncoder) -> None:
        self.vocabulary = vocabulary
        self._encode = encode
        own = encode(vocabulary.words)
        self._type = np.min_scalar_type(max(int(own.max()), 2**8))
        self._own = own.astype(self._type)
        self.keep([])

    def keep(self, tokens: Sequence[str]) -> None:
        """Forget all words outside the vocabulary but these."""
        self._numbers = dict(self.vocabulary.ids)
        self._rows = [self._own]
        self.add(tokens)

    def add(self, tokens: Sequence[str]) -> None:
        """Give the tokens numbers, where they have none."""
        unseen = [token for token in dict.fromkeys(tokens) if token not in self._numbers]
        if unseen:
            n_known = len(self._numbers)
            self._numbers.update(zip(unseen, range(n_known, n_known + len(unseen)), strict=True))
            rows = self._encode(unseen)
            self._type = np.promote_types(self._type, np.min_scalar_type(int(rows.max())))
            self._rows = [np.concatenate([*self._rows, rows]).astype(self._type)]

    @property
    def n_unknown(self) -> int:
        """Words held that are not in the vocabulary."""
        return len(self._numbers) - len(self.vocabulary)

    def numbers(self, tokens: Sequence[str]) -> NDArray[np.int32]:
        """The numbers of tokens that have one, ``(tokens,)``."""
        return np.fromiter(map(self._numbers.__getitem__, tokens), np.int32, len(tokens))

    def rows(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """What the token layer reads."""
        rows: NDArray[np.int64] = self._rows[0][numbers].astype(np.int64)
        return rows

    def word_ids(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Numbers to ids of the vocabulary; all other words are ``<UNK>``."""
        word_ids = np.where(numbers < len(self.vocabulary), numbers, self.vocabulary.unknown_id)
        return word_ids.astype(np.int64)


@dataclass
class _Row:
    """A sentence with its boundaries, and how many of its tokens were read."""

    tokens: list[str] = field(default_factory=list)
    numbers: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    n_read: int = 0

    @property
    def n_left(self) -> int:
        """Predictions left: the last token is never an input."""
        return max(0, len(self.numbers) - 1 - self.n_read)


class _Reader:
    """The rows that read one order of the corpus."""

    def __init__(self, table: _TokenTable, blocks: SentenceBlocks, n_rows: int) -> None:
        self.table = table
        self.blocks = blocks
        self.rows = [_Row() for _ in range(n_rows)]
        self.place = Place()
        self.n_taken = 0  # sentences of the block at ``place`` that rows took
        self._sentences: list[list[str]] = []
        self._numbers: list[NDArray[np.int32]] = []

    def fill(self, read_backward: Sequence[bool], n_steps: int) -> NDArray[np.int32]:
        """A window's inputs, then the tokens that they predict, as numbers ``(2, len(read_backward), rows, n_steps)``.

        The two are not one array shifted: where a sentence ends, its last token is predicted and never read.
        """
        filled = np.empty((2, len(read_backward), len(self.rows), n_steps), np.int32)
        for index in range(len(self.rows)):
            start = 0
            while start < n_steps:
                row = self.rows[index]
                if not row.n_left:
                    row = self.rows[index] = self._next_row()
                n_read = row.n_read
                n_taken = min(row.n_left, n_steps - start)
                here = slice(start, start + n_taken)
                for part, backward in enumerate(read_backward):
                    numbers = row.numbers[::-1] if backward else row.numbers
                    filled[0, part, index, here] = numbers[n_read : n_read + n_taken]
                    filled[1, part, index, here] = numbers[n_read + 1 : n_read + n_taken + 1]
                row.n_read += n_taken
                start += n_taken
        return filled

    def _next_row(self) -> _Row:
        if self.n_taken == len(self._sentences):
            self._take(next(self.blocks))
        place, self.n_taken = self.n_taken, self.n_taken + 1
        return _Row(self._sentences[place], self._numbers[place])

    def _take(self, block: Block) -> None:
        self.place, self.n_taken = block.place, 0
        self._sentences = [[BEGIN_SENTENCE, *tokens, END_SENTENCE] for tokens in block.sentences]
        self._number()

    def _number(self) -> None:
        tokens = list(chain.from_iterable(self._sentences))
        self.table.add(tokens)
        ends = np.cumsum([len(sentence) for sentence in self._sentences])
        self._numbers = np.split(self.table.numbers(tokens), ends[:-1])

    def tokens_at_hand(self) -> list[str]:
        """All tokens that the table must know."""
        return list(chain.from_iterable([*(row.tokens for row in self.rows), *self._sentences]))

    def number_again(self) -> None:
        """After the table forgot words."""
        self._number()
        for row in self.rows:
            row.numbers = self.table.numbers(row.tokens)

    def position(self) -> dict[str, Any]:
        """As plain JSON."""
        rows = [[row.tokens, row.n_read] for row in self.rows]
        return {"place": list(self.place), "n_taken": self.n_taken, "rows": rows}

    def restore(self, blocks: SentenceBlocks, position: dict[str, Any]) -> None:
        """Go on from a saved position with blocks that begin there."""
        self.blocks.close()
        self.blocks = blocks
        self._sentences = []
        if position["n_taken"]:
            self._take(next(blocks))
        self.place, self.n_taken = Place(*position["place"]), int(position["n_taken"])
        self.rows = [_Row(list(tokens), n_read=n_read) for tokens, n_read in position["rows"]]
        for row in self.rows:
            self.table.add(row.tokens)
            row.numbers = self.table.numbers(row.tokens)


class WindowStream:
    """Endless passes over a corpus, window by window.

    Args:
        shards: text files of one tokenised sentence per line; blank lines are passed over.
        encode: distinct tokens to what the token layer reads.
        batch_size: rows.
        n_steps: positions per row and window.
        n_directions: 2 for a bidirectional model, else 1.
        shuffle: shuffle the shards of each pass, and the sentences of each range, as in ``SentenceBlocks``.
        same_text: both directions read the same sentences; else each reads the corpus in an order of its own.
        part: which part of the corpus to read, where several processes share it.

    Raises:
        TextError: there is no sentence; or a shard cannot be read.
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
        same_text: bool = True,
        part: Part = Part(),  # noqa: B008 (frozen)
    ) -> None:
        self.shards = list(shards)
        self.n_steps = n_steps
        self.n_directions = n_directions
        self.seed = seed
        self.shuffle = shuffle
        self.part = part
        self._table = _TokenTable(vocabulary, encode)
        n_readers = 1 if same_text else n_directions
        self._readers = [_Reader(self._table, self._blocks(index), batch_size) for index in range(n_readers)]

    def __iter__(self) -> Iterator[Window]:
        return self

    def __next__(self) -> Window:
        if self._table.n_unknown > MOST_UNKNOWN:
            self._table.keep([token for reader in self._readers for token in reader.tokens_at_hand()])
            for reader in self._readers:
                reader.number_again()
        if len(self._readers) == 1:
            filled = self._readers[0].fill([False, True][: self.n_directions], self.n_steps)
        else:
            parts = [reader.fill([index == 1], self.n_steps) for index, reader in enumerate(self._readers)]
            filled = np.concatenate(parts, axis=1)
        distinct, first, index = np.unique(filled[0], return_index=True, return_inverse=True)
        order = np.argsort(first)  # in the order of the text, which a restored stream repeats
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        inputs = place[index].reshape(filled[0].shape)
        return Window(self._table.rows(distinct[order]), inputs, self._table.word_ids(filled[1]))

    @property
    def n_passes(self) -> int:
        """Passes over the corpus that are complete."""
        return min(reader.place.n_passes for reader in self._readers)

    def position(self) -> list[dict[str, Any]]:
        """All that ``restore`` needs to go on from here, as plain JSON."""
        return [reader.position() for reader in self._readers]

    def restore(self, position: list[dict[str, Any]]) -> None:
        """Go on from a saved position; the corpus and all settings must be those of the stream that saved it."""
        for index, (reader, part) in enumerate(zip(self._readers, position, strict=True)):
            reader.restore(self._blocks(index, Place(*part["place"])), part)

    def begin_pass(self, n_passes: int) -> None:
        """Begin anew at the start of a pass, every row with a fresh sentence."""
        fresh: list[Any] = [[[], 0]] * len(self._readers[0].rows)
        self.restore([{"place": Place(n_passes), "n_taken": 0, "rows": fresh}] * len(self._readers))

    def close(self) -> None:
        """Stop reading ahead."""
        for reader in self._readers:
            reader.blocks.close()

    def _blocks(self, index: int, place: Place = Place()) -> SentenceBlocks:  # noqa: B008 (frozen)
        """The order of the corpus that reader ``index`` follows; the first is that of the seed alone."""
        seed = [self.seed] if index == 0 else [self.seed, index]
        return SentenceBlocks(self.shards, seed, self.shuffle, self.part, place)
