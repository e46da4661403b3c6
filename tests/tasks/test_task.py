"""What all tasks have in common: the published sizes, and results that do not depend on the batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elmokit.tasks.inputs import ElmoShape, Inputs, LayersInModel, Vocabularies, WordTable
from elmokit.tasks.ner import NerBatch
from elmokit.tasks.sst import FIVE
from elmokit.tasks.tags import Chunk
from elmokit.tasks.task import MAX_SQUARES, TaskSetup
from elmokit.tasks.task_config import ElmoConfig
from elmokit.tasks.task_table import TASKS
from tests.helpers.task_examples import built

LABELS: dict[str, dict[str, list[str]]] = {
    "ner": {"tags": ["O", *"abcdefghijklmnop"]},
    "sst": {"classes": list(FIVE)},
    "nli": {"classes": ["contradiction", "entailment", "neutral"]},
    "srl": {"tags": ["O", *(f"{prefix}-{n}" for prefix in "BI" for n in range(64))]},  # about OntoNotes'
    "coref": {"genres": [""] * 8},
    "qa": {},
}


def published(name: str, preset: str = "published", **changes: Any) -> Any:
    """Build a model of a preset, with some fields of its config changed."""
    task = TASKS[name]
    config = replace(task.presets[preset], **changes)
    tables = {table: WordTable([], words.dim or 0, False) for table, words in task.word_configs(config).items()}
    layers = None if config.elmo is None else LayersInModel(ElmoShape(3, 1024))
    setup = TaskSetup(
        task, config, Inputs(Vocabularies(tables, list("ab")), layers), LABELS[name], torch.device("meta")
    )
    with torch.device("meta"):  # the weights have shapes and no values
        return setup.build()


@pytest.mark.parametrize(
    ("name", "changes", "millions", "tolerance"),
    [
        ("ner", {}, 1.57, 0.01),
        ("ner", {"elmo": TASKS["ner"].elmo}, 3.21, 0.01),
        ("sst", {}, 21.0, 1e-3),
        ("nli", {}, 4.33, 3e-3),
        ("nli", {"words": None, "elmo": ElmoConfig()}, 6.07, 3e-3),
        ("nli", {"elmo": TASKS["nli"].elmo}, 8.0, 3e-3),
        ("srl", {}, 7.77, 5e-3),
    ],
)
def test_the_published_sizes_have_the_published_number_of_weights_besides_words(
    name: str, changes: dict[str, Any], millions: float, tolerance: float
) -> None:
    weights = published(name, **changes).named_parameters()
    n_weights = sum(weight.numel() for key, weight in weights if not key.startswith("inputs.words"))
    assert n_weights == pytest.approx(millions * 1e6, rel=tolerance)


def test_layers_have_the_published_sizes_and_dropout_with_and_without_elmo() -> None:
    assert [published("ner", elmo=elmo).inputs.output_dim for elmo in (None, TASKS["ner"].elmo)] == [178, 1202]
    assert [published("nli", elmo=elmo).attention_dropout.p for elmo in (None, TASKS["nli"].elmo)] == [0.0, 0.5]
    assert [published("sst", elmo=elmo).input_dropout.p for elmo in (None, TASKS["sst"].elmo)] == [0.25, 0.5]
    sst = published("sst", elmo=TASKS["sst"].elmo)
    assert (sst.project.in_features, sst.output[0].linear.in_features) == (1324, 6496)
    assert [layer.p for layer in sst.output if isinstance(layer, nn.Dropout)] == [0.2, 0.3, 0.0]
    assert [published("qa", elmo=elmo).encoder.hidden_size for elmo in (None, TASKS["qa"].elmo)] == [100, 90]
    qa = published("qa", elmo=TASKS["qa"].elmo)
    assert qa.inputs.output_dim == 300 + 100 + 1024
    assert qa.attention.scores.of_left.in_features == 180 + 1024
    assert qa.after_attention.weight.shape == (180, 4816)
    assert qa.after_self_attention.weight.shape == (180, 540)
    assert (qa.end_encoder.input_size, qa.dropout.p, qa.max_answer) == (360, 0.2, 17)
    for preset, n_heads, span_dim, pair_dim in (("published", 500, 1320, 4020), ("coarse-to-fine", 450, 1270, 3870)):
        coref = published("coref", preset)
        assert (coref.vectors.parts, coref.vectors.output_dim) == ((400, 400, 20, n_heads), span_dim)
        assert coref.pairs.scorer.first.in_features == pair_dim
        assert coref.lstm.layers[0].input_weight.shape == (2, 600, n_heads)


# Settings of the model and of its characters that only models of AllenNLP have.
OTHER_TAGGERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"encoder": "gru", "hidden": [5, 4], "tags": "IOB1"}, {"layer": "gru", "hidden": 3, "n_layers": 2}),
    ({"encoder": "highway", "hidden": [5, 4], "recurrent_dropout": 0.3}, {"layer": "lstm", "bidirectional": False}),
    ({"encoder": "highway", "hidden": [5]}, {"layer": "lstm", "bidirectional": False, "n_layers": 2}),
    ({"encoder": "alternating", "hidden": [5, 4, 3], "feedforward": [6, 4], "activation": "tanh"}, {}),
]


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        *((name, {}) for name in TASKS),
        *(("ner", {"model": model, "chars": chars}) for model, chars in OTHER_TAGGERS),
    ],
)
def test_the_loss_is_the_sum_or_mean_over_examples_and_a_prediction_is_that_of_its_example_alone(
    name: str, tables: dict[str, Any], tmp_path: Path
) -> None:
    setup, model, examples = built(name, tmp_path, **tables)
    model.loss(setup.batch(examples, model)).backward()
    assert all(weight.grad is not None for weight in model.parameters())
    model.eval()
    loss = model.loss(setup.batch(examples, model))
    losses = torch.stack([model.loss(setup.batch([example], model)) for example in examples])
    torch.testing.assert_close(loss, losses.sum() if name == "ner" else losses.mean())
    predicted = model.predict(setup.batch(examples, model))
    alone = [model.predict(setup.batch([example], model))[0] for example in examples]
    pairs = [[setup.task.to_text(*pair) for pair in zip(examples, each, strict=True)] for each in (predicted, alone)]
    assert pairs[0] == pairs[1]


def test_a_batch_with_a_long_example_is_divided(tmp_path: Path) -> None:
    setup, model, examples = built("ner", tmp_path, train={"batch_size": 32})
    shapes: list[tuple[int, int]] = []

    def predict(batch: NerBatch) -> list[list[Chunk]]:
        shapes.append(tuple(batch.tokens.mask.shape))
        return [[] for _ in range(len(batch.tokens.mask))]

    model.predict = predict
    given = [replace(examples[0], tokens=["Mira"] * n_tokens) for n_tokens in (10_000, 2000, 1900, *[4] * 40)]
    assert len(setup.predict_with(model, given)) == len(given)
    assert shapes[:2] == [(1, 10_000), (2, 2000)]
    assert all(n_rows * n_tokens**2 <= MAX_SQUARES for n_rows, n_tokens in shapes[1:])
    assert sum(n_rows for n_rows, _ in shapes) == len(given)
