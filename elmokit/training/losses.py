"""The training loss of one window, each direction apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.bilm import BiLM, BiLMState, stack_states
from elmokit.nn.sampled_softmax import draw_sample, sampled_softmax_loss
from elmokit.nn.softmax import AdaptiveSoftmax, Softmax


class WindowLosses(nn.Module):
    """A biLM and its softmax, from a window to the loss of each direction; what is trained, and wrapped to be shared.

    Args:
        n_samples: words sampled for each direction's loss; 0 for the whole softmax.
    """

    def __init__(self, bilm: BiLM, softmax: Softmax, n_samples: int) -> None:
        super().__init__()
        self.bilm = bilm
        self.softmax = softmax
        self.n_samples = n_samples

    def forward(
        self, tokens: Tensor, inputs: Tensor, targets: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read a window.

        Args:
            tokens, inputs, targets: as in ``text.stream.Window``.
            hidden, cell: the parts of a ``BiLMState``, one row for each of the window's.

        Returns:
            the mean loss of each direction in nats ``(directions,)``, and the state after the window's last step,
            without gradient.
        """
        vectors = self.bilm.token_layer(tokens)
        state = BiLMState(hidden, cell)
        losses, states = [], []
        for direction in range(self.bilm.config.n_directions):
            outputs, new_state = self.bilm.run_direction(
                direction, vectors[inputs[direction]], state.of_direction(direction)
            )
            top = F.dropout(outputs[-1], self.bilm.config.dropout, self.training).flatten(0, 1)
            losses.append(self._loss(top, targets[direction].flatten()))
            states.append(new_state)
        after = stack_states(states).detach()
        return torch.stack(losses), after.hidden, after.cell

    def _loss(self, hidden: Tensor, word_ids: Tensor) -> Tensor:
        if not self.n_samples or isinstance(self.softmax, AdaptiveSoftmax):
            loss: Tensor = self.softmax(hidden, word_ids)
            return loss
        sample = draw_sample(self.n_samples, len(self.softmax.bias))
        return sampled_softmax_loss(self.softmax, hidden, word_ids, sample)
