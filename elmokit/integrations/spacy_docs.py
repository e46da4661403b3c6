"""Convert spaCy's docs to sentences for ELMo and split vectors by doc, for ``elmokit.integrations.spacy``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from spacy.tokens import Doc


def is_embedded(doc: Doc) -> NDArray[np.bool_]:
    """Mark the tokens that ELMo reads: all except whitespace tokens, which no ELMo was trained on."""
    return np.array([not token.is_space for token in doc], np.bool_)


def tokens_of_sentences(docs: Iterable[Doc]) -> list[list[str]]:
    """Return the tokens of all sentences of docs."""
    sentences = []
    for doc in docs:
        # An empty doc also has one sentence, so there is always something to compute.
        for sentence in doc.sents if len(doc) and doc.has_annotation("SENT_START") else [doc]:
            sentences.append([token.text for token in sentence if not token.is_space])
    return sentences


def split_vectors(vectors: Any, masks: list[NDArray[np.bool_]], xp: Any) -> list[Any]:
    """Split the vectors of many docs, ``(..., tokens, dim)``, and insert zeros for skipped tokens."""
    result, stop = [], 0
    for mask in masks:
        start, stop = stop, stop + int(mask.sum())
        rows = xp.zeros((*vectors.shape[:-2], len(mask), vectors.shape[-1]), dtype="float32")
        rows[..., mask, :] = vectors[..., start:stop, :]
        result.append(rows)
    return result
