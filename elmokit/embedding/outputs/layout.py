"""Which vectors of a text are stored, and how: an argument of ``embed_file``, and command options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from elmokit.config import setting


@dataclass(frozen=True)
class Layout:
    """Which vectors :func:`~elmokit.embedding.corpus.embed_file` computes, and how it stores them.

    ``layers`` takes the same values as in :meth:`Elmo.embed <elmokit.Elmo.embed>`; a :class:`~elmokit.SentenceEmbedder`
    has its own layers. In HDF5, sentences are stored in ``sentence_to_index``, which maps each sentence to its number.
    A sentence that occurs on several lines is mapped to the last one, as in AllenNLP. If the datasets are named by
    their sentences, there is no map. Other formats store the sentences as ``tokens``.
    """

    layers: Literal["all", "top", "average", "mix"] | int | Sequence[int] = setting("all", "The layers to store.")
    dtype: Literal["float32", "float16"] = setting("float32", "Data type of the stored vectors.")
    use_sentence_keys: bool = setting(False, "In HDF5, name the datasets by their sentences instead of line numbers.")
    forget_sentences: bool = setting(False, "Do not store the sentences (in HDF5, their map to line numbers).")
    include_sentence_indices: bool = setting(
        False, "In HDF5, also store the map from sentences to line numbers under its old name, sentence_indices."
    )
    batch_tokens: int = setting(2048, "Positions per batch, unless --start is stateful.")
    batch_size: int = setting(64, "Sentences per batch if --start is stateful.")
