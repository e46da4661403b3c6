"""A name for a model by what it computes."""

from __future__ import annotations

import hashlib
import json

from elmokit.config import to_dict
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.words import CachedModel


def fingerprint(model: PretrainedBiLM, start: str) -> str:
    """A name for all that a sentence's layers depend on: weights, sizes, start state, word lists, tables.

    Args:
        start: how sentences start, as in ``Elmo``.
    """
    digest = hashlib.blake2b(digest_size=16)
    facts = {
        "bilm": to_dict(model.bilm.config),
        # A warm state that no file holds follows from the weights, and its last bits from the machine.
        "start": "one empty sentence" if start == "warm" and model.warm_state is None else start,
        "words": None if model.bilm.config.n_words is None or model.vocabulary is None else model.vocabulary.words,
        "lexicon": None if model.lexicon is None else to_dict(model.lexicon),
    }
    digest.update(json.dumps(facts, sort_keys=True).encode("utf-8", "surrogatepass"))
    if isinstance(model, CachedModel):
        digest.update(json.dumps(model.rows).encode("utf-8", "surrogatepass"))
    tensors = dict(model.bilm.state_dict()) | dict(model.bilm.named_buffers())  # a table computed before is not saved
    if start == "warm" and model.warm_state is not None:
        tensors.update(start_hidden=model.warm_state.hidden, start_cell=model.warm_state.cell)
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype}".encode())
        digest.update(tensors[name].detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
