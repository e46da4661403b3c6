"""ELMo in spaCy: the architecture ``elmokit.Tok2Vec.v1`` and the component ``elmo_layers``.

spaCy finds both by name if elmokit is installed, through the entry points in pyproject.toml. The component does not
need PyTorch; the architecture is trained with it (``spacy_tok2vec.py``).
"""

# spaCy checks config values against the annotations below, which therefore must not be strings: this module does not
# import annotations from __future__.
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from elmokit.embedding.elmo import Elmo, Vectors
from elmokit.embedding.start_state import check_start_name
from elmokit.errors import ConfigError, needs_extra, needs_torch
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.integrations.spacy_docs import is_embedded, split_vectors, tokens_of_sentences
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.progress import count_of

with needs_extra("elmokit.integrations.spacy", "spacy"):
    import srsly
    from spacy.language import Language
    from spacy.tokens import Doc, Span, Token
    from spacy.util import minibatch
    from thinc.api import Model
    from thinc.compat import has_torch
    from thinc.types import Floats2d
    from thinc.util import get_torch_default_device

EXTENSION = "elmo_layers"
"""The name of the extension attribute."""


def elmo_tok2vec(
    model: str | None = None,
    # The number comes first: with confection 0.1, spaCy converts a value to the first type that fits.
    layers: int | str | list[int] = "all",
    start: str = "warm",
    trainable: bool = False,
    width: int | None = None,
) -> Model[list[Doc], list[Floats2d]]:
    """Create the architecture ``elmokit.Tok2Vec.v1``, which maps docs to a learned scalar mix of ELMo's layers.

    Use it as the model of a ``tok2vec`` component, as the ``embed`` part of ``spacy.Tok2Vec.v2``, or as the ``tok2vec``
    of any other model. A trained pipeline contains the weights, so it can be loaded without the original model.

    Every sentence is embedded independently if sentence boundaries are set when this component runs; otherwise, the
    whole doc is read as one sentence. Whitespace tokens are skipped, and get vectors of zeros.

    Args:
        model: A path, URL or name, as in :meth:`elmokit.Elmo.from_pretrained`. None for the small included English
            model. It is opened by ``nlp.initialize`` and ``spacy train``.
        layers: The layers that the scalar mix combines, as in :class:`elmokit.ElmoModule`.
        start: The initial LSTM state of each sentence, "warm" or "zero", as in :class:`elmokit.Elmo`.
        trainable: Fine-tune the biLM. If False, only the scalar mix is trained.
        width: The number of dimensions of the model's vectors, for configs in which a listener refers to it.

    Raises:
        ConfigError: An argument is invalid.
        MissingExtraError: PyTorch is not installed.
    """
    check_start_name(start)  # not "stateful": rows do not continue the previous batch
    with needs_torch("elmokit.Tok2Vec.v1"):
        from elmokit.integrations.spacy_tok2vec import tok2vec_model
    return tok2vec_model(model, layers, start, trainable, width)


class ElmoLayers:
    """The component ``elmo_layers``; create it with :func:`make_elmo_layers`."""

    def __init__(self, model: str | None = None, start: Any = "warm") -> None:
        check_start_name(start)
        self.model, self.start = model, start
        self._elmo: Elmo | None = None
        for kind, attribute in ((Doc, {"default": None}), (Token, {"getter": _columns}), (Span, {"getter": _columns})):
            kind.set_extension(EXTENSION, force=True, **attribute)

    @property
    def elmo(self) -> Elmo:
        """The embedder, opened when it is first needed."""
        if self._elmo is None:
            self._open(open_model(self.model))
        assert self._elmo is not None
        return self._elmo

    def _open(self, model: PretrainedBiLM) -> None:
        self._elmo = Elmo(model, start=self.start)
        if has_torch:  # spaCy chooses a GPU with PyTorch
            self._elmo.to(get_torch_default_device())

    def __call__(self, doc: Doc) -> Doc:
        """Set the layers of a doc."""
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Set the layers of a stream of docs, and yield the docs in order."""
        for docs in minibatch(stream, batch_size):
            joined = np.concatenate(self.elmo.embed(tokens_of_sentences(docs)), axis=1)
            for doc, layers in zip(docs, split_vectors(joined, list(map(is_embedded, docs)), np), strict=True):
                doc._.set(EXTENSION, layers)
                yield doc

    def to_disk(self, path: str | Path, exclude: Sequence[str] = ()) -> None:
        """Save the model as an elmokit model directory, without its softmax, which vectors do not need."""
        save_model(self.elmo.model.replace(softmax=None), path, overwrite=True)

    def from_disk(self, path: str | Path, exclude: Sequence[str] = ()) -> "ElmoLayers":
        """Open a model saved by :meth:`to_disk`."""
        self._open(open_model(path))
        return self

    def to_bytes(self, exclude: Sequence[str] = ()) -> bytes:
        """Return the files of :meth:`to_disk` as bytes."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            self.to_disk(path)
            return bytes(srsly.msgpack_dumps({file.name: file.read_bytes() for file in sorted(path.iterdir())}))

    def from_bytes(self, content: bytes, exclude: Sequence[str] = ()) -> "ElmoLayers":
        """Open a model from the result of :meth:`to_bytes`."""
        with TemporaryDirectory() as folder:
            for name, file in srsly.msgpack_loads(content).items():
                # Only the last part of a name, so an untrusted pipeline cannot write outside the folder.
                (Path(folder) / Path(name).name).write_bytes(file)
            self._open(open_model(folder).replace(source=None))
        return self


@Language.factory("elmo_layers", assigns=["doc._.elmo_layers"], default_config={"model": None, "start": "warm"})  # type: ignore[untyped-decorator]
def make_elmo_layers(nlp: Language, name: str, model: str | None, start: str) -> ElmoLayers:
    """Create the component ``elmo_layers``: all layers of ELMo as extension attributes.

    ``doc._.elmo_layers`` is an array ``(layers, tokens, dim)``, layer 0 first; a token's or span's ``_.elmo_layers`` is
    its part of that array. Sentences and whitespace are treated as in :func:`elmo_tok2vec`.

    A saved pipeline contains the model.

    Args:
        nlp, name: Passed by spaCy and not used.
        model: A path, URL or name, as in :meth:`elmokit.Elmo.from_pretrained`. None for the small included English
            model. It is opened when it is first needed.
        start: The initial LSTM state of each sentence, "warm" or "zero", as in :class:`elmokit.Elmo`.

    Raises:
        ConfigError: ``start`` is invalid.
    """
    return ElmoLayers(model, start)


def _columns(tokens: Token | Span) -> Vectors | None:
    """Return the layers of a token ``(layers, dim)`` or of a span ``(layers, tokens, dim)``."""
    layers: Vectors | None = tokens.doc._.get(EXTENSION)
    if layers is None:
        return None
    if layers.shape[1] != len(tokens.doc):
        raise ConfigError(
            f"The doc was retokenized after elmo_layers: it has {count_of(len(tokens.doc), 'token')}, but its layers "
            f"have {layers.shape[1]}. Put elmo_layers last in the pipeline."
        )
    return layers[:, tokens.i if isinstance(tokens, Token) else slice(tokens.start, tokens.end)]
