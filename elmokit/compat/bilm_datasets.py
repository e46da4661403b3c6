"""bilm-tf's datasets: text files to batches of training windows. Import them from ``elmokit.compat.bilm``.

They are thin adapters over :class:`~elmokit.text.windows.WindowStream`, which packs sentences as bilm-tf does. Ids and
shapes are those of bilm-tf.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from elmokit.compat.bilm_data import Ids, UnicodeCharsVocabulary, Vocabulary
from elmokit.storage.text_files import find_text_files, read_sentences
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE, UNKNOWN
from elmokit.text.vocabulary import Vocabulary as WordList
from elmokit.text.windows import WindowStream

Batch = dict[str, Ids | None]


class _Dataset:
    """What both datasets share: the files, the vocabulary, and the order in which sentences are read."""

    def __init__(
        self,
        filepattern: str,
        vocab: Vocabulary,
        read_backward: Sequence[bool],
        test: bool,
        shuffle_on_load: bool,
        seed: int,
    ) -> None:
        vocab.require("of the dataset", BEGIN_SENTENCE, END_SENTENCE, UNKNOWN)
        self.files = find_text_files(filepattern, reread=True)
        """The files that the pattern matches, sorted."""
        self.read_backward = tuple(read_backward)
        self.is_test = test
        self._vocab = vocab
        self.shuffle_on_load = shuffle_on_load
        self.seed = seed
        self._first_epoch = 0
        self._words = WordList([vocab.id_to_word(index) for index in range(vocab.size)], strict=False)

    @property
    def vocab(self) -> Vocabulary:
        """The vocabulary."""
        return self._vocab

    @property
    def max_word_length(self) -> int | None:
        """Characters per word; None if the vocabulary encodes no characters."""
        return self._vocab.max_word_length if isinstance(self._vocab, UnicodeCharsVocabulary) else None

    def iter_batches(self, batch_size: int, num_steps: int) -> Iterator[Batch]:
        """Yield batches of training windows, endlessly or, for a test, until the text is read once.

        Rows are packed without padding and continue from batch to batch. In training, each call starts with another
        epoch. A test ends before the first batch that some row cannot fill, as in bilm-tf.

        Args:
            batch_size: Rows of a batch.
            num_steps: Positions of each row.

        Yields:
            ``token_ids`` and ``next_token_id``, ``(batch_size, num_steps)`` int32, and ``tokens_characters``,
            ``(batch_size, num_steps, max_word_length)`` int32, or None without characters.

        Raises:
            TextError: A file cannot be read, or there is no sentence.
        """
        stream = WindowStream(
            self.files[::-1] if self.is_test else self.files,  # bilm-tf takes the files of a test from the end
            self._words,
            self._encode,
            batch_size,
            num_steps,
            self.read_backward,
            self.seed,
            self.shuffle_on_load,
            same_order=self.is_test,
            n_epochs=1 if self.is_test else None,
            one_by_one=True,
            like_bilm_tf=True,
        )
        with contextlib.closing(stream):
            if self._first_epoch and not self.is_test:
                stream.start_epoch(self._first_epoch)
            for window in stream:
                self._first_epoch = stream.epoch + 1
                batch: Batch = {}
                encoded = window.tokens[window.inputs] - 1  # (directions, batch, time, 1 + chars)
                for direction in range(len(self.read_backward)):
                    suffix = "_reverse" if direction else ""
                    ids = encoded[direction].astype(np.int32)
                    batch[f"token_ids{suffix}"] = ids[..., 0]
                    batch[f"tokens_characters{suffix}"] = None if self.max_word_length is None else ids[..., 1:]
                    batch[f"next_token_id{suffix}"] = window.targets[direction].astype(np.int32)
                yield batch

    def _encode(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Return each token's word id, then its characters, ``(tokens, 1 + chars)``; one above those of bilm-tf."""
        ids = np.array([[self._vocab.word_to_id(token)] for token in tokens], dtype=np.int64).reshape(-1, 1)
        if isinstance(self._vocab, UnicodeCharsVocabulary):
            ids = np.concatenate([ids, self._vocab.chars_of(tokens)], axis=1)
        return ids + 1


class LMDataset(_Dataset):
    """The training windows of a text in one direction.

    Files are UTF-8, plain or compressed, and only a part of a file is in memory at a time. Sentences are shuffled over
    ranges of 200,000 lines instead of a whole file, from a seed instead of Python's global random state. Without
    ``shuffle_on_load``, files are read in the order of their names.

    Args:
        filepattern: A glob pattern, a file or a directory.
        vocab: A ``UnicodeCharsVocabulary``, or a ``Vocabulary`` for word ids alone. It must list the special words.
        reverse: Read each sentence from its end, for a backward language model.
        test: Read the text once, in order; otherwise endlessly.
        shuffle_on_load: Shuffle files and sentences.
        seed: Decides the order.

    Raises:
        TextError: No file matches.
        FormatError: The vocabulary lacks a special word.

    Example:
        >>> data = LMDataset("corpus/*.txt", UnicodeCharsVocabulary("vocab.txt", 50), shuffle_on_load=True)
        >>> batch = next(data.iter_batches(128, 20))
        >>> batch["tokens_characters"].shape
        (128, 20, 50)
    """

    def __init__(
        self,
        filepattern: str,
        vocab: Vocabulary,
        reverse: bool = False,
        test: bool = False,
        shuffle_on_load: bool = False,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(filepattern, vocab, (reverse,), test, shuffle_on_load, seed)

    def get_sentence(self) -> Iterator[tuple[Ids, Ids | None]]:
        """Yield the word ids and the characters of each sentence with its boundaries, in the order of the files.

        For a test they are yielded once, otherwise endlessly. Sentences are not shuffled here.
        """
        (reverse,) = self.read_backward
        while True:
            for path in self.files[::-1] if self.is_test else self.files:
                for tokens in read_sentences(path, like_bilm_tf=True):
                    tokens = tokens[:: -1 if reverse else 1]
                    chars = None
                    if isinstance(self._vocab, UnicodeCharsVocabulary):
                        chars = self._vocab.encode_chars(tokens, reverse, split=False)
                    yield self._vocab.encode(tokens, reverse, split=False), chars
            if self.is_test:
                return


class BidirectionalLMDataset(_Dataset):
    """The training windows of a text in both directions.

    A batch also has the keys ``token_ids_reverse``, ``tokens_characters_reverse`` and ``next_token_id_reverse``. In
    training, each direction has an order of its own; in a test, both read the same sentences.

    Args:
        filepattern, vocab, test, shuffle_on_load, seed: As in ``LMDataset``.

    Raises:
        TextError, FormatError: As in ``LMDataset``.
    """

    def __init__(
        self,
        filepattern: str,
        vocab: Vocabulary,
        test: bool = False,
        shuffle_on_load: bool = False,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(filepattern, vocab, (False, True), test, shuffle_on_load, seed)
