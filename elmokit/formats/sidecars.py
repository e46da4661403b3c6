"""The files next to weights: the options, word lists, and tables of precomputed token vectors.

They are named after the weights, so that one directory can hold several models: ``X_weights.hdf5`` goes with
``X_options.json`` and ``X_vocab.txt``, as bilm-tf and AllenNLP named the models that they published; ``X.hdf5`` goes
with the same names, and ``weights.hdf5`` with ``options.json`` and ``vocab.txt``.

Many published models have an ``options.json`` next to weights of another name. Those two plain names are therefore read
if there is no file with the name of the weights; they are written for ``weights.hdf5`` only.

bilm-tf's word lists have one word per line. Not every one is a valid ``Vocabulary``: words occur twice (the later row
counts), or ``<UNK>`` is missing. A word-input model and a table of precomputed vectors are read with such a list all
the same. A model that reads characters does not need one.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import ChainMap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit.config import read_json
from elmokit.errors import ConfigError, FormatError, ModelError, ModelNotFoundError, TensorMismatchError
from elmokit.formats.tensor_rows import is_finite
from elmokit.pretrained.model import PretrainedBiLM, TokenTable, Weights, read_row_words
from elmokit.storage.hdf5_files import HDF5_SUFFIXES, damage_as_format_error, open_hdf5, read_dataset
from elmokit.text.vocabulary import Vocabulary, first_difference, read_words, row_vocabulary

OPTIONS = "options.json"
VOCABULARY = "vocab.txt"
VOCABULARY_NAMES = (VOCABULARY, f"{VOCABULARY}.gz")


def visible_files(folder: Path, pattern: str) -> list[Path]:
    """List the files of a directory that match a pattern, by their names, without hidden ones."""
    # On disks that are not its own, macOS puts a hidden file next to each file: ``._weights.hdf5``.
    return sorted(file for file in folder.glob(pattern) if not file.name.startswith("."))


def hdf5_files(folder: Path) -> list[Path]:
    """List the HDF5 files of a directory, by their names."""
    return sorted(file for suffix in HDF5_SUFFIXES for file in visible_files(folder, f"*{suffix}"))


def own_file(weights: Path, name: str) -> Path:
    """Return the path of the ``options.json`` or ``vocab.txt`` that belongs to these weights alone."""
    stem = weights.stem
    return weights.with_name(name if stem == "weights" else f"{stem.removesuffix('_weights')}_{name}")


def find_options(weights: Path) -> Path:
    """Find the options file of a weight file: its own, or ``options.json``."""
    # If there is neither, it is the only other file there with "options" in its name that is not another model's own.
    own, plain = own_file(weights, OPTIONS), weights.with_name(OPTIONS)
    if own.exists():
        return own
    if plain.exists():
        return plain
    owned = {own_file(file, OPTIONS) for file in hdf5_files(weights.parent)}
    others = [path for path in visible_files(weights.parent, "*options*.json") if path not in owned]
    if len(others) == 1:
        return others[0]
    # Nothing was found: name what a reader of the error most likely has elsewhere.
    return own if weights.stem.endswith("_weights") else plain


def find_vocabulary(weights: Path) -> Path | None:
    """Return the word list of a weight file, if there is one: its own, or ``vocab.txt`` or ``vocab.txt.gz``."""
    own = [own_file(weights, name) for name in VOCABULARY_NAMES]
    plain = [weights.with_name(name) for name in VOCABULARY_NAMES]
    return next((path for path in (*own, *plain) if path.is_file()), None)


def given_or_found(given: Path | None, found: Path | None) -> Path | None:
    """Return the word list that was given, or else the one found with the weights.

    Warns if both have the same number of words, so that they fit the weights, and differ: the rows then mean other
    words, and every number is wrong without an error.
    """
    if given is None or found is None or given == found:
        return given or found
    try:
        theirs = read_words(found)
    except ModelError:  # that of some other program
        return given
    words = read_words(given)
    if len(words) == len(theirs) and (difference := first_difference(words, theirs)) is not None:
        warnings.warn(
            f"{given} has other words than {found}, which is stored with the model: {difference}. If the model was "
            "trained with the stored ones, all its numbers are wrong now.",
            stacklevel=2,
        )
    return given


def with_words(model: PretrainedBiLM, path: Path | None) -> PretrainedBiLM:
    """Return a model with its word list, if there is one."""
    # A model that reads words needs it, and it must fit. For a model that reads characters it is optional: an invalid
    # vocabulary is left out, and the model card says so. The words of a softmax are never replaced.
    if path is None:
        return model
    if model.softmax is not None:
        own = [] if model.vocabulary is None else model.vocabulary.words
        if (difference := first_difference(read_words(path), own)) is not None:
            raise ConfigError(
                f"{model.source} has a softmax with words of its own, and {path} lists others: {difference}."
            )
        return model
    table = "the dataset 'embedding'" if model.config.word_features is None else "the word table"
    if vocabulary := read_row_words(path, model.config, model.lexicon, f"{table} of {model.source}"):
        return model.replace(vocabulary=vocabulary)
    try:
        return model.replace(vocabulary=Vocabulary(read_words(path)))
    except FormatError as error:
        note = f"{path.name} was left out; this model does not need it: {error}"
        return model.replace(card={**model.card, "vocabulary": note})


def with_meta(model: PretrainedBiLM, folder: Path) -> PretrainedBiLM:
    """Return a model with the NLPL repository's ``meta.json`` as ``meta`` in its card, if there is a readable one."""
    try:
        content = read_json(folder / "meta.json")
    except ModelError:
        return model
    return model.replace(card={**model.card, "meta": content})


def with_token_embeddings(model: PretrainedBiLM, path: str | Path, vocabulary: str | Path | None) -> PretrainedBiLM:
    """Return a model that looks tokens up in a table that bilm-tf computed, with one row per word of ``vocabulary``."""
    # Tokens that are not in the table are computed from their characters if the model reads characters. A model that
    # reads words maps them to `<UNK>`, or refuses them if its list has none.
    path = Path(path)
    config = model.config
    if config.word_features is not None:
        raise ConfigError(f"{model.source} has a word table of its own: it needs no token embeddings from {path}.")
    table = read_embeddings(path, config.projection_dim)
    words_path = given_or_found(None if vocabulary is None else Path(vocabulary), find_vocabulary(path))
    if words_path is None:
        raise ModelNotFoundError(
            f"There is no vocabulary for the rows of {path}: give it, or put {own_file(path, VOCABULARY).name} there."
        )
    rows_of = f"the dataset 'embedding' of {path}"
    if config.n_words is None:
        words = read_words(words_path)
        if len(words) != len(table):
            row_vocabulary(words_path, len(table), rows_of)  # raises the error
        return model.replace(token_table=TokenTable({word: row for row, word in enumerate(words)}, table))
    listed = row_vocabulary(words_path, len(table), rows_of)
    own_table = {"token_layer.embedding.weight": np.concatenate([np.zeros_like(table[:1]), table])}
    # The types ask for a second mapping that can be written to, and a ChainMap writes to the first one only.
    arrays = ChainMap(own_table, model.arrays)  # type: ignore[arg-type]
    weights = Weights(dataclasses.replace(config, n_words=len(table)), arrays)
    if model.softmax is not None and (model.vocabulary is None or model.vocabulary.words != listed.words):
        card = {**model.card, "softmax": f"left out: its words are not those of {path.name}"}
        return model.replace(weights=weights, vocabulary=listed, softmax=None, card=card)
    return model.replace(weights=weights, vocabulary=listed)


def read_embeddings(path: str | Path, dim: int) -> NDArray[np.float32]:
    """Read the table that bilm-tf's ``dump_token_embeddings`` writes: the dataset ``embedding``, ``(words, dim)``."""
    import h5py

    with damage_as_format_error(path), open_hdf5(path) as file:
        is_here = isinstance(file.get("embedding", getlink=True), h5py.HardLink)
        dataset = file["embedding"] if is_here else None
        table = read_dataset(dataset, path) if isinstance(dataset, h5py.Dataset) else np.empty(0, np.float32)
    if table.ndim != 2 or table.shape[1] != dim or not len(table) or not is_finite(table):
        raise TensorMismatchError(
            f"{path}: expected the dataset 'embedding' of finite numbers, (words, {dim}); found {table.shape}."
        )
    return table
