"""Open a task model that AllenNLP trained: config converted, vocabulary and tensors mapped, ELMo taken out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from elmokit.config import write_json
from elmokit.embedding.elmo import Elmo
from elmokit.errors import ConfigError, FormatError, OutputError
from elmokit.formats.bilm_tf import read_options
from elmokit.formats.folder import save_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import open_model
from elmokit.formats.tensor_rows import TensorRow, read_through, same_rows
from elmokit.network.from_arrays import load_arrays
from elmokit.network.tensors import save_tensors
from elmokit.storage.atomic import atomic_write
from elmokit.storage.bounded import whole_number
from elmokit.tasks.allennlp.archive import (
    CACHE,
    UNKNOWN,
    TaskArchive,
    assumed_options,
    bilm_of,
    config_of_tensors,
    entries_of,
    has_published_options,
    known_entries,
    options_named_by,
    read_archive,
    shape_of,
    tensors_of,
)
from elmokit.tasks.allennlp.characters import BYTES, Spelling
from elmokit.tasks.allennlp.config_table import ConfigTable, ImportReport
from elmokit.tasks.allennlp.conversion import Tables, convert_config
from elmokit.tasks.allennlp.tensors import ATTENTIONS, ROWS, Embeddings, join_mixes, split_joint
from elmokit.tasks.inputs import ElmoShape, Inputs, WordTable
from elmokit.tasks.ner import NerModel
from elmokit.tasks.run_folder import (
    ARCHIVE_SEED,
    BEST_WEIGHTS,
    OWN_BILM,
    data_checksums,
    elmo_start,
    write_facts,
    write_start,
)
from elmokit.tasks.sst import CLASSES
from elmokit.tasks.table import config_of
from elmokit.tasks.task import Labels, TaskModel, TaskSetup
from elmokit.tasks.vocabulary import vocabulary_content

ArchiveStart = Literal["allennlp", "zero", "warm"]
SEVERAL_TEXTS = ("nli", "qa")  # the tasks whose examples have several
KINDS = {"embedding": "words", "character_encoding": "chars", "elmo_token_embedder": "elmo"}
READ_FROM_CONFIG = ("model", "dataset_reader", "vocabulary", "iterator", "data_loader")
# Tensors without a counterpart: what follows from others, or cancels out in a softmax.
DERIVED = ("crf._constraint_mask", *(f"{module}_bias" for module in ATTENTIONS))


@dataclass(frozen=True)
class OpenedArchive:
    """A trained model of AllenNLP as one of ours."""

    setup: TaskSetup
    """Without a source of biLM layers."""
    model: TaskModel[Any, Any]
    bilm: PretrainedBiLM | None
    """The ELMo inside."""
    archive: TaskArchive
    notes: list[str]
    """What the user must know: how text is read here, and ``assumed``."""
    assumed: str | None
    """What was assumed about ELMo because its options are unknown."""


def open_task_archive(
    source: str | Path, start: ArchiveStart = "allennlp", options: str | Path | None = None
) -> OpenedArchive:
    """Open a trained model of AllenNLP on the CPU.

    Args:
        source: ``model.tar.gz``, or the directory of an unpacked one.
        start: The LSTM state that the sentences of ELMo start from. "allennlp" is what AllenNLP computes for its first
            batch: zero, where the hypothesis continues from the premise, and the passage from the question. (Its later
            batches continue from the batch before, so that they depend on the order of the examples.) "zero" and
            "warm" as in ``Elmo``.
        options: The options file of its ELMo, for archives that do not hold it: AllenNLP stopped adding it at 1.0.
            Without it, the clips and the activation are those of the published models.
    """
    archive = read_archive(source)
    tensors = split_joint(join_mixes(archive.tensors))
    tables, notes = convert_archive(archive)
    embeddings, namespaces = _embeddings(archive)
    _complete_tables(tables, archive, embeddings, tensors)
    if "elmo" in tables:
        known = "continued" if tables["task"] in SEVERAL_TEXTS else "zero"
        notes += _complete_elmo(tables["elmo"], known if start == "allennlp" else start)
    if tables["task"] == "srl":
        tables["model"]["decoding"] = "allennlp 0.x" if _is_before(archive, "1.0") else "allennlp"
    task, config = config_of(tables, str(archive.source))
    inputs, embeddings = _inputs(archive, config, embeddings, namespaces)
    if options is not None and config.elmo is None:
        raise ConfigError(f"{archive.source} has no ELMo, so it cannot use the options file {options}.")
    prefix, bilm_config, assumed = _inner_elmo_prefix(tensors), None, None
    if prefix is not None:
        table = _elmo_table(archive)
        content = archive.options or options_named_by(table) if options is None else read_options(options)
        tensors.pop(prefix + CACHE, None)
        own = {name.removeprefix(prefix): part for name, part in tensors.items() if name.startswith(prefix)}
        bilm_config = config_of_tensors(own, content, str(archive.source if options is None else options))
        if content is None and not has_published_options(table):
            assumed = assumed_options(bilm_config, table)
            notes.append(assumed)
    bilm = _referenced_bilm(archive, options) if config.elmo is not None and bilm_config is None else None
    if bilm is not None:
        bilm_config = bilm.config
    if bilm_config is not None:
        inputs = inputs.with_elmo(ElmoShape(bilm_config.n_layers + 1, bilm_config.output_dim))
    setup = TaskSetup(task, config, inputs, _labels(task.name, archive), torch.device("cpu"))
    model = setup.build_for(sum(tensor.numel() for tensor in tensors.values()), str(archive.source))
    _check_constraints(model, tensors)
    # AllenNLP's tensors of the ELMo go to a module under their names, so that one check covers the whole file.
    parts: dict[str, tuple[nn.Module, list[TensorRow]]] = {"model": (model, ROWS[task.name](model, embeddings))}
    elmo = None
    if prefix is not None and bilm_config is not None:
        elmo = _module_of(tensors_of(bilm_config))
        parts["bilm"] = (elmo, same_rows(elmo.state_dict(), prefix))
    _fill(parts, tensors, str(archive.source))
    if elmo is not None and bilm_config is not None:
        bilm = bilm_of(elmo.state_dict(), bilm_config, archive.source)
    return OpenedArchive(setup, model, bilm, archive, notes, assumed)


def _fill(parts: Mapping[str, tuple[nn.Module, Sequence[TensorRow]]], tensors: Mapping[str, Tensor], what: str) -> None:
    """Load the tensors of a file into several modules, each with the rows of its tensors."""
    whole = nn.Module()
    for name, (module, _) in parts.items():
        whole.add_module(name, module)
    rows = [row._replace(ours=f"{name}.{row.ours}") for name, (_, own) in parts.items() for row in own]
    kept = {name: tensor for name, tensor in tensors.items() if name not in DERIVED}
    wanted, shapes = (
        {name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in (whole.state_dict(), kept)
    )
    load_arrays(whole, read_through(rows, wanted, shapes, lambda name: kept[name].numpy(), what))


def convert_archive(archive: TaskArchive) -> tuple[Tables, list[str]]:
    """Convert the config to our tables, without data and training. Returns them and what differs in reading text."""
    content = {name: archive.config[name] for name in READ_FROM_CONFIG if name in archive.config}
    # Without the name of the list of tags, which `_labels` reads.
    content["model"] = {name: value for name, value in _table(content, "model").items() if name != "label_namespace"}
    report = ImportReport()
    top = ConfigTable(content, "", report)
    try:
        tables = convert_config(top)
        top.report_unused()
    except ConfigError as error:
        raise ConfigError(f"{archive.source}: {error}") from None
    tables["train"] = {"batch_size": tables["train"]["batch_size"]} if "batch_size" in tables["train"] else {}
    if different := [line for line, mark in report.differences if mark == "weights"]:
        raise ConfigError(f"{archive.source} cannot be opened: {'; '.join(different)}.")
    return tables, [line for line, mark in report.differences if mark == "text"]


def _embedders(archive: TaskArchive) -> dict[str, dict[str, Any]]:
    """Return the tables of the token embedders by name, in the order in which AllenNLP concatenates them."""
    field = _table(archive.config, "model", "text_field_embedder")
    inner = _table(field, "token_embedders") if "token_embedders" in field else field
    return {name: inner[name] for name in sorted(inner) if isinstance(inner[name], dict)}


def _embeddings(archive: TaskArchive) -> tuple[Embeddings, dict[str, str]]:
    """Return the token embedders, and the namespaces of the vocabulary of words and characters."""
    prefix = next(
        (prefix for prefix in ("text_field_embedder.", "_text_field_embedder.") if _any_starts(archive, prefix)),
        "_text_field_embedder.",
    )
    kinds: dict[str, str] = {}
    namespaces: dict[str, str] = {}
    for name, table in _embedders(archive).items():
        kind = KINDS.get(table.get("type", "embedding"))
        if kind is None:
            continue  # its tensors have no counterpart, which is an error
        kinds[name] = kind
        if kind == "words":
            namespaces["words"] = str(table.get("vocab_namespace", "tokens"))
        elif kind == "chars":
            namespaces["chars"] = str(_table(table, "embedding").get("vocab_namespace", "token_characters"))
    return Embeddings(prefix, kinds, {}), namespaces


def _table(content: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return a table inside a config; an empty one if it is absent, or written as the name of its type."""
    inner: Any = content
    for key in keys:
        inner = inner.get(key)
        if not isinstance(inner, dict):
            return {}
    return dict(inner)


def _complete_elmo(elmo: Tables, start: str) -> list[str]:
    """Set how the ELMo inside is used. Returns what differs from AllenNLP."""
    elmo |= {
        "start": start,
        "cache_dtype": "float32",  # float16 would change the scores
        "trainable": False,  # it was, perhaps; it will not be trained further
    }
    notes = []
    for position in ("input", "output"):
        if isinstance(mix := elmo.get(position), dict):
            mix.pop("layers", None)  # the weights of all layers are in the archive
            if mix.get("layer_norm"):
                notes.append("do_layer_norm: AllenNLP normalized over the boundaries of sentences too; scores differ")
    return notes


def _any_starts(archive: TaskArchive, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in archive.tensors)


def _complete_tables(
    tables: Tables, archive: TaskArchive, embeddings: Embeddings, tensors: Mapping[str, Tensor]
) -> None:
    """Set what the archive knows and the config may not: sizes, and how AllenNLP computes character features."""
    if isinstance(tables.get("words"), dict):
        table = f"{embeddings.name_of('words')}weight"
        tables["words"] |= {"vectors": [], "dim": shape_of(tensors, table, 2, str(archive.source))[1]}
    if isinstance(tables.get("chars"), dict):
        name = next(name for name, kind in embeddings.kinds.items() if kind == "chars")
        table = f"{embeddings.name_of('chars')}_embedding._module.weight"
        indexer = _table(archive.config, "dataset_reader", "token_indexers", name)
        least = indexer.get("min_padding_length") or False
        tables["chars"] |= {
            "dim": shape_of(tensors, table, 2, str(archive.source))[1],
            "windows": "batch" if _is_before(archive, "1.3") else "complete",
            "min_chars": least if _is_before(archive, "1.3") else False,
        }


def _is_before(archive: TaskArchive, version: str) -> bool:
    """Check whether a model was saved before a version. Those of 1.0 to 2.5, which did not record it, count as new."""
    if archive.version is None:
        return archive.is_from_before_1
    own, limit = ([int(part) for part in re.findall(r"\d+", text)[:2]] for text in (archive.version, version))
    return own < limit


def _inputs(
    archive: TaskArchive,
    config: Any,
    embeddings: Embeddings,
    namespaces: Mapping[str, str],
) -> tuple[Inputs, Embeddings]:
    """Make the inputs of the archive's vocabulary, and record the rows of unknown words."""
    unknown = str(_table(archive.config, "vocabulary").get("oov_token") or UNKNOWN)
    tables: dict[str, WordTable] = {}
    rows: dict[str, int] = {}
    chars: list[str] | None = None
    if "words" in namespaces:
        words, rows["words"] = known_entries(archive, namespaces["words"], unknown)
        tables["words"] = WordTable(words, config.words.dim, config.words.lowercase)
    if "chars" in namespaces and config.chars.spelling == "characters":
        chars, rows["chars"] = known_entries(archive, namespaces["chars"], unknown)
    elif "chars" in namespaces:
        chars = BYTES
    spelling: Spelling = "characters" if config.chars is None else config.chars.spelling
    return Inputs(tables, chars, None, spelling=spelling), replace(embeddings, unknown_rows=rows)


def _inner_elmo_prefix(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the prefix of the ELMo's tensors; None if there are none."""
    name = next((name for name in tensors if "_elmo_lstm._token_embedder." in name), None)
    return None if name is None else name.partition("_elmo_lstm._token_embedder.")[0] + "_elmo_lstm."


def _elmo_table(archive: TaskArchive) -> dict[str, Any]:
    """Return the config's table that names the files of ELMo."""
    embedder = archive.config["model"].get("elmo")
    embedders = [table for table in _embedders(archive).values() if table.get("type") == "elmo_token_embedder"]
    return embedder if isinstance(embedder, dict) else next(iter(embedders), {})


def _referenced_bilm(archive: TaskArchive, options: str | Path | None) -> PretrainedBiLM:
    """Open the ELMo that an archive without its tensors refers to, with given options or those that it refers to."""
    table = _elmo_table(archive)
    weights, options = table.get("weight_file"), options or table.get("options_file")
    if not isinstance(weights, str) or not weights:
        raise ConfigError(f"{archive.source} neither holds the tensors of its ELMo nor names a weight_file.")
    return open_model(weights, options=options).replace(exact_marks=True)


def _labels(task: str, archive: TaskArchive) -> Labels:
    """Return the labels in the order of the archive's vocabulary, under our names."""
    if task in ("coref", "qa"):
        return {"genres": [""]} if task == "coref" else {}
    name = str(archive.config["model"].get("label_namespace", "labels"))
    labels = entries_of(archive, name)
    if task == "nli":
        return {"classes": labels}
    if task == "ner":
        return {"tags": labels}
    if task == "srl":
        return {"tags": labels, "predicates": []}
    granularity = _table(archive.config, "dataset_reader").get("granularity", "5-class")
    names = list(dict.fromkeys(one for one in CLASSES[int(granularity[0])] if one is not None))
    numbers = map(whole_number, labels)
    classes = [names[number] for number in numbers if number is not None and number < len(names)]
    if len(classes) < len(labels):
        raise FormatError(f"{archive.source}: its labels are {', '.join(labels)}, not those of {granularity}.")
    return {"classes": classes}


def _check_constraints(model: TaskModel[Any, Any], tensors: Mapping[str, Tensor]) -> None:
    """Check that the order of tags that AllenNLP's CRF allowed is the one that is allowed here."""
    theirs = tensors.get("crf._constraint_mask")
    if not isinstance(model, NerModel) or theirs is None:
        return
    penalties = model.crf.penalties
    n_tags = len(model.tags)
    if theirs.shape != (n_tags + 2, n_tags + 2):
        return  # the vocabulary has other tags; the error about shapes says so
    allowed = torch.zeros(n_tags + 2, n_tags + 2, dtype=torch.bool)
    allowed[:n_tags, :n_tags] = penalties.follow == 0
    allowed[n_tags, :n_tags] = penalties.start == 0
    allowed[:n_tags, n_tags + 1] = penalties.end == 0
    considered = torch.zeros_like(allowed)
    considered[: n_tags + 1, :n_tags] = True
    considered[:n_tags, n_tags + 1] = True
    if ((theirs > 0) != allowed)[considered].any():
        raise ConfigError("The tags that may follow each other in the archive are not those of its label_encoding.")


def _module_of(tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a module whose state dict has these tensors."""
    root = nn.Module()
    for name, tensor in tensors.items():
        *folders, last = name.split(".")
        module = root
        for folder in folders:
            if folder not in dict(module.named_children()):
                module.add_module(folder, nn.Module())
            module = module.get_submodule(folder)
        module.register_parameter(last, nn.Parameter(tensor, requires_grad=False))
    return root


def describe_archive(opened: OpenedArchive) -> dict[str, Any]:
    """Return facts about an opened archive, for the user."""
    setup, archive = opened.setup, opened.archive
    facts: dict[str, Any] = {
        "task": setup.task.name,
        "model": archive.config["model"].get("type"),
        "allennlp": archive.version or "not recorded",
        "parameters": sum(parameter.numel() for parameter in opened.model.parameters()),
    }
    facts |= {name: len(table.words) for name, table in setup.inputs.tables.items()}
    if setup.inputs.chars is not None:
        facts["characters"] = len(setup.inputs.chars) if setup.inputs.spelling == "characters" else "bytes"
    facts |= {name: labels for name, labels in setup.labels.items() if any(labels)}
    if opened.bilm is not None:
        bilm = opened.bilm.config
        facts["elmo"] = {"layers": bilm.n_layers + 1, "dim": bilm.output_dim, "start": setup.config.elmo.start}
    return facts


def save_as_run(opened: OpenedArchive, folder: str | Path) -> None:
    """Write the model of an archive as a run directory, atomically."""
    folder = Path(folder)
    if folder.exists():  # `atomic_write` would advise a flag that the command does not have
        raise OutputError(f"{folder} already exists; choose another directory.")
    setup = opened.setup
    elmo = None
    if opened.bilm is not None:
        elmo = Elmo(opened.bilm, start=elmo_start(setup.config.elmo))
    content = {**vocabulary_content(setup.inputs), "labels": setup.labels}
    origin = {"archive": str(opened.archive.source), "allennlp": opened.archive.version, "notes": opened.notes}
    checksums = data_checksums(setup.task, setup.config)
    with atomic_write(folder, folder=True) as run:
        write_start(run, setup.task, setup.config, content)
        write_facts(run, setup.task, {}, elmo, {**origin, "data": checksums})
        if opened.bilm is not None:
            save_folder(opened.bilm, run / OWN_BILM)
        seed = run / f"seed-{ARCHIVE_SEED}"
        seed.mkdir()
        save_tensors(opened.model.state_dict(), seed / BEST_WEIGHTS)
        # An archive does not say how the model was scored.
        write_json(seed / "result.json", {"seed": ARCHIVE_SEED, "dev": {}})
