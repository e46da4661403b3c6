"""Read bilm-tf's training checkpoints without TensorFlow.

A checkpoint is a directory with ``checkpoint`` (a text file that names the newest step), ``options.json``,
``model.ckpt-N.index`` and ``model.ckpt-N.data-*``, often with ``vocab.txt``. DeepPavlov keeps ``options.json`` and
``vocab.txt`` above ``saves/model.*`` and ``saves/epochs/N/model.*``; its file names and variables are those of bilm-tf.

Unlike exported HDF5 files, a checkpoint holds the softmax and the optimizer's Adagrad sums.

Names: every variable is under ``lm/``. The LSTMs have TensorFlow 1.2's names, without ``multi_rnn_cell/cell_L`` if
there is one layer and without ``RNN_D`` if there is one direction. bilm-tf's dump script translates them to the
published names, and so does this module; the layouts are those of ``bilm_tf``. This was checked against a checkpoint
that bilm-tf wrote and its own dump of it (one layer, two directions). Several layers, one direction and word input
follow the description alone. ``weights`` and ``biases`` for ``kernel`` and ``bias``, which TensorFlow 1.0 and 1.1
wrote, are inferred.
"""

from __future__ import annotations

import math
import re
from glob import escape
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np

from elmokit.engine.architecture import tensor_shapes
from elmokit.engine.softmax import SoftmaxConfig, WordSoftmax
from elmokit.engine.state import Floats
from elmokit.errors import ModelError, ModelNotFoundError, TensorMismatchError
from elmokit.formats import bilm_tf
from elmokit.formats.bilm_tf import bilm_tf_rows
from elmokit.formats.format import Format
from elmokit.formats.sidecars import OPTIONS, VOCABULARY_NAMES, given_or_found, visible_files
from elmokit.formats.tensor_rows import TensorRow, read_through
from elmokit.formats.tf_bundle import INDEX_SUFFIX, TensorBundle, is_index
from elmokit.pretrained.model import PretrainedBiLM, Weights
from elmokit.text.vocabulary import Vocabulary, row_vocabulary

ADAGRAD_START = 1.0
"""bilm-tf's initial value of all sums, also used for table rows that bilm-tf does not have."""

_SCOPE = "lm/"
_ADAGRAD = "/Adagrad"
_SOFTMAX = "softmax/"
_SOFTMAX_WEIGHT = TensorRow("weight", f"{_SOFTMAX}W")
_SOFTMAX_BIAS = TensorRow("bias", f"{_SOFTMAX}b")
# Variables that are not part of a model. Of the optimizer's state, only Adagrad sums can be read (`read_adagrad`).
_TRAINING = ("global_step", "train_perplexity", "beta1_power", "beta2_power")
# Optimizers and moving averages keep their variables under the name of the trained one, with one of these endings.
_SLOTS = (_ADAGRAD, "/Adam", "/Adam_1", "/ExponentialMovingAverage", "/Momentum")
_INNER_FOLDER = re.compile(r"saves|epochs|tf_checkpoint|\d+")  # options and vocabulary may be above these

_LSTM_PARTS = {
    "kernel": "W_0",
    "weights": "W_0",
    "bias": "B",
    "biases": "B",
    "projection/kernel": "W_P_0",
    "projection/weights": "W_P_0",
}
# Both spellings in use: checkpoints put the layer in the scope multi_rnn_cell/cell_L, the module of TensorFlow Hub in
# RNN/MultiRNNCell/CellL.
_LSTM = re.compile(
    r"(?:RNN_(?P<direction>\d+)/)?(?:RNN/MultiRNNCell/Cell(?P<hub_layer>\d+)/)?rnn/"
    rf"(?:multi_rnn_cell/cell_(?P<layer>\d+)/)?lstm_cell/(?P<part>{'|'.join(_LSTM_PARTS)})"
)


class _Variables:
    """The variables of a checkpoint under their published names, except those only needed for training."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.bundle = TensorBundle(prefix)
        self.names: dict[str, str] = {}
        """The variable of each published name."""
        for variable in self.bundle.entries:
            if variable not in _TRAINING and not variable.endswith(_SLOTS):
                self.names[published_name(variable.removeprefix(_SCOPE))] = variable
        if not any("/LSTMCell/" in name for name in self.names):
            raise self.bundle.not_of_an_elmo(prefix)
        self.shapes = {name: self.bundle.entries[variable].shape for name, variable in self.names.items()}

    def read(self, name: str) -> Floats:
        return as_floats(self.bundle, self.names[name])

    @property
    def has_softmax(self) -> bool:
        return f"{_SOFTMAX}b" in self.names


class TFCheckpoint(Format):
    """A checkpoint of bilm-tf: its directory, ``checkpoint`` or ``.index`` file, or the latter without ``.index``."""

    name = "tf-checkpoint"
    description = "a TensorFlow checkpoint of bilm-tf"
    files = ("checkpoint", f"*{INDEX_SUFFIX}", "*.data-*-of-*", OPTIONS, "*vocab*.txt", "*vocab*.txt.gz")

    def recognizes(self, path: Path) -> bool:
        if path.is_file():
            return path.name == "checkpoint" or path.name.endswith(INDEX_SUFFIX)
        if path.is_dir():
            return find_checkpoint(path) is not None
        return bool(path.name) and path.with_name(path.name + INDEX_SUFFIX).is_file()

    def guess(self, folder: Path) -> str | None:
        return "a TensorFlow checkpoint" if (folder / "checkpoint").is_file() else None

    def load(self, path: Path, options: Path | None = None, words: Path | None = None) -> PretrainedBiLM:
        # The options file and the words may be in the directory or above it.
        prefix = find_checkpoint(path)
        if prefix is None:
            raise ModelNotFoundError(f"There is no TensorFlow checkpoint at {path}: no .index file was found.")
        variables = _Variables(prefix)
        options = options or _in_or_above(prefix, OPTIONS)
        if options is None:
            raise ModelNotFoundError(
                f"{prefix} has no options.json next to it. Put the one from the training run there."
            )
        # The softmax is read separately below, so its tensors would count as unexpected here.
        lm_shapes = {name: shape for name, shape in variables.shapes.items() if not name.startswith(_SOFTMAX)}
        config = bilm_tf.config_from_options(bilm_tf.read_options(options), lm_shapes, str(options))
        what = f"{prefix} (sizes from {options})"
        arrays = read_through(bilm_tf_rows(config), tensor_shapes(config), lm_shapes, variables.read, what)
        card: dict[str, Any] = {**variables.bundle.card}
        n_steps = _step(variables.bundle, prefix)
        if n_steps >= 0:
            card["training_steps"] = n_steps
        model = PretrainedBiLM(Weights(config, arrays), TFCheckpoint.name, source=prefix, card=card)
        # A softmax without words is useless and may be most of the file, so it is not read at all.
        words_path = _vocabulary_path(prefix, words)
        if words_path is None:
            return _without_softmax(model, "there is no vocabulary next to the checkpoint")
        vocabulary = Vocabulary.from_file(words_path)
        if variables.has_softmax:
            softmax = _softmax(variables, model, vocabulary, f"{prefix} (words from {words_path})")
            return model.replace(vocabulary=vocabulary, softmax=softmax)
        # A word-input model needs its words even without a softmax.
        if config.n_words is not None:
            vocabulary = row_vocabulary(words_path, config.n_words, f"the table of {prefix}")
        return _without_softmax(model.replace(vocabulary=vocabulary), "the checkpoint holds none")


def read_adagrad(prefix: Path, model: PretrainedBiLM) -> dict[str, Floats]:
    """Read the optimizer's sums of squared gradients for a model opened from this checkpoint.

    They have our parameter names and layout. Names of the softmax start with ``softmax.``, as in the checkpoints of a
    training run.
    """
    variables = _Variables(prefix)
    if not _is_export_of(model, variables):
        raise TensorMismatchError(f"{model.source} is from another point of the training than the checkpoint {prefix}.")
    sums = _adagrad(variables, bilm_tf_rows(model.config))
    if model.softmax is not None:
        softmax_sums = _adagrad(variables, _softmax_rows(variables))
        sums |= {f"softmax.{name}": array for name, array in softmax_sums.items()}
    return sums


def with_softmax(model: PretrainedBiLM, prefix: Path, vocabulary: Path | None = None) -> PretrainedBiLM:
    """Return the model with the softmax of the checkpoint that it was exported from, or with the reason in its card."""
    try:
        words_path = _vocabulary_path(prefix, vocabulary)
        if words_path is None:
            return _without_softmax(model, "there is no vocabulary next to the checkpoint")
        variables = _Variables(prefix)
        if not variables.has_softmax:
            return model
        if not _is_export_of(model, variables):
            return _without_softmax(model, f"{prefix} is from another point of the training. Open it by its own path")
        words = Vocabulary.from_file(words_path)
        softmax = _softmax(variables, model, words, f"{prefix} (words from {words_path})")
    except ModelError as error:
        return _without_softmax(model, str(error))
    return model.replace(vocabulary=words, softmax=softmax)


def _without_softmax(model: PretrainedBiLM, reason: str) -> PretrainedBiLM:
    """Return the model with a card that says why it has no softmax."""
    return model.replace(card={**model.card, "softmax": f"left out: {reason}"})


def _is_export_of(model: PretrainedBiLM, variables: _Variables) -> bool:
    """Check whether a model was exported from exactly this checkpoint."""
    # A softmax only fits the LSTMs that it was trained with. Comparing biases is sufficient and fast: they are small,
    # and every training step changes them.
    ours = model.arrays
    for row in bilm_tf_rows(model.config):
        if not row.ours.endswith("bias"):
            continue
        name = row.name_in(variables.names)
        if name is None:
            return False
        bias = row.layout.to_ours(variables.read(name))
        if not np.array_equal(bias, ours[row.ours]):
            return False
    return True


def find_checkpoint(path: Path) -> Path | None:
    """Find the checkpoint at a path; return the path of its files without ``.index``, or None."""
    if path.name.endswith(INDEX_SUFFIX) and path.is_file():
        return _without_suffix(path)
    if path.name and path.with_name(path.name + INDEX_SUFFIX).is_file():
        return path
    folder = path
    if path.name == "checkpoint" and path.is_file():
        folder = path.parent
    # DeepPavlov's layout: the best model in saves/, and one per epoch. The latest epoch is tried first.
    epochs = sorted((folder / "saves" / "epochs").glob("[0-9]*"), key=lambda epoch: _number(epoch.name))
    for inner in (folder, folder / "saves", *reversed(epochs)):
        prefixes = map(_without_suffix, visible_files(inner, f"*{INDEX_SUFFIX}"))
        checkpoints = list(filter(_is_bundle, prefixes))
        if checkpoints:
            return _newest(inner, checkpoints)
    return None


def _without_suffix(index: Path) -> Path:
    return index.with_name(index.name.removesuffix(INDEX_SUFFIX))


def _is_bundle(prefix: Path) -> bool:
    """Check for a bundle, including a damaged one, so the error can say that it is damaged."""
    return is_index(prefix.with_name(prefix.name + INDEX_SUFFIX)) or any(
        prefix.parent.glob(f"{escape(prefix.name)}.data-*")
    )


def as_floats(bundle: TensorBundle, name: str) -> Floats:
    """Copy a variable into an array of float32."""
    return np.array(bundle.read(name), np.float32)  # a copy, because a variable may start at any byte of its file


def published_name(name: str) -> str:
    """Translate an LSTM variable's name to the published one, where an absent number is 0; others stay unchanged."""
    match = _LSTM.fullmatch(name)
    if match is None:
        return name
    layer = match["layer"] or match["hub_layer"] or 0
    part = _LSTM_PARTS[match["part"]]
    return f"RNN_{match['direction'] or 0}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{part}"


def _newest(folder: Path, checkpoints: list[Path]) -> Path:
    """Return the checkpoint named in ``checkpoint``, or else the one with the highest number."""
    try:
        text = (folder / "checkpoint").read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    # A text protocol buffer; the first field names the newest checkpoint, the others all kept ones.
    match = re.search(r'^model_checkpoint_path:\s*"([^"]*)"', text, re.MULTILINE)
    if match is not None:
        # It may be an absolute path on the training machine, with either kind of slash.
        # PureWindowsPath splits at both.
        name = PureWindowsPath(match[1]).name
        for prefix in checkpoints:
            if prefix.name == name:
                return prefix
    # Otherwise, the highest step; a name without a number only if there is no other.
    return max(checkpoints, key=lambda prefix: (_number(prefix.name), prefix.name))


def _number(name: str) -> int:
    """Return the number at the end of a name; -1 if there is none."""
    match = re.search(r"(\d+)$", name)
    return int(match[1]) if match else -1


def _in_or_above(prefix: Path, pattern: str) -> Path | None:
    """Find the only file that matches a pattern in the checkpoint's directory or, for nested layouts, above it."""
    folder = prefix.absolute().parent
    while True:
        files = visible_files(folder, pattern)
        # If several files match, choosing one could pair the model with the wrong words.
        if len(files) == 1:
            return files[0]
        # Only go up through directories named by training programs, not through the user's own.
        if not _INNER_FOLDER.fullmatch(folder.name):
            return None
        folder = folder.parent


def _step(bundle: TensorBundle, prefix: Path) -> int:
    """Return the number of training steps; -1 if it is unknown."""
    entry = bundle.entries.get("global_step")
    if entry is None or entry.shape != ():
        return _number(prefix.name)
    step = float(bundle.read("global_step"))
    return int(step) if math.isfinite(step) else -1


def _vocabulary_path(prefix: Path, given: Path | None) -> Path | None:
    """Return the given word list, or else the one in the checkpoint's directory or above it."""
    found = None
    for pattern in (*VOCABULARY_NAMES, "vocab*.txt", "vocab*.txt.gz"):
        found = found or _in_or_above(prefix, pattern)
    return given_or_found(given, found)


def _softmax_rows(variables: _Variables) -> list[TensorRow]:
    """List the softmax's own tensors; without a weight if it is tied to the word table."""
    if _SOFTMAX_WEIGHT.theirs in variables.names:
        return [_SOFTMAX_WEIGHT, _SOFTMAX_BIAS]
    return [_SOFTMAX_BIAS]


def _softmax(variables: _Variables, model: PretrainedBiLM, vocabulary: Vocabulary, where: str) -> WordSoftmax:
    rows = _softmax_rows(variables)
    config, table = SoftmaxConfig("tied"), None
    if len(rows) == 2 or model.config.n_words is None:  # a character model has no table to tie it to
        rows = [_SOFTMAX_WEIGHT, _SOFTMAX_BIAS]
        config = SoftmaxConfig("full")
    elif model.config.word_table is not None:
        table = (model.arrays, model.config.word_table)
    wanted = config.tensor_shapes(len(vocabulary), model.config.projection_dim)
    wanted_names = {row.theirs for row in rows}
    shapes = {name: shape for name, shape in variables.shapes.items() if name in wanted_names}
    arrays = read_through(rows, wanted, shapes, variables.read, where)
    return WordSoftmax(config, arrays, len(vocabulary), table)


def _adagrad(variables: _Variables, rows: list[TensorRow]) -> dict[str, Floats]:
    """Read the sums of squared gradients for the parameters in ``rows``."""
    bundle = variables.bundle
    sums: dict[str, Floats] = {}
    for row in rows:
        theirs = row.name_in(variables.names)
        assert theirs is not None
        variable = variables.names[theirs]
        slot = variable + _ADAGRAD
        # An Adagrad sum has the shape of its variable; other optimizers use other slot names.
        if slot not in bundle.entries or bundle.entries[slot].shape != bundle.entries[variable].shape:
            raise TensorMismatchError(f"{bundle.prefix} holds no Adagrad sums for {theirs}.")
        # The sums are elementwise, so their layout is converted like that of the parameter.
        array = np.array(row.layout.to_ours(as_floats(bundle, slot)), order="C")
        if row.layout is bilm_tf.WITHOUT_ZERO_ROW:
            array[0] = ADAGRAD_START  # not zero, because Adagrad divides by its square root
        sums[row.ours] = array
    return sums


FORMAT = TFCheckpoint()
