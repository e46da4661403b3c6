"""Small shares of the campaign against the server."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("granian")
pytest.importorskip("prometheus_client")

from tests.campaign.server import STEPS


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_the_server_answers_as_the_library_whatever_its_clients_do(name: str, tmp_path: Path) -> None:
    _, failures, _ = STEPS[name](tmp_path, 0.0)
    assert not failures
