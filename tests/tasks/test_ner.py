"""Named entity recognition: data, labels and the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from elmokit.errors import TextError
from elmokit.tasks import ner
from elmokit.tasks.inputs import ElmoShape, InputLayer, Inputs, LayersInModel, Vocabularies, WordTable
from elmokit.tasks.scores import Chunk
from elmokit.tasks.task_config import CharsConfig, WordsConfig
from tests.helpers.task_examples import NER, tiny

TASK = ner.NerTask()


def read(tmp_path: Path, text: str, **data: object) -> list[ner.NerExample]:
    path = tmp_path / "data.conll"
    path.write_text(text, encoding="utf-8")
    config = replace(ner.NerConfig(), data=ner.NerData(**data))  # type: ignore[arg-type]
    return list(TASK.read(str(path), config))


def test_every_tagging_scheme_gives_the_same_entities(tmp_path: Path) -> None:
    expected = read(tmp_path, NER)
    assert [sentence.chunks for sentence in expected] == [
        [Chunk(0, 1, "PER"), Chunk(2, 3, "LOC")],
        [Chunk(1, 3, "LOC")],
        [Chunk(0, 2, "PER"), Chunk(2, 3, "PER")],
    ]
    for scheme, tags in (
        ("IOB2", "B-PER O B-LOC | O B-LOC I-LOC O O | B-PER I-PER B-PER O"),
        ("BIOUL", "U-PER O U-LOC | O B-LOC L-LOC O O | B-PER L-PER U-PER O"),
    ):
        words = " | ".join(" ".join(sentence.tokens) for sentence in expected).split()
        text = "".join(
            "\n" if word == "|" else f"{word}\t{tag}\n" for word, tag in zip(words, tags.split(), strict=True)
        )
        found = read(tmp_path, text, tags=scheme)
        assert [(one.tokens, one.chunks) for one in found] == [(one.tokens, one.chunks) for one in expected]


def test_other_columns_may_be_chosen(tmp_path: Path) -> None:
    found = read(tmp_path, NER, token_column=1, tag_column=2)
    assert found[0].tokens == ["NNP", "VBZ", "NNP"]
    assert found[0].chunks == [Chunk(0, 1, "NP"), Chunk(1, 2, "VP"), Chunk(2, 3, "NP")]


@pytest.mark.parametrize(
    ("text", "data", "named"),
    [
        (NER, {"tag_column": 4}, r"line 3: 4 columns, but data\.token_column is 0 and data\.tag_column is 4"),
        (NER, {"tags": "IOB2"}, r"line 3: 'I-PER' .*IOB2.*data\.tags"),
        ("a O\nb PER\n", {}, r"line 2: 'PER' after 'O' .*IOB1, whose tags are O, B-TYPE, I-TYPE"),
        ("a O\n", {}, "contain no entity"),
    ],
)
def test_columns_that_cannot_be_learned_are_named(text: str, data: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(TextError, match=named):
        TASK.labels(read(tmp_path, text, **data), ner.NerConfig())


def test_labels_are_the_tags_of_all_types(tmp_path: Path) -> None:
    config = ner.NerConfig()
    tags = TASK.labels(read(tmp_path, NER), config)["tags"]
    assert tags == ["O", "B-LOC", "I-LOC", "L-LOC", "U-LOC", "B-PER", "I-PER", "L-PER", "U-PER"]


@pytest.mark.parametrize(
    ("with_elmo", "expected"),
    [(False, 1.57e6), (True, 3.21e6)],
)
def test_the_published_sizes_have_the_published_number_of_weights(with_elmo: bool, expected: float) -> None:
    layers = LayersInModel(ElmoShape(3, 1024)) if with_elmo else None
    inputs = Inputs(Vocabularies({"words": WordTable([], 50, True)}, list("ab")), layers)
    elmo = TASK.elmo if with_elmo else None
    layer = InputLayer(inputs, {"words": WordsConfig(dim=50)}, CharsConfig(), elmo)
    assert layer.output_dim == (1202 if with_elmo else 178)
    model = ner.NerModel(ner.NerModelConfig(), layer, ["O", *"abcdefghijklmnop"])
    n_weights = sum(weight.numel() for name, weight in model.named_parameters() if "inputs.words" not in name)
    assert n_weights == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("model", "chars"),
    [
        ({}, {}),
        ({"encoder": "gru", "hidden": [5, 4], "tags": "IOB1"}, {"layer": "gru", "hidden": 3, "n_layers": 2}),
        ({"encoder": "highway", "hidden": [5, 4], "recurrent_dropout": 0.3}, {"layer": "lstm", "bidirectional": False}),
        ({"encoder": "alternating", "hidden": [5, 4, 3], "feedforward": [6, 4], "activation": "tanh"}, {}),
    ],
)
def test_the_loss_is_the_sum_over_the_batch_and_padding_does_not_matter(
    model: dict[str, Any], chars: dict[str, Any], tmp_path: Path
) -> None:
    task, config = tiny("ner", tmp_path / "data", model=model, chars=chars)
    examples = list(TASK.read(str(tmp_path / "data"), config))
    known = TASK.labels(examples, config)
    inputs = Inputs(Vocabularies({"words": WordTable(["mira", "oslo"], 8, True)}, list("Mirasto")))
    torch.manual_seed(0)
    layer = InputLayer(inputs, {"words": config.words}, config.chars, None)
    built = task.build(config, layer, known)
    built.loss(TASK.collate(examples, inputs, known, config)).backward()
    assert all(weight.grad is not None for weight in built.parameters())
    built.eval()
    together = built.loss(TASK.collate(examples, inputs, known, config))
    alone = sum(built.loss(TASK.collate([example], inputs, known, config)) for example in examples)
    torch.testing.assert_close(together, alone)
    predicted = built.predict(TASK.collate(examples, inputs, known, config))
    assert predicted == [built.predict(TASK.collate([example], inputs, known, config))[0] for example in examples]


def test_decoded_tags_are_valid_even_from_an_untrained_model(tmp_path: Path) -> None:
    for scheme in ("BIOUL", "IOB2"):
        task, config = tiny(
            "ner", tmp_path / "data", model={"tags": scheme, "constraints": "both", "variational": True}
        )
        examples = list(TASK.read(str(tmp_path / "data"), config))
        known = TASK.labels(examples, config)
        inputs = Inputs(Vocabularies({"words": WordTable(["mira"], 8, True)}, list("Mir")))
        for seed in range(5):
            torch.manual_seed(seed)
            model = task.build(config, InputLayer(inputs, {"words": config.words}, config.chars, None), known).eval()
            batch = TASK.collate(examples, inputs, known, config)
            paths = model.crf.decode(model.emissions(batch.tokens), batch.tokens.mask)
            for path in paths:
                ner.chunks_in([model.tags[tag] for tag in path], model.scheme)


def test_scores_are_conlleval_s() -> None:
    def sentence(*chunks: Chunk) -> ner.NerExample:
        return ner.NerExample(["a"] * 6, list(chunks), "here")

    gold = [sentence(Chunk(0, 2, "X"), Chunk(2, 3, "Y")), sentence()]
    scores = TASK.score(gold, [[Chunk(0, 2, "X"), Chunk(2, 3, "X")], [Chunk(1, 2, "Y")]], ner.NerConfig())
    assert scores["precision"] == pytest.approx(100 / 3)
    assert (scores["recall"], scores["f1"]) == (50.0, 40.0)
    assert scores["f1-X"] == pytest.approx(200 / 3)


def test_predictions_for_programs_and_for_readers() -> None:
    example = ner.NerExample(["Mira", "saw", "New", "York"], None, "here")
    chunks = [Chunk(0, 1, "PER"), Chunk(2, 4, "LOC")]
    assert TASK.to_text(example, chunks) == "[PER Mira] saw [LOC New York]"
    record = TASK.to_record(example, chunks)
    assert record["tags"] == ["B-PER", "O", "B-LOC", "I-LOC"]
    assert record["entities"][1] == {"start": 2, "stop": 4, "label": "LOC", "text": "New York"}
