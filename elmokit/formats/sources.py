"""Find a model by path, URL, published name, or id on the Hugging Face Hub.

Each becomes a local path, which ``open_path`` opens. The published names and addresses are in ``published.toml``.

Facts about the addresses of Google's ELMo on TF-Hub, all from the source of the package ``tensorflow_hub`` (0.1.0 to
0.16.1):

- Adding ``?tf-hub-format=compressed`` to an address such as ``https://tfhub.dev/google/elmo/2`` gives its download,
  whatever the server. The answer is a tar.gz of the module.
- The module is unpacked into ``TFHUB_CACHE_DIR/SHA1``, by default ``/tmp/tfhub_modules/SHA1``. It is the hash of the
  address exactly as the program wrote it, before the query is added.
- With ``TFHUB_MODEL_LOAD_FORMAT=UNCOMPRESSED``, TensorFlow reads the same module file by file from Google's servers and
  keeps nothing. elmokit always downloads the archive.

In November 2023, tfhub.dev became a redirect to Kaggle Models.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode, urljoin

import msgspec

from elmokit.errors import ConfigError, MissingExtraError, ModelError, ModelNotFoundError, TextError
from elmokit.formats import tf_hub
from elmokit.formats.fetch import (
    cached_file,
    fetch,
    is_url,
    local_path,
    normalize_url,
    split_url,
    url_file_name,
)
from elmokit.formats.folder import DEFAULT_MODEL, included_model
from elmokit.formats.format import FORMATS, find_format, model_files, open_path
from elmokit.formats.sidecars import with_token_embeddings
from elmokit.former_names import MODELS, replacement
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.text_files import expand_user

HUB_PREFIX = "hf:"
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?$")


def open_source(
    source: str | Path, options: str | Path | None, table: str | Path | None, vocabulary: str | Path | None
) -> PretrainedBiLM:
    """Open a model by path, URL, published name or Hub id; ``table`` is ``token_embeddings``."""
    options, table, vocabulary = _local(options), _local(table), _local(vocabulary)
    if table is None:
        return _open_named(source, options, vocabulary)
    model = _open_named(source, options, None)
    return with_token_embeddings(model, table, vocabulary)


def _local(file: str | Path | None) -> Path | None:
    """Return the local path of a file, after downloading it if it is a URL."""
    return None if file is None else local_path(normalize_url(file))


def _open_named(source: str | Path, options: Path | None, words: Path | None) -> PretrainedBiLM:
    """Open a model by URL, published name or Hub id."""
    name = normalize_url(source)
    if is_url(name):
        return _open_url(name, options, words)
    path = expand_user(source, ModelNotFoundError)
    if _exists(path):
        return open_path(path, options, words)
    published = find_published(name)
    if published is not None:
        if options is not None:
            raise ConfigError(f"{name} is a published model with its own options: omit {options}.")
        return _open_published(published, words)
    if name.startswith(HUB_PREFIX) or (is_hub_id(name) and not _is_file_name(name)):
        return open_path(_download_from_hub(name), options, words)
    raise ModelNotFoundError(
        f"No model found for {str(source)!r}: it is neither a file or directory nor the name of a model."
        f"{_hint(name)} `elmokit models` lists the names."
    )


def _hint(name: str) -> str:
    """Suggest a similar name; empty if there is none."""
    former = replacement(MODELS, name)
    if former:
        return former
    nearest = difflib.get_close_matches(name.lower(), [DEFAULT_MODEL, *published_names()], n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def _exists(path: Path) -> bool:
    """Check for a file, a directory, or a path that a format recognizes, such as the stem of file names."""
    try:
        return path.exists() or find_format(path) is not None
    except OSError:  # a name that is too long
        return False


def _is_file_name(name: str) -> bool:
    """Check for an extension of weights: ``folder/weights.hdf5`` is a missing file, not a Hub id."""
    return any(name.endswith(weight_format.extensions) for weight_format in FORMATS)


def _open_url(url: str, options: Path | None, words: Path | None) -> PretrainedBiLM:
    """Download and open a model. Its options are expected next to it on the server."""
    if is_hub_address(url):
        return _open_tf_hub(url, options, words)
    if _KAGGLE.match(url):
        raise ModelNotFoundError(
            f"Kaggle addresses such as {url} are not supported: use one of TF-Hub, such as "
            f"https://tfhub.dev/google/elmo/{LATEST}, or download the module and pass its path."
        )
    if options is None and not url.startswith("file:"):
        options = _fetch_options(url)
    return open_path(fetch(url), options, words)


def _fetch_options(url: str) -> Path | None:
    """Download the options file next to a URL, under the first possible name that the server has."""
    names: list[str] = []
    for weight_format in FORMATS:
        names += weight_format.options_names(url_file_name(url))
    if not names:
        return None
    for name in names[:-1]:
        with contextlib.suppress(ModelNotFoundError):
            return fetch(urljoin(url, name))
    return fetch(urljoin(url, names[-1]))


def _open_tf_hub(url: str, options: Path | None, words: Path | None) -> PretrainedBiLM:
    """Open a module by its TF-Hub address, from this machine if possible, else by downloading it."""
    if (cached := cached_module(url)) is not None:
        return open_path(cached, options, words)
    version = elmo_version(url)
    if version is None or (elmo := tf_hub_elmo(version)) is None:
        return open_path(fetch(archive_url(url)), options, words)
    by_hand = f", or unpack it into the directory {module_folder(url)}, where this address finds it"
    return _open_published(elmo, words, options, by_hand)


def _open_published(
    model: PublishedModel, words: Path | None, options: Path | None = None, by_hand: str = ""
) -> PretrainedBiLM:
    """Open a published model from the first working location; some may be unreachable or parked domains."""
    failures: list[str] = []
    for location in model.locations:
        try:
            path, own_options, listed = _fetch_location(location, options, words)
        except ModelNotFoundError as error:
            failures.append(str(error).split(". If the URL is dead")[0])
            continue
        try:
            opened = open_path(path, own_options, listed)
        except (ModelError, TextError) as error:
            failures.append(f"{location.weights}: {error} (Delete {path.parent} to download it again.)")
            continue
        card = {"name": model.name, "about": model.about, "from": location.weights, **opened.card}
        return opened.replace(card=card)
    raise ModelNotFoundError(
        f"{model.name} ({model.about}) could not be downloaded from any known location. Tried: {'; '.join(failures)}. "
        f"Download {model.files} by hand, from a mirror or from someone who has it, and pass the path instead of the "
        f"name (on the command line, pass an options file that is elsewhere with --options){by_hand}."
    )


def _fetch_location(
    location: ModelLocation, options: Path | None, words: Path | None
) -> tuple[Path, Path | None, Path | None]:
    """Download the weights of a location, and its options and words, if any; given ones take precedence."""
    if location.options is not None:
        options = fetch(location.options)
    path = fetch(location.weights)
    for url in location.files:
        link_into(path.parent, fetch(url))
    if location.vocabulary is not None and words is None:
        words = fetch(location.vocabulary)
    return path, options, words


def link_into(folder: Path, file: Path) -> None:
    """Link a downloaded file into another file's directory, for models whose files must be together."""
    link = folder / file.name
    if not (link.exists() and link.samefile(file)):
        link.unlink(missing_ok=True)
        try:
            link.hardlink_to(file)
        except FileExistsError:  # another process was faster
            pass
        except OSError:  # a file system without hard links
            link.symlink_to(file)


def is_hub_id(text: str) -> bool:
    """Check for ``owner/name`` or ``hf:owner/name``, with or without ``@revision``."""
    return _HUB_ID.match(text.removeprefix(HUB_PREFIX)) is not None


def hub_folder(hub_id: str) -> Path:
    """Download a model from the Hugging Face Hub, unless it is in the Hub's own cache, and return its directory."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtraError(f"Downloading {hub_id} from the Hugging Face Hub", "huggingface-hub") from None
    name, _, revision = hub_id.removeprefix(HUB_PREFIX).partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=model_files()))
    except (OSError, ValueError, RuntimeError) as error:
        first = str(error).strip().split("\n")[0].rstrip(".")
        raise ModelNotFoundError(
            f"{hub_id} cannot be downloaded from the Hugging Face Hub: {first}. Or download its files by hand."
        ) from None


def _download_from_hub(name: str) -> Path:
    """Download a model from the Hub. For a name without ``hf:``, which may be a path, the error mentions both."""
    try:
        return hub_folder(name)
    except (MissingExtraError, ModelNotFoundError) as error:
        if name.startswith(HUB_PREFIX):
            raise
        raise ModelNotFoundError(f"There is no file or directory {name}, and no model on the Hub: {error}") from None


_NLPL_NUMBER = re.compile(r"^nlpl:([0-9]{1,6})$")


@dataclass(frozen=True)
class ModelLocation:
    """The URLs of one copy of a model."""

    weights: str
    """URL of the HDF5 file, an archive with everything, or the index of a TensorFlow checkpoint."""
    options: str | None = None
    """URL of the options file; None if it is in the archive."""
    vocabulary: str | None = None
    """URL of the words of a checkpoint's softmax."""
    files: tuple[str, ...] = ()
    """URLs of the checkpoint's other files, which must be in the directory of the index."""
    inferred: bool = False
    """Whether the URL was inferred from others of the same publisher."""

    @property
    def urls(self) -> list[str]:
        """All URLs to download."""
        urls = (self.weights, *self.files, self.options, self.vocabulary)
        return [url for url in urls if url is not None]


@dataclass(frozen=True)
class PublishedModel:
    """A published model with a name."""

    name: str
    language: str
    about: str
    locations: tuple[ModelLocation, ...]
    """The publisher's own location, then mirrors."""
    read_on: str
    """Where the URLs were found."""
    megabytes: int | None = None
    """Size of the weights; None if unknown."""
    also: tuple[str, ...] = ()
    """Other names for the same model."""

    @property
    def files(self) -> str:
        """The files to download by hand, for an error message."""
        location = self.locations[0]
        size = "" if self.megabytes is None else f" ({self.megabytes} MB)"
        if location.options is None:
            return f"the archive {location.weights}{size}"
        if location.files:
            return f"the files {', '.join(location.urls)}{size}, all into one directory,"
        return f"the weights {location.weights}{size} and the options {location.options}"


@cache
def _content() -> dict[str, Any]:
    return tomllib.loads((resources.files("elmokit.formats") / "published.toml").read_text(encoding="utf-8"))


@cache
def published_models() -> tuple[PublishedModel, ...]:
    """List the published models, except those of the NLPL repository and of multilingual families."""
    return msgspec.convert(_content()["model"], tuple[PublishedModel, ...])


@cache
def many_languages() -> dict[str, int]:
    """Map each language of ELMoForManyLangs to its number in the NLPL repository."""
    nlpl = _content()["nlpl"]
    return {language: number for number, language in enumerate(nlpl["many_langs"], nlpl["first_many_langs_number"])}


@cache
def published_families() -> dict[str, dict[str, PublishedModel]]:
    """Map the name of each family, such as ``many-langs``, to its models by language."""
    by_family = {"many-langs": {language: _many_langs(language) for language in many_languages()}}
    for family in _content()["family"]:
        by_family[family["name"]] = {
            language: _of_family(family, language, code) for language, code in family["languages"].items()
        }
    return by_family


def all_models() -> list[PublishedModel]:
    """List all models with a name, including those of families."""
    models = list(published_models())
    for family in published_families().values():
        models += family.values()
    return models


def published_names() -> list[str]:
    """List all names, except ``nlpl:NUMBER``."""
    return [name for model in all_models() for name in (model.name, *model.also)]


def find_published(name: str) -> PublishedModel | None:
    """Find a published model by name, ignoring case; None if there is none."""
    # Besides the names in the table, there are FAMILY:LANGUAGE, such as many-langs:german for ELMoForManyLangs, and
    # nlpl:NUMBER for any model of the NLPL repository (vectors.nlpl.eu), such as 210, 211, 217 and 218 for Norwegian.
    name = name.lower()
    for model in all_models():
        if name in (model.name, *model.also):
            return model
    if number := _NLPL_NUMBER.match(name):
        return _nlpl_model(name, "unknown", int(number[1]), "see vectors.nlpl.eu")
    return None


def tf_hub_elmo(version: int) -> PublishedModel | None:
    """Return a version of ``google/elmo``, Google's module on TF-Hub, or None if it does not exist."""
    hub = _content()["tf_hub"]
    if version not in hub["versions"]:
        return None
    locations = tuple(ModelLocation(url.format(version=version)) for url in hub["urls"])
    return PublishedModel(
        f"google/elmo/{version}", "English", hub["about"], locations, hub["read_on"], hub["megabytes"]
    )


def _many_langs(language: str) -> PublishedModel:
    spelled = language.replace("-", " ").title()
    return _nlpl_model(f"many-langs:{language}", spelled, many_languages()[language], f"{spelled}, ELMoForManyLangs")


def _of_family(family: Mapping[str, Any], language: str, code: str) -> PublishedModel:
    location = ModelLocation(family["url"].format(code=code), inferred=language not in family["found"])
    spelled = language.title()
    return PublishedModel(
        f"{family['name']}:{language}",
        spelled,
        f"{spelled}, {family['about']}",
        (location,),
        family["read_on"],
    )


def _nlpl_model(name: str, language: str, number: int, about: str) -> PublishedModel:
    folders = (20, 11) if number in many_languages().values() else (20,)
    url = _content()["nlpl"]["url"]
    return PublishedModel(
        name,
        language,
        f"{about}, number {number} of the NLPL repository",
        tuple(ModelLocation(f"{url}/{folder}/{number}.zip") for folder in folders),
        "github.com/HIT-SCIR/ELMoForManyLangs",
    )


@dataclass(frozen=True)
class NamedModel:
    """A model that can be opened by name."""

    name: str
    language: str
    about: str
    """Its training text and publisher."""
    megabytes: int | None
    """Size of the weights; None if unknown."""
    available: Literal["included", "cached", "download"]
    """Whether it is included in the package, was downloaded before, or will be downloaded."""
    url: str | None
    """The URL of its weights; None for the included model."""
    address: Literal["untried", "inferred"] | None
    """What is known about the URL. "untried": found on public pages but never tested, because the project had no
    internet access. "inferred": also untested, and derived from other URLs of the publisher. None for the included
    model."""
    other_names: tuple[str, ...] = ()


def named_models() -> list[NamedModel]:
    """List the models that can be opened by name, the included one first. ``nlpl:NUMBER`` opens more models."""
    size = sum(file.stat().st_size for file in included_model().iterdir())
    about = "Wikipedia, novels, textbooks, conversations; elmokit"
    included = NamedModel(DEFAULT_MODEL, "English", about, round(size / 1e6), "included", None, None)
    return [included, *map(_named, all_models())]


def _named(model: PublishedModel) -> NamedModel:
    return NamedModel(
        model.name,
        model.language,
        model.about.removeprefix(f"{model.language}, "),
        model.megabytes,
        "cached" if any(map(_is_cached, model.locations)) else "download",
        model.locations[0].weights,
        "inferred" if model.locations[0].inferred else "untried",
        model.also,
    )


def _is_cached(location: ModelLocation) -> bool:
    return all(cached_file(url) is not None for url in location.urls)


LATEST = 3
"""The version for addresses without one. Google published versions 1 to 3."""

_FORMAT = "tf-hub-format"
# Addresses without their query.
_ELMO = re.compile(r"https?://tfhub\.dev/google/elmo(?:/(\d{1,9}))?/?$", re.IGNORECASE)
_HUB = re.compile(r"https?://tfhub\.dev/[^/?#]+/[^?#]+", re.IGNORECASE)
_KAGGLE = re.compile(r"https?://(?:www\.)?kaggle\.com/", re.IGNORECASE)


def elmo_version(url: str) -> int | None:
    """Return the version of ``google/elmo`` in an address, or None for other addresses."""
    match = _ELMO.match(_with_format(url, None))
    if match is None:
        return None
    return LATEST if match[1] is None else int(match[1])


def is_hub_address(url: str) -> bool:
    """Check for the address of a TF-Hub module, as opposed to the URL of a file."""
    return _HUB.match(url) is not None


def archive_url(url: str) -> str:
    """Return the URL of a module's archive on a TF-Hub server."""
    return _with_format(url, "compressed")


def module_folder(url: str) -> Path:
    """Return the directory in which ``tensorflow_hub`` keeps the module with exactly this address."""
    default = Path(tempfile.gettempdir()) / "tfhub_modules"
    root = Path(os.environ.get("TFHUB_CACHE_DIR") or default)
    return root / hashlib.sha1(url.encode(errors="replace"), usedforsecurity=False).hexdigest()


def cached_module(url: str) -> Path | None:
    """Find a module that ``tensorflow_hub`` downloaded, or that was unpacked there by hand."""
    folder = module_folder(url)
    return folder if tf_hub.FORMAT.recognizes(folder) else None


def _with_format(url: str, value: str | None) -> str:
    """Return a URL with another format in its query, or without that query."""
    parts = split_url(url)
    query = []
    for name, given in parse_qsl(parts.query, keep_blank_values=True):
        if name != _FORMAT:
            query.append((name, given))
    if value is not None:
        query.append((_FORMAT, value))
    return parts._replace(query=urlencode(query)).geturl()
