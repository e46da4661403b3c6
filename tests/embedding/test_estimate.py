from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from elmokit.embedding.batch_embedder import BatchEmbedder
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.estimate import OutputSize, check_disk_space, describe_work, format_bytes
from elmokit.embedding.outputs.writer import WriteProgress
from elmokit.embedding.reading import CorpusSentence, SentenceCounts
from elmokit.errors import OutputError
from tests.conftest import random_model


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(random_model())


def test_output_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 1_000_000))
    check_disk_space(tmp_path / "out.hdf5", OutputSize(900_000), WriteProgress())
    check_disk_space(tmp_path / "out.hdf5", OutputSize(1_900_000), WriteProgress(data_end=1_000_000))
    with pytest.raises(OutputError, match=r"will take 1\.9 MB, but its disk has 1\.0 MB left.*--force"):
        check_disk_space(tmp_path / "out.hdf5", OutputSize(1_900_000), WriteProgress())


def test_time_is_estimated_only_for_long_texts(elmo: Elmo) -> None:
    embedder, sentences = BatchEmbedder(elmo, "all", 2048, 64), [CorpusSentence("", ["the", "cat"], "")] * 10
    counts, done = SentenceCounts(10**6, 10**8, 0), WriteProgress(n_tokens=5)
    much = describe_work(embedder, "out.hdf5", counts, done, OutputSize(10**11), sentences)
    expected = r"1,000,000 sentences, 100,000,000 tokens, 5 already done; out.hdf5 will take 100 GB and about "
    assert re.fullmatch(expected + r".+ \(.+ tokens/s\); computed in float32 \(.+, cpu\)", much)
    counts, done = SentenceCounts(10, 20, 0), WriteProgress()
    little = describe_work(embedder, "out.hdf5", counts, done, OutputSize(5000), sentences)
    computation = elmo.model.network.computation()
    assert little == f"10 sentences, 20 tokens; out.hdf5 will take 5.0 kB; computed in {computation}"


def test_sizes_are_short() -> None:
    assert [format_bytes(n) for n in (0, 999, 1600, 242_000_000, 2.5e15)] == [
        *("0 bytes", "999 bytes", "1.6 kB", "242 MB", "2,500.0 TB")
    ]


def test_the_time_is_measured_on_several_parts_of_the_text(elmo: Elmo, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = BatchEmbedder(elmo, "all", 2048, 64)
    measured: list[int] = []
    embed = elmo.embed

    def count(sentences: list[list[str]], **settings: object) -> object:
        measured.append(sum(map(len, sentences)))
        return embed(sentences, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(elmo, "embed", count)
    text = [CorpusSentence("", ["the", "cat", "sat"], "")] * 20_000
    counts = SentenceCounts(20_000, 60_000, 0)
    describe_work(embedder, "out.hdf5", counts, WriteProgress(), OutputSize(1), text)
    assert measured[0] == 3  # not timed
    assert set(measured[1:]) == {600}  # together 5 % of the text
    assert 2 <= len(measured[1:]) <= 5
    measured.clear()
    describe_work(embedder, "out.hdf5", counts, WriteProgress(), OutputSize(1), text[:10])
    assert measured == [3, 30]
