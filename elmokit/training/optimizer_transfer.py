"""Take over the optimizer's state when the training of a model is continued on other text.

Adagrad divides each step by the root of the sum of all earlier squared gradients, so after a long training its steps
are small. A new optimizer starts with a sum of 1 for each weight: its first steps are many times larger, and undo part
of what the model has learned. The ``restart.py`` of bilm-tf restores the sums with the weights. The functions below do
the same, from checkpoints of bilm-tf and of elmokit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from elmokit.errors import TrainingError
from elmokit.formats import tf_checkpoint
from elmokit.formats.archives import is_archive, unpacked_model
from elmokit.formats.folder import RUN_MODEL
from elmokit.formats.model import PretrainedBiLM
from elmokit.network.tensors import tensor_of
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.optimizers import SLOTS
from elmokit.training.run import CHECKPOINTS, Run, RunCheckpoint
from elmokit.training.setup import SETTINGS

COUNTER = "step"  # Adam's number of steps, a single number for each weight tensor


@dataclass(frozen=True)
class OptimizerState:
    """The state of an optimizer, as it is stored in a checkpoint."""

    tensors: Mapping[str, Tensor]
    """By ``SLOT/PARAMETER``, with the names of ``WindowLosses``: ``sum/bilm.token_layer.projection.bias``."""
    source: str
    """The checkpoint that it comes from."""

    @property
    def slots(self) -> set[str]:
        """What the optimizer keeps for each weight: the keys of an entry of ``SLOTS``."""
        return {key.split("/", 1)[0] for key in self.tensors} - {COUNTER}


def read_optimizer_state(model: PretrainedBiLM, optimizer: str) -> OptimizerState:
    """Read the optimizer's state of exactly these weights from the checkpoint that a model was opened from."""
    state = None if model.source is None else _read(model, model.source)
    if state is None:
        raise TrainingError(
            f"{model.source or 'The model'} is not a training checkpoint of bilm-tf or elmokit "
            f"(RUN/{CHECKPOINTS}/step-N), so there is no optimizer's state to keep."
        )
    if state.slots != set(SLOTS[optimizer]):
        fitting = [name for name, slots in SLOTS.items() if set(slots) == state.slots] or ["another one"]
        raise TrainingError(
            f"{state.source} has the state of the optimizer {' or '.join(fitting)}, not of {optimizer}, so it cannot "
            "be kept (--no-keep-optimizer)."
        )
    return state


def _read(model: PretrainedBiLM, path: Path) -> OptimizerState | None:
    with _folder_of(path) as source:
        if (own := _own_checkpoint(source, model)) is not None:
            with own.errors("Its optimizer's state cannot be kept."):
                return OptimizerState(own.tensors("optimizer"), str(own.path))
        prefix = tf_checkpoint.find_checkpoint(source) or tf_checkpoint.find_checkpoint(source.parent)
        if prefix is None:
            return None
        sums = tf_checkpoint.read_adagrad(prefix, model)
    tensors = {
        f"sum/{name if name.startswith('softmax.') else f'bilm.{name}'}": tensor_of(array)
        for name, array in sums.items()
    }
    return OptimizerState(tensors, str(prefix if source == path else path))


@contextmanager
def _folder_of(source: Path) -> Iterator[Path]:
    """Yield a model's path; for an archive, a temporary directory with its content."""
    if source.is_file() and is_archive(source):
        with unpacked_model(source) as archive:
            yield archive.folder
    else:
        yield source


def _own_checkpoint(source: Path, model: PretrainedBiLM) -> RunCheckpoint | None:
    """Find the checkpoint of elmokit that holds a model; None if it is not from one."""
    if (source.parent / "optimizer.safetensors").is_file():
        return RunCheckpoint(source.parent)
    if source.name != RUN_MODEL or not (source.parent / SETTINGS).is_file():
        return None
    # The best model of a run: only the checkpoint of the same step has an optimizer's state that fits its weights.
    run, step = Run(source.parent), model.card.get("n_steps")
    if isinstance(step, int) and (checkpoint := run.checkpoint_at(step)).path.is_dir():
        return checkpoint
    kept = ", ".join(str(checkpoint.path) for checkpoint in run.checkpoints()) or "none"
    raise TrainingError(
        f"The best model of {run.path} is from step {step}, whose optimizer's state is no longer kept. Continue from a "
        f"checkpoint instead (there is {kept}), or pass --no-keep-optimizer."
    )


def transfer_optimizer_state(
    state: OptimizerState, optimizer: str, old: PretrainedBiLM, new: PretrainedBiLM
) -> tuple[dict[str, Tensor], str]:
    """Convert an optimizer's state to the same model over another vocabulary, and say what was kept.

    As in ``softmax_transfer``, rows of known words are kept; new rows get the state that a new optimizer starts from.
    """
    softmax = new.softmax_module
    shapes = {f"bilm.{name}": value.shape for name, value in new.bilm.named_parameters()}
    if softmax is not None:
        shapes |= {f"softmax.{name}": value.shape for name, value in softmax.named_parameters()}
    word_table = f"bilm.{new.config.word_table}"
    has_new_inner = (
        old.softmax is not None
        and new.softmax is not None
        and (old.softmax.config.inner_dim != new.softmax.config.inner_dim)
    )
    tensors: dict[str, Tensor] = {}
    n_words = 0
    for key, value in state.tensors.items():
        slot, name = key.split("/", 1)
        if name not in shapes:
            continue
        if has_new_inner and name.startswith("softmax.inner."):
            continue
        has_rows = name == word_table or re.fullmatch(r"softmax\.(weight|bias)", name) is not None
        if has_rows and slot != COUNTER and new.vocabulary is not old.vocabulary and old.vocabulary and new.vocabulary:
            value = _transferred_rows(value, SLOTS[optimizer][slot], old.vocabulary, new.vocabulary, name == word_table)
            n_words = sum(word in old.vocabulary.ids for word in new.vocabulary.words)
        tensors[key] = value
    described = f"The optimizer continues with the state of {state.source}"
    if not any("/softmax." in key for key in tensors):
        return tensors, f"{described}; for the softmax it starts anew."
    if n_words:
        assert new.vocabulary is not None
        return tensors, f"{described}, for {n_words:,} of {len(new.vocabulary):,} words; for the others it starts anew."
    return tensors, f"{described}."


def _transferred_rows(table: Tensor, start: float, old: Vocabulary, new: Vocabulary, has_no_token: bool) -> Tensor:
    rows = table[1:] if has_no_token else table  # the first row belongs to no word
    ids = torch.tensor([old.ids.get(word, -1) for word in new.words])
    kept = rows[ids.clamp(min=0)]
    kept[ids < 0] = start
    return torch.cat([table[:1], kept]) if has_no_token else kept
