"""Question answering: BiDAF++ with self-attention on SQuAD (Clark and Gardner 2018; Peters et al. 2018, section 4).

Files are SQuAD's JSON (v1.1 and v2.0), or lines of text to predict on. Tokens keep their character offsets, so that a
span of tokens is a slice of the raw text. Sentences and words are split as in the Penn Treebank. Tokens are then split
further at hyphens, slashes, quotes, currency signs and dashes, as in Clark and Gardner's program, so that an answer
rarely starts or ends inside a token. Their program used Punkt's learned English abbreviations; here it is a fixed list.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.config import MAX_UNITS, check_at_least, check_fraction, setting
from elmokit.errors import TextError
from elmokit.storage.text_files import read_text
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch
from elmokit.tasks.nn.bi_attention import BiAttention, SelfAttention, best_answer_spans, span_scores
from elmokit.tasks.nn.layers import VariationalDropout, run_packed
from elmokit.tasks.scores import squad_v1, squad_v2
from elmokit.tasks.task import Labels, Task, TaskModel, Tokenize, check_learnable, parse_json, require_gold
from elmokit.tasks.task_config import (
    CharsConfig,
    ElmoConfig,
    MixConfig,
    OptimizerConfig,
    TaskDataConfig,
    TaskTrainingConfig,
    WordsConfig,
)
from elmokit.text.english import sentence_spans, token_spans
from elmokit.text.first_lines import JSON, TABLE

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
    context: str | None = None
    passage: str | None = None  # as AllenNLP's predictor calls it
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

    A line is a question, a tab and a passage, or a JSON object with ``question``, ``context`` (or ``passage``) and
    optionally ``id``.
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
            text = record.passage if record.context is None else record.context
            if text is None:
                raise TextError(f"{where}: the JSON object has neither context nor passage.")
        else:
            record, text = _Line(question), context
        passage = passages.setdefault(text, _passage(text, where))
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
                            f"{where}: no answer, as in SQuAD v2.0. Set model.no_answer = true to train on such "
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
    words = tuple(token.token for token in tokens)
    spans = tuple((token.start, token.stop) for token in tokens)
    return Passage(text, words, spans)


def _question(text: str, where: str) -> tuple[str, ...]:
    return tuple(token for token, _, _ in _tokens(text, where, "question"))


def _tokens(text: str, where: str, what: str) -> list[OffsetToken]:
    tokens = tokenize_passage(text)
    if not tokens:
        raise TextError(f"{where}: the {what} {text[:40]!r} contains no words.")
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
    tokens = []
    for first, last in itertools.pairwise(cuts):
        piece = text[first:last]
        if piece:
            tokens.append(OffsetToken(NORMALIZED.get(piece, piece), first, last))
    return tokens


def covering_tokens(offsets: Sequence[tuple[int, int]], start: int, stop: int) -> tuple[int, int] | None:
    """Return the first and the last token that overlap with ``text[start:stop]``, or None if there is none."""
    first = bisect.bisect_right(offsets, start, key=lambda token: token[1])
    last = bisect.bisect_left(offsets, stop, key=lambda token: token[0]) - 1
    return (first, last) if first <= last else None


GRU_DEVIATION = 0.05  # of the truncated normal distribution of the initial weights
CHAR_BOUND = 0.05  # of the uniform distribution of the initial character vectors
HIDDEN = 100  # units per direction in both publications
UNKNOWN = -100  # gold position that nll_loss ignores


@dataclass(frozen=True)
class QaData(TaskDataConfig):
    """Files of SQuAD's JSON, v1.1 or v2.0."""

    skip_mismatched: bool = setting(
        False, "Skip answers in training that differ from the text at their offset, instead of raising an error."
    )
    skip_unanswerable: bool = setting(
        False,
        "Skip questions of v2.0 without an answer. Otherwise, they are errors, unless ``model.no_answer`` is set.",
    )


@dataclass(frozen=True)
class QaModelConfig:
    """Sizes and dropouts of the network."""

    hidden: int | None = setting(
        None, "Units per direction of each bidirectional GRU. By default, 90 with ELMo and 100 without."
    )
    dropout: float = setting(0.2, "Variational dropout around each GRU.")
    max_answer: int | None = setting(17, "Maximum length of a predicted answer, in words; false for no limit.")
    no_answer: bool = setting(
        False,
        "Learn which questions have no answer (BiDAF-No-Answer, Levy et al. 2017), and use the scores of v2.0.",
    )

    def __post_init__(self) -> None:
        check_at_least("hidden", self.hidden, 1, MAX_UNITS, optional=True)
        check_at_least("max_answer", self.max_answer, 1, optional=True)
        check_fraction("dropout", self.dropout)


@dataclass(frozen=True)
class QaConfig:
    """The configuration of the task. The defaults are the published values, without ELMo."""

    data: QaData = QaData()
    words: WordsConfig | None = WordsConfig(dim=300, train=False, unknown="zero")
    chars: CharsConfig | None = CharsConfig(dim=20, filters=((5, 100),), max_chars=14, min_count=49, dropout=0.2)
    elmo: ElmoConfig | None = None
    model: QaModelConfig = QaModelConfig()
    train: TaskTrainingConfig = TaskTrainingConfig(
        optimizer=OptimizerConfig("adadelta", learning_rate=1.0, rho=0.95, epsilon=1e-8),
        batch_size=45,
        epochs=24,
        eval_every=1200,
        average=0.999,
    )


SMALL = QaConfig(
    words=WordsConfig(dim=50, min_count=2),
    chars=CharsConfig(dim=16, filters=((5, 32),), max_chars=14, min_count=5, dropout=0.2),
    model=QaModelConfig(hidden=40),
    train=TaskTrainingConfig(
        optimizer=OptimizerConfig("adam", learning_rate=2e-3),
        batch_size=16,
        epochs=12,
        patience=3,
        max_grad_norm=5.0,
        average=0.99,
    ),
)


class Answer(NamedTuple):
    """A predicted answer: its first and last token in the passage, both -1 for "no answer"."""

    first: int
    last: int
    probability: float
    """Probability of the start times probability of the end."""
    best: tuple[Answer, ...] = ()
    """The most probable answers, if they were asked for, this one first. Their probabilities are relative to all spans
    that the model may answer with, and to "no answer"."""


@dataclass(frozen=True)
class QaBatch:
    """Questions, their passages and the gold answers as tensors.

    The gold start and end are the index of a token. They are the padded length of the passage for "no answer", which
    the model scores in a column after the tokens, and ``UNKNOWN`` for a question that is not trained on.
    """

    question: TokenBatch
    passage: TokenBatch
    starts: Tensor | None  # (batch,)
    ends: Tensor | None


class QaModel(TaskModel[QaBatch, Answer]):
    """A network that points to the first and the last word of the answer. Its loss is the mean over questions."""

    null_scores: nn.Parameter | None
    """The scores of "no answer" as the first and as the last token; None if every question has an answer."""

    def __init__(self, inputs: InputLayer, max_answer: int | None) -> None:
        super().__init__()
        self.inputs, self.max_answer = inputs, max_answer
        # Not a class attribute: PyTorch refuses a parameter with the name of an existing attribute.
        self.register_parameter("null_scores", None)

    @abstractmethod
    def forward(self, batch: QaBatch) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of each token as the first and as the last of the answer.

        Returns:
            Two tensors ``(batch, time)``, or ``(batch, time + 1)`` with "no answer" in the last column if the model
            has ``null_scores``.
        """

    def loss(self, batch: QaBatch) -> Tensor:
        """Return the mean cross-entropy of the first plus the last token over questions with a span."""
        assert batch.starts is not None
        assert batch.ends is not None
        if not (batch.starts != UNKNOWN).any():  # the mean over no question would be NaN
            return torch.zeros((), device=batch.starts.device)
        starts, ends = self(batch)
        return F.nll_loss(starts, batch.starts, ignore_index=UNKNOWN) + F.nll_loss(
            ends, batch.ends, ignore_index=UNKNOWN
        )

    def predict(self, batch: QaBatch) -> list[Answer]:
        """Return the best span of at most ``max_answer`` tokens, or "no answer" if that has a higher score."""
        return self._answers(batch, *self(batch))

    def _answers(self, batch: QaBatch, starts: Tensor, ends: Tensor) -> list[Answer]:
        n_words = batch.passage.mask.shape[1]
        first, last, sums = best_answer_spans(
            starts[:, :n_words], ends[:, :n_words], batch.passage.mask, self.max_answer
        )
        if self.null_scores is not None:
            none = starts[:, n_words] + ends[:, n_words]
            is_none = none > sums
            first, last = first.masked_fill(is_none, -1), last.masked_fill(is_none, -1)
            sums = torch.maximum(sums, none)
        columns = (first.tolist(), last.tolist(), sums.exp().tolist())
        return [Answer(*row) for row in zip(*columns, strict=True)]

    def predict_best(self, batch: QaBatch, n_best: int) -> list[Answer]:
        """Return the answers of ``predict``, each with the ``n_best`` most probable ones."""
        starts, ends = self(batch)
        n_words = batch.passage.mask.shape[1]
        sums = span_scores(starts[:, :n_words], ends[:, :n_words], batch.passage.mask, self.max_answer)
        if self.null_scores is not None:  # last, because a span that is as probable comes first
            none = starts[:, n_words] + ends[:, n_words]
            sums = torch.cat([sums, none[:, None]], dim=1)
        # Stable, as equally probable spans have an order: that of `best_answer_spans`.
        logs, order = sums.log_softmax(1).sort(dim=1, descending=True, stable=True)
        results = []
        for answer, row_logs, row in zip(
            self._answers(batch, starts, ends), logs[:, :n_best], order[:, :n_best], strict=True
        ):
            best = []
            for log, index in zip(row_logs.tolist(), row.tolist(), strict=True):
                if log == -math.inf:  # padding
                    continue
                first, last = index % n_words, index % n_words + index // n_words
                if self.null_scores is not None and index == sums.shape[1] - 1:
                    first = last = -1
                best.append(Answer(first, last, math.exp(log)))
            results.append(answer._replace(best=tuple(best)))
        return results


class BiDafPlusPlus(QaModel):
    """BiDAF++: bi-attention, self-attention, and a pointer each to the start and the end of the answer.

    The output mix of ELMo is appended to the output of the first GRU,
    for questions and passages.

    Args:
        inputs: The input layer.
        hidden_dim: Units per direction of every GRU.
        dropout: Variational dropout around every GRU.
        max_answer: Longest predicted answer, in words; None for no limit.
        no_answer: Learn two scores for "no answer", which compete with those of the tokens (Levy et al. 2017).
    """

    def __init__(
        self, inputs: InputLayer, hidden_dim: int, dropout: float, max_answer: int | None, no_answer: bool
    ) -> None:
        super().__init__(inputs, max_answer)
        if inputs.chars is not None:
            table = inputs.chars.embedding.weight
            nn.init.uniform_(table, -CHAR_BOUND, CHAR_BOUND)
            with torch.no_grad():
                table[0] = 0.0
        both = 2 * hidden_dim
        self.dropout = VariationalDropout(dropout)
        self.encoder = _gru(inputs.output_dim, hidden_dim)
        self.attention = BiAttention(both + inputs.elmo_output_dim)
        self.after_attention = _linear(self.attention.output_dim, both)
        self.second_encoder = _gru(both, hidden_dim)
        self.self_attention = SelfAttention(both)
        self.after_self_attention = _linear(self.self_attention.output_dim, both)
        self.start_encoder, self.start = _gru(both, hidden_dim), _linear(both, 1)
        self.end_encoder, self.end = _gru(2 * both, hidden_dim), _linear(both, 1)
        if no_answer:
            self.null_scores = nn.Parameter(torch.zeros(2))

    def forward(self, batch: QaBatch) -> tuple[Tensor, Tensor]:
        passage, question = self._encode(batch.passage), self._encode(batch.question)
        mask = batch.passage.mask
        of_question = self.attention(passage, question, mask, batch.question.mask)
        attended = F.relu(self.after_attention(of_question))
        encoded = self.dropout(run_packed(self.second_encoder, self.dropout(attended), mask))
        of_passage = self.self_attention(encoded, mask)
        attended = self.dropout(attended + F.relu(self.after_self_attention(of_passage)))
        at_start = run_packed(self.start_encoder, attended, mask)
        with_start = torch.cat([attended, at_start], dim=2)
        at_end = run_packed(self.end_encoder, with_start, mask)
        starts = self._normalize(self.start(at_start), mask, 0)
        ends = self._normalize(self.end(at_end), mask, 1)
        return starts, ends

    def _encode(self, tokens: TokenBatch) -> Tensor:
        hidden = run_packed(self.encoder, self.dropout(self.inputs(tokens)), tokens.mask)
        return self.inputs.at_output(self.dropout(hidden), tokens)

    def _normalize(self, scores: Tensor, mask: Tensor, which: int) -> Tensor:
        scores = scores.squeeze(2).masked_fill(~mask, -torch.inf)
        if self.null_scores is not None:
            null = self.null_scores[which].expand(len(scores), 1)
            scores = torch.cat([scores, null], dim=1)
        return scores.log_softmax(1)


def _gru(input_dim: int, hidden_dim: int) -> nn.GRU:
    gru = nn.GRU(input_dim, hidden_dim, batch_first=True, bidirectional=True)
    for name, values in gru.named_parameters():
        if name.startswith("weight"):
            nn.init.trunc_normal_(values, std=GRU_DEVIATION, a=-2 * GRU_DEVIATION, b=2 * GRU_DEVIATION)
        else:
            nn.init.zeros_(values)
    return gru


def _linear(input_dim: int, output_dim: int) -> nn.Linear:
    linear = nn.Linear(input_dim, output_dim)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def answer_text(example: QaExample, answer: Answer) -> str:
    """Return the answer as a slice of the raw passage; empty for "no answer"."""
    return "" if answer.first < 0 else example.passage.slice(answer.first, answer.last)


class QaTask(Task[QaConfig, QaExample, QaBatch, Answer]):
    """Question answering: find the answer to a question in a passage."""

    name = "qa"
    text_formats = (JSON, TABLE)
    reads_tokens = False
    presets: ClassVar[Mapping[str, QaConfig]] = {"published": QaConfig(), "small": SMALL}
    metric = "f1"
    elmo = ElmoConfig(input=MixConfig(dropout=0.5), output=MixConfig(dropout=0.5))

    def read(self, path: str, config: QaConfig) -> Iterable[QaExample]:
        """Read the questions of a SQuAD file."""
        unanswerable: Unanswerable = "keep" if config.model.no_answer else "error"
        if config.data.skip_unanswerable:
            unanswerable = "skip"
        return read_squad(path, unanswerable, config.data.skip_mismatched)

    def read_text(self, lines: Iterable[str], name: str, tokenize: Tokenize, config: QaConfig) -> Iterable[QaExample]:
        """Read questions to answer. They are tokenized as in training, so that answers are slices of the passages."""
        return read_questions(lines, name)

    def sentences(self, example: QaExample) -> Sequence[Sequence[str]]:
        """Return question and passage. The biLM reads each as one sentence, as in Clark and Gardner's program."""
        return example.tokens, example.passage.tokens

    def labels(self, examples: Sequence[QaExample], config: QaConfig) -> Labels:
        """Return no labels, but raise an error if there is nothing to learn."""
        for example in examples:
            self.check(example, {})
        found = (example.span or example.answers == () for example in examples)
        check_learnable(found, "question whose answer is in its passage")
        return {}

    def check(self, example: QaExample, labels: Labels) -> None:
        """Raise an error for a question without gold answers."""
        require_gold(example.answers, example.where, "gold answers (the key answers)")

    def build(self, config: QaConfig, inputs: InputLayer, labels: Labels) -> QaModel:
        model = config.model
        hidden = model.hidden or (HIDDEN if config.elmo is None else 90)
        return BiDafPlusPlus(inputs, hidden, model.dropout, model.max_answer, model.no_answer)

    def collate(self, examples: Sequence[QaExample], inputs: Inputs, labels: Labels, config: QaConfig) -> QaBatch:
        """Build a batch, without gold positions if a question has no gold answers."""
        questions = [example.tokens for example in examples]
        passages = [example.passage.tokens for example in examples]
        question, passage = inputs.batches(questions, passages)
        if any(example.answers is None for example in examples):
            return QaBatch(question, passage, None, None)
        no_answer = passage.mask.shape[1] if config.model.no_answer else UNKNOWN
        spans = []
        for example in examples:
            if example.span:
                spans.append(example.span)
            elif example.answers == ():
                spans.append((no_answer, no_answer))
            else:
                spans.append((UNKNOWN, UNKNOWN))
        start, stop = torch.tensor(spans).unbind(dim=1)
        return QaBatch(question, passage, start, stop)

    def score(self, examples: Sequence[QaExample], answers: Sequence[Answer], config: QaConfig) -> dict[str, float]:
        """Return exact match and F1 of the official script: v1.1, or v2.0 if the model may predict "no answer"."""
        gold = [example.answers or () for example in examples]
        predicted = [answer_text(example, answer) for example, answer in zip(examples, answers, strict=True)]
        if not config.model.no_answer:
            scores = squad_v1(gold, predicted)
            return {"em": scores.exact_match, "f1": scores.f1}
        by_group = squad_v2(gold, predicted)
        result: dict[str, float] = {}
        groups = {"": by_group.overall, "_answerable": by_group.answerable, "_unanswerable": by_group.unanswerable}
        for name, scores in groups.items():
            result |= {f"em{name}": scores.exact_match, f"f1{name}": scores.f1}
        return result

    def to_record(self, example: QaExample, answer: Answer) -> dict[str, Any]:
        """Return the answer and its character offsets: ``context[start:end]``, or null for "no answer".

        The most probable answers, if they were asked for, are the list ``best``.
        """
        record = {"id": example.id, "question": example.text, **_answer_record(example, answer)}
        if answer.best:
            record["best"] = [_answer_record(example, one) for one in answer.best]
        return record

    def to_text(self, example: QaExample, answer: Answer) -> str:
        """Return the question, and the answer on a second line, or the most probable ones on lines of their own."""
        if not answer.best:
            return f"{example.text}\n  {_shown(example, answer)}"
        lines = [f"  {one.probability:.3f}  {_shown(example, one)}" for one in answer.best]
        return "\n".join([example.text, *lines])


def _shown(example: QaExample, answer: Answer) -> str:
    return answer_text(example, answer) or "(no answer)"


def _answer_record(example: QaExample, answer: Answer) -> dict[str, Any]:
    spans, is_span = example.passage.spans, answer.first >= 0
    return {
        "answer": answer_text(example, answer),
        "start": spans[answer.first][0] if is_span else None,
        "end": spans[answer.last][1] if is_span else None,
        "probability": answer.probability,
    }
