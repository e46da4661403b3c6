"""Question answering: BiDAF++ with self-attention on SQuAD (Clark and Gardner 2018; Peters et al. 2018, section 4)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.config import MAX_LAYERS, MAX_UNITS, check_at_least, check_fraction, setting
from elmokit.errors import ConfigError
from elmokit.storage.text_formats import JSON, TABLE
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch
from elmokit.tasks.nn.bi_attention import BiAttention, SelfAttention, best_answer_spans
from elmokit.tasks.nn.layers import VariationalDropout, run_packed
from elmokit.tasks.readers.squad import QaExample, Unanswerable, read_questions, read_squad
from elmokit.tasks.scores.squad import squad_v1, squad_v2
from elmokit.tasks.task import Labels, Task, TaskModel, Tokenize, check_learnable, require_gold
from elmokit.tasks.task_config import (
    CharsConfig,
    ElmoConfig,
    MixConfig,
    OptimizerConfig,
    TaskDataConfig,
    TaskTrainingConfig,
    WordsConfig,
)

GRU_DEVIATION = 0.05  # of the truncated normal distribution of the initial weights
CHAR_BOUND = 0.05  # of the uniform distribution of the initial character vectors
HIDDEN = 100  # units per direction in both publications
UNKNOWN = -100  # gold position that nll_loss ignores


@dataclass(frozen=True)
class QaData(TaskDataConfig):
    """Files of SQuAD's JSON, v1.1 or v2.0."""

    skip_mismatched: bool = setting(
        False, "Do not train on answers that differ from the text at their offset, instead of raising an error."
    )
    skip_unanswerable: bool = setting(
        False, "Skip questions of v2.0 without an answer. Without this, or ``model.no_answer``, they are errors."
    )


@dataclass(frozen=True)
class QaModelConfig:
    """Sizes and dropouts of the network."""

    network: Literal["bidaf++", "bidaf"] = setting(
        "bidaf++", "BiDAF++ with self-attention and GRUs, or AllenNLP's BiDAF with highway layers and LSTMs."
    )
    hidden: int | None = setting(
        None, "Units per direction of every bidirectional GRU or LSTM. By default 90 for bidaf++ with ELMo, else 100."
    )
    dropout: float = setting(0.2, "Dropout around every GRU or LSTM; variational in bidaf++.")
    highway_layers: int = setting(2, "Highway layers on the embeddings (bidaf).")
    modeling_layers: int = setting(2, "LSTM layers after the attention (bidaf).")
    max_answer: int | None = setting(17, "Longest predicted answer, in words; false for no limit.")
    no_answer: bool = setting(
        False,
        "Learn that a question may have no answer (BiDAF-No-Answer, Levy et al. 2017), and use the scores of v2.0.",
    )

    def __post_init__(self) -> None:
        check_at_least("hidden", self.hidden, 1, MAX_UNITS, optional=True)
        check_at_least("max_answer", self.max_answer, 1, optional=True)
        check_at_least("modeling_layers", self.modeling_layers, 1, MAX_LAYERS)
        check_at_least("highway_layers", self.highway_layers, 0, MAX_LAYERS)
        check_fraction("dropout", self.dropout)
        if self.network == "bidaf" and self.no_answer:
            raise ConfigError('no_answer needs network = "bidaf++".')


@dataclass(frozen=True)
class QaConfig:
    """The configuration of the task. The defaults are the published values, without ELMo."""

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
    """A predicted answer: its first and last token in the passage, both -1 for "no answer"."""

    first: int
    last: int
    probability: float
    """Probability of the start times probability of the end."""


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
        starts, ends = self(batch)
        n_words = batch.passage.mask.shape[1]
        first, last, sums = best_answer_spans(
            starts[:, :n_words], ends[:, :n_words], batch.passage.mask, self.max_answer
        )
        if self.null_scores is not None:
            none = starts[:, n_words] + ends[:, n_words]
            first, last = (torch.where(none > sums, -1, token) for token in (first, last))
            sums = torch.maximum(sums, none)
        return [Answer(*values) for values in zip(first.tolist(), last.tolist(), sums.exp().tolist(), strict=True)]


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
        attended = F.relu(self.after_attention(self.attention(passage, question, mask, batch.question.mask)))
        encoded = self.dropout(run_packed(self.second_encoder, self.dropout(attended), mask))
        attended = attended + F.relu(self.after_self_attention(self.self_attention(encoded, mask)))
        attended = self.dropout(attended)
        at_start = run_packed(self.start_encoder, attended, mask)
        at_end = run_packed(self.end_encoder, torch.cat([attended, at_start], dim=2), mask)
        return self._normalize(self.start(at_start), mask, 0), self._normalize(self.end(at_end), mask, 1)

    def _encode(self, tokens: TokenBatch) -> Tensor:
        hidden = run_packed(self.encoder, self.dropout(self.inputs(tokens)), tokens.mask)
        return self.inputs.at_output(self.dropout(hidden), tokens)

    def _normalize(self, scores: Tensor, mask: Tensor, which: int) -> Tensor:
        scores = scores.squeeze(2).masked_fill(~mask, -torch.inf)
        if self.null_scores is not None:
            scores = torch.cat([scores, self.null_scores[which].expand(len(scores), 1)], dim=1)
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
        question, passage = inputs.batches(
            [example.tokens for example in examples], [example.passage.tokens for example in examples]
        )
        if any(example.answers is None for example in examples):
            return QaBatch(question, passage, None, None)
        no_answer = passage.mask.shape[1] if config.model.no_answer else UNKNOWN
        without_span = {True: (no_answer, no_answer), False: (UNKNOWN, UNKNOWN)}  # by: there is no answer
        spans = torch.tensor([example.span or without_span[example.answers == ()] for example in examples])
        return QaBatch(question, passage, spans[:, 0], spans[:, 1])

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
        """Return the answer and its character offsets: ``context[start:end]``, or null for "no answer"."""
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
        """Return the question, and the answer on a second line."""
        return f"{example.text}\n  {answer_text(example, answer) or '(no answer)'}"
