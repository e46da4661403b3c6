"""The structure of a model without its weights, for programs that store weights in their own files.

flair and spaCy save the contents of their models as plain values and a state dict of tensors. The plain values are a
:class:`ModelStructure`; the tensors are the state dict of an ``Elmo``, including its start state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from elmokit.engine.architecture import BiLMConfig, tensor_shapes
from elmokit.engine.layer_selection import LayerAlignment
from elmokit.engine.precision import Precision
from elmokit.engine.state import State
from elmokit.pretrained.model import PretrainedBiLM, Weights
from elmokit.text.lexicon import Lexicon
from elmokit.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class ModelStructure:
    """Everything needed to compute vectors except the weights; store it with ``elmokit.config.to_dict``."""

    # It does not include the softmax and the whitening, because token vectors do not need them.

    bilm: BiLMConfig
    lexicon: Lexicon | None = None
    words: tuple[str, ...] | None = None  # one per row of a table that a softmax can share
    is_aligned: bool = False
    card: dict[str, Any] = field(default_factory=dict)
    precision: Precision | None = None

    @classmethod
    def of(cls, model: PretrainedBiLM) -> ModelStructure:
        """Return the structure of a model."""
        config = model.config
        vocabulary = model.vocabulary if config.word_table is not None else None
        return cls(
            config,
            model.lexicon,
            None if vocabulary is None else tuple(vocabulary.words),
            model.alignment is not None,
            model.card,
            model.precision,
        )

    def build(self) -> PretrainedBiLM:
        """Create a model with this structure but no weights. Load a state dict into its ``Elmo`` before you use it."""
        # NaN makes a missing state dict obvious. With random weights, the vectors would only be bad.
        arrays = {name: np.full(shape, np.nan, np.float32) for name, shape in tensor_shapes(self.bilm).items()}
        n_layers, dim = self.bilm.n_layers + 1, self.bilm.output_dim
        matrices = np.full((n_layers, dim, dim), np.nan, np.float32)
        return PretrainedBiLM(
            Weights(self.bilm, arrays),
            "elmokit",
            vocabulary=None if self.words is None else Vocabulary(self.words, strict=False),
            start_state=State.zero(self.bilm, 1),  # the state dict has the real one
            card=self.card,
            alignment=LayerAlignment.of_matrices(matrices) if self.is_aligned else None,
            lexicon=self.lexicon,
            precision=self.precision,
        )
