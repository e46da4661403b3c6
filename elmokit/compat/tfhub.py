"""The calls of TF-Hub's ELMo modules, with torch tensors in place of TensorFlow's.

Change ``import tensorflow_hub as hub`` to ``from elmokit.compat import tfhub as hub``, and the address to the path of a
model, of any format that elmokit opens::

    elmo = hub.Module("path/of/a/model", trainable=True)
    vectors = elmo(["the cat is on the mat", "dogs are in the fog"], signature="default", as_dict=True)["elmo"]
    vectors = elmo(inputs={"tokens": [["the", "cat"], ["dogs", ""]], "sequence_len": [2, 1]}, signature="tokens")

or, as with TensorFlow 2, ``hub.load(path).signatures["default"](["the cat"])["elmo"]``. There is no session: a call
returns its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.bilm import BiLMState
from elmokit.embedder import Elmo, Start
from elmokit.errors import ConfigError, TextError
from elmokit.nn.scalar_mix import ScalarMix
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.open import open_model
from elmokit.weights.tf_hub import MIX

SIGNATURES = ("default", "tokens")


class Module(nn.Module):
    """An ELMo with the interface of ``google/elmo``.

    What a call gives, ``T`` being the tokens of the longest sentence (under "tokens" the width of the matrix):

    =========================  ====================  ====================================================
    ``word_emb``               ``(batch, T, 512)``   the context-free layer
    ``lstm_outputs1``, ``2``   ``(batch, T, 1024)``  the LSTM layers, forward and backward side by side
    ``elmo``                   ``(batch, T, 1024)``  the weighted sum of the layers
    ``default``                ``(batch, 1024)``     the mean of ``elmo`` over each sentence's own tokens
    =========================  ====================  ====================================================

    (512 and 1024 for the published model.) Beyond a sentence's tokens everything is zero, and so is ``default`` of a
    sentence without any. DeepPavlov's modules differ in two places: their ``word_emb`` is not zero there, and their
    ``default`` leaves out the factor gamma.

    Args:
        spec: a path, or an opened model; None for the small model inside the package.
        trainable: let the scalar mix learn, one weight for each layer and a factor, as in versions 2 and 3.
        trainable_lstm: let the LSTMs learn as well, as in version 1.
        start: the state from which a sentence is read. "zero": nothing read yet, as in the first call of a module;
            every call then gives the same numbers, whatever came before. "warm": elmokit's own default, see ``Elmo``.
            "stateful": row r goes on where row r of the call before stopped, as in bilm-tf's graph, of which
            DeepPavlov's modules are copies; ``forget`` starts anew. Whether Google's carry is not known.

    Raises:
        ModelError: nothing stands at the path, or it cannot be opened.
    """

    def __init__(
        self,
        spec: str | Path | PretrainedBiLM | None = None,
        trainable: bool = False,
        *,
        trainable_lstm: bool = False,
        start: Start = "zero",
    ) -> None:
        super().__init__()
        model = spec if isinstance(spec, PretrainedBiLM) else open_model(spec)
        self.elmo = Elmo(model, start=start)
        self.mix.requires_grad_(trainable)
        self.elmo.bilm.directions.requires_grad_(trainable_lstm)
        if MIX in model.card:
            with torch.no_grad():
                self.mix.weight.copy_(torch.tensor(model.card[MIX]["weights"]))
                self.mix.gamma.copy_(torch.tensor(model.card[MIX]["gamma"]))
        self._carried: BiLMState | None = None

    @property
    def mix(self) -> ScalarMix:
        """The weighted sum: the module's own where it brought one, else the plain mean."""
        mix = self.elmo.mixes[0]
        assert isinstance(mix, ScalarMix)
        return mix

    @property
    def signatures(self) -> dict[str, Callable[..., dict[str, Tensor]]]:
        """The signatures as functions that return all outputs, as TensorFlow 2 has them."""
        return {"default": self._call_strings, "tokens": self._call_tokens}

    def get_signature_names(self) -> list[str]:
        """The names that ``signature`` may have."""
        return list(SIGNATURES)

    def forget(self) -> None:
        """Let the next call start from nothing; matters when ``start`` is "stateful"."""
        self._carried = None

    def forward(
        self, inputs: Any, signature: str | None = None, as_dict: bool | None = None
    ) -> Tensor | dict[str, Tensor]:
        """Vectors of a batch.

        Args:
            inputs: for "default" strings ``(batch,)``, cut at spaces, alone or as ``{"strings": ...}``; for "tokens"
                ``{"tokens": (batch, T) strings, "sequence_len": (batch,) numbers}``. Lists or arrays; bytes are UTF-8.
            signature: "default" or "tokens".
            as_dict: all outputs by name; else the output ``default`` alone.

        Raises:
            ConfigError: there is no such signature.
            TextError: the inputs are not what the signature takes.
        """
        signature = signature or "default"
        if signature not in SIGNATURES:
            raise ConfigError(f"There is no signature {signature!r}; there are {', '.join(map(repr, SIGNATURES))}.")
        wanted = {"default": {"strings"}, "tokens": {"tokens", "sequence_len"}}[signature]
        if signature == "default" and not isinstance(inputs, Mapping):
            inputs = {"strings": inputs}
        if not isinstance(inputs, Mapping) or set(inputs) != wanted:
            given = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
            raise TextError(f"The signature {signature!r} takes a dictionary of {sorted(wanted)}; given {given}.")
        outputs = self.signatures[signature](**inputs)
        return outputs if as_dict else outputs["default"]

    def _call_strings(self, strings: Any) -> dict[str, Tensor]:
        if isinstance(strings, str | bytes):
            raise TextError(f"The signature 'default' takes a list of strings; given one string, {strings[:40]!r}.")
        sentences = [[part for part in _text(string).split(" ") if part] for string in strings]
        return self._outputs(sentences, max(map(len, sentences), default=0))

    def _call_tokens(self, tokens: Any, sequence_len: Any) -> dict[str, Tensor]:
        if any(isinstance(row, str | bytes) for row in tokens):
            raise TextError("tokens is a matrix of strings, one row of tokens for each sentence; given plain strings.")
        rows = [list(row) for row in tokens]
        lengths = [int(length) for length in sequence_len]
        width = max(map(len, rows), default=0)
        if len(rows) != len(lengths) or any(len(row) != width for row in rows):
            raise TextError(
                "tokens is a matrix of strings, shorter sentences padded with '', and sequence_len has one number for "
                f"each row; given rows of {sorted({len(row) for row in rows})} tokens and {len(lengths)} lengths for "
                f"{len(rows)} rows."
            )
        if any(not 0 <= length <= width for length in lengths):
            raise TextError(f"sequence_len is {lengths}, but tokens has {width} columns.")
        sentences = [[_text(token) for token in row[:length]] for row, length in zip(rows, lengths, strict=True)]
        return self._outputs(sentences, width)

    def _outputs(self, sentences: Sequence[Sequence[str]], width: int) -> dict[str, Tensor]:
        """All outputs of a batch, padded to a width."""
        if not sentences:
            raise TextError("There is no sentence in the batch. Give at least one; it may be empty.")
        bilm = self.elmo.bilm
        ids = self.elmo.ids(sentences)
        lengths = torch.tensor([len(sentence) for sentence in sentences], device=ids.device)
        with_boundaries = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None] + 2
        layers, state = bilm(ids, with_boundaries, self._start(len(sentences)))
        if self.elmo.start == "stateful":
            before = bilm.zero_state(0) if self._carried is None else self._carried
            self._carried = before.with_first_rows(state.detach())
        mask = torch.arange(width, device=ids.device) < lengths[:, None]
        inner = nn.functional.pad(layers[:, :, 1:-1], (0, 0, 0, width - (layers.shape[2] - 2))) * mask[..., None]
        mixed: Tensor = self.mix(inner)
        outputs = {"word_emb": inner[0, ..., : bilm.config.projection_dim]}
        outputs |= {f"lstm_outputs{index}": inner[index] for index in range(1, len(inner))}
        outputs["elmo"] = mixed
        outputs["default"] = mixed.sum(dim=1) / lengths.clamp(min=1)[:, None]
        return outputs

    def _start(self, n_rows: int) -> BiLMState:
        if self.elmo.start == "stateful" and self._carried is not None:
            return self._carried.first_rows(n_rows)
        return self.elmo.start_state(n_rows)


def load(path: str | Path, trainable: bool = False, *, trainable_lstm: bool = False, start: Start = "zero") -> Module:
    """A module by its path, as ``hub.load`` of TensorFlow 2: call its ``signatures``."""
    return Module(path, trainable, trainable_lstm=trainable_lstm, start=start)


def _text(value: Any) -> str:
    """A string, from a string or from its bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if not isinstance(value, str):
        raise TextError(f"A string was expected; given {value!r} of type {type(value).__name__}.")
    return str(value)
