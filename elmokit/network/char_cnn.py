"""Token layers: map a token's characters, its word id, or both to a context-free vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from elmokit.engine.architecture import Activation
from elmokit.network.char_convolution import CharConvolution, convolve_each, join_features, read_characters
from elmokit.network.operators import is_traced
from elmokit.network.tile_layers import TileLinear, highway


def zero_padded_embedding(n_rows: int, dim: int) -> nn.Embedding:
    """Create a trainable ``nn.Embedding`` whose row 0 means "no token" and gets no gradient.

    ``nn.Embedding`` itself would draw the weights with ``normal_``. On the meta device, where a model is built before
    its weights are loaded, that call imports sympy and ``torch._dynamo``: two seconds for numbers that are never used.
    On other devices, the weights are still drawn, so a seed keeps giving the same model.
    """
    weight = torch.empty(n_rows, dim)
    if not weight.is_meta:
        nn.init.normal_(weight)
    return nn.Embedding(n_rows, dim, padding_idx=0, _weight=weight)


class Highway(nn.Module):
    """A gated layer: ``g * relu(transform(x)) + (1 - g) * x`` with ``g = sigmoid(gate(x))`` (Srivastava et al. 2015).

    An open gate passes on the *transformed* branch, although published files call this gate "carry". Its bias starts at
    -2, so a new layer is close to the identity. As in bilm-tf, the inner activation is always relu, whatever activation
    the char CNN uses.

    Args:
        dim: Size of inputs and outputs.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.transform = TileLinear(dim, dim)
        self.gate = TileLinear(dim, dim)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights as bilm-tf does: N(0, 1/dim); biases 0 and -2."""
        for linear, bias in ((self.transform, 0.0), (self.gate, -2.0)):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5, generator=generator)
            nn.init.constant_(linear.bias, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``(..., dim)`` to ``(..., dim)``."""
        gate = self.gate(inputs)
        return highway(inputs, self.transform(inputs), gate)


class CharCNN(nn.Module):
    """Compute a token's vector from its characters alone (Kim et al. 2016; Peters et al. 2018, section 3.4).

    Convolutions over the characters, max pooling over positions, highway layers and a projection. Row 0 of the
    character table is zero and means "no token". As in bilm-tf, padding within a token is an ordinary character and
    takes part in the convolutions; otherwise, published models would give different vectors.

    Args:
        n_chars: Rows of the character table, not counting row 0 (261 in every published model).
        char_dim: Size of a character's vector.
        filters: ``(width, count)`` of each convolution, in concatenation order.
        activation: Applied to the maxima.
        n_highway: Number of highway layers.
        output_dim: Size of the token vector. There is no projection if it equals the number of filters.
    """

    def __init__(
        self,
        n_chars: int,
        char_dim: int,
        filters: Sequence[tuple[int, int]],
        activation: Activation,
        n_highway: int,
        output_dim: int,
    ) -> None:
        super().__init__()
        self.n_chars, self.widest = n_chars, max(width for width, _ in filters)
        self.char_embedding = zero_padded_embedding(n_chars + 1, char_dim)
        self.convolutions = nn.ModuleList(CharConvolution(char_dim, count, width) for width, count in filters)
        self.activation: Activation = activation
        n_features = sum(count for _, count in filters)
        self.highways = nn.ModuleList(Highway(n_features) for _ in range(n_highway))
        self.projection = TileLinear(n_features, output_dim) if n_features != output_dim else None
        self.output_dim = output_dim

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights as bilm-tf does."""
        nn.init.uniform_(self.char_embedding.weight, -1.0, 1.0, generator=generator)
        with torch.no_grad():
            self.char_embedding.weight[0] = 0.0
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            if self.activation == "relu":
                nn.init.uniform_(convolution.weight, -0.05, 0.05, generator=generator)
            else:
                fan_in = convolution.in_channels * convolution.kernel_size[0]
                nn.init.normal_(convolution.weight, std=fan_in**-0.5, generator=generator)
            assert convolution.bias is not None
            nn.init.zeros_(convolution.bias)
        for highway_layer in self.highways:
            assert isinstance(highway_layer, Highway)
            highway_layer.reset_parameters(generator)
        if self.projection is not None:
            nn.init.normal_(self.projection.weight, std=self.projection.in_features**-0.5, generator=generator)
            nn.init.zeros_(self.projection.bias)

    def forward(self, char_ids: Tensor) -> Tensor:
        """Encode char ids ``(tokens, chars)``, all 0 for no token, as ``(tokens, output_dim)``."""
        characters = read_characters(char_ids, self.char_embedding, self.n_chars + 1, self.widest)
        features = join_features(convolve_each(self.convolutions, characters), self.activation)
        for highway_layer in self.highways:
            features = highway_layer(features)
        return features if self.projection is None else self.projection(features)


class WordEmbedding(nn.Module):
    """Look up a token's vector by its word id.

    Args:
        n_words: Size of the vocabulary. The table has one row more: row 0 is zero and means "no token".
        output_dim: Size of the token vector.
    """

    def __init__(self, n_words: int, output_dim: int) -> None:
        super().__init__()
        self.embedding = zero_padded_embedding(n_words + 1, output_dim)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights as bilm-tf does: Glorot uniform over the published rows."""
        n_words, output_dim = self.embedding.num_embeddings - 1, self.embedding.embedding_dim
        bound = (6.0 / (n_words + output_dim)) ** 0.5
        nn.init.uniform_(self.embedding.weight, -bound, bound, generator=generator)
        with torch.no_grad():
            self.embedding.weight[0] = 0.0

    def forward(self, word_ids: Tensor) -> Tensor:
        """Map word ids ``(...)``, counted from 1 (0 means "no token"), to ``(..., output_dim)``."""
        vectors: Tensor = self.embedding(word_ids)
        return vectors


class WordCharLayer(nn.Module):
    """Compute a token's vector by concatenating and projecting its word vector and its char CNN's output.

    This is the token layer of ELMoForManyLangs (Che et al. 2018).

    Args:
        n_words: Size of the vocabulary. The table has one row more: row 0 is zero and means "no token".
        word_dim: Size of a word's vector in the table.
        chars: A char CNN without its own projection, or None to use words alone.
        output_dim: Size of the token vector.
    """

    def __init__(self, n_words: int, word_dim: int, chars: CharCNN | None, output_dim: int) -> None:
        super().__init__()
        self.word_embedding = zero_padded_embedding(n_words + 1, word_dim)
        self.chars = chars
        self.projection = TileLinear(word_dim + (0 if chars is None else chars.output_dim), output_dim)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw word vectors of length about 1, as ELMoForManyLangs does, and the rest as in the char CNN."""
        for weight in (self.word_embedding.weight, self.projection.weight):
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
        nn.init.zeros_(self.projection.bias)
        with torch.no_grad():
            self.word_embedding.weight[0] = 0.0
            if (dim := self.word_embedding.embedding_dim) == len(self.projection.weight):
                # At first, a row shared with a tied softmax is added unchanged to the projected features.
                self.projection.weight[:, :dim] = torch.eye(dim)
        if self.chars is not None:
            self.chars.reset_parameters(generator)

    def forward(self, ids: Tensor) -> Tensor:
        """Encode tokens.

        Args:
            ids: ``(tokens, 1 + chars)``: a word id, then the char ids; all 0 for no token. Without a char CNN,
                ``(tokens, 1)``.

        Returns:
            ``(tokens, output_dim)``
        """
        features = [self.word_embedding(ids[:, 0])]  # (tokens, word_dim)
        if self.chars is not None:
            features.append(self.chars(ids[:, 1:]))  # (tokens, n_features)
        vectors: Tensor = self.projection(torch.cat(features, dim=1))
        return vectors


class CachedCharCNN(CharCNN):
    """A char CNN with a table of precomputed token vectors. Only tokens outside the table are encoded.

    The table is a buffer that is neither trained nor saved, so ``state_dict`` is the char CNN's own.

    Args:
        char_cnn: Encodes tokens that are not in the table. Its parameters are shared, not copied.
        vectors: The table, ``(rows, output_dim)``.
    """

    def __init__(self, char_cnn: CharCNN, vectors: Tensor) -> None:
        nn.Module.__init__(self)
        self.n_chars, self.widest = char_cnn.n_chars, char_cnn.widest
        self.char_embedding = char_cnn.char_embedding
        self.convolutions = char_cnn.convolutions
        self.activation = char_cnn.activation
        self.highways = char_cnn.highways
        self.projection = char_cnn.projection
        self.output_dim = char_cnn.output_dim
        self.register_buffer("vectors", vectors, persistent=False)
        self.vectors: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        """Look up or encode tokens.

        Args:
            ids: ``(tokens, 1 + chars)``: the token's row in the table, counted from 1 (0 if it is not in the table),
                then its char ids.

        Returns:
            ``(tokens, output_dim)``
        """
        rows, char_ids = ids[:, 0], ids[:, 1:]
        output = self.vectors[(rows - 1).clamp(min=0)]
        if is_traced():
            return torch.where((rows == 0)[:, None], super().forward(char_ids).to(output.dtype), output)
        missing = (rows == 0).nonzero()[:, 0]
        if len(missing):
            output = output.index_copy(0, missing, super().forward(char_ids[missing]).to(output.dtype))
        return output
