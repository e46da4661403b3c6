"""ELMo as a PyTorch module, for use inside other models: :class:`ElmoModule`."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.config import check_at_least
from elmokit.embedding.computer import Computer
from elmokit.embedding.elmo import Elmo, Start, Vectors
from elmokit.engine.layer_selection import LayerAlignment, Layers
from elmokit.engine.precision import Precision
from elmokit.engine.state import Floats, State
from elmokit.errors import ConfigError
from elmokit.network.bilm import BiLMOutput, BiLMState
from elmokit.network.lstm_module import check_no_gaps
from elmokit.network.scalar_mix import MixedLayers, ScalarMix, make_scalar_mix
from elmokit.pretrained.model import PretrainedBiLM, check_device, check_model
from elmokit.text.batching import check_sentences, map_in_batches, pad_batch


class ElmoOutput(NamedTuple):
    """The result of ``ElmoModule.forward``.

    Attributes:
        mixes: One tensor ``(batch, time, dim)`` per scalar mix; zero where the mask is False.
        mask: ``(batch, time)`` bool, True on a real token.
        state: The LSTM state after the batch. Pass it to the next call to continue each row.
    """

    mixes: list[Tensor]
    mask: Tensor
    state: BiLMState


class AlignmentModule(nn.Module):
    """The maps of a :class:`~elmokit.engine.layer_selection.LayerAlignment` as buffers, which optimizers do not change.

    They are copies: loading a state dict does not change the model.
    """

    def __init__(self, alignment: LayerAlignment) -> None:
        super().__init__()
        self.register_buffer("matrices", torch.from_numpy(alignment.matrices.copy()))
        self.register_buffer("offsets", torch.from_numpy(alignment.offsets.copy()))
        self.matrices: Tensor
        self.offsets: Tensor

    def numpy(self) -> LayerAlignment:
        """Return the current maps as NumPy arrays."""
        matrices = self.matrices.float().cpu().numpy()
        offsets = self.offsets.float().cpu().numpy()
        return LayerAlignment(matrices, offsets)

    def forward(self, layers: Tensor) -> Tensor:
        """Align the layers of a batch.

        Args:
            layers: ``(layers, ..., dim)``, layer 0 first; the top layers may be missing.

        Returns:
            The same shape. Padding becomes ``offsets``.
        """
        n_layers = len(layers)
        rows = layers.flatten(1, -2) if layers.ndim > 2 else layers[:, None]
        aligned = rows @ self.matrices[:n_layers].mT + self.offsets[:n_layers, None]
        return aligned.view_as(layers)


class ElmoModule(nn.Module):
    """Learned mixes of the layers of a bidirectional language model (Peters et al. 2018), for use in a PyTorch model.

    Calling it returns mixes of the layers (:class:`~elmokit.ScalarMix`), with gradients through the mixes or through
    the whole biLM. :meth:`embed` returns NumPy arrays; if you need nothing else, use :class:`~elmokit.Elmo`, which also
    explains ``start``.

    An ``ElmoModule`` builds its own module, :attr:`bilm`, from a model and leaves the model unchanged. :meth:`to_model`
    returns the current weights as a model.

    It computes in the dtype of its tensors, with and without gradients, using operators that ``torch.compile`` and
    ``torch.export`` support. For weights in lower precision, use :class:`~elmokit.Elmo`: ``Elmo(module.to_model())``.

    Args:
        model: An opened model. :meth:`from_pretrained` opens one for you.
        start: The LSTM state that each sentence starts from, as in :class:`~elmokit.Elmo`.
        n_mixes: Number of scalar mixes that ``forward`` returns, for example one for the input and one for the output
            of a task's network.
        layer_norm: Normalize the layers before mixing, over all returned vectors of the batch, as in bilm-tf.
            (AllenNLP includes the boundaries; see ``compat.allennlp``.)
        dropout: Dropout ratio on each mix during training. The models of the paper use 0.5.
        layers: The layers that the scalar mixes combine: "all"; "top", which learns a factor for the top layer only;
            "average", which learns a factor for the plain mean; a layer number; or a list of them.
        trainable: Fine-tune the biLM. If False, only the scalar mixes are trained.
        keep_boundaries: Include the vectors of ``<S>`` and ``</S>`` in the result of ``forward``.

    Raises:
        ConfigError: ``start``, ``layers`` or ``dropout`` is invalid.

    Example:
        >>> elmo = ElmoModule.from_pretrained(dropout=0.5)
        >>> (mix,), mask, _ = elmo(elmo.ids([["The", "bank"], ["Rates", "rose", "."]]))
        >>> mix.shape
        torch.Size([2, 3, 384])
    """

    def __init__(
        self,
        model: PretrainedBiLM,
        *,
        start: Start = "warm",
        n_mixes: int = 1,
        layer_norm: bool = False,
        dropout: float = 0.0,
        layers: MixedLayers = "all",
        trainable: bool = False,
        keep_boundaries: bool = False,
    ) -> None:
        super().__init__()
        check_model(model, "ElmoModule.from_pretrained")
        check_at_least("n_mixes", n_mixes, 0)
        # Frozen weights let the engine compute: it has no backward pass.
        self.bilm = model.build_bilm().requires_grad_(trainable)
        computer = Computer(model.view_of(self.bilm), bilm=self.bilm)
        self._elmo = Elmo.of(computer, start, token_cache_mib=0)  # its weights may change in any way
        self.alignment = None if model.alignment is None else AlignmentModule(model.alignment)
        self.start: Start = start
        self.trainable = trainable
        self.keep_boundaries = keep_boundaries
        self.mixes = nn.ModuleList(make_scalar_mix(layers, self.n_layers, layer_norm) for _ in range(n_mixes))
        self.dropout = nn.Dropout(dropout)
        state = BiLMState.from_numpy(self._elmo.start_state)
        # Buffers move with the module to another device, and optimizers ignore them.
        # They are copies, so loading a state dict does not change the model's stored state.
        self.register_buffer("start_hidden", state.hidden.clone())
        self.register_buffer("start_cell", state.cell.clone())
        self.start_hidden: Tensor
        self.start_cell: Tensor
        # Everything on the biLM's device and in its dtype, which may not be PyTorch's default.
        self.to(self.bilm.device, self.bilm.dtype)
        # Unlike other modules, it starts in evaluation mode, because dropout would silently add noise without training.
        self.eval()

    def extra_repr(self) -> str:
        """Return the text that ``repr`` shows besides the modules."""
        name = self._elmo.model.source_name or "unknown"
        return f"model={name!r}, start={self.start!r}, dtype={self.bilm.dtype}"

    def _repr_html_(self) -> str:
        return self.model._repr_html_()

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path | None = None,
        *,
        options: str | Path | None = None,
        token_embeddings: str | Path | None = None,
        vocabulary: str | Path | None = None,
        start: Start = "warm",
        n_mixes: int = 1,
        layer_norm: bool = False,
        dropout: float = 0.0,
        layers: MixedLayers = "all",
        trainable: bool = False,
        keep_boundaries: bool = False,
        precision: Precision | None = None,
        device: str | torch.device | None = None,
        exact_marks: bool = False,
    ) -> ElmoModule:
        """Open a model by its path or name.

        Args:
            path_or_name, options, token_embeddings, vocabulary, exact_marks: As in
                :meth:`elmokit.Elmo.from_pretrained`.
            precision: Also, for the model of :meth:`to_model`. The module itself computes in its dtype.
            device: Where to compute, such as "cuda". None leaves the model on the CPU.
            start, n_mixes, layer_norm, dropout, layers, trainable, keep_boundaries: See
                :class:`ElmoModule`.

        Raises:
            ModelError: No model was found, or it cannot be opened.
            ConfigError: The device is not available, or another argument is invalid.
        """
        from elmokit.formats.open import open_model

        check_device(device)  # before anything is read
        model = open_model(
            path_or_name,
            options=options,
            token_embeddings=token_embeddings,
            vocabulary=vocabulary,
            precision=precision,
            exact_marks=exact_marks,
        )
        elmo = cls(
            model,
            start=start,
            n_mixes=n_mixes,
            layer_norm=layer_norm,
            dropout=dropout,
            layers=layers,
            trainable=trainable,
            keep_boundaries=keep_boundaries,
        )
        return elmo if device is None else elmo.to(device)

    @property
    def model(self) -> PretrainedBiLM:
        """The model with the current weights of :attr:`bilm`, which are read on access."""
        model = self._elmo.model
        return model if self.alignment is None else model.replace(alignment=self.alignment.numpy())

    @property
    def elmo(self) -> Elmo:
        """An ``Elmo`` that computes NumPy arrays with the current weights, start state, alignment and first mix."""
        if self.alignment is not None:
            self._elmo.computer = self._elmo.computer.with_model(self.model)
        if len(self.mixes):
            self._elmo.mix = _NumpyMix(self.mixes[0])  # type: ignore[arg-type]
        self._elmo.start_state = BiLMState(self.start_hidden, self.start_cell).numpy()
        return self._elmo

    @property
    def computer(self) -> Computer:
        """The computer with the current weights, like that of an ``Elmo``."""
        return self.elmo.computer

    @property
    def n_layers(self) -> int:
        """Number of layers, including the context-free layer 0."""
        return self.bilm.config.n_layers + 1

    @property
    def output_dim(self) -> int:
        """Number of dimensions of a vector."""
        return self.bilm.config.output_dim

    def penalty(self) -> Tensor:
        """Return the sum of squares of the raw weights of all scalar mixes.

        Add it, times a factor lambda, to the loss of each batch. A large lambda keeps the mixes near the plain mean.
        Peters et al. (2018) use 0.001 for most tasks and 0.1 for NER.
        """
        penalties = [mix.penalty() for mix in self.mixes if isinstance(mix, ScalarMix)]
        # The zero makes the sum valid without mixes, on the right device.
        return torch.stack([*penalties, self.start_hidden.new_zeros(())]).sum()

    def train(self, mode: bool = True) -> ElmoModule:
        """Switch the dropout of the mixes on or off. The biLM's own dropout is for pre-training and stays off."""
        # PyTorch's `train` also switches all submodules, hence the line after it.
        super().train(mode)
        self.bilm.eval()
        return self

    def ids(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Encode tokenized sentences as the input of ``forward``, with sentence boundaries.

        Arguments, result and errors as in :meth:`elmokit.Elmo.ids`, but as a tensor on the biLM's device.
        """
        return torch.from_numpy(self._elmo.ids(sentences)).to(self.bilm.device)

    def embed(
        self, sentences: Sequence[Sequence[str]], *, layers: Layers = "mix", batch_tokens: int = 2048
    ) -> list[Vectors]:
        """Compute the vectors of tokenized sentences as NumPy arrays, without gradient and without dropout.

        Args:
            sentences: Lists of tokens.
            layers: "mix" for the first scalar mix, or as in :meth:`elmokit.Elmo.embed`.
            batch_tokens: Positions per batch. It changes speed and memory, not the vectors.

        Returns, raises: As in :meth:`elmokit.Elmo.embed`.
        """
        return self.elmo.embed(sentences, layers=layers, batch_tokens=batch_tokens)

    def forward(self, ids: Tensor, state: BiLMState | None = None) -> ElmoOutput:
        """Compute the scalar mixes of a batch.

        Args:
            ids: The result of :meth:`ids`: boundaries included, padded on the right with 0.
            state: The LSTM state that each row starts from. None uses ``start``; "stateful" then starts from zero.

        Raises:
            TypeError: ``ids`` is not a tensor of whole numbers, or it has the wrong number of dimensions.
            ValueError: There is padding between tokens.
        """
        self._check_ids(ids)
        # Char ids are shifted by 1 as in AllenNLP, so 0 is always padding.
        mask = self.bilm.mask_of(ids)
        # `within_boundaries` finds <S> and </S> at the two ends of a row, which a gap would move.
        check_no_gaps(mask)
        if state is None:  # callers that continue rows themselves pass one
            state = self.start_state(ids.shape[0])
        layers, state = self.layers_of(ids, mask, state)
        # The positions over which a mix with layer norm computes mean and variance: the returned ones, as in bilm-tf.
        real = mask if self.keep_boundaries else within_boundaries(mask)
        mixes: list[Tensor] = [mix(layers, real) * mask[..., None] for mix in self.mixes]
        if not self.keep_boundaries:
            mixes = [_without_boundaries(mix, mask) for mix in mixes]
            mask = mask[:, 2:]
        return ElmoOutput([self.dropout(mix) for mix in mixes], mask, state)

    def _check_ids(self, ids: object) -> None:
        """Raise a TypeError unless these are ids of a batch."""
        given = type(ids).__name__
        if isinstance(ids, Tensor):
            n_axes = 3 if self.bilm.config.n_words is None else 2
            width = self.bilm.config.ids_per_token
            is_whole = ids.dtype in (torch.int64, torch.int32)
            if is_whole and ids.ndim == n_axes and width in (None, ids.shape[-1]):
                return
            given = f"{ids.dtype} {tuple(ids.shape)}"
        raise TypeError(f"forward expects ids from ElmoModule.ids, but got {given}. Call elmo(elmo.ids(sentences)).")

    def layers_of(self, ids: Tensor, mask: Tensor, state: BiLMState) -> BiLMOutput:
        """Compute all layers of a batch, aligned if the model has an alignment, and the state after it.

        Args:
            ids: The result of :meth:`ids`.
            mask: ``(batch, time)`` bool, True on a token, including boundaries.
            state: The LSTM state that each row starts from.

        Raises:
            ValueError: ``ids`` has numbers that are too large.
        """
        # Gradients of a frozen biLM would waste memory. The mixes are still trained.
        with torch.set_grad_enabled(self._is_trained() and torch.is_grad_enabled()):
            layers, state = self.bilm(ids, mask, state)
            return BiLMOutput(self._aligned(layers), state)

    def padded_layers(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Compute all layers of a batch of sentences as tensors, with gradients if the biLM's weights require them.

        For models that mix the layers themselves. Each sentence starts from :meth:`start_state`.

        Args:
            sentences: Lists of tokens.

        Returns:
            layers: ``(layers, batch, time, dim)``, layer 0 first, without boundaries, zero on padding.
            mask: ``(batch, time)`` bool, True on a token.

        Raises:
            TextError: A sentence is not a list of strings.
        """
        batch = pad_batch(sentences, self.model.read.in_case)
        device = self.bilm.device
        vectors = self._word_vectors(batch.words)[torch.from_numpy(batch.index).to(device)]
        mask = torch.from_numpy(batch.mask).to(device)
        layers, _ = self.bilm.contextualize(vectors, mask, self.start_state(len(sentences)))
        return _without_boundaries(self._aligned(layers), mask), mask[:, 2:]

    def mixed_vectors(self, sentences: Sequence[Sequence[str]], *, batch_tokens: int = 2048) -> list[Tensor]:
        """Compute the first scalar mix of sentences as tensors, with the gradients that training needs.

        For programs that have tokens instead of the ids of :meth:`ids`. Sentences of similar length share a batch, as
        in :meth:`embed`.

        Args:
            sentences: Lists of tokens.
            batch_tokens: Positions per batch, padding included.

        Returns:
            One tensor ``(tokens, dim)`` per sentence, without boundaries.

        Raises:
            TextError: A sentence is not a list of strings.
            ConfigError: ``start`` is "stateful", which does not work with reordered sentences.
        """
        if self.start == "stateful":
            raise ConfigError("mixed_vectors needs start='warm' or 'zero', but start is 'stateful'.")
        if not torch.is_grad_enabled():
            arrays = self.embed(sentences, batch_tokens=batch_tokens)
            return [self.dropout(torch.from_numpy(array).to(self.start_hidden.device)) for array in arrays]

        def compute(batch: list[Sequence[str]]) -> list[Tensor]:
            with torch.set_grad_enabled(self._is_trained()):
                layers, mask = self.padded_layers(batch)
            mixed = self.dropout(self.mixes[0](layers, mask))
            return [row[is_token] for row, is_token in zip(mixed, mask, strict=True)]

        return list(map_in_batches(check_sentences(sentences), compute, batch_tokens=batch_tokens))

    def to_model(self) -> PretrainedBiLM:
        """Return a copy of the model with the current weights, to save it or to use it with :class:`~elmokit.Elmo`.

        It includes the start state. A model without a stored one derives it from its weights when it is opened, and
        after fine-tuning, that would differ from the state used in training.
        """
        model = self.model.replace(weights=self.bilm)
        if self.start != "warm":
            return model
        state = BiLMState(self.start_hidden, self.start_cell).numpy()
        return model.replace(start_state=State(state.hidden.copy(), state.cell.copy()))

    def start_state(self, n_rows: int) -> BiLMState:
        """Return the LSTM state that every sentence starts from, for a batch of ``n_rows`` sentences."""
        return BiLMState(self.start_hidden, self.start_cell).repeat_row(n_rows)

    def _is_trained(self) -> bool:
        """Whether any weight of the biLM is trained: with an adapter, even if ``trainable`` is False."""
        return any(parameter.requires_grad for parameter in self.bilm.parameters())

    def _word_vectors(self, words: Sequence[str]) -> Tensor:
        """Compute the vectors of distinct tokens, with gradients if the token layer is trained."""
        ids = torch.from_numpy(self._elmo.model.encode(words)).to(self.bilm.device)
        vectors: Tensor = self.bilm.token_layer(ids)
        return vectors

    def _aligned(self, layers: Tensor) -> Tensor:
        """Map layers ``(layers, ..., dim)`` into the space of another model, if this model has an alignment."""
        if self.alignment is None:
            return layers
        aligned: Tensor = self.alignment(layers)
        return aligned


class _NumpyMix:
    """A scalar mix for :class:`~elmokit.Elmo`."""

    def __init__(self, mix: ScalarMix) -> None:
        self._mix = mix

    @property
    def layer_norm(self) -> bool:
        return self._mix.layer_norm

    @property
    def checksum(self) -> int:
        checksum = 0
        for weight in self._mix.parameters():
            numbers = weight.detach().float().cpu().numpy()
            checksum = zlib.crc32(numbers.tobytes(), checksum)
        return checksum

    @torch.no_grad()
    def __call__(self, layers: Sequence[Floats]) -> list[Floats]:
        # As one long sentence: without layer norm, a mix treats each vector separately; with it, it needs all of them.
        gamma = self._mix.gamma
        joined = torch.from_numpy(np.concatenate(layers, axis=1))[:, None]
        joined = joined.to(gamma.device, gamma.dtype)
        mask = torch.ones(joined.shape[1:3], dtype=torch.bool, device=joined.device)
        vectors = self._mix(joined, mask)[0].float().cpu().numpy()
        mixed = []
        start = 0
        for array in layers:
            stop = start + array.shape[1]
            mixed.append(vectors[start:stop].copy())
            start = stop
        return mixed


def within_boundaries(mask: Tensor) -> Tensor:
    """Return the mask of a batch without its boundaries: True only on the tokens between ``<S>`` and ``</S>``."""
    inner = torch.zeros_like(mask)
    # Position t is a token if t > 0 and position t + 1 is real: then t is not the row's </S>.
    inner[:, 1:-1] = mask[:, 2:]
    return inner


def _without_boundaries(vectors: Tensor, mask: Tensor) -> Tensor:
    """Cut ``(..., batch, time, dim)`` by two positions in time; the last real position of each row was ``</S>``."""
    return vectors[..., 1:-1, :] * mask[:, 2:, None]
