"""The softmax of a language model without gradients: word scores and surprisal."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from elmokit.config import MAX_UNITS, check_at_least, check_choice, setting
from elmokit.engine.architecture import Shape
from elmokit.engine.library import Library, address, check, close_with
from elmokit.engine.precision import NAMES, Precision, requested_backend
from elmokit.engine.state import Floats, Ids, overflow_is_checked_later
from elmokit.engine.threads import n_threads
from elmokit.errors import ConfigError

ROWS_AT_ONCE = 128
"""Positions whose scores are held at a time: 128 x 800,000 words would be 400 MB, all positions of a batch many times
that. Small blocks also stay in the processor's cache."""


@dataclass(frozen=True)
class SoftmaxConfig:
    """The softmax: ``full`` as in bilm-tf, or ``tied`` to the word table of the token layer."""

    kind: Literal["full", "tied"] = setting("full", "The kind of softmax.")
    inner_dim: int = setting(0, "Units of an extra layer between the LSTMs and the word scores. 0 disables it.")

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("full", "tied"))
        check_at_least("inner_dim", self.inner_dim, 0, MAX_UNITS)

    def check_sizes(
        self,
        n_words: int,
        input_dim: int,  # of the LSTM's outputs (`projection_dim`)
        table_words: int | None,  # of the token layer's table (`BiLMConfig.n_table_words`)
    ) -> None:
        """Check that the softmax fits a vocabulary and a biLM."""
        if self.kind == "tied" and table_words != n_words:
            raise ConfigError(
                "A tied softmax shares the word table of the token layer, which needs the same words. Read words "
                f"(input 'both' or 'words', {n_words} words), or choose a full softmax."
            )

    def tensor_shapes(self, n_words: int, input_dim: int) -> dict[str, Shape]:
        """Return the shape of every tensor of the softmax, by its name in PyTorch's state dict and in our files."""
        weight: dict[str, Shape] = {} if self.kind == "tied" else {"weight": (n_words, input_dim)}
        return {**weight, "bias": (n_words,), **self._inner_shapes(input_dim)}

    def _inner_shapes(self, input_dim: int) -> dict[str, Shape]:
        if not self.inner_dim:
            return {}
        return {
            "inner.expand.weight": (self.inner_dim, input_dim),
            "inner.expand.bias": (self.inner_dim,),
            "inner.reduce.weight": (input_dim, self.inner_dim),
            "inner.reduce.bias": (input_dim,),
        }


class Softmax(Protocol):
    """Computes word probabilities from the LSTM's outputs: :class:`WordSoftmax`, or PyTorch on a GPU."""

    @property
    def config(self) -> SoftmaxConfig:
        """Its kind and sizes."""

    @property
    def arrays(self) -> Mapping[str, Floats]:
        """Its weights, named as in :meth:`SoftmaxConfig.tensor_shapes`."""

    @property
    def weight(self) -> Floats:
        """Each word's weights, ``(words, input_dim)``; for a tied softmax, the word table's."""

    def scores(self, hidden: Floats) -> Floats:
        """Compute each word's score (logit), ``(positions, words)``.

        Args:
            hidden: Outputs of the top LSTM layer in one direction, ``(positions, input_dim)``.
        """

    def nats(self, hidden: Floats, word_ids: Ids, precision: Precision | None = None) -> Floats:
        """Compute the surprisal of each position's word in nats, ``(positions,)``.

        Args:
            hidden: As in :meth:`scores`.
            word_ids: ``(positions,)``.
            precision: The minimum precision of the sum over all words; None means float32. A lower one is used if the
                processor multiplies bfloat16 numbers (AMX, AVX-512 BF16). The environment variable ``ELMOKIT_BACKEND``
                overrides it.

        Raises:
            IndexError: A word id is out of range.
        """


class WordSoftmax:
    """A softmax over the words of a vocabulary, shared by both directions; see :class:`Softmax`."""

    def __init__(
        self,
        config: SoftmaxConfig,
        arrays: Mapping[str, Floats],  # may be read from a file when first needed
        n_words: int,
        table: tuple[Mapping[str, Floats], str] | None = None,  # for a tied one: arrays and a name; with row 0
    ) -> None:
        self.config, self.arrays, self.n_words = config, arrays, n_words
        self._table = table
        self._read: dict[str, Floats] = {}
        self._inner: NativeInnerLayer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_read": {}, "_inner": None}  # a copy reads and packs its own arrays

    def tied_to(self, arrays: Mapping[str, Floats], table: str | None) -> WordSoftmax:
        """Return this tied softmax with a different word table, which is one of the arrays."""
        if self._table is not None and self._table[0] is arrays:
            return self
        return WordSoftmax(self.config, self.arrays, self.n_words, None if table is None else (arrays, table))

    @property
    def weight(self) -> Floats:
        if self._table is None:
            return self._array("weight")
        if "table" not in self._read:
            arrays, name = self._table
            self._read["table"] = arrays[name]
        return self._read["table"][1:]

    @overflow_is_checked_later
    def scores(self, hidden: Floats) -> Floats:
        return np.asarray(self._after_inner(hidden) @ self.weight.T + self._array("bias"), np.float32)

    @overflow_is_checked_later
    def nats(self, hidden: Floats, word_ids: Ids, precision: Precision | None = None) -> Floats:
        # Imported here because it may compile, which embedding alone does not need.
        from elmokit.engine.compiler import load_library

        request = requested_backend(precision)
        library = None if request == "reference" else load_library()
        if library is not None and request != "reference":
            rows = self._after_inner(hidden, library)
            return softmax_nats(library, rows, self.weight, self._array("bias"), word_ids, request)
        _check_word_ids(word_ids, len(hidden), self.n_words)
        nats = np.empty(len(hidden), np.float32)
        for start in range(0, len(hidden), ROWS_AT_ONCE):
            here = slice(start, start + ROWS_AT_ONCE)
            log_probabilities = _log_softmax(self.scores(hidden[here]))
            nats[here] = -np.take_along_axis(log_probabilities, word_ids[here, None], axis=1)[:, 0]
        return nats

    def _after_inner(self, hidden: Floats, library: Library | None = None) -> Floats:
        """Apply the inner layer to the LSTM's outputs; without one, return them unchanged."""
        if not self.config.inner_dim:
            return hidden
        names = ("expand.weight", "expand.bias", "reduce.weight", "reduce.bias")
        tensors = InnerTensors(*(self._array(f"inner.{name}") for name in names))
        if library is not None:
            if self._inner is None or self._inner.library is not library:
                self._inner = NativeInnerLayer(library, tensors)
            return self._inner(hidden)
        units = (hidden @ tensors.expand.T + tensors.expand_bias).clip(min=0)
        return np.asarray(hidden + units @ tensors.reduce.T + tensors.reduce_bias, np.float32)

    def _array(self, name: str) -> Floats:
        """Return an array, reading it from its file once."""
        if name not in self._read:
            self._read[name] = np.ascontiguousarray(self.arrays[name], np.float32)
        return self._read[name]


class InnerTensors(NamedTuple):
    """The tensors of an inner layer: ``x + reduce @ max(0, expand @ x)``, plus biases, for an LSTM output x."""

    expand: Floats  # (inner_dim, input_dim)
    expand_bias: Floats  # (inner_dim,)
    reduce: Floats  # (input_dim, inner_dim)
    reduce_bias: Floats  # (input_dim,)


class NativeInnerLayer:
    """An inner layer in C, packed once. Unlike with NumPy, a row gets the same bits in any batch."""

    def __init__(self, library: Library, tensors: InnerTensors) -> None:
        self.library = library
        self._expand = Matrix(tensors.expand, "float32", library, tensors.expand_bias)
        self._reduce = Matrix(tensors.reduce, "float32", library, tensors.reduce_bias)

    def __call__(self, hidden: Floats) -> Floats:
        """Map ``(rows, input_dim)`` to the same size."""
        units = self._expand(hidden, n_threads()).clip(min=0)
        return hidden + self._reduce(units, n_threads())


def softmax_nats(
    library: Library, hidden: Floats, weight: Floats, bias: Floats, word_ids: Ids, precision: Precision
) -> Floats:
    """Compute :meth:`Softmax.nats` with the C functions."""
    scores = word_scores(library, hidden, weight, bias, word_ids)
    distinct, index = _distinct_rows(hidden)
    total = log_sum_exp(library, distinct, weight, bias, precision, n_threads())[index]
    # Both are rounded, so a certain word could get slightly less than 0.
    return (total - scores).clip(min=0).astype(np.float32)


def log_sum_exp(
    library: Library,
    rows: Floats,  # (rows, dim)
    weight: Floats,  # (words, dim)
    bias: Floats,  # (words,)
    precision: Precision,  # below float32, bfloat16 is used if the processor supports it
    threads: int,
) -> NDArray[np.float64]:
    """Compute the log-sum-exp of each row's scores, ``rows @ weight.T + bias``.

    The scores are never stored, and the weight is not packed.
    """
    result = np.empty(len(rows), np.float64)
    n_words, dim = weight.shape
    reason = library.log_sum_exp(
        threads,
        NAMES.index(precision),
        len(rows),
        address("rows", rows, np.float32, (-1, dim)),
        dim,
        address("weight", weight, np.float32),
        address("bias", bias, np.float32, (n_words,)),
        n_words,
        address("result", result, np.float64),
    )
    check(library, reason)
    return result


def word_scores(library: Library, rows: Floats, weight: Floats, bias: Floats, words: Ids) -> NDArray[np.float64]:
    """Compute one word's score for each row."""
    scores = np.empty(len(rows), np.float64)
    n_words, dim = weight.shape
    _check_word_ids(words, len(rows), n_words)  # C would read out of bounds
    library.word_scores(
        len(rows),
        address("rows", rows, np.float32, (-1, dim)),
        dim,
        address("weight", weight, np.float32),
        address("bias", bias, np.float32, (n_words,)),
        address("words", words, np.int64, (len(rows),)),
        address("scores", scores, np.float64),
    )
    return scores


def _check_word_ids(word_ids: Ids, n_rows: int, n_words: int) -> None:
    if len(word_ids) != n_rows or (n_rows and not 0 <= word_ids.min() <= word_ids.max() < n_words):
        raise IndexError(f"Expected {n_rows} word ids from 0 to {n_words - 1}.")


def _distinct_rows(rows: Floats) -> tuple[Floats, Ids]:
    """Return the distinct rows, and each row's index among them."""
    numbers: dict[bytes, int] = {}
    first: list[int] = []  # index of each distinct row
    index: list[int] = []
    for position, row in enumerate(rows):
        number = numbers.setdefault(row.tobytes(), len(numbers))
        if number == len(first):
            first.append(position)
        index.append(number)
    distinct = rows if len(first) == len(rows) else rows[first]
    return distinct, np.array(index, np.int64)


def _log_softmax(scores: NDArray[np.floating]) -> Floats:
    shifted = scores - scores.max(axis=1, keepdims=True)  # prevents overflow in exp
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)), np.float32)


class Matrix:
    """A packed matrix: ``rows @ weight.T + bias`` for a weight ``(outputs, inputs)`` and a bias ``(outputs,)`` or 0."""

    def __init__(self, weight: Floats, precision: Precision, library: Library, bias: Floats | None = None) -> None:
        self._library, self._shape = library, weight.shape
        handle = ctypes.c_void_p()
        weight = np.ascontiguousarray(weight, np.float32)
        given = None if bias is None else address("bias", bias, np.float32, weight.shape[:1])
        reason = library.open_matrix(
            NAMES.index(precision), *weight.shape, address("weight", weight, np.float32), given, ctypes.byref(handle)
        )
        check(library, reason)
        close_with(self, library.close_matrix, handle)
        self._handle = handle.value

    def __call__(self, rows: Floats, threads: int = 1) -> Floats:
        """Map ``(rows, inputs)`` to ``(rows, outputs)``."""
        outputs = np.empty((len(rows), self._shape[0]), np.float32)
        given = address("rows", rows, np.float32, (-1, self._shape[1]))
        to = address("outputs", outputs, np.float32)
        check(self._library, self._library.multiply(self._handle, threads, len(rows), given, to))
        return outputs
