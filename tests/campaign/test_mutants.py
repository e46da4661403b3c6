"""Damaged files of every format are read, or refused in one line: no traceback, no crash, no excess of time or memory.

Where checksums protect the content, a command that succeeds has the results of the sound files.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign.specimens import SPECIMENS

N_MUTANTS = 300


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIMENS)
def test_damaged_files_are_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    specimen = SPECIMENS[name]
    expected = specimen.prepare(tmp_path / "sound")
    for number in range(specimen.n_mutants(N_MUTANTS)):
        assert specimen.try_mutant(tmp_path / "sound", expected, number, tmp_path / str(number)) is None
