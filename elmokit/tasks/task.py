"""The base classes of a task and of its model, and a task together with its config, vocabularies and labels."""

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
"""Lists of label names, by the task's name for the list; stored with a run."""
Tokenize = Callable[[str], list[str]]

MAX_SQUARES = 8_000_000
"""Examples of a predicted batch times the squared length of the longest: 32 examples of 500 tokens."""


def check_known(label: str, known: Collection[str], where: str, what: str) -> None:
    """Raise the error of ``Task.check`` for a label that the run does not know; ``what`` has it."""
    if label not in known:
        raise UnknownLabelError(
            f"{where}: {what} {label!r}, but this run knows {', '.join(known)}. Correct it, or count it as missed: "
            "--count-unknown-labels."
        )


def require_gold(value: Gold | None, where: str, what: str) -> Gold:
    """Return the gold value of an example, or raise the error of ``Task.check`` if it has none."""
    if value is None:
        raise TextError(f"{where}: no {what}, which training and evaluation need.")
    return value


def check_learnable(found: Iterable[object], what: str) -> None:
    """Raise the error of ``Task.labels`` if nothing of what the model learns was found in the training and dev data."""
    if not any(found):
        raise TextError(f"The training and dev data contain no {what}, so there is nothing to learn.")


def parse_json(text: str, where: str, kind: type[Parsed], expected: str) -> Parsed:
    """Parse a line or a whole file of JSON and convert it to a type.

    Args:
        text: The JSON.
        where: The file, and the line if ``text`` is one line of it, for error messages.
        kind: The type of the result, as ``msgspec.convert`` accepts it. Keys that it does not know are ignored.
        expected: What the text should be, for error messages; follows "not" or "expected".
    """
    # json.loads and not msgspec.json.decode, because it reports the line and column of a syntax error.
    try:
        return msgspec.convert(decode_json(text), kind)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise TextError(f"{where}, {place}: invalid JSON ({error.msg}); expected {expected}.") from None
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise TextError(f"{where}: not {expected}: {error}.") from None


def from_first_line(path: str) -> tuple[str, Iterator[tuple[int, str]]]:
    """Return the first line of a file that is not blank, which shows its format, and the numbered lines from it on."""
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
    """Return the tokens of a line of text, or of a JSON object as AllenNLP's predictors read them.

    The object has ``sentence``, which is raw, or a list of ``tokens`` or ``words``.
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
    """A task's network: it turns a batch into a loss or into predictions."""

    inputs: InputLayer

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch with gold labels, a scalar, summed or averaged as in the task's publication.

        The penalty of the mixes is not part of it: the training loop adds it once per batch.
        """

    @abstractmethod
    def predict(self, batch: Batch) -> list[Prediction]:
        """Return one prediction per example, as plain values. Called in evaluation mode, without gradients."""

    def predict_best(self, batch: Batch, n_best: int) -> list[Prediction]:
        """Return what ``predict`` does, each with the ``n_best`` most probable predictions.

        Raises:
            ConfigError: The model of this task has one prediction only.
        """
        raise ConfigError("Several predictions (--best) are only supported for question answering.")


class Task(ABC, Generic[Config, Example, Batch, Prediction]):
    """Base class of a task: reading examples, batching, building the model and scoring. ``table.TASKS`` lists them.

    To add a task, write a subclass: set the attributes, override the abstract methods, and those others whose default
    does not fit. Tasks have no state: the config is passed to each method that needs it.
    """

    name: str
    presets: ClassVar[Mapping[str, Any]]
    """Complete configs by name, "published" and "small" among them; without ELMo."""
    metric: str
    """The score that decides which epoch is kept, one of those that ``score`` returns; higher is better."""
    elmo: ElmoConfig = ElmoConfig()
    """The defaults of an ``elmo`` table in a config file: where the paper adds ELMo, and its lambda."""
    text_formats: ClassVar[tuple[str, ...]] = ()
    """What ``read_text`` reads besides sentences: formats of ``elmokit.text.first_lines``."""
    reads_tokens: ClassVar[bool] = True
    """Whether ``read_text`` reads tokenized sentences. Other tasks split the texts of their examples themselves."""
    word_tables: tuple[str, ...] = ("words",)
    """The config's fields that are a ``WordsConfig`` or None."""

    def word_configs(self, config: Config) -> dict[str, WordsConfig]:
        """Return the settings of the word tables that a config has, by table."""
        tables = {name: getattr(config, name) for name in self.word_tables}
        return {name: words for name, words in tables.items() if words is not None}

    def check_inputs(self, config: Any) -> None:
        """Check that a model with this config has any input.

        Raises:
            ConfigError: There are neither words, nor characters, nor ELMo at the input.
        """
        has_elmo = config.elmo is not None and config.elmo.input is not None
        if not (has_elmo or config.chars is not None or "words" in self.word_configs(config)):
            raise ConfigError(f"The model of {self.name} has no inputs: set words, chars or elmo.input.")

    @abstractmethod
    def read(self, path: str, config: Config) -> Iterable[Example]:
        """Read the examples of a file with gold labels; errors name file and line."""

    def read_training(self, path: str, config: Config) -> Iterable[Example]:
        """Read a training file. Override where training takes other examples from a file than evaluation does."""
        return self.read(path, config)

    def read_text(self, lines: Iterable[str], name: str, tokenize: Tokenize, config: Config) -> Iterable[Example]:
        """Make examples without gold labels from lines of text; ``name`` is the text's name in errors.

        The default calls ``read_line`` for each line; for each that is not blank if ``reads_tokens`` is False.
        """
        for number, line in enumerate(lines, start=1):
            if self.reads_tokens or line.strip():
                yield self.read_line(line, f"{name}, line {number}", tokenize, config)

    def read_line(self, line: str, where: str, tokenize: Tokenize, config: Config) -> Example:
        """Make an example without gold labels from a line of text; ``where`` is its place in errors."""
        raise NotImplementedError

    def sentences(self, example: Example) -> Sequence[Sentence]:
        """Return every list of tokens that the model reads. The default is ``example.tokens``."""
        return [example.tokens]  # type: ignore[attr-defined]

    def texts(self, example: Example) -> Sequence[Sentence]:
        """Return the full sentences that an example was extracted from.

        Used for sampling a ratio of the training texts and for fine-tuning the biLM. Override where ``sentences`` are
        only parts of them.
        """
        return self.sentences(example)

    def lengths(self, example: Example) -> tuple[int, ...]:
        """Return what batches are sorted by. The default is the length of the longest sentence."""
        return (max(map(len, self.sentences(example)), default=0),)

    @abstractmethod
    def labels(self, examples: Sequence[Example], config: Config) -> Labels:
        """Collect the labels of the training and dev examples."""

    @abstractmethod
    def check(self, example: Example, known: Labels) -> None:
        """Raise an error for an example without gold labels (``require_gold``), or an unknown one (``check_known``)."""

    @abstractmethod
    def build(self, config: Config, inputs: InputLayer, known: Labels) -> TaskModel[Batch, Prediction]:
        """Build a new model. Its weights are drawn from torch's global generator."""

    @abstractmethod
    def collate(self, examples: Sequence[Example], inputs: Inputs, known: Labels, config: Config) -> Batch:
        """Turn examples into tensors on the CPU.

        The gold tensors are None if an example has no gold label, or one that is not known.
        """

    def augment(self, example: Example, config: Config, rng: random.Random) -> Example:
        """Return the version of an example used in one epoch. The default is the whole example."""
        return example

    @abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction], config: Config) -> dict[str, float]:
        """Compute the official scores, in percent."""

    @abstractmethod
    def to_record(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """Return a prediction as plain values for JSON."""

    @abstractmethod
    def to_text(self, example: Example, prediction: Prediction) -> str:
        """Return a prediction as text to read."""


AnyTask = Task[Any, Any, Any, Any]


@dataclass(frozen=True)
class TaskSetup:
    """What the training of every seed shares, and what a trained model needs to predict."""

    task: AnyTask
    config: Any
    inputs: Inputs
    labels: Labels
    device: torch.device

    def build(
        self, initial_vectors: Mapping[str, Tensor] | None = None, bilm: ElmoModule | None = None
    ) -> TaskModel[Any, Any]:
        """Build a new model on the CPU.

        Args:
            initial_vectors: The initial values of word tables that have pretrained vectors.
            bilm: The biLM inside the model, if it is trained.
        """
        self.task.check_inputs(self.config)
        tables = self.task.word_configs(self.config)
        layer = InputLayer(self.inputs, tables, self.config.chars, self.config.elmo, initial_vectors, bilm)
        model: TaskModel[Any, Any] = self.task.build(self.config, layer, self.labels)
        return model

    def batch(self, examples: Sequence[Any], model: TaskModel[Any, Any]) -> Any:
        """Turn examples into a batch on the device, with the layers of the biLM if there is one inside the model."""
        batch = move_to(self.task.collate(examples, self.inputs, self.labels, self.config), self.device)
        if model.inputs.elmo is None:
            return batch
        # Here and not in `InputLayer.forward`, because several mixes read the layers of one batch.
        return map_batch(batch, TokenBatch, model.inputs.with_layers)

    def predict_with(
        self,
        model: TaskModel[Any, Any],
        examples: Sequence[Any],
        progress: ProgressCallback | None = None,
        n_best: int | None = None,
    ) -> list[Any]:
        """Predict with a model, one prediction per example, in batches of examples of similar length.

        With ``n_best``, each prediction has the most probable ones as well, as in ``TaskModel.predict_best``.
        """
        lengths = [self.task.lengths(example) for example in examples]
        plan = list(_bounded(plan_batches(lengths, batch_size=self.config.train.batch_size), lengths))
        count = StageCounter(progress, "predict", len(examples))
        results = []
        model.eval()
        with torch.no_grad():
            for indices in plan:
                batch = self.batch([examples[index] for index in indices], model)
                results.append(model.predict(batch) if n_best is None else model.predict_best(batch, n_best))
                count(len(indices))
        return restore_order(plan, results)


def _bounded(plan: Iterable[list[int]], lengths: Sequence[tuple[int, ...]]) -> Iterator[list[int]]:
    """Divide batches whose longest example would multiply the memory of all: attention is quadratic in its length."""
    for batch in plan:
        first = 0
        while first < len(batch):
            longest = max([1, *lengths[batch[first]]])  # the first one, as `plan_batches` sorts
            stop = first + max(1, MAX_SQUARES // longest**2)
            yield batch[first:stop]
            first = stop
