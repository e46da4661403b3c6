"""ELMo in sentence-transformers: :class:`ElmoEmbeddings` for token vectors, :class:`ElmoPooling` for sentence vectors.

Load models saved with these modules with ``SentenceTransformer(path, trust_remote_code=True)``. sentence-transformers
requires this whenever a module is from another package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.embedding.sentence_vectors import (
    SentenceEmbedder,
    fold_tokens,
    word_probability,
    words_only,
)
from elmokit.embedding.start_state import StartName, check_start_name
from elmokit.engine.layer_selection import select_layers
from elmokit.errors import ModelNotFoundError, needs_extra
from elmokit.formats.open import as_model
from elmokit.formats.save import save_model
from elmokit.network.char_cnn import WordCharLayer
from elmokit.network.scalar_mix import MixedLayers, selected_layers
from elmokit.network.tensors import save_tensors
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.pretrained.pooling_names import PoolingName, WeightingName
from elmokit.pretrained.sentence_pooling import SentenceHead, SentencePooling, head_word_id
from elmokit.text.tokenize import Tokenization, get_span_tokenizer, split_lines, split_tokens, text_splitter

with needs_extra("elmokit.integrations.sentence_transformers", "sentence-transformers"):
    from sentence_transformers.base.modules import InputModule, Module

MODEL = "model"
"""The subfolder with the biLM, an elmokit model directory."""
TENSORS = "parameters.safetensors"
"""The other parameters of a module: the scalar mix, or the whitening."""


class ElmoEmbeddings(InputModule):
    """The first module of a sentence-transformers model, which computes ELMo token vectors from raw text.

    It adds these features: ``token_embeddings``, a learned scalar mix of the layers, ``(batch, time, dim)``;
    ``all_layer_embeddings``, a list of all layers, layer 0 first, for ``WeightedLayerPooling``; and ``attention_mask``,
    1 on a token. The sentences of a text are computed independently.

    Args:
        model: A path, URL or name, as in :meth:`elmokit.Elmo.from_pretrained`, or an opened model. None for the small
            included English model.
        layers: The layers that the scalar mix combines, as in :class:`elmokit.ElmoModule`.
        start: The initial LSTM state of each sentence, "warm" or "zero", as in :class:`elmokit.Elmo`.
        dropout: Dropout probability for the mix during training.
        trainable: Fine-tune the biLM. If False, only the scalar mix is trained.
        tokenization: How to split a text into tokens: "treebank", as for the training of the English models; or
            "spaces" for tokenized text, with spaces between the tokens.
        max_seq_length: Truncate texts to this many tokens. None means no limit.
        fold_case: Read a capitalized word in lower case if that is more frequent, as :class:`elmokit.SentenceEmbedder`
            does for layer 0, the default of :class:`ElmoPooling`. For other layers, use False.

    Raises:
        ModelError: No model was found, or it cannot be opened.
        ConfigError: An argument is not valid.

    Example:
        >>> from sentence_transformers import SentenceTransformer
        >>> elmo = ElmoEmbeddings()
        >>> model = SentenceTransformer(modules=[elmo, ElmoPooling.from_elmo(elmo.elmo)])
        >>> model.encode(["A man plays the guitar."]).shape
        (1, 192)
    """

    config_keys = ("layers", "start", "dropout", "trainable", "tokenization", "max_seq_length", "fold_case")
    # The model directory has its own config.json, and the root of a saved model may contain other files.
    save_in_root = False
    # sentence-transformers reads this attribute, but there is no transformers tokenizer.
    tokenizer = None

    def __init__(
        self,
        model: str | Path | PretrainedBiLM | None = None,
        *,
        layers: MixedLayers = "all",
        start: StartName = "warm",
        dropout: float = 0.0,
        trainable: bool = False,
        tokenization: Tokenization = "treebank",
        max_seq_length: int | None = None,
        fold_case: bool = True,
    ) -> None:
        super().__init__()
        # Not "stateful": batches are sorted by length, so a row does not continue the previous batch's row.
        check_start_name(start)
        self.elmo = ElmoModule(as_model(model), start=start, dropout=dropout, layers=layers, trainable=trainable)
        self.layers, self.start, self.dropout, self.trainable = layers, start, dropout, trainable
        self.tokenization, self.max_seq_length, self.fold_case = tokenization, max_seq_length, fold_case
        get_span_tokenizer(tokenization)  # raises an error for an unknown one
        self._probability: Callable[[str], float] | None = None

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Tokenize and encode texts.

        Args:
            inputs: The texts.
            prompt: A text to prepend to each of them.
            **kwargs: Ignored, except ``max_length``, which overrides ``max_seq_length``.

        Returns:
            ``input_ids``, from :meth:`elmokit.ElmoModule.ids`, with boundaries; and ``(batch, time)`` without
            boundaries: ``attention_mask``; ``token_sentences``, the index of each token's sentence in its text; and if
            the model has a vocabulary, ``token_probabilities``, infinite for tokens that do not contribute to the
            text's vector, and ``token_word_ids``, the words whose weights a trained pooling uses.
        """
        max_length = kwargs.get("max_length") or self.max_seq_length
        texts: list[Sequence[str]] = []
        numbers: list[list[int]] = []
        for text in inputs:
            tokens, sentence_numbers = self._tokens((prompt or "") + text)
            texts.append(tokens[:max_length])
            numbers.append(sentence_numbers[:max_length])
        ids = self.elmo.ids(texts)
        # A batch of empty texts gets one position of padding, because pooling modules fail without any.
        if ids.shape[1] == 2:
            ids = torch.cat([ids, torch.zeros_like(ids[:, :1])], dim=1)
        mask = self.elmo.bilm.mask_of(ids)[:, 2:].long()
        features: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        features["token_sentences"] = _padded(numbers, mask, torch.int64)
        if prompt:
            features["prompt_length"] = sum(map(len, self._sentences(prompt)))
        vocabulary = self.elmo.model.vocabulary
        if vocabulary is not None:
            # Losses that split a batch only keep tensors, so the tokens themselves cannot be passed on.
            probabilities = [self._probabilities(tokens) for tokens in texts]
            word_ids = [[head_word_id(token, vocabulary) for token in tokens] for tokens in texts]
            features["token_probabilities"] = _padded(probabilities, mask, torch.float32)
            features["token_word_ids"] = _padded(word_ids, mask, torch.int64)
        return features

    def _tokens(self, text: str) -> tuple[list[str], list[int]]:
        """Return the tokens of a text, and each token's sentence index."""
        model = self.elmo.model
        tokens: list[str] = []
        numbers: list[int] = []
        for number, sentence in enumerate(self._sentences(text)):
            tokens += fold_tokens(sentence, model.vocabulary, fold_case=self.fold_case, read=model.read)
            numbers += [number] * len(sentence)
        return tokens, numbers

    def _probabilities(self, tokens: Sequence[str]) -> list[float]:
        """Return each token's probability; infinite for tokens without weight, as in SentenceEmbedder."""
        if self._probability is None:
            self._probability = word_probability(self.elmo.model)
        probabilities = []
        for token, is_word in zip(tokens, words_only(tokens), strict=True):
            probabilities.append(self._probability(token) if is_word else math.inf)
        return probabilities

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add the token vectors to the features."""
        # Losses that split a batch also remove trailing padding from tensors as wide as the attention mask. The ids are
        # wider, because they have boundaries.
        ids = features["input_ids"][:, : features["attention_mask"].shape[1] + 2]
        sentences = features["token_sentences"]
        if not sentences.any():
            layers, _ = self._layers_and_mask(ids)
        else:
            rows = nn.utils.rnn.pad_sequence(list(self._sentence_rows(ids, sentences)), batch_first=True)
            of_rows, row_mask = self._layers_and_mask(rows)
            layers = of_rows.new_zeros(len(of_rows), *sentences.shape, of_rows.shape[-1])
            layers[:, self.elmo.bilm.mask_of(ids)[:, 2:]] = of_rows[:, row_mask]
        features["token_embeddings"] = self.elmo.dropout(self.elmo.mixes[0](layers))
        features["all_layer_embeddings"] = list(layers)
        token_layer = self.elmo.bilm.token_layer
        if isinstance(token_layer, WordCharLayer):
            features["token_table_rows"] = token_layer.word_embedding(ids[:, 1:-1, 0])
        return features

    def _layers_and_mask(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute ``(layers, rows, time, dim)``, without boundaries, and the mask of tokens, ``(rows, time)``."""
        mask = self.elmo.bilm.mask_of(ids)
        layers, _ = self.elmo.layers_of(ids, mask, self.elmo.start_state(len(ids)))
        # Without boundaries, tokens move one position to the left, and each row has two fewer positions.
        mask = mask[:, 2:]
        return layers[:, :, 1:-1] * mask[..., None], mask

    def _sentence_rows(self, ids: torch.Tensor, sentences: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the ids of each sentence of each text, with boundaries."""
        lengths = self.elmo.bilm.mask_of(ids)[:, 2:].sum(dim=1).tolist()
        for row, numbers, n_tokens in zip(ids, sentences, lengths, strict=True):
            begin, tokens, end = row[:1], row[1 : n_tokens + 1], row[n_tokens + 1 : n_tokens + 2]
            sentence_lengths = torch.bincount(numbers[:n_tokens]).tolist()
            for sentence in tokens.split(sentence_lengths):
                yield torch.cat([begin, sentence, end])

    def _sentences(self, text: str) -> list[list[str]]:
        if self.tokenization == "treebank":
            return split_lines(text, text_splitter())
        return [split_tokens(text)]

    def get_embedding_dimension(self) -> int:
        """Return the number of dimensions of a token vector."""
        return self.elmo.output_dim

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Save the settings, the biLM as an elmokit model directory, and the scalar mix."""
        self.save_config(output_path)
        save_model(self.elmo.to_model(), Path(output_path) / MODEL, overwrite=True)
        save_tensors(self.elmo.mixes[0].state_dict(), Path(output_path) / TENSORS)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> ElmoEmbeddings:
        """Load what :meth:`save` wrote, from a directory or the Hugging Face Hub.

        Raises:
            ModelNotFoundError: The directory does not exist.
        """
        folder = _folder(cls, model_name_or_path, subfolder, kwargs)
        module = cls(folder / MODEL, **cls.load_config(str(folder)))
        module.elmo.mixes[0].load_state_dict(load_file(folder / TENSORS))
        return module

    def __getstate__(self) -> dict[str, Any]:
        # The function is not picklable and is created again when needed; process pools pickle the module.
        return {**self.__dict__, "_probability": None}


class ElmoPooling(Module):
    """Sentence vectors as in :class:`elmokit.SentenceEmbedder`: a weighted mean of mapped token vectors.

    :meth:`from_elmo` creates it with the pooling and whitening stored in a model, or with a head trained on pairs of
    sentences. It reads ``all_layer_embeddings``, and ``token_table_rows`` if that head does, and adds
    ``sentence_embedding``. The map and the weights of words are trainable parameters; ``requires_grad_(False)`` freezes
    them.

    Args:
        weighting, layers, smoothing: As in :class:`elmokit.SentencePooling`.
        input_dim: Number of dimensions of the token vectors, including all selected layers and the word table's row
            that a head may also read.
        output_dim: Number of dimensions of the mapped vectors. None means no map.
        n_words: Number of words with their own weights: the model's vocabulary. None means no such weights.
    """

    config_keys = ("weighting", "layers", "smoothing", "input_dim", "output_dim", "n_words")

    def __init__(
        self,
        weighting: WeightingName,
        layers: Any,  # as in SentencePooling; lists in a loaded config, because JSON has no tuples
        smoothing: float,
        input_dim: int,
        output_dim: int | None = None,
        n_words: int | None = None,
    ) -> None:
        super().__init__()
        self.pooling = SentencePooling(weighting, layers, smoothing)
        self.weighting, self.layers, self.smoothing = self.pooling.weighting, self.pooling.layers, smoothing
        self.input_dim, self.output_dim, self.n_words = input_dim, output_dim, n_words
        if n_words is not None:
            self.word_weights = nn.Parameter(torch.ones(n_words))
        if output_dim is not None:
            self.mean = nn.Parameter(torch.zeros(input_dim))
            self.projection = nn.Parameter(torch.zeros(input_dim, output_dim))

    @classmethod
    def from_elmo(cls, elmo: Elmo | ElmoModule, pooling: SentencePooling | PoolingName | None = None) -> ElmoPooling:
        """Create the pooling for a model.

        Args:
            elmo: The model, such as ``ElmoEmbeddings().elmo``.
            pooling: As in :meth:`elmokit.SentenceEmbedder.from_pretrained`: settings, a name such as "trained", or None
                for the default.

        Raises:
            ConfigError: A layer does not exist; the weighting is "sif" and the model has no vocabulary; or the model
                does not contain what ``pooling`` names.
        """
        plain = elmo.elmo if isinstance(elmo, ElmoModule) else elmo
        if isinstance(pooling, str):
            embedder = SentenceEmbedder.by_name(plain, pooling)
        else:
            embedder = SentenceEmbedder(plain, pooling)
        used, linear_map = embedder.pooling, embedder.linear_map
        if linear_map is None:
            return cls(used.weighting, used.layers, used.smoothing, used.dim(elmo.n_layers, elmo.output_dim))
        n_words = len(linear_map.word_weights) if isinstance(linear_map, SentenceHead) else None
        module = cls(used.weighting, used.layers, used.smoothing, len(linear_map.mean), embedder.dim, n_words)
        with torch.no_grad():
            for name, array in linear_map.tensors().items():
                module.get_parameter(name).copy_(torch.from_numpy(array))
        return module

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add the sentence vectors to the features."""
        layers = torch.stack(features["all_layer_embeddings"])
        mask = features["attention_mask"].to(layers.dtype)
        selected = selected_layers(layers, select_layers(self.pooling.layers, len(layers), None, "the model"))
        weights = mask
        if self.pooling.needs_frequencies:
            probabilities = features["token_probabilities"].to(layers.dtype)
            # Tokens that do not contribute have an infinite probability; padding has 0.
            has_weight = mask.bool() & probabilities.isfinite()
            word_weights = self.pooling.word_weight(probabilities.masked_fill(~has_weight, 1))
            weights = word_weights.masked_fill(~has_weight, 0)
        if self.n_words is not None:
            weights = weights * self.word_weights[features["token_word_ids"]]
        # An empty sentence has no weights; its vector is zero, as in SentenceEmbedder.
        weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        # Several layers are concatenated.
        by_token = selected if selected.ndim == 3 else selected.movedim(0, 2).flatten(2)
        if self.output_dim is not None:
            if self.input_dim > by_token.shape[2]:
                by_token = torch.cat([by_token, features["token_table_rows"]], dim=2)
            by_token = F.normalize((by_token - self.mean) @ self.projection, dim=2)
        features["sentence_embedding"] = torch.einsum("bt,btd->bd", weights, by_token)
        return features

    def get_embedding_dimension(self) -> int:
        """Return the number of dimensions of a sentence vector."""
        return self.output_dim or self.input_dim

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Save the settings and the parameters."""
        self.save_config(output_path)
        save_tensors(self.state_dict(), Path(output_path) / TENSORS)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> ElmoPooling:
        """Load what :meth:`save` wrote, from a directory or the Hugging Face Hub.

        Raises:
            ModelNotFoundError: The directory does not exist.
        """
        folder = _folder(cls, model_name_or_path, subfolder, kwargs)
        module = cls(**cls.load_config(str(folder)))
        module.load_state_dict(load_file(folder / TENSORS))
        return module


def _padded(rows: Sequence[Sequence[float]], mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert rows of numbers to a tensor with the mask's shape and device, with zeros on padding."""
    padded = torch.zeros(mask.shape, dtype=dtype)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = torch.tensor(values, dtype=dtype)
    return padded.to(mask.device)


def _folder(module: type[Module], name: str, subfolder: str, kwargs: dict[str, Any]) -> Path:
    """Return the local directory of a module, downloaded from the Hub if necessary."""
    accepted = ("token", "cache_folder", "revision", "local_files_only")
    known = {key: value for key, value in kwargs.items() if key in accepted}
    folder = module.load_dir_path(name, subfolder=subfolder, **known)
    if folder is None:
        raise ModelNotFoundError(f"{name} has no directory {subfolder or '.'} with a module of elmokit.")
    return Path(folder)
