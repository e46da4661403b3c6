"""AllenNLP's way from words to ELMo's character ids, for ``elmokit.compat.allennlp``."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.compat.allennlp_layers import ConfigurationError, Source, on_cuda_device, open_files
from elmokit.errors import OutputError
from elmokit.io.atomic import atomic_write
from elmokit.io.text_files import read_lines
from elmokit.text.batching import check_sentence
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
from elmokit.weights.allennlp import char_cnn_of

DEFAULT_OOV_TOKEN = "@@UNKNOWN@@"
MAX_WORD_LENGTH = 50


class ELMoCharacterMapper:
    """Words to character ids; the class attributes are, as there, one below the ids on the wire.

    Args:
        tokens_to_add: words with a character id of their own (one below the id on the wire, unused bytes 1 to 31).
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

    def convert_word_to_char_ids(self, word: str) -> list[int]:
        """The 50 ids of a word.

        Raises:
            TextError: the word is no string.
        """
        if word in self.tokens_to_add:
            ids = [BEGIN_TOKEN_CHAR, self.tokens_to_add[word] + 1, END_TOKEN_CHAR]
            return ids + [PADDING_CHAR] * (self.max_word_length - len(ids))
        encoded: list[int] = encode_tokens([word], self.max_word_length)[0].tolist()
        return encoded

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ELMoCharacterMapper) and self.__dict__ == other.__dict__


class ELMoTokenCharactersIndexer:
    """Tokens (strings, or anything with a ``text``) to lists of character ids, in the manner of 2.10 and of 0.9.

    There is no vocabulary: the arguments of that name are taken and not looked at.
    """

    def __init__(
        self,
        namespace: str = "elmo_characters",
        tokens_to_add: dict[str, int] | None = None,
        token_min_padding_length: int = 0,
    ) -> None:
        self._namespace = namespace
        self._token_min_padding_length = token_min_padding_length
        self._mapper = ELMoCharacterMapper(tokens_to_add)

    def count_vocab_items(self, token: Any, counter: Any) -> None:
        """Nothing to count."""

    def get_empty_token_list(self) -> dict[str, list[list[int]]]:
        """What no tokens are turned into."""
        return {"elmo_tokens": []}

    def tokens_to_indices(
        self, tokens: Sequence[Any], vocabulary: Any = None, index_name: str = "elmo_tokens"
    ) -> dict[str, list[list[int]]]:
        """``{index_name: [50 ids of each token]}``.

        Raises:
            ConfigurationError: a token has no text.
        """
        texts = [token if isinstance(token, str) else getattr(token, "text", None) for token in tokens]
        if None in texts:
            raise ConfigurationError(f"Token {texts.index(None)} has no text; use a tokenizer that keeps the text.")
        return {index_name: [self._mapper.convert_word_to_char_ids(str(text)) for text in texts]}

    def get_padding_lengths(self, indexed_tokens: dict[str, list[list[int]]] | list[int]) -> dict[str, int]:
        """2.10: how many tokens there are, at least ``token_min_padding_length``. 0.9, of one token: nothing."""
        if isinstance(indexed_tokens, list):
            return {}
        return {name: max(len(ids), self._token_min_padding_length) for name, ids in indexed_tokens.items()}

    def as_padded_tensor_dict(
        self, tokens: dict[str, list[list[int]]], padding_lengths: dict[str, int]
    ) -> dict[str, Tensor]:
        """2.10: ``{"elmo_tokens": (tokens, 50)}``, cut or filled with rows of zeros to the length asked for."""
        return self.as_padded_tensor(tokens, padding_lengths, padding_lengths)

    def as_padded_tensor(
        self, tokens: dict[str, list[list[int]]], desired_num_tokens: dict[str, int], padding_lengths: dict[str, int]
    ) -> dict[str, Tensor]:
        """0.9: the same for every index name."""
        no_token = [0] * self._mapper.max_word_length
        padded = {
            name: list(itertools.islice(itertools.chain(ids, itertools.repeat(no_token)), desired_num_tokens[name]))
            for name, ids in tokens.items()
        }
        return {
            name: torch.tensor(ids, dtype=torch.long).view(len(ids), self._mapper.max_word_length)
            for name, ids in padded.items()
        }


def batch_to_ids(batch: Sequence[Sequence[str]], max_word_length: int = MAX_WORD_LENGTH) -> Tensor:
    """Character ids of tokenised sentences.

    Unlike there, a batch of empty sentences, or of none, has the shape that one expects, and a string in the place
    of a list of tokens is refused.

    Args:
        max_word_length: of the model, where it is not the published 50.

    Returns:
        int64 ``(batch, time, max_word_length)``, all 0 on padding.

    Raises:
        TextError: a sentence is a string, or a token is none.
    """
    sentences = [list(check_sentence(sentence)) for sentence in batch]
    places = {token: place for place, token in enumerate(dict.fromkeys(itertools.chain.from_iterable(sentences)))}
    encoded = torch.from_numpy(encode_tokens(list(places), max_word_length))
    ids = torch.zeros(len(sentences), max(map(len, sentences), default=0), max_word_length, dtype=torch.long)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = encoded[[places[token] for token in sentence]]
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
    """Context-free vectors of a vocabulary, for use as a word embedding: AllenNLP's script of that name.

    Writes into ``output_dir`` ``elmo_embeddings.txt.gz``, a line ``word x1 ... xD`` for each word, and the vocabulary
    under its old name with ``<S>`` and ``</S>`` put in as lines 2 and 3. (The script itself was broken in 1.0 to 2.10.)

    Args:
        vocab_path: a word on each line, the first one for unknown words.
        batch_size: in units of 50 words.
        device: number of a CUDA device, or -1.
        use_custom_oov_token: the first word need not be ``@@UNKNOWN@@``.

    Raises:
        ConfigurationError: the first word is another, a line is blank, ``batch_size`` is below 1, or there is no such
            device.
        TextError, ModelError: the vocabulary or the model cannot be opened.
        OutputError: the files cannot be written, or the new vocabulary would replace the old one.
    """
    vocab_path, output_dir = Path(vocab_path), Path(output_dir)
    if batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size}; at least 1.")
    words = [line.strip() for line in "\n".join(read_lines(vocab_path)).strip().split("\n")]
    if words[0] != DEFAULT_OOV_TOKEN and not use_custom_oov_token:
        raise ConfigurationError(
            f"{vocab_path} begins with {words[0]!r}; its first line must be {DEFAULT_OOV_TOKEN}, the word for unknown "
            "words. Put it there, or say use_custom_oov_token."
        )
    if "" in words:
        raise ConfigurationError(f"Line {words.index('') + 1} of {vocab_path} is blank. Take it out.")
    if (output_dir / vocab_path.name).resolve() == vocab_path.resolve():
        raise OutputError(f"The new vocabulary would replace {vocab_path}. Choose another output folder.")
    model = open_files(elmo_config_path, elmo_weights_path)
    char_cnn_of(model.bilm.config)
    bilm = on_cuda_device(model.bilm, device)
    words = [words[0], BEGIN_SENTENCE, END_SENTENCE, *words[1:]]
    with (
        atomic_write(output_dir / "elmo_embeddings.txt.gz", overwrite=True) as beside,
        atomic_write(output_dir / vocab_path.name, overwrite=True) as beside_vocabulary,
    ):
        beside_vocabulary.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        with gzip.open(beside, "wt", encoding="utf-8") as file:
            for start in range(0, len(words), 50 * batch_size):
                part = words[start : start + 50 * batch_size]
                vectors = bilm.token_layer(torch.from_numpy(model.encode(part)).to(bilm.device)).cpu().numpy()
                file.writelines(f"{word} {' '.join(map(str, row))}\n" for word, row in zip(part, vectors, strict=True))
