"""The recipe of conda-forge asks for what pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib

from elmokit.version import __version__
from tests.helpers.paths import ROOT

RECIPE = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _listed(name: str) -> set[str]:
    """Return a list of the recipe, without the indentation."""
    (items,) = re.findall(rf"^  {name}:\n((?:    - .+\n)+)", RECIPE, re.MULTILINE)
    return {line.removeprefix("    - ") for line in items.splitlines()}


def test_the_recipe_has_the_version_and_dependencies_of_the_package() -> None:
    assert f'version: "{__version__}"' in RECIPE
    project = PROJECT["project"]
    dependencies = {re.sub(r"(?=>=)", " ", one) for one in project["dependencies"]}
    assert _listed("run") == {f"python {project['requires-python']}", *dependencies}
    assert "hatchling >=1.24" in _listed("host")
    assert PROJECT["build-system"]["requires"] == ["hatchling>=1.24"]
    (torch,) = project["optional-dependencies"]["torch"]
    assert _listed("run_constraints") == {torch.replace("torch>=", "pytorch >=")}
    (entry_point,) = (f"{name} = {target}" for name, target in project["scripts"].items())
    assert f"- {entry_point}\n" in RECIPE
