"""Coreference: the model in both forms, its documents, and runs from a file to predictions."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmokit.errors import MissingExtraError, TextError
from elmokit.tasks import coref, coref_model
from elmokit.tasks.coref import (
    CorefConfig,
    CorefData,
    CorefTask,
    Document,
    merge_clusters,
    parse_document,
    read_conll,
    read_coref,
    to_conll,
)
from elmokit.tasks.coref_model import CorefModelConfig
from elmokit.tasks.inputs import Inputs, Vocabularies, WordTable
from elmokit.tasks.task import TaskSetup
from tests.helpers.task_examples import COREF

TASK = CorefTask()

pytest.importorskip("scipy")

DOCUMENTS = [parse_document(line, f"written, line {number}") for number, line in enumerate(COREF.splitlines(), start=1)]
KNOWN = {"genres": ["", "bc", "nw"]}
SIZES = CorefModelConfig(
    hidden=16, scorer_hidden=16, max_width=2, feature_dim=4, keep=0.9, antecedents=30, lexical_dropout=0.1
)
COARSE = replace(SIZES, layers=2, coarse_to_fine=True, rounds=2, antecedents=4)


def tiny(sizes: CorefModelConfig = SIZES) -> tuple[TaskSetup, Any]:
    torch.manual_seed(3)
    config = replace(TASK.presets["small"], model=sizes)
    words = sorted({token for document in DOCUMENTS for sentence in document.sentences for token in sentence})
    tables = {"words": WordTable(words, 12, False), "head_words": WordTable(words, 7, False)}
    config = replace(config, head_words=config.words)
    inputs = Inputs(Vocabularies(tables, sorted(set("".join(words)))))
    setup = TaskSetup(TASK, config, inputs, KNOWN, torch.device("cpu"))
    return setup, setup.build()


@pytest.mark.parametrize("sizes", [SIZES, COARSE], ids=["2017", "coarse to fine"])
def test_results_do_not_depend_on_the_blocks_that_bound_memory(
    sizes: CorefModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, model = tiny(sizes)
    model.double().eval()
    results = []
    for bound in (1 << 24, 5):
        monkeypatch.setattr(coref_model, "FLOATS_AT_ONCE", bound)
        monkeypatch.setattr(coref_model, "TOKENS_AT_ONCE", bound)
        monkeypatch.setattr(coref, "BLOCK_POSITIONS", bound)
        document = setup.batch(DOCUMENTS[:1], model).documents[0]
        found = model.antecedents(document)
        results.append((len(document.blocks), found.starts, found.ends, found.scores))
    assert results[0][0] == 1
    assert results[1][0] > 1
    assert results[0][1:3] == results[1][1:3]
    assert torch.allclose(results[0][3], results[1][3])


def test_speakers_and_genre_reach_the_model() -> None:
    setup, model = tiny()
    model.eval()
    alike = [
        DOCUMENTS[0],
        replace(DOCUMENTS[0], speakers=None),
        replace(DOCUMENTS[0], key="bc/x"),
        replace(DOCUMENTS[0], key="zz/unseen"),
        replace(DOCUMENTS[0], key="novel"),
    ]
    losses = [model.loss(setup.batch([one], model)).item() for one in alike]
    assert len(set(losses[:4])) == 4
    assert losses[3] == losses[4]  # both without a known genre


def test_training_sees_a_random_window_with_the_mentions_in_it() -> None:
    config = replace(TASK.presets["small"], model=replace(SIZES, train_sentences=2))
    seen = {}
    for seed in range(20):
        window = TASK.augment(DOCUMENTS[0], config, random.Random(seed))
        seen[window.sentences[0][0]] = window
    assert seen.keys() == {"Mira", "It"}
    assert seen["Mira"].clusters == (((0, 0), (2, 2)), ((2, 3), (5, 5)))
    assert seen["It"].clusters == (((4, 4),), ((0, 0),))
    assert seen["It"].speakers == (("b",) * 4, ("a",) * 4)
    assert TASK.augment(DOCUMENTS[1], config, random.Random(0)) == DOCUMENTS[1]


def test_a_cluster_with_one_mention_in_the_window_can_be_trained_on() -> None:
    setup, model = tiny()
    lonely = replace(DOCUMENTS[0], clusters=(((4, 4),), ((0, 0),)))
    assert model.loss(setup.batch([lonely], model)).isfinite()


@pytest.mark.parametrize("sentences", [(), (("Hi",),)])
def test_a_document_may_be_empty_or_have_one_token(sentences: tuple[tuple[str, ...], ...]) -> None:
    for sizes in (SIZES, COARSE):
        setup, model = tiny(sizes)
        batch = setup.batch([Document("here", "x", sentences, None, ())], model)
        assert model.predict(batch) == [[]]
        assert model.loss(batch).isfinite()


def test_a_record_can_be_read_again_and_mentions_are_shown_in_brackets() -> None:
    clusters = [[*cluster] for cluster in DOCUMENTS[0].clusters or ()]
    record = TASK.to_record(DOCUMENTS[0], clusters)
    assert parse_document(json.dumps(record), DOCUMENTS[0].where) == DOCUMENTS[0]
    assert record["words"] == [["Mira", "her", "She"], ["her bike", "It"]]
    lines = TASK.to_text(DOCUMENTS[0], clusters).splitlines()
    assert lines == ["[1 Mira] fixed [2 [1 her] bike] .", "[2 It] rides well .", "[1 She] is happy ."]


def test_text_is_sentences_or_json() -> None:
    config = TASK.presets["small"]
    lines = ["", "Mira left .", "She ran .", "", "  ", "Ada stayed ."]
    first, second = TASK.read_text(lines, "text", str.split, config)
    assert first.sentences == (("Mira", "left", "."), ("She", "ran", "."))
    assert (first.where, second.where, second.clusters) == ("text, line 2", "text, line 6", None)
    record = json.dumps(TASK.to_record(DOCUMENTS[0], []))
    (from_json,) = TASK.read_text([record], "text", str.split, config)
    assert from_json.sentences == DOCUMENTS[0].sentences
    assert from_json.clusters is None


def test_singletons_may_be_dropped(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"sentences": [["a", "b", "c"]], "clusters": [[[0, 0]], [[1, 1], [2, 2]]]}))
    config = CorefConfig(data=CorefData(drop_singletons=True))
    assert [len(document.clusters or ()) for document in TASK.read(str(path), config)] == [1]
    assert [len(document.clusters or ()) for document in TASK.read(str(path), CorefConfig())] == [2]


@pytest.mark.parametrize(
    ("clusters", "named"), [(None, "written, line 1: no clusters"), ((((0, 0),),), "no cluster of two mentions")]
)
def test_documents_without_clusters_are_refused_for_training(clusters: Any, named: str) -> None:
    with pytest.raises(TextError, match=named):
        TASK.labels([replace(DOCUMENTS[0], clusters=clusters)], CorefConfig())
    assert TASK.labels(DOCUMENTS, CorefConfig()) == KNOWN


def test_a_missing_scipy_is_reported_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingExtraError, match=r"pip install '(elmokit|\.)\[tasks\]'"):
        TASK.labels(DOCUMENTS, CorefConfig())


CONLL = """#begin document (nw/demo/00/demo_0001); part 002
nw/demo/00/demo_0001 0 0 Mira  NNP  (TOP(S(NP*) -   -  - spk1 (PERSON) (ARG0*) (3)
nw/demo/00/demo_0001 0 1 fixed VBD  (VP*        fix 01 1 spk1 *        (V*)    -
nw/demo/00/demo_0001 0 2 her   PRP$ (NP*        -   -  - spk1 *        (ARG1*  (4|(3)
nw/demo/00/demo_0001 0 3 bike  NN   *))         -   -  - spk1 *        *)      4)
nw/demo/00/demo_0001 0 4 /.     .    *))         -   -  - spk1 *        *       -

nw/demo/00/demo_0001 0 0 It  PRP  *   -   -  - spk2 *   (4)
nw/demo/00/demo_0001 0 1 rides VBD  *        ride 01 1 spk2 *       -

#end document
"""
JSON = {
    "doc_key": "nw/demo/00/demo_0001_2",
    "sentences": [["Mira", "fixed", "her", "bike", "."], ["It", "rides"]],
    "speakers": [["spk1"] * 5, ["spk2"] * 2],
    "clusters": [[[0, 0], [2, 2]], [[2, 3], [5, 5]]],
}


def read(folder: Path, text: str, name: str = "documents") -> list[Document]:
    path = folder / name
    path.write_text(text)
    return list(read_coref(str(path)))


def test_conll_and_json_give_the_same_document(tmp_path: Path) -> None:
    (conll,), (from_json,) = read(tmp_path, CONLL), read(tmp_path, json.dumps(JSON))
    assert conll.sentences == (("Mira", "fixed", "her", "bike", "."), ("It", "rides"))
    assert conll.clusters == (((0, 0), (2, 2)), ((2, 3), (5, 5)))
    assert conll.speakers == (("spk1",) * 5, ("spk2",) * 2)
    assert (conll.key, conll.genre) == ("nw/demo/00/demo_0001_2", "nw")
    for name in ("key", "sentences", "speakers", "clusters", "genre"):
        assert getattr(conll, name) == getattr(from_json, name)
    (to_predict,) = read(tmp_path, json.dumps({"sentences": [["Hi"]]}))
    assert to_predict.clusters is None


def test_a_novel_has_no_genre_and_no_speakers(tmp_path: Path) -> None:
    text = CONLL.replace("nw/demo/00/", "12_").replace("spk1", "-").replace("spk2", "-")
    (document,) = read(tmp_path, text)
    assert (document.genre, document.speakers) == ("", None)


def test_mentions_of_one_chain_may_be_nested_or_adjacent(tmp_path: Path) -> None:
    rows = ["(1|(1", "1)", "1)|(1)", "-"]
    text = "#begin document (x); part 0\n" + "".join(f"x 0 {i} w {c}\n" for i, c in enumerate(rows)) + "#end document\n"
    assert read(tmp_path, text)[0].clusters == (((0, 1), (0, 2), (2, 2)),)


def test_clusters_that_share_a_mention_are_merged() -> None:
    assert merge_clusters([[(0, 0), (1, 1)], [(2, 2)], [(1, 1), (3, 3)], []]) == (((0, 0), (1, 1), (3, 3)), ((2, 2),))


@pytest.mark.parametrize(
    ("begin", "key"),
    [
        ("(x); part 002", "x_2"),
        ("(x)", "x"),
        ("x", "x"),
        ("(a (b)); part 0 ", "a (b)_0"),
        ("(x part 1); part 12", "x part 1_12"),
        ("(novel_12)", "novel_12"),
    ],
)
def test_a_document_has_the_name_and_part_of_its_first_line_and_keeps_that_line(begin: str, key: str) -> None:
    (document,) = read_conll("here", [(1, f"#begin document {begin}"), (2, "#end document")])
    assert document.key == key
    assert to_conll(document, []).splitlines()[0] == f"#begin document {begin}"


@pytest.mark.parametrize(
    ("key", "begin"),
    [("nw/demo_0001_2", "(nw/demo_0001); part 002"), ("x_1234", "(x); part 1234"), ("x_007", "(x_007)")],
)
def test_a_document_of_another_format_keeps_its_name_as_conll(key: str, begin: str) -> None:
    text = to_conll(Document("here", key, (("a",),), None, None), [])
    assert text.splitlines()[0] == f"#begin document {begin}"
    assert [again.key for again in read_conll("here", enumerate(text.splitlines()))] == [key]


spans = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda pair: (min(pair), max(pair)))


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(spans, min_size=1, max_size=4), max_size=4))
def test_any_clusters_can_be_written_as_conll_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, clusters: list[list[tuple[int, int]]]
) -> None:
    wanted = merge_clusters(clusters)
    document = Document("here", "x", (("a", "b", "c"), ("d", "e", "f")), None, wanted)
    (again,) = read(tmp_path_factory.mktemp("any"), to_conll(document, wanted))
    # Two mentions of one chain that cross come back nested, because the format cannot tell them apart.
    crossing = any(a < c <= b < d for cluster in wanted for a, b in cluster for c, d in cluster)
    assert crossing or again.clusters == wanted


def test_the_shared_litbank_data_is_read_completely(shared: Path) -> None:
    documents = list(read_coref(str(shared / "data" / "coref-litbank" / "dev.conll")))
    assert len(documents) == 10
    assert sum(len(sentence) for document in documents for sentence in document.sentences) == 20438
    assert sum(len(cluster) for document in documents for cluster in document.clusters or ()) == 3053
    assert sum(len(document.clusters or ()) for document in documents) == 776
    for document in documents:
        written = to_conll(document, document.clusters or ()).splitlines()
        assert [again.clusters for again in read_conll(document.key, enumerate(written))] == [document.clusters]
