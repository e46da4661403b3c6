"""Training configs as AllenNLP 0.8 published them for the six tasks and its parser, from their description."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.helpers.paths import DATA

MODELS = "https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/elmo_2x4096_512_2048cnn_2xhighway"
ELMO = {"options_file": f"{MODELS}_options.json", "weight_file": f"{MODELS}_weights.hdf5", "do_layer_norm": False}


def published(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / f"allennlp-tasks/published/{name}.json").read_text(encoding="utf-8"))
    return content


TASKS = ("ner", "sst", "nli", "srl", "coref", "qa", "parsing")
PUBLISHED: dict[str, Callable[[], dict[str, Any]]] = {name: partial(published, name) for name in TASKS}


def elmo(dropout: float) -> dict[str, Any]:
    return {"type": "elmo_token_embedder", **ELMO, "dropout": dropout}


def as_version_2(content: dict[str, Any]) -> dict[str, Any]:
    """Return a config in the spelling of AllenNLP 1.0 and later."""
    content = json.loads(json.dumps(content))
    model, trainer = content["model"], content["trainer"]
    for name in ("regularizer", "initializer"):
        if name in model:
            model[name] = {"regexes": model[name]}
    if "similarity_function" in model:
        model["matrix_attention"] = model.pop("similarity_function")
    if "iterator" in content:
        iterator = content.pop("iterator")
        iterator.pop("sorting_keys", None)
        is_bucket = iterator["type"] == "bucket"
        content["data_loader"] = {"batch_sampler": iterator} if is_bucket else {"batch_size": iterator["batch_size"]}
    if "num_serialized_models_to_keep" in trainer:
        trainer["checkpointer"] = {"keep_most_recent_by_count": trainer.pop("num_serialized_models_to_keep")}
    return content


def written(folder: Path, content: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
