"""Make small task models with AllenNLP, archive them with its own archiver, and record what it computes with them.

Run this in an environment of AllenNLP, never in that of the tests (Python 3.11)::

    python3.11 -m venv original
    original/bin/pip install torch==2.13.0 numpy h5py
    original/bin/pip install --no-deps allennlp==2.10.1 allennlp-models==2.10.1
    original/bin/pip install "huggingface_hub<0.30" overrides==7.4.0   # and what the imports ask for
    original/bin/python make.py

It writes ``KIND.tar.gz`` for each of the six kinds, ``KIND-VARIANT.tar.gz`` for other layers, and ``expected.json``:
what they compute with the text beside it, scores before the softmax, predictions and metrics. With names of archives
as arguments, it makes these alone. ELMo's weights are drawn at random from a fixed seed. The task models are
trained for a few steps, but that of coreference is random too. ELMo's LSTM state is set to zero before each batch, as
in a program that was just started. Each example is a batch of its own; "batch" has all of them in one.
"""

from __future__ import annotations

import importlib.machinery
import json
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def stub(name: str) -> None:
    """Put an empty module in place of one that AllenNLP imports for models of images only."""

    class Anything(type):
        def __getattr__(cls, attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            return Anything(attribute, (), {})

    module = types.ModuleType(name)
    module.__path__ = []
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__getattr__ = lambda attribute: getattr(Anything(name, (), {}), attribute)
    sys.modules[name] = module


for part in ("", ".transforms", ".ops", ".ops.boxes", ".io", ".models", ".models.detection"):
    stub(f"torchvision{part}")
stub("torchvision.models.detection.transform")

import torch  # noqa: E402
from allennlp.common import Params  # noqa: E402
from allennlp.common.meta import Meta  # noqa: E402
from allennlp.data import Batch, DatasetReader, Instance, Vocabulary  # noqa: E402
from allennlp.models import Model  # noqa: E402
from allennlp.models.archival import archive_model  # noqa: E402
from allennlp_models import classification, coref, pair_classification, rc, structured_prediction, tagging  # noqa: E402, F401
from small_models import (  # noqa: E402
    CONFIGS,
    LEARNING_RATE,
    SCALE,
    SEED,
    STEPS,
    SUFFIXES,
    keep,
    make_elmo,
    read,
    record_coref_scores,
    reset_elmo,
)


def run(model: Model, instances: list[Instance]) -> list[dict[str, Any]]:
    """Compute one batch from a zero state of ELMo."""
    reset_elmo(model)
    return model.forward_on_instances(instances)


def train(model: Model, instances: list[Instance], vocabulary: Vocabulary, n_steps: int) -> None:
    """Train for a few steps without dropout, so that predictions differ from each other and some of them are right."""
    optimizer = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], lr=LEARNING_RATE)
    model.eval()
    for _ in range(n_steps):
        batch = Batch(instances)
        batch.index_instances(vocabulary)
        reset_elmo(model)
        loss = model(**batch.as_tensor_dict())["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.get_metrics(reset=True)


def make(name: str, kind: str, config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make one archive, and return what AllenNLP computes with it."""
    text = HERE / f"{kind}.{SUFFIXES[kind]}"
    reader = DatasetReader.from_params(Params(json.loads(json.dumps(config["dataset_reader"]))))
    training = read(kind, reader, text, use_subtrees=True)
    vocabulary = Vocabulary.from_instances(training[:-1] if kind in ("ner", "coref") else training)
    for label in ("PER", "LOC"):  # not all tags occur in so few sentences
        if kind == "ner":
            prefixes = "BILU" if config["model"]["label_encoding"] == "BIOUL" else "BI"
            vocabulary.add_tokens_to_namespace([f"{prefix}-{label}" for prefix in prefixes], "labels")
    torch.manual_seed(SEED)
    model = Model.from_params(Params(json.loads(json.dumps(config["model"]))), vocab=vocabulary)
    if kind == "coref":  # a few steps make it predict nothing
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_(0, SCALE)
    train(model, training[: (len(training) + 1) // 2], vocabulary, STEPS[kind])  # not all, so that some are wrong
    serialization = folder / name
    serialization.mkdir()
    full = {**config, "train_data_path": "train", "data_loader": {"batch_size": 4}, "trainer": {"optimizer": "adam"}}
    # The archive names the files of ELMo where they were when it was trained, and they are gone.
    public = json.dumps(full, indent=2).replace(str(folder), "/models/elmo")
    (serialization / "config.json").write_text(public)
    vocabulary.save_to_files(str(serialization / "vocabulary"))
    torch.save(model.state_dict(), serialization / "best.th")
    Meta.new().to_file(serialization / "meta.json")
    archive_model(serialization, archive_path=HERE / f"{name}.tar.gz")
    if kind == "coref":
        record_coref_scores(model)
    evaluated = read(kind, reader, text)
    one_by_one = [keep(kind, run(model, [instance])[0]) for instance in evaluated]
    metrics = {metric: float(value) for metric, value in model.get_metrics(reset=True).items()}
    found = {"examples": one_by_one, "metrics": metrics}
    if kind != "coref":  # AllenNLP computes one document at a time
        found["batch"] = [keep(kind, output) for output in run(model, evaluated)]
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        elmo = make_elmo(folder)
        expected = {}
        for name, config in CONFIGS.items():
            if len(sys.argv) < 2 or name in sys.argv[1:]:
                expected[name] = make(name, name.split("-")[0], config(elmo), folder)
        shutil.copy(folder / "elmo_options.json", HERE)
        path = HERE / "expected.json"
        earlier = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(earlier | expected) + "\n")


if __name__ == "__main__":
    main()
