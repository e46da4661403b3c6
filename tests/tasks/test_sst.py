"""Sentiment: data, labels and the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from elmokit.errors import TextError
from elmokit.tasks import sst
from elmokit.tasks.inputs import InputLayer, Inputs, Vocabularies, WordTable
from elmokit.tasks.sst import LabeledTree, TreeNode, parse_tree, read_trees
from elmokit.tasks.task_config import WordsConfig
from tests.helpers.task_examples import SST, tiny

TASK = sst.SstTask()


def config(**data: Any) -> sst.SstConfig:
    return replace(sst.SstConfig(), data=sst.SstData(**data))


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "trees").write_text(SST)
    return str(tmp_path / "trees")


def test_evaluation_reads_sentences_and_training_reads_phrases(path: str) -> None:
    assert [phrase.label for phrase in TASK.read(path, config())] == [
        "positive", "negative", "neutral", "very positive", "very negative",
    ]  # fmt: skip
    every = list(TASK.read_training(path, config()))
    assert len(every) == 5 + 7 + 5 + 5 + 5
    assert every[1].tokens == ["Mira"]
    assert len(list(TASK.read_training(path, config(phrases="roots")))) == 5
    long = [" ".join(phrase.tokens) for phrase in TASK.read_training(path, config(min_tokens=4))]
    assert long == ["Mira rides superbly", "It was rather dull", "A film .", "Great fun !", "Simply awful ."]


def test_three_classes_merge_labels_and_two_drop_the_neutral_ones(path: str) -> None:
    three, two = config(classes=3), config(classes=2)
    assert [phrase.label for phrase in TASK.read(path, three)] == [
        "positive", "negative", "neutral", "positive", "negative",
    ]  # fmt: skip
    assert [phrase.label for phrase in TASK.read(path, two)] == ["positive", "negative", "positive", "negative"]
    assert {phrase.label for phrase in TASK.read_training(path, two)} == {"positive", "negative"}
    assert TASK.labels([], three) == {"classes": ["negative", "neutral", "positive"]}
    assert TASK.labels([], config()) == {"classes": list(sst.FIVE)}


def made(**sizes: Any) -> tuple[sst.SstModel, Inputs]:
    torch.manual_seed(0)
    inputs = Inputs(Vocabularies({"words": WordTable(["a", "b"], 300, False)}))
    layer = InputLayer(inputs, {"words": WordsConfig(dim=300)}, None, None)
    return sst.SstModel(sst.SstModelConfig(**sizes), layer, sst.FIVE), inputs


def test_the_network_computes_the_formulas_of_the_paper() -> None:
    model, inputs = made(projection_dim=7, hidden=5, output_hidden=(6,), output_dropout=(0.2,))
    model.eval()
    sentence = ["a", "b", "b", "a", "c"]
    x = F.relu(model.project(model.inputs(inputs.batch([sentence]))))
    x = model.encoder(x)[0][0]  # (time, 10)
    c = (x @ x.T).softmax(dim=1) @ x
    y = model.integrator(torch.cat([x, x - c, x * c], dim=1)[None])[0][0]
    beta = model.weigh(y).softmax(dim=0)
    pooled = torch.cat([y.amax(0), y.amin(0), y.mean(0), (beta * y).sum(0)])
    expected = model.output(pooled[None])
    found = model.scores(inputs.batch([["b"], sentence, ["a", "b"]]))
    torch.testing.assert_close(found[1:2], expected)


def test_relu_layers_can_replace_maxout() -> None:
    model, inputs = made(output="relu", hidden=5, projection_dim=7, output_hidden=(6, 4))
    batch = inputs.batch([["a"], []])
    assert model.scores(batch).shape == (2, 5)
    kinds = [type(layer).__name__ for layer in model.output]
    assert kinds == ["Sequential", "Dropout", "Sequential", "Dropout", "Linear", "Dropout"]


def test_predictions_and_scores(tmp_path: Path) -> None:
    example = sst.Phrase(["so", "so"], "neutral", "here")
    prediction = {"negative": 0.25, "neutral": 0.75}
    assert TASK.to_text(example, prediction) == "neutral\t0.75\tso so"
    assert TASK.to_record(example, prediction)["label"] == "neutral"
    assert TASK.score([example], [prediction], config()) == {"accuracy": 100.0}
    with pytest.raises(TextError, match="this run knows positive"):
        TASK.check(example, {"classes": ["positive"]})
    task, tiny_config = tiny("sst", tmp_path / "data")
    texts = list(task.read_text(["so so"], "text", str.split, tiny_config))
    assert texts == [sst.Phrase(["so", "so"], None, "text, line 1")]


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


@pytest.mark.slow
def test_the_shared_trees_are_read_completely(shared: Path) -> None:
    data = shared / "data"
    trees_ = list(read_trees(str(data / "sst5/dev.txt")))
    roots = [tree.nodes[0].label for tree in trees_]
    assert [roots.count(label) for label in "01234"] == [139, 289, 229, 279, 165]
    assert len(list(read_trees(str(data / "sst5/train.txt")))) == 8544
