"""ELMo sentence vectors in scikit-learn: :class:`ElmoVectorizer`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.sentence_vectors import SentenceEmbedder
from elmokit.engine.precision import Precision
from elmokit.errors import TextError, needs_extra
from elmokit.pretrained.pooling_names import PoolingName
from elmokit.storage.text_files import expand_user
from elmokit.text.batching import check_texts, sentences_of_all

with needs_extra("elmokit.integrations.sklearn", "sklearn"):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

Version = tuple[tuple[int, int], ...]
"""Identifies the current version of a model's files: their inodes and modification times."""


class ElmoVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Transform texts into ELMo sentence vectors.

    For classifiers, use all layers: ``ElmoVectorizer(pooling="mean", layers="all")``. For similarity and clustering,
    use the defaults (docs/how-to/compare-sentences.md).

    Nothing is learned from the texts, so ``transform`` works without ``fit``. To fit a whitening, add
    ``sklearn.decomposition.PCA(whiten=True)`` to a pipeline with ``pooling="sif"``.

    Opened models are shared by all vectorizers in a process, and reopened if their files change. They are not pickled,
    so the same model must be available where a pickle is loaded.

    Args:
        model: The path or name of a model, as in :meth:`Elmo.from_pretrained`. None for the included model.
        pooling: "auto", "mean", "sif", "whitened" or "trained", as in :meth:`SentenceEmbedder.by_name`.
        layers: As in :meth:`SentenceEmbedder.by_name`; None for layer 0.
        tokenizer: Splits a text into the tokens of one sentence. None splits it into sentences and tokens, like
            :func:`elmokit.tokenize`. Lists of tokens are used as they are.
        precision, device: As in :meth:`Elmo.from_pretrained`.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> classifier = make_pipeline(ElmoVectorizer(pooling="mean", layers="all"), LogisticRegression(max_iter=1000))
        >>> classifier.fit(["A lovely film.", "I was bored."], [1, 0]).predict(["What a lovely story."])
        array([1])
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        pooling: PoolingName = "auto",
        layers: Any = None,
        tokenizer: Callable[[str], list[str]] | None = None,
        precision: Precision | None = None,
        device: str | None = None,
    ) -> None:
        # Only stored here, as scikit-learn requires: clone and GridSearchCV change the parameters later.
        self.model = model
        self.pooling = pooling
        self.layers = layers
        self.tokenizer = tokenizer
        self.precision = precision
        self.device = device

    def fit(self, X: Iterable[str | Sequence[str]], y: Any = None) -> ElmoVectorizer:
        """Open the model and check the parameters.

        Args:
            X: As in ``transform``. Nothing is learned from it.
            y: Not used.

        Raises:
            ModelError: The model cannot be opened.
            ConfigError: A parameter is invalid.
            TextError: ``X`` is a string, or a table with several columns.
        """
        _check_is_one_column(X)
        self._embedder()
        return self

    def transform(self, X: Iterable[str | Sequence[str]]) -> NDArray[np.float32]:
        """Compute one vector per text.

        Args:
            X: Texts or lists of tokens: a list, a data frame column, or a data frame or array with one column.

        Returns:
            ``(texts, dim)``.

        Raises:
            TextError: A text is neither a string nor a list of strings; or ``X`` is a string, or a table with several
                columns.
        """
        _check_is_one_column(X)
        return self._embedder().embed_texts(sentences_of_all(_only_column(X), self.tokenizer))

    @property
    def _n_features_out(self) -> int:
        return self._embedder().dim

    def _embedder(self) -> SentenceEmbedder:
        elmo = _open_elmo(self.model, _version_on_disk(self.model), self.precision, self.device)
        return SentenceEmbedder.by_name(elmo, self.pooling, self.layers)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        tags.requires_fit = False
        return tags


def _check_is_one_column(X: Any) -> None:
    """Check that texts are a list or one column, as far as their type tells without reading them."""
    check_texts(X)
    # Otherwise, data frames with several columns would be read as their column names, which iterating over a data frame
    # yields.
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
        names = ", ".join(map(repr, list(getattr(X, "columns", ()))[:5]))
        raise TextError(
            f"Expected one column of texts, but got {type(X).__name__} of shape {tuple(shape)}"
            f"{f' with the columns {names}' if names else ''}. Tokens must be lists."
        )


def _only_column(X: Any) -> Iterable[Any]:
    """Return the column of a data frame or array ``(texts, 1)``; return other texts unchanged."""
    if len(getattr(X, "shape", ())) != 2:
        return X  # type: ignore[no-any-return]
    column: Iterable[Any] = X[X.columns[0]] if hasattr(X, "columns") else np.asarray(X)[:, 0]
    return column


def _version_on_disk(model: str | None) -> Version:
    """Return numbers that change when a model's path or one of its files is replaced or modified."""
    if model is None:
        return ()
    try:
        path = expand_user(model)
        statuses = [file.stat() for file in (path, *(sorted(path.iterdir()) if path.is_dir() else ()))]
    except (OSError, ValueError, TextError):
        return ()  # a name, URL or invalid path; `Elmo.from_pretrained` reports errors
    return tuple((status.st_ino, status.st_mtime_ns) for status in statuses)


# A grid search clones its estimators for every fold, and a model takes seconds to open.
@lru_cache(maxsize=4)
def _open_elmo(model: str | None, version: Version, precision: Precision | None, device: str | None) -> Elmo:
    return Elmo.from_pretrained(model, precision=precision, device=device)
