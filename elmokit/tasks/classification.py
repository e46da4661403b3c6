"""The parts that classification tasks share: batches, loss, predictions, scores and records."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch
from elmokit.tasks.scores import accuracy
from elmokit.tasks.task import Labels, Sentence, Task, TaskModel, check_known, require_gold

Probabilities = dict[str, float]
"""The probability of each class, by name."""


class LabeledExample(Protocol):
    """The attributes that the examples of a classification task must have."""

    @property
    def label(self) -> str | None:
        """The gold class; None if it is unknown."""

    @property
    def where(self) -> str:
        """File and line, for error messages."""


Config = TypeVar("Config")
Example = TypeVar("Example", bound=LabeledExample)


@dataclass(frozen=True)
class ClassBatch:
    """The texts of examples, and their classes."""

    texts: tuple[TokenBatch, ...]
    """One batch per text of an example: one for sentences, two for pairs."""
    classes: Tensor | None  # (batch,); None if they are unknown


class ClassificationModel(TaskModel[ClassBatch, Probabilities]):
    """A network that scores classes. Its loss is the batch's mean cross-entropy."""

    def __init__(self, inputs: InputLayer, classes: Sequence[str]) -> None:
        super().__init__()
        self.inputs = inputs
        self.classes = list(classes)

    @abstractmethod
    def scores(self, *texts: TokenBatch) -> Tensor:
        """Return unnormalized scores, ``(batch, classes)``."""

    def loss(self, batch: ClassBatch) -> Tensor:
        assert batch.classes is not None
        return F.cross_entropy(self.scores(*batch.texts), batch.classes)

    def predict(self, batch: ClassBatch) -> list[Probabilities]:
        """Return the class probabilities of each example."""
        probabilities = self.scores(*batch.texts).softmax(dim=-1).tolist()
        return [dict(zip(self.classes, row, strict=True)) for row in probabilities]


class ClassificationTask(Task[Config, Example, ClassBatch, Probabilities]):
    """A task that assigns one of several classes to a text or a tuple of texts."""

    metric = "accuracy"

    @abstractmethod
    def named_texts(self, example: Example) -> dict[str, list[str]]:
        """Return the tokens of each text of an example, by the text's name in records of predictions."""

    def sentences(self, example: Example) -> Sequence[Sentence]:
        return list(self.named_texts(example).values())

    def lengths(self, example: Example) -> tuple[int, ...]:
        return tuple(map(len, self.sentences(example)))

    def check(self, example: Example, known: Labels) -> None:
        """Raise an error for an example without a class or with an unknown one."""
        label = require_gold(example.label, example.where, "gold label")
        check_known(label, known["classes"], example.where, "the label")

    def collate(self, examples: Sequence[Example], inputs: Inputs, known: Labels, config: Config) -> ClassBatch:
        """Build a batch, without classes if an example has none or an unknown one."""
        by_example = map(self.sentences, examples)
        texts = zip(*by_example, strict=True)  # one by one, for all examples
        tokens = inputs.batches(*texts)
        numbers = []
        for example in examples:
            if example.label is None or example.label not in known["classes"]:
                return ClassBatch(tokens, None)
            numbers.append(known["classes"].index(example.label))
        return ClassBatch(tokens, torch.tensor(numbers))

    def score(
        self, examples: Sequence[Example], predictions: Sequence[Probabilities], config: Config
    ) -> dict[str, float]:
        """Return the accuracy."""
        gold = [example.label for example in examples]
        predicted = [most_probable(prediction) for prediction in predictions]
        return {"accuracy": accuracy(gold, predicted)}

    def to_record(self, example: Example, prediction: Probabilities) -> dict[str, Any]:
        """Return the tokens, the class, and the probabilities of all classes."""
        return {**self.named_texts(example), "label": most_probable(prediction), "probabilities": prediction}

    def to_text(self, example: Example, prediction: Probabilities) -> str:
        """Return the class, its probability and the texts, separated by tabs."""
        best = most_probable(prediction)
        texts = (" ".join(tokens) for tokens in self.sentences(example))
        return "\t".join([best, f"{prediction[best]:.2f}", *texts])


def most_probable(probabilities: Probabilities) -> str:
    """Return the class with the highest probability. Ties go to the first class."""
    return max(probabilities, key=probabilities.__getitem__)
