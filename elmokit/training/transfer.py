"""What fine-tuning takes over from a trained model: its softmax, for the words of another text, and its optimizer.

A softmax predicts the words of its training text. For a new text, the vocabulary usually changes, and published models
come without a softmax. The large initial gradients of a random softmax would damage the biLM, so as much as possible is
kept:

* words of the old softmax keep their weights and biases;
* an inner layer of the same size is kept, and a new one has no effect at first;
* new words start as ``<UNK>``, which the old softmax predicted for them, and share its probability in proportion to
  their frequency;
* without an old softmax, biases start as the log word frequencies, which is the best context-free prediction.

Adagrad divides each step by the root of the sum of all earlier squared gradients, so its steps are small after long
training. A new optimizer starts with a sum of 1 for each weight: its first steps are many times larger, and undo part
of what the model has learned. bilm-tf's ``restart.py`` restores the sums with the weights. The functions below do the
same, from checkpoints of bilm-tf and elmokit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import FormatError, ModelNotFoundError, TrainingError
from elmokit.formats import tf_checkpoint
from elmokit.formats.archives import is_archive, unpacked_model
from elmokit.formats.folder import RUN_MODEL
from elmokit.network.bilm import BiLM
from elmokit.network.softmax_module import FullSoftmax, SoftmaxModule, build_softmax, softmax_config
from elmokit.network.tensors import tensor_of
from elmokit.pretrained.model import PretrainedBiLM, Weights
from elmokit.storage.workspace import read_workspace
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.optimizers import SLOTS
from elmokit.training.training_run import CHECKPOINTS, RunCheckpoint, checkpoint_at, checkpoints

NOISE = 0.1  # in a new row, relative to the size of a fresh row, because copies of <UNK> must become different


def with_softmax_over(
    model: PretrainedBiLM,
    vocabulary: Vocabulary,
    counts: Mapping[str, int],
    n_sentences: int,
    softmax: SoftmaxConfig | None = None,
    seed: int = 0,
) -> PretrainedBiLM:
    """Return the model with a softmax over another vocabulary, as described in the module's docstring.

    A word-input model gets a word table by the same rules as a softmax.
    """
    _check_words(model)
    if softmax is None:
        softmax = SoftmaxConfig() if model.softmax is None else model.softmax.config
    has_words = model.vocabulary is not None and model.vocabulary.words == vocabulary.words
    if has_words and model.softmax is not None and model.softmax.config == softmax:
        return model
    bilm, old = model.build_modules()
    changes: dict[str, Any] = {"vocabulary": vocabulary}
    # A separate generator, so drawing here does not affect the random numbers of the training.
    generator = torch.Generator().manual_seed(seed)
    if model.vocabulary is not None and not has_words and model.config.word_table is not None:
        # The words are also the model's input here: its table must have the rows of the new words before a tied softmax
        # uses it.
        bilm = changes["weights"] = _with_words(bilm, model.vocabulary, vocabulary, generator)
    new = build_softmax(softmax, len(vocabulary), bilm.config.projection_dim, bilm.token_layer)
    new.reset_parameters(generator)
    frequencies = _frequencies(vocabulary, counts, n_sentences, bilm.config.read_backward)
    with torch.no_grad():
        new.bias.copy_(frequencies.log())
        if old is not None and model.vocabulary is not None:
            _transfer(old, model.vocabulary, new, vocabulary, frequencies, generator)
    return model.replace(softmax=new, **changes)


def _check_words(model: PretrainedBiLM) -> None:
    """Refuse a word-input model without its word list."""
    if model.config.word_table is not None and model.vocabulary is None:
        raise ModelNotFoundError(
            f"{model.source} reads words but has no vocabulary. Put its vocab.txt next to the weights."
        )


def describe_transfer(old: PretrainedBiLM, new: PretrainedBiLM) -> tuple[bool, str]:
    """Return whether :func:`with_softmax_over` initialized any weights randomly, and a description for the user."""
    assert new.vocabulary is not None
    assert new.softmax is not None
    is_random, text = _describe_words(old, new, new.vocabulary)
    inner_dim = new.softmax.config.inner_dim
    if old.softmax is not None and old.softmax.config.inner_dim != inner_dim:
        text += f"; its inner layer of {inner_dim:,} units is new" if inner_dim else "; its inner layer is left out"
        is_random = is_random or inner_dim > 0
    return is_random, text


def _describe_words(old: PretrainedBiLM, new: PretrainedBiLM, vocabulary: Vocabulary) -> tuple[bool, str]:
    n_words = len(vocabulary)
    if new.softmax is old.softmax:
        return False, f"the softmax over {n_words:,} words is the model's own"
    if new.softmax is not None and new.softmax.config.kind == "tied":
        return False, f"the softmax over {n_words:,} words takes its weights from the word table"
    if old.softmax is None or old.vocabulary is None:
        return True, f"the model has no softmax: a new one over {n_words:,} words is initialized"
    n_kept = sum(word in old.vocabulary.ids for word in vocabulary.words)
    others = "; the others start as <UNK>" if n_kept < n_words else ""
    return False, f"the softmax keeps the weights of {n_kept:,} of {n_words:,} words{others}"


def softmax_words(model: PretrainedBiLM) -> Vocabulary | None:
    """Return the words of a model's softmax or word table; None if it has neither."""
    if model.vocabulary is None or (model.softmax is None and model.config.word_table is None):
        return None
    try:
        return Vocabulary(model.vocabulary.words)
    except FormatError as error:
        raise FormatError(
            f"The words of {model.source} are not a valid vocabulary: {error} Or choose other words with "
            "vocabulary or max_words."
        ) from None


def _frequencies(
    vocabulary: Vocabulary, counts: Mapping[str, int], n_sentences: int, read_backward: Sequence[bool]
) -> Tensor:
    """Estimate how often each word is predicted, over all directions, with one added to each count."""
    listed = torch.tensor([counts.get(word, 0) for word in vocabulary.words], dtype=torch.float64)
    # Every token outside the list is a prediction of <UNK>.
    listed[vocabulary.unknown_id] += sum(counts.values()) - float(listed.sum())
    for backward in read_backward:  # each direction has its own end
        end = vocabulary.begin_id if backward else vocabulary.end_id
        listed[end] += n_sentences / len(read_backward)
    listed += 1  # because the bias of a word with no occurrences would be log 0
    return (listed / listed.sum()).float()


@torch.no_grad()
def _transfer(
    old: SoftmaxModule,
    old_words: Vocabulary,
    new: SoftmaxModule,
    new_words: Vocabulary,
    frequencies: Tensor,
    generator: torch.Generator,
) -> None:
    """Copy weights and biases by word."""
    old_ids = _former_ids(old_words, new_words)
    old_bias, old_unknown = old.bias.detach().cpu(), old_words.unknown_id
    # The old <UNK> represented the new words and those that are still unknown. Split its probability among them by
    # adding the logarithm of each word's share to its logit.
    shares_unknown = old_ids < 0
    shares_unknown[new_words.unknown_id] = True
    # Without <UNK>, the mean is the best estimate.
    unknown_bias = old_bias[old_unknown] if old_unknown >= 0 else old_bias.mean()
    shared_bias = unknown_bias + (frequencies / frequencies[shares_unknown].sum()).log()
    new.bias.copy_(torch.where(shares_unknown, shared_bias, old_bias[old_ids.clamp(min=0)]))
    same_inner = softmax_config(old).inner_dim == softmax_config(new).inner_dim
    if same_inner and old.inner is not None and new.inner is not None:
        new.inner.load_state_dict(old.inner.state_dict())
    if isinstance(new, FullSoftmax):
        new.weight.copy_(_transferred_rows(old.weight.detach().cpu(), old_ids, old_unknown, generator))


def _transferred_rows(table: Tensor, old_ids: Tensor, unknown: int, generator: torch.Generator) -> Tensor:
    """Return the rows of known words; words with id -1 get the row of ``<UNK>`` plus noise."""
    unknown_row = table[unknown] if unknown >= 0 else table.mean(dim=0)
    # Drawn for all rows, so a row's noise does not depend on which other words are known.
    noise = torch.randn(len(old_ids), table.shape[1], generator=generator) * NOISE * table.shape[1] ** -0.5
    return torch.where(old_ids[:, None] >= 0, table[old_ids.clamp(min=0)], unknown_row + noise)


def _with_words(bilm: BiLM, old_words: Vocabulary, new_words: Vocabulary, generator: torch.Generator) -> BiLM:
    """Return a word-input model with another word list."""
    name = bilm.config.word_table
    assert name is not None
    table = bilm.state_dict()[name]
    old_ids = _former_ids(old_words, new_words)
    rows = _transferred_rows(table[1:], old_ids, old_words.unknown_id, generator)  # row 0 means "no token"
    with torch.device("meta"):
        new = BiLM(bilm.config.with_table_words(len(new_words)))
    # Row 0 of the table is "no token" and belongs to no word.
    no_token = torch.zeros_like(table[:1])
    tensors = {**bilm.state_dict(), name: torch.cat([no_token, rows])}
    new.load_state_dict(tensors, assign=True)
    return new.requires_grad_()


def with_dropout(model: PretrainedBiLM, dropout: float) -> PretrainedBiLM:
    """Return the model with another dropout and the same weights."""
    config = dataclasses.replace(model.config, dropout=dropout)
    return model.replace(weights=Weights(config, model.arrays), token_table=model.token_table)


COUNTER = "step"  # Adam's number of steps, a single number for each weight tensor


@dataclass(frozen=True)
class OptimizerState:
    """The state of an optimizer, as stored in a checkpoint."""

    tensors: Mapping[str, Tensor]
    """By ``SLOT/PARAMETER``, with the names of ``WindowLosses``: ``sum/bilm.token_layer.projection.bias``."""
    source: str
    """The checkpoint that it comes from."""

    @property
    def slots(self) -> set[str]:
        """The optimizer's slots for each weight: the keys of an entry in ``SLOTS``."""
        return {key.split("/", 1)[0] for key in self.tensors} - {COUNTER}


def read_optimizer_state(model: PretrainedBiLM, optimizer: str) -> OptimizerState:
    """Read the optimizer state for exactly these weights from the checkpoint that a model was opened from."""
    state = None if model.source is None else _read(model, model.source)
    if state is None:
        raise TrainingError(
            f"{model.source or 'The model'} is not a training checkpoint of bilm-tf or elmokit "
            f"(RUN/{CHECKPOINTS}/step-N), so there is no optimizer state to keep."
        )
    if state.slots != set(SLOTS[optimizer]):
        fitting = [name for name, slots in SLOTS.items() if set(slots) == state.slots]
        found = " or ".join(fitting) or "another one"
        raise TrainingError(
            f"{state.source} has the state of the optimizer {found}, not of {optimizer}, so it cannot "
            "be kept (--no-keep-optimizer)."
        )
    return state


def _read(model: PretrainedBiLM, path: Path) -> OptimizerState | None:
    with _folder_of(path) as source:
        own = _own_checkpoint(source, model)
        if own is not None:
            with own.errors("Its optimizer state cannot be kept."):
                return OptimizerState(own.tensors("optimizer"), str(own.path))
        prefix = tf_checkpoint.find_checkpoint(source) or tf_checkpoint.find_checkpoint(source.parent)
        if prefix is None:
            return None
        sums = tf_checkpoint.read_adagrad(prefix, model)
    tensors = {}
    for name, array in sums.items():
        own_name = name if name.startswith("softmax.") else f"bilm.{name}"
        tensors[f"sum/{own_name}"] = tensor_of(array)
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
    """Find the elmokit checkpoint that holds a model; None if it is not from one."""
    if (source.parent / "optimizer.safetensors").is_file():
        return RunCheckpoint(source.parent)
    run = source.parent
    if source.name != RUN_MODEL or read_workspace(run) is None:
        return None
    # For the best model of a run, only the checkpoint of the same step has a matching optimizer state.
    step = model.card.get("n_steps")
    if isinstance(step, int):
        checkpoint = checkpoint_at(run, step)
        if checkpoint.path.is_dir():
            return checkpoint
    kept = ", ".join(str(checkpoint.path) for checkpoint in checkpoints(run)) or "none"
    raise TrainingError(
        f"The best model of {run} is from step {step}, whose optimizer state is no longer stored. Continue from a "
        f"checkpoint instead (available: {kept}), or pass --no-keep-optimizer."
    )


def transfer_optimizer_state(
    state: OptimizerState, optimizer: str, old: PretrainedBiLM, new: PretrainedBiLM
) -> tuple[dict[str, Tensor], str]:
    """Convert an optimizer state to the same model with another vocabulary, and describe what was kept.

    As for the softmax, rows of known words are kept; new rows get the initial state of a new optimizer.
    """
    names = _kept_names(old, new)
    word_table = f"bilm.{new.config.word_table}"
    word_ids = _changed_word_ids(old, new)
    tensors: dict[str, Tensor] = {}
    n_words = 0
    for key, value in state.tensors.items():
        slot, name = key.split("/", 1)
        if name not in names:
            continue
        has_rows = name in (word_table, "softmax.weight", "softmax.bias") and slot != COUNTER
        if word_ids is not None and has_rows:
            value = _transferred_state(value, SLOTS[optimizer][slot], word_ids, has_no_token=name == word_table)
            n_words = int((word_ids >= 0).sum())
        tensors[key] = value
    described = f"The optimizer continues with the state of {state.source}"
    if not any("/softmax." in key for key in tensors):
        return tensors, f"{described}; for the softmax, it is reset."
    if word_ids is not None and n_words:
        return tensors, f"{described}, for {n_words:,} of {len(word_ids):,} words; for the others, it is reset."
    return tensors, f"{described}."


def _kept_names(old: PretrainedBiLM, new: PretrainedBiLM) -> set[str]:
    """Return the names of the weights whose optimizer state is kept: all except those of a new inner layer."""
    names = {f"bilm.{name}" for name in new.arrays}
    if new.softmax is None:
        return names
    has_new_inner = old.softmax is not None and old.softmax.config.inner_dim != new.softmax.config.inner_dim
    for name in new.softmax.arrays:
        if not (has_new_inner and name.startswith("inner.")):
            names.add(f"softmax.{name}")
    return names


def _changed_word_ids(old: PretrainedBiLM, new: PretrainedBiLM) -> Tensor | None:
    """Return the former id of each word in a new vocabulary, -1 for new words; None if the vocabulary is the same."""
    if old.vocabulary is None or new.vocabulary is None or old.vocabulary is new.vocabulary:
        return None
    return _former_ids(old.vocabulary, new.vocabulary)


def _former_ids(old: Vocabulary, new: Vocabulary) -> Tensor:
    return torch.tensor([old.ids.get(word, -1) for word in new.words])


def _transferred_state(table: Tensor, start: float, former_ids: Tensor, has_no_token: bool) -> Tensor:
    """Return the state of the rows for a new vocabulary: the former state of each word, or ``start``."""
    rows = table[1:] if has_no_token else table  # the first row belongs to no word
    kept = rows[former_ids.clamp(min=0)]
    kept[former_ids < 0] = start
    return torch.cat([table[:1], kept]) if has_no_token else kept
