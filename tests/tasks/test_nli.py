"""Natural language inference: data and the model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.tasks import nli
from elmokit.tasks.inputs import InputLayer, Inputs, Vocabularies, WordTable
from elmokit.tasks.nli import read_pairs
from elmokit.tasks.task_config import WordsConfig
from tests.helpers.task_examples import NLI

TASK = nli.NliTask()

CLASSES = ["contradiction", "entailment", "neutral"]


def config(**data: Any) -> nli.NliConfig:
    return replace(nli.NliConfig(), data=nli.NliData(**data))


def made(**sizes: Any) -> tuple[nli.NliModel, Inputs]:
    torch.manual_seed(0)
    inputs = Inputs(Vocabularies({"words": WordTable(["a", "b", "c"], 300, False)}))
    layer = InputLayer(inputs, {"words": WordsConfig(dim=300)}, None, None)
    return nli.NliModel(nli.NliModelConfig(**sizes), layer, CLASSES), inputs


def test_the_network_computes_the_formulas_of_the_paper() -> None:
    model, inputs = made(hidden=5)
    model.eval()
    premise, hypothesis = ["a", "b", "c"], ["c", "a"]

    def encoded(sentence: list[str]) -> Tensor:
        return model.encoder(model.inputs(inputs.batch([sentence])))[0][0]

    a, b = encoded(premise), encoded(hypothesis)
    e = a @ b.T
    a_, b_ = e.softmax(dim=1) @ b, e.T.softmax(dim=1) @ a

    def composed(own: Tensor, other: Tensor) -> Tensor:
        compared = torch.cat([own, other, own - other, own * other], dim=1)
        return model.composer(F.relu(model.project(compared))[None])[0][0]

    va, vb = composed(a, a_), composed(b, b_)
    pooled = torch.cat([va.mean(0), va.amax(0), vb.mean(0), vb.amax(0)])
    expected = model.output(F.relu(model.join(pooled)))
    pairs = [nli.SentencePair(["a"], ["b", "c", "a"], None, ""), nli.SentencePair(premise, hypothesis, None, "")]
    batch = TASK.collate(pairs, inputs, {"classes": CLASSES}, config())
    torch.testing.assert_close(model.scores(*batch.texts)[1], expected)
    assert batch.classes is None


def test_weights_start_glorot_and_orthogonal_with_a_forget_bias_of_1() -> None:
    model, _ = made(hidden=5)
    assert model.encoder.bias_ih_l0[5:10].tolist() == [1.0] * 5
    assert not model.encoder.bias_hh_l0.any()
    torch.testing.assert_close(
        model.composer.weight_hh_l0.T @ model.composer.weight_hh_l0, torch.eye(5), atol=1e-5, rtol=0
    )


def test_sentences_are_tokenized_as_configured(tmp_path: Path) -> None:
    path = written(tmp_path, NLI)
    first, *rest = TASK.read(path, config())
    assert first.premise == ["A", "girl", "fixes", "a", "bike", "."]
    assert len(rest) == 3
    assert next(iter(TASK.read(path, config(tokenize="spaces")))).premise[-1] == "bike."


def test_text_is_premise_and_hypothesis_separated_by_a_tab_or_json() -> None:
    lines = ["A girl.\tNo one.", '{"sentence1": "A girl.", "sentence2": "No one."}']
    first, second = TASK.read_text([lines[0], "", lines[1], " "], "text", str.split, config())
    assert (first.premise, first.hypothesis, first.label) == (["A", "girl", "."], ["No", "one", "."], None)
    assert second.premise == first.premise


def test_predictions_and_scores() -> None:
    pair = nli.SentencePair(["a"], ["b"], "neutral", "here")
    prediction = {"entailment": 0.1, "neutral": 0.9}
    assert TASK.to_text(pair, prediction) == "neutral\t0.90\ta\tb"
    assert TASK.to_record(pair, prediction)["probabilities"] == prediction
    assert TASK.score([pair], [prediction], config()) == {"accuracy": 100.0}
    assert TASK.lengths(replace(pair, hypothesis=["b", "c"])) == (1, 2)


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "pairs"
    path.write_text(text, encoding="utf-8")
    return str(path)


JSON_LINES = [
    {"gold_label": "Entailment", "sentence1": "A b.", "sentence2": "C."},
    {"gold_label": "-", "sentence1": "A", "sentence2": "B"},  # without a majority
    {"gold_label": "neutral", "sentence1": "A b.", "sentence2": "C.", "sentence1_binary_parse": "( ( A b ) . )"},
]
SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\tA b\tC d\t4.5\tNEUTRAL\n"
SNLI = "gold_label\tsentence1\tsentence2\tlabel1\tlabel2\nneutral\tA\tB\tneutral\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("\n".join(map(json.dumps, JSON_LINES)), [("entailment", "A b.", "C."), ("neutral", "A b.", "C.")]),
        (SICK, [("neutral", "A b", "C d")]),
        (SNLI, [("neutral", "A", "B")]),
    ],
)
def test_pairs_are_read_from_json_lines_and_from_tables_by_their_header(
    content: str, expected: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    pairs = list(read_pairs(written(tmp_path, content)))
    assert [(pair.label, pair.first, pair.second) for pair in pairs] == expected
    if len(pairs) == 2:
        assert pairs[1].where.endswith("line 3")


def test_the_shared_pairs_are_read_completely(shared: Path) -> None:
    assert len(list(read_pairs(str(shared / "data/nli-snli/dev.jsonl")))) == 9842
    assert len(list(read_pairs(str(shared / "data/nli-sick/dev.jsonl")))) == 500
