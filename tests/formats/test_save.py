"""Models are saved as they can be opened again, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import open_model, save_model
from elmokit.errors import OutputError
from tests.conftest import aligned_model, random_model


@pytest.mark.parametrize(("number", "storage"), [(np.nan, "float32"), (1e6, "float16"), (np.inf, "int8")])
def test_weights_that_could_not_be_opened_again_are_not_saved(number: float, storage: Any, tmp_path: Path) -> None:
    model = random_model()
    model.arrays["token_layer.projection.bias"][0] = number
    with pytest.raises(OutputError, match=r"projection\.bias"):
        save_model(model, tmp_path / "model", storage)
    assert not (tmp_path / "model").exists()


def test_hdf5_files_have_no_card_of_what_they_cannot_hold(tmp_path: Path) -> None:
    model = aligned_model()
    model.card["alignment"] = {"target": "another model"}
    save_model(model, tmp_path / "m.hdf5")
    assert "alignment" not in open_model(tmp_path / "m.hdf5").card
