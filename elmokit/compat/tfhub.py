"""TF-Hub's ELMo modules under their old names, with PyTorch tensors instead of TensorFlow's.

Change ``import tensorflow_hub as hub`` to ``from elmokit.compat import tfhub as hub``. An address on TF-Hub is looked
up in the cache of ``tensorflow_hub``, then downloaded. A path or name of any model that elmokit opens also works::

    elmo = hub.Module("https://tfhub.dev/google/elmo/2", trainable=True)
    vectors = elmo(["the cat is on the mat", "dogs are in the fog"], signature="default", as_dict=True)["elmo"]
    vectors = elmo(inputs={"tokens": [["the", "cat"], ["dogs", ""]], "sequence_len": [2, 1]}, signature="tokens")

or, as with TensorFlow 2, ``hub.load(path).signatures["default"](["the cat"])["elmo"]``. There is no session: a call
returns tensors with values, and their ``numpy()`` also works while the mix is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from elmokit.config import check_choice
from elmokit.errors import ConfigError, TextError, needs_torch

with needs_torch("elmokit.compat.tfhub"):
    import torch
    from torch import Tensor, nn

from elmokit.embedding.elmo import Start
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.formats.fetch import is_url, normalize_url, url_file_name
from elmokit.formats.open import open_model
from elmokit.formats.sources import archive_url, cached_module, elmo_version, is_hub_address
from elmokit.formats.tf_hub import stored_mix
from elmokit.network.bilm import BiLMState
from elmokit.network.scalar_mix import ScalarMix
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.batching import check_texts

SIGNATURES = ("default", "tokens")
_FILE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip", ".hdf5", ".h5")


class TensorInfo(NamedTuple):
    """The information that ``tensorflow_hub`` gives about an input or output of a signature."""

    dtype: str
    shape: tuple[int | None, ...]
    """None is a size that depends on the call."""
    is_sparse: bool = False

    def get_shape(self) -> tuple[int | None, ...]:
        """Return the shape."""
        return self.shape


class Output(Tensor):
    """An output with gradients, whose ``numpy()`` returns its values as in TensorFlow."""

    def numpy(self, *, force: bool = True) -> Any:
        """Return the values without gradients, copied to the CPU if necessary."""
        return Tensor.numpy(self, force=force)


class Module(nn.Module):
    """An ELMo with the interface of ``google/elmo``.

    Outputs of a call, where ``T`` is the number of tokens in the longest sentence ("tokens": the width of the matrix):

    =========================  ====================  ====================================================
    ``word_emb``               ``(batch, T, 512)``   the context-free layer
    ``lstm_outputs1``, ``2``   ``(batch, T, 1024)``  the LSTM layers, forward and backward side by side
    ``elmo``                   ``(batch, T, 1024)``  the weighted sum of the layers
    ``default``                ``(batch, 1024)``     the mean of ``elmo`` over each sentence's own tokens
    ``sequence_len``           ``(batch,)``          the number of tokens of each sentence, int32
    =========================  ====================  ====================================================

    512 and 1024 are the sizes of the published model. With an alignment, ``word_emb`` also has 1024 numbers. Padding is
    zero in all outputs, and so is ``default`` of a sentence without tokens. DeepPavlov's modules differ in two ways:
    padding is not zero in their ``word_emb``, and their ``default`` omits the factor gamma.

    Args:
        spec: An address on TF-Hub, a module's URL on another server, a path, a name or an opened model; None for the
            small included model.
        trainable: Train the scalar mix, one weight per layer and a factor.
        name: Ignored; there is no graph.
        tags: Ignored; there is one variant.
        trainable_lstm: Also train the LSTMs. None means if ``trainable``, as in version 1 of ``google/elmo``, but not
            in the others.
        start: The start state of each sentence. "zero": zeros, as in the first call of a module; every call then
            returns the same numbers. "warm": elmokit's own default, see ``Elmo``. "stateful": row r continues from row
            r of the previous call, as in the graph of bilm-tf, of which DeepPavlov's modules are copies; ``forget``
            resets the state. It is unknown whether Google's modules carry state.

    Raises:
        ModelError: The model does not exist or cannot be opened.
    """

    def __init__(
        self,
        spec: str | Path | PretrainedBiLM | None = None,
        trainable: bool = False,
        name: str = "module",
        tags: Collection[str] | None = None,
        *,
        trainable_lstm: bool | None = None,
        start: Start = "zero",
    ) -> None:
        super().__init__()
        model = (spec if isinstance(spec, PretrainedBiLM) else _open(spec)).replace(exact_marks=True)
        if trainable_lstm is None:
            trainable_lstm = trainable and isinstance(spec, str) and is_url(spec) and elmo_version(spec) == 1
        self.elmo = ElmoModule(model, start=start, trainable=trainable_lstm)
        self.elmo.bilm.token_layer.requires_grad_(False)
        self.mix.requires_grad_(trainable)
        if (mix := stored_mix(model)) is not None:
            weights, gamma = mix
            with torch.no_grad():
                self.mix.weight.copy_(torch.tensor(weights))
                self.mix.gamma.copy_(torch.tensor(gamma))
        self._carried: BiLMState | None = None

    @property
    def mix(self) -> ScalarMix:
        """The weighted sum, initialized with the module's own weights if it has any, otherwise with equal weights."""
        mix = self.elmo.mixes[0]
        assert isinstance(mix, ScalarMix)
        return mix

    @property
    def signatures(self) -> dict[str, Callable[..., dict[str, Tensor]]]:
        """The signatures as functions that return all outputs, as in TensorFlow 2."""
        return {"default": self._call_strings, "tokens": self._call_tokens}

    def get_signature_names(self) -> list[str]:
        """Return the valid values of ``signature``."""
        return list(SIGNATURES)

    def get_input_info_dict(self, signature: str | None = None, tags: object = None) -> dict[str, TensorInfo]:
        """Describe the inputs of a signature by name."""
        if _checked(signature) == "default":
            return {"strings": TensorInfo("string", (None,))}
        return {"tokens": TensorInfo("string", (None, None)), "sequence_len": TensorInfo("int32", (None,))}

    def get_output_info_dict(self, signature: str | None = None, tags: object = None) -> dict[str, TensorInfo]:
        """Describe the outputs of a signature by name."""
        _checked(signature)
        config = self.elmo.bilm.config
        per_token = TensorInfo("float32", (None, None, config.output_dim))
        infos = {"word_emb": TensorInfo("float32", (None, None, self._word_dim))}
        infos |= {f"lstm_outputs{index}": per_token for index in range(1, config.n_layers + 1)}
        infos |= {"elmo": per_token, "default": TensorInfo("float32", (None, config.output_dim))}
        return {**infos, "sequence_len": TensorInfo("int32", (None,))}

    @property
    def variable_map(self) -> dict[str, nn.Parameter]:
        """The variables of the scalar mix, under their names in ``google/elmo``."""
        return {"aggregation/weights": self.mix.weight, "aggregation/scaling": self.mix.gamma}

    @property
    def variables(self) -> list[nn.Parameter]:
        """The values of :attr:`variable_map`."""
        return list(self.variable_map.values())

    @property
    def trainable_variables(self) -> list[nn.Parameter]:
        """All trained parameters, including those of the LSTMs."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def forget(self) -> None:
        """Reset the state that is carried if ``start`` is "stateful"."""
        self._carried = None

    def forward(
        self, inputs: Any, signature: str | None = None, as_dict: bool | None = None
    ) -> Tensor | dict[str, Tensor]:
        """Compute the outputs of a batch.

        Args:
            inputs: For "default", strings ``(batch,)``, split at spaces, or ``{"strings": ...}``. For "tokens",
                ``{"tokens": (batch, T) strings, "sequence_len": (batch,) numbers}``. Lists, arrays or TensorFlow's
                tensors; bytes are UTF-8.
            signature: "default" or "tokens".
            as_dict: Return all outputs by name, or only the output ``default``.

        Raises:
            ConfigError: The signature is unknown.
            TextError: The inputs do not match the signature.
        """
        signature = _checked(signature)
        wanted = {"default": {"strings"}, "tokens": {"tokens", "sequence_len"}}[signature]
        if signature == "default" and not isinstance(inputs, Mapping):
            inputs = {"strings": inputs}
        if not isinstance(inputs, Mapping) or set(inputs) != wanted:
            given = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
            raise TextError(f"The signature {signature!r} expects a dictionary of {sorted(wanted)}, but got {given}.")
        outputs = self.signatures[signature](**inputs)
        return outputs if as_dict else outputs["default"]

    def _call_strings(self, strings: Any) -> dict[str, Tensor]:
        strings = _values(strings)
        check_texts(strings)
        sentences = [[token for token in _text(string).split(" ") if token] for string in strings]
        return self._outputs(sentences, max(map(len, sentences), default=0))

    def _call_tokens(self, tokens: Any, sequence_len: Any) -> dict[str, Tensor]:
        rows: list[Any] = []
        is_matrix = True
        for row in _values(tokens):
            if isinstance(row, str | bytes):
                is_matrix = False
                rows.append([row])
            else:
                rows.append(list(row))
        lengths = [int(length) for length in _values(sequence_len)]
        widths = set(map(len, rows))
        width = max(widths, default=0)
        are_lengths_right = len(lengths) == len(rows) and all(0 <= length <= width for length in lengths)
        if not is_matrix or len(widths) != 1 or not are_lengths_right:
            raise TextError(
                "tokens must be a matrix of strings, padded with '', and sequence_len one number per row, but there "
                f"are rows of {sorted(widths)} tokens and sequence_len is {lengths}."
            )
        sentences = [list(map(_text, row[:length])) for row, length in zip(rows, lengths, strict=True)]
        return self._outputs(sentences, width)

    def _outputs(self, sentences: Sequence[Sequence[str]], width: int) -> dict[str, Tensor]:
        """Compute all outputs of a batch, padded to a width."""
        if not sentences:
            raise TextError("The batch is empty. Pass at least one sentence; it may be empty.")
        ids = self.elmo.ids(sentences)
        lengths = torch.tensor([len(sentence) for sentence in sentences], device=ids.device)
        with_boundaries = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None] + 2
        layers, state = self.elmo.layers_of(ids, with_boundaries, self._start(len(sentences)))
        if self.elmo.start == "stateful":
            before = self.elmo.bilm.zero_state(0) if self._carried is None else self._carried
            self._carried = before.with_first_rows(state.detach())
        mask = torch.arange(width, device=ids.device) < lengths[:, None]
        n_padding = width - (layers.shape[2] - 2)
        inner = nn.functional.pad(layers[:, :, 1:-1], (0, 0, 0, n_padding)) * mask[..., None]
        mixed: Tensor = self.mix(inner)
        outputs = {"word_emb": inner[0, ..., : self._word_dim]}
        for index in range(1, len(inner)):
            outputs[f"lstm_outputs{index}"] = inner[index]
        outputs["elmo"] = mixed
        outputs["default"] = mixed.sum(dim=1) / lengths.clamp(min=1)[:, None]
        outputs["sequence_len"] = lengths.to(torch.int32)
        for name, output in outputs.items():
            if output.requires_grad:
                outputs[name] = output.as_subclass(Output)
        return outputs

    @property
    def _word_dim(self) -> int:
        # Both halves of layer 0 are equal, unless the layer is aligned.
        config = self.elmo.bilm.config
        return config.projection_dim if self.elmo.alignment is None else config.output_dim

    def _start(self, n_rows: int) -> BiLMState:
        if self.elmo.start == "stateful" and self._carried is not None:
            return self._carried.first_rows(n_rows)
        return self.elmo.start_state(n_rows)


def KerasLayer(handle: str | Path, *arguments: object, **settings: object) -> NoReturn:
    """Raise a ConfigError that names the replacement for ``hub.KerasLayer``."""
    raise ConfigError(
        "hub.KerasLayer is a TensorFlow layer. Compute the vectors before the model: hub.load("
        f"{str(handle)!r}).signatures['default'](texts) has the outputs 'elmo' and 'default'."
    )


def load(
    handle: str | Path,
    tags: Collection[str] | None = None,
    options: object = None,
    *,
    trainable: bool = False,
    trainable_lstm: bool | None = None,
    start: Start = "zero",
) -> Module:
    """Open a module, like ``hub.load`` in TensorFlow 2; then call its ``signatures``.

    Args:
        handle: As ``spec`` of :class:`Module`.
        tags: Ignored; there is one variant.
        options: Ignored.
        trainable: As for :class:`Module`.
        trainable_lstm: As for :class:`Module`.
        start: As for :class:`Module`.
    """
    return Module(handle, trainable, trainable_lstm=trainable_lstm, start=start)


def _open(spec: str | Path | None) -> PretrainedBiLM:
    """Open a module as ``tensorflow_hub`` does: any URL is a module's, whatever the server."""
    url = "" if spec is None else normalize_url(spec)
    if not url.lower().startswith(("http://", "https://")) or is_hub_address(url):
        return open_model(spec)
    if (cached := cached_module(url)) is not None:
        return open_model(cached)
    is_file = url_file_name(url).endswith(_FILE_SUFFIXES)
    return open_model(url if is_file else archive_url(url))


def _checked(signature: str | None) -> str:
    """Check the name of a signature; None means "default"."""
    signature = signature or "default"
    return check_choice("signature", signature, SIGNATURES)


def _values(given: Any) -> Any:
    """Return the values of an array, a tensor (such as TensorFlow's) or a DataFrame; return anything else unchanged."""
    for name in ("numpy", "to_numpy"):
        if callable(convert := getattr(given, name, None)):
            given = convert()
    return given.tolist() if isinstance(given, np.ndarray) else given


def _text(value: Any) -> str:
    """Return a string unchanged, or decode bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if not isinstance(value, str):
        raise TextError(f"Expected a string, but got {value!r} of type {type(value).__name__}.")
    return str(value)
