"""Small shares of the parts of the campaign that are tables of steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign.full import PARTS

pytestmark = pytest.mark.slow

STEPS = (
    ("numbers", "own format, start state, whitening, alignment"),
    ("numbers", "published HDF5"),
    ("elsewhere", "embed"),
    ("moments", "embed"),
    ("server", "many requests"),
)


@pytest.mark.parametrize(("part", "name"), STEPS)
def test_a_small_share_of_a_part_of_the_campaign_has_no_failure(part: str, name: str, tmp_path: Path) -> None:
    if part == "server":
        for module in ("fastapi", "granian", "prometheus_client"):
            pytest.importorskip(module)
    _, failures, _ = PARTS[part][name](tmp_path, 0.0)
    assert not failures
