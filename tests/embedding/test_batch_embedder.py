from __future__ import annotations

import re
from pathlib import Path

import pytest

from elmokit.embedding.batch_embedder import BatchEmbedder, describe_work
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.outputs.writer import open_resumable
from elmokit.embedding.reading import CorpusSentence
from tests.conftest import random_model


@pytest.mark.parametrize("n", [10, 20_000])
def test_time_is_estimated_for_long_texts_on_several_of_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    elmo = Elmo(random_model())
    measured: list[int] = []
    embed = elmo.embed

    def count(sentences: list[list[str]], **settings: object) -> object:
        measured.append(sum(map(len, sentences)))
        return embed(sentences, **settings)  # type: ignore[arg-type]

    embedder = BatchEmbedder(elmo, "all", 2048, 64)
    monkeypatch.setattr(elmo, "embed", count)
    with open_resumable(tmp_path / "out.hdf5", {}) as writer:
        writer.read_text([CorpusSentence("", ["the", "cat", "sat"], "")] * n)
        line = describe_work(embedder, "out.hdf5", "5.0 kB", writer)
    time = r" and about .+ \(.+ tokens/s\)" if n == 20_000 else ""
    expected = rf"{n:,} sentences, {3 * n:,} tokens; out.hdf5 will take 5.0 kB{time}; computed in float32 \(.+, cpu\)"
    assert re.fullmatch(expected, line)
    if n == 10:
        assert measured == []
    else:
        assert measured[0] == 3  # not timed
        assert set(measured[1:]) == {600}  # together 5 % of the text
        assert 2 <= len(measured[1:]) <= 5
