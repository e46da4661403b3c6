"""Find the model that a source names: a path, a URL, a published name, or an id on the Hugging Face Hub.

Each becomes a path on this machine, which ``open_path`` opens.
"""

from __future__ import annotations

import contextlib
import difflib
from pathlib import Path

from elmokit.errors import ConfigError, MissingExtraError, ModelError, ModelNotFoundError, TextError
from elmokit.formats import published
from elmokit.formats.fetch import (
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
from elmokit.formats.folder import DEFAULT_MODEL
from elmokit.formats.format import FORMATS, find_format, open_path
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.tf_hub_address import archive_url, cached_module, elmo_version, is_hub_address, module_folder
from elmokit.formats.words import with_token_embeddings
from elmokit.storage.text_files import expand_user


def open_source(
    source: str | Path, options: str | Path | None, table: str | Path | None, vocabulary: str | Path | None
) -> PretrainedBiLM:
    """Open what a path, a URL, a published name or an id on the Hub names; ``table`` is ``token_embeddings``."""
    name = normalize_url(source)
    options, table, listed = (
        None if file is None else local_path(normalize_url(file)) for file in (options, table, vocabulary)
    )
    words = listed if table is None else None
    if is_url(name):
        model = _open_url(name, options, words)
    elif _exists(path := expand_user(source, ModelNotFoundError)):
        model = open_path(path, options, words)
    elif (known := published.find_published(name)) is not None:
        if options is not None:
            raise ConfigError(f"{name} is a published model, which has its own options: leave out {options}.")
        model = _open_published(known, words)
    elif name.startswith(HUB_PREFIX) or (is_hub_id(name) and not _is_file_name(name)):
        model = open_path(_download_from_hub(name), options, words)
    else:
        nearest = difflib.get_close_matches(name.lower(), [DEFAULT_MODEL, *published.names()], n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ModelNotFoundError(
            f"No model found for {str(source)!r}: it is neither a file or directory nor the name of a model.{hint} "
            "`elmokit models` lists the names."
        )
    return model if table is None else with_token_embeddings(model, table, listed)


def _exists(path: Path) -> bool:
    """Check for a file, a directory, or what a format recognizes though it is neither, such as the stem of a name."""
    try:
        return path.exists() or find_format(path) is not None
    except OSError:  # a name that is too long, as any text may be
        return False


def _is_file_name(name: str) -> bool:
    """Check for the extension of weights: ``folder/weights.hdf5`` is a missing file and not an id on the Hub."""
    return any(name.endswith(weight_format.extensions) for weight_format in FORMATS)


def _open_url(url: str, options: Path | None, words: Path | None) -> PretrainedBiLM:
    """Download and open a model. Its options are looked for next to it on the server."""
    if is_hub_address(url):
        return _open_tf_hub(url, options, words)
    names = [name for weight_format in FORMATS for name in weight_format.options_names(url_file_name(url))]
    if options is None and names and not url.startswith("file:"):
        options = _fetch_options(url, names)
    return open_path(fetch(url), options, words)


def _fetch_options(url: str, names: list[str]) -> Path:
    """Download the options file that is next to a URL, by the first of its possible names that the server has."""
    for name in names[:-1]:
        with contextlib.suppress(ModelNotFoundError):
            return fetch(sibling_url(url, name))
    return fetch(sibling_url(url, names[-1]))


def _open_tf_hub(url: str, options: Path | None, words: Path | None) -> PretrainedBiLM:
    """Open the module of an address on TF-Hub or Kaggle: from this machine if it is there, else download it."""
    if (cached := cached_module(url)) is not None:
        return open_path(cached, options, words)
    version = elmo_version(url)
    if version is None or (elmo := published.tf_hub_elmo(version)) is None:
        return open_path(fetch(archive_url(url)), options, words)
    by_hand = f", or unpack it into the directory {module_folder(url)}, where this address finds it"
    return _open_published(elmo, words, options, by_hand)


def _open_published(
    model: published.PublishedModel, words: Path | None, options: Path | None = None, by_hand: str = ""
) -> PretrainedBiLM:
    """Open a published model from the first location that has it: one may be unreachable, or a parked domain."""
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
            opened = open_path(path, own_options, listed)
        except (ModelError, TextError) as error:
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
        raise ModelNotFoundError(f"There is no file or directory {name}, and no model on the Hub: {error}") from None
