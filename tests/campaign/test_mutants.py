"""Damaged files of every format and odd arguments of every command: read, or refused in one line.

No traceback, no crash, no excess of time or memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign import arguments
from tests.campaign.specimens import SPECIMENS
from tests.helpers.children import within

N_MUTANTS, N_ARGUMENTS = 1, 2  # of each; the first command line has no change
SECONDS = 20
"""After this time, a test tries no more of its mutants, because the machine is busy."""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", SPECIMENS)
def test_damaged_files_are_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    specimen = SPECIMENS[name]
    specimen.prepare(tmp_path / "sound")
    for number in within(SECONDS, range(N_MUTANTS)):
        assert not specimen.try_mutant(tmp_path / "sound", number, tmp_path / str(number))


@pytest.mark.parametrize("name", arguments.sources())
def test_odd_arguments_are_accepted_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    _, problems, _ = arguments.judge_arguments(name, within(SECONDS, range(N_ARGUMENTS)), tmp_path)
    assert not problems


def test_every_command_gets_odd_arguments() -> None:
    tried = [f"{' '.join(line)} " for _, line in arguments.sources().values()]
    assert {
        name for name in arguments.command_names() if not any(line.startswith(f"{name} ") for line in tried)
    } == arguments.NOT_TRIED
