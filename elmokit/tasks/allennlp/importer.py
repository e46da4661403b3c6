"""Import AllenNLP's training configs of the six tasks (JSON, Jsonnet), or fragments of them.

The config is converted to the tables of a TOML file. Values without a counterpart are listed at the head of the file,
so that nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elmokit.config import to_toml
from elmokit.errors import ConfigError
from elmokit.tasks.allennlp.config_file import read_config_file
from elmokit.tasks.allennlp.config_table import ConfigTable, Difference, ImportReport
from elmokit.tasks.allennlp.conversion import (
    ALTERNATING,
    COUNTERPARTS,
    Tables,
    convert_batches,
    convert_config,
    convert_counts,
    convert_data,
    convert_elmo,
    convert_embedders,
    convert_penalty,
    convert_srl,
    convert_training,
    explain_initializers,
    explain_reader,
)
from elmokit.tasks.table import config_of

TABLE_ORDER = ("task", "data", "words", "chars", "elmo", "model", "train")
BESIDE_EMBEDDERS = {"token_indexers", "vocabulary", "trainer", "iterator", "data_loader", "train_data_path"}
"""What a fragment can have, alone or in one table with embedders."""


def import_config(path: str | Path, variables: Mapping[str, str] | None = None) -> tuple[str, ImportReport]:
    """Convert an AllenNLP config, or a fragment of one, to TOML.

    Args:
        path: A JSON or Jsonnet file.
        variables: Values of the external variables that the file uses. Missing ones are reported.

    Returns:
        The text for a TOML file that ``elmokit task train`` reads, and the report that is at its head.
    """
    report = ImportReport()
    top = ConfigTable(read_config_file(path, variables), "", report)
    tables = _convert_fragment(top) if _is_fragment(top.content) else convert_config(top)
    top.report_unused()
    if "task" in tables:
        config_of(tables, str(path))  # raises an error now if the result is not a valid config
    elif tables.get("elmo", {}).get("trainable") and "learning_rate" not in tables["elmo"]:
        line = (
            "requires_grad: AllenNLP trains the biLM at the optimizer's learning rate, elmokit at a hundredth of it by "
            "default (elmo.learning_rate)"
        )
        report.differences.append(Difference(line, "training"))
    ordered = {name: tables[name] for name in TABLE_ORDER if name in tables}
    return _header(Path(path).name, tables, report) + to_toml(ordered), report


def _is_fragment(content: Mapping[str, Any]) -> bool:
    model = content.get("model", {})
    return "model" not in content or (isinstance(model, dict) and "type" not in model and "trainer" not in content)


def _convert_fragment(top: ConfigTable) -> Tables:
    """Convert a part of a config.

    It can be a text field embedder, its token embedders, one of these, the indexers with the same names, the trainer
    with its batches, or the encoder of ``srl``, which other models rarely have. The first and the last can be in a
    ``model`` without a type.
    """
    if top.content.get("type") == "elmo_token_embedder":
        top.content.pop("type")
        return {"elmo": convert_elmo(top)}
    if top.content.get("type") in ALTERNATING:
        content, top.content = top.content, {}
        top = top.add_table({"encoder": content}, "")
    whole, reader = top, top.table("dataset_reader")
    if "model" in top.content:
        top = top.table("model")
    srl = _convert_srl_fragment(top, reader)
    indexers = reader if reader.exists else top
    is_embedders = "token_embedders" in top.content or any(
        isinstance(value, dict) and str(value.get("type", "")) in ("elmo_token_embedder", "embedding")
        for value in top.content.values()
    )
    if "text_field_embedder" in top.content:
        model = top
    elif is_embedders:
        names = [key for key in top.content if key not in BESIDE_EMBEDDERS]
        model = top.add_table({"text_field_embedder": {key: top.content.pop(key) for key in names}}, "")
    elif reader.exists or srl or not BESIDE_EMBEDDERS.isdisjoint(top.content):
        model = top.add_table({}, "")
    else:
        raise ConfigError(
            "Expected a training config of AllenNLP with a model, or a fragment with a text_field_embedder, "
            "token_embedders, token_indexers, trainer or the encoder of srl; found the keys: "
            f"{', '.join(top.content) or 'none'}."
        )
    tables = convert_embedders(model, indexers, is_fragment=True) | srl
    if "regularizer" in model.content:
        convert_penalty(model, tables)
    explain_reader(reader)
    convert_counts(whole, tables)
    tables["data"] = convert_data(whole)
    if "trainer" in whole.content:
        metrics = [metric for counterpart in COUNTERPARTS.values() for metric in counterpart.metrics]
        tables["train"] = convert_training(whole, tables.get("elmo", {}), "the task's metric", metrics)
    else:
        tables["train"] = convert_batches(whole)
    return {name: table for name, table in tables.items() if table}


def _convert_srl_fragment(top: ConfigTable, reader: ConfigTable) -> Tables:
    """Convert what a fragment contains of the model ``srl``. Return nothing if its encoder can be of other models."""
    encoder = top.content.get("encoder")
    if not isinstance(encoder, dict) or encoder.get("type") not in ALTERNATING:
        return {}
    has_mark = "binary_feature_dim" in top.content
    tables: Tables = {"model": {}}
    convert_srl(top, reader, tables)
    if not has_mark:
        del tables["model"]["predicate_dim"]
    explain_initializers(top, COUNTERPARTS["srl"].initializers, COUNTERPARTS["srl"].initial_weights)
    return tables


def _header(name: str, tables: Tables, report: ImportReport) -> str:
    """Return the comment at the head of the TOML file."""
    owner = "a config of the task srl" if "model" in tables else "a task's config"
    kind = f"for the task {tables['task']}" if "task" in tables else f"a fragment: copy its tables to {owner}"
    readable = name.encode("utf-8", "replace").decode()  # the name of a file can be any bytes
    lines = [f"Imported from {readable} (AllenNLP), {kind}."]
    for title, entries in (
        ("Not supported here, or to be checked:", report.unsupported),
        ("Not needed here:", report.redundant),
    ):
        if entries:
            lines += ["", title, *(f"  {entry}" for entry in entries)]
    clean = (line.replace("\r", " ").replace("\n", " ") for line in lines)
    return "".join(f"# {line}".rstrip() + "\n" for line in clean) + "\n"
