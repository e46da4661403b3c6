"""The engine's team of threads: forks, calls at the same time, and systems without threads left."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from elmokit.engine.interface import NetworkInput
from elmokit.engine.library import Library
from elmokit.engine.lstm import LSTM
from elmokit.engine.state import Floats, State
from elmokit.engine.threads import cores_of_quota, n_threads
from tests.helpers.engine_lstm import same_bits, two_layers
from tests.helpers.instruction_sets import machine_library
from tests.helpers.paths import ROOT

LENGTHS = np.array([4, 0, 7, 1])
WORDS = np.arange(12)
SECONDS = 120
"""Far more than any script here takes, even on a busy machine: what takes longer hangs."""


@pytest.fixture
def library() -> Library:
    return machine_library()


@pytest.fixture(params=["small", "large"])
def lstm(request: pytest.FixtureRequest, library: Library) -> LSTM:
    return two_layers(library, request.param)


def compute(lstm: LSTM, threads: int) -> list[Floats]:
    vectors = np.random.default_rng(0).normal(size=(12, lstm.config.projection_dim)).astype(np.float32)
    return lstm.layers(NetworkInput(vectors, WORDS, LENGTHS, State.zero(lstm.config, 1)), [1, 2], threads=threads)[0]


@pytest.mark.slow
def test_calls_at_the_same_time_compute_the_same_bits(lstm: LSTM) -> None:
    expected = compute(lstm, 1)
    found: list[bool] = []

    def work(threads: int) -> None:
        found.extend(same_bits(compute(lstm, threads), expected) for _ in range(20))

    callers = [threading.Thread(target=work, args=(threads,)) for threads in (1, 2, 3, 2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(SECONDS)
    assert found == [True] * 80


def test_idle_threads_sleep(lstm: LSTM) -> None:
    before = set(threads_of_this_process())
    compute(lstm, 3)
    team = set(threads_of_this_process()) - before
    # They look for work for a moment first. On a busy machine this takes longer; threads that never sleep hang here.
    while any(is_running(thread) for thread in team):
        time.sleep(0.01)


def threads_of_this_process() -> list[Path]:
    folder = Path("/proc/self/task")
    if not folder.is_dir():
        pytest.skip("no /proc")
    return list(folder.iterdir())


def is_running(thread: Path) -> bool:
    name_and_state = (thread / "stat").read_text().rpartition(")")
    return name_and_state[2].split()[0] == "R"


# Each script has ``lstms``, one whose threads take rows and one whose threads take units; ``same(threads)``, which
# checks that both compute what one thread does; and ``count``, the number of threads.
BEGINNING = """
import os, resource, sys, threading
import numpy as np
from elmokit.engine import compiler
from tests.helpers.engine_lstm import same_bits, two_layers
from tests.engine.test_threads import compute

lstms = [two_layers(compiler.load_library(), size) for size in ("small", "large")]
expected = [compute(lstm, 1) for lstm in lstms]
same = lambda threads: all(same_bits(compute(lstm, threads), one) for lstm, one in zip(lstms, expected))
count = lambda: len(os.listdir("/proc/self/task"))
"""


def run_script(script: str) -> None:
    """Run a script in a process of its own, whose threads and limits are then its own too."""
    command = [sys.executable, "-c", BEGINNING + script]
    ran = subprocess.run(command, cwd=ROOT, timeout=SECONDS, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_a_forked_process_can_compute() -> None:
    run_script(
        """
assert same(3)
stop = threading.Event()

def keep_computing():
    while not stop.is_set():
        same(2)

busy = threading.Thread(target=keep_computing)
busy.start()
for _ in range(5):
    child = os.fork()
    if not child:
        os._exit(0 if same(3) and same(2) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert same(3)
stop.set()
busy.join()
"""
    )


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_a_process_may_exit_while_its_daemon_threads_compute() -> None:
    run_script(
        """
import time
from elmokit.engine.softmax import Matrix
matrix = Matrix(np.ones((200, 3000), np.float32), "float32", compiler.load_library())
rows = np.ones((20, 3000), np.float32)

def keep_computing(compute_once):
    while True:
        compute_once()

for work in (lambda: matrix(rows), lambda: compute(lstms[0], 1)):
    threading.Thread(target=keep_computing, args=(work,), daemon=True).start()
time.sleep(0.1)
"""
    )


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_without_threads_of_the_system_the_caller_computes_alone() -> None:
    run_script(
        """
before = count()
kilobytes = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
# Enough for a batch, and not for the stack of a thread.
resource.setrlimit(resource.RLIMIT_AS, (kilobytes * 1024 + 6 * 2**20,) * 2)
threading.stack_size(0)
assert same(3)
assert count() == before
"""
    )


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_a_call_computes_while_another_one_holds_all_threads() -> None:
    run_script(
        """
from elmokit.engine.softmax import Matrix
matrix = Matrix(np.ones((40, 30), np.float32), "float32", compiler.load_library())
rows = np.ones((20, 30), np.float32)
matrix(rows, 1500)
held = count()
assert held > 200  # 1024 of them, if the system gives so many
stop, n_wrong = threading.Event(), []

def hold():
    while not stop.is_set():
        n_wrong.append(int((matrix(rows, 1500) != 30).sum()))

holder = threading.Thread(target=hold)
holder.start()
for _ in range(10):
    assert same(3)
stop.set()
holder.join()
assert not sum(n_wrong)
assert count() <= held + 1  # the holder may still be ending
"""
    )


@pytest.mark.parametrize(
    ("variable", "expected"), [("", 8), ("3", 3), ("2,4", 2), (" 5 ", 5), ("0", 1), ("100", 8), ("many", 8)]
)
def test_without_pytorch_the_variable_of_openmp_is_read(
    variable: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("elmokit.engine.threads._requested", None)
    monkeypatch.setattr("elmokit.engine.threads.available_threads", lambda: 8)
    assert n_threads() == expected


def test_a_container_with_a_quota_of_processor_time_gets_as_many_threads(tmp_path: Path) -> None:
    assert cores_of_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores_of_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cores_of_quota(tmp_path) == 1.5
    # The files of the first version of control groups.
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert cores_of_quota(tmp_path) is None
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("250000\n")
    assert cores_of_quota(tmp_path) == 2.5
