"""Training tokens per second, beside a plain PyTorch version of the same network, and the data path alone.

    python benchmarks/train_speed.py TEXT... [--vocab VOCAB] [--words 10000] [--sizes mini,small] [--rounds 15]
        [--clock wall]

One process; ours and the plain version take turns, window by window, on the same windows, so that whatever else the
machine does falls on both. A token is one prediction of each direction. The plain version is what one would write with
PyTorch alone: nn.Conv1d over the characters of every token of the window, nn.LSTM with proj_size (which has no
clips), F.cross_entropy over the whole vocabulary, Adam. Both are float32, without dropout.

The share of the ceiling is the time of the step's matrix products alone, as bare torch.mm of the same shapes, over the
time of the whole step. The data path is WindowStream alone. Prints Markdown tables.

On a machine with other work, --clock cpu --threads 1 counts this process's own processor time instead; it counts the
thread that reads ahead, too, so that the data path then shows less than its speed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import platform
import statistics
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import elmokit
from elmokit.bilm import PRESETS, BiLM, BiLMConfig, BiLMState
from elmokit.io.text_files import find_text_files
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocabulary import Vocabulary
from elmokit.text.windows import Window, WindowStream
from elmokit.training.config import TrainingConfig
from elmokit.training.losses import WindowLosses
from elmokit.weights.model import PretrainedBiLM

SHIPPED_VOCABULARY = Path(elmokit.__file__).parent / "models" / "en-mini" / "vocab.txt"
N_SAMPLES = 1024
N_WORDS = 10_000
N_WARM = 1  # steps before the clock starts
N_DATA_WINDOWS = 400
Shape = tuple[int, int, int]
"""Of a product: rows, inner size, columns."""


class PlainBiLM(nn.Module):
    """The network as PyTorch's own layers make it."""

    def __init__(self, config: BiLMConfig, n_words: int) -> None:
        super().__init__()
        cnn = config.char_cnn
        assert cnn is not None
        self.skip = config.skip_connections
        self.characters = nn.Embedding(cnn.n_chars + 1, cnn.char_dim, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(cnn.char_dim, count, width) for width, count in cnn.filters)
        self.highways = nn.ModuleList(nn.Linear(cnn.n_features, 2 * cnn.n_features) for _ in range(cnn.n_highway))
        self.projection = nn.Linear(cnn.n_features, config.projection_dim)
        self.lstms = nn.ModuleList(
            nn.ModuleList(
                nn.LSTM(config.projection_dim, config.hidden_dim, batch_first=True, proj_size=config.projection_dim)
                for _ in range(config.n_layers)
            )
            for _ in range(config.n_directions)
        )
        self.softmax = nn.Linear(config.projection_dim, n_words)

    def forward(self, char_ids: Tensor, targets: Tensor, states: list[list[tuple[Tensor, Tensor]] | None]) -> Tensor:
        """The mean loss; ``states`` is brought up to date.

        Args:
            char_ids: ``(directions, batch, window_length, chars)``.
            targets: ``(directions, batch, window_length)``.
        """
        losses = []
        for direction, lstms in enumerate(self.lstms):
            outputs = self.token_vectors(char_ids[direction])
            before, after = states[direction], []
            for layer, lstm in enumerate(lstms):  # type: ignore[arg-type]
                inputs = outputs
                outputs, state = lstm(inputs, None if before is None else before[layer])
                if self.skip and layer:
                    outputs = outputs + inputs
                after.append((state[0].detach(), state[1].detach()))
            states[direction] = after
            losses.append(F.cross_entropy(self.softmax(outputs).flatten(0, 1), targets[direction].flatten()))
        return torch.stack(losses).mean()

    def token_vectors(self, char_ids: Tensor) -> Tensor:
        """``(batch, window_length, chars)`` to ``(batch, window_length, projection_dim)``."""
        embedded = self.characters(char_ids.flatten(0, 1)).transpose(1, 2)
        features = torch.cat([F.relu(convolution(embedded).amax(dim=2)) for convolution in self.convolutions], dim=1)
        for highway in self.highways:
            transformed, gate = highway(features).chunk(2, dim=1)
            gate = torch.sigmoid(gate)
            features = gate * F.relu(transformed) + (1 - gate) * features
        vectors: Tensor = self.projection(features)
        return vectors.view(*char_ids.shape[:2], -1)


Step = Callable[[Window], object]
Clock = Callable[[], float]


def our_step(config: TrainingConfig, n_words: int) -> Step:
    """One step of the optimizer as the trainer makes it."""
    bilm = BiLM(config.model)
    bilm.reset_parameters(0)
    softmax = FullSoftmax(n_words, config.model.projection_dim)
    softmax.reset_parameters()
    losses = WindowLosses(bilm, softmax, config.n_samples).train()
    optimizer = torch.optim.Adam(losses.parameters(), lr=1e-3, fused=True)
    state = bilm.zero_state(config.batch_size)

    def step(window: Window) -> None:
        nonlocal state
        parts = [torch.from_numpy(part) for part in (window.tokens, window.inputs, window.targets)]
        loss, hidden, cell = losses(*parts, *state)
        loss.mean().backward()
        state = BiLMState(hidden, cell)
        nn.utils.clip_grad_norm_(losses.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def plain_step(config: TrainingConfig, n_words: int) -> Step:
    """One step of the plain version."""
    model = PlainBiLM(config.model, n_words)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    states: list[list[tuple[Tensor, Tensor]] | None] = [None] * config.model.n_directions

    def step(window: Window) -> None:
        char_ids = torch.from_numpy(window.tokens[window.inputs])  # every token of the window, repeats too
        model(char_ids, torch.from_numpy(window.targets), states).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def forward_products(config: TrainingConfig, window: Window, n_words: int) -> dict[Shape, int]:
    """The matrix products of one forward pass, and how often each comes; each has two more of its size backward."""
    model, cnn = config.model, config.model.char_cnn
    assert cnn is not None
    found: dict[Shape, int] = {}

    def add(rows: int, inner: int, columns: int, times: int = 1) -> None:
        found[rows, inner, columns] = found.get((rows, inner, columns), 0) + times

    n_distinct, n_positions = len(window.tokens), config.batch_size * config.window_length
    busy = (window.tokens != window.tokens[:, -1:]).sum(axis=1).mean()  # columns that a token fills, on the average
    for width, count in cnn.filters:
        add(int(n_distinct * (busy + 1)), cnn.char_dim * width, count)
    for _ in range(2 * cnn.n_highway):
        add(n_distinct, cnn.n_features, cnn.n_features)
    add(n_distinct, cnn.n_features, model.projection_dim)
    times = model.n_directions * model.n_layers
    add(n_positions, model.projection_dim, 4 * model.hidden_dim, times)
    add(config.batch_size, model.projection_dim, 4 * model.hidden_dim, times * config.window_length)
    add(config.batch_size, model.hidden_dim, model.projection_dim, times * config.window_length)
    add(n_positions, model.projection_dim, config.n_samples or n_words, model.n_directions)
    return found


def products_step(config: TrainingConfig, window: Window, n_words: int) -> Step:
    """The products of one step alone: forward, and the gradients of both factors."""
    work = []
    for (rows, inner, columns), times in forward_products(config, window, n_words).items():
        left, right, out = torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(rows, columns)
        work.append((left, right, out, torch.empty_like(left), torch.empty_like(right), times))

    def step(_: Window) -> None:
        for left, right, out, left_gradient, right_gradient, times in work:
            for _ in range(times):
                torch.mm(left, right, out=out)
                torch.mm(out, right.t(), out=left_gradient)
                torch.mm(left.t(), out, out=right_gradient)

    return step


def seconds_in_turns(
    steps: dict[str, Step], windows: list[Window], rounds: int, seconds: float, clock: Clock
) -> dict[str, float]:
    """The median time of each step, in turns; fewer rounds where they would take longer than ``seconds``."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    started = time.perf_counter()
    for number in range(rounds + N_WARM):
        window = windows[number % len(windows)]
        for name, step in steps.items():
            before = clock()
            step(window)
            if number >= N_WARM:
                times[name].append(clock() - before)
        if number > N_WARM and time.perf_counter() - started > seconds:
            break
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--vocab", type=Path, default=SHIPPED_VOCABULARY)
    parser.add_argument("--words", type=int, default=N_WORDS, help="The first so many of the vocabulary.")
    parser.add_argument("--sizes", default="mini,small")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=240, help="For each size, at most about so long.")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)

    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    vocabulary = Vocabulary(Vocabulary.from_file(arguments.vocab).words[: arguments.words])
    texts = find_text_files(arguments.texts, reread=True)
    n_words = len(vocabulary)
    print(
        f"{platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads, {arguments.clock} clock"
    )
    print(f"vocabulary {n_words:,}\n")
    print("| sizes | step | tokens/s | plain PyTorch's | ratio | products alone | share of the ceiling |")
    print("|---" * 7 + "|", flush=True)
    rate = 0.0
    for size in arguments.sizes.split(","):
        full = TrainingConfig(model=dataclasses.replace(PRESETS[size], dropout=0.0))
        sampled = dataclasses.replace(full, n_samples=N_SAMPLES)
        stored = PretrainedBiLM(BiLM(full.model), "elmokit", vocabulary=vocabulary)
        with contextlib.closing(stream_of(full, texts, stored)) as stream:
            windows = list(islice(stream, arguments.rounds + N_WARM))
        steps = {
            "ours, full softmax": our_step(full, n_words),
            "ours, sampled": our_step(sampled, n_words),
            "plain": plain_step(full, n_words),
            "products, full softmax": products_step(full, windows[0], n_words),
            "products, sampled": products_step(sampled, windows[0], n_words),
        }
        taken = seconds_in_turns(steps, windows, arguments.rounds, arguments.seconds, clock)
        tokens = full.batch_size * full.window_length
        rate = max(rate, tokens / min(taken["ours, full softmax"], taken["ours, sampled"]))
        plain = tokens / taken["plain"]
        for kind in ("full softmax", "sampled"):
            ours, products = taken[f"ours, {kind}"], taken[f"products, {kind}"]
            print(
                f"| {size} | {kind} | {tokens / ours:,.0f} | {plain:,.0f} | {tokens / ours / plain:.2f} "
                f"| {products * 1000:.0f} of {ours * 1000:.0f} ms | {products / ours:.0%} |",
                flush=True,
            )
        n_distinct = statistics.mean(len(window.tokens) for window in windows)
        print(f"\n{size}: {n_distinct:.0f} distinct tokens in {2 * tokens} positions of a window\n", flush=True)
    mini = TrainingConfig()
    stored = PretrainedBiLM(BiLM(mini.model), "elmokit", vocabulary=vocabulary)
    with contextlib.closing(stream_of(mini, texts, stored)) as stream:
        for _ in islice(stream, N_DATA_WINDOWS // 4):
            pass
        before = clock()
        for _ in islice(stream, N_DATA_WINDOWS):
            pass
        seconds = clock() - before
    fed = N_DATA_WINDOWS * mini.batch_size * mini.window_length / seconds
    print(f"The data path alone: {fed:,.0f} tokens/s, {fed / rate:.0f} times the fastest step above")


def stream_of(config: TrainingConfig, texts: list[Path], model: PretrainedBiLM) -> WindowStream:
    """The windows of a training."""
    assert model.vocabulary is not None
    return WindowStream(texts, model.vocabulary, model.encode, config.batch_size, config.window_length)


if __name__ == "__main__":
    main()
