"""List the models that can be opened by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elmokit.formats.fetch import cached_file
from elmokit.formats.folder import DEFAULT_MODEL, included_model
from elmokit.formats.published import ModelLocation, PublishedModel, all_models


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
