"""The network in C: packed weights, and one call for each batch.

A sentence gets the same bits in any batch, in any order and with any number of threads.
``contributing/kernels.md`` explains how, and what it costs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from elmokit.engine import compiler
from elmokit.engine.architecture import BiLMConfig
from elmokit.engine.interface import Network, NetworkInput, token_rows
from elmokit.engine.library import Library, choose_kernels
from elmokit.engine.lstm import LSTM
from elmokit.engine.precision import BackendRequest, Computation, Precision, engine_computation
from elmokit.engine.state import Floats, Ids, State
from elmokit.engine.threads import n_threads
from elmokit.engine.token_layer import TokenLayer
from elmokit.errors import warn_caller


class Engine(Network):
    """The packed token layer and LSTM layers of a biLM, and the kernels chosen for them."""

    def __init__(
        self,
        config: BiLMConfig,
        arrays: Mapping[str, Floats],  # in float32, named as in `tensor_shapes`; each is accessed once
        precision: Precision,  # the lowest allowed precision of the weights
        library: Library,
    ) -> None:
        self._config = config
        self.kernels = choose_kernels(library, precision, 8 * config.hidden_dim * config.projection_dim)
        # The largest layers come first, so their arrays are freed before the packed weights reach their full size.
        self._lstm = LSTM(config, arrays, precision, library)
        self._tokens = TokenLayer(config, arrays, precision, library)

    @property
    def config(self) -> BiLMConfig:
        return self._config

    @property
    def token_layer_version(self) -> object:
        return self._tokens

    def computation(self) -> Computation:
        n_layers = self.config.n_directions * self.config.n_layers
        return engine_computation(self.kernels, n_layers, looks_up=self.config.n_words is not None)

    @property
    def n_bytes(self) -> int:
        return self._tokens.n_bytes + self._lstm.n_bytes

    def token_vectors(self, ids: Ids) -> Floats:
        return self._tokens(token_rows(self._config, ids), n_threads())

    def layers(
        self, inputs: NetworkInput, wanted: Sequence[int], *, n_edges: int = 0, returns_state: bool = False
    ) -> tuple[list[Floats], State | None]:
        return self._lstm.layers(inputs, wanted, n_edges=n_edges, returns_state=returns_state, threads=n_threads())

    def direction(self, number: int, inputs: NetworkInput, wanted: Sequence[int]) -> tuple[list[Floats], State]:
        return self._lstm.direction(number, inputs, wanted, threads=n_threads())


def open_engine(config: BiLMConfig, arrays: Mapping[str, Floats], request: BackendRequest) -> Network:
    """Open a biLM for inference: in C, or in NumPy if requested or if there are no C functions.

    Each array is accessed once, so a mapping may read it from a file at that moment. NumPy computes in float32 and uses
    float32 arrays without copying them, so they must not change.
    """
    library = None if request == "reference" else compiler.load_library()
    if library is not None and request != "reference":
        return Engine(config, arrays, request, library)
    # Imported here because it is rarely needed.
    from elmokit.engine.reference import ReferenceEngine

    if request != "reference":
        _warn_once(compiler.why_unavailable())
    return ReferenceEngine(config, arrays)


@functools.cache
def _warn_once(why: str) -> None:
    """Warn once per process that there are no C functions."""
    warn_caller(
        f"The C functions are unavailable: {why}. NumPy computes the network instead, in float32 and three to five "
        "times slower. On Linux, install a wheel of elmokit or a C compiler.",
    )
