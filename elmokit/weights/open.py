"""One door for every format: look at what stands at a path, and open it as what it is."""

from __future__ import annotations

import json
from pathlib import Path

from elmokit.errors import FormatError, ModelNotFoundError
from elmokit.weights import bilm_tf
from elmokit.weights.folder import Storage, is_folder, load_folder, save_folder
from elmokit.weights.model import StoredModel

HDF5_SUFFIXES = (".hdf5", ".h5")
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_KNOWN = "a folder of elmokit, a folder or file with options.json and HDF5 weights"


def open_model(path: str | Path, options: str | Path | None = None) -> StoredModel:
    """Open a model by its path.

    Args:
        path: a folder of ours; a folder with an options file and an HDF5 file; or the HDF5 file itself.
        options: the options file of an HDF5 file, where it does not stand beside it.

    Raises:
        ModelNotFoundError: nothing stands at the path, or a part of the model is missing.
        FormatError, TensorMismatchError, ConfigError: it is damaged or of another kind.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise ModelNotFoundError(f"There is no model at {path}: no such file or folder.")
    if path.is_file():
        weights = path
        if not _starts_with(path, _HDF5_MAGIC) and path.suffix not in HDF5_SUFFIXES:
            raise FormatError(f"{path} is no model that elmokit knows ({_KNOWN}).{_looks_like(path)}")
    elif is_folder(path):
        return load_folder(path)
    else:
        found = sorted(file for suffix in HDF5_SUFFIXES for file in path.glob(f"*{suffix}"))
        if not found:
            raise FormatError(f"{path} is no model that elmokit knows ({_KNOWN}).{_looks_like(path)}")
        named_weights = [file for file in found if "weights" in file.name or file.stem == "model"]
        if len(found) > 1 and len(named_weights) != 1:
            names = ", ".join(file.name for file in found)
            raise FormatError(f"{path} holds several HDF5 files ({names}). Name the one to open.")
        weights = found[0] if len(found) == 1 else named_weights[0]
    return bilm_tf.load(options or options_beside(weights), weights)


def options_beside(weights: Path) -> Path:
    """Where a weight file's options stand: ``X_options.json`` for ``X_weights.hdf5``, or ``options.json``."""
    named = named_options(weights)
    return named if named.exists() else weights.with_name("options.json")


def named_options(weights: Path) -> Path:
    """The options file that a weight file's name asks for: ``X_options.json`` for ``X_weights.hdf5``."""
    stem = weights.stem
    return weights.with_name(
        stem.removesuffix("weights") + "options.json" if stem.endswith("_weights") else "options.json"
    )


def _starts_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _looks_like(path: Path) -> str:
    """A hint at what something that is no ELMo looks like instead."""
    if path.is_dir():
        names = {file.name for file in path.iterdir()}
        hints = {
            "pytorch_model.bin": "a Hugging Face transformer",
            "config.json": _config_hint(path / "config.json"),
            "encoder.pkl": "an ELMoForManyLangs model",
            "checkpoint": "a TensorFlow checkpoint",
            "saved_model.pb": "a TensorFlow SavedModel",
        }
        found = next((hint for name, hint in hints.items() if name in names and hint), None)
        return f" It looks like {found}." if found else ""
    for magic, hint in ((b"PK\x03\x04", "a zip archive"), (b"\x1f\x8b", "a gzip file"), (b"\x80", "a Python pickle")):
        if _starts_with(path, magic):
            return f" It looks like {hint}."
    return ""


def _config_hint(path: Path) -> str | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(content, dict) and "model_type" in content:
        return f"a Hugging Face model of type {content['model_type']!r}"
    return None


def save_model(model: StoredModel, path: Path, storage: Storage = "float32", overwrite: bool = False) -> list[Path]:
    """Write a model in the format that the path asks for: HDF5 with options beside it, or a folder of ours.

    Returns:
        what was written.

    Raises:
        OutputError: something stands there and may not be overwritten, or it cannot be written.
    """
    if path.suffix in HDF5_SUFFIXES:
        options = named_options(path)
        bilm_tf.save(model, options, path, overwrite)
        return [path, options]
    save_folder(model, path, storage, overwrite)
    return [path]
