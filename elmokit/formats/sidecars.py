"""The files next to HDF5 weights: the options, and the words of a model that reads words.

They are named after the weights, so that one directory can hold several models: ``X_weights.hdf5`` goes with
``X_options.json`` and ``X_vocab.txt``, as bilm-tf and AllenNLP named the models that they published; ``X.hdf5`` goes
with the same names, and ``weights.hdf5`` with ``options.json`` and ``vocab.txt``.

Many published models have an ``options.json`` next to weights of another name. Those two plain names are therefore read
if there is no file with the name of the weights; they are written for ``weights.hdf5`` only.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from elmokit.errors import ModelError
from elmokit.storage.hdf5 import HDF5_SUFFIXES
from elmokit.text.vocabulary import first_difference, read_words

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
