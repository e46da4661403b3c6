"""The folder of a run: what it begins with, what it is refused to go on with, and its results.

::

    config.toml        every setting; ``elmokit task train RUN/config.toml --run ANOTHER`` repeats the run
    vocabulary.json    words, characters, labels
    run.json           command, folder that paths count from, versions, the data's and word vectors' sizes and
                       checksums, the biLM's fingerprint and card
    layers/            the biLM's layers, unless the config names another place
    bilm/              the biLM that the run has fine-tuned, if it has
    seed-N/            metrics.jsonl, checkpoint/, best.safetensors, result.json
    results.json       all seeds' results, mean and deviation
    lock               held by the process that trains there
"""

from __future__ import annotations

import contextlib
import json
import platform
import statistics
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from elmokit.config import read_toml, to_dict, to_toml
from elmokit.embedder import Elmo
from elmokit.errors import FormatError, TrainingError
from elmokit.fingerprint import fingerprint
from elmokit.io.atomic import atomic_write
from elmokit.io.text_files import open_binary
from elmokit.tasks.config import expand
from elmokit.tasks.table import config_of
from elmokit.tasks.task import Task
from elmokit.tasks.vocabulary import Coverage

AnyTask = Task[Any, Any, Any, Any]
FREE = {"train.seeds", "elmo.cache"}
"""Settings that may differ between a run and its resumption."""


def finished_seeds(run: Path) -> list[int]:
    """The seeds whose training is over."""
    found = (path.parent.name.removeprefix("seed-") for path in run.glob("seed-*/result.json"))
    return sorted(int(name) for name in found if name.isdigit())


def mean_and_deviation(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Of each score that all seeds have: the mean, and the sample's standard deviation (0 of a single seed)."""
    return {
        name: {
            "mean": statistics.fmean(one[name] for one in scores),
            "deviation": statistics.stdev(one[name] for one in scores) if len(scores) > 1 else 0.0,
        }
        for name in scores[0]
        if all(name in one for one in scores)
    }


def data_facts(task: AnyTask, config: Any) -> dict[str, dict[str, list[int]]]:
    """Each file's size and checksum, decompressed: of the data, and of the word vectors."""
    paths = {part: expand(getattr(config.data, part)) for part in ("train", "dev", "test")}
    tables = [words for name in task.word_tables if (words := getattr(config, name)) is not None]
    paths["vectors"] = [path for words in tables for path in expand(words.vectors)]
    return {part: {path: _checksum(path) for path in found} for part, found in paths.items()}


def _checksum(path: str) -> list[int]:
    size = checksum = 0
    with open_binary(path) as file:
        while block := file.read(1 << 20):
            size += len(block)
            checksum = zlib.crc32(block, checksum)
    return [size, checksum]


def begin(run: Path, task: AnyTask, config: Any, vocabulary: Mapping[str, Any]) -> None:
    """Write what a run begins with; refuse to go on with a run that began with something else. Seeds may be added."""
    content = {"task": task.name, **to_dict(config)}
    if (run / "config.toml").exists():
        earlier = to_dict(config_of(read_toml(run / "config.toml"), str(run / "config.toml"))[1])
        changed = changes({"task": task.name, **earlier}, content)
        if changed:
            raise TrainingError(
                f"{run} is a run with other settings: {', '.join(changed)}. Resume with the same, or start a new run."
            )
    if (run / "vocabulary.json").exists() and read_json(run / "vocabulary.json") != json.loads(json.dumps(vocabulary)):
        raise TrainingError(f"The words or labels of {run} are not those of the data any more. Start a new run.")
    if (run / "run.json").exists():
        earlier, now = read_json(run / "run.json").get("data", {}), data_facts(task, config)
        if any(now.get(part) != earlier[part] for part in earlier):
            raise TrainingError(f"The data of {run} have changed since it began. Put them back, or start a new run.")
    run.mkdir(parents=True, exist_ok=True)
    for name, text in (("vocabulary.json", json.dumps(vocabulary)), ("config.toml", to_toml(content))):
        with atomic_write(run / name, overwrite=True) as beside:
            beside.write_text(text, encoding="utf-8", newline="\n")


def changes(earlier: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    """The settings that differ, and how, but for those that no result depends on."""
    found: list[str] = []
    for name in now:
        was, is_ = earlier.get(name), now[name]
        if isinstance(was, dict) and isinstance(is_, dict):
            found += changes(was, is_, f"{path}{name}.")
        elif was != is_ and f"{path}{name}" not in FREE:
            found.append(f"{path}{name} was {was!r} and is {is_!r}")
    return found


def write_facts(
    run: Path, task: AnyTask, config: Any, coverage: Mapping[str, Coverage], elmo: Elmo | None, facts: Mapping[str, Any]
) -> None:
    path = run / "run.json"
    bilm = None
    if elmo is not None:
        bilm = {
            "source": str(elmo.model.source),
            "fingerprint": fingerprint(elmo.model, elmo.start),
            "card": elmo.model.card,
        }
    if path.exists():
        earlier = read_json(path).get("bilm")
        if (earlier or {}).get("fingerprint") != (bilm or {}).get("fingerprint"):
            raise TrainingError(f"The biLM of {run} has changed since it began. Put it back, or start a new run.")
        return
    content = {
        **facts,
        "task": task.name,
        "directory": str(Path.cwd()),
        "versions": {"python": platform.python_version(), **_versions()},
        "n_threads": torch.get_num_threads(),
        "data": data_facts(task, config),
        "word_vectors": {name: asdict(covered) for name, covered in coverage.items()},
        "bilm": bilm,
    }
    write_json(path, content)


def _versions() -> dict[str, str]:
    """Of the packages that numbers and tokens depend on; what is not installed is left out."""
    found = {}
    for name in ("torch", "numpy", "nltk"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def where_begun(run: Path, path: str | None) -> str | None:
    """A path from a run's config, which counts from the folder that the run began in, if it is there."""
    if path is None:
        return None
    place = Path(read_json(run / "run.json").get("directory", "")) / path
    return str(place) if place.exists() else path


def write_json(path: Path, content: Any) -> None:
    with atomic_write(path, overwrite=True) as beside:
        beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be read ({error}). Copy the run again.") from None
    if not isinstance(content, dict):
        raise FormatError(f"{path} holds no table of named values. Copy the run again.")
    return content
