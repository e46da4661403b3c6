"""Make the same small task models with AllenNLP 0.9.0, as ``make.py`` does with 2.10.1, in the folder ``0.9.0``.

AllenNLP 0.9.0 still runs on Python 3.11, without what it imports for other models::

    python3.11 -m venv original
    original/bin/pip install torch==2.13.0 numpy h5py scipy nltk tqdm
    original/bin/pip install --no-deps allennlp==0.9.0
    original/bin/python make_0_9.py

All weights but those of ELMo are random. The archives have what later ones do not: the files of ELMo in ``fta/``, no
``meta.json``, a pickle in PyTorch's old format, other names of some tensors, and similarity functions in the config.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "0.9.0"
STUBS = (
    "spacy pytorch_pretrained_bert pytorch_transformers transformers editdistance flaky responses jsonpickle",
    "parsimonious sqlparse unidecode numpydoc gevent flask flask_cors boto3 botocore matplotlib tensorboardX sklearn",
    "conllu word2number ftfy requests torchvision apex",
)


class Anything(type):
    """A class with every attribute, which can be called, subclassed and used as a decorator."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)

    def __getitem__(cls, item: object) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


def anything(name: str) -> Any:
    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        return arguments[0] if arguments and callable(arguments[0]) else self

    return Anything(name, (), {"__init__": lambda self, *a, **k: None, "__call__": call})


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module for each of the names in ``STUBS``."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in " ".join(STUBS).split():
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: getattr(Anything(spec.name, (), {}), name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.insert(0, Stubs())
overrides = types.ModuleType("overrides")  # the package reads bytecode of older Pythons
overrides.overrides = lambda function: function
sys.modules["overrides"] = overrides

import allennlp.data.dataset_readers  # noqa: E402
import allennlp.models  # noqa: E402, F401
import torch  # noqa: E402
from allennlp.common import Params  # noqa: E402
from allennlp.data import DatasetReader, Vocabulary  # noqa: E402
from allennlp.models import Model  # noqa: E402
from allennlp.models.archival import archive_model  # noqa: E402
from small_models import CONFIGS, SCALE, SEED, SUFFIXES, keep, make_elmo, read, record_coref_scores, reset_elmo  # noqa: E402


def old_config(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return a config in the form of 0.9."""
    model, reader = config["model"], config["dataset_reader"]
    if "matrix_attention" in model:
        model["similarity_function"] = model.pop("matrix_attention")
    for key in ("regularizer", "initializer"):
        if key in model:
            model[key] = model[key]["regexes"]
    for embedder in model["text_field_embedder"]["token_embedders"].values():
        if embedder["type"] == "character_encoding":
            embedder["embedding"].pop("vocab_namespace", None)  # the default
    if kind in ("ner", "srl"):
        model["text_field_embedder"] = model["text_field_embedder"]["token_embedders"]
    if "tokenizer" in reader:
        reader["tokenizer"] = {"type": "word", "word_splitter": reader["tokenizer"]}
    return {
        **config,
        "train_data_path": "train",
        "validation_data_path": "dev",
        "iterator": {"type": "basic", "batch_size": 4},
        "trainer": {"optimizer": "adam"},
    }


def make(kind: str, config: dict[str, Any], folder: Path) -> dict[str, Any]:
    config = old_config(kind, config)
    text = HERE.parent / f"{kind}.{SUFFIXES[kind]}"
    reader = DatasetReader.from_params(Params(json.loads(json.dumps(config["dataset_reader"]))))
    training = read(kind, reader, text, use_subtrees=True)
    vocabulary = Vocabulary.from_instances(training[:-1] if kind in ("ner", "coref") else training)
    if kind == "ner":  # not all tags of BIOUL occur in so few sentences
        for label in ("PER", "LOC"):
            for prefix in "BILU":
                vocabulary.add_token_to_namespace(f"{prefix}-{label}", "labels")
    torch.manual_seed(SEED)
    params = Params(json.loads(json.dumps(config)))
    model = Model.from_params(vocab=vocabulary, params=params.pop("model"))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, SCALE)
    model.eval()
    serialization = folder / kind
    serialization.mkdir()
    public = json.dumps(config, indent=2).replace(str(folder), "/models/elmo")
    (serialization / "config.json").write_text(public)
    vocabulary.save_to_files(str(serialization / "vocabulary"))
    # As PyTorch 0.4 to 1.5 did, with which AllenNLP 0.9 was used.
    torch.save(model.state_dict(), serialization / "best.th", _use_new_zipfile_serialization=False)
    archive_model(str(serialization), files_to_archive=params.files_to_archive)
    (serialization / "model.tar.gz").rename(HERE / f"{kind}.tar.gz")
    if kind == "coref":
        record_coref_scores(model)
    evaluated = read(kind, reader, text)
    examples = []
    for instance in evaluated:
        reset_elmo(model)
        examples.append(keep(kind, model.forward_on_instances([instance])[0]))
    metrics = {name: float(value) for name, value in model.get_metrics(reset=True).items()}
    found = {"examples": examples, "metrics": metrics}
    if kind != "coref":
        reset_elmo(model)
        found["batch"] = [keep(kind, output) for output in model.forward_on_instances(evaluated)]
    return found


def main() -> None:
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        elmo = make_elmo(folder)
        expected = {kind: make(kind, config(elmo), folder) for kind, config in CONFIGS.items() if "-" not in kind}
        (HERE / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
