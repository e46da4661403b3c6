"""Write a small model in every format that can be opened."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from elmokit.embedding.computer import Computer
from elmokit.embedding.start_state import boundary_state
from elmokit.engine.architecture import PRESETS
from elmokit.engine.softmax import SoftmaxConfig, WordSoftmax
from elmokit.formats import bilm_tf
from elmokit.formats.folder import save_folder
from elmokit.formats.save import save_model
from elmokit.pretrained.model import PretrainedBiLM
from tests.conftest import WORDS, aligned_model, random_model
from tests.helpers import many_langs_files
from tests.helpers.tf_bundle_writer import write_bundle
from tests.helpers.tf_hub_files import write_module
from tests.helpers.tf_names import checkpoint_tensors, module_tensors

FORMATS = ("elmokit", "float16", "int8", "words", "tied", "hdf5", "export", "checkpoint", "module", "many-langs", "zip")


def write_model(kind: str, folder: Path, seed: int = 0) -> Path:
    """Write a model of a format, and return its path; another seed gives another model of the same sizes."""
    name, files = _files_of(kind, seed)
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return folder / name


@functools.cache
def _files_of(kind: str, seed: int) -> tuple[Path, dict[Path, bytes]]:
    """Return the path of a model, and the files next to and below it with their content."""
    with tempfile.TemporaryDirectory() as folder:
        path = _write(kind, Path(folder), seed)
        files = [file for file in Path(folder).rglob("*") if file.is_file()]
        return path.relative_to(folder), {file.relative_to(folder): file.read_bytes() for file in files}


def _write(kind: str, folder: Path, seed: int) -> Path:
    words = replace(PRESETS["tiny"], char_cnn=None, n_words=len(WORDS))
    model = random_model(words if kind in ("words", "tied") else PRESETS["tiny"], seed)
    path = folder / kind
    if kind == "elmokit":
        model = model.replace(start_state=boundary_state(Computer(model)), alignment=aligned_model().alignment)
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
