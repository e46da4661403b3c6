"""Output layers of the language model: a score for every vocabulary word, and the loss."""

from __future__ import annotations

from abc import ABC
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.engine.softmax import ROWS_AT_ONCE, SoftmaxConfig, softmax_nats
from elmokit.network.char_cnn import WordCharLayer, WordEmbedding
from elmokit.network.operators import are_hidden, c_library, takes_tiles
from elmokit.network.tile_layers import TileLinear, tile_cross_entropy


class InnerLayer(nn.Module):
    """A residual layer between the LSTM's outputs and the word scores.

    It improves predictions and does not affect the vectors. Both directions share it.

    Args:
        input_dim: Size of the LSTM's outputs.
        inner_dim: Number of its units.
        device: The device of its weights; None for PyTorch's default.
    """

    def __init__(self, input_dim: int, inner_dim: int, device: torch.device | None = None) -> None:
        super().__init__()
        self.expand = TileLinear(input_dim, inner_dim, device=device)
        self.reduce = TileLinear(inner_dim, input_dim, device=device)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the units' weights from N(0, 2/input_dim). Their outputs start at 0, so a new layer changes nothing."""
        nn.init.normal_(self.expand.weight, std=(2 / self.expand.in_features) ** 0.5, generator=generator)
        for tensor in (self.expand.bias, self.reduce.weight, self.reduce.bias):
            nn.init.zeros_(tensor)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``(positions, input_dim)`` to the same size."""
        result: Tensor = hidden + self.reduce(self.expand(hidden).relu())
        return result


class WordSoftmaxModule(nn.Module, ABC):
    """A softmax with a weight row and a bias per word; see ``FullSoftmax`` and ``TiedSoftmax``."""

    weight: Tensor
    """The weights ``(words, input_dim)``."""

    def __init__(self, bias: Tensor, own_weight: Tensor | None, inner: InnerLayer | None) -> None:
        super().__init__()
        # The weight comes first, because optimizer states are stored in the order of the parameters.
        if own_weight is not None:
            self.weight = nn.Parameter(own_weight)
        self.bias = nn.Parameter(bias)
        self.inner = inner

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Set the biases to 0 and draw the inner layer, if there is one."""
        nn.init.zeros_(self.bias)
        if self.inner is not None:
            self.inner.reset_parameters(generator)

    def after_inner(self, hidden: Tensor) -> Tensor:
        """Apply the inner layer to the LSTM's outputs; without one, return them unchanged."""
        result: Tensor = hidden if self.inner is None else self.inner(hidden)
        return result

    def forward(self, hidden: Tensor, word_ids: Tensor) -> Tensor:
        """Compute the mean cross-entropy in nats of words ``(positions,)``, given hidden ``(positions, input_dim)``."""
        return _mean_nats(self.after_inner(hidden), self.weight, self.bias, word_ids)

    def scores(self, hidden: Tensor) -> Tensor:
        """Return the logits, ``(positions, words)``."""
        return F.linear(self.after_inner(hidden), self.weight, self.bias)

    @torch.no_grad()
    def nats(self, hidden: Tensor, word_ids: Tensor) -> Tensor:
        """Compute the surprisal of each position's word in nats; see :meth:`elmokit.engine.softmax.Softmax.nats`."""
        return _nats(self.after_inner(hidden), self.weight, self.bias, word_ids)


class FullSoftmax(WordSoftmaxModule):
    """A softmax over the whole vocabulary, shared by both directions.

    Args:
        n_words: Size of the vocabulary.
        input_dim: Size of the LSTM's outputs.
        inner_dim: Units of its inner layer; 0 for none.
    """

    def __init__(self, n_words: int, input_dim: int, inner_dim: int = 0) -> None:
        inner = InnerLayer(input_dim, inner_dim) if inner_dim else None
        super().__init__(torch.empty(n_words), torch.empty(n_words, input_dim), inner)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights as bilm-tf does: N(0, 1/input_dim); biases 0."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5, generator=generator)
        super().reset_parameters(generator)


class TiedSoftmax(WordSoftmaxModule):
    """A softmax that shares its weights with the word embedding of a word-input model. Only the bias is its own.

    Args:
        embedding: The table of the token layer. Row 0, "no token", is not a word and is skipped.
        inner_dim: Units of its inner layer; 0 for none.
    """

    def __init__(self, embedding: nn.Embedding, inner_dim: int = 0) -> None:
        device = embedding.weight.device
        inner = InnerLayer(embedding.embedding_dim, inner_dim, device) if inner_dim else None
        super().__init__(torch.empty(embedding.num_embeddings - 1, device=device), None, inner)
        self._embedding = (embedding,)  # in a tuple, so its parameters are not registered twice

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weights ``(words, input_dim)``, a view of the embedding."""
        # Row 0 is for padding. A slice is a view, so the softmax's gradients reach the embedding.
        return self._embedding[0].weight[1:]


SoftmaxModule = FullSoftmax | TiedSoftmax


def word_table(token_layer: nn.Module, input_dim: int) -> nn.Embedding | None:
    """Return the token layer's word table if its rows have the size of a softmax's; otherwise None."""
    if isinstance(token_layer, WordEmbedding):
        return token_layer.embedding
    if isinstance(token_layer, WordCharLayer) and token_layer.word_embedding.embedding_dim == input_dim:
        return token_layer.word_embedding
    return None


def build_softmax(config: SoftmaxConfig, n_words: int, input_dim: int, token_layer: nn.Module) -> SoftmaxModule:
    """Build a softmax with uninitialized parameters; a tied one shares the embedding of the token layer."""
    table = word_table(token_layer, input_dim)
    config.check_sizes(n_words, input_dim, None if table is None else table.num_embeddings - 1)
    if table is not None and config.kind == "tied":
        return TiedSoftmax(table, config.inner_dim)
    return FullSoftmax(n_words, input_dim, config.inner_dim)


def softmax_config(softmax: SoftmaxModule) -> SoftmaxConfig:
    """Return the config that a softmax was built from."""
    inner_dim = 0 if softmax.inner is None else softmax.inner.expand.out_features
    return SoftmaxConfig("tied" if isinstance(softmax, TiedSoftmax) else "full", inner_dim=inner_dim)


def _mean_nats(hidden: Tensor, weight: Tensor, bias: Tensor, word_ids: Tensor) -> Tensor:
    device = hidden.device.type
    hidden = hidden.to(weight.dtype)
    if are_hidden(hidden, weight, bias, word_ids):
        return F.cross_entropy(F.linear(hidden, weight, bias), word_ids)
    if torch.is_grad_enabled() and len(hidden) == len(word_ids) > 0 and takes_tiles(hidden, weight, bias):
        # The target has its own score, and does not compete with itself.
        own = (hidden * F.embedding(word_ids, weight)).sum(dim=1) + bias[word_ids]
        return tile_cross_entropy(hidden, weight, bias, own, word_ids) / len(word_ids)
    # The function below casts each product itself, so autocast is switched off inside it.
    low_dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    with torch.autocast(device, enabled=False):
        total: Tensor = _SummedNats.apply(  # type: ignore[no-untyped-call]
            hidden, weight, bias, word_ids, low_dtype
        )
        return total / len(word_ids)


def _nats(rows: Tensor, weight: Tensor, bias: Tensor, word_ids: Tensor) -> Tensor:
    """Compute the surprisal of each row's word, for rows that have passed the inner layer."""
    library = c_library(rows, weight, bias)
    if library is not None and not are_hidden(rows, weight, bias, word_ids):
        hidden, table, offsets, words = (_array(tensor) for tensor in (rows, weight, bias, word_ids))
        return torch.from_numpy(softmax_nats(library, hidden, table, offsets, words, "float32"))
    nats = torch.empty_like(rows[:, 0])
    for start in range(0, len(rows), ROWS_AT_ONCE):
        here = slice(start, start + ROWS_AT_ONCE)
        nats[here] = F.cross_entropy(F.linear(rows[here], weight, bias), word_ids[here], reduction="none")
    return nats


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().contiguous().numpy()


class _SummedNats(torch.autograd.Function):
    """The summed cross-entropy of a softmax layer, computed in blocks of positions.

    With a large vocabulary, the scores of all positions do not fit in memory, and computing them again in the backward
    pass would double the cost. So the forward pass also computes the gradients, while each block of scores exists, and
    the backward pass only scales them. Matrix products use ``low_dtype`` if given.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, word_ids: Tensor, low_dtype: torch.dtype | None
    ) -> Tensor:
        total = hidden.new_zeros(())
        wants_gradient = any(ctx.needs_input_grad[:3])
        if wants_gradient:
            hidden_gradient, weight_gradient = torch.empty_like(hidden), torch.zeros_like(weight)
            bias_gradient = torch.zeros_like(bias)
        # Converted once, not once per block.
        low_weight = weight if low_dtype is None else weight.to(low_dtype)
        for start in range(0, len(hidden), ROWS_AT_ONCE):
            rows = hidden[start : start + ROWS_AT_ONCE]
            words = word_ids[start : start + ROWS_AT_ONCE, None]
            if low_dtype is None:
                scores = F.linear(rows, weight, bias)
            else:
                scores = F.linear(rows.to(low_dtype), low_weight).to(rows.dtype).add_(bias)
            top = scores.amax(dim=1, keepdim=True)  # subtracted, so exp does not overflow
            right = scores.gather(1, words)
            # In place, because a block of scores is the largest tensor here.
            scores.sub_(top).exp_()
            norm = scores.sum(dim=1, keepdim=True)
            total += (norm.log() + top - right).sum()
            if wants_gradient:
                # The gradient with respect to the scores: the softmax, minus 1 at the target.
                scores.div_(norm)
                scores.scatter_add_(1, words, scores.new_full((1, 1), -1.0).expand(len(words), 1))
                if low_dtype is None:
                    torch.mm(scores, weight, out=hidden_gradient[start : start + ROWS_AT_ONCE])
                    weight_gradient.addmm_(scores.t(), rows)
                else:
                    # Sums over blocks accumulate in the weight's dtype; only the products use the lower one.
                    low_scores = scores.to(low_dtype)
                    hidden_gradient[start : start + ROWS_AT_ONCE] = low_scores @ low_weight
                    weight_gradient += low_scores.t() @ rows.to(low_dtype)
                bias_gradient += scores.sum(dim=0)
        if wants_gradient:
            ctx.save_for_backward(hidden_gradient, weight_gradient, bias_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        hidden, weight, bias = ctx.saved_tensors
        # The loss is a scalar, so the chain rule is one multiplication. Its gradient is 1 / (positions), times any loss
        # scale.
        return hidden * upstream[0], weight * upstream[0], bias * upstream[0], None, None
