"""Trees and pairs of sentences are read, or rejected with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.tasks.nli import read_pairs, tokens_of_parse
from elmokit.tasks.sst import LabeledTree, TreeNode, parse_tree, read_trees


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "file.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_tree_gives_its_phrases_root_first(tmp_path: Path) -> None:
    text = "(3 (2 Mira) (3 (2 rides) (4 superbly)))\n\n(2 1\u00a01\\/2)\n"
    first, second = read_trees(written(tmp_path, text))
    assert first.tokens == ["Mira", "rides", "superbly"]
    assert first.nodes == [
        TreeNode(0, 3, "3"),
        TreeNode(0, 1, "2"),
        TreeNode(1, 3, "3"),
        TreeNode(1, 2, "2"),
        TreeNode(2, 3, "4"),
    ]
    assert second == LabeledTree(
        ["1\u00a01\\/2"], [TreeNode(0, 1, "2")], second.where
    )  # a no-break space does not separate words
    assert second.where.endswith("line 3")


@st.composite
def trees(draw: st.DrawFn, depth: int = 4) -> tuple[str, list[str], int]:
    label = draw(st.sampled_from("01234"))
    if depth == 0 or draw(st.booleans()):
        word = draw(st.text(st.characters(exclude_characters="() ", exclude_categories=["Zl", "Zp", "C"]), min_size=1))
        return f"({label} {word})", [word], 1
    children = [draw(trees(depth=depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    words = [word for _, inside, _ in children for word in inside]
    return f"({label} {' '.join(text for text, _, _ in children)})", words, 1 + sum(n for _, _, n in children)


@given(trees())
def test_any_tree_is_read_completely(case: tuple[str, list[str], int]) -> None:
    text, words, n_nodes = case
    tree = parse_tree(text, "here")
    assert tree.tokens == words
    assert len(tree.nodes) == n_nodes


def test_json_lines_without_a_majority_are_skipped(tmp_path: Path) -> None:
    rows = [
        {"gold_label": "Entailment", "sentence1": "A b.", "sentence2": "C."},
        {"gold_label": "-", "sentence1": "A", "sentence2": "B"},
        {
            "gold_label": "neutral",
            "sentence1": "A b.",
            "sentence2": "C.",
            "sentence1_binary_parse": "( ( A b ) . )",
            "sentence2_binary_parse": "( C . )",
        },
    ]
    first, second = read_pairs(written(tmp_path, "\n".join(map(json.dumps, rows))))
    assert (first.label, first.first, first.second, first.parses) == ("entailment", "A b.", "C.", None)
    assert second.parses is not None
    assert tokens_of_parse(second.parses[0]) == ["A", "b", "."]
    assert second.where.endswith("line 3")


def test_tables_are_read_by_their_header(tmp_path: Path) -> None:
    sick = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\tA b\tC d\t4.5\tNEUTRAL\n"
    (pair,) = read_pairs(written(tmp_path, sick))
    assert (pair.first, pair.second, pair.label) == ("A b", "C d", "neutral")
    snli = "gold_label\tsentence1\tsentence2\tlabel1\tlabel2\nneutral\tA\tB\tneutral\n"
    (pair,) = read_pairs(written(tmp_path, snli))
    assert pair.label == "neutral"


@pytest.mark.slow
def test_the_shared_files_are_read_completely(shared: Path) -> None:
    data = shared / "data"
    trees_ = list(read_trees(str(data / "sst5/dev.txt")))
    roots = [tree.nodes[0].label for tree in trees_]
    assert [roots.count(label) for label in "01234"] == [139, 289, 229, 279, 165]
    assert len(list(read_trees(str(data / "sst5/train.txt")))) == 8544
    assert len(list(read_pairs(str(data / "nli-snli/dev.jsonl")))) == 9842
    assert len(list(read_pairs(str(data / "nli-sick/dev.jsonl")))) == 500
