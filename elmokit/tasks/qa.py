"""Question answering: BiDAF++ with self-attention on SQuAD (Clark and Gardner 2018; Peters et al. 2018, section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.config import check_at_least, check_fraction
from elmokit.errors import TextError
from elmokit.tasks.config import (
    CharsConfig,
    DataConfig,
    ElmoConfig,
    MixConfig,
    OptimizerConfig,
    TaskTrainingConfig,
    WordsConfig,
)
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch
from elmokit.tasks.nn.bi_attention import BiAttention, SelfAttention, best_spans
from elmokit.tasks.nn.dropout import VariationalDropout
from elmokit.tasks.nn.recurrent import run_packed
from elmokit.tasks.readers.squad import QaExample, read_questions, read_squad
from elmokit.tasks.scores.squad import squad_v1, squad_v2
from elmokit.tasks.task import Labels, Task, TaskModel, Tokenize

GRU_DEVIATION = 0.05
CHAR_BOUND = 0.05
UNKNOWN = -100  # cross_entropy passes it over


@dataclass(frozen=True)
class QaData(DataConfig):
    """SQuAD's JSON, v1.1 or v2.0."""

    skip_mismatched: bool = False
    """Do not train on answers that differ from the text where they are said to stand; else they are errors."""
    skip_unanswerable: bool = False
    """Leave out v2.0's questions without an answer; else, unless ``model.no_answer``, they are errors."""


@dataclass(frozen=True)
class QaModelConfig:
    """Sizes of BiDAF++ and its dropouts."""

    hidden: int | None = None
    """Units a side of every bidirectional GRU. None: 100 without ELMo, 90 with."""
    dropout: float = 0.2
    """Variational, around every GRU."""
    max_answer: int = 17
    """Words of the longest answer that is predicted."""
    no_answer: bool = False
    """Learn, as BiDAF-No-Answer (Levy et al. 2017), that a question may have no answer; scores are then v2.0's."""

    def __post_init__(self) -> None:
        if self.hidden is not None:
            check_at_least("hidden", self.hidden, 1)
        check_at_least("max_answer", self.max_answer, 1)
        check_fraction("dropout", self.dropout)


@dataclass(frozen=True)
class QaConfig:
    """The published hyper-parameters."""

    data: QaData = field(default_factory=QaData)
    words: WordsConfig | None = field(default_factory=lambda: WordsConfig(dim=300, train=False, unknown="zero"))
    chars: CharsConfig | None = field(
        default_factory=lambda: CharsConfig(dim=20, filters=((5, 100),), max_chars=14, min_count=49, dropout=0.2)
    )
    elmo: ElmoConfig | None = None
    model: QaModelConfig = field(default_factory=QaModelConfig)
    train: TaskTrainingConfig = field(
        default_factory=lambda: TaskTrainingConfig(
            optimizer=OptimizerConfig("adadelta", learning_rate=1.0, rho=0.95, epsilon=1e-8),
            batch_size=45,
            epochs=24,
            eval_every=1200,
            average=0.999,
        )
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
    """A predicted answer as tokens of the passage, both included; -1 and -1 for none."""

    first: int
    last: int
    probability: float
    """Of its start times that of its end."""


@dataclass(frozen=True)
class QaBatch:
    """Questions and their passages."""

    question: TokenBatch
    passage: TokenBatch
    starts: Tensor | None  # (batch,): token, passage length as padded for "no answer", UNKNOWN for none to learn from
    ends: Tensor | None


class BiDafPlusPlus(TaskModel[QaBatch, Answer]):
    """Bi-attention, self-attention and two pointers. Its loss is the mean over the batch's questions.

    Args:
        inputs: its output mix enters beside the first GRU's output, of question and passage alike.
        no_answer: learn two scores for "no answer", beside those of the words (Levy et al. 2017).
    """

    def __init__(self, inputs: InputLayer, hidden_dim: int, dropout: float, max_answer: int, no_answer: bool) -> None:
        super().__init__()
        self.inputs, self.max_answer = inputs, max_answer
        if inputs.char_cnn is not None:
            table = inputs.char_cnn.embedding.weight
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
        self.null_scores = nn.Parameter(torch.zeros(2)) if no_answer else None

    def forward(self, batch: QaBatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities of each token as the answer's first and as its last, ``(batch, time)`` each.

        One more column, the last, is that of "no answer" where the model knows it.
        """
        passage, question = self._encoded(batch.passage), self._encoded(batch.question)
        mask = batch.passage.mask
        seen = F.relu(self.after_attention(self.attention(passage, question, mask, batch.question.mask)))
        again = self.dropout(run_packed(self.second_encoder, self.dropout(seen), mask))
        seen = seen + F.relu(self.after_self_attention(self.self_attention(again, mask)))
        seen = self.dropout(seen)
        at_start = run_packed(self.start_encoder, seen, mask)
        at_end = run_packed(self.end_encoder, torch.cat([seen, at_start], dim=2), mask)
        return self._normalised(self.start(at_start), mask, 0), self._normalised(self.end(at_end), mask, 1)

    def _encoded(self, tokens: TokenBatch) -> Tensor:
        hidden = run_packed(self.encoder, self.dropout(self.inputs(tokens)), tokens.mask)
        return self.inputs.at_output(self.dropout(hidden), tokens)

    def _normalised(self, scores: Tensor, mask: Tensor, which: int) -> Tensor:
        scores = scores.squeeze(2).masked_fill(~mask, -torch.inf)
        if self.null_scores is not None:
            scores = torch.cat([scores, self.null_scores[which].expand(len(scores), 1)], dim=1)
        return scores.log_softmax(1)

    def loss(self, batch: QaBatch) -> Tensor:
        """Mean cross-entropy of the first token plus that of the last, in nats, over questions with a known span."""
        assert batch.starts is not None
        assert batch.ends is not None
        if not (batch.starts != UNKNOWN).any():
            return torch.zeros((), device=batch.starts.device)
        starts, ends = self(batch)
        return F.nll_loss(starts, batch.starts, ignore_index=UNKNOWN) + F.nll_loss(
            ends, batch.ends, ignore_index=UNKNOWN
        )

    def predict(self, batch: QaBatch) -> list[Answer]:
        """The best span of at most ``max_answer`` tokens, or none where that is likelier and the model knows it."""
        starts, ends = self(batch)
        n_words = batch.passage.mask.shape[1]
        first, last, sums = best_spans(starts[:, :n_words], ends[:, :n_words], batch.passage.mask, self.max_answer)
        if self.null_scores is not None:
            none = starts[:, n_words] + ends[:, n_words]
            first, last = (torch.where(none > sums, -1, place) for place in (first, last))
            sums = torch.maximum(sums, none)
        return [Answer(*values) for values in zip(first.tolist(), last.tolist(), sums.exp().tolist(), strict=True)]


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
    """The slice of the raw passage; empty for no answer."""
    return "" if answer.first < 0 else example.passage.slice(answer.first, answer.last)


class QaTask(Task[QaConfig, QaExample, QaBatch, Answer]):
    """Question answering: find the answer to a question in a passage."""

    name = "qa"
    presets: ClassVar[Mapping[str, QaConfig]] = {"published": QaConfig(), "small": SMALL}
    metric = "f1"
    elmo = ElmoConfig(input=MixConfig(dropout=0.5), output=MixConfig(dropout=0.5))

    def read(self, path: str, config: QaConfig) -> Iterable[QaExample]:
        """The questions of a SQuAD file."""
        if config.model.no_answer:
            return read_squad(path, "keep", config.data.skip_mismatched)
        return read_squad(path, "skip" if config.data.skip_unanswerable else "refuse", config.data.skip_mismatched)

    def read_text(self, lines: Iterable[str], name: str, tokenize: Tokenize, config: QaConfig) -> Iterable[QaExample]:
        """Questions to answer; tokenised as in training, so that answers are slices of the passages."""
        return read_questions(lines, name)

    def sentences(self, example: QaExample) -> Sequence[Sequence[str]]:
        """The question and the passage, which the biLM reads as one string of tokens, as Clark and Gardner's did."""
        return example.tokens, example.passage.tokens

    def labels(self, examples: Sequence[QaExample], config: QaConfig) -> Labels:
        """None; but there must be something to learn."""
        for example in examples:
            self.check(example, {})
        if not any(example.span or example.answers == () for example in examples):
            raise TextError("Not one question has an answer that stands in its passage: nothing to train on.")
        return {}

    def check(self, example: QaExample, labels: Labels) -> None:
        """Refuse a question whose right answers are not known."""
        if example.answers is None:
            raise TextError(f"{example.where}: has no gold answers to learn from or to score by (the key answers).")

    def build(self, config: QaConfig, inputs: InputLayer, labels: Labels) -> BiDafPlusPlus:
        """A fresh model."""
        model = config.model
        hidden = model.hidden or (100 if config.elmo is None else 90)
        return BiDafPlusPlus(inputs, hidden, model.dropout, model.max_answer, model.no_answer)

    def collate(self, examples: Sequence[QaExample], inputs: Inputs, labels: Labels, config: QaConfig) -> QaBatch:
        """Questions, passages and spans as tensors."""
        passage = inputs.batch([example.passage.tokens for example in examples])
        question = inputs.batch([example.tokens for example in examples])
        if any(example.answers is None for example in examples):
            return QaBatch(question, passage, None, None)
        no_answer = passage.mask.shape[1] if config.model.no_answer else UNKNOWN
        without = {True: (no_answer, no_answer), False: (UNKNOWN, UNKNOWN)}
        spans = torch.tensor([example.span or without[example.answers == ()] for example in examples])
        return QaBatch(question, passage, spans[:, 0], spans[:, 1])

    def score(self, examples: Sequence[QaExample], answers: Sequence[Answer], config: QaConfig) -> dict[str, float]:
        """Official exact match and F1: those of v1.1, or of v2.0 where the model knows that there may be no answer."""
        gold = [example.answers or () for example in examples]
        given = [answer_text(example, answer) for example, answer in zip(examples, answers, strict=True)]
        if not config.model.no_answer:
            scores = squad_v1(gold, given)
            return {"em": scores.exact_match, "f1": scores.f1}
        all_parts = squad_v2(gold, given)
        result = {"em": all_parts.overall.exact_match, "f1": all_parts.overall.f1}
        for name, part in (("answerable", all_parts.answerable), ("unanswerable", all_parts.unanswerable)):
            result |= {f"em_{name}": part.exact_match, f"f1_{name}": part.f1}
        return result

    def to_record(self, example: QaExample, answer: Answer) -> dict[str, Any]:
        """The answer and its place: ``context[start:end]`` is the answer; both null where there is none."""
        spans = example.passage.spans
        return {
            "id": example.id,
            "question": example.text,
            "answer": answer_text(example, answer),
            "start": spans[answer.first][0] if answer.first >= 0 else None,
            "end": spans[answer.last][1] if answer.first >= 0 else None,
            "probability": answer.probability,
        }

    def to_text(self, example: QaExample, answer: Answer) -> str:
        """The question, and the answer on a line of its own."""
        return f"{example.text}\n  {answer_text(example, answer) or '(no answer)'}"
