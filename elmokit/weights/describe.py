"""Describe a model: architecture, size and provenance."""

from __future__ import annotations

from math import prod
from typing import Any

from elmokit.weights.model import PretrainedBiLM


def describe(model: PretrainedBiLM) -> dict[str, Any]:
    """Return the facts about a model by name, as ``elmokit info`` prints them.

    Returns:
        Text for each fact, and the model card under "card".
    """
    config = model.config
    cnn = config.char_cnn
    if cnn is not None:
        filters = " ".join(f"{count}x{width}" for width, count in cnn.filters)
        tokens = f"at most {cnn.max_chars} characters: filters {filters}, {cnn.activation}, {cnn.n_highway} highway"
    else:
        tokens = f"words: a table of {config.n_words:,}" if config.n_words is not None else ""
    if config.word_features is not None:
        words = f"words: a table of {config.word_features.n_words:,} x {config.word_features.word_dim}"
        tokens = f"{words}; {tokens}" if tokens else words
    entries = () if model.lexicon is None else (("words", model.lexicon.words), ("characters", model.lexicon.chars))
    clips = " and ".join("none" if clip is None else f"{clip:g}" for clip in (config.cell_clip, config.projection_clip))
    softmax, vocabulary = model.softmax, model.vocabulary
    n_softmax = 0
    if softmax is not None and vocabulary is not None:  # from the sizes, so that nothing is read
        n_softmax = sum(map(prod, softmax.config.tensor_shapes(len(vocabulary), config.projection_dim).values()))
    only = "backward only" if config.backward_only else "forward only"
    return {
        "path": str(model.source),
        "format": model.family,
        "storage": model.storage,
        "precision": model.precision or "float32",
        "tokens": tokens,
        "layers": f"layer 0 and {config.n_layers} LSTM, {'two directions' if config.bidirectional else only}",
        "sizes": f"hidden {config.hidden_dim}, projection {config.projection_dim}, vectors {config.output_dim}",
        "clips": f"{clips} (cell, projection)",
        "skip connections": "yes" if config.skip_connections else "no",
        "parameters": f"{model.n_parameters:,}",
        "lexicon": ", ".join(f"{len(rows):,} {name}" for name, rows in entries if rows is not None) or "none",
        "vocabulary": "none" if vocabulary is None else f"{len(vocabulary):,} words",
        "softmax": "none" if softmax is None else f"{n_softmax:,} parameters",
        "initial state": "stored with the model" if model.initial_state is not None else "after an empty sentence",
        "alignment": "none" if model.alignment is None else "stored with the model",
        "card": model.card,
    }
