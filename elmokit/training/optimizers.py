"""Optimizers and gradient clipping, shared by the biLM's training and the tasks'.

Muon (Jordan et al. 2024) takes steps of equal size in all directions of a weight matrix. It replaces the running mean
of a matrix's gradients, ``U S V^T``, by ``U V^T``: all singular values become about 1, so that directions with small
gradients are learned as fast as those with large ones. Newton-Schulz iterations compute this from matrix products
alone. Embeddings, the rows of the softmax, convolutions and biases are not matrices in this sense, because a step uses
only some of their rows, or each number has a meaning of its own: Adam trains them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from elmokit.network.char_cnn import CharCNN, Highway, WordCharLayer
from elmokit.network.lstm_module import ProjectedLSTM
from elmokit.network.softmax_module import InnerLayer
from elmokit.training.distributed import World

SLOTS: dict[str, dict[str, float]] = {
    "adagrad": {"sum": 1.0},
    "muon": {"momentum": 0.0, "exp_avg": 0.0, "exp_avg_sq": 0.0},
}
"""What an optimizer of a biLM training keeps for each weight: PyTorch's names, and the initial values.

Muon keeps the momentum of matrices and Adam's two means of the other weights.
"""


def build_optimizer(
    name: str,
    parameters: Iterable[Parameter] | Iterable[dict[str, Any]],
    learning_rate: float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    rho: float = 0.9,
    momentum: float = 0.0,
) -> torch.optim.Optimizer:
    """Build an optimizer by name."""
    kinds: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
        "adam": (torch.optim.Adam, {"betas": betas, "eps": epsilon}),
        "adamw": (torch.optim.AdamW, {"betas": betas, "eps": epsilon, "weight_decay": 0.0}),
        # As in TensorFlow, where the original models were trained: sums start at 1, with no epsilon.
        "adagrad": (torch.optim.Adagrad, {"initial_accumulator_value": SLOTS["adagrad"]["sum"], "eps": 0.0}),
        "adadelta": (torch.optim.Adadelta, {"rho": rho, "eps": epsilon}),
        "sgd": (torch.optim.SGD, {"momentum": momentum}),
    }
    optimizer, settings = kinds[name]
    return optimizer(parameters, lr=learning_rate, **settings)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of all parameters; groups with an ``lr_ratio`` get that multiple of it."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("lr_ratio", 1.0)


def clip_gradients(
    parameters: Iterable[Parameter], max_norm: float | None = None, max_value: float | None = None
) -> float | None:
    """Clip each entry to ``max_value``, then the global norm to ``max_norm``; return the norm before."""
    parameters = list(parameters)
    if max_value is not None:
        nn.utils.clip_grad_value_(parameters, max_value)
    return None if max_norm is None else float(nn.utils.clip_grad_norm_(parameters, max_norm))


def optimizer_tensors(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Parameter]) -> dict[str, Tensor]:
    """Collect an optimizer's state for some parameters as tensors named ``SLOT/PARAMETER``."""
    # By name and not by number, as ``optimizer.state_dict()`` would: a checkpoint survives a change in the order of
    # modules, and its file can be inspected.
    tensors = {}
    for name, parameter in parameters.items():
        for slot, value in optimizer.state.get(parameter, {}).items():
            if value is not None:  # SGD without momentum keeps an empty slot
                tensors[f"{slot}/{name}"] = torch.as_tensor(value)
    return tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Parameter], tensors: Mapping[str, Tensor]
) -> None:
    """Load what :func:`optimizer_tensors` collected. Tensors of parameters that are not trained now are ignored."""
    for key, value in tensors.items():
        slot, name = key.split("/", 1)
        if name in parameters:
            # Optimizers count their steps on the CPU, also for a model on a GPU; only a fused one counts on the GPU.
            on_cpu = slot == "step" and not optimizer.defaults.get("fused")
            optimizer.state[parameters[name]][slot] = value if on_cpu else value.to(parameters[name].device)


MOMENTUM = 0.95
# Jordan's quintic: it brings singular values between 0.01 and 1 to between 0.7 and 1.2 in five iterations. The exact
# value 1 would need many more, and training does not profit from it.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
N_ITERATIONS = 5
EPSILON = 1e-7

Blocks = tuple[int, int]
"""How many blocks of equal size a weight has along its rows and its columns."""


def matrix_blocks(module: nn.Module) -> dict[Tensor, Blocks]:
    """Return the matrices inside a module that Muon trains, and the blocks of which each consists."""
    blocks: dict[Tensor, Blocks] = {}
    for layer in module.modules():
        if isinstance(layer, ProjectedLSTM):
            # Eight matrices in one weight: those of its four gates, each for the input and for the state. They are
            # orthogonalized one by one, because their gradients differ in size. In one matrix, the largest would leave
            # little of the others.
            has_square_halves = layer.input_dim == layer.projection_dim
            blocks[layer.weight] = (4, 2) if has_square_halves else (4, 1)
            if layer.projection is not None:
                blocks[layer.projection] = (1, 1)
        elif isinstance(layer, Highway):
            blocks[layer.transform.weight] = blocks[layer.gate.weight] = (1, 1)
        elif isinstance(layer, InnerLayer):
            blocks[layer.expand.weight] = blocks[layer.reduce.weight] = (1, 1)
        elif isinstance(layer, CharCNN | WordCharLayer) and layer.projection is not None:
            blocks[layer.projection.weight] = (1, 1)
    return blocks


class Muon(torch.optim.Adam):
    """Muon for the matrices in ``blocks`` and Adam for other parameters; each process orthogonalizes some blocks."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        blocks: Mapping[Tensor, Blocks],
        lr: float,
        matrix_lr: float,
        fused: bool,
        world: World = World(),  # noqa: B008 (immutable)
    ) -> None:
        trained = list(parameters)
        matrices = [parameter for parameter in trained if parameter in blocks]
        groups: list[dict[str, Any]] = [
            {"params": [parameter for parameter in trained if parameter not in blocks]},
            {"params": matrices, "lr": matrix_lr, "lr_ratio": matrix_lr / lr},
        ]
        super().__init__([group for group in groups if group["params"]], lr=lr, fused=fused or None)
        self._blocks = {parameter: blocks[parameter] for parameter in matrices}
        self._world = world

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step."""
        gradients = {parameter: parameter.grad for parameter in self._blocks}
        for group in self.param_groups:
            self._step_matrices([value for value in group["params"] if value in self._blocks], group["lr"])
        for parameter in gradients:
            parameter.grad = None  # Adam skips parameters without a gradient
        loss = super().step(closure)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        return loss  # type: ignore[no-any-return]

    def _step_matrices(self, parameters: list[Tensor], learning_rate: float) -> None:
        # Blocks of one shape are orthogonalized in one batch: the products of single blocks are small.
        by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            momentum: Tensor = state["momentum"].lerp_(gradient, 1 - MOMENTUM)
            update = gradient.lerp(momentum, MOMENTUM)  # Nesterov's
            blocks = self._blocks[parameter]
            for block, block_update in zip(_split(parameter, blocks), _split(update, blocks), strict=True):
                # Wide blocks: the iterations multiply squares of the number of rows.
                n_rows, n_columns = block_update.shape
                wide = block_update if n_rows <= n_columns else block_update.T
                by_shape.setdefault((wide.shape[0], wide.shape[1]), []).append((block, wide))
        for pairs in by_shape.values():
            orthogonal = self._world.divide_rows(orthogonalize, torch.stack([wide for _, wide in pairs]))
            for (block, _), new in zip(pairs, orthogonal, strict=True):
                n_rows, n_columns = block.shape
                scale = max(1.0, n_rows / n_columns) ** 0.5  # Jordan's: equal effect on the outputs of any shape
                block.add_(new if block.shape == new.shape else new.T, alpha=-learning_rate * scale)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Replace the singular values of matrices ``(matrices, rows, columns)``, rows <= columns, by numbers around 1."""
    # An iteration multiplies a matrix `X` from the left by a polynomial of `X X^T`. The polynomials of all iterations
    # are multiplied first, in terms of the small square `X X^T` alone, and their product is applied to `X` once. For
    # the blocks of an LSTM with a projection, that takes about half of the time of iterating on `X`.
    a, b, c = COEFFICIENTS
    scaled: Tensor = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + EPSILON)  # no singular value above 1
    square = scaled @ scaled.mT
    identity = torch.eye(len(square[0]), dtype=square.dtype, device=square.device)
    product = identity
    for index in range(N_ITERATIONS):
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c) + a * identity
        product = polynomial @ product
        if index < N_ITERATIONS - 1:
            square = polynomial @ square @ polynomial  # all of them are polynomials of one matrix, so they commute
    return product @ scaled


def _split(weight: Tensor, blocks: Blocks) -> list[Tensor]:
    """Split a weight into its blocks, as views."""
    n_rows, n_columns = blocks
    parts: list[Tensor] = []
    for rows in weight.chunk(n_rows):
        parts += rows.chunk(n_columns, dim=1)
    return parts
