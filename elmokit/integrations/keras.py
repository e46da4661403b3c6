"""ELMo as a layer of Keras 3, on any of its backends: :class:`ElmoEmbedding`. :func:`encode_texts` makes its input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from elmokit.config import check_at_least
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.start_state import check_start_name
from elmokit.engine.layer_selection import plain_layers
from elmokit.engine.precision import Precision
from elmokit.errors import ConfigError, MissingExtraError, TextError
from elmokit.text.batching import tokens_of_all

try:
    import keras
except ModuleNotFoundError as error:
    if error.name == "keras":
        raise MissingExtraError("elmokit.integrations.keras", "keras") from None
    raise ConfigError(
        f"Keras cannot import its backend: {error}. Install it, or set the environment variable KERAS_BACKEND to "
        "another one (torch, jax or tensorflow) before Keras is imported."
    ) from None

TOKEN_CHARS = 50
"""Characters of a token that are read: as many as the char CNNs of published models read."""


def encode_texts(
    texts: Sequence[str | Sequence[str]],
    n_tokens: int | None = None,
    *,
    tokenize: Callable[[str], list[str]] | None = None,
) -> NDArray[np.int32]:
    """Encode texts as numbers, because most backends of Keras have no tensors of strings.

    Args:
        texts: Texts, or lists of tokens.
        n_tokens: The number of tokens of each text in the result: longer ones are cut off. None: that of the longest,
            but at least 1.
        tokenize: Splits a text into tokens. None: as by :func:`elmokit.tokenize`. Lists of tokens are left as they are.

    Returns:
        The code points of the characters, ``(texts, n_tokens, 50)``. They are 0 on padding.

    Raises:
        TextError: A text is neither a string nor a list of strings, or a token is empty or has the character NUL.
        ConfigError: ``n_tokens`` is negative.

    Example:
        >>> encode_texts(["The bank raised its rate.", "It rained."]).shape
        (2, 6, 50)
    """
    sentences = tokens_of_all(texts, tokenize)
    for number, sentence in enumerate(sentences):
        for index, token in enumerate(sentence):
            if not token or "\0" in token:  # which would look like padding, or the end of a token
                raise TextError(f"Token {index} of text {number} is empty or has the character NUL.")
    if n_tokens is None:
        n_tokens = max([1, *map(len, sentences)])
    check_at_least("n_tokens", n_tokens, 0)
    padded = [[*sentence[:n_tokens], *[""] * (n_tokens - len(sentence))] for sentence in sentences]
    # NumPy stores a string as its code points, and 0 behind its end.
    strings = np.array(padded, f"U{TOKEN_CHARS}").reshape(len(sentences), n_tokens)
    return strings.view(np.int32).reshape(len(sentences), n_tokens, TOKEN_CHARS)


@keras.saving.register_keras_serializable("elmokit")
class ElmoEmbedding(keras.layers.Layer):  # type: ignore[misc]
    """Token vectors of an ELMo as a layer of a Keras model, in place of ``hub.KerasLayer``.

    Its input is what :func:`encode_texts` returns. Its output ``(batch, n_tokens, dim)`` is zero on padding, and later
    layers get the mask of the tokens.

    The biLM is computed by elmokit on the CPU and is never trained: no gradient flows into it. What is trained is the
    mix of its layers (``layers="mix"``), unless ``trainable`` is False. A saved model contains the mix and the name of
    the ELMo, but not its weights: where it is loaded, the same ELMo must be found under that name.

    Args:
        model: The path or name of a model, as in :meth:`Elmo.from_pretrained`. None for the one in the package.
        layers: "mix" for a learned weighted sum of all layers (Peters et al. 2018, equation 1), which starts as their
            mean; or "top", "average" or the number of a layer, with nothing to train.
        start: The LSTM state that each sentence starts from: "warm" or "zero".
        precision: As in :meth:`Elmo.from_pretrained`.
        **kwargs: Arguments of every Keras layer, such as ``name``, ``trainable`` and ``dtype``.

    Raises:
        ModelError: The model cannot be opened.
        ConfigError: An argument is not valid.

    Example:
        >>> texts, labels = ["A lovely film.", "I was bored."], np.array([1, 0])
        >>> inputs = keras.Input((None, 50), dtype="int32")
        >>> pooled = keras.layers.GlobalAveragePooling1D()(ElmoEmbedding()(inputs))
        >>> model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(pooled))
        >>> model.compile("adam", "binary_crossentropy")
        >>> history = model.fit(encode_texts(texts), labels, verbose=0)
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        layers: Literal["mix", "top", "average"] | int = "mix",
        start: Literal["warm", "zero"] = "warm",
        precision: Precision | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # a lower precision would round the characters
        check_start_name(start)
        chosen: Any = plain_layers(layers)
        if not isinstance(chosen, str | int) or chosen == "all":
            raise ConfigError(f"layers is {layers!r}. Choose 'mix', 'top', 'average' or the number of a layer.")
        self.model, self.layers, self.start, self.precision = model, chosen, start, precision
        self.elmo = Elmo.from_pretrained(model, start=start, precision=precision)
        self.elmo.embed([], layers=self._computed)  # checks the layers
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.supports_masking = True
        self.supports_jit = False  # TensorFlow's compiler cannot call Python

    @property
    def _computed(self) -> Any:
        return "all" if self.layers == "mix" else self.layers

    def build(self, input_shape: Any) -> None:
        """Create the weights of the mix."""
        if self.layers == "mix":
            self.scalars = self.add_weight(name="scalars", shape=(self.elmo.n_layers,), initializer="zeros")
            self.gamma = self.add_weight(name="gamma", shape=(), initializer="ones")

    def call(self, inputs: Any) -> Any:
        """Compute the vectors.

        Args:
            inputs: ``(batch, n_tokens, characters)``, from :func:`encode_texts`.

        Returns:
            ``(batch, n_tokens, dim)``.
        """
        if "16" in keras.backend.standardize_dtype(inputs.dtype):
            raise ValueError(
                f"The input is {inputs.dtype}, which rounds characters. Use keras.Input(..., dtype='int32')."
            )
        batch, n_tokens = keras.ops.shape(inputs)[:2]
        dim = self.elmo.output_dim
        if self.layers != "mix":
            vectors = _with_numpy(self._vectors, inputs, (batch, n_tokens, dim))
            return keras.ops.cast(vectors, self.compute_dtype)
        layers = _with_numpy(self._vectors, inputs, (batch, n_tokens, self.elmo.n_layers, dim))
        weights = keras.ops.cast(keras.ops.softmax(self.scalars) * self.gamma, self.compute_dtype)
        return keras.ops.einsum("l,btld->btd", weights, keras.ops.cast(layers, self.compute_dtype))

    def _vectors(self, codes: Any) -> NDArray[np.float32]:
        """Compute vectors in NumPy: ``(batch, n_tokens, dim)``, or ``(batch, n_tokens, layers, dim)`` for a mix."""
        codes = np.asarray(codes)
        tokens = np.ascontiguousarray(codes, np.int32).view(f"U{codes.shape[-1]}")[..., 0]
        is_token = tokens != ""
        sentences = [row[inside].tolist() for row, inside in zip(tokens, is_token, strict=True)]
        shape = (self.elmo.n_layers, self.elmo.output_dim) if self.layers == "mix" else (self.elmo.output_dim,)
        padded = np.zeros((*codes.shape[:2], *shape), np.float32)
        embedded = self.elmo.embed(sentences, layers=self._computed)
        for row, inside, vectors in zip(padded, is_token, embedded, strict=True):
            row[inside] = vectors.transpose(1, 0, 2) if self.layers == "mix" else vectors
        return padded

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the tokens, ``(batch, n_tokens)``: False on padding.

        A text without tokens keeps its first position, whose vector is zero.
        """
        mask = keras.ops.any(keras.ops.not_equal(inputs, 0), axis=-1)
        # GlobalAveragePooling1D would divide by zero, and one such text would make all weights NaN.
        is_empty = keras.ops.logical_not(keras.ops.any(mask, axis=1, keepdims=True))
        return keras.ops.concatenate([keras.ops.logical_or(mask[:, :1], is_empty), mask[:, 1:]], axis=1)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Return the shape of the output for that of the input."""
        return (*input_shape[:2], self.elmo.output_dim)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that create this layer."""
        own = {"model": self.model, "layers": self.layers, "start": self.start, "precision": self.precision}
        return {**super().get_config(), **own}


def _with_numpy(function: Callable[[Any], NDArray[np.float32]], inputs: Any, shape: tuple[Any, ...]) -> Any:
    """Call a function of arrays inside a model of any backend; compiled models call back into Python."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.pure_callback(function, jax.ShapeDtypeStruct(shape, np.float32), inputs)
    if backend == "tensorflow":
        import tensorflow

        outputs = tensorflow.numpy_function(function, [inputs], tensorflow.float32, stateful=False)
        return tensorflow.reshape(outputs, shape)  # which also tells TensorFlow the shape
    return keras.ops.convert_to_tensor(function(keras.ops.convert_to_numpy(inputs)))
