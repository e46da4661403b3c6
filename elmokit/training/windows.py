"""Cut a corpus into training windows for truncated backpropagation through time (TBPTT).

A window has ``batch_size`` rows of ``window_length`` positions. As in bilm-tf, text is packed: each row reads sentences
without gaps or padding, and continues in the next window where it stopped, so the LSTM state can be passed from window
to window. When a row finishes a sentence, it takes the next one from an order shared by all rows. No positions are
wasted on padding.

The backward direction reads each sentence from its end, but takes sentences in the same order as the forward direction.
Both directions then read the same sentences in the same window, and share most distinct tokens, which the char CNN
computes once per window. bilm-tf gave each direction its own order (``same_order=False``).

The stream must resume exactly at a checkpoint, so its position is plain data: the current block of the corpus (see
``shards.py``), how many of its sentences were taken, and for each row, its sentence and the position in it.

For speed, tokens become numbers when their block is read, and windows are cut from arrays of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.text.batching import TokenEncoder
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE
from elmokit.text.marks import EXACT, MarkReader
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.shards import BlockPosition, SentenceBlock, SentenceBlocks

MAX_UNKNOWN = 200_000  # words outside the vocabulary in the token table: 20 MB, at 50 char ids of 2 bytes


@dataclass(frozen=True)
class Window:
    """The inputs and targets of a training window."""

    tokens: NDArray[np.int64]  # (distinct, chars) char ids, or (distinct,) word ids; 0 means no token
    inputs: NDArray[np.int64]  # (directions, batch, window_length): rows of ``tokens``
    targets: NDArray[np.int64]  # (directions, batch, window_length): word ids of the vocabulary
    begins: NDArray[np.bool_]  # (directions, batch): whether the first position of the row begins a sentence


class _TokenTable:
    """Numbers for tokens, and the token layer's input for each number."""

    # Words of the vocabulary come first, so their number is their word id. Other words get the following numbers as
    # they occur, and are dropped from time to time (`keep_only`), because a large corpus has millions.

    def __init__(self, vocabulary: Vocabulary, encode: TokenEncoder, read: MarkReader) -> None:
        self.vocabulary = vocabulary
        self._encode, self._read = encode, read
        encoded = encode(vocabulary.words)
        # Char ids are below 262 and fit into 16 bits, a quarter of the size that the model reads.
        self._dtype = np.min_scalar_type(max(int(encoded.max()), 2**8))
        # Kept separately, so dropping other words does not require encoding the vocabulary again.
        self._vocabulary_rows = encoded.astype(self._dtype)
        self.keep_only([])

    def keep_only(self, tokens: Sequence[str]) -> None:
        """Drop all words outside the vocabulary except ``tokens``. All numbers outside the vocabulary change."""
        self._numbers = dict(self.vocabulary.ids)
        self._rows = self._vocabulary_rows
        self.add(tokens)

    def add(self, tokens: Sequence[str]) -> None:
        """Assign numbers to tokens that have none yet."""
        new: list[str] = []
        for token in dict.fromkeys(tokens):
            if token in self._numbers:
                continue
            if (word_id := self.vocabulary.ids.get(self._read(token))) is None:
                new.append(token)
            else:
                self._numbers[token] = word_id
        if new:
            n_known = len(self._rows)  # not the number of tokens: in bilm-tf's vocabularies, a word may be repeated
            self._numbers.update(zip(new, range(n_known, n_known + len(new)), strict=True))
            rows = self._encode(new)
            self._dtype = np.promote_types(self._dtype, np.min_scalar_type(int(rows.max())))
            self._rows = np.concatenate([self._rows, rows]).astype(self._dtype)

    @property
    def n_unknown(self) -> int:
        """Number of words in the table that are outside the vocabulary."""
        return len(self._rows) - len(self.vocabulary)

    def numbers(self, tokens: Sequence[str]) -> NDArray[np.int32]:
        """Return the numbers of tokens that are in the table, ``(tokens,)``."""
        return np.fromiter(map(self._numbers.__getitem__, tokens), np.int32, len(tokens))

    def rows(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Return the token layer's inputs for these numbers."""
        rows: NDArray[np.int64] = self._rows[numbers].astype(np.int64)
        return rows

    def word_ids(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Return the word ids of these numbers. Words outside the vocabulary are ``<UNK>``."""
        # Words of the vocabulary have the lowest numbers, so one comparison finds the unknown ones.
        word_ids = np.where(numbers < len(self.vocabulary), numbers, self.vocabulary.unknown_id)
        return word_ids.astype(np.int64)


@dataclass
class _Row:
    """The current sentence of a row, with boundaries, the number of tokens read, and what follows."""

    tokens: list[str] = field(default_factory=list)
    numbers: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    n_read: int = 0
    following: list[list[str]] = field(default_factory=list)
    """The other sentences of its passage."""
    following_numbers: list[NDArray[np.int32]] = field(default_factory=list)

    @property
    def n_left(self) -> int:
        """Predictions left in this sentence. Its last token is predicted, but never an input."""
        return max(0, len(self.numbers) - 1 - self.n_read)


class _RowReader:
    """The rows of a batch, which read the corpus in a common order."""

    def __init__(self, table: _TokenTable, blocks: SentenceBlocks, batch_size: int) -> None:
        self.table = table
        self.blocks = blocks
        self.rows = [_Row() for _ in range(batch_size)]
        self.block_position = BlockPosition()
        self.n_taken = 0  # sentences of the current block that rows have taken
        self._sentences: list[list[str]] = []  # of the current block
        self._passages: list[slice] = []
        self._numbers: list[NDArray[np.int32]] = []

    def fill(self, read_backward: Sequence[bool], window_length: int) -> NDArray[np.int32]:
        """Read one window: the numbers of its inputs and of the predicted tokens."""
        # The two are not one array shifted by a position, because the last token of a sentence is predicted but never
        # read.
        filled = np.empty((2, len(read_backward), len(self.rows), window_length), np.int32)
        for index in range(len(self.rows)):
            start = 0
            while start < window_length:
                row = self.rows[index]
                if not row.n_left:
                    # Rows take sentences on demand. If each row had a fixed part of the corpus, as is common, it would
                    # read that part in order for a whole epoch, which would undo the shuffling.
                    row = self.rows[index] = self._row_after(row)
                n_read = row.n_read
                n_taken = min(row.n_left, window_length - start)
                positions = slice(start, start + n_taken)
                for direction, backward in enumerate(read_backward):
                    # A reversed view, not a copy. The backward direction starts at </S> and predicts <S> at the end.
                    numbers = row.numbers[::-1] if backward else row.numbers
                    filled[0, direction, index, positions] = numbers[n_read : n_read + n_taken]
                    filled[1, direction, index, positions] = numbers[n_read + 1 : n_read + n_taken + 1]
                row.n_read += n_taken
                start += n_taken
        return filled

    def _row_after(self, row: _Row) -> _Row:
        """Take the next sentence of the row's passage, or else the next passage."""
        if row.following:
            sentences, numbers = row.following, row.following_numbers
        else:
            if self.n_taken == len(self._passages):
                self._start_block(next(self.blocks))
            here, self.n_taken = self._passages[self.n_taken], self.n_taken + 1
            sentences, numbers = self._sentences[here], self._numbers[here]
        return _Row(sentences[0], numbers[0], 0, sentences[1:], numbers[1:])

    def _start_block(self, block: SentenceBlock) -> None:
        self.block_position, self.n_taken = block.position, 0
        self._sentences = [[BEGIN_SENTENCE, *tokens, END_SENTENCE] for tokens in chain.from_iterable(block.passages)]
        self._passages = []
        start = 0
        for passage in block.passages:
            self._passages.append(slice(start, start + len(passage)))
            start += len(passage)
        self._number_block()

    def _number_block(self) -> None:
        tokens = list(chain.from_iterable(self._sentences))
        self.table.add(tokens)
        # All tokens of the block are looked up in one call, because calls per sentence would be dominated by NumPy's
        # overhead.
        ends = np.cumsum([len(sentence) for sentence in self._sentences])
        self._numbers = np.split(self.table.numbers(tokens), ends[:-1])

    def tokens_in_use(self) -> list[str]:
        """Return all tokens that must stay in the table."""
        of_rows = chain.from_iterable([row.tokens, *row.following] for row in self.rows)
        return list(chain.from_iterable([*of_rows, *self._sentences]))

    def renumber(self) -> None:
        """Look up all numbers again, after the table dropped words."""
        self._number_block()
        for row in self.rows:
            self._number_row(row)

    def _number_row(self, row: _Row) -> None:
        row.numbers, *row.following_numbers = map(self.table.numbers, [row.tokens, *row.following])

    def position(self) -> dict[str, Any]:
        """Return the position as plain JSON."""
        rows = [[row.tokens, row.n_read, row.following] for row in self.rows]
        return {"block": list(self.block_position), "n_taken": self.n_taken, "rows": rows}

    def restore(self, position: dict[str, Any]) -> None:
        """Continue from a position."""
        self.blocks.close()
        self.blocks = self.blocks.starting_at(BlockPosition(*position["block"]))
        self._sentences, self._passages = [], []
        if position["n_taken"]:  # otherwise the block was only just to be read
            self._start_block(next(self.blocks))
        self.block_position, self.n_taken = BlockPosition(*position["block"]), int(position["n_taken"])
        # A row's sentence can be from an earlier block, so the sentences of all rows are part of the position.
        self.rows = [_Row(tokens, n_read=n_read, following=following) for tokens, n_read, following in position["rows"]]
        for row in self.rows:
            self.table.add([*row.tokens, *chain.from_iterable(row.following)])
            self._number_row(row)


class WindowStream:
    """Iterate over the training windows of a text, as long as its blocks can fill one.

    Args:
        blocks: The sentences for both directions, or separately ordered ones for each direction.
        vocabulary: The words of the softmax; all others are the target ``<UNK>``.
        encode: Maps distinct tokens to the token layer's inputs.
        batch_size: Number of rows in a window.
        window_length: Number of positions in each row.
        read_backward: For each direction of the model, whether it reads sentences from their end.
        read: How the model reads a token; words read as a vocabulary word have that target.

    Example:
        >>> blocks = [SentenceBlocks(Text("corpus.txt"), ReadingOrder())]
        >>> stream = WindowStream(blocks, vocabulary, model.encode, batch_size=48, window_length=20)
        >>> window = next(stream)
        >>> window.inputs.shape
        (2, 48, 20)
    """

    def __init__(
        self,
        blocks: Sequence[SentenceBlocks],
        vocabulary: Vocabulary,
        encode: TokenEncoder,
        batch_size: int,
        window_length: int,
        read_backward: Sequence[bool] = (False, True),
        read: MarkReader = EXACT,
    ) -> None:
        self.window_length = window_length
        self.read_backward = tuple(read_backward)
        self._table = _TokenTable(vocabulary, encode, read)
        self._readers = [_RowReader(self._table, own, batch_size) for own in blocks]

    def __iter__(self) -> Iterator[Window]:
        return self

    def __next__(self) -> Window:
        if self._table.n_unknown > MAX_UNKNOWN:
            # Between two windows, when everything in use is known: the rows' sentences and the current blocks.
            self._table.keep_only([token for reader in self._readers for token in reader.tokens_in_use()])
            for reader in self._readers:
                reader.renumber()
        if len(self._readers) == 1:
            inputs, targets = self._readers[0].fill(self.read_backward, self.window_length)
        else:
            filled = [
                reader.fill([backward], self.window_length)
                for reader, backward in zip(self._readers, self.read_backward, strict=True)
            ]
            inputs, targets = np.concatenate(filled, axis=1)
        # Number the distinct tokens in the order of the text. Sorted by their number in the table, as np.unique
        # returns them, their order would depend on when each word entered the table, and a restored stream would sum
        # gradients in another order.
        distinct, first, index = np.unique(inputs, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank_of = np.empty_like(order)
        rank_of[order] = np.arange(len(order))
        vocabulary = self._table.vocabulary
        # In the table, words of the vocabulary have their word ids.
        first_tokens = [vocabulary.end_id if backward else vocabulary.begin_id for backward in self.read_backward]
        return Window(
            self._table.rows(distinct[order]),
            rank_of[index].reshape(inputs.shape),
            self._table.word_ids(targets),
            inputs[:, :, 0] == np.array(first_tokens)[:, None],
        )

    @property
    def epoch(self) -> int:
        """Number of complete epochs."""
        return min(reader.block_position.epoch for reader in self._readers)

    def position(self) -> list[dict[str, Any]]:
        """Return everything that :meth:`restore` needs, as plain JSON."""
        return [reader.position() for reader in self._readers]

    def restore(self, position: list[dict[str, Any]]) -> None:
        """Continue from a position. The corpus and all settings must be those of the stream that saved it."""
        for reader, own in zip(self._readers, position, strict=True):
            reader.restore(own)

    def start_epoch(self, epoch: int) -> None:
        """Continue from the start of an epoch, with a new sentence in each row."""
        for reader in self._readers:
            rows: list[Any] = [[[], 0, []] for _ in reader.rows]
            reader.restore({"block": BlockPosition(epoch), "n_taken": 0, "rows": rows})

    def close(self) -> None:
        """Stop the reading threads."""
        for reader in self._readers:
            reader.blocks.close()
