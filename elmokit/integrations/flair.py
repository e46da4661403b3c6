"""ELMo in flair: :class:`ElmoTokenEmbeddings`.

Import this module before you load a flair model that contains such embeddings, because flair finds the class by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from elmokit.config import from_dict, to_dict
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.embedding.start_state import StartName, check_start_name
from elmokit.errors import needs_extra
from elmokit.formats.open import as_model
from elmokit.integrations.model_structure import ModelStructure
from elmokit.network.scalar_mix import MixedLayers
from elmokit.pretrained.model import PretrainedBiLM

with needs_extra("elmokit.integrations.flair", "flair"):
    import flair
    from flair.data import Sentence
    from flair.embeddings.base import TokenEmbeddings, register_embeddings


@register_embeddings
class ElmoTokenEmbeddings(TokenEmbeddings):
    """ELMo token vectors, for flair's sequence taggers and stacked embeddings.

    A saved flair model contains the weights, so it can be loaded without the original model.

    Args:
        model: A path, URL or name, as in :meth:`elmokit.Elmo.from_pretrained`, or an opened model. None for the small
            included English model.
        layers: The layers that the scalar mix combines, as in :class:`elmokit.ElmoModule`.
        learn_mix: Train the weights of the mix. If neither the mix nor the biLM is trained, flair computes a corpus's
            vectors only once and stores them according to its ``embeddings_storage_mode``.
        trainable: Fine-tune the biLM.
        start: The initial LSTM state of each sentence, "warm" or "zero", as in :class:`elmokit.Elmo`.
        name: The name under which flair stores the vectors in a token. None means "elmo".

    Raises:
        ModelError: No model was found, or it cannot be opened.
        ConfigError: An argument is not valid.

    Example:
        >>> from flair.data import Sentence
        >>> sentence = Sentence("The bank raised its rate .")
        >>> ElmoTokenEmbeddings().embed(sentence)
        >>> sentence[1].embedding.shape
        torch.Size([384])
    """

    def __init__(
        self,
        model: str | Path | PretrainedBiLM | None = None,
        *,
        layers: MixedLayers = "all",
        learn_mix: bool = True,
        trainable: bool = False,
        start: StartName = "warm",
        name: str | None = None,
    ) -> None:
        super().__init__()
        check_start_name(start)  # not "stateful", because flair shuffles the sentences
        self.elmo = ElmoModule(as_model(model), start=start, layers=layers, trainable=trainable)
        if not learn_mix:
            self.elmo.mixes.requires_grad_(False)
        self.layers, self.learn_mix, self.trainable, self.start = layers, learn_mix, trainable, start
        self.name = name or "elmo"
        self.static_embeddings = not (learn_mix or trainable)
        self.to(flair.device)
        self.eval()

    @property
    def embedding_length(self) -> int:
        """Number of dimensions of a vector."""
        return self.elmo.output_dim

    def _add_embeddings_internal(self, sentences: list[Sentence]) -> list[Sentence]:
        texts = [[token.text for token in sentence] for sentence in sentences]
        is_training = self.training and not self.static_embeddings
        with torch.set_grad_enabled(is_training and torch.is_grad_enabled()):
            vectors = self.elmo.mixed_vectors(texts)
        for sentence, rows in zip(sentences, vectors, strict=True):
            for token, row in zip(sentence, rows, strict=True):
                token.set_embedding(self.name, row)
        return sentences

    def to_params(self) -> dict[str, Any]:
        """Return the settings and the model's structure. flair also saves the state dict, with the weights."""
        return {
            "layers": self.layers,
            "learn_mix": self.learn_mix,
            "trainable": self.trainable,
            "start": self.start,
            "name": self.name,
            "structure": to_dict(ModelStructure.of(self.elmo.model)),
        }

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> ElmoTokenEmbeddings:
        """Create embeddings with the same settings and structure, but no weights. Load a state dict before use.

        ``ElmoTokenEmbeddings.load_embedding`` does both.
        """
        settings = dict(params)
        structure = from_dict(ModelStructure, settings.pop("structure"), "the embeddings' structure")
        return cls(structure.build(), **settings)

    def __str__(self) -> str:
        return self.name

    def extra_repr(self) -> str:
        """Return the settings for flair's summary of a model."""
        return f"layers={self.layers!r}, learn_mix={self.learn_mix}, trainable={self.trainable}"
