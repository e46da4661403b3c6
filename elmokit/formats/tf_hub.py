"""Read TF-Hub modules of ELMo without TensorFlow: Google's ``elmo/1`` to ``elmo/3`` and DeepPavlov's exports.

A module is a directory with ``saved_model.pb`` or ``tfhub_module.pb`` (the graph, which is not needed) and a
TensorBundle: ``variables/variables.index`` with its data files.

This code was written without access to a real module. It is based on:

- A log of ``google/elmo`` being loaded (tensorflow/hub, issue 88) shows the variables ``bilm/CNN/...``,
  ``bilm/RNN_D/RNN/MultiRNNCell/CellL/rnn/lstm_cell/{bias,kernel,projection/kernel}``, ``aggregation/weights`` and
  ``aggregation/scaling``.
- DeepPavlov's description of its exports gives the character table of 262 rows whose first row is zero, the mixing
  scalars ``aggregation/elmo_output_ELMo_W`` and ``..._gamma``, and nameless variables that hold the state.
- Inferred: Google's other names and all layouts are bilm-tf's, because both are exports from it. Google's weights go
  through a softmax, as in the paper. Google's character table has 261 or 262 rows (both are read).
- Without an ``options.json``, what no variable shows is taken from the original model: relu, clips of 3, skip
  connections and 50 characters per token.
"""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.engine.architecture import Shape, tensor_shapes
from elmokit.engine.state import Floats
from elmokit.errors import FormatError, TensorMismatchError
from elmokit.formats import bilm_tf
from elmokit.formats.bilm_tf import bilm_tf_rows
from elmokit.formats.format import Format
from elmokit.formats.sidecars import OPTIONS, with_words
from elmokit.formats.tensor_rows import read_through
from elmokit.formats.tf_bundle import INDEX_SUFFIX, TensorBundle
from elmokit.formats.tf_checkpoint import as_floats, published_name
from elmokit.pretrained.model import PretrainedBiLM, Weights
from elmokit.text.characters import N_CHARS

GRAPHS = ("saved_model.pb", "tfhub_module.pb")
MIX = "mix"
"""Key in the model card: ``{"weights": [...], "gamma": ...}``, the module's own scalar mix before its softmax."""

_VARIABLES = Path("variables") / "variables"
_SCOPE = re.compile(r"(.*/)?bilm/")
_MIX_WEIGHTS = ("aggregation/weights", "_ELMo_W")
_MIX_GAMMA = ("aggregation/scaling", "_ELMo_gamma")
_CHAR_TABLE = "char_embed"


class TFHub(Format):
    """A TF-Hub module."""

    # Without an options file, the original model's values are used for what the variables do not show. The model card
    # has the scalar mix under `mix`, and variables that are not part of the biLM under `skipped`.

    name = "tf-hub"
    description = "a TF-Hub module"
    files = (*GRAPHS, f"*{INDEX_SUFFIX}", "*.data-*-of-*", OPTIONS)

    def recognizes(self, path: Path) -> bool:
        return (path / f"{_VARIABLES}{INDEX_SUFFIX}").is_file() and any((path / name).is_file() for name in GRAPHS)

    def guess(self, folder: Path) -> str | None:
        return "a TensorFlow SavedModel" if (folder / "saved_model.pb").is_file() else None

    def load(self, path: Path, options: Path | None = None, words: Path | None = None) -> PretrainedBiLM:
        variables = _Variables(path)
        if options is None and (path / OPTIONS).is_file():
            options = path / OPTIONS
        if options is None:
            content, where, sizes = _options_from(variables.shapes, path), path, "its variables"
        else:
            content, where, sizes = bilm_tf.read_options(options), options, str(options)
        config = bilm_tf.config_from_options(content, variables.shapes, str(where))
        rows = bilm_tf_rows(config)
        known = {row.theirs for row in rows}
        own_shapes = {name: shape for name, shape in variables.shapes.items() if name in known}
        what = f"{path} (sizes from {sizes})"
        arrays = read_through(rows, tensor_shapes(config), own_shapes, variables.read, what)
        used = {variables.names[name] for name in own_shapes}
        card: dict[str, Any] = dict(variables.bundle.card)
        mix = _mix(variables.bundle, config.n_layers + 1, used)
        if mix is not None:
            card[MIX] = mix
        skipped = sorted(set(variables.bundle.entries) - used)
        if skipped:
            card["skipped"] = skipped
        return with_words(PretrainedBiLM(Weights(config, arrays), self.name, source=path, card=card), words)


class _Variables:
    """The variables of a module under their published names, and the character table without its zero row."""

    def __init__(self, folder: Path) -> None:
        self.bundle = TensorBundle(folder / _VARIABLES)
        self.names = _published_names(self.bundle, folder)
        """The variable of each published name."""
        self.shapes = {name: self.bundle.entries[variable].shape for name, variable in self.names.items()}
        table_shape = self.shapes[_CHAR_TABLE]
        self._has_zero_row = table_shape[:1] == (N_CHARS + 1,)
        if self._has_zero_row:
            self.shapes[_CHAR_TABLE] = (N_CHARS, *table_shape[1:])
            first_row = as_floats(self.bundle, self.names[_CHAR_TABLE])[0]
            if first_row.any():
                raise FormatError(
                    f"{folder}: the layout of a character table of {N_CHARS + 1} rows, the first not zero, is not "
                    "known."
                )

    def read(self, name: str) -> Floats:
        array = as_floats(self.bundle, self.names[name])
        if self._has_zero_row and name == _CHAR_TABLE:
            return array[1:]
        return array


def stored_mix(model: PretrainedBiLM) -> tuple[list[float], float] | None:
    """Return the raw weights and gamma of the scalar mix in a model's card; None if there is none.

    Raises:
        FormatError: The card has an invalid value for it, or weights for another number of layers.
    """
    mix = model.card.get(MIX)
    if mix is None:
        return None
    n_layers = model.config.n_layers + 1
    try:
        with np.errstate(over="ignore"):
            numbers = np.array([*mix["weights"], mix["gamma"]], np.float32)
    except (KeyError, TypeError, ValueError, OverflowError):
        numbers = np.zeros(0, np.float32)
    if numbers.shape != (n_layers + 1,) or not np.isfinite(numbers).all():
        raise FormatError(
            f"{model.source}: its card has no valid {MIX!r}: expected {n_layers} numbers as 'weights' and a 'gamma'."
        )
    *weights, gamma = numbers.tolist()
    return weights, gamma


def _published_names(bundle: TensorBundle, folder: Path) -> dict[str, str]:
    """Return the variable for each published name, all in the scope ``bilm``."""
    names: dict[str, str] = {}
    for variable in bundle.entries:
        if match := _SCOPE.match(variable):
            names[published_name(variable[match.end() :])] = variable
    if _CHAR_TABLE not in names:
        raise bundle.not_of_an_elmo(folder)
    return names


def _options_from(shapes: dict[str, Shape], folder: Path) -> dict[str, Any]:
    """Build the content of an options file: sizes from the shapes, the rest from the original model."""
    filters: list[list[int]] = []
    while (shape := shapes.get(f"CNN/W_cnn_{len(filters)}")) is not None:
        filters.append([*shape[1:4:2]])  # (1, width, char_dim, count)
    cell = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell"
    kernel = shapes.get(f"{cell}/W_0", ())
    projection = shapes.get(f"{cell}/W_P_0")
    table = shapes[_CHAR_TABLE]
    matrices = [kernel, table] if projection is None else [kernel, table, projection]
    if not filters or any(len(matrix) != 2 for matrix in matrices):
        raise TensorMismatchError(
            f"{folder} has no char CNN and LSTMs from which to infer the sizes: pass an options file."
        )
    hidden_dim = kernel[1] // 4
    return {
        "bidirectional": any(name.startswith("RNN_1/") for name in shapes),
        "lstm": {
            "dim": hidden_dim,
            "projection_dim": hidden_dim if projection is None else projection[1],
            "n_layers": len(fnmatch.filter(shapes, "RNN_0/*/W_0")),
            "cell_clip": 3,
            "proj_clip": 3,
            "use_skip_connections": True,
        },
        "char_cnn": {
            "activation": "relu",
            "embedding": {"dim": table[1]},
            "filters": filters,
            "max_characters_per_token": 50,
            "n_highway": len(fnmatch.filter(shapes, "CNN_high_*/W_carry")),
        },
    }


def _mix(bundle: TensorBundle, n_layers: int, used: set[str]) -> dict[str, Any] | None:
    """Read the module's scalar mix: its weights before the softmax, and gamma."""
    mix: list[list[float]] = []
    for endings, size in ((_MIX_WEIGHTS, n_layers), (_MIX_GAMMA, 1)):
        names = [name for name in bundle.entries if name.endswith(endings)]
        if len(names) != 1:
            return None
        values = as_floats(bundle, names[0]).ravel().tolist()
        if len(values) != size:
            raise TensorMismatchError(f"{bundle.prefix}: {names[0]} holds {len(values)} numbers, expected {size}.")
        mix.append(values)
        used.add(names[0])
    weights, gamma = mix
    return {"weights": weights, "gamma": gamma[0]}


FORMAT = TFHub()
