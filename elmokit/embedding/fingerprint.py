"""Identify a model by what it computes, and its vectors by what computed them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from elmokit.config import to_dict
from elmokit.embedding.computer import Computer
from elmokit.engine.softmax import softmax_precision
from elmokit.engine.state import Floats
from elmokit.formats.model import PretrainedBiLM


def fingerprint(model: PretrainedBiLM, start: str) -> str:
    """Return a hash, 32 hexadecimal digits, of everything in a model that the layers of a sentence depend on.

    Two models with the same fingerprint compute the same vectors, whatever their paths or formats: the same bits where
    their :class:`~elmokit.engine.precision.Computation` is the same too, else the same up to rounding. It does not
    depend on the machine, so a task model that was trained on one recognizes its biLM on another.
    """
    digest = hashlib.blake2b(digest_size=16)
    facts = {
        # The setting went, and the fingerprints that files record stay.
        "bilm": to_dict(model.config) | {"backward_only": False},
        # A start state that is not stored follows from the weights; its last bits depend on the machine, so it is
        # left out.
        "start": "one empty sentence" if start == "warm" and model.start_state is None else start,
        "words": None if model.config.word_table is None or model.vocabulary is None else model.vocabulary.words,
        "lexicon": None if model.lexicon is None else to_dict(model.lexicon),
    }
    digest.update(json.dumps(facts, sort_keys=True).encode("utf-8", "surrogatepass"))
    more: dict[str, Floats] = {}
    if model.token_table is not None:
        digest.update(json.dumps(model.token_table.rows).encode("utf-8", "surrogatepass"))
        more["token_layer.vectors"] = model.token_table.vectors
    if start == "warm" and model.start_state is not None:
        more |= {"start_hidden": model.start_state.hidden, "start_cell": model.start_state.cell}
    if model.alignment is not None:
        more |= {"alignment.matrices": model.alignment.matrices, "alignment.offsets": model.alignment.offsets}
    _add_arrays(digest, model.arrays, more)
    return digest.hexdigest()


def vector_settings(computer: Computer, start: str) -> dict[str, Any]:
    """Return everything but the text that the bits of a model's layers depend on, as settings of stores of vectors."""
    model = computer.model
    settings = {"model": fingerprint(model, start), "start": start, **computer.network.computation().settings()}
    if model.exact_marks:  # not in the fingerprint, which files have recorded without it
        settings["exact_marks"] = True
    return settings


def prediction_settings(computer: Computer, start: str) -> dict[str, Any]:
    """Return everything but the text that the bits of a model's probabilities depend on, like ``vector_settings``."""
    settings, model = vector_settings(computer, start), computer.model
    softmax = softmax_precision(settings["device"], model.precision)
    # Of the layers, the softmax (or that it has none) and the words.
    digest = hashlib.blake2b(settings["model"].encode(), digest_size=16)
    words = None if model.vocabulary is None else model.vocabulary.words
    digest.update(json.dumps(words).encode("utf-8", "surrogatepass"))
    _add_arrays(digest, {} if model.softmax is None else model.softmax.arrays)
    return settings | {"model": digest.hexdigest(), "softmax": softmax}


def _add_arrays(digest: hashlib.blake2b, *sources: Mapping[str, Floats]) -> None:
    # One array is in memory at a time: those of a file are read when they are asked for.
    source_of = {name: arrays for arrays in sources for name in arrays}
    for name in sorted(source_of):
        array = np.ascontiguousarray(source_of[name][name], np.float32)
        digest.update(f"{name} {array.shape}".encode())
        digest.update(array.data)
