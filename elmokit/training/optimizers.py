"""Optimizers and gradient clipping, shared by the biLM's training and the tasks'."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

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
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    rho: float = 0.9,
    momentum: float = 0.0,
) -> torch.optim.Optimizer:
    """Build an optimizer by name."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=learning_rate, betas=betas, eps=epsilon)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=learning_rate, betas=betas, eps=epsilon, weight_decay=weight_decay)
    if name == "adagrad":
        # As in TensorFlow, where the original models were trained: sums start at 1, with no epsilon.
        start = SLOTS["adagrad"]["sum"]
        return torch.optim.Adagrad(parameters, lr=learning_rate, initial_accumulator_value=start, eps=0.0)
    if name == "adadelta":
        return torch.optim.Adadelta(parameters, lr=learning_rate, rho=rho, eps=epsilon)
    assert name == "sgd", name
    return torch.optim.SGD(parameters, lr=learning_rate, momentum=momentum)


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
