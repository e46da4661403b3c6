"""A model as it stands on disk, whatever the format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmokit.bilm import BiLM, BiLMOutput, BiLMState
from elmokit.errors import ModelNotFoundError
from elmokit.nn.softmax import Softmax
from elmokit.text.batching import PaddedBatch, pad_batch
from elmokit.text.characters import encode_tokens
from elmokit.text.lexicon import Lexicon
from elmokit.text.vocabulary import Vocabulary
from elmokit.token_cache import TokenCache


@dataclass
class PretrainedBiLM:
    """A biLM with all that its files hold beside it."""

    bilm: BiLM
    family: str
    """The format that it was read from: "elmokit", "bilm-tf", "tf-checkpoint", "tf-hub" or "ELMoForManyLangs";
    "allennlp" for one that ``_ElmoBiLm.to_model`` made."""
    source: Path | None = None
    softmax: Softmax | None = None
    """For perplexity and further training; old exports threw it away."""
    vocabulary: Vocabulary | None = None
    """The words of the softmax, and of a word-input model's table."""
    warm_state: BiLMState | None = None
    """The state of one row from which ``Elmo`` starts every sentence, where one was calibrated."""
    card: dict[str, Any] = field(default_factory=dict)
    """The model card: corpus, tokens seen, perplexities, command; free in form."""
    lexicon: Lexicon | None = None
    """The rows of a model with word and character tables of its own; None where characters are UTF-8 bytes."""

    def encode(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """What the token layer reads.

        Returns:
            char ids ``(tokens, chars)``; word ids ``(tokens,)`` for a word-input model; with a lexicon, a word id and
            char ids ``(tokens, 1 + chars)``, or those of the two that the model has.

        Raises:
            ModelNotFoundError: a word-input model came without its vocabulary, or a word table without its lexicon.
        """
        config = self.bilm.config
        if self.lexicon is not None:
            return self.lexicon.encode(tokens)
        if config.word_features is not None:
            raise ModelNotFoundError(f"{self.source} has a word table and no lexicon that says which row is which.")
        if config.char_cnn is not None:
            return encode_tokens(tokens, config.char_cnn.max_chars)
        if self.vocabulary is None:
            raise ModelNotFoundError(
                f"{self.source} takes word ids and has no vocabulary. Put its vocab.txt beside the weights."
            )
        return self.vocabulary.word_ids(tokens) + 1  # 0 means "no token"

    def word_vectors(self, words: Sequence[str], cache: TokenCache | None = None) -> Tensor:
        """Context-free vectors of distinct tokens, ``(words, projection_dim)``; kept ones from the cache, if given."""

        def compute(missing: Sequence[str]) -> Tensor:
            vectors: Tensor = self.bilm.token_layer(torch.from_numpy(self.encode(missing)).to(self.bilm.device))
            return vectors

        if cache is None or self.bilm.config.n_words is not None:  # a word-input model is a table already
            return compute(words)
        layer = self.bilm.token_layer
        return cache.vectors(words, compute, [*layer.parameters(), *layer.buffers()])

    def token_vectors(
        self, sentences: Sequence[Sequence[str]], cache: TokenCache | None = None
    ) -> tuple[Tensor, PaddedBatch]:
        """Context-free vectors of a batch of sentences, boundaries included, each distinct token computed once.

        Args:
            cache: vectors computed before, without gradient.

        Returns:
            ``(batch, time, projection_dim)``, and the batch.
        """
        batch = pad_batch(sentences)
        vectors = self.word_vectors(batch.words, cache)
        return vectors[torch.from_numpy(batch.index).to(vectors.device)], batch

    def contextualize(
        self, sentences: Sequence[Sequence[str]], state: BiLMState, cache: TokenCache | None = None
    ) -> tuple[BiLMOutput, PaddedBatch]:
        """All layers of a batch of sentences, boundaries included, and the batch."""
        vectors, batch = self.token_vectors(sentences, cache)
        return self.bilm.contextualize(vectors, torch.from_numpy(batch.mask).to(vectors.device), state), batch
