"""Open a model: ``open_model``.

A path is opened by the first of ``FORMATS`` that recognizes it. ``sources.py`` resolves other sources, such as URLs and
published names, and is only imported for these.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from elmokit.engine.precision import Precision, check_precision
from elmokit.errors import ConfigError, FormatError, ModelNotFoundError
from elmokit.formats.folder import DEFAULT_MODEL, included_model
from elmokit.formats.format import find_format
from elmokit.pretrained.model import PretrainedBiLM


def open_model(
    source: str | Path | None = None,
    *,
    options: str | Path | None = None,
    token_embeddings: str | Path | None = None,
    vocabulary: str | Path | None = None,
    precision: Precision | None = None,
    exact_marks: bool = False,
    device: object = None,
) -> PretrainedBiLM:
    """Open a model in any known format, from a path, a URL or a name.

    Names, shapes and sizes are checked immediately; weights are read on first use. PyTorch is only needed for training
    and GPUs.

    The softmax is included if there is one. In a directory with HDF5 weights and the bilm-tf checkpoint that they were
    exported from, the weights are read from the HDF5 file, and the softmax from the checkpoint.

    Args:
        source: What to open. In this order:

            - None or "en-mini": the small English model inside the package.
            - A path to an elmokit directory or training run; a directory with an options file and HDF5 weights, or one
              of the two files; a directory with a TensorFlow checkpoint, its ``.index`` file, or that file's name
              without ``.index``; a TF-Hub module; a directory of ELMoForManyLangs; or an archive (zip, tar, tar.gz) of
              one of these.
            - An http, https or file URL of one of these files, or the address of a module on TF-Hub.
            - The name of a published model, such as "original" or "many-langs:german".
            - ``owner/name`` or ``hf:owner/name`` on the Hugging Face Hub.
        options: Path or URL of the options file, if it is not next to the weights.
        token_embeddings: Path or URL of an HDF5 file with token vectors computed by bilm-tf, one row per word. Missing
            tokens are computed from their characters.
        vocabulary: Path or URL of the words of ``token_embeddings``, if given; otherwise of a word-input model, or of a
            checkpoint's softmax. Needed if there is no ``vocab.txt`` or ``vocab.txt.gz`` next to them.
        precision: Lowest precision for computing the model: "float32", "bfloat16", "int8" or "int7". None keeps the
            model's own: float32, unless its files name another one.
        exact_marks: Read typographic marks such as ’ and – unchanged, like bilm-tf and AllenNLP. Otherwise, the model
            reads them as ASCII, unless it knows them or its files set this option.
        device: Refused, because a model does not compute. Use ``Elmo(model, device="cuda")``.

    Raises:
        ModelNotFoundError: Nothing was found, it cannot be downloaded, or a file of the model is missing.
        FormatError, TensorMismatchError: A file is damaged, unreadable or in another format, or the files do not belong
            together.
        ConfigError: The options cannot be used, or do not belong to the model; or the precision is unknown.
        MissingExtraError: A model on the Hub needs ``huggingface_hub``, which is not installed.

    Example:
        >>> model = open_model("original")
        >>> model.config.output_dim
        1024
    """
    # Before anything is read or downloaded.
    if not isinstance(source, str | os.PathLike | None):
        raise ConfigError(f"Expected the path or name of a model, but got one of type {type(source).__name__}.")
    if device is not None:
        raise ConfigError(
            f"A model does not compute on {device}: omit device, and call Elmo(model, device={str(device)!r})."
        )
    check_precision(precision)
    try:
        model = _open(source, options, token_embeddings, vocabulary)
    except OSError as error:  # no permission, or a failing disk
        where = error.filename or source
        raise FormatError(f"{where} cannot be read: {error.strerror or error}.") from None
    if precision is not None:
        model = model.replace(precision=precision)
    return model.replace(exact_marks=True) if exact_marks else model


def as_model(source: str | Path | PretrainedBiLM | None, *, options: str | Path | None = None) -> PretrainedBiLM:
    """Return a model unchanged, or open it from a source, for functions that accept either."""
    return source if isinstance(source, PretrainedBiLM) else open_model(source, options=options)


def open_to_export(source: str | Path | PretrainedBiLM | None, what: str, can_align: bool = False) -> PretrainedBiLM:
    """Return a model for an export that reads characters and may not support alignments.

    Raises:
        ModelError: No model was found, or it cannot be opened.
        ConfigError: The model does not read characters, or has an alignment that would be lost.
    """
    model = as_model(source)
    if model.config.char_cnn is None:
        raise ConfigError(f"{model.source} only reads words, but {what} reads characters.")
    if model.alignment is not None and not can_align:
        raise ConfigError(
            f"The model has an alignment, which {what} does not support. model.replace(alignment=None) removes it."
        )
    return model


def _open(
    source: str | Path | None,
    options: str | Path | None,
    token_embeddings: str | Path | None,
    vocabulary: str | Path | None,
) -> PretrainedBiLM:
    if source is None or str(source) == DEFAULT_MODEL:
        source = included_model()
    if source == "":  # as a path, it would be the current directory
        raise ModelNotFoundError(f"The name of the model is empty. Omit it to use {DEFAULT_MODEL}.")
    if options is token_embeddings is vocabulary is None:
        path = Path(source)
        with suppress(RuntimeError):  # the home directory of an unknown user
            path = path.expanduser()
        if (weight_format := find_format(path)) is not None:
            return weight_format.load(path)
    from elmokit.formats.sources import open_source

    return open_source(source, options, token_embeddings, vocabulary)
