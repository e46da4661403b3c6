"""AllenNLP's models that differ from the papers, for its archives and configs.

``ARCHIVED_TASKS`` build these models if the config (``archived_configs``) asks for them: taggers with other encoders
(``model.encoder``, ``model.feedforward``), SRL with other decoding (``model.decoding``), and decomposable attention,
coreference and BiDAF (``model.network``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.network.char_cnn import Highway
from elmokit.tasks.allennlp.archived_configs import (
    ArchivedCorefConfig,
    ArchivedNerConfig,
    ArchivedNerModelConfig,
    ArchivedNliConfig,
    ArchivedNliModelConfig,
    ArchivedQaConfig,
    ArchivedQaModelConfig,
    ArchivedSrlConfig,
    ArchivedSstConfig,
    archived_presets,
)
from elmokit.tasks.allennlp.parsing import ParsingTask
from elmokit.tasks.classification import ClassificationModel
from elmokit.tasks.coref import CorefConfig, CorefTask, Document
from elmokit.tasks.coref_model import N_DISTANCES, CoarseScorer, CorefModel, PairScorer
from elmokit.tasks.inputs import InputLayer, TokenBatch
from elmokit.tasks.ner import NerConfig, NerModel, NerModelConfig, NerTask
from elmokit.tasks.nli import NliConfig, NliTask, SentencePair
from elmokit.tasks.nn.bi_attention import BiAttention
from elmokit.tasks.nn.crf import TagRules, follow_back
from elmokit.tasks.nn.gated_lstm import BidirectionalHighwayLSTM, HighwayLSTM
from elmokit.tasks.nn.layers import attend, feed_forward, masked_softmax, run_packed
from elmokit.tasks.nn.spans import SpanVectors
from elmokit.tasks.qa import HIDDEN, QaBatch, QaConfig, QaModel, QaTask
from elmokit.tasks.srl import SrlConfig, SrlModel, SrlTask
from elmokit.tasks.sst import SstTask
from elmokit.tasks.task import AnyTask, Labels, Sentence, Tokenize

START_SCORE = 100_000.0  # the score of the tag that AllenNLP puts before a sentence when decoding SRL


class AllenNLPTagger(NerModel):
    """``crf_tagger`` with another encoder than bidirectional LSTMs, or with feed-forward layers after the encoder."""

    def add_layers(self, config: NerModelConfig, input_dim: int) -> int:
        assert isinstance(config, ArchivedNerModelConfig)
        dim = input_dim
        self.layers = nn.ModuleList()
        for k, units in enumerate(config.hidden):
            self.layers.append(_ner_layer(config, dim, units, reverse=k % 2 == 1))
            dim = units if config.encoder == "alternating" else 2 * units
        self.feedforward = feed_forward(dim, config.feedforward, config.activation, config.dropout)
        return config.feedforward[-1] if config.feedforward else dim

    def encode(self, hidden: Tensor, mask: Tensor) -> Tensor:
        last = len(self.layers) - 1
        for k, layer in enumerate(self.layers):
            if isinstance(layer, nn.LSTM | nn.GRU):
                hidden = self.dropout(run_packed(layer, hidden, mask))
            else:
                hidden = layer(hidden, mask)
                if k == last:  # between layers with a highway gate, the states have dropout instead
                    hidden = self.dropout(hidden)
        encoded: Tensor = self.feedforward(hidden)
        return encoded


def _ner_layer(config: ArchivedNerModelConfig, dim: int, units: int, reverse: bool) -> nn.Module:
    """Return a layer of the encoder of ``crf_tagger``. An alternating layer reads in one direction only."""
    if config.encoder == "highway":
        return BidirectionalHighwayLSTM(dim, units, config.recurrent_dropout)
    if config.encoder == "alternating":
        return HighwayLSTM(dim, units, config.recurrent_dropout, config.input_bias, reverse)
    kind = nn.LSTM if config.encoder == "lstm" else nn.GRU
    return kind(dim, units, batch_first=True, bidirectional=True)


class AllenNLPNer(NerTask):
    """Named entity recognition with AllenNLP's encoders."""

    presets = archived_presets(ArchivedNerConfig, NerTask.presets)

    def build(self, config: NerConfig, inputs: InputLayer, known: Labels) -> NerModel:
        assert isinstance(config, ArchivedNerConfig)
        if config.model.encoder == "lstm" and not config.model.feedforward:
            return super().build(config, inputs, known)
        return AllenNLPTagger(config.model, inputs, known["tags"])


class AllenNLPSrl(SrlModel):
    """``srl``, whose best tag sequence has the highest sum of rounded probabilities.

    All versions of AllenNLP passed probabilities, not their logarithms, to Viterbi's algorithm.
    """

    lowest_of_ties = False

    def decode(self, scores: Tensor, mask: Tensor) -> list[list[int]]:
        return viterbi_of_allennlp(scores.softmax(dim=-1), mask, self.rules, self.lowest_of_ties)


@torch.no_grad()
def viterbi_of_allennlp(scores: Tensor, mask: Tensor, rules: TagRules, lowest_of_ties: bool) -> list[list[int]]:
    """Return the tags that AllenNLP's ``viterbi_decode`` finds with scores for a start tag, as in its SRL model.

    AllenNLP adds ``START_SCORE`` to the scores of all paths. In float32, this rounds the scores to multiples of 1/128
    after each token, so sequences with nearly the same score become ties. This function adds the same numbers in the
    same order, and on the CPU, like AllenNLP.

    Args:
        scores: Scores of each tag at each token, ``(batch, time, tags)``.
        mask: ``(batch, time)`` bool, without gaps. A row may be empty.
        rules: Which tags are allowed where.
        lowest_of_ties: Ties go to the lowest tag, as before version 1.0 of AllenNLP; otherwise, to the tag that
            ``torch.topk`` happens to return.
    """
    n_tags = scores.shape[-1]
    start, end = n_tags, n_tags + 1
    nothing = float("-inf")
    # The tags for the start and end are in all tensors, because the result of topk for ties depends on the size.
    follow = torch.full((n_tags + 2, n_tags + 2), nothing, device="cpu")
    follow[:n_tags, :n_tags][rules.follow.cpu()] = 0.0
    follow[start, :n_tags][rules.start.cpu()] = 0.0
    follow[:n_tags, end][rules.end.cpu()] = 0.0
    scores = F.pad(scores.cpu(), (0, 2), value=nothing)
    mask = mask.cpu()
    best = torch.zeros(len(scores), n_tags + 2, device="cpu")
    best[:, start] = START_SCORE
    origins = []
    for step in range(scores.shape[1]):
        candidates, origin = _best_before(best[:, :, None] + follow, lowest_of_ties)
        best = torch.where(mask[:, step, None], scores[:, step] + candidates, best)
        origins.append(origin)
    _, last = _best_before(best[:, :, None] + follow[:, end:], lowest_of_ties)
    return follow_back(last, origins[1:], mask)


def _best_before(candidates: Tensor, lowest_of_ties: bool) -> tuple[Tensor, Tensor]:
    """Return the highest score before each tag, and the tag that has it, given ``(batch, tags, next tags)``."""
    if lowest_of_ties:
        values, tags = candidates.max(dim=1)
        return values, tags
    values, tags = candidates.topk(1, dim=1)
    return values[:, 0], tags[:, 0]


class AllenNLPSrlTask(SrlTask):
    """Semantic role labeling with AllenNLP's decoding."""

    presets = archived_presets(ArchivedSrlConfig, SrlTask.presets)

    def build(self, config: SrlConfig, inputs: InputLayer, known: Labels) -> SrlModel:
        assert isinstance(config, ArchivedSrlConfig)
        if config.model.decoding == "log-probabilities":
            return super().build(config, inputs, known)
        model = AllenNLPSrl(config.model, inputs, known["tags"])
        model.lowest_of_ties = config.model.decoding == "allennlp 0.x"
        return model


class _SpanVectors(SpanVectors):
    """Span vectors with attention scores that are also computed from context-free vectors."""

    def attention_scores(self, context: Tensor, heads: Tensor) -> Tensor:
        return super().attention_scores(heads, heads)


class _CoarseScorer(CoarseScorer):
    """A bilinear score that transforms the antecedent's vector, not the span's. The difference is in the bias."""

    def sides(self, spans: Tensor) -> tuple[Tensor, Tensor]:
        source, target = super().sides(spans)
        return target, source


class _PairScorer(PairScorer):
    """The score of a pair of spans, without features of speakers and genre."""

    def table_sizes(self, n_genres: int) -> dict[str, int]:
        return {"distance": N_DISTANCES}

    def features(self, start: int, stop: int, indices: Tensor, speakers: Tensor, genre: Tensor) -> Tensor:
        dropped: Tensor = self.dropout(self.distances(start, stop, indices))
        return dropped


class AllenNLPCoref(CorefModel):
    """``coref``: a plain LSTM reads the document as one sequence, spans attend to its inputs (including ELMo), and
    crossing spans are kept."""

    coarse_scorer = _CoarseScorer
    pair_scorer = _PairScorer

    def make_lstm(self) -> nn.Module:
        config = self.config
        dropout = config.lstm_dropout if config.layers > 1 else 0.0  # PyTorch warns if there is only one layer
        return nn.LSTM(
            self.inputs.output_dim,
            config.hidden,
            config.layers,
            batch_first=True,
            bidirectional=True,
            dropout=dropout,
        )

    def head_dim(self) -> int:
        return self.inputs.output_dim

    def make_vectors(self, context_dim: int, head_dim: int) -> SpanVectors:
        config = self.config
        return _SpanVectors(
            context_dim, head_dim, config.max_width, config.feature_dim, config.dropout, scored_dim=head_dim
        )

    def read(self, tokens: TokenBatch) -> tuple[Tensor, Tensor]:
        words = self.lexical_dropout(self.inputs(tokens))
        assert isinstance(self.lstm, nn.LSTM)
        return run_packed(self.lstm, words, tokens.mask), words

    def prune(self, scores: list[float], starts: list[int], ends: list[int], n_best: int) -> list[int]:
        best = sorted(range(len(scores)), key=lambda span: -scores[span])[:n_best]
        return sorted(best, key=lambda span: (starts[span], ends[span]))


class AllenNLPCorefTask(CorefTask):
    """Coreference resolution with AllenNLP's model."""

    presets = archived_presets(ArchivedCorefConfig, CorefTask.presets)

    def build(self, config: CorefConfig, inputs: InputLayer, known: Labels) -> CorefModel:
        assert isinstance(config, ArchivedCorefConfig)
        if config.model.network == "allennlp":
            return AllenNLPCoref(config.model, inputs, len(known["genres"]))
        return super().build(config, inputs, known)

    def sequences(self, example: Document, config: CorefConfig) -> Sequence[Sentence]:
        assert isinstance(config, ArchivedCorefConfig)
        if config.model.network == "allennlp":
            return [tuple(chain.from_iterable(example.sentences))]
        return super().sequences(example, config)


class BiDafLayers(nn.Module):
    """The layers of BiDAF above the embeddings (Seo et al. 2017), which give each passage word two scores.

    These are highway layers, a bidirectional LSTM over question and passage, attention in both directions, modeling
    layers, and scores of each passage word as the first and as the last word of the answer. The last word is scored
    from another LSTM, which reads the expected start.

    Args:
        input_dim: Size of the embeddings.
        hidden: Units per direction of each LSTM.
        highway_layers: Number of highway layers.
        modeling_layers: Number of layers of the LSTM after the attention.
        dropout: Dropout on the output of each LSTM and on the input of the two scores.
    """

    def __init__(self, input_dim: int, hidden: int, highway_layers: int, modeling_layers: int, dropout: float) -> None:
        super().__init__()
        both = 2 * hidden
        self.highways = nn.ModuleList(Highway(input_dim) for _ in range(highway_layers))
        for highway in self.highways:
            assert isinstance(highway, Highway)
            highway.reset_parameters()
        self.phrases = nn.LSTM(input_dim, hidden, batch_first=True, bidirectional=True)
        self.attention = BiAttention(both)
        merged_dim = self.attention.output_dim
        dropout_between = dropout if modeling_layers > 1 else 0.0
        self.modeling = nn.LSTM(
            merged_dim, hidden, modeling_layers, batch_first=True, bidirectional=True, dropout=dropout_between
        )
        self.end_encoder = nn.LSTM(merged_dim + 3 * both, hidden, batch_first=True, bidirectional=True)
        self.start = nn.Linear(merged_dim + both, 1)
        self.end = nn.Linear(merged_dim + both, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, question: Tensor, passage: Tensor, question_mask: Tensor, passage_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Score the words of passages.

        Args:
            question: ``(batch, question_time, input_dim)``.
            passage: ``(batch, time, input_dim)``.
            question_mask, passage_mask: Bool, True on a real token; each row has at least one.

        Returns:
            Scores of each word as the first and as the last word of the answer, ``(batch, time)`` each. Scores of
            padding are meaningless.
        """
        encoded_question = self._encode(question, question_mask)
        encoded_passage = self._encode(passage, passage_mask)
        merged = self.attention(encoded_passage, encoded_question, passage_mask, question_mask)
        modeled = self.dropout(run_packed(self.modeling, merged, passage_mask))
        at_start = self.dropout(torch.cat([merged, modeled], dim=-1))
        starts = self.start(at_start)[..., 0]
        # The expected vector of the modeled passage at the start of the answer.
        weights = masked_softmax(starts, passage_mask)
        expected = (weights[:, None, :] @ modeled).expand_as(modeled)
        with_start = torch.cat([merged, modeled, expected, modeled * expected], dim=-1)
        encoded_end = self.dropout(run_packed(self.end_encoder, with_start, passage_mask))
        at_end = self.dropout(torch.cat([merged, encoded_end], dim=-1))
        ends = self.end(at_end)[..., 0]
        return starts, ends

    def _encode(self, inputs: Tensor, mask: Tensor) -> Tensor:
        for highway in self.highways:
            inputs = highway(inputs)
        encoded: Tensor = self.dropout(run_packed(self.phrases, inputs, mask))
        return encoded


class BiDaf(QaModel):
    """``bidaf``, the predecessor of BiDAF++."""

    def __init__(self, config: ArchivedQaModelConfig, inputs: InputLayer) -> None:
        super().__init__(inputs, config.max_answer)
        hidden = config.hidden or HIDDEN
        self.layers = BiDafLayers(
            inputs.output_dim, hidden, config.highway_layers, config.modeling_layers, config.dropout
        )

    def forward(self, batch: QaBatch) -> tuple[Tensor, Tensor]:
        passage, question = batch.passage, batch.question
        starts, ends = self.layers(self.inputs(question), self.inputs(passage), question.mask, passage.mask)
        padding = ~passage.mask
        starts = starts.masked_fill(padding, -torch.inf).log_softmax(1)
        ends = ends.masked_fill(padding, -torch.inf).log_softmax(1)
        return starts, ends


class AllenNLPQa(QaTask):
    """Question answering with BiDAF."""

    presets = archived_presets(ArchivedQaConfig, QaTask.presets)

    def build(self, config: QaConfig, inputs: InputLayer, labels: Labels) -> QaModel:
        assert isinstance(config, ArchivedQaConfig)
        if config.model.network == "bidaf":
            return BiDaf(config.model, inputs)
        return super().build(config, inputs, labels)


class AllenNLPSst(SstTask):
    """Sentiment with AllenNLP's character features and ELMo."""

    presets = archived_presets(ArchivedSstConfig, SstTask.presets)


class DecomposableAttention(ClassificationModel):
    """``decomposable_attention`` (Parikh et al. 2016).

    Attention aligns each token with the tokens of the other sentence, the token is compared with the aligned vector,
    and the sums of the comparisons are classified.
    """

    def __init__(self, config: ArchivedNliModelConfig, inputs: InputLayer, classes: Sequence[str]) -> None:
        super().__init__(inputs, classes)
        dim, dropout = inputs.output_dim, config.dropout
        self.attend = feed_forward(dim, config.attend, "relu", dropout)
        self.compare = feed_forward(2 * dim, config.compare, "relu", dropout)
        both = 2 * config.compare[-1]
        self.aggregate = feed_forward(both, config.aggregate, "relu", dropout)
        self.output = nn.Linear(config.aggregate[-1] if config.aggregate else both, len(classes))

    def scores(self, *texts: TokenBatch) -> Tensor:
        premise_tokens, hypothesis_tokens = texts
        premises = self.inputs(premise_tokens)
        hypotheses = self.inputs(hypothesis_tokens)
        similarity = self.attend(premises) @ self.attend(hypotheses).transpose(1, 2)  # (batch, premise, hypothesis)
        of_hypotheses = attend(similarity, hypotheses, hypothesis_tokens.mask)
        of_premises = attend(similarity.transpose(1, 2), premises, premise_tokens.mask)
        of_premise = self._compared(premises, of_hypotheses, premise_tokens.mask)
        of_hypothesis = self._compared(hypotheses, of_premises, hypothesis_tokens.mask)
        both = torch.cat([of_premise, of_hypothesis], dim=-1)
        scores: Tensor = self.output(self.aggregate(both))
        return scores

    def _compared(self, tokens: Tensor, aligned: Tensor, mask: Tensor) -> Tensor:
        """Compare tokens with their aligned vectors, and return the sums, ``(batch, dim)``."""
        compared: Tensor = self.compare(torch.cat([tokens, aligned], dim=-1))
        return (compared * mask[..., None]).sum(dim=1)


class AllenNLPNli(NliTask):
    """Natural language inference with decomposable attention, and with tokens that AllenNLP adds to sentences."""

    presets = archived_presets(ArchivedNliConfig, NliTask.presets)

    def build(self, config: NliConfig, inputs: InputLayer, known: Labels) -> ClassificationModel:
        assert isinstance(config, ArchivedNliConfig)
        if config.model.network == "esim":
            return super().build(config, inputs, known)
        return DecomposableAttention(config.model, inputs, known["classes"])

    def read(self, path: str, config: NliConfig) -> Iterator[SentencePair]:
        for pair in super().read(path, config):
            yield _with_end_tokens(pair, config)

    def read_line(self, line: str, where: str, tokenize: Tokenize, config: NliConfig) -> SentencePair:
        return _with_end_tokens(super().read_line(line, where, tokenize, config), config)


def _with_end_tokens(pair: SentencePair, config: NliConfig) -> SentencePair:
    assert isinstance(config, ArchivedNliConfig)
    added = config.data.end_tokens
    return replace(pair, premise=[*pair.premise, *added], hypothesis=[*pair.hypothesis, *added])


ARCHIVED_TASKS: dict[str, AnyTask] = {
    "ner": AllenNLPNer(),
    "sst": AllenNLPSst(),
    "nli": AllenNLPNli(),
    "srl": AllenNLPSrlTask(),
    "coref": AllenNLPCorefTask(),
    "qa": AllenNLPQa(),
    "parsing": ParsingTask(),
}
"""The tasks by name. Their configs also have AllenNLP's settings. Parsing is not in the paper."""
