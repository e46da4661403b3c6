"""Run functions and commands in child processes that start in milliseconds, with limits on time, memory and file size.

Python's fork server imports elmokit and PyTorch once and then forks for every child, so that hundreds of crashes can be
provoked in a minute. Children are never forked from the test process itself: it may hold threads.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from elmokit.cli.main import main

# `torch._dynamo` (and with it sympy) is imported by PyTorch's optimizers when they take their first step.
_PRELOADED = [
    *("torch", "torch._dynamo", "h5py", "safetensors.torch", "filelock", "scipy.optimize", "tests.helpers.children"),
    *(f"elmokit.cli.{name}" for name in ("embed", "evaluation_commands", "model_commands", "neighbor_commands")),
    *(f"elmokit.cli.{name}" for name in ("task_commands", "training_commands")),
    *(f"elmokit.embedding.{name}" for name in ("corpus", "outputs.hdf5", "outputs.output_format")),
    *(f"elmokit.engine.{name}" for name in ("compiler", "instruction_sets", "library")),
    *(f"elmokit.evaluation.{name}" for name in ("minimal_pairs", "occurrences", "senses", "similarity")),
    *(
        f"elmokit.formats.{name}"
        for name in ("open", "bilm_tf_hdf5", "folder", "many_langs", "tf_checkpoint", "tf_hub")
    ),
    *("elmokit.lm.perplexity", "elmokit.network.lstm_training"),
    *(f"elmokit.tasks.{name}" for name in ("run", "task_table", "allennlp.task_archive")),
    "elmokit.training.api",
]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_PRELOADED)
_LOCK = threading.Lock()
"""Held while ``multiprocessing`` looks whether children have ended. Starting a child looks at all others, and of two
threads that see the end of the same one, the second would read the exit code 255."""


@dataclass(frozen=True)
class Ended:
    """How a child process ended, and what it printed."""

    code: int
    """The exit code; the negative number of a signal if one ended the process."""
    out: str
    err: str
    timed_out: bool
    seconds: float
    peak_bytes: int
    """The most memory it had; 0 if a signal ended it."""


@dataclass(frozen=True)
class Limits:
    """What a child process may take."""

    seconds: float = 300
    """Time after which the child is killed."""
    cpu_seconds: int | None = None
    """Computing time after which the child is killed, however busy the machine is."""
    memory: int | None = None
    """Bytes of address space beyond what the child has when it starts (Linux only)."""
    file_size: int | None = None
    """Size of a file beyond which writing fails as on a full disk."""


def within(seconds: float, numbers: Iterable[int]) -> Iterator[int]:
    """Yield numbers, the first one always and the others until the time is over: a busy machine tries fewer."""
    deadline = time.monotonic() + seconds
    for index, number in enumerate(numbers):
        if index and time.monotonic() > deadline:
            return
        yield number


def start_fork_server() -> None:
    """Start the server with this process's environment, so that later changes of variables do not reach children."""
    _CONTEXT.Process(target=int).start()


def run_child(
    function: Callable[..., object],
    *arguments: Any,
    folder: Path,
    limits: Limits = Limits(),
    environment: dict[str, str] | None = None,
) -> Ended:
    """Call a function in a child process and wait for its end.

    Args:
        function: A function of a module. An exception becomes a traceback in ``err`` and exit code 1.
        arguments: What to call it with; they are pickled.
        folder: The working directory.
        limits: Limits on time, memory and file size.
        environment: Environment variables to set.
    """
    with tempfile.TemporaryDirectory() as printed:
        outputs = Path(printed, "out"), Path(printed, "err"), Path(printed, "peak")
        started = time.monotonic()
        child = _CONTEXT.Process(
            target=_run, args=(function, arguments, str(folder), limits, environment or {}, *map(str, outputs))
        )
        with _LOCK:
            child.start()
        wait([child.sentinel], limits.seconds)
        with _LOCK:
            timed_out = child.is_alive()
        if timed_out:
            child.kill()
            wait([child.sentinel])
        with _LOCK:
            code = child.exitcode
            child.close()
        assert code is not None
        out, err, peak = (
            path.read_text(encoding="utf-8", errors="replace") if path.exists() else "" for path in outputs
        )
    return Ended(code, out, err, timed_out, time.monotonic() - started, int(peak or 0))


def run_elmokit(
    *arguments: str,
    folder: Path,
    before: Callable[[], object] | None = None,
    limits: Limits = Limits(),
    environment: dict[str, str] | None = None,
) -> Ended:
    """Run ``elmokit`` in a child process.

    Args:
        arguments: The command and its arguments.
        folder: The working directory.
        before: Called in the child first: a function of a module, or a ``functools.partial`` of one.
        limits: Limits on time, memory and file size.
        environment: Environment variables to set.
    """
    return run_child(_command, before, arguments, folder=folder, limits=limits, environment=environment)


def _command(before: Callable[[], object] | None, arguments: tuple[str, ...]) -> None:
    sys.argv = ["elmokit", *arguments]
    if before is not None:
        before()
    main()


def _run(
    function: Callable[..., object],
    arguments: tuple[Any, ...],
    folder: str,
    limits: Limits,
    environment: dict[str, str],
    out: str,
    err: str,
    peak: str,
) -> None:
    # What the fork server imported need not be searched for garbage, which took nearly half of a short child's time.
    gc.freeze()
    for path, descriptor in ((out, 1), (err, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(folder)
    os.environ.update(environment)
    # The fork server ignores Ctrl-C, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if limits.cpu_seconds is not None:
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + limits.cpu_seconds, used + limits.cpu_seconds))
    if limits.memory is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + limits.memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if limits.file_size is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_size, limits.file_size))
    try:
        function(*arguments)
    finally:
        Path(peak).write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
