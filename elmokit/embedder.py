"""``Elmo``: sentences in, contextual vectors out; in Python loops, or as a module inside a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.bilm import BiLMState
from elmokit.errors import ConfigError, TextError
from elmokit.initial_state import warm_start
from elmokit.long_text import walk
from elmokit.nn.devices import usable_device
from elmokit.nn.scalar_mix import MixedLayers, ScalarMix, mix_of
from elmokit.text.batching import check_sentence, is_long, make_batch, map_in_batches, read_ahead
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE
from elmokit.token_cache import MIB, TokenCache
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.open import open_model

Start = Literal["warm", "zero", "stateful"]
Layers = Literal["all", "top", "average", "mix"] | int | Sequence[int]
Vectors = NDArray[np.float32]

CHUNK_TOKENS = 4096


class ElmoOutput(NamedTuple):
    """What ``Elmo`` gives to the model around it."""

    mixes: list[Tensor]  # one (batch, time, dim) per learned mix; zero where the mask is False
    mask: Tensor  # (batch, time) bool, True on a real token
    state: BiLMState  # after the batch; pass it on to carry it


class Elmo(nn.Module):
    """Contextual token vectors from a biLM (Peters et al. 2018).

    With ``start`` "warm" or "zero" a sentence's vectors do not depend on its neighbours, its batch or the order.

    An ``Elmo`` takes its model over: whether the biLM trains, where it is and in what number type are set on the model
    itself, so give each ``Elmo`` a model of its own.

    Args:
        model: an opened model; ``Elmo.from_pretrained`` opens one by its path.
        start: the LSTM state that a sentence is read from. "warm": one constant state, stored with the model or
            made from the model's sentence boundaries. "zero": nothing read yet. "stateful": the state of the
            same batch row after the sentence before, as bilm-tf and AllenNLP do.
        n_mixes: learned mixes that ``forward`` returns, for different places in a model.
        layer_norm: normalise layers before mixing, over all vectors of the batch that are returned, as in bilm-tf
            (AllenNLP counts the boundaries too: ``compat.allennlp``).
        dropout: on each mix, in training; the paper's models use 0.5.
        layers: what the mixes weigh: "all"; "top", the top layer times a learned gamma; "average", the plain mean times
            a learned gamma; a layer's number; or several.
        trainable: let gradients reach the biLM; else only the mixes learn.
        keep_boundaries: leave the vectors of ``<S>`` and ``</S>`` in what ``forward`` returns.
        token_cache_mib: memory for layer-0 vectors that ``embed`` keeps across batches, in MiB; 0 to keep none.
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
        token_cache_mib: int = 64,
    ) -> None:
        super().__init__()
        if start not in ("warm", "zero", "stateful"):
            raise ConfigError(f"start is {start!r}; a sentence starts 'warm', 'zero' or 'stateful'.")
        if token_cache_mib < 0:
            raise ConfigError(f"token_cache_mib is {token_cache_mib}; give 0 or more.")
        self.model = model
        self.bilm = model.bilm.requires_grad_(trainable)
        self.start: Start = start
        self.trainable = trainable
        self.keep_boundaries = keep_boundaries
        self.token_cache = TokenCache(token_cache_mib * MIB) if token_cache_mib else None
        self.mixes = nn.ModuleList(mix_of(layers, self.n_layers, layer_norm) for _ in range(n_mixes))
        self.dropout = nn.Dropout(dropout)
        state = self.bilm.zero_state(1)
        if start == "warm":
            state = warm_start(model)
        self.register_buffer("start_hidden", state.hidden)
        self.register_buffer("start_cell", state.cell)
        self.start_hidden: Tensor
        self.start_cell: Tensor
        self.eval()

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
        token_cache_mib: int = 64,
        device: str | torch.device | None = None,
    ) -> Elmo:
        """Open a model and wrap it.

        Args:
            path_or_name: a folder of ours, a folder or archive with options and HDF5 weights, or the HDF5 file, by its
                path or address (http, https); a published name such as "original"; "owner/name" on the Hugging Face
                Hub; None for the small English model inside the package.
            options: the options file of an HDF5 file, path or address, where it does not stand beside it.
            token_embeddings, vocabulary: token vectors computed before, and a word list, as in ``open_model``; for a
                model on this machine.
            device: where to put it.

        Raises:
            ModelError: nothing stands there, or it cannot be opened.
            ConfigError: the device cannot be used.
        """
        where = None if device is None else usable_device(device)
        elmo = cls(
            open_model(path_or_name, options=options, token_embeddings=token_embeddings, vocabulary=vocabulary),
            start=start,
            n_mixes=n_mixes,
            layer_norm=layer_norm,
            dropout=dropout,
            layers=layers,
            trainable=trainable,
            keep_boundaries=keep_boundaries,
            token_cache_mib=token_cache_mib,
        )
        return elmo if where is None else elmo.to(where)

    @property
    def n_layers(self) -> int:
        """Layers of vectors, the context-free layer 0 included."""
        return self.bilm.config.n_layers + 1

    @property
    def output_dim(self) -> int:
        """Size of a vector."""
        return self.bilm.config.output_dim

    def penalty(self) -> Tensor:
        """The sum of squares of all mixes' raw weights: add it, times lambda, to each batch's loss.

        Peters et al. 2018 take a lambda of 0.001 for most tasks, 0.1 for NER; a large one keeps the mix near the mean.
        """
        penalties = [mix.penalty() for mix in self.mixes if isinstance(mix, ScalarMix)]
        return torch.stack([*penalties, self.start_hidden.new_zeros(())]).sum()

    def train(self, mode: bool = True) -> Elmo:
        """Switch dropout of the mixes on or off; the biLM's own dropout is for pre-training and stays off."""
        super().train(mode)
        self.bilm.eval()
        return self

    def ids(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Char ids of tokenised sentences, boundaries added: what ``forward`` reads.

        Returns:
            ``(batch, time, chars)``, ``(batch, time, 1 + chars)`` with word features, or ``(batch, time)`` for a
            word-input model; 0 where there is no token.
        """
        batch = make_batch(sentences, self.model.encode)
        tokens, mask = torch.from_numpy(batch.ids), torch.from_numpy(batch.mask)
        ids = tokens[torch.from_numpy(batch.index)]
        return torch.where(mask.view(*mask.shape, *[1] * (ids.ndim - 2)), ids, 0).to(self.bilm.device)

    def forward(self, ids: Tensor, state: BiLMState | None = None) -> ElmoOutput:
        """Learned mixes of a batch.

        Args:
            ids: ``(batch, time, chars)`` from ``ids``, boundaries included, padded on the right with 0.
            state: what each row starts from; None for the start that was chosen ("stateful" begins at zero).

        Raises:
            ValueError: there is padding between tokens.
        """
        mask = (ids > 0).any(dim=-1) if self.bilm.config.n_words is None else ids > 0
        if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
            raise ValueError("There is padding before or between tokens; pad ids on the right, as Elmo.ids does.")
        state = self.start_state(len(ids)) if state is None else state
        with torch.set_grad_enabled(self.trainable and torch.is_grad_enabled()):
            layers, state = self.bilm(ids, mask, state)
        real = mask if self.keep_boundaries else within_boundaries(mask)
        mixes: list[Tensor] = [mix(layers, real) * mask[..., None] for mix in self.mixes]
        if not self.keep_boundaries:
            mixes, mask = [_without_boundaries(mix, mask) for mix in mixes], mask[:, 2:]
        return ElmoOutput([self.dropout(mix) for mix in mixes], mask, state)

    @overload
    def embed(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        layers: Layers = ...,
        batch_tokens: int = ...,
        batch_size: int = ...,
    ) -> list[Vectors]: ...

    @overload
    def embed(
        self,
        sentences: Iterator[Sequence[str]],
        *,
        layers: Layers = ...,
        batch_tokens: int = ...,
        batch_size: int = ...,
    ) -> Iterator[Vectors]: ...

    def embed(
        self,
        sentences: Iterable[Sequence[str]],
        *,
        layers: Layers = "all",
        batch_tokens: int = 2048,
        batch_size: int = 64,
    ) -> list[Vectors] | Iterator[Vectors]:
        """Vectors of tokenised sentences, in the order given, boundaries off.

        Args:
            sentences: lists of tokens. From an iterator they are read a few batches ahead and the vectors
                come as an iterator too, so that memory stays bounded.
            layers: "all"; "top"; "average" (the plain mean); "mix" (the first learned mix); a layer's number;
                or several.
            batch_tokens: positions per batch, padding included; memory grows with it, results do not change.
            batch_size: sentences per batch when ``start`` is "stateful", where row r goes on from row r.

        Returns:
            one array per sentence: ``(layers, tokens, dim)`` for "all" or several layers, else ``(tokens, dim)``.

        Raises:
            TextError: a sentence is no list of strings.
            ConfigError: there is no such layer.
        """
        if isinstance(sentences, str):
            raise TextError(
                f"Expected a list of tokenized sentences, but got the string {sentences[:40]!r}. "
                f"Wrap it: embed([{sentences[:40]!r}.split()])."
            )
        chosen = self._chosen(layers)
        if batch_tokens < 1 or batch_size < 1:
            raise ConfigError(f"batch_tokens is {batch_tokens} and batch_size {batch_size}; both must be at least 1.")
        stream = self._embed(iter(sentences), chosen, batch_tokens, batch_size)
        return stream if isinstance(sentences, Iterator) else list(stream)

    def embed_batch(
        self, sentences: Sequence[Sequence[str]], state: BiLMState, layers: Layers = "all"
    ) -> tuple[list[Vectors], BiLMState]:
        """One batch from an explicit state; the arrays as in ``embed``, and the state after the batch, row by row."""
        if not sentences:
            return [], state
        return self._run(sentences, state, self._chosen(layers))

    def embed_document(
        self, tokens: Sequence[str], *, layers: Layers = "all", chunk_tokens: int = CHUNK_TOKENS
    ) -> Iterator[Vectors]:
        """Vectors of one text of any length, part by part, exact, in memory that does not grow with it.

        Args:
            tokens: read as one sentence.
            layers: as in ``embed``.
            chunk_tokens: tokens a part.

        Returns:
            parts ``(layers, tokens, dim)`` or ``(tokens, dim)``, which side by side are what ``embed`` gives.

        Raises:
            TextError: the text is no list of strings.
            ConfigError: there is no such layer, or a mix that normalises over the whole text was asked for.
        """
        chosen = self._chosen(layers)
        if chunk_tokens < 1:
            raise ConfigError(f"chunk_tokens is {chunk_tokens}; it must be at least 1.")
        if chosen.looks_at_all(self):
            raise ConfigError("This mix normalises over the whole text, which is never in memory; take other layers.")
        return self._walk([BEGIN_SENTENCE, *check_sentence(tokens), END_SENTENCE], chosen, chunk_tokens)

    def start_state(self, n_rows: int) -> BiLMState:
        """The state that every sentence starts from, for so many rows."""
        return BiLMState(self.start_hidden, self.start_cell).repeat_row(n_rows)

    def _embed(
        self, sentences: Iterator[Sequence[str]], chosen: _Chosen, batch_tokens: int, batch_size: int
    ) -> Iterator[Vectors]:
        if self.start == "stateful":
            carried = self.bilm.zero_state(0)
            for batch in read_ahead(sentences, max_items=batch_size):
                vectors, after = self._run(batch, carried.first_rows(len(batch)), chosen)
                carried = carried.with_first_rows(after)
                yield from vectors
            return

        def compute(batch: list[Sequence[str]]) -> list[Vectors]:
            if is_long(len(batch[0])) and not chosen.looks_at_all(self):
                return [self._walked(batch[0], chosen)]
            return self._run(batch, self.start_state(len(batch)), chosen)[0]

        yield from map_in_batches(sentences, compute, batch_tokens=batch_tokens)

    def _walk(self, positions: Sequence[str], chosen: _Chosen, chunk_tokens: int) -> Iterator[Vectors]:
        """The parts of a text given with its boundaries; these belong to the first and the last chunk."""
        edges = [0, *range(1 + chunk_tokens, len(positions) - 1, chunk_tokens), len(positions)]

        def vectors_of(start: int, stop: int) -> Tensor:
            places: dict[str, int] = {}
            index = [places.setdefault(token, len(places)) for token in positions[start:stop]]
            vectors = self.model.word_vectors(list(places), self.token_cache)
            return vectors[torch.tensor(index, device=vectors.device)][None]

        for edge, layers in zip(edges, walk(self.bilm, vectors_of, edges, self.start_state(1)), strict=False):
            part = chosen.of(self, layers)[..., 0, :, :].detach()
            stop = part.shape[-2] - (edge + part.shape[-2] == len(positions))
            yield part[..., 1 if edge == 0 else 0 : stop, :].float().cpu().numpy()

    def _walked(self, sentence: Sequence[str], chosen: _Chosen) -> Vectors:
        parts = self._walk([BEGIN_SENTENCE, *check_sentence(sentence), END_SENTENCE], chosen, CHUNK_TOKENS)
        vectors, at = np.empty(0, np.float32), 0
        for part in parts:
            if not at:
                vectors = np.empty((*part.shape[:-2], len(sentence), part.shape[-1]), np.float32)
            vectors[..., at : at + part.shape[-2], :] = part
            at += part.shape[-2]
        return vectors

    @torch.no_grad()
    def _run(
        self, sentences: Sequence[Sequence[str]], state: BiLMState, chosen: _Chosen
    ) -> tuple[list[Vectors], BiLMState]:
        (layers, state), batch = self.model.contextualize(sentences, state, self.token_cache)
        wanted = chosen.of(self, layers, torch.from_numpy(batch.mask).to(layers.device))  # (..., batch, time, dim)
        rows = wanted.movedim(-3, 0).float().cpu().numpy()
        lengths = batch.mask.sum(axis=1)
        return [row[..., 1 : length - 1, :].copy() for row, length in zip(rows, lengths, strict=True)], state

    def _chosen(self, layers: Layers) -> _Chosen:
        if layers == "all":
            return _Chosen(tuple(range(self.n_layers)))
        if layers == "top":
            return _Chosen(self.n_layers - 1)
        if layers == "average" or layers == "mix":
            return _Chosen(layers)
        chosen = layers if isinstance(layers, int) else tuple(layers)
        for number in [chosen] if isinstance(chosen, int) else chosen:
            if number not in range(self.n_layers):
                raise ConfigError(
                    f"There is no layer {number!r}: this model has layers 0 to {self.n_layers - 1}, "
                    "and 'all', 'top', 'average' and 'mix' of them."
                )
        return _Chosen(chosen)


class _Chosen(NamedTuple):
    """Which layers were asked for: one, several, or a combination of all."""

    layers: int | tuple[int, ...] | Literal["average", "mix"]

    def looks_at_all(self, elmo: Elmo) -> bool:
        """Whether a vector depends on the whole batch: a mix that normalises over it."""
        return self.layers == "mix" and bool(elmo.mixes) and bool(elmo.mixes[0].layer_norm)

    def of(self, elmo: Elmo, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        """From ``(layers, batch, time, dim)`` to what was asked for; the mask for a mix that looks at all."""
        if self.layers == "average":
            return layers.mean(dim=0)
        if self.layers == "mix":
            if not elmo.mixes:
                raise ConfigError("This Elmo was built with n_mixes=0: there is no learned mix to apply.")
            mixed: Tensor = elmo.mixes[0](layers, None if mask is None else within_boundaries(mask))
            return mixed
        return layers[self.layers] if isinstance(self.layers, int) else layers[list(self.layers)]


def within_boundaries(mask: Tensor) -> Tensor:
    """``(batch, time)``: True on the tokens between ``<S>`` and ``</S>``, of a mask that is True on these too."""
    inner = torch.zeros_like(mask)
    inner[:, 1:-1] = mask[:, 2:]
    return inner


def _without_boundaries(vectors: Tensor, mask: Tensor) -> Tensor:
    """``(batch, time, dim)`` to ``(batch, time - 2, dim)``: a row's last real position was its ``</S>``."""
    return vectors[:, 1:-1] * mask[:, 2:, None]
