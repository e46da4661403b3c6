"""Each name of an earlier version that went is answered with what took its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import elmokit
from elmokit.errors import ConfigError, ElmoError
from elmokit.former_names import COMMANDS, MODELS, PYTHON, SETTINGS, VALUES
from tests.helpers.paths import ROOT
from tests.helpers.shell import Shell

COMMAND_OF = {
    "layer_loss": "distill",
    "figure": "evaluate wsd",
    "keep": "evaluate similarity",
    "vectors": "evaluate pos",
    **dict.fromkeys(("drain_seconds", "max_connections", "workers"), "serve"),
}
"""Commands that had a flag of an earlier version; the others were of ``train``."""


def test_each_command_is_answered_with_a_program_that_exists(shell: Shell) -> None:
    for command, advice in COMMANDS.items():
        ran = shell(*command.split())
        assert (ran.code, f"An earlier version had it. {advice} Try 'elmokit" in ran.err) == (2, True), ran.err
    for advice in {**COMMANDS, **PYTHON}.values():
        for program in re.findall(r"program (\S+)", advice):
            assert (ROOT / program).is_file()


@pytest.mark.parametrize("name", SETTINGS)
def test_each_flag_is_answered(name: str, shell: Shell) -> None:
    command, flag = COMMAND_OF.get(name, "train"), name.replace("_", "-")
    ran = shell(*command.split(), f"--{flag}", "1")
    problem = f"elmokit: No such option '--{flag}'. An earlier version had it. {SETTINGS[name]}"
    assert (ran.code, ran.err) == (2, f"{problem} Try 'elmokit {command} --help'.\n")


@pytest.mark.parametrize("flag", VALUES)
def test_each_value_of_a_flag_is_answered(flag: str, shell: Shell) -> None:
    name, value = flag.split()
    ran = shell("train" if name == "softmax" else "surprisal", f"--{name}", value)
    assert f"An earlier version had it. {VALUES[flag]}" in ran.err


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"hours": 1}, "hours"),
        ({"schedule": "cosine"}, "schedule"),
        ({"cutoffs": [10]}, "cutoffs"),
        ({"config": {"optimizer": "adam"}}, "optimizer"),
        ({"config": {"model": {"backward_only": True}}}, "backward_only"),
        ({"config": {"softmax": {"cutoffs": [10]}}}, "cutoffs"),
    ],
)
def test_settings_are_answered_in_python_and_in_files(settings: dict[str, Any], name: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{name}'\. An earlier version had it\. {re.escape(SETTINGS[name])}"):
        elmokit.train("text.txt", held_out="text.txt", out="run", **settings)


def test_names_of_the_package_and_of_models_are_answered() -> None:
    for name, advice in PYTHON.items():
        with pytest.raises(AttributeError, match=re.escape(f"{name!r}. An earlier version had it. {advice}")):
            getattr(elmokit, name)
    for name, advice in MODELS.items():
        with pytest.raises(ElmoError, match=re.escape(f"An earlier version had it. {advice}")):
            elmokit.open_model(name)


def test_only_what_is_spelled_alike_is_suggested(shell: Shell, folder: Path) -> None:
    for command in (("mpc",), ("evaluate", "everything"), ("train", "--foo")):
        assert "Did you mean" not in shell(*command).err
    with pytest.raises(ConfigError, match=r"There is no setting 'foo'\.$"):
        elmokit.train("text.txt", held_out="text.txt", out="run", foo=1)
