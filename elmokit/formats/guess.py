"""Guess what a file or directory is that belongs to another program, for the error message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elmokit.config import read_json
from elmokit.errors import ModelError

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
_WEB_PAGE = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--", b"<error")
_TRANSFORMER_ELMO = (
    "AllenNLP's transformer ELMo, which cannot be opened because it has no LSTMs. Use AllenNLP 0.9 for it, or open "
    "'original', the ELMo with LSTMs that was trained on the same text"
)


def is_web_page(start: bytes) -> bool:
    """Say whether a file starts like a web page, or the XML error of an object store; no format of a model does."""
    return start.lstrip(b"\xef\xbb\xbf \t\r\n")[:9].lower().startswith(_WEB_PAGE)


def guess_foreign(path: Path) -> str | None:
    """Say what a file or directory of another program looks like, or return None."""
    if path.is_dir():
        is_transformer = (path / "pytorch_model.bin").is_file()
        return "a Hugging Face transformer" if is_transformer else _guess_config(path / "config.json")
    with path.open("rb") as file:
        start = file.read(512)
    guess = next((guess for magic, guess in _MAGIC_NUMBERS if start.startswith(magic)), None)
    if guess is None and is_web_page(start):
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


def guess_archive(names: list[str], folder: Path) -> str:
    """Say what an archive looks like by the names of its members and the unpacked ones; empty if unknown."""
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
