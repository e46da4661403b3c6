"""What a task is: functions over its examples, and a model."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from elmokit.errors import UnknownLabelError
from elmokit.tasks.config import ElmoConfig
from elmokit.tasks.inputs import InputLayer, Inputs

Config = TypeVar("Config")
Example = TypeVar("Example")
Batch = TypeVar("Batch")
Prediction = TypeVar("Prediction")

Sentence = Sequence[str]
Labels = dict[str, list[str]]
"""Lists of label names, by the task's name for the list; stored with a run."""
Tokenize = Callable[[str], list[str]]


def unknown_label(where: str, what: str, known: Iterable[str]) -> UnknownLabelError:
    """The error that ``check`` raises for a label that the run does not know."""
    return UnknownLabelError(
        f"{where}: {what}, and this run knows {', '.join(known)}. Train with that too, take it out of the file, or let "
        "it count as missed: --count-unknown-labels."
    )


class TaskModel(nn.Module, ABC, Generic[Batch, Prediction]):
    """A task's network: numbers in, a loss or predictions out."""

    inputs: InputLayer

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """The loss of a batch with gold labels, a scalar, summed or averaged as the task was published.

        The mixes' penalty is not part of it; the training loop adds it, once per batch.
        """

    @abstractmethod
    def predict(self, batch: Batch) -> list[Prediction]:
        """One prediction for each example, as plain values; called in evaluation mode without gradients."""


@dataclass(frozen=True)
class Task(Generic[Config, Example, Batch, Prediction]):
    """One of the tasks; ``table.TASKS`` lists them."""

    name: str
    presets: Mapping[str, Config]
    """By name: "published" and "small"; without ELMo."""
    elmo: ElmoConfig
    """What an ``elmo`` table in a file starts from: the published places and lambda."""
    metric: str
    """The score that decides, among those that ``score`` gives; higher is better."""
    read: Callable[[str, Config], Iterable[Example]]
    """The examples of a file; errors name file and line."""
    read_text: Callable[[Iterable[str], str, Tokenize, Config], Iterable[Example]]
    """Examples without gold labels from lines of text; the string names them in errors."""
    sentences: Callable[[Example], Sequence[Sentence]]
    """Every list of tokens that the model reads."""
    labels: Callable[[Sequence[Example], Config], Labels]
    """The labels of the training and dev examples."""
    check: Callable[[Example, Labels], None]
    """Refuse an example without gold labels, or, by ``unknown_label``, with one that the run does not know."""
    build: Callable[[Config, InputLayer, Labels], TaskModel[Batch, Prediction]]
    """A fresh model, drawn from torch's global generator."""
    collate: Callable[[Sequence[Example], Inputs, Labels, Config], Batch]
    """Examples to tensors on the CPU; gold parts are None if an example has none, or labels that are not known."""
    score: Callable[[Sequence[Example], Sequence[Prediction], Config], dict[str, float]]
    """The official scores, in percent."""
    to_record: Callable[[Example, Prediction], dict[str, Any]]
    """A prediction for programs, as JSON."""
    to_text: Callable[[Example, Prediction], str]
    """A prediction for readers."""
    read_training: Callable[[str, Config], Iterable[Example]] | None = None
    """As ``read``, for training files, where training takes other examples from a file than judging does."""
    text: Callable[[Example], Sequence[Sentence]] | None = None
    """The whole sentences that an example was cut out of; None where ``sentences`` are whole."""
    lengths: Callable[[Example], tuple[int, ...]] | None = None
    """What batches are sorted by; None for the length of the longest sentence."""
    vary: Callable[[Example, Config, random.Random], Example] | None = None
    """The view of an example that training takes in one epoch, where it does not take the whole."""
    word_tables: tuple[str, ...] = ("words",)
    """The config's fields that are a ``WordsConfig`` or None."""

    def text_of(self, example: Example) -> tuple[tuple[str, ...], ...]:
        """The sentences of the text that an example is of: what is drawn for a share, and what a biLM may learn."""
        return tuple(map(tuple, (self.text or self.sentences)(example)))

    def lengths_of(self, example: Example) -> tuple[int, ...]:
        """What batches are sorted by."""
        if self.lengths is not None:
            return self.lengths(example)
        return (max(map(len, self.sentences(example)), default=0),)
