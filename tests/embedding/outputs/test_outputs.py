"""Outputs in every format hold the vectors that the model computes, whole or resumed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from elmokit import SentenceEmbedder, SentencePooling
from elmokit.embedding.corpus import embed_file
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.fingerprint import fingerprint
from elmokit.embedding.outputs.hdf5 import read_sentence_map
from elmokit.embedding.outputs.layout import Layout
from elmokit.embedding.outputs.output_format import VectorFileLayout, output_format, output_formats, read_about
from elmokit.embedding.reading import SentenceCounts
from elmokit.errors import FormatError, MissingExtraError, OutputError
from elmokit.text.text import Text
from elmokit.version import __version__
from tests.conftest import random_model
from tests.helpers.paths import ROOT
from tests.helpers.shell import Shell

TEXT = "the cat sat .\n\nthe dog ran on\u00a0the mat\n the cat  sat .\u00a0\n"
SENTENCES = [
    ["the", "cat", "sat", "."],
    [],
    ["the", "dog", "ran", "on\u00a0the", "mat"],
    ["the", "cat", "sat", ".\u00a0"],
]
without_pyarrow = pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
SUFFIXES = [*(pytest.param(suffix, marks=without_pyarrow) for suffix in (".parquet", ".arrow")), pytest.param(".npz")]


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(random_model())


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def read(path: Path) -> dict[str, list[Any]]:
    """Return the columns of an output, one value per sentence."""
    if path.suffix == ".npz":
        with np.load(path) as archive:
            offsets = archive["offsets"]
            lines = archive["tokens"].tobytes().decode().split("\n")[:-1] if "tokens" in archive else []
            vectors = archive["vectors"]
            columns = {"id": list(range(len(offsets) - 1))}
            if "ids" in archive:
                columns["id"] = archive["ids"].tobytes().decode().split("\n")[:-1]
            if "tokens" in archive:
                columns["tokens"] = [lines[a:b] for a, b in pairwise(offsets)]
        if len(vectors) != offsets[-1]:
            return {**columns, "vector": list(vectors)}
        split = [vectors[a:b] for a, b in pairwise(offsets)]
        if vectors.ndim == 2:
            return {**columns, "vectors": split}
        return {**columns, **{f"layer_{n}": [array[:, n] for array in split] for n in range(vectors.shape[1])}}
    from pyarrow import ipc, parquet

    table = parquet.read_table(path) if path.suffix == ".parquet" else ipc.open_file(path).read_all()
    return table.to_pydict()


def read_vectors(path: Path) -> list[np.ndarray]:
    """Return the vectors of each sentence, with several layers ``(layers, tokens, dim)``."""
    if path.suffix == ".hdf5":
        with h5py.File(path) as file:
            return [file[str(number)][...] for number in range(len(file) - ("sentence_to_index" in file))]
    columns = read(path)
    layers = [columns[name] for name in columns if name not in ("id", "tokens")]
    rows = [
        np.stack([np.asarray(layer, np.float32).reshape(-1, 64) for layer in row]) for row in zip(*layers, strict=True)
    ]
    return rows if len(layers) > 1 else [row[0] for row in rows]


def assert_equal(rows: list[Any], expected: list[Any], atol: float = 1e-5) -> None:
    assert len(rows) == len(expected)
    for row, array in zip(rows, expected, strict=True):
        np.testing.assert_allclose(np.asarray(row, np.float64).reshape(array.shape), array, atol=atol)


def test_the_reference_lists_the_extensions_of_all_formats() -> None:
    page = (ROOT / "docs" / "reference" / "vector-files.md").read_text(encoding="utf-8")
    for format_ in output_formats():
        assert f"| {', '.join(f'`{extension}`' for extension in format_.extensions)}" in page


@pytest.mark.parametrize("suffix", [".hdf5", "", *SUFFIXES])
@pytest.mark.parametrize("pool", [False, True])
def test_a_file_says_what_computed_it(elmo: Elmo, text: Path, tmp_path: Path, suffix: str, pool: bool) -> None:
    output = tmp_path / f"out{suffix}"
    embed_file(SentenceEmbedder(elmo) if pool else elmo, text, output, Layout(layers="all" if pool else [0, 2]))
    about = read_about(output)
    assert about.items() >= elmo.computer.network.computation().settings().items()
    assert about["fingerprint"].startswith(fingerprint(elmo.model, "warm"))
    assert (about["elmokit"], about["start"]) == (__version__, "warm")
    assert (about["layers"] == [0, 2], "pooling" in about) == (not pool, pool)
    assert about["model"] is None  # a model of random weights has no source
    with pytest.raises(FormatError, match="does not say what computed its vectors"):
        read_about(text)


@pytest.mark.parametrize("suffix", [".hdf5", *SUFFIXES])
@pytest.mark.parametrize(
    ("layers", "dtype"),
    [
        ("all", "float32"),
        ("all", "float16"),
        ("top", np.float16),
        ("average", "float32"),
        ([0, 2], "float16"),
        ([np.int64(0), np.int32(2)], "float32"),
        (np.int64(1), "float32"),
        (range(2), "float32"),
    ],
    ids=str,
)
def test_what_is_written_is_read_back(
    elmo: Elmo, tmp_path: Path, text: Path, suffix: str, layers: Any, dtype: Any
) -> None:
    output = tmp_path / f"out{suffix}"
    embed_file(elmo, text, output, Layout(layers=layers, dtype=dtype))
    rows = read_vectors(output)
    assert [row.shape for row in rows] == [row.shape for row in elmo.embed(SENTENCES, layers=layers)]
    assert_equal(rows, elmo.embed(SENTENCES, layers=layers), 1e-5 if dtype == "float32" else 2e-3)
    if suffix == ".hdf5":
        assert set(read_sentence_map(output)) == {line.strip(" ") for line in TEXT.split("\n")}
    else:
        columns = read(output)
        assert (columns["id"], columns["tokens"]) == ([0, 1, 2, 3], SENTENCES)
        numbers = [0, 1, 2] if isinstance(layers, str) else list(layers) if np.ndim(layers) else []
        names = [f"layer_{n}" for n in (range(len(rows[0])) if suffix == ".npz" else numbers)]
        assert list(columns) == ["id", "tokens", *(["vectors"] if rows[0].ndim == 2 else names)]
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", output.name}


@pytest.mark.parametrize("suffix", [".hdf5", *SUFFIXES])
def test_the_sentences_can_be_left_out_and_a_text_can_be_empty(elmo: Elmo, tmp_path: Path, suffix: str) -> None:
    output = tmp_path / f"out{suffix}"
    (tmp_path / "text.txt").write_text("the cat\n")
    embed_file(elmo, tmp_path / "text.txt", output, Layout(layers="top", forget_sentences=True))
    assert_equal(read_vectors(output), elmo.embed([["the", "cat"]], layers="top"))
    if suffix != ".hdf5":
        assert list(read(output)) == ["id", "vectors"]
    (tmp_path / "text.txt").write_text("")
    assert embed_file(elmo, tmp_path / "text.txt", output, Layout(layers="top"), overwrite=True).n_sentences == 0
    if suffix == ".hdf5":
        assert read_sentence_map(output) == {}
    else:
        assert read(output) == {"id": [], "tokens": [], "vectors": []}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_row_groups_are_of_bounded_size(
    elmo: Elmo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{'the cat ' * (number % 5)}\n" for number in range(60)))
    embed_file(elmo, text, tmp_path / f"whole{suffix}")
    monkeypatch.setattr("elmokit.embedding.outputs.output_format.GROUP_BYTES", 10 * 3 * 64 * 4)
    monkeypatch.setattr("elmokit.embedding.outputs.output_format.GROUP_SENTENCES", 7)
    embed_file(elmo, text, tmp_path / f"parts{suffix}")
    whole, parts = read(tmp_path / f"whole{suffix}"), read(tmp_path / f"parts{suffix}")
    assert whole["tokens"] == parts["tokens"]
    assert_equal(parts["layer_1"], [np.array(row).reshape(-1, 64) for row in whole["layer_1"]])
    if suffix == ".parquet":
        from pyarrow import parquet

        assert parquet.ParquetFile(tmp_path / "parts.parquet").num_row_groups > 9


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_proteins_have_their_identifiers(elmo: Elmo, tmp_path: Path, suffix: str) -> None:
    (tmp_path / "proteins.fasta").write_text(">one first\nMK\nV\n>two\nA\n")
    embed_file(elmo, Text(tmp_path / "proteins.fasta", kind="fasta"), tmp_path / f"out{suffix}")
    columns = read(tmp_path / f"out{suffix}")
    assert (columns["id"], columns["tokens"]) == (["one", "two"], [["M", "K", "V"], ["A"]])


POOLINGS = [SentencePooling("mean", layers="all"), SentencePooling("sif"), SentencePooling("sif", layers=(0, 2))]


@pytest.mark.parametrize("suffix", [".hdf5", *SUFFIXES])
@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
def test_a_sentence_embedder_writes_one_vector_per_line(
    elmo: Elmo, text: Path, tmp_path: Path, suffix: str, pooling: SentencePooling
) -> None:
    embedder, output = SentenceEmbedder(elmo, pooling), tmp_path / f"out{suffix}"
    assert embed_file(embedder, text, output).n_tokens == 13
    expected = list(embedder.embed(SENTENCES))
    assert not expected[1].any()
    if suffix == ".hdf5":
        with h5py.File(output) as file:
            assert sorted(file) == ["sentence_to_index", "vectors"]
            assert_equal(list(file["vectors"][...]), expected)
            assert read_sentence_map(file)["the dog ran on\u00a0the mat"] == 2
        return
    columns = read(output)
    assert list(columns) == ["id", "tokens", "vector"]
    assert columns["tokens"] == SENTENCES
    assert_equal(columns["vector"], expected)


def test_a_whitening_of_another_text_is_not_resumed(elmo: Elmo) -> None:
    pooling = SentencePooling("mean")
    plain, fitted, again = (SentenceEmbedder(Elmo(random_model()), pooling) for _ in range(3))
    fitted.fit(SENTENCES)
    again.fit(SENTENCES[:3])
    assert len({embedder.fingerprint() for embedder in (plain, fitted, again)}) == 3
    counts = [SentenceEmbedder(elmo, SentencePooling(), {"the": n}).fingerprint() for n in (1, 2, 2)]
    assert counts[0] != counts[1] == counts[2]


@pytest.mark.parametrize("suffix", [".hdf5", *SUFFIXES])
@pytest.mark.parametrize("is_pooled", [False, True])
def test_the_estimated_size_is_about_the_size_written(elmo: Elmo, tmp_path: Path, suffix: str, is_pooled: bool) -> None:
    text, output = tmp_path / "text.txt", tmp_path / f"out{suffix}"
    lines = [f"the cat {'sat ' * (number % 7)}{number} ." for number in range(300)]
    text.write_text("\n".join(lines))
    embedder = SentenceEmbedder(elmo, SentencePooling())
    embed_file(embedder if is_pooled else elmo, text, output)
    layout = VectorFileLayout(None, embedder.dim, pooled=True) if is_pooled else VectorFileLayout((0, 1, 2), 64)
    counts = SentenceCounts(300, sum(len(line.split()) for line in lines), 0, sum(map(len, lines)))
    estimate = output_format(output).file_bytes(layout, counts)
    assert estimate == pytest.approx(output.stat().st_size, rel=0.2 if is_pooled else 0.03)


def test_the_space_of_both_files_is_checked(
    elmo: Elmo, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_bytes = 13 * 3 * 64 * 4
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=int(2.05 * n_bytes)))
    embed_file(elmo, text, tmp_path / "out.hdf5", Layout(forget_sentences=True))
    with pytest.raises(OutputError, match=r"and 10\.0 kB more until it is complete\), but its disk has 20\.5 kB"):
        embed_file(elmo, text, tmp_path / "out.npz")


def test_a_missing_pyarrow_is_reported_first(
    elmo: Elmo, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"pip install '(elmokit|\.)\[arrow\]'"):
        embed_file(elmo, text, tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_the_command_pools_sentences(shell: Shell) -> None:
    assert shell("embed", "text.txt", "mean.npz", "--model", "model", "--pool", "mean", "--layers", "0,2").code == 0
    assert read(Path("mean.npz"))["vector"][0].shape == (128,)
    assert shell("embed", "text.txt", "sif.npz", "--model", "model", "--pool", "sif").code == 0
    assert read(Path("sif.npz"))["vector"][0].shape == (64,)
    refused = shell("embed", "text.txt", "out.npz", "--model", "model", "--pool", "whitened")
    assert refused.code == 2
    assert "has no whitening" in refused.err
    assert shell("convert", "model", "white", "--whiten", "text.txt").code == 0
    assert shell("embed", "text.txt", "white.npz", "--model", "white", "--pool", "whitened").code == 0
    refused = shell("embed", "text.txt", "out.npz", "--model", "white", "--pool", "whitened", "--top")
    assert refused.code == 2
    assert "has its own" in refused.err


def test_the_command_refuses_to_pool_what_the_model_has_no_map_for(shell: Shell) -> None:
    refused = shell("embed", "text.txt", "out.npz", "--model", "model", "--pool", "whitened")
    assert refused.code == 2
    assert "has no whitening" in refused.err
    assert shell("convert", "model", "white", "--whiten", "text.txt").code == 0
    refused = shell("embed", "text.txt", "out.npz", "--model", "white", "--pool", "whitened", "--top")
    assert refused.code == 2
    assert "has its own" in refused.err
