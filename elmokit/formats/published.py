"""Published models by name. The names and addresses are data: see ``published.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

from elmokit.formats.fetch import cached_file
from elmokit.formats.folder import DEFAULT_MODEL, included_model

_NLPL_NUMBER = re.compile(r"^nlpl:([0-9]{1,6})$")


@dataclass(frozen=True)
class ModelLocation:
    """The addresses of one copy of a model."""

    weights: str
    """URL of the HDF5 file, of an archive with everything in it, or of the index of a TensorFlow checkpoint."""
    options: str | None = None
    """URL of the options file; None where an archive holds it."""
    vocabulary: str | None = None
    """URL of the words of a checkpoint's softmax."""
    files: tuple[str, ...] = ()
    """URLs of the other files of a checkpoint, which must be in the directory of its index."""
    inferred: bool = False
    """Whether the address was not found itself, but is formed like others of the publisher."""

    @property
    def urls(self) -> list[str]:
        """Everything to download."""
        return [url for url in (self.weights, *self.files, self.options, self.vocabulary) if url is not None]


@dataclass(frozen=True)
class PublishedModel:
    """A model that was published under a name."""

    name: str
    language: str
    about: str
    locations: tuple[ModelLocation, ...]
    """The publisher's own address first, then mirrors."""
    read_on: str
    """Where the addresses were found."""
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
def models() -> tuple[PublishedModel, ...]:
    """List the published models, those of the NLPL repository and of families for many languages apart."""
    return msgspec.convert(_content()["model"], tuple[PublishedModel, ...])


@cache
def many_languages() -> dict[str, int]:
    """Map each language of ELMoForManyLangs to its number in the NLPL repository."""
    nlpl = _content()["nlpl"]
    return {language: number for number, language in enumerate(nlpl["many_langs"], nlpl["first_many_langs_number"])}


@cache
def families() -> dict[str, dict[str, PublishedModel]]:
    """Map the name of each family, such as ``many-langs``, to its models by language."""
    by_family = {"many-langs": {language: _many_langs(language) for language in many_languages()}}
    for family in _content()["family"]:
        by_family[family["name"]] = {
            language: _of_family(family, language, code) for language, code in family["languages"].items()
        }
    return by_family


def all_models() -> list[PublishedModel]:
    """List every model that has a name, those of families included."""
    return [*models(), *(model for family in families().values() for model in family.values())]


def names() -> list[str]:
    """List every name, ``nlpl:NUMBER`` apart."""
    return [name for model in all_models() for name in (model.name, *model.also)]


def find_published(name: str) -> PublishedModel | None:
    """Find a published model by name, in upper or lower case; None if there is none."""
    # Besides the names in the table, FAMILY:LANGUAGE is a model of a family, such as many-langs:german of
    # ELMoForManyLangs, and nlpl:NUMBER any model of the NLPL repository (vectors.nlpl.eu), for example 210, 211, 217
    # and 218 for Norwegian.
    name = name.lower()
    for model in models():
        if name in (model.name, *model.also):
            return model
    if number := _NLPL_NUMBER.match(name):
        return _nlpl_model(name, "unknown", int(number[1]), "see vectors.nlpl.eu")
    family, _, language = name.partition(":")
    return families().get(family, {}).get(language)


def tf_hub_elmo(version: int) -> PublishedModel | None:
    """Return a version of ``google/elmo``, Google's module on TF-Hub, or None if it was not published."""
    hub = _content()["tf_hub"]
    if version not in hub["versions"]:
        return None
    locations = tuple(ModelLocation(url.format(version=version)) for url in hub["urls"])
    return PublishedModel(
        f"google/elmo/{version}", "English", hub["about"], locations, hub["read_on"], hub["megabytes"]
    )


def _many_langs(language: str) -> PublishedModel:
    spelled = language.replace("-", " ").title()
    return _nlpl_model(f"many-langs:{language}", spelled, many_languages()[language], f"{language}, ELMoForManyLangs")


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
    """What it was trained on, and who published it."""
    megabytes: int | None
    """Size of the weights; None if unknown."""
    available: Literal["included", "cached", "download"]
    """Whether it is inside the package, was downloaded before, or will be downloaded."""
    url: str | None
    """Where its weights are, or were; None for the included model."""
    address: Literal["untried", "inferred"] | None
    """What is known about the URL. "untried": it was found on public pages and never tried, because the project had no
    access to the internet. "inferred": it was not found either, but is formed like others of the same publisher. None
    for the included model."""
    other_names: tuple[str, ...] = ()


def named_models() -> list[NamedModel]:
    """List the models that can be opened by name, the included one first. ``nlpl:NUMBER`` opens more, without names."""
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
