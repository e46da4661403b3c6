"""Attempts of the full campaign that take much text, or several processes at once."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np

from elmokit.formats.save import save_model
from tests.campaign.commands import COMMANDS, text
from tests.campaign.interruptions import LIMITS, Outcome, Step, commit_always
from tests.campaign.specimens import small_model
from tests.helpers.children import run_elmokit
from tests.helpers.task_examples import write_config

N_TOKENS_OF_LONG_TEXT = 300_000
LINES = (10_000, 100_000, 1_000_000)


def two_processes_on_a_cache(work: Path, scale: float) -> Outcome:
    """Let two trainings share a cache of layers, from empty and from full, and compare with one that was alone."""
    inputs = work / "inputs"
    inputs.mkdir()
    save_model(small_model(), inputs / "model")
    write_config(folder=inputs, elmo={"model": "model", "cache": "cache"}, train={"epochs": 1})
    failures = []
    command = ("task", "train", "config.toml", "--run")
    alone = run_elmokit(*command, "alone", folder=inputs, before=commit_always, limits=LIMITS)
    assert alone.code == 0, alone.err
    n = max(2, round(10 * scale))
    for number in range(n):
        if number != n - 1:
            shutil.rmtree(inputs / "cache")
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


def _at_once(commands: list[Any], folder: Path) -> list[Any]:
    def start(arguments: tuple[str, ...]) -> Any:
        return run_elmokit(*arguments, folder=folder, before=commit_always, limits=LIMITS)

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


PARTS: dict[str, dict[str, Step]] = {
    "shared": {
        "two processes on one cache of layers": two_processes_on_a_cache,
        "two processes on one output": two_processes_on_an_output,
    },
    "memory": {"memory by number of lines": memory, "one long text": long_text},
}
