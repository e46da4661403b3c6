"""Published word lists, which assign words to the rows of a table, and tables of precomputed token vectors.

bilm-tf's word lists have one word per line. Not every one is a valid ``Vocabulary``: words occur twice (the later row
counts), or ``<UNK>`` is missing. A word-input model and a table of precomputed vectors are read with such a list all
the same. A model that reads characters does not need one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from elmokit.config import read_json
from elmokit.errors import ConfigError, FormatError, ModelError, ModelNotFoundError, TensorMismatchError
from elmokit.io.hdf5 import HDF5_ERRORS, read_dataset
from elmokit.nn.cached_char_cnn import CachedCharCNN
from elmokit.nn.char_cnn import CharCNN, WordEmbedding
from elmokit.text.characters import encode_tokens
from elmokit.text.vocabulary import Vocabulary, read_words
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.sidecars import VOCABULARY, find_vocabulary, own_file


@dataclasses.dataclass(repr=False)
class CachedModel(PretrainedBiLM):
    """A model that reads characters and has precomputed vectors of some tokens."""

    rows: dict[str, int] = dataclasses.field(default_factory=dict)
    """The row of each listed token in the table."""

    def encode(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Convert tokens to what ``CachedCharCNN`` reads: ``(tokens, 1 + chars)``."""
        assert self.bilm.config.char_cnn is not None
        char_ids = encode_tokens(tokens, self.bilm.config.char_cnn.max_chars)
        rows = np.array([self.rows.get(token, -1) + 1 for token in tokens], dtype=np.int64)
        return np.concatenate([rows[:, None], char_ids], axis=1)


def row_vocabulary(path: Path, n_rows: int, rows_of: str) -> Vocabulary:
    """Read the words of a table, one per row.

    Args:
        n_rows: The number of rows of the table.
        rows_of: What the table is, for the error message.

    Raises:
        TensorMismatchError: There are more or fewer words than rows.
        ModelNotFoundError, FormatError: As in ``read_words``; or a sentence boundary is missing.
    """
    words = read_words(path)
    if len(words) != n_rows:
        raise TensorMismatchError(
            f"{path} lists {len(words):,} words, and {rows_of} has {n_rows:,} rows: one row per word. They belong to "
            "different models; give the vocabulary of this one."
        )
    try:
        return Vocabulary(words, strict=False)
    except FormatError as error:
        raise FormatError(f"{path} cannot be used: {error}") from None


def with_words(model: PretrainedBiLM, path: Path | None) -> PretrainedBiLM:
    """Return a model with its word list, if there is one.

    A model that reads words needs it, and it must fit. For a model that reads characters it is optional: an invalid
    vocabulary is left out, and the model card says so. The words of a softmax are never replaced.

    Raises:
        ConfigError: The model has a softmax over other words.
        ModelNotFoundError, FormatError, TensorMismatchError: As in ``row_vocabulary``.
    """
    if path is None:
        return model
    if model.softmax is not None:
        if model.vocabulary is None or model.vocabulary.words != read_words(path):
            raise ConfigError(
                f"{model.source} has a softmax with words of its own, and {path} lists others. Leave it out."
            )
        return model
    n_words = model.bilm.config.n_words
    if n_words is not None:
        vocabulary = row_vocabulary(path, n_words, f"the dataset 'embedding' of {model.source}")
        return dataclasses.replace(model, vocabulary=vocabulary)
    try:
        return dataclasses.replace(model, vocabulary=Vocabulary(read_words(path)))
    except FormatError as error:
        note = f"{path.name} was left out; this model does not need it: {error}"
        return dataclasses.replace(model, card={**model.card, "vocabulary": note})


def with_meta(model: PretrainedBiLM, folder: Path) -> PretrainedBiLM:
    """Return a model with the NLPL repository's ``meta.json`` as ``meta`` in its card, if there is a readable one."""
    try:
        content = read_json(folder / "meta.json", max_bytes=1 << 20)
    except ModelError:
        return model
    return dataclasses.replace(model, card={**model.card, "meta": content})


def with_token_embeddings(model: PretrainedBiLM, path: str | Path, vocabulary: str | Path | None) -> PretrainedBiLM:
    """Return a model that looks tokens up in a table that bilm-tf computed: the dataset ``embedding``, one row per
    word.

    Tokens that are not in the table are computed from their characters if the model reads characters. A model that
    reads words maps them to ``<UNK>``, or refuses them if its list has none.

    Args:
        vocabulary: The words of the rows; None for the word list next to the table, as
            ``find_vocabulary`` finds it.

    Raises:
        ModelNotFoundError, FormatError, TensorMismatchError: The table or its words are missing, damaged, or of another
            model.
    """
    path = Path(path)
    table = torch.from_numpy(read_embeddings(path, model.bilm.config.projection_dim))
    words_path = find_vocabulary(path) if vocabulary is None else Path(vocabulary)
    if words_path is None:
        raise ModelNotFoundError(
            f"There is no vocabulary next to {path} for its rows. Put {own_file(path, VOCABULARY).name} there, or "
            "give it as vocabulary."
        )
    rows_of = f"the dataset 'embedding' of {path}"
    bilm = model.bilm
    if isinstance(bilm.token_layer, CharCNN):
        words = read_words(words_path)
        if len(words) != len(table):
            row_vocabulary(words_path, len(table), rows_of)  # raises the error
        bilm.token_layer = CachedCharCNN(bilm.token_layer, table)
        known = {field.name: getattr(model, field.name) for field in dataclasses.fields(PretrainedBiLM)}
        return CachedModel(**known, rows={word: row for row, word in enumerate(words)})
    listed = row_vocabulary(words_path, len(table), rows_of)
    bilm.config = dataclasses.replace(bilm.config, n_words=len(table))
    layer = WordEmbedding(len(table), table.shape[1])
    with torch.no_grad():
        layer.embedding.weight.copy_(torch.cat([torch.zeros_like(table[:1]), table]))
    bilm.token_layer = layer
    if model.softmax is not None and (model.vocabulary is None or model.vocabulary.words != listed.words):
        card = {**model.card, "softmax": f"left out: its words are not those of {path.name}"}
        return dataclasses.replace(model, vocabulary=listed, softmax=None, card=card)
    return dataclasses.replace(model, vocabulary=listed)


def read_embeddings(path: str | Path, dim: int) -> NDArray[np.float32]:
    """Read the table that bilm-tf's ``dump_token_embeddings`` writes: the dataset ``embedding``, ``(words, dim)``.

    Raises:
        ModelNotFoundError: The file does not exist.
        FormatError, TensorMismatchError: The file is damaged, holds no such table or one of another size, or only a
            link to another file.
    """
    try:
        with h5py.File(path, "r") as file:
            is_here = isinstance(file.get("embedding", getlink=True), h5py.HardLink)
            dataset = file["embedding"] if is_here else None
            if not isinstance(dataset, h5py.Dataset):
                raise FormatError(f"{path} holds no dataset 'embedding', so it is not a file of token embeddings.")
            if dataset.ndim != 2 or dataset.shape[1] != dim or not len(dataset):
                raise TensorMismatchError(
                    f"The dataset 'embedding' of {path} is {dataset.shape}; this model's token vectors have "
                    f"{dim} numbers, so (words, {dim}) was expected, with at least one word."
                )
            return read_dataset(dataset, path)
    except FileNotFoundError:
        raise ModelNotFoundError(f"There is no file of token embeddings {path}.") from None
    except HDF5_ERRORS as error:
        raise FormatError(f"{path} is not a readable HDF5 file ({error}). Download or copy it again.") from None
