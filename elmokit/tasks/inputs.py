"""Turn tokens into the vectors that a task's model reads: word vectors, character features and ELMo mixes.

``Inputs`` has the vocabularies and the source of ELMo's layers, and makes a ``TokenBatch`` of sentences. ``InputLayer``
is the module that turns the batch into vectors. A frozen biLM is not in it: its layers are part of the batch. One that
is trained is in ``InputLayer``, and the batch has the sentences that it reads (``trained_bilm``).
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
from elmokit.tasks.nn.layers import TokenCharCNN, TokenCharRNN
from elmokit.tasks.task_config import CharsConfig, ElmoConfig, MixConfig, Spelling, WordsConfig

Texts = Sequence[Sequence[Sequence[str]]]
"""For each text of examples that have several, such as premise and hypothesis, the sentences of all examples."""

Value = TypeVar("Value")
N_SPECIAL = 2  # 0 padding, 1 unknown
# The ids of bytes are those of AllenNLP's character tokenizer: byte + 1, so that row 1 is that of byte 0, which no text
# contains. Rows 259 and 260 begin and end a word, and there are 262 rows. A byte is written as the character with its
# number.
BYTES = [chr(number) for number in range(1, 261)]
BEGIN_MARK, END_MARK = chr(258), chr(259)


@dataclass(frozen=True)
class TokenBatch:
    """Sentences as tensors, padded on the right."""

    words: dict[str, Tensor]  # by table: (batch, time); 0 padding, 1 unknown
    chars: Tensor | None  # (distinct, chars): each distinct token once; 0 padding, 1 unknown
    char_index: Tensor | None  # (batch, time): rows of ``chars``
    layers: Tensor | None  # (layers, batch, time, dim) of the biLM
    mask: Tensor  # (batch, time) bool
    sentences: tuple[tuple[str, ...], ...] | None = None  # for a biLM inside the model, which computes ``layers``


@dataclass(frozen=True)
class WordTable:
    """The words of one table. Their rows follow the two special rows."""

    words: list[str]
    dim: int
    lowercase: bool

    @property
    def n_rows(self) -> int:
        """The number of vectors, the special ones included."""
        return len(self.words) + N_SPECIAL


def spell(token: str, spelling: Spelling) -> str:
    """Return the characters of a token: its own, or one for each byte, with marks around them or not."""
    if spelling == "characters":
        return token
    # Latin-1 writes each byte as the character with its number.
    spelled = token.encode("utf-8", "surrogatepass").decode("latin-1")
    return spelled if spelling == "bytes" else f"{BEGIN_MARK}{spelled}{END_MARK}"


@dataclass(frozen=True)
class ElmoShape:
    """The sizes of the biLM's layers."""

    n_layers: int
    """With layer 0."""
    dim: int

    @classmethod
    def of(cls, elmo: Elmo) -> ElmoShape:
        """Return the sizes of a model's layers."""
        return cls(elmo.n_layers, elmo.output_dim)


def mask_of(sentences: Sequence[Sequence[str]]) -> Tensor:
    """Return ``(batch, time)`` bool, True on a token. The time is the length of the longest sentence, at least 1."""
    lengths = torch.tensor([len(sentence) for sentence in sentences], dtype=torch.int64)
    time = max([1, *lengths.tolist()])
    return torch.arange(time) < lengths[:, None]


def pad_layers(arrays: Sequence[NDArray[Any]], time: int, elmo: ElmoShape) -> Tensor:
    """Stack arrays ``(layers, tokens, dim)`` to ``(layers, batch, time, dim)`` float32, zero on padding."""
    layers = torch.zeros(elmo.n_layers, len(arrays), time, elmo.dim)
    for row, array in enumerate(arrays):
        n_tokens = array.shape[1]
        layers[:, row, :n_tokens] = torch.from_numpy(array.astype(np.float32))
    return layers


class ElmoLayers(ABC):
    """Where the layers of ELMo come from: a ``LayerCache``, the biLM as needed, or the biLM inside the model."""

    def __init__(self, shape: ElmoShape) -> None:
        self.shape = shape

    @abstractmethod
    def of_texts(self, texts: Texts) -> Sequence[Sequence[NDArray[Any]]] | None:
        """Return one array ``(layers, tokens, dim)`` per sentence; None if the model computes them itself."""


class ComputedLayers(ElmoLayers):
    """The layers of a frozen biLM, computed for each batch.

    With a stateful ``Elmo``, each text of an example continues from the text before it.
    """

    def __init__(self, elmo: Elmo) -> None:
        super().__init__(ElmoShape.of(elmo))
        self.elmo = elmo

    def of_texts(self, texts: Texts) -> list[list[NDArray[Any]]]:
        if self.elmo.start != "stateful":
            return [self.elmo.embed(sentences) for sentences in texts]
        # Row r of a batch continues from row r of the previous one, so each text is a batch of all examples.
        n_examples = max(len(texts[0]), 1)
        sentences = [sentence for text in texts for sentence in text]
        layers = self.elmo.embed(sentences, batch_size=n_examples)
        return [layers[start : start + n_examples] for start in range(0, len(sentences), n_examples)]


class LayersInModel(ElmoLayers):
    """The layers of a biLM that is trained with the model, which computes them from the sentences of the batch."""

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
    """Cut words to this many characters."""
    spelling: Spelling = "characters"
    """Whether a word is read as characters or as bytes; ``chars`` must be ``BYTES`` for the latter."""


def _numbered(entries: Sequence[str]) -> dict[str, int]:
    """Return the rows of words or characters."""
    return {entry: row for row, entry in enumerate(entries, start=N_SPECIAL)}


class Inputs:
    """What turns sentences into a batch.

    Args:
        vocabularies: The words and characters.
        layers: The source of ELMo's layers; None without ELMo.
    """

    def __init__(self, vocabularies: Vocabularies, layers: ElmoLayers | None = None) -> None:
        self.vocabularies, self.layers = vocabularies, layers
        self._word_ids = {name: _numbered(table.words) for name, table in vocabularies.tables.items()}
        self._char_ids = _numbered(vocabularies.chars or ())

    def batch(self, sentences: Sequence[Sequence[str]]) -> TokenBatch:
        """Make a batch of sentences: padded ids; and, with ELMo, the biLM's layers or the sentences for a biLM inside
        the model.
        """
        (batch,) = self.batches(sentences)
        return batch

    def batches(self, *texts: Sequence[Sequence[str]]) -> tuple[TokenBatch, ...]:
        """Make a batch of each text of examples that have several, in the order in which AllenNLP reads them.

        Args:
            texts: For each text, such as premise and hypothesis, the sentences of all examples.
        """
        batches = [self._batch(sentences) for sentences in texts]
        if self.layers is not None:
            layers = self.layers.of_texts(texts)
            for k, batch in enumerate(batches):
                if layers is None:
                    batches[k] = replace(batch, sentences=tuple(map(tuple, texts[k])))
                else:
                    padded = pad_layers(layers[k], batch.mask.shape[1], self.layers.shape)
                    batches[k] = replace(batch, layers=padded)
        return tuple(batches)

    def _batch(self, sentences: Sequence[Sequence[str]]) -> TokenBatch:
        mask = mask_of(sentences)
        time = mask.shape[1]
        words: dict[str, Tensor] = {}
        for name in self._word_ids:
            words[name] = self._padded(self._ids_in(name, sentences), time)
        if self.vocabularies.chars is None:
            return TokenBatch(words, None, None, None, mask)
        numbers: dict[str, int] = {}  # of the distinct tokens
        rows = [[numbers.setdefault(token, len(numbers)) for token in sentence] for sentence in sentences]
        char_index = self._padded(rows, time)
        return TokenBatch(words, self._char_rows(list(numbers)), char_index, None, mask)

    def _ids_in(self, name: str, sentences: Sequence[Sequence[str]]) -> list[list[int]]:
        ids = self._word_ids[name]
        if self.vocabularies.tables[name].lowercase:
            return [[ids.get(word.lower(), 1) for word in sentence] for sentence in sentences]
        return [[ids.get(word, 1) for word in sentence] for sentence in sentences]

    def _char_rows(self, tokens: Sequence[str]) -> Tensor:
        known = self.vocabularies
        rows = []
        for token in tokens:
            chars = spell(token, known.spelling)[: known.max_chars]
            rows.append([self._char_ids.get(char, 1) for char in chars])
        return self._padded(rows, max([1, *map(len, rows)]))

    @staticmethod
    def _padded(rows: Sequence[Sequence[int]], time: int) -> Tensor:
        ids = np.zeros((len(rows), time), dtype=np.int64)
        for line, row in zip(ids, rows, strict=True):
            line[: len(row)] = row
        return torch.from_numpy(ids)


class InputLayer(nn.Module):
    """The first layer of every task's model: token vectors, and the ELMo mix that enters further up.

    All sizes follow from ``inputs`` and the config, so that a config with and one without ELMo differ by one table.

    Args:
        inputs: The vocabularies. Their sizes are used; the object is not kept.
        words: The settings of the word tables by name. Only "words" is part of ``forward``.
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
            table = inputs.vocabularies.tables[name]
            embedding = nn.Embedding(table.n_rows, table.dim, padding_idx=0)
            bound = (3 / table.dim) ** 0.5
            nn.init.uniform_(embedding.weight, -bound, bound)
            with torch.no_grad():
                embedding.weight[0] = 0.0
                if initial_vectors is not None and name in initial_vectors:
                    embedding.weight.copy_(initial_vectors[name])
            embedding.weight.requires_grad_(config.train or not config.vectors)
            self.words[name] = embedding
        self.chars: TokenCharCNN | TokenCharRNN | None = None
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
        self.elmo = bilm  # last, because the order of the parameters is that of the gradient's norm

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

    @property
    def output_dim(self) -> int:
        """The size of the vectors that ``forward`` returns."""
        return self.word_dim() + self.char_dim + (self.elmo_dim if "input" in self.mixes else 0)

    @property
    def elmo_output_dim(self) -> int:
        """The number of features that ``at_output`` appends."""
        return self.elmo_dim if "output" in self.mixes else 0

    def with_layers(self, tokens: TokenBatch) -> TokenBatch:
        """Return a batch with the layers that the biLM inside the model computes for its sentences."""
        assert self.elmo is not None
        assert tokens.sentences is not None
        # Examples of one batch often share a sentence: the predicates of a sentence, the questions about a passage.
        rows = {sentence: row for row, sentence in enumerate(dict.fromkeys(tokens.sentences))}
        layers, _ = self.elmo.padded_layers(list(rows))
        if len(rows) < len(tokens.sentences):
            index = torch.tensor([rows[sentence] for sentence in tokens.sentences], device=layers.device)
            layers = layers.index_select(1, index)
        # Only a batch without any token is shorter than its mask, which has at least one position.
        missing = tokens.mask.shape[1] - layers.shape[2]
        if missing:
            layers = F.pad(layers, (0, 0, 0, missing))
        return replace(tokens, layers=layers)

    def forward(self, tokens: TokenBatch) -> Tensor:
        """Return word vectors, character features and input mix, ``(batch, time, output_dim)``, zero on padding."""
        parts = (self.word_vectors(tokens), self.char_features(tokens), self.elmo_mix(tokens, "input"))
        given = [part for part in parts if part is not None]
        if not given:
            return torch.zeros(*tokens.mask.shape, 0, device=tokens.mask.device)
        return torch.cat(given, dim=-1) * tokens.mask[..., None]

    def at_output(self, hidden: Tensor, tokens: TokenBatch) -> Tensor:
        """Append the output mix to ``(batch, time, hidden)``; without one, return it unchanged."""
        mixed = self.elmo_mix(tokens, "output")
        return hidden if mixed is None else torch.cat([hidden, mixed], dim=-1)

    def word_vectors(self, tokens: TokenBatch, table: str = "words") -> Tensor | None:
        """Return the vectors of one table, ``(batch, time, dim)``; None if the table does not exist."""
        if table not in self.words:
            return None
        vectors: Tensor = self._table(table)(tokens.words[table])
        return vectors

    def char_features(self, tokens: TokenBatch) -> Tensor | None:
        """Return the character features, ``(batch, time, char_dim)``; each distinct token is computed once."""
        if self.chars is None:
            return None
        assert tokens.chars is not None
        if not len(tokens.chars):
            return torch.zeros(*tokens.mask.shape, self.char_dim, device=tokens.mask.device)
        features: Tensor = self.chars(tokens.chars)[tokens.char_index]
        return features * tokens.mask[..., None]

    def elmo_mix(self, tokens: TokenBatch, position: str) -> Tensor | None:
        """Return the mix at "input" or "output" after dropout, ``(batch, time, dim)``; None if there is none."""
        if position not in self.mixes:
            return None
        assert tokens.layers is not None
        mixed = self.mixes[position](tokens.layers, tokens.mask)
        dropped: Tensor = self.dropouts[position](mixed * tokens.mask[..., None])
        return dropped

    def penalty(self) -> Tensor | float:
        """Return lambda times the sum of squares of the raw weights, summed over the mixes."""
        total: Tensor | float = 0.0
        for position in self.mixes:
            total = total + self.penalties[position] * self._mix(position).penalty()
        return total

    def mix_weights(self) -> dict[str, dict[str, Any]]:
        """Return the layers, softmaxed weights and gamma of each mix, by position."""
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


def move_to(batch: Any, device: torch.device | str) -> Any:
    """Move the tensors of a batch to a device. Other values stay."""
    return map_batch(batch, Tensor, lambda tensor: tensor.to(device))


def map_batch(batch: Any, kind: type[Value], function: Callable[[Value], Value]) -> Any:
    """Replace the values of one type in a batch, in dataclasses, lists, tuples and dicts. Other values stay."""

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
