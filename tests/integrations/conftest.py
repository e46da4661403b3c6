from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elmokit import Elmo

if TYPE_CHECKING:
    from elmokit.serve.served_model import ServedModel


@pytest.fixture(scope="session")
def served() -> ServedModel:
    """The included model as the server has it."""
    from elmokit.serve.serve_config import ServeConfig
    from elmokit.serve.served_model import ServedModel

    return ServedModel(Elmo.from_pretrained(), ServeConfig())
