"""A pretrained model: its weights, and everything else in its files, in any format."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from html import escape
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.architecture import BiLMConfig, tensor_shapes
from elmokit.engine.precision import Precision, check_precision
from elmokit.engine.softmax import WordSoftmax
from elmokit.engine.state import Floats, State
from elmokit.errors import ConfigError, ModelNotFoundError, needs_torch
from elmokit.text.characters import encode_tokens
from elmokit.text.marks import EXACT, PLAIN, MarkReader
from elmokit.text.vocabulary import Vocabulary, row_vocabulary

if TYPE_CHECKING:
    import torch

    from elmokit.engine.layer_selection import LayerAlignment
    from elmokit.network.bilm import BiLM
    from elmokit.network.softmax_module import SoftmaxModule
    from elmokit.pretrained.letter_model import LetterModel
    from elmokit.pretrained.sentence_pooling import SentenceHead, Whitening
    from elmokit.text.lexicon import Lexicon


FITTED_MAPS = ("alignment", "whitening", "sentence_head")
"""Parts that were fitted on a model's vectors and do not fit others; also keys of its card."""
FORMER_NAMES = {
    "bilm": "model.build_bilm() returns a new PyTorch module, and model.replace(weights=module) goes back",
    "softmax_module": "model.build_modules() returns new PyTorch modules of the biLM and the softmax",
    "network": "Elmo(model).computer.network computes",
    "to": "Elmo(model, device=device) computes there",
    "word_vectors": "Elmo(model).computer.word_vectors computes them",
    "word_vector_version": "Elmo(model).computer has it",
    "table_rows": "Elmo(model).computer.table_rows returns them",
    "check_finite": "Elmo(model).computer.check_finite checks",
}
"""Former attributes of a model, and their replacements."""


@dataclass(frozen=True, eq=False)
class Weights:
    """The architecture of a biLM, and its weights, named as in :func:`~elmokit.engine.architecture.tensor_shapes`."""

    config: BiLMConfig
    arrays: Mapping[str, Floats] = field(repr=False)

    @classmethod
    def of(cls, bilm: BiLM) -> Weights:
        """Return a copy of the weights of a PyTorch module."""
        from elmokit.network.torch_network import module_arrays

        return cls(bilm.config, module_arrays(bilm))


@dataclass(frozen=True, eq=False)
class TokenTable:
    """Precomputed context-free vectors of some tokens, for a model that reads characters."""

    rows: dict[str, int]
    """The row of each token."""
    vectors: Floats
    """``(rows, projection_dim)``"""


@dataclass(frozen=True, eq=False, repr=False)
class PretrainedBiLM:
    """The contents of a model's files: its weights, softmax, vocabulary, maps and card. It is immutable.

    ``open_model`` reads one, and ``save_model`` writes it. :class:`~elmokit.Elmo`, :class:`~elmokit.LanguageModel` and
    :class:`~elmokit.ElmoModule` build and own the objects that compute it. :meth:`replace` returns a model with other
    parts, and :meth:`build_modules` returns PyTorch modules to train.

    Args:
        weights: The weights. Weights in a file are read on first use.
        family: The name of the format that it was read from, such as "bilm-tf"; "allennlp" for a model from
            ``_ElmoBiLm.to_model``.
        source: Where it was read from.
        softmax: The output layer, for perplexity and further training. None if the files have none, like most exports.
        vocabulary: The words of the softmax, and of a word-input model's table.
        start_state: The LSTM state, for one row, that each sentence starts from; None if none was calibrated.
        card: The model card: corpus, tokens seen, perplexities, command, in any form.
        whitening: The whitening of sentence vectors; None if none was fitted.
        sentence_head: The map of sentence vectors trained on pairs of sentences; None if there is none.
        letters: A letter model for words outside the vocabulary; None if there is none.
        alignment: Maps the vectors of each layer into the space of another model; None if there is none. ``Elmo``
            applies it. The network and softmax use the unaligned vectors.
        lexicon: The rows of a model with its own word and character tables; None if characters are UTF-8 bytes.
        token_table: Token vectors that are looked up instead of computed; None for most models.
        storage: How the files store the weights; computations always start from float32.
        precision: The lowest precision for computing it; None means float32. ``ELMOKIT_BACKEND`` overrides it.
        exact_marks: Read typographic marks and character codes unchanged, like the original programs; see :attr:`read`.

    Raises:
        ConfigError: The precision is unknown.
    """

    weights: Weights
    family: str
    source: Path | None = None
    _: KW_ONLY
    softmax: WordSoftmax | None = None
    vocabulary: Vocabulary | None = None
    start_state: State | None = None
    card: dict[str, Any] = field(default_factory=dict)
    whitening: Whitening | None = None
    sentence_head: SentenceHead | None = None
    letters: LetterModel | None = None
    alignment: LayerAlignment | None = None
    lexicon: Lexicon | None = None
    token_table: TokenTable | None = None
    storage: str = "float32"
    precision: Precision | None = None
    exact_marks: bool = False

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if not isinstance(self.weights, Weights):
            raise ConfigError(
                f"The weights of a model are Weights, not {type(self.weights).__name__}. For PyTorch modules, call "
                "PretrainedBiLM.from_modules."
            )

    @classmethod
    def from_modules(
        cls, bilm: BiLM, softmax: SoftmaxModule | None = None, *, family: str = "elmokit", **parts: Any
    ) -> PretrainedBiLM:
        """Return a model with a copy of the weights of PyTorch modules. Other parts are named as in the class."""
        return cls(Weights.of(bilm), family, **parts).replace(softmax=softmax)

    if not TYPE_CHECKING:  # type checkers know the existing names

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names the replacement for a former attribute."""
            if name in FORMER_NAMES:
                raise AttributeError(f"A model no longer has {name}: {FORMER_NAMES[name]}.")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def source_name(self) -> str | None:
        """The name of the file or directory that the model was opened from, or None.

        Without the path, because notebooks and vector files that show it may be shared.
        """
        return None if self.source is None else self.source.name

    def replace(self, **changes: Any) -> PretrainedBiLM:
        """Return a model with other parts, named as in the constructor. Unchanged parts are shared.

        ``weights`` and ``softmax`` may be PyTorch modules; their current weights are copied.
        """
        if changes.get("vocabulary", self.vocabulary) is not self.vocabulary:
            # The head has one weight per vocabulary word, and the letter model is for words outside the vocabulary.
            changes.setdefault("sentence_head", None)
            changes.setdefault("letters", None)
        weights = changes.get("weights", self.weights)
        if "weights" in changes and not getattr(weights, "has_token_table", False):
            # Its vectors were computed with the previous weights.
            changes.setdefault("token_table", None)
        if not isinstance(weights, Weights):
            weights = Weights.of(weights)
        softmax = changes.get("softmax", self.softmax)
        if softmax is not None and not isinstance(softmax, WordSoftmax):
            from elmokit.network.torch_network import word_softmax

            softmax = word_softmax(softmax)
        if softmax is not None and softmax.config.kind == "tied":
            softmax = softmax.tied_to(weights.arrays, weights.config.word_table)
        changes |= {"weights": weights, "softmax": softmax}
        return dataclasses.replace(self, **changes)

    def view_of(self, bilm: BiLM, softmax: SoftmaxModule | None = None) -> PretrainedBiLM:
        """Return this model with the weights of PyTorch modules, which are read on access.

        For modules that are evaluated or saved during training. Without ``softmax``, the model keeps its own.
        """
        from elmokit.network.torch_network import ModuleArrays, word_softmax

        return self.replace(
            weights=Weights(bilm.config, ModuleArrays(bilm)),
            softmax=self.softmax if softmax is None else word_softmax(softmax, ModuleArrays(softmax)),
            token_table=self.token_table if bilm.has_token_table else None,
        )

    @property
    def fitted_maps(self) -> list[str]:
        """The maps that were fitted on the model's vectors, for messages."""
        return [name.replace("_", " ") for name in FITTED_MAPS if getattr(self, name) is not None]

    def without_fitted_maps(self) -> PretrainedBiLM:
        """Return a copy without the maps that were fitted on the current vectors."""
        card = {name: fact for name, fact in self.card.items() if name not in FITTED_MAPS}
        return self.replace(**dict.fromkeys(FITTED_MAPS), card=card)

    def __repr__(self) -> str:
        """Describe it in one line; tensors would fill pages, also in the ``repr`` of objects that contain a model."""
        size = f"{self.n_parameters / 1e6:.1f} M parameters"
        source = "" if self.source is None else f", from {self.source_name}"
        return f"<{type(self).__name__}: {self.family}, {size}{source}>"

    def _repr_html_(self) -> str:
        facts = {name: fact for name, fact in describe(self).items() if name not in ("path", "card")}
        facts = {"name": self.source_name or "unknown", **facts}
        # Styles are inline, because a notebook shows each result separately.
        left = 'style="text-align:left"'
        rows = (
            f'<tr><th scope="row" {left}>{escape(name)}</th><td {left}>{escape(str(fact))}</td></tr>'
            for name, fact in facts.items()
        )
        return f"<table><caption {left}>ELMo model</caption><tbody>{''.join(rows)}</tbody></table>"

    @property
    def config(self) -> BiLMConfig:
        """The architecture."""
        return self.weights.config

    @property
    def arrays(self) -> Mapping[str, Floats]:
        """The weights in float32, named as in :func:`~elmokit.engine.architecture.tensor_shapes`.

        Weights in a file are read on demand.
        """
        return self.weights.arrays

    @property
    def n_parameters(self) -> int:
        """Number of trainable parameters of the biLM, without the zero rows for "no token"."""
        total = 0
        for name, shape in tensor_shapes(self.config).items():
            total += prod(shape)
            if name.endswith("embedding.weight"):
                total -= shape[1]
        return total

    @property
    def can_predict(self) -> bool:
        """Whether it can predict words: it has a softmax and its vocabulary."""
        return self.softmax is not None and self.vocabulary is not None

    def build_bilm(self) -> BiLM:
        """Return the biLM as a new PyTorch module, for gradients, training and GPUs.

        Raises:
            MissingExtraError: PyTorch is not installed.
        """
        with needs_torch("PretrainedBiLM.build_bilm"):
            from elmokit.network.torch_network import build_bilm

        vectors = None if self.token_table is None else self.token_table.vectors
        return build_bilm(self.config, self.arrays, vectors)

    def build_modules(self) -> tuple[BiLM, SoftmaxModule | None]:
        """Return the biLM, and its softmax if it has one, as new PyTorch modules. A tied softmax shares the word table.

        Raises:
            MissingExtraError: PyTorch is not installed.
        """
        bilm = self.build_bilm()
        return bilm, self.build_softmax(bilm)

    def build_softmax(self, bilm: BiLM) -> SoftmaxModule | None:
        """Return the softmax as a new PyTorch module for a biLM from :meth:`build_bilm`; None if there is none."""
        if self.softmax is None:
            return None
        from elmokit.network.torch_network import build_softmax_module

        return build_softmax_module(self.softmax, bilm)

    @property
    def read(self) -> MarkReader:
        """How it reads a token: with plain marks and letters in place of those missing from its lexicon or vocabulary.

        Without either, it is unknown which marks the model knows, and all are read as ASCII.
        """
        known = self.lexicon or self.vocabulary
        if known is None:
            return EXACT if self.exact_marks else PLAIN
        return known.read_exactly if self.exact_marks else known.read

    def encode(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Convert tokens to the ids that the token layer reads, after :attr:`read`.

        Returns:
            Char ids ``(tokens, chars)``; word ids ``(tokens,)`` for a word-input model; with a lexicon, a word id and
            char ids ``(tokens, 1 + chars)``, or only one of the two. With a :attr:`token_table`, each token's row,
            counted from 1, comes first; 0 if it has none.

        Raises:
            ModelNotFoundError: The vocabulary or lexicon of a model with a word table is missing.
        """
        tokens = list(map(self.read, tokens))
        if self.token_table is None:
            return self._own_ids(tokens)
        rows = np.array([self.token_table.rows.get(token, -1) + 1 for token in tokens], dtype=np.int64)
        return np.concatenate([rows[:, None], self._own_ids(tokens)], axis=1)

    def _own_ids(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Convert tokens, after :attr:`read`, to input ids; see :meth:`encode`."""
        config = self.config
        if self.lexicon is not None:
            return self.lexicon.encode(tokens)
        if config.word_features is not None:
            if self.vocabulary is not None and config.char_cnn is not None and config.word_table is not None:
                return self.vocabulary.encode_with_chars(tokens, config.char_cnn.max_chars)
        elif config.char_cnn is not None:
            return encode_tokens(tokens, config.char_cnn.max_chars)
        elif self.vocabulary is not None:
            return self.vocabulary.word_ids(tokens) + 1  # 0 means "no token"
        raise ModelNotFoundError(
            f"{self.source} reads words but has no vocabulary. Put its vocab.txt next to the weights."
        )


def check_device(device: str | torch.device | None) -> None:
    """Check, before anything is read, that a device is available; None and "cpu" always are."""
    if device is None or str(device) == "cpu":
        return
    with needs_torch(f"The device {str(device)!r}"):
        from elmokit.network.tensors import parse_device
    parse_device(device)


def read_row_words(path: Path, config: BiLMConfig, lexicon: Lexicon | None, rows_of: str) -> Vocabulary | None:
    """Read the words of a model's table, one per row; None if rows are not words."""
    if lexicon is not None:  # it assigns the rows
        return None
    if config.n_table_words is None:
        return None
    # The word list of a published word-input model may lack <UNK>.
    needs_unknown = config.n_words is None
    return row_vocabulary(path, config.n_table_words, rows_of, strict=needs_unknown)


def check_model(model: object, opener: str) -> None:
    """Raise a ConfigError unless this is an opened model; ``opener`` is a function that accepts a name."""
    if isinstance(model, PretrainedBiLM):
        return
    given, remedy = f"one of type {type(model).__name__}", "Pass its .model."
    if isinstance(model, str | Path):
        given, remedy = f"the name {str(model)!r}", f"Use {opener}({str(model)!r})."
    elif not hasattr(model, "model"):
        remedy = "Open one with open_model."
    raise ConfigError(f"Expected a model from open_model, but got {given}. {remedy}")


def describe(model: PretrainedBiLM) -> dict[str, Any]:
    """Return facts about a model by name, as printed by ``elmokit info``.

    Returns:
        Text for each fact, and the model card under "card".

    Raises:
        ConfigError: ``model`` is not a model, but for example the name of one.
    """
    check_model(model, "open_model")
    config = model.config
    directions = "two directions" if config.bidirectional else "forward only"
    return {
        "path": str(model.source),
        "format": model.family,
        "storage": model.storage,
        "precision": model.precision or "float32",
        "tokens": _describe_tokens(config),
        "layers": f"layer 0 and {config.n_layers} LSTM, {directions}",
        "sizes": f"hidden {config.hidden_dim}, projection {config.projection_dim}, vectors {config.output_dim}",
        "clips": f"{_describe_clip(config.cell_clip)} and {_describe_clip(config.projection_clip)} (cell, projection)",
        "skip connections": "yes" if config.skip_connections else "no",
        "parameters": f"{model.n_parameters:,}",
        "lexicon": _describe_lexicon(model.lexicon),
        "vocabulary": "none" if model.vocabulary is None else f"{len(model.vocabulary):,} words",
        "softmax": _describe_softmax(model),
        "start state": _describe_start(model),
        "typographic marks": "read unchanged" if model.exact_marks else "read as ASCII, except those that it knows",
        "letters of unknown words": _describe_letters(model),
        "alignment": "none" if model.alignment is None else "stored with the model",
        "card": model.card,
    }


def _describe_letters(model: PretrainedBiLM) -> str:
    """Describe how ``spelling_nats`` is computed."""
    if model.letters is not None:
        return "a letter model"
    return "none" if model.vocabulary is None else "the words of the vocabulary"


def _describe_tokens(config: BiLMConfig) -> str:
    """Describe the input of the token layer: words, characters, or both."""
    if config.n_words is not None:
        return f"words: a table of {config.n_words:,}"
    parts = []
    words, cnn = config.word_features, config.char_cnn
    if words is not None:
        parts.append(f"words: a table of {words.n_words:,} x {words.word_dim}")
    if cnn is not None:
        filters = " ".join(f"{count}x{width}" for width, count in cnn.filters)
        parts.append(
            f"at most {cnn.max_chars} characters: filters {filters}, {cnn.activation}, {cnn.n_highway} highway"
        )
    return "; ".join(parts)


def _describe_clip(clip: float | None) -> str:
    return "none" if clip is None else f"{clip:g}"


def _describe_lexicon(lexicon: Lexicon | None) -> str:
    """Describe the sizes of a lexicon."""
    sizes = []
    if lexicon is not None and lexicon.words is not None:
        sizes.append(f"{len(lexicon.words):,} words")
    if lexicon is not None and lexicon.chars is not None:
        sizes.append(f"{len(lexicon.chars):,} characters")
    return ", ".join(sizes) or "none"


def _describe_softmax(model: PretrainedBiLM) -> str:
    """Describe the number of parameters of the softmax, computed from its sizes without reading it."""
    if model.softmax is None:
        return "none"
    n_parameters = 0
    if model.vocabulary is not None:
        shapes = model.softmax.config.tensor_shapes(len(model.vocabulary), model.config.projection_dim)
        n_parameters = sum(map(prod, shapes.values()))
    return f"{n_parameters:,} parameters"


def _describe_start(model: PretrainedBiLM) -> str:
    """Describe the state that sentences start from."""
    if model.start_state is None:
        return "none stored: warm is the state after an empty sentence; AllenNLP and bilm-tf used stateful, TF-Hub zero"
    if not any(state.any() for state in model.start_state):
        return "zero, as in TF-Hub (stored with the model)"
    return f"stored with the model: {model.card.get('warm_state', 'not zero')}"
