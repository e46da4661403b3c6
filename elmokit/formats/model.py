"""A pretrained model: its weights with everything else that its files hold, whatever their format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.architecture import BiLMConfig, tensor_shapes
from elmokit.engine.engine import open_engine
from elmokit.engine.network import Network
from elmokit.engine.precision import Precision, check_precision, requested_backend
from elmokit.engine.softmax import Softmax, WordSoftmax
from elmokit.engine.state import Floats, IntegerRows, State
from elmokit.engine.threads import ForkSafeLock
from elmokit.engine.token_cache import TokenCache
from elmokit.engine.token_layer import WORD_FEATURES, HasIntegers
from elmokit.errors import ConfigError, FormatError, ModelNotFoundError, needs_torch
from elmokit.text.characters import encode_tokens
from elmokit.text.marks import EXACT, PLAIN, MarkReader
from elmokit.text.vocabulary import Vocabulary, row_vocabulary

if TYPE_CHECKING:
    import torch

    from elmokit.engine.layer_selection import LayerAlignment
    from elmokit.formats.sentence_pooling import SentenceHead, Whitening
    from elmokit.network.bilm import BiLM
    from elmokit.network.softmax_module import SoftmaxModule
    from elmokit.text.lexicon import Lexicon


FITTED_MAPS = ("alignment", "whitening", "sentence_head")
"""What was fitted on the vectors of a model and does not suit others; also keys of its card."""


class Weights(NamedTuple):
    """The architecture of a biLM, and its weights, named as in :func:`~elmokit.engine.architecture.tensor_shapes`."""

    config: BiLMConfig
    arrays: Mapping[str, Floats]


@dataclass(frozen=True, eq=False)
class TokenTable:
    """Precomputed context-free vectors of some tokens of a model that reads characters."""

    rows: dict[str, int]
    """The row of each token."""
    vectors: Floats
    """``(rows, projection_dim)``"""


class PretrainedBiLM:
    """A biLM with its vocabulary, softmax and model card, as ``open_model`` reads and ``save_model`` writes them.

    The weights have one owner, which computes. At first that is NumPy's arrays, and no PyTorch is needed. For training
    and GPUs, :attr:`bilm` and :attr:`softmax_module` move them to PyTorch modules: whatever trains or moves these
    changes the model.

    Args:
        weights: The weights, or a PyTorch module that holds them.
        family: The name of the format that it was read from, such as "bilm-tf"; "allennlp" for a model that
            ``_ElmoBiLm.to_model`` made.
        source: Where it was read from.
        softmax: The output layer, for perplexity and further training, or a PyTorch module that holds it. None if the
            files have none: most exports dropped it.
        vocabulary: The words of the softmax, and of a word-input model's table.
        start_state: The LSTM state, for one row, that every sentence starts from; None if none was calibrated.
        card: The model card: corpus, tokens seen, perplexities, command; free in form.
        whitening: The whitening of sentence vectors; None if none was fitted.
        sentence_head: The map of sentence vectors that was trained on pairs of sentences; None if none was.
        alignment: Maps the vectors of every layer into the space of another model; None if none was learned. ``Elmo``
            applies it. The network itself, and so the softmax, works with the vectors before it.
        lexicon: The rows of a model with word and character tables of its own; None if characters are UTF-8 bytes.
        token_table: Vectors of tokens that are looked up and not computed; None for most models.
        storage: How the files hold the weights; they are always computed from float32.
        precision: The lowest precision in which it is computed; None means float32.
        exact_marks: Read typographic marks and all codes of characters as they are, as the original programs do; see
            :attr:`read`.
    """

    def __init__(
        self,
        weights: Weights | BiLM,
        family: str,
        source: Path | None = None,
        *,
        softmax: Softmax | SoftmaxModule | None = None,
        vocabulary: Vocabulary | None = None,
        start_state: State | None = None,
        card: dict[str, Any] | None = None,
        whitening: Whitening | None = None,
        sentence_head: SentenceHead | None = None,
        alignment: LayerAlignment | None = None,
        lexicon: Lexicon | None = None,
        token_table: TokenTable | None = None,
        storage: str = "float32",
        precision: Precision | None = None,
        exact_marks: bool = False,
    ) -> None:
        has_table = getattr(weights, "has_token_table", False)
        if not isinstance(weights, Weights) and has_table != (token_table is not None):
            weights = _copied(weights)  # the module would read the columns of a table as characters, or miss them
        self._weights = weights
        self.softmax = softmax
        self.family, self.source = family, source
        self.vocabulary = vocabulary
        self.start_state = start_state
        self.card: dict[str, Any] = {} if card is None else card
        self.whitening, self.sentence_head = whitening, sentence_head
        self.alignment, self.lexicon, self.token_table = alignment, lexicon, token_table
        self.storage, self.exact_marks = storage, exact_marks
        self._precision: Precision | None = None
        if self._module is None or precision is not None:
            self.precision = precision
        self._engine: tuple[str, Network] | None = None
        self._table: IntegerRows | tuple[Floats, None] | None = None
        self._lock = ForkSafeLock()

    @property
    def source_name(self) -> str | None:
        """The name of the file or directory that the model was opened from; None if it is from no file.

        For what others will read: notebooks and vector files are shared, and tell nobody about the directories of a
        machine.
        """
        return None if self.source is None else self.source.name

    def replace(self, **changes: Any) -> PretrainedBiLM:
        """Return a copy with other parts, named as in the constructor. Parts that stay are shared."""
        # A head has a weight for each word, so it belongs to this vocabulary.
        if changes.get("vocabulary", self.vocabulary) is not self.vocabulary:
            changes = {"sentence_head": None, **changes}
        if "weights" in changes and not getattr(changes["weights"], "has_token_table", False):
            changes = {"token_table": None, **changes}  # its vectors are those of the weights of before
        weights, table = changes.get("weights"), changes.get("token_table")
        if weights is not None and not isinstance(weights, Weights) and table not in (None, self.token_table):
            changes = {**changes, "weights": _copied(weights)}  # the module has another table, or none
        if ("precision" in changes or "token_table" in changes) and "weights" not in changes:
            changes = {"weights": Weights(self.config, self.arrays), **changes}  # a BiLM has one of each
        names = "family source vocabulary start_state card whitening sentence_head alignment lexicon token_table"
        parts = {name: getattr(self, name) for name in [*names.split(), "storage", "precision", "exact_marks"]}
        return PretrainedBiLM(**{**parts, "weights": self._weights, "softmax": self._softmax, **changes})

    @property
    def fitted_maps(self) -> list[str]:
        """Which maps that were fitted on its vectors the model has, as messages name them."""
        return [name.replace("_", " ") for name in FITTED_MAPS if getattr(self, name) is not None]

    def without_fitted_maps(self) -> PretrainedBiLM:
        """Return a copy for other vectors, without the maps that were fitted on those of now."""
        card = {name: fact for name, fact in self.card.items() if name not in FITTED_MAPS}
        return self.replace(**dict.fromkeys(FITTED_MAPS), card=card)

    @property
    def _module(self) -> BiLM | None:
        return None if isinstance(self._weights, Weights) else self._weights

    def __repr__(self) -> str:
        """Say what it is in one line; its tensors would fill pages, also in the ``repr`` of everything that has one."""
        size = f"{self.n_parameters / 1e6:.1f} M parameters"
        source = "" if self.source is None else f", from {self.source_name}"
        return f"<{type(self).__name__}: {self.family}, {size}{source}>"

    def _repr_html_(self) -> str:
        facts = {name: fact for name, fact in describe(self).items() if name not in ("path", "card")}
        facts = {"name": self.source_name or "unknown", **facts}
        # Styles are inline, because a notebook shows each result by itself.
        left = 'style="text-align:left"'
        rows = (
            f'<tr><th scope="row" {left}>{escape(name)}</th><td {left}>{escape(str(fact))}</td></tr>'
            for name, fact in facts.items()
        )
        return f"<table><caption {left}>ELMo model</caption><tbody>{''.join(rows)}</tbody></table>"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_engine", "_table", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _engine=None, _table=None, _lock=ForkSafeLock())

    @property
    def config(self) -> BiLMConfig:
        """The architecture."""
        return self._weights.config

    @property
    def arrays(self) -> Mapping[str, Floats]:
        """The weights in float32, by the names of :func:`~elmokit.engine.architecture.tensor_shapes`.

        Those of a file are read when they are asked for.
        """
        if isinstance(self._weights, Weights):
            return self._weights.arrays
        return {name: tensor.detach().float().cpu().numpy() for name, tensor in self._weights.state_dict().items()}

    @property
    def n_parameters(self) -> int:
        """Number of trainable parameters of the biLM, without the zero rows that mean "no token"."""
        shapes = tensor_shapes(self.config)
        tables = [shape for name, shape in shapes.items() if name.endswith("embedding.weight")]
        return sum(map(prod, shapes.values())) - sum(dim for _, dim in tables)

    @property
    def precision(self) -> Precision | None:
        """The lowest precision in which it is computed; None means float32.

        It is saved with the model. ``ELMOKIT_BACKEND`` overrides it.

        Raises:
            ConfigError: It is set to an unknown precision.
        """
        return self._precision if self._module is None else self._module.precision

    @precision.setter
    def precision(self, precision: Precision | None) -> None:
        check_precision(precision)
        self._precision = precision
        if self._module is not None:
            self._module.precision = precision

    @property
    def bilm(self) -> BiLM:
        """The biLM as a PyTorch module, for gradients, training and GPUs.

        The weights move to it when it is first asked for, and it computes from then on.

        Raises:
            MissingExtraError: PyTorch is not installed.
        """
        with self._lock:
            if isinstance(self._weights, Weights):
                with needs_torch("PretrainedBiLM.bilm"):
                    from elmokit.network.torch_network import build_bilm

                    table = None if self.token_table is None else self.token_table.vectors
                    self._weights = build_bilm(*self._weights, self._precision, table)
                self._engine = None
            return self._weights

    @property
    def softmax(self) -> Softmax | None:
        """The output layer; None if there is none."""
        softmax: Any = self._softmax
        # A tied softmax shares the table of the biLM, which may be trained as soon as that is a module.
        if isinstance(softmax, WordSoftmax) and softmax.config.kind == "tied" and self._module is not None:
            softmax = self.softmax_module
        if softmax is None or isinstance(softmax, WordSoftmax):
            return softmax
        from elmokit.network.torch_network import TorchSoftmax

        return TorchSoftmax(softmax)

    @softmax.setter
    def softmax(self, softmax: Softmax | SoftmaxModule | None) -> None:
        self._softmax: Any = softmax

    @property
    def can_predict(self) -> bool:
        """Whether it has what predictions of words need: a softmax, and the vocabulary of its words."""
        return self._softmax is not None and self.vocabulary is not None

    @property
    def softmax_module(self) -> SoftmaxModule | None:
        """The output layer as a PyTorch module, made like :attr:`bilm`; None if there is none.

        Raises:
            MissingExtraError: PyTorch is not installed.
        """
        with self._lock:
            if isinstance(self._softmax, WordSoftmax):
                bilm = self.bilm  # first, because it says so if PyTorch is missing
                from elmokit.network.torch_network import build_softmax_module

                self._softmax = build_softmax_module(self._softmax, bilm)
            module: SoftmaxModule | None = self._softmax
            return module

    @property
    def network(self) -> Network:
        """What computes the layers: the owner of the weights, which is the engine or the module :attr:`bilm`."""
        with self._lock:
            if not isinstance(self._weights, Weights):
                from elmokit.network.torch_network import TorchNetwork

                return TorchNetwork(self._weights)
            request = requested_backend(self._precision)
            if self._engine is None or self._engine[0] != request:
                self._engine = None  # free the old weights before the new ones take memory
                self._engine = request, open_engine(*self._weights, request)
            return self._engine[1]

    def to(self, device: str | torch.device) -> None:
        """Compute on a device, such as "cuda". Without PyTorch, the CPU is the only one.

        Raises:
            MissingExtraError: PyTorch is not installed.
            ConfigError: The device is not available.
        """
        if str(device) == "cpu" and self._module is None:
            return
        check_device(device)
        self.bilm.to(device)
        if (softmax := self.softmax_module) is not None:
            softmax.to(device)

    @property
    def read(self) -> MarkReader:
        """How it reads a token: with plain marks and letters for those that its lexicon or vocabulary does not have.

        Without either, nothing says what the model knows, and all marks are read in ASCII.
        """
        known = self.lexicon or self.vocabulary
        if known is None:
            return EXACT if self.exact_marks else PLAIN
        return known.read_exactly if self.exact_marks else known.read

    def encode(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Convert tokens to the ids that the token layer reads, after :attr:`read`.

        Returns:
            Char ids ``(tokens, chars)``; word ids ``(tokens,)`` for a word-input model; with a lexicon, a word id and
            char ids ``(tokens, 1 + chars)``, or those of the two that the model has. With a :attr:`token_table`, the
            row of each token comes first, counted from 1; 0 if it has none.

        Raises:
            ModelNotFoundError: A model with a table of words came without its vocabulary, or without its lexicon.
        """
        tokens = list(map(self.read, tokens))
        if self.token_table is None:
            return self._own_ids(tokens)
        rows = np.array([self.token_table.rows.get(token, -1) + 1 for token in tokens], dtype=np.int64)
        return np.concatenate([rows[:, None], self._own_ids(tokens)], axis=1)

    def _own_ids(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Convert tokens, as they are read, to what the weights read: see :meth:`encode`."""
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
            f"{self.source} reads words and has no vocabulary. Put its vocab.txt next to the weights."
        )

    def check_finite(self, results: Floats) -> None:
        """Check what the model computed for a batch.

        Weights that are finite, which the readers check, can still be so large that sums overflow.

        Args:
            results: Vectors or nats, of any shape.

        Raises:
            FormatError: They contain NaN or infinity.
        """
        # NaN and infinity reach the sum, which is faster than a test of each number. The sum itself can overflow, so it
        # only says where to look closer.
        with np.errstate(over="ignore", invalid="ignore"):
            total = results.sum()
        if not np.isfinite(total) and not bool(np.isfinite(results).all()):
            raise FormatError(
                f"{self.source or 'The model'} computes NaN or infinity: its weights are finite, but so large that "
                "sums overflow."
            )

    def word_vectors(self, words: Sequence[str], cache: TokenCache | None = None) -> Floats:
        """Compute context-free vectors of distinct tokens, ``(words, projection_dim)``, or take them from the cache."""
        network = self.network

        def compute(missing: Sequence[str]) -> Floats:
            ids = self.encode(missing)
            if self.token_table is None or self._module is not None:  # the module has the table
                return network.token_vectors(ids)
            rows, chars = ids[:, 0], ids[:, 1:]
            vectors = self.token_table.vectors[rows - 1]
            if len(unlisted := np.flatnonzero(rows == 0)):
                vectors[unlisted] = network.token_vectors(chars[unlisted])
            return vectors

        if cache is None or self.config.n_words is not None:  # a word-input model is a table already
            return compute(words)
        return cache.vectors(words, compute, self.word_vector_version)

    def table_rows(self, tokens: Sequence[str]) -> Floats:
        """Return the rows of tokens in the word table of a model that also reads characters, ``(tokens, word_dim)``.

        A token that is not in the vocabulary has zeros.
        """
        ids, name = self._own_ids(list(map(self.read, tokens)))[:, 0], f"token_layer.{WORD_FEATURES}"
        if not isinstance(self._weights, Weights):
            return np.asarray(self._weights.state_dict()[name][ids].float().cpu())
        if self._table is None:  # as integers where they are stored so, a quarter of the memory
            arrays = self._weights.arrays
            integers = arrays.integers(name) if isinstance(arrays, HasIntegers) else None
            self._table = (arrays[name], None) if integers is None else integers
        table, scales = self._table
        return np.asarray(table[ids] if scales is None else table[ids] * scales[ids, None], np.float32)

    @property
    def word_vector_version(self) -> object:
        """What the context-free vector of a word depends on; it does not equal the last one after a change."""
        # Vocabulary and lexicon say which rows of a table the words have.
        return self.network.token_layer_version, self.vocabulary, self.lexicon, self.token_table


def _copied(bilm: BiLM) -> Weights:
    """Return a copy of the weights of a module, without its table of token vectors."""
    arrays = {name: tensor.detach().float().cpu().numpy().copy() for name, tensor in bilm.state_dict().items()}
    return Weights(bilm.config, arrays)


def check_device(device: str | torch.device | None) -> None:
    """Check that a device can be used, before anything is read; None and "cpu" always can."""
    if device is None or str(device) == "cpu":
        return
    with needs_torch(f"The device {str(device)!r}"):
        from elmokit.network.tensors import parse_device
    parse_device(device)


def read_row_words(path: Path, config: BiLMConfig, lexicon: Lexicon | None, rows_of: str) -> Vocabulary | None:
    """Read the words of a model's table, one per row; None if words name no rows."""
    if lexicon is not None or config.n_table_words is None:  # a lexicon assigns the rows
        return None
    # The word list of a published word-input model may lack <UNK>.
    return row_vocabulary(path, config.n_table_words, rows_of, strict=config.n_words is None)


def check_model(model: object, opener: str) -> None:
    """Raise a ConfigError unless this is an opened model; ``opener`` is what accepts the name of one."""
    if isinstance(model, PretrainedBiLM):
        return
    given, remedy = f"one of type {type(model).__name__}", "Pass its .model."
    if isinstance(model, str | Path):
        given, remedy = f"the name {str(model)!r}", f"Use {opener}({str(model)!r})."
    elif not hasattr(model, "model"):
        remedy = "Open one with open_model."
    raise ConfigError(f"Expected a model as open_model returns it, but got {given}. {remedy}")


def describe(model: PretrainedBiLM) -> dict[str, Any]:
    """Return the facts about a model by name, as ``elmokit info`` prints them.

    Returns:
        Text for each fact, and the model card under "card".

    Raises:
        ConfigError: ``model`` is something else, such as the name of one.
    """
    check_model(model, "open_model")
    config = model.config
    cnn = config.char_cnn
    if cnn is not None:
        filters = " ".join(f"{count}x{width}" for width, count in cnn.filters)
        tokens = f"at most {cnn.max_chars} characters: filters {filters}, {cnn.activation}, {cnn.n_highway} highway"
    else:
        tokens = f"words: a table of {config.n_words:,}" if config.n_words is not None else ""
    if config.word_features is not None:
        words = f"words: a table of {config.word_features.n_words:,} x {config.word_features.word_dim}"
        tokens = f"{words}; {tokens}" if tokens else words
    entries = () if model.lexicon is None else (("words", model.lexicon.words), ("characters", model.lexicon.chars))
    clips = " and ".join("none" if clip is None else f"{clip:g}" for clip in (config.cell_clip, config.projection_clip))
    softmax, vocabulary = model.softmax, model.vocabulary
    n_softmax = 0
    if softmax is not None and vocabulary is not None:  # from the sizes, so that nothing is read
        n_softmax = sum(map(prod, softmax.config.tensor_shapes(len(vocabulary), config.projection_dim).values()))
    return {
        "path": str(model.source),
        "format": model.family,
        "storage": model.storage,
        "precision": model.precision or "float32",
        "tokens": tokens,
        "layers": f"layer 0 and {config.n_layers} LSTM, {'two directions' if config.bidirectional else 'forward only'}",
        "sizes": f"hidden {config.hidden_dim}, projection {config.projection_dim}, vectors {config.output_dim}",
        "clips": f"{clips} (cell, projection)",
        "skip connections": "yes" if config.skip_connections else "no",
        "parameters": f"{model.n_parameters:,}",
        "lexicon": ", ".join(f"{len(rows):,} {name}" for name, rows in entries if rows is not None) or "none",
        "vocabulary": "none" if vocabulary is None else f"{len(vocabulary):,} words",
        "softmax": "none" if softmax is None else f"{n_softmax:,} parameters",
        "start state": _describe_start(model),
        "typographic marks": "read as they are" if model.exact_marks else "read in ASCII, except those that it knows",
        "alignment": "none" if model.alignment is None else "stored with the model",
        "card": model.card,
    }


def _describe_start(model: PretrainedBiLM) -> str:
    """Say which state sentences start from."""
    if model.start_state is None:
        return "none stored: warm is the state after an empty sentence; AllenNLP and bilm-tf used stateful, TF-Hub zero"
    if not any(state.any() for state in model.start_state):
        return "zero, as in TF-Hub (stored with the model)"
    return f"stored with the model: {model.card.get('warm_state', 'not zero')}"
