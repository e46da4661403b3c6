"""Perplexity of texts, full softmax, each direction apart, every sentence from the model's warm state.

    python benchmarks/perplexity.py MODEL TEXT...

Prints a Markdown table.
"""

from __future__ import annotations

import sys
from pathlib import Path

from elmokit import open_model
from elmokit.files import read_lines, split_tokens
from elmokit.train.perplexity import perplexity


def main() -> None:
    """Measure and print."""
    model = open_model(sys.argv[1])
    print("| text | predictions | unknown words | forward | backward | mean |")
    print("|---|---|---|---|---|---|")
    for path in map(Path, sys.argv[2:]):
        sentences = (tokens for line in read_lines(path) if (tokens := split_tokens(line)))
        result = perplexity(model, sentences, start=model.warm_state)
        values = " | ".join(f"{value:.2f}" for value in (*result.per_direction, result.mean))
        name = "/".join(path.parts[-2:])
        print(f"| {name} | {result.n_predictions:,} | {result.unknown_share:.1%} | {values} |", flush=True)


if __name__ == "__main__":
    main()
