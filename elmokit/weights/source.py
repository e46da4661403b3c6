"""Whatever names a model to its files: a path, an address, a published name, an id on the Hugging Face Hub."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from elmokit.errors import ConfigError, FormatError, MissingExtraError, ModelNotFoundError
from elmokit.io.text_files import expand_user
from elmokit.weights import published
from elmokit.weights.download import fetch, is_address, name_in, sibling, unfolded
from elmokit.weights.hub import PREFIX, hub_folder, is_hub_id
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.open import HDF5_SUFFIXES, named_options, open_model


def open_source(source: str | Path, options: str | Path | None = None) -> PretrainedBiLM:
    """Open a model by whatever names it.

    Args:
        source: a path (which comes first), a published name, an http, https or file address, or ``owner/name`` or
            ``hf:owner/name`` on the Hugging Face Hub.
        options: the path or address of an HDF5 file's options, where they do not stand beside it.

    Raises:
        ModelError: nothing is there, or it cannot be opened.
        MissingExtraError: it is ``hf:owner/name``, and ``huggingface_hub`` is not installed.
        ConfigError: it names a published model, and options were given too.
    """
    text = unfolded(source)
    if is_address(text):
        return open_model(*_from_address(text, options))
    if os.path.exists(expand_user(source, ModelNotFoundError)):  # noqa: PTH110 (Path.exists raises for a name that is too long)
        return open_model(source, None if options is None else local_path(options))
    if (model := published.find(text)) is not None:
        if options is not None:
            raise ConfigError(f"{text} is the name of a published model, which has its own options; leave them out.")
        return open_published(model)
    if text.startswith(PREFIX) or (is_hub_id(text) and not text.endswith(HDF5_SUFFIXES)):
        return open_model(_from_hub(text), None if options is None else local_path(options))
    nearest = difflib.get_close_matches(text.lower(), published.names(), n=1)
    meant = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise ModelNotFoundError(
        f"There is no model at {source}: no such file or folder, and no published model of that name.{meant}"
    )


def local_path(path: str | Path) -> Path:
    """A file on this machine: a path as it is, an address downloaded.

    Raises:
        ModelError: as in ``fetch``.
    """
    return fetch(path) if is_address(path) else expand_user(path, ModelNotFoundError)


def _from_hub(text: str) -> Path:
    """A model's folder from the Hub; what is not there may also have been meant as a path."""
    try:
        return hub_folder(text)
    except (MissingExtraError, ModelNotFoundError) as error:
        if text.startswith(PREFIX):
            raise
        raise ModelNotFoundError(f"No such file or folder here, and {error}") from None


def open_published(model: published.Published) -> PretrainedBiLM:
    """Download a published model from the first of its places that has it, and open it.

    Raises:
        ModelNotFoundError: none has it; the message says what to do.
    """
    tried: list[str] = []
    for place in model.places:
        try:
            options = None if place.options is None else fetch(place.options)
            path = fetch(place.weights)
        except ModelNotFoundError as error:
            tried.append(str(error).split(". If the address is dead")[0])
            continue
        try:
            opened = open_model(path, options)
        except (FormatError, ModelNotFoundError) as error:  # something else stands at the address now
            tried.append(f"{place.weights}: {error} (Delete {path.parent} to download it anew.)")
            continue
        opened.card = {"name": model.name, "about": model.about, "from": place.weights, **opened.card}
        return opened
    raise ModelNotFoundError(
        f"{model.name} ({model.about}) cannot be had from any place that elmokit knows of. Tried: {'; '.join(tried)}. "
        f"Download {model.by_hand} by hand, from a mirror or from someone who has it, and give the path instead of the "
        "name (in the shell --model, and --options for an options file that stands elsewhere)."
    )


def _from_address(address: str, options: str | Path | None) -> tuple[Path, Path | None]:
    """The model's file, and its options where they are apart from it."""
    if options is not None:
        return fetch(address), local_path(options)
    if address.startswith("file:") or not name_in(address).endswith(HDF5_SUFFIXES):
        return fetch(address), None
    named = named_options(Path(name_in(address))).name
    try:
        beside = fetch(sibling(address, named))
    except ModelNotFoundError:
        if named == "options.json":
            raise
        beside = fetch(sibling(address, "options.json"))
    return fetch(address), beside
