"""Word lists as they were published: which row of a table a word has; and token vectors that were cached in one.

bilm-tf's word lists hold one word a line. Nothing guarantees that they are a sound ``Vocabulary``: words stand twice
(the later row counts), ``<UNK>`` is missing. A word-input model and a table of cached vectors are read with such a
list all the same; a model that reads characters needs none.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from elmokit.bilm import BiLMConfig
from elmokit.errors import FormatError, ModelNotFoundError, TensorMismatchError, TextError
from elmokit.nn.cached import CachedCharCNN
from elmokit.nn.char_cnn import CharCNN, WordEmbedding
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE, UNKNOWN, encode_tokens
from elmokit.text.vocabulary import Vocabulary
from elmokit.weights.datasets import read_dataset
from elmokit.weights.model import StoredModel

NAMES = ("vocab.txt", "vocab.txt.gz")
MAX_BYTES = 2**30
_IGNORED_LINE = "!!!MAXTERMID"


class RowVocabulary(Vocabulary):
    """The words of a table's rows, as a published list has them.

    Raises:
        FormatError: a sentence boundary is missing, so that no sentence can be read.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.ids = {word: row for row, word in enumerate(self.words)}
        missing = [word for word in (BEGIN_SENTENCE, END_SENTENCE) if word not in self.ids]
        if missing:
            raise FormatError(f"it lacks {' and '.join(missing)}, with which every sentence is read")
        self.begin_id, self.end_id = self.ids[BEGIN_SENTENCE], self.ids[END_SENTENCE]
        self.unknown_id = self.ids.get(UNKNOWN, -1)

    def word_ids(self, tokens: Iterable[str]) -> NDArray[np.int64]:
        """The rows of tokens, ``(tokens,)``; that of ``<UNK>`` for one not in the list.

        Raises:
            TextError: a token is not in the list, and neither is ``<UNK>``.
        """
        tokens = list(tokens)
        ids = super().word_ids(tokens)
        if (ids < 0).any():
            token = tokens[int(np.argmin(ids))]
            raise TextError(
                f"The word {token!r} is not in the model's vocabulary ({len(self):,} words), which has no {UNKNOWN} "
                "for such words. Replace it, or use a model that reads characters."
            )
        return ids


@dataclasses.dataclass
class CachedModel(StoredModel):
    """A model that reads characters, with vectors of some tokens computed before."""

    rows: dict[str, int] = dataclasses.field(default_factory=dict)
    """Each listed token's row in the table."""

    def encode(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """``(tokens, 1 + chars)``: what ``CachedCharCNN`` reads."""
        assert self.bilm.config.char_cnn is not None
        char_ids = encode_tokens(tokens, self.bilm.config.char_cnn.max_chars)
        rows = np.array([self.rows.get(token, -1) + 1 for token in tokens], dtype=np.int64)
        return np.concatenate([rows[:, None], char_ids], axis=1)


def read_words(path: str | Path) -> list[str]:
    """The words of a list in the order of their rows, one a line, UTF-8, ``.gz`` or plain; as bilm-tf reads it.

    Raises:
        ModelNotFoundError, FormatError: it is not there, or no such list.
    """
    path = Path(path)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            data: bytes = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ModelNotFoundError(f"There is no vocabulary {path}.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path} cannot be read ({error}). Download or copy it again.") from None
    if len(data) > MAX_BYTES:
        raise FormatError(f"{path} holds more than {MAX_BYTES:,} bytes of text; it is no vocabulary.")
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}). Convert it to UTF-8.") from None
    if not lines[-1]:
        lines.pop()
    return [word for line in lines if (word := line.strip()) != _IGNORED_LINE]


def words_beside(folder: Path) -> Path | None:
    """The word list in a folder, if there is one."""
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def row_vocabulary(path: Path, n_rows: int, rows_of: str) -> RowVocabulary:
    """The words of a table with so many rows.

    Raises:
        TensorMismatchError: there are more words than rows, or fewer.
        ModelNotFoundError, FormatError: as in ``read_words``; or a sentence boundary is missing.
    """
    words = read_words(path)
    if len(words) != n_rows:
        raise TensorMismatchError(
            f"{path} lists {len(words):,} words, and {rows_of} has {n_rows:,} rows: one row a word. They belong to "
            "different models; give the vocabulary of this one."
        )
    try:
        return RowVocabulary(words)
    except FormatError as error:
        raise FormatError(f"{path} cannot be used: {error}.") from None


def with_words(model: StoredModel, path: Path | None) -> StoredModel:
    """A model with its word list, where one is at hand.

    A model that reads words needs it, and it must fit. For one that reads characters it is an extra: if it is no sound
    vocabulary it is left out, and the card says so.
    """
    if path is None:
        return model
    n_words = model.bilm.config.n_words
    if n_words is not None:
        vocabulary = row_vocabulary(path, n_words, f"the dataset 'embedding' of {model.source}")
        return dataclasses.replace(model, vocabulary=vocabulary)
    try:
        return dataclasses.replace(model, vocabulary=Vocabulary(read_words(path)))
    except FormatError as error:
        note = f"{path.name} is left out, which this model does not need: {error}"
        return dataclasses.replace(model, card={**model.card, "vocabulary": note})


def with_meta(model: StoredModel, folder: Path) -> StoredModel:
    """A model with what the NLPL repository's ``meta.json`` says of it, in its card; a damaged one is passed over."""
    path = folder / "meta.json"
    try:
        if not path.is_file() or path.stat().st_size > 1 << 20:
            return model
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return model
    return dataclasses.replace(model, card={**content, **model.card}) if isinstance(content, dict) else model


def with_token_embeddings(model: StoredModel, path: str | Path, vocabulary: str | Path | None) -> StoredModel:
    """A model that looks tokens up in a table cached by bilm-tf: the dataset ``embedding``, one row a word.

    Tokens that are not listed are computed from their characters, if the model reads characters; a model that reads
    words has ``<UNK>`` for them, or refuses them.

    Args:
        vocabulary: the words of the rows; None for ``vocab.txt`` or ``vocab.txt.gz`` beside the table.

    Raises:
        ModelNotFoundError, FormatError, TensorMismatchError: the table or its words are missing, damaged, or not those
            of this model.
    """
    path = Path(path)
    words_path = words_beside(path.parent) if vocabulary is None else Path(vocabulary)
    if words_path is None:
        raise ModelNotFoundError(
            f"There is no vocabulary beside {path} that names its rows. Put vocab.txt there, or give it as vocabulary."
        )
    table = torch.from_numpy(_read_table(path, model.bilm.config))
    rows_of = f"the dataset 'embedding' of {path}"
    bilm = model.bilm
    if isinstance(bilm.token_layer, CharCNN):
        words = read_words(words_path)
        if len(words) != len(table):
            row_vocabulary(words_path, len(table), rows_of)  # says what does not fit
        bilm.token_layer = CachedCharCNN(bilm.token_layer, table)
        known = {field.name: getattr(model, field.name) for field in dataclasses.fields(StoredModel)}
        return CachedModel(**known, rows={word: row for row, word in enumerate(words)})
    listed = row_vocabulary(words_path, len(table), rows_of)
    bilm.config = dataclasses.replace(bilm.config, n_words=len(table))
    layer = WordEmbedding(len(table), table.shape[1])
    with torch.no_grad():
        layer.embedding.weight.copy_(torch.cat([torch.zeros_like(table[:1]), table]))
    bilm.token_layer = layer
    return dataclasses.replace(model, vocabulary=listed)


def _read_table(path: Path, config: BiLMConfig) -> NDArray[np.float32]:
    try:
        file = h5py.File(path, "r")
    except FileNotFoundError:
        raise ModelNotFoundError(f"There is no file of token embeddings {path}.") from None
    except OSError as error:
        raise FormatError(f"{path} is no readable HDF5 file ({error}). Download or copy it again.") from None
    with file:
        dataset = file.get("embedding")
        if not isinstance(dataset, h5py.Dataset):
            raise FormatError(f"{path} holds no dataset 'embedding', so it is no file of token embeddings.")
        if dataset.ndim != 2 or dataset.shape[1] != config.projection_dim:
            raise TensorMismatchError(
                f"The dataset 'embedding' of {path} is {dataset.shape}; this model's token vectors have "
                f"{config.projection_dim} numbers, so (words, {config.projection_dim}) was expected."
            )
        return read_dataset(dataset, path)
