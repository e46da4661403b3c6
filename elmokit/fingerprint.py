"""Identify a model by what it computes, and its vectors by what computed them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from elmokit.config import to_dict
from elmokit.engine.instruction_sets import INSTRUCTION_SETS, VARIABLE, available_sets
from elmokit.nn.softmax import softmax_precision
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.words import CachedModel


def fingerprint(model: PretrainedBiLM, start: str) -> str:
    """Return a hash of everything that the layers of a sentence depend on.

    Two models with the same fingerprint compute the same vectors, whatever their paths or formats: the same bits where
    their :class:`~elmokit.nn.kernels.computation.Computation` is the same too, else the same up to rounding. The hash
    covers the weights, the configuration, the initial state, an alignment, word lists, and tables of precomputed
    vectors. It does not depend on the machine, so a task model that was trained on one recognizes its biLM on another.

    Args:
        model: The model.
        start: The state that sentences start from, as in :class:`~elmokit.embedder.Elmo`.

    Returns:
        32 hexadecimal digits.
    """
    digest = hashlib.blake2b(digest_size=16)
    sizes = to_dict(model.bilm.config)
    if not sizes["backward_only"]:
        del sizes["backward_only"]  # it is newer than the first fingerprints, which stay valid
    facts = {
        "bilm": sizes,
        # An initial state that is not stored follows from the weights; its last bits depend on the machine, so it is
        # left out.
        "start": "one empty sentence" if start == "warm" and model.initial_state is None else start,
        "words": None if model.bilm.config.n_words is None or model.vocabulary is None else model.vocabulary.words,
        "lexicon": None if model.lexicon is None else to_dict(model.lexicon),
    }
    digest.update(json.dumps(facts, sort_keys=True).encode("utf-8", "surrogatepass"))
    if isinstance(model, CachedModel):
        digest.update(json.dumps(model.rows).encode("utf-8", "surrogatepass"))
    tensors = dict(model.bilm.state_dict()) | dict(
        model.bilm.named_buffers()
    )  # precomputed tables are buffers outside the state dict
    if start == "warm" and model.initial_state is not None:
        tensors.update(start_hidden=model.initial_state.hidden, start_cell=model.initial_state.cell)
    if model.alignment is not None:
        tensors |= {f"alignment.{name}": tensor for name, tensor in model.alignment.state_dict().items()}
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype}".encode())
        digest.update(tensors[name].detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def vector_settings(model: PretrainedBiLM, start: str) -> dict[str, Any]:
    """Return everything but the text that the bits of a model's layers depend on: the model, and what computes it.

    Stores of vectors have these JSON values as settings, so that none of them mixes the vectors of two computations.
    Arguments as in :func:`fingerprint`.
    """
    return {"model": fingerprint(model, start), "start": start, **model.bilm.computation().settings()}


def prediction_settings(model: PretrainedBiLM, start: str) -> dict[str, Any]:
    """Return everything but the text that the bits of a model's probabilities depend on.

    Arguments and result as in :func:`vector_settings`.
    """
    softmax = softmax_precision(model.bilm.device, model.bilm.precision)
    return vector_settings(model, start) | {"model": prediction_fingerprint(model, start), "softmax": softmax}


def prediction_fingerprint(model: PretrainedBiLM, start: str) -> str:
    """Return a hash of everything that the model's probabilities depend on: its layers, softmax and vocabulary.

    Arguments and result as in :func:`fingerprint`. The hash of a model without a softmax is another one.
    """
    digest = hashlib.blake2b(fingerprint(model, start).encode(), digest_size=16)
    words = None if model.vocabulary is None else model.vocabulary.words
    digest.update(json.dumps(words).encode("utf-8", "surrogatepass"))
    tensors = {} if model.softmax is None else model.softmax.state_dict()
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype}".encode())
        digest.update(tensors[name].detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _restore_instructions(recorded: Any) -> str:
    if recorded in available_sets():
        return f"Set {VARIABLE}={recorded}"
    if recorded in list(INSTRUCTION_SETS):  # a list, because a damaged journal may hold what cannot be hashed
        return f"Resume on a processor that has {recorded} (this one has {', '.join(available_sets())})"
    return "Resume on the same kind of machine, with the same installation"


RESTORE: Mapping[str, Callable[[Any], str]] = {
    "device": lambda recorded: f"Resume on the device {recorded} (--device)",
    "instructions": _restore_instructions,
    "precision": lambda recorded: f"Resume in {recorded} (--precision {recorded} or ELMOKIT_BACKEND={recorded})",
}
"""How to get the recorded value of a setting of a computation again, for the error messages of a store."""
