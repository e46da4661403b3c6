"""Question answering: answers as slices, and learning to answer."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmokit.errors import TextError
from elmokit.tasks import qa
from elmokit.tasks.qa import QaExample, covering_tokens, read_questions, read_squad, tokenize_passage
from elmokit.tasks.task import TaskSetup
from elmokit.text.marks import INVISIBLE
from tests.helpers.task_examples import QA_ANSWERS, QA_PASSAGE, built, squad

TASK = qa.QaTask()
SIZES = {"hidden": 8, "dropout": 0.0}


def tiny(tmp_path: Path, elmo: dict[str, Any] | None = None, **model: Any) -> tuple[TaskSetup, Any, list[QaExample]]:
    """A small model without dropout, and its questions; the last one has no answer if the model knows that."""
    without_answer = ("Why is snow white?",) * model.get("no_answer", False)
    (tmp_path / "qa.data").write_text(squad(QA_ANSWERS, without_answer), encoding="utf-8")
    return built("qa", tmp_path, elmo, model=SIZES | model)


def test_weights_start_as_published(tmp_path: Path) -> None:
    _, model, _ = built("qa", tmp_path, preset="published", model={"hidden": 100})
    weights = model.encoder.weight_ih_l0
    assert weights.abs().max() <= 0.1
    assert weights.std().item() == pytest.approx(0.044, abs=0.001)  # a normal of 0.05 cut at twice that
    assert not model.encoder.bias_hh_l0.any()
    assert model.inputs.chars.embedding.weight.abs().max() <= 0.05
    assert model.self_attention.null_score.item() == -1


@pytest.mark.parametrize("elmo", [None, {"input": {}, "output": {}}])
def test_an_answer_does_not_depend_on_what_else_is_in_the_batch(tmp_path: Path, elmo: dict[str, Any] | None) -> None:
    setup, model, given = tiny(tmp_path, elmo)
    longer = replace(given[0].passage, text="x", tokens=("Ada",) * 40, spans=((0, 1),) * 40)
    given.append(replace(given[0], passage=longer, answers=None, span=None))
    model.eval()
    with torch.no_grad():
        together = model.predict(setup.batch(given, model))
        alone = [model.predict(setup.batch([example], model))[0] for example in given]
    assert [answer[:2] for answer in together] == [answer[:2] for answer in alone]
    np.testing.assert_allclose([a.probability for a in together], [a.probability for a in alone], rtol=1e-4)


def test_the_loss_is_the_mean_of_both_ends_and_passes_over_unknown_spans(tmp_path: Path) -> None:
    setup, model, (first, second, *_) = tiny(tmp_path)
    batch = setup.batch([first, second], model.eval())
    starts, ends = model(batch)
    spans = [example.span or (0, 0) for example in (first, second)]
    nats = [-(starts[row, start] + ends[row, end]) for row, (start, end) in enumerate(spans)]
    torch.testing.assert_close(model.loss(batch), (nats[0] + nats[1]) / 2)
    unknown = replace(second, span=None)
    torch.testing.assert_close(model.loss(setup.batch([first, unknown], model)), nats[0])
    assert model.loss(setup.batch([unknown], model)).item() == 0


@pytest.mark.slow
def test_it_learns_to_answer_or_not_and_its_answers_are_slices(tmp_path: Path) -> None:
    setup, model, given = tiny(tmp_path, no_answer=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    batch = setup.batch(given, model)
    for _ in range(60):
        model.loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    answers = setup.predict_with(model, given)
    assert [qa.answer_text(*pair) for pair in zip(given, answers, strict=True)] == [*QA_ANSWERS.values(), ""]
    scores = {f"{score}{part}": 100.0 for part in ("", "_answerable", "_unanswerable") for score in ("em", "f1")}
    assert TASK.score(given, answers, setup.config) == scores
    record = TASK.to_record(given[1], answers[1])
    assert QA_PASSAGE[record["start"] : record["end"]] == record["answer"] == "The old chain"
    assert TASK.to_text(given[1], answers[1]) == "What had snapped?\n  The old chain"
    assert TASK.to_record(given[-1], answers[-1])["start"] is None
    assert TASK.to_text(given[-1], answers[-1]).endswith("(no answer)")


def test_without_gold_answers_there_is_nothing_to_learn_or_score(tmp_path: Path) -> None:
    setup, model, given = tiny(tmp_path)
    unanswered = replace(given[0], answers=None)
    for example, named in (
        (unanswered, "question 'q0': no gold answers"),
        (replace(given[0], span=None), "no question whose answer is in its passage"),
    ):
        with pytest.raises(TextError, match=named):
            TASK.labels([example], setup.config)
    assert TASK.labels(given, setup.config) == {}
    assert setup.batch([unanswered], model).starts is None


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


def test_an_answer_becomes_a_span_of_tokens_whose_slice_is_the_answer(tmp_path: Path) -> None:
    (example,) = read(tmp_path, squad_file(question(("in May", 19))))
    assert example.answers == ("in May",)
    assert example.span == (4, 5)
    assert example.passage.slice(*example.span) == "in May"
    assert example.tokens == ("When", "did", "Ada", "fix", "it", "?")
    # Training uses the most frequent span, and the first of equally frequent ones.
    for answers, span in (([("May", 22), ("May", 22)], (5, 5)), ([("May", 22)], (4, 5))):
        (example,) = read(tmp_path, squad_file(question(("in May", 19), *answers)))
        assert example.span == span


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
    with pytest.raises(TextError, match=r"question 'q1': no answer.*model\.no_answer.*data\.skip_unanswerable"):
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
    setup, model, given_examples = tiny(tmp_path, max_answer=3, no_answer=no_answer)
    # Of two lengths, so that one is padded.
    given_examples += read_questions(["What is it?\tIt is new."], "input")
    batch = setup.batch(given_examples, model.eval())
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
        n += 1
        n_exact += example.passage.slice(*example.span) in example.answers
    assert n == 1255
    assert n_exact / n > 0.98


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Dr. Brown left the U.S. in May.", "Dr. Brown left the U.S. in May ."),
        (
            "A well-known 1990\N{EN DASH}1995 and/or £5 deal. Why?",
            "A well - known 1990 \N{EN DASH} 1995 and / or £ 5 deal . Why ?",
        ),
        ("He said “go” at \N{MINUS SIGN}5.", 'He said " go " at - 5 .'),  # in one form
    ],
)
def test_a_passage_is_tokenized_into_words_and_marks(text: str, tokens: str) -> None:
    found = tokenize_passage(text)
    assert [token.token for token in found] == tokens.split()
    if "“" in text:  # the text keeps its own form
        assert [text[token.start : token.stop] for token in found][2:5] == ["“", "go", "”"]


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
