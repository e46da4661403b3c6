"""A task together with its config, vocabularies and labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elmokit.errors import FormatError
from elmokit.storage.progress import ProgressCallback
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch, map_batch, move_to
from elmokit.tasks.task import AnyTask, Labels, TaskModel
from elmokit.text.batching import plan_batches, restore_order

SMALL_MODEL = 1_000_000  # parameters: is built before its weights are looked at, for an error that names the tensors

MAX_SQUARES = 8_000_000
"""Examples of a predicted batch times the squared length of the longest: 32 examples of 500 tokens."""


@dataclass(frozen=True)
class TaskSetup:
    """What the training of every seed shares, and what a trained model needs to predict."""

    task: AnyTask
    config: Any
    inputs: Inputs
    labels: Labels
    device: torch.device

    def build(self, initial_vectors: Mapping[str, Tensor] | None = None) -> TaskModel[Any, Any]:
        """Build a new model on the CPU, with initial values for word tables that have pretrained vectors."""
        self.task.check_inputs(self.config)
        tables = self.task.word_configs(self.config)
        layer = InputLayer(self.inputs, tables, self.config.chars, self.config.elmo, initial_vectors)
        model: TaskModel[Any, Any] = self.task.build(self.config, layer, self.labels)
        return model

    def build_for(self, n_numbers: int, where: str) -> TaskModel[Any, Any]:
        """Build the model of a file of ``n_numbers`` weights, unless its config describes a much larger one."""
        with torch.device("meta"):  # sizes without memory
            n_parameters = sum(parameter.numel() for parameter in self.build().parameters())
        if n_parameters > max(2 * n_numbers, SMALL_MODEL):
            raise FormatError(
                f"{where} has {n_numbers:,} numbers, and its config describes a model of {n_parameters:,}. It is "
                "damaged, or the config is that of another model."
            )
        return self.build()

    def batch(self, examples: Sequence[Any], model: TaskModel[Any, Any]) -> Any:
        """Turn examples into a batch on the device, with the layers of the biLM if there is one inside the model."""
        batch = move_to(self.task.collate(examples, self.inputs, self.labels, self.config), self.device)
        if model.inputs.elmo is None:
            return batch
        # Here and not in `InputLayer.forward`, because several mixes read the layers of one batch.
        return map_batch(batch, TokenBatch, model.inputs.with_layers)

    def predict_with(
        self, model: TaskModel[Any, Any], examples: Sequence[Any], progress: ProgressCallback | None = None
    ) -> list[Any]:
        """Predict with a model, one prediction per example, in batches of examples of similar length."""
        lengths = [self.task.lengths(example) for example in examples]
        plan = list(_bounded(plan_batches(lengths, batch_size=self.config.train.batch_size), lengths))
        n_done, results = 0, []
        model.eval()
        with torch.no_grad():
            for indices in plan:
                results.append(model.predict(self.batch([examples[index] for index in indices], model)))
                n_done += len(indices)
                if progress is not None:
                    progress("predict", n_done, len(examples))
        return restore_order(plan, results)


def _bounded(plan: Iterable[list[int]], lengths: Sequence[Any]) -> Iterator[list[int]]:
    """Divide batches whose longest example would multiply the memory of all: attention is quadratic in its length."""
    for batch in plan:
        first = 0
        while first < len(batch):
            longest = lengths[batch[first]]  # the first one, as `plan_batches` sorts
            longest = max(longest) if isinstance(longest, tuple) else longest
            stop = first + max(1, MAX_SQUARES // max(1, longest) ** 2)
            yield batch[first:stop]
            first = stop
