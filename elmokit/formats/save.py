"""Save a model in the format given by the extension of a path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from elmokit.config import check_choice
from elmokit.errors import ConfigError, OutputError
from elmokit.formats import folder
from elmokit.formats.format import FORMATS, Format, Storage
from elmokit.pretrained.model import PretrainedBiLM, check_model
from elmokit.storage.atomic import check_extension
from elmokit.storage.text_files import expand_user


def save_model(
    model: PretrainedBiLM, path: str | Path, storage: Storage = "float32", overwrite: bool = False
) -> list[Path]:
    """Save a model in the format given by the path's extension.

    If the path ends in ``.hdf5`` or ``.h5``, HDF5 weights for bilm-tf and AllenNLP are written. The options file is
    next to them: ``X_options.json`` for ``X.hdf5`` and ``X_weights.hdf5``, and ``options.json`` for ``weights.hdf5``.
    For a word-input model, so are the words, in ``X_vocab.txt``. Any other path becomes an elmokit directory, the only
    format that also stores the softmax, start state, whitening and alignment.

    Args:
        storage: Data type of the tensors in an elmokit directory; int8, with one scale per row, needs a quarter of the
            space of float32.
        overwrite: Replace an existing output. Files of other models in the same directory are never changed.

    Returns:
        The paths that were written.

    Raises:
        ConfigError: ``model`` is not a model (for an ``Elmo``, pass ``elmo.model``), or the format does not support the
            storage.
        OutputError: The path exists and may not be overwritten, cannot be written, or ends in the extension of another
            format; or a weight is NaN, infinite, or too large for the storage.
    """
    check_model(model, "open_model")
    check_choice("storage", storage, get_args(Storage))
    path = expand_user(path, OutputError)
    refuse_target(path, overwrite)
    target = format_to_write(path)
    if storage != "float32" and not target.is_complete:
        raise ConfigError(f"storage is {storage!r}, but {path.suffix} files hold float32.")
    parts = folder.model_parts(model) if target.is_complete else [folder.ModelPart(path.name, model.arrays)]
    for part in parts:
        largest = float(np.finfo(np.float32).max)
        if storage == "float16" and part.has_storage:
            largest = float(np.finfo(np.float16).max)
        for name, array in part.tensors.items():
            is_storable = bool((np.abs(array) <= largest).all())
            if not is_storable:
                raise OutputError(
                    f"{path} was not written: {name} of {part.file} holds NaN or a number that {storage} cannot store."
                )
    return target.save(model, path, storage, overwrite)


def refuse_target(path: Path, overwrite: bool) -> None:
    """Check, before any work is done, that ``save_model`` may write to a path."""
    format_to_write(path).check_target(path, overwrite)


def format_to_write(path: Path, others: Sequence[str] = ()) -> Format:
    """Return the format for a path's extension; without one, an elmokit directory.

    ``others`` are extensions that the caller handles, for the error message.
    """
    by_extension = {extension: weight_format for weight_format in FORMATS for extension in weight_format.extensions}
    check_extension(path, [*by_extension, *others], "or a name without an extension for an elmokit directory")
    return by_extension.get(path.suffix, folder.FORMAT)
