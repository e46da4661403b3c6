"""The network of end-to-end coreference: tokens in context, spans, antecedents (Lee et al. 2017, 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elmokit.config import check_at_least, check_fraction
from elmokit.tasks.inputs import InputLayer, TokenBatch
from elmokit.tasks.nn.antecedents import (
    Candidates,
    CoarseScorer,
    PairScorer,
    Refinement,
    antecedent_loss,
    nearest,
)
from elmokit.tasks.nn.coupled_lstm import CoupledLSTMStack
from elmokit.tasks.nn.spans import MentionScorer, SpanVectors, all_spans, best_spans
from elmokit.tasks.task import TaskModel

HEAD_WORDS = "head_words"
TOKENS_AT_ONCE = 4096  # of which all spans are scored together
Mention = tuple[int, int]
Clusters = list[list[Mention]]


@dataclass(frozen=True)
class CorefModelConfig:
    """Sizes of the model; the defaults are those of 2017."""

    hidden: int = 200
    """Units a side of each LSTM layer."""
    layers: int = 1
    lexical_dropout: float = 0.5
    """On word vectors and character features."""
    lstm_dropout: float = 0.2
    dropout: float = 0.2
    """Everywhere else."""
    max_width: int = 10
    """Of a span, in tokens."""
    scorer_hidden: int = 150
    scorer_layers: int = 2
    feature_dim: int = 20
    """Of the vector of a width, a distance, a genre, same speaker or not."""
    keep: float = 0.4
    """Spans kept, as a share of the tokens."""
    antecedents: int = 250
    """Candidates for each span: the nearest, or with ``coarse_to_fine`` those of the best coarse score."""
    coarse_to_fine: bool = False
    rounds: int = 1
    """How often antecedents are scored; between the rounds each span moves towards what it refers to."""
    train_sentences: int = 50
    """Of a longer document, training sees a random window of so many sentences."""

    def __post_init__(self) -> None:
        sizes = ("hidden", "layers", "max_width", "scorer_hidden", "scorer_layers", "feature_dim")
        for name in (*sizes, "antecedents", "rounds", "train_sentences"):
            check_at_least(name, getattr(self, name), 1)
        for name in ("lexical_dropout", "lstm_dropout", "dropout", "keep"):
            check_fraction(name, getattr(self, name))


@dataclass(frozen=True)
class DocumentBatch:
    """One document as numbers."""

    blocks: list[TokenBatch]
    """Its sentences, those of similar length together."""
    places: Tensor  # (tokens,): of each token of the document, its place among the blocks' tokens
    sentence_ends: Tensor  # (tokens,): of each token the last token of its sentence
    speakers: Tensor  # (tokens,)
    genre: Tensor  # a scalar
    clusters: dict[Mention, int] | None
    """Of each gold mention its cluster, from 1 up."""


@dataclass(frozen=True)
class CorefBatch:
    """Documents, each for itself."""

    documents: list[DocumentBatch]


@dataclass(frozen=True)
class Antecedents:
    """The kept spans of a document, and the scores of what each refers to."""

    starts: list[int]
    ends: list[int]
    candidates: Candidates
    scores: Tensor  # (spans, 1 + candidates), "none" first


class CorefModel(TaskModel[CorefBatch, Clusters]):
    """The model. Its loss is summed over a document's spans; over several documents it is the mean.

    ELMo's input mix enters the LSTM, not the vectors that a span attends to, which are words and characters alone.
    """

    def __init__(self, config: CorefModelConfig, inputs: InputLayer, n_genres: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.config = config
        self.lexical_dropout = nn.Dropout(config.lexical_dropout)
        self.lstm = CoupledLSTMStack(inputs.output_dim, config.hidden, config.layers, config.lstm_dropout)
        context_dim = 2 * config.hidden + inputs.elmo_output_dim
        self.has_head_words = inputs.word_dim(HEAD_WORDS) > 0
        head_dim = inputs.word_dim(HEAD_WORDS if self.has_head_words else "words") + inputs.char_dim
        self.attends_to_context = head_dim == 0  # with ELMo alone there is nothing else
        self.vectors = SpanVectors(
            context_dim, head_dim or context_dim, config.max_width, config.feature_dim, config.dropout
        )
        self.mentions = MentionScorer(self.vectors, config.scorer_hidden, config.scorer_layers, config.dropout)
        span_dim = self.vectors.output_dim
        self.coarse = CoarseScorer(span_dim, config.dropout) if config.coarse_to_fine else None
        self.pairs = PairScorer(
            span_dim, config.feature_dim, n_genres, config.scorer_hidden, config.scorer_layers, config.dropout
        )
        self.refine = Refinement(span_dim) if config.rounds > 1 else None

    def loss(self, batch: CorefBatch) -> Tensor:
        losses = []
        for document in batch.documents:
            assert document.clusters is not None
            found = self.antecedents(document)
            spans = zip(found.starts, found.ends, strict=True)
            gold = torch.tensor([document.clusters.get(span, 0) for span in spans], dtype=torch.int64)
            losses.append(antecedent_loss(found.scores, found.candidates, gold.to(found.scores.device)))
        return torch.stack(losses).mean()

    def predict(self, batch: CorefBatch) -> list[Clusters]:
        """The clusters of each document, none of a single mention."""
        return [clusters_of(self.antecedents(document)) for document in batch.documents]

    def antecedents(self, document: DocumentBatch) -> Antecedents:
        """The spans kept, and what each may refer to."""
        context, heads = self._encode(document)
        starts, ends = all_spans(document.sentence_ends, self.config.max_width)
        widths = self.vectors.widths(starts, ends)
        mention_scores = self._mention_scores(document.sentence_ends, context, heads, starts, ends, widths)
        n_best = max(1, int(self.config.keep * len(context)))
        best = best_spans(mention_scores.tolist(), starts.tolist(), ends.tolist(), n_best)
        kept = torch.tensor(best, dtype=torch.int64, device=starts.device)
        starts, ends, mention_scores = starts[kept], ends[kept], mention_scores[kept]
        spans = self.vectors(context, heads, starts, ends, widths[kept])
        if self.coarse is None:
            candidates = nearest(mention_scores, self.config.antecedents)
        else:
            candidates = self.coarse(spans, mention_scores, self.config.antecedents)
        scores = self._scores(spans, candidates, document.speakers[starts], document.genre)
        for _ in range(self.config.rounds - 1):
            assert self.refine is not None
            spans = self.refine(spans, candidates, scores)
            scores = self._scores(spans, candidates, document.speakers[starts], document.genre)
        return Antecedents(starts.tolist(), ends.tolist(), candidates, scores)

    def _scores(self, spans: Tensor, candidates: Candidates, speakers: Tensor, genre: Tensor) -> Tensor:
        scores = candidates.scores + self.pairs(spans, candidates, speakers, genre)
        return torch.cat([scores.new_zeros(len(scores), 1), scores], dim=1)

    def _mention_scores(
        self, sentence_ends: Tensor, context: Tensor, heads: Tensor, starts: Tensor, ends: Tensor, widths: Tensor
    ) -> Tensor:
        """``(spans,)``; some sentences at a time, as every span of a novel is too many."""
        attention = self.vectors.attention(context)[:, 0]
        scores = []
        for first, stop in token_ranges(sentence_ends.tolist(), TOKENS_AT_ONCE):
            here = slice(*torch.searchsorted(starts, torch.tensor([first, stop], device=starts.device)).tolist())
            part = slice(first, stop)
            scores.append(
                self.mentions(
                    attention[part], context[part], heads[part], starts[here] - first, ends[here] - first, widths[here]
                )
            )
        return torch.cat(scores) if scores else attention

    def _encode(self, document: DocumentBatch) -> tuple[Tensor, Tensor]:
        """Tokens in context, ``(tokens, context_dim)``, and those that a span attends to, ``(tokens, head_dim)``."""
        contexts, heads = [], []
        for tokens in document.blocks:
            chars = self.inputs.char_features(tokens)
            words = self._lexical([self.inputs.word_vectors(tokens), chars], tokens)
            mixed = self.inputs.elmo_mix(tokens, "input")
            outputs = self.lstm(words if mixed is None else torch.cat([words, mixed], dim=-1), tokens.mask)
            contexts.append(self.inputs.at_output(outputs, tokens)[tokens.mask])
            if self.has_head_words:
                words = self._lexical([self.inputs.word_vectors(tokens, HEAD_WORDS), chars], tokens)
            heads.append(words[tokens.mask])
        context = torch.cat(contexts)[document.places]
        return context, context if self.attends_to_context else torch.cat(heads)[document.places]

    def _lexical(self, parts: Sequence[Tensor | None], tokens: TokenBatch) -> Tensor:
        there = [part for part in parts if part is not None]
        if not there:
            return torch.zeros(*tokens.mask.shape, 0, device=tokens.mask.device)
        dropped: Tensor = self.lexical_dropout(torch.cat(there, dim=-1) * tokens.mask[..., None])
        return dropped


def token_ranges(sentence_ends: Sequence[int], at_once: int) -> list[tuple[int, int]]:
    """Ranges of whole sentences, at most ``at_once`` tokens each unless one sentence is longer."""
    ranges: list[tuple[int, int]] = []
    first = stop = 0
    while stop < len(sentence_ends):
        following = sentence_ends[stop] + 1
        if following - first > at_once and stop > first:
            ranges.append((first, stop))
            first = stop
        stop = following
    return [*ranges, (first, stop)] if stop > first else ranges


def clusters_of(found: Antecedents) -> Clusters:
    """Spans that refer to each other, directly or not, in the order of the text."""
    best = found.scores.argmax(dim=1, keepdim=True)  # (spans, 1); 0 is "none"
    places = torch.cat([torch.full_like(best, -1), found.candidates.places], dim=1)
    cluster_of: dict[int, int] = {}
    clusters: Clusters = []
    for place, antecedent in enumerate(places.gather(1, best)[:, 0].tolist()):
        if antecedent < 0:
            continue
        if antecedent not in cluster_of:
            cluster_of[antecedent] = len(clusters)
            clusters.append([(found.starts[antecedent], found.ends[antecedent])])
        cluster_of[place] = cluster_of[antecedent]
        clusters[cluster_of[place]].append((found.starts[place], found.ends[place]))
    return clusters
