"""``benchmarks/gpu.py`` works up to the device: its dry run on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu.py"
PARTS = ["tests", "parity", "embedding", "graphs", "training", "model"]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, str(SCRIPT), "out", "--texts", "text.txt", "--held-out", "dev.txt", *arguments]
    return subprocess.run(call, cwd=folder, capture_output=True, text=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = "the cat sat on the mat .\nthe dog ran after a cat in Oslo .\n"
    (tmp_path / "text.txt").write_text(text * 60)
    (tmp_path / "dev.txt").write_text(text * 4)
    return tmp_path


@pytest.mark.slow
def test_every_part_runs_and_a_second_run_measures_nothing_again(folder: Path) -> None:
    ran = run(folder, "--device", "cpu", "--quick")
    assert ran.returncode == 0, ran.stderr[-2000:]
    results = json.loads((folder / "out" / "results.json").read_text())
    assert set(results) == {"machine", *PARTS}
    rows = [row for part in PARTS for row in results[part]]
    assert not [row for row in rows if "note" in row]
    assert results["tests"][0]["exit code"] == "0", results["tests"]
    assert all(row["largest difference"] < 1e-4 for row in results["parity"] if row["precision"] == "float32")
    assert all(row["tokens/s to NumPy"] > 0 for row in results["embedding"])
    assert results["model"][0]["predictions"] >= 200
    text = (folder / "out" / "results.md").read_text()
    assert all(f"\n## {part}\n" in text for part in PARTS)
    again = run(folder, "--device", "cpu", "--quick", "--minutes", "0")
    assert again.returncode == 0, again.stderr[-2000:]
    assert json.loads((folder / "out" / "results.json").read_text()) == results


@pytest.mark.slow
def test_what_no_longer_fits_into_the_time_of_its_part_is_left_out(folder: Path) -> None:
    ran = run(folder, "--device", "cpu", "--quick", "--minutes", "0", "--parts", "parity,training")
    assert ran.returncode == 0, ran.stderr[-2000:]
    results = json.loads((folder / "out" / "results.json").read_text())
    assert {row["note"] for part in ("parity", "training") for row in results[part]} == {"left out: no time"}


@pytest.mark.slow
def test_mistakes_are_reported_in_a_line(folder: Path) -> None:
    ran = run(folder, "--device", "cpu", "--parts", "speed")
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].endswith(
        "There is no part 'speed'. Choose from tests, parity, embedding, graphs, training, model."
    )
