"""ELMo in spaCy: the architecture ``elmokit.Tok2Vec.v1`` and the component ``elmo_layers``.

spaCy finds both by name wherever elmokit is installed, through the entry points in pyproject.toml.
"""

# spaCy checks the values of a config against the annotations below, which therefore must not be strings: this module
# does not import annotations from __future__.
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import torch as safetensors
from torch import Tensor, nn

from elmokit.config import from_dict, to_dict
from elmokit.embedding.elmo import Elmo, Vectors
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.embedding.start_state import check_start_name
from elmokit.errors import ConfigError, needs_extra
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.formats.structure import ModelStructure

with needs_extra("elmokit.integrations.spacy", "spacy"):
    import srsly
    from spacy.language import Language
    from spacy.tokens import Doc, Span, Token
    from spacy.util import minibatch
    from thinc.api import ArgsKwargs, Model, PyTorchWrapper_v3, torch2xp, xp2torch
    from thinc.types import Floats2d
    from thinc.util import get_torch_default_device

EXTENSION = "elmo_layers"
"""The name of the extension attribute."""


def elmo_tok2vec(
    model: str | None = None,
    layers: str | int | list[int] = "all",
    start: str = "warm",
    trainable: bool = False,
    width: int | None = None,
) -> Model[list[Doc], list[Floats2d]]:
    """Return the architecture ``elmokit.Tok2Vec.v1``: docs to a learned scalar mix of ELMo's layers.

    Use it as the model of a ``tok2vec`` component, as the ``embed`` part of ``spacy.Tok2Vec.v2``, or as the ``tok2vec``
    of any other model. A trained pipeline contains the weights, so that it can be loaded without the original model.

    Every sentence is embedded by itself if sentence boundaries are set when this component runs; otherwise the whole
    doc is read as one sentence. Tokens of whitespace are left out, and get vectors of zeros.
    The dropout ratio is spaCy's own, ``training.dropout``.

    Args:
        model: A path, address or name, as in :meth:`elmokit.Elmo.from_pretrained`. None: the small English model in the
            package. It is opened by ``nlp.initialize`` and ``spacy train``.
        layers: The layers that the scalar mix combines, as in :class:`elmokit.ElmoModule`.
        start: The LSTM state that each sentence starts from, "warm" or "zero", as in :class:`elmokit.Elmo`.
        trainable: Fine-tune the biLM. If False, only the scalar mix is trained.
        width: The number of dimensions of the model's vectors, for configs in which a listener refers to it.

    Raises:
        ConfigError: An argument is not valid.
    """
    check_start_name(start)  # a batch has no rows that continue those of the one before
    wrapper = PyTorchWrapper_v3(
        _Network(model, layers, start, trainable),
        convert_inputs=_convert_docs,
        convert_outputs=_convert_vectors,
        serialize_model=_network_to_bytes,
        deserialize_model=_network_from_bytes,
    )
    wrapper.name = "elmo"
    wrapper.init = _initialize
    # spaCy sets the attribute of this name in every layer that has it.
    wrapper.attrs["dropout_rate"] = 0.0
    if width is not None:
        wrapper.set_dim("nO", width)
    return wrapper


class _Network(nn.Module):
    """The PyTorch module inside the architecture: tokenized sentences to the mixed vectors of all their tokens."""

    # It is created without weights, and gets them from `_initialize` or from a saved pipeline. So a saved pipeline does
    # not need the model that it was trained with.

    def __init__(self, model: str | None, layers: Any, start: Any, trainable: bool) -> None:
        super().__init__()
        self.model_name, self.layers, self.start, self.trainable = model, layers, start, trainable
        self._elmo: ElmoModule | None = None

    @property
    def elmo(self) -> ElmoModule:
        if self._elmo is None:
            raise ConfigError(
                "elmokit.Tok2Vec.v1 has no weights yet. Call nlp.initialize() before you use the pipeline."
            )
        return self._elmo

    def open(self, source: PretrainedBiLM) -> None:
        elmo = ElmoModule(source, start=self.start, layers=self.layers, trainable=self.trainable)
        # The optimizers of Thinc, spaCy's neural networks, do not accept parameters without a dimension.
        elmo.mixes[0].gamma = nn.Parameter(elmo.mixes[0].get_parameter("gamma").detach().reshape(1))
        self._elmo = elmo.to(get_torch_default_device())

    def forward(self, sentences: list[list[str]], dropout: float) -> Tensor:
        """Return the vectors of all tokens, ``(tokens, dim)``, one sentence after the other."""
        self.elmo.dropout.p = dropout
        return torch.cat(self.elmo.mixed_vectors(sentences))


def _initialize(model: Model, X: Any = None, Y: Any = None) -> None:
    """Open the model that the config names, unless it is open already."""
    network = model.shims[0]._model
    if network._elmo is None:
        network.open(open_model(network.model_name))
    dim = network.elmo.output_dim
    if model.has_dim("nO") and model.get_dim("nO") != dim:
        raise ConfigError(
            f"width is {model.get_dim('nO')}, but the vectors of {network.model_name or 'the model'} have {dim} "
            f"dimensions. Set width = {dim} for elmokit.Tok2Vec.v1."
        )
    model.set_dim("nO", dim)


def _convert_docs(model: Model, docs: Sequence[Doc], is_train: bool) -> tuple[ArgsKwargs, Callable[[Any], list[Doc]]]:
    rate = model.attrs["dropout_rate"] if is_train else 0.0
    inputs = ArgsKwargs(args=(_sentences(docs), rate), kwargs={})
    return inputs, lambda gradient: []  # there is no gradient of docs


def _convert_vectors(
    model: Model, docs_and_vectors: tuple[Sequence[Doc], Tensor], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], ArgsKwargs]]:
    docs, vectors = docs_and_vectors
    masks = [model.ops.asarray(_is_embedded(doc)) for doc in docs]

    def convert_gradient(gradients: list[Floats2d]) -> ArgsKwargs:
        rows = [gradient[mask] for gradient, mask in zip(gradients, masks, strict=True)]
        gradient = xp2torch(model.ops.xp.concatenate(rows), device=vectors.device)
        return ArgsKwargs(args=((vectors,),), kwargs={"grad_tensors": (gradient,)})

    return _split(torch2xp(vectors, ops=model.ops), masks, model.ops.xp), convert_gradient


def _is_embedded(doc: Doc) -> NDArray[np.bool_]:
    """Mark the tokens that ELMo reads: spaCy keeps extra whitespace as tokens, which no ELMo was trained on."""
    return np.array([not token.is_space for token in doc], np.bool_)


def _sentences(docs: Iterable[Doc]) -> list[list[str]]:
    """Return the tokens of all sentences of docs."""
    sentences = []
    for doc in docs:
        # One sentence for an empty doc too, so that there is always something to compute.
        for sentence in doc.sents if len(doc) and doc.has_annotation("SENT_START") else [doc]:
            sentences.append([token.text for token in sentence if not token.is_space])
    return sentences


def _split(vectors: Any, masks: list[NDArray[np.bool_]], xp: Any) -> list[Any]:
    """Split the vectors of many docs, ``(..., tokens, dim)``, and insert zeros for the tokens that were left out."""
    result, stop = [], 0
    for mask in masks:
        start, stop = stop, stop + int(mask.sum())
        rows = xp.zeros((*vectors.shape[:-2], len(mask), vectors.shape[-1]), dtype="float32")
        rows[..., mask, :] = vectors[..., start:stop, :]
        result.append(rows)
    return result


def _network_to_bytes(network: _Network) -> bytes:
    # Contiguous copies: safetensors refuses views.
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.elmo.state_dict().items()}
    structure = to_dict(ModelStructure.of(network.elmo.model))
    return bytes(srsly.msgpack_dumps({"structure": structure, "tensors": safetensors.save(tensors)}))


def _network_from_bytes(network: _Network, content: bytes, device: torch.device) -> _Network:
    message = srsly.msgpack_loads(content)
    network.open(from_dict(ModelStructure, message["structure"], "the saved pipeline").build())
    network.elmo.load_state_dict(safetensors.load(message["tensors"]))
    return network.to(device)


class ElmoLayers:
    """The component ``elmo_layers``, which :func:`make_elmo_layers` creates."""

    def __init__(self, model: str | None = None, start: Any = "warm") -> None:
        check_start_name(start)
        self.model, self.start = model, start
        self._elmo: Elmo | None = None
        for kind, attribute in ((Doc, {"default": None}), (Token, {"getter": _columns}), (Span, {"getter": _columns})):
            kind.set_extension(EXTENSION, force=True, **attribute)

    @property
    def elmo(self) -> Elmo:
        """The embedder, which is opened when it is first needed."""
        if self._elmo is None:
            self._open(open_model(self.model))
        assert self._elmo is not None
        return self._elmo

    def _open(self, model: PretrainedBiLM) -> None:
        self._elmo = Elmo(model, start=self.start).to(get_torch_default_device())

    def __call__(self, doc: Doc) -> Doc:
        """Set the layers of a doc."""
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Set the layers of a stream of docs, and yield them in order."""
        for docs in minibatch(stream, batch_size):
            joined = np.concatenate(self.elmo.embed(_sentences(docs)), axis=1)
            for doc, layers in zip(docs, _split(joined, list(map(_is_embedded, docs)), np), strict=True):
                doc._.set(EXTENSION, layers)
                yield doc

    def to_disk(self, path: str | Path, exclude: Sequence[str] = ()) -> None:
        """Write the model as an elmokit model directory, without its softmax, which computes no vectors."""
        save_model(self.elmo.model.replace(softmax=None), path, overwrite=True)

    def from_disk(self, path: str | Path, exclude: Sequence[str] = ()) -> "ElmoLayers":
        """Open the model that :meth:`to_disk` wrote."""
        self._open(open_model(path))
        return self

    def to_bytes(self, exclude: Sequence[str] = ()) -> bytes:
        """Return the files that :meth:`to_disk` writes."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            self.to_disk(path)
            return bytes(srsly.msgpack_dumps({file.name: file.read_bytes() for file in sorted(path.iterdir())}))

    def from_bytes(self, content: bytes, exclude: Sequence[str] = ()) -> "ElmoLayers":
        """Open the model that :meth:`to_bytes` returned."""
        with TemporaryDirectory() as folder:
            for name, file in srsly.msgpack_loads(content).items():
                # The last part of a name only: nothing from a foreign pipeline must be written outside the folder.
                (Path(folder) / Path(name).name).write_bytes(file)
            self._open(open_model(folder).replace(source=None))
        return self


@Language.factory("elmo_layers", assigns=["doc._.elmo_layers"], default_config={"model": None, "start": "warm"})  # type: ignore[untyped-decorator]
def make_elmo_layers(nlp: Language, name: str, model: str | None, start: str) -> ElmoLayers:
    """Create the component ``elmo_layers``: all layers of ELMo as extension attributes.

    ``doc._.elmo_layers`` is an array ``(layers, tokens, dim)``, layer 0 first; those of a token and a span are its
    columns. Sentences and whitespace are treated as in :func:`elmo_tok2vec`.

    A saved pipeline contains the model.

    Args:
        nlp, name: Passed by spaCy, and not used.
        model: A path, address or name, as in :meth:`elmokit.Elmo.from_pretrained`. None: the small English model in the
            package. It is opened when it is first needed.
        start: The LSTM state that each sentence starts from, "warm" or "zero", as in :class:`elmokit.Elmo`.

    Raises:
        ConfigError: ``start`` is not valid.
    """
    return ElmoLayers(model, start)


def _columns(tokens: Token | Span) -> Vectors | None:
    """Return the layers of a token ``(layers, dim)`` or of a span ``(layers, tokens, dim)``."""
    layers: Vectors | None = tokens.doc._.get(EXTENSION)
    columns = tokens.i if isinstance(tokens, Token) else slice(tokens.start, tokens.end)
    return None if layers is None else layers[:, columns]
