"""AllenNLP's functions that turn words into ELMo's character ids."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.compat.allennlp_common import ConfigurationError, FromParams, Source, on_cuda_device, open_files
from elmokit.compat.token_lists import token_lists
from elmokit.config import check_at_least
from elmokit.errors import OutputError
from elmokit.formats.allennlp_weights import char_cnn_of
from elmokit.storage.atomic import atomic_write
from elmokit.storage.text_files import read_lines
from elmokit.text.characters import (
    BEGIN_SENTENCE,
    BEGIN_SENTENCE_CHAR,
    BEGIN_TOKEN_CHAR,
    END_SENTENCE,
    END_SENTENCE_CHAR,
    END_TOKEN_CHAR,
    PADDING_CHAR,
    encode_tokens,
)

DEFAULT_OOV_TOKEN = "@@UNKNOWN@@"
MAX_WORD_LENGTH = 50


class _AlsoOnClass:
    """A method that can also be called on the class, as on a new object, because it was static in AllenNLP 0.4."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: object, owner: type) -> Any:
        return self._method.__get__(owner() if instance is None else instance, owner)


class ELMoCharacterMapper:
    """Maps words to character ids. As in AllenNLP, the class attributes are one less than the returned ids.

    Args:
        tokens_to_add: Words with their own character id, given as the returned id minus one; 1 to 31 are unused.
    """

    max_word_length = MAX_WORD_LENGTH
    beginning_of_sentence_character = BEGIN_SENTENCE_CHAR - 1
    end_of_sentence_character = END_SENTENCE_CHAR - 1
    beginning_of_word_character = BEGIN_TOKEN_CHAR - 1
    end_of_word_character = END_TOKEN_CHAR - 1
    padding_character = PADDING_CHAR - 1
    beginning_of_sentence_characters = (encode_tokens([BEGIN_SENTENCE], MAX_WORD_LENGTH)[0] - 1).tolist()
    end_of_sentence_characters = (encode_tokens([END_SENTENCE], MAX_WORD_LENGTH)[0] - 1).tolist()
    bos_token = BEGIN_SENTENCE
    eos_token = END_SENTENCE

    def __init__(self, tokens_to_add: dict[str, int] | None = None) -> None:
        self.tokens_to_add = tokens_to_add or {}

    @_AlsoOnClass
    def convert_word_to_char_ids(self, word: str) -> list[int]:
        """Return the 50 ids of a word. As in AllenNLP 0.4, it can also be called on the class.

        Raises:
            TextError: The word is not a string.
        """
        if word in self.tokens_to_add:
            ids = [BEGIN_TOKEN_CHAR, self.tokens_to_add[word] + 1, END_TOKEN_CHAR]
            return ids + [PADDING_CHAR] * (self.max_word_length - len(ids))
        encoded: list[int] = encode_tokens([word], self.max_word_length)[0].tolist()
        return encoded

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ELMoCharacterMapper) and self.__dict__ == other.__dict__


@dataclass(repr=False, slots=True)
class Token:
    """A token with information from a tokenizer, with the fields of 2.10. The indexer only needs ``text``."""

    text: str | None = None
    idx: int | None = None
    """Offset of the token's first character in the text."""
    idx_end: int | None = None
    lemma_: str | None = None
    pos_: str | None = None
    tag_: str | None = None
    dep_: str | None = None
    ent_type_: str | None = None
    text_id: int | None = None
    type_id: int | None = None

    def __str__(self) -> str:
        return str(self.text)

    __repr__ = __str__

    def ensure_text(self) -> str:
        """Return the text.

        Raises:
            ValueError: There is none.
        """
        if self.text is None:
            raise ValueError("The token has no text.")
        return self.text


class ELMoTokenCharactersIndexer(FromParams):
    """Maps tokens (strings, or objects with ``text``) to character ids, with the methods of 2.10, 0.9 and 0.4.

    There is no vocabulary; arguments with that name are ignored.
    """

    registered_name = "elmo_characters"

    def __init__(
        self,
        namespace: str = "elmo_characters",
        tokens_to_add: dict[str, int] | None = None,
        token_min_padding_length: int = 0,
    ) -> None:
        self._namespace = namespace
        self._token_min_padding_length = token_min_padding_length
        self._mapper = ELMoCharacterMapper(tokens_to_add)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ELMoTokenCharactersIndexer) and self.__dict__ == other.__dict__

    def get_keys(self, index_name: str) -> list[str]:
        """Return the keys of the result of ``tokens_to_indices`` (0.9)."""
        return [index_name]

    def get_token_min_padding_length(self) -> int:
        """Return the minimum number of tokens to pad to (0.9)."""
        return self._token_min_padding_length

    def count_vocab_items(self, token: Any, counter: Any) -> None:
        """Do nothing: there is no vocabulary to count for."""

    def get_empty_token_list(self) -> dict[str, list[list[int]]]:
        """Return the result for no tokens."""
        return {"elmo_tokens": []}

    def tokens_to_indices(
        self, tokens: Sequence[Any], vocabulary: Any = None, index_name: str = "elmo_tokens"
    ) -> dict[str, list[list[int]]]:
        """Return ``{index_name: [50 ids of each token]}``.

        Raises:
            ConfigurationError: A token has no text.
        """
        texts = [token if isinstance(token, str) else getattr(token, "text", None) for token in tokens]
        if None in texts:
            raise ConfigurationError(f"Token {texts.index(None)} has no text; use a tokenizer that keeps the text.")
        return {index_name: [self._mapper.convert_word_to_char_ids(str(text)) for text in texts]}

    def get_padding_lengths(self, indexed_tokens: dict[str, list[list[int]]] | list[int]) -> dict[str, int]:
        """Return the number of tokens, at least ``token_min_padding_length`` (2.10); nothing for one token (0.9)."""
        if isinstance(indexed_tokens, list):
            return {}
        return {name: max(len(ids), self._token_min_padding_length) for name, ids in indexed_tokens.items()}

    def as_padded_tensor_dict(
        self, tokens: dict[str, list[list[int]]], padding_lengths: dict[str, int]
    ) -> dict[str, Tensor]:
        """Return ``{"elmo_tokens": (tokens, 50)}``, cut or padded with zeros to the requested length (2.10)."""
        return self.as_padded_tensor(tokens, padding_lengths, padding_lengths)

    def as_padded_tensor(
        self, tokens: dict[str, list[list[int]]], desired_num_tokens: dict[str, int], padding_lengths: dict[str, int]
    ) -> dict[str, Tensor]:
        """Like ``as_padded_tensor_dict``, for every index name (0.9)."""
        tensors = {}
        for name, ids in tokens.items():
            padded = self.pad_token_sequence(ids, desired_num_tokens[name], padding_lengths)
            # `view`, because without tokens, the tensor would have one axis.
            tensors[name] = torch.tensor(padded, dtype=torch.long).view(len(padded), self._mapper.max_word_length)
        return tensors

    def token_to_indices(self, token: Any, vocabulary: Any = None) -> list[int]:
        """Return the 50 ids of one token (0.4)."""
        return self.tokens_to_indices([token])["elmo_tokens"][0]

    def get_padding_token(self) -> list[int]:
        """Return the empty list (0.4)."""
        return []

    def pad_token_sequence(
        self, tokens: list[list[int]], desired_num_tokens: int, padding_lengths: dict[str, int]
    ) -> list[list[int]]:
        """Return the ids of tokens, cut or padded with zeros to the requested length (0.4)."""
        no_token = [0] * self._mapper.max_word_length
        n_missing = max(0, desired_num_tokens - len(tokens))
        return [*tokens[:desired_num_tokens], *[no_token] * n_missing]


def batch_to_ids(batch: Iterable[Iterable[str]], max_word_length: int = MAX_WORD_LENGTH) -> Tensor:
    """Return the character ids of tokenized sentences.

    Unlike AllenNLP's function, it accepts an empty batch or empty sentences, and rejects a string instead of a list of
    tokens.

    Args:
        batch: Lists of tokens, or other iterables.
        max_word_length: Characters per token, if the model does not use the usual 50.

    Returns:
        int64 ``(batch, time, max_word_length)``, 0 on padding.

    Raises:
        TextError: A sentence is a string, or a token is not one.
    """
    sentences = token_lists(batch)
    numbers = {token: k for k, token in enumerate(dict.fromkeys(itertools.chain.from_iterable(sentences)))}
    encoded = torch.from_numpy(encode_tokens(list(numbers), max_word_length))
    ids = torch.zeros(len(sentences), max(map(len, sentences), default=0), max_word_length, dtype=torch.long)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = encoded[[numbers[token] for token in sentence]]
    return ids


@torch.no_grad()
def create_elmo_embeddings_from_vocab(
    vocab_path: str | Path,
    elmo_config_path: Source,
    elmo_weights_path: Source,
    output_dir: str | Path,
    batch_size: int = 64,
    device: int = -1,
    use_custom_oov_token: bool = False,
) -> None:
    """Write the context-free vectors of a vocabulary, for use as word embeddings.

    This is AllenNLP's script with that name, which was broken in 1.0 to 2.10. It writes ``elmo_embeddings.txt.gz``,
    with a line ``word x1 ... xD`` per word, and the vocabulary under its old name, with ``<S>`` and ``</S>`` inserted
    as lines 2 and 3.

    Args:
        vocab_path: A file with one word per line, the first one for unknown words.
        elmo_config_path, elmo_weights_path: The model's two files; or None and any other model that elmokit opens.
        output_dir: Where to write the two files.
        batch_size: Words per batch, in units of 50.
        device: Number of a CUDA device, or -1 for the CPU.
        use_custom_oov_token: Accept a first word other than ``@@UNKNOWN@@``.

    Raises:
        ConfigurationError: The first word is wrong, a line is blank, ``batch_size`` is below 1, or the device cannot be
            used.
        TextError, ModelError: The vocabulary or the model cannot be opened.
        OutputError: The files cannot be written, or the new vocabulary would replace the old one.
    """
    vocab_path, output_dir = Path(vocab_path), Path(output_dir)
    check_at_least("batch_size", batch_size, 1)
    words = [line.strip() for line in "\n".join(read_lines(vocab_path)).strip().split("\n")]
    if words[0] != DEFAULT_OOV_TOKEN and not use_custom_oov_token:
        raise ConfigurationError(
            f"{vocab_path} begins with {words[0]!r} instead of {DEFAULT_OOV_TOKEN}. Insert it, or pass "
            "use_custom_oov_token=True."
        )
    if "" in words:
        raise ConfigurationError(f"Line {words.index('') + 1} of {vocab_path} is blank.")
    if (output_dir / vocab_path.name).resolve() == vocab_path.resolve():
        raise OutputError(f"The new vocabulary would replace {vocab_path}. Choose another output directory.")
    model = open_files(elmo_config_path, elmo_weights_path)
    char_cnn_of(model.config)
    bilm = on_cuda_device(model.build_bilm(), device)
    words = [words[0], BEGIN_SENTENCE, END_SENTENCE, *words[1:]]
    with (
        atomic_write(output_dir / "elmo_embeddings.txt.gz", overwrite=True) as partial,
        atomic_write(output_dir / vocab_path.name, overwrite=True) as new_vocabulary,
    ):
        new_vocabulary.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        with gzip.open(partial, "wt", encoding="utf-8") as file:
            for start in range(0, len(words), 50 * batch_size):
                batch = words[start : start + 50 * batch_size]
                ids = torch.from_numpy(model.encode(batch)).to(bilm.device)
                vectors = bilm.token_layer(ids).cpu().numpy()
                for word, vector in zip(batch, vectors, strict=True):
                    numbers = " ".join(map(str, vector))
                    file.write(f"{word} {numbers}\n")
