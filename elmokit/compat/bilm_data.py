"""bilm-tf's vocabularies, batchers and datasets: text to ids. Import them from ``elmokit.compat.bilm``.

Ids and shapes are the same as in bilm-tf. Its bugs are fixed or raise an error, as described in each docstring. The
datasets are thin adapters over :class:`~elmokit.training.windows.WindowStream`, which packs sentences as bilm-tf does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit.compat.token_lists import token_list, token_lists
from elmokit.config import check_at_least
from elmokit.engine.architecture import MAX_CHARS, MIN_CHARS
from elmokit.errors import ConfigError, FormatError, TextError
from elmokit.storage.text_files import find_text_files, read_lines
from elmokit.text.batching import make_batch
from elmokit.text.characters import (
    BEGIN_SENTENCE,
    BEGIN_SENTENCE_CHAR,
    BEGIN_TOKEN_CHAR,
    END_SENTENCE,
    END_SENTENCE_CHAR,
    END_TOKEN_CHAR,
    PADDING_CHAR,
    UNKNOWN,
    encode_tokens,
)
from elmokit.text.text import Text
from elmokit.text.vocabulary import IGNORED_LINE, find_columns
from elmokit.text.vocabulary import Vocabulary as WordList
from elmokit.training.shards import ReadingOrder, SentenceBlocks
from elmokit.training.windows import WindowStream

Ids = NDArray[np.int32]
InvalidNumberOfCharacters = ConfigError  # bilm-tf's name; unlike in bilm-tf, both 261 and 262 are accepted


class Vocabulary:
    """A list of words from a text file, with one word per line. Ids count from 0.

    A blank line is the empty word, a repeated word gets its last id, ``!!!MAXTERMID`` is skipped, and ``bos``, ``eos``,
    ``unk`` are -1 if ``<S>``, ``</S>``, ``<UNK>`` are not listed.

    Args:
        filename: The word list.
        validate_file: Require the special words.
        words: The words themselves, instead of a file.

    Raises:
        TextError: The file cannot be read.
        FormatError: With ``validate_file``, a special word is missing.
    """

    def __init__(
        self, filename: str | Path | None = None, validate_file: bool = False, *, words: Iterable[str] = ()
    ) -> None:
        self.path = None if filename is None else Path(filename)
        lines = [line.strip() for line in (words if filename is None else read_lines(filename))]
        self._id_to_word = [line for line in lines if line != IGNORED_LINE]
        self._word_to_id = {word: index for index, word in enumerate(self._id_to_word)}
        self.bos, self.eos, self.unk = (
            self._word_to_id.get(word, -1) for word in (BEGIN_SENTENCE, END_SENTENCE, UNKNOWN)
        )
        if validate_file:
            self.require(filename, BEGIN_SENTENCE, END_SENTENCE, UNKNOWN)

    def require(self, filename: str | Path | None, *words: str) -> None:
        """Raise a FormatError unless all these words are listed."""
        missing = [word for word in words if word not in self._word_to_id]
        if missing:
            columns = find_columns(self._id_to_word)
            reason = "" if columns is None else f" {columns.problem[0].upper()}{columns.problem[1:]}"
            raise FormatError(f"The vocabulary {filename} lacks {', '.join(missing)}.{reason}")

    @property
    def size(self) -> int:
        """Number of words, counting repeated words each time."""
        return len(self._id_to_word)

    def word_to_id(self, word: str) -> int:
        """Return the id of a word, or ``unk`` if it is not listed."""
        return self._word_to_id.get(word, self.unk)

    def id_to_word(self, cur_id: int) -> str:
        """Return the word with an id."""
        return self._id_to_word[cur_id]

    def decode(self, cur_ids: Sequence[int]) -> str:
        """Return the words with the given ids, joined by spaces."""
        return " ".join(self._id_to_word[index] for index in cur_ids)

    def encode(self, sentence: str | Iterable[str], reverse: bool = False, split: bool = True) -> Ids:
        """Encode a sentence, with boundaries, as word ids ``(tokens + 2,)``.

        Args:
            sentence: A string or a list of tokens.
            reverse: The words are already reversed; swap the boundaries.
            split: Split a string at white space.
        """
        ids = [self.word_to_id(token) for token in _tokens(sentence, split)]
        first, last = (self.eos, self.bos) if reverse else (self.bos, self.eos)
        return np.array([first, *ids, last], dtype=np.int32)


class UnicodeCharsVocabulary(Vocabulary):
    """A vocabulary that also encodes words as characters, numbered as in training: bytes 0 to 255, five marks to 260.

    Fixed: if ``<S>`` or ``</S>`` is not listed, the last word keeps its own characters, and both still get boundary
    characters instead of their literal letters.

    Args:
        filename: The word list.
        max_word_length: Characters per word, including a begin and an end mark.
        validate_file, words: As in ``Vocabulary``.

    Raises:
        ConfigError: ``max_word_length`` is not an integer from 3 to 10,000.
    """

    bos_char, eos_char = BEGIN_SENTENCE_CHAR - 1, END_SENTENCE_CHAR - 1
    bow_char, eow_char, pad_char = BEGIN_TOKEN_CHAR - 1, END_TOKEN_CHAR - 1, PADDING_CHAR - 1

    def __init__(
        self,
        filename: str | Path | None,
        max_word_length: int,
        validate_file: bool = False,
        *,
        words: Iterable[str] = (),
    ) -> None:
        super().__init__(filename, validate_file, words=words)
        check_at_least("max_word_length", max_word_length, MIN_CHARS, MAX_CHARS)
        self.max_word_length = max_word_length
        self.bos_chars, self.eos_chars = self.chars_of([BEGIN_SENTENCE, END_SENTENCE])

    @cached_property
    def word_char_ids(self) -> Ids:
        """The characters of all listed words, ``(words, max_word_length)``."""
        return self.chars_of(self._id_to_word)

    def word_to_char_ids(self, word: str) -> Ids:
        """Return the characters of any word, ``(max_word_length,)``."""
        chars: Ids = self.chars_of([word])[0]
        return chars

    def encode_chars(self, sentence: str | Iterable[str], reverse: bool = False, split: bool = True) -> Ids:
        """Encode a sentence, with boundaries, as characters ``(tokens + 2, max_word_length)``; see ``encode``."""
        first, last = (END_SENTENCE, BEGIN_SENTENCE) if reverse else (BEGIN_SENTENCE, END_SENTENCE)
        return self.chars_of([first, *_tokens(sentence, split), last])

    def chars_of(self, words: Sequence[str]) -> Ids:
        """Return the characters of some words, ``(words, max_word_length)``."""
        return (encode_tokens(words, self.max_word_length) - 1).astype(np.int32)


class Batcher:
    """Encodes lists of tokens as characters. Any word is allowed; the vocabulary file is checked but not needed."""

    def __init__(self, lm_vocab_file: str | Path | None, max_token_length: int) -> None:
        self._lm_vocab = UnicodeCharsVocabulary(lm_vocab_file, max_token_length)
        self._max_token_length = max_token_length

    def batch_sentences(self, sentences: Iterable[Iterable[str]]) -> NDArray[np.int64]:
        """Encode sentences, with boundaries, as characters; each id is one more than in training.

        Returns:
            ``(sentences, longest + 2, max_token_length)``, 0 on padding.

        Raises:
            TextError: There is no sentence, or one is not a list of strings.
        """
        batch = make_batch(_some(sentences), lambda tokens: encode_tokens(tokens, self._max_token_length))
        return batch.ids[batch.index] * batch.mask[..., None]


class TokenBatcher:
    """Encodes lists of tokens as word ids.

    A file without ``<S>`` or ``</S>``, and an unlisted word if there is no ``<UNK>``, raise an error. In bilm-tf, both
    became padding, and the sentence lost its end.

    Raises:
        FormatError: A boundary is not listed.
    """

    def __init__(self, lm_vocab_file: str | Path) -> None:
        self._lm_vocab = Vocabulary(lm_vocab_file)
        self._lm_vocab.require(lm_vocab_file, BEGIN_SENTENCE, END_SENTENCE)
        self._file = lm_vocab_file

    def batch_sentences(self, sentences: Iterable[Iterable[str]]) -> NDArray[np.int64]:
        """Encode sentences, with boundaries, as word ids; each id is one more than in the vocabulary.

        Returns:
            ``(sentences, longest + 2)``, 0 on padding.

        Raises:
            TextError: There is no sentence, one is not a list of strings, or a word has no id.
        """
        batch = make_batch(_some(sentences), self._ids)
        return batch.ids[batch.index] * batch.mask

    def _ids(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        ids = np.array([self._lm_vocab.word_to_id(token) for token in tokens], dtype=np.int64)
        if (ids < 0).any():
            word = tokens[int(ids.argmin())]
            raise TextError(
                f"Neither the word {word!r} nor {UNKNOWN} is in {self._file}. List all words of the text and dump the "
                "token embeddings again, or use character inputs."
            )
        return ids + 1


def _tokens(sentence: str | Iterable[str], split: bool) -> Sequence[str]:
    if split and isinstance(sentence, str):
        return sentence.split()
    return token_list(sentence)


def _some(sentences: Iterable[Iterable[str]]) -> list[list[str]]:
    batch = token_lists(sentences)
    if not batch:
        raise TextError("There are no sentences to batch. Pass a list with at least one list of tokens.")
    return batch


Batch = dict[str, Ids | None]


class _Dataset:
    """Base of both datasets: files, vocabulary, and the order in which sentences are read."""

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
        # In a test, bilm-tf reads the files in reverse order.
        self.text = Text(self.files[::-1] if test else self.files, kind="bilm-tf")
        """The text in the order in which it is read."""
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
        """Yield batches of training windows: endlessly, or in a test, until the text has been read once.

        Rows are packed without padding and continue from batch to batch. In training, each call starts with a different
        epoch. A test ends before the first batch that some row cannot fill, as in bilm-tf.

        Args:
            batch_size: Rows per batch.
            num_steps: Positions per row.

        Yields:
            ``token_ids`` and ``next_token_id``, ``(batch_size, num_steps)`` int32, and ``tokens_characters``,
            ``(batch_size, num_steps, max_word_length)`` int32, or None without characters.

        Raises:
            TextError: A file cannot be read, or there is no sentence.
        """
        order = ReadingOrder(
            seed=self.seed, shuffle=self.shuffle_on_load, n_epochs=1 if self.is_test else None, one_by_one=True
        )
        # In training, each direction has its own order.
        n_readers = 1 if self.is_test else len(self.read_backward)
        blocks = [SentenceBlocks(self.text, order, reader) for reader in range(n_readers)]
        stream = WindowStream(blocks, self._words, self._encode, batch_size, num_steps, self.read_backward)
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
        """Encode each token as a word id, then characters, ``(tokens, 1 + chars)``; one more than in bilm-tf."""
        ids = np.array([[self._vocab.word_to_id(token)] for token in tokens], dtype=np.int64).reshape(-1, 1)
        if isinstance(self._vocab, UnicodeCharsVocabulary):
            ids = np.concatenate([ids, self._vocab.chars_of(tokens)], axis=1)
        return ids + 1


class LMDataset(_Dataset):
    """Training windows of a text, in one direction.

    Files are UTF-8, plain or compressed, and only part of a file is in memory at a time. Sentences are shuffled within
    ranges of 200,000 lines instead of a whole file, from a seed instead of Python's global random state. Without
    ``shuffle_on_load``, files are read in alphabetical order.

    Args:
        filepattern: A glob pattern, a file or a directory.
        vocab: A ``UnicodeCharsVocabulary``, or a ``Vocabulary`` for word ids only. It must list the special words.
        reverse: Read each sentence backward, for a backward language model.
        test: Read the text once, in order; otherwise endlessly.
        shuffle_on_load: Shuffle files and sentences.
        seed: Determines the order.

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
        """Yield each sentence's word ids and characters, with boundaries, in file order.

        In a test, they are yielded once, otherwise endlessly. Sentences are not shuffled here.
        """
        (reverse,) = self.read_backward
        while True:
            for tokens in self.text.token_lists():
                if reverse:
                    tokens = tokens[::-1]
                chars = None
                if isinstance(self._vocab, UnicodeCharsVocabulary):
                    chars = self._vocab.encode_chars(tokens, reverse, split=False)
                yield self._vocab.encode(tokens, reverse, split=False), chars
            if self.is_test:
                return


class BidirectionalLMDataset(_Dataset):
    """Training windows of a text, in both directions.

    A batch also has the keys ``token_ids_reverse``, ``tokens_characters_reverse`` and ``next_token_id_reverse``. In
    training, each direction has its own order; in a test, both read the same sentences.

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
