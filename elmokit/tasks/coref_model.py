"""The network of end-to-end coreference (Lee et al. 2017, 2018).

1. A BiLSTM reads each sentence, so that every token has a vector in context.
2. Every span of up to ``max_width`` tokens within a sentence is a possible mention and gets a mention score.
3. Spans are pruned: the best ``keep`` times the number of tokens are kept.
4. Each kept span gets a score for each candidate among the earlier spans, its possible antecedents, and for "none".
5. Spans that choose the same antecedents, directly or through others, form a cluster.

Only the choice of antecedents is trained, by the probability that a span chooses any antecedent of its gold cluster.
Mention scores learn from that alone, because they are part of the antecedent scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from elmokit.config import MAX_LAYERS, MAX_UNITS, check_at_least, check_fraction, setting
from elmokit.tasks.inputs import InputLayer, TokenBatch
from elmokit.tasks.nn.antecedents import (
    Candidates,
    CoarseScorer,
    PairScorer,
    SpanRefinement,
    antecedent_loss,
    nearest_antecedents,
)
from elmokit.tasks.nn.gated_lstm import CoupledLSTMStack
from elmokit.tasks.nn.spans import MentionScorer, SpanVectors, all_spans, prune_spans
from elmokit.tasks.scores.coref import Clusters, Mention
from elmokit.tasks.task import TaskModel

HEAD_WORDS = "head_words"
TOKENS_AT_ONCE = 4096  # score all spans of this many tokens together; bounds the memory


@dataclass(frozen=True)
class CorefModelConfig:
    """Sizes of the model. The defaults are those of 2017."""

    network: Literal["e2e-coref", "allennlp"] = setting(
        "e2e-coref",
        "The model of Lee et al., or AllenNLP's version of it. That one reads a document as one sequence with a plain "
        "LSTM, attends to the words of a span by their vectors alone, ELMo included, keeps spans that cross, and knows "
        "neither speakers nor genre.",
    )
    hidden: int = setting(200, "Units per direction of each LSTM layer.")
    layers: int = setting(1, "Number of LSTM layers.")
    lexical_dropout: float = setting(0.5, "Dropout on word vectors and character features.")
    lstm_dropout: float = setting(0.2, "Dropout in the LSTM.")
    dropout: float = setting(0.2, "Dropout everywhere else.")
    max_width: int = setting(10, "Longest span, in tokens.")
    scorer_hidden: int = setting(150, "Units of each hidden layer of the mention scorer and the antecedent scorer.")
    scorer_layers: int = setting(2, "Hidden layers of these scorers.")
    feature_dim: int = setting(20, "Size of each feature's vector: span width, distance, genre, same speaker.")
    keep: float = setting(0.4, "Number of spans kept, as a ratio of the number of tokens.")
    antecedents: int = setting(
        250, "Candidates per span: the nearest spans, or with ``coarse_to_fine`` those with the best coarse score."
    )
    coarse_to_fine: bool = setting(False, "Choose the candidates by a bilinear score instead of by their distance.")
    rounds: int = setting(
        1,
        "How often antecedents are scored. Between the rounds each span vector moves towards its expected antecedent.",
    )
    train_sentences: int = setting(50, "Train on a random window of this many sentences of a longer document.")

    def __post_init__(self) -> None:
        for name in ("hidden", "max_width", "scorer_hidden", "feature_dim"):
            check_at_least(name, getattr(self, name), 1, MAX_UNITS)
        for name in ("layers", "scorer_layers", "rounds"):
            check_at_least(name, getattr(self, name), 1, MAX_LAYERS)
        for name in ("antecedents", "train_sentences"):
            check_at_least(name, getattr(self, name), 1)
        for name in ("lexical_dropout", "lstm_dropout", "dropout", "keep"):
            check_fraction(name, getattr(self, name))


@dataclass(frozen=True)
class DocumentBatch:
    """One document as tensors."""

    blocks: list[TokenBatch]
    """Its sentences in blocks of similar length."""
    position_in_blocks: Tensor  # (tokens,): for each token of the document, its position among the blocks' tokens
    sentence_ends: Tensor  # (tokens,): for each token, the last token of its sentence
    speakers: Tensor  # (tokens,)
    genre: Tensor  # a scalar
    cluster_of: dict[Mention, int] | None
    """The gold cluster of each gold mention, from 1."""


@dataclass(frozen=True)
class CorefBatch:
    """Documents, which stay separate because they differ too much in size to be padded."""

    documents: list[DocumentBatch]


@dataclass(frozen=True)
class ScoredAntecedents:
    """The spans of a document that were kept, and the scores of their candidate antecedents."""

    starts: list[int]
    ends: list[int]
    candidates: Candidates
    scores: Tensor  # (spans, 1 + candidates), "none" first


class CorefModel(TaskModel[CorefBatch, Clusters]):
    """The coreference model. Its loss is the sum over a document's spans, and the mean over documents.

    The input mix of ELMo enters the LSTM, but not the vectors that a span attends to, which consist of words and
    characters only.
    """

    coarse_scorer: type[CoarseScorer] = CoarseScorer
    pair_scorer: type[PairScorer] = PairScorer

    def __init__(self, config: CorefModelConfig, inputs: InputLayer, n_genres: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.config = config
        self.lexical_dropout = nn.Dropout(config.lexical_dropout)
        self.lstm = self.make_lstm()
        context_dim = 2 * config.hidden + inputs.elmo_output_dim
        self.has_head_words = inputs.word_dim(HEAD_WORDS) > 0
        head_dim = self.head_dim()
        self.attends_to_context = head_dim == 0  # with ELMo as the only input there is nothing else
        self.vectors = self.make_vectors(context_dim, head_dim or context_dim)
        self.mentions = MentionScorer(self.vectors, config.scorer_hidden, config.scorer_layers, config.dropout)
        span_dim = self.vectors.output_dim
        self.coarse = self.coarse_scorer(span_dim, config.dropout) if config.coarse_to_fine else None
        self.pairs = self.pair_scorer(
            span_dim, config.feature_dim, n_genres, config.scorer_hidden, config.scorer_layers, config.dropout
        )
        self.refine = SpanRefinement(span_dim) if config.rounds > 1 else None

    def make_lstm(self) -> nn.Module:
        """Return the layers that read a sentence."""
        config = self.config
        return CoupledLSTMStack(self.inputs.output_dim, config.hidden, config.layers, config.lstm_dropout)

    def head_dim(self) -> int:
        """Return the size of the vectors that a span attends to; 0 if there are none but those in context."""
        return self.inputs.word_dim(HEAD_WORDS if self.has_head_words else "words") + self.inputs.char_dim

    def make_vectors(self, context_dim: int, head_dim: int) -> SpanVectors:
        """Return the module that makes the vectors of spans."""
        config = self.config
        return SpanVectors(context_dim, head_dim, config.max_width, config.feature_dim, config.dropout)

    def loss(self, batch: CorefBatch) -> Tensor:
        losses = []
        # One document at a time: the pruned spans, and so all shapes after pruning, differ from document to document.
        for document in batch.documents:
            assert document.cluster_of is not None
            ranked = self.antecedents(document)
            spans = zip(ranked.starts, ranked.ends, strict=True)
            # 0 means "not a gold mention". A gold mention that was pruned has no row here and adds nothing to the loss.
            gold = torch.tensor([document.cluster_of.get(span, 0) for span in spans], dtype=torch.int64)
            losses.append(antecedent_loss(ranked.scores, ranked.candidates, gold.to(ranked.scores.device)))
        return torch.stack(losses).mean()

    def predict(self, batch: CorefBatch) -> list[Clusters]:
        """Return the clusters of each document, all of at least two mentions."""
        return [clusters_of(self.antecedents(document)) for document in batch.documents]

    def antecedents(self, document: DocumentBatch) -> ScoredAntecedents:
        """Prune the spans of a document and score the antecedents of those that are kept."""
        context, heads = self._encode(document)
        starts, ends = all_spans(document.sentence_ends, self.config.max_width)
        widths = self.vectors.widths(starts, ends)
        mention_scores = self._mention_scores(document.sentence_ends, context, heads, starts, ends, widths)
        # Lee et al. 2017 keep 0.4 spans per word. The loss never raises the score of a gold mention outside that ratio;
        # only dropout, which lets such spans in now and then, makes up for it.
        n_best = max(1, int(self.config.keep * len(context)))
        # A greedy choice in which each span depends on those before it: plain Python, without gradient.
        best = self.prune(mention_scores.tolist(), starts.tolist(), ends.tolist(), n_best)
        kept = torch.tensor(best, dtype=torch.int64, device=starts.device)
        # Only the spans that are kept get vectors: all spans of a document together would not fit in memory.
        starts, ends, mention_scores = starts[kept], ends[kept], mention_scores[kept]
        spans = self.vectors(context, heads, starts, ends, widths[kept])
        if self.coarse is None:
            candidates = nearest_antecedents(mention_scores, self.config.antecedents)
        else:
            # The candidates' scores hold the mention scores and, from 2018 on, the coarse score; `pairs` adds the rest.
            candidates = self.coarse(spans, mention_scores, self.config.antecedents)
        scores = self._scores(spans, candidates, document.speakers[starts], document.genre)
        # Later rounds score the same candidates again, with span vectors that have moved (Lee et al. 2018). The coarse
        # score is not computed again.
        for _ in range(self.config.rounds - 1):
            assert self.refine is not None
            spans = self.refine(spans, candidates, scores)
            scores = self._scores(spans, candidates, document.speakers[starts], document.genre)
        return ScoredAntecedents(starts.tolist(), ends.tolist(), candidates, scores)

    def _scores(self, spans: Tensor, candidates: Candidates, speakers: Tensor, genre: Tensor) -> Tensor:
        scores = candidates.scores + self.pairs(spans, candidates, speakers, genre)
        # The score of "none" is fixed at 0, so that positive scores mean that there is an antecedent.
        return torch.cat([scores.new_zeros(len(scores), 1), scores], dim=1)

    def _mention_scores(
        self, sentence_ends: Tensor, context: Tensor, heads: Tensor, starts: Tensor, ends: Tensor, widths: Tensor
    ) -> Tensor:
        """Return the mention score of each span, ``(spans,)``, computed for some sentences at a time."""
        # (tokens,), computed once although spans overlap.
        attention = self.vectors.attention_scores(context, heads)
        scores = []
        for first, stop in token_ranges(sentence_ends.tolist(), TOKENS_AT_ONCE):
            # Spans are ordered by first token and end within their sentence, so those of a range of sentences are
            # consecutive.
            here = slice(*torch.searchsorted(starts, torch.tensor([first, stop], device=starts.device)).tolist())
            tokens = slice(first, stop)
            tensors = (attention[tokens], context[tokens], heads[tokens])
            scores.append(self.mentions(*tensors, starts[here] - first, ends[here] - first, widths[here]))
        return torch.cat(scores) if scores else attention

    def prune(self, scores: list[float], starts: list[int], ends: list[int], n_best: int) -> list[int]:
        """Return the indices of the spans to keep, in the order of the text."""
        return prune_spans(scores, starts, ends, n_best)

    def _encode(self, document: DocumentBatch) -> tuple[Tensor, Tensor]:
        """Return the tokens' vectors in context, ``(tokens, context_dim)``, and those that spans attend to,
        ``(tokens, head_dim)``."""
        contexts, heads = [], []
        for tokens in document.blocks:
            outputs, words = self.read(tokens)
            contexts.append(self.inputs.at_output(outputs, tokens)[tokens.mask])
            heads.append(words[tokens.mask])
        # (tokens, context_dim), from blocks of similar length back to the order of the text.
        context = torch.cat(contexts)[document.position_in_blocks]
        return context, context if self.attends_to_context else torch.cat(heads)[document.position_in_blocks]

    def read(self, tokens: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return the output of the LSTM for sentences, and the vectors that a span attends to."""
        chars = self.inputs.char_features(tokens)
        words = self._lexical([self.inputs.word_vectors(tokens), chars], tokens)
        mixed = self.inputs.elmo_mix(tokens, "input")
        outputs = self.lstm(words if mixed is None else torch.cat([words, mixed], dim=-1), tokens.mask)
        # Lee et al. 2018 attend over other vectors than those the LSTM reads: GloVe with a context window of 2 words.
        if self.has_head_words:
            words = self._lexical([self.inputs.word_vectors(tokens, HEAD_WORDS), chars], tokens)
        return outputs, words

    def _lexical(self, parts: Sequence[Tensor | None], tokens: TokenBatch) -> Tensor:
        present = [part for part in parts if part is not None]
        if not present:
            return torch.zeros(*tokens.mask.shape, 0, device=tokens.mask.device)
        dropped: Tensor = self.lexical_dropout(torch.cat(present, dim=-1) * tokens.mask[..., None])
        return dropped


def token_ranges(sentence_ends: Sequence[int], at_once: int) -> list[tuple[int, int]]:
    """Return ranges of whole sentences, of at most ``at_once`` tokens unless a single sentence is longer."""
    ranges: list[tuple[int, int]] = []
    first = stop = 0
    while stop < len(sentence_ends):
        following = sentence_ends[stop] + 1
        if following - first > at_once and stop > first:
            ranges.append((first, stop))
            first = stop
        stop = following
    return [*ranges, (first, stop)] if stop > first else ranges


def clusters_of(ranked: ScoredAntecedents) -> Clusters:
    """Return the spans that are connected by their best antecedents, in the order of the text."""
    best = ranked.scores.argmax(dim=1, keepdim=True)  # (spans, 1); 0 is "none"
    antecedents = torch.cat([torch.full_like(best, -1), ranked.candidates.indices], dim=1).gather(1, best)[:, 0]
    cluster_of: dict[int, int] = {}
    clusters: list[list[Mention]] = []
    for span, antecedent in enumerate(antecedents.tolist()):
        if antecedent < 0:
            continue
        # Antecedents precede their spans, so one pass in the order of the text finds all links.
        if antecedent not in cluster_of:
            cluster_of[antecedent] = len(clusters)
            clusters.append([(ranked.starts[antecedent], ranked.ends[antecedent])])
        cluster_of[span] = cluster_of[antecedent]
        clusters[cluster_of[span]].append((ranked.starts[span], ranked.ends[span]))
    return clusters
