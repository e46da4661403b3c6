"""What is installed and run from elsewhere is declared and pinned: packages, actions, and conda's recipe."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from elmokit.version import __version__
from tests.helpers.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
RECIPE = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
NAME = r"([\w.-]+)(?:\[([\w,-]+)\])?"  # and extras


def locked(name: str) -> dict[str, list[str]]:
    """Return the versions of each package of a lock."""
    versions: dict[str, list[str]] = {}
    text = (ROOT / "requirements" / name).read_text()
    for package, _, version in re.findall(rf"^{NAME}==(\S+)", text, re.MULTILINE):
        versions.setdefault(canonicalize_name(package), []).append(version)
    return versions


def requirements_of(extra: str) -> list[Requirement]:
    """Return what an extra requires, with what its own extras require."""
    found = []
    for text in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == "elmokit":
            found += [each for inner in requirement.extras for each in requirements_of(inner)]
        else:
            found.append(requirement)
    return found


def test_every_action_is_pinned_to_a_commit_with_its_version() -> None:
    assert len(WORKFLOWS) > 4
    pins: dict[str, str] = {}
    for path in WORKFLOWS:
        used = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
        assert used, path.name
        for action, comment in used:
            if not action.startswith("./"):
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), f"{path.name}: {action}"
                assert re.match(r" # v\d+\.\d+\.\d+", comment), f"{path.name}: {action}"
                name, commit = action.split("@")
                assert pins.setdefault("/".join(name.split("/")[:2]), commit) == commit, f"{path.name}: {action}"


@pytest.mark.parametrize(("lock", "extra"), [("core.txt", None), ("dev.txt", "dev"), ("docs.txt", "docs")])
def test_locks_have_what_is_declared(lock: str, extra: str | None) -> None:
    versions = locked(lock)
    declared = [Requirement(text) for text in PROJECT["dependencies"]] + (requirements_of(extra) if extra else [])
    # What builds the editable installation, see the Makefile.
    declared += [Requirement("hatchling>=1.24"), Requirement("editables")]
    for requirement in declared:
        if requirement.name == "torch":
            continue  # .ci/lock says why
        found = versions.get(canonicalize_name(requirement.name), [])
        assert found, f"{requirement} is not in {lock}: run .ci/lock"
        assert all(requirement.specifier.contains(version) for version in found), f"{requirement}: run .ci/lock"
    core = locked("core.txt")
    assert {package: versions[package] for package in core} == core


def of_recipe(name: str) -> set[str]:
    """Return a list of conda's recipe, without the indentation."""
    (items,) = re.findall(rf"^  {name}:\n((?:    - .+\n)+)", RECIPE, re.MULTILINE)
    return {line.removeprefix("    - ") for line in items.splitlines()}


def test_the_recipe_of_conda_has_the_version_and_dependencies_of_the_package() -> None:
    assert f'version: "{__version__}"' in RECIPE
    dependencies = {re.sub(r"(?=>=)", " ", one) for one in PROJECT["dependencies"]}
    assert of_recipe("run") == {f"python {PROJECT['requires-python']}", *dependencies}
    assert "hatchling >=1.24" in of_recipe("host")
    assert PYPROJECT["build-system"]["requires"] == ["hatchling>=1.24"]
    (torch,) = PROJECT["optional-dependencies"]["torch"]
    assert of_recipe("run_constraints") == {torch.replace("torch>=", "pytorch >=")}
    (entry_point,) = (f"{name} = {target}" for name, target in PROJECT["scripts"].items())
    assert f"- {entry_point}\n" in RECIPE
