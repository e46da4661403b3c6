"""The directory of a task's run.

::

    journal.json       what must be equal for the run to be continued (``training/training_run.py``)
    config.toml        every setting; ``elmokit task train RUN/config.toml --run OTHER`` repeats the run
    vocabulary.json    words, characters, labels
    run.json           command, working directory, versions, sizes and checksums of the data and word vectors, the
                       biLM's fingerprint and model card
    layers/            the layers of a frozen biLM, unless the config names another directory
    bilm/              the run's own biLM: fine-tuned on the text first, or from an archive of AllenNLP
    bilm-*             the text and the run of that fine-tuning
    seed-N/            a ``Run`` with best.safetensors and result.json; bilm/ if the biLM is trained
    results.json       the results of all seeds, mean and standard deviation
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
"""Files by which a run of version 0.2 is recognized."""
BEST_WEIGHTS, RESULT = "best.safetensors", "result.json"
ELMO_WEIGHTS = "inputs.elmo."  # how the state dict of a task's model names a biLM that is trained with it
SEED_FILES = (BEST_WEIGHTS, RESULT, OWN_BILM)
ARCHIVE_SEED = 0
"""The number of the one training in an archive of AllenNLP."""


def finished_seeds(run: Path) -> list[int]:
    """List the seeds whose training is complete."""
    names = (path.parent.name.removeprefix("seed-") for path in run.glob("seed-*/result.json"))
    return sorted(seed for seed in map(whole_number, names) if seed is not None)


def mean_and_deviation(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the mean and the sample standard deviation (0 for one seed) of each score that all seeds have."""
    summary = {}
    for name in scores[0]:
        values = [of_seed[name] for of_seed in scores if name in of_seed]
        if len(values) == len(scores):
            deviation = statistics.stdev(values) if len(values) > 1 else 0.0
            summary[name] = {"mean": statistics.fmean(values), "deviation": deviation}
    return summary


def vocabulary_content(vocabularies: Vocabularies, labels: Labels) -> dict[str, Any]:
    """Return the content of ``vocabulary.json``, which ``read_vocabulary`` reads."""
    return {**asdict(vocabularies), "labels": labels}


def read_vocabulary(run: Path) -> tuple[Vocabularies, Labels]:
    """Read ``vocabulary.json``."""
    content = read_json(run / VOCABULARY)
    # A changed word or label would give wrong results without any error.
    with damage_errors(run / VOCABULARY):
        if content.pop("crc32", None) != json_crc32(content):
            raise ValueError("its checksum is wrong")
        return msgspec.convert(content, Vocabularies), msgspec.convert(content["labels"], Labels)


@dataclass(frozen=True)
class RunFacts:
    """The part of ``run.json`` that is read again."""

    directory: str = ""
    elmokit: str = ""
    """The version that started the run."""
    bilm: dict[str, Any] | None = None

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the biLM; None if the run has none."""
        return None if self.bilm is None else self.bilm.get("fingerprint")

    @property
    def has_included_model(self) -> bool:
        """Whether the biLM was the one inside the package, which changes with the version."""
        source = "" if self.bilm is None else self.bilm.get("source")
        return Path(str(source)).parts[-3:] == ("elmokit", "models", DEFAULT_MODEL)


def read_facts(run: Path, name: str = FACTS) -> RunFacts:
    """Read ``run.json``, or the same facts from the ``result.json`` of a seed that has trained its biLM."""
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
    """Return the scores of a training, or raise an error of msgspec unless they are named numbers."""
    return msgspec.convert(scores, dict[str, float])


def load_best_weights(model: torch.nn.Module, seed_folder: Path) -> None:
    """Give a model the weights of the best evaluation of a training. A biLM inside it keeps its own."""
    path = seed_folder / BEST_WEIGHTS
    bilm = {name: value for name, value in model.state_dict().items() if name.startswith(ELMO_WEIGHTS)}
    with damage_errors(path):
        model.load_state_dict({**load_file(path), **bilm})


def run_settings(
    task: AnyTask,
    config: Any,
    checksums: Mapping[str, Mapping[str, Sequence[int]]],
    vocabulary: Mapping[str, Any],
    elmo: Elmo | None,
) -> dict[str, Any]:
    """Return what must be equal for a run to be continued: seeds may be added, and the cache may move."""
    settings = {"task": task.name, **to_dict(config)}
    del settings["train"]["seeds"]
    if config.elmo is not None:
        del settings["elmo"]["cache"]
    for part, files in checksums.items():
        settings |= {f"{part} file {path}": f"{size:08x}-{crc32:08x}" for path, (size, crc32) in files.items()}
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
    """Write ``run.json``, or check that a resumed run has the same biLM, which it may have fine-tuned."""
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
    """Find a file that a run's config names: relative paths start in the directory that the run was started in."""
    if path is None:
        return None
    resolved = Path(read_facts(run).directory) / path
    return str(resolved) if resolved.exists() else path


def check_recordable(task: AnyTask, config: Any) -> None:
    """Refuse names of files that are not UTF-8, before a run is started with them."""
    for paths in _data_paths(task, config).values():
        check_names([*path_list(paths), *expand_paths(paths)])
    if config.elmo is None:
        return
    if config.elmo.cache is not None:
        check_names([config.elmo.cache])
    if config.elmo.model is not None:
        check_names([config.elmo.model])
        if Path(config.elmo.model).exists():
            check_names([Path(config.elmo.model).absolute()])  # the run records where relative paths start


def check_bilm(run: Path, now: str | None, file: str = FACTS) -> None:
    """Check that a run, or what it trained, has the biLM with this fingerprint; None is no biLM."""
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
    """Return the size and checksum of each data and word vector file, by its part in the config."""
    checksums = {}
    for part, names in _data_paths(task, config).items():
        checksums[part] = {path: _size_and_crc32(path) for path in expand_paths(names)}
    return checksums


def _size_and_crc32(path: str) -> list[int]:
    """Return the size and checksum of a file, decompressed."""
    with open_binary(path) as file:
        return list(size_and_crc32(file))


def _data_paths(task: AnyTask, config: Any) -> dict[str, Paths]:
    """Return the names of the data and word vector files in a config, by their part."""
    vectors: list[str] = []
    for words in task.word_configs(config).values():
        vectors += map(str, path_list(words.vectors))
    data = config.data
    return {"train": data.train, "dev": data.dev, "test": data.test, "vectors": tuple(vectors)}
