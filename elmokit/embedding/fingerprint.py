"""Fingerprints that identify what a model computes, and what computed its vectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from elmokit.config import to_dict
from elmokit.embedding.computer import Computer
from elmokit.engine.state import Floats
from elmokit.pretrained.model import PretrainedBiLM


def fingerprint(model: PretrainedBiLM, start: str) -> str:
    """Return a hash, 32 hexadecimal digits, of everything in a model that affects the layers of a sentence.

    Models with the same fingerprint compute the same vectors, regardless of path and format: bit for bit if their
    :class:`~elmokit.engine.precision.Computation` is also the same, else up to rounding. It does not depend on the
    machine, so a task model trained on one machine recognizes its biLM on another.
    """
    digest = hashlib.blake2b(digest_size=16)
    stored_start = model.start_state if start == "warm" else None
    if start == "warm" and stored_start is None:
        # A start state that is not stored follows from the weights, and its last bits depend on the machine, so it is
        # omitted.
        start = "one empty sentence"
    reads_words = model.config.word_table is not None and model.vocabulary is not None
    facts = {
        # The setting was removed, but fingerprints recorded in files must stay the same.
        "bilm": to_dict(model.config) | {"backward_only": False},
        "start": start,
        "words": _words_of(model) if reads_words else None,
        "lexicon": None if model.lexicon is None else to_dict(model.lexicon),
    }
    digest.update(json.dumps(facts, sort_keys=True).encode("utf-8", "surrogatepass"))
    more: dict[str, Floats] = {}
    if model.token_table is not None:
        digest.update(json.dumps(model.token_table.rows).encode("utf-8", "surrogatepass"))
        more["token_layer.vectors"] = model.token_table.vectors
    if stored_start is not None:
        more["start_hidden"] = stored_start.hidden
        more["start_cell"] = stored_start.cell
    if model.alignment is not None:
        more["alignment.matrices"] = model.alignment.matrices
        more["alignment.offsets"] = model.alignment.offsets
    _add_arrays(digest, model.arrays, more)
    return digest.hexdigest()


def _words_of(model: PretrainedBiLM) -> list[str] | None:
    return None if model.vocabulary is None else model.vocabulary.words


def vector_settings(computer: Computer, start: str) -> dict[str, Any]:
    """Return everything except the text that affects the bits of a model's layers, as settings for stored vectors."""
    model = computer.model
    settings = {"model": fingerprint(model, start), "start": start, **computer.network.computation().settings()}
    if model.exact_marks:  # not in the fingerprint, because files have recorded it without
        settings["exact_marks"] = True
    return settings


def _add_arrays(digest: hashlib.blake2b, *sources: Mapping[str, Floats]) -> None:
    source_of: dict[str, Mapping[str, Floats]] = {}
    for arrays in sources:
        source_of |= dict.fromkeys(arrays, arrays)
    for name in sorted(source_of):
        # Only one array is in memory at a time: arrays of a file are read on demand.
        array = np.ascontiguousarray(source_of[name][name], np.float32)
        digest.update(f"{name} {array.shape}".encode())
        digest.update(array.data)
