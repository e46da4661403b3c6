"""Convert models between NumPy and PyTorch, and run PyTorch modules behind the engine's interfaces, as on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.engine.architecture import BiLMConfig
from elmokit.engine.interface import NetworkInput
from elmokit.engine.library import UNKNOWN_IDS
from elmokit.engine.precision import Computation, Precision
from elmokit.engine.softmax import SoftmaxConfig, WordSoftmax
from elmokit.engine.state import Floats, Ids, State, StoredArrays
from elmokit.network.bilm import BiLM, BiLMState
from elmokit.network.char_cnn import CachedCharCNN, CharCNN
from elmokit.network.softmax_module import SoftmaxModule, build_softmax, softmax_config
from elmokit.network.tensors import tensor_of
from elmokit.text.batching import pad_rows


def build_bilm(
    config: BiLMConfig,
    arrays: Mapping[str, Floats],
    token_vectors: Floats | None = None,
) -> BiLM:
    """Build a biLM with these weights, and a table of precomputed vectors ``(rows, projection_dim)`` if given."""
    with torch.device("meta"):
        bilm = BiLM(config)
    load_arrays(bilm, arrays)
    if token_vectors is not None:
        assert isinstance(bilm.token_layer, CharCNN)
        bilm.token_layer = CachedCharCNN(bilm.token_layer, tensor_of(token_vectors))
    return bilm


def build_softmax_module(softmax: WordSoftmax, bilm: BiLM) -> SoftmaxModule:
    """Build a softmax with these weights; a tied one shares the biLM's word table."""
    with torch.device("meta"):
        module = build_softmax(softmax.config, softmax.n_words, bilm.config.projection_dim, bilm.token_layer)
    load_arrays(module, softmax.arrays)
    return module


def load_arrays(module: nn.Module, arrays: Mapping[str, Floats]) -> None:
    """Load arrays into a module, which may be on the meta device. Afterwards, the module owns its memory."""
    # Stored arrays are read from a file each time, so they are not shared. Other arrays belong to a model: copy them.
    is_read = isinstance(arrays, StoredArrays)
    tensors = {name: tensor_of(array if is_read else array.copy()) for name, array in arrays.items()}
    # `assign`, because a parameter on the meta device has no memory to copy into.
    module.load_state_dict(tensors, assign=True)
    module.eval()  # for inference; training switches to train mode itself


class ModuleArrays(Mapping[str, Floats]):
    """A view of a module's current weights as NumPy arrays, which share its memory where possible."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __getitem__(self, name: str) -> Floats:
        return _numpy(self._module.state_dict()[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._module.state_dict())

    def __len__(self) -> int:
        return len(self._module.state_dict())


def module_arrays(module: nn.Module) -> dict[str, Floats]:
    """Copy the weights of a module to NumPy arrays."""
    return {name: _numpy(tensor).copy() for name, tensor in module.state_dict().items()}


def word_softmax(module: SoftmaxModule, arrays: Mapping[str, Floats] | None = None) -> WordSoftmax:
    """Convert a softmax module for NumPy, with the given weights or a copy of its own. A tied one has no table yet."""
    return WordSoftmax(softmax_config(module), module_arrays(module) if arrays is None else arrays, len(module.bias))


class TorchNetwork:
    """Runs a PyTorch biLM on NumPy arrays, without gradients; see :class:`~elmokit.engine.interface.Network`.

    Args:
        bilm: The module. Its weights may change, and move to another device.
    """

    def __init__(self, bilm: BiLM) -> None:
        self._bilm = bilm.eval()

    @property
    def config(self) -> BiLMConfig:
        return self._bilm.config

    @property
    def n_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._bilm.state_dict().values())

    @property
    def token_layer_version(self) -> object:
        return object()  # the weights may have changed

    def computation(self) -> Computation:
        return self._bilm.computation()

    @torch.no_grad()
    def token_vectors(self, ids: Ids) -> Floats:
        try:
            vectors: Tensor = self._bilm.token_layer(torch.from_numpy(ids).to(self._bilm.device))
        except IndexError:
            raise ValueError(UNKNOWN_IDS) from None
        return _numpy(vectors)

    @torch.no_grad()
    def layers(
        self, inputs: NetworkInput, wanted: Sequence[int], *, n_edges: int = 0, returns_state: bool = False
    ) -> tuple[list[Floats], State | None]:
        padded, mask, state = self._padded(inputs)
        layers, after = self._bilm.contextualize(padded, mask, state)
        arrays = _numpy(layers[list(wanted)])
        results = [
            arrays[:, row, n_edges : max(n_edges, length - n_edges)].copy()
            for row, length in enumerate(inputs.lengths.tolist())
        ]
        return results, after.numpy() if returns_state else None

    @torch.no_grad()
    def direction(self, number: int, inputs: NetworkInput, wanted: Sequence[int]) -> tuple[list[Floats], State]:
        padded, mask, state = self._padded(inputs)
        reverse = self.config.read_backward[number]
        outputs, after = self._bilm.run_direction(number, padded, state.of_direction(number), mask, reverse)
        layers = [_numpy([padded, *outputs][layer]) for layer in wanted]
        results = [
            np.stack([layer[row, :length] for layer in layers])
            if layers
            else np.empty((0, length, padded.shape[-1]), np.float32)
            for row, length in enumerate(inputs.lengths.tolist())
        ]
        end = State.zero(self.config, len(inputs.lengths))
        for layer, (hidden, cell) in enumerate(after):
            end.hidden[number, layer], end.cell[number, layer] = _numpy(hidden), _numpy(cell)
        return results, end

    def _padded(self, inputs: NetworkInput) -> tuple[Tensor, Tensor, BiLMState]:
        """Return a batch's token vectors, padded on the right, its mask and its initial state."""
        vectors, words, lengths, start = inputs
        device, dtype = self._bilm.device, self._bilm.dtype
        index, mask = pad_rows(words, lengths)
        state = BiLMState.from_numpy(start).to(device, dtype)
        state = state if start.n_rows == len(lengths) else state.repeat_row(len(lengths))
        return torch.from_numpy(vectors[index]).to(device, dtype), torch.from_numpy(mask).to(device), state


class TorchSoftmax:
    """Runs a PyTorch softmax on NumPy arrays; see :class:`~elmokit.engine.softmax.Softmax`.

    Args:
        module: The module. Its weights may change, and move to another device.
    """

    def __init__(self, module: SoftmaxModule) -> None:
        self._module = module

    @property
    def config(self) -> SoftmaxConfig:
        return softmax_config(self._module)

    @property
    def arrays(self) -> Mapping[str, Floats]:
        return {name: _numpy(tensor) for name, tensor in self._module.state_dict().items()}

    @property
    def weight(self) -> Floats:
        return _numpy(self._module.weight)

    @torch.no_grad()
    def scores(self, hidden: Floats) -> Floats:
        return _numpy(self._module.scores(self._here(hidden)))

    def nats(self, hidden: Floats, word_ids: Ids, precision: Precision | None = None) -> Floats:
        device = next(self._module.parameters()).device
        return _numpy(self._module.nats(self._here(hidden), torch.from_numpy(word_ids).to(device)))

    def _here(self, hidden: Floats) -> Tensor:
        return torch.from_numpy(hidden).to(next(self._module.parameters()).device)


def _numpy(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().float().cpu().numpy()
    return array
