"""Named entity recognition: data, labels and the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from elmokit.errors import TextError
from elmokit.tasks import ner
from elmokit.tasks.tags import Chunk
from tests.helpers.task_examples import NER, built

TASK = ner.NerTask()


def read(tmp_path: Path, text: str, **data: object) -> list[ner.NerExample]:
    path = tmp_path / "data.conll"
    path.write_text(text, encoding="utf-8")
    config = replace(ner.NerConfig(), data=ner.NerData(**data))
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


def test_decoded_tags_are_valid_even_from_an_untrained_model(tmp_path: Path) -> None:
    for scheme in ("BIOUL", "IOB2"):
        settings = {"tags": scheme, "constraints": "both", "variational": True}
        setup, model, examples = built("ner", tmp_path, model=settings)
        batch = setup.batch(examples, model.eval())
        for seed in range(5):
            torch.manual_seed(seed)
            for path in model.crf.decode(torch.randn(3, 5, len(model.tags)), batch.tokens.mask):
                ner.chunks_in([model.tags[tag] for tag in path], setup.config.model.tags)


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
