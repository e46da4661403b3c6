"""``Embed`` inside datasets and Ray Data themselves."""

from __future__ import annotations

import os
import pickle
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import SentenceEmbedder, SentencePooling
from elmokit.embedding.elmo import Elmo
from elmokit.errors import ConfigError, TextError
from elmokit.formats.save import save_model
from elmokit.integrations.batch import Embed
from tests.conftest import model_beyond_float16, random_model
from tests.helpers.paths import ROOT

TEXTS = ["the cat sat .", "", "the dog ran", "the mat"] * 5
SENTENCES = [text.split() for text in TEXTS]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "model"
    save_model(random_model(), path)
    return str(path)


def assert_equal(rows: Any, expected: Any) -> None:
    for row, array in zip(rows, expected, strict=True):
        given = np.array([np.asarray(part, np.float64) for part in row]).reshape(array.shape)
        np.testing.assert_allclose(given, array, atol=1e-5)


def test_a_dict_of_columns_gets_columns_of_vectors(model: str) -> None:
    batch = {"text": TEXTS, "tokens": SENTENCES}
    for column in ("text", "tokens"):
        columns = Embed(model, column=column)(batch)
        assert list(columns) == ["text", "tokens", "layer_0", "layer_1", "layer_2"]
        for layer in range(3):
            assert_equal(columns[f"layer_{layer}"], Elmo(random_model()).embed(SENTENCES, layers=layer))
    assert list(Embed(model, layers=[0, 2])(batch)) == ["text", "tokens", "layer_0", "layer_2"]
    assert Embed(model, layers="top", dtype="float16")(batch)["vectors"][0].dtype == np.float16
    pooled = Embed(model, pooling="mean", layers="all")(batch)["vector"]
    assert_equal(pooled, SentenceEmbedder(Elmo(random_model()), SentencePooling("mean", "all")).embed(SENTENCES))
    by_default = Embed(model, pooling="auto")(batch)["vector"]
    assert_equal(by_default, SentenceEmbedder(Elmo(random_model())).embed(SENTENCES))


def test_a_number_that_float16_cannot_hold_is_an_error(tmp_path: Path) -> None:
    save_model(model_beyond_float16(), tmp_path / "model")
    for pooling in (None, "mean"):
        with pytest.raises(ConfigError, match="beyond 65,504, the largest of float16"):
            Embed(str(tmp_path / "model"), layers=0, pooling=pooling, dtype="float16")({"text": TEXTS})


def test_a_table_without_rows_gets_columns_without_rows(model: str) -> None:
    pa = pytest.importorskip("pyarrow")
    table = Embed(model)(pa.table({"text": pa.array([], pa.string())}))
    assert (table.column_names, table.num_rows) == (["text", "layer_0", "layer_1", "layer_2"], 0)
    assert table.schema == Embed(model)(pa.table({"text": TEXTS})).schema


def test_a_column_of_the_same_name_is_replaced(model: str) -> None:
    pa = pytest.importorskip("pyarrow")
    batch = {"layer_0": [1], "text": ["the cat"]}
    columns, table = Embed(model)(batch), Embed(model)(pa.table(batch))
    assert table.column_names == list(columns) == ["layer_0", "text", "layer_1", "layer_2"]
    assert_equal(table["layer_0"].to_pylist(), columns["layer_0"])


@pytest.mark.parametrize("text", [["the cat", None], "the cat"])  # the second is a row in place of a batch
def test_a_missing_text_is_an_error(model: str, text: Any) -> None:
    with pytest.raises(TextError, match=r"None|'the cat'"):
        Embed(model)({"text": text})


def test_a_pickle_does_not_contain_the_model(model: str) -> None:
    embed = Embed(model)
    before = pickle.dumps(embed)
    embed({"text": TEXTS})
    assert pickle.dumps(embed) == before
    assert len(before) < 2000


@pytest.mark.parametrize("is_table", [False, True])
def test_datasets_maps_it(model: str, is_table: bool) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    table = datasets.Dataset.from_dict({"text": TEXTS})
    if is_table:
        table = table.with_format("arrow")
    mapped = table.map(Embed(model, layers="top"), batched=True, batch_size=7).with_format(None)
    assert mapped.column_names == ["text", "vectors"]
    assert_equal(mapped["vectors"], Elmo(random_model()).embed(SENTENCES, layers="top"))


class KilledOnce(Embed):
    """Kills its own process at the second batch of the whole job, as a machine that fails would."""

    def __init__(self, model: str, folder: str) -> None:
        super().__init__(model, layers="top")
        self.folder = Path(folder)

    def __call__(self, batch: Any) -> Any:
        if len(list(self.folder.glob("batch-*"))) == 1 and not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / f"batch-{os.getpid()}-{len(list(self.folder.iterdir()))}").touch()
        return super().__call__(batch)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster on this machine with two CPUs."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("pyarrow")
    root = str(ROOT)
    ray.init(
        num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}}
    )
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own
@pytest.mark.parametrize("is_killed", [False, True])
def test_two_ray_workers_write_what_one_process_computes_even_if_one_is_killed(
    cluster: Any, model: str, tmp_path: Path, is_killed: bool
) -> None:
    from pyarrow import parquet

    table = cluster.data.from_items([{"id": n, "text": text} for n, text in enumerate(TEXTS)], override_num_blocks=5)
    arguments = {"model": model, "folder": str(tmp_path)} if is_killed else {"model": model, "layers": "top"}
    table.map_batches(
        KilledOnce if is_killed else Embed,
        fn_constructor_kwargs=arguments,
        batch_format="pyarrow",
        batch_size=4,
        compute=cluster.data.ActorPoolStrategy(size=2),
    ).write_parquet(str(tmp_path / "vectors"))
    assert (tmp_path / "killed").exists() == is_killed
    written = parquet.read_table(tmp_path / "vectors").sort_by("id")
    assert written["id"].to_pylist() == list(range(len(TEXTS)))
    assert_equal(written["vectors"].to_pylist(), Elmo(random_model()).embed(SENTENCES, layers="top"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_a_ray_task_embeds_a_file_and_skips_it_if_it_is_complete(cluster: Any, tmp_path: Path) -> None:
    program = runpy.run_path(str(ROOT / "examples" / "scale" / "shards_on_ray.py"))
    text, vectors = tmp_path / "text.txt", tmp_path / "vectors.npz"
    text.write_text("\n".join(TEXTS) + "\n")
    embed_shard = program["embed_shard"]
    n_tokens = sum(map(len, SENTENCES))
    assert cluster.get(embed_shard.remote(text, vectors)) == n_tokens
    assert cluster.get(embed_shard.remote(text, vectors)) == 0
    with np.load(vectors) as archive:
        expected = np.concatenate(Elmo.from_pretrained(precision="int8").embed(SENTENCES, layers="top"))
        np.testing.assert_allclose(archive["vectors"], expected, atol=2e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Spark's own
def test_spark_adds_a_vector_to_each_sentence(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    from pyarrow import parquet

    text, vectors = tmp_path / "text.txt", tmp_path / "vectors.parquet"
    text.write_text("\n".join(TEXTS) + "\n")
    script = ROOT / "examples" / "scale" / "embed_on_spark.py"
    variables = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    subprocess.run([sys.executable, str(script), str(text), str(vectors)], check=True, env=variables)
    written = parquet.read_table(vectors)
    assert sorted(written["text"].to_pylist()) == sorted(TEXTS)
    embedder = SentenceEmbedder.by_name(Elmo.from_pretrained(precision="int8"), "sif")
    sentences = [sentence.split() for sentence in written["text"].to_pylist()]
    assert_equal(written["vector"].to_pylist(), embedder.embed(sentences))


@pytest.mark.parametrize("settings", [{"pooling": "mean"}, {"layers": [0, 1]}])
def test_raw_texts_are_split_into_sentences(model: str, settings: Any) -> None:
    split = [["the", "cat", "sat", "."], ["the", "dog", "ran", "."]]
    raw = Embed(model, tokenize=None, **settings)({"text": ["the cat sat. the dog ran."]})
    parts = Embed(model, **settings)({"text": split})
    for name in raw.keys() - {"text"}:
        joined = np.mean(parts[name], axis=0) if name == "vector" else np.concatenate(parts[name])
        np.testing.assert_allclose(raw[name][0], joined, atol=1e-6)
