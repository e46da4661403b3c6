"""Parquet and Arrow files of vectors, read by the libraries that people use for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import SentenceEmbedder, SentencePooling
from elmokit.embedding.corpus import embed_file
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.outputs.layout import Layout
from tests.conftest import random_model
from tests.helpers.paths import ROOT

pytest.importorskip("pyarrow")
LINES = ["the cat sat .", "", "the dog ran ."]
SENTENCES = [line.split() for line in LINES]


@pytest.fixture(scope="module", params=["float32", "float16"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs of a tiny model: ``tokens`` and ``sentences``, in both formats."""
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in LINES))
    elmo = Elmo(random_model())
    for suffix in (".parquet", ".arrow"):
        embed_file(elmo, folder / "text.txt", folder / f"tokens{suffix}", Layout(dtype=request.param))
        embedder = SentenceEmbedder(elmo, SentencePooling("mean"))
        embed_file(embedder, folder / "text.txt", folder / f"sentences{suffix}", Layout(dtype=request.param))
    return folder


def assert_holds_the_vectors(ids: Any, tokens: Any, vectors: Any, layer: int | None) -> None:
    """Compare columns with vectors that are computed again; ``layer`` is None for sentence vectors."""
    elmo = Elmo(random_model())
    if layer is None:
        expected: Any = SentenceEmbedder(elmo, SentencePooling("mean")).embed(SENTENCES)
    else:
        expected = elmo.embed(SENTENCES, layers=layer)
    assert list(ids) == [0, 1, 2]
    assert [list(row) for row in tokens] == SENTENCES
    for row, array in zip(vectors, expected, strict=True):
        given = np.array([np.asarray(part, np.float64) for part in row]).reshape(array.shape)
        np.testing.assert_allclose(given, array, atol=3e-3)


def read_with_pyarrow(path: Path, column: str) -> Any:
    from pyarrow import feather, parquet

    table = parquet.read_table(path) if path.suffix == ".parquet" else feather.read_table(path)
    kind = table.schema.field(column).type
    assert (kind if column == "vector" else kind.value_type).list_size == 64
    return [table[key].to_pylist() for key in ("id", "tokens", column)]


def read_with_pandas(path: Path, column: str) -> Any:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(path) if path.suffix == ".parquet" else pandas.read_feather(path)
    return [frame[key] for key in ("id", "tokens", column)]


def read_with_polars(path: Path, column: str) -> Any:
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(path) if path.suffix == ".parquet" else polars.read_ipc(path)
    return [frame[key].to_list() for key in ("id", "tokens", column)]


def read_with_duckdb(path: Path, column: str) -> Any:
    duckdb = pytest.importorskip("duckdb")  # which reads no Feather files
    return zip(*duckdb.sql(f"select id, tokens, {column} from '{path}' order by id").fetchall(), strict=True)


@pytest.mark.parametrize("read", [read_with_pyarrow, read_with_pandas, read_with_polars, read_with_duckdb])
def test_the_vectors_are_read(folder: Path, read: Any) -> None:
    for suffix in (".parquet", ".arrow") if read is not read_with_duckdb else (".parquet",):
        for column, layer in (("layer_1", 1), ("layer_2", 2)):
            assert_holds_the_vectors(*read(folder / f"tokens{suffix}", column), layer)
        assert_holds_the_vectors(*read(folder / f"sentences{suffix}", "vector"), None)


@pytest.mark.filterwarnings("default")
def test_lancedb_finds_the_sentences_with_the_nearest_vectors(tmp_path: Path) -> None:
    lancedb = pytest.importorskip("lancedb")
    from pyarrow import parquet

    elmo, tokens = Elmo.from_pretrained(), ["They", "had", "lunch", "on", "the", "bank", "of", "the", "river", "."]
    text = ROOT / "examples" / "sentences.txt"
    embed_file(elmo, text, tmp_path / "tokens.parquet", Layout(dtype="float16"))
    table = lancedb.connect(tmp_path / "db").create_table("text", parquet.read_table(tmp_path / "tokens.parquet"))
    (vectors,) = elmo.embed([tokens], layers=1)
    every = elmo.embed([line.split() for line in text.read_text().splitlines()], layers=1)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    # For each sentence and word of the query the distance of the nearest word.
    distances = np.stack(
        [1 - (unit @ (one / np.linalg.norm(one, axis=1, keepdims=True)).T).max(axis=1) for one in every]
    )
    word = tokens.index("bank")
    search = table.search(vectors[word], vector_column_name="layer_1").distance_type("cosine")
    found = search.select(["id", "_distance"]).limit(4).to_list()
    assert [row["_distance"] for row in found] == pytest.approx(np.sort(distances[:, word])[:4].tolist(), abs=2e-3)
    assert [distances[row["id"], word] for row in found] == pytest.approx(np.sort(distances[:, word])[:4], abs=2e-3)
    # All words of the query: the sum over them.
    search = table.search(vectors, vector_column_name="layer_1").distance_type("cosine")
    (nearest,) = search.select(["id", "_distance"]).limit(1).to_list()
    sums = distances.sum(axis=1)
    assert (nearest["_distance"], sums[nearest["id"]]) == pytest.approx((sums.min(), sums.min()), abs=0.02)
