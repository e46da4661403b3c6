from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from elmokit import Elmo

if TYPE_CHECKING:
    from elmokit.serve.served_model import ServedModel
    from tests.helpers.http_client import Client


@pytest.fixture(scope="session")
def served() -> ServedModel:
    """The included model as the server has it."""
    from elmokit.serve.serve_config import ServeConfig
    from elmokit.serve.served_model import ServedModel

    return ServedModel(Elmo.from_pretrained(), ServeConfig())


@pytest.fixture(scope="module")
def server(served: ServedModel) -> Iterator[Client]:
    """A server with the included model."""
    from elmokit.serve.app import application
    from elmokit.serve.serve_config import ServeConfig
    from tests.helpers.http_client import running

    with running(application(served, ServeConfig())) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    from tests.helpers.browser import launched

    with launched() as opened:
        yield opened
