"""The loops of a GPU do not mix devices. Checked without a GPU: meta tensors have a device, and no data."""

from __future__ import annotations

import pytest
import torch

from elmokit import ElmoModule
from elmokit.engine.state import State
from elmokit.network.lstm_inference import LayerWeights, TorchLayer, prepare_layer, run_layer_torch
from tests.conftest import random_model

N_ROWS, DIM, HIDDEN = 3, 32, 64


@pytest.mark.parametrize("backend", ["torch", "torch-bfloat16"])
def test_the_packed_loop_stays_on_its_device(backend: str) -> None:
    with torch.device("meta"):
        weights = LayerWeights(
            torch.zeros(4 * HIDDEN, 2 * DIM), torch.zeros(4 * HIDDEN), torch.zeros(DIM, HIDDEN), 3.0, 3.0
        )
        batch_sizes = [N_ROWS, N_ROWS, 1]
        inputs = torch.zeros(sum(batch_sizes), DIM)
        hidden, cell = (torch.zeros(N_ROWS, dim) for dim in (DIM, HIDDEN))
    layer = prepare_layer(backend, weights, DIM)  # type: ignore[arg-type]
    assert isinstance(layer, TorchLayer)
    outputs = run_layer_torch(layer, batch_sizes, inputs, hidden, cell)
    assert (outputs.shape, outputs.dtype, outputs.device) == (inputs.shape, torch.float32, inputs.device)


def test_the_start_state_is_where_the_network_is() -> None:
    model = random_model()
    model.start_state = State(*(part + 1 for part in State.zero(model.config, 1)))
    model.bilm.to("meta")
    assert {part.device.type for part in ElmoModule(model).start_state(2)} == {"meta"}
