"""Semantic role labeling: highway LSTM layers in alternating directions over words and a mark on the predicate.

He et al. 2017; Peters et al. 2018, section 4 and supplement. The sizes are from AllenNLP's configuration for
OntoNotes. Tags are decoded with Viterbi's algorithm from log-probabilities, as in He et al. Models trained by AllenNLP
are decoded as in AllenNLP (``allennlp/variants.py``).

A file's format is detected from its start:

- CoNLL-2012 (``#begin document``): column 4 is the word. From column 12 on, there is one column of brackets per
  predicate, such as ``(ARG0*``, ``*)`` and ``(V*)``. The last column holds coreference and is ignored.
- One line per proposition (He et al. 2017): ``1 Mira fixed it ||| B-ARG0 B-V B-ARG1``. The predicate's index is first.
- Columns: the word, the predicate (its sense or lemma, ``-`` for other words), then one column per predicate, with
  brackets (CoNLL-2005, with the words pasted before the props) or BIO tags (PropBank on the English Web Treebank).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.config import MAX_LAYERS, MAX_UNITS, check_at_least, check_fraction, setting, whole_number
from elmokit.errors import TextError
from elmokit.storage.progress import count_of
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch
from elmokit.tasks.nn.crf import RulePenalties, viterbi
from elmokit.tasks.nn.gated_lstm import AlternatingLSTM
from elmokit.tasks.scores import PREDICATE, f1_scores, srl_eval
from elmokit.tasks.tags import (
    Chunk,
    TagError,
    all_tags,
    check_tags,
    chunk_records,
    mark_chunks,
    read_chunks,
    rules_of,
    tag_ids,
    tags_of,
    types_in,
)
from elmokit.tasks.task import (
    Labels,
    Task,
    TaskModel,
    Tokenize,
    check_known,
    check_learnable,
    from_first_line,
    read_sentence,
    require_gold,
)
from elmokit.tasks.task_config import (
    CharsConfig,
    ElmoConfig,
    MixConfig,
    OptimizerConfig,
    TaskDataConfig,
    TaskTrainingConfig,
    WordsConfig,
)
from elmokit.text.columns import ColumnSentence, read_column_sentences
from elmokit.text.first_lines import JSON
from elmokit.text.tokenize import split_tokens

WORD_COLUMN, FIRST_ROLE_COLUMN = 3, 11  # of CoNLL-2012, from 0
NO_PREDICATE = "-"
DIVIDER = "|||"
DOCUMENT_BOUNDARIES = ("#begin document", "#end document")
COMMENT = re.compile(r"# \w+ =")  # "# sent_id = ..."; a sentence may start with the token #
CELL = re.compile(r"^((?:\([^()*]+)*)\*((?:[^()*]*\))*)$")  # opening brackets, *, closing brackets
OPENING = re.compile(r"\(([^()*]+)")


@dataclass(frozen=True)
class Proposition:
    """A sentence and one of its predicates."""

    where: str
    """File and line of the sentence, for error messages."""
    tokens: tuple[str, ...]
    predicate: int | None
    """Index of the predicate; None if the sentence has none or it is unknown."""
    tags: tuple[str, ...] | None
    """BIO tags of the roles, with the predicate tagged as V; None if they are unknown."""


def read_srl(path: str) -> Iterator[Proposition]:
    """Read the propositions of a file. A sentence without predicates gives one proposition without roles."""
    first, lines = from_first_line(path)
    if DIVIDER in first and not first.startswith(DOCUMENT_BOUNDARIES):
        yield from _one_per_line(path, lines)
        return
    from_columns = _conll_2005
    if first.startswith(DOCUMENT_BOUNDARIES[0]):
        from_columns = _conll_2012
    for sentence in read_column_sentences(
        path, lines, boundaries=DOCUMENT_BOUNDARIES, comment=COMMENT, same_in_file=False
    ):
        yield from from_columns(sentence)


def _one_per_line(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[Proposition]:
    for number, line in lines:
        if not line.strip():
            continue
        proposition = parse_proposition(line, f"{path}, line {number}")
        if proposition.tags is not None:
            _check_predicate(proposition.tags[proposition.predicate or 0], proposition.where)
        yield proposition


def parse_proposition(line: str, where: str) -> Proposition:
    """Parse the one-line format. The tags after the divider are optional."""
    left, divider, right = line.partition(DIVIDER)
    index, *tokens = split_tokens(left) or [""]
    tags = split_tokens(right)
    predicate = whole_number(index)
    has_predicate = predicate is not None and predicate < len(tokens)
    if not divider or not has_predicate or len(tags) not in (0, len(tokens)):
        raise TextError(
            f"{where}: expected the index of the predicate from 0, the tokens, {DIVIDER}, and either no tags or one "
            f"per token; found {line[:60]!r}."
        )
    _check_bio(tags, where)
    return Proposition(where, tuple(tokens), predicate, tuple(tags) if tags else None)


def _check_predicate(tag: str, where: str) -> None:
    """Raise an error if the gold tag of the predicate is another one."""
    if tag not in (f"B-{PREDICATE}", f"I-{PREDICATE}"):
        raise TextError(f"{where}: expected B-{PREDICATE} or I-{PREDICATE} for the predicate; found {tag!r}.")


def _conll_2012(sentence: ColumnSentence) -> Iterator[Proposition]:
    rows = sentence.rows
    sentence.check_width(FIRST_ROLE_COLUMN + 1)
    tagged = []
    for column in range(FIRST_ROLE_COLUMN, len(rows[0]) - 1):
        tags = _tags_from_brackets([row[column] for row in rows], sentence)
        predicate = tags.index(f"B-{PREDICATE}") if f"B-{PREDICATE}" in tags else 0
        _check_predicate(tags[predicate], f"{sentence.where()}, column {column + 1}")
        tagged.append((predicate, tags))
    yield from _propositions(sentence, WORD_COLUMN, tagged)


def _conll_2005(sentence: ColumnSentence) -> Iterator[Proposition]:
    rows = sentence.rows
    predicates = []
    for token, row in enumerate(rows):
        if row[1:2] != [NO_PREDICATE]:
            predicates.append(token)
    n_columns = len(rows[0]) - 2
    if len(predicates) != n_columns:
        raise TextError(
            f"{sentence.where()}: {count_of(len(rows[0]), 'column')} and {count_of(len(predicates), 'predicate')}, "
            f"expected the word, the predicate's sense or '{NO_PREDICATE}', and one column of roles per predicate."
        )
    tagged = []
    for column, predicate in enumerate(predicates, start=2):
        cells = [row[column] for row in rows]
        if "*" in cells[0]:
            tags = _tags_from_brackets(cells, sentence)
        else:
            tags = cells
            _check_bio(tags, sentence.where())
        _check_predicate(tags[predicate], f"{sentence.where(predicate)}, column {column + 1}")
        tagged.append((predicate, tags))
    yield from _propositions(sentence, 0, tagged)


def _propositions(
    sentence: ColumnSentence, word_column: int, tagged: Sequence[tuple[int, Sequence[str]]]
) -> Iterator[Proposition]:
    tokens = tuple(row[word_column] for row in sentence.rows)
    for predicate, tags in tagged:
        yield Proposition(sentence.where(), tokens, predicate, tuple(tags))
    if not tagged:
        yield Proposition(sentence.where(), tokens, None, ("O",) * len(tokens))


def _tags_from_brackets(cells: Sequence[str], sentence: ColumnSentence) -> list[str]:
    """Convert one column of brackets to BIO tags.

    Only the outermost of nested brackets is kept, because BIO tags cannot nest.
    """
    tags = []
    labels: list[str] = []  # of the open brackets, outermost first
    for token, cell in enumerate(cells):
        brackets = CELL.match(cell)
        if brackets is None:
            raise _wrong_cell(cell, sentence.where(token))
        prefix = "I" if labels else "B"
        labels += OPENING.findall(brackets[1])
        tags.append(f"{prefix}-{labels[0]}" if labels else "O")
        n_closed = brackets[2].count(")")
        if n_closed > len(labels):
            raise _wrong_cell(cell, sentence.where(token))
        del labels[len(labels) - n_closed :]
    if labels:
        raise TextError(f"{sentence.where(len(cells) - 1)}: the sentence ends, but ({labels[-1]}* is still open.")
    return tags


def _wrong_cell(cell: str, where: str) -> TextError:
    return TextError(
        f"{where}: {cell!r} in a column of roles, expected (ARG0*, *, (V*), or *) after an opening bracket."
    )


def _check_bio(tags: Sequence[str], where: str) -> None:
    try:
        check_tags(tags, "IOB2")
    except TagError as error:
        raise TextError(f"{where}, token {error.token}: {error}.") from None


Frames = list[tuple[int, list[Chunk]]]
"""The predicates of a sentence, as token indices, each with its roles."""
IGNORED = -100  # the tag of padding, which cross_entropy ignores


@dataclass(frozen=True)
class SrlModelConfig:
    """Sizes of the labeler."""

    predicate_dim: int = setting(100, "Size of the vector that marks the predicate.")
    hidden: int = setting(300, "Units of each LSTM layer.")
    layers: int = setting(8, "Number of LSTM layers, which alternate in direction.")
    dropout: float = setting(0.1, "Recurrent dropout of each layer, with one mask per sentence.")
    input_bias: Literal["without ELMo", "always", "never"] = setting(
        "without ELMo", "When layers have a second bias, for their input. AllenNLP's configurations drop it with ELMo."
    )

    def __post_init__(self) -> None:
        for name in ("predicate_dim", "hidden"):
            check_at_least(name, getattr(self, name), 1, MAX_UNITS)
        check_at_least("layers", self.layers, 1, MAX_LAYERS)
        check_fraction("dropout", self.dropout)


@dataclass(frozen=True)
class SrlConfig:
    """The configuration of the task. The defaults are the published values, without ELMo."""

    data: TaskDataConfig = TaskDataConfig()
    words: WordsConfig | None = WordsConfig(dim=100, lowercase=True)
    chars: CharsConfig | None = None
    elmo: ElmoConfig | None = None
    model: SrlModelConfig = SrlModelConfig()
    train: TaskTrainingConfig = TaskTrainingConfig(
        optimizer=OptimizerConfig(name="adadelta", learning_rate=1.0, rho=0.95, epsilon=1e-6),
        batch_size=80,
        epochs=500,
        patience=20,
        clip_value=1.0,
    )


SMALL = SrlConfig(
    words=WordsConfig(dim=50, lowercase=True, min_count=2),
    model=SrlModelConfig(predicate_dim=30, hidden=100, layers=4),
    train=TaskTrainingConfig(
        optimizer=OptimizerConfig(learning_rate=3e-3), batch_size=40, epochs=15, patience=4, max_grad_norm=1.0
    ),
)


@dataclass(frozen=True)
class SrlBatch:
    """Propositions as tensors, with one row per predicate of an example."""

    tokens: TokenBatch
    is_predicate: Tensor  # (rows, time): 1 on the predicate, 0 elsewhere
    tags: Tensor | None  # (rows, time); None if they are unknown
    n_examples: int
    owners: tuple[int, ...]
    """The example of each row."""
    predicates: tuple[int | None, ...]
    """The predicate of each row; None for a sentence without one."""


class SrlModel(TaskModel[SrlBatch, Frames]):
    """The labeler. Its loss is averaged over the tokens of each sentence, then over sentences, as in AllenNLP."""

    def __init__(self, config: SrlModelConfig, inputs: InputLayer, tags: Sequence[str]) -> None:
        super().__init__()
        self.inputs = inputs
        self.tags = list(tags)
        has_bias = config.input_bias == "always"
        if config.input_bias == "without ELMo":
            has_bias = inputs.elmo_dim == 0
        self.is_predicate = nn.Embedding(2, config.predicate_dim)
        nn.init.xavier_uniform_(self.is_predicate.weight)
        self.layers = AlternatingLSTM(
            inputs.output_dim + config.predicate_dim, config.hidden, config.layers, config.dropout, has_bias
        )
        self.to_tags = nn.Linear(config.hidden + inputs.elmo_output_dim, len(self.tags))
        nn.init.orthogonal_(self.to_tags.weight)
        self.rules = rules_of(self.tags, "IOB2")
        self.penalties = RulePenalties(len(self.tags), self.rules)

    def scores(self, batch: SrlBatch) -> Tensor:
        """Return unnormalized scores of tags, ``(rows, time, tags)``."""
        marks = self.is_predicate(batch.is_predicate)
        vectors = torch.cat([self.inputs(batch.tokens), marks], dim=-1)
        hidden = self.layers(vectors, batch.tokens.mask)
        scores: Tensor = self.to_tags(self.inputs.at_output(hidden, batch.tokens))
        return scores

    def loss(self, batch: SrlBatch) -> Tensor:
        assert batch.tags is not None
        scores = self.scores(batch).transpose(1, 2)
        losses = F.cross_entropy(scores, batch.tags, ignore_index=IGNORED, reduction="none")  # (rows, time)
        lengths = batch.tokens.mask.sum(dim=1)
        by_row = losses.sum(dim=1) / lengths.clamp(min=1)
        return by_row.mean()

    def predict(self, batch: SrlBatch) -> list[Frames]:
        """Return the frames of each example."""
        frames: list[Frames] = [[] for _ in range(batch.n_examples)]
        if not batch.owners:
            return frames
        paths = self.decode(self.scores(batch), batch.tokens.mask)
        for path, owner, predicate in zip(paths, batch.owners, batch.predicates, strict=True):
            if predicate is not None:
                tags = [self.tags[tag] for tag in path]
                frames[owner].append((predicate, read_chunks(tags)))
        return frames

    def decode(self, scores: Tensor, mask: Tensor) -> list[list[int]]:
        """Return the best sequence of tags of each row."""
        return viterbi(scores.log_softmax(dim=-1), mask, self.penalties())


def _likely_predicates(examples: Sequence[Proposition]) -> list[str]:
    """Return the words that are predicates in most of their occurrences, in alphabetical order."""
    # Each sentence counts once, however many propositions it has.
    words: Counter[str] = Counter()
    for tokens in {example.tokens for example in examples}:
        words.update(token.lower() for token in tokens)
    predicates: Counter[str] = Counter()
    for tokens, index in {(example.tokens, example.predicate) for example in examples}:
        if index is not None:
            predicates[tokens[index].lower()] += 1
    likely = [word for word, n_times in predicates.items() if 2 * n_times > words[word]]
    return sorted(likely)


def _predicates_of(example: Proposition, known: Sequence[str]) -> list[int | None]:
    """Return the given predicate of a sentence; otherwise all tokens that usually were predicates in training."""
    if example.predicate is not None or example.tags is not None:
        return [example.predicate]
    if not known:
        raise TextError(
            f"{example.where}: no predicate; runs trained by AllenNLP need one. "
            f"Write the line as: 1 Mira fixed it {DIVIDER}"
        )
    likely = set(known)
    return [index for index, token in enumerate(example.tokens) if token.lower() in likely]


def _mark_predicate(marks: Tensor, example: Proposition, predicate: int | None) -> None:
    """Set a sentence's marks, ``(time,)``, on its predicate."""
    if example.tags is not None:  # as in AllenNLP, all tokens of the predicate are marked, including C-V
        is_marked = [tag.endswith(f"-{PREDICATE}") for tag in example.tags]
        marks[: len(is_marked)] = torch.tensor(is_marked, dtype=torch.int64)
    elif predicate is not None:
        marks[predicate] = 1


class SrlTask(Task[SrlConfig, Proposition, SrlBatch, Frames]):
    """Semantic role labeling: label the arguments of each predicate."""

    name = "srl"
    text_formats = (JSON,)
    presets: ClassVar[Mapping[str, SrlConfig]] = {"published": SrlConfig(), "small": SMALL}
    metric = "f1"
    elmo = ElmoConfig(input=MixConfig(penalty=0.001, dropout=0.1))

    def read(self, path: str, config: SrlConfig) -> Iterator[Proposition]:
        return read_srl(path)

    def read_line(self, line: str, where: str, tokenize: Tokenize, config: SrlConfig) -> Proposition:
        """Read a sentence or a JSON object.

        Words that were usually predicates in training are its predicates. To choose the predicate, write the line as
        ``1 Mira fixed it |||``, with the index of the predicate first.
        """
        if DIVIDER in line:
            return parse_proposition(line, where)
        return Proposition(where, tuple(read_sentence(line, where, tokenize)), None, None)

    def labels(self, examples: Sequence[Proposition], config: SrlConfig) -> Labels:
        """Return the tags of all roles, and the words that are predicates in most of their occurrences."""
        tags: set[str] = set()
        for example in examples:
            tags.update(require_gold(example.tags, example.where, "tags"))
        roles = types_in(tags)
        check_learnable(roles, "predicate")
        return {"tags": all_tags(roles, "IOB2"), "predicates": _likely_predicates(examples)}

    def check(self, example: Proposition, known: Labels) -> None:
        """Raise an error for an example without tags, or with a role that is unknown to the run."""
        tags = require_gold(example.tags, example.where, "tags")
        for token, tag in enumerate(tags, start=1):
            check_known(tag, known["tags"], example.where, f"token {token} of the sentence has the tag")

    def build(self, config: SrlConfig, inputs: InputLayer, known: Labels) -> SrlModel:
        return SrlModel(config.model, inputs, known["tags"])

    def collate(self, examples: Sequence[Proposition], inputs: Inputs, known: Labels, config: SrlConfig) -> SrlBatch:
        """Build a batch, without tags if an example has none or an unknown role."""
        owners: list[int] = []
        predicates: list[int | None] = []
        for owner, example in enumerate(examples):
            for predicate in _predicates_of(example, known["predicates"]):
                owners.append(owner)
                predicates.append(predicate)
        rows = [examples[owner] for owner in owners]
        tokens = inputs.batch([example.tokens for example in rows])
        is_predicate = torch.zeros(tokens.mask.shape, dtype=torch.int64)
        for marks, example, predicate in zip(is_predicate, rows, predicates, strict=True):
            _mark_predicate(marks, example, predicate)
        tags = tag_ids([example.tags for example in rows], known["tags"], tokens.mask, padding=IGNORED)
        return SrlBatch(tokens, is_predicate, tags, len(examples), tuple(owners), tuple(predicates))

    def score(
        self, examples: Sequence[Proposition], predictions: Sequence[Frames], config: SrlConfig
    ) -> dict[str, float]:
        """Return the scores of srl-eval.pl: precision, recall and F1 of arguments, perfect propositions, F1 by role."""
        gold: list[dict[int, list[Chunk]]] = []
        for example in examples:
            frame: dict[int, list[Chunk]] = {}
            if example.predicate is not None:
                frame[example.predicate] = read_chunks(example.tags or ())
            gold.append(frame)
        scores = srl_eval(gold, [dict(frames) for frames in predictions])
        return f1_scores(scores.overall, scores.by_role, perfect=scores.perfect)

    def to_record(self, example: Proposition, frames: Frames) -> dict[str, Any]:
        """Return the tokens, and each predicate's BIO tags and roles, from token ``start`` to ``stop - 1``."""
        records = []
        for predicate, chunks in frames:
            tags = tags_of(chunks, len(example.tokens), "IOB2")
            roles = chunk_records(example.tokens, chunks)
            records.append({"predicate": predicate, "tags": tags, "roles": roles})
        return {"tokens": list(example.tokens), "frames": records}

    def to_text(self, example: Proposition, frames: Frames) -> str:
        """Return one line per predicate: ``fixed: [ARG0 Mira] [V fixed] [ARG1 her bike] .``; or the tokens alone."""
        if not frames:
            return " ".join(example.tokens)
        lines = []
        for predicate, chunks in frames:
            marked = mark_chunks(example.tokens, chunks)
            lines.append(f"{example.tokens[predicate]}: {marked}")
        return "\n".join(lines)
