"""A pretrained model: the biLM with everything that its files hold, whatever their format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmokit.bilm import BiLM, BiLMOutput, BiLMState
from elmokit.errors import FormatError, ModelNotFoundError
from elmokit.nn.kernels.backends import requested_backend
from elmokit.text.batching import PaddedBatch, pad_batch
from elmokit.text.characters import encode_tokens
from elmokit.token_cache import TokenCache

if TYPE_CHECKING:
    from elmokit.engine.precision import Precision
    from elmokit.nn.alignment import LayerAlignment
    from elmokit.nn.sentence_pooling import Whitening
    from elmokit.nn.softmax import Softmax
    from elmokit.text.lexicon import Lexicon
    from elmokit.text.vocabulary import Vocabulary


@dataclass(repr=False)
class PretrainedBiLM:
    """A biLM with its vocabulary, softmax and model card, as ``open_model`` reads and ``save_model`` writes them."""

    bilm: BiLM
    family: str
    """The format that it was read from: "elmokit", "bilm-tf", "tf-checkpoint", "tf-hub", "ELMoForManyLangs",
    "fastNLP" or "paddle"; "allennlp" for one that ``_ElmoBiLm.to_model`` made."""
    source: Path | None = None
    softmax: Softmax | None = field(default_factory=lambda: None)
    """The output layer, for perplexity and further training. None if the files have none: most exports dropped it."""
    vocabulary: Vocabulary | None = None
    """The words of the softmax, and of a word-input model's table."""
    initial_state: BiLMState | None = None
    """The LSTM state, for one row, that every sentence starts from; None if none was calibrated."""
    card: dict[str, Any] = field(default_factory=dict)
    """The model card: corpus, tokens seen, perplexities, command; free in form."""
    whitening: Whitening | None = None
    """The whitening of sentence vectors; None if none was fitted."""
    alignment: LayerAlignment | None = None
    """Maps the vectors of every layer into the space of another model; None if none was learned. ``Elmo`` applies it.
    The network itself, and so the softmax, works with the vectors before it."""
    lexicon: Lexicon | None = None
    """The rows of a model with word and character tables of its own; None if characters are UTF-8 bytes."""

    storage: str = "float32"
    """How the files hold the weights; the network always has them in float32."""
    precision: Precision | None = None
    """The lowest precision in which it is computed if no other one is requested; None means float32. The readers give
    the network this precision."""

    def __repr__(self) -> str:
        """Say what it is in one line; its tensors would fill pages, also in the ``repr`` of everything that has one."""
        size = f"{self.bilm.n_parameters / 1e6:.1f} M parameters"
        source = "" if self.source is None else f", from {self.source.name}"  # notebooks are shared: not the whole path
        return f"<{type(self).__name__}: {self.family}, {size}{source}>"

    def _repr_html_(self) -> str:
        from elmokit.io.html import table
        from elmokit.weights.describe import describe  # describe imports this module

        facts = {name: fact for name, fact in describe(self).items() if name not in ("path", "card")}
        # Not the whole path: notebooks are shared, and tell nobody else about the directories of a machine.
        facts = {"name": "unknown" if self.source is None else self.source.name, **facts}
        return table(facts.items(), caption="ELMo model")

    def defer_softmax(self, read: Callable[[], Softmax]) -> None:
        """Read the softmax when it is first used, for a file that takes long to read.

        Args:
            read: Reads the softmax. To keep the model picklable, pass a ``functools.partial`` of a module's function.
        """
        del self.softmax  # so that its next use finds no attribute and reaches __getattr__
        self._read_softmax = read

    if not TYPE_CHECKING:  # a type checker would otherwise accept every attribute name

        def __getattr__(self, name: str) -> Any:
            if name != "softmax" or "_read_softmax" not in self.__dict__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self.softmax = self._read_softmax()
            del self._read_softmax
            return self.softmax

    def encode(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Convert tokens to the ids that the token layer reads.

        Returns:
            Char ids ``(tokens, chars)``; word ids ``(tokens,)`` for a word-input model; with a lexicon, a word id and
            char ids ``(tokens, 1 + chars)``, or those of the two that the model has.

        Raises:
            ModelNotFoundError: A word-input model came without its vocabulary, or a word table without its lexicon.
        """
        config = self.bilm.config
        if self.lexicon is not None:
            return self.lexicon.encode(tokens)
        if config.word_features is not None:
            raise ModelNotFoundError(f"{self.source} has a word table but no lexicon that assigns words to its rows.")
        if config.char_cnn is not None:
            return encode_tokens(tokens, config.char_cnn.max_chars)
        if self.vocabulary is None:
            raise ModelNotFoundError(
                f"{self.source} reads word ids and has no vocabulary. Put its vocab.txt next to the weights."
            )
        return self.vocabulary.word_ids(tokens) + 1  # 0 means "no token"

    def check_finite(self, results: Tensor) -> None:
        """Check what the model computed for a batch.

        Weights that are finite, which the readers check, can still be so large that sums overflow.

        Args:
            results: Vectors or nats, of any shape.

        Raises:
            FormatError: They contain NaN or infinity.
        """
        # NaN and infinity reach the sum, which is faster than a test of each number. The sum itself can overflow, so it
        # only says where to look closer.
        # On a CPU in NumPy, because PyTorch's threads would keep the engine's from their cores.
        with np.errstate(over="ignore", invalid="ignore"):
            total = results.detach().numpy().sum() if results.device.type == "cpu" else results.sum().item()
        if not np.isfinite(total) and not bool(results.isfinite().all()):
            raise FormatError(
                f"{self.source or 'The model'} computes NaN or infinity: its weights are finite, but so large that "
                "sums overflow. Training diverged, or the file is damaged: use another checkpoint, or copy the file."
            )

    def word_vectors(self, words: Sequence[str], cache: TokenCache | None = None) -> Tensor:
        """Compute context-free vectors of distinct tokens, ``(words, projection_dim)``, or take them from the cache."""

        def compute(missing: Sequence[str]) -> Tensor:
            vectors: Tensor = self.bilm.token_layer(torch.from_numpy(self.encode(missing)).to(self.bilm.device))
            return vectors

        if cache is None or self.bilm.config.n_words is not None:  # a word-input model is a table already
            return compute(words)
        layer = self.bilm.token_layer
        backend = requested_backend(self.bilm.precision)
        return cache.vectors(words, compute, [*layer.parameters(), *layer.buffers()], backend)

    def token_vectors(
        self, sentences: Sequence[Sequence[str]], cache: TokenCache | None = None
    ) -> tuple[Tensor, PaddedBatch]:
        """Compute the context-free vectors of a batch of sentences with boundaries, each distinct token once.

        Args:
            cache: Vectors computed before, without gradient.

        Returns:
            ``(batch, time, projection_dim)``, and the batch.
        """
        batch = pad_batch(sentences)
        vectors = self.word_vectors(batch.words, cache)
        if vectors.device.type == "cpu" and not vectors.requires_grad:  # in NumPy, as above
            return torch.from_numpy(vectors.numpy()[batch.index]), batch
        return vectors[torch.from_numpy(batch.index).to(vectors.device)], batch

    def contextualize(
        self, sentences: Sequence[Sequence[str]], state: BiLMState, cache: TokenCache | None = None
    ) -> tuple[BiLMOutput, PaddedBatch]:
        """Compute all layers of a batch of sentences with boundaries. Returns them and the batch."""
        vectors, batch = self.token_vectors(sentences, cache)
        return self.bilm.contextualize(vectors, torch.from_numpy(batch.mask).to(vectors.device), state), batch
