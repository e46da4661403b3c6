"""Compare start states by perplexity and by the distance of vectors to those of the stateful start.

    python benchmarks/start_states.py MODEL TEXT CALIBRATION [--sentences 2000]

MODEL must have a softmax. TEXT is held-out text in its natural order; CALIBRATION is training text. The script prints a
Markdown table.
"""

from __future__ import annotations

import argparse
from itertools import islice

import numpy as np

from elmokit import Elmo, PretrainedBiLM, open_model
from elmokit.embedding.start_state import boundary_state, mean_state
from elmokit.engine.state import State
from elmokit.lm.perplexity import perplexity
from elmokit.storage.text_files import read_lines, split_tokens

STATEFUL_BATCH_SIZE = 32


def read_first(path: str, limit: int) -> list[list[str]]:
    """Read the first sentences of a file."""
    return list(islice((tokens for line in read_lines(path) if (tokens := split_tokens(line))), limit))


def distances(model: PretrainedBiLM, start: State, text: list[list[str]], stateful: list[np.ndarray]) -> np.ndarray:
    """Return the mean cosine distance to the stateful vectors, per LSTM layer: ``(n_layers,)``."""
    elmo = Elmo(model, start="zero")
    elmo.start_state = start
    total, n_tokens = np.zeros(elmo.n_layers), 0
    for layers, expected in zip(elmo.embed(text), stateful, strict=True):
        norms = np.linalg.norm(layers, axis=2) * np.linalg.norm(expected, axis=2)
        total += (1 - (layers * expected).sum(axis=2) / norms).sum(axis=1)
        n_tokens += layers.shape[1]
    return total[1:] / n_tokens


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="path, URL or published name of a model with a softmax")
    parser.add_argument("text", help="tokenized text, one sentence per line")
    parser.add_argument("calibration", help="training text for the mean state")
    parser.add_argument("--sentences", type=int, default=2000, help="sentences to read of each text  [default: 2000]")
    arguments = parser.parse_args()

    model = open_model(arguments.model)
    config = model.config
    text = read_first(arguments.text, arguments.sentences)
    calibration = read_first(arguments.calibration, arguments.sentences)
    stateful = Elmo(model, start="stateful").embed(text, batch_size=STATEFUL_BATCH_SIZE)

    names = " | ".join(f"distance, layer {layer}" for layer in range(1, config.n_layers + 1))
    print(f"| start state | perplexity, forward | backward | mean | {names} |")
    print("|---" * (4 + config.n_layers) + "|")
    starts = {
        "zeros": State.zero(config, 1),
        "one empty sentence": boundary_state(model),
        f"mean state over {len(calibration)} sentences": mean_state(model, calibration),
    }
    if model.start_state is not None:
        starts["state stored with the model"] = model.start_state
    for name, start in starts.items():
        result = perplexity(model, text, start=start)
        per_layer = " | ".join(f"{distance:.5f}" for distance in distances(model, start, text, stateful))
        print(f"| {name} | {' | '.join(f'{p:.2f}' for p in (*result.per_direction, result.mean))} | {per_layer} |")
    result = perplexity(model, text, start="stateful", n_rows=STATEFUL_BATCH_SIZE)
    values = " | ".join(f"{p:.2f}" for p in (*result.per_direction, result.mean))
    print(f"| stateful, batch size {STATEFUL_BATCH_SIZE} | {values} |" + " 0 |" * config.n_layers)


if __name__ == "__main__":
    main()
