"""The files next to weights: options, word lists, and tables of precomputed token vectors.

They are named after the weights, so one directory can hold several models: ``X_weights.hdf5`` belongs to
``X_options.json`` and ``X_vocab.txt``, as in the models published by bilm-tf and AllenNLP; so does ``X.hdf5``, and
``weights.hdf5`` belongs to ``options.json`` and ``vocab.txt``.

Many published models have an ``options.json`` next to weights with another name. The two plain names are therefore read
if there is no file named after the weights; they are only written for ``weights.hdf5``.

bilm-tf's word lists have one word per line. Some are not a valid ``Vocabulary``: words occur twice (the later row
counts), or ``<UNK>`` is missing. Word-input models and tables of precomputed vectors are still read with such lists.
Models that read characters do not need one.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit.config import read_json
from elmokit.errors import ConfigError, FormatError, ModelError, ModelNotFoundError, TensorMismatchError, warn_caller
from elmokit.formats.tensor_rows import is_finite
from elmokit.pretrained.model import PretrainedBiLM, TokenTable, Weights, read_row_words
from elmokit.storage.hdf5_files import HDF5_SUFFIXES, damage_as_format_error, open_hdf5, read_dataset
from elmokit.text.vocabulary import Vocabulary, first_difference, read_words, row_vocabulary, row_words

OPTIONS = "options.json"
VOCABULARY = "vocab.txt"
ARCHIVED = "weight_file"
"""The end of the name of weights in an archive of AllenNLP; that of their options ends in ``options_file``."""
VOCABULARY_NAMES = (VOCABULARY, f"{VOCABULARY}.gz")


def visible_files(folder: Path, pattern: str) -> list[Path]:
    """List the files in a directory that match a pattern, sorted by name, except hidden ones."""
    # On foreign file systems, macOS puts a hidden file next to each file: ``._weights.hdf5``.
    return sorted(file for file in folder.glob(pattern) if not file.name.startswith("."))


def hdf5_files(folder: Path) -> list[Path]:
    """List the HDF5 files in a directory, sorted by name."""
    return sorted(file for suffix in HDF5_SUFFIXES for file in visible_files(folder, f"*{suffix}"))


def own_file(weights: Path, name: str) -> Path:
    """Return the path of the ``options.json`` or ``vocab.txt`` that is named after these weights."""
    stem = weights.stem
    return weights.with_name(name if stem == "weights" else f"{stem.removesuffix('_weights')}_{name}")


def find_options(weights: Path) -> Path:
    """Find a weight file's options file: its own, or ``options.json``."""
    if weights.name.endswith(ARCHIVED):
        return weights.with_name(f"{weights.name.removesuffix(ARCHIVED)}options_file")
    # Otherwise, the only other file with "options" in its name that does not belong to another model.
    own, plain = own_file(weights, OPTIONS), weights.with_name(OPTIONS)
    if own.exists():
        return own
    if plain.exists():
        return plain
    owned = {own_file(file, OPTIONS) for file in hdf5_files(weights.parent)}
    others = {*visible_files(weights.parent, "*options*.json")} - owned
    if len(others) == 1:
        return others.pop()
    # Nothing was found: name the file that the user most likely has elsewhere.
    return own if weights.stem.endswith("_weights") else plain


def find_vocabulary(weights: Path) -> Path | None:
    """Return a weight file's word list, if any: its own, or ``vocab.txt`` or ``vocab.txt.gz``."""
    for path_of in (own_file, Path.with_name):
        for name in VOCABULARY_NAMES:
            path = path_of(weights, name)
            if path.is_file():
                return path
    return None


def given_or_found(given: Path | None, found: Path | None) -> Path | None:
    """Return the given word list, or else the one found with the weights.

    Warns if they differ but have the same number of words, so both fit the weights: the rows then stand for other
    words, and all results are wrong without an error.
    """
    if given is None or found is None or given == found:
        return given or found
    try:
        theirs = read_words(found)
    except ModelError:  # from some other program
        return given
    words = read_words(given)
    if len(words) == len(theirs) and (difference := first_difference(words, theirs)) is not None:
        warn_caller(
            f"{given} differs from {found}, which is stored with the model: {difference}. If the model was trained "
            "with the stored words, all results are wrong.",
        )
    return given


def with_words(model: PretrainedBiLM, path: Path | None) -> PretrainedBiLM:
    """Return the model with its word list, if any."""
    # Models that read words need it, and it must fit. For models that read characters, it is optional: an invalid
    # vocabulary is dropped and noted in the model card. The words of a softmax are never replaced.
    if path is None:
        return model
    if model.softmax is not None:
        own = [] if model.vocabulary is None else model.vocabulary.words
        if (difference := first_difference(read_words(path), own)) is not None:
            raise ConfigError(f"{model.source} has a softmax with its own words, but {path} has others: {difference}.")
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
    """Return the model with the NLPL repository's ``meta.json``, if readable, as ``meta`` in its card."""
    try:
        content = read_json(folder / "meta.json")
    except ModelError:
        return model
    return model.replace(card={**model.card, "meta": content})


def with_token_embeddings(model: PretrainedBiLM, path: Path, vocabulary: Path | None) -> PretrainedBiLM:
    """Return a model that looks up tokens in a table computed by bilm-tf, with one row per word of ``vocabulary``."""
    # Tokens missing from the table are computed from their characters if the model reads characters. A model that reads
    # words maps them to `<UNK>`, or refuses them if its list has none.
    config = model.config
    if config.word_features is not None:
        raise ConfigError(f"{model.source} has its own word table, so it cannot use token embeddings from {path}.")
    table = read_embeddings(path, config.projection_dim)
    words_path = given_or_found(vocabulary, find_vocabulary(path))
    if words_path is None:
        raise ModelNotFoundError(
            f"There is no vocabulary for the rows of {path}: pass it, or put {own_file(path, VOCABULARY).name} there."
        )
    rows_of = f"the dataset 'embedding' of {path}"
    if config.n_words is None:
        words = row_words(words_path, len(table), rows_of)
        return model.replace(token_table=TokenTable({word: row for row, word in enumerate(words)}, table))
    listed = row_vocabulary(words_path, len(table), rows_of)
    own_table = {"token_layer.embedding.weight": np.concatenate([np.zeros_like(table[:1]), table])}
    # By its type, the second mapping must be writable, although a ChainMap only writes to the first.
    arrays = ChainMap(own_table, model.arrays)  # type: ignore[arg-type]
    weights = Weights(dataclasses.replace(config, n_words=len(table)), arrays)
    if model.softmax is not None and (model.vocabulary is None or model.vocabulary.words != listed.words):
        card = {**model.card, "softmax": f"left out: its words differ from those of {path.name}"}
        return model.replace(weights=weights, vocabulary=listed, softmax=None, card=card)
    return model.replace(weights=weights, vocabulary=listed)


def read_embeddings(path: str | Path, dim: int) -> NDArray[np.float32]:
    """Read a table written by bilm-tf's ``dump_token_embeddings``: the dataset ``embedding``, ``(words, dim)``."""
    import h5py

    with damage_as_format_error(path), open_hdf5(path) as file:
        is_here = isinstance(file.get("embedding", getlink=True), h5py.HardLink)
        dataset = file["embedding"] if is_here else None
        table = read_dataset(dataset, path) if isinstance(dataset, h5py.Dataset) else np.empty(0, np.float32)
    if table.shape[1:] != (dim,) or not len(table) or not is_finite(table):
        raise TensorMismatchError(
            f"{path}: expected the dataset 'embedding' of finite numbers, (words, {dim}); found {table.shape}."
        )
    return table
