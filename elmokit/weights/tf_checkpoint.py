"""bilm-tf's training checkpoints, read without TensorFlow.

A folder with ``checkpoint`` (text: the newest step), ``options.json``, ``model.ckpt-N.index`` and
``model.ckpt-N.data-*``; ``vocab.txt`` often beside it. DeepPavlov keeps ``options.json`` and ``vocab.txt`` above
``saves/model.*`` and ``saves/epochs/N/model.*``; its file names and its variables are those of bilm-tf.

Unlike the exported HDF5 a checkpoint holds the softmax and the optimizer's Adagrad sums.

Names: ``lm/`` before everything; the LSTMs under TensorFlow 1.2's names, with ``multi_rnn_cell/cell_L`` left out when
there is one layer and ``RNN_D`` when there is one direction. The dump script of bilm-tf makes the published names of
them, and so does this file; layouts are those of ``bilm_tf``. Checked against a checkpoint that bilm-tf wrote and its
own dump of it (one layer, two directions). From the description alone: several layers, one direction, word input.
Inferred: ``weights`` and ``biases`` for ``kernel`` and ``bias``, which TensorFlow 1.0 and 1.1 wrote.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path, PureWindowsPath

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.bilm import BiLM
from elmokit.errors import FormatError, ModelNotFoundError, TensorMismatchError
from elmokit.nn.char_cnn import WordEmbedding
from elmokit.nn.softmax import FullSoftmax, TiedSoftmax
from elmokit.text.vocabulary import Vocabulary
from elmokit.weights import bilm_tf
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.table import Shape, TensorRow, fill
from elmokit.weights.tf_bundle import INDEX_SUFFIX, TensorBundle, is_index
from elmokit.weights.words import NAMES, row_vocabulary

FAMILY = "tf-checkpoint"
ADAGRAD_START = 1.0
"""bilm-tf's first value of every sum; given to the rows of tables that only we have."""

_SCOPE = "lm/"
_ADAGRAD = "/Adagrad"
_SOFTMAX = "softmax/"
_TRAINING = ("global_step", "train_perplexity", "beta1_power", "beta2_power")
_SLOTS = (_ADAGRAD, "/Adam", "/Adam_1", "/ExponentialMovingAverage", "/Momentum")
_INNER_FOLDER = re.compile(r"saves|epochs|tf_checkpoint|\d+")  # options and vocabulary may stand above these

_LSTM = re.compile(
    r"(?:RNN_(?P<direction>\d+)/)?(?:RNN/MultiRNNCell/Cell(?P<hub_layer>\d+)/)?rnn/"
    r"(?:multi_rnn_cell/cell_(?P<layer>\d+)/)?lstm_cell/(?P<part>.+)"
)
_LSTM_PARTS = {
    "kernel": "W_0",
    "weights": "W_0",
    "bias": "B",
    "biases": "B",
    "projection/kernel": "W_P_0",
    "projection/weights": "W_P_0",
}


@dataclass
class Checkpoint:
    """A model in the state of its training."""

    model: PretrainedBiLM
    step: int | None
    """Training steps so far, where the checkpoint tells."""
    adagrad: dict[str, Tensor] = field(default_factory=dict)
    """Where asked for: the sums of squared gradients by the names of our parameters, in our layout. Those of the
    softmax start with ``softmax.``, as in a run's own checkpoints."""


def load(
    path: str | Path,
    options: str | Path | None = None,
    *,
    step: int | None = None,
    vocabulary: str | Path | None = None,
) -> PretrainedBiLM:
    """Open the biLM of a checkpoint, with its softmax where there is a vocabulary. Arguments as in ``read``."""
    return read(path, options, step=step, vocabulary=vocabulary).model


def read(
    path: str | Path,
    options: str | Path | None = None,
    *,
    step: int | None = None,
    vocabulary: str | Path | None = None,
    adagrad: bool = False,
) -> Checkpoint:
    """Open a checkpoint.

    Args:
        path: its folder; its ``checkpoint`` or ``.index`` file; or what stands before ``.index``.
        options: the options file, where it is not ``options.json`` in the folder or above.
        step: which of several checkpoints; None for the newest.
        vocabulary: the words of the softmax, where the file is not ``vocab*.txt`` or ``vocab*.txt.gz`` in the folder
            or above. Without a vocabulary the softmax is left out, and the card says so.
        adagrad: read the optimizer's sums too.

    Raises:
        ModelNotFoundError: a file or the step is missing.
        FormatError, TensorMismatchError, ConfigError: a file is damaged or of another kind, or they do not belong
            together: above all, the vocabulary's words are not as many as the softmax's rows.
    """
    prefix = find(Path(path), step)
    if prefix is None:
        raise ModelNotFoundError(f"There is no TensorFlow checkpoint at {path}: no .index file of one.")
    bundle = TensorBundle(prefix)
    names = _published_names(bundle)
    options = options or _in_or_above(prefix, "options.json")
    if options is None:
        raise ModelNotFoundError(
            f"{prefix} has no options.json beside it. Put the options of the training run there, or name them."
        )
    shapes = {name: bundle.entries[variable].shape for name, variable in names.items()}
    lm_shapes = {name: shape for name, shape in shapes.items() if not name.startswith(_SOFTMAX)}
    config = bilm_tf.config_from_options(bilm_tf.read_options(options), lm_shapes, str(options))
    rows = bilm_tf.table(config)

    def read_tensor(name: str) -> Tensor:
        return as_tensor(bundle, names[name])

    with torch.device("meta"):
        bilm = BiLM(config)
    fill(bilm, rows, lm_shapes, read_tensor, f"{prefix} (sizes from {options})")
    n_steps = _step(bundle, prefix)
    model = PretrainedBiLM(bilm, FAMILY, source=prefix, card={} if n_steps is None else {"training_steps": n_steps})
    places = (_in_or_above(prefix, pattern) for pattern in (*NAMES, "vocab*.txt", "vocab*.txt.gz"))
    vocabulary = vocabulary or next((place for place in places if place is not None), None)
    if vocabulary is None:
        model.card["softmax"] = "left out: there is no vocabulary beside the checkpoint"
    else:
        model.vocabulary = _vocabulary(Path(vocabulary))
        if f"{_SOFTMAX}b" not in names:
            if config.n_words is not None:
                model.vocabulary = row_vocabulary(Path(vocabulary), config.n_words, f"the table of {prefix}")
            model.card["softmax"] = "left out: the checkpoint holds none"
        else:
            model.softmax = _softmax(model, names, shapes, read_tensor, f"{prefix} (words from {vocabulary})")
    sums: dict[str, Tensor] = {}
    if adagrad:
        sums |= _adagrad(bundle, names, bilm, rows)
        if model.softmax is not None:
            softmax_sums = _adagrad(bundle, names, model.softmax, _softmax_rows(names))
            sums |= {f"softmax.{name}": tensor for name, tensor in softmax_sums.items()}
    return Checkpoint(model, n_steps, sums)


def find(path: Path, step: int | None = None) -> Path | None:
    """What stands before ``.index`` of a checkpoint at a path, or None where there is none.

    Raises:
        ModelNotFoundError: there are checkpoints, but not of that step.
    """
    if path.name.endswith(INDEX_SUFFIX) and path.is_file():
        return path.with_name(path.name.removesuffix(INDEX_SUFFIX))
    if path.name and path.with_name(path.name + INDEX_SUFFIX).is_file():
        return path
    folder = path.parent if path.name == "checkpoint" and path.is_file() else path
    epochs = sorted((folder / "saves" / "epochs").glob("[0-9]*"), key=lambda epoch: _number(epoch.name) or 0)
    for place in (folder, folder / "saves", *reversed(epochs)):
        prefixes = [file.with_name(file.name.removesuffix(INDEX_SUFFIX)) for file in place.glob(f"*{INDEX_SUFFIX}")]
        if found := [prefix for prefix in sorted(prefixes) if _is_bundle(prefix)]:
            return _chosen(place, found, step)
    return None


def is_named_by(path: Path) -> bool:
    """Whether a path names one checkpoint: its ``checkpoint`` or ``.index`` file, or what stands before ``.index``."""
    if path.is_file():
        return path.name == "checkpoint" or path.name.endswith(INDEX_SUFFIX)
    return not path.exists() and path.with_name(path.name + INDEX_SUFFIX).is_file()


def _is_bundle(prefix: Path) -> bool:
    """Whether a bundle stands there; a damaged one counts, so that the error can say so."""
    return is_index(prefix.with_name(prefix.name + INDEX_SUFFIX)) or any(
        prefix.parent.glob(f"{escape(prefix.name)}.data-*")
    )


def as_tensor(bundle: TensorBundle, name: str) -> Tensor:
    """A variable as a tensor with memory of its own."""
    return torch.from_numpy(np.array(bundle.read(name), dtype=np.float32))


def lstm_name(name: str) -> str | None:
    """The published name of an LSTM's variable, or None for another's; one direction or layer counts as number 0."""
    match = _LSTM.fullmatch(name)
    part = _LSTM_PARTS.get(match["part"]) if match else None
    if match is None or part is None:
        return None
    layer = match["layer"] or match["hub_layer"] or 0
    return f"RNN_{match['direction'] or 0}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{part}"


def _chosen(folder: Path, found: list[Path], step: int | None) -> Path:
    """The checkpoint of the step, the one that ``checkpoint`` names, or the one with the highest number."""
    by_name = {prefix.name: prefix for prefix in found}
    if step is not None:
        wanted = [prefix for prefix in found if _number(prefix.name) == step]
        if not wanted:
            raise ModelNotFoundError(f"{folder} has no checkpoint of step {step}; there are {', '.join(by_name)}.")
        return wanted[0]
    try:
        text = (folder / "checkpoint").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    match = re.search(r'^model_checkpoint_path:\s*"([^"]*)"', text, re.MULTILINE)
    # It may be a full path of the machine where it was trained, with slashes of either kind.
    newest = by_name.get(PureWindowsPath(match[1]).name) if match else None
    return newest or max(found, key=lambda prefix: (_number(prefix.name) or -1, prefix.name))


def _number(name: str) -> int | None:
    match = re.search(r"(\d+)$", name)
    return int(match[1]) if match else None


def _in_or_above(prefix: Path, pattern: str) -> Path | None:
    """The one file of a pattern in the checkpoint's folder, or above it where the folder is one of several."""
    folder = prefix.absolute().parent
    while True:
        files = sorted(folder.glob(pattern))
        if len(files) == 1:
            return files[0]
        if not _INNER_FOLDER.fullmatch(folder.name):
            return None
        folder = folder.parent


def _published_names(bundle: TensorBundle) -> dict[str, str]:
    """The variable of each published name; what only training needs is left out."""
    names: dict[str, str] = {}
    for variable in bundle.entries:
        if variable not in _TRAINING and not variable.endswith(_SLOTS):
            inner = variable.removeprefix(_SCOPE)
            names[lstm_name(inner) or inner] = variable
    if not any("/LSTMCell/" in name for name in names):
        some = ", ".join(list(bundle.entries)[:3]) or "no variable"
        raise FormatError(f"{bundle.prefix} is a TensorFlow checkpoint, but not of an ELMo: it holds {some} ...")
    return names


def _step(bundle: TensorBundle, prefix: Path) -> int | None:
    entry = bundle.entries.get("global_step")
    if entry is None or entry.shape != ():
        return _number(prefix.name)
    step = float(bundle.read("global_step"))
    return int(step) if math.isfinite(step) else None


def _vocabulary(path: Path) -> Vocabulary:
    try:
        return Vocabulary.from_file(path)
    except FormatError as error:
        raise FormatError(f"{error} Or take the file away to open the model without its softmax.") from None


def _softmax_rows(names: dict[str, str]) -> list[TensorRow]:
    """The softmax's own tensors: without a weight where training tied it to the table of words."""
    bias = TensorRow("bias", f"{_SOFTMAX}b")
    return [TensorRow("weight", f"{_SOFTMAX}W"), bias] if f"{_SOFTMAX}W" in names else [bias]


def _softmax(
    model: PretrainedBiLM,
    names: dict[str, str],
    shapes: dict[str, Shape],
    read_tensor: Callable[[str], Tensor],
    what: str,
) -> FullSoftmax | TiedSoftmax:
    rows = _softmax_rows(names)
    vocabulary = model.vocabulary
    assert vocabulary is not None
    for row in rows:
        n_rows = shapes.get(row.theirs, (len(vocabulary),))[:1]
        if n_rows != (len(vocabulary),):
            raise TensorMismatchError(
                f"{what}: the vocabulary has {len(vocabulary)} words and {row.theirs} {n_rows[0] if n_rows else 0} "
                "rows. Put the vocabulary that the model was trained with in its place, or take it away to open the "
                "model without its softmax."
            )
    layer = model.bilm.token_layer
    softmax: FullSoftmax | TiedSoftmax
    if len(rows) == 1 and isinstance(layer, WordEmbedding):
        softmax = TiedSoftmax(layer.embedding)
    else:
        rows = [TensorRow("weight", f"{_SOFTMAX}W"), rows[-1]]  # a character model has nothing to be tied to
        with torch.device("meta"):
            softmax = FullSoftmax(len(vocabulary), model.bilm.config.projection_dim)
    own_shapes = {row.theirs: shapes[row.theirs] for row in rows if row.theirs in shapes}
    fill(softmax, rows, own_shapes, read_tensor, what)
    return softmax


def _adagrad(
    bundle: TensorBundle, names: dict[str, str], module: nn.Module, rows: list[TensorRow]
) -> dict[str, Tensor]:
    """The sums of squared gradients of a module's parameters, by their names in it."""
    sums: dict[str, Tensor] = {}
    for row in rows:
        theirs = next(name for name in (row.theirs, *row.also) if name in names)
        slot = names[theirs] + _ADAGRAD
        if slot not in bundle.entries or bundle.entries[slot].shape != bundle.entries[names[theirs]].shape:
            raise TensorMismatchError(f"{bundle.prefix} holds no Adagrad sums for {names[theirs]}.")
        tensor = row.layout.to_ours(as_tensor(bundle, slot)).contiguous()
        if row.layout is bilm_tf.WITHOUT_ZERO_ROW:
            tensor[0] = ADAGRAD_START  # Adagrad divides by the root of it
        sums[row.ours] = tensor
    return sums
