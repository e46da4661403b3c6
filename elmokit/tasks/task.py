"""Base classes for tasks and their models, and ``TaskSetup``: a task with its config, vocabularies and labels."""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import torch
from torch import Tensor, nn

from elmokit.config import decode_json
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.errors import ConfigError, TextError, UnknownLabelError
from elmokit.storage.progress import ProgressCallback, StageCounter
from elmokit.storage.text_files import read_lines
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch, map_batch, move_to
from elmokit.tasks.task_config import ElmoConfig, WordsConfig
from elmokit.text.batching import plan_batches, restore_order
from elmokit.text.first_lines import is_json_object
from elmokit.text.tokenize import get_tokenizer

Config = TypeVar("Config")
Example = TypeVar("Example")
Batch = TypeVar("Batch")
Prediction = TypeVar("Prediction")
Gold = TypeVar("Gold")
Parsed = TypeVar("Parsed")

Sentence = Sequence[str]
Labels = dict[str, list[str]]
"""Lists of label names by the task's name for each list, such as "tags". They are stored with a run."""
Tokenize = Callable[[str], list[str]]

MAX_SQUARES = 8_000_000
"""Maximum of a predicted batch's number of examples times the squared length of the longest one, such as 32 examples of
500 tokens."""


def check_known(label: str, known: Collection[str], where: str, what: str) -> None:
    """Raise the error of ``Task.check`` for a label that the run does not know.

    Args:
        label: The label.
        known: The labels of the run.
        where: File and line, for the message.
        what: What the message says before the label, such as "the label".
    """
    if label not in known:
        raise UnknownLabelError(
            f"{where}: {what} {label!r}, but this run knows {', '.join(known)}. Correct it, or count it as missed: "
            "--count-unknown-labels."
        )


def require_gold(value: Gold | None, where: str, what: str) -> Gold:
    """Return an example's gold value, or raise the error of ``Task.check`` if it has none."""
    if value is None:
        raise TextError(f"{where}: no {what}, which training and evaluation need.")
    return value


def check_learnable(found: Iterable[object], what: str) -> None:
    """Raise the error of ``Task.labels`` if the training and dev data contain nothing that the model could learn."""
    if not any(found):
        raise TextError(f"The training and dev data contain no {what}, so there is nothing to learn.")


def parse_json(text: str, where: str, kind: type[Parsed], expected: str) -> Parsed:
    """Parse a line or a file of JSON and convert it to a type.

    Args:
        text: The JSON.
        where: The file, and the line if ``text`` is one line, for error messages.
        kind: The type of the result, as accepted by ``msgspec.convert``. Unknown keys are ignored.
        expected: A description of valid text, for error messages; follows "not" or "expected".
    """
    # `decode_json` uses json.loads instead of msgspec.json.decode because it reports where a syntax error is.
    try:
        return msgspec.convert(decode_json(text), kind)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise TextError(f"{where}, {place}: invalid JSON ({error.msg}); expected {expected}.") from None
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise TextError(f"{where}: not {expected}: {error}.") from None


def from_first_line(path: str) -> tuple[str, Iterator[tuple[int, str]]]:
    """Return a file's first non-blank line, which shows the format, and the numbered lines that start with it."""
    numbered = enumerate(read_lines(path), start=1)
    for number, line in numbered:
        if line.strip():
            return line, chain([(number, line)], numbered)
    return "", numbered


class _JsonSentence(msgspec.Struct):
    sentence: str | None = None
    tokens: list[str] | None = None
    words: list[str] | None = None


def read_sentence(line: str, where: str, tokenize: Tokenize) -> list[str]:
    """Return the tokens of a line: text, or a JSON object as read by AllenNLP's predictors.

    The object has a raw ``sentence``, or a list of ``tokens`` or ``words``.
    """
    if not is_json_object(line):
        return tokenize(line)
    content = parse_json(line, where, _JsonSentence, "one JSON object per line with sentence, tokens or words")
    for tokens in (content.tokens, content.words):
        if tokens is not None:
            return tokens
    if content.sentence is None:
        raise TextError(f"{where}: the JSON object has no sentence, tokens or words.")
    return get_tokenizer("treebank")(content.sentence)


class TaskModel(nn.Module, ABC, Generic[Batch, Prediction]):
    """A task's network, which turns a batch into a loss or into predictions."""

    inputs: InputLayer

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch with gold labels, a scalar, summed or averaged as in the task's publication.

        The penalty of the scalar mixes is not included: the training loop adds it once per batch.
        """

    @abstractmethod
    def predict(self, batch: Batch) -> list[Prediction]:
        """Return one prediction per example, as plain values. Called in evaluation mode, without gradients."""

    def predict_best(self, batch: Batch, n_best: int) -> list[Prediction]:
        """Return the predictions of ``predict``, each with the ``n_best`` most probable ones.

        Raises:
            ConfigError: The task's model returns a single prediction.
        """
        raise ConfigError("Several predictions (--best) are only supported for question answering.")


AnyModel = TaskModel[Any, Any]
"""The model of any task."""


class Task(ABC, Generic[Config, Example, Batch, Prediction]):
    """Base class of tasks: reading examples, batching, building the model and scoring. ``task_table.TASKS`` lists them.

    To add a task, write a subclass: set the attributes, and override the abstract methods and any others whose defaults
    do not fit. Tasks have no state: the config is passed to each method that needs it.
    """

    name: str
    presets: ClassVar[Mapping[str, Any]]
    """Complete configs without ELMo by name, including "published" and "small"."""
    metric: str
    """The score, among those that ``score`` returns, that selects the best epoch; higher is better."""
    elmo: ElmoConfig = ElmoConfig()
    """The defaults of the ``elmo`` table in a config file: where the paper adds ELMo, and its lambda."""
    text_formats: ClassVar[tuple[str, ...]] = ()
    """Formats of ``elmokit.text.first_lines`` that ``read_text`` reads besides sentences."""
    reads_tokens: ClassVar[bool] = True
    """Whether ``read_text`` reads tokenized sentences. Other tasks tokenize their texts themselves."""
    word_tables: tuple[str, ...] = ("words",)
    """The fields of the config that are a ``WordsConfig`` or None."""

    def word_configs(self, config: Config) -> dict[str, WordsConfig]:
        """Return the settings of the config's word tables, by name."""
        tables: dict[str, WordsConfig] = {}
        for name in self.word_tables:
            words = getattr(config, name)
            if words is not None:
                tables[name] = words
        return tables

    def check_inputs(self, config: Any) -> None:
        """Check that a model with this config has an input.

        Raises:
            ConfigError: There are no word vectors, character features, or ELMo at the input.
        """
        has_words = "words" in self.word_configs(config)
        has_elmo = config.elmo is not None and config.elmo.input is not None
        if not has_words and config.chars is None and not has_elmo:
            raise ConfigError(f"The model of {self.name} has no inputs: set words, chars or elmo.input.")

    @abstractmethod
    def read(self, path: str, config: Config) -> Iterable[Example]:
        """Read the examples of a file with gold labels. Errors name the file and line."""

    def read_training(self, path: str, config: Config) -> Iterable[Example]:
        """Read a training file. Override if training uses other examples of a file than evaluation."""
        return self.read(path, config)

    def read_text(self, lines: Iterable[str], name: str, tokenize: Tokenize, config: Config) -> Iterable[Example]:
        """Make examples without gold labels from lines of text. Errors call the text ``name``.

        The default calls ``read_line`` for each line, but skips blank lines if ``reads_tokens`` is False.
        """
        for number, line in enumerate(lines, start=1):
            if self.reads_tokens or line.strip():
                yield self.read_line(line, f"{name}, line {number}", tokenize, config)

    def read_line(self, line: str, where: str, tokenize: Tokenize, config: Config) -> Example:
        """Make an example without gold labels from a line of text. ``where`` is its file and line, for errors."""
        raise NotImplementedError

    def sentences(self, example: Example) -> Sequence[Sentence]:
        """Return all lists of tokens that the model reads. The default is ``example.tokens``."""
        return [example.tokens]  # type: ignore[attr-defined]

    def texts(self, example: Example) -> Sequence[Sentence]:
        """Return the full sentences that an example comes from, to sample training texts and to fine-tune the biLM.

        Override if ``sentences`` are only parts of them.
        """
        return self.sentences(example)

    def lengths(self, example: Example) -> tuple[int, ...]:
        """Return the key by which batches are sorted. The default is the length of the longest sentence."""
        longest = max(map(len, self.sentences(example)), default=0)
        return (longest,)

    @abstractmethod
    def labels(self, examples: Sequence[Example], config: Config) -> Labels:
        """Collect the labels of the training and dev examples."""

    @abstractmethod
    def check(self, example: Example, known: Labels) -> None:
        """Raise an error if an example has no gold labels (``require_gold``) or an unknown one (``check_known``)."""

    @abstractmethod
    def build(self, config: Config, inputs: InputLayer, known: Labels) -> TaskModel[Batch, Prediction]:
        """Build a new model, with initial weights from PyTorch's global random generator."""

    @abstractmethod
    def collate(self, examples: Sequence[Example], inputs: Inputs, known: Labels, config: Config) -> Batch:
        """Turn examples into tensors on the CPU.

        The gold tensors are None if any example has no gold label or an unknown one.
        """

    def augment(self, example: Example, config: Config, rng: random.Random) -> Example:
        """Return the part of an example to train on in one epoch. The default is the whole example."""
        return example

    @abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction], config: Config) -> dict[str, float]:
        """Compute the official scores, in percent."""

    @abstractmethod
    def to_record(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """Return a prediction as plain values for JSON."""

    @abstractmethod
    def to_text(self, example: Example, prediction: Prediction) -> str:
        """Return a prediction as readable text."""


AnyTask = Task[Any, Any, Any, Any]


@dataclass(frozen=True)
class TaskSetup:
    """A task with everything that its models share: used by the training of all seeds, and for predictions."""

    task: AnyTask
    config: Any
    inputs: Inputs
    labels: Labels
    device: torch.device

    def build(self, initial_vectors: Mapping[str, Tensor] | None = None, bilm: ElmoModule | None = None) -> AnyModel:
        """Build a new model on the CPU.

        Args:
            initial_vectors: The initial values of word tables that have pretrained vectors.
            bilm: A biLM that is trained with the model, to put inside it.
        """
        config = self.config
        self.task.check_inputs(config)
        tables = self.task.word_configs(config)
        inputs = InputLayer(self.inputs, tables, config.chars, config.elmo, initial_vectors, bilm)
        model: AnyModel = self.task.build(config, inputs, self.labels)
        return model

    def batch(self, examples: Sequence[Any], model: AnyModel) -> Any:
        """Turn examples into a batch on the device. A biLM inside the model adds its layers."""
        batch = self.task.collate(examples, self.inputs, self.labels, self.config)
        batch = move_to(batch, self.device)
        if model.inputs.elmo is None:
            return batch
        # Computed here, not in `InputLayer.forward`, because several mixes read the same layers.
        return map_batch(batch, TokenBatch, model.inputs.with_layers)

    def predict_with(
        self,
        model: AnyModel,
        examples: Sequence[Any],
        progress: ProgressCallback | None = None,
        n_best: int | None = None,
    ) -> list[Any]:
        """Return one prediction per example, computed in batches of examples of similar length.

        With ``n_best``, each prediction also has the most probable ones, as in ``TaskModel.predict_best``.
        """
        lengths = [self.task.lengths(example) for example in examples]
        batches = plan_batches(lengths, batch_size=self.config.train.batch_size)
        plan = list(_bounded(batches, lengths))
        count = StageCounter(progress, "predict", len(examples))
        results = []
        model.eval()
        with torch.no_grad():
            for indices in plan:
                batch = self.batch([examples[index] for index in indices], model)
                if n_best is None:
                    results.append(model.predict(batch))
                else:
                    results.append(model.predict_best(batch, n_best))
                count(len(indices))
        return restore_order(plan, results)


def _bounded(plan: Iterable[list[int]], lengths: Sequence[tuple[int, ...]]) -> Iterator[list[int]]:
    """Divide batches of long examples, because the memory for attention grows with the square of the length."""
    for batch in plan:
        first = 0
        while first < len(batch):
            longest = max([1, *lengths[batch[first]]])  # `plan_batches` puts the longest example first
            stop = first + max(1, MAX_SQUARES // longest**2)
            yield batch[first:stop]
            first = stop
