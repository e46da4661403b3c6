"""Test and measure elmokit on a CUDA GPU: everything in 40 minutes, with one command.

    python benchmarks/gpu.py OUT --texts TEXT... --held-out TEXT... [--device cuda] [--minutes 40] [--quick]
        [--parts tests,parity,embedding,graphs,training,model]

The texts are tokenized, one sentence per line, as for ``elmokit train``. The parts, with their share of the minutes:

- tests (4 of 40): ``tests/network/test_cuda.py``, which compares the GPU with the CPU.
- parity (3): vectors of en-mini, small and original on the GPU against those on the CPU.
- embedding (8): tokens/s by size and batch size, with and without the transfer to NumPy arrays.
- graphs (3): the LSTM loops alone, started kernel by kernel, and the same kernels replayed as a CUDA graph. The ratio
  says how much time the GPU waits for Python, and what CUDA graphs would gain.
- training (6): predictions/s of a training step by size, precision and batch size.
- model (15): train the size ``small`` on the texts, for 20 million predictions.

After every measurement OUT/results.md and OUT/results.json are written. If the script is interrupted, run it again with
the same arguments: what is finished is not measured again, and the training is resumed. A measurement that no longer
fits into the time of its part is left out.

``--device cpu --quick`` runs every part at tiny sizes on the CPU, to try the script. Its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages import to_markdown
from part_results import PartResults

import elmokit
from elmokit import Elmo, ElmoModule, LanguageModel, PretrainedBiLM, TrainingResult, open_model, save_model
from elmokit.engine.architecture import PRESETS
from elmokit.evaluation.bench import processor_name
from elmokit.evaluation.result import Table
from elmokit.network.bilm import BiLM, BiLMState
from elmokit.network.lstm_module import LSTMState
from elmokit.network.softmax_module import FullSoftmax
from elmokit.network.tensors import parse_device
from elmokit.storage.atomic import atomic_write
from elmokit.storage.text_files import find_text_files
from elmokit.text.text import Text
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.distributed import World
from elmokit.training.losses import WindowLosses, step_autocast
from elmokit.training.shards import ReadingOrder, SentenceBlocks
from elmokit.training.training_config import TrainingConfig
from elmokit.training.training_state import config_optimizer
from elmokit.training.windows import Window, WindowStream

ROOT = Path(__file__).parents[1]
PARTS = {"tests": 4.0, "parity": 3.0, "embedding": 8.0, "graphs": 3.0, "training": 6.0, "model": 15.0}
"""Minutes of each part in a run of 40 minutes. The last one is for opening models and writing results."""
TOTAL_MINUTES = 40.0
SIZES = ("en-mini", "small", "original")
PRECISIONS = ("float32", "bfloat16")
N_SAMPLES = 8192  # of the sampled softmax for the size original, as bilm-tf trained it
WINDOW_LENGTH = 20
N_TRAINED = 20_000_000  # predictions
Row = dict[str, Any]


class Scale:
    """How much is measured."""

    def __init__(self, quick: bool) -> None:
        self.sizes = ("en-mini", "tiny") if quick else SIZES
        self.n_sentences = 40 if quick else 20_000
        self.n_parity_sentences = 8 if quick else 256
        self.batch_sizes = (1, 8) if quick else (1, 16, 64, 256, 1024)
        self.training_rows = (2,) if quick else (48, 128, 512)
        self.graph_rows = (2,) if quick else (16, 64, 256)
        self.seconds = 0.05 if quick else 3.0
        self.preset = "tiny" if quick else "small"
        self.train_batch = 2 if quick else 256


class Bench:
    """The rows measured so far, and the files that they are written to."""

    def __init__(self, args: argparse.Namespace, parts: PartResults, device: torch.device, scale: Scale) -> None:
        self.args, self.parts, self.device, self.scale = args, parts, device, scale
        self.rows: dict[str, list[Row]] = {part: [] for part in args.parts.split(",")}
        self.deadline = 0.0

    def start(self, part: str) -> None:
        """Start the time of a part."""
        self.deadline = time.monotonic() + 60 * self.args.minutes / TOTAL_MINUTES * PARTS[part]

    def row(self, part: str, key: Row, measure: Callable[[], Row]) -> None:
        """Measure a row, or take it from an earlier run, and write the results.

        Args:
            part: The part that it belongs to.
            key: What is measured: the first columns of the table.
            measure: Returns the other columns.
        """
        name = json.dumps([part, key])
        if name not in self.parts and time.monotonic() > self.deadline:
            self.rows[part].append({**key, "note": "left out: no time"})
        else:
            self.rows[part].append({**key, **self.parts.compute(name, partial(_without_memory_errors, measure))})
        self.write()
        print(part, *(f"{name} {_cell(value)}" for name, value in self.rows[part][-1].items()), flush=True)

    def write(self) -> None:
        """Write the results as JSON and as Markdown."""
        machine = describe_device(self.device)
        title = "# elmokit on a GPU" if self.device.type == "cuda" else "# Dry run on the CPU: the numbers mean nothing"
        lines = [title, "", *(f"- {name}: {value}" for name, value in machine.items())]
        for part, rows in self.rows.items():
            if rows:
                head = list(dict.fromkeys(name for row in rows for name in row))
                table = Table(head, [[_cell(row.get(name)) for name in head] for row in rows])
                lines += ["", f"## {part}", "", to_markdown(table)]
        results = json.dumps({"machine": machine, **self.rows}, indent=1)
        for name, text in (("results.md", "\n".join(lines)), ("results.json", results)):
            with atomic_write(self.args.out / name, overwrite=True) as path:
                path.write_text(f"{text}\n", encoding="utf-8")

    def wait(self) -> None:
        """Wait until the GPU has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def fastest(self, call: Callable[[], object]) -> float:
        """Return the time of the fastest call, among as many as fit into the time of a row: at least two."""
        call()  # packs weights, fills caches, compiles
        times: list[float] = []
        while len(times) < 2 or sum(times) < self.scale.seconds:
            self.wait()
            started = time.perf_counter()
            call()
            self.wait()
            times.append(time.perf_counter() - started)
        return min(times)


def _without_memory_errors(measure: Callable[[], Row]) -> Row:
    try:
        return measure()
    except torch.OutOfMemoryError:
        return {"note": "out of memory"}


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return "" if value is None else str(value)


def describe_device(device: torch.device) -> dict[str, str]:
    """Return the facts about the machine that the numbers depend on."""
    facts = {"elmokit": elmokit.__version__, "torch": torch.__version__, "processor": processor_name()}
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        call = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
        facts["commit"] = subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "GPU": f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB",
            "CUDA": str(torch.version.cuda),
            "TF32 in float32 products": str(torch.backends.cuda.matmul.allow_tf32),
        }
    return facts


def model_of(size: str) -> PretrainedBiLM:
    """Return en-mini, or a model of a preset with random weights."""
    if size == "en-mini":
        return open_model(None)
    bilm = BiLM(PRESETS[size])
    bilm.reset_parameters(0)
    return PretrainedBiLM.from_modules(bilm)


def measure_tests(bench: Bench, sentences: list[list[str]]) -> None:
    """Run the tests that compare the GPU with the CPU."""

    def run() -> Row:
        started = time.monotonic()
        call = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(ROOT / "tests/network/test_cuda.py"),
        ]
        if bench.args.quick:
            call += ["-k", "vectors_equal or bfloat16_is"]
        seconds = max(10.0, bench.deadline - started)
        environment = {**os.environ, "ELMOKIT_TEST_DEVICE": str(bench.device)}
        try:
            ran = subprocess.run(call, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
            output, code = ran.stdout, str(ran.returncode)
        except subprocess.TimeoutExpired as error:
            output, code = str(error.stdout or ""), "stopped: no time"
        (bench.args.out / "tests.txt").write_text(output, encoding="utf-8")
        last = (output.strip().splitlines() or [""])[-1].strip("= ")
        return {"result": last, "exit code": code, "seconds": time.monotonic() - started}

    bench.row("tests", {"tests": "tests/network/test_cuda.py"}, run)


def measure_parity(bench: Bench, sentences: list[list[str]]) -> None:
    """Compare vectors on the device with those on the CPU in float32."""
    chosen = sentences[: bench.scale.n_parity_sentences]

    def compare(size: str) -> Row:
        reference = Elmo(model_of(size), start="zero")
        expected = reference.embed(chosen)
        elmo = Elmo(model_of(size), start="zero").to(bench.device)
        pairs = [
            (one.reshape(-1, one.shape[-1]), other.reshape(-1, other.shape[-1]))
            for one, other in zip(elmo.embed(chosen), expected, strict=True)
        ]
        found, right = (np.concatenate(rows) for rows in zip(*pairs, strict=True))
        cosines = (found * right).sum(axis=1) / (np.linalg.norm(found, axis=1) * np.linalg.norm(right, axis=1))
        row: Row = {
            "computed by": elmo.computer.network.computation().kernels[1],
            "largest difference": float(np.abs(found - right).max()),
            "least cosine": f"{cosines.min():.6f}",
        }
        if size == "en-mini":
            lm = LanguageModel.from_pretrained(device=bench.device)
            row["perplexity"] = lm.perplexity(chosen).mean
            row["perplexity on the CPU"] = LanguageModel.from_pretrained(precision="float32").perplexity(chosen).mean
        return row

    for size in bench.scale.sizes:
        bench.row("parity", {"size": size}, partial(compare, size))


def measure_embedding(bench: Bench, sentences: list[list[str]]) -> None:
    """Measure tokens/s by size and batch size.

    "On the device" leaves the layers where they were computed, as a model that is trained on them does. "To NumPy" is
    ``Elmo.embed``, which copies all layers to the memory of the CPU.
    """

    def measure(size: str, n_rows: int) -> Row:
        module = ElmoModule(model_of(size), start="zero").to(bench.device)
        elmo = module.elmo
        batches = batches_of(sentences, n_rows)
        n_tokens = sum(len(sentence) for batch in batches for sentence in batch)

        @torch.no_grad()
        def on_device() -> None:
            for batch in batches:
                module.padded_layers(batch)

        def to_numpy() -> None:
            for batch in batches:
                elmo.embed(batch, batch_tokens=2**30)

        device_seconds = bench.fastest(on_device)
        return {
            "tokens/s on the device": n_tokens / device_seconds,
            "tokens/s to NumPy": n_tokens / bench.fastest(to_numpy),
            **gpu_use(bench, on_device, device_seconds, len(batches)),
        }

    for size, n_rows in itertools.product(bench.scale.sizes, bench.scale.batch_sizes):
        bench.row("embedding", {"size": size, "batch size": n_rows}, partial(measure, size, n_rows))


def batches_of(sentences: list[list[str]], n_rows: int) -> list[list[list[str]]]:
    """Return a few batches of sentences of similar length, evenly spaced over all lengths."""
    ordered = sorted(sentences, key=len)
    groups = [ordered[start : start + n_rows] for start in range(0, len(ordered), n_rows)]
    return groups[:: max(1, len(groups) // 4)]


def gpu_use(bench: Bench, call: Callable[[], object], seconds: float, n_batches: int) -> Row:
    """Return how many kernels a batch starts, and which part of the time the GPU computes."""
    if bench.device.type != "cuda":
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        bench.wait()
    cuda = torch.autograd.DeviceType.CUDA
    events = [event for event in profile.events() or [] if event.device_type == cuda]
    busy = sum(event.time_range.elapsed_us() for event in events) / 1e6
    return {"kernels and copies per batch": len(events) // n_batches, "GPU busy": f"{busy / seconds:.0%}"}


def measure_graphs(bench: Bench, sentences: list[list[str]]) -> None:
    """Time the LSTM loops kernel by kernel, and as a CUDA graph that starts the same kernels at once."""

    def measure(size: str, precision: Any, n_rows: int, gradient: bool) -> Row:
        call = lstm_loop(model_of(size).build_bilm().to(bench.device), precision, n_rows, gradient)
        n_positions, eager = n_rows * WINDOW_LENGTH, bench.fastest(call)
        row: Row = {"tokens/s": n_positions / eager}
        if bench.device.type == "cuda":
            replay = bench.fastest(captured(call).replay)
            row |= {"tokens/s as a graph": n_positions / replay, "gain": f"{eager / replay:.2f}"}
        return row

    for size, precision, n_rows in itertools.product(bench.scale.sizes, PRECISIONS, bench.scale.graph_rows):
        for gradient in (False, True) if precision == "float32" else (True,):
            loop = "forward and backward" if gradient else "inference"
            key = {"loop": loop, "size": size, "precision": precision, "rows": n_rows}
            bench.row("graphs", key, partial(measure, size, precision, n_rows, gradient))


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Record the kernels of a call. It may neither wait for the GPU nor copy from the CPU."""
    # As PyTorch's documentation asks: a few calls on another stream first, so that libraries allocate their workspace.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def lstm_loop(bilm: BiLM, precision: Any, n_rows: int, gradient: bool) -> Callable[[], object]:
    """Return a function that runs a window through the LSTMs of both directions, from zeros."""
    config, weights = bilm.config, list(bilm.directions.requires_grad_(gradient).parameters())
    inputs = torch.zeros(n_rows, WINDOW_LENGTH, config.projection_dim, device=bilm.device)

    def run() -> None:
        with torch.autocast(bilm.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            state = LSTMState(*(inputs.new_zeros(n_rows, dim) for dim in (config.projection_dim, config.hidden_dim)))
            tops = [stack(inputs, [state] * config.n_layers)[0][-1] for stack in bilm.directions]
        if gradient:
            torch.autograd.grad(torch.stack([top.sum() for top in tops]).sum(), weights)

    return run


def seconds_per_step(
    config: TrainingConfig, losses: WindowLosses, window: Window, state: BiLMState, n_steps: int
) -> float:
    """Measure the time of a training step; the first one allocates memory and is not counted."""
    device, optimizer = state.hidden.device, config_optimizer(config, losses, World())
    tensors = [torch.from_numpy(array).to(device) for array in (window.tokens, window.inputs, window.targets)]
    seconds = []
    for _ in range(1 + n_steps):
        started = time.perf_counter()
        with step_autocast(config, device):
            loss, *_ = losses(*tensors, *state)
        loss.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def measure_training(bench: Bench, sentences: list[list[str]]) -> None:
    """Measure predictions/s of a training step by size, precision and batch size."""
    vocabulary = open_model(None).vocabulary
    assert vocabulary is not None
    if bench.args.quick:
        vocabulary = Vocabulary(vocabulary.words[:200])
    texts = find_text_files(bench.args.texts, reread=True)

    def measure(size: str, precision: Any, n_rows: int) -> Row:
        preset = PRESETS["mini" if size == "en-mini" else size]
        n_samples = min(N_SAMPLES, len(vocabulary)) if size == "original" else 0
        config = TrainingConfig(
            model=preset, batch_size=n_rows, window_length=WINDOW_LENGTH, n_samples=n_samples, precision=precision
        )
        bilm = BiLM(preset)
        bilm.reset_parameters(0)
        softmax = FullSoftmax(len(vocabulary), preset.projection_dim)
        softmax.reset_parameters()
        losses = WindowLosses(bilm, softmax, n_samples).to(bench.device).train()
        model = PretrainedBiLM.from_modules(bilm, vocabulary=vocabulary)
        with contextlib.closing(
            WindowStream([SentenceBlocks(Text(texts), ReadingOrder())], vocabulary, model.encode, n_rows, WINDOW_LENGTH)
        ) as stream:
            window = next(stream)
        state = bilm.zero_state(n_rows)
        step = seconds_per_step(config, losses, window, state, 1 if bench.args.quick else 10)
        row: Row = {"softmax": f"{n_samples:,} samples" if n_samples else f"{len(vocabulary):,} words"}
        row |= {"ms per step": 1000 * step, "predictions/s": config.predictions_per_step / step}
        if bench.device.type == "cuda":
            row["GiB"] = torch.cuda.max_memory_allocated(bench.device) / 2**30
            torch.cuda.reset_peak_memory_stats(bench.device)
        return row

    for size, precision, n_rows in itertools.product(bench.scale.sizes, PRECISIONS, bench.scale.training_rows):
        key = {"size": size, "precision": precision, "batch size": n_rows}
        bench.row("training", key, partial(measure, size, precision, n_rows))


def measure_model(bench: Bench, sentences: list[list[str]]) -> None:
    """Train a model, or resume its training."""
    run, scale = bench.args.out / "run", bench.scale

    def measure() -> Row:
        started = time.monotonic()
        result = elmokit.train(
            bench.args.texts,
            held_out=bench.args.held_out,
            out=run,
            preset=scale.preset,
            device=bench.device,
            batch_size=scale.train_batch,
            dropout=0.0,
            max_words=100 if bench.args.quick else None,
            tokens=200 if bench.args.quick else N_TRAINED,
        )
        return _describe_result(result, bench.args.out / "model", time.monotonic() - started)

    bench.row("model", {"size": scale.preset}, measure)


def _describe_result(result: TrainingResult, path: Path, seconds: float) -> Row:
    save_model(result.model, path, storage="float16", overwrite=True)
    n_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    forward, backward = result.best_perplexity
    return {
        "predictions": int(result.model.card["n_predictions"]),
        "minutes": seconds / 60,
        "forward perplexity": forward,
        "backward perplexity": backward,
        "MB in float16": n_bytes / 1e6,
    }


MEASURES: dict[str, Callable[[Bench, list[list[str]]], None]] = {
    "tests": measure_tests,
    "parity": measure_parity,
    "embedding": measure_embedding,
    "graphs": measure_graphs,
    "training": measure_training,
    "model": measure_model,
}


def first_sentences(texts: Sequence[Path], n: int) -> list[list[str]]:
    """Read the first sentences of the texts that have at most 100 tokens."""

    def short() -> Iterator[list[str]]:
        for path in find_text_files(texts, reread=True):
            yield from (tokens for tokens in Text(path).token_lists() if len(tokens) <= 100)

    return list(itertools.islice(short(), n))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts that are not finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory for results, the training run and the model")
    parser.add_argument("--texts", type=Path, nargs="+", required=True, help="text to embed and to train on")
    parser.add_argument("--held-out", type=Path, nargs="+", required=True, help="text to evaluate the training on")
    parser.add_argument("--device", default="cuda", help="where to compute  [default: cuda]")
    parser.add_argument("--minutes", type=float, default=TOTAL_MINUTES, help="time for everything  [default: 40]")
    parser.add_argument("--parts", default=",".join(PARTS), help="parts to run, separated by commas  [default: all]")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    args = parser.parse_args(arguments)
    if unknown := set(args.parts.split(",")) - set(PARTS):
        parser.error(f"There is no part {sorted(unknown)[0]!r}. Choose from {', '.join(PARTS)}.")
    device, scale = parse_device(args.device), Scale(args.quick)
    args.out.mkdir(parents=True, exist_ok=True)
    settings = {"benchmark": "gpu", "version": elmokit.__version__, "device": str(device), "quick": args.quick}
    sentences = first_sentences(args.texts, scale.n_sentences)
    with PartResults(args.out / "rows", settings) as parts:
        bench = Bench(args, parts, device, scale)
        for part in bench.rows:
            bench.start(part)
            MEASURES[part](bench, sentences)
    print(f"The results are in {args.out / 'results.md'}.")


if __name__ == "__main__":
    main()
