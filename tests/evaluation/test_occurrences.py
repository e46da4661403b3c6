from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.embedding.elmo import Elmo
from elmokit.errors import ConfigError, OutputError, TextError
from elmokit.evaluation import occurrences
from elmokit.evaluation import probe_corpus as corpus_module
from elmokit.evaluation.neighbors import nearest_tokens
from elmokit.evaluation.occurrences import OccurrenceIndex, build_index
from elmokit.evaluation.probe_corpus import read_corpus_files
from elmokit.storage.workspace import Workspace
from elmokit.text.text import Text
from tests.conftest import random_model
from tests.helpers.killing import Killed, kill_at

CORPUS = [
    line.split()
    for line in (
        "the cat sat on the mat .",
        "the dog ran .",
        "a cat ran on .",
        "the dog ran .",
        "on the mat sat a dog",
        "cat , dog and mat",
    )
]
ELMO = Elmo(random_model())


def corpus() -> Iterator[list[str]]:
    return iter(CORPUS)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> OccurrenceIndex:
    return build_index(ELMO, corpus, tmp_path_factory.mktemp("index") / "i")


def test_the_index_contains_the_corpus(index: OccurrenceIndex) -> None:
    assert [index.sentence(number) for number in range(index.n_sentences)] == CORPUS
    assert index.n_tokens == sum(map(len, CORPUS))
    assert index.layers[1].dtype == np.float16
    np.testing.assert_allclose(np.linalg.norm(index.layers[2].astype(np.float32), axis=1), 1, atol=1e-3)


@given(st.data())
@settings(max_examples=30)
def test_neighbors_equal_those_of_a_plain_search(index: OccurrenceIndex, data: st.DataObject) -> None:
    query = data.draw(st.lists(st.sampled_from(["the", "cat", "dog", "mat", "ran", "on", "."]), min_size=1, max_size=6))
    token = data.draw(st.integers(0, len(query) - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(occurrences, "BLOCK_ROWS", data.draw(st.sampled_from([3, 1000])))
        found = index.neighbors(ELMO, query, token, n_neighbors=4)
    distinct = [words for number, words in enumerate(CORPUS) if words not in CORPUS[:number] and words != query]
    vectors = ELMO.embed([query, *distinct])
    for layer in (1, 2):
        expected = nearest_tokens(vectors, 0, token, layer, 4)
        assert [one.similarity for one in found.layers[layer]] == pytest.approx(
            [one.similarity for one in expected], abs=2e-3
        )
        for one, plain in zip(found.layers[layer], expected, strict=True):
            exact = float(
                unit(vectors[distinct.index(one.words) + 1][layer, one.token]) @ unit(vectors[0][layer, token])
            )
            assert exact == pytest.approx(plain.similarity, abs=2e-3)


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def test_equal_sentences_are_shown_once_and_the_query_never(index: OccurrenceIndex) -> None:
    found = index.neighbors(ELMO, ["a", "dog", "ran", "."], 1, n_neighbors=30)
    sentences = [one.words for one in found.layers[1] if one.token == 1]
    assert sentences.count(CORPUS[1]) == 1
    own = index.neighbors(ELMO, CORPUS[1], 1, n_neighbors=30)
    assert CORPUS[1] not in [one.words for one in own.layers[1]]
    assert len(own.layers[1]) == index.n_tokens - 2 * len(CORPUS[1])


def test_a_search_can_be_limited_to_the_same_word_or_to_others(index: OccurrenceIndex) -> None:
    query = ["a", "dog", "sat"]
    same = index.neighbors(ELMO, query, 1, n_neighbors=30, among="same").layers[1]
    other = index.neighbors(ELMO, query, 1, n_neighbors=30, among="other").layers[1]
    assert {one.word for one in same} == {"dog"}
    assert len(same) == 3
    assert "dog" not in {one.word for one in other}
    assert index.neighbors(ELMO, ["a", "d\u00adog", "sat"], 1, n_neighbors=30, among="same").layers[1] == same
    assert index.neighbors(ELMO, ["zebra"], 0, among="same").layers[1] == []


def test_a_negative_token_counts_from_the_right(index: OccurrenceIndex) -> None:
    last = index.neighbors(ELMO, ["the", "dog"], -1)
    assert last == index.neighbors(ELMO, ["the", "dog"], 1)
    assert "the [dog]" in last.to_text()


@pytest.mark.parametrize("count_rows", [4, 1000])
def test_words_without_context_are_compared_by_layer_0(
    index: OccurrenceIndex, count_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(occurrences, "COUNT_ROWS", count_rows)
    found = index.neighbors(ELMO, ["dog"], 0, n_neighbors=50).context_free
    words = sorted({word for words in CORPUS for word in words} - {"dog"})
    assert sorted(one.word for one in found) == words
    vectors = dict(zip([*words, "dog"], (v[0, 0] for v in ELMO.embed([[w] for w in [*words, "dog"]])), strict=True))
    for one in found:
        assert one.similarity == pytest.approx(float(unit(vectors[one.word]) @ unit(vectors["dog"])), abs=2e-3)
    assert [one.similarity for one in found] == sorted((one.similarity for one in found), reverse=True)
    often = index.neighbors(ELMO, ["dog"], 0, n_neighbors=50, min_count=4).context_free
    assert {(one.word, one.count) for one in often} == {("the", 5), (".", 4)}


def test_an_index_is_resumed_only_with_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK_TOKENS", 8)
    model = Elmo(random_model())
    with pytest.raises(Killed):
        build_index(model, corpus, tmp_path / "index", progress=kill_at("index", 1))
    with pytest.raises(OutputError, match="is incomplete"):
        OccurrenceIndex(tmp_path / "index")
    before = model.computer.network.computation()
    monkeypatch.setenv("ELMOKIT_BACKEND", "reference")
    now = model.computer.network.computation()
    name = "instructions" if before.instructions != now.instructions else "kernels"
    with pytest.raises(OutputError, match=f"was started with {name} .*, and now it is "):
        build_index(model, corpus, tmp_path / "index")
    monkeypatch.delenv("ELMOKIT_BACKEND")
    recorded = build_index(model, corpus, tmp_path / "index").settings
    assert recorded.items() >= before.settings().items()


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    build_index(ELMO, corpus, folder)
    for name in ("layer-1.f16", "types.f16"):
        numbers = np.fromfile(folder / name, np.float16)
        np.full_like(numbers, np.inf).tofile(folder / name)
        with pytest.raises(OutputError, match="is damaged"):
            OccurrenceIndex(folder).neighbors(ELMO, ["the", "dog"], 1)
        numbers.tofile(folder / name)


def test_a_corpus_can_be_text_or_annotated_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat\n\nsat\n")
    (tmp_path / "b.conllu").write_text("1\tGo" + "\t_" * 8 + "\n")
    (tmp_path / "c.data.xml").write_text("<c><sentence><wf>take part</wf></sentence><sentence></sentence></c>")
    paths = [tmp_path / name for name in ("a.txt", "b.conllu", "c.data.xml")]
    assert list(read_corpus_files(Text(paths))) == [["the", "cat"], ["sat"], ["Go"], ["take", "part"]]
    assert list(read_corpus_files(Text(paths[:1], kind=list))) == [["t", "h", "e", " ", "c", "a", "t"], ["s", "a", "t"]]


def other_store(index: OccurrenceIndex) -> OccurrenceIndex:
    path = index.path.with_name("other")
    with Workspace(path, {"what": "vectors"}) as store:
        store.commit({"n_done": 0})
    return OccurrenceIndex(path)


DOG = (["the", "dog"], 1)
REFUSED: list[tuple[Callable[[OccurrenceIndex], object], type[Exception], str]] = [
    (lambda index: index.neighbors(Elmo(random_model(seed=1)), *DOG), ConfigError, "another model: the included one"),
    (lambda index: index.neighbors(ELMO, *DOG, layers=[0]), ConfigError, "no layer 0: it has 1 to 2"),
    (lambda index: index.neighbors(ELMO, *DOG, layers=[True]), ConfigError, "no layer True"),
    (lambda index: index.neighbors(ELMO, *DOG, n_neighbors=0), ConfigError, "n_neighbors is 0"),
    (lambda index: index.neighbors(ELMO, *DOG, min_count=-1), ConfigError, "min_count is -1"),
    (lambda index: index.neighbors(ELMO, *DOG, min_count=float("nan")), ConfigError, "min_count is nan"),
    (lambda index: index.neighbors(ELMO, *DOG, among="most"), ConfigError, "among is 'most'"),
    (lambda index: index.neighbors(ELMO, ["dog"], 7), ConfigError, "token is 7"),
    (lambda index: index.neighbors(ELMO, [], 0), ConfigError, "token is 0"),
    (lambda index: build_index(ELMO, lambda: iter([]), index.path), TextError, "no words"),
    (lambda index: build_index(ELMO, lambda: iter(CORPUS[:2]), index.path), OutputError, "started with another text"),
    (lambda index: build_index(ELMO, corpus, index.path, "a"), OutputError, "model name not set, and now it is 'a'"),
    (lambda index: OccurrenceIndex(index.path.parent), OutputError, "There is no index"),
    (other_store, OutputError, "There is no index of this version"),
]


@pytest.mark.parametrize(("call", "error", "mentioned"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_searched_is_refused(
    call: Callable[[OccurrenceIndex], object], error: type[Exception], mentioned: str, index: OccurrenceIndex
) -> None:
    with pytest.raises(error, match=re.escape(mentioned)):
        call(index)
