"""Tokens to vectors: word vectors, character features and ELMo mixes side by side.

``Inputs`` knows strings and makes a ``TokenBatch`` of them; ``InputLayer`` is the module that turns it into vectors.
The biLM itself is outside: its layers come as numbers, computed once (``layer_cache``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.nn.scalar_mix import ScalarMix, make_scalar_mix
from elmokit.tasks.config import CharsConfig, ElmoConfig, MixConfig, WordsConfig
from elmokit.tasks.nn.token_chars import TokenCharCNN

LayerSource = Callable[[Sequence[Sequence[str]]], Sequence[NDArray[Any]]]
"""Sentences to one array each, ``(layers, tokens, dim)``."""

N_SPECIAL = 2  # 0 padding, 1 unknown


@dataclass(frozen=True)
class TokenBatch:
    """Sentences as numbers, padded on the right."""

    words: dict[str, Tensor]  # by table: (batch, time); 0 padding, 1 unknown
    chars: Tensor | None  # (distinct, chars): each distinct token once; 0 padding, 1 unknown
    char_index: Tensor | None  # (batch, time): rows of ``chars``
    layers: Tensor | None  # (layers, batch, time, dim) of the biLM
    mask: Tensor  # (batch, time) bool


@dataclass(frozen=True)
class WordTable:
    """The words of one table, in the order of their rows after the special ones."""

    words: list[str]
    dim: int
    lowercase: bool

    @property
    def n_rows(self) -> int:
        return len(self.words) + N_SPECIAL


@dataclass(frozen=True)
class ElmoShape:
    """What the input layer must know of the biLM."""

    n_layers: int
    """Layer 0 included."""
    dim: int


def mask_of(sentences: Sequence[Sequence[str]]) -> Tensor:
    """``(batch, time)`` bool, True on a token; time is the longest sentence's, and at least 1."""
    lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
    return torch.from_numpy(np.arange(max(int(lengths.max(initial=0)), 1))[None, :] < lengths[:, None])


def pad_layers(arrays: Sequence[NDArray[Any]], n_steps: int, elmo: ElmoShape) -> Tensor:
    """Sentences' arrays ``(layers, tokens, dim)`` as one: ``(layers, batch, time, dim)`` float32, zero on padding."""
    layers = torch.zeros(elmo.n_layers, len(arrays), n_steps, elmo.dim)
    for row, array in enumerate(arrays):
        layers[:, row, : array.shape[1]] = torch.from_numpy(np.array(array, dtype=np.float32))
    return layers


class Inputs:
    """The vocabularies of a run, and where its biLM layers come from.

    Args:
        tables: by the config's name for them.
        chars: the known characters; None where the model has no character features.
        max_chars: words are cut there, for the characters.
        elmo: of the biLM; None where there is none.
        layers_of: gives its layers.
    """

    def __init__(
        self,
        tables: Mapping[str, WordTable],
        chars: Sequence[str] | None,
        max_chars: int | None,
        elmo: ElmoShape | None = None,
        layers_of: LayerSource | None = None,
    ) -> None:
        self.tables, self.max_chars, self.elmo, self.layers_of = dict(tables), max_chars, elmo, layers_of
        self.chars = None if chars is None else list(chars)
        self._word_ids = {
            name: {word: row for row, word in enumerate(table.words, start=N_SPECIAL)} for name, table in tables.items()
        }
        self._char_ids = {char: row for row, char in enumerate(chars or (), start=N_SPECIAL)}

    def batch(self, sentences: Sequence[Sequence[str]]) -> TokenBatch:
        """Padded ids of sentences, and the biLM's layers where the model has one."""
        mask = mask_of(sentences)
        n_steps = mask.shape[1]
        words = {name: self._padded(self._ids_in(name, sentences), n_steps) for name in self.tables}
        chars, index = None, None
        if self.chars is not None:
            places: dict[str, int] = {}
            rows = [[places.setdefault(token, len(places)) for token in sentence] for sentence in sentences]
            chars, index = self._char_rows(list(places)), self._padded(rows, n_steps)
        return TokenBatch(words, chars, index, self._layers(sentences, n_steps), mask)

    def _ids_in(self, name: str, sentences: Sequence[Sequence[str]]) -> list[list[int]]:
        ids, lowercase = self._word_ids[name], self.tables[name].lowercase
        return [[ids.get(word.lower() if lowercase else word, 1) for word in sentence] for sentence in sentences]

    def _char_rows(self, tokens: Sequence[str]) -> Tensor:
        rows = [[self._char_ids.get(char, 1) for char in token[: self.max_chars]] for token in tokens]
        return self._padded(rows, max(map(len, rows), default=1) or 1)

    def _layers(self, sentences: Sequence[Sequence[str]], n_steps: int) -> Tensor | None:
        if self.elmo is None or self.layers_of is None:
            return None
        return pad_layers(self.layers_of(sentences), n_steps, self.elmo)

    @staticmethod
    def _padded(rows: Sequence[Sequence[int]], n_steps: int) -> Tensor:
        ids = np.zeros((len(rows), n_steps), dtype=np.int64)
        for line, row in zip(ids, rows, strict=True):
            line[: len(row)] = row
        return torch.from_numpy(ids)


class InputLayer(nn.Module):
    """The vectors of tokens, and the mixes that enter further up.

    Args:
        inputs: whose sizes it takes; it is not kept.
        words: the tables' configs by name; only "words" is part of ``forward``.
        starts: the tables' first values, ``(rows, dim)``, where they were read from files.
    """

    def __init__(
        self,
        inputs: Inputs,
        words: Mapping[str, WordsConfig],
        chars: CharsConfig | None,
        elmo: ElmoConfig | None,
        starts: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.words = nn.ModuleDict()
        for name, config in words.items():
            table = inputs.tables[name]
            embedding = nn.Embedding(table.n_rows, table.dim, padding_idx=0)
            nn.init.uniform_(embedding.weight, -((3 / table.dim) ** 0.5), (3 / table.dim) ** 0.5)
            with torch.no_grad():
                embedding.weight[0] = 0.0
                if starts is not None and name in starts:
                    embedding.weight.copy_(starts[name])
            embedding.weight.requires_grad_(config.train or not config.vectors)
            self.words[name] = embedding
        self.char_cnn: TokenCharCNN | None = None
        if chars is not None and inputs.chars is not None:
            n_rows = len(inputs.chars) + N_SPECIAL
            self.char_cnn = TokenCharCNN(n_rows, chars.dim, chars.filters, chars.activation, chars.dropout)
        self.mixes = nn.ModuleDict()
        self.penalties: dict[str, float] = {}
        self.dropouts = nn.ModuleDict()
        self.elmo_dim = 0
        if elmo is not None and inputs.elmo is not None:
            self.elmo_dim = inputs.elmo.dim
            for place, mix in (("input", elmo.input), ("output", elmo.output)):
                if mix is not None:
                    self._add_mix(place, mix, inputs.elmo.n_layers)

    def _add_mix(self, place: str, mix: MixConfig, n_layers: int) -> None:
        self.mixes[place] = make_scalar_mix(mix.layers, n_layers, mix.layer_norm)
        self.penalties[place] = mix.penalty
        self.dropouts[place] = nn.Dropout(mix.dropout)

    @property
    def char_dim(self) -> int:
        """Size of the character features; 0 where there are none."""
        return 0 if self.char_cnn is None else self.char_cnn.output_dim

    def word_dim(self, table: str = "words") -> int:
        """Size of a table's vectors; 0 where there is no such table."""
        return self._table(table).embedding_dim if table in self.words else 0

    @property
    def output_dim(self) -> int:
        """Size of what ``forward`` gives."""
        return self.word_dim() + self.char_dim + (self.elmo_dim if "input" in self.mixes else 0)

    @property
    def elmo_output_dim(self) -> int:
        """What ``at_output`` adds."""
        return self.elmo_dim if "output" in self.mixes else 0

    def forward(self, tokens: TokenBatch) -> Tensor:
        """``(batch, time, output_dim)``: words, characters, input mix; zero where the mask is False."""
        parts = [self.word_vectors(tokens), self.char_features(tokens), self.elmo_mix(tokens, "input")]
        there = [part for part in parts if part is not None]
        if not there:
            return torch.zeros(*tokens.mask.shape, 0, device=tokens.mask.device)
        return torch.cat(there, dim=-1) * tokens.mask[..., None]

    def at_output(self, hidden: Tensor, tokens: TokenBatch) -> Tensor:
        """``(batch, time, hidden)`` with the output mix appended, or as it is where there is none."""
        mixed = self.elmo_mix(tokens, "output")
        return hidden if mixed is None else torch.cat([hidden, mixed], dim=-1)

    def word_vectors(self, tokens: TokenBatch, table: str = "words") -> Tensor | None:
        """``(batch, time, dim)`` of one table; None where there is no such table."""
        if table not in self.words:
            return None
        vectors: Tensor = self._table(table)(tokens.words[table])
        return vectors

    def char_features(self, tokens: TokenBatch) -> Tensor | None:
        """``(batch, time, char_dim)``; each distinct token is computed once."""
        if self.char_cnn is None:
            return None
        assert tokens.chars is not None
        if not len(tokens.chars):
            return torch.zeros(*tokens.mask.shape, self.char_dim, device=tokens.mask.device)
        features: Tensor = self.char_cnn(tokens.chars)[tokens.char_index]
        return features * tokens.mask[..., None]

    def elmo_mix(self, tokens: TokenBatch, place: str) -> Tensor | None:
        """``(batch, time, dim)``: the mix at "input" or "output", dropout applied; None where there is none."""
        if place not in self.mixes:
            return None
        assert tokens.layers is not None
        mixed: Tensor = self.mixes[place](tokens.layers, tokens.mask) * tokens.mask[..., None]
        dropped: Tensor = self.dropouts[place](mixed)
        return dropped

    def penalty(self) -> Tensor | float:
        """Lambda times the raw weights' squares, over all mixes."""
        return sum((self.penalties[place] * self._mix(place).penalty() for place in self.mixes), 0.0)

    def mix_weights(self) -> dict[str, dict[str, Any]]:
        """By place: the layers that are mixed, their softmaxed weights and gamma."""
        return {
            place: {
                "layers": self._mix(place).chosen,
                "weights": self._mix(place).weight.detach().softmax(0).tolist(),
                "gamma": self._mix(place).gamma.item(),
            }
            for place in self.mixes
        }

    def _table(self, name: str) -> nn.Embedding:
        table = self.words[name]
        assert isinstance(table, nn.Embedding)
        return table

    def _mix(self, place: str) -> ScalarMix:
        mix = self.mixes[place]
        assert isinstance(mix, ScalarMix)
        return mix


def move_to(batch: Any, device: torch.device | str) -> Any:
    """A batch with its tensors on a device: dataclasses, lists, tuples and dicts are walked, other values stay."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {field.name: move_to(getattr(batch, field.name), device) for field in dataclasses.fields(batch)}
        return dataclasses.replace(batch, **fields)
    if isinstance(batch, dict):
        return {name: move_to(value, device) for name, value in batch.items()}
    if isinstance(batch, list):
        return [move_to(value, device) for value in batch]
    if isinstance(batch, tuple) and not hasattr(batch, "_fields"):
        return tuple(move_to(value, device) for value in batch)
    return batch
