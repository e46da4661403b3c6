"""How far a computed number may be from the exact one, because every step of a computation rounds.

A fast function and its plain version add the same terms in different orders, so their last digits differ. By how much
depends on the number of terms and their size: a fixed tolerance is too tight for one random example and too loose for
another. Here a ``Rounded`` holds the exact values of a tensor (in float64) together with the standard deviation of the
error that a computation in fewer digits makes. The functions below repeat a layer's formulas with such numbers.
``unit`` is the largest relative error of one rounding, 2^-24 in float32.

- **A sum of n products** ``a * b`` has n partial sums, and each is rounded by at most ``unit`` of itself. In any order,
  they go from 0 to the sum and stray from that path by about ``sqrt(sum (a * b)^2)``, because the weights of these
  layers have random signs. So have rounding errors, and n of them add up to about ``sqrt(n)`` times one of them:
  ``unit * sqrt(n) * (|sum| + sqrt(sum (a * b)^2))`` (Higham and Mary 2019, "A new approach to probabilistic rounding
  error analysis").
- **Errors that the factors already have** are multiplied by the other factor. The signs of those products are random
  too, so they add like ``sqrt(sum (a * error_b)^2 + (b * error_a)^2)``. In the worst case they would add like their
  magnitudes, but that bound grows with each step of an LSTM, fourteenfold with 90 cells, and soon excludes nothing.
- **Two numbers** that are added or multiplied may share an error, so their errors are added in full.
- **A function** multiplies an error by at most its Lipschitz constant: 1/4 for the sigmoid; 1 for tanh, relu, a clip
  and the maximum of several numbers. Those of C are exact to six digits, 16 units.
- **The gradient of a clip** is 0 or 1. Where the clipped number is so close to its bound that either may come out, its
  error is 1.
- **Products in fewer digits** round both factors first: see ``factor_error``.

A computed number must be within ``DEVIATIONS`` standard deviations of the exact one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.engine.architecture import FORGET_OFFSET
from elmokit.network.char_cnn import CharCNN
from elmokit.network.lstm_module import LSTMState, ProjectedLSTM

# A normal number is so far from its mean once in 10^15 times.
DEVIATIONS = 8.0
FUNCTION_UNITS = 16

Digits = Literal["float32", "float16", "bfloat16", "int8", "int7"]
"""What the factors of a product are rounded to."""


def factor_error(factor: Tensor, digits: Digits) -> Tensor:
    """Return the standard deviation of the error of rounding a factor of a product, whose last axis is summed over.

    Rounding to a multiple of a step is wrong by up to half a step, with a standard deviation of half a step / sqrt(3).
    For int8, half a step is 1/127 of the largest number of a row: PyTorch keeps 7 bits of inputs on some processors.
    """
    if digits == "float32":
        return torch.zeros_like(factor)
    if digits in ("int8", "int7"):
        half_step = (factor.abs().amax(dim=-1, keepdim=True) / 127).expand_as(factor)
    else:
        half_step = factor.abs() * {"bfloat16": 2.0**-8, "float16": 2.0**-11}[digits]
    return half_step / 3**0.5


@dataclass(frozen=True)
class Rounded:
    """A tensor with the standard deviation of each number's error. The module's docstring has the rules."""

    value: Tensor
    error: Tensor
    unit: float

    @classmethod
    def exact(cls, tensor: Tensor) -> Rounded:
        """Return an input or a weight, without an error. Its dtype is that of the computation."""
        unit = torch.finfo(tensor.dtype).eps / 2
        value = tensor.detach().double()
        return cls(value, torch.zeros_like(value), unit)

    @classmethod
    def sum_of(cls, n_terms: int, value: Tensor, squares: Tensor, unit: float) -> Rounded:
        """Return a sum of exact terms, given their number, their exact sum and the sum of their squares."""
        return cls(value, unit * n_terms**0.5 * (value.abs() + squares.sqrt()), unit)

    def rounded(self, value: Tensor, error: Tensor) -> Rounded:
        """Return the result of an operation that rounds once more."""
        return Rounded(value, error + self.unit * value.abs(), self.unit)

    def __add__(self, other: Rounded) -> Rounded:
        return self.rounded(self.value + other.value, self.error + other.error)

    def __mul__(self, other: Rounded) -> Rounded:
        error = self.value.abs() * other.error + self.error * other.value.abs() + self.error * other.error
        return self.rounded(self.value * other.value, error)

    def complement(self) -> Rounded:
        """Return 1 minus these numbers."""
        return self.rounded(1 - self.value, self.error)

    def product(self, other: Rounded, digits: Digits = "float32") -> Rounded:
        """Return ``(rows, n) @ (outputs, n).T``, as of inputs and a weight."""
        one, two = self.value, other.value
        errors = [part.error + factor_error(part.value, digits) for part in (self, other)]
        variance = errors[0] ** 2 @ (two.T**2 + errors[1].T ** 2) + one**2 @ errors[1].T ** 2
        total = Rounded.sum_of(one.shape[1], one @ two.T, one**2 @ two.T**2, self.unit)
        return Rounded(total.value, variance.sqrt() + total.error, self.unit)

    def apply(self, function: Callable[[Tensor], Tensor], lipschitz: float) -> Rounded:
        """Return an elementwise function of these numbers."""
        value = function(self.value)
        # Of results below one unit, such as the sigmoid of -40, C need not have all digits.
        error = FUNCTION_UNITS * self.unit * value.abs().clamp(min=self.unit)
        return Rounded(value, lipschitz * self.error + error, self.unit)

    def sigmoid(self) -> Rounded:
        return self.apply(torch.sigmoid, 0.25)

    def tanh(self) -> Rounded:
        return self.apply(torch.tanh, 1.0)

    def clip(self, bound: float | None) -> Rounded:
        return self if bound is None else Rounded(self.value.clamp(-bound, bound), self.error, self.unit)

    def clip_gradient(self, bound: float | None) -> Rounded:
        """Return the gradient of ``clip``."""
        if bound is None:
            return Rounded.exact(torch.ones_like(self.value))
        distance = self.value.abs() - bound
        return Rounded((distance <= 0).double(), (distance.abs() <= DEVIATIONS * self.error).double(), self.unit)

    def rearranged(self, function: Callable[..., Tensor], *others: Rounded) -> Rounded:
        """Return what a function that only moves numbers makes of this tensor and others."""
        parts = (self, *others)
        return Rounded(function(*(part.value for part in parts)), function(*(part.error for part in parts)), self.unit)

    def where(self, mask: Tensor, other: Rounded) -> Rounded:
        """Return these numbers where ``mask`` is True, and those of ``other`` elsewhere."""
        return self.rearranged(lambda one, two: torch.where(mask, one, two), other)

    def masked(self, mask: Tensor) -> Rounded:
        """Return ``(batch, time, dim)`` with zeros where the mask ``(batch, time)`` is False."""
        return self.rearranged(lambda tensor: tensor * mask[..., None])

    def zeros(self) -> Rounded:
        return self.rearranged(torch.zeros_like)

    def steps(self) -> list[Rounded]:
        """Return ``(batch, dim)`` of each step of ``(batch, time, dim)``."""
        return [self.rearranged(lambda tensor, step=step: tensor[:, step]) for step in range(self.value.shape[1])]


def concatenated(parts: Sequence[Rounded], dim: int = 1) -> Rounded:
    """Concatenate tensors."""
    return parts[0].rearranged(lambda *tensors: torch.cat(tensors, dim=dim), *parts[1:])


def of_steps(steps: Sequence[Rounded]) -> Rounded:
    """Return ``(batch, time, dim)`` of the ``(batch, dim)`` of each step."""
    return steps[0].rearranged(lambda *tensors: torch.stack(tensors, dim=1), *steps[1:])


def assert_rounded(found: Tensor, exact: Rounded, deviations: float = DEVIATIONS) -> None:
    """Fail if a computed number is farther from the exact one than its rounding explains."""
    assert found.shape == exact.value.shape
    excess = (found.detach().double() - exact.value).abs() - deviations * exact.error
    if not bool((excess <= 0).all()):  # nor NaN
        worst = int(excess.nan_to_num(float("inf")).argmax())
        value, error = float(exact.value.flatten()[worst]), float(exact.error.flatten()[worst])
        raise AssertionError(
            f"Number {worst} of {tuple(found.shape)} is {float(found.flatten()[worst]):.9g} instead of {value:.9g}; "
            f"rounding explains a difference of {deviations * error:.3g}."
        )


def char_cnn(cnn: CharCNN, ids: Tensor, digits: Digits = "float32") -> Rounded:
    """Compute a char CNN; ``digits`` holds for its highways and its projection.

    Args:
        cnn: The layer.
        ids: ``(tokens, chars)``.
        digits: What the factors of the products are rounded to. Convolutions are computed in the layer's own dtype.

    Returns:
        ``(tokens, output_dim)``
    """
    characters = cnn.char_embedding.weight[ids]  # (tokens, chars, char_dim)
    maxima = []
    for convolution in cnn.convolutions:
        weight, bias = convolution.parameters()
        windows = characters.unfold(1, weight.shape[2], 1).flatten(2)  # (tokens, positions, char_dim * width)
        responses = Rounded.exact(windows.flatten(0, 1)).product(Rounded.exact(weight.flatten(1)))
        n_positions = windows.shape[1]
        largest = responses.rearranged(lambda tensor, n=n_positions: tensor.view(len(ids), n, -1).amax(dim=1))
        maxima.append(largest + Rounded.exact(bias))
    features = concatenated(maxima)
    features = features.tanh() if cnn.activation == "tanh" else features.apply(F.relu, 1.0)
    for highway in cnn.highways:
        transform, gate = (
            features.product(Rounded.exact(linear.weight), digits) + Rounded.exact(linear.bias)
            for linear in highway.children()
        )
        gate = gate.sigmoid()
        features = gate * transform.apply(F.relu, 1.0) + gate.complement() * features
    if cnn.projection is None:
        return features
    return features.product(Rounded.exact(cnn.projection.weight), digits) + Rounded.exact(cnn.projection.bias)


class LSTMStep(NamedTuple):
    """What the gradient of one step needs."""

    read: Rounded  # (batch, input_dim + projection_dim)
    gates: list[Rounded]  # i, g, f, o
    old_cell: Rounded
    unclipped_cell: Rounded
    tanh_cell: Rounded
    unprojected: Rounded
    unclipped_output: Rounded


class LSTMRun(NamedTuple):
    """The results of ``lstm``."""

    outputs: Rounded  # (batch, time, projection_dim), zero on padding
    hidden: Rounded
    cell: Rounded
    steps: list[LSTMStep]


def lstm(layer: ProjectedLSTM, inputs: Rounded, state: LSTMState, mask: Tensor, digits: Digits = "float32") -> LSTMRun:
    """Compute a layer from the first step to the last, with the formulas of ``network/lstm_module.py``."""
    weight, bias = Rounded.exact(layer.weight), layer.bias.detach().clone()
    bias[2 * layer.hidden_dim : 3 * layer.hidden_dim] += FORGET_OFFSET
    hidden, cell = Rounded.exact(state.hidden), Rounded.exact(state.cell)
    outputs, steps = [], []
    for step, step_inputs in enumerate(inputs.steps()):
        read = concatenated([step_inputs, hidden])
        sums = read.product(weight, digits) + Rounded.exact(bias)
        parts = [sums.rearranged(lambda tensor, k=k: tensor.chunk(4, dim=1)[k]) for k in range(4)]
        i, g, f, o = parts[0].sigmoid(), parts[1].tanh(), parts[2].sigmoid(), parts[3].sigmoid()
        unclipped_cell = f * cell + i * g
        new_cell = unclipped_cell.clip(layer.cell_clip)
        tanh_cell = new_cell.tanh()
        unprojected = unclipped = output = o * tanh_cell
        if layer.projection is not None:
            unclipped = unprojected.product(Rounded.exact(layer.projection), digits)
            output = unclipped.clip(layer.projection_clip)
        steps.append(LSTMStep(read, [i, g, f, o], cell, unclipped_cell, tanh_cell, unprojected, unclipped))
        real = mask[:, step, None]
        hidden, cell = output.where(real, hidden), new_cell.where(real, cell)
        outputs.append(output.where(real, output.zeros()))
    return LSTMRun(of_steps(outputs), hidden, cell, steps)


def lstm_gradients(layer: ProjectedLSTM, run: LSTMRun, upstream: Rounded) -> list[Rounded]:
    """Return the gradients of ``sum(outputs * upstream)`` with respect to the inputs and to each parameter in order.

    Args:
        layer: The layer.
        run: Its run over a batch that is padded on the right, if at all.
        upstream: ``(batch, time, projection_dim)``, zero on padding.
    """
    to_hidden, to_cell = run.hidden.zeros(), run.cell.zeros()
    to_inputs, reads, to_sums, to_projection = [], [], [], []
    for step, to_output in zip(reversed(run.steps), reversed(upstream.steps()), strict=True):
        to_output = to_output + to_hidden
        if layer.projection is not None:
            to_output = to_output * step.unclipped_output.clip_gradient(layer.projection_clip)
            to_projection.append((to_output, step.unprojected))
            to_output = to_output.product(Rounded.exact(layer.projection.T))
        i, g, f, o = step.gates
        slope = (step.tanh_cell * step.tanh_cell).complement()
        to_cell = (to_output * o * slope + to_cell) * step.unclipped_cell.clip_gradient(layer.cell_clip)
        to_gates = [to_cell * g, to_cell * i, to_cell * step.old_cell, to_output * step.tanh_cell]
        slopes = [i * i.complement(), (g * g).complement(), f * f.complement(), o * o.complement()]
        sums = concatenated([gradient * slope for gradient, slope in zip(to_gates, slopes, strict=True)])
        to_cell = to_cell * f
        to_read = sums.product(Rounded.exact(layer.weight.T))
        to_inputs.append(to_read.rearranged(lambda tensor: tensor[:, : layer.input_dim]))
        to_hidden = to_read.rearranged(lambda tensor: tensor[:, layer.input_dim :])
        reads.append(step.read)
        to_sums.append(sums)
    transposed = [concatenated(parts, dim=0).rearranged(lambda tensor: tensor.T) for parts in (to_sums, reads)]
    ones = Rounded.exact(torch.ones(1, transposed[0].value.shape[1], dtype=torch.float64))
    gradients = [
        of_steps(to_inputs[::-1]),
        transposed[0].product(transposed[1]),
        transposed[0].product(ones).rearranged(lambda tensor: tensor[:, 0]),
    ]
    if to_projection:
        parts = [concatenated(list(side), dim=0) for side in zip(*to_projection, strict=True)]
        gradients.append(parts[0].rearranged(lambda t: t.T).product(parts[1].rearranged(lambda t: t.T)))
    return gradients
