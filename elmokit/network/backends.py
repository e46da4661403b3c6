"""Choose what computes the network, and keep the weights that are prepared for it.

Two backends compute the same formulas:

- ``reference``: PyTorch operations, one step at a time: on a GPU, where there are no C functions, and where a kernel
  may not compute. Simple; the other one is tested against it.
- ``native...``: the engine (``elmokit/engine``), whose C functions come from the wheel or are built with the available
  C compiler when they are first needed, for the best instruction set of the processor.

A model asks for the lowest *precision* that it accepts (``Elmo.from_pretrained(precision=...)``), and only the C
functions ever compute in a lower one than float32. They round weights and inputs of the matrix products of the LSTMs
and of the token layer: states and sums stay in float32.

What people do around a PyTorch module works all the same. A kernel computes in place of modules only if calling them
would do nothing else (:func:`are_plain`), and only on tensors whose numbers are in memory (:func:`has_memory`). Packed
weights are made again after any write to the weights (:class:`ParameterCache`).
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import forward_ad

from elmokit.engine.library import Library, address, choose_kernels
from elmokit.engine.precision import PLAIN_KERNEL, LayerKernel, Precision, native_kernel, requested_backend
from elmokit.engine.threads import n_threads
from elmokit.errors import ConfigError

T = TypeVar("T")
P = ParamSpec("P")


def native_precision(device: torch.device, precision: Precision | None) -> Precision | None:
    """Return the precision in which the C functions compute on a device; None where PyTorch computes in float32.

    Args:
        device: Where the weights are.
        precision: The lowest that the model accepts; None means float32.
    """
    request = requested_backend(precision)
    if device.type != "cpu" or request == "reference" or native_library() is None:
        return None
    return request


def layer_kernel(precision: Precision | None, part: Literal["token_layer", "lstm"], n_weights: int = 0) -> LayerKernel:
    """Describe what computes a layer of ``n_weights``, for the result of :func:`native_precision`."""
    if precision is None:
        return PLAIN_KERNEL
    library = native_library()
    assert library is not None
    chosen = choose_kernels(library, precision, n_weights)
    return native_kernel(library.instructions, chosen.token_layer if part == "token_layer" else chosen.lstm)


def native_library() -> Library | None:
    """Return the C functions, loaded or built on the first call; None if neither is possible."""
    # Imported here because the compiler needs the cache directory, and importing the network must not touch either.
    from elmokit.engine import compiler

    return compiler.load_library()


def native_library_for(tensor: Tensor) -> Library | None:
    """Return the C functions if they can compute on this tensor and ``reference`` was not requested."""
    # Its callers, the token layer and training, do not use the precision of inference: only "reference" matters.
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or requested_backend() == "reference":
        return None
    if not has_memory(tensor):
        return None
    return native_library()


def multiplies_bfloat16() -> bool:
    """Check whether the C functions can multiply bfloat16 numbers (AMX, AVX-512 BF16), for training."""
    if requested_backend() == "reference":
        return False
    library = native_library()
    return library is not None and bool(library.has_bfloat16())


def tile_library_for(tensor: Tensor) -> Library | None:
    """Return the C functions if autocast asks for bfloat16 and they can multiply such numbers."""
    if not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return None
    return native_library_for(tensor) if multiplies_bfloat16() else None


def _hook_dictionaries() -> list[str]:
    """Return the attributes in which a module keeps the hooks of its calls."""
    probe = nn.Module()
    for register in (probe.register_forward_pre_hook, probe.register_forward_hook):
        register(print)
    for register_backward in (probe.register_full_backward_pre_hook, probe.register_full_backward_hook):
        register_backward(print)
    return [name for name, value in vars(probe).items() if isinstance(value, dict) and value]


_HOOKS = _hook_dictionaries()
_GLOBAL_HOOKS = [value for value in vars(nn.modules.module).values() if isinstance(value, OrderedDict)]


def are_plain(modules: Iterable[nn.Module | None], kind: type[nn.Module]) -> bool:
    """Check whether calling modules would do what their class does and nothing else, so a kernel may compute instead.

    A hook, a ``forward`` of the object's own, another class or a parameter of another kind may do more: an adapter, a
    parametrization, a quantized layer. PyTorch's own fused layers ask the same.

    Args:
        modules: The modules; None for one that a model lacks.
        kind: Their class. A subclass is not plain.
    """
    if any(_GLOBAL_HOOKS):
        return False
    for module in modules:
        if module is None:
            continue
        attributes = vars(module)
        if type(module) is not kind or "forward" in attributes or any(map(attributes.get, _HOOKS)):
            return False
        for parameter in module._parameters.values():  # a short sentence would wait for the loops of `parameters()`
            if parameter is not None and not has_memory(parameter):
                return False
    return True


def weights_in(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters of modules and of those inside, as ``parameters()`` does in several times the time."""
    weights: list[nn.Parameter] = []
    waiting = list(modules)
    for module in waiting:  # which grows
        weights += [parameter for parameter in module._parameters.values() if parameter is not None]
        if module._modules:
            waiting += [child for child in module._modules.values() if child is not None]
    return weights


def has_memory(tensor: Tensor) -> bool:
    """Check whether the numbers of a tensor are in memory: not those of a subclass, and not inside ``torch.func``."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.is_neg():
        return False
    if forward_ad.unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]  # a kernel would lose it
        return False
    try:
        tensor.data_ptr()
    except RuntimeError:  # wrapped by vmap, grad, jvp
        return False
    return True


def never_compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that ``torch.compile`` calls as it is and that cannot be traced: C, or a loop over time."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # A trace would have constants in place of what C computes, and the steps of one sentence in place of the loop.
        if torch.jit.is_tracing() or getattr(torch.compiler, "is_exporting", bool)():  # type: ignore[attr-defined, no-untyped-call]
            raise ConfigError(
                "PyTorch cannot trace or export a biLM, whose loop over time depends on the sentence: write it with "
                "`elmokit convert MODEL MODEL.onnx` instead."
            )
        # Not `torch.compiler.disable` as the decorator: it imports `torch._dynamo`, which takes seconds.
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)  # type: ignore[no-any-return, no-untyped-call]
        return function(*args, **kwargs)

    return call


class ParameterCache(Generic[T]):
    """A value derived from parameters, such as packed weights, that is derived again when a parameter changes.

    Every call looks at every bit of the parameters, by a C function: where there is none, nothing is kept. The version
    counters of PyTorch would be cheaper, but they miss the writes of fused optimizers and those through ``.data`` or a
    NumPy view.

    Copying or pickling a module does not copy the value: the copy derives its own.
    """

    def __init__(self) -> None:
        # The key, the digests of the parameters, those of a table's rows, and the value.
        self._kept: tuple[Any, Sequence[int], NDArray[np.int64] | None, T] | None = None

    def get(
        self,
        key: Hashable,
        parameters: Sequence[Tensor],
        make: Callable[[], T],
        table: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> T:
        """Return the kept value; if ``key`` or a parameter has changed, call ``make`` and keep its result.

        Args:
            key: What else the value depends on.
            parameters: The parameters.
            make: Derives the value from them.
            table: One more parameter, if the value has its rows as they are and the caller uses a few of them only.
            rows: ``(n,)``, the numbers of these rows.
        """
        tensors = list(parameters) if table is None else [*parameters, table]
        library = _digest_library(tensors)
        if library is None:
            self._kept = None
            return make()
        key = key, [(tensor.shape, tensor.dtype) for tensor in tensors]
        found = _digests(library, parameters)
        if self._kept is not None and self._kept[:2] == (key, found) and self._has_rows(library, table, rows):
            return self._kept[-1]
        self._kept = None  # free the old value before the new one takes memory
        of_rows = None if table is None else _row_digests(library, table)
        value = make()
        self._kept = key, found, of_rows, value
        return value

    def _has_rows(self, library: Library, table: Tensor | None, rows: Tensor | None) -> bool:
        assert self._kept is not None
        of_rows = self._kept[2]
        if of_rows is None or table is None or rows is None:
            return of_rows is None
        return np.array_equal(of_rows[rows.numpy()], _row_digests(library, table.detach().index_select(0, rows)))

    @property
    def value(self) -> T | None:
        """The kept value, or None."""
        return None if self._kept is None else self._kept[-1]

    def __reduce__(self) -> tuple[type[ParameterCache[T]], tuple[()]]:
        return ParameterCache, ()


def _digest_library(tensors: Sequence[Tensor]) -> Library | None:
    """Return the C functions if they can read tensors and were not ruled out."""
    if requested_backend() == "reference" or not all(tensor.is_cpu for tensor in tensors):
        return None
    return native_library()


def _digests(library: Library, tensors: Sequence[Tensor]) -> list[int]:
    """Return what identifies the numbers of each tensor."""
    tensors = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]
    places = np.array([tensor.data_ptr() for tensor in tensors], np.uintp)
    return _digests_at(library, places, np.array([tensor.nbytes for tensor in tensors], np.int64)).tolist()  # type: ignore[no-any-return]


def _row_digests(library: Library, table: Tensor) -> NDArray[np.int64]:
    """Return what identifies the numbers of each row of a table."""
    table, n_rows = table.contiguous(), len(table)
    n_bytes = table.nbytes // max(n_rows, 1)
    places = table.data_ptr() + n_bytes * np.arange(n_rows, dtype=np.uintp)
    return _digests_at(library, places, np.full(n_rows, n_bytes, np.int64))


def _digests_at(library: Library, places: NDArray[np.uintp], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    digests = np.empty(len(sizes), np.int64)
    library.digests(
        *(n_threads(), len(sizes), address("sizes", sizes, np.int64)),
        *(address("places", places, np.uintp), address("digests", digests, np.int64)),
    )
    return digests
