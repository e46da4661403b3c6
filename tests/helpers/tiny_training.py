"""A text and settings with which a training takes a moment."""

from __future__ import annotations

from typing import Any

TEXT = "the cat sat on the mat .\nthe dog ran .\n" * 20
SETTINGS: dict[str, Any] = {
    "preset": "tiny",
    "max_words": 9,
    "batch_size": 2,
    "window_length": 5,
    "tokens": 60,
    "eval_every": 3,
    "device": "cpu",
}
