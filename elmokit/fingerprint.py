"""Identify a model by what it computes."""

from __future__ import annotations

import hashlib
import json

from elmokit.config import to_dict
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.words import CachedModel


def fingerprint(model: PretrainedBiLM, start: str) -> str:
    """Return a hash of everything that the layers of a sentence depend on.

    Two models with the same fingerprint compute the same vectors, whatever their paths or formats. It covers the
    weights, the configuration, the initial state, an alignment, word lists, and tables of precomputed vectors.

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
