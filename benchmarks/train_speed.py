"""Compare training speed with that of a plain PyTorch version of the same network.

    python benchmarks/train_speed.py TEXT... [--vocab VOCAB] [--words 10000] [--sizes mini,en-mini,small]
        [--rounds 15] [--clock wall]

Both versions run in one process and alternate on the same windows, so that other load on the machine affects both
equally. A token is one prediction of each direction. The plain version uses PyTorch's own layers: nn.Conv1d over the
characters, nn.LSTM with proj_size (which has no clipping), F.cross_entropy over the whole vocabulary, and fused Adam.
Both run the char CNN once on each distinct token of the window, in float32 without dropout. The size en-mini is that of
the included model.

The fraction of the ceiling is the time of the step's matrix products alone, as bare torch.mm calls of the same shapes,
divided by the time of the whole step. The script also measures the data pipeline (WindowStream) alone. It prints
Markdown tables.

With --precisions, only the step of elmokit is measured, in float32 and in bfloat16, with the sampled softmax. SIZES may
then contain sizes of cell and projection, such as 1024/192, with the char CNN of `small`.

On a busy machine, use --clock cpu --threads 1 to measure the CPU time of the process. CPU time includes the thread that
reads ahead, so the speed of the data pipeline is then underestimated.
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
from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.formats.open import open_model
from elmokit.network.bilm import BiLM, BiLMState
from elmokit.network.softmax_module import FullSoftmax
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.text_files import find_text_files
from elmokit.text.text import Text
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.losses import WindowLosses, step_autocast
from elmokit.training.shards import ReadingOrder, SentenceBlocks
from elmokit.training.training_config import TrainingConfig
from elmokit.training.windows import Window, WindowStream

INCLUDED_VOCABULARY = Path(elmokit.__file__).parent / "models" / "en-mini" / "vocab.txt"
N_SAMPLES = 1024
N_WORDS = 10_000
N_WARMUP_STEPS = 1  # steps that are not timed
N_DATA_WINDOWS = 100
Shape = tuple[int, int, int]
"""Shape of a matrix product: rows, inner size, columns."""


class PlainBiLM(nn.Module):
    """The same network, built from PyTorch's own layers."""

    def __init__(self, config: BiLMConfig, n_words: int) -> None:
        super().__init__()
        cnn = config.char_cnn
        assert cnn is not None
        self.skip = config.skip_connections
        self.characters = nn.Embedding(cnn.n_chars + 1, cnn.char_dim, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(cnn.char_dim, count, width) for width, count in cnn.filters)
        self.highways = nn.ModuleList(nn.Linear(cnn.n_features, 2 * cnn.n_features) for _ in range(cnn.n_highway))
        words = config.word_features
        self.words = None if words is None else nn.Embedding(words.n_words + 1, words.word_dim, padding_idx=0)
        self.projection = nn.Linear(n_token_features(config), config.projection_dim)
        self.lstms = nn.ModuleList(
            nn.ModuleList(
                nn.LSTM(config.projection_dim, config.hidden_dim, batch_first=True, proj_size=config.projection_dim)
                for _ in range(config.n_layers)
            )
            for _ in range(config.n_directions)
        )
        self.softmax = nn.Linear(config.projection_dim, n_words)

    def forward(
        self, char_ids: Tensor, inputs: Tensor, targets: Tensor, states: list[list[tuple[Tensor, Tensor]] | None]
    ) -> Tensor:
        """Compute the mean loss, and replace ``states`` with the new states.

        Args:
            char_ids: Characters of each distinct token, ``(tokens, chars)``; before them its word, if words are read.
            inputs: The row in ``char_ids`` of each position, ``(directions, batch, window_length)``.
            targets: Words to predict, ``(directions, batch, window_length)``.
            states: The LSTM states of each direction; None for zeros.
        """
        losses = []
        vectors = self.token_vectors(char_ids)
        for direction, lstms in enumerate(self.lstms):
            outputs = F.embedding(inputs[direction], vectors)
            before, after = states[direction], []
            for layer, lstm in enumerate(lstms):  # type: ignore[arg-type]
                layer_inputs = outputs
                outputs, state = lstm(layer_inputs, None if before is None else before[layer])
                if self.skip and layer:
                    outputs = outputs + layer_inputs
                after.append((state[0].detach(), state[1].detach()))
            states[direction] = after
            losses.append(F.cross_entropy(self.softmax(outputs).flatten(0, 1), targets[direction].flatten()))
        return torch.stack(losses).mean()

    def token_vectors(self, char_ids: Tensor) -> Tensor:
        """Convert ``(tokens, chars)`` to ``(tokens, projection_dim)``."""
        of_words = []
        if self.words is not None:
            of_words, char_ids = [self.words(char_ids[:, 0])], char_ids[:, 1:]
        embedded = self.characters(char_ids).transpose(1, 2)
        features = torch.cat([F.relu(convolution(embedded).amax(dim=2)) for convolution in self.convolutions], dim=1)
        for highway in self.highways:
            transformed, gate = highway(features).chunk(2, dim=1)
            gate = torch.sigmoid(gate)
            features = gate * F.relu(transformed) + (1 - gate) * features
        vectors: Tensor = self.projection(torch.cat([*of_words, features], dim=1))
        return vectors


def n_token_features(config: BiLMConfig) -> int:
    """Count the features of a token before the projection: of the char CNN, and of the word table if there is one."""
    assert config.char_cnn is not None
    return config.char_cnn.n_features + (0 if config.word_features is None else config.word_features.word_dim)


Step = Callable[[Window], object]
Clock = Callable[[], float]


def elmokit_step(config: TrainingConfig, n_words: int) -> Step:
    """Return a function that runs one training step of elmokit."""
    bilm = BiLM(config.model)
    bilm.reset_parameters(0)
    softmax = FullSoftmax(n_words, config.model.projection_dim)
    softmax.reset_parameters()
    losses = WindowLosses(bilm, softmax, config.n_samples).train()
    optimizer = torch.optim.Adam(losses.parameters(), lr=1e-3, fused=True)
    state = bilm.zero_state(config.batch_size)

    def step(window: Window) -> None:
        nonlocal state
        tensors = [torch.from_numpy(array) for array in (window.tokens, window.inputs, window.targets)]
        with step_autocast(config, state.hidden.device):
            loss, hidden, cell = losses(*tensors, *state)
        loss.mean().backward()
        state = BiLMState(hidden, cell)
        nn.utils.clip_grad_norm_(losses.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def compare_precisions(
    config: TrainingConfig, windows: list[Window], n_words: int, limits: tuple[int, float], clock: Clock
) -> str:
    """Return the cells of a table: tokens/s of a step in float32 and in bfloat16, and their ratio."""
    steps = {
        name: elmokit_step(dataclasses.replace(config, precision=name), n_words) for name in ("float32", "bfloat16")
    }
    seconds = alternating_seconds(steps, windows, *limits, clock)
    tokens = config.batch_size * config.window_length
    exact, rounded = tokens / seconds["float32"], tokens / seconds["bfloat16"]
    return f"{exact:,.0f} | {rounded:,.0f} | {rounded / exact:.2f}"


def model_of(size: str) -> BiLMConfig:
    """Return the model of a preset, of `en-mini`, or of `CELL/PROJECTION`, without dropout."""
    if size == "en-mini":
        return dataclasses.replace(open_model().config, dropout=0.0)
    if "/" not in size:
        return dataclasses.replace(PRESETS[size], dropout=0.0)
    hidden_dim, projection_dim = (int(part) for part in size.split("/"))
    return dataclasses.replace(PRESETS["small"], hidden_dim=hidden_dim, projection_dim=projection_dim, dropout=0.0)


def plain_step(config: TrainingConfig, n_words: int) -> Step:
    """Return a function that runs one training step of the plain version."""
    model = PlainBiLM(config.model, n_words)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    states: list[list[tuple[Tensor, Tensor]] | None] = [None] * config.model.n_directions

    def step(window: Window) -> None:
        tensors = [torch.from_numpy(array) for array in (window.tokens, window.inputs, window.targets)]
        model(*tensors, states).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def forward_products(config: TrainingConfig, window: Window, n_words: int) -> dict[Shape, int]:
    """Count the matrix products of a forward pass by shape. The backward pass has two of the same size for each."""
    model, cnn = config.model, config.model.char_cnn
    assert cnn is not None
    products: dict[Shape, int] = {}

    def add(rows: int, inner: int, columns: int, times: int = 1) -> None:
        products[rows, inner, columns] = products.get((rows, inner, columns), 0) + times

    n_distinct, n_positions = len(window.tokens), config.batch_size * config.window_length
    chars = window.tokens[:, model.word_features is not None :]
    mean_chars = (chars != chars[:, -1:]).sum(axis=1).mean()  # without padding
    for width, count in cnn.filters:
        add(int(n_distinct * (mean_chars + 1)), cnn.char_dim * width, count)
    for _ in range(2 * cnn.n_highway):
        add(n_distinct, cnn.n_features, cnn.n_features)
    add(n_distinct, n_token_features(model), model.projection_dim)
    times = model.n_directions * model.n_layers
    add(n_positions, model.projection_dim, 4 * model.hidden_dim, times)
    add(config.batch_size, model.projection_dim, 4 * model.hidden_dim, times * config.window_length)
    add(config.batch_size, model.hidden_dim, model.projection_dim, times * config.window_length)
    add(n_positions, model.projection_dim, config.n_samples or n_words, model.n_directions)
    return products


def products_step(config: TrainingConfig, window: Window, n_words: int) -> Step:
    """Return a function that runs only the matrix products of a step: forward, and the gradients of both factors."""
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


def alternating_seconds(
    steps: dict[str, Step], windows: list[Window], rounds: int, max_seconds: float, clock: Clock
) -> dict[str, float]:
    """Measure the median time of each step, alternating between them. Stop early after ``max_seconds``."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    started = time.perf_counter()
    for number in range(rounds + N_WARMUP_STEPS):
        window = windows[number % len(windows)]
        for name, step in steps.items():
            before = clock()
            step(window)
            if number >= N_WARMUP_STEPS:
                times[name].append(clock() - before)
        if number > N_WARMUP_STEPS and time.perf_counter() - started > max_seconds:
            break
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", metavar="text", nargs="+", type=Path, help="training text")
    parser.add_argument("--vocab", type=Path, default=INCLUDED_VOCABULARY, help="vocabulary file  [default: en-mini's]")
    parser.add_argument(
        "--words", type=int, default=N_WORDS, help="use the first N words of the vocabulary  [default: 10000]"
    )
    parser.add_argument(
        "--sizes", default="mini,en-mini,small", help="presets, separated by commas  [default: mini,en-mini,small]"
    )
    parser.add_argument("--rounds", type=int, default=15, help="steps to measure  [default: 15]")
    parser.add_argument("--seconds", type=float, default=240, help="approximate time limit per size  [default: 240]")
    parser.add_argument("--threads", type=int, help="CPU threads  [default: PyTorch's choice]")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="time to measure  [default: wall]")
    parser.add_argument("--batch-size", type=int, default=48, help="rows of a window  [default: 48]")
    parser.add_argument("--samples", type=int, default=N_SAMPLES, help=f"words of the sample  [default: {N_SAMPLES}]")
    parser.add_argument("--precisions", action="store_true", help="compare float32 with bfloat16 only")
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
    if arguments.precisions:
        print("| size | tokens/s, float32 | tokens/s, bfloat16 | ratio |\n|---|---|---|---|", flush=True)
        for size in arguments.sizes.split(","):
            config = TrainingConfig(
                model=model_of(size), batch_size=arguments.batch_size, n_samples=arguments.samples, precision="float32"
            )
            model = PretrainedBiLM.from_modules(BiLM(config.model), vocabulary=vocabulary)
            with contextlib.closing(stream_of(config, texts, model)) as stream:
                windows = list(islice(stream, arguments.rounds + N_WARMUP_STEPS))
            limits = arguments.rounds, arguments.seconds
            print(f"| {size} | {compare_precisions(config, windows, n_words, limits, clock)} |", flush=True)
        return
    print(
        "| size | softmax | tokens/s, elmokit | tokens/s, plain PyTorch | ratio | matrix products alone "
        "| fraction of the ceiling |"
    )
    print("|---" * 7 + "|", flush=True)
    best_speed = 0.0
    for size in arguments.sizes.split(","):
        full = TrainingConfig(model=model_of(size), batch_size=arguments.batch_size, n_samples=0, precision="float32")
        sampled = dataclasses.replace(full, n_samples=arguments.samples)
        model = PretrainedBiLM.from_modules(BiLM(full.model), vocabulary=vocabulary)
        with contextlib.closing(stream_of(full, texts, model)) as stream:
            windows = list(islice(stream, arguments.rounds + N_WARMUP_STEPS))
        steps = {
            "elmokit, full softmax": elmokit_step(full, n_words),
            "elmokit, sampled": elmokit_step(sampled, n_words),
            "plain": plain_step(full, n_words),
            "products, full softmax": products_step(full, windows[0], n_words),
            "products, sampled": products_step(sampled, windows[0], n_words),
        }
        taken = alternating_seconds(steps, windows, arguments.rounds, arguments.seconds, clock)
        tokens = full.batch_size * full.window_length
        best_speed = max(best_speed, tokens / min(taken["elmokit, full softmax"], taken["elmokit, sampled"]))
        plain = tokens / taken["plain"]
        for kind in ("full softmax", "sampled"):
            seconds, products = taken[f"elmokit, {kind}"], taken[f"products, {kind}"]
            print(
                f"| {size} | {kind} | {tokens / seconds:,.0f} | {plain:,.0f} | {tokens / seconds / plain:.2f} "
                f"| {products * 1000:.0f} of {seconds * 1000:.0f} ms | {products / seconds:.0%} |",
                flush=True,
            )
        n_distinct = statistics.mean(len(window.tokens) for window in windows)
        print(f"\n{size}: {n_distinct:.0f} distinct tokens in the {2 * tokens} positions of a window\n", flush=True)
    mini = TrainingConfig()
    model = PretrainedBiLM.from_modules(BiLM(mini.model), vocabulary=vocabulary)
    with contextlib.closing(stream_of(mini, texts, model)) as stream:
        for _ in islice(stream, N_DATA_WINDOWS // 4):
            pass
        before = clock()
        for _ in islice(stream, N_DATA_WINDOWS):
            pass
        seconds = clock() - before
    data_speed = N_DATA_WINDOWS * mini.batch_size * mini.window_length / seconds
    print(
        f"The data pipeline alone: {data_speed:,.0f} tokens/s, "
        f"{data_speed / best_speed:.0f} times the speed of the fastest step above"
    )


def stream_of(config: TrainingConfig, texts: list[Path], model: PretrainedBiLM) -> WindowStream:
    """Return the windows that training with ``config`` would read."""
    assert model.vocabulary is not None
    return WindowStream(
        [SentenceBlocks(Text(texts), ReadingOrder())],
        model.vocabulary,
        model.encode,
        config.batch_size,
        config.window_length,
    )


if __name__ == "__main__":
    main()
