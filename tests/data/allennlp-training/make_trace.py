"""Train AllenNLP's Elmo with ``requires_grad=True`` for a few steps, and write the losses and gradients to trace.json.

    PYTHONPATH=REPOSITORY python tests/data/allennlp-training/make_trace.py

It needs allennlp 2.10.1 and elmokit's own dependencies. ``tests/tasks/test_allennlp_training.py`` repeats
the training with elmokit.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from allennlp.modules.elmo import Elmo, batch_to_ids

from elmokit.formats.save import save_model
from tests.helpers.wave_model import CONFIG, wave, wave_model

SENTENCES = ["The cat sat on the mat .", "Who ran ?", "It rained", "A very long day ended well in the old town ."]
LABELS = [0, 2, 1, 2]
N_STEPS, LEARNING_RATE, MAX_NORM = 8, 0.05, 1.0


def main() -> None:
    """Train, and write the trace next to this file."""
    folder = Path(tempfile.mkdtemp())
    save_model(wave_model(), folder / "wave_weights.hdf5")
    elmo = Elmo(
        str(folder / "wave_options.json"), str(folder / "wave_weights.hdf5"), 1, requires_grad=True, dropout=0.0
    )
    elmo.train()
    output = torch.nn.Linear(CONFIG.output_dim, 3)
    with torch.no_grad():
        output.weight.copy_(wave(3, CONFIG.output_dim, scale=0.2))
        output.bias.zero_()
    parameters = [*elmo.parameters(), *output.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)
    ids = batch_to_ids([sentence.split() for sentence in SENTENCES])
    steps, largest = [], 0.0
    for _ in range(N_STEPS):
        elmo._elmo_lstm._elmo_lstm.reset_states()  # AllenNLP carries the state to the next batch
        found = elmo(ids)
        (vectors,), mask = found["elmo_representations"], found["mask"]
        pooled = (vectors * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        loss = torch.nn.functional.cross_entropy(output(pooled), torch.tensor(LABELS))
        optimizer.zero_grad()
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM))
        steps.append({"loss": loss.item(), "gradient_norm": norm})
        optimizer.step()
        largest = max(largest, float(elmo._elmo_lstm._elmo_lstm._states[1].abs().max()))
    content = {"sentences": SENTENCES, "labels": LABELS, "largest_cell": largest, "steps": steps}
    content |= {"learning_rate": LEARNING_RATE, "max_grad_norm": MAX_NORM}
    path = Path(__file__).with_name("trace.json")
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
