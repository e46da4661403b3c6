"""Read questions about passages: SQuAD's JSON (v1.1 and v2.0), and lines of text to predict on.

Tokens keep their character offsets, so that a span of tokens is a slice of the raw text. Sentences and words are split
as in the Penn Treebank. Tokens are then split further at hyphens, slashes, quotes, currency signs and dashes, as in
Clark and Gardner's program, so that an answer rarely starts or ends inside a token. Their program used Punkt's learned
English abbreviations; here it is a fixed list.
"""

from __future__ import annotations

import bisect
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from elmokit.errors import TextError
from elmokit.storage.text_files import read_text
from elmokit.tasks.readers.json_text import parse_json
from elmokit.text.english import sentence_spans, token_spans

Unanswerable = Literal["error", "skip", "keep"]
SQUAD_JSON = "SQuAD's JSON"  # as error messages call it
DOUBLE_QUOTES = "\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}\N{DOUBLE LOW-9 QUOTATION MARK}«»"
SINGLE_QUOTES = "\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}"
DASHES = "\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}"
SPLIT_AT = re.compile(rf"``|''|(?<=[^_])_(?=[^_])|[-/~\"'°£€¥¢₹{DOUBLE_QUOTES}{SINGLE_QUOTES}{DASHES}]")
NORMALIZED = {
    **dict.fromkeys(("``", "''", *DOUBLE_QUOTES), '"'),
    **dict.fromkeys(SINGLE_QUOTES, "'"),
    "\N{MINUS SIGN}": "-",
}
"""Tokens that differ from their slice of the text: all quotes and minus signs are read in their ASCII form."""


@dataclass(frozen=True)
class Passage:
    """A raw text and its tokens, shared by all questions about it."""

    text: str
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    """Character offsets of each token: the first character, and the one after the last."""

    def slice(self, first: int, last: int) -> str:
        """Return the raw text from one token to another, both included."""
        return self.text[self.spans[first][0] : self.spans[last][1]]


@dataclass(frozen=True)
class QaExample:
    """A question about a passage."""

    where: str
    """File and question, for error messages."""
    id: str
    text: str
    """The question, raw."""
    tokens: tuple[str, ...]
    """The tokens of the question."""
    passage: Passage
    answers: tuple[str, ...] | None = None
    """The acceptable answers; empty if the passage contains no answer (v2.0), None if they are unknown."""
    span: tuple[int, int] | None = None
    """First and last token of the answer to train on: the most frequent, or the first of equally frequent ones."""


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


def read_squad(path: str, unanswerable: Unanswerable = "error", skip_mismatched: bool = False) -> Iterator[QaExample]:
    """Read the questions of a SQuAD file, v1.1 or v2.0.

    Args:
        unanswerable: What to do with questions of v2.0 that have no answer: raise an error, skip them, or keep them
            with empty ``answers`` and without a ``span``.
        skip_mismatched: Do not train on answers whose text differs from the passage at the given offset, instead of
            raising an error. They still count as correct when predictions are scored, as in the official script.
    """
    content = parse_json(read_text(path), path, _Squad, SQUAD_JSON)
    return _questions(content, path, unanswerable, skip_mismatched)


def read_questions(lines: Iterable[str], name: str) -> Iterator[QaExample]:
    """Read questions without answers, to predict on: SQuAD's JSON, or one question per line.

    A line is a question, a tab and a passage, or a JSON object with ``question``, ``context`` and optionally ``id``.
    """
    lines = list(lines)
    if _is_whole_file(lines):
        content = parse_json("\n".join(lines), name, _Squad, SQUAD_JSON)
        for example in _questions(content, name, "keep", skip_mismatched=True):
            yield QaExample(example.where, example.id, example.text, example.tokens, example.passage)
        return
    passages: dict[str, Passage] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        question, tab, context = line.partition("\t")
        if not tab or line.lstrip().startswith("{"):
            record = parse_json(
                line, where, _Line, "a question, a tab and a passage, or a JSON object with question and context"
            )
        else:
            record = _Line(question, context)
        passage = passages.setdefault(record.context, _passage(record.context, where))
        tokens = _question(record.question, where)
        yield QaExample(where, record.id or str(number), record.question, tokens, passage)


def _is_whole_file(lines: list[str]) -> bool:
    """Return whether the lines together are one SQuAD file rather than one question each."""
    try:
        content = json.loads("\n".join(lines))
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "data" in content


def _questions(content: _Squad, name: str, unanswerable: Unanswerable, skip_mismatched: bool) -> Iterator[QaExample]:
    for article in content.data:
        for paragraph in article.paragraphs:
            passage = _passage(paragraph.context, f"{name}, article {article.title!r}")
            for question in paragraph.qas:
                where = f"{name}, question {question.id!r}"
                answers: tuple[str, ...] | None = None
                span = None
                if question.is_impossible or question.answers == []:
                    if unanswerable == "skip":
                        continue
                    if unanswerable == "error":
                        raise TextError(
                            f"{where}: has no answer, as in SQuAD v2.0. Set model.no_answer = true to train on such "
                            "questions, or data.skip_unanswerable = true to skip them."
                        )
                    answers = ()
                elif question.answers is not None:
                    answers = tuple(answer.text for answer in question.answers)
                    span = _most_frequent_span(question.answers, passage, where, skip_mismatched)
                tokens = _question(question.question, where)
                yield QaExample(where, question.id, question.question, tokens, passage, answers, span)


def _most_frequent_span(
    answers: list[_Answer], passage: Passage, where: str, skip_mismatched: bool
) -> tuple[int, int] | None:
    spans: Counter[tuple[int, int]] = Counter()
    for answer in answers:
        start, stop = answer.answer_start, answer.answer_start + len(answer.text)
        written = passage.text[max(start, 0) : max(stop, 0)]
        span = covering_tokens(passage.spans, start, stop)
        if written == answer.text and answer.text.strip() and span:
            spans[span] += 1
        elif not skip_mismatched:
            raise TextError(
                f"{where}: the answer {answer.text!r} is not at character {start} of the passage; the text there is "
                f"{written!r}. Correct the file, or set data.skip_mismatched = true to skip such answers in training."
            )
    return spans.most_common(1)[0][0] if spans else None


def _passage(text: str, where: str) -> Passage:
    tokens = _tokens(text, where, "passage")
    return Passage(text, tuple(token for token, _, _ in tokens), tuple((start, stop) for _, start, stop in tokens))


def _question(text: str, where: str) -> tuple[str, ...]:
    return tuple(token for token, _, _ in _tokens(text, where, "question"))


def _tokens(text: str, where: str, what: str) -> list[OffsetToken]:
    tokens = tokenize_passage(text)
    if not tokens:
        raise TextError(f"{where}: the {what} {text[:40]!r} contains no word.")
    return tokens


class OffsetToken(NamedTuple):
    """A token and its slice ``text[start:stop]`` of the passage."""

    token: str
    start: int
    stop: int


def tokenize_passage(text: str) -> list[OffsetToken]:
    """Split a raw passage into its tokens with their character offsets."""
    tokens = []
    for sentence_start, sentence_stop in sentence_spans(text):
        for start, stop in token_spans(text[sentence_start:sentence_stop]):
            tokens += _split_word(text, sentence_start + start, sentence_start + stop)
    return tokens


def _split_word(text: str, start: int, stop: int) -> list[OffsetToken]:
    """Split one word into the matches of ``SPLIT_AT`` and the text between them."""
    cuts = [start]
    for match in SPLIT_AT.finditer(text, start, stop):
        cuts += [match.start(), match.end()]
    cuts.append(stop)
    pieces = [(text[first:last], first, last) for first, last in itertools.pairwise(cuts) if first < last]
    return [OffsetToken(NORMALIZED.get(piece, piece), first, last) for piece, first, last in pieces]


def covering_tokens(offsets: Sequence[tuple[int, int]], start: int, stop: int) -> tuple[int, int] | None:
    """Return the first and the last token that overlap with ``text[start:stop]``, or None if there is none."""
    first = bisect.bisect_right(offsets, start, key=lambda token: token[1])
    last = bisect.bisect_left(offsets, stop, key=lambda token: token[0]) - 1
    return (first, last) if first <= last else None
