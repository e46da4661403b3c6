"""Semantic role labelling: eight highway LSTM layers in alternating directions over words and a mark on the predicate.

He et al. 2017; Peters et al. 2018, section 4 and supplement; the sizes are those of AllenNLP's configuration for
OntoNotes. Tags are decoded by Viterbi over log-probabilities under the rules of BIO (AllenNLP, up to its last version,
fed it probabilities).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

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
from elmokit.tasks.nn.crf import penalties_of, viterbi
from elmokit.tasks.nn.highway_lstm import AlternatingLSTM
from elmokit.tasks.readers.srl import DIVIDER, PREDICATE, Proposition, proposition_from_line, read_srl
from elmokit.tasks.scores.chunks import Chunk, chunks_of
from elmokit.tasks.scores.srl import srl_eval
from elmokit.tasks.tags import all_tags, rules_of, tags_of
from elmokit.tasks.task import Labels, Task, TaskModel, Tokenize, unknown_label

Frames = list[tuple[int, list[Chunk]]]
"""Predicates by their place in the sentence, each with its roles."""
IGNORED = -100  # the tag of padding


@dataclass(frozen=True)
class SrlModelConfig:
    """Sizes of the labeller."""

    predicate_dim: int = 100
    """Of the vector that says which token is the predicate."""
    hidden: int = 300
    layers: int = 8
    dropout: float = 0.1
    """On the state that each layer feeds back, one mask for a sentence."""
    input_bias: Literal["without ELMo", "always", "never"] = "without ELMo"
    """When each layer has a second bias, for its input; AllenNLP's configurations drop it with ELMo."""

    def __post_init__(self) -> None:
        for name in ("predicate_dim", "hidden", "layers"):
            check_at_least(name, getattr(self, name), 1)
        check_fraction("dropout", self.dropout)


@dataclass(frozen=True)
class SrlConfig:
    """The defaults are the published ones, without ELMo."""

    data: DataConfig = field(default_factory=DataConfig)
    words: WordsConfig | None = field(default_factory=lambda: WordsConfig(dim=100, lowercase=True))
    chars: CharsConfig | None = None
    elmo: ElmoConfig | None = None
    model: SrlModelConfig = field(default_factory=SrlModelConfig)
    train: TaskTrainingConfig = field(
        default_factory=lambda: TaskTrainingConfig(
            optimizer=OptimizerConfig(name="adadelta", learning_rate=1.0, rho=0.95, epsilon=1e-6),
            batch_size=80,
            epochs=500,
            patience=20,
            clip_value=1.0,
        )
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
    """A row for each predicate."""

    tokens: TokenBatch
    is_predicate: Tensor  # (rows, time) of 0 and 1
    tags: Tensor | None  # (rows, time)
    n_examples: int
    owners: tuple[int, ...]
    """The example of each row."""
    places: tuple[int | None, ...]
    """The predicate of each row; None in a sentence without one."""


class SrlModel(TaskModel[SrlBatch, Frames]):
    """The labeller. Its loss is the mean over each sentence's tokens, then over sentences, as in AllenNLP."""

    def __init__(self, config: SrlModelConfig, inputs: InputLayer, tags: Sequence[str]) -> None:
        super().__init__()
        self.inputs = inputs
        self.tags = list(tags)
        has_bias = config.input_bias == "always" or (config.input_bias == "without ELMo" and inputs.elmo_dim == 0)
        self.is_predicate = nn.Embedding(2, config.predicate_dim)
        nn.init.xavier_uniform_(self.is_predicate.weight)
        self.layers = AlternatingLSTM(
            inputs.output_dim + config.predicate_dim, config.hidden, config.layers, config.dropout, has_bias
        )
        self.to_tags = nn.Linear(config.hidden + inputs.elmo_output_dim, len(self.tags))
        nn.init.orthogonal_(self.to_tags.weight)
        penalties = penalties_of(rules_of(self.tags, "IOB2"))
        for name, penalty in zip(("follow_penalty", "start_penalty", "end_penalty"), penalties, strict=True):
            self.register_buffer(name, penalty, persistent=False)  # derived from the tags' names
        self.follow_penalty: Tensor
        self.start_penalty: Tensor
        self.end_penalty: Tensor

    def scores(self, batch: SrlBatch) -> Tensor:
        """``(rows, time, tags)``, before the softmax."""
        marked = torch.cat([self.inputs(batch.tokens), self.is_predicate(batch.is_predicate)], dim=-1)
        hidden = self.layers(marked, batch.tokens.mask)
        scores: Tensor = self.to_tags(self.inputs.at_output(hidden, batch.tokens))
        return scores

    def loss(self, batch: SrlBatch) -> Tensor:
        assert batch.tags is not None
        costs = F.cross_entropy(
            self.scores(batch).transpose(1, 2), batch.tags, ignore_index=IGNORED, reduction="none"
        )  # (rows, time)
        lengths = batch.tokens.mask.sum(dim=1)
        return (costs.sum(dim=1) / lengths.clamp(min=1)).mean()

    def predict(self, batch: SrlBatch) -> list[Frames]:
        """The frames of each example."""
        frames: list[Frames] = [[] for _ in range(batch.n_examples)]
        if not batch.owners:
            return frames
        log_probabilities = self.scores(batch).log_softmax(dim=-1)
        paths = viterbi(log_probabilities, batch.tokens.mask, self.follow_penalty, self.start_penalty, self.end_penalty)
        for path, owner, place in zip(paths, batch.owners, batch.places, strict=True):
            if place is not None:
                frames[owner].append((place, chunks_of([self.tags[tag] for tag in path])))
        return frames


class SrlTask(Task[SrlConfig, Proposition, SrlBatch, Frames]):
    """Semantic role labelling: label the arguments of each predicate."""

    name = "srl"
    presets: ClassVar[Mapping[str, SrlConfig]] = {"published": SrlConfig(), "small": SMALL}
    metric = "f1"
    elmo = ElmoConfig(input=MixConfig(penalty=0.001, dropout=0.1))

    def read(self, path: str, config: SrlConfig) -> Iterator[Proposition]:
        return read_srl(path)

    def read_text(
        self, lines: Iterable[str], name: str, tokenize: Tokenize, config: SrlConfig
    ) -> Iterator[Proposition]:
        """One sentence a line: its predicates are then those that training saw as such; or in the one-line layout,
        ``1 Mira fixed it |||``, for the predicate at that place."""
        for number, line in enumerate(lines, start=1):
            where = f"{name}, line {number}"
            if DIVIDER in line:
                yield proposition_from_line(line, where)
            else:
                yield Proposition(where, tuple(tokenize(line)), None, None)

    def labels(self, examples: Sequence[Proposition], config: SrlConfig) -> Labels:
        """The tags of all roles that occur; and the words that are predicates more often than not."""
        untagged = next((example for example in examples if example.tags is None), None)
        if untagged is not None:
            raise TextError(f"{untagged.where}: no tags. Training and dev data need one for each token.")
        roles = {tag.partition("-")[2] for example in examples for tag in example.tags or ()} - {""}
        if not roles:
            raise TextError("No sentence has a predicate: there is nothing to learn.")
        seen: Counter[str] = Counter()
        as_predicate: Counter[str] = Counter()
        last = None
        for example in examples:
            if example.tokens != last:  # the predicates of a sentence follow each other
                seen.update(token.lower() for token in example.tokens)
                last = example.tokens
            if example.predicate is not None:
                as_predicate[example.tokens[example.predicate].lower()] += 1
        predicates = sorted(word for word, count in as_predicate.items() if 2 * count > seen[word])
        return {"tags": all_tags(sorted(roles), "IOB2"), "predicates": predicates}

    def check(self, example: Proposition, known: Labels) -> None:
        """Refuse roles that the run does not know."""
        if example.tags is None:
            raise TextError(f"{example.where}: no tags. Judging needs one for each token.")
        for place, tag in enumerate(example.tags):
            if tag not in known["tags"]:
                roles = sorted({name.partition("-")[2] for name in known["tags"]} - {""})
                what = f"token {place + 1} of the sentence has the role {tag.partition('-')[2]!r}"
                raise unknown_label(example.where, what, roles)

    def build(self, config: SrlConfig, inputs: InputLayer, known: Labels) -> SrlModel:
        return SrlModel(config.model, inputs, known["tags"])

    def collate(self, examples: Sequence[Proposition], inputs: Inputs, known: Labels, config: SrlConfig) -> SrlBatch:
        """A batch; without tags if one example has none, or a role that is not known."""
        predicates = set(known["predicates"])
        owners: list[int] = []
        places: list[int | None] = []
        for owner, example in enumerate(examples):
            found: list[int | None] = [example.predicate]
            if example.predicate is None and example.tags is None:
                found = [place for place, token in enumerate(example.tokens) if token.lower() in predicates]
            owners += [owner] * len(found)
            places += found
        tokens = inputs.batch([examples[owner].tokens for owner in owners])
        is_predicate = torch.zeros(tokens.mask.shape, dtype=torch.int64)
        for row, (owner, place) in enumerate(zip(owners, places, strict=True)):
            tags = examples[owner].tags
            if tags is not None:  # C-V is marked too, as in AllenNLP
                marks = [tag.endswith(f"-{PREDICATE}") for tag in tags]
                is_predicate[row, : len(marks)] = torch.tensor(marks, dtype=torch.int64)
            elif place is not None:
                is_predicate[row, place] = 1
        tag_ids = None
        ids = {tag: number for number, tag in enumerate(known["tags"])}
        if all(example.tags is not None and ids.keys() >= set(example.tags) for example in examples):
            tag_ids = torch.full(tokens.mask.shape, IGNORED)
            for row, owner in enumerate(owners):
                given = examples[owner].tags or ()
                tag_ids[row, : len(given)] = torch.tensor([ids[tag] for tag in given], dtype=torch.int64)
        return SrlBatch(tokens, is_predicate, tag_ids, len(examples), tuple(owners), tuple(places))

    def score(
        self, examples: Sequence[Proposition], predictions: Sequence[Frames], config: SrlConfig
    ) -> dict[str, float]:
        """Compute precision, recall and F1 over arguments as srl-eval.pl does, perfect propositions, F1 by role."""
        gold = [{} if one.predicate is None else {one.predicate: chunks_of(one.tags or ())} for one in examples]
        scores = srl_eval(gold, [dict(frames) for frames in predictions])
        per_role = {f"f1-{role}": counts.f1 for role, counts in scores.by_role.items() if counts.gold}
        whole = scores.overall
        return {
            "f1": whole.f1,
            "precision": whole.precision,
            "recall": whole.recall,
            "perfect": scores.perfect,
            **per_role,
        }

    def to_record(self, example: Proposition, frames: Frames) -> dict[str, Any]:
        """Tokens, and for each predicate its BIO tags and roles, each from token ``start`` to before ``stop``."""
        return {
            "tokens": list(example.tokens),
            "frames": [
                {
                    "predicate": place,
                    "tags": tags_of(chunks, len(example.tokens), "IOB2"),
                    "roles": [
                        {**chunk._asdict(), "text": " ".join(example.tokens[chunk.start : chunk.stop])}
                        for chunk in chunks
                    ],
                }
                for place, chunks in frames
            ],
        }

    def to_text(self, example: Proposition, frames: Frames) -> str:
        """One line per predicate: ``fixed: [ARG0 Mira] [V fixed] [ARG1 her bike] .``; without one, the sentence."""
        lines = []
        for place, chunks in frames:
            words = list(example.tokens)
            for chunk in chunks:
                words[chunk.start] = f"[{chunk.label} {words[chunk.start]}"
                words[chunk.stop - 1] += "]"
            lines.append(f"{example.tokens[place]}: {' '.join(words)}")
        return "\n".join(lines) if lines else " ".join(example.tokens)
