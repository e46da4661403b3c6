"""The examples of the explorer."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

EXAMPLES: dict[str, Any] = json.loads((Path(__file__).parent / "examples.json").read_text(encoding="utf-8"))
"""Words with sentences of each of their senses, raw texts and sentences with a position to look at, and others, for the
index. They were chosen by measuring the included model: what it expects there fits, except in two sentences."""
SENTENCES: list[str] = [
    *chain.from_iterable(chain.from_iterable(EXAMPLES["senses"].values())),
    *(example["text"] for example in EXAMPLES["sentences"]),
    *EXAMPLES["others"],
]
"""The sentences of the index: space-separated tokens."""
LISTED = {name: EXAMPLES[name] for name in ("texts", "sentences", "senses")}
"""The examples listed on the page."""
