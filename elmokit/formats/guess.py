"""Guess the format of a file or directory that is not an ELMo model, for the error message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py

from elmokit.config import read_json
from elmokit.errors import ModelError
from elmokit.storage.hdf5 import HDF5_ERRORS

_MAGIC_NUMBERS = (
    (b"\x1f\x8b", "a gzip file without a tar archive in it"),
    (b"\x80", "a Python pickle"),
    (b"version https://git-lfs", "a Git LFS pointer: the file itself was not downloaded (git lfs pull)"),
    (b"GGUF", "a GGUF language model"),
    (b"\x93NUMPY", "a NumPy array"),
    (
        b"\x12\x01" + bytes(6),
        "MXNet parameters, such as GluonNLP's ELMo, which cannot be opened. Its models are those of AllenNLP: open "
        "'small', 'medium', 'original' or 'original-5.5b' instead",
    ),
)
_TRANSFORMER_ELMO = (
    "AllenNLP's transformer ELMo, which cannot be opened because it has no LSTMs. Use AllenNLP 0.9 for it, or open "
    "'original', the ELMo with LSTMs that was trained on the same text"
)
_ELMO_GROUPS = {"char_embed", "embedding", "CNN", "CNN_proj", "RNN_0", "RNN", "rnn", "lm"}


def guess_format(path: Path) -> str:
    """Say what a file or directory looks like, as a sentence to append to an error, or return an empty string."""
    guess = _guess_directory(path) if path.is_dir() else _guess_file(path)
    return f" It looks like {guess}." if guess else ""


def _guess_directory(path: Path) -> str | None:
    names = {file.name for file in path.iterdir()}
    guesses = {
        "pytorch_model.bin": "a Hugging Face transformer",
        "config.json": _guess_config(path / "config.json"),
        "encoder.pkl": "an ELMoForManyLangs model",
        "checkpoint": "a TensorFlow checkpoint",
        "settings.json": _guess_run(path),
        "saved_model.pb": "a TensorFlow SavedModel",
    }
    return next((guess for name, guess in guesses.items() if name in names and guess), None)


def _guess_file(path: Path) -> str | None:
    with path.open("rb") as file:
        start = file.read(512)
    guess = next((guess for magic, guess in _MAGIC_NUMBERS if start.startswith(magic)), None)
    if guess is None and start.lstrip().lower().startswith((b"<!doctype html", b"<html", b"<?xml", b"<error")):
        return "a web page: a download that failed"
    return guess


def _guess_config(path: Path) -> str | None:
    try:
        content = read_json(path)
    except ModelError:
        return None
    if _is_transformer_elmo(content):
        return _TRANSFORMER_ELMO
    kind = content.get("model_type")
    return None if kind is None else f"a Hugging Face model of type {kind!r}"


def _is_transformer_elmo(content: dict[str, Any]) -> bool:
    """Check for the configuration of a language model of AllenNLP that reads its text with a transformer."""
    value: Any = content
    for name in ("model", "contextualizer", "type"):
        value = value.get(name) if isinstance(value, dict) else None
    return bool(value == "bidirectional_language_model_transformer")


def _guess_run(path: Path) -> str | None:
    steps = sorted(path.glob("checkpoints/step-*/model"))
    return f"a training run that has not saved a model yet; its newest checkpoint is {steps[-1]}" if steps else None


def guess_archive(names: list[str], folder: Path) -> str:
    """Say what an archive looks like, or return an empty string.

    Args:
        names: The names of its members.
        folder: The directory with those that were unpacked.
    """
    files = {name.rsplit("/", 1)[-1] for name in names}
    if "data.pkl" in files:
        return " It looks like a PyTorch checkpoint."
    if "weights.th" in files:
        if any(_guess_config(path) == _TRANSFORMER_ELMO for path in folder.rglob("config.json")):
            return f" It looks like {_TRANSFORMER_ELMO}."
        return (
            " It looks like an AllenNLP model that keeps its ELMo, if it has one, among its own weights: "
            "`elmokit task open ARCHIVE --run RUN` writes it to RUN/bilm."
        )
    if names and all(name.endswith(".npy") for name in names):
        return " It looks like NumPy arrays (npz)."
    return ""


def guess_hdf5(path: Path) -> str:
    """Say what an HDF5 file looks like. Return an empty string if it may be an ELMo, or cannot be read at all."""
    try:
        with h5py.File(path, "r") as file:
            names = set(file)
            is_keras = "keras_version" in file.attrs or "model_weights" in names
    except HDF5_ERRORS:
        return ""
    if names == {"embedding"}:
        return "It looks like cached token embeddings: open the model itself, and give this file as token_embeddings."
    if names & _ELMO_GROUPS:
        return ""
    if "sentence_to_index" in names or (names and all(name.isdecimal() for name in names)):
        return "It looks like vectors that elmokit embed or allennlp elmo wrote."
    if is_keras:
        return "It looks like a Keras model."
    if names == {"softmax"}:
        return "It looks like the softmax of an ELMo, without the rest."
    return f"It holds {', '.join(sorted(names)[:5]) or 'nothing'}."
