"""Map the tensors of AllenNLP's task models to their names in elmokit.

AllenNLP concatenates embeddings in the order of their names in the config. elmokit concatenates words, characters and
ELMo, so the columns of each layer that reads them are permuted (``Embeddings.columns``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.engine.architecture import Shape
from elmokit.errors import TensorMismatchError
from elmokit.formats.tensor_rows import (
    SAME,
    Array,
    FileArrays,
    TensorLayout,
    TensorRow,
    read_through,
    same_shape,
)
from elmokit.tasks.allennlp.char_layers import TokenCharRNN
from elmokit.tasks.allennlp.parsing import ParsingModel
from elmokit.tasks.allennlp.variants import AllenNLPTagger, BiDaf, DecomposableAttention
from elmokit.tasks.coref_model import CorefModel, CorefModelConfig
from elmokit.tasks.ner import NerModel
from elmokit.tasks.nli import NliModel
from elmokit.tasks.nn.gated_lstm import BidirectionalHighwayLSTM, HighwayLSTM
from elmokit.tasks.nn.layers import Maxout
from elmokit.tasks.srl import SrlModel
from elmokit.tasks.sst import SstModel

COMBINATION = ("x", "y", "x*y")  # the parts of the weight vector of BiDAF's attention
ATTENTIONS = ("_matrix_attention.", "_matrix_attention._similarity_function.")  # since version 1.0, and before
VECTORS = tuple(f"{module}_weight_vector" for module in ATTENTIONS)


def read_only(to_ours: Callable[[Array], Array], their_shape: Callable[[Shape], Shape] = same_shape) -> TensorLayout:
    """Return a tensor layout for reading only, because archives are never written."""
    return TensorLayout(to_ours, _not_written, their_shape)


def _not_written(ours: Array) -> Array:
    raise NotImplementedError("Archives of AllenNLP are not written.")


ROW = read_only(lambda theirs: theirs[None], lambda ours: ours[1:])
OUTSIDE = read_only(lambda theirs: theirs.reshape(-1), lambda ours: (1, 1, *ours))
SCALAR = read_only(lambda theirs: theirs.reshape(()), lambda ours: (1,))


def _without_padding(table: Array) -> Array:
    """Set row 0 to zero. In AllenNLP, the row for padding can have any values, because padding is masked."""
    return np.concatenate([np.zeros_like(table[:1]), table[1:]])


ZERO_PADDING = read_only(_without_padding)


def permuted(order: Sequence[int], *axes: int) -> TensorLayout:
    """Return the layout of a tensor with permuted axes: our index ``i`` is AllenNLP's index ``order[i]``."""
    index = np.array(order, np.int64)

    def to_ours(theirs: Array) -> Array:
        for axis in axes:
            theirs = theirs.take(index, axis)
        return theirs

    return read_only(to_ours)


@dataclass(frozen=True)
class Embeddings:
    """The token embedders of a text field embedder."""

    prefix: str
    """The name of the text field embedder's module, with a dot."""
    names: dict[str, str]
    """AllenNLP's name of each kind of embedder ("words", "chars" or "elmo"), in AllenNLP's order."""
    unknown_rows: dict[str, int]
    """The row of unknown words or characters in the tables "words" and "chars"."""

    def name_of(self, kind: str) -> str:
        """Return the name of an embedder's module, with a dot."""
        return f"{self.prefix}token_embedder_{self.names[kind]}."

    def rows(self, model: Any) -> list[TensorRow]:
        """List the tensors of the tables, the character features and the input mix."""
        rows = []
        if "words" in self.names:
            table = f"{self.name_of('words')}weight"
            rows.append(TensorRow("inputs.words.words.weight", table, self._table("words")))
        if "chars" in self.names:
            rows += self._char_rows(model.inputs.chars)
        if "elmo" in self.names:
            rows += mix_rows("input", f"{self.name_of('elmo')}_elmo.scalar_mix_0")
        return rows

    def _char_rows(self, chars: Any) -> list[TensorRow]:
        name = self.name_of("chars")
        table = f"{name}_embedding._module.weight"
        rows = [TensorRow("inputs.chars.embedding.weight", table, self._table("chars"))]
        if isinstance(chars, TokenCharRNN):
            return rows + _recurrent("inputs.chars.rnn", chars.rnn, f"{name}_encoder._module")
        for k in range(len(chars.convolutions)):
            rows += _linear(f"inputs.chars.convolutions.{k}", f"{name}_encoder._module.conv_layer_{k}")
        return rows

    def _table(self, kind: str) -> TensorLayout:
        """Return the layout of a table. Here, row 1 is always for unknown words or characters."""
        row = self.unknown_rows.get(kind, 1)
        if row == 1:
            return ZERO_PADDING

        def to_ours(theirs: Array) -> Array:
            padding = np.zeros_like(theirs[:1])
            unknown = theirs[row : row + 1]
            return np.concatenate([padding, unknown, theirs[1:row], theirs[row + 1 :]])

        return read_only(to_ours)

    def order(self, model: Any) -> list[int]:
        """Return AllenNLP's column for each of our columns of the concatenated embeddings."""
        inputs = model.inputs
        sizes = {"words": inputs.word_dim(), "chars": inputs.char_dim, "elmo": inputs.elmo_dim}
        columns: dict[str, range] = {}
        start = 0
        for kind in self.names:
            columns[kind] = range(start, start + sizes[kind])
            start += sizes[kind]
        order: list[int] = []
        for kind in ("words", "chars", "elmo"):
            order += columns.get(kind, ())
        return order

    def columns(self, model: Any, n_more: int = 0) -> TensorLayout:
        """Return the layout of a matrix that reads the embeddings, followed by ``n_more`` other features."""
        order = self.order(model)
        order += range(len(order), len(order) + n_more)
        return permuted(order, 1)


def mix_rows(position: str, theirs: str) -> list[TensorRow]:
    """List the tensors of a scalar mix. ``join_mixes`` must have joined its weights."""
    return [
        TensorRow(f"inputs.mixes.{position}.weight", f"{theirs}.scalar_parameters"),
        TensorRow(f"inputs.mixes.{position}.gamma", f"{theirs}.gamma", SCALAR),
    ]


def _linear(ours: str, theirs: str, layout: TensorLayout = SAME) -> list[TensorRow]:
    return [TensorRow(f"{ours}.weight", f"{theirs}.weight", layout), TensorRow(f"{ours}.bias", f"{theirs}.bias")]


def _feed_forward(ours: str, layers: nn.Sequential, theirs: str, first: TensorLayout = SAME) -> list[TensorRow]:
    """List the tensors of ``feed_forward`` layers, each of which is followed by its activation and dropout."""
    rows = []
    for k in range(len(layers) // 3):
        layout = first if k == 0 else SAME
        rows += _linear(f"{ours}.{3 * k}", f"{theirs}._linear_layers.{k}", layout)
    return rows


def _recurrent(
    ours: str, module: nn.Module, theirs: str, first: TensorLayout = SAME, layer_in_theirs: int | None = None
) -> list[TensorRow]:
    """List the tensors of PyTorch's LSTM or GRU. Its first layer reads columns in the layout ``first``.

    Args:
        ours: Our name of the module.
        module: The module.
        theirs: AllenNLP's name.
        first: The layout of the first layer's input matrix.
        layer_in_theirs: If the module is a single layer of AllenNLP's module, the index of that layer.
    """
    rows = []
    for name in dict(module.named_parameters()):
        their_name = name
        if layer_in_theirs is not None:
            their_name = name.replace("_l0", f"_l{layer_in_theirs}")
        layout = first if name.startswith("weight_ih_l0") else SAME
        rows.append(TensorRow(f"{ours}.{name}", f"{theirs}._module.{their_name}", layout))
    return rows


def _highway(ours: str, layer: HighwayLSTM, theirs: str, first: TensorLayout) -> list[TensorRow]:
    """List the tensors of a highway LSTM layer, which reads columns in the layout ``first``."""
    rows = []
    for name in dict(layer.named_parameters()):
        which, part = name.split("_")
        # The cell is a module of its own since version 1.0.
        now = f"{theirs}.cell.{which}_linearity.{part}"
        before = f"{theirs}.{which}_linearity.{part}"
        layout = first if name == "input_weight" else SAME
        rows.append(TensorRow(f"{ours}.{name}", now, layout, also=(before,)))
    return rows


def ner_rows(model: NerModel, embeddings: Embeddings) -> list[TensorRow]:
    """List the tensors of ``crf_tagger``."""
    rows = embeddings.rows(model)
    for k, layer in enumerate(model.layers):
        first = embeddings.columns(model) if k == 0 else SAME
        if isinstance(layer, HighwayLSTM):
            rows += _highway(f"layers.{k}", layer, f"encoder._module.layer_{k}", first)
        elif isinstance(layer, BidirectionalHighwayLSTM):
            for name, part in layer.named_children():
                assert isinstance(part, HighwayLSTM)
                rows += _highway(f"layers.{k}.{name}", part, f"encoder._module.{name}_{k}", first)
        else:
            rows += _recurrent(f"layers.{k}", layer, "encoder", first, k)
    if isinstance(model, AllenNLPTagger):
        rows += _feed_forward("feedforward", model.feedforward, "_feedforward")
    rows += _linear("to_tags", "tag_projection_layer._module")
    rows.append(TensorRow("crf.transitions", "crf.transitions"))
    if model.crf.start is not None:
        rows.append(TensorRow("crf.start", "crf.start_transitions"))
        rows.append(TensorRow("crf.end", "crf.end_transitions"))
    return rows


def sst_rows(model: SstModel, embeddings: Embeddings) -> list[TensorRow]:
    """List the tensors of ``bcn``, whose ELMo is not one of the token embedders."""
    mixes = model.inputs.mixes
    rows = embeddings.rows(model)
    n_mixes = 0
    for position in ("input", "output"):
        if position in mixes:
            rows += mix_rows(position, f"_elmo.scalar_mix_{n_mixes}")
            n_mixes += 1
    n_after = model.inputs.elmo_dim if "input" in mixes else 0
    rows += _linear("project", "_pre_encode_feedforward._linear_layers.0", embeddings.columns(model, n_after))
    rows += _recurrent("encoder", model.encoder, "_encoder")
    rows += _recurrent("integrator", model.integrator, "_integrator")
    rows += _linear("weigh", "_self_attentive_pooling_projection")
    for k in range(len(model.output) // 2):  # each layer is followed by its dropout
        layer = model.output[2 * k]
        ours = f"output.{2 * k}"
        if isinstance(layer, Maxout):
            ours += ".linear"
        elif isinstance(layer, nn.Sequential):
            ours += ".0"
        rows += _linear(ours, f"_output_layer._linear_layers.{k}")
    return rows


def nli_rows(model: NliModel | DecomposableAttention, embeddings: Embeddings) -> list[TensorRow]:
    """List the tensors of ``esim``, or of ``decomposable_attention``."""
    if isinstance(model, DecomposableAttention):
        return _decomposable_rows(model, embeddings)
    return [
        *embeddings.rows(model),
        *_recurrent("encoder", model.encoder, "_encoder", embeddings.columns(model)),
        *_linear("project", "_projection_feedforward._linear_layers.0"),
        *_recurrent("composer", model.composer, "_inference_encoder"),
        *_linear("join", "_output_feedforward._linear_layers.0"),
        *_linear("output", "_output_logit._linear_layers.0"),
    ]


def _decomposable_rows(model: DecomposableAttention, embeddings: Embeddings) -> list[TensorRow]:
    order = embeddings.order(model)
    # The compared vectors consist of two embeddings.
    second = [len(order) + column for column in order]
    pair = permuted(order + second, 1)
    rows = embeddings.rows(model)
    rows += _feed_forward("attend", model.attend, "_attend_feedforward._module", permuted(order, 1))
    rows += _feed_forward("compare", model.compare, "_compare_feedforward._module", pair)
    rows += _feed_forward("aggregate", model.aggregate, "_aggregate_feedforward")
    return [*rows, *_linear("output", f"_aggregate_feedforward._linear_layers.{len(model.aggregate) // 3}")]


def srl_rows(model: SrlModel, embeddings: Embeddings) -> list[TensorRow]:
    """List the tensors of ``srl``."""
    rows = [*embeddings.rows(model), TensorRow("is_predicate.weight", "binary_feature_embedding.weight")]
    n_marks = model.is_predicate.embedding_dim
    for k, layer in enumerate(model.layers.layers):
        assert isinstance(layer, HighwayLSTM)
        first = embeddings.columns(model, n_marks) if k == 0 else SAME
        rows += _highway(f"layers.layers.{k}", layer, f"encoder._module.layer_{k}", first)
    return [*rows, *_linear("to_tags", "tag_projection_layer._module")]


def qa_rows(model: BiDaf, embeddings: Embeddings) -> list[TensorRow]:
    """List the tensors of ``bidaf``. ``split_joint`` must have split its highway layers and attention weights."""
    order = embeddings.order(model)
    # A highway layer reads and writes the embeddings, so both axes are permuted. Biases have one axis.
    weight = permuted(order, 0, 1)
    bias = permuted(order, 0)
    rows = embeddings.rows(model)
    for k in range(len(model.layers.highways)):
        ours, theirs = f"layers.highways.{k}", f"_highway_layer._module._layers.{k}"
        rows.append(TensorRow(f"{ours}.transform.weight", f"{theirs}.transform.weight", weight))
        rows.append(TensorRow(f"{ours}.transform.bias", f"{theirs}.transform.bias", bias))
        rows.append(TensorRow(f"{ours}.gate.weight", f"{theirs}.gate.weight", _negated(weight)))
        rows.append(TensorRow(f"{ours}.gate.bias", f"{theirs}.gate.bias", _negated(bias)))
    rows += _recurrent("layers.phrases", model.layers.phrases, "_phrase_layer", embeddings.columns(model))
    rows += _recurrent("layers.modeling", model.layers.modeling, "_modeling_layer")
    rows += _recurrent("layers.end_encoder", model.layers.end_encoder, "_span_end_encoder")
    now, before = VECTORS
    for part, name in zip(("of_left", "of_right", "of_product"), COMBINATION, strict=True):
        ours = f"layers.attention.scores.{part}.weight"
        rows.append(TensorRow(ours, f"{now}.{name}", ROW, also=(f"{before}.{name}",)))
    rows += _linear("layers.start", "_span_start_predictor._module")
    rows += _linear("layers.end", "_span_end_predictor._module")
    return rows


def parsing_rows(model: ParsingModel, embeddings: Embeddings) -> list[TensorRow]:
    """List the tensors of ``constituency_parser``."""
    rows = embeddings.rows(model)
    n_after = 0
    if model.tags is not None:
        rows.append(TensorRow("tags.weight", "pos_tag_embedding.weight"))
        n_after = model.tags.embedding_dim
    rows += _recurrent("lstm", model.lstm, "encoder", embeddings.columns(model, n_after))
    if model.before is not None:
        rows.append(TensorRow("before", "span_extractor._start_sentinel", OUTSIDE))
        rows.append(TensorRow("after", "span_extractor._end_sentinel", OUTSIDE))
    rows += _feed_forward("feedforward", model.feedforward, "feedforward_layer._module")
    return [*rows, *_linear("to_labels", "tag_projection_layer._module")]


def coref_rows(model: CorefModel, embeddings: Embeddings) -> list[TensorRow]:
    """List the tensors of ``coref``.

    Spans attend to embeddings, so span vectors have permuted columns, too.
    """
    config = model.config
    start = model.vectors.output_dim - model.vectors.parts[-1]
    span = list(range(start))
    span += [start + column for column in embeddings.order(model)]
    dim = len(span)
    pair: list[int] = []  # both spans, their product, and the features of the pair
    for part in range(3):
        pair += [part * dim + column for column in span]
    pair += range(3 * dim, 3 * dim + config.feature_dim)
    rows = embeddings.rows(model)
    rows += _recurrent("lstm", model.lstm, "_context_layer", embeddings.columns(model))
    rows.append(TensorRow("vectors.width.weight", "_endpoint_span_extractor._span_width_embedding.weight"))
    attention = "_attentive_span_extractor._global_attention._module"
    rows += _linear("vectors.attention", attention, embeddings.columns(model))
    rows += _scorer_rows(
        "mentions.scorer",
        ("_mention_feedforward._module", "_mention_pruner._scorer.0._module"),  # part of the pruner before version 1.0
        ("_mention_scorer._module", "_mention_pruner._scorer.1._module"),
        span,
        config,
    )
    rows += _scorer_rows(
        "pairs.scorer", ("_antecedent_feedforward._module",), ("_antecedent_scorer._module",), pair, config
    )
    rows.append(TensorRow("pairs.distance.weight", "_distance_embedding.weight"))
    if model.coarse is not None:
        rows.append(TensorRow("coarse.source.weight", "_coarse2fine_scorer.weight", permuted(span, 0, 1)))
        rows.append(TensorRow("coarse.source.bias", "_coarse2fine_scorer.bias", permuted(span, 0)))
    if model.refine is not None:
        # AllenNLP has one gate for the whole vector, and it is the span's. Here, each feature has a gate, and it is the
        # antecedent's.
        antecedent = [dim + column for column in span]
        columns = permuted(span + antecedent, 1)
        theirs = "_span_updating_gated_sum._gate"
        rows.append(TensorRow("refine.gate.weight", f"{theirs}.weight", _repeated(_negated(columns), dim)))
        rows.append(TensorRow("refine.gate.bias", f"{theirs}.bias", _repeated(_negated(SAME), dim)))
    return rows


def _scorer_rows(
    ours: str, layers: tuple[str, ...], scores: tuple[str, ...], columns: Sequence[int], config: CorefModelConfig
) -> list[TensorRow]:
    """List the tensors of a feed-forward scorer. Modules with several names have the newest one first."""
    names = ["first", *(f"rest.{k}" for k in range(config.scorer_layers - 1))]
    rows = []
    for part in ("weight", "bias"):
        for k, name in enumerate(names):
            layout = SAME
            if k == 0 and part == "weight":
                layout = permuted(columns, 1)
            now, *before = [f"{module}._linear_layers.{k}.{part}" for module in layers]
            rows.append(TensorRow(f"{ours}.{name}.{part}", now, layout, tuple(before)))
        now, *before = [f"{module}.{part}" for module in scores]
        rows.append(TensorRow(f"{ours}.last.{part}", now, also=tuple(before)))
    return rows


def _repeated(layout: TensorLayout, n_rows: int) -> TensorLayout:
    """Return a layout that also repeats AllenNLP's only row."""

    def to_ours(theirs: Array) -> Array:
        row = layout.to_ours(theirs)
        return np.broadcast_to(row, (n_rows, *theirs.shape[1:]))

    return read_only(to_ours, lambda ours: (1, *ours[1:]))


def _negated(layout: TensorLayout) -> TensorLayout:
    """Return a layout that also changes the sign, because AllenNLP's gate weights the other branch."""
    return read_only(lambda theirs: -layout.to_ours(theirs))


ROWS: dict[str, Callable[[Any, Embeddings], list[TensorRow]]] = {
    "ner": ner_rows,
    "sst": sst_rows,
    "nli": nli_rows,
    "srl": srl_rows,
    "coref": coref_rows,
    "parsing": parsing_rows,
    "qa": qa_rows,
}


def shape_of(tensors: Mapping[str, Tensor], name: str, n_axes: int, where: str) -> tuple[int, ...]:
    """Return the shape of a tensor with a given number of axes."""
    found = "none"
    if name in tensors:
        shape = tuple(tensors[name].shape)
        if len(shape) == n_axes:
            return shape
        found = f"one of shape {shape}"
    raise TensorMismatchError(f"{where}: expected a tensor {name} with {n_axes} axes, found {found}.")


def arrays_of(
    rows: Sequence[TensorRow], wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: Path
) -> FileArrays:
    """Return an archive's tensors as arrays by our names. All names and shapes are checked."""
    shapes = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return read_through(rows, shapes, found, lambda name: tensors[name].numpy(), str(source))


def split_joint(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Split tensors that are separate here: both branches of a highway layer, and the weights of an attention."""
    split: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if layer.startswith("_highway_layer.") and tensor.dim() and len(tensor) % 2 == 0:
            for branch, half in zip(("transform", "gate"), tensor.chunk(2), strict=True):
                split[f"{layer}.{branch}.{part}"] = half
        elif name in VECTORS and tensor.dim() == 1 and len(tensor) % 3 == 0:
            for which, third in zip(COMBINATION, tensor.chunk(3), strict=True):
                split[f"{name}.{which}"] = third
        else:
            split[name] = tensor
    return split


def project_words(tensors: dict[str, Tensor], embeddings: Embeddings) -> None:
    """Project the table of word vectors, if they have a projection (``projection_dim``)."""
    if "words" not in embeddings.names:
        return
    name = embeddings.name_of("words")
    weight = tensors.pop(f"{name}_projection.weight", None)
    bias = tensors.pop(f"{name}_projection.bias", None)
    table = tensors.get(f"{name}weight")
    if weight is None or table is None:
        return
    if weight.dim() == 2 and weight.shape[1:] == table.shape[1:]:
        tensors[f"{name}weight"] = nn.functional.linear(table, weight, bias)


def join_mixes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Join the weights of each scalar mix, which AllenNLP stores as one tensor per layer."""
    joined = dict(tensors)
    for name in tensors:
        mix, parameters, number = name.rpartition(".scalar_parameters.")
        if parameters and number == "0":
            weights: list[Tensor] = []
            while f"{mix}{parameters}{len(weights)}" in joined:
                weight = joined.pop(f"{mix}{parameters}{len(weights)}")
                weights.append(weight.reshape(-1))
            joined[f"{mix}.scalar_parameters"] = torch.cat(weights)
    return joined
