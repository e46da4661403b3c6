"""Open and save models: ``open_model`` finds the model that a source names, and ``save_model`` writes one.

``open_model`` works in two steps. A source (a name, a URL, a Hub id) becomes a path on this machine; then the format
is recognized by the files at that path, and the module of that format reads it. To add a format, write a module
that returns a ``PretrainedBiLM`` and recognize its files in ``_open_path`` or ``_open_folder``.
"""

from __future__ import annotations

import difflib
import filecmp
import os
from pathlib import Path

import h5py

from elmokit.errors import ConfigError, FormatError, MissingExtraError, ModelError, ModelNotFoundError, OutputError
from elmokit.io.atomic import atomic_write, check_extension, check_output_path
from elmokit.io.hdf5 import HDF5_SUFFIXES
from elmokit.io.text_files import expand_user
from elmokit.weights import bilm_tf, fast_nlp, many_langs, paddle, published, tf_checkpoint, tf_hub
from elmokit.weights.archives import is_archive, unpacked
from elmokit.weights.fetch import (
    HUB_PREFIX,
    fetch,
    hub_folder,
    is_hub_id,
    is_url,
    link_into,
    local_path,
    normalize_url,
    sibling_url,
    url_file_name,
)
from elmokit.weights.folder import PARTS, Storage, is_folder, load_folder, save_folder
from elmokit.weights.guess import guess_archive, guess_format, guess_hdf5
from elmokit.weights.listing import DEFAULT_MODEL, included_model
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.sidecars import (
    OPTIONS,
    VOCABULARY,
    find_options,
    find_vocabulary,
    hdf5_files,
    own_file,
)
from elmokit.weights.tf_bundle import INDEX_SUFFIX
from elmokit.weights.tf_hub_address import archive_url, cached_module, elmo_version, is_hub_address, module_folder
from elmokit.weights.words import with_meta, with_token_embeddings, with_words

RUN_MODEL = "model"
"""The subfolder in which a training run keeps its best model."""

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_KNOWN = (
    "an elmokit directory, options.json with HDF5 weights, a TensorFlow checkpoint of bilm-tf, a TF-Hub module, a "
    "directory of ELMoForManyLangs, fastNLP or Baidu's PaddlePaddle ELMo, or an archive of one of these; see "
    "docs/reference/model-files.md"
)


def open_model(
    source: str | Path | None = None,
    *,
    options: str | Path | None = None,
    token_embeddings: str | Path | None = None,
    vocabulary: str | Path | None = None,
) -> PretrainedBiLM:
    """Open a model in any known format, from a path, a URL or a name.

    The model has its softmax wherever there is one. In a directory with HDF5 weights and the bilm-tf checkpoint that
    they were exported from, the weights are read from the HDF5 file, and the softmax from the checkpoint when it is
    first used, so that it costs nothing if you only embed.

    Args:
        source: What to open. In this order:

            - None or "en-mini": the small English model inside the package.
            - A path to an elmokit directory or training run; a directory with an options file and HDF5 weights, or the
              HDF5 file; a directory with a TensorFlow checkpoint, its ``.index`` file, or that file's name without
              ``.index``; a TF-Hub module; a directory of ELMoForManyLangs, fastNLP or Baidu's PaddlePaddle ELMo; or an
              archive (zip, tar, tar.gz) of one of these.
            - An http, https or file URL of one of these files, or the address of a module on TF-Hub or Kaggle.
            - The name of a published model, such as "original" or "many-langs:german".
            - ``owner/name`` or ``hf:owner/name`` on the Hugging Face Hub.
        options: Path or URL of the options file, if it is not next to the weights.
        token_embeddings: Path or URL of an HDF5 file of token vectors that bilm-tf computed, one row per word. Tokens
            that are not in it are computed from their characters.
        vocabulary: Path or URL of the words of ``token_embeddings``, if given; otherwise of a word-input model, or of a
            checkpoint's softmax. Needed if there is no ``vocab.txt`` or ``vocab.txt.gz`` next to them.

    Raises:
        ModelNotFoundError: Nothing was found, it cannot be downloaded, or a file of the model is missing.
        FormatError, TensorMismatchError: A file is damaged or of another format, or the files are not of one model.
        ConfigError: The options cannot be used, or do not belong to the model.
        MissingExtraError: A model on the Hub needs ``huggingface_hub``, which is not installed.

    Example:
        >>> model = open_model("original")
        >>> model.bilm.config.output_dim
        1024
    """
    if source is None or str(source) == DEFAULT_MODEL:
        source = included_model()
    name = normalize_url(source)
    options, table, listed = (
        None if file is None else local_path(normalize_url(file)) for file in (options, token_embeddings, vocabulary)
    )
    words = listed if table is None else None
    if is_url(name):
        model = _open_url(name, options, words)
    elif _exists(path := expand_user(source, ModelNotFoundError)):
        model = _open_path(path, options, words)
    elif (known := published.find_published(name)) is not None:
        if options is not None:
            raise ConfigError(f"{name} is the name of a published model, which has its own options; leave them out.")
        model = _open_published(known, words)
    elif name.startswith(HUB_PREFIX) or (is_hub_id(name) and not name.endswith(HDF5_SUFFIXES)):
        model = _open_path(_download_from_hub(name), options, words)
    else:
        nearest = difflib.get_close_matches(name.lower(), [DEFAULT_MODEL, *published.names()], n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        names = ", ".join([DEFAULT_MODEL, *(model.name for model in published.models())])
        families = ", ".join(f"{family}:LANGUAGE" for family in published.families())
        raise ModelNotFoundError(
            f"No model found for {str(source)!r}: it is neither a file or directory nor the name of a model.{hint} "
            f"The names are {names}, {families}. Run `elmokit models` for languages and sizes."
        )
    return model if table is None else with_token_embeddings(model, table, listed)


def as_model(source: str | Path | PretrainedBiLM | None, *, options: str | Path | None = None) -> PretrainedBiLM:
    """Return a model as it is, or open the one that a source names, for functions that accept either.

    Args:
        source, options: As in :func:`open_model`.

    Raises:
        ModelError, ConfigError, MissingExtraError: As in :func:`open_model`.
    """
    return source if isinstance(source, PretrainedBiLM) else open_model(source, options=options)


def _exists(path: Path) -> bool:
    """Check for a file, a directory, or a checkpoint that is named without its ``.index``.

    ``os.path.exists`` is used because ``Path.exists`` raises if the name is too long, as any text may be.
    """
    return os.path.exists(path) or os.path.exists(f"{path}{INDEX_SUFFIX}")  # noqa: PTH110


def _open_url(url: str, options: Path | None, words: Path | None) -> PretrainedBiLM:
    """Download and open a model. The options of an HDF5 file are looked for next to it on the server."""
    if is_hub_address(url):
        return _open_tf_hub(url, options, words)
    file_name = url_file_name(url)
    if options is None and not url.startswith("file:") and file_name.endswith(HDF5_SUFFIXES):
        own = own_file(Path(file_name), OPTIONS).name
        try:
            options = fetch(sibling_url(url, own))
        except ModelNotFoundError:
            if own == OPTIONS:
                raise
            options = fetch(sibling_url(url, OPTIONS))
    return _open_path(fetch(url), options, words)


def _open_tf_hub(url: str, options: Path | None, words: Path | None) -> PretrainedBiLM:
    """Open the module of an address on TF-Hub or Kaggle: from this machine if it is there, else download it."""
    if (cached := cached_module(url)) is not None:
        return _open_path(cached, options, words)
    version = elmo_version(url)
    if version is None:
        return _open_path(fetch(archive_url(url)), options, words)
    if (elmo := published.tf_hub_elmo(version)) is None:
        raise ModelNotFoundError(f"{url}: google/elmo has the versions 1, 2 and 3. Give the address of one of them.")
    by_hand = f", or unpack it into the directory {module_folder(url)}, where this address finds it"
    return _open_published(elmo, words, options, by_hand)


def _open_published(
    model: published.PublishedModel, words: Path | None, options: Path | None = None, by_hand: str = ""
) -> PretrainedBiLM:
    """Download a published model from the first location that has it, and open it.

    Fall back to the next location if one is unreachable or returns unrelated content, such as a parked domain.

    Args:
        options: An options file to use instead of the location's.
        by_hand: What else can be done with a file that was downloaded by hand, for the error message.
    """
    failures: list[str] = []
    for location in model.locations:
        try:
            own_options = options if location.options is None else fetch(location.options)
            path = fetch(location.weights)
            for url in location.files:
                link_into(path.parent, fetch(url))
            listed = words if location.vocabulary is None or words is not None else fetch(location.vocabulary)
        except ModelNotFoundError as error:
            failures.append(str(error).split(". If the URL is dead")[0])
            continue
        try:
            opened = _open_path(path, own_options, listed)
        except (FormatError, ModelNotFoundError) as error:
            failures.append(f"{location.weights}: {error} (Delete {path.parent} to download it again.)")
            continue
        opened.card = {"name": model.name, "about": model.about, "from": location.weights, **opened.card}
        return opened
    raise ModelNotFoundError(
        f"{model.name} ({model.about}) could not be downloaded from any known location. Tried: {'; '.join(failures)}. "
        f"Download {model.files} by hand, from a mirror or from someone who has it, and give the path instead of the "
        f"name (on the command line, --options names an options file that is elsewhere){by_hand}."
    )


def _download_from_hub(name: str) -> Path:
    """Download a model from the Hub. A name without ``hf:`` may also have been meant as a path, so say both."""
    try:
        return hub_folder(name)
    except (MissingExtraError, ModelNotFoundError) as error:
        if name.startswith(HUB_PREFIX):
            raise
        raise ModelNotFoundError(
            f"There is no file or directory {name}. If you mean a model on the Hugging Face Hub: {error}"
        ) from None


def _open_path(path: Path, options: Path | None, words: Path | None) -> PretrainedBiLM:
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
    if found := hdf5_files(path):
        model = _open_hdf5(_only_model(path, found), options, words)
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


def _only_model(folder: Path, found: list[Path]) -> Path:
    """Return the HDF5 file of a directory that is the model. The others may be vectors, or tables of token vectors.

    Raises:
        FormatError: It is unclear which file is the model, or several are.
    """
    named_weights = [file for file in found if "weights" in file.name or file.stem == "model"]
    chosen = found if len(found) == 1 else named_weights
    # A file with options of its own is a model too, whatever its name.
    with_options = [file for file in found if file not in chosen and own_file(file, OPTIONS).exists()]
    if len(chosen) != 1 or with_options:
        names = ", ".join(file.name for file in found)
        raise FormatError(f"{folder} holds several HDF5 files ({names}). Name the one to open.")
    return chosen[0]


def _only_weights(folder: Path, kept: list[Path]) -> Path:
    """Return the weights of the one ELMo inside an AllenNLP archive, which has a copy for each module that uses it.

    Raises:
        FormatError: The copies differ, so the archive holds several models.
    """
    if any(not filecmp.cmp(kept[0], other, shallow=False) for other in kept[1:]):
        names = ", ".join(file.name for file in kept)
        raise FormatError(f"{folder} holds several ELMo models ({names}). Unpack it, and name the one to open.")
    return kept[0]


def _open_archive(path: Path, options: Path | None, words: Path | None) -> PretrainedBiLM:
    with unpacked(path) as archive:
        try:
            model = _open_folder(archive.folder, options, words)
            _ = model.softmax  # read it now: the unpacked files are about to be deleted
        except ModelError as error:
            hint = guess_archive(archive.names, archive.folder) if isinstance(error, FormatError) else ""
            raise type(error)(str(error).replace(str(archive.folder), str(path)) + hint) from None
    model.source = path
    return model


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
    """Check that a file next to HDF5 weights may be written, and that no other model in the directory reads it.

    Raises:
        OutputError: It exists and may not be overwritten, or another model reads it. ``overwrite`` does not permit
            that: the other model would open wrong, or not at all.
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


def save_model(
    model: PretrainedBiLM, path: str | Path, storage: Storage = "float32", overwrite: bool = False
) -> list[Path]:
    """Save a model in the format that the path asks for.

    A path that ends in ``.hdf5`` or ``.h5`` becomes HDF5 weights as bilm-tf and AllenNLP read them. The options file is
    next to them, and is named after them: ``X_options.json`` for ``X.hdf5`` and ``X_weights.hdf5``, and
    ``options.json`` for ``weights.hdf5``. So are the words of a word-input model, in ``X_vocab.txt``. Any other path
    becomes an elmokit directory, the only format that also keeps the softmax, the initial state, the whitening and the
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
    if model.bilm.config.n_words is None or model.vocabulary is None:
        bilm_tf.save(model, options, path, overwrite)
        return [path, options]
    _check_own_file(path, VOCABULARY, overwrite)
    listed = own_file(path, VOCABULARY)
    with atomic_write(listed, overwrite) as words:
        words.write_text(model.vocabulary.to_text(), encoding="utf-8", newline="\n")
        bilm_tf.save(model, options, path, overwrite)
    return [path, options, listed]
