"""Write a small model in every format that can be opened."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from elmokit.embedding.start_state import boundary_state
from elmokit.engine.architecture import PRESETS
from elmokit.engine.softmax import SoftmaxConfig, WordSoftmax
from elmokit.formats import bilm_tf
from elmokit.formats.folder import save_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.save import save_model
from tests.conftest import WORDS, aligned_model, random_model
from tests.helpers import many_langs_files
from tests.helpers.tf_bundle_writer import write_bundle
from tests.helpers.tf_hub_files import write_module
from tests.helpers.tf_names import checkpoint_tensors, module_tensors

FORMATS = (
    "elmokit",
    "float16",
    "int8",
    "words",
    "tied",
    "hdf5",
    "export",
    "checkpoint",
    "module",
    "many-langs",
    "zip",
)


def write_model(kind: str, folder: Path, seed: int = 0) -> Path:
    """Write a model of a format, and return its path; another seed gives another model of the same sizes."""
    folder.mkdir(parents=True)
    words = replace(PRESETS["tiny"], char_cnn=None, n_words=len(WORDS))
    model = random_model(words if kind in ("words", "tied") else PRESETS["tiny"], seed)
    path = folder / kind
    if kind == "elmokit":
        model = model.replace(start_state=boundary_state(model), alignment=aligned_model().alignment)
        save_model(model, path)
    elif kind in ("float16", "int8"):
        save_folder(model, path, kind)
    elif kind == "words":
        save_model(model, path)
    elif kind == "tied":
        save_model(_tied(model), path)
    elif kind == "hdf5":
        path = path / "weights.hdf5"
        save_model(model, path)
    elif kind in ("export", "checkpoint"):
        _write_checkpoint(model, path)
        if kind == "export":
            save_model(model, path / "lm_weights.hdf5")
    elif kind == "module":
        write_module(path, module_tensors(model))
    elif kind == "many-langs":
        many_langs_files.toy_model(seed).write(path)
    elif kind == "zip":
        save_model(model, folder / "inside")
        path = Path(shutil.make_archive(str(path), "zip", folder / "inside"))
    return path


def _tied(model: PretrainedBiLM) -> PretrainedBiLM:
    assert model.softmax is not None
    bias = {"bias": model.softmax.arrays["bias"]}
    return model.replace(
        softmax=WordSoftmax(SoftmaxConfig("tied"), bias, len(WORDS), (model.arrays, "token_layer.embedding.weight"))
    )


def _write_checkpoint(model: PretrainedBiLM, folder: Path) -> None:
    write_bundle(folder / "model.ckpt-207", checkpoint_tensors(model))
    (folder / "options.json").write_text(json.dumps(bilm_tf.options_from_config(model.config)))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
