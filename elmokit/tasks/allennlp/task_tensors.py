"""The tensors of AllenNLP's task models, by our names and theirs.

AllenNLP concatenates embeddings in the order of their names in the config; here words come first, then characters and
ELMo. So the columns of each layer that reads them are permuted (``Embeddings.columns``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from elmokit.tasks.allennlp.parsing import ParsingModel
from elmokit.tasks.allennlp.variants import AllenNLPTagger, BiDaf, DecomposableAttention
from elmokit.tasks.coref_model import CorefModel, CorefModelConfig
from elmokit.tasks.ner import NerModel
from elmokit.tasks.nli import NliModel
from elmokit.tasks.nn.gated_lstm import BidirectionalHighwayLSTM, HighwayLSTM
from elmokit.tasks.nn.layers import Maxout, TokenCharRNN
from elmokit.tasks.srl import SrlModel
from elmokit.tasks.sst import SstModel

COMBINATION = ("x", "y", "x*y")  # of the two vectors in BiDAF's attention
ATTENTIONS = ("_matrix_attention.", "_matrix_attention._similarity_function.")  # since version 1.0, and before
VECTORS = tuple(f"{module}_weight_vector" for module in ATTENTIONS)


def read_only(to_ours: Callable[[Array], Array], their_shape: Callable[[Shape], Shape] = same_shape) -> TensorLayout:
    """Return the layout of a tensor of an archive, which is never written."""
    return TensorLayout(to_ours, _not_written, their_shape)


def _not_written(ours: Array) -> Array:
    raise NotImplementedError("Archives of AllenNLP are not written.")


ROW = read_only(lambda theirs: theirs[None], lambda ours: ours[1:])
OUTSIDE = read_only(lambda theirs: theirs.reshape(-1), lambda ours: (1, 1, *ours))
SCALAR = read_only(lambda theirs: theirs.reshape(()), lambda ours: (1,))


def _without_padding(table: Array) -> Array:
    """Set row 0 to zero. AllenNLP's row for padding may have any values, and they are masked there."""
    return np.concatenate([np.zeros_like(table[:1]), table[1:]])


ZERO_PADDING = read_only(_without_padding)


def permuted(order: Sequence[int], *axes: int) -> TensorLayout:
    """Return the layout of a tensor with permuted axes: our index ``i`` is their index ``order[i]``."""
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
    kinds: dict[str, str]
    """Our name of each embedder ("words", "chars" or "elmo") by theirs, in their order."""
    unknown_rows: dict[str, int]
    """The row of unknown words or characters in the tables "words" and "chars"."""

    def name_of(self, kind: str) -> str:
        """Return the name of an embedder's module, with a dot."""
        name = next(name for name, this_kind in self.kinds.items() if this_kind == kind)
        return f"{self.prefix}token_embedder_{name}."

    def rows(self, model: Any) -> list[TensorRow]:
        """List the tensors of the tables, the character features and the input mix."""
        inputs, rows = model.inputs, []
        kinds = set(self.kinds.values())
        if "words" in kinds:
            rows.append(TensorRow("inputs.words.words.weight", f"{self.name_of('words')}weight", self._table("words")))
        if "chars" in kinds:
            name = self.name_of("chars")
            table = f"{name}_embedding._module.weight"
            rows.append(TensorRow("inputs.chars.embedding.weight", table, self._table("chars")))
            if isinstance(inputs.chars, TokenCharRNN):
                rows += _recurrent("inputs.chars.rnn", inputs.chars.rnn, f"{name}_encoder._module")
            else:
                for k in range(len(inputs.chars.convolutions)):
                    theirs = f"{name}_encoder._module.conv_layer_{k}"
                    rows += _linear(f"inputs.chars.convolutions.{k}", theirs)
        if "elmo" in kinds:
            rows += mix_rows("input", f"{self.name_of('elmo')}_elmo.scalar_mix_0")
        return rows

    def _table(self, kind: str) -> TensorLayout:
        """Return the layout of a table, whose row 1 is here always that of unknown words."""
        row = self.unknown_rows.get(kind, 1)
        if row == 1:
            return ZERO_PADDING

        def to_ours(theirs: Array) -> Array:
            padding, unknown = np.zeros_like(theirs[:1]), theirs[row : row + 1]
            return np.concatenate([padding, unknown, theirs[1:row], theirs[row + 1 :]])

        return read_only(to_ours)

    def order(self, model: Any) -> list[int]:
        """Return their column of each of our columns of the concatenated embeddings."""
        inputs = model.inputs
        sizes = {"words": inputs.word_dim(), "chars": inputs.char_dim, "elmo": inputs.elmo_dim}
        starts, start = {}, 0
        for kind in self.kinds.values():
            starts[kind] = start
            start += sizes[kind]
        ours = [kind for kind in ("words", "chars", "elmo") if kind in starts]
        return [starts[kind] + column for kind in ours for column in range(sizes[kind])]

    def columns(self, model: Any, n_more: int = 0) -> TensorLayout:
        """Return the layout of a matrix that reads the embeddings, and ``n_more`` other features after them."""
        order = self.order(model)
        return permuted([*order, *range(len(order), len(order) + n_more)], 1)


def mix_rows(position: str, theirs: str) -> list[TensorRow]:
    """List the tensors of a scalar mix, whose weights ``join_mixes`` has joined."""
    return [
        TensorRow(f"inputs.mixes.{position}.weight", f"{theirs}.scalar_parameters"),
        TensorRow(f"inputs.mixes.{position}.gamma", f"{theirs}.gamma", SCALAR),
    ]


def _linear(ours: str, theirs: str, layout: TensorLayout = SAME) -> list[TensorRow]:
    return [TensorRow(f"{ours}.weight", f"{theirs}.weight", layout), TensorRow(f"{ours}.bias", f"{theirs}.bias")]


def _feed_forward(ours: str, layers: nn.Sequential, theirs: str, first: TensorLayout = SAME) -> list[TensorRow]:
    """List the tensors of ``feed_forward`` layers, each of which is followed by its activation and its dropout."""
    rows = []
    for k in range(len(layers) // 3):
        rows += _linear(f"{ours}.{3 * k}", f"{theirs}._linear_layers.{k}", SAME if k else first)
    return rows


def _recurrent(
    ours: str, module: nn.Module, theirs: str, first: TensorLayout = SAME, layer_in_theirs: int | None = None
) -> list[TensorRow]:
    """List the tensors of PyTorch's LSTM or GRU, whose first layer reads columns in the layout ``first``.

    Args:
        layer_in_theirs: The layer of theirs that a module of one layer is; None if both have the same layers.
    """
    rows = []
    for name in dict(module.named_parameters()):
        their_name = name if layer_in_theirs is None else name.replace("_l0", f"_l{layer_in_theirs}")
        layout = first if name.startswith("weight_ih_l0") else SAME
        rows.append(TensorRow(f"{ours}.{name}", f"{theirs}._module.{their_name}", layout))
    return rows


def _highway(ours: str, layer: HighwayLSTM, theirs: str, first: TensorLayout) -> list[TensorRow]:
    """List the tensors of a highway LSTM layer, whose inputs have columns in the layout ``first``."""
    rows = []
    for name in dict(layer.named_parameters()):
        which, part = name.split("_")
        # The cell is a module of its own since version 1.0.
        now, before = (f"{theirs}.{cell}{which}_linearity.{part}" for cell in ("cell.", ""))
        rows.append(TensorRow(f"{ours}.{name}", now, first if name == "input_weight" else SAME, also=(before,)))
    return rows


def ner_rows(model: NerModel, embeddings: Embeddings) -> list[TensorRow]:
    """List the tensors of ``crf_tagger``."""
    rows = embeddings.rows(model)
    for k, layer in enumerate(model.layers):
        first = SAME if k else embeddings.columns(model)
        if isinstance(layer, HighwayLSTM):
            rows += _highway(f"layers.{k}", layer, f"encoder._module.layer_{k}", first)
        elif isinstance(layer, BidirectionalHighwayLSTM):
            for name, part in (("forward_layer", layer.forward_layer), ("backward_layer", layer.backward_layer)):
                rows += _highway(f"layers.{k}.{name}", part, f"encoder._module.{name}_{k}", first)
        else:
            rows += _recurrent(f"layers.{k}", layer, "encoder", first, k)
    if isinstance(model, AllenNLPTagger):
        rows += _feed_forward("feedforward", model.feedforward, "_feedforward")
    rows += _linear("to_tags", "tag_projection_layer._module")
    rows.append(TensorRow("crf.transitions", "crf.transitions"))
    if model.crf.start is not None:
        rows += [TensorRow(f"crf.{end}", f"crf.{end}_transitions") for end in ("start", "end")]
    return rows


def sst_rows(model: SstModel, embeddings: Embeddings) -> list[TensorRow]:
    """List the tensors of ``bcn``, whose ELMo is not among the token embedders."""
    positions = [position for position in ("input", "output") if position in model.inputs.mixes]
    rows = embeddings.rows(model)
    for k, position in enumerate(positions):
        rows += mix_rows(position, f"_elmo.scalar_mix_{k}")
    n_after = model.inputs.elmo_dim if "input" in positions else 0
    rows += _linear("project", "_pre_encode_feedforward._linear_layers.0", embeddings.columns(model, n_after))
    for part in ("encoder", "integrator"):
        rows += _recurrent(part, getattr(model, part), f"_{part}")
    rows += _linear("weigh", "_self_attentive_pooling_projection")
    # Each layer is followed by its dropout.
    for k, layer in enumerate(list(model.output)[::2]):
        inner = {Maxout: ".linear", nn.Sequential: ".0"}.get(type(layer), "")
        rows += _linear(f"output.{2 * k}{inner}", f"_output_layer._linear_layers.{k}")
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
    # Tokens are compared as two vectors of embeddings.
    pair = permuted([*order, *(len(order) + column for column in order)], 1)
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
        first = SAME if k else embeddings.columns(model, n_marks)
        rows += _highway(f"layers.layers.{k}", layer, f"encoder._module.layer_{k}", first)
    return [*rows, *_linear("to_tags", "tag_projection_layer._module")]


def qa_rows(model: BiDaf, embeddings: Embeddings) -> list[TensorRow]:
    """List the tensors of ``bidaf``, after ``split_joint`` has split its highway layers and attention weights."""
    order = embeddings.order(model)
    # A highway layer reads and writes the embeddings, so both axes are permuted; biases have one axis.
    both, bias = permuted(order, 0, 1), permuted(order, 0)
    rows = embeddings.rows(model)
    for k in range(len(model.layers.highways)):
        for part, negated in (("transform", False), ("gate", True)):
            ours, theirs = f"layers.highways.{k}.{part}", f"_highway_layer._module._layers.{k}.{part}"
            rows.append(TensorRow(f"{ours}.weight", f"{theirs}.weight", _negated(both) if negated else both))
            rows.append(TensorRow(f"{ours}.bias", f"{theirs}.bias", _negated(bias) if negated else bias))
    rows += _recurrent("layers.phrases", model.layers.phrases, "_phrase_layer", embeddings.columns(model))
    rows += _recurrent("layers.modeling", model.layers.modeling, "_modeling_layer")
    rows += _recurrent("layers.end_encoder", model.layers.end_encoder, "_span_end_encoder")
    for part, name in zip(("of_left", "of_right", "of_product"), COMBINATION, strict=True):
        now, before = (f"{module}_weight_vector.{name}" for module in ATTENTIONS)
        rows.append(TensorRow(f"layers.attention.scores.{part}.weight", now, ROW, also=(before,)))
    for part in ("start", "end"):
        rows += _linear(f"layers.{part}", f"_span_{part}_predictor._module")
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

    Spans attend to embeddings, so the vectors of spans have permuted columns as well.
    """
    config, n_features = model.config, model.config.feature_dim
    start = model.vectors.output_dim - model.vectors.parts[-1]
    span = [*range(start), *(start + column for column in embeddings.order(model))]
    dim = len(span)
    pair = [part * dim + column for part in range(3) for column in span]
    pair += range(3 * dim, 3 * dim + n_features)
    rows = embeddings.rows(model)
    rows += _recurrent("lstm", model.lstm, "_context_layer", embeddings.columns(model))
    rows.append(TensorRow("vectors.width.weight", "_endpoint_span_extractor._span_width_embedding.weight"))
    attention = "_attentive_span_extractor._global_attention._module"
    rows += _linear("vectors.attention", attention, embeddings.columns(model))
    # Mentions were scored by a module of the pruner before version 1.0.
    layers: tuple[str, ...] = ("_mention_feedforward._module", "_mention_pruner._scorer.0._module")
    scores: tuple[str, ...] = ("_mention_scorer._module", "_mention_pruner._scorer.1._module")
    rows += _scorer_rows("mentions.scorer", layers, scores, span, config)
    layers, scores = ("_antecedent_feedforward._module",), ("_antecedent_scorer._module",)
    rows += _scorer_rows("pairs.scorer", layers, scores, pair, config)
    rows.append(TensorRow("pairs.distance.weight", "_distance_embedding.weight"))
    if model.coarse is not None:
        rows.append(TensorRow("coarse.source.weight", "_coarse2fine_scorer.weight", permuted(span, 0, 1)))
        rows.append(TensorRow("coarse.source.bias", "_coarse2fine_scorer.bias", permuted(span, 0)))
    if model.refine is not None:
        # One gate for the whole vector, and that of the span; here each feature has one, for the antecedent.
        columns = permuted([*span, *(dim + column for column in span)], 1)
        theirs = "_span_updating_gated_sum._gate"
        rows.append(TensorRow("refine.gate.weight", f"{theirs}.weight", _repeated(_negated(columns), dim)))
        rows.append(TensorRow("refine.gate.bias", f"{theirs}.bias", _repeated(_negated(SAME), dim)))
    return rows


def _scorer_rows(
    ours: str, layers: tuple[str, ...], scores: tuple[str, ...], columns: Sequence[int], config: CorefModelConfig
) -> list[TensorRow]:
    """List the tensors of a feed-forward scorer. Of several names of its modules, the first is the newest."""
    rows = []
    for part, first in (("weight", permuted(columns, 1)), ("bias", SAME)):
        for k in range(config.scorer_layers):
            name = "first" if k == 0 else f"rest.{k - 1}"
            now, *before = (f"{module}._linear_layers.{k}.{part}" for module in layers)
            rows.append(TensorRow(f"{ours}.{name}.{part}", now, SAME if k else first, tuple(before)))
        now, *before = (f"{module}.{part}" for module in scores)
        rows.append(TensorRow(f"{ours}.last.{part}", now, also=tuple(before)))
    return rows


def _repeated(layout: TensorLayout, n_rows: int) -> TensorLayout:
    """Return a layout that also repeats the one row of theirs."""
    return read_only(
        lambda theirs: np.broadcast_to(layout.to_ours(theirs), (n_rows, *theirs.shape[1:])),
        lambda ours: (1, *ours[1:]),
    )


def _negated(layout: TensorLayout) -> TensorLayout:
    """Return a layout that also changes the sign: AllenNLP's gate is that of the carried branch."""
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
    """Return the shape of a tensor that must have a number of axes."""
    if name not in tensors or tensors[name].dim() != n_axes:
        found = f"one of shape {tuple(tensors[name].shape)}" if name in tensors else "none"
        raise TensorMismatchError(f"{where}: expected a tensor {name} with {n_axes} axes, found {found}.")
    return tuple(tensors[name].shape)


def arrays_of(
    rows: Sequence[TensorRow], wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: Path
) -> FileArrays:
    """Return arrays of an archive's tensors by our names. All names and shapes are checked."""
    shapes = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return read_through(rows, shapes, found, lambda name: tensors[name].numpy(), str(source))


def split_joint(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Split the tensors that are several here: both branches of a highway layer, and the weights of an attention."""
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
    """Replace a table of word vectors that are projected (``projection_dim``) by the table of the projected vectors."""
    if "words" not in embeddings.kinds.values():
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
            parts = list(_numbered(joined, f"{mix}{parameters}"))
            joined[f"{mix}.scalar_parameters"] = torch.cat([part.reshape(-1) for part in parts])
    return joined


def _numbered(tensors: dict[str, Tensor], prefix: str) -> Iterable[Tensor]:
    number = 0
    while (name := f"{prefix}{number}") in tensors:
        yield tensors.pop(name)
        number += 1
