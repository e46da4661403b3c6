"""ELMoForManyLangs (``elmoformanylangs``) under its old names.

Replace ``from elmoformanylangs import Embedder`` with ``from elmokit.compat.many_langs import Embedder``. The
differences are:

- Results are reproducible, and a sentence's vectors do not depend on other sentences. The old class shuffled its
  batches and carried the LSTM state from one to the next.
- Empty lists and empty sentences work, and no gradients are kept.
- A GPU is only used if ``device`` selects it.
- Every model that elmokit opens works.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmokit.compat.token_lists import token_lists
from elmokit.embedding.elmo import Elmo, Start
from elmokit.engine.layer_selection import Layers
from elmokit.formats.open import open_model

if TYPE_CHECKING:
    import torch

AVERAGE = -1
ALL = -2
_TOKENS_PER_SENTENCE = 32  # converts ``batch_size`` to tokens per batch, as counted by ``Elmo.embed``


class Embedder:
    """Embeds tokenized sentences with one model.

    The attributes ``model_dir`` and ``batch_size`` are the arguments, and ``use_cuda`` is True if ``device`` is a GPU.

    Args:
        model_dir: The directory of a model, as downloaded or converted, or any other model that elmokit opens.
        batch_size: Sentences of typical length per batch. It changes the memory use, not the vectors.
        start: The start state of each sentence, as for ``elmokit.Elmo``. "zero" gives the vectors of the old class's
            first batch; "warm" is better for single short sentences; "stateful" continues from the same row of the
            previous batch, in the given order.
        device: Where to compute, such as "cuda"; the CPU if None.

    Raises:
        ModelError: The model does not exist or cannot be opened.
    """

    def __init__(
        self, model_dir: str | Path, batch_size: int = 64, *, start: Start = "zero", device: str | None = None
    ) -> None:
        self.elmo = Elmo(open_model(model_dir, exact_marks=True), start=start, device=device)
        self.model_dir = model_dir
        self.batch_size = batch_size
        self.use_cuda = str(device).startswith("cuda")

    @property
    def model(self) -> torch.nn.Module:
        """The network as a PyTorch module, which computes the vectors from the first access on."""
        return self.elmo.computer.use_module()

    @property
    def config(self) -> dict[str, Any]:
        """The network's sizes in the layout of ELMoForManyLangs' configuration, for any model."""
        config, lexicon = self.elmo.model.config, self.elmo.model.lexicon
        cnn, features = config.char_cnn, config.word_features
        chars: dict[str, Any] = {"char_dim": 0}
        if cnn is not None:
            chars = {
                "activation": cnn.activation,
                "char_dim": cnn.char_dim,
                "filters": [list(spec) for spec in cnn.filters],
                "max_characters_per_token": cnn.max_chars if lexicon is None else lexicon.max_chars,
                "n_highway": cnn.n_highway,
            }
        return {
            "encoder": {
                "name": "elmo",
                "projection_dim": config.projection_dim,
                "dim": config.hidden_dim,
                "n_layers": config.n_layers,
                "cell_clip": config.cell_clip,
                "proj_clip": config.projection_clip,
            },
            "token_embedder": {"name": "cnn", **chars, "word_dim": 0 if features is None else features.word_dim},
            "dropout": config.dropout,
        }

    @property
    def word_lexicon(self) -> dict[str, int] | None:
        """Each word's row in the word table; None if the model has none."""
        lexicon = self.elmo.model.lexicon
        return None if lexicon is None else _rows(lexicon.words)

    @property
    def char_lexicon(self) -> dict[str, int] | None:
        """Each character's row in the character table; None if characters are bytes."""
        lexicon = self.elmo.model.lexicon
        return None if lexicon is None else _rows(lexicon.chars)

    def get_model(self) -> tuple[torch.nn.Module, dict[str, Any]]:
        """Return :attr:`model` and :attr:`config`."""
        return self.model, self.config

    def sents2elmo(self, sents: Iterable[Iterable[str]], output_layer: int = AVERAGE) -> list[NDArray[np.float32]]:
        """Embed tokenized sentences, in order.

        Args:
            sents: Lists of tokens, or other iterables, such as those of ``jieba.cut``.
            output_layer: -1 for the mean of all layers, -2 for all layers, or a layer number. Layer 0 is the
                context-free layer.

        Returns:
            An array per sentence: ``(tokens, dim)``, or ``(layers, tokens, dim)`` for all layers.

        Raises:
            TextError: A sentence is not a list of strings.
            ConfigError: The layer does not exist.
        """
        named: dict[int, Layers] = {AVERAGE: "average", ALL: "all"}
        return self.elmo.embed(
            token_lists(sents),
            layers=named.get(output_layer, output_layer),
            batch_tokens=self.batch_size * _TOKENS_PER_SENTENCE,
            batch_size=self.batch_size,
        )


def _rows(entries: Sequence[str | None] | None) -> dict[str, int] | None:
    return None if entries is None else {entry: row for row, entry in enumerate(entries) if entry is not None}
