"""The architecture ``elmokit.Tok2Vec.v1`` of ``elmokit.integrations.spacy``: a PyTorch module in a model of Thinc."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import srsly
import torch
from safetensors import torch as safetensors
from spacy.tokens import Doc
from thinc.api import ArgsKwargs, Model, PyTorchShim, torch2xp, xp2torch
from thinc.layers.pytorchwrapper import forward
from thinc.types import Floats2d
from thinc.util import get_torch_default_device
from torch import Tensor, nn

from elmokit.config import from_dict, to_dict
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.engine.architecture import tensor_shapes
from elmokit.errors import ConfigError
from elmokit.formats.open import open_model
from elmokit.formats.tensor_rows import read_through, same_rows
from elmokit.integrations.model_structure import ModelStructure
from elmokit.integrations.spacy_docs import is_embedded, split_vectors, tokens_of_sentences
from elmokit.pretrained.model import PretrainedBiLM

_BILM = "bilm."
"""The prefix of the biLM's tensors in the state dict of an ``ElmoModule``."""


def tok2vec_model(
    model: str | None, layers: str | int | list[int], start: str, trainable: bool, width: int | None
) -> Model[list[Doc], list[Floats2d]]:
    """Create the model of :func:`elmokit.integrations.spacy.elmo_tok2vec`, without weights."""
    shim = PyTorchShim(
        _Network(model, layers, start, trainable),
        serialize_model=_network_to_bytes,
        deserialize_model=_network_from_bytes,
    )
    return Model(
        "elmo",
        forward,
        init=_initialize,
        # spaCy sets the dropout rate in every layer with an attribute of this name.
        attrs={"convert_inputs": _convert_docs, "convert_outputs": _convert_vectors, "dropout_rate": 0.0},
        # The model of PyTorchWrapper_v3 also has an input dimension. Surrounding layers, such as those of
        # spacy.TextCatEnsemble.v2, would set it to the width of their inputs, which docs do not have.
        dims={"nO": width},
        shims=[shim],
    )


class _Network(nn.Module):
    """The PyTorch module inside the architecture, which maps tokenized sentences to mixed token vectors."""

    # It is created without weights, and gets them from `_initialize` or from a saved pipeline, so a saved pipeline does
    # not need the original model.

    def __init__(self, model: str | None, layers: Any, start: Any, trainable: bool) -> None:
        super().__init__()
        self.model_name, self.layers, self.start, self.trainable = model, layers, start, trainable
        self._elmo: ElmoModule | None = None

    @property
    def elmo(self) -> ElmoModule:
        if self._elmo is None:
            raise ConfigError("elmokit.Tok2Vec.v1 has no weights yet. Call nlp.initialize().")
        return self._elmo

    def open(self, source: PretrainedBiLM) -> None:
        elmo = ElmoModule(source, start=self.start, layers=self.layers, trainable=self.trainable)
        # Thinc's optimizers do not accept parameters without dimensions.
        elmo.mixes[0].gamma = nn.Parameter(elmo.mixes[0].get_parameter("gamma").detach().reshape(1))
        self._elmo = elmo.to(get_torch_default_device())

    def forward(self, sentences: list[list[str]], dropout: float) -> Tensor:
        """Compute the vectors of all tokens, ``(tokens, dim)``, all sentences concatenated."""
        self.elmo.dropout.p = dropout
        return torch.cat(self.elmo.mixed_vectors(sentences))


def _initialize(model: Model, X: Any = None, Y: Any = None) -> None:
    """Open the model named in the config, unless a model is already open."""
    network = model.shims[0]._model
    if network._elmo is None:
        network.open(open_model(network.model_name))
    dim = network.elmo.output_dim
    model.set_dim("nO", dim)  # raises an error if the config has a different width


def _convert_docs(model: Model, docs: Sequence[Doc], is_train: bool) -> tuple[ArgsKwargs, Callable[[Any], list[Doc]]]:
    rate = model.attrs["dropout_rate"] if is_train else 0.0
    inputs = ArgsKwargs(args=(tokens_of_sentences(docs), rate), kwargs={})
    return inputs, lambda gradient: []  # docs have no gradient


def _convert_vectors(
    model: Model, docs_and_vectors: tuple[Sequence[Doc], Tensor], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], ArgsKwargs]]:
    docs, vectors = docs_and_vectors
    masks = [model.ops.asarray(is_embedded(doc)) for doc in docs]

    def convert_gradient(gradients: list[Floats2d]) -> ArgsKwargs:
        rows = [gradient[mask] for gradient, mask in zip(gradients, masks, strict=True)]
        gradient = xp2torch(model.ops.xp.concatenate(rows), device=vectors.device)
        return ArgsKwargs(args=((vectors,),), kwargs={"grad_tensors": (gradient,)})

    return split_vectors(torch2xp(vectors, ops=model.ops), masks, model.ops.xp), convert_gradient


def _network_to_bytes(network: _Network) -> bytes:
    # Contiguous copies, because safetensors rejects views.
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.elmo.state_dict().items()}
    structure = to_dict(ModelStructure.of(network.elmo.model))
    return bytes(srsly.msgpack_dumps({"structure": structure, "tensors": safetensors.save(tensors)}))


def _network_from_bytes(network: _Network, content: bytes, device: torch.device) -> _Network:
    message = srsly.msgpack_loads(content)
    what = "the saved pipeline"
    structure, tensors = from_dict(ModelStructure, message["structure"], what), safetensors.load(message["tensors"])
    # Compared first, because a wrong structure could make building the network take any amount of memory.
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name.startswith(_BILM)}
    wanted = tensor_shapes(structure.bilm)
    read_through(same_rows(wanted, _BILM), wanted, shapes, lambda name: tensors[name].numpy(), what)
    network.open(structure.build())
    network.elmo.load_state_dict(tensors)
    return network.to(device)
