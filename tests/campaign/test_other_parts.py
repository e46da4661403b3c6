"""Small shares of the parts of the campaign that are tables of steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign import resumption, surroundings, tensors

pytestmark = pytest.mark.slow

STEPS = {
    **{
        name: tensors.STEPS[name]
        for name in ("numbers: own format, start state, whitening, alignment", "numbers: TF-Hub module")
    },
    "resumed elsewhere: embed": resumption.STEPS["resumed elsewhere: embed"],
    "killed at any moment: embed": surroundings.STEPS["killed at any moment: embed"],
}


@pytest.mark.parametrize("name", STEPS)
def test_a_small_share_of_a_part_of_the_campaign_has_no_failure(name: str, tmp_path: Path) -> None:
    _, failures, _ = STEPS[name](tmp_path, 0.0)
    assert not failures
