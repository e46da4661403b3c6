"""Record in ``viterbi.json`` which tags AllenNLP's ``viterbi_decode`` finds for random probabilities.

Run this in the environment of ``make.py``, and again in that of ``make_0_9.py``: versions 1.0 and later break ties in
another way. Only sentences are kept whose tags would be others without the rounding of AllenNLP's scores.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

try:  # they replace what AllenNLP imports for other models
    import make  # noqa: F401
except ImportError:
    import make_0_9  # noqa: F401
import torch
from allennlp.nn.util import viterbi_decode
from allennlp.version import VERSION

FILE = Path(__file__).parent / "viterbi.json"
SIZES = {2: 12, 31: 3}  # roles and sentences: with 64 tags and more, PyTorch finds the best in another way
N_TOKENS = 6


def rules(tags: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return AllenNLP's scores of transitions and of first tags for SRL."""
    follow, start = torch.zeros(len(tags), len(tags)), torch.zeros(len(tags))
    for column, tag in enumerate(tags):
        if tag.startswith("I"):
            start[column] = -math.inf
            for row, before in enumerate(tags):
                if before not in (tag, f"B{tag[1:]}"):
                    follow[row, column] = -math.inf
    return follow, start


def decode(tags: list[str], rows: list[list[float]], dtype: torch.dtype = torch.float32) -> list[int]:
    follow, start = rules(tags)
    torch.set_default_dtype(dtype)
    path, _ = viterbi_decode(
        torch.tensor(rows, dtype=dtype), follow.to(dtype), allowed_start_transitions=start.to(dtype)
    )
    torch.set_default_dtype(torch.float32)
    return [int(tag) for tag in path]


def draw() -> list[dict[str, Any]]:
    torch.manual_seed(3)
    cases = []
    for n_roles, n_sentences in SIZES.items():
        tags = ["O", *(f"{prefix}-{role}" for role in range(n_roles) for prefix in "BI")]
        sentences: list[list[list[float]]] = []
        while len(sentences) < n_sentences:
            probabilities = torch.randn(N_TOKENS, len(tags)).mul(0.5).softmax(-1)
            rows = [[round(float(one), 5) for one in row] for row in probabilities]
            if decode(tags, rows) != decode(tags, rows, torch.float64):
                sentences.append(rows)
        cases.append({"tags": tags, "probabilities": sentences, "paths": {}})
    return cases


if __name__ == "__main__":
    content = json.loads(FILE.read_text()) if FILE.exists() else draw()
    for case in content:
        case["paths"][VERSION] = [decode(case["tags"], rows) for rows in case["probabilities"]]
    FILE.write_text(json.dumps(content) + "\n")
