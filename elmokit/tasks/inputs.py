"""Turn tokens into the vectors that a task's model reads: word vectors, character features and ELMo mixes.

``Inputs`` has the vocabularies and the source of ELMo's layers, and turns sentences into a ``TokenBatch``.
``InputLayer`` is the module that turns the batch into vectors. If the biLM is frozen, the batch contains its layers. If
it is trained (``trained_bilm``), it is inside ``InputLayer``, and the batch contains the sentences for it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.network.scalar_mix import ScalarMix, make_scalar_mix
from elmokit.tasks.nn.layers import CharFeatures
from elmokit.tasks.task_config import CharsConfig, ElmoConfig, MixConfig, Spelling, WordsConfig

Sentences = Sequence[Sequence[str]]
"""Tokenized sentences."""
Texts = Sequence[Sentences]
"""For each text of an example, such as premise and hypothesis, the sentences of all examples."""

Value = TypeVar("Value")
N_SPECIAL = 2  # 0 padding, 1 unknown
# Byte ids are as in AllenNLP's character tokenizer: byte + 1, so row 1 belongs to byte 0, which no text contains. Rows
# 259 and 260 are for the begin and end of a word, and there are 262 rows. A byte is written as the character with its
# number.
BYTES = [chr(number) for number in range(1, 261)]
BEGIN_MARK, END_MARK = chr(258), chr(259)


@dataclass(frozen=True)
class TokenBatch:
    """Sentences as tensors, padded on the right."""

    words: dict[str, Tensor]  # by table: (batch, time); 0 padding, 1 unknown
    chars: Tensor | None  # (distinct tokens, chars); 0 padding, 1 unknown
    char_index: Tensor | None  # (batch, time): rows of ``chars``
    layers: Tensor | None  # (layers, batch, time, dim) of the biLM
    mask: Tensor  # (batch, time) bool, True on a token
    sentences: tuple[tuple[str, ...], ...] | None = None  # from which a biLM inside the model computes ``layers``


@dataclass(frozen=True)
class WordTable:
    """The words of one table. Their rows follow the two special rows."""

    words: list[str]
    dim: int
    lowercase: bool

    @property
    def n_rows(self) -> int:
        """The number of vectors, including the special ones."""
        return len(self.words) + N_SPECIAL


def spell(token: str, spelling: Spelling) -> str:
    """Return a token's characters, or one character per byte, optionally between two marks."""
    if spelling == "characters":
        return token
    # Latin-1 turns each byte into the character with its number.
    spelled = token.encode("utf-8", "surrogatepass").decode("latin-1")
    if spelling == "marked bytes":
        spelled = f"{BEGIN_MARK}{spelled}{END_MARK}"
    return spelled


@dataclass(frozen=True)
class ElmoShape:
    """The sizes of the biLM's layers."""

    n_layers: int
    """Including layer 0."""
    dim: int

    @classmethod
    def of(cls, elmo: Elmo) -> ElmoShape:
        """Return the sizes of a model's layers."""
        return cls(elmo.n_layers, elmo.output_dim)


def mask_of(sentences: Sentences) -> Tensor:
    """Return ``(batch, time)`` bool, True on a token. The time is the length of the longest sentence, at least 1."""
    lengths = [len(sentence) for sentence in sentences]
    time = max([1, *lengths])
    return torch.arange(time) < torch.tensor(lengths, dtype=torch.int64)[:, None]


def pad_layers(arrays: Sequence[NDArray[Any]], time: int, elmo: ElmoShape) -> Tensor:
    """Stack arrays ``(layers, tokens, dim)`` to ``(layers, batch, time, dim)`` float32, zero on padding."""
    layers = torch.zeros(elmo.n_layers, len(arrays), time, elmo.dim)
    for row, array in enumerate(arrays):
        n_tokens = array.shape[1]
        layers[:, row, :n_tokens] = torch.from_numpy(array.astype(np.float32))
    return layers


class ElmoLayers(ABC):
    """The source of ELMo's layers: a ``LayerCache``, a frozen biLM, or a biLM inside the model."""

    def __init__(self, shape: ElmoShape) -> None:
        self.shape = shape

    @abstractmethod
    def of_texts(self, texts: Texts) -> Sequence[Sequence[NDArray[Any]]] | None:
        """Return one array ``(layers, tokens, dim)`` per sentence, or None if the model computes the layers itself."""


class ComputedLayers(ElmoLayers):
    """The layers of a frozen biLM, computed for each batch.

    With a stateful ``Elmo``, each text of an example starts from the state after the previous text.
    """

    def __init__(self, elmo: Elmo) -> None:
        super().__init__(ElmoShape.of(elmo))
        self.elmo = elmo

    def of_texts(self, texts: Texts) -> list[list[NDArray[Any]]]:
        if self.elmo.start != "stateful":
            return [self.elmo.embed(sentences) for sentences in texts]
        # Row r of a batch starts from the state of row r of the previous batch, so each text is a batch of its own.
        n_examples = max(len(texts[0]), 1)
        sentences: list[Sequence[str]] = []
        for text in texts:
            sentences += text
        layers = self.elmo.embed(sentences, batch_size=n_examples)
        by_text = []
        for start in range(0, len(sentences), n_examples):
            by_text.append(layers[start : start + n_examples])
        return by_text


class LayersInModel(ElmoLayers):
    """The layers of a biLM that is trained with the model; the model computes them from the batch's sentences."""

    def of_texts(self, texts: Texts) -> None:
        return None


@dataclass(frozen=True)
class Vocabularies:
    """The words and characters of a run."""

    tables: dict[str, WordTable]
    """The word tables, by their names in the config."""
    chars: list[str] | None = None
    """The known characters; None if the model has no character features."""
    max_chars: int | None = None
    """Truncate words to this many characters."""
    spelling: Spelling = "characters"
    """Whether words are read as characters or as bytes. For bytes, ``chars`` must be ``BYTES``."""


def _numbered(entries: Sequence[str]) -> dict[str, int]:
    """Return the rows of words or characters in their table."""
    return {entry: row for row, entry in enumerate(entries, start=N_SPECIAL)}


class Inputs:
    """Turns sentences into batches.

    Args:
        vocabularies: The words and characters.
        layers: The source of ELMo's layers; None without ELMo.
    """

    def __init__(self, vocabularies: Vocabularies, layers: ElmoLayers | None = None) -> None:
        self.vocabularies, self.layers = vocabularies, layers
        self._word_ids = {name: _numbered(table.words) for name, table in vocabularies.tables.items()}
        self._char_ids = _numbered(vocabularies.chars or ())

    def batch(self, sentences: Sentences) -> TokenBatch:
        """Make a batch of sentences: padded ids and, with ELMo, the biLM's layers, or the sentences if the model
        contains the biLM.
        """
        (batch,) = self.batches(sentences)
        return batch

    def batches(self, *texts: Sentences) -> tuple[TokenBatch, ...]:
        """Make one batch per text of the examples, in the order in which AllenNLP reads the texts.

        Args:
            texts: For each text, such as premise and hypothesis, the sentences of all examples.
        """
        batches = [self._batch(sentences) for sentences in texts]
        if self.layers is None:
            return tuple(batches)
        layers = self.layers.of_texts(texts)
        for k, batch in enumerate(batches):
            if layers is None:
                sentences = tuple(map(tuple, texts[k]))
                batches[k] = replace(batch, sentences=sentences)
            else:
                padded = pad_layers(layers[k], batch.mask.shape[1], self.layers.shape)
                batches[k] = replace(batch, layers=padded)
        return tuple(batches)

    def _batch(self, sentences: Sentences) -> TokenBatch:
        mask = mask_of(sentences)
        time = mask.shape[1]
        words: dict[str, Tensor] = {}
        for name in self._word_ids:
            words[name] = self._padded(self._ids_in(name, sentences), time)
        if self.vocabularies.chars is None:
            return TokenBatch(words, None, None, None, mask)
        numbers: dict[str, int] = {}  # of the distinct tokens
        rows = []
        for sentence in sentences:
            rows.append([numbers.setdefault(token, len(numbers)) for token in sentence])
        char_index = self._padded(rows, time)
        return TokenBatch(words, self._char_rows(list(numbers)), char_index, None, mask)

    def _ids_in(self, name: str, sentences: Sentences) -> list[list[int]]:
        """Return the ids of the words in one table."""
        ids = self._word_ids[name]
        lowercase = self.vocabularies.tables[name].lowercase
        rows = []
        for sentence in sentences:
            words = map(str.lower, sentence) if lowercase else sentence
            rows.append([ids.get(word, 1) for word in words])
        return rows

    def _char_rows(self, tokens: Sequence[str]) -> Tensor:
        """Return the ids of the tokens' characters, ``(tokens, chars)``."""
        known = self.vocabularies
        rows = []
        for token in tokens:
            chars = spell(token, known.spelling)[: known.max_chars]
            rows.append([self._char_ids.get(char, 1) for char in chars])
        longest = max([1, *map(len, rows)])
        return self._padded(rows, longest)

    @staticmethod
    def _padded(rows: Sequence[Sequence[int]], time: int) -> Tensor:
        ids = np.zeros((len(rows), time), dtype=np.int64)
        for line, row in zip(ids, rows, strict=True):
            line[: len(row)] = row
        return torch.from_numpy(ids)


class InputLayer(nn.Module):
    """The first layer of every task's model: token vectors, and the ELMo mix that enters at a higher layer.

    All sizes follow from ``inputs`` and the config, so adding ELMo to a model takes only an ``elmo`` table in the
    config.

    Args:
        inputs: The vocabularies. Only their sizes are used.
        words: The settings of the word tables by name. ``forward`` uses only "words".
        chars: The settings of the character features; None for none.
        elmo: The settings of the mixes; None without ELMo.
        initial_vectors: The initial values of tables with pretrained vectors, ``(rows, dim)``, by table.
        bilm: The biLM, if it is or was trained with the model; None otherwise.
    """

    def __init__(
        self,
        inputs: Inputs,
        words: Mapping[str, WordsConfig],
        chars: CharsConfig | None,
        elmo: ElmoConfig | None,
        initial_vectors: Mapping[str, Tensor] | None = None,
        bilm: ElmoModule | None = None,
    ) -> None:
        super().__init__()
        self.words = nn.ModuleDict()
        for name, config in words.items():
            initial = None if initial_vectors is None else initial_vectors.get(name)
            embedding = _word_embedding(inputs.vocabularies.tables[name], initial)
            embedding.weight.requires_grad_(config.train or not config.vectors)
            self.words[name] = embedding
        self.chars: CharFeatures | None = None
        if chars is not None and inputs.vocabularies.chars is not None:
            self.chars = chars.build(len(inputs.vocabularies.chars) + N_SPECIAL)
        self.mixes = nn.ModuleDict()
        self.penalties: dict[str, float] = {}
        self.dropouts = nn.ModuleDict()
        self.elmo_dim = 0
        if elmo is not None and inputs.layers is not None:
            self.elmo_dim = inputs.layers.shape.dim
            for position, mix in (("input", elmo.input), ("output", elmo.output)):
                if mix is not None:
                    self._add_mix(position, mix, inputs.layers.shape.n_layers)
        self.elmo = bilm  # last, because the gradient norm is summed in the order of the parameters

    def _add_mix(self, position: str, mix: MixConfig, n_layers: int) -> None:
        self.mixes[position] = make_scalar_mix(mix.layers, n_layers, mix.layer_norm)
        self.penalties[position] = mix.penalty
        self.dropouts[position] = nn.Dropout(mix.dropout)

    @property
    def char_dim(self) -> int:
        """The size of the character features; 0 without them."""
        return 0 if self.chars is None else self.chars.output_dim

    def word_dim(self, table: str = "words") -> int:
        """Return the size of a table's vectors; 0 if the table does not exist."""
        return self._table(table).embedding_dim if table in self.words else 0

    def _mix_dim(self, position: str) -> int:
        """Return the size of the mix at a position; 0 if there is none."""
        return self.elmo_dim if position in self.mixes else 0

    @property
    def output_dim(self) -> int:
        """The size of the vectors that ``forward`` returns."""
        return self.word_dim() + self.char_dim + self._mix_dim("input")

    @property
    def elmo_output_dim(self) -> int:
        """The number of features that ``at_output`` appends."""
        return self._mix_dim("output")

    def with_layers(self, tokens: TokenBatch) -> TokenBatch:
        """Add the layers of the biLM inside the model to a batch."""
        assert self.elmo is not None
        assert tokens.sentences is not None
        # Examples in a batch often share sentences: several predicates of a sentence, several questions on a passage.
        rows = {sentence: row for row, sentence in enumerate(dict.fromkeys(tokens.sentences))}
        layers, _ = self.elmo.padded_layers(list(rows))
        if len(rows) < len(tokens.sentences):
            numbers = [rows[sentence] for sentence in tokens.sentences]
            layers = layers.index_select(1, torch.tensor(numbers, device=layers.device))
        # The layers are shorter than the mask only in a batch without tokens, because a mask has at least one position.
        missing = tokens.mask.shape[1] - layers.shape[2]
        if missing:
            layers = F.pad(layers, (0, 0, 0, missing))
        return replace(tokens, layers=layers)

    def forward(self, tokens: TokenBatch) -> Tensor:
        """Concatenate word vectors, character features and input mix.

        Returns:
            ``(batch, time, output_dim)``, zero on padding.
        """
        return concatenated(
            [self.word_vectors(tokens), self.char_features(tokens), self.elmo_mix(tokens, "input")], tokens.mask
        )

    def at_output(self, hidden: Tensor, tokens: TokenBatch) -> Tensor:
        """Append the output mix, if there is one, to ``(batch, time, hidden)``."""
        mixed = self.elmo_mix(tokens, "output")
        if mixed is None:
            return hidden
        return torch.cat([hidden, mixed], dim=-1)

    def word_vectors(self, tokens: TokenBatch, table: str = "words") -> Tensor | None:
        """Return the vectors of one table, ``(batch, time, dim)``; None if the table does not exist."""
        if table not in self.words:
            return None
        vectors: Tensor = self._table(table)(tokens.words[table])
        return vectors

    def char_features(self, tokens: TokenBatch) -> Tensor | None:
        """Return the character features, ``(batch, time, char_dim)``, computed once per distinct token."""
        if self.chars is None:
            return None
        assert tokens.chars is not None
        if not len(tokens.chars):
            return torch.zeros(*tokens.mask.shape, self.char_dim, device=tokens.mask.device)
        features: Tensor = self.chars(tokens.chars)[tokens.char_index]
        return features * tokens.mask[..., None]

    def elmo_mix(self, tokens: TokenBatch, position: str) -> Tensor | None:
        """Return the mix for "input" or "output" after dropout, ``(batch, time, dim)``; None if there is none."""
        if position not in self.mixes:
            return None
        assert tokens.layers is not None
        mixed = self.mixes[position](tokens.layers, tokens.mask)
        dropped: Tensor = self.dropouts[position](mixed * tokens.mask[..., None])
        return dropped

    def penalty(self) -> Tensor | float:
        """Return the mixes' penalty: lambda times the sum of squares of the raw weights."""
        total: Tensor | float = 0.0
        for position in self.mixes:
            total = total + self.penalties[position] * self._mix(position).penalty()
        return total

    def mix_weights(self) -> dict[str, dict[str, Any]]:
        """Return the layers, normalized weights and gamma of each mix, by position."""
        weights: dict[str, dict[str, Any]] = {}
        for position in self.mixes:
            mix = self._mix(position)
            weights[position] = {
                "layers": mix.chosen,
                "weights": mix.weight.detach().softmax(0).tolist(),
                "gamma": mix.gamma.item(),
            }
        return weights

    def _table(self, name: str) -> nn.Embedding:
        table = self.words[name]
        assert isinstance(table, nn.Embedding)
        return table

    def _mix(self, position: str) -> ScalarMix:
        mix = self.mixes[position]
        assert isinstance(mix, ScalarMix)
        return mix


def _word_embedding(table: WordTable, initial: Tensor | None) -> nn.Embedding:
    """Return the embedding of a word table, with given or random initial values."""
    embedding = nn.Embedding(table.n_rows, table.dim, padding_idx=0)
    bound = (3 / table.dim) ** 0.5
    nn.init.uniform_(embedding.weight, -bound, bound)
    with torch.no_grad():
        embedding.weight[0] = 0.0
        if initial is not None:
            embedding.weight.copy_(initial)
    return embedding


def concatenated(parts: Sequence[Tensor | None], mask: Tensor) -> Tensor:
    """Concatenate the given features, ``(batch, time, dim)`` each, and set padding to zero."""
    given = [part for part in parts if part is not None]
    if not given:
        return torch.zeros(*mask.shape, 0, device=mask.device)
    return torch.cat(given, dim=-1) * mask[..., None]


def move_to(batch: Any, device: torch.device | str) -> Any:
    """Move a batch's tensors to a device. Other values stay unchanged."""
    return map_batch(batch, Tensor, lambda tensor: tensor.to(device))


def map_batch(batch: Any, kind: type[Value], function: Callable[[Value], Value]) -> Any:
    """Apply a function to all values of one type in a batch, also inside dataclasses, lists, tuples and dicts."""

    def mapped(value: Any) -> Any:
        return map_batch(value, kind, function)

    if isinstance(batch, kind):
        return function(batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        changes = {field.name: mapped(getattr(batch, field.name)) for field in dataclasses.fields(batch)}
        return replace(batch, **changes)
    if isinstance(batch, dict):
        return {name: mapped(value) for name, value in batch.items()}
    if isinstance(batch, list):
        return list(map(mapped, batch))
    if isinstance(batch, tuple) and not hasattr(batch, "_fields"):
        return tuple(map(mapped, batch))
    return batch
