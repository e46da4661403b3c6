"""Compute a model without gradients: with the engine, or with PyTorch modules on a GPU or during training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from elmokit.engine.engine import open_engine
from elmokit.engine.interface import Network
from elmokit.engine.precision import requested_backend
from elmokit.engine.softmax import Softmax
from elmokit.engine.state import Floats, IntegerRows, StoredArrays
from elmokit.engine.threads import ForkSafeLock
from elmokit.engine.token_cache import TokenCache
from elmokit.engine.token_layer import WORD_FEATURES
from elmokit.errors import FormatError
from elmokit.pretrained.model import PretrainedBiLM, Weights, check_device

if TYPE_CHECKING:
    import torch

    from elmokit.network.bilm import BiLM
    from elmokit.network.softmax_module import SoftmaxModule

_OPEN: WeakKeyDictionary[Weights, WeakValueDictionary[str, Network]] = WeakKeyDictionary()
"""The engines in use, by weights and request: everything that computes the same model shares one."""


class Computer:
    """A model together with the engine (in the model's precision) or PyTorch modules that compute it.

    :class:`~elmokit.Elmo` and :class:`~elmokit.LanguageModel` each have one. Several threads can use it at the same
    time.

    Args:
        model: The contents of the files.
        device: Where to compute, such as "cuda" (needs PyTorch); None for the CPU.
        bilm, softmax: Modules that compute instead of the engine, such as modules in training. Their weights may
            change; ``model`` has everything else.

    Raises:
        ConfigError: The device is not available.
        MissingExtraError: The device needs PyTorch, which is not installed.
    """

    def __init__(
        self,
        model: PretrainedBiLM,
        device: str | torch.device | None = None,
        *,
        bilm: BiLM | None = None,
        softmax: SoftmaxModule | None = None,
    ) -> None:
        self.model = model
        self._bilm, self._softmax = bilm, softmax
        self._engine: tuple[str, Network] | None = None
        self._table: IntegerRows | tuple[Floats, None] | None = None
        self._lock = ForkSafeLock()
        if device is not None:
            self.to(device)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_engine", "_table", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _engine=None, _table=None, _lock=ForkSafeLock())

    def with_model(self, model: PretrainedBiLM) -> Computer:
        """Return a computer with the same weights and device, for a model with another card, map or start state."""
        computer = Computer(model, bilm=self._bilm, softmax=self._softmax)
        computer._engine = self._engine
        return computer

    @property
    def network(self) -> Network:
        """The network that computes the layers. The engine follows changes of ``ELMOKIT_BACKEND`` immediately."""
        with self._lock:
            if self._bilm is not None:
                from elmokit.network.torch_network import TorchNetwork

                return TorchNetwork(self._bilm)
            request = requested_backend(self.model.precision)
            if self._engine is None or self._engine[0] != request:
                self._engine = None  # free the old weights before the new ones take memory
                engines = _OPEN.setdefault(self.model.weights, WeakValueDictionary())
                network = engines.get(request)
                if network is None:
                    network = engines[request] = open_engine(self.model.config, self.model.arrays, request)
                self._engine = request, network
            return self._engine[1]

    @property
    def softmax(self) -> Softmax | None:
        """The softmax that computes word probabilities; None if the model has none."""
        with self._lock:
            if self._bilm is None or self.model.softmax is None:
                return self.model.softmax
            from elmokit.network.torch_network import TorchSoftmax

            if self._softmax is None:
                softmax = self.model.build_softmax(self._bilm)
                assert softmax is not None
                self._softmax = softmax.to(self._bilm.device)
            return TorchSoftmax(self._softmax)

    @property
    def bilm(self) -> BiLM | None:
        """The PyTorch module that computes; None if the engine does."""
        return self._bilm

    @property
    def device(self) -> str | torch.device:
        """Where it computes."""
        return "cpu" if self._bilm is None else self._bilm.device

    def use_module(self) -> BiLM:
        """Switch to a PyTorch module, and return it.

        Raises:
            MissingExtraError: PyTorch is not installed.
        """
        with self._lock:
            if self._bilm is None:
                self._bilm = self.model.build_bilm()
                self._engine = None
            return self._bilm

    def to(self, device: str | torch.device) -> None:
        """Compute on a device, such as "cuda". Without PyTorch, the CPU is the only one.

        Raises:
            MissingExtraError: PyTorch is not installed.
            ConfigError: The device is not available.
        """
        if str(device) == "cpu" and self._bilm is None:
            return
        check_device(device)
        self.use_module().to(device)
        if self._softmax is not None:
            self._softmax.to(device)

    def check_finite(self, results: Floats) -> None:
        """Check the results of a batch.

        Even finite weights, which readers check for, can be so large that sums overflow.

        Args:
            results: Vectors or nats, of any shape.

        Raises:
            FormatError: They contain NaN or infinity.
        """
        # NaN and infinity propagate to the sum, which is faster than testing each number. The sum itself can overflow,
        # so a non-finite sum is checked more closely.
        with np.errstate(over="ignore", invalid="ignore"):
            total = results.sum()
        if not math.isfinite(total) and not bool(np.isfinite(results).all()):
            raise FormatError(
                f"{self.model.source or 'The model'} computes NaN or infinity: its weights are finite, but so large "
                "that sums overflow."
            )

    def word_vectors(self, words: Sequence[str], cache: TokenCache | None = None) -> Floats:
        """Compute context-free vectors of distinct tokens, ``(words, projection_dim)``, or get them from the cache."""
        # Not cached if the model is a word table, or if a module's weights may change.
        if cache is None or self.model.config.n_words is not None or self._bilm is not None:
            return self._compute_words(words)
        return cache.vectors(words, self._compute_words, self.word_vector_version)

    def _compute_words(self, words: Sequence[str]) -> Floats:
        network, ids, table = self.network, self.model.encode(words), self.model.token_table
        if table is None or self._bilm is not None:  # the module has the table
            return network.token_vectors(ids)
        rows, chars = ids[:, 0], ids[:, 1:]
        vectors = table.vectors[rows - 1]
        if len(unlisted := np.flatnonzero(rows == 0)):
            vectors[unlisted] = network.token_vectors(chars[unlisted])
        return vectors

    def table_rows(self, tokens: Sequence[str]) -> Floats:
        """Return the tokens' rows in the word table of a model that also reads characters, ``(tokens, word_dim)``.

        Tokens outside the vocabulary have zeros.
        """
        ids, name = self.model.encode(tokens)[:, 0], f"token_layer.{WORD_FEATURES}"
        if self._bilm is not None:
            return np.asarray(self._bilm.state_dict()[name][ids].float().cpu())
        if self._table is None:  # as integers if stored that way, in a quarter of the memory
            arrays = self.model.arrays
            integers = arrays.integers(name) if isinstance(arrays, StoredArrays) else None
            self._table = (arrays[name], None) if integers is None else integers
        table, scales = self._table
        return np.asarray(table[ids] if scales is None else table[ids] * scales[ids, None], np.float32)

    @property
    def word_vector_version(self) -> object:
        """A value that changes whenever context-free vectors may change."""
        # Vocabulary and lexicon determine the words' rows in a table.
        model = self.model
        return self.network.token_layer_version, model.vocabulary, model.lexicon, model.token_table


def computer_of(model: PretrainedBiLM | Computer) -> Computer:
    """Return a computer for a model, or an existing one unchanged."""
    return model if isinstance(model, Computer) else Computer(model)
