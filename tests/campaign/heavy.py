"""Attempts of the full campaign that take much text, memory or many processes at once.

Each step gets an empty directory and a scale, and returns how many attempts it made, what failed, and a note.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np

from elmokit.embedding.elmo import Elmo
from elmokit.formats.save import save_model
from elmokit.text import characters
from tests.campaign.commands import COMMANDS, text
from tests.campaign.hostile_text import hostile_token
from tests.campaign.interruptions import LIMITS, commit_always, content_of
from tests.campaign.specimens import cached_layers, small_model
from tests.helpers.children import run_child, run_elmokit

Outcome = tuple[int, list[str], str]
N_STRINGS, N_TOKENS_OF_LONG_TEXT = 1_000_000, 300_000
LINES = (10_000, 100_000, 1_000_000)


def two_processes_on_a_cache(work: Path, scale: float) -> Outcome:
    """Let two trainings share a cache of layers, from empty and from full, and compare with one that was alone."""
    inputs = work / "inputs"
    inputs.mkdir()
    cached_layers(inputs)  # the config names the cache, which is full now
    failures = []
    command = ("task", "train", "config.toml", "--run")
    alone = run_elmokit(*command, "alone", folder=inputs, before=commit_always, limits=LIMITS)
    assert alone.code == 0, alone.err
    n = max(2, round(10 * scale))
    for number in range(n):
        if number != n - 1:
            for path in sorted((inputs / "cache").rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        runs = [f"run-{number}-{which}" for which in (0, 1)]
        for run, ended in zip(runs, _at_once([(*command, run) for run in runs], inputs), strict=True):
            if ended.code:
                failures.append(f"{run} ended with {ended.code}: {ended.err}")
                continue
            for name in ("results.json", "seed-0/best.safetensors"):
                if (inputs / run / name).read_bytes() != (inputs / "alone" / name).read_bytes():
                    failures.append(f"{run}: {name} differs from that of a training alone")
    return 2 * n, failures, ""


def two_processes_on_an_output(work: Path, scale: float) -> Outcome:
    """Let two processes write the same output: one succeeds, and the other is refused or finds it there."""
    failures, n = [], max(2, round(10 * scale))
    for number in range(n):
        folder = work / str(number)
        folder.mkdir()
        COMMANDS["embed"].prepare(folder)
        ended = _at_once([COMMANDS["embed"].start] * 2, folder)
        codes = sorted(one.code for one in ended)
        lines = [line for one in ended for line in one.err.splitlines() if line.startswith("elmokit: ")]
        if codes not in ([0, 2], [0, 0]) or len(lines) != codes.count(2):
            failures.append(f"ended with {codes}: {[one.err for one in ended]}")
    return 2 * n, failures, ""


def _at_once(commands: list[Any], folder: Path, environment: dict[str, str] | None = None) -> list[Any]:
    def start(arguments: tuple[str, ...]) -> Any:
        return run_elmokit(*arguments, folder=folder, before=commit_always, limits=LIMITS, environment=environment)

    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(start, commands))


def memory(work: Path, scale: float) -> Outcome:
    """Embed texts of growing length: each line has its row, and memory does not grow with them."""
    save_model(small_model(), work / "model")
    peaks, failures, counts = [], [], sorted({max(1000, round(n * scale)) for n in LINES})
    for n in counts:
        (work / "text.txt").write_text(text(n), encoding="utf-8")
        flags = ("--model", "model", "--layers", "2", "--dtype", "float16", "--overwrite")
        ended = run_elmokit("embed", "text.txt", "out.hdf5", *flags, folder=work, limits=LIMITS)
        if ended.code:
            failures.append(f"{n:,} lines ended with {ended.code}: {ended.err}")
            continue
        peaks.append(ended.peak_bytes)
        lengths = [len(line.split(" ")) if line else 0 for line in text(154).splitlines()]  # they repeat after 77 lines
        with h5py.File(work / "out.hdf5") as file:
            if len(file) != n + 1:
                failures.append(f"{n:,} lines have {len(file) - 1:,} rows")
            for number in {0, 1, n // 2, n - 1, *Random(n).sample(range(n), 500)}:
                if file[str(number)].shape[1] != lengths[number % 77]:
                    failures.append(f"row {number} of {n:,} has the shape {file[str(number)].shape}")
    # The index of an HDF5 file is built in memory: some 100 bytes for a line.
    if len(peaks) == len(counts) and peaks[-1] - peaks[0] > 100e6 + 150 * counts[-1]:
        failures.append(f"memory grew from {peaks[0]:,} to {peaks[-1]:,} bytes")
    note = "; ".join(f"{n:,} lines: {peak / 1e6:.0f} MB" for n, peak in zip(counts, peaks, strict=False))
    return len(counts), failures, note


def strings(work: Path, scale: float) -> Outcome:
    """Encode random strings as the definition says, and compute their vectors."""
    n, random, failures = max(1000, round(N_STRINGS * scale)), Random(0), []
    model = small_model()
    for start in range(0, n, 10_000):
        tokens = [hostile_token(random) for _ in range(min(10_000, n - start))]
        ids = characters.encode_tokens(tokens, 50)
        for token, row in zip(tokens, ids, strict=True):
            if row.tolist() != char_ids_by_definition(token):
                failures.append(f"the character ids of {token!r} are {row.tolist()}")
        vectors = Elmo(model).embed([tokens[at : at + 10] for at in range(0, len(tokens), 10)])
        if sum(array.shape[1] for array in vectors) != len(tokens) or not all(np.isfinite(a).all() for a in vectors):
            failures.append(f"strings {start:,} and after have wrong or missing vectors")
    return n, failures, ""


def char_ids_by_definition(token: str) -> list[int]:
    """Return the ids of a token's characters as bilm-tf defines them, plus 1: in plain Python."""
    boundaries = {"<S>": [256], "</S>": [257]}
    ids = [258, *boundaries.get(token, list(token.encode("utf-8", "ignore"))[:48]), 259]
    return [one + 1 for one in ids + [260] * (50 - len(ids))]


def long_text(work: Path, scale: float) -> Outcome:
    """Embed a text of a single line in bounded memory, whatever the size of a batch."""
    n = max(5000, round(N_TOKENS_OF_LONG_TEXT * scale))
    words = text(100).split()
    (work / "text.txt").write_text(" ".join(words[k * 7 % len(words)] for k in range(n)) + "\n")
    save_model(small_model(), work / "model")
    found, failures, peaks = [], [], []
    for batch_tokens in ("2048", "500"):
        flags = ("--model", "model", "--dtype", "float32", "--overwrite", "--batch-tokens", batch_tokens)
        ended = run_elmokit("embed", "text.txt", "out.hdf5", *flags, folder=work, limits=LIMITS)
        if ended.code:
            failures.append(f"ended with {ended.code}: {ended.err}")
            continue
        peaks.append(ended.peak_bytes)
        with h5py.File(work / "out.hdf5") as file:
            found.append(file["0"][()])
        if found[-1].shape[1] != n or not np.isfinite(found[-1]).all():
            failures.append(f"{n:,} tokens have vectors of the shape {found[-1].shape}")
    if len(found) == 2 and not np.allclose(*found, atol=1e-5):
        failures.append("the vectors depend on the size of a batch")
    return 2, failures, f"{n:,} tokens: " + ", ".join(f"{peak / 1e6:.0f} MB" for peak in peaks)


def build_at_once(work: Path, scale: float) -> Outcome:
    """Let six processes with an empty cache build the kernels at once."""
    (work / "cache").mkdir(mode=0o700)
    COMMANDS["embed"].prepare(work)
    commands = [("embed", "text.txt", f"out-{n}.hdf5", "--model", "model") for n in range(6)]
    results = _at_once(commands, work, {"ELMOKIT_CACHE": str(work / "cache")})
    failures = [f"process {n} ended with {one.code}: {one.err}" for n, one in enumerate(results) if one.code]
    first = (work / "out-0.hdf5").read_bytes()
    failures += [f"out-{n}.hdf5 differs" for n in range(6) if (work / f"out-{n}.hdf5").read_bytes() != first]
    built = [name for name in content_of(work / "cache") if name.endswith(".so")]
    if len(built) > 1:
        failures.append(f"the cache has {len(built)} libraries: {built}")
    return 6, failures, "" if built else "the machine was too busy to build them in time, so no kernels were used"


def threads(work: Path, scale: float) -> Outcome:
    """Embed in eight threads of one process at once, and in workers that it forks."""
    ended = run_child(_embed_in_threads_and_workers, folder=work, limits=LIMITS)
    return 8 + 4, [] if ended.code == 0 else [f"ended with {ended.code}: {ended.err}"], ""


def _embed_in_threads_and_workers() -> None:
    elmo = Elmo(small_model())
    sentences = [line.split() for line in text(300).splitlines()]
    expected = elmo.embed(sentences)
    wrong: list[int] = []

    def check(number: int) -> None:
        for one, other in zip(elmo.embed(sentences[number:]), expected[number:], strict=True):
            if not np.array_equal(one, other):
                wrong.append(number)

    started = [threading.Thread(target=check, args=(number,)) for number in range(8)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    workers = [multiprocessing.get_context("fork").Process(target=_check_worker, args=(check, wrong)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)
    sys.exit(1 if wrong or any(worker.exitcode for worker in workers) else 0)


def _check_worker(check: Callable[[int], None], wrong: list[int]) -> None:
    check(0)
    sys.exit(len(wrong))


STEPS: dict[str, dict[str, Callable[[Path, float], Outcome]]] = {
    "shared": {
        "two processes on one cache of layers": two_processes_on_a_cache,
        "two processes on one output": two_processes_on_an_output,
    },
    "memory": {"memory by number of lines": memory},
    "strings": {"random strings": strings},
    "long-text": {"one long text": long_text},
    "kernels": {"six processes that build the kernels": build_at_once},
    "threads": {"threads and forked workers": threads},
}
