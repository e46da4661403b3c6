"""AllenNLP 0.9's ELMo for several languages, whose vectors are aligned to one space."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from elmokit.compat.allennlp_common import ConfigurationError, FromParams, Source
from elmokit.compat.allennlp_modules import Elmo
from elmokit.formats.torch_save import read_alignment_matrix
from elmokit.network.tensors import tensor_of


class ElmoTokenEmbedderMultiLang(FromParams, nn.Module):
    """AllenNLP 0.9's ``ElmoTokenEmbedderMultiLang``: an ``Elmo`` and an alignment matrix for each language.

    Args:
        options_files, weight_files: The files of each language, by its name, as for ``Elmo``.
        do_layer_norm, dropout, requires_grad, vocab_to_cache, scalar_mix_parameters: As for ``Elmo``.
        projection_dim: Project the aligned vectors to this size.
        aligning_files: For each language a file with its matrix, a tensor or NumPy array saved with ``torch.save``.
            A language without one is not aligned.
        stateful: Carry the LSTM state from batch to batch, for each language.

    Raises:
        ModelError: A file cannot be opened.
        ConfigurationError: The files are of different languages, or the sizes of the vectors differ.
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
        self.output_dim = projection_dim or dim
        self._projection = nn.Linear(dim, projection_dim) if projection_dim else None
        for lang in weight_files:
            file = (aligning_files or {}).get(lang)
            matrix = tensor_of(read_alignment_matrix(file, dim)) if file else torch.eye(dim)
            aligning = nn.Linear(dim, dim, bias=False)
            aligning.weight = nn.Parameter(matrix, requires_grad=False)
            self.add_module(f"aligning_{lang}", aligning)

    def get_output_dim(self) -> int:
        """Return the size of a vector."""
        return self.output_dim

    def forward(self, inputs: Tensor | None, lang: str, word_inputs: Tensor | None = None) -> Tensor:
        """Embed character ids ``(batch, ..., time, chars)`` of one language as ``(batch, ..., time, output_dim)``.

        Raises:
            ConfigurationError: The language has no ELMo.
        """
        if not hasattr(self, f"elmo_{lang}"):
            raise ConfigurationError(f"There is no ELMo for the language {lang!r}.")
        mixed = getattr(self, f"elmo_{lang}")(inputs, word_inputs)["elmo_representations"][0]
        aligned: Tensor = getattr(self, f"aligning_{lang}")(mixed)
        return aligned if self._projection is None else self._projection(aligned)
