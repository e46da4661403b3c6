"""Token layers: from the characters of a token, its word id, or both, to a context-free vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.engine.architecture import MIN_CHARS, Activation, BiLMConfig, CharCNNConfig, WordFeaturesConfig
from elmokit.engine.library import Library
from elmokit.engine.precision import PLAIN_KERNEL, LayerKernel, Precision
from elmokit.engine.threads import n_threads
from elmokit.engine.token_layer import WORD_FEATURES, TokenLayer
from elmokit.errors import ConfigError
from elmokit.network.backends import (
    ParameterCache,
    are_plain,
    has_memory,
    layer_kernel,
    native_library,
    native_precision,
    never_compiled,
    tile_library_for,
    weights_in,
)
from elmokit.network.char_convolution import are_plain_convolutions, pooled_by_modules, pooled_convolutions
from elmokit.network.tile_layers import TileLinear, fits_tiles, tile_highway

BLOCK = 64
"""A multiple of the numbers that PyTorch computes at a time on a CPU: up to 32 with AVX-512."""


def zero_padded_embedding(n_rows: int, dim: int) -> nn.Embedding:
    """Create a trainable ``nn.Embedding`` whose row 0 means "no token" and gets no gradient.

    ``nn.Embedding`` itself would draw the weights with ``normal_``. On the meta device, where a model is built before
    its weights are loaded, that call imports sympy and ``torch._dynamo``: two seconds for numbers that are never
    used. On other devices the draw stays, so that a seed keeps giving the same model.
    """
    weight = torch.empty(n_rows, dim)
    if not weight.is_meta:
        nn.init.normal_(weight)
    return nn.Embedding(n_rows, dim, padding_idx=0, _weight=weight)


class Highway(nn.Module):
    """A gated layer: ``g * relu(transform(x)) + (1 - g) * x`` with ``g = sigmoid(gate(x))`` (Srivastava et al. 2015).

    An open gate passes the *transformed* branch on; published files call this gate "carry" all the same. Its bias
    starts at -2, so that a new layer is close to the identity. The inner activation is relu whatever the char CNN
    uses, as in bilm-tf.

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
        library = tile_library_for(inputs) if torch.is_grad_enabled() and self.is_plain() else None
        if library is not None and fits_tiles(inputs, self.transform, self.gate):
            return tile_highway(
                inputs, (self.transform.weight, self.transform.bias), (self.gate.weight, self.gate.bias)
            )
        gate = apply_by_row(torch.sigmoid, self.gate(inputs))
        return gate * F.relu(self.transform(inputs)) + (1 - gate) * inputs

    def is_plain(self) -> bool:
        """Check whether kernels may compute in place of the two linear layers."""
        return are_plain([self.transform, self.gate], TileLinear)


class NativeTokenLayer(nn.Module):
    """A token layer that the C functions compute where no gradient is needed.

    Attributes:
        precision: As in :class:`~elmokit.network.bilm.BiLM`, which sets it.
        activation: That of the char CNN; None if there is none.
    """

    precision: Precision | None = None
    activation: Activation | None
    _packed: ParameterCache[TokenLayer | None]

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights, named as in ``tensor_shapes`` within the token layer."""
        return dict(self.named_parameters(remove_duplicate=False))  # layers may share their weights

    def is_plain(self) -> bool:
        """Check whether kernels may compute in place of the modules inside."""
        raise NotImplementedError

    def run_native(self, ids: Tensor) -> Tensor | None:
        """Encode tokens with the C functions, in the precision of the model; None if they cannot.

        C code would read foreign memory for tensors of wrong sizes and for ids outside the table. PyTorch's operations
        raise their usual errors for these.
        """
        parameters = weights_in([self])
        if not self.is_plain() or not has_memory(ids):
            return None
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
            return None
        if any(parameter.dtype != torch.float32 or not parameter.is_cpu for parameter in parameters):
            return None
        if not ids.is_cpu or ids.dtype != torch.int64 or ids.ndim != 2 or not len(ids):
            return None
        library, kernel = native_library(), self._plain_kernel(ids.device)
        if kernel == PLAIN_KERNEL or library is None or torch.is_autocast_enabled("cpu"):
            return None
        precision = kernel.precision
        table = self._word_table()
        packed_whole = [parameter for parameter in parameters if parameter is not table]
        rows = None if table is None else ids[:, 0]
        try:
            layer = self._packed.get(
                (precision, self.activation),
                packed_whole,
                lambda: pack_token_layer(library, precision, self.tensors(), self.activation or "relu"),
                table,
                rows,
            )
            return None if layer is None else torch.from_numpy(layer(ids.numpy(), n_threads()))
        except (IndexError, ValueError):  # an id that is not in the table, or too few characters for a filter
            return None

    def _word_table(self) -> Tensor | None:
        """Return the table of which the first id of a token is a row; None if there is none."""
        return None

    def kernel(self) -> LayerKernel:
        """Describe what computes token vectors when no gradient is needed."""
        weight = next(self.parameters())
        if weight.dtype != torch.float32 or not self.is_plain():
            return PLAIN_KERNEL
        return self._plain_kernel(weight.device)

    def _plain_kernel(self, device: torch.device) -> LayerKernel:
        return layer_kernel(native_precision(device, self.precision), "token_layer")


class CharCNN(NativeTokenLayer):
    """Compute a token's vector from its characters alone (Kim et al. 2016; Peters et al. 2018, section 3.4).

    Convolutions over the characters, the maximum of each filter over positions, highway layers, a projection. Row 0
    of the character table is zero and means "no token". Padding within a token is an ordinary character that takes
    part in the convolutions, as in bilm-tf: without it the published models would give other vectors.

    Args:
        n_chars: Rows of the character table without row 0 (261 in every published model).
        char_dim: Size of a character's vector.
        filters: ``(width, count)`` of each convolution, in the order of concatenation.
        activation: Applied to the maxima.
        n_highway: Number of highway layers.
        output_dim: Size of the token vector. There is no projection if the filters already sum to it.
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
        self.char_embedding = zero_padded_embedding(n_chars + 1, char_dim)
        self.convolutions = nn.ModuleList(nn.Conv1d(char_dim, count, width) for width, count in filters)
        self.activation = activation
        n_features = sum(count for _, count in filters)
        self.highways = nn.ModuleList(Highway(n_features) for _ in range(n_highway))
        self.projection = TileLinear(n_features, output_dim) if n_features != output_dim else None
        self.output_dim = output_dim
        self._packed = ParameterCache()

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
        for highway in self.highways:
            assert isinstance(highway, Highway)
            highway.reset_parameters(generator)
        if self.projection is not None:
            nn.init.normal_(self.projection.weight, std=self.projection.in_features**-0.5, generator=generator)
            nn.init.zeros_(self.projection.bias)

    def is_plain(self) -> bool:
        """Check whether kernels may compute in place of the modules inside."""
        return (
            are_plain([self.char_embedding], nn.Embedding)
            and self.char_embedding.max_norm is None
            and are_plain_convolutions(self.convolutions)
            and are_plain(self.highways, Highway)
            and all(highway.is_plain() for highway in self.highways)  # type: ignore[operator]
            and are_plain([self.projection], TileLinear)
        )

    @never_compiled
    def forward(self, char_ids: Tensor) -> Tensor:
        """Encode tokens: char ids ``(tokens, chars)``, all 0 in a row without a token, to ``(tokens, output_dim)``."""
        vectors = self.run_native(char_ids)
        if vectors is not None:
            return vectors
        if self.is_plain():
            features = pooled_convolutions(char_ids, self.char_embedding, self.convolutions)
        else:
            features = pooled_by_modules(self.char_embedding(char_ids), self.convolutions)
        # The bias was added inside the maximum; the activation comes after it.
        features = F.relu(features) if self.activation == "relu" else apply_by_row(torch.tanh, features)
        for highway in self.highways:
            features = highway(features)
        return features if self.projection is None else self.projection(features)


@torch.no_grad()
def pack_token_layer(
    library: Library,
    precision: Precision,
    tensors: Mapping[str, Tensor],  # from `NativeTokenLayer.tensors`
    activation: Activation,
) -> TokenLayer | None:
    """Pack the weights of a token layer for the engine; return None if their sizes do not fit together."""
    prefix = "chars." if WORD_FEATURES in tensors else ""
    filters = [tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}conv") and tensor.ndim == 3]
    n_rows, char_dim = tensors[f"{prefix}char_embedding.weight"].shape
    projection, words = tensors.get("projection.weight"), tensors.get(WORD_FEATURES)
    try:
        cnn = CharCNNConfig(
            filters=tuple((filter_.shape[2], len(filter_)) for filter_ in filters),
            char_dim=char_dim,
            n_highway=sum(name.endswith(".gate.weight") for name in tensors),
            activation=activation,
            max_chars=max(MIN_CHARS, *(filter_.shape[2] for filter_ in filters)),
            n_chars=n_rows - 1,
        )
        dim = cnn.n_features if projection is None else len(projection)
        features = None if words is None else WordFeaturesConfig(len(words) - 1, words.shape[1])
        config = BiLMConfig(cnn, word_features=features, projection_dim=dim, hidden_dim=dim)
        arrays = {f"token_layer.{name}": tensor.detach().numpy() for name, tensor in tensors.items()}
        return TokenLayer(config, arrays, precision, library)
    except (ConfigError, KeyError, ValueError):  # a convolution may lack its bias
        return None


def apply_by_row(function: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Apply ``torch.sigmoid`` or ``torch.tanh`` so that each row's result depends on that row alone.

    On a CPU, PyTorch computes blocks of consecutive numbers with vector instructions, and the last few numbers of a
    tensor, which fill no block, one by one, with other rounding. If the row size is not a multiple of the block, it
    depends on a row's position in the batch which of its numbers these are. Here every row is padded to whole blocks,
    unless a gradient is needed: in training a batch is never compared with another.
    """
    n_missing = -inputs.shape[-1] % BLOCK
    if not n_missing or inputs.device.type != "cpu" or (inputs.requires_grad and torch.is_grad_enabled()):
        return function(inputs)
    return function(F.pad(inputs, (0, n_missing)))[..., : inputs.shape[-1]]


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

    def is_plain(self) -> bool:
        """Check whether calling the table would look up rows and do nothing else."""
        return are_plain([self.embedding], nn.Embedding) and self.embedding.max_norm is None

    def kernel(self) -> LayerKernel:
        """Describe what computes token vectors: a lookup."""
        return PLAIN_KERNEL

    def forward(self, word_ids: Tensor) -> Tensor:
        """Map word ids ``(...)``, counted from 1 so that 0 means "no token", to ``(..., output_dim)``."""
        vectors: Tensor = self.embedding(word_ids)
        return vectors


class WordCharLayer(NativeTokenLayer):
    """Compute a token's vector from its word id and its characters: both are concatenated and projected.

    The token layer of ELMoForManyLangs (Che et al. 2018).

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
        self._packed = ParameterCache()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights: word vectors of length about 1, as ELMoForManyLangs does; the rest as in the char CNN."""
        for weight in (self.word_embedding.weight, self.projection.weight):
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
        nn.init.zeros_(self.projection.bias)
        with torch.no_grad():
            self.word_embedding.weight[0] = 0.0
            if (dim := self.word_embedding.embedding_dim) == len(self.projection.weight):
                # A row that a tied softmax shares is added to the features' projection as it is, to begin with.
                self.projection.weight[:, :dim] = torch.eye(dim)
        if self.chars is not None:
            self.chars.reset_parameters(generator)

    @property
    def activation(self) -> Activation | None:  # type: ignore[override]
        """That of the char CNN, if there is one."""
        return None if self.chars is None else self.chars.activation

    def is_plain(self) -> bool:
        """Check whether kernels may compute in place of the modules inside."""
        return (
            are_plain([self.word_embedding], nn.Embedding)
            and self.word_embedding.max_norm is None
            and are_plain([self.chars], CharCNN)
            and (self.chars is None or self.chars.is_plain())
            and are_plain([self.projection], TileLinear)
        )

    def _plain_kernel(self, device: torch.device) -> LayerKernel:
        return PLAIN_KERNEL if self.chars is None else super()._plain_kernel(device)

    def _word_table(self) -> Tensor | None:
        return self.word_embedding.weight

    @never_compiled
    def forward(self, ids: Tensor) -> Tensor:
        """Encode tokens.

        Args:
            ids: ``(tokens, 1 + chars)``: a word id, then the char ids; all 0 in a row without a token. Without a char
                CNN, ``(tokens, 1)``.

        Returns:
            ``(tokens, output_dim)``
        """
        if (native := self.run_native(ids)) is not None:
            return native
        features = [self.word_embedding(ids[:, 0])]  # (tokens, word_dim)
        if self.chars is not None:
            features.append(self.chars(ids[:, 1:]))  # (tokens, n_features)
        vectors: Tensor = self.projection(torch.cat(features, dim=1))
        return vectors


class CachedCharCNN(CharCNN):
    """A char CNN with a table of precomputed token vectors; only tokens outside the table are encoded.

    The table is a buffer that is neither trained nor saved: ``state_dict`` stays that of the char CNN.

    Args:
        char_cnn: Encodes the tokens that are not in the table. Its parameters are shared, not copied.
        vectors: The table, ``(rows, output_dim)``.
    """

    def __init__(self, char_cnn: CharCNN, vectors: Tensor) -> None:
        nn.Module.__init__(self)
        self.char_embedding = char_cnn.char_embedding
        self.convolutions = char_cnn.convolutions
        self.activation = char_cnn.activation
        self.highways = char_cnn.highways
        self.projection = char_cnn.projection
        self.output_dim = char_cnn.output_dim
        self.precision = char_cnn.precision
        self._packed = ParameterCache()
        self.register_buffer("vectors", vectors, persistent=False)
        self.vectors: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        """Look up or encode tokens.

        Args:
            ids: ``(tokens, 1 + chars)``: the token's row in the table counted from 1, or 0 if it is not in the table,
                followed by its char ids.

        Returns:
            ``(tokens, output_dim)``
        """
        rows, char_ids = ids[:, 0], ids[:, 1:]
        output = self.vectors[(rows - 1).clamp(min=0)]
        missing = (rows == 0).nonzero()[:, 0]
        if len(missing):
            output = output.index_copy(0, missing, super().forward(char_ids[missing]).to(output.dtype))
        return output
