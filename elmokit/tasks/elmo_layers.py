"""Where the layers of ELMo in a batch come from: a cache, the biLM as needed, or the biLM inside the model."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from elmokit.embedding.elmo import Elmo
from elmokit.tasks.inputs import ElmoLayers, ElmoShape, Texts
from elmokit.tasks.layer_cache import LayerCache


def shape_of(elmo: Elmo) -> ElmoShape:
    """Return the sizes of a biLM's layers."""
    return ElmoShape(elmo.n_layers, elmo.output_dim)


class CachedLayers(ElmoLayers):
    """The layers of a frozen biLM from a cache."""

    def __init__(self, cache: LayerCache) -> None:
        super().__init__(cache.shape)
        self.cache = cache

    def of_texts(self, texts: Texts) -> list[list[NDArray[Any]]]:
        return [self.cache.layers(sentences) for sentences in texts]


class ComputedLayers(ElmoLayers):
    """The layers of a frozen biLM, computed for each batch.

    With a stateful ``Elmo``, each text of an example continues from the text before it.
    """

    def __init__(self, elmo: Elmo) -> None:
        super().__init__(shape_of(elmo))
        self.elmo = elmo

    def of_texts(self, texts: Texts) -> list[list[NDArray[Any]]]:
        if self.elmo.start != "stateful":
            return [self.elmo.embed(sentences) for sentences in texts]
        # Row r of a batch continues from row r of the previous one, so each text is a batch of all examples.
        n_examples = len(texts[0])
        sentences = [sentence for text in texts for sentence in text]
        layers = self.elmo.embed(sentences, batch_size=max(n_examples, 1))
        return [layers[start : start + n_examples] for start in range(0, len(sentences), n_examples or 1)]


class LayersInModel(ElmoLayers):
    """The layers of a biLM that is trained with the model, which computes them from the sentences of the batch."""

    def of_texts(self, texts: Texts) -> None:
        return None
