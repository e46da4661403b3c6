"""Save a model in the format that a path asks for."""

from __future__ import annotations

from pathlib import Path

from elmokit.errors import OutputError
from elmokit.formats import bilm_tf, tf_checkpoint, tf_hub
from elmokit.formats.folder import PARTS, Storage, is_folder, save_folder
from elmokit.formats.guess import guess_hdf5
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.sidecars import OPTIONS, VOCABULARY, hdf5_files, own_file
from elmokit.storage.atomic import atomic_write, check_extension, check_output_path
from elmokit.storage.hdf5 import HDF5_SUFFIXES
from elmokit.storage.text_files import expand_user


def save_model(
    model: PretrainedBiLM, path: str | Path, storage: Storage = "float32", overwrite: bool = False
) -> list[Path]:
    """Save a model in the format that the path asks for.

    A path that ends in ``.hdf5`` or ``.h5`` becomes HDF5 weights as bilm-tf and AllenNLP read them. The options file is
    next to them, and is named after them: ``X_options.json`` for ``X.hdf5`` and ``X_weights.hdf5``, and
    ``options.json`` for ``weights.hdf5``. So are the words of a word-input model, in ``X_vocab.txt``. Any other path
    becomes an elmokit directory, the only format that also keeps the softmax, the start state, the whitening and the
    alignment.

    Args:
        storage: The dtype of the tensors in an elmokit directory: "float32", "float16", or "int8" with one scale for
            each row, which takes a quarter of the space of float32.
        overwrite: Replace what exists at the path. Files of other models in the same directory are never changed.

    Returns:
        The paths that were written.

    Raises:
        OutputError: The path exists and may not be overwritten, cannot be written, or ends in the extension of another
            format.
    """
    path = expand_user(path, OutputError)
    refuse_target(path, overwrite)
    if path.suffix not in HDF5_SUFFIXES:
        save_folder(model, path, storage, overwrite)
        return [path]
    options = own_file(path, OPTIONS)
    if model.config.n_words is None or model.vocabulary is None:
        bilm_tf.save(model, options, path, overwrite)
        return [path, options]
    _check_own_file(path, VOCABULARY, overwrite)
    listed = own_file(path, VOCABULARY)
    with atomic_write(listed, overwrite) as words:
        words.write_text(model.vocabulary.to_text(), encoding="utf-8", newline="\n")
        bilm_tf.save(model, options, path, overwrite)
    return [path, options, listed]


def refuse_target(path: Path, overwrite: bool) -> None:
    """Check before any work is done that ``save_model`` may write to a path.

    Raises:
        OutputError: The path exists and may not be overwritten, is a directory that holds other files, or ends in the
            extension of a format that is not written; or another model reads the file that the options would go to.
    """
    if path.suffix in HDF5_SUFFIXES:
        check_output_path(path, overwrite)
        _check_own_file(path, OPTIONS, overwrite)
        return
    check_extension(path, HDF5_SUFFIXES, "or a name without an extension for an elmokit directory")
    check_output_path(path, overwrite, folder=True, parts=PARTS)
    if path.is_dir() and any(path.iterdir()) and not is_folder(path):
        # Directories of other programs can have files of the same names, such as config.json and vocab.txt.
        raise OutputError(f"{path} is not an elmokit directory, so it is not overwritten. Choose another name.")


def _check_own_file(weights: Path, name: str, overwrite: bool) -> None:
    """Check that a file next to HDF5 weights may be written.

    ``overwrite`` does not permit it if another model in the directory reads the file: that model would open wrong.
    """
    path = own_file(weights, name)
    others = [
        other
        for other in hdf5_files(path.parent)
        if other != weights
        and (own_file(other, name) == path or (path.name == name and not own_file(other, name).exists()))
        and not guess_hdf5(other)
    ]
    if path.name == name:  # the other formats read the plain names only
        if (checkpoint := tf_checkpoint.find_checkpoint(path.parent)) is not None:
            others.append(checkpoint)
        if tf_hub.is_module(path.parent) if name == OPTIONS else is_folder(path.parent):
            others.append(path.parent)
    if others:
        stem = weights.stem.removesuffix("_weights")
        raise OutputError(
            f"{weights} needs the file {path.name}, which {others[0]} reads too. Choose another name, such as "
            f"{weights.with_name(f'{stem}-2{weights.suffix}').name}, or another directory."
        )
    check_output_path(path, overwrite)
