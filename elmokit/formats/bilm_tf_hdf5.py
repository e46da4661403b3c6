"""The published format: ``options.json`` and ``weights.hdf5``, as written by bilm-tf and read by AllenNLP.

``bilm_tf.py`` lists the tensors. bilm-tf's dump script gave tensors of one-layer and one-direction models names that no
old loader can read. These names are read, but the regular ones are written. The old loaders require tensors that some
models do not have (a backward direction, a projection). They are written as placeholders without effect, and dropped
when the file is read again.

Before version 1.0, AllenNLP archived the files that a config names, each under its key in the config:
``fta/model.text_field_embedder.token_embedders.elmo.weight_file``, and the same with ``options_file``.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
from collections.abc import Callable
from fnmatch import fnmatch
from math import prod
from pathlib import Path

import h5py
import numpy as np

from elmokit.engine.architecture import BiLMConfig, Shape, tensor_shapes
from elmokit.engine.state import Floats
from elmokit.errors import FormatError, OutputError
from elmokit.formats import tf_checkpoint
from elmokit.formats.bilm_tf import bilm_tf_rows, config_from_options, options_from_config, read_options
from elmokit.formats.format import FORMATS, Format, Storage, guess_foreign
from elmokit.formats.sidecars import (
    ARCHIVED,
    OPTIONS,
    VOCABULARY,
    find_options,
    find_vocabulary,
    given_or_found,
    hdf5_files,
    own_file,
    visible_files,
    with_meta,
    with_words,
)
from elmokit.formats.tensor_rows import read_through, to_theirs
from elmokit.pretrained.model import FITTED_MAPS, PretrainedBiLM, Weights
from elmokit.storage.atomic import atomic_write, check_output_path
from elmokit.storage.hdf5_files import (
    HDF5_ERRORS,
    HDF5_SUFFIXES,
    check_dataset,
    create_hdf5,
    damage_as_format_error,
    find_datasets,
    open_hdf5,
    read_dataset,
)

_GROUPS = {"char_embed", "embedding", "CNN", "CNN_proj", "RNN_0", "RNN", "rnn", "lm"}
# Leftovers of a training checkpoint besides the biLM.
_LEFTOVERS = ("softmax/", "global_step", "train_perplexity")
_LEFTOVER_SUFFIXES = ("/Adagrad", "/Adam", "/Adam_1")


class BilmTFHDF5(Format):
    """HDF5 weights and their options: the HDF5 file, the options file, or the directory with both.

    The directory can be an unpacked AllenNLP archive with an ELMo.
    """

    # Only what the old loaders read and the model card are written, not the softmax, start state, whitening and
    # alignment.

    name = "bilm-tf"
    description = "options.json with HDF5 weights"
    files = ("*.hdf5", "*.h5", "*.json", "*vocab*.txt", "*vocab*.txt.gz", "*options_file", "*weight_file")
    extensions = HDF5_SUFFIXES

    def recognizes(self, path: Path) -> bool:
        if path.is_dir():
            return bool(hdf5_files(path) or _archived(path))
        if not path.is_file():
            return False
        if _is_options(path):
            return bool(hdf5_files(path.parent))
        return path.suffix in HDF5_SUFFIXES or h5py.is_hdf5(path)

    def load(self, path: Path, options: Path | None = None, words: Path | None = None) -> PretrainedBiLM:
        weights = path
        if path.is_dir():
            weights = _only_model(path)
        elif path.suffix == ".json":
            options, weights = options or path, _weights_of(path)
        _check_content(weights)
        model = read_hdf5(options or find_options(weights), weights)
        model = with_words(model, given_or_found(words, find_vocabulary(weights)))
        model = with_meta(model, weights.parent)
        checkpoint = tf_checkpoint.find_checkpoint(path) if path.is_dir() else None
        if checkpoint is not None:
            model = tf_checkpoint.with_softmax(model, checkpoint, words)
        return model

    def guess(self, folder: Path) -> str | None:
        if folder.is_file() and _is_options(folder):
            return "the options of a model without HDF5 weights next to it"
        return None

    def options_names(self, file_name: str) -> list[str]:
        if not file_name.endswith(HDF5_SUFFIXES):
            return []
        return list(dict.fromkeys((own_file(Path(file_name), OPTIONS).name, OPTIONS)))

    def check_target(self, path: Path, overwrite: bool) -> None:
        check_output_path(path, overwrite)
        _check_own_file(path, OPTIONS, overwrite)

    def save(self, model: PretrainedBiLM, path: Path, storage: Storage, overwrite: bool) -> list[Path]:
        options = own_file(path, OPTIONS)
        if model.config.n_words is None or model.vocabulary is None:
            write_hdf5(model, options, path, overwrite)
            return [path, options]
        _check_own_file(path, VOCABULARY, overwrite)
        listed = own_file(path, VOCABULARY)
        with atomic_write(listed, overwrite) as words:
            words.write_text(model.vocabulary.to_text(), encoding="utf-8", newline="\n")
            write_hdf5(model, options, path, overwrite)
        return [path, options, listed]


def _check_own_file(weights: Path, name: str, overwrite: bool) -> None:
    """Check that a file next to the weights may be written."""
    # Not even with `overwrite` if it belongs to another model in the directory, which would open wrong.
    path = own_file(weights, name)
    owner = _other_weights(weights, name)
    if owner is None and path.name == name:  # other formats only read the plain names
        owner = _other_format(path)
    if owner is None and path.exists() and not weights.exists():
        owner = "another model there"
    if owner is not None:
        raise OutputError(
            f"{weights} needs the file {path.name}, which belongs to {owner}. Choose another name or directory."
        )
    check_output_path(path, overwrite)


def _other_weights(weights: Path, name: str) -> str | None:
    """Name other HDF5 weights in the directory that read the same options or words, or would if they existed."""
    path = own_file(weights, name)
    for other in hdf5_files(path.parent):
        own = own_file(other, name)
        reads_plain_name = path.name == name and not own.exists()
        if other != weights and (own == path or reads_plain_name) and not guess_hdf5(other):
            return str(other)
    return None


def _other_format(path: Path) -> str | None:
    """Describe a model of another format that reads a file with this name in the directory."""
    for other in FORMATS:
        is_read = any(fnmatch(path.name, pattern) for pattern in other.files)
        if is_read and other is not FORMAT and other.recognizes(path.parent):
            return f"{other.description} in {path.parent}"
    return None


def _is_options(path: Path) -> bool:
    """Check by name for an options file."""
    return path.suffix == ".json" and "options" in path.name


def _check_content(weights: Path) -> None:
    """Raise a FormatError if a file is from another program, or HDF5 with other contents."""
    if h5py.is_hdf5(weights):
        hint = guess_hdf5(weights)
    else:
        foreign = guess_foreign(weights)
        hint = "" if foreign is None else f"It looks like {foreign}."
    if hint:
        raise FormatError(f"{weights} is not an HDF5 file of an ELMo model. {hint}")


def read_hdf5(options_path: str | Path, weights_path: str | Path) -> PretrainedBiLM:
    """Open weights with an options file, at any two paths."""
    options = read_options(options_path)
    with damage_as_format_error(weights_path):
        file = open_hdf5(weights_path)
    with contextlib.ExitStack() as on_error:
        on_error.enter_context(file)
        shapes = _shapes(file, weights_path)
        config = config_from_options(options, shapes, str(options_path))
        read = _reader(file, weights_path)
        shapes = _without_placeholders(shapes, config, read)
        what = f"{weights_path} (sizes from {options_path})"
        arrays = read_through(bilm_tf_rows(config), tensor_shapes(config), shapes, read, what)
        on_error.pop_all()  # the arrays read from the open file; it is closed with them
    card = options.get("card")
    if not isinstance(card, dict):
        card = {}
    return PretrainedBiLM(Weights(config, arrays), BilmTFHDF5.name, source=Path(weights_path), card=card)


def _without_placeholders(
    shapes: dict[str, Shape], config: BiLMConfig, read: Callable[[str], Floats]
) -> dict[str, Shape]:
    """Drop placeholders from the datasets, unless one has other values; then all are kept."""
    extra = {name: shape for name, shape in placeholders(config).items() if shapes.get(name) == shape}
    for name, shape in extra.items():
        if not np.array_equal(read(name), _placeholder(name, shape)):
            return shapes
    return {name: shape for name, shape in shapes.items() if name not in extra}


def write_hdf5(
    model: PretrainedBiLM, options_path: str | Path, weights_path: str | Path, overwrite: bool = False
) -> None:
    """Write the weights, and an options file with the model card; the old loaders could not read more."""
    config = model.config
    if model.lexicon is not None or config.word_features is not None:
        needed = "a word table next to the characters" if model.lexicon is None else "a word or character lexicon"
        raise OutputError(
            f"{weights_path}: the HDF5 format cannot hold {needed}, which this model needs. "
            "Save it as a directory: a path without .hdf5 or .h5."
        )
    content = options_from_config(config)
    left_out = ("warm_state", *FITTED_MAPS)
    card = {name: fact for name, fact in model.card.items() if name not in left_out}
    if card:
        content["card"] = card
    extra = placeholders(config)
    shapes = [*tensor_shapes(config).values(), *extra.values()]
    n_bytes = 4 * sum(map(prod, shapes))
    with atomic_write(options_path, overwrite) as options, atomic_write(weights_path, overwrite) as weights:
        options.write_text(json.dumps(content) + "\n", encoding="utf-8")
        with create_hdf5(weights, n_bytes, len(shapes)) as file:
            for name, array in to_theirs(model.arrays, bilm_tf_rows(config)):
                file.create_dataset(name, data=array)
            for name, shape in extra.items():
                file.create_dataset(name, data=_placeholder(name, shape))


def _only_model(folder: Path) -> Path:
    """Find the model among a directory's HDF5 files. The others may be vectors, or tables of token vectors."""
    files = hdf5_files(folder) or _without_copies(_archived(folder))
    if len(files) == 1:
        return files[0]
    models = []
    for file in files:
        # A file with its own options file is a model, whatever its name.
        if "weights" in file.name or file.stem == "model" or own_file(file, OPTIONS).exists():
            models.append(file)
    if len(models) != 1:
        names = ", ".join(file.name for file in files)
        raise FormatError(f"{folder} has several HDF5 files ({names}). Pass the path of one.")
    return models[0]


def _archived(folder: Path) -> list[Path]:
    """List the weights in an unpacked AllenNLP archive."""
    return visible_files(folder / "fta", f"*{ARCHIVED}")


def _without_copies(files: list[Path]) -> list[Path]:
    """Drop copies of the first file: an archive has one per module that uses the ELMo."""
    others = [file for file in files[1:] if not filecmp.cmp(files[0], file, shallow=False)]
    return [*files[:1], *others]


def _weights_of(options: Path) -> Path:
    """Find the weights next to an options file: those that use it, or else the only ones in the directory."""
    readers = []
    for file in hdf5_files(options.parent):
        if find_options(file) == options and not guess_hdf5(file):
            readers.append(file)
    return readers[0] if len(readers) == 1 else _only_model(options.parent)


def guess_hdf5(path: Path) -> str:
    """Describe what an HDF5 file looks like; empty if it may be an ELMo or cannot be read."""
    try:
        with open_hdf5(path) as file:
            names = set(file)
    except HDF5_ERRORS:
        return ""
    if names == {"embedding"}:
        return "It looks like cached token embeddings: open the model itself, and pass this file as token_embeddings."
    if names & _GROUPS:
        return ""
    if "sentence_to_index" in names or (names and all(map(str.isdecimal, names))):
        return "It looks like vectors written by elmokit embed or allennlp elmo."
    return f"It holds {', '.join(sorted(names)[:5]) or 'nothing'}."


def placeholders(config: BiLMConfig) -> dict[str, Shape]:
    """List the placeholder tensors that AllenNLP's and bilm-tf's loaders require in addition to the model's."""
    shapes: dict[str, Shape] = {}
    cnn, dim, hidden_dim = config.char_cnn, config.projection_dim, config.hidden_dim
    if cnn is not None and cnn.n_features == dim:
        shapes["CNN_proj/W_proj"] = (dim, dim)
        shapes["CNN_proj/b_proj"] = (dim,)
    for number, is_backward in enumerate((False, True)):
        for k in range(config.n_layers):
            cell = f"RNN_{number}/RNN/MultiRNNCell/Cell{k}/LSTMCell"
            if is_backward not in config.read_backward:  # a direction that the model does not have
                shapes[f"{cell}/W_0"] = (2 * dim, 4 * hidden_dim)
                shapes[f"{cell}/B"] = (4 * hidden_dim,)
                shapes[f"{cell}/W_P_0"] = (hidden_dim, dim)
            elif hidden_dim == dim:
                shapes[f"{cell}/W_P_0"] = (hidden_dim, dim)
    return shapes


def _placeholder(name: str, shape: Shape) -> Floats:
    """Return a placeholder: the identity for a projection, otherwise zeros, because an LSTM of zeros outputs zeros."""
    rows, *columns = shape
    if columns == [rows] and name.endswith(("W_P_0", "W_proj")):
        return np.eye(rows, dtype=np.float32)
    return np.zeros(shape, np.float32)


def _shapes(file: h5py.File, path: str | Path) -> dict[str, Shape]:
    """Return the shape of each dataset except training leftovers; check that each is stored completely."""
    shapes: dict[str, Shape] = {}
    with damage_as_format_error(path):
        for dataset in find_datasets(file):
            name = str(dataset.name).removeprefix("/")
            if not name.startswith(_LEFTOVERS) and not name.endswith(_LEFTOVER_SUFFIXES):
                check_dataset(dataset, path)
                shapes[name] = dataset.shape
    return shapes


def _reader(file: h5py.File, path: str | Path) -> Callable[[str], Floats]:
    def read(name: str) -> Floats:
        with damage_as_format_error(path):
            return read_dataset(file[name], path)

    return read


FORMAT = BilmTFHDF5()
