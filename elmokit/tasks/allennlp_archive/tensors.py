"""The tensors of AllenNLP's task models, by our names and theirs.

AllenNLP concatenates embeddings in the order of their names in the config; here words come first, then characters and
ELMo. So the columns of each layer that reads them are permuted (``Embeddings.columns``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.tasks.ner import NerModel
from elmokit.tasks.nli import NliModel
from elmokit.tasks.nn.feedforward import Maxout
from elmokit.tasks.srl import SrlModel
from elmokit.tasks.sst import SstModel
from elmokit.weights.table import SAME, Layout, TensorRow

SCALAR = Layout(lambda theirs: theirs.reshape(()), lambda ours: ours.reshape(1))


def _without_padding(table: Tensor) -> Tensor:
    """Set row 0 to zero. AllenNLP's row for padding may have any values, and they are masked there."""
    return torch.cat([torch.zeros_like(table[:1]), table[1:]])


ZERO_PADDING = Layout(_without_padding, lambda ours: ours)


def permuted(order: Sequence[int], *axes: int) -> Layout:
    """Return the layout of a tensor with permuted axes: our index ``i`` is their index ``order[i]``."""
    to_ours = torch.tensor(order, dtype=torch.int64, device="cpu")
    to_theirs = to_ours.argsort()

    def apply(tensor: Tensor, index: Tensor) -> Tensor:
        for axis in axes:
            tensor = tensor.index_select(axis, index.to(tensor.device))
        return tensor

    return Layout(lambda theirs: apply(theirs, to_ours), lambda ours: apply(ours, to_theirs))


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
        name = next(name for name, found in self.kinds.items() if found == kind)
        return f"{self.prefix}token_embedder_{name}."

    def rows(self, model: Any) -> list[TensorRow]:
        """List the tensors of the tables, the character CNN and the input mix."""
        inputs, rows = model.inputs, []
        kinds = set(self.kinds.values())
        if "words" in kinds:
            rows.append(TensorRow("inputs.words.words.weight", f"{self.name_of('words')}weight", self._table("words")))
        if "chars" in kinds:
            name = self.name_of("chars")
            table = f"{name}_embedding._module.weight"
            rows.append(TensorRow("inputs.char_cnn.embedding.weight", table, self._table("chars")))
            for k in range(len(inputs.char_cnn.convolutions)):
                theirs = f"{name}_encoder._module.conv_layer_{k}"
                rows += _linear(f"inputs.char_cnn.convolutions.{k}", theirs)
        if "elmo" in kinds:
            rows += mix_rows("input", f"{self.name_of('elmo')}_elmo.scalar_mix_0")
        return rows

    def _table(self, kind: str) -> Layout:
        """Return the layout of a table, whose row 1 is here always that of unknown words."""
        row = self.unknown_rows.get(kind, 1)
        if row == 1:
            return ZERO_PADDING

        def to_ours(theirs: Tensor) -> Tensor:
            rest = torch.cat([theirs[1:row], theirs[row + 1 :]])
            return torch.cat([torch.zeros_like(theirs[:1]), theirs[row : row + 1], rest])

        # The inverse is used for shapes alone.
        return Layout(to_ours, lambda ours: ours)

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

    def columns(self, model: Any, n_more: int = 0) -> Layout:
        """Return the layout of a matrix that reads the embeddings, and ``n_more`` other features after them."""
        order = self.order(model)
        return permuted([*order, *range(len(order), len(order) + n_more)], 1)


def mix_rows(position: str, theirs: str) -> list[TensorRow]:
    """List the tensors of a scalar mix, whose weights ``join_mixes`` has joined."""
    return [
        TensorRow(f"inputs.mixes.{position}.weight", f"{theirs}.scalar_parameters"),
        TensorRow(f"inputs.mixes.{position}.gamma", f"{theirs}.gamma", SCALAR),
    ]


def _linear(ours: str, theirs: str, layout: Layout = SAME) -> list[TensorRow]:
    return [TensorRow(f"{ours}.weight", f"{theirs}.weight", layout), TensorRow(f"{ours}.bias", f"{theirs}.bias")]


def _recurrent(
    ours: str, module: nn.Module, theirs: str, first: Layout = SAME, layer_in_theirs: int | None = None
) -> list[TensorRow]:
    """List the tensors of PyTorch's LSTM, whose first layer reads columns in the layout ``first``.

    Args:
        layer_in_theirs: The layer of theirs that a module of one layer is; None if both have the same layers.
    """
    rows = []
    for name in dict(module.named_parameters()):
        their_name = name if layer_in_theirs is None else name.replace("_l0", f"_l{layer_in_theirs}")
        layout = first if name.startswith("weight_ih_l0") else SAME
        rows.append(TensorRow(f"{ours}.{name}", f"{theirs}._module.{their_name}", layout))
    return rows


def ner_rows(model: NerModel, embeddings: Embeddings) -> list[TensorRow]:
    """List the tensors of ``crf_tagger``."""
    rows = embeddings.rows(model)
    for k, layer in enumerate(model.layers):
        rows += _recurrent(f"layers.{k}", layer, "encoder", SAME if k else embeddings.columns(model), k)
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


def nli_rows(model: NliModel, embeddings: Embeddings) -> list[TensorRow]:
    """List the tensors of ``esim``."""
    return [
        *embeddings.rows(model),
        *_recurrent("encoder", model.encoder, "_encoder", embeddings.columns(model)),
        *_linear("project", "_projection_feedforward._linear_layers.0"),
        *_recurrent("composer", model.composer, "_inference_encoder"),
        *_linear("join", "_output_feedforward._linear_layers.0"),
        *_linear("output", "_output_logit._linear_layers.0"),
    ]


def srl_rows(model: SrlModel, embeddings: Embeddings) -> list[TensorRow]:
    """List the tensors of ``srl``."""
    rows = [*embeddings.rows(model), TensorRow("is_predicate.weight", "binary_feature_embedding.weight")]
    n_marks = model.is_predicate.embedding_dim
    for k, layer in enumerate(model.layers.layers):
        for name in dict(layer.named_parameters()):
            which, part = name.split("_")
            # The cell is a module of its own since version 1.0.
            now, before = (f"encoder._module.layer_{k}.{cell}{which}_linearity.{part}" for cell in ("cell.", ""))
            reads_embeddings = k == 0 and name == "input_weight"
            layout = embeddings.columns(model, n_marks) if reads_embeddings else SAME
            rows.append(TensorRow(f"layers.layers.{k}.{name}", now, layout, also=(before,)))
    return [*rows, *_linear("to_tags", "tag_projection_layer._module")]


ROWS: dict[str, Callable[[Any, Embeddings], list[TensorRow]]] = {
    "ner": ner_rows,
    "sst": sst_rows,
    "nli": nli_rows,
    "srl": srl_rows,
}


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
