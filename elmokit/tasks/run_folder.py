"""The directory of a task's run.

::

    journal.json       settings that must not change for the run to continue (``training/training_run.py``)
    config.toml        all settings; ``elmokit task train RUN/config.toml --run OTHER`` repeats the run
    vocabulary.json    words, characters, labels
    run.json           command, working directory, versions, sizes and checksums of the data and word vectors, the
                       biLM's fingerprint and model card
    layers/            the layers of a frozen biLM, unless the config names another directory
    bilm/              the run's own biLM: fine-tuned on the text first, or from an AllenNLP archive
    bilm-*             the text and the run of that fine-tuning
    seed-N/            a ``Run`` with best.safetensors and result.json; bilm/ if the biLM is trained
    results.json       the results of all seeds, with mean and standard deviation
    lock               locked by the process that trains there
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.torch import load_file

from elmokit.config import read_json, to_dict, to_toml, whole_number, write_json
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.fingerprint import fingerprint
from elmokit.errors import TrainingError
from elmokit.formats.folder import DEFAULT_MODEL
from elmokit.storage.atomic import atomic_write
from elmokit.storage.checksums import json_crc32, size_and_crc32, text_digest
from elmokit.storage.text_files import check_names, open_binary, path_list
from elmokit.tasks.inputs import Vocabularies
from elmokit.tasks.task import AnyTask, Labels
from elmokit.tasks.task_config import Paths, expand_paths
from elmokit.tasks.task_vocabulary import Coverage
from elmokit.training.training_run import damage_errors, run_origin

CONFIG, VOCABULARY, FACTS, RESULTS, OWN_BILM = "config.toml", "vocabulary.json", "run.json", "results.json", "bilm"
FILES = (CONFIG, VOCABULARY, FACTS, RESULTS, "layers", OWN_BILM, f"{OWN_BILM}-*", "seed-*")
FORMER = (CONFIG, VOCABULARY, FACTS)
"""Files that identify a run of version 0.2."""
BEST_WEIGHTS, RESULT = "best.safetensors", "result.json"
ELMO_WEIGHTS = "inputs.elmo."  # the prefix of a trained biLM in the state dict of a task's model
SEED_FILES = (BEST_WEIGHTS, RESULT, OWN_BILM)
ARCHIVE_SEED = 0
"""The seed under which the model of an AllenNLP archive is stored."""


def finished_seeds(run: Path) -> list[int]:
    """List the seeds whose training is complete."""
    seeds = []
    for path in run.glob("seed-*/result.json"):
        seed = whole_number(path.parent.name.removeprefix("seed-"))
        if seed is not None:
            seeds.append(seed)
    return sorted(seeds)


def mean_and_deviation(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Compute the mean and sample standard deviation (0 for one seed) of each score that all seeds have."""
    summary = {}
    for name in scores[0]:
        if not all(name in of_seed for of_seed in scores):
            continue
        values = [of_seed[name] for of_seed in scores]
        deviation = 0.0
        if len(values) > 1:
            deviation = statistics.stdev(values)
        summary[name] = {"mean": statistics.fmean(values), "deviation": deviation}
    return summary


def vocabulary_content(vocabularies: Vocabularies, labels: Labels) -> dict[str, Any]:
    """Return the content of ``vocabulary.json`` for ``read_vocabulary``."""
    return {**asdict(vocabularies), "labels": labels}


def read_vocabulary(run: Path) -> tuple[Vocabularies, Labels]:
    """Read ``vocabulary.json``."""
    content = read_json(run / VOCABULARY)
    # The checksum matters: a changed word or label would silently give wrong results.
    with damage_errors(run / VOCABULARY):
        if content.pop("crc32", None) != json_crc32(content):
            raise ValueError("its checksum is wrong")
        return msgspec.convert(content, Vocabularies), msgspec.convert(content["labels"], Labels)


@dataclass(frozen=True)
class RunFacts:
    """The facts that are read back from ``run.json``."""

    directory: str = ""
    elmokit: str = ""
    """The version of elmokit that started the run."""
    bilm: dict[str, Any] | None = None

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the biLM; None if the run has none."""
        return None if self.bilm is None else self.bilm.get("fingerprint")

    @property
    def has_included_model(self) -> bool:
        """Whether the biLM was the included model, which differs between versions."""
        if self.bilm is None:
            return False
        source = Path(str(self.bilm.get("source")))
        return source.parts[-3:] == ("elmokit", "models", DEFAULT_MODEL)


def read_facts(run: Path, name: str = FACTS) -> RunFacts:
    """Read the facts from ``run.json``, or from the ``result.json`` of a seed that trained its biLM."""
    content = read_json(run / name)
    with damage_errors(run / name):
        return msgspec.convert(content, RunFacts)


def read_result(seed_folder: Path) -> dict[str, Any]:
    """Read the ``result.json`` of a finished training."""
    path = seed_folder / "result.json"
    content = read_json(path)
    with damage_errors(path):
        check_scores(content["dev"])
    return content


def check_scores(scores: object) -> dict[str, float]:
    """Return the scores of a training. Raises msgspec's error unless they are named numbers."""
    return msgspec.convert(scores, dict[str, float])


def load_best_weights(model: torch.nn.Module, seed_folder: Path) -> None:
    """Load the weights of a training's best evaluation into a model. A biLM inside the model keeps its weights."""
    path = seed_folder / BEST_WEIGHTS
    with damage_errors(path):
        weights = load_file(path)
        for name, value in model.state_dict().items():
            if name.startswith(ELMO_WEIGHTS):
                weights[name] = value
        model.load_state_dict(weights)


def run_settings(
    task: AnyTask,
    config: Any,
    checksums: Mapping[str, Mapping[str, Sequence[int]]],
    vocabulary: Mapping[str, Any],
    elmo: Elmo | None,
) -> dict[str, Any]:
    """Return the settings that must not change for a run to continue. Seeds may be added, and the cache may move."""
    settings = {"task": task.name, **to_dict(config)}
    del settings["train"]["seeds"]
    if config.elmo is not None:
        del settings["elmo"]["cache"]
    for part, files in checksums.items():
        for path, (size, crc32) in files.items():
            settings[f"{part} file {path}"] = f"{size:08x}-{crc32:08x}"
    settings["vocabulary"] = text_digest(json.dumps(vocabulary))
    settings["biLM"] = None if elmo is None else fingerprint(elmo.model, elmo.start)
    return settings


def write_start(run: Path, task: AnyTask, config: Any, vocabulary: Mapping[str, Any]) -> None:
    """Write ``config.toml`` and ``vocabulary.json``."""
    checked = {**vocabulary, "crc32": json_crc32(vocabulary)}
    _write_text(run / CONFIG, to_toml({"task": task.name, **to_dict(config)}))
    _write_text(run / VOCABULARY, json.dumps(checked))


def _write_text(path: Path, text: str) -> None:
    with atomic_write(path, overwrite=True) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_facts(
    run: Path, task: AnyTask, coverage: Mapping[str, Coverage], elmo: Elmo | None, more: Mapping[str, Any]
) -> None:
    """Write ``run.json``. If it exists, check that the resumed run has the same biLM, which it may have fine-tuned."""
    identity = None if elmo is None else fingerprint(elmo.model, elmo.start)
    if (run / FACTS).exists():
        check_bilm(run, identity)
        return
    bilm = None
    if elmo is not None:
        bilm = {"source": str(elmo.model.source), "fingerprint": identity, "card": elmo.model.card}
    content = {
        **run_origin(),
        **more,
        "task": task.name,
        "directory": str(Path.cwd()),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "n_threads": torch.get_num_threads(),
        "word_vectors": {name: asdict(covered) for name, covered in coverage.items()},
        "bilm": bilm,
    }
    write_json(run / FACTS, content)


def resolve_path(run: Path, path: str | None) -> str | None:
    """Find a file named in a run's config. Relative paths start in the directory in which the run was started."""
    if path is None:
        return None
    resolved = Path(read_facts(run).directory) / path
    return str(resolved) if resolved.exists() else path


def check_recordable(task: AnyTask, config: Any) -> None:
    """Refuse file names that are not UTF-8, before a run starts with them."""
    for paths in _data_paths(task, config).values():
        check_names([*path_list(paths), *expand_paths(paths)])
    if config.elmo is None:
        return
    if config.elmo.cache is not None:
        check_names([config.elmo.cache])
    if config.elmo.model is not None:
        check_names([config.elmo.model])
        if Path(config.elmo.model).exists():
            check_names([Path(config.elmo.model).absolute()])  # the run records the directory of relative paths


def check_bilm(run: Path, now: str | None, file: str = FACTS) -> None:
    """Check that a run, or a biLM that it trained, has the given fingerprint; None means no biLM."""
    facts = read_facts(run, file)
    if facts.fingerprint == now:
        return
    if facts.has_included_model:
        version = facts.elmokit.partition(" ")[0] or "before"
        raise TrainingError(
            f"{run} was started with the {DEFAULT_MODEL} of elmokit {version}, which is a different model. Copy "
            f"elmokit/models/{DEFAULT_MODEL} of that version, and set elmo.model to the copy in {run / CONFIG}."
        )
    raise TrainingError(f"{run} was started with another biLM. Restore it, or start a new run.")


def data_checksums(task: AnyTask, config: Any) -> dict[str, dict[str, list[int]]]:
    """Compute the size and checksum of each data and word vector file, by its part of the config."""
    checksums: dict[str, dict[str, list[int]]] = {}
    for part, names in _data_paths(task, config).items():
        checksums[part] = {}
        for path in expand_paths(names):
            checksums[part][path] = _size_and_crc32(path)
    return checksums


def _size_and_crc32(path: str) -> list[int]:
    """Compute the size and checksum of a file's decompressed content."""
    with open_binary(path) as file:
        return list(size_and_crc32(file))


def _data_paths(task: AnyTask, config: Any) -> dict[str, Paths]:
    """Return the data and word vector files of a config, by part."""
    vectors: list[str] = []
    for words in task.word_configs(config).values():
        vectors += map(str, path_list(words.vectors))
    data = config.data
    return {"train": data.train, "dev": data.dev, "test": data.test, "vectors": tuple(vectors)}
