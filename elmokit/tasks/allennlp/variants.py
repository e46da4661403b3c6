"""The models that AllenNLP built otherwise than the papers, for its archives and its configs.

``ARCHIVED_TASKS`` build such a model where the config (``archived_configs``) asks for one: a tagger with other encoders
(``model.encoder``, ``model.feedforward``), the decoding of SRL (``model.decoding``), decomposable attention,
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
from elmokit.tasks.nli import NliConfig, NliModel, NliTask, SentencePair
from elmokit.tasks.nn.bi_attention import BiAttention
from elmokit.tasks.nn.crf import TagRules, follow_back
from elmokit.tasks.nn.gated_lstm import BidirectionalHighwayLSTM, HighwayLSTM
from elmokit.tasks.nn.layers import attend, feed_forward, masked_softmax, run_packed
from elmokit.tasks.nn.spans import SpanVectors
from elmokit.tasks.qa import HIDDEN, QaBatch, QaConfig, QaModel, QaTask
from elmokit.tasks.srl import SrlConfig, SrlModel, SrlTask
from elmokit.tasks.sst import SstTask
from elmokit.tasks.task import AnyTask, Labels, Sentence, Tokenize

START_SCORE = 100_000.0  # of the tag that AllenNLP puts before a sentence to decode SRL


class AllenNLPTagger(NerModel):
    """``crf_tagger`` with another encoder than bidirectional LSTMs, or with feed-forward layers after it."""

    def add_layers(self, config: NerModelConfig, input_dim: int) -> int:
        assert isinstance(config, ArchivedNerModelConfig)
        dim, dropout = input_dim, config.recurrent_dropout
        self.layers = nn.ModuleList()
        for k, units in enumerate(config.hidden):
            layer: nn.Module
            if config.encoder == "highway":
                layer = BidirectionalHighwayLSTM(dim, units, dropout)
            elif config.encoder == "alternating":
                layer = HighwayLSTM(dim, units, dropout, config.input_bias, reverse=k % 2 == 1)
            else:
                kind = nn.LSTM if config.encoder == "lstm" else nn.GRU
                layer = kind(dim, units, batch_first=True, bidirectional=True)
            self.layers.append(layer)
            dim = units if config.encoder == "alternating" else 2 * units
        self.feedforward = feed_forward(dim, config.feedforward, config.activation, config.dropout)
        return config.feedforward[-1] if config.feedforward else dim

    def encode(self, hidden: Tensor, mask: Tensor) -> Tensor:
        for k, layer in enumerate(self.layers):
            if isinstance(layer, nn.LSTM | nn.GRU):
                hidden = self.dropout(run_packed(layer, hidden, mask))
            else:
                hidden = layer(hidden, mask)
                # The others have dropout on their states instead.
                hidden = self.dropout(hidden) if k + 1 == len(self.layers) else hidden
        encoded: Tensor = self.feedforward(hidden)
        return encoded


class AllenNLPNer(NerTask):
    """Named entity recognition, with the encoders of AllenNLP."""

    presets = archived_presets(ArchivedNerConfig, NerTask.presets)

    def build(self, config: NerConfig, inputs: InputLayer, known: Labels) -> NerModel:
        assert isinstance(config, ArchivedNerConfig)
        is_plain = config.model.encoder == "lstm" and not config.model.feedforward
        return (NerModel if is_plain else AllenNLPTagger)(config.model, inputs, known["tags"])


class AllenNLPSrl(SrlModel):
    """``srl``, whose best sequence of tags has the highest sum of rounded probabilities.

    AllenNLP passed probabilities to Viterbi's algorithm in all its versions, and not their logarithms.
    """

    lowest_of_ties = False

    def decode(self, scores: Tensor, mask: Tensor) -> list[list[int]]:
        return viterbi_of_allennlp(scores.softmax(dim=-1), mask, self.rules, self.lowest_of_ties)


@torch.no_grad()
def viterbi_of_allennlp(scores: Tensor, mask: Tensor, rules: TagRules, lowest_of_ties: bool) -> list[list[int]]:
    """Return the tags that AllenNLP's ``viterbi_decode`` finds with scores for a start tag, as in its SRL model.

    AllenNLP adds ``START_SCORE`` to the scores of all paths. In float32 they are thereby rounded to multiples of 1/128
    after every token, so that sequences of nearly the same score become ties. This function adds the same numbers in
    the same order, on the CPU as AllenNLP does.

    Args:
        scores: Scores of each tag at each token, ``(batch, time, tags)``.
        mask: ``(batch, time)`` bool, without gaps. A row may be empty.
        rules: Which tags are allowed where.
        lowest_of_ties: Ties go to the lowest tag, as before version 1.0 of AllenNLP; otherwise to any, namely to the
            one that ``torch.topk`` returns.
    """
    n_tags = scores.shape[-1]
    start, end = n_tags, n_tags + 1
    nothing = float("-inf")
    # The two tags around a sentence are in all tensors, because the tie that topk prefers depends on the length.
    follow = torch.full((n_tags + 2, n_tags + 2), nothing, device="cpu")
    follow[:n_tags, :n_tags][rules.follow.cpu()] = 0.0
    follow[start, :n_tags][rules.start.cpu()] = 0.0
    follow[:n_tags, end][rules.end.cpu()] = 0.0
    scores = F.pad(scores.cpu(), (0, 2), value=nothing)
    mask = mask.cpu()
    best = torch.zeros(len(scores), n_tags + 2, device="cpu")
    best[:, start] = START_SCORE

    def best_before(column: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score and the tag of the best path so far, before each tag of ``(tags, next tags)``."""
        candidates = best[:, :, None] + column
        if lowest_of_ties:
            values, tags = candidates.max(dim=1)
            return values, tags
        values, tags = candidates.topk(1, dim=1)
        return values[:, 0], tags[:, 0]

    origins = []
    for step in range(scores.shape[1]):
        candidates, origin = best_before(follow)
        best = torch.where(mask[:, step, None], scores[:, step] + candidates, best)
        origins.append(origin)
    return follow_back(best_before(follow[:, end:])[1], origins[1:], mask)


class AllenNLPSrlTask(SrlTask):
    """Semantic role labeling, with the decoding of AllenNLP."""

    presets = archived_presets(ArchivedSrlConfig, SrlTask.presets)

    def build(self, config: SrlConfig, inputs: InputLayer, known: Labels) -> SrlModel:
        assert isinstance(config, ArchivedSrlConfig)
        if config.model.decoding == "log-probabilities":
            return super().build(config, inputs, known)
        model = AllenNLPSrl(config.model, inputs, known["tags"])
        model.lowest_of_ties = config.model.decoding == "allennlp 0.x"
        return model


class _SpanVectors(SpanVectors):
    """Vectors of spans whose attention scores are computed from the vectors without context, too."""

    def attention_scores(self, context: Tensor, heads: Tensor) -> Tensor:
        return super().attention_scores(heads, heads)


class _CoarseScorer(CoarseScorer):
    """A bilinear score that transforms the antecedent's vector and not the span's. The two differ by their bias."""

    def sides(self, spans: Tensor) -> tuple[Tensor, Tensor]:
        source, target = super().sides(spans)
        return target, source


class _PairScorer(PairScorer):
    """The score of a pair of spans that knows neither speakers nor genre."""

    def table_sizes(self, n_genres: int) -> dict[str, int]:
        return {"distance": N_DISTANCES}

    def features(self, start: int, stop: int, indices: Tensor, speakers: Tensor, genre: Tensor) -> Tensor:
        dropped: Tensor = self.dropout(self.distances(start, stop, indices))
        return dropped


class AllenNLPCoref(CorefModel):
    """``coref``: a plain LSTM reads the document as one sequence; spans attend to its inputs, ELMo included; spans that
    cross are kept."""

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
        sizes = (config.max_width, config.feature_dim, config.dropout)
        return _SpanVectors(context_dim, head_dim, *sizes, scored_dim=head_dim)

    def read(self, tokens: TokenBatch) -> tuple[Tensor, Tensor]:
        words = self.lexical_dropout(self.inputs(tokens))
        assert isinstance(self.lstm, nn.LSTM)
        return run_packed(self.lstm, words, tokens.mask), words

    def prune(self, scores: list[float], starts: list[int], ends: list[int], n_best: int) -> list[int]:
        best = sorted(range(len(scores)), key=lambda span: -scores[span])[:n_best]
        return sorted(best, key=lambda span: (starts[span], ends[span]))


class AllenNLPCorefTask(CorefTask):
    """Coreference, with the model of AllenNLP."""

    presets = archived_presets(ArchivedCorefConfig, CorefTask.presets)

    def build(self, config: CorefConfig, inputs: InputLayer, known: Labels) -> CorefModel:
        assert isinstance(config, ArchivedCorefConfig)
        is_theirs = config.model.network == "allennlp"
        return (AllenNLPCoref if is_theirs else CorefModel)(config.model, inputs, len(known["genres"]))

    def sequences(self, example: Document, config: CorefConfig) -> Sequence[Sentence]:
        assert isinstance(config, ArchivedCorefConfig)
        if config.model.network != "allennlp":
            return super().sequences(example, config)
        return [tuple(chain.from_iterable(example.sentences))]


class BiDafLayers(nn.Module):
    """The layers of BiDAF above the embeddings (Seo et al. 2017): two scores of each passage word.

    Highway layers, a bidirectional LSTM over question and passage, attention in both directions, two modeling layers,
    and a score of each passage word as the first and as the last of the answer. The end is scored from a further LSTM
    that knows the expected start.

    Args:
        input_dim: Size of the embeddings.
        hidden: Units per direction of every LSTM.
        highway_layers: Number of highway layers.
        modeling_layers: Number of layers of the LSTM after the attention.
        dropout: Dropout on the output of every LSTM and on the input of the two scores.
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
        self.modeling = nn.LSTM(
            merged_dim,
            hidden,
            modeling_layers,
            batch_first=True,
            bidirectional=True,
            dropout=dropout if modeling_layers > 1 else 0.0,
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
            question_mask, passage_mask: Bool, True on a real token; at least one each.

        Returns:
            Scores of each word as the first and as the last of the answer, ``(batch, time)`` each, of any value on
            padding.
        """
        encoded_question = self._encode(question, question_mask)
        encoded_passage = self._encode(passage, passage_mask)
        merged = self.attention(encoded_passage, encoded_question, passage_mask, question_mask)
        modeled = self.dropout(run_packed(self.modeling, merged, passage_mask))
        at_start = self.dropout(torch.cat([merged, modeled], dim=-1))
        starts = self.start(at_start)[..., 0]
        # The modeled passage at the start of the answer, in expectation.
        expected = (masked_softmax(starts, passage_mask)[:, None, :] @ modeled).expand_as(modeled)
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
    """``bidaf``, the model before BiDAF++."""

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
    """Question answering, with BiDAF."""

    presets = archived_presets(ArchivedQaConfig, QaTask.presets)

    def build(self, config: QaConfig, inputs: InputLayer, labels: Labels) -> QaModel:
        assert isinstance(config, ArchivedQaConfig)
        if config.model.network == "bidaf":
            return BiDaf(config.model, inputs)
        return super().build(config, inputs, labels)


class AllenNLPSst(SstTask):
    """Sentiment, with the character features and the ELMo of AllenNLP."""

    presets = archived_presets(ArchivedSstConfig, SstTask.presets)


class DecomposableAttention(ClassificationModel):
    """``decomposable_attention`` (Parikh et al. 2016): each token is aligned with the tokens of the other sentence by
    attention and compared with what it is aligned with, and the sums of the comparisons are classified.
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
        premise_mask, hypothesis_mask = (tokens.mask for tokens in texts)
        premises, hypotheses = map(self.inputs, texts)
        similarity = self.attend(premises) @ self.attend(hypotheses).transpose(1, 2)  # (batch, premise, hypothesis)
        of_hypotheses = attend(similarity, hypotheses, hypothesis_mask)
        of_premises = attend(similarity.transpose(1, 2), premises, premise_mask)
        of_premise = self._compared(premises, of_hypotheses, premise_mask)
        of_hypothesis = self._compared(hypotheses, of_premises, hypothesis_mask)
        scores: Tensor = self.output(self.aggregate(torch.cat([of_premise, of_hypothesis], dim=-1)))
        return scores

    def _compared(self, tokens: Tensor, aligned: Tensor, mask: Tensor) -> Tensor:
        """Compare tokens with what they are aligned with, and return the sums, ``(batch, dim)``."""
        compared: Tensor = self.compare(torch.cat([tokens, aligned], dim=-1))
        return (compared * mask[..., None]).sum(dim=1)


class AllenNLPNli(NliTask):
    """Entailment, with AllenNLP's decomposable attention, and with the tokens that it adds to sentences."""

    presets = archived_presets(ArchivedNliConfig, NliTask.presets)

    def build(self, config: NliConfig, inputs: InputLayer, known: Labels) -> ClassificationModel:
        assert isinstance(config, ArchivedNliConfig)
        is_esim = config.model.network == "esim"
        return (NliModel if is_esim else DecomposableAttention)(config.model, inputs, known["classes"])

    def read(self, path: str, config: NliConfig) -> Iterator[SentencePair]:
        for pair in super().read(path, config):
            yield _with_end_tokens(pair, config)

    def read_line(self, line: str, where: str, tokenize: Tokenize, config: NliConfig) -> SentencePair:
        return _with_end_tokens(super().read_line(line, where, tokenize, config), config)


def _with_end_tokens(pair: SentencePair, config: NliConfig) -> SentencePair:
    assert isinstance(config, ArchivedNliConfig)
    added = config.data.end_tokens
    return replace(pair, premise=[*pair.premise, *added], hypothesis=[*pair.hypothesis, *added])


_PAPER = (AllenNLPNer(), AllenNLPSst(), AllenNLPNli(), AllenNLPSrlTask(), AllenNLPCorefTask(), AllenNLPQa())
ARCHIVED_TASKS: dict[str, AnyTask] = {task.name: task for task in (*_PAPER, ParsingTask())}
"""The tasks by name, each with a config that has AllenNLP's settings, too; and parsing, which is not in the paper."""
