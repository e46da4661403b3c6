"""Compute ELMo vectors as NumPy arrays: :class:`Elmo`. ``elmo_module.py`` has the module for PyTorch models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray

from elmokit.config import check_at_least, check_choice
from elmokit.embedding.computer import Computer
from elmokit.embedding.documents import DocumentReader, by_document, read_documents, read_on
from elmokit.embedding.start_state import check_start_name, note_start, start_state
from elmokit.engine.interface import NetworkInput
from elmokit.engine.layer_selection import Layers, LayerSelection, Mix, select_layers
from elmokit.engine.precision import Precision, requested_backend
from elmokit.engine.state import Floats, Ids, State
from elmokit.engine.token_cache import MIB, TokenCache
from elmokit.errors import ConfigError
from elmokit.pretrained.model import PretrainedBiLM, check_device, check_model
from elmokit.text.batching import (
    READ_AHEAD_BATCHES,
    check_sentences,
    is_long,
    make_batch,
    map_in_batches,
    number_tokens,
    read_ahead,
)

if TYPE_CHECKING:
    import torch

Start = Literal["warm", "zero", "stateful"]
"""The LSTM state that a sentence starts from; see :class:`Elmo`."""
Vectors = NDArray[np.float32]


class Elmo:
    """Contextual token vectors from a bidirectional language model (Peters et al. 2018), as NumPy arrays.

    It does not need PyTorch. Inside a PyTorch model, use :class:`~elmokit.ElmoModule`, which learns mixes of the
    layers.

    With ``start`` "warm" or "zero", a sentence's vectors depend on that sentence alone, not on other sentences, the
    batch or the order. ("warm" uses the start state stored with the model, or the state after an empty sentence if none
    is stored. It avoids the poor vectors that a zero state gives to the first words.)

    If the model has an alignment (``recipes/align.py``), all vectors are in the space of the model that it was aligned
    to.

    Args:
        model: An opened model. :meth:`from_pretrained` opens one for you.
        start: The LSTM state that each sentence starts from. "warm": the model's start state. "zero": all zeros, from
            which some models never recover, because their training passed the state on (the recipe ``modern`` also
            trains from zeros). "stateful": the state of the same batch row after the previous batch, as in bilm-tf and
            AllenNLP; the first batch starts from zeros.
        token_cache_mib: Memory in MiB for the layer-0 vectors of frequent tokens, which are then computed only once. 0
            disables the cache.
        device: Where to compute, such as "cuda" (needs PyTorch); None for the CPU.

    Raises:
        ConfigError: ``model`` is not an opened model, ``start`` or ``token_cache_mib`` is invalid, or the device is not
            available.
        MissingExtraError: The device needs PyTorch, which is not installed.
        FormatError: The weights contain NaN or infinity.

    Example:
        >>> elmo = Elmo.from_pretrained()  # the small English model in the package
        >>> (vectors,) = elmo.embed("It's raining. We left.", tokenize=True)
        >>> vectors.shape  # layers, tokens, dimensions
        (3, 7, 384)
    """

    def __init__(
        self,
        model: PretrainedBiLM,
        *,
        start: Start = "warm",
        token_cache_mib: int = 64,
        device: str | torch.device | None = None,
    ) -> None:
        check_model(model, "Elmo.from_pretrained")
        self._open(Computer(model, device), start, token_cache_mib)

    @classmethod
    def of(cls, computer: Computer, start: Start, token_cache_mib: int) -> Elmo:
        """Return an ``Elmo`` that uses an existing computer, such as that of an ``ElmoModule``."""
        elmo = cls.__new__(cls)
        elmo._open(computer, start, token_cache_mib)
        return elmo

    def _open(self, computer: Computer, start: Start, token_cache_mib: int) -> None:
        check_choice("start", start, get_args(Start))
        check_at_least("token_cache_mib", token_cache_mib, 0)
        self.computer = computer
        """What computes :attr:`model`: the engine, or PyTorch after :meth:`to`."""
        self.start: Start = start
        self.token_cache = TokenCache(token_cache_mib * MIB) if token_cache_mib else None
        self.mix: Mix | None = None
        """The mix for ``layers="mix"``: the first one of the :class:`~elmokit.ElmoModule` that this belongs to."""
        _ = computer.network  # reads the weights now, so damage is reported here
        # "stateful" also starts from zero, because nothing precedes the first sentence.
        self.start_state = start_state(computer, "warm" if start == "warm" else "zero")
        """The LSTM state that each sentence starts from, for one row."""
        if start == "warm":
            note_start(computer.model)

    @property
    def model(self) -> PretrainedBiLM:
        """The model: the contents of its files."""
        return self.computer.model

    def __repr__(self) -> str:
        """Describe it in one line, with the lowest precision for computing it."""
        name = self.model.source_name or "unknown"
        precision = requested_backend(self.model.precision)
        return f"{type(self).__name__}(model={name!r}, start={self.start!r}, precision={precision!r})"

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
        token_cache_mib: int = 64,
        precision: Precision | None = None,
        device: str | torch.device | None = None,
        exact_marks: bool = False,
    ) -> Elmo:
        """Open a model by its path or name.

        Args:
            path_or_name: An elmokit model directory; a directory or archive with options and HDF5 weights; or an HDF5
                file; each as a path or URL. Or a published name such as "original"; "owner/name" on the
                Hugging Face Hub; or None for the small English model in the package.
            options: The options file of an HDF5 file, if it is not next to the weights. A path or URL.
            token_embeddings: HDF5 file of precomputed token vectors, one row per word of the vocabulary.
            vocabulary: Word list for precomputed token vectors or a word-input model.
            start: LSTM state that each sentence starts from: the model's start state (warm), zeros, or the state after
                the previous batch, as in AllenNLP (stateful); vectors then depend on preceding lines. See
                :class:`Elmo`.
            token_cache_mib: See :class:`Elmo`.
            precision: Lowest precision of the LSTM weights. Lower precision is faster but less accurate. None for the
                model's own, which is int8 for en-mini. See docs/how-to/speed.md.
            device: Where to compute, such as cuda or cuda:1 (needs PyTorch); None for the CPU.
            exact_marks: Read typographic marks unchanged, like bilm-tf and AllenNLP, instead of as ASCII. See
                docs/how-to/embed-corpus.md.

        Raises:
            ModelError: No model was found, or it cannot be opened.
            ConfigError: The device is not available, or another argument is invalid.
            MissingExtraError: The device needs PyTorch, which is not installed.

        Example:
            >>> elmo = Elmo.from_pretrained("elmo_weights.hdf5", options="elmo_options.json", start="zero")
        """
        # Imported here because it loads the readers of all formats, which code that only imports Elmo does not need.
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
        return cls(model, start=start, token_cache_mib=token_cache_mib, device=device)

    def to(self, device: str | torch.device) -> Elmo:
        """Move the model to a device, such as "cuda", and return this object.

        Raises:
            MissingExtraError: The device needs PyTorch, which is not installed.
            ConfigError: The device is not available.
        """
        self.computer.to(device)
        return self

    @property
    def n_layers(self) -> int:
        """Number of layers, including the context-free layer 0."""
        return self.model.config.n_layers + 1

    @property
    def output_dim(self) -> int:
        """Number of dimensions of a vector."""
        return self.model.config.output_dim

    def ids(self, sentences: Sequence[Sequence[str]]) -> Ids:
        """Encode tokenized sentences as ids with sentence boundaries, for graphs written by :func:`export_onnx`.

        Args:
            sentences: Lists of tokens.

        Returns:
            Char ids ``(batch, time, chars)``; ``(batch, time, 1 + chars)`` for a model with word features; or word ids
            ``(batch, time)`` for a word-input model. 0 on padding.

        Raises:
            TextError: A sentence is not a list of strings.
        """
        batch = make_batch(sentences, self.model.encode, self.model.read.in_case)
        ids = batch.ids[batch.index]
        ids[~batch.mask] = 0
        return ids

    def zero_state(self, n_rows: int) -> State:
        """Return an all-zero LSTM state, for :meth:`embed_batch`."""
        return State.zero(self.model.config, n_rows)

    @overload
    def embed(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        layers: Layers = ...,
        batch_tokens: int = ...,
        batch_size: int = ...,
        tokenize: bool | str = ...,
    ) -> list[Vectors]: ...

    @overload
    def embed(
        self,
        sentences: Iterator[Sequence[str]],
        *,
        layers: Layers = ...,
        batch_tokens: int = ...,
        batch_size: int = ...,
        tokenize: bool | str = ...,
    ) -> Iterator[Vectors]: ...

    def embed(
        self,
        sentences: Iterable[Sequence[str]],
        *,
        layers: Layers = "all",
        batch_tokens: int = 2048,
        batch_size: int = 64,
        tokenize: bool | str = False,
    ) -> list[Vectors] | Iterator[Vectors]:
        """Compute the vectors of raw texts (with ``tokenize``) or of tokenized sentences.

        Sentences of similar length share a batch. Results are in the order of the sentences, without the boundaries.

        Args:
            sentences: Lists of tokens. Given an iterator, the method reads a few batches ahead and returns an iterator
                of vectors, so a corpus of any size can be embedded. With ``tokenize``: raw texts, or one raw text.
            layers: "all"; "top"; "average", the plain mean; a layer number; or a list of them. Layer 0 is context-free.
                "mix" is the first scalar mix of an :class:`~elmokit.ElmoModule`, in its ``embed``.
            batch_tokens: Positions per batch. It changes speed and memory, not the vectors.
            batch_size: Sentences per batch if ``start`` is "stateful": row r then continues from row r of the previous
                batch.
            tokenize: Split raw texts, as :func:`elmokit.tokenize` does: True for English, or the code of a language.
                Each sentence of a text is embedded by itself, and the vectors are joined.

        Returns:
            One array per sentence, or per raw text: ``(layers, tokens, dim)`` for "all" and for a list, otherwise
            ``(tokens, dim)``.

        Raises:
            TextError: A sentence is not a list of strings.
            ConfigError: A layer does not exist, or a batch size is below 1.
            FormatError: The weights are so large that the vectors contain NaN or infinity.
            MissingExtraError: The language in ``tokenize`` needs spaCy (extra ``spacy``).

        Example:
            >>> first, second = elmo.embed([["The", "bank"], ["Rates", "rose", "."]], layers="average")
            >>> second.shape
            (3, 384)
            >>> lines = (line.split() for line in open("corpus.txt"))
            >>> sentence_vectors = [vectors.mean(axis=0) for vectors in elmo.embed(lines, layers="top")]
            >>> (vectors,) = elmo.embed("The bank raised its rate.", tokenize=True)
        """
        if tokenize is not False:
            embed = partial(self.embed, layers=layers, batch_tokens=batch_tokens, batch_size=batch_size)
            joined = embed_joined(split_raw(sentences, tokenize), embed)
            return joined if isinstance(sentences, Iterator) else list(joined)
        checked = check_sentences(sentences)
        selection = self._select(layers)
        check_at_least("batch_tokens", batch_tokens, 1)
        check_at_least("batch_size", batch_size, 1)
        # Arguments are checked here, because `_embed` is a generator, whose body only runs when it is read.
        vectors = self._embed(checked, selection, batch_tokens, batch_size)
        return vectors if isinstance(sentences, Iterator) else list(vectors)

    @overload
    def embed_documents(
        self,
        documents: Sequence[Sequence[Sequence[str]]],
        *,
        layers: Layers = ...,
        batch_tokens: int = ...,
        tokenize: bool | str = ...,
    ) -> list[list[Vectors]]: ...

    @overload
    def embed_documents(
        self,
        documents: Iterator[Sequence[Sequence[str]]],
        *,
        layers: Layers = ...,
        batch_tokens: int = ...,
        tokenize: bool | str = ...,
    ) -> Iterator[list[Vectors]]: ...

    def embed_documents(
        self,
        documents: Iterable[Sequence[Sequence[str]]],
        *,
        layers: Layers = "all",
        batch_tokens: int = 2048,
        tokenize: bool | str = False,
    ) -> list[list[Vectors]] | Iterator[list[Vectors]]:
        """Compute the vectors of documents: each sentence starts from the state after the previous one.

        This is how the model read text in training. A sentence's vectors depend on the sentence and on the previous
        sentences in its document, in both directions. The first sentence has the same vectors as from :meth:`embed`.
        Several documents share a batch, and results are in order.

        Args:
            documents: The tokenized sentences of each document. Given an iterator, the method reads some documents
                ahead and returns an iterator. With ``tokenize``: raw texts, or one raw text.
            layers, tokenize: As in :meth:`embed`.
            batch_tokens: Positions per batch. It changes speed and memory, not the vectors.

        Returns:
            For each document, a list of arrays, one per sentence, as from :meth:`embed`.

        Raises:
            ConfigError: As from :meth:`embed`; or ``start`` is "stateful"; or the layers are a mix with layer norm,
                which depends on other vectors.
            TextError, FormatError, MissingExtraError: As from :meth:`embed`.

        Example:
            >>> ((first, second),) = elmo.embed_documents([[["He", "rowed", "."], ["The", "bank", "was", "near", "."]]])
            >>> second.shape
            (3, 5, 384)
            >>> (paragraph,) = elmo.embed_documents("He rowed. The bank was near.", tokenize=True)
        """
        reader = document_reader(self, layers, batch_tokens)
        is_stream = isinstance(documents, Iterator)
        texts = documents if tokenize is False else split_raw(documents, tokenize)
        n_tokens = READ_AHEAD_BATCHES * batch_tokens if is_stream else None
        vectors = by_document(texts, partial(read_documents, reader=reader, n_tokens=n_tokens))
        return vectors if is_stream else list(vectors)

    @property
    def elmo(self) -> Elmo:
        """This object, for ``embed_file``, like ``ElmoModule.elmo``."""
        return self

    def embed_batch(
        self, sentences: Sequence[Sequence[str]], state: State, layers: Layers = "all"
    ) -> tuple[list[Vectors], State]:
        """Compute the vectors of one batch from a given LSTM state.

        Use it to carry the state from batch to batch yourself.

        Args:
            sentences: Lists of tokens.
            state: One row per sentence, from :meth:`zero_state` or from an earlier call.
            layers: As in :meth:`embed`.

        Returns:
            The vectors as in :meth:`embed`, and the state after each sentence.

        Raises:
            TextError: A sentence is not a list of strings.
            ConfigError: A layer does not exist.
        """
        if len(sentences) == 0:  # not its truth value, because it may be an array
            return [], state
        vectors, after = self._run(sentences, state, self._select(layers), returns_state=True)
        assert after is not None
        return vectors, after

    def _embed(
        self, sentences: Iterator[Sequence[str]], selection: LayerSelection, batch_tokens: int, batch_size: int
    ) -> Iterator[Vectors]:
        if self.start == "stateful":
            # No rows yet: the state grows with the largest batch. New rows start from zero, as in bilm-tf.
            state = self.zero_state(0)
            for batch in read_ahead(sentences, max_items=batch_size):
                vectors, after = self._run(batch, state.first_rows(len(batch)), selection, returns_state=True)
                assert after is not None
                # A smaller batch leaves the state of the other rows unchanged.
                state = state.with_first_rows(after)
                yield from vectors
            return

        def compute(batch: list[Sequence[str]]) -> list[Vectors]:
            return self._run(batch, self.start_state, selection)[0]

        yield from map_in_batches(sentences, compute, batch_tokens=batch_tokens)

    def _run(
        self,
        sentences: Sequence[Sequence[str]],
        state: State,
        selection: LayerSelection,
        returns_state: bool = False,
    ) -> tuple[list[Vectors], State | None]:
        # A long sentence is alone in its batch (`plan_batches`).
        if len(sentences) == 1 and is_long(len(sentences[0])) and not (selection.is_context_free or returns_state):
            return self._read_on([sentences], state, selection)
        batch = number_tokens(sentences, self.model.read.in_case)
        vectors = self.computer.word_vectors(batch.words, self.token_cache)
        if selection.is_context_free and not returns_state:  # layer 0 needs no LSTM, which takes most of the time
            layer_0 = np.concatenate([vectors] * self.model.config.n_directions, axis=1)
            stops = np.cumsum(batch.lengths)
            layers = [
                layer_0[batch.index[stop - length + 1 : stop - 1]][None]
                for stop, length in zip(stops.tolist(), batch.lengths.tolist(), strict=True)
            ]
            return self._selected(layers, selection), None
        layers, after = self.computer.network.layers(
            NetworkInput(vectors, batch.index, batch.lengths, state),
            selection.computed,
            n_edges=1,
            returns_state=returns_state,
        )
        return self._selected(layers, selection), after

    def _read_on(
        self, rows: Sequence[Sequence[Sequence[str]]], state: State, selection: LayerSelection
    ) -> tuple[list[Vectors], State]:
        """Compute the vectors of the next sentences in some documents, and the states after them."""
        if selection.is_context_free:  # then no state is read
            vectors, _ = self._run([sentence for row in rows for sentence in row], state, selection)
            return vectors, state
        _, directions, after = read_on(self.computer, rows, state, selection.computed, self.token_cache)
        parts: list[list[Floats]] = []  # of each direction, without the boundary that it read first
        for arrays, is_backward in zip(directions, self.model.config.read_backward, strict=True):
            inner = slice(None, -1) if is_backward else slice(1, None)
            parts.append([array[:, inner] for array in arrays])
        layers = [np.concatenate(of_sentence, axis=-1) for of_sentence in zip(*parts, strict=True)]
        return self._selected(layers, selection), after

    def _selected(self, layers: list[Floats], selection: LayerSelection) -> list[Vectors]:
        """Align and combine the computed layers of each sentence, ``(layers, tokens, dim)``."""
        if (alignment := self.model.alignment) is not None:
            layers = [alignment.apply(array, selection.computed) for array in layers]
        vectors = selection.apply(layers)
        for array in vectors:
            self.computer.check_finite(array)
        return vectors

    def _select(self, layers: Layers) -> LayerSelection:
        return select_layers(layers, self.n_layers, self.mix, self.model.source_name or "this model")


def embed_planned_batch(elmo: Elmo, sentences: Sequence[Sequence[str]], layers: Layers) -> list[Vectors]:
    """Compute the vectors of one batch of ``plan_batches``."""
    return elmo._run(sentences, elmo.start_state, elmo._select(layers))[0]


def document_reader(elmo: Elmo, layers: Layers, batch_tokens: int) -> DocumentReader[Vectors]:
    """Return a reader that computes the vectors of documents, after checking the arguments of ``embed_documents``."""
    check_start_name(elmo.start)
    selection = elmo._select(layers)
    if selection.needs_whole_batch:
        raise ConfigError(
            "A mix with layer norm depends on all vectors in a batch, so it cannot be used for documents."
        )
    check_at_least("batch_tokens", batch_tokens, 1)
    return DocumentReader(elmo.start_state, partial(elmo._read_on, selection=selection), batch_tokens)


def check_elmo(elmo: object) -> None:
    """Raise a ConfigError unless this is an :class:`Elmo` or a substitute, such as an :class:`~elmokit.ElmoModule`."""
    if not hasattr(elmo, "embed"):
        given = f"the name {str(elmo)!r}" if isinstance(elmo, str | Path) else f"one of type {type(elmo).__name__}"
        raise ConfigError(f"Expected an Elmo, but got {given}. Create one with Elmo.from_pretrained or Elmo(model).")


Embed = Callable[[Iterator[Sequence[str]]], Any]
"""Maps tokenized sentences to their vectors, ``(..., tokens, dim)``."""


def split_raw(texts: Iterable[Any], tokenize: Literal[True] | str) -> Iterator[list[list[str]]]:
    """Return the tokenized sentences of each raw text, for ``tokenize`` as in :meth:`Elmo.embed`.

    A language is checked before the first text is read.
    """
    from elmokit.text import tokenize as splitting  # imported here because most callers have tokens

    language = splitting.ENGLISH if tokenize is True else tokenize
    splitting.text_splitter(language)
    return (splitting.tokenize(text, language) for text in ([texts] if isinstance(texts, str) else texts))


def embed_joined(texts: Iterable[Sequence[Sequence[str]]], embed: Embed) -> Iterator[Floats]:
    """Yield the vectors of texts, each a list of tokenized sentences."""
    found = by_document((text or [[]] for text in texts), lambda read: embed(chain.from_iterable(read)))
    return (sentences[0] if len(sentences) == 1 else np.concatenate(sentences, axis=-2) for sentences in found)
