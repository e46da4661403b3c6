"""bilm-tf's vocabularies and batchers: text to ids. ``elmokit.compat.bilm`` is where they are imported from.

Ids and shapes are bilm-tf's; what was a defect there is mended or refused, as each docstring says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit.bilm import MIN_CHARS
from elmokit.errors import ConfigError, FormatError, TextError
from elmokit.io.text_files import read_lines, split_tokens
from elmokit.text.batching import check_sentence, make_batch
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
from elmokit.text.vocabulary import IGNORED_LINE

Ids = NDArray[np.int32]


class Vocabulary:
    """Words by id: a text file, one word per line, counted from 0.

    Blank lines are the empty word, of a word that stands twice the later id counts, ``!!!MAXTERMID`` is
    passed over, and ``bos``, ``eos``, ``unk`` are -1 where ``<S>``, ``</S>``, ``<UNK>`` are not listed.

    Raises:
        TextError: the file cannot be read.
        FormatError: with ``validate_file``, a special word is missing.
    """

    def __init__(self, filename: str | Path, validate_file: bool = False) -> None:
        lines = [line.strip() for line in read_lines(filename)]
        self._words = [line for line in lines if line != IGNORED_LINE]
        self._ids = {word: index for index, word in enumerate(self._words)}
        self.bos, self.eos, self.unk = (self._ids.get(word, -1) for word in (BEGIN_SENTENCE, END_SENTENCE, UNKNOWN))
        if validate_file:
            self.refuse_missing(filename, BEGIN_SENTENCE, END_SENTENCE, UNKNOWN)

    def refuse_missing(self, filename: str | Path, *words: str) -> None:
        """Raise a FormatError unless all these words are listed."""
        missing = [word for word in words if word not in self._ids]
        if missing:
            raise FormatError(f"The vocabulary {filename} lacks {', '.join(missing)}. Add each on a line of its own.")

    @property
    def size(self) -> int:
        """How many words, those that stand twice counted twice."""
        return len(self._words)

    def word_to_id(self, word: str) -> int:
        """The id of a word; ``unk`` for one not listed."""
        return self._ids.get(word, self.unk)

    def id_to_word(self, cur_id: int) -> str:
        """The word of an id."""
        return self._words[cur_id]

    def decode(self, cur_ids: Sequence[int]) -> str:
        """The words of ids, joined by blanks."""
        return " ".join(self._words[index] for index in cur_ids)

    def encode(self, sentence: str | Sequence[str], reverse: bool = False, split: bool = True) -> Ids:
        """Ids of a sentence between its boundaries, ``(tokens + 2,)``.

        Args:
            reverse: the words came reversed already; swap the boundaries.
            split: the sentence is a string, to be cut at blanks and tabs; else it is a list of tokens.
        """
        ids = [self.word_to_id(token) for token in _tokens(sentence, split)]
        first, last = (self.eos, self.bos) if reverse else (self.bos, self.eos)
        return np.array([first, *ids, last], dtype=np.int32)


class UnicodeCharsVocabulary(Vocabulary):
    """A vocabulary that also gives words as characters, numbered as in training: bytes 0 to 255, five marks to 260.

    Mended: where ``<S>`` or ``</S>`` is not listed the last word keeps its own characters, and both still
    have the characters of boundaries (there, their literal letters).

    Raises:
        ConfigError: ``max_word_length`` is below 3.
    """

    bos_char, eos_char = BEGIN_SENTENCE_CHAR - 1, END_SENTENCE_CHAR - 1
    bow_char, eow_char, pad_char = BEGIN_TOKEN_CHAR - 1, END_TOKEN_CHAR - 1, PADDING_CHAR - 1

    def __init__(self, filename: str | Path, max_word_length: int, validate_file: bool = False) -> None:
        super().__init__(filename, validate_file)
        if max_word_length < MIN_CHARS:
            raise ConfigError(f"A word takes at least {MIN_CHARS} characters with its marks; given {max_word_length}.")
        self.max_word_length = max_word_length
        self.bos_chars, self.eos_chars = self._chars([BEGIN_SENTENCE, END_SENTENCE])

    @cached_property
    def word_char_ids(self) -> Ids:
        """The characters of every word listed, ``(words, max_word_length)``."""
        return self._chars(self._words)

    def word_to_char_ids(self, word: str) -> Ids:
        """The characters of any word, ``(max_word_length,)``."""
        chars: Ids = self._chars([word])[0]
        return chars

    def encode_chars(self, sentence: str | Sequence[str], reverse: bool = False, split: bool = True) -> Ids:
        """Characters of a sentence between its boundaries, ``(tokens + 2, max_word_length)``; as in ``encode``."""
        first, last = (END_SENTENCE, BEGIN_SENTENCE) if reverse else (BEGIN_SENTENCE, END_SENTENCE)
        return self._chars([first, *_tokens(sentence, split), last])

    def _chars(self, words: Sequence[str]) -> Ids:
        return (encode_tokens(words, self.max_word_length) - 1).astype(np.int32)


class Batcher:
    """Token lists to what the character flow reads. Any word will do; the vocabulary file is checked and not needed."""

    def __init__(self, lm_vocab_file: str | Path, max_token_length: int) -> None:
        UnicodeCharsVocabulary(lm_vocab_file, max_token_length)
        self._max_token_length = max_token_length

    def batch_sentences(self, sentences: Sequence[Sequence[str]]) -> NDArray[np.int64]:
        """Characters, each one up from training's numbers, boundaries added.

        Returns:
            ``(sentences, longest + 2, max_token_length)``, 0 where there is no token.

        Raises:
            TextError: there is no sentence, or one is no list of strings.
        """
        batch = make_batch(_some(sentences), lambda tokens: encode_tokens(tokens, self._max_token_length))
        return batch.ids[batch.index] * batch.mask[..., None]


class TokenBatcher:
    """Token lists to what the token flow reads.

    Refused: a file without ``<S>`` or ``</S>``, and a word unlisted where there is no ``<UNK>``. There both
    became padding, and the sentence lost its end.

    Raises:
        FormatError: a boundary is not listed.
    """

    def __init__(self, lm_vocab_file: str | Path) -> None:
        self._vocab = Vocabulary(lm_vocab_file)
        self._vocab.refuse_missing(lm_vocab_file, BEGIN_SENTENCE, END_SENTENCE)
        self._file = lm_vocab_file

    def batch_sentences(self, sentences: Sequence[Sequence[str]]) -> NDArray[np.int64]:
        """Ids, each one up from the vocabulary's, boundaries added.

        Returns:
            ``(sentences, longest + 2)``, 0 where there is no token.

        Raises:
            TextError: there is no sentence, one is no list of strings, or a word has no id.
        """
        batch = make_batch(_some(sentences), self._ids)
        return batch.ids[batch.index] * batch.mask

    def _ids(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        ids = np.array([self._vocab.word_to_id(token) for token in tokens], dtype=np.int64)
        if (ids < 0).any():
            word = tokens[int(ids.argmin())]
            raise TextError(
                f"The word {word!r} is not in {self._file}, which has no {UNKNOWN} either. List every word of the "
                "text and dump the token embeddings again, or read characters."
            )
        return ids + 1


def _tokens(sentence: str | Sequence[str], split: bool) -> Sequence[str]:
    if split and isinstance(sentence, str):
        return split_tokens(sentence.rstrip("\r\n"))
    return check_sentence(sentence)


def _some(sentences: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
    if not sentences:
        raise TextError("There is no sentence to batch. Pass a list of token lists with at least one in it.")
    return sentences
