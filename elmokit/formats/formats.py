"""Recognize the format of a model by its files, and read it with the module of that format.

To add a format, write a module that returns a ``PretrainedBiLM``, and recognize its files in ``open_path`` or
``_open_folder``.
"""

from __future__ import annotations

import copy
import filecmp
from pathlib import Path

import h5py

from elmokit.errors import FormatError, ModelError
from elmokit.formats import bilm_tf, fast_nlp, many_langs, paddle, tf_checkpoint, tf_hub
from elmokit.formats.archives import is_archive, unpacked
from elmokit.formats.folder import RUN_MODEL, is_folder, load_folder
from elmokit.formats.guess import guess_archive, guess_format, guess_hdf5
from elmokit.formats.model import PretrainedBiLM, Weights
from elmokit.formats.sidecars import OPTIONS, find_options, find_vocabulary, hdf5_files, own_file
from elmokit.formats.words import with_meta, with_words
from elmokit.storage.hdf5 import HDF5_SUFFIXES

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_KNOWN = (
    "an elmokit directory, options.json with HDF5 weights, a TensorFlow checkpoint of bilm-tf, a TF-Hub module, a "
    "directory of ELMoForManyLangs, fastNLP or Baidu's PaddlePaddle ELMo, or an archive of one of these; see "
    "docs/reference/model-files.md"
)


def open_path(path: Path, options: Path | None, words: Path | None) -> PretrainedBiLM:
    """Open the model at a path.

    Args:
        path: A file or a directory, or a TensorFlow checkpoint without ``.index``.
        options: The options file, if it is not next to the weights.
        words: The word list, likewise.

    Raises:
        ModelError, ConfigError: As in :func:`elmokit.open_model`.
    """
    if tf_checkpoint.is_named_by(path):
        return tf_checkpoint.load(path, options, vocabulary=words)
    if path.is_dir():
        return _open_folder(path, options, words)
    if is_archive(path):
        return _open_archive(path, options, words)
    if not _starts_with(path, _HDF5_MAGIC) and path.suffix not in HDF5_SUFFIXES:
        raise FormatError(f"{path} is not a model that elmokit can open ({_KNOWN}).{guess_format(path)}")
    return _open_hdf5(path, options, words)


def _open_folder(path: Path, options: Path | None, words: Path | None) -> PretrainedBiLM:
    if is_folder(path):
        return with_words(load_folder(path), words)
    if is_folder(path / RUN_MODEL):
        return with_words(load_folder(path / RUN_MODEL), words)
    if many_langs.is_folder(path):
        return with_words(many_langs.load(path), words)
    if fast_nlp.is_folder(path):
        return with_words(fast_nlp.load(path), words)
    if paddle.is_folder(path):
        return paddle.load(path, words)
    if tf_hub.is_module(path):
        return with_words(tf_hub.load(path, options), words)
    has_checkpoint = tf_checkpoint.find_checkpoint(path) is not None
    if files := hdf5_files(path):
        model = _open_hdf5(_only_model(path, files), options, words)
        if has_checkpoint:
            tf_checkpoint.attach_softmax(model, path, words)
        return model
    if has_checkpoint:
        return tf_checkpoint.load(path, options, vocabulary=words)
    if kept := sorted(path.glob("fta/*weight_file")):  # the ELMo inside an archive of an AllenNLP task model
        weights = _only_weights(path, kept)
        options = options or weights.with_name(f"{weights.name.removesuffix('weight_file')}options_file")
        return _open_hdf5(weights, options, words)
    raise FormatError(f"{path} is not a model that elmokit can open ({_KNOWN}).{guess_format(path)}")


def _only_model(folder: Path, files: list[Path]) -> Path:
    """Return the HDF5 file of a directory that is the model. The others may be vectors, or tables of token vectors."""
    named_weights = [file for file in files if "weights" in file.name or file.stem == "model"]
    chosen = files if len(files) == 1 else named_weights
    # A file with options of its own is a model too, whatever its name.
    with_options = [file for file in files if file not in chosen and own_file(file, OPTIONS).exists()]
    if len(chosen) != 1 or with_options:
        names = ", ".join(file.name for file in files)
        raise FormatError(f"{folder} holds several HDF5 files ({names}). Name the one to open.")
    return chosen[0]


def _only_weights(folder: Path, kept: list[Path]) -> Path:
    """Return the weights of the one ELMo inside an AllenNLP archive, which has a copy for each module that uses it."""
    if any(not filecmp.cmp(kept[0], other, shallow=False) for other in kept[1:]):
        names = ", ".join(file.name for file in kept)
        raise FormatError(f"{folder} holds several ELMo models ({names}). Unpack it, and name the one to open.")
    return kept[0]


def _open_archive(path: Path, options: Path | None, words: Path | None) -> PretrainedBiLM:
    with unpacked(path) as archive:
        try:
            model = _open_folder(archive.folder, options, words)
            # Read everything now: the unpacked files are about to be deleted.
            weights, softmax = copy.deepcopy((Weights(model.config, model.arrays), model.softmax))
        except ModelError as error:
            hint = guess_archive(archive.names, archive.folder) if isinstance(error, FormatError) else ""
            raise type(error)(str(error).replace(str(archive.folder), str(path)) + hint) from None
    return model.replace(weights=weights, softmax=softmax, source=path)


def _open_hdf5(weights: Path, options: Path | None, words: Path | None) -> PretrainedBiLM:
    """Open HDF5 weights with the files next to them: options, words, and the NLPL repository's ``meta.json``."""
    if not h5py.is_hdf5(weights) and (hint := guess_format(weights)):
        raise FormatError(f"{weights} is not an HDF5 file.{hint}")
    if hint := guess_hdf5(weights):
        raise FormatError(f"{weights} is an HDF5 file but not an ELMo. {hint}")
    model = bilm_tf.load(options or find_options(weights), weights)
    return with_meta(with_words(model, words or find_vocabulary(weights)), weights.parent)


def _starts_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic
