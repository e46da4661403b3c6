"""The training loss of a window, for each direction, and its precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit.network.backends import multiplies_bfloat16
from elmokit.network.bilm import BiLM, BiLMState, stack_states
from elmokit.network.lstm_module import LSTMState
from elmokit.network.softmax_losses import draw_sample, sampled_softmax_loss
from elmokit.network.softmax_module import SoftmaxModule
from elmokit.network.tile_layers import dropout
from elmokit.training.training_config import TrainingConfig


def uses_bfloat16(config: TrainingConfig, device: torch.device) -> bool:
    """Check whether products are computed in bfloat16: if the config requests it and it is faster on the device."""
    # A CPU without such instructions would convert the rounded numbers back, so float32 is exact and at least as fast.
    return config.precision == "bfloat16" and (device.type != "cpu" or multiplies_bfloat16())


def step_autocast(config: TrainingConfig, device: torch.device) -> torch.autocast:
    """Return the context in which the losses of a step are computed."""
    return torch.autocast(device.type, torch.bfloat16, enabled=uses_bfloat16(config, device))


WORD_DROPOUT = 0.1


class WindowLosses(nn.Module):
    """A biLM and its softmax as one module, as ``DistributedDataParallel`` needs it; it computes the loss of a window.

    Each direction's loss uses ``n_samples`` sampled words; with 0, the full softmax. A model that reads characters and
    words reads a fraction ``word_dropout`` of the distinct words in a window only as characters.
    """

    def __init__(self, bilm: BiLM, softmax: SoftmaxModule, n_samples: int, word_dropout: float = WORD_DROPOUT) -> None:
        super().__init__()
        self.bilm = bilm
        self.softmax = softmax
        self.n_samples = n_samples
        reads_both = bilm.config.word_features is not None and bilm.config.char_cnn is not None
        self._word_dropout = word_dropout if reads_both else 0.0

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the loss that are not part of the model, by name. They are saved in checkpoints."""
        return {name: value for name, value in self.named_parameters() if not name.startswith(("bilm.", "softmax."))}

    def forward(
        self, tokens: Tensor, inputs: Tensor, targets: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, ...]:
        """Compute the losses of a window of distinct ``tokens``, as in ``training.windows.Window``.

        Args:
            tokens: Distinct tokens.
            inputs: Rows of ``tokens``, ``(directions, batch, window_length)``.
            targets: Word ids, ``(directions, batch, window_length)``.
            hidden, cell: The ``BiLMState`` at the start of the window.

        Returns:
            The mean loss of each direction in nats ``(directions,)``, and the state at the end, without gradient.
        """
        vectors = self._token_vectors(tokens)
        state = BiLMState(hidden, cell)
        losses, states = [], []
        for direction, rows in enumerate(inputs):
            _, top, new_state = self._run_direction(direction, vectors[rows], state)
            losses.append(self._loss(top, targets[direction].flatten()))
            states.append(new_state)
        end = stack_states(states).detach()
        return torch.stack(losses), end.hidden, end.cell

    def _token_vectors(self, tokens: Tensor) -> Tensor:
        """Return the vectors of distinct tokens, ``(distinct, dim)``; without the word table for some of them."""
        if self._word_dropout and self.training:
            dropped = torch.rand(len(tokens), device=tokens.device) < self._word_dropout
            # Column 0 is the row in the table, and row 0 is zero.
            rows, characters = tokens[:, :1], tokens[:, 1:]
            tokens = torch.cat([rows.masked_fill(dropped[:, None], 0), characters], dim=1)
        vectors: Tensor = self.bilm.token_layer(tokens)
        return vectors

    def _run_direction(
        self, direction: int, vectors: Tensor, state: BiLMState
    ) -> tuple[list[Tensor], Tensor, list[LSTMState]]:
        """Run one direction over token vectors ``(batch, window_length, dim)``.

        Returns:
            The outputs of each LSTM layer ``(batch, window_length, dim)``; those of the top layer after dropout
            ``(batch * window_length, dim)``; and the state at the end of the window.
        """
        outputs, end = self.bilm.run_direction(direction, vectors, state.of_direction(direction))
        top = dropout(outputs[-1], self.bilm.config.dropout, self.training).flatten(0, 1)
        return outputs, top, end

    def _loss(self, hidden: Tensor, word_ids: Tensor) -> Tensor:
        if not self.n_samples:
            loss: Tensor = self.softmax(hidden, word_ids)
            return loss
        sample = draw_sample(self.n_samples, len(self.softmax.bias))
        return sampled_softmax_loss(self.softmax, hidden, word_ids, sample)
