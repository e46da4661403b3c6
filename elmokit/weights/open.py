"""One door for every format: look at what stands at a path, and open it as what it is."""

from __future__ import annotations

from pathlib import Path

import h5py

from elmokit.config import read_json
from elmokit.errors import FormatError, ModelError, ModelNotFoundError, OutputError
from elmokit.io.atomic import atomic_write, check_output_path
from elmokit.io.hdf5 import HDF5_ERRORS
from elmokit.io.text_files import expand_user
from elmokit.weights import bilm_tf, many_langs, tf_checkpoint, tf_hub
from elmokit.weights.archives import is_archive, unpacked
from elmokit.weights.folder import PARTS, Storage, is_folder, load_folder, save_folder
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.words import with_meta, with_token_embeddings, with_words, words_beside

HDF5_SUFFIXES = (".hdf5", ".h5")
RUN_MODEL = "model"  # where the folder of a training run keeps the best model
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_KNOWN = (
    "a folder of elmokit, options.json and HDF5 weights, a TensorFlow checkpoint of bilm-tf, a TF-Hub module, a folder "
    "of ELMoForManyLangs, or an archive of one of these"
)


def open_model(
    path: str | Path,
    options: str | Path | None = None,
    *,
    token_embeddings: str | Path | None = None,
    vocabulary: str | Path | None = None,
) -> PretrainedBiLM:
    """Open a model by its path.

    Args:
        path: a folder of ours, or of a training run; a folder with an options file and an HDF5 file, or the HDF5 file
            itself; a folder with a TensorFlow checkpoint, its ``.index`` file, or what stands before ``.index``; a
            TF-Hub module; a folder of ELMoForManyLangs; or an archive (zip, tar, tar.gz) of one of these, as the NLPL
            repository has them.
        options: the options file of weights, where it does not stand beside them.
        token_embeddings: an HDF5 file of bilm-tf's with token vectors computed before, one row a word; tokens that
            are not in it are computed from their characters.
        vocabulary: the words of those rows, of a word-input model's, or of a checkpoint's softmax, where they do not
            stand beside as ``vocab.txt`` or ``vocab.txt.gz``. Given with ``token_embeddings``, of the rows alone.

    Raises:
        ModelNotFoundError: nothing stands at the path, or a part of the model is missing.
        FormatError, TensorMismatchError, ConfigError: it is damaged or of another kind, or is of other words.
    """
    path = expand_user(path, ModelNotFoundError)
    options, table, listed = (
        None if file is None else expand_user(file, ModelNotFoundError)
        for file in (options, token_embeddings, vocabulary)
    )
    words = listed if table is None else None
    if tf_checkpoint.is_named_by(path):
        model = tf_checkpoint.load(path, options, vocabulary=words)
    elif not path.exists():
        raise ModelNotFoundError(f"There is no model at {path}: no such file or folder.")
    elif path.is_file() and is_archive(path):
        model = _open_archive(path, options, words)
    elif path.is_file():
        if not _starts_with(path, _HDF5_MAGIC) and path.suffix not in HDF5_SUFFIXES:
            raise FormatError(f"{path} is no model that elmokit knows ({_KNOWN}).{_looks_like(path)}")
        model = _open_hdf5(path, options, words)
    else:
        model = _open_folder(path, options, words)
    return model if table is None else with_token_embeddings(model, table, listed)


def _open_folder(path: Path, options: Path | None, words: Path | None) -> PretrainedBiLM:
    if is_folder(path):
        return with_words(load_folder(path), words)
    if is_folder(path / RUN_MODEL):
        return with_words(load_folder(path / RUN_MODEL), words)
    if many_langs.is_folder(path):
        return with_words(many_langs.load(path), words)
    if tf_hub.is_module(path):
        return with_words(tf_hub.load(path, options), words)
    found = sorted(file for suffix in HDF5_SUFFIXES for file in path.glob(f"*{suffix}"))
    if found:
        named_weights = [file for file in found if "weights" in file.name or file.stem == "model"]
        if len(found) > 1 and len(named_weights) != 1:
            names = ", ".join(file.name for file in found)
            raise FormatError(f"{path} holds several HDF5 files ({names}). Name the one to open.")
        return _open_hdf5(found[0] if len(found) == 1 else named_weights[0], options, words)
    if tf_checkpoint.find(path) is not None:
        return tf_checkpoint.load(path, options, vocabulary=words)
    if kept := sorted(path.glob("fta/*weight_file")):  # what AllenNLP's archives of task models keep of an ELMo
        weights = kept[0]
        options = options or weights.with_name(f"{weights.name.removesuffix('weight_file')}options_file")
        return _open_hdf5(weights, options, words)
    raise FormatError(f"{path} is no model that elmokit knows ({_KNOWN}).{_looks_like(path)}")


def _open_archive(path: Path, options: Path | None, words: Path | None) -> PretrainedBiLM:
    with unpacked(path) as archive:
        try:
            model = _open_folder(archive.folder, options, words)
        except ModelError as error:
            hint = _names_look_like(archive.names) if isinstance(error, FormatError) else ""
            raise type(error)(str(error).replace(str(archive.folder), str(path)) + hint) from None
    model.source = path
    return model


def _open_hdf5(weights: Path, options: Path | None, words: Path | None) -> PretrainedBiLM:
    """An HDF5 file of weights, and what stands beside it: words and what the NLPL repository says of it."""
    if not h5py.is_hdf5(weights) and (hint := _looks_like(weights)):
        raise FormatError(f"{weights} is no HDF5 file.{hint}")
    if hint := _other_hdf5(weights):
        raise FormatError(f"{weights} is an HDF5 file but no ELMo. {hint}")
    model = bilm_tf.load(options or options_beside(weights), weights)
    return with_meta(with_words(model, words or words_beside(weights.parent)), weights.parent)


def options_beside(weights: Path) -> Path:
    """Where a weight file's options stand: ``X_options.json`` for ``X_weights.hdf5``, or ``options.json``.

    Where neither is there, the only file beside it that calls itself options.
    """
    named, plain = named_options(weights), weights.with_name("options.json")
    others = sorted(weights.parent.glob("*options*.json"))
    if named.exists():
        return named
    return others[0] if not plain.exists() and len(others) == 1 else plain


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
            "settings.json": _run_hint(path),
            "saved_model.pb": "a TensorFlow SavedModel",
        }
        found = next((hint for name, hint in hints.items() if name in names and hint), None)
        return f" It looks like {found}." if found else ""
    for magic, hint in _MAGICS:
        if _starts_with(path, magic):
            return f" It looks like {hint}."
    with path.open("rb") as file:
        start = file.read(512).lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html", b"<?xml", b"<error")):
        return " It looks like a web page: a download that failed."
    return ""


def _run_hint(path: Path) -> str | None:
    """Of a training run that has not kept a model yet."""
    steps = sorted(path.glob("checkpoints/step-*/model"))
    return f"a training run that has kept no model yet; its newest checkpoint is {steps[-1]}" if steps else None


_MAGICS = (
    (b"\x1f\x8b", "a gzip file that holds no tar archive"),
    (b"\x80", "a Python pickle"),
    (b"version https://git-lfs", "a Git LFS pointer: the file itself was not downloaded (git lfs pull)"),
    (b"GGUF", "a GGUF language model"),
    (b"\x93NUMPY", "a NumPy array"),
)


def _names_look_like(names: list[str]) -> str:
    """A hint at what an archive that holds no ELMo is instead, by the names in it."""
    ends = {name.rsplit("/", 1)[-1] for name in names}
    if "data.pkl" in ends:
        return " It looks like a PyTorch checkpoint."
    if "weights.th" in ends:
        return (
            " It looks like an AllenNLP model that keeps its ELMo, if it has one, among its own weights; "
            "open the ELMo that it was made with."
        )
    if names and all(name.endswith(".npy") for name in names):
        return " It looks like NumPy arrays (npz)."
    return ""


_ELMO_GROUPS = {"char_embed", "embedding", "CNN", "CNN_proj", "RNN_0", "RNN", "rnn", "lm"}


def _other_hdf5(path: Path) -> str:
    """What an HDF5 file that is no ELMo looks like; nothing if it may be one, or cannot be read at all."""
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


def _config_hint(path: Path) -> str | None:
    try:
        kind = read_json(path).get("model_type")
    except ModelError:
        return None
    return None if kind is None else f"a Hugging Face model of type {kind!r}"


def refuse_target(path: Path, overwrite: bool) -> None:
    """Say before any work is done that ``save_model`` could not write there.

    Raises:
        OutputError: something stands there and may not be overwritten, or is a folder with what is no part of a model.
    """
    if path.suffix in HDF5_SUFFIXES:
        check_output_path(path, overwrite)
        check_output_path(named_options(path), overwrite)
    else:
        check_output_path(path, overwrite, folder=True, parts=PARTS)


def save_model(
    model: PretrainedBiLM, path: str | Path, storage: Storage = "float32", overwrite: bool = False
) -> list[Path]:
    """Write a model in the format that the path asks for: HDF5 with options beside it, or a folder of ours.

    Beside the HDF5 of a word-input model stands ``vocab.txt`` too, which names the rows of its table.

    Returns:
        what was written.

    Raises:
        OutputError: something stands there and may not be overwritten, or it cannot be written.
    """
    path = expand_user(path, OutputError)
    refuse_target(path, overwrite)
    if path.suffix in HDF5_SUFFIXES:
        options = named_options(path)
        if model.bilm.config.n_words is None or model.vocabulary is None:
            bilm_tf.save(model, options, path, overwrite)
            return [path, options]
        with atomic_write(path.with_name("vocab.txt"), overwrite) as words:
            words.write_text(model.vocabulary.to_text(), encoding="utf-8", newline="\n")
            bilm_tf.save(model, options, path, overwrite)
        return [path, options, path.with_name("vocab.txt")]
    save_folder(model, path, storage, overwrite)
    return [path]
