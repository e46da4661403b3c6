"""Questions on passages: SQuAD's JSON, v1.1 and v2.0, and plain lines to predict on.

The passage's tokens know their places (``text/passages.py``), so that a span of tokens is a slice of the raw text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from elmokit.errors import TextError
from elmokit.io.text_files import read_lines
from elmokit.tasks.readers.passages import PlacedToken, covering_tokens, passage_tokenizer

PlacedTokenize = Callable[[str], list[PlacedToken]]
Unanswerable = Literal["refuse", "skip", "keep"]


@dataclass(frozen=True)
class Passage:
    """A raw text and its tokens; all questions on it share one."""

    text: str
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    """First and past-the-last character of each token."""

    def slice(self, first: int, last: int) -> str:
        """The raw text from one token to another, both included."""
        return self.text[self.spans[first][0] : self.spans[last][1]]


@dataclass(frozen=True)
class QaExample:
    """A question on a passage."""

    where: str
    id: str
    text: str
    tokens: tuple[str, ...]
    """Of the question."""
    passage: Passage
    answers: tuple[str, ...] | None = None
    """What counts as right; none where the passage holds no answer (v2.0), None where it is not known."""
    span: tuple[int, int] | None = None
    """First and last token of the answer to train on: the most frequent among the answers, the first of equals."""


class _Answer(msgspec.Struct):
    text: str
    answer_start: int


class _Question(msgspec.Struct):
    id: str
    question: str
    answers: list[_Answer] | None = None
    is_impossible: bool = False


class _Paragraph(msgspec.Struct):
    context: str
    qas: list[_Question]


class _Article(msgspec.Struct):
    paragraphs: list[_Paragraph]
    title: str = ""


class _Squad(msgspec.Struct):
    data: list[_Article]


class _Line(msgspec.Struct):
    question: str
    context: str
    id: str = ""


def read_squad(path: str, unanswerable: Unanswerable = "refuse", skip_mismatched: bool = False) -> Iterator[QaExample]:
    """The questions of a SQuAD file, v1.1 or v2.0.

    Args:
        unanswerable: what becomes of v2.0's questions that have no answer; kept, their ``answers`` are empty and their
            ``span`` None.
        skip_mismatched: do not train on answers that differ from the text where they are said to stand. They still
            count as right when answers are scored, as in the official script.

    Raises:
        TextError: the file cannot be read, is not SQuAD's JSON, an answer differs from the text, or a question that
            has none is refused.
    """
    content = _parse("\n".join(read_lines(path)), path, 1, _Squad, "SQuAD's JSON")
    return _questions(content, path, passage_tokenizer(), unanswerable, skip_mismatched)


def read_questions(lines: Iterable[str], name: str) -> Iterator[QaExample]:
    """Questions without answers, to predict on: SQuAD's JSON, or one question a line.

    A line is a JSON object with ``question``, ``context`` and, if wanted, ``id``, or question, tab, passage.

    Args:
        name: what errors call the text.

    Raises:
        TextError: a line that is neither, or a question or passage without a word.
    """
    lines = list(lines)
    tokenize = passage_tokenizer()
    if _is_whole_file(lines):
        content = _parse("\n".join(lines), name, 1, _Squad, "SQuAD's JSON")
        for example in _questions(content, name, tokenize, "keep", skip_mismatched=True):
            yield QaExample(example.where, example.id, example.text, example.tokens, example.passage)
        return
    passages: dict[str, Passage] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        if line.lstrip().startswith("{"):
            record = _parse(line, name, number, _Line, "a JSON object with question and context")
        else:
            question, tab, context = line.partition("\t")
            if not tab:
                raise TextError(
                    f"{where}: expected a question, a tab and a passage, or a JSON object with question and context; "
                    f"found {line[:80]!r}."
                )
            record = _Line(question, context)
        passage = passages.setdefault(record.context, _passage(record.context, tokenize, where))
        tokens = _question_tokens(record.question, tokenize, where)
        yield QaExample(where, record.id or str(number), record.question, tokens, passage)


def _is_whole_file(lines: list[str]) -> bool:
    """Whether the lines together are one SQuAD file, not questions of their own."""
    try:
        content = json.loads("\n".join(lines))
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "data" in content


def _parse(text: str, name: str, line: int, kind: Any, expected: str) -> Any:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise TextError(
            f"{name}, line {line + error.lineno - 1}, column {error.colno}: broken JSON ({error.msg}). "
            f"Expected {expected}."
        ) from None
    except RecursionError:
        raise TextError(f"{name}: JSON nested too deeply. Expected {expected}.") from None
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise TextError(f"{name}: not {expected}: {error}.") from None


def _questions(
    content: _Squad, name: str, tokenize: PlacedTokenize, unanswerable: Unanswerable, skip_mismatched: bool
) -> Iterator[QaExample]:
    for article in content.data:
        for paragraph in article.paragraphs:
            passage = _passage(paragraph.context, tokenize, f"{name}, article {article.title!r}")
            for question in paragraph.qas:
                where = f"{name}, question {question.id!r}"
                answers: tuple[str, ...] | None = None
                span = None
                if question.is_impossible or question.answers == []:
                    if unanswerable == "skip":
                        continue
                    if unanswerable == "refuse":
                        raise TextError(
                            f"{where}: has no answer, as in SQuAD v2.0. Set model.no_answer = true to learn that some "
                            "questions have none, or data.skip_unanswerable = true to leave them out."
                        )
                    answers = ()
                elif question.answers is not None:
                    answers = tuple(answer.text for answer in question.answers)
                    span = _most_frequent_span(question.answers, passage, where, skip_mismatched)
                tokens = _question_tokens(question.question, tokenize, where)
                yield QaExample(where, question.id, question.question, tokens, passage, answers, span)


def _most_frequent_span(
    answers: list[_Answer], passage: Passage, where: str, skip_mismatched: bool
) -> tuple[int, int] | None:
    spans: Counter[tuple[int, int]] = Counter()
    for answer in answers:
        start, stop = answer.answer_start, answer.answer_start + len(answer.text)
        found = passage.text[max(start, 0) : max(stop, 0)]
        span = covering_tokens(passage.spans, start, stop)
        if found == answer.text and answer.text.strip() and span:
            spans[span] += 1
        elif not skip_mismatched:
            raise TextError(
                f"{where}: the answer {answer.text!r} should stand at character {start} of the passage, where it reads "
                f"{found!r}. Mend the file, or set data.skip_mismatched = true to leave such answers out of training."
            )
    return spans.most_common(1)[0][0] if spans else None


def _passage(text: str, tokenize: PlacedTokenize, where: str) -> Passage:
    placed = tokenize(text)
    if not placed:
        raise TextError(f"{where}: a passage without a word, {text[:40]!r}.")
    return Passage(text, tuple(token for token, _, _ in placed), tuple((start, stop) for _, start, stop in placed))


def _question_tokens(text: str, tokenize: PlacedTokenize, where: str) -> tuple[str, ...]:
    tokens = tuple(token for token, _, _ in tokenize(text))
    if not tokens:
        raise TextError(f"{where}: a question without a word, {text[:40]!r}.")
    return tokens
