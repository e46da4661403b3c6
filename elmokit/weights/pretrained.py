"""Any pretrained model by what names it, the one inside the package included."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from elmokit.weights import tf_checkpoint
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.open import open_model
from elmokit.weights.source import open_source

DEFAULT_MODEL = "en-mini"


def open_pretrained(
    path_or_name: str | Path | None = None,
    options: str | Path | None = None,
    token_embeddings: str | Path | None = None,
    vocabulary: str | Path | None = None,
) -> PretrainedBiLM:
    """Open a model by path, published name, address or id, or the one inside the package by None or its name.

    Args:
        options, token_embeddings, vocabulary: as in ``open_model``; the latter two for a model on this machine.

    Raises:
        ModelError: nothing stands there, or it cannot be opened.
    """
    is_ours = path_or_name is None or str(path_or_name) == DEFAULT_MODEL
    if path_or_name is None or is_ours:
        path_or_name = Path(str(resources.files("elmokit"))) / "models" / DEFAULT_MODEL
    if is_ours or token_embeddings is not None or vocabulary is not None:
        return open_model(path_or_name, options, token_embeddings=token_embeddings, vocabulary=vocabulary)
    return open_source(path_or_name, options)


def open_with_softmax(
    path_or_name: str | Path | None, options: str | Path | None = None, vocabulary: str | Path | None = None
) -> PretrainedBiLM:
    """Open a model as ``open_pretrained`` does, with its softmax wherever there is one.

    Of a folder with both a checkpoint of bilm-tf and the HDF5 file dumped from it, the checkpoint is opened: only that
    has the softmax.

    Raises:
        ModelError: as in ``open_pretrained``.
    """
    model = open_pretrained(path_or_name, options, vocabulary=vocabulary)
    if model.softmax is not None or path_or_name is None:
        return model
    folder = Path(path_or_name).expanduser()
    if not folder.is_dir() or tf_checkpoint.find(folder) is None:
        return model
    options, vocabulary = (None if file is None else Path(file).expanduser() for file in (options, vocabulary))
    return tf_checkpoint.load(folder, options, vocabulary=vocabulary)
