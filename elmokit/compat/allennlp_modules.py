"""AllenNLP's ELMo modules: all layers of a batch, and learned mixes of them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.compat.allennlp_common import ConfigurationError, FromParams, Source, open_files
from elmokit.compat.allennlp_layers import (
    ScalarMix,
    _ElmoCharacterEncoder,
    add_sentence_boundary_token_ids,
    remove_sentence_boundaries,
    set_parameters,
)
from elmokit.compat.allennlp_lstm import ElmoLstm
from elmokit.config import check_at_least
from elmokit.formats.allennlp_weights import from_allennlp, lstm_to_allennlp
from elmokit.formats.torch_save import read_alignment_matrix
from elmokit.network.tensors import tensor_of
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.characters import encode_tokens

DEFAULT_MODEL = "original"  # AllenNLP's default too: the 1 Billion Word Benchmark model, 2x4096_512_2048cnn_2xhighway
TOKENS_AT_ONCE = 1024  # bounds the char CNN's memory while the cache is created
_PADDING_ENTRY = re.compile(r"(@@.*pad.*@@|<.*pad.*>|\[.*pad.*\]|\(.*pad.*\)|\{.*pad.*\})?", re.IGNORECASE)


class _ElmoBiLm(nn.Module):
    """AllenNLP's ``_ElmoBiLm``: all layers of a batch, including boundaries.

    Args:
        options_file, weight_file: As for ``Elmo``.
        requires_grad: Whether the biLM is trained.
        vocab_to_cache: Words whose context-free vectors are computed once. The first entry represents padding and has a
            zero vector. In AllenNLP, a word in that place lost its vector; here, it raises an error.
        stateful: Carry the LSTM state from batch to batch.

    Raises:
        ModelError: The files cannot be opened.
        ConfigurationError: The model has no skip connections, or is of a kind that AllenNLP's ELMo cannot represent.
    """

    def __init__(
        self,
        options_file: Source,
        weight_file: Source,
        requires_grad: bool = False,
        vocab_to_cache: list[str] | None = None,
        *,
        stateful: bool = True,
    ) -> None:
        super().__init__()
        bilm = open_files(options_file, weight_file).build_bilm()
        self.config = config = bilm.config
        if not config.skip_connections:
            raise ConfigurationError(
                f"AllenNLP's ELMo only reads models with skip connections, which {weight_file} does not have. Open it "
                "with elmokit.Elmo.from_pretrained."
            )
        # A list, because the truth value of an array is ambiguous.
        vocab_to_cache = None if vocab_to_cache is None else list(vocab_to_cache)
        if requires_grad and vocab_to_cache:
            warnings.warn(
                "With vocab_to_cache, the cached vectors are trained, but not the char CNN that computed them.",
                stacklevel=2,
            )
        # The modules are in AllenNLP's order, because an optimizer state identifies parameters by position.
        self._token_embedder = _ElmoCharacterEncoder(options_file, weight_file, requires_grad, bilm=bilm)
        self._requires_grad = requires_grad
        self._word_embedding: nn.Embedding | None = None
        if vocab_to_cache:
            self.create_cached_cnn_embeddings(vocab_to_cache)
        # A model without a projection has no second clip; AllenNLP multiplies by the identity.
        clip = config.projection_clip if config.hidden_dim != config.projection_dim else None
        with torch.device("meta"):
            self._elmo_lstm = ElmoLstm(
                config.projection_dim,
                config.projection_dim,
                config.hidden_dim,
                config.n_layers,
                memory_cell_clip_value=config.cell_clip,
                state_projection_clip_value=clip,
                stateful=stateful,
            )
        set_parameters(self._elmo_lstm, lstm_to_allennlp(bilm), requires_grad)
        self.num_layers = config.n_layers + 1

    @property
    def _bos_embedding(self) -> Tensor:
        return self._token_embedder.boundary_vectors()[0]

    @property
    def _eos_embedding(self) -> Tensor:
        return self._token_embedder.boundary_vectors()[1]

    def get_output_dim(self) -> int:
        """Return the size of a vector, both directions together."""
        return self.config.output_dim

    def reset_states(self, mask: Tensor | None = None) -> None:
        """Reset the carried state of all rows, or of those in ``mask``."""
        self._elmo_lstm.reset_states(mask)

    @torch.no_grad()
    def create_cached_cnn_embeddings(self, tokens: list[str]) -> None:
        """Compute the context-free vectors of a list of words. A word's position in the list is its word id.

        Raises:
            ConfigurationError: The first entry is a word. An entry for padding is empty, or contains "pad" in brackets
                or ``@@``.
        """
        tokens = list(tokens)
        if not _PADDING_ENTRY.fullmatch(tokens[0]):
            raise ConfigurationError(
                f"vocab_to_cache begins with {tokens[0]!r}. Word id 0 means padding: insert '@@PADDING@@' before it."
            )
        device = self._token_embedder._char_embedding_weights.device
        ids = torch.from_numpy(encode_tokens(tokens, self._token_embedder.max_chars)).to(device)
        chunks = torch.split(ids, TOKENS_AT_ONCE)
        vectors = torch.cat([self._token_embedder.token_vectors(chunk) for chunk in chunks])
        vectors[0] = 0.0
        self._word_embedding = nn.Embedding(len(vectors), vectors.shape[1], padding_idx=0, _weight=vectors)
        self._word_embedding.requires_grad_(self._requires_grad)

    def forward(self, inputs: Tensor | None, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """Compute all layers of a batch.

        Args:
            inputs: Character ids ``(batch, time, chars)``; may be None if the cache holds every word.
            word_inputs: Positions in the cached list, ``(batch, time)``, 0 on padding. If a position is outside the
                list, the whole batch is computed from its characters, on every device.

        Returns:
            ``activations``: a list of ``(batch, time + 2, 2 * dim)``, layer 0 first; ``mask``: ``(batch, time + 2)``.

        Raises:
            ValueError: The ids have the wrong shape, there is padding before or between tokens, or neither kind of ids
                can be used.
        """
        cached = None if word_inputs is None else self._cached_vectors(word_inputs)
        if cached is not None:
            vectors, mask = cached
        elif inputs is not None:
            encoded = self._token_embedder(inputs)
            vectors, mask = encoded["token_embedding"], encoded["mask"]
        else:
            raise ValueError("Pass inputs, the character ids: there is no cache, or it does not have all words.")
        return {"activations": self.contextualize(vectors, mask), "mask": mask}

    def contextualize(self, vectors: Tensor, mask: Tensor) -> list[Tensor]:
        """Compute all layers from token vectors ``(batch, time, dim)`` with boundaries; see ``forward``."""
        vectors = vectors * mask[..., None]
        return [torch.cat([vectors, vectors], dim=-1), *self._elmo_lstm(vectors, mask)]

    def _cached_vectors(self, word_inputs: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return vectors and mask with boundaries, or None if words are missing from the cache."""
        table = self._word_embedding
        if table is None:
            return None
        if word_inputs.numel() and not (0 <= int(word_inputs.min()) <= int(word_inputs.max()) < table.num_embeddings):
            return None
        begin, end = self._token_embedder.boundary_vectors()
        return add_sentence_boundary_token_ids(table(word_inputs), word_inputs > 0, begin, end)

    def to_model(self) -> PretrainedBiLM:
        """Return the biLM with its current weights, for ``elmokit.save_model`` and ``elmokit.Elmo``.

        Raises:
            TensorMismatchError: Training has changed a projection that the file formats cannot represent.
        """
        return PretrainedBiLM.from_modules(
            from_allennlp(self.state_dict(), self.config), family="allennlp", exact_marks=True
        )


class Elmo(FromParams, nn.Module):
    """AllenNLP's ``Elmo``: learned mixes of a biLM's layers. It starts in training mode, with dropout 0.5.

    Args:
        options_file, weight_file: A published model's two files; or None and any other model that elmokit opens.
        num_output_representations: Number of mixes.
        requires_grad: Whether the biLM is trained; the mixes always are.
        do_layer_norm: Normalize layers before mixing, over the whole batch.
        dropout: Dropout on each mix.
        vocab_to_cache: As in ``_ElmoBiLm``.
        keep_sentence_boundaries: Keep ``<S>`` and ``</S>`` in the output (here, also for inputs with more dimensions).
        scalar_mix_parameters: Fixed weights of every mix, before the softmax; gamma is then not trained, either.
        module: Instead of the files, a module with ``num_layers`` that returns ``activations`` and ``mask``.
        stateful: Carry the LSTM state from batch to batch, row by row.

    Raises:
        ModelError: The files cannot be opened.
        ConfigurationError: Both files and a module are given, there is no output, or the model is of a kind that
            AllenNLP's ELMo cannot represent.
    """

    def __init__(
        self,
        options_file: Source,
        weight_file: Source,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: list[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: list[float] | None = None,
        module: nn.Module | None = None,
        *,
        stateful: bool = True,
    ) -> None:
        super().__init__()
        check_at_least("num_output_representations", num_output_representations, 1)
        if module is None:
            module = _ElmoBiLm(options_file, weight_file, requires_grad, vocab_to_cache, stateful=stateful)
        elif options_file is not None or weight_file is not None:
            raise ConfigurationError("Pass either options_file and weight_file, or a module and None for both files.")
        self._elmo_lstm = module
        self._has_cached_vocab = vocab_to_cache is not None
        self._keep_sentence_boundaries = keep_sentence_boundaries
        self._dropout = nn.Dropout(p=dropout)
        self._num_output_representations = num_output_representations
        for k in range(num_output_representations):
            trainable = scalar_mix_parameters is None
            mix = ScalarMix(int(module.num_layers), do_layer_norm, scalar_mix_parameters, trainable)  # type: ignore[arg-type]
            self.add_module(f"scalar_mix_{k}", mix)

    @property
    def _scalar_mixes(self) -> list[ScalarMix]:
        return [getattr(self, f"scalar_mix_{k}") for k in range(self._num_output_representations)]

    def get_output_dim(self) -> int:
        """Return the size of a vector."""
        return int(self._elmo_lstm.get_output_dim())  # type: ignore[operator]

    def reset_states(self, mask: Tensor | None = None) -> None:
        """Reset the carried state of all rows, or of those in ``mask``."""
        self._elmo_lstm.reset_states(mask)  # type: ignore[operator]

    def forward(self, inputs: Tensor | None, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """Compute the mixes of a batch.

        Args:
            inputs: Character ids ``(batch, ..., time, chars)``; may be None if the cache holds every word.
            word_inputs: Positions in ``vocab_to_cache``, ``(batch, ..., time)``.

        Returns:
            ``elmo_representations``: a list of ``(batch, ..., time, 2 * dim)``, zero on padding; ``mask``:
            ``(batch, ..., time)``.

        Raises:
            ValueError: The ids have another shape, or there is padding before or between tokens.
        """
        if word_inputs is not None and not self._has_cached_vocab:
            warnings.warn("word_inputs is ignored: this Elmo was built without vocab_to_cache.", stacklevel=2)
            word_inputs = None
        leading = word_inputs.shape[:-1] if inputs is None and word_inputs is not None else None
        if inputs is not None:
            leading, inputs = inputs.shape[:-2], inputs.flatten(0, -3)
        if word_inputs is not None:
            word_inputs = word_inputs.flatten(0, -2)
        output = self._elmo_lstm(inputs, word_inputs)
        activations, mask = output["activations"], output["mask"]
        representations = []
        kept = mask
        for k in range(self._num_output_representations):
            mixed = self._scalar_mixes[k](activations, mask)
            if not self._keep_sentence_boundaries:
                mixed, kept = remove_sentence_boundaries(mixed, mask)
            representations.append(self._dropout(mixed.unflatten(0, leading)))
        return {"elmo_representations": representations, "mask": kept.unflatten(0, leading)}


class _Projecting(FromParams, nn.Module):
    """A token embedder with an optional projection of its vectors."""

    def _add_projection(self, dim: int, projection_dim: int | None) -> None:
        self.output_dim = projection_dim or dim
        self._projection = nn.Linear(dim, projection_dim) if projection_dim else None

    def get_output_dim(self) -> int:
        """Return the size of a vector."""
        return self.output_dim

    def _project(self, vectors: Tensor) -> Tensor:
        return vectors if self._projection is None else self._projection(vectors)


class ElmoTokenEmbedder(_Projecting):
    """AllenNLP's ``ElmoTokenEmbedder``: one mix, with an optional projection. Arguments are as in ``Elmo``."""

    registered_name = "elmo_token_embedder"

    def __init__(
        self,
        options_file: Source = None,
        weight_file: Source = DEFAULT_MODEL,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        requires_grad: bool = False,
        projection_dim: int | None = None,
        vocab_to_cache: list[str] | None = None,
        scalar_mix_parameters: list[float] | None = None,
        *,
        stateful: bool = True,
    ) -> None:
        super().__init__()
        self._elmo = Elmo(
            options_file,
            weight_file,
            1,
            requires_grad,
            do_layer_norm,
            dropout,
            vocab_to_cache,
            scalar_mix_parameters=scalar_mix_parameters,
            stateful=stateful,
        )
        self._add_projection(self._elmo.get_output_dim(), projection_dim)

    def forward(
        self, elmo_tokens: Tensor | None = None, word_inputs: Tensor | None = None, inputs: Tensor | None = None
    ) -> Tensor:
        """Embed character ids ``(batch, ..., time, chars)`` as ``(batch, ..., time, output_dim)``.

        ``inputs`` is the name of ``elmo_tokens`` in 0.9.
        """
        ids = inputs if elmo_tokens is None else elmo_tokens
        return self._project(self._elmo(ids, word_inputs)["elmo_representations"][0])


class ElmoTokenEmbedderMultiLang(_Projecting):
    """AllenNLP 0.9's ``ElmoTokenEmbedderMultiLang``: an ``Elmo`` and an alignment matrix per language.

    Args:
        options_files, weight_files: Each language's files, by language, as for ``Elmo``.
        do_layer_norm, dropout, requires_grad, vocab_to_cache, scalar_mix_parameters: As for ``Elmo``.
        projection_dim: Project the aligned vectors to this size.
        aligning_files: Each language's alignment matrix: a file with a tensor or NumPy array saved with ``torch.save``.
            A language without one is not aligned.
        stateful: Carry the LSTM state from batch to batch, separately for each language.

    Raises:
        ModelError: A file cannot be opened.
        ConfigurationError: The files are for different languages, or the sizes of the vectors differ.
    """

    registered_name = "elmo_token_embedder_multilang"

    def __init__(
        self,
        options_files: Mapping[str, Source],
        weight_files: Mapping[str, Source],
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        requires_grad: bool = False,
        projection_dim: int | None = None,
        vocab_to_cache: list[str] | None = None,
        scalar_mix_parameters: list[float] | None = None,
        aligning_files: Mapping[str, str | Path] | None = None,
        *,
        stateful: bool = True,
    ) -> None:
        super().__init__()
        sizes = {}
        for lang, weight_file in weight_files.items():
            elmo = Elmo(
                options_files[lang],
                weight_file,
                1,
                requires_grad,
                do_layer_norm,
                dropout,
                vocab_to_cache,
                scalar_mix_parameters=scalar_mix_parameters,
                stateful=stateful,
            )
            self.add_module(f"elmo_{lang}", elmo)
            sizes[lang] = elmo.get_output_dim()
        if len(set(sizes.values())) > 1:
            raise ConfigurationError(f"The vectors of the languages have different sizes: {sizes}.")
        dim = next(iter(sizes.values()))
        self._add_projection(dim, projection_dim)
        for lang in weight_files:
            file = (aligning_files or {}).get(lang)
            matrix = tensor_of(read_alignment_matrix(file, dim)) if file else torch.eye(dim)
            aligning = nn.Linear(dim, dim, bias=False)
            aligning.weight = nn.Parameter(matrix, requires_grad=False)
            self.add_module(f"aligning_{lang}", aligning)

    def forward(self, inputs: Tensor | None, lang: str, word_inputs: Tensor | None = None) -> Tensor:
        """Embed character ids ``(batch, ..., time, chars)`` of one language as ``(batch, ..., time, output_dim)``.

        Raises:
            ConfigurationError: The language has no ELMo.
        """
        if not hasattr(self, f"elmo_{lang}"):
            raise ConfigurationError(f"There is no ELMo for the language {lang!r}.")
        mixed = getattr(self, f"elmo_{lang}")(inputs, word_inputs)["elmo_representations"][0]
        return self._project(getattr(self, f"aligning_{lang}")(mixed))
