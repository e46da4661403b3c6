"""Sentence vectors in columns of pandas and polars, with both libraries themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import Elmo, SentenceEmbedder, SentencePooling
from elmokit.errors import ConfigError, MissingExtraError, TextError
from elmokit.integrations.dataframes import add_vectors, to_matrix
from tests.conftest import random_model
from tests.helpers.hosts import need_host

need_host("dataframes")

import pandas  # noqa: E402
import polars  # noqa: E402
import pyarrow  # noqa: E402

TEXTS = ["the cat sat.", "", "the dog ran!"]
TOKENS = [["the", "cat", "sat", "."], [], ["the", "dog", "ran", "!"]]
LIBRARIES = [pandas, polars]


@pytest.fixture(scope="module")
def embedder() -> SentenceEmbedder:
    return SentenceEmbedder(Elmo(random_model()), SentencePooling("mean", layers="all"))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("texts", [TEXTS, TOKENS])
def test_vectors_of_a_column_are_those_of_the_sentence_embedder(
    library: Any, texts: list[Any], embedder: SentenceEmbedder
) -> None:
    frame = library.DataFrame({"text": texts, "stars": [1, 2, 3]})
    added = add_vectors(frame, embedder=embedder)
    assert isinstance(added, library.DataFrame)
    assert list(added.columns) == ["text", "stars", "vector"]
    assert list(frame.columns) == ["text", "stars"]
    matrix = to_matrix(added["vector"])
    assert matrix.dtype == np.float32
    np.testing.assert_array_equal(matrix, embedder.embed(TOKENS))
    assert np.shares_memory(matrix, to_matrix(added["vector"]))  # no copy


@pytest.mark.parametrize("library", LIBRARIES)
def test_columns_and_tokenizer_are_chosen(library: Any, embedder: SentenceEmbedder) -> None:
    frame = library.DataFrame({"review": ["the cat.", "a dog"]})
    added = add_vectors(frame, "review", embedder, name="elmo", tokenize=str.split)
    np.testing.assert_array_equal(to_matrix(added["elmo"]), embedder.embed([["the", "cat."], ["a", "dog"]]))


def test_column_has_a_fixed_size_type(embedder: SentenceEmbedder) -> None:
    pandas_type = add_vectors(pandas.DataFrame({"text": TEXTS}), embedder=embedder)["vector"].dtype
    assert pandas_type.pyarrow_dtype.list_size == embedder.dim
    added = add_vectors(polars.DataFrame({"text": TEXTS}), embedder=embedder)
    assert added["vector"].dtype == polars.Array(polars.Float32, embedder.dim)
    assert np.asarray(added["vector"]).shape == (3, embedder.dim)


def test_pandas_index_is_kept(embedder: SentenceEmbedder) -> None:
    frame = pandas.DataFrame({"text": TEXTS}, index=["b", "a", "b"])
    added = add_vectors(frame, embedder=embedder)
    assert list(added.index) == ["b", "a", "b"]
    expected = embedder.embed(TOKENS)
    np.testing.assert_array_equal(to_matrix(added.loc["b", "vector"]), expected[[0, 2]])
    np.testing.assert_array_equal(to_matrix(added["vector"][1:]), expected[1:])
    np.testing.assert_array_equal(to_matrix(pandas.concat([added, added])["vector"]), np.tile(expected, (2, 1)))


@pytest.mark.parametrize("library", LIBRARIES)
def test_empty_frame_has_an_empty_matrix(library: Any, embedder: SentenceEmbedder) -> None:
    frame = polars.DataFrame({"text": []}, schema={"text": polars.String})
    given = frame if library is polars else pandas.DataFrame({"text": []})
    assert to_matrix(add_vectors(given, embedder=embedder)["vector"]).shape == (0, embedder.dim)


@pytest.mark.parametrize("library", LIBRARIES)
def test_both_libraries_read_it_back_from_parquet(library: Any, embedder: SentenceEmbedder, tmp_path: Path) -> None:
    added: Any = add_vectors(library.DataFrame({"text": TEXTS}), embedder=embedder)
    write = added.to_parquet if library is pandas else added.write_parquet
    write(tmp_path / "vectors.parquet")
    with_arrow = pandas.read_parquet(tmp_path / "vectors.parquet", dtype_backend="pyarrow")
    for frame in (polars.read_parquet(tmp_path / "vectors.parquet"), with_arrow):
        np.testing.assert_array_equal(to_matrix(frame["vector"]), embedder.embed(TOKENS))


def test_columns_that_pandas_reads_as_objects_are_a_matrix_too(embedder: SentenceEmbedder, tmp_path: Path) -> None:
    added = add_vectors(polars.DataFrame({"text": TEXTS}), embedder=embedder)
    added.write_parquet(tmp_path / "vectors.parquet")
    column = pandas.read_parquet(tmp_path / "vectors.parquet")["vector"]
    assert column.dtype == object
    np.testing.assert_array_equal(to_matrix(column), embedder.embed(TOKENS))


def test_a_number_that_a_vector_lacks_is_nan() -> None:
    rows = [[1.0, None], [3.0, 4.0]]
    fixed = pyarrow.list_(pyarrow.float32(), 2)
    for column in (
        pandas.Series(rows, dtype=pandas.ArrowDtype(fixed)),
        polars.Series(rows, dtype=polars.Array(polars.Float32, 2)),
        polars.Series(rows),
    ):
        np.testing.assert_array_equal(to_matrix(column), [[1, np.nan], [3, 4]])


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_mistake_is_reported_in_one_line(library: Any, embedder: SentenceEmbedder) -> None:
    frame, series = library.DataFrame, library.Series
    whole = pandas.Series([[1, 2]], dtype=pandas.ArrowDtype(pyarrow.list_(pyarrow.int32(), 2)))
    for given, error, mentioned in [
        (frame({"text": ["a", None]}), TextError, "None|nan"),
        (frame({"text": [1, 2]}), TextError, "1 of type int"),
        (TEXTS, ConfigError, "list"),
        (polars.LazyFrame({"text": TEXTS}), ConfigError, r"LazyFrame.* collect\(\)"),
    ]:
        with pytest.raises(error, match=mentioned):
            add_vectors(given, embedder=embedder)
    for given, error, mentioned in [
        (np.zeros((2, 2)), ConfigError, "ndarray"),
        (series([[1.0], None]), TextError, "Row 1"),
        (series([1.0, 2.0]), ConfigError, "type"),
        (series([[1.0], [1.0, 2.0]]), ConfigError, "type"),
        (series(["a"]), ConfigError, "type"),
        (whole, ConfigError, "type"),
    ]:
        with pytest.raises(error, match=mentioned):
            to_matrix(given)


def test_missing_pyarrow_names_the_extra(monkeypatch: pytest.MonkeyPatch, embedder: SentenceEmbedder) -> None:
    frame = pandas.DataFrame({"text": TEXTS})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"\[dataframes\]"):
        add_vectors(frame, embedder=embedder)
    # polars needs no pyarrow.
    added = add_vectors(polars.DataFrame({"text": TEXTS}), embedder=embedder)
    assert to_matrix(added["vector"]).shape == (3, embedder.dim)


def test_a_paragraph_has_the_vector_of_all_its_sentences(embedder: SentenceEmbedder) -> None:
    frame = add_vectors(pandas.DataFrame({"text": ["the cat sat. the dog ran."]}), embedder=embedder)
    split = [["the", "cat", "sat", "."], ["the", "dog", "ran", "."]]
    assert np.array_equal(to_matrix(frame["vector"]), embedder.embed_texts([split]))
