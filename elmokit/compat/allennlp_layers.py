"""The layers of AllenNLP's ELMo: its names, arguments, parameters and state, for ``elmokit.compat.allennlp``.

They compute in AllenNLP's own layout, so that ``state_dict``, ``named_parameters`` and an optimiser's state are
those of an AllenNLP model (the layout is told in ``elmokit.weights.allennlp``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.bilm import BiLM
from elmokit.errors import ConfigError
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE, encode_tokens
from elmokit.weights.allennlp import char_cnn_of, encoder_to_allennlp
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.pretrained import open_pretrained

ConfigurationError = ConfigError  # AllenNLP's name

Source = str | Path | None
Module = TypeVar("Module", bound=nn.Module)


def opened(options_file: Source, weight_file: Source) -> PretrainedBiLM:
    """A model by AllenNLP's two arguments; the weights may be whatever elmokit opens, and the options then None.

    Raises:
        ModelError: it cannot be opened.
        ConfigurationError: there is no weight file.
    """
    if weight_file is None:
        raise ConfigError(f"Which model? weight_file is None (and options_file {options_file!r}).")
    return open_pretrained(weight_file, options_file)


def on_cuda_device(module: Module, number: int) -> Module:
    """The module on a CUDA device, or as it is for -1.

    Raises:
        ConfigurationError: the device cannot be used.
    """
    try:
        return module if number < 0 else module.to(torch.device("cuda", number))
    except (RuntimeError, AssertionError) as error:  # torch says "not compiled with CUDA" by an assertion
        reason = str(error).splitlines()[0]
        raise ConfigError(f"CUDA device {number} cannot be used: {reason}. Give -1 to use the CPU.") from None


def add_sentence_boundary_token_ids(
    tensor: Tensor, mask: Tensor, sentence_begin_token: Tensor | int, sentence_end_token: Tensor | int
) -> tuple[Tensor, Tensor]:
    """Put a begin and an end around each row.

    AllenNLP took the new mask from the contents, so that an entry without a positive number was lost, and an empty
    entry inside a row moved the end onto a real one; here the mask follows from the lengths, and holes are refused.

    Args:
        tensor: ``(batch, time)`` or ``(batch, time, dim)``, padded on the right.
        mask: ``(batch, time)``, not 0 on a real entry.
        sentence_begin_token, sentence_end_token: a number, or ``(dim,)``.

    Returns:
        ``(batch, time + 2)`` or ``(batch, time + 2, dim)``, and a bool mask ``(batch, time + 2)``.

    Raises:
        ValueError: the tensor has another rank, or there is padding before or between entries.
    """
    if tensor.dim() not in (2, 3):
        raise ValueError(f"Boundaries go around rows of rank 2 or 3; given a tensor of shape {tuple(tensor.shape)}.")
    lengths = lengths_of(mask)
    n_rows, n_steps = tensor.shape[:2]
    padding = (0, 0) * (tensor.dim() - 2) + (1, 1)
    bounded = F.pad(tensor, padding)
    bounded[:, 0] = _detached(sentence_begin_token, tensor)
    bounded[torch.arange(n_rows, device=tensor.device), lengths + 1] = _detached(sentence_end_token, tensor)
    return bounded, torch.arange(n_steps + 2, device=tensor.device) < lengths[:, None] + 2


def remove_sentence_boundaries(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Take the first and last real position off each row.

    Args:
        tensor: ``(batch, time, dim)``.
        mask: ``(batch, time)``.

    Returns:
        ``(batch, time - 2, dim)``, zero where there is nothing, and a bool mask ``(batch, time - 2)``.
    """
    inside = torch.arange(mask.shape[1] - 2, device=mask.device) < (mask != 0).sum(dim=1)[:, None] - 2
    return torch.where(inside[..., None], tensor[:, 1:-1], torch.zeros_like(tensor[:, 1:-1])), inside


def lengths_of(mask: Tensor) -> Tensor:
    """Real entries of each row of a mask ``(batch, time)``.

    Raises:
        ValueError: there is padding before or between them.
    """
    mask = mask != 0
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ValueError("There is padding before or between tokens; pad on the right only, as batch_to_ids does.")
    return mask.sum(dim=1)


def _detached(token: Tensor | int, like: Tensor) -> Tensor | int:
    return token.detach().to(like) if isinstance(token, Tensor) else token


class ScalarMix(nn.Module):
    """``gamma * sum_k softmax(scalar_parameters)_k * tensor_k``, AllenNLP's ``ScalarMix``.

    Args:
        mixture_size: how many tensors.
        do_layer_norm: first give each tensor mean 0 and variance 1 over *all* real positions of the batch, so that
            sentences of a batch depend on each other.
        initial_scalar_parameters: before the softmax; zeros if None.
        trainable: of the weights and of gamma.

    Raises:
        ConfigurationError: not ``mixture_size`` initial parameters.
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
            raise ConfigError(f"ScalarMix mixes {mixture_size} tensors; given {len(initial)} initial parameters.")
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([float(value)]), requires_grad=trainable) for value in initial
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=trainable)

    def forward(self, tensors: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Mix tensors of one shape, ``(batch, time, dim)``; ``mask`` ``(batch, time)`` is for layer norm only.

        Raises:
            ConfigurationError: not ``mixture_size`` tensors, or no mask for layer norm.
        """
        if len(tensors) != self.mixture_size:
            raise ConfigError(f"ScalarMix mixes {self.mixture_size} tensors; given {len(tensors)}.")
        if self.do_layer_norm:
            if mask is None:
                raise ConfigError("ScalarMix with do_layer_norm needs the mask of the batch.")
            tensors = [_normalised(tensor, (mask != 0)[..., None]) for tensor in tensors]
        weights = torch.cat(list(self.scalar_parameters)).softmax(dim=0)
        mixed = weights[0] * tensors[0]
        for weight, tensor in zip(weights[1:], tensors[1:], strict=True):
            mixed = mixed + weight * tensor
        return self.gamma * mixed


def _normalised(tensor: Tensor, real: Tensor) -> Tensor:
    """Mean 0 and variance 1 over all real positions together, computed in float32 at least."""
    wide = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    n_values = real.sum() * tensor.shape[-1]
    mean = (wide * real).sum() / n_values
    variance = (((wide - mean) * real) ** 2).sum() / n_values
    return ((wide - mean) / (variance + 1e-13).sqrt()).to(tensor.dtype)


class _Highway(nn.Module):
    """Gated layers in AllenNLP's layout: one matrix for the transformed branch and the gate of the carried one."""

    def __init__(self, dim: int, n_layers: int) -> None:
        super().__init__()
        self._layers = nn.ModuleList(nn.Linear(dim, 2 * dim) for _ in range(n_layers))

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self._layers:
            transformed, gate = layer(inputs).chunk(2, dim=-1)
            gate = torch.sigmoid(gate)
            inputs = gate * inputs + (1 - gate) * F.relu(transformed)
        return inputs


class _ElmoCharacterEncoder(nn.Module):
    """Character ids to context-free token vectors, boundaries added: AllenNLP's ``_ElmoCharacterEncoder``.

    Each distinct token of a batch is computed once.

    Args:
        options_file, weight_file: as for ``Elmo``.
        requires_grad: whether the parameters train.
        bilm: a biLM that is open already, in place of the files.

    Raises:
        ModelError, ConfigurationError: the files cannot be opened, or do not hold an ELMo that reads characters.
    """

    def __init__(
        self, options_file: Source, weight_file: Source, requires_grad: bool = False, *, bilm: BiLM | None = None
    ) -> None:
        super().__init__()
        bilm = opened(options_file, weight_file).bilm if bilm is None else bilm
        cnn = char_cnn_of(bilm.config)
        self.output_dim = bilm.config.projection_dim
        self.max_chars = cnn.max_chars
        self.activation = cnn.activation
        with torch.device("meta"):
            self._char_embedding_weights = nn.Parameter(torch.empty(cnn.n_chars + 1, cnn.char_dim))
            self._convolutions = []  # names, so that the parameters' names are AllenNLP's
            for k, (width, count) in enumerate(cnn.filters):
                self.add_module(f"char_conv_{k}", nn.Conv1d(cnn.char_dim, count, width))
                self._convolutions.append(f"char_conv_{k}")
            self._highways = _Highway(cnn.n_features, cnn.n_highway)
            self._projection = nn.Linear(cnn.n_features, self.output_dim)
        fill(self, encoder_to_allennlp(bilm), requires_grad)

    def get_output_dim(self) -> int:
        """Size of a token vector."""
        return self.output_dim

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Encode a batch.

        Args:
            inputs: character ids ``(batch, time, chars)``, all 0 on padding, which stands on the right.

        Returns:
            ``token_embedding`` ``(batch, time + 2, output_dim)`` and ``mask`` ``(batch, time + 2)`` bool.

        Raises:
            ValueError: ids of another shape, or padding before or between tokens.
        """
        if inputs.dim() != 3 or inputs.shape[-1] != self.max_chars:
            raise ValueError(
                f"Character ids are (batch, time, {self.max_chars}) for this model; given {tuple(inputs.shape)}. "
                f"Make them with batch_to_ids(sentences, max_word_length={self.max_chars})."
            )
        begin, end = self._boundary_ids(inputs)
        ids, mask = add_sentence_boundary_token_ids(inputs, (inputs > 0).any(dim=-1), begin, end)
        return {"token_embedding": self.token_vectors(ids), "mask": mask}

    def token_vectors(self, ids: Tensor) -> Tensor:
        """``(..., chars)`` ids of tokens to ``(..., output_dim)``, nothing added."""
        distinct, index = torch.unique(ids.flatten(0, -2), dim=0, return_inverse=True)
        characters = F.embedding(distinct, self._char_embedding_weights).transpose(1, 2)  # (tokens, char_dim, chars)
        activate = F.relu if self.activation == "relu" else torch.tanh
        pooled = [activate(getattr(self, name)(characters).max(dim=-1).values) for name in self._convolutions]
        vectors: Tensor = self._projection(self._highways(torch.cat(pooled, dim=-1)))
        return vectors[index].view(*ids.shape[:-1], self.output_dim)

    @torch.no_grad()
    def boundary_vectors(self) -> Tensor:
        """The vectors of ``<S>`` and ``</S>``, ``(2, output_dim)``."""
        return self.token_vectors(self._boundary_ids(self._char_embedding_weights))

    def _boundary_ids(self, like: Tensor) -> Tensor:
        ids = torch.from_numpy(encode_tokens([BEGIN_SENTENCE, END_SENTENCE], self.max_chars))
        return ids.to(like.device)


def fill(module: nn.Module, tensors: dict[str, Tensor], requires_grad: bool) -> None:
    """Give a module, which may stand on the meta device, these tensors for its own."""
    module.load_state_dict(tensors, assign=True)
    module.requires_grad_(requires_grad)
