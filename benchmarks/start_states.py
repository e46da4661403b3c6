"""Which constant state should a sentence start from? Perplexity, and distance to carried-state vectors.

    python benchmarks/start_states.py MODEL TEXT CALIBRATION [--sentences 2000]

MODEL has a softmax; TEXT is held out and in its natural order; CALIBRATION is training text. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
from itertools import islice

import numpy as np

from elmokit import BiLMState, Elmo, PretrainedBiLM, open_model
from elmokit.initial_state import boundary_state, mean_state
from elmokit.io.text_files import read_lines, split_tokens
from elmokit.scoring.perplexity import perplexity

CARRIED_ROWS = 32


def sentences(path: str, limit: int) -> list[list[str]]:
    """The first sentences of a file."""
    return list(islice((tokens for line in read_lines(path) if (tokens := split_tokens(line))), limit))


def distances(model: PretrainedBiLM, start: BiLMState, text: list[list[str]], carried: list[np.ndarray]) -> np.ndarray:
    """Mean cosine distance to the carried-state vectors, per LSTM layer: ``(n_layers,)``."""
    elmo = Elmo(model, start="zero")
    elmo.start_hidden, elmo.start_cell = start
    total, n_tokens = np.zeros(elmo.n_layers), 0
    for ours, theirs in zip(elmo.embed(text), carried, strict=True):
        norms = np.linalg.norm(ours, axis=2) * np.linalg.norm(theirs, axis=2)
        total += (1 - (ours * theirs).sum(axis=2) / norms).sum(axis=1)
        n_tokens += ours.shape[1]
    return total[1:] / n_tokens


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("calibration")
    parser.add_argument("--sentences", type=int, default=2000)
    arguments = parser.parse_args()

    model = open_model(arguments.model)
    bilm = model.bilm
    text = sentences(arguments.text, arguments.sentences)
    calibration = sentences(arguments.calibration, arguments.sentences)
    carried = Elmo(model, start="stateful").embed(text, batch_size=CARRIED_ROWS)

    names = " | ".join(f"distance, layer {layer}" for layer in range(1, bilm.config.n_layers + 1))
    print(f"| start | perplexity forward | backward | mean | {names} |")
    print("|---" * (4 + bilm.config.n_layers) + "|")
    starts = {
        "zero": bilm.zero_state(1),
        "one empty sentence": boundary_state(model),
        f"mean state over {len(calibration)} sentences": mean_state(model, calibration),
    }
    if model.initial_state is not None:
        starts["the state stored with the model"] = model.initial_state
    for name, start in starts.items():
        result = perplexity(model, text, start=start)
        far = " | ".join(f"{distance:.5f}" for distance in distances(model, start, text, carried))
        print(f"| {name} | {' | '.join(f'{p:.2f}' for p in (*result.per_direction, result.mean))} | {far} |")
    result = perplexity(model, text, start="stateful", n_rows=CARRIED_ROWS)
    values = " | ".join(f"{p:.2f}" for p in (*result.per_direction, result.mean))
    print(f"| carried, {CARRIED_ROWS} rows | {values} |" + " 0 |" * bilm.config.n_layers)


if __name__ == "__main__":
    main()
