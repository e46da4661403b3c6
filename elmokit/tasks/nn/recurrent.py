"""PyTorch's recurrent layers on padded batches, and the initialization that AllenNLP gives their weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def run_packed(rnn: nn.LSTM | nn.GRU, inputs: Tensor, mask: Tensor) -> Tensor:
    """Run a recurrent layer over a batch that is padded on the right.

    The backward direction starts at each sequence's own last token, not at the padding.

    Args:
        rnn: A layer with ``batch_first=True`` and any number of layers and directions.
        inputs: ``(batch, time, dim)``.
        mask: ``(batch, time)`` bool, True on a real token, without gaps. A row may be empty.

    Returns:
        ``(batch, time, hidden * directions)``, zero where the mask is False.
    """
    lengths = (
        mask.sum(dim=1).clamp(min=1).cpu()
    )  # PyTorch rejects empty rows, so they get length 1 and are masked below
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    outputs, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True, total_length=inputs.shape[1])
    return outputs * mask[..., None]


def init_glorot_orthogonal(module: nn.Module) -> None:
    """Initialize every ``nn.Linear`` and ``nn.LSTM`` in a module.

    Weights are Glorot uniform, recurrent matrices orthogonal, biases 0, and the bias of the forget gate is 1. PyTorch's
    LSTM adds two biases; only the first gets the 1.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LSTM):
            for name, weight in part.named_parameters():
                if name.startswith("weight_ih"):
                    nn.init.xavier_uniform_(weight)
                elif name.startswith("weight_hh"):
                    nn.init.orthogonal_(weight)
                else:
                    nn.init.zeros_(weight)
                if name.startswith("bias_ih"):
                    with torch.no_grad():
                        weight[part.hidden_size : 2 * part.hidden_size] = 1.0  # the order of the gates is i, f, g, o
