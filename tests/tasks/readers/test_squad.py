"""SQuAD files are read into questions, passages and spans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elmokit.errors import TextError
from elmokit.tasks.readers.squad import QaExample, read_questions, read_squad

CONTEXT = "Ada fixed her bike in May. The old chain had snapped twice."


def squad(*questions: dict[str, Any], context: str = CONTEXT) -> str:
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
    (example,) = read(tmp_path, squad(question(("in May", 19))))
    assert example.answers == ("in May",)
    assert example.span == (4, 5)
    assert example.passage.slice(*example.span) == "in May"
    assert example.tokens == ("When", "did", "Ada", "fix", "it", "?")


def test_training_uses_the_most_frequent_span_and_the_first_of_equally_frequent_ones(tmp_path: Path) -> None:
    (example,) = read(tmp_path, squad(question(("in May", 19), ("May", 22), ("May", 22))))
    assert example.span == (5, 5)
    (example,) = read(tmp_path, squad(question(("in May", 19), ("May", 22))))
    assert example.span == (4, 5)


@pytest.mark.parametrize(
    ("text", "start"), [("in June", 19), ("in May", 20), ("May", 900), ("Ada", -3), ("", 3), (" ", 3)]
)
def test_an_answer_that_differs_from_the_passage_is_rejected_unless_mismatches_are_skipped(
    tmp_path: Path, text: str, start: int
) -> None:
    content = squad(question((text, start), ("in May", 19)))
    with pytest.raises(TextError, match=r"squad\.json, question 'q1': the answer .* data\.skip_mismatched = true"):
        read(tmp_path, content)
    (example,) = read(tmp_path, content, skip_mismatched=True)
    assert example.span == (4, 5)
    assert example.answers == (text, "in May")  # the official script still counts it
    (example,) = read(tmp_path, squad(question((text, start))), skip_mismatched=True)
    assert example.span is None


def test_a_question_without_an_answer_is_rejected_skipped_or_kept(tmp_path: Path) -> None:
    content = squad(question(is_impossible=True), question(("in May", 19)))
    with pytest.raises(TextError, match=r"question 'q1': has no answer.*model\.no_answer.*data\.skip_unanswerable"):
        read(tmp_path, content)
    assert [example.answers for example in read(tmp_path, content, unanswerable="skip")] == [("in May",)]
    kept = read(tmp_path, content, unanswerable="keep")
    assert [(example.answers, example.span) for example in kept] == [((), None), (("in May",), (4, 5))]


def test_a_file_without_gold_answers_is_read(tmp_path: Path) -> None:
    bare = question()
    del bare["answers"]
    (example,) = read(tmp_path, squad(bare))
    assert (example.answers, example.span) == (None, None)


def test_questions_to_predict_on_are_tab_separated_lines_json_lines_or_a_squad_file() -> None:
    lines = [f"When?\t{CONTEXT}", "", json.dumps({"question": "What?", "context": CONTEXT, "id": "x"})]
    tabbed, record = read_questions(lines, "input")
    assert (tabbed.id, tabbed.where, record.id) == ("1", "input, line 1", "x")
    assert tabbed.passage is record.passage
    (example,) = read_questions(squad(question(("in June", 19))).splitlines(), "input")
    assert (example.id, example.answers, example.span) == ("q1", None, None)


def test_every_answer_of_a_real_file_is_a_slice_of_its_passage(shared: Path) -> None:
    n_exact = n = 0
    for example in read_squad(str(shared / "data" / "squad-newwiki" / "dev.json")):
        assert example.answers is not None
        assert example.span is not None
        n += 1
        n_exact += example.passage.slice(*example.span) in example.answers
    assert n == 1255
    assert n_exact / n > 0.98
