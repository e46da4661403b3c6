"""An exponential moving average of the weights, which is evaluated and kept in their place."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import nn

from elmokit.formats.model import PretrainedBiLM


def decay_at(decay: float, n_steps: int) -> float:
    """Return the decay of a moving average at a step, counted from 1.

    As in TensorFlow and AllenNLP, the average follows closely at first, so that it forgets the initial weights soon.
    """
    return min(decay, (1 + n_steps) / (10 + n_steps))


class WeightAverage:
    """A copy of a model whose weights follow those of the training at a distance: a moving average.

    At a high learning rate, steps move the weights back and forth around a better point, and their average is closer to
    it. It costs a second copy of the weights, and no step depends on it.
    """

    def __init__(self, model: PretrainedBiLM, decay: float) -> None:
        # Copied together: a tied softmax keeps sharing its weights with the biLM of the copy.
        bilm, softmax = copy.deepcopy((model.bilm, model.softmax_module))
        self.model = model.replace(weights=bilm.requires_grad_(False), softmax=softmax)
        self.decay = decay
        if softmax is not None:
            softmax.requires_grad_(False)

    @torch.no_grad()
    def update(self, model: PretrainedBiLM, n_steps: int) -> None:
        """Move the average towards the weights of the training, after step ``n_steps``."""
        torch._foreach_lerp_(_weights(self.model), _weights(model), 1 - decay_at(self.decay, n_steps))

    @torch.no_grad()
    def restore(self, saved: PretrainedBiLM) -> None:
        """Set the average to that of a checkpoint."""
        for own, other in zip(_weights(self.model), _weights(saved), strict=True):
            own.copy_(other)


def _weights(model: PretrainedBiLM) -> list[torch.Tensor]:
    modules: list[nn.Module] = [model.bilm]
    if (softmax := model.softmax_module) is not None:
        modules.append(softmax)
    return list(itertools.chain.from_iterable(module.parameters() for module in modules))
