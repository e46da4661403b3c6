"""Documents with coreference are read in every format, and errors name the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmokit.tasks.readers.coref import Document, merge_clusters, read_conll, read_coref, to_conll

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
    [
        ("nw/demo_0001_2", "(nw/demo_0001); part 002"),
        ("x_0", "(x); part 000"),
        ("x_1234", "(x); part 1234"),
        ("x", "(x)"),
        ("x_", "(x_)"),
        ("x_007", "(x_007)"),
        ("x_²", "(x_²)"),
        ("x_" + "1" * 5000, "(x_" + "1" * 5000 + ")"),
    ],
    ids=range(8),
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
        (again,) = read_lines_of(to_conll(document, document.clusters or ()), document)
        assert again == document.clusters


def read_lines_of(text: str, document: Document) -> list[object]:
    return [found.clusters for found in read_conll(document.key, enumerate(text.splitlines(), start=1))]
