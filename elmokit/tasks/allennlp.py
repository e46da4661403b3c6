"""AllenNLP's training configs (JSON, Jsonnet) of the six tasks, and fragments of them, to configs of ours.

What has no counterpart here is told at the head of the TOML; nothing is dropped in silence.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elmokit.config import to_toml
from elmokit.errors import ConfigError, MissingExtraError
from elmokit.io.text_files import read_lines
from elmokit.tasks.allennlp_models import COUNTERPARTS
from elmokit.tasks.allennlp_parts import UNSET, Content, data, elmo, embedders, initializers, penalty, training
from elmokit.tasks.allennlp_table import Findings, Given
from elmokit.tasks.table import TASKS, config_of

MOST_VARIABLES = 100
ORDER = ("task", "data", "words", "chars", "elmo", "model", "train")
READERS = {"conll2003", "sst_tokens", "snli", "srl", "coref", "squad"}


def import_config(path: str | Path, variables: Mapping[str, str] | None = None) -> tuple[str, Findings]:
    """An AllenNLP config, or a fragment of one, as TOML.

    Args:
        variables: values of the external variables that a Jsonnet file names; those without one are told.

    Returns:
        the TOML text, which ``elmokit task train`` reads, and what it says at its head.

    Raises:
        ConfigError: the file is no JSON or Jsonnet, no config of AllenNLP's, or of a model without a counterpart.
        MissingExtraError: it is Jsonnet, and the package that reads it is not installed.
        TextError: the file cannot be read.
    """
    content, findings = read_config(path, variables or {}), Findings()
    top = Given(content, "", findings)
    found = _whole(top) if "model" in top.content else _fragment(top)
    top.leave()
    if "task" in found:
        config_of(found, str(path))  # what is printed loads
    ordered = {name: found[name] for name in ORDER if name in found}
    return _header(Path(path).name, found, findings) + to_toml(ordered), findings


def _whole(top: Given) -> Content:
    model, reader = top.table("model"), top.table("dataset_reader")
    if model is None:
        raise ConfigError("model: expected a table, found null.")
    kind = model.take("type", str, "")
    if kind not in COUNTERPARTS:
        known = ", ".join(COUNTERPARTS)
        nearest = difflib.get_close_matches(kind, list(COUNTERPARTS), n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"model.type is {kind!r}, which is none of the six tasks ({known}; the nearest is {nearest!r}). Its "
            "text_field_embedder can be imported by itself: put that table in a file of its own."
        )
    counterpart = COUNTERPARTS[kind]
    content: Content = {"task": counterpart.task, "data": data(top), "model": {}}
    content |= embedders(model, reader)
    counterpart.read(model, reader, content)
    weight = penalty(model)
    if isinstance(content.get("elmo"), dict):
        for place in ("input", "output"):
            if isinstance(content["elmo"].get(place), dict):
                content["elmo"][place]["penalty"] = weight
    elif weight:
        top.findings.without.append(f"model.regularizer: {weight} on the mix weights, and there is no mix")
    initializers(model, counterpart.initializers, counterpart.start)
    model.leave()
    _reader(reader)
    top.needless("validation_dataset_reader", "dev is read as training is, for SST as whole sentences")
    task = TASKS[counterpart.task]
    content["train"] = training(top, task.metric, counterpart.metrics)
    vocabulary = top.table("vocabulary")
    if vocabulary is not None:
        counts = vocabulary.table("min_count")
        if counts is not None:
            for name, theirs in (("words", "tokens"), ("chars", "token_characters")):
                if isinstance(content[name], dict):
                    content[name]["min_count"] = counts.take(theirs, int, 1)
            counts.leave()
        vocabulary.leave()
    return content


def _reader(reader: Given | None) -> None:
    if reader is None:
        return
    kind = reader.take("type", str, "")
    if kind not in READERS:
        reader.findings.without.append(
            f"{reader.place('type')} = {kind!r}: see docs/tasks.md for the formats read here"
        )
    reader.needless("lazy", "examples are read once")
    reader.leave()


def _fragment(top: Given) -> Content:
    """A text field embedder, its token embedders, or one of them; with the indexers of the same names or without."""
    if top.content.get("type") == "elmo_token_embedder":
        return {"elmo": elmo(top)}
    reader = top.table("dataset_reader") or (top if "token_indexers" in top.content else None)
    if "text_field_embedder" in top.content:
        model = top
    elif "token_embedders" in top.content or any(
        isinstance(value, dict) and str(value.get("type", "")) in ("elmo_token_embedder", "embedding")
        for value in top.content.values()
    ):
        inner = {key: top.content.pop(key) for key in list(top.content) if key != "token_indexers"}
        model = Given({"text_field_embedder": inner}, "", top.findings)
    elif reader is not None:
        model = Given({}, "", top.findings)
    else:
        raise ConfigError(
            "This is neither a training config of AllenNLP's (it has no model) nor a fragment with a "
            f"text_field_embedder, token_embedders or token_indexers. Its keys: {', '.join(top.content) or 'none'}."
        )
    found = embedders(model, reader)
    if reader is not None and reader is not top:
        _reader(reader)
    return {name: table for name, table in found.items() if table is not False}


def read_config(path: str | Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """The content of a JSON or Jsonnet file; external variables that are not given become marked texts.

    Raises:
        ConfigError: it is neither.
        MissingExtraError: it is Jsonnet, and the package that reads it is not installed.
        TextError: it cannot be read.
    """
    text = "\n".join(read_lines(path))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = _jsonnet(path, text, variables)
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a table of named values, found {str(content)[:60]}.")
    return content


def _jsonnet(path: str | Path, text: str, variables: Mapping[str, str]) -> Any:
    try:
        import _jsonnet
    except ImportError:
        raise MissingExtraError(f"{path} is no plain JSON; reading it as Jsonnet", "jsonnet") from None
    given = dict(variables)
    for _ in range(MOST_VARIABLES):
        try:
            return json.loads(
                _jsonnet.evaluate_snippet(str(path), text, ext_vars=given, import_callback=_beside(Path(path)))
            )
        except RuntimeError as error:
            unset = re.search(r"[Uu]ndefined external variable: (\w+)", str(error))
            if unset is None or unset[1] in given:
                reason = " ".join(str(error).split("\n")[:2])
                missing = ", ".join(sorted(given.keys() - variables.keys()))
                hint = f" External variables without a value: {missing}; give them by --var." if missing else ""
                raise ConfigError(f"{path} is no JSON, nor Jsonnet that can be evaluated: {reason}.{hint}") from None
            given[unset[1]] = UNSET + unset[1]
    raise ConfigError(f"{path} names more than {MOST_VARIABLES} external variables.")


def _beside(config: Path) -> Any:
    """Jsonnet's imports, from the config's own folder and below only."""
    home = config.parent.resolve()

    def read(folder: str, name: str) -> tuple[str, bytes]:
        path = (Path(folder) / name).resolve()
        if not path.is_relative_to(home):
            raise RuntimeError(f"{name} is outside the folder of {config.name}")
        return str(path), path.read_bytes()

    return read


def _header(name: str, content: Content, findings: Findings) -> str:
    of_task = (
        f" for the task {content['task']}" if "task" in content else ", a fragment: put its tables into a task's config"
    )
    lines = [f"Imported from {name} (AllenNLP){of_task}."]
    if findings.without:
        lines += ["", "Without a counterpart here, or to be seen to:", *(f"  {line}" for line in findings.without)]
    if findings.needless:
        lines += ["", "Not needed here:", *(f"  {line}" for line in findings.needless)]
    clean = (line.replace("\r", " ").replace("\n", " ") for line in lines)
    return "".join(f"# {line}".rstrip() + "\n" for line in clean) + "\n"
