"""Embed batches of a table: a callable for ``datasets.Dataset.map`` and ``ray.data.Dataset.map_batches``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from elmokit.embedding.elmo import Elmo, embed_joined
from elmokit.embedding.outputs.arrow import vector_array
from elmokit.embedding.outputs.output_format import StoredDtype, as_stored, stored_dtype
from elmokit.embedding.sentence_vectors import SentenceEmbedder
from elmokit.engine.layer_selection import Layers, plain_layers
from elmokit.engine.precision import Precision
from elmokit.pretrained.pooling_names import PoolingName
from elmokit.text.batching import sentences_of_all
from elmokit.text.tokenize import split_tokens


class Embed:
    """Adds columns of vectors to a batch of a table.

    The columns are named as in the files of ``elmokit embed``: ``layer_0``, ``layer_1``, ... for several layers,
    ``vectors`` for one vector per token, ``vector`` for one vector per sentence (``pooling``).

    The model is opened when the first batch is computed, once per process, and is not pickled. The object can therefore
    be sent to other processes and machines, which need the model under the same path or name.

    Args:
        model: The path or name of a model, as in :meth:`Elmo.from_pretrained`. None for the included model.
        column: The column with texts or lists of tokens.
        layers: As in :meth:`Elmo.embed`; with ``pooling``, as in :meth:`SentenceEmbedder.by_name`. None for all layers,
            or with ``pooling``, for the pooling's default.
        pooling: "auto", "mean", "sif", "whitened" or "trained" for one vector per sentence. None for one vector per
            token.
        dtype: The dtype of the vectors.
        tokenize: Splits a text into the tokens of one sentence. None splits it into sentences and tokens, like
            :func:`elmokit.tokenize`. Lists of tokens are used as they are.
        batch_tokens: As in :meth:`Elmo.embed`.
        precision, device: As in :meth:`Elmo.from_pretrained`.

    Example:
        >>> import datasets
        >>> table = datasets.Dataset.from_dict({"text": ["He sat on the bank .", "The bank lent money ."]})
        >>> table.map(Embed(pooling="sif"), batched=True).column_names
        ['text', 'vector']
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        column: str = "text",
        layers: Layers | None = None,
        pooling: PoolingName | None = None,
        dtype: StoredDtype = "float32",
        tokenize: Callable[[str], list[str]] | None = split_tokens,
        batch_tokens: int = 2048,
        precision: Precision | None = None,
        device: str | None = None,
    ) -> None:
        self.model, self.column, self.pooling = model, column, pooling
        self.layers: Any = None if layers is None else plain_layers(layers)
        self.dtype = stored_dtype(dtype)
        self.tokenize, self.batch_tokens, self.precision, self.device = tokenize, batch_tokens, precision, device
        self._embedder: Elmo | SentenceEmbedder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_embedder": None}

    def __call__(self, batch: Any) -> Any:
        """Compute the vectors of a batch.

        Args:
            batch: A dict of columns, or a ``pyarrow.Table``.

        Returns:
            A dict or table with the batch's columns and those of the vectors, which replace columns with the same name.
            In a dict, a column of token vectors is a list of arrays ``(tokens, dim)``, and a column of sentence vectors
            is an array ``(sentences, dim)``. In a table, vectors are fixed-size lists.

        Raises:
            TextError: The column is one string (set ``batched=True`` in ``Dataset.map``), or a text is neither a string
                nor a list of strings.
        """
        if isinstance(batch, Mapping):
            return {**batch, **self._embed(sentences_of_all(batch[self.column], self.tokenize))}
        texts = sentences_of_all(batch[self.column].to_pylist(), self.tokenize)
        for name, rows in self._embed(texts).items():
            array = self._arrow_array(rows, texts)
            names = batch.column_names
            if name in names:
                batch = batch.set_column(names.index(name), name, array)
            else:
                batch = batch.append_column(name, array)
        return batch

    def _arrow_array(self, rows: Any, texts: list[list[list[str]]]) -> Any:
        """Convert a column of vectors to an Arrow array."""
        if self.pooling is not None:
            return vector_array(rows, None)
        assert isinstance(self._embedder, Elmo)
        lengths = np.array([sum(map(len, text)) for text in texts], np.int64)
        nothing = np.zeros((0, self._embedder.output_dim), self.dtype)  # there may be no sentences
        return vector_array(np.concatenate([nothing, *rows]), lengths)

    def _embed(self, texts: list[list[list[str]]]) -> dict[str, Any]:
        """Compute the columns of vectors."""
        if self._embedder is None:
            self._embedder = self._open()
        if isinstance(self._embedder, SentenceEmbedder):
            return {"vector": as_stored(self._embedder.embed_texts(texts), self.dtype)}
        layers: Any = "all" if self.layers is None else self.layers
        embed = partial(self._embedder.embed, layers=layers, batch_tokens=self.batch_tokens)
        vectors = [as_stored(array, self.dtype) for array in embed_joined(texts, embed)]
        if isinstance(layers, int) or layers in ("top", "average", "mix"):
            return {"vectors": vectors}
        columns = {}
        for row, number in enumerate(range(self._embedder.n_layers) if layers == "all" else layers):
            columns[f"layer_{number}"] = [array[row] for array in vectors]
        return columns

    def _open(self) -> Elmo | SentenceEmbedder:
        elmo = Elmo.from_pretrained(self.model, precision=self.precision, device=self.device)
        if self.pooling is None:
            return elmo
        return SentenceEmbedder.by_name(elmo, self.pooling, self.layers)
