"""Commands that are interrupted end, once resumed, with the files of a run that was not interrupted."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from tests.campaign.commands import COMMANDS, OTHER_COMMANDS
from tests.campaign.interruptions import (
    Command,
    Fault,
    check_failure,
    interrupt_and_resume,
    interrupt_repeatedly,
    one_of_each,
    resume_and_compare,
    run_straight,
)
from tests.helpers.children import Limits, run_elmokit, within

pytestmark = pytest.mark.slow


SECONDS = 60
"""After this time, a test tries no more changes of the disk, because the machine is busy."""


class Straight(NamedTuple):
    """A command, and what an uninterrupted run of it made."""

    command: Command
    folder: Path
    sites: list[str]


@pytest.fixture(scope="module", params=COMMANDS)
def straight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    command = COMMANDS[request.param]
    folder = tmp_path_factory.mktemp("straight") / "run"
    return Straight(command, folder, run_straight(command, folder))


def test_a_command_that_dies_at_a_change_of_the_disk_can_be_resumed(straight: Straight, tmp_path: Path) -> None:
    sites = one_of_each(straight.sites)
    for number in within(SECONDS, Random(0).sample(sites, min(len(sites), 6))):
        problems = interrupt_and_resume(straight.command, tmp_path / str(number), straight.folder, number, "kill")
        assert not problems, straight.sites[number - 1]


@pytest.mark.parametrize("name", OTHER_COMMANDS)
def test_every_other_command_can_be_resumed_too(name: str, tmp_path: Path) -> None:
    command = OTHER_COMMANDS[name]
    sites = run_straight(command, tmp_path / "straight")
    faults: list[Fault] = ["kill", "full"]
    for number, fault in zip(Random(0).sample(one_of_each(sites), 2), faults, strict=True):
        folder = tmp_path / fault
        assert not interrupt_and_resume(command, folder, tmp_path / "straight", number, fault), sites[number - 1]


@pytest.mark.parametrize("fault", ["interrupt", "full"])
def test_a_command_that_fails_at_a_change_of_the_disk_can_be_resumed(
    fault: Fault, straight: Straight, tmp_path: Path
) -> None:
    number = Random(0).choice(one_of_each(straight.sites))
    problems = interrupt_and_resume(straight.command, tmp_path / "run", straight.folder, number, fault)
    assert not problems, straight.sites[number - 1]


def test_a_command_that_cannot_write_a_large_file_can_be_resumed(straight: Straight, tmp_path: Path) -> None:
    command, largest = straight.command, max(path.stat().st_size for path in straight.folder.rglob("*"))
    command.prepare(tmp_path)
    # A write beyond the limit fails as on a full disk.
    limits = Limits(file_size=largest - 1)
    ended = run_elmokit(*command.start, folder=tmp_path, before=command.hasten, limits=limits)
    assert not check_failure(ended, "full")
    assert not resume_and_compare(command, tmp_path, straight.folder)


def test_a_command_can_be_interrupted_five_times(straight: Straight, tmp_path: Path) -> None:
    problems = interrupt_repeatedly(straight.command, tmp_path / "run", straight.folder, len(straight.sites), Random(0))
    assert not problems
