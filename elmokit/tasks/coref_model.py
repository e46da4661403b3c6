"""The network of end-to-end coreference (Lee et al. 2017, 2018).

1. A BiLSTM reads each sentence and gives every token a contextual vector.
2. Every span of up to ``max_width`` tokens within a sentence is a possible mention and gets a mention score.
3. Spans are pruned: the best ``keep`` times the number of tokens are kept.
4. Each kept span gets a score for each of its possible antecedents, which are candidates among the earlier spans, and
   for "none".
5. Spans that are connected by their best antecedents form a cluster.

The loss depends only on the choice of antecedents: the probability that a span chooses any antecedent in its gold
cluster. Mention scores are trained by it because they are part of the antecedent scores.

Spans are in text order. The first column of each matrix of antecedent scores is "none", with a score of 0: the span is
no mention, or the first one of its entity. Pairs of spans are scored in blocks of rows, so memory does not grow with
the number of pairs. In training, blocks are not kept for the backward pass but computed again (gradient checkpointing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from elmokit.config import MAX_LAYERS, MAX_UNITS, check_at_least, check_fraction, setting
from elmokit.tasks.inputs import InputLayer, TokenBatch, concatenated
from elmokit.tasks.nn.gated_lstm import CoupledLSTMStack
from elmokit.tasks.nn.spans import FeedForwardScorer, MentionScorer, Spans, SpanVectors, all_spans, prune_spans
from elmokit.tasks.scores import Clusters, Mention
from elmokit.tasks.task import TaskModel

N_DISTANCES = 10
FLOATS_AT_ONCE = 1 << 24  # size of the largest tensor in a block, 64 MiB


class Candidates(NamedTuple):
    """The possible antecedents of each span."""

    indices: Tensor  # (spans, candidates): indices of earlier spans; 0 if there is none
    exists: Tensor  # (spans, candidates) bool
    scores: Tensor  # (spans, candidates): the antecedent scores so far; -inf if there is no candidate


def distance_buckets(offsets: Tensor) -> Tensor:
    """Return the index of each distance's bucket: 0, 1, 2, 3, 4, 5-7, 8-15, 16-31, 32-63, 64 and more."""
    # The buckets of e2e-coref. The distance is counted in kept spans, not tokens.
    bounds = torch.tensor([1, 2, 3, 4, 5, 8, 16, 32, 64], device=offsets.device)
    return torch.bucketize(offsets, bounds, right=True)


def nearest_antecedents(mention_scores: Tensor, n_candidates: int) -> Candidates:
    """Choose the nearest earlier spans as candidates (2017). Their score so far is the sum of both mention scores."""
    n_spans = len(mention_scores)
    n_candidates = min(n_candidates, n_spans)
    spans = torch.arange(n_spans, device=mention_scores.device)[:, None]
    indices = spans - 1 - torch.arange(n_candidates, device=mention_scores.device)
    exists = indices >= 0
    # Gathering needs a valid index even where there is no candidate; the score of -inf removes it.
    indices = indices.clamp(min=0)
    scores = mention_scores[:, None] + mention_scores[indices]
    return Candidates(indices, exists, scores.masked_fill(~exists, float("-inf")))


class CoarseScorer(nn.Module):
    """A bilinear score that is cheap enough to compute for all pairs, and selects the candidates (2018).

    Args:
        span_dim: Size of the span vectors.
        dropout: Dropout on both vectors.
    """

    def __init__(self, span_dim: int, dropout: float) -> None:
        super().__init__()
        self.source = nn.Linear(span_dim, span_dim)
        nn.init.xavier_uniform_(self.source.weight)
        nn.init.zeros_(self.source.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, spans: Tensor, mention_scores: Tensor, n_candidates: int) -> Candidates:
        """Choose the candidates with the highest sum of coarse score and both mention scores, their score so far.

        Shapes: spans (spans, span_dim), mention_scores (spans,).
        """
        n_spans = len(spans)
        n_candidates = min(n_candidates, n_spans)
        source, target = self.sides(spans)
        order = torch.arange(n_spans, device=spans.device)

        def block(start: int, stop: int) -> tuple[Tensor, ...]:
            scores = source[start:stop] @ target.t() + mention_scores[start:stop, None] + mention_scores
            scores = scores.masked_fill(order >= order[start:stop, None], float("-inf"))
            # Only the best few of each row leave the block, so there is never a matrix of all pairs.
            best = scores.topk(n_candidates, dim=1)
            return best.indices, best.values

        indices, scores = compute_in_blocks(block, n_spans, n_spans, self.training)
        exists = indices < order[:, None]  # the first spans have fewer earlier spans than candidates
        return Candidates(indices * exists, exists, scores)

    def sides(self, spans: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of the bilinear form ``(W x_i + b) . x_j`` for a span and its antecedent."""
        return self.dropout(self.source(spans)), self.dropout(spans)


class PairScorer(nn.Module):
    """The full score of a pair, from both vectors, their product, and features of the pair.

    Args:
        span_dim: Size of the span vectors.
        feature_dim: Size of each feature's vector. Features are same speaker, genre, and distance in spans.
        n_genres: Number of genres.
        hidden_dim, n_layers, dropout: As for ``FeedForwardScorer``. Dropout also applies to the features.
    """

    same_speaker: nn.Embedding
    genre: nn.Embedding
    distance: nn.Embedding

    def __init__(
        self, span_dim: int, feature_dim: int, n_genres: int, hidden_dim: int, n_layers: int, dropout: float
    ) -> None:
        super().__init__()
        sizes = self.table_sizes(n_genres)
        tables = {name: nn.Embedding(n_rows, feature_dim) for name, n_rows in sizes.items()}
        for name, table in tables.items():
            nn.init.xavier_uniform_(table.weight)
            self.add_module(name, table)
        self.parts = (span_dim, span_dim, span_dim, len(tables) * feature_dim)
        self.scorer = FeedForwardScorer(sum(self.parts), hidden_dim, n_layers, dropout)
        self.dropout = nn.Dropout(dropout)

    def table_sizes(self, n_genres: int) -> dict[str, int]:
        """Return the number of values of each feature."""
        return {"same_speaker": 2, "genre": n_genres, "distance": N_DISTANCES}

    def forward(self, spans: Tensor, candidates: Candidates, speakers: Tensor, genre: Tensor) -> Tensor:
        """Score the candidates.

        Args:
            spans: ``(spans, span_dim)``.
            candidates: The pairs to score.
            speakers: Each span's speaker id, ``(spans,)``.
            genre: The document's genre id, a scalar.

        Returns:
            ``(spans, candidates)``; values are meaningless where there is no candidate.
        """
        # The first layer is linear, so its products with single spans are computed once per span. Only the products
        # with the features and with the elementwise product of both spans are computed for each pair.
        first = self.scorer.first
        of_span, of_other, of_product, of_features = first.weight.split(self.parts, dim=1)  # type: ignore[no-untyped-call]
        own = spans @ of_span.t()
        other = spans @ of_other.t()
        n_spans, n_candidates = candidates.indices.shape

        def block(start: int, stop: int) -> tuple[Tensor, ...]:
            indices = candidates.indices[start:stop]
            product = (spans[start:stop, None] * spans[indices]) @ of_product.t()
            features = self.features(start, stop, indices, speakers, genre) @ of_features.t() + first.bias
            sums = own[start:stop, None] + other[indices] + product + features
            return (self.scorer.from_first_layer(sums),)

        (scores,) = compute_in_blocks(block, n_spans, n_candidates * spans.shape[1], self.training)
        return scores

    def features(self, start: int, stop: int, indices: Tensor, speakers: Tensor, genre: Tensor) -> Tensor:
        """Return the features of the pairs of spans ``start`` to ``stop - 1`` after dropout.

        Shapes: indices (block, candidates); the result is (block, candidates, n_features * feature_dim).
        """
        distance = self.distances(start, stop, indices)
        is_same = (speakers[start:stop, None] == speakers[indices]).long()
        parts = [self.same_speaker(is_same), self.genre(genre).expand_as(distance), distance]
        dropped: Tensor = self.dropout(torch.cat(parts, dim=-1))
        return dropped

    def distances(self, start: int, stop: int, indices: Tensor) -> Tensor:
        """Return the distance feature, ``(block, candidates, feature_dim)``."""
        spans = torch.arange(start, stop, device=indices.device)[:, None]
        offsets = (spans - indices).clamp(min=0)
        vectors: Tensor = self.distance(distance_buckets(offsets))
        return vectors


class SpanRefinement(nn.Module):
    """Moves span vectors towards their antecedents, so that later rounds see more than one link (2018).

    A gate interpolates between a span and its antecedent's expected vector. The vector of the antecedent "none" is the
    span itself.
    """

    def __init__(self, span_dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * span_dim, span_dim)
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, spans: Tensor, candidates: Candidates, scores: Tensor) -> Tensor:
        """Refine spans by one step.

        Shapes: spans (spans, span_dim), scores (spans, 1 + candidates); the result is (spans, span_dim).
        """
        # (spans, 1 + candidates). Missing candidates have a score of -inf, so they get no weight.
        weights = scores.softmax(dim=1)
        n_spans = len(spans)

        def block(start: int, stop: int) -> tuple[Tensor, ...]:
            # A dense matrix of weights over all spans avoids copying the vectors of all candidates of each span.
            dense = spans.new_zeros(stop - start, n_spans)
            dense = dense.scatter_add(1, candidates.indices[start:stop], weights[start:stop, 1:])
            return (weights[start:stop, :1] * spans[start:stop] + dense @ spans,)

        (expected,) = compute_in_blocks(block, n_spans, n_spans, self.training)
        both = torch.cat([spans, expected], dim=1)
        gate = torch.sigmoid(self.gate(both))
        return gate * expected + (1 - gate) * spans


def antecedent_loss(scores: Tensor, candidates: Candidates, clusters: Tensor) -> Tensor:
    """Return the negative log-probability that a span chooses any correct antecedent, summed over spans, in nats.

    "None" is the correct antecedent of a span if no candidate is in its cluster.

    Args:
        scores: ``(spans, 1 + candidates)``, "none" first, -inf if there is no candidate.
        candidates: The scored candidates.
        clusters: The gold cluster of each span, from 1, or 0 if the span is not a gold mention, ``(spans,)``.
    """
    is_mention = (clusters > 0)[:, None]
    same = (clusters[candidates.indices] == clusters[:, None]) & is_mention & candidates.exists
    has_none = ~same.any(dim=1, keepdim=True)
    correct = torch.cat([has_none, same], dim=1)
    # The marginal likelihood: the probabilities of all correct antecedents are summed before the logarithm, because any
    # of them would do.
    of_correct = scores.masked_fill(~correct, float("-inf")).logsumexp(dim=1)
    return (scores.logsumexp(dim=1) - of_correct).sum()


def compute_in_blocks(
    block: Callable[[int, int], tuple[Tensor, ...]], n_rows: int, row_floats: int, training: bool
) -> tuple[Tensor, ...]:
    """Compute a function of rows in blocks, and concatenate the results.

    Args:
        block: Computes the results for rows ``start`` to ``stop - 1``.
        n_rows: Number of rows.
        row_floats: Size of the largest tensor that ``block`` allocates per row.
        training: Compute each block a second time in the backward pass instead of keeping its intermediate results. A
            single block is kept, because that is faster and fits in memory.
    """
    size = max(1, FLOATS_AT_ONCE // max(row_floats, 1))
    # There is at least one block, so results have their shape even without rows.
    starts = range(0, max(n_rows, 1), size)
    results = []
    for start in starts:
        stop = min(start + size, n_rows)
        if training and len(starts) > 1:
            # `checkpoint` restores the random state, so both computations drop the same units.
            results.append(checkpoint(block, start, stop, use_reentrant=False))
        else:
            results.append(block(start, stop))
    return tuple(torch.cat(parts) for parts in zip(*results, strict=True))


HEAD_WORDS = "head_words"
TOKENS_AT_ONCE = 4096  # spans of this many tokens are scored at once; limits memory


@dataclass(frozen=True)
class CorefModelConfig:
    """Sizes of the model. The defaults are from 2017."""

    hidden: int = setting(200, "Units per direction of each LSTM layer.")
    layers: int = setting(1, "Number of LSTM layers.")
    lexical_dropout: float = setting(0.5, "Dropout on word vectors and character features.")
    lstm_dropout: float = setting(0.2, "Dropout in the LSTM.")
    dropout: float = setting(0.2, "Dropout everywhere else.")
    max_width: int = setting(10, "Maximum length of a span, in tokens.")
    scorer_hidden: int = setting(150, "Units of each hidden layer of the mention scorer and the antecedent scorer.")
    scorer_layers: int = setting(2, "Number of hidden layers of these scorers.")
    feature_dim: int = setting(20, "Size of each feature's vector: span width, distance, genre, same speaker.")
    keep: float = setting(0.4, "Number of spans to keep, as a fraction of the number of tokens.")
    antecedents: int = setting(
        250, "Number of candidates per span: the nearest spans, or with ``coarse_to_fine``, the best by coarse score."
    )
    coarse_to_fine: bool = setting(False, "Choose candidates by a bilinear score instead of by distance.")
    rounds: int = setting(
        1,
        "Number of rounds of scoring antecedents. Between rounds, span vectors move towards their expected antecedent.",
    )
    train_sentences: int = setting(50, "Train on a random window of this many sentences from longer documents.")

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
    position_in_blocks: Tensor  # (tokens,): each token's position among the blocks' tokens
    sentence_ends: Tensor  # (tokens,): the last token of each token's sentence
    speakers: Tensor  # (tokens,): speaker ids
    genre: Tensor  # the genre id, a scalar
    cluster_of: dict[Mention, int] | None
    """The gold cluster of each gold mention, from 1."""


@dataclass(frozen=True)
class CorefBatch:
    """Documents, which stay separate because their sizes differ too much for padding."""

    documents: list[DocumentBatch]


@dataclass(frozen=True)
class ScoredAntecedents:
    """The kept spans of a document, and the scores of their candidate antecedents."""

    starts: list[int]
    ends: list[int]
    candidates: Candidates
    scores: Tensor  # (spans, 1 + candidates), "none" first


class CorefModel(TaskModel[CorefBatch, Clusters]):
    """The coreference model. Its loss is summed over the spans of a document, and averaged over documents.

    ELMo's input mix enters the LSTM, but not the vectors that spans attend to, which contain only words and characters.
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
        self.attends_to_context = head_dim == 0  # with ELMo as the only input, there are no other vectors
        self.vectors = self.make_vectors(context_dim, head_dim or context_dim)
        self.mentions = MentionScorer(self.vectors, config.scorer_hidden, config.scorer_layers, config.dropout)
        span_dim = self.vectors.output_dim
        self.coarse: CoarseScorer | None = None
        if config.coarse_to_fine:
            self.coarse = self.coarse_scorer(span_dim, config.dropout)
        self.pairs = self.pair_scorer(
            span_dim, config.feature_dim, n_genres, config.scorer_hidden, config.scorer_layers, config.dropout
        )
        self.refine = SpanRefinement(span_dim) if config.rounds > 1 else None

    def make_lstm(self) -> nn.Module:
        """Return the layers that read a sentence."""
        config = self.config
        return CoupledLSTMStack(self.inputs.output_dim, config.hidden, config.layers, config.lstm_dropout)

    def head_dim(self) -> int:
        """Return the size of the vectors that spans attend to; 0 if there are only contextual vectors."""
        table = HEAD_WORDS if self.has_head_words else "words"
        return self.inputs.word_dim(table) + self.inputs.char_dim

    def make_vectors(self, context_dim: int, head_dim: int) -> SpanVectors:
        """Return the module that computes span vectors."""
        config = self.config
        return SpanVectors(context_dim, head_dim, config.max_width, config.feature_dim, config.dropout)

    def loss(self, batch: CorefBatch) -> Tensor:
        losses = []
        # One document at a time, because the shapes after pruning differ between documents.
        for document in batch.documents:
            assert document.cluster_of is not None
            ranked = self.antecedents(document)
            spans = zip(ranked.starts, ranked.ends, strict=True)
            # 0 means "not a gold mention". Pruned gold mentions have no row here, so they do not change the loss.
            numbers = [document.cluster_of.get(span, 0) for span in spans]
            gold = torch.tensor(numbers, dtype=torch.int64).to(ranked.scores.device)
            losses.append(antecedent_loss(ranked.scores, ranked.candidates, gold))
        return torch.stack(losses).mean()

    def predict(self, batch: CorefBatch) -> list[Clusters]:
        """Return the clusters of each document. Each cluster has at least two mentions."""
        return [clusters_of(self.antecedents(document)) for document in batch.documents]

    def antecedents(self, document: DocumentBatch) -> ScoredAntecedents:
        """Prune the spans of a document, and score the antecedents of the kept spans."""
        context, heads = self._encode(document)
        starts, ends = all_spans(document.sentence_ends, self.config.max_width)
        spans = self.vectors.spans(starts, ends)
        mention_scores = self._mention_scores(document.sentence_ends, context, heads, spans)
        # Lee et al. 2017 keep 0.4 spans per word. The loss cannot raise the scores of pruned gold mentions; dropout
        # makes up for it, because it sometimes lets such spans in.
        n_best = max(1, int(self.config.keep * len(context)))
        # The greedy choice has no gradient, so it is plain Python.
        best = self.prune(mention_scores.tolist(), starts.tolist(), ends.tolist(), n_best)
        kept = torch.tensor(best, dtype=torch.int64, device=starts.device)
        mention_scores = mention_scores[kept]
        spans = spans[kept]
        # Only kept spans get vectors: the vectors of all spans of a document would not fit in memory.
        vectors = self.vectors(context, heads, spans)
        if self.coarse is None:
            candidates = nearest_antecedents(mention_scores, self.config.antecedents)
        else:
            candidates = self.coarse(vectors, mention_scores, self.config.antecedents)
        speakers = document.speakers[spans.starts]
        scores = self._scores(vectors, candidates, speakers, document.genre)
        # Later rounds score the same candidates again with refined span vectors, but keep the coarse scores (Lee et al.
        # 2018).
        for _ in range(self.config.rounds - 1):
            assert self.refine is not None
            vectors = self.refine(vectors, candidates, scores)
            scores = self._scores(vectors, candidates, speakers, document.genre)
        return ScoredAntecedents(spans.starts.tolist(), spans.ends.tolist(), candidates, scores)

    def _scores(self, vectors: Tensor, candidates: Candidates, speakers: Tensor, genre: Tensor) -> Tensor:
        """Return the full antecedent scores, ``(spans, 1 + candidates)``, "none" first."""
        scores = candidates.scores + self.pairs(vectors, candidates, speakers, genre)
        # The score of "none" is 0, so a positive score means that there is an antecedent.
        return torch.cat([scores.new_zeros(len(scores), 1), scores], dim=1)

    def _mention_scores(self, sentence_ends: Tensor, context: Tensor, heads: Tensor, spans: Spans) -> Tensor:
        """Return the mention score of each span, ``(spans,)``, computed for several sentences at a time."""
        attention = self.vectors.attention_scores(context, heads)  # (tokens,)
        scores = []
        for first, stop in token_ranges(sentence_ends.tolist(), TOKENS_AT_ONCE):
            # Spans are ordered by first token and end within their sentence, so the spans of a range of sentences are
            # consecutive.
            bounds = torch.tensor([first, stop], device=context.device)
            first_span, stop_span = torch.searchsorted(spans.starts, bounds).tolist()
            of_range = spans[first_span:stop_span].relative_to(first)
            tokens = slice(first, stop)
            scores.append(self.mentions(attention[tokens], context[tokens], heads[tokens], of_range))
        if not scores:
            return attention
        return torch.cat(scores)

    def prune(self, scores: list[float], starts: list[int], ends: list[int], n_best: int) -> list[int]:
        """Return the indices of the spans to keep, in text order."""
        return prune_spans(scores, starts, ends, n_best)

    def _encode(self, document: DocumentBatch) -> tuple[Tensor, Tensor]:
        """Return the tokens' contextual vectors, ``(tokens, context_dim)``, and the vectors that spans attend to,
        ``(tokens, head_dim)``, in text order."""
        contexts, heads = [], []
        for tokens in document.blocks:
            outputs, words = self.read(tokens)
            contexts.append(self.inputs.at_output(outputs, tokens)[tokens.mask])
            heads.append(words[tokens.mask])
        context = torch.cat(contexts)[document.position_in_blocks]
        if self.attends_to_context:
            return context, context
        return context, torch.cat(heads)[document.position_in_blocks]

    def read(self, tokens: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return the LSTM's output for sentences, and the vectors that spans attend to."""
        chars = self.inputs.char_features(tokens)
        words = self._lexical([self.inputs.word_vectors(tokens), chars], tokens)
        mixed = self.inputs.elmo_mix(tokens, "input")
        read = words
        if mixed is not None:
            read = torch.cat([words, mixed], dim=-1)
        outputs = self.lstm(read, tokens.mask)
        # Lee et al. 2018 use other word vectors here than for the LSTM: GloVe with a context window of 2 words.
        if self.has_head_words:
            words = self._lexical([self.inputs.word_vectors(tokens, HEAD_WORDS), chars], tokens)
        return outputs, words

    def _lexical(self, parts: Sequence[Tensor | None], tokens: TokenBatch) -> Tensor:
        dropped: Tensor = self.lexical_dropout(concatenated(parts, tokens.mask))
        return dropped


def token_ranges(sentence_ends: Sequence[int], at_once: int) -> list[tuple[int, int]]:
    """Divide sentences into ranges of at most ``at_once`` tokens. A longer sentence is a range of its own."""
    ranges: list[tuple[int, int]] = []
    first = stop = 0
    while stop < len(sentence_ends):
        following = sentence_ends[stop] + 1
        if following - first > at_once and stop > first:
            ranges.append((first, stop))
            first = stop
        stop = following
    if stop > first:
        ranges.append((first, stop))
    return ranges


def clusters_of(ranked: ScoredAntecedents) -> Clusters:
    """Return clusters of the spans that are connected by their best antecedents, in text order."""
    best = ranked.scores.argmax(dim=1, keepdim=True)  # (spans, 1); 0 is "none"
    none = torch.full_like(best, -1)
    choices = torch.cat([none, ranked.candidates.indices], dim=1)
    antecedents = choices.gather(1, best)[:, 0]
    cluster_of: dict[int, int] = {}
    clusters: list[list[Mention]] = []
    for span, antecedent in enumerate(antecedents.tolist()):
        if antecedent < 0:
            continue
        # Antecedents precede their spans, so one pass in text order finds all links.
        if antecedent not in cluster_of:
            cluster_of[antecedent] = len(clusters)
            clusters.append([(ranked.starts[antecedent], ranked.ends[antecedent])])
        cluster_of[span] = cluster_of[antecedent]
        clusters[cluster_of[span]].append((ranked.starts[span], ranked.ends[span]))
    return clusters
