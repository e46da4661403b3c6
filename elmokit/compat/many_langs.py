"""The call of ELMoForManyLangs (``elmoformanylangs``) under its old names.

``from elmokit.compat.many_langs import Embedder`` in the place of ``from elmoformanylangs import Embedder``. What
differs: the same call gives the same vectors, whatever stands beside a sentence, where the old class shuffled its
batches and carried the LSTM's state from one to the next; an empty list and an empty sentence are welcome; no
gradients are kept; a GPU is used where ``device`` says so; and every model that elmokit opens will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit.embedder import Elmo, Layers, Start
from elmokit.errors import ConfigError

AVERAGE = -1
ALL = -2
_POSITIONS_PER_SENTENCE = 32  # what ``batch_size`` is worth in the memory that a batch takes


class Embedder:
    """A model and the size of its batches.

    Args:
        model_dir: the folder of a model, as it was downloaded or converted.
        batch_size: sentences of usual length per batch; memory grows with it, vectors do not change.
        start: what a sentence is read from, as for ``elmokit.Elmo``. "zero" gives the vectors of the old class's
            first batch; "warm" suits a sentence that stands alone better; "stateful" continues from the same row of
            the batch before, in the order given.
        device: where to compute, such as "cuda"; the CPU if None.

    Raises:
        ModelError: nothing stands there, or it cannot be opened.
    """

    def __init__(
        self, model_dir: str | Path, batch_size: int = 64, *, start: Start = "zero", device: str | None = None
    ) -> None:
        self.elmo = Elmo.from_pretrained(model_dir, start=start, n_mixes=0, device=device)
        self.model_dir = model_dir
        self.batch_size = batch_size

    def sents2elmo(self, sents: Iterable[Sequence[str]], output_layer: int = AVERAGE) -> list[NDArray[np.float32]]:
        """Vectors of tokenised sentences, in their order.

        Args:
            sents: lists of tokens.
            output_layer: -1 for the mean of all layers, -2 for all layers, else a layer's number, 0 the context-free.

        Returns:
            for each sentence ``(tokens, dim)``; ``(layers, tokens, dim)`` for all layers.

        Raises:
            TextError: a sentence is no list of strings.
            ConfigError: there is no such layer.
        """
        n_layers = self.elmo.n_layers
        if output_layer not in range(ALL, n_layers):
            raise ConfigError(
                f"output_layer is {output_layer!r}; it is {AVERAGE} for the mean of all layers, {ALL} for all of them, "
                f"or one from 0 to {n_layers - 1}."
            )
        named: dict[int, Layers] = {AVERAGE: "average", ALL: "all"}
        return self.elmo.embed(
            list(sents),
            layers=named.get(output_layer, output_layer),
            batch_tokens=self.batch_size * _POSITIONS_PER_SENTENCE,
            batch_size=self.batch_size,
        )
