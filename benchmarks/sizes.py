"""Measure what another size of the LSTMs costs: bytes in int8, embedding speed, and the time of a training step.

    python benchmarks/sizes.py TEXT [--sizes 512/128,768/192] [--precisions float32,bfloat16,int8] [--training bfloat16]

Weights are random, the char CNN is that of the preset mini. Times are processor times of one thread. Rounds of all
sizes take turns, so that other programs on the machine slow all of them down alike; the table has the best round.
``ELMOKIT_INSTRUCTIONS=avx2`` measures the code for other processors.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from itertools import islice
from pathlib import Path

import torch

from elmokit.embedding.elmo import Elmo
from elmokit.engine.config import PRESETS
from elmokit.formats.folder import save_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import open_model
from elmokit.network.bilm import BiLM
from elmokit.network.softmax import FullSoftmax
from elmokit.storage.text_files import read_sentences
from elmokit.text.windows import WindowStream
from elmokit.training.distributed import World
from elmokit.training.losses import WindowLosses
from elmokit.training.optimizers import clip_gradients
from elmokit.training.training_config import TrainingConfig
from elmokit.training.training_state import config_optimizer

N_SENTENCES, N_ROUNDS, N_STEPS = 320, 3, 3
N_SAMPLES = 4096


def random_model(size: str) -> PretrainedBiLM:
    """Build a model of a size, with a softmax over the words of the included model."""
    hidden_dim, projection_dim = (int(part) for part in size.split("/"))
    config = dataclasses.replace(PRESETS["mini"], hidden_dim=hidden_dim, projection_dim=projection_dim, dropout=0.0)
    bilm, vocabulary = BiLM(config), open_model("en-mini").vocabulary
    assert vocabulary is not None
    bilm.reset_parameters(seed=0)
    softmax = FullSoftmax(len(vocabulary), projection_dim)
    softmax.reset_parameters()
    return PretrainedBiLM(bilm.eval(), "elmokit", softmax=softmax, vocabulary=vocabulary)


def n_bytes(model: PretrainedBiLM) -> int:
    """Return the size of the model's directory in int8, without a whitening."""
    with tempfile.TemporaryDirectory() as folder:
        save_folder(model, Path(folder) / "model", "int8")
        return sum(file.stat().st_size for file in (Path(folder) / "model").iterdir())


def training_seconds(model: PretrainedBiLM, config: TrainingConfig, text: Path) -> tuple[float, float]:
    """Return the processor time of a window's forward and backward pass, and that of the optimizer."""
    softmax = model.softmax_module
    assert softmax is not None
    assert model.vocabulary is not None
    losses = WindowLosses(model.bilm, softmax, config.n_samples).train()
    optimizer, state = config_optimizer(config, losses, World()), model.bilm.zero_state(config.batch_size)
    stream = WindowStream([text], model.vocabulary, model.encode, config.batch_size, config.window_length)
    times = []
    for _, window in zip(range(N_STEPS + 1), stream, strict=False):
        tensors = [torch.from_numpy(array) for array in (window.tokens, window.inputs, window.targets)]
        started = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bfloat16"):
            loss, *_ = losses(*tensors, *state)
        loss.mean().backward()
        computed = time.process_time()
        clip_gradients(losses.parameters(), config.max_grad_norm)
        optimizer.step()
        times.append((computed - started, time.process_time() - computed))
        optimizer.zero_grad()
    stream.close()
    windows, updates = zip(*times[1:], strict=True)  # memory is allocated in the first step
    return min(windows), min(updates)


def main() -> None:
    """Print one table row for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="tokenized text")
    parser.add_argument("--sizes", default="512/128,768/192,1024/192", help="LSTM cell and projection")
    parser.add_argument("--precisions", default="float32,bfloat16,int8", help="precisions of the embedding")
    parser.add_argument("--training", help="time training steps, too: float32 or bfloat16")
    parser.add_argument("--batch-size", type=int, default=256, help="rows of a training step  [default: 256]")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes, precisions = arguments.sizes.split(","), arguments.precisions.split(",")
    sentences = list(islice(read_sentences(arguments.text), N_SENTENCES))
    n_tokens = sum(map(len, sentences))
    models = {size: random_model(size) for size in sizes}
    embedders = {}
    for size in sizes:
        for precision in precisions:
            model = random_model(size)
            model.precision = precision
            embedders[size, precision] = Elmo(model)
    best = dict.fromkeys(embedders, 0.0)
    for _ in range(N_ROUNDS):
        for key, elmo in embedders.items():
            started = time.process_time()
            elmo.embed(sentences)
            best[key] = max(best[key], n_tokens / (time.process_time() - started))
    columns = ["size", "bytes in int8", *(f"{precision}, tokens/s" for precision in precisions)]
    if arguments.training:
        columns += ["window, s", "update, s", "predictions/s"]
    print("| " + " | ".join(columns) + " |", "|---" * len(columns) + "|", sep="\n")
    for size, model in models.items():
        row = [size, f"{n_bytes(model):,}", *(f"{best[size, precision]:,.0f}" for precision in precisions)]
        if arguments.training:
            config = TrainingConfig(
                model.bilm.config,
                batch_size=arguments.batch_size,
                n_samples=N_SAMPLES,
                precision=arguments.training,
            )
            window, update = training_seconds(model, config, arguments.text)
            row += [f"{window:.2f}", f"{update:.2f}", f"{config.predictions_per_step / (window + update):,.0f}"]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
