"""What is fuzzed reads its corpus, and refuses damaged files and everything that fuzzing ever found."""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random

import pytest

from elmokit.errors import ElmoError
from tests.campaign.mutants import ANY_FILE, TEXT_FILE
from tests.fuzz import targets
from tests.fuzz.targets import CORPUS, HERE, SERVER, TARGETS

N_DAMAGED = 60


def test_every_target_has_a_corpus() -> None:
    assert sorted(path.name for path in CORPUS.iterdir()) == sorted(TARGETS)


@pytest.mark.parametrize("name", [name for name in TARGETS if name != SERVER])
def test_a_file_of_each_corpus_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "REFUSALS", ())
    reader, read = TARGETS[name], []
    reader.prepare(tmp_path)
    for path in sorted((CORPUS / name).iterdir()):
        with contextlib.suppress(ElmoError):
            reader(path.read_bytes(), tmp_path)
            read.append(path.name)
    assert read


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.filterwarnings("ignore")
def test_damaged_files_and_all_findings_are_read_or_refused(name: str, tmp_path: Path) -> None:
    if name == SERVER:
        for module in ("fastapi", "granian", "prometheus_client"):
            pytest.importorskip(module)
    reader, random = TARGETS[name], Random(name)
    reader.prepare(tmp_path)
    seeds = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    for _ in range(N_DAMAGED):
        data = bytearray(random.choice(seeds))
        random.choice((*ANY_FILE, *TEXT_FILE))(data, random)
        reader(bytes(data), tmp_path)
    for path in sorted((HERE / "findings" / name).glob("*")):
        reader(path.read_bytes(), tmp_path)
