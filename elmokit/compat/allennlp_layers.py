"""The layers of AllenNLP's ELMo: sentence boundaries, the scalar mix and the character encoder.

Parameters have AllenNLP's names, shapes and order, so its checkpoints load with ``strict=True``, alone or nested in
another model, and optimizer states saved with AllenNLP can be loaded, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.compat.allennlp_common import ConfigurationError, Source, open_files
from elmokit.compat.tracing import untraced
from elmokit.formats.allennlp_weights import char_cnn_of, encoder_to_allennlp
from elmokit.formats.bilm_tf import options_from_config
from elmokit.network.bilm import BiLM
from elmokit.network.char_convolution import CharConvolution, convolve_each, join_features, read_characters
from elmokit.network.lstm_module import check_no_gaps
from elmokit.network.operators import take_rows
from elmokit.network.tensors import distinct_rows
from elmokit.network.tile_layers import TileLinear, apply_by_row
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE, encode_tokens


def add_sentence_boundary_token_ids(
    tensor: Tensor, mask: Tensor, sentence_begin_token: Tensor | int, sentence_end_token: Tensor | int
) -> tuple[Tensor, Tensor]:
    """Add a begin and an end token to each row.

    AllenNLP computed the new mask from the contents, so an entry without a positive number was lost, and an empty entry
    inside a row moved the end onto a real one. Here, the mask is computed from the lengths, and holes raise an error.

    Args:
        tensor: ``(batch, time)`` or ``(batch, time, dim)``, padded on the right.
        mask: ``(batch, time)``, nonzero on a real entry.
        sentence_begin_token, sentence_end_token: A number, or ``(dim,)``.

    Returns:
        ``(batch, time + 2)`` or ``(batch, time + 2, dim)``, and a bool mask ``(batch, time + 2)``.

    Raises:
        ValueError: There is padding before or between entries.
    """
    lengths = lengths_of(mask)
    n_rows, n_steps = tensor.shape[:2]
    bounded = F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (1, 1))
    bounded[:, 0] = _detached(sentence_begin_token, tensor)
    bounded[torch.arange(n_rows, device=tensor.device), lengths + 1] = _detached(sentence_end_token, tensor)
    return bounded, torch.arange(n_steps + 2, device=tensor.device) < lengths[:, None] + 2


def remove_sentence_boundaries(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Remove the first and the last real position of each row.

    Args:
        tensor: ``(batch, time, dim)``.
        mask: ``(batch, time)``.

    Returns:
        ``(batch, time - 2, dim)``, zero on padding, and a bool mask ``(batch, time - 2)``.
    """
    inside = torch.arange(mask.shape[1] - 2, device=mask.device) < (mask != 0).sum(dim=1)[:, None] - 2
    return torch.where(inside[..., None], tensor[:, 1:-1], torch.zeros_like(tensor[:, 1:-1])), inside


def lengths_of(mask: Tensor) -> Tensor:
    """Count each row's real entries in a mask ``(batch, time)``. Reject padding before or between them."""
    mask = mask != 0
    check_no_gaps(mask)
    return mask.sum(dim=1)


def _detached(token: Tensor | int, like: Tensor) -> Tensor | int:
    return token.detach().to(like) if isinstance(token, Tensor) else token


# Not a subclass of our ScalarMix: its weights are single parameters, and its tensors may have any shape.
class ScalarMix(nn.Module):
    """AllenNLP's ``ScalarMix``: ``gamma * sum_k softmax(scalar_parameters)_k * tensor_k``.

    Args:
        mixture_size: Number of tensors.
        do_layer_norm: First normalize each tensor to mean 0 and variance 1 over *all* real positions of the batch,
            including boundaries. The sentences of a batch then depend on each other.
        initial_scalar_parameters: The weights before the softmax; zeros if None.
        trainable: Whether the weights and gamma are trained.

    Raises:
        ConfigurationError: The number of initial parameters is not ``mixture_size``.
    """

    def __init__(
        self,
        mixture_size: int,
        do_layer_norm: bool = False,
        initial_scalar_parameters: Sequence[float] | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        self.mixture_size = mixture_size
        self.do_layer_norm = do_layer_norm
        initial = [0.0] * mixture_size if initial_scalar_parameters is None else initial_scalar_parameters
        if len(initial) != mixture_size:
            raise ConfigurationError(f"Expected {mixture_size} initial_scalar_parameters, but got {len(initial)}.")
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([float(value)]), requires_grad=trainable) for value in initial
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=trainable)

    def forward(self, tensors: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Mix tensors of the same shape, ``(batch, time, dim)``; only layer norm needs ``mask`` ``(batch, time)``.

        Raises:
            ConfigurationError: The number of tensors is not ``mixture_size``, or layer norm has no mask.
        """
        if len(tensors) != self.mixture_size:
            raise ConfigurationError(f"Expected {self.mixture_size} tensors to mix, but got {len(tensors)}.")
        if self.do_layer_norm:
            assert mask is not None
            tensors = [_normalize(tensor, (mask != 0)[..., None]) for tensor in tensors]
        weights = torch.cat(list(self.scalar_parameters)).softmax(dim=0)
        mixed = weights[0] * tensors[0]
        for weight, tensor in zip(weights[1:], tensors[1:], strict=True):
            mixed = mixed + weight * tensor
        return self.gamma * mixed


def _normalize(tensor: Tensor, real: Tensor) -> Tensor:
    """Normalize all real positions together to mean 0 and variance 1, at least in float32."""
    wide = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    n_values = real.sum() * tensor.shape[-1]
    mean = (wide * real).sum() / n_values
    variance = (((wide - mean) * real) ** 2).sum() / n_values
    return ((wide - mean) / (variance + 1e-13).sqrt()).to(tensor.dtype)


class _Highway(nn.Module):
    """Highway layers in AllenNLP's layout: one matrix for the transformed branch, then the carried branch's gate."""

    # Not a subclass of our `Highway`, which has two matrices, and the gate of the transformed branch.

    def __init__(self, dim: int, n_layers: int) -> None:
        super().__init__()
        self._layers = nn.ModuleList(TileLinear(dim, 2 * dim) for _ in range(n_layers))

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self._layers:
            transformed, gate = layer(inputs).chunk(2, dim=-1)
            gate = apply_by_row(torch.sigmoid, gate)
            inputs = gate * inputs + (1 - gate) * F.relu(transformed)
        return inputs


class _ElmoCharacterEncoder(nn.Module):
    """AllenNLP's ``_ElmoCharacterEncoder``, from character ids to context-free token vectors with boundaries.

    Each distinct token of a batch is computed once.

    Args:
        options_file, weight_file: As for ``Elmo``.
        requires_grad: Whether the parameters are trained.
        bilm: An open biLM, instead of the files.

    Raises:
        ModelError, ConfigurationError: The files cannot be opened, or do not hold an ELMo that reads characters.
    """

    def __init__(
        self, options_file: Source, weight_file: Source, requires_grad: bool = False, *, bilm: BiLM | None = None
    ) -> None:
        super().__init__()
        bilm = open_files(options_file, weight_file).build_bilm() if bilm is None else bilm
        cnn = char_cnn_of(bilm.config)
        # AllenNLP stores its arguments under these names, and programs read them.
        self._options, self._weight_file = options_from_config(bilm.config), weight_file
        self.requires_grad = requires_grad
        self.output_dim = bilm.config.projection_dim
        self.max_chars = cnn.max_chars
        self.activation = cnn.activation
        self.convolution_names = [f"char_conv_{k}" for k in range(len(cnn.filters))]
        self._widest = max(width for width, _ in cnn.filters)
        with torch.device("meta"):
            self._char_embedding_weights = nn.Parameter(torch.empty(cnn.n_chars + 1, cnn.char_dim))
            for name, (width, count) in zip(self.convolution_names, cnn.filters, strict=True):
                self.add_module(name, CharConvolution(cnn.char_dim, count, width))
            self._highways = _Highway(cnn.n_features, cnn.n_highway)
            self._projection = TileLinear(cnn.n_features, self.output_dim)
        set_parameters(self, encoder_to_allennlp(bilm), requires_grad)

    @property
    def _beginning_of_sentence_characters(self) -> Tensor:
        return self._boundary_ids(self._char_embedding_weights)[0]

    @property
    def _end_of_sentence_characters(self) -> Tensor:
        return self._boundary_ids(self._char_embedding_weights)[1]

    @property
    def _convolutions(self) -> list[nn.Module]:
        return [self.get_submodule(name) for name in self.convolution_names]

    def get_output_dim(self) -> int:
        """Return the size of a token vector."""
        return self.output_dim

    @untraced
    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Encode a batch.

        Args:
            inputs: Character ids ``(batch, time, chars)``, padded on the right with zeros.

        Returns:
            ``token_embedding`` ``(batch, time + 2, output_dim)`` and ``mask`` ``(batch, time + 2)`` bool.

        Raises:
            ValueError: The ids have another shape, or there is padding before or between tokens.
        """
        if inputs.dim() != 3 or inputs.shape[-1] != self.max_chars:
            raise ValueError(
                f"Expected character ids of shape (batch, time, {self.max_chars}), but got {tuple(inputs.shape)}."
            )
        begin, end = self._boundary_ids(inputs)
        ids, mask = add_sentence_boundary_token_ids(inputs, (inputs > 0).any(dim=-1), begin, end)
        distinct, index = distinct_rows(ids.flatten(0, -2))
        return {"token_embedding": take_rows(self.token_vectors(distinct), index.view(mask.shape)), "mask": mask}

    def token_vectors(self, ids: Tensor) -> Tensor:
        """Encode tokens ``(tokens, chars)`` to ``(tokens, output_dim)``, without boundaries."""
        weight = self._char_embedding_weights
        characters = read_characters(ids, lambda chars: F.embedding(chars, weight), len(weight), self._widest)
        features = join_features(convolve_each(self._convolutions, characters), self.activation)
        vectors: Tensor = self._projection(self._highways(features))
        return vectors

    @torch.no_grad()
    def boundary_vectors(self) -> Tensor:
        """Return the vectors of ``<S>`` and ``</S>``, ``(2, output_dim)``."""
        return self.token_vectors(self._boundary_ids(self._char_embedding_weights))

    def _boundary_ids(self, like: Tensor) -> Tensor:
        ids = torch.from_numpy(encode_tokens([BEGIN_SENTENCE, END_SENTENCE], self.max_chars))
        return ids.to(like.device)


def set_parameters(module: nn.Module, tensors: dict[str, Tensor], requires_grad: bool) -> None:
    """Make these tensors the parameters of a module, which may be on the meta device."""
    module.load_state_dict(tensors, assign=True)
    module.requires_grad_(requires_grad)
