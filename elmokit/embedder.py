"""Compute ELMo vectors: :class:`Elmo` embeds sentences, and is a module for use inside other models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Literal, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.bilm import BiLMState
from elmokit.engine.precision import Precision, check_precision
from elmokit.errors import ConfigError
from elmokit.initial_state import initial_state
from elmokit.long_text import read_in_chunks
from elmokit.nn.devices import parse_device
from elmokit.nn.kernels.backends import requested_backend
from elmokit.nn.layer_selection import Layers, LayerSelection, select_layers, within_boundaries
from elmokit.nn.scalar_mix import MixedLayers, ScalarMix, make_scalar_mix
from elmokit.text.batching import check_sentence, check_sentences, is_long, make_batch, map_in_batches, read_ahead
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE
from elmokit.token_cache import MIB, TokenCache
from elmokit.weights.model import PretrainedBiLM

Start = Literal["warm", "zero", "stateful"]
"""The LSTM state that a sentence starts from; see :class:`Elmo`."""
Vectors = NDArray[np.float32]

CHUNK_TOKENS = 4096
"""Tokens per chunk of a long text: few enough for memory, enough for the matrix products to run at full speed."""


class ElmoOutput(NamedTuple):
    """The result of ``Elmo.forward``.

    Attributes:
        mixes: One tensor ``(batch, time, dim)`` per scalar mix; zero where the mask is False.
        mask: ``(batch, time)`` bool, True on a real token.
        state: The LSTM state after the batch. Pass it to the next call to continue each row.
    """

    mixes: list[Tensor]
    mask: Tensor
    state: BiLMState


class Elmo(nn.Module):
    """Contextual token vectors from a bidirectional language model (Peters et al. 2018).

    Call :meth:`embed` for NumPy arrays. Inside a PyTorch model, call the module itself: it returns learned mixes of the
    layers (:class:`~elmokit.nn.scalar_mix.ScalarMix`).

    With ``start`` "warm" or "zero", the vectors of a sentence depend on that sentence alone, not on other sentences,
    the batch or the order. ("Warm" means a fixed initial LSTM state: one that is stored with the model, or else the
    state after an empty sentence. It avoids the poor vectors that a zero state gives to the first words.)

    If the model has an alignment (:func:`elmokit.align`), all vectors are in the space of the model it was aligned to.

    An ``Elmo`` owns its model: it switches the gradients of the biLM on or off, and ``.to(device)`` moves the biLM.
    Give each ``Elmo`` a model of its own.

    Args:
        model: An opened model. :meth:`from_pretrained` opens one for you.
        start: The LSTM state that each sentence starts from. "warm": a fixed initial state. "zero": all zeros,
            from which some models never recover, because training passes the state on (see ``reset_state`` of
            :func:`elmokit.train`). "stateful": the state of the same batch row after the previous batch, as in bilm-tf
            and AllenNLP; the first batch starts from zeros.
        n_mixes: Number of scalar mixes that ``forward`` returns, for example one for the input and one for the output
            of a task's network.
        layer_norm: Normalize the layers before mixing, over all returned vectors of the batch, as in bilm-tf.
            (AllenNLP includes the boundaries; see ``compat.allennlp``.)
        dropout: Dropout ratio on each mix during training. The models of the paper use 0.5.
        layers: The layers that the scalar mixes combine: "all"; "top", which learns a factor for the top layer only;
            "average", which learns a factor for the plain mean; a layer number; or a list of them.
        trainable: Fine-tune the biLM. If False, only the scalar mixes are trained.
        keep_boundaries: Include the vectors of ``<S>`` and ``</S>`` in the result of ``forward``.
        token_cache_mib: Memory in MiB for the layer-0 vectors of frequent tokens, which :meth:`embed` then computes
            only once. 0 disables the cache.

    Raises:
        ConfigError: ``start``, ``layers``, ``dropout`` or ``token_cache_mib`` is not a valid value.

    Example:
        >>> elmo = Elmo.from_pretrained()  # the small English model in the package
        >>> vectors = elmo.embed([["The", "bank", "raised", "its", "rate", "."]])
        >>> vectors[0].shape  # layers, tokens, dimensions
        (3, 6, 384)

        In a PyTorch model:

        >>> elmo = Elmo.from_pretrained(dropout=0.5)
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
        token_cache_mib: int = 64,
    ) -> None:
        super().__init__()
        if start not in ("warm", "zero", "stateful"):
            raise ConfigError(f"start is {start!r}. Choose 'warm', 'zero' or 'stateful'.")
        if token_cache_mib < 0:
            raise ConfigError(f"token_cache_mib is {token_cache_mib}. Choose 0 or more.")
        if not 0 <= dropout <= 1:
            raise ConfigError(f"dropout is {dropout}; it must be at least 0 and at most 1.")
        self.model = model
        # Frozen weights let the packed kernels run: they have no backward pass.
        self.bilm = model.bilm.requires_grad_(trainable)
        self.alignment = model.alignment
        self.start: Start = start
        self.trainable = trainable
        self.keep_boundaries = keep_boundaries
        self.token_cache = TokenCache(token_cache_mib * MIB) if token_cache_mib else None
        self.mixes = nn.ModuleList(make_scalar_mix(layers, self.n_layers, layer_norm) for _ in range(n_mixes))
        self.dropout = nn.Dropout(dropout)
        # "stateful" also starts from zero: there is no sentence before the first one.
        state = initial_state(model) if start == "warm" else self.bilm.zero_state(1)
        state = state.to(self.bilm.device)  # a stored state stays on the CPU when the network is moved
        # Buffers move with the module to another device, and no optimizer sees them.
        self.register_buffer("start_hidden", state.hidden)
        self.register_buffer("start_cell", state.cell)
        self.start_hidden: Tensor
        self.start_cell: Tensor
        # Unlike other modules, which start in training mode: most users only embed, and dropout would add noise
        # silently.
        self.eval()

    def extra_repr(self) -> str:
        """Return what ``repr`` shows besides the modules. The precision is the lowest that is accepted."""
        name = "unknown" if self.model.source is None else self.model.source.name
        return f"model={name!r}, start={self.start!r}, precision={requested_backend(self.bilm.precision)!r}"

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
        token_cache_mib: int = 64,
        precision: Precision | None = None,
        device: str | torch.device | None = None,
    ) -> Elmo:
        """Open a model by its path or name.

        Args:
            path_or_name: An elmokit model directory; a directory or archive with options and HDF5 weights; or an HDF5
                file; each as a path or an http(s) address. Or a published name such as "original"; "owner/name" on the
                Hugging Face Hub; or None for the small English model in the package.
            options: Path or address of the options file of an HDF5 file. Needed only if it is not next to the weights.
            token_embeddings: Path of an HDF5 file of precomputed token vectors, one row per word of ``vocabulary``.
            vocabulary: Path of a word list, for ``token_embeddings`` or for a word-input model.
            precision: The lowest precision in which LSTM weights may be computed when no gradient is needed: "float32",
                "bfloat16" or "int8". Lower precision is faster and slightly less exact (docs/how-to/speed.md). None
                leaves the model's own: float32, unless its files name another one.
            device: Where to compute, such as "cuda". None leaves the model on the CPU.
            start, n_mixes, layer_norm, dropout, layers, trainable, keep_boundaries, token_cache_mib: See :class:`Elmo`.

        Raises:
            ModelError: No model was found, or it cannot be opened.
            ConfigError: The device is not available, or another argument is not valid.

        Example:
            >>> elmo = Elmo.from_pretrained("elmo_weights.hdf5", options="elmo_options.json", start="zero")
        """
        # Imported here, because it loads the readers of every format, which code that only names Elmo does not need.
        from elmokit.weights.open import open_model

        check_precision(precision)
        where = None if device is None else parse_device(device)
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
        if precision is not None:
            # On the network, not on this object: the kernels are selected there, for every caller of the model.
            elmo.bilm.precision = precision
        return elmo if where is None else elmo.to(where)

    @property
    def n_layers(self) -> int:
        """Number of layers of vectors, the context-free layer 0 included."""
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
        # The zero makes the sum valid without any mix, on the right device.
        return torch.stack([*penalties, self.start_hidden.new_zeros(())]).sum()

    def train(self, mode: bool = True) -> Elmo:
        """Switch the dropout of the mixes on or off. The biLM's own dropout is for pre-training and stays off."""
        # PyTorch's `train` also switches all submodules, hence the line after it.
        super().train(mode)
        self.bilm.eval()
        return self

    def ids(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Encode tokenized sentences as the input of ``forward``, with sentence boundaries.

        Args:
            sentences: Lists of tokens.

        Returns:
            Char ids ``(batch, time, chars)``; ``(batch, time, 1 + chars)`` for a model with word features; or word ids
            ``(batch, time)`` for a word-input model. 0 on padding.

        Raises:
            TextError: A sentence is not a list of strings.
        """
        batch = make_batch(sentences, self.model.encode)
        tokens, mask = torch.from_numpy(batch.ids), torch.from_numpy(batch.mask)
        ids = tokens[torch.from_numpy(batch.index)]
        return torch.where(mask.view(*mask.shape, *[1] * (ids.ndim - 2)), ids, 0).to(self.bilm.device)

    def forward(self, ids: Tensor, state: BiLMState | None = None) -> ElmoOutput:
        """Compute the scalar mixes of a batch.

        Args:
            ids: The result of :meth:`ids`: boundaries included, padded on the right with 0.
            state: The LSTM state that each row starts from. None uses ``start``; "stateful" then starts from zero.

        Raises:
            TypeError: ``ids`` is not a tensor of whole numbers.
            ValueError: It has the wrong number of dimensions or numbers that are too large, or there is padding between
                tokens.
        """
        given = f"a tensor of {ids.dtype}" if isinstance(ids, Tensor) else f"a {type(ids).__name__}"
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
            raise TypeError(
                f"forward expects the ids of Elmo.ids, but got {given}. Call elmo(elmo.ids(sentences)), or "
                "elmo.embed(sentences) for NumPy arrays."
            )
        shape = "(batch, time, chars)" if self.bilm.config.n_words is None else "(batch, time)"
        if ids.ndim != shape.count(",") + 1:
            raise ValueError(
                f"forward expects the ids of Elmo.ids, {shape}, but got a tensor of shape {tuple(ids.shape)}. "
                "Call elmo(elmo.ids(sentences)) with a list of tokenized sentences."
            )
        # Char ids are shifted by 1 as in AllenNLP, so that 0 is padding and nothing else.
        mask = (ids > 0).any(dim=-1) if self.bilm.config.n_words is None else ids > 0
        # `within_boundaries` finds <S> and </S> at the two ends of a row, which a gap would move.
        if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
            raise ValueError("There is padding before or between tokens. Pad on the right, as Elmo.ids does.")
        # An explicit state wins over `start`, so that a caller can continue rows itself.
        state = self.start_state(len(ids)) if state is None else state
        # Gradients of a frozen biLM would cost memory for nothing. The mixes below are trained all the same.
        with torch.set_grad_enabled(self.trainable and torch.is_grad_enabled()):
            try:
                layers, state = self.bilm(ids, mask, state)
            except IndexError:
                raise ValueError(
                    "ids contains numbers that the model has no character or word for. Pass the result of this "
                    "model's own Elmo.ids."
                ) from None
            layers = self._aligned(layers)
        # The positions over which a mix with layer norm computes its mean and variance: those that are returned, as in
        # bilm-tf.
        real = mask if self.keep_boundaries else within_boundaries(mask)
        mixes: list[Tensor] = [mix(layers, real) * mask[..., None] for mix in self.mixes]
        if not self.keep_boundaries:
            mixes, mask = [_without_boundaries(mix, mask) for mix in mixes], mask[:, 2:]
        return ElmoOutput([self.dropout(mix) for mix in mixes], mask, state)

    def padded_layers(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Compute all layers of a batch of sentences as tensors, with gradient where the biLM's weights require it.

        For models that mix the layers themselves. Every sentence starts from :meth:`start_state`.

        Args:
            sentences: Lists of tokens.

        Returns:
            layers: ``(layers, batch, time, dim)``, layer 0 first, without boundaries, zero on padding.
            mask: ``(batch, time)`` bool, True on a token.

        Raises:
            TextError: A sentence is not a list of strings.
        """
        (layers, _), batch = self.model.contextualize(sentences, self.start_state(len(sentences)))
        mask = torch.from_numpy(batch.mask).to(layers.device)
        return _without_boundaries(self._aligned(layers), mask), mask[:, 2:]

    def mixed_vectors(self, sentences: Sequence[Sequence[str]], *, batch_tokens: int = 2048) -> list[Tensor]:
        """Compute the first scalar mix of sentences as tensors, with the gradients that training needs.

        For programs that have tokens and not the ids of :meth:`ids`. Sentences of similar length share a batch, as in
        :meth:`embed`.

        Args:
            sentences: Lists of tokens.
            batch_tokens: Positions per batch, padding included.

        Returns:
            One tensor ``(tokens, dim)`` per sentence, without boundaries.

        Raises:
            TextError: A sentence is not a list of strings.
            ConfigError: ``start`` is "stateful": sentences that change their order have no state to continue.
        """
        if self.start == "stateful":
            raise ConfigError("mixed_vectors needs start='warm' or 'zero', but start is 'stateful'. Call forward.")
        if not torch.is_grad_enabled():
            arrays = self.embed(sentences, layers="mix", batch_tokens=batch_tokens)
            return [self.dropout(torch.from_numpy(array).to(self.start_hidden.device)) for array in arrays]
        # The cache of a frozen biLM holds vectors without gradient.
        cache = None if self.trainable else self.token_cache

        def compute(part: list[Sequence[str]]) -> list[Tensor]:
            with torch.set_grad_enabled(self.trainable):
                (layers, _), batch = self.model.contextualize(part, self.start_state(len(part)), cache)
            mask = torch.from_numpy(batch.mask).to(layers.device)
            layers, mask = _without_boundaries(self._aligned(layers), mask), mask[:, 2:]
            mixed = self.dropout(self.mixes[0](layers, mask))
            return [row[is_token] for row, is_token in zip(mixed, mask, strict=True)]

        return list(map_in_batches(check_sentences(sentences), compute, batch_tokens=batch_tokens))

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
        """Compute the vectors of tokenized sentences.

        Sentences of similar length share a batch. Results come in the order of the sentences, without the boundaries.

        Args:
            sentences: Lists of tokens. From an iterator, sentences are read a few batches ahead and the vectors are
                returned as an iterator too, so that a corpus of any size fits in memory.
            layers: "all"; "top"; "average", the plain mean; "mix", the first scalar mix; a layer number; or a list of
                them. Layer 0 is context-free.
            batch_tokens: Positions per batch, padding included. It changes speed and memory, not the vectors.
            batch_size: Sentences per batch if ``start`` is "stateful": row r then continues from row r of the previous
                batch.

        Returns:
            One array per sentence: ``(layers, tokens, dim)`` for "all" and for a list, else ``(tokens, dim)``.

        Raises:
            TextError: A sentence is not a list of strings.
            ConfigError: A layer does not exist, or a batch size is below 1.
            FormatError: The weights are so large that the vectors contain NaN or infinity.

        Example:
            >>> first, second = elmo.embed([["The", "bank"], ["Rates", "rose", "."]], layers="average")
            >>> second.shape
            (3, 384)
            >>> lines = (line.split() for line in open("corpus.txt"))
            >>> sentence_vectors = [vectors.mean(axis=0) for vectors in elmo.embed(lines, layers="top")]
        """
        checked = check_sentences(sentences)
        selection = self._select(layers)
        if batch_tokens < 1 or batch_size < 1:
            raise ConfigError(f"batch_tokens is {batch_tokens} and batch_size {batch_size}; both must be at least 1.")
        # `_embed` is a generator, whose body runs only when it is read; so arguments are checked here.
        vectors = self._embed(checked, selection, batch_tokens, batch_size)
        return vectors if isinstance(sentences, Iterator) else list(vectors)

    def embed_batch(
        self, sentences: Sequence[Sequence[str]], state: BiLMState, layers: Layers = "all"
    ) -> tuple[list[Vectors], BiLMState]:
        """Compute the vectors of one batch from a given LSTM state.

        Use it to carry the state from batch to batch yourself.

        Args:
            sentences: Lists of tokens.
            state: One row per sentence, from ``elmo.bilm.zero_state(n)`` or from an earlier call.
            layers: As in :meth:`embed`.

        Returns:
            The vectors as in :meth:`embed`, and the state after each sentence.

        Raises:
            TextError: A sentence is not a list of strings.
            ConfigError: A layer does not exist.
        """
        if not sentences:
            return [], state
        return self._run(sentences, state, self._select(layers))

    def embed_document(
        self, tokens: Sequence[str], *, layers: Layers = "all", chunk_tokens: int | None = None
    ) -> Iterator[Vectors]:
        """Compute the vectors of one text of any length, chunk by chunk, in constant memory.

        The vectors are those that :meth:`embed` returns for the whole text as one sentence.

        Args:
            tokens: The text.
            layers: As in :meth:`embed`.
            chunk_tokens: Tokens per chunk; 4,096 by default.

        Returns:
            Arrays ``(layers, tokens, dim)`` or ``(tokens, dim)``, to be joined along the tokens.

        Raises:
            TextError: The text is not a list of strings.
            ConfigError: A layer does not exist, or a mix is requested that normalizes over the whole text.

        Example:
            >>> total = sum(chunk.sum(axis=0) for chunk in elmo.embed_document(book, layers="top"))
        """
        selection = self._select(layers)
        chunk_tokens = CHUNK_TOKENS if chunk_tokens is None else chunk_tokens
        if chunk_tokens < 1:
            raise ConfigError(f"chunk_tokens is {chunk_tokens}; it must be at least 1.")
        # Chunks are mixed one at a time, when the statistics of the others are not known yet.
        if selection.needs_whole_batch:
            raise ConfigError("A scalar mix with layer_norm=True needs the whole text in memory. Choose other layers.")
        return self._embed_in_chunks(check_sentence(tokens), selection, chunk_tokens)

    def embed_planned_batch(
        self, sentences: Sequence[Sequence[str]], layers: Layers = "all"
    ) -> Iterator[list[Vectors]]:
        """Compute the vectors of one batch of :func:`~elmokit.text.batching.plan_batches`.

        For callers that plan batches themselves and write results as they come (``elmokit.corpus``).

        Args:
            sentences: The sentences of the batch.
            layers: As in :meth:`embed`.

        Yields:
            Once, one array per sentence. Or, for the single sentence of a batch that is too long to be computed at
            once, lists of one array: the vectors of its chunks in order.
        """
        selection = self._select(layers)
        if _needs_chunks(sentences, selection):
            for chunk in self._embed_in_chunks(check_sentence(sentences[0]), selection, CHUNK_TOKENS):
                yield [chunk]
        else:
            yield self._run_from_start(sentences, selection)

    def model_with_initial_state(self) -> PretrainedBiLM:
        """Return the model to save, with the initial state that its sentences start from.

        A model that stores no initial state gets one from its weights when it is opened. After fine-tuning, the weights
        would give another state than the one that was trained with.
        """
        if self.start != "warm":
            return self.model
        model = copy(self.model)  # dataclasses.replace would read a softmax that is only read when it is first used
        model.initial_state = BiLMState(self.start_hidden, self.start_cell)
        return model

    def start_state(self, n_rows: int) -> BiLMState:
        """Return the LSTM state that every sentence starts from, for a batch of ``n_rows`` sentences."""
        return BiLMState(self.start_hidden, self.start_cell).repeat_row(n_rows)

    def _embed(
        self, sentences: Iterator[Sequence[str]], selection: LayerSelection, batch_tokens: int, batch_size: int
    ) -> Iterator[Vectors]:
        if self.start == "stateful":
            # No rows yet: the state grows with the largest batch, and new rows start from zero, as in bilm-tf.
            state = self.bilm.zero_state(0)
            for batch in read_ahead(sentences, max_items=batch_size):
                vectors, after = self._run(batch, state.first_rows(len(batch)), selection)
                # A smaller batch leaves the state of the remaining rows as it was.
                state = state.with_first_rows(after)
                yield from vectors
            return

        def compute(batch: list[Sequence[str]]) -> list[Vectors]:
            # A sentence that is too long is alone in its batch (`plan_batches`).
            if _needs_chunks(batch, selection):
                return [self._embed_long(batch[0], selection)]
            return self._run_from_start(batch, selection)

        yield from map_in_batches(sentences, compute, batch_tokens=batch_tokens)

    def _embed_long(self, sentence: Sequence[str], selection: LayerSelection) -> Vectors:
        """Compute a long sentence chunk by chunk into one array, so that intermediate activations are never all in
        memory."""
        # Allocated once its shape is known; joining the chunks at the end would take twice the memory.
        vectors, stop = np.empty(0, np.float32), 0
        for chunk in self._embed_in_chunks(check_sentence(sentence), selection, CHUNK_TOKENS):
            if not stop:
                vectors = np.empty((*chunk.shape[:-2], len(sentence), chunk.shape[-1]), np.float32)
            first, stop = stop, stop + chunk.shape[-2]
            vectors[..., first:stop, :] = chunk
        return vectors

    def _embed_in_chunks(
        self, sentence: Sequence[str], selection: LayerSelection, chunk_tokens: int
    ) -> Iterator[Vectors]:
        positions = [BEGIN_SENTENCE, *sentence, END_SENTENCE]
        # The boundaries belong to the first and the last chunk, so that every chunk has tokens of its own.
        # Excluding the last position as an edge leaves no chunk of </S> alone.
        edges = [0, *range(1 + chunk_tokens, len(positions) - 1, chunk_tokens), len(positions)]

        def vectors_of(start: int, stop: int) -> Tensor:
            # Each distinct token is computed once per chunk: in a long text most tokens are repetitions.
            numbers: dict[str, int] = {}
            index = [numbers.setdefault(token, len(numbers)) for token in positions[start:stop]]
            vectors = self.model.word_vectors(list(numbers), self.token_cache)
            return vectors[torch.tensor(index, device=vectors.device)][None]

        chunks = read_in_chunks(self.bilm, vectors_of, edges, self.start_state(1))
        # There is one edge more than there are chunks.
        for start, layers in zip(edges, chunks, strict=False):
            chunk = selection.apply(self._aligned(layers))[..., 0, :, :].detach()
            self.model.check_finite(chunk)
            n_positions = chunk.shape[-2]
            is_last = start + n_positions == len(positions)
            yield chunk[..., int(start == 0) : n_positions - is_last, :].float().cpu().numpy()

    @torch.no_grad()
    def _run(
        self, sentences: Sequence[Sequence[str]], state: BiLMState, selection: LayerSelection
    ) -> tuple[list[Vectors], BiLMState]:
        (layers, state), batch = self.model.contextualize(sentences, state, self.token_cache)
        return self._vectors_of_sentences(selection, self._aligned(layers), batch.mask), state

    @torch.no_grad()
    def _run_from_start(self, sentences: Sequence[Sequence[str]], selection: LayerSelection) -> list[Vectors]:
        """Compute a batch from the start state. Layer 0 alone needs no LSTM, which takes most of the time."""
        if selection.is_context_free:
            token_vectors, batch = self.model.token_vectors(sentences, self.token_cache)
            layer_0 = torch.cat([token_vectors] * self.bilm.config.n_directions, dim=-1)
            return self._vectors_of_sentences(selection, self._aligned(layer_0[None]), batch.mask)
        return self._run(sentences, self.start_state(len(sentences)), selection)[0]

    def _vectors_of_sentences(
        self, selection: LayerSelection, layers: Tensor, mask: NDArray[np.bool_]
    ) -> list[Vectors]:
        """Take the requested layers of a batch, and cut them to the tokens of each sentence.

        Args:
            selection: The requested layers.
            layers: ``(layers, batch, time, dim)``.
            mask: ``(batch, time)``, boundaries included.
        """
        selected = selection.apply(layers, torch.from_numpy(mask).to(layers.device))  # (..., batch, time, dim)
        self.model.check_finite(selected)
        # (batch, ..., time, dim), in one transfer from the device.
        rows = selected.movedim(-3, 0).float().cpu().numpy()
        # Copies, so that keeping one short sentence does not keep its whole batch in memory.
        return [row[..., 1 : length - 1, :].copy() for row, length in zip(rows, mask.sum(axis=1), strict=True)]

    def _aligned(self, layers: Tensor) -> Tensor:
        """Map layers ``(layers, ..., dim)`` into the space of another model, if this model has an alignment."""
        if self.alignment is None:
            return layers
        aligned: Tensor = self.alignment(layers)
        return aligned

    def _select(self, layers: Layers) -> LayerSelection:
        name = self.model.source.name if self.model.source is not None else "this model"
        return select_layers(layers, self.n_layers, self.mixes, name)


def _needs_chunks(batch: Sequence[Sequence[str]], selection: LayerSelection) -> bool:
    """Return whether a planned batch is a single sentence that is too long to be computed at once."""
    return is_long(len(batch[0])) and not selection.needs_whole_batch


def _without_boundaries(vectors: Tensor, mask: Tensor) -> Tensor:
    """Cut ``(..., batch, time, dim)`` by two positions in time; the last real position of each row was ``</S>``."""
    return vectors[..., 1:-1, :] * mask[:, 2:, None]
