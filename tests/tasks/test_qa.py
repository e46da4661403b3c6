"""Question answering: its sizes as published, answers as slices, and learning to answer."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmokit.errors import TextError
from elmokit.tasks import qa
from elmokit.tasks.inputs import ElmoLayers, ElmoShape, InputLayer, Inputs, Texts, Vocabularies, WordTable
from elmokit.tasks.qa import QaExample, covering_tokens, read_questions, read_squad, tokenize_passage
from elmokit.tasks.task_config import CharsConfig, ElmoConfig, MixConfig, WordsConfig
from elmokit.text.marks import INVISIBLE
from tests.helpers.task_examples import QA_ANSWERS, QA_PASSAGE, squad

TASK = qa.QaTask()

TINY = qa.QaConfig(
    words=WordsConfig(dim=8),
    chars=CharsConfig(dim=4, filters=((3, 6),)),
    model=qa.QaModelConfig(hidden=8, dropout=0.0),
)


def examples(tmp_path: Path, config: qa.QaConfig = TINY, without_answer: bool = False) -> list[QaExample]:
    path = tmp_path / "squad.json"
    path.write_text(squad(QA_ANSWERS, ("Why is snow white?",) * without_answer), encoding="utf-8")
    return list(TASK.read(str(path), config))


class Ones(ElmoLayers):
    """Layers of ones."""

    def of_texts(self, texts: Texts) -> list[list[Any]]:
        shape = self.shape
        return [[np.ones((shape.n_layers, len(one), shape.dim), dtype=np.float32) for one in text] for text in texts]


def inputs_of(given: Sequence[QaExample], config: qa.QaConfig, elmo: ElmoShape | None = None) -> Inputs:
    words = sorted({word for example in given for sentence in TASK.sentences(example) for word in sentence})
    assert config.words is not None
    assert config.words.dim is not None
    assert config.chars is not None
    table = WordTable(words, config.words.dim, config.words.lowercase)
    known = Vocabularies({"words": table}, sorted(set("".join(words))), config.chars.max_chars)
    return Inputs(known, None if elmo is None else Ones(elmo))


def model_of(config: qa.QaConfig, inputs: Inputs) -> qa.BiDafPlusPlus:
    torch.manual_seed(0)
    assert config.words is not None
    return TASK.build(config, InputLayer(inputs, {"words": config.words}, config.chars, config.elmo), {})


def test_the_published_sizes_are_those_of_the_paper(tmp_path: Path) -> None:
    config = dataclasses.replace(TASK.presets["published"], elmo=TASK.elmo)
    model = model_of(config, inputs_of(examples(tmp_path), config, ElmoShape(3, 1024)))
    assert model.inputs.output_dim == 300 + 100 + 1024
    assert model.encoder.hidden_size == 90
    assert model.attention.scores.of_left.in_features == 180 + 1024
    assert model.after_attention.weight.shape == (180, 4816)
    assert model.after_self_attention.weight.shape == (180, 540)
    assert model.end_encoder.input_size == 360
    assert (model.dropout.p, model.max_answer) == (0.2, 17)
    baseline = dataclasses.replace(config, elmo=None)
    assert model_of(baseline, inputs_of(examples(tmp_path), baseline)).encoder.hidden_size == 100


def test_weights_start_as_published(tmp_path: Path) -> None:
    config = TASK.presets["published"]
    model = model_of(config, inputs_of(examples(tmp_path), config))
    weights = model.encoder.weight_ih_l0
    assert weights.abs().max() <= 0.1
    assert weights.std().item() == pytest.approx(0.044, abs=0.001)  # a normal of 0.05 cut at twice that
    assert not model.encoder.bias_hh_l0.any()
    assert model.inputs.chars is not None
    assert model.inputs.chars.embedding.weight.abs().max() <= 0.05
    assert model.self_attention.null_score.item() == -1


@pytest.mark.parametrize("elmo", [None, ElmoConfig(input=MixConfig(), output=MixConfig())])
def test_an_answer_does_not_depend_on_what_else_is_in_the_batch(tmp_path: Path, elmo: ElmoConfig | None) -> None:
    config = dataclasses.replace(TINY, elmo=elmo)
    given = examples(tmp_path)
    longer = dataclasses.replace(given[0].passage, text="x", tokens=("Ada",) * 40, spans=((0, 1),) * 40)
    given.append(dataclasses.replace(given[0], passage=longer, answers=None, span=None))
    inputs = inputs_of(given, config, ElmoShape(3, 10) if elmo else None)
    model = model_of(config, inputs).eval()
    with torch.no_grad():
        together = model.predict(TASK.collate(given, inputs, {}, config))
        alone = [model.predict(TASK.collate([example], inputs, {}, config))[0] for example in given]
    assert [answer[:2] for answer in together] == [answer[:2] for answer in alone]
    np.testing.assert_allclose([a.probability for a in together], [a.probability for a in alone], rtol=1e-4)


def test_the_loss_is_the_mean_of_both_ends_and_passes_over_unknown_spans(tmp_path: Path) -> None:
    given = examples(tmp_path)[:2]
    inputs = inputs_of(given, TINY)
    model = model_of(TINY, inputs).eval()
    batch = TASK.collate(given, inputs, {}, TINY)
    starts, ends = model(batch)
    spans = [example.span or (0, 0) for example in given]
    expected = -sum(starts[row, first] + ends[row, last] for row, (first, last) in enumerate(spans)) / 2
    torch.testing.assert_close(model.loss(batch), expected)
    unknown = dataclasses.replace(given[1], span=None)
    one = model.loss(TASK.collate([given[0], unknown], inputs, {}, TINY))
    torch.testing.assert_close(one, -(starts[0, spans[0][0]] + ends[0, spans[0][1]]))
    assert model.loss(TASK.collate([unknown], inputs, {}, TINY)).item() == 0


@pytest.mark.slow
def test_it_learns_to_answer_or_not_and_its_answers_are_slices(tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, model=dataclasses.replace(TINY.model, no_answer=True))
    given = examples(tmp_path, config, without_answer=True)
    inputs = inputs_of(given, config)
    model = model_of(config, inputs)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    batch = TASK.collate(given, inputs, {}, config)
    for _ in range(60):
        model.loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        answers = model.eval().predict(batch)
    assert [qa.answer_text(*pair) for pair in zip(given, answers, strict=True)] == [*QA_ANSWERS.values(), ""]
    scores = {f"{score}{part}": 100.0 for part in ("", "_answerable", "_unanswerable") for score in ("em", "f1")}
    assert TASK.score(given, answers, config) == scores
    record = TASK.to_record(given[1], answers[1])
    assert QA_PASSAGE[record["start"] : record["end"]] == record["answer"] == "The old chain"
    assert TASK.to_text(given[1], answers[1]) == "What had snapped?\n  The old chain"
    assert TASK.to_record(given[-1], answers[-1])["start"] is None
    assert TASK.to_text(given[-1], answers[-1]).endswith("(no answer)")


def test_without_gold_answers_there_is_nothing_to_learn_or_score(tmp_path: Path) -> None:
    given = examples(tmp_path)
    unanswered = dataclasses.replace(given[0], answers=None)
    for example, named in (
        (unanswered, "question 'q0': no gold answers"),
        (dataclasses.replace(given[0], span=None), "no question whose answer is in its passage"),
    ):
        with pytest.raises(TextError, match=named):
            TASK.labels([example], TINY)
    assert TASK.labels(given, TINY) == {}
    assert TASK.collate([unanswered], inputs_of(given, TINY), {}, TINY).starts is None


CONTEXT = "Ada fixed her bike in May. The old chain had snapped twice."


def squad_file(*questions: dict[str, Any], context: str = CONTEXT) -> str:
    return json.dumps(
        {"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": context, "qas": questions}]}]}
    )


def question(*answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    given = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": "q1", "question": "When did Ada fix it?", "answers": given, **more}


def read(tmp_path: Path, text: str, **options: Any) -> list[QaExample]:
    path = tmp_path / "squad.json"
    path.write_text(text, encoding="utf-8")
    return list(read_squad(str(path), **options))


def test_an_answer_becomes_a_span_of_tokens_and_its_slice_is_the_answer(tmp_path: Path) -> None:
    (example,) = read(tmp_path, squad_file(question(("in May", 19))))
    assert example.answers == ("in May",)
    assert example.span == (4, 5)
    assert example.passage.slice(*example.span) == "in May"
    assert example.tokens == ("When", "did", "Ada", "fix", "it", "?")


def test_training_uses_the_most_frequent_span_and_the_first_of_equally_frequent_ones(tmp_path: Path) -> None:
    (example,) = read(tmp_path, squad_file(question(("in May", 19), ("May", 22), ("May", 22))))
    assert example.span == (5, 5)
    (example,) = read(tmp_path, squad_file(question(("in May", 19), ("May", 22))))
    assert example.span == (4, 5)


@pytest.mark.parametrize(
    ("text", "start"), [("in June", 19), ("in May", 20), ("May", 900), ("Ada", -3), ("", 3), (" ", 3)]
)
def test_an_answer_that_differs_from_the_passage_is_rejected_unless_mismatches_are_skipped(
    tmp_path: Path, text: str, start: int
) -> None:
    content = squad_file(question((text, start), ("in May", 19)))
    with pytest.raises(TextError, match=r"squad\.json, question 'q1': the answer .* data\.skip_mismatched = true"):
        read(tmp_path, content)
    (example,) = read(tmp_path, content, skip_mismatched=True)
    assert example.span == (4, 5)
    assert example.answers == (text, "in May")  # the official script still counts it
    (example,) = read(tmp_path, squad_file(question((text, start))), skip_mismatched=True)
    assert example.span is None


def test_a_question_without_an_answer_is_rejected_skipped_or_kept(tmp_path: Path) -> None:
    content = squad_file(question(is_impossible=True), question(("in May", 19)))
    with pytest.raises(TextError, match=r"question 'q1': has no answer.*model\.no_answer.*data\.skip_unanswerable"):
        read(tmp_path, content)
    assert [example.answers for example in read(tmp_path, content, unanswerable="skip")] == [("in May",)]
    kept = read(tmp_path, content, unanswerable="keep")
    assert [(example.answers, example.span) for example in kept] == [((), None), (("in May",), (4, 5))]


def test_questions_to_predict_on_are_tab_separated_lines_json_lines_or_a_squad_file() -> None:
    lines = [f"When?\t{CONTEXT}", "", json.dumps({"question": "What?", "context": CONTEXT, "id": "x"})]
    tabbed, record = read_questions(lines, "input")
    assert (tabbed.id, tabbed.where, record.id) == ("1", "input, line 1", "x")
    assert tabbed.passage is record.passage
    (named,) = read_questions([json.dumps({"question": "What?", "passage": CONTEXT})], "input")  # as AllenNLP does
    assert named.passage == record.passage
    (example,) = read_questions(squad_file(question(("in June", 19))).splitlines(), "input")
    assert (example.id, example.answers, example.span) == ("q1", None, None)


@pytest.mark.parametrize("no_answer", [False, True])
def test_the_best_answers_are_those_of_all_spans_with_probabilities_that_sum_to_one(
    tmp_path: Path, no_answer: bool
) -> None:
    config = dataclasses.replace(TINY, model=dataclasses.replace(TINY.model, max_answer=3, no_answer=no_answer))
    given_examples = examples(tmp_path, config, without_answer=no_answer)
    # Of two lengths, so that one is padded.
    other = next(iter(read_questions(["What is it?\tIt is new."], "input")))
    given_examples.append(other)
    inputs = inputs_of(given_examples, config)
    model = model_of(config, inputs).eval()
    batch = TASK.collate(given_examples, inputs, {}, config)
    with torch.no_grad():
        starts, ends = model(batch)
        plain = model.predict(batch)
        found = model.predict_best(batch, 1000)
        few = model.predict_best(batch, 3)
    assert [answer._replace(best=()) for answer in found] == plain
    for row, (example, answer) in enumerate(zip(given_examples, found, strict=True)):
        n_tokens = len(example.passage.tokens)
        spans = [(first, last) for first in range(n_tokens) for last in range(first, min(first + 3, n_tokens))]
        weights = {(first, last): float((starts[row, first] + ends[row, last]).exp()) for first, last in spans}
        if no_answer:
            weights[-1, -1] = float((starts[row, -1] + ends[row, -1]).exp())
        total = sum(weights.values())
        assert {one[:2]: one.probability for one in answer.best} == pytest.approx(
            {span: weight / total for span, weight in weights.items()}, rel=1e-4
        )
        assert sum(one.probability for one in answer.best) == pytest.approx(1, rel=1e-5)
        assert answer.best[0][:2] == answer[:2]
        assert few[row].best == answer.best[:3]
        record = TASK.to_record(example, few[row])
        assert record["best"][0]["answer"] == record["answer"]
        assert "best" not in TASK.to_record(example, plain[row])
        assert len(TASK.to_text(example, few[row]).splitlines()) == 4


def test_every_answer_of_a_real_file_is_a_slice_of_its_passage(shared: Path) -> None:
    n_exact = n = 0
    for example in read_squad(str(shared / "data" / "squad-newwiki" / "dev.json")):
        assert example.answers is not None
        assert example.span is not None
        n += 1
        n_exact += example.passage.slice(*example.span) in example.answers
    assert n == 1255
    assert n_exact / n > 0.98


def tokens_of(text: str) -> list[str]:
    return [token.token for token in tokenize_passage(text)]


def test_full_stops_hyphens_slashes_currency_and_dashes_are_tokens_and_abbreviations_stay_whole() -> None:
    text = "Dr. Brown left the U.S. in May. A well-known 1990\N{EN DASH}1995 and/or £5 deal. Why?"
    assert tokens_of(text) == [
        *("Dr.", "Brown", "left", "the", "U.S.", "in", "May", ".", "A", "well", "-", "known"),
        *("1990", "\N{EN DASH}", "1995", "and", "/", "or", "£", "5", "deal", ".", "Why", "?"),
    ]


def test_quotes_and_minus_signs_are_read_in_one_form_and_kept_in_the_text() -> None:
    text = "He said “go” at \N{MINUS SIGN}5 and 'no'."
    tokens = tokenize_passage(text)
    assert [token.token for token in tokens][2:5] == ['"', "go", '"']
    assert [text[token.start : token.stop] for token in tokens][2:5] == ["“", "go", "”"]
    assert "-" in [token.token for token in tokens]


STRANGE = " ab.,'\"`-_“”\N{RIGHT SINGLE QUOTATION MARK}$€n\n\té\u00a0\u2009\N{EM DASH}?!0"


@given(st.text(alphabet=st.sampled_from(STRANGE), max_size=40) | st.text(max_size=40))
def test_tokens_are_in_order_and_contain_every_visible_character(text: str) -> None:
    position, seen = 0, ""
    for _, start, stop in tokenize_passage(text):
        assert position <= start < stop
        position, seen = stop, seen + text[start:stop]
    seen, text = (re.sub(rf"[\s{INVISIBLE}]", "", part) for part in (seen, text))
    assert seen == text


def test_an_answer_that_cuts_a_token_is_widened_to_it() -> None:
    places = [(start, stop) for _, start, stop in tokenize_passage("The 1990s ended.")]
    assert covering_tokens(places, 4, 8) == (1, 1)
    assert covering_tokens(places, 0, 15) == (0, 2)
    assert covering_tokens([(0, 1), (3, 4)], 1, 3) is None
