"""Compare the speed of PyTorch modules at two commits: calls without gradients, and training steps.

    git worktree add --detach ../before COMMIT
    python benchmarks/two_commits.py SENTENCES ../before . [--sizes en-mini,small,original] [--threads 1,2]
        [--rounds 15] [--training] [--busy]

Each commit has a process of its own, which imports elmokit from its checkout, and the processes take turns. The models
have random weights; the character ids are those of the first sentence of 10 tokens, and of 32 sentences of up to 25.
The script prints a Markdown table with the median and the least time of a call, and the ratio to the first checkout.

With --training, a call is a training step of ``train_speed.py`` (float32, 1,024 samples, 48 rows). With --busy, another
program computes all the time. Measure on an idle machine: with two threads, any other program costs one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

N_TOKENS, N_SENTENCES, MAX_TOKENS = 10, 32, 25
CALLS = {"en-mini": 20, "small": 10, "original": 2}
"""Calls of one sentence in each turn."""
N_WINDOWS = 8
N_WORDS = 10_000


def choose_sentences(path: Path, n_sentences: int) -> list[list[str]]:
    """Return one sentence of ``N_TOKENS`` tokens, or the beginnings of several that have at least as many."""
    sentences = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    if n_sentences == 1:
        return [next(sentence for sentence in sentences if len(sentence) == N_TOKENS)]
    long = (sentence[:MAX_TOKENS] for sentence in sentences if len(sentence) >= N_TOKENS)
    return list(islice(long, n_sentences))


def forward_call(path: Path, size: str, n_sentences: int) -> Callable[[], object]:
    """Return a function that computes all layers of the sentences."""
    import numpy as np
    import torch

    from elmokit import PRESETS, open_model
    from elmokit.network.bilm import BiLM
    from elmokit.text.characters import encode_tokens

    bilm = BiLM(open_model().config if size == "en-mini" else PRESETS[size]).eval()
    bilm.reset_parameters(seed=0)
    if hasattr(bilm, "precision"):  # elmokit 0.3 chose one by itself
        bilm.precision = "float32"  # type: ignore[assignment]
    assert bilm.config.char_cnn is not None
    max_chars = bilm.config.char_cnn.max_chars
    sentences = choose_sentences(path, n_sentences)
    ids = np.zeros((len(sentences), max(map(len, sentences)) + 2, max_chars), np.int64)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence) + 2] = encode_tokens(["<S>", *sentence, "</S>"], max_chars)
    char_ids = torch.from_numpy(ids)
    mask, state = bilm.mask_of(char_ids), bilm.zero_state(len(sentences))

    @torch.inference_mode()
    def call() -> object:
        return bilm(char_ids, mask, state)

    return call


def training_call(path: Path, size: str) -> Callable[[], object]:
    """Return a function that computes the next training step."""
    import train_speed

    from elmokit.network.bilm import BiLM
    from elmokit.text.vocabulary import Vocabulary
    from elmokit.training.training_config import TrainingConfig

    PretrainedBiLM = train_speed.PretrainedBiLM  # which has moved since elmokit 0.3
    words = Vocabulary.from_file(train_speed.INCLUDED_VOCABULARY).words[:N_WORDS]
    config = TrainingConfig(
        model=train_speed.model_of(size), batch_size=48, n_samples=train_speed.N_SAMPLES, precision="float32"
    )
    vocabulary, bilm = Vocabulary(words), BiLM(config.model)
    if hasattr(PretrainedBiLM, "from_modules"):
        model = PretrainedBiLM.from_modules(bilm, vocabulary=vocabulary)
    else:  # elmokit 0.3
        model = PretrainedBiLM(bilm, "elmokit", vocabulary=vocabulary)  # type: ignore[call-arg, arg-type]
    with contextlib.closing(train_speed.stream_of(config, [path], model)) as stream:
        windows = cycle(list(islice(stream, N_WINDOWS)))
    step = train_speed.elmokit_step(config, N_WORDS)
    return lambda: step(next(windows))


def serve(path: Path, size: str, threads: int, kind: str) -> None:
    """Read numbers of calls from standard input, and print the milliseconds of each call."""
    import torch

    torch.set_num_threads(threads)
    call = training_call(path, size) if kind == "training" else forward_call(path, size, int(kind))
    call()
    print("[]", flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1000)
        print(json.dumps(times), flush=True)


@contextlib.contextmanager
def worker(checkout: Path, arguments: list[str], threads: int) -> Iterator[subprocess.Popen[str]]:
    """Start a process that computes with one checkout, and end it at the end."""
    # This file, not that of the checkout: an older commit has none. But the other benchmarks are the checkout's.
    folders = os.pathsep.join([str(checkout), str(checkout / "benchmarks")])
    environment = {**os.environ, "PYTHONPATH": folders, "OMP_NUM_THREADS": str(threads)}
    program = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", program, __file__, "--worker", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        read_times(process)
        yield process
    finally:
        process.kill()
        process.wait()


def read_times(process: subprocess.Popen[str]) -> list[float]:
    """Read the milliseconds of the calls of a turn."""
    assert process.stdout is not None
    times: list[float] = json.loads(process.stdout.readline())
    return times


def compare(checkouts: list[Path], arguments: list[str], threads: int, n_calls: int, rounds: int) -> list[list[float]]:
    """Measure the milliseconds of all calls with each checkout, which take turns."""
    times: list[list[float]] = [[] for _ in checkouts]
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(worker(checkout, arguments, threads)) for checkout in checkouts]
        for _ in range(rounds):
            for process, measured in zip(workers, times, strict=True):
                print(n_calls, file=process.stdin, flush=True)
                measured += read_times(process)
    return times


def cells(times: list[list[float]]) -> str:
    """Return the cells of a row: the median and the least time with each checkout, and their ratios to the first."""
    parts = []
    for summary in (statistics.median, min):
        first = summary(times[0])
        parts.append(f"{first:.2f}")
        parts += [f"{summary(measured):.2f} ({summary(measured) / first:.2f})" for measured in times[1:]]
    return " | ".join(parts)


def main() -> None:
    """Measure and print the table."""
    if sys.argv[1:2] == ["--worker"]:
        path, size, threads, kind = sys.argv[2:]
        serve(Path(path), size, int(threads), kind)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", type=Path, help="tokenized text")
    parser.add_argument("before", type=Path, help="checkout of the first commit")
    parser.add_argument("after", type=Path, nargs="+", help="checkouts of the others")
    parser.add_argument("--sizes", default=",".join(CALLS), help="models  [default: en-mini,small,original]")
    parser.add_argument("--threads", default="1,2", help="numbers of threads  [default: 1,2]")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each checkout  [default: 15]")
    parser.add_argument("--training", action="store_true", help="measure training steps")
    parser.add_argument("--busy", action="store_true", help="compute something else at the same time")
    arguments = parser.parse_args()
    checkouts = [path.resolve() for path in (arguments.before, *arguments.after)]
    kinds = ["training"] if arguments.training else ["1", str(N_SENTENCES)]
    names = [path.name for path in checkouts]
    print(f"| size | sentences | threads | {' | '.join(f'{name}, median' for name in names)} "
          f"| {' | '.join(f'{name}, least' for name in names)} |")  # fmt: skip
    print("|---" * (3 + 2 * len(names)) + "|", flush=True)
    with contextlib.ExitStack() as stack:
        if arguments.busy:
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(busy.kill)
        for size in arguments.sizes.split(","):
            for threads in map(int, arguments.threads.split(",")):
                for kind in kinds:
                    n_calls = CALLS[size] if kind == "1" else 1
                    of_worker = [str(arguments.sentences.resolve()), size, str(threads), kind]
                    times = compare(checkouts, of_worker, threads, n_calls, arguments.rounds)
                    print(f"| {size} | {kind} | {threads} | {cells(times)} |", flush=True)


if __name__ == "__main__":
    main()
