"""Distillation: the loss of a student biLM that learns a teacher's layers and predictions.

The teacher reads the same windows as the student, with its own LSTM state, without dropout or gradient. Each layer of
the student is projected to the size of the teacher's and compared with it. The projections are trained with the student
and are part of its checkpoints, but not of the model. If both have a softmax over the same words, the student also
learns the teacher's probabilities of all words, which are more informative than the single next word (Hinton et al.
2015).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.engine.architecture import BiLMConfig
from elmokit.errors import ConfigError
from elmokit.network.bilm import BiLM, BiLMState, stack_states
from elmokit.network.softmax_losses import draw_sample, soft_target_loss
from elmokit.network.softmax_module import SoftmaxModule
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.batching import TokenEncoder
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.losses import WindowLosses
from elmokit.training.training_config import DistillationConfig, TrainingConfig

SMALLEST_VARIANCE = 1e-8


class Teacher:
    """A frozen model that reads the student's windows. Not a module, so the student neither trains nor saves it."""

    def __init__(self, model: PretrainedBiLM, student: PretrainedBiLM, device: torch.device) -> None:
        bilm, softmax = model.build_modules()
        self.bilm = bilm.to(device).eval().requires_grad_(False)
        self.softmax = None if softmax is None else softmax.to(device).requires_grad_(False)
        own = model.config.read_backward
        self._directions = [own.index(backward) for backward in student.config.read_backward]
        self._n_columns = None if _same_encoding(model, student) else _encode(student, ["a"]).shape[1]
        # If the numbers of layers differ, a layer learns from the one at the same relative depth, never from layer 0.
        n_layers, n_own = student.config.n_layers, model.config.n_layers
        self._layers = [max(1, round(layer * n_own / n_layers)) for layer in range(1, n_layers + 1)]

    @property
    def dim(self) -> int:
        """Size of the outputs of each direction."""
        return self.bilm.config.projection_dim

    def split(self, tokens: Tensor, student: BiLM) -> tuple[Tensor, Tensor]:
        """Split the result of :func:`window_encoder` into the inputs of student and teacher."""
        if self._n_columns is None:
            return tokens, tokens
        own, others = tokens[:, : self._n_columns], tokens[:, self._n_columns :]
        # A word-input model reads one id per token, without an axis for it.
        if student.config.n_words is not None:
            own = own[:, 0]
        if self.bilm.config.n_words is not None:
            others = others[:, 0]
        return own, others

    @torch.no_grad()
    def read(self, tokens: Tensor, inputs: Tensor, state: BiLMState) -> tuple[Tensor, list[list[Tensor]], BiLMState]:
        """Read a window of ``inputs`` ``(directions, batch, window_length)``, rows of the distinct ``tokens``.

        Returns:
            The token vectors ``(distinct, dim)``; for each direction of the student the outputs
            ``(batch, window_length, dim)`` that each of its LSTM layers learns from; and the state at the end.
        """
        # In float32 or the teacher's own precision, regardless of the training precision.
        with torch.autocast(tokens.device.type, enabled=False):
            vectors = self.bilm.token_layer(tokens)
            layers = []
            states = [state.of_direction(direction) for direction in range(self.bilm.config.n_directions)]
            for rows, direction in zip(inputs, self._directions, strict=True):
                outputs, states[direction] = self.bilm.run_direction(direction, vectors[rows], states[direction])
                layers.append([outputs[layer - 1] for layer in self._layers])
        return vectors, layers, stack_states(states)


class DistillationLosses(WindowLosses):
    """The student, its softmax and the projections as one module that computes the loss of a window."""

    def __init__(
        self,
        bilm: BiLM,
        softmax: SoftmaxModule,
        n_samples: int,
        teacher: Teacher,
        config: DistillationConfig,
    ) -> None:
        super().__init__(bilm, softmax, n_samples)
        self.teacher, self.config = teacher, config
        sizes = bilm.config
        # Layer 0 is the same for both directions; then those of the forward direction, then those of the backward one.
        n_projections = 1 + sizes.n_directions * sizes.n_layers if config.layer_weight else 0
        self.projections = nn.ModuleList(nn.Linear(sizes.projection_dim, teacher.dim) for _ in range(n_projections))

    def forward(
        self, tokens: Tensor, inputs: Tensor, targets: Tensor, hidden: Tensor, cell: Tensor, *teacher_state: Tensor
    ) -> tuple[Tensor, ...]:
        """Compute the losses of a window, like :class:`WindowLosses`; also return the states of both models."""
        own_tokens, teacher_tokens = self.teacher.split(tokens, self.bilm)
        wanted_vectors, wanted, teacher_end = self.teacher.read(teacher_tokens, inputs, BiLMState(*teacher_state))
        vectors, state = self._token_vectors(own_tokens), BiLMState(hidden, cell)
        # Each distinct token is projected once.
        projected = self.projections[0](vectors) if self.projections else vectors
        losses, states = [], []
        for direction, rows in enumerate(inputs):
            outputs, top, new_state = self._run_direction(direction, vectors[rows], state)
            states.append(new_state)
            wanted_top = wanted[direction][-1].flatten(0, 1)
            parts = self._prediction_losses(top, wanted_top, targets[direction].flatten())
            if self.projections:
                distances = [self._distance(projected[rows], wanted_vectors[rows])]
                first = 1 + direction * len(outputs)
                projections = self.projections[first : first + len(outputs)]
                for projection, output, wanted_output in zip(projections, outputs, wanted[direction], strict=True):
                    distances.append(self._distance(projection(output), wanted_output))
                parts.append(self.config.layer_weight * torch.stack(distances).mean())
            losses.append(torch.stack(parts).sum())
        end = stack_states(states).detach()
        return torch.stack(losses), end.hidden, end.cell, *teacher_end

    def _distance(self, given: Tensor, wanted: Tensor) -> Tensor:
        """Compare vectors ``(batch, window_length, dim)``: 0 for equal ones, near 1 for unrelated ones."""
        given, wanted = given.float().flatten(0, 1), wanted.flatten(0, 1)
        # Divided by the variance, because the scale of layers and teachers differs: this is 1 - R².
        variance = (wanted - wanted.mean(dim=0)).square().mean()
        return (given - wanted).square().mean() / variance.clamp(min=SMALLEST_VARIANCE)

    def _prediction_losses(self, top: Tensor, wanted: Tensor, word_ids: Tensor) -> list[Tensor]:
        """Compare the predictions with the words of the text and with the teacher's predictions."""
        config, softmax, teacher = self.config, self.softmax, self.teacher.softmax
        parts = []
        if config.prediction_weight:
            assert teacher is not None  # `resolve_predictions` refuses one without a softmax
            if not self.n_samples:  # both losses at once, over all words
                factors = config.text_weight, config.prediction_weight
                return [soft_target_loss(softmax, teacher, top, wanted, config.temperature, None, word_ids, *factors)]
            sampled = draw_sample(self.n_samples, len(softmax.bias)).word_ids.to(word_ids.device)
            words = torch.unique(torch.cat([sampled, word_ids]))
            divergence = soft_target_loss(softmax, teacher, top, wanted, config.temperature, words)
            parts.append(config.prediction_weight * divergence)
        if config.text_weight:
            parts.append(config.text_weight * self._loss(top, word_ids))
        return parts


def check_directions(teacher: BiLMConfig, student: BiLMConfig) -> None:
    """Check that the teacher reads in every direction of the student."""
    if not set(student.read_backward) <= set(teacher.read_backward):
        names = " and ".join(teacher.direction_names), " and ".join(student.direction_names)
        raise ConfigError(
            f"The teacher only reads {names[0]}, but the student reads {names[1]}. Set bidirectional to false."
        )


def resolve_predictions(
    config: TrainingConfig, teacher: PretrainedBiLM, vocabulary: Vocabulary
) -> tuple[TrainingConfig, str]:
    """Replace a ``prediction_weight`` of None with 1 if predictions can be learned, else 0; describe the result."""
    losses = config.distillation
    assert losses is not None
    reason = _cannot_predict(teacher, vocabulary)
    is_decided = losses.prediction_weight is not None
    if losses.prediction_weight is None:
        losses = dataclasses.replace(losses, prediction_weight=0.0 if reason else 1.0)
        config = dataclasses.replace(config, distillation=losses)
    elif losses.prediction_weight and reason:
        raise ConfigError(f"prediction_weight is {losses.prediction_weight:g}, but {reason}. Set it to 0.")
    weights = {"layers": losses.layer_weight, "predictions": losses.prediction_weight}
    learned = " and ".join(name for name, weight in weights.items() if weight)
    change = f"The student learns the {learned} of its teacher" if learned else "The student only learns from the text"
    if reason and not is_decided:
        change += f", but not the predictions, because {reason}"
    change += "."
    if not losses.trains_softmax:
        change += " Its softmax is not trained, so perplexities are meaningless, and the last model is kept."
    return config, change


def _cannot_predict(teacher: PretrainedBiLM, vocabulary: Vocabulary) -> str:
    """Return the reason why a student cannot learn a teacher's predictions; empty if it can."""
    if teacher.softmax is None:
        return "the teacher has no softmax"
    if teacher.vocabulary is None or teacher.vocabulary.words != vocabulary.words:
        return "its words differ from those of the teacher's softmax"
    return ""


def window_encoder(model: PretrainedBiLM, teacher: PretrainedBiLM) -> TokenEncoder:
    """Encode tokens for a model and its teacher, whose columns are appended if they differ."""
    if _same_encoding(model, teacher):
        return model.encode
    return lambda tokens: np.concatenate([_encode(model, tokens), _encode(teacher, tokens)], axis=1)


def _encode(model: PretrainedBiLM, tokens: Sequence[str]) -> NDArray[np.int64]:
    encoded = model.encode(tokens)
    return encoded[:, None] if encoded.ndim == 1 else encoded


def _same_encoding(first: PretrainedBiLM, second: PretrainedBiLM) -> bool:
    """Check whether both models read a token as the same UTF-8 bytes, as published models do.

    Models that know typographic marks read them differently.
    """
    if not first.read.is_plain or not second.read.is_plain:
        return False
    n_chars = _chars_alone(first)
    return n_chars is not None and n_chars == _chars_alone(second)


def _chars_alone(model: PretrainedBiLM) -> int | None:
    """Return the number of characters that a model reads per token; None if it reads words, or listed characters."""
    cnn = model.config.char_cnn
    if cnn is None or model.config.word_features is not None or model.lexicon is not None:
        return None
    return cnn.max_chars
