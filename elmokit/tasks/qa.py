"""Question answering: BiDAF++ with self-attention on SQuAD (Clark and Gardner 2018; Peters et al. 2018, section 4).

Files are SQuAD's JSON (v1.1 and v2.0), or lines of text for prediction. Tokens keep their character offsets, so a span
of tokens is a slice of the raw text. Sentences and words are split as in the Penn Treebank, and then at hyphens,
slashes, quotes, currency signs and dashes, as in Clark and Gardner's program, so answers rarely start or end inside a
token. Their program used the English abbreviations that Punkt learned; here, the list is fixed.
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
from dataclasses import dataclass, replace
from operator import itemgetter
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
SQUAD_JSON = "SQuAD's JSON"  # its name in error messages
DOUBLE_QUOTES = "\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}\N{DOUBLE LOW-9 QUOTATION MARK}«»"
SINGLE_QUOTES = "\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}"
DASHES = "\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}"
SPLIT_AT = re.compile(rf"``|''|(?<=[^_])_(?=[^_])|[-/~\"'°£€¥¢₹{DOUBLE_QUOTES}{SINGLE_QUOTES}{DASHES}]")
NORMALIZED = {
    **dict.fromkeys(("``", "''", *DOUBLE_QUOTES), '"'),
    **dict.fromkeys(SINGLE_QUOTES, "'"),
    "\N{MINUS SIGN}": "-",
}
"""Tokens that differ from their slice of the text: quotes and minus signs are replaced by their ASCII forms."""


@dataclass(frozen=True)
class Passage:
    """A raw text and its tokens, shared by all questions about it."""

    text: str
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    """Character offsets of each token: start and end, exclusive."""

    def slice(self, first: int, last: int) -> str:
        """Return the raw text from one token to another, both inclusive."""
        start, _ = self.spans[first]
        _, stop = self.spans[last]
        return self.text[start:stop]


@dataclass(frozen=True)
class QaExample:
    """A question about a passage."""

    where: str
    """File and question, for error messages."""
    id: str
    text: str
    """The raw question."""
    tokens: tuple[str, ...]
    """The tokens of the question."""
    passage: Passage
    answers: tuple[str, ...] | None = None
    """The acceptable answers; empty if the passage contains no answer (v2.0), None if they are unknown."""
    span: tuple[int, int] | None = None
    """First and last token of the answer to train on: the most frequent one; ties go to the first."""


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
    passage: str | None = None  # the name in input for AllenNLP's predictor
    id: str = ""


def read_squad(path: str, unanswerable: Unanswerable = "error", skip_mismatched: bool = False) -> Iterator[QaExample]:
    """Read the questions of a SQuAD file, v1.1 or v2.0.

    Args:
        unanswerable: How to treat questions of v2.0 without an answer: raise an error, skip them, or keep them with
            empty ``answers`` and without a ``span``.
        skip_mismatched: If an answer differs from the passage at its offset, do not train on it, instead of raising an
            error. As in the official script, it still counts as correct in scores.
    """
    content = parse_json(read_text(path), path, _Squad, SQUAD_JSON)
    return _questions(content, path, unanswerable, skip_mismatched)


def read_questions(lines: Iterable[str], name: str) -> Iterator[QaExample]:
    """Read questions for prediction, without answers: SQuAD's JSON, or one question per line.

    A line is a question, a tab and a passage, or a JSON object with ``question``, ``context`` (or ``passage``) and
    optionally ``id``.
    """
    lines = list(lines)
    if _is_whole_file(lines):
        content = parse_json("\n".join(lines), name, _Squad, SQUAD_JSON)
        for example in _questions(content, name, "keep", skip_mismatched=True):
            yield replace(example, answers=None, span=None)
        return
    passages: dict[str, Passage] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        question, text, given_id = _parse_line(line, where)
        passage = passages.setdefault(text, _passage(text, where))
        tokens = _question(question, where)
        yield QaExample(where, given_id or str(number), question, tokens, passage)


def _parse_line(line: str, where: str) -> tuple[str, str, str]:
    """Return the question, passage and id of a line. The id is empty if none is given."""
    question, tab, passage = line.partition("\t")
    if tab and not line.lstrip().startswith("{"):
        return question, passage, ""
    record = parse_json(
        line, where, _Line, "a question, a tab and a passage, or a JSON object with question and context"
    )
    text = record.passage if record.context is None else record.context
    if text is None:
        raise TextError(f"{where}: the JSON object has neither context nor passage.")
    return record.question, text, record.id


def _is_whole_file(lines: list[str]) -> bool:
    """Check whether the lines together are a SQuAD file, not one question each."""
    try:
        content = json.loads("\n".join(lines))
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "data" in content


def _questions(content: _Squad, name: str, unanswerable: Unanswerable, skip_mismatched: bool) -> Iterator[QaExample]:
    """Yield the questions of a file, treating unanswerable ones and mismatched answers as ``read_squad`` does."""
    for article in content.data:
        for paragraph in article.paragraphs:
            passage = _passage(paragraph.context, f"{name}, article {article.title!r}")
            for question in paragraph.qas:
                where = f"{name}, question {question.id!r}"
                answers, span = _gold(question, passage, where, skip_mismatched)
                if answers == () and unanswerable == "skip":
                    continue
                if answers == () and unanswerable == "error":
                    raise TextError(
                        f"{where}: no answer, as in SQuAD v2.0. Set model.no_answer = true to train on such "
                        "questions, or data.skip_unanswerable = true to skip them."
                    )
                tokens = _question(question.question, where)
                yield QaExample(where, question.id, question.question, tokens, passage, answers, span)


def _gold(
    question: _Question, passage: Passage, where: str, skip_mismatched: bool
) -> tuple[tuple[str, ...] | None, tuple[int, int] | None]:
    """Return the acceptable answers, and the span of the one to train on."""
    if question.is_impossible or question.answers == []:
        return (), None
    if question.answers is None:
        return None, None
    answers = tuple(answer.text for answer in question.answers)
    return answers, _most_frequent_span(question.answers, passage, where, skip_mismatched)


def _most_frequent_span(
    answers: list[_Answer], passage: Passage, where: str, skip_mismatched: bool
) -> tuple[int, int] | None:
    """Return the first and last token of the most frequent answer; None if every answer is skipped."""
    spans: Counter[tuple[int, int]] = Counter()
    for answer in answers:
        start = answer.answer_start
        stop = start + len(answer.text)
        written = passage.text[max(start, 0) : max(stop, 0)]
        span = covering_tokens(passage.spans, start, stop)
        is_match = written == answer.text and answer.text.strip() != ""
        if is_match and span is not None:
            spans[span] += 1
        elif not skip_mismatched:
            raise TextError(
                f"{where}: the answer {answer.text!r} is not at character {start} of the passage; the text there is "
                f"{written!r}. Correct the file, or set data.skip_mismatched = true to skip such answers in training."
            )
    if not spans:
        return None
    (most_frequent, _), *_ = spans.most_common(1)
    return most_frequent


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
    """Split a raw passage into tokens with their character offsets."""
    tokens = []
    for sentence_start, sentence_stop in sentence_spans(text):
        sentence = text[sentence_start:sentence_stop]
        for start, stop in token_spans(sentence):
            tokens += _split_word(text, sentence_start + start, sentence_start + stop)
    return tokens


def _split_word(text: str, start: int, stop: int) -> list[OffsetToken]:
    """Split a word into the matches of ``SPLIT_AT`` and the text between them."""
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
    """Return the first and last token that overlap with ``text[start:stop]``, or None if there is none."""
    first = bisect.bisect_right(offsets, start, key=itemgetter(1))
    last = bisect.bisect_left(offsets, stop, key=itemgetter(0)) - 1
    if first > last:
        return None
    return first, last


GRU_DEVIATION = 0.05  # of the truncated normal distribution of initial weights
CHAR_BOUND = 0.05  # of the uniform distribution of initial character vectors
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
    """The most probable answers on request, starting with this one. Their probabilities are normalized over all
    possible answers, including "no answer"."""


@dataclass(frozen=True)
class QaBatch:
    """Questions, their passages and the gold answers as tensors.

    Gold starts and ends are token indices. For "no answer", they are the padded length of the passage, because the
    model scores that in a column after the tokens. They are ``UNKNOWN`` for questions that are not trained on.
    """

    question: TokenBatch
    passage: TokenBatch
    starts: Tensor | None  # (batch,); None if they are unknown
    ends: Tensor | None


class QaModel(TaskModel[QaBatch, Answer]):
    """A network that points to the first and last word of the answer. Its loss is the mean over questions."""

    null_scores: nn.Parameter | None
    """The start and end scores of "no answer"; None if all questions have an answer."""

    def __init__(self, inputs: InputLayer, max_answer: int | None) -> None:
        super().__init__()
        self.inputs = inputs
        self.max_answer = max_answer
        # Not a class attribute, because PyTorch refuses parameters with the name of an existing attribute.
        self.register_parameter("null_scores", None)

    @abstractmethod
    def forward(self, batch: QaBatch) -> tuple[Tensor, Tensor]:
        """Compute the log-probabilities of each token as the start and as the end of the answer.

        Returns:
            Starts and ends, ``(batch, time)``; if the model has ``null_scores``, ``(batch, time + 1)`` with "no answer"
            in the last column.
        """

    def loss(self, batch: QaBatch) -> Tensor:
        """Return the sum of the cross-entropies of start and end, averaged over questions with a span."""
        assert batch.starts is not None
        assert batch.ends is not None
        if not (batch.starts != UNKNOWN).any():  # the mean over no question would be NaN
            return torch.zeros((), device=batch.starts.device)
        starts, ends = self(batch)
        start_loss = F.nll_loss(starts, batch.starts, ignore_index=UNKNOWN)
        end_loss = F.nll_loss(ends, batch.ends, ignore_index=UNKNOWN)
        return start_loss + end_loss

    def predict(self, batch: QaBatch) -> list[Answer]:
        """Return the best span of at most ``max_answer`` tokens, or "no answer" if that has a higher score."""
        starts, ends = self(batch)
        return self._answers(batch, starts, ends)

    def _answers(self, batch: QaBatch, starts: Tensor, ends: Tensor) -> list[Answer]:
        mask = batch.passage.mask
        n_words = mask.shape[1]
        first, last, sums = best_answer_spans(starts[:, :n_words], ends[:, :n_words], mask, self.max_answer)
        if self.null_scores is not None:
            no_answer = starts[:, n_words] + ends[:, n_words]
            is_better = no_answer > sums
            first = first.masked_fill(is_better, -1)
            last = last.masked_fill(is_better, -1)
            sums = torch.maximum(sums, no_answer)
        rows = zip(first.tolist(), last.tolist(), sums.exp().tolist(), strict=True)
        return [Answer(*row) for row in rows]

    def predict_best(self, batch: QaBatch, n_best: int) -> list[Answer]:
        """Return the answers of ``predict``, each with the ``n_best`` most probable ones."""
        starts, ends = self(batch)
        mask = batch.passage.mask
        n_words = mask.shape[1]
        sums = span_scores(starts[:, :n_words], ends[:, :n_words], mask, self.max_answer)
        no_answer_index = None
        if self.null_scores is not None:
            no_answer_index = sums.shape[1]  # the last index, because ties go to spans
            no_answer = starts[:, n_words] + ends[:, n_words]
            sums = torch.cat([sums, no_answer[:, None]], dim=1)
        # A stable sort keeps the order of ties in `best_answer_spans`.
        logs, order = sums.log_softmax(1).sort(dim=1, descending=True, stable=True)
        best_logs, best_indices = logs[:, :n_best].tolist(), order[:, :n_best].tolist()
        results = []
        for k, answer in enumerate(self._answers(batch, starts, ends)):
            best = []
            for log, index in zip(best_logs[k], best_indices[k], strict=True):
                if log == -math.inf:  # padding
                    continue
                first = index % n_words
                last = first + index // n_words
                if index == no_answer_index:
                    first = last = -1
                best.append(Answer(first, last, math.exp(log)))
            results.append(answer._replace(best=tuple(best)))
        return results


class BiDafPlusPlus(QaModel):
    """BiDAF++: bi-attention, self-attention, and pointers to the start and end of the answer.

    ELMo's output mix is appended to the output of the first GRU, for questions and passages.

    Args:
        inputs: The input layer.
        hidden_dim: Units per direction of each GRU.
        dropout: Variational dropout around each GRU.
        max_answer: Longest predicted answer, in words; None for no limit.
        no_answer: Learn two scores for "no answer", which compete with the scores of the tokens (Levy et al. 2017).
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
        self.start_encoder = _gru(both, hidden_dim)
        self.start = _linear(both, 1)
        self.end_encoder = _gru(2 * both, hidden_dim)
        self.end = _linear(both, 1)
        if no_answer:
            self.null_scores = nn.Parameter(torch.zeros(2))

    def forward(self, batch: QaBatch) -> tuple[Tensor, Tensor]:
        passage = self._encode(batch.passage)
        question = self._encode(batch.question)
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
        """Read questions or passages, ``(batch, time, 2 * hidden_dim)`` plus the features of ELMo's output mix."""
        vectors = self.dropout(self.inputs(tokens))
        hidden = run_packed(self.encoder, vectors, tokens.mask)
        return self.inputs.at_output(self.dropout(hidden), tokens)

    def _normalize(self, scores: Tensor, mask: Tensor, which: int) -> Tensor:
        """Turn scores ``(batch, time, 1)`` of starts (``which`` is 0) or ends (1) into log-probabilities."""
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
        """Read questions to answer. They are tokenized as in training, so answers are slices of the passages."""
        return read_questions(lines, name)

    def sentences(self, example: QaExample) -> Sequence[Sequence[str]]:
        """Return question and passage. The biLM reads each as one sentence, as in Clark and Gardner's program."""
        return example.tokens, example.passage.tokens

    def labels(self, examples: Sequence[QaExample], config: QaConfig) -> Labels:
        """Return no labels, but raise an error if there is nothing to learn."""
        for example in examples:
            self.check(example, {})
        can_learn = (example.span is not None or example.answers == () for example in examples)
        check_learnable(can_learn, "question whose answer is in its passage")
        return {}

    def check(self, example: QaExample, labels: Labels) -> None:
        """Raise an error for a question without gold answers."""
        require_gold(example.answers, example.where, "gold answers (the key answers)")

    def build(self, config: QaConfig, inputs: InputLayer, labels: Labels) -> QaModel:
        model = config.model
        hidden = model.hidden
        if hidden is None:
            hidden = HIDDEN if config.elmo is None else 90
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
            if example.span is not None:
                spans.append(example.span)
            elif example.answers == ():
                spans.append((no_answer, no_answer))
            else:
                spans.append((UNKNOWN, UNKNOWN))
        start, stop = torch.tensor(spans).unbind(dim=1)
        return QaBatch(question, passage, start, stop)

    def score(self, examples: Sequence[QaExample], answers: Sequence[Answer], config: QaConfig) -> dict[str, float]:
        """Return exact match and F1 as in the official script for v1.1, or for v2.0 if there is "no answer"."""
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
        """Return the answer and its character offsets, ``context[start:end]``, which are null for "no answer".

        ``best`` lists the most probable answers, if they were requested.
        """
        record = {"id": example.id, "question": example.text, **_answer_record(example, answer)}
        if answer.best:
            record["best"] = [_answer_record(example, candidate) for candidate in answer.best]
        return record

    def to_text(self, example: QaExample, answer: Answer) -> str:
        """Return the question, followed by a line with the answer or by one line per most probable answer."""
        if not answer.best:
            return f"{example.text}\n  {_shown(example, answer)}"
        lines = [example.text]
        for candidate in answer.best:
            lines.append(f"  {candidate.probability:.3f}  {_shown(example, candidate)}")
        return "\n".join(lines)


def _shown(example: QaExample, answer: Answer) -> str:
    return answer_text(example, answer) or "(no answer)"


def _answer_record(example: QaExample, answer: Answer) -> dict[str, Any]:
    start = end = None
    if answer.first >= 0:
        start, _ = example.passage.spans[answer.first]
        _, end = example.passage.spans[answer.last]
    return {
        "answer": answer_text(example, answer),
        "start": start,
        "end": end,
        "probability": answer.probability,
    }
