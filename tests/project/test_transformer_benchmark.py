"""``benchmarks/transformer.py``: its table, its windows and batches, and what it says about missing libraries."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.helpers.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("transformer")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("transformer_peers")


def test_table_has_medians_and_the_median_ratio_to_en_mini(benchmark: ModuleType) -> None:
    speed = benchmark.Speed
    speeds = {
        ("sentence", "en-mini int8"): [speed(1000, 900), speed(4000, 1800), speed(2000, 1800)],
        ("sentence", "en-mini float32"): [speed(500, 450), speed(1000, 900), speed(2000, 900)],
        ("sentence", "OpenVINO int8"): [speed(500, 300), speed(1000, 900), speed(500, 200)],
    }
    header, line, *rows = benchmark.table_rows(speeds)
    assert header.startswith("| workload | system | words/s, processor time | en-mini int8 to this, processor time |")
    assert header.count("|") == line.count("|")
    assert rows == [
        "| sentence | en-mini int8 | 2,000 | 1.00x | 0.50x | 1,800 | 1.00x | 0.50x | 300% |",
        "| sentence | en-mini float32 | 1,000 | 2.00x | 1.00x | 900 | 2.00x | 1.00x | 300% |",
        "| sentence | OpenVINO int8 | 500 | 4.00x | 1.00x | 300 | 3.00x | 1.50x | 100% |",
    ]


def test_missing_package_is_named_once_and_its_rows_are_left_out(benchmark: ModuleType) -> None:
    systems, notes = benchmark.select_systems("", lambda package: package != "openvino")
    assert not [name for name in systems if name.startswith("OpenVINO")]
    assert "ONNX Runtime int8" in systems
    assert notes == [
        "openvino is not installed (pip install openvino). "
        "Rows left out: OpenVINO float32, OpenVINO bfloat16, OpenVINO int8."
    ]


def test_en_mini_is_measured_next_to_any_selection(benchmark: ModuleType) -> None:
    systems, notes = benchmark.select_systems("onnx,static", lambda package: True)
    assert systems[:2] == ["en-mini int8", "en-mini float32"]
    assert [name.split()[0] for name in systems[2:]] == ["ONNX", "ONNX", "ONNX", "static"]
    assert not notes


def test_windows_are_cut_between_words(peers: ModuleType) -> None:
    words = np.array([0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 3, 3, 4])
    windows = list(peers.cut_windows(peers.Pieces(np.arange(len(words)), words), 5))
    assert [window.words.tolist() for window in windows] == [[0, 0, 0, 1], [2, 2], [3, 3, 3, 3, 3], [3, 4]]
    assert np.array_equal(np.concatenate([window.ids for window in windows]), np.arange(len(words)))


def test_batches_hold_windows_of_similar_length(peers: ModuleType) -> None:
    windows = [peers.Pieces(np.zeros(n), np.zeros(n)) for n in (3, 9, 2, 4, 30)]
    lengths = [[len(window.ids) for window in batch] for batch in peers.plan_batches(windows, 12)]
    assert lengths == [[2, 3, 4], [9], [30]]


class OneLetterTokenizer:
    """Splits words into letters, without the library ``tokenizers``."""

    def __init__(self, peers: ModuleType) -> None:
        self.peers = peers

    def split(self, texts: list[list[str]]) -> list[object]:
        pieces, n_words = [], 0
        for text in texts:
            ids = [ord(letter) for word in text for letter in word]
            words = [n_words + row for row, word in enumerate(text) for _ in word]
            pieces.append(self.peers.Pieces(np.array(ids), np.array(words)))
            n_words += len(text)
        return pieces


@pytest.mark.parametrize("batch_pieces", [1, 20, 10_000])
def test_vector_of_a_word_is_the_mean_of_its_pieces(peers: ModuleType, batch_pieces: int) -> None:
    texts = [["ab", "c", "", "dd"], ["xyz"] * 400, ["q"]]

    def network(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        assert ids.shape[1] <= peers.N_POSITIONS
        assert (ids[:, 0] == peers.CLS).all()
        assert ((ids == peers.SEP).sum(axis=1) == 1).all()
        assert np.array_equal(mask == 0, ids == peers.PAD)
        return np.repeat(ids[:, :, None].astype(np.float32), peers.DIM, axis=2)

    vectors = peers.embed_words(OneLetterTokenizer(peers), network, texts, batch_pieces)
    assert [each.shape for each in vectors] == [(4, peers.DIM), (400, peers.DIM), (1, peers.DIM)]
    assert vectors[0][:, 0].tolist() == [97.5, 99, 0, 100]
    assert (vectors[1] == 121).all()
    assert (vectors[2] == 113).all()


@pytest.mark.slow
def test_every_installed_system_gives_a_row_per_workload(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog ran after it through the old town of Oslo .\n" * 120)
    command = [sys.executable, str(BENCHMARKS / "transformer.py"), "--text", str(text), "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent)}
    ran = subprocess.run([*command, "--rounds", "1", "--seconds", "0"], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr[-2000:]
    rows = [line.split(" | ") for line in ran.stdout.splitlines() if line.startswith("| ")][2:]
    systems = [row[1] for row in rows if row[0] == "| document"]
    assert systems[:2] == ["en-mini int8", "en-mini float32"]
    assert len(rows) == 3 * len(systems)
    assert "Mean cosine with the vectors in float32: en-mini int8 0.99" in ran.stdout


def test_short_text_is_reported_in_a_line(
    tmp_path: Path, benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b c\n")
    with pytest.raises(SystemExit):
        benchmark.main(["--text", str(text)])
    assert "text.txt is too short: its first 600 lines need 2,000 words" in capsys.readouterr().err
