"""Plain recurrent layers over padded batches, and the start that AllenNLP gives their weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def run_packed(rnn: nn.LSTM | nn.GRU, inputs: Tensor, mask: Tensor) -> Tensor:
    """Read a batch padded on the right: the backward direction begins at each row's own last token.

    Args:
        rnn: with ``batch_first=True``; any number of layers and directions.
        inputs: ``(batch, time, dim)``.
        mask: ``(batch, time)`` bool, True on a real token, no holes; a row may be empty.

    Returns:
        ``(batch, time, hidden * directions)``, zero where the mask is False.
    """
    lengths = mask.sum(dim=1).clamp(min=1).cpu()  # an empty row is read as one zero, and masked below
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    outputs, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True, total_length=inputs.shape[1])
    return outputs * mask[..., None]


def last_states(outputs: Tensor, mask: Tensor) -> Tensor:
    """What a bidirectional layer ends with in each direction: the last token's first half, the first one's second.

    Args:
        outputs: ``(batch, time, 2 * hidden)`` from ``run_packed``.
        mask: ``(batch, time)`` bool.

    Returns:
        ``(batch, 2 * hidden)``
    """
    hidden = outputs.shape[-1] // 2
    last = (mask.sum(dim=1) - 1).clamp(min=0)
    rows = torch.arange(len(outputs), device=outputs.device)
    return torch.cat([outputs[rows, last, :hidden], outputs[:, 0, hidden:]], dim=-1)


def init_glorot_orthogonal(module: nn.Module) -> None:
    """Draw weights anew: Glorot uniform, recurrent matrices orthogonal, biases 0, the forget gate's bias 1.

    Acts on every ``nn.Linear`` and ``nn.LSTM`` inside ``module``. PyTorch adds two biases in an LSTM; only the first
    gets the 1.
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
                        weight[part.hidden_size : 2 * part.hidden_size] = 1.0  # gates stand as i, f, g, o
