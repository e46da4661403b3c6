"""Open a task model trained by AllenNLP: convert its config, take out its ELMo, and map its vocabulary and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from elmokit.config import write_json
from elmokit.embedding.elmo import Elmo
from elmokit.errors import ConfigError, FormatError, OutputError
from elmokit.formats.folder import save_folder
from elmokit.network.tensors import save_tensors
from elmokit.network.torch_network import load_arrays
from elmokit.storage.atomic import atomic_write
from elmokit.tasks.allennlp.archive_files import CONFIG, TaskArchive, entries_of, known_entries, read_archive, table_in
from elmokit.tasks.allennlp.archived_configs import ArchivedNerConfig, ArchivedSrlConfig
from elmokit.tasks.allennlp.archived_elmo import elmo_of
from elmokit.tasks.allennlp.config_table import DEFAULT_BATCH_SIZE, ConfigTable
from elmokit.tasks.allennlp.model_configs import ModelInputs, convert_model, counterpart_of, report_reader
from elmokit.tasks.allennlp.parsing import NO_LABEL, UNKNOWN
from elmokit.tasks.allennlp.task_tensors import (
    ATTENTIONS,
    ROWS,
    Embeddings,
    arrays_of,
    join_mixes,
    project_words,
    shape_of,
    split_joint,
)
from elmokit.tasks.allennlp.variants import ARCHIVED_TASKS
from elmokit.tasks.inputs import BYTES, ComputedLayers, Inputs, Vocabularies, WordTable
from elmokit.tasks.nn.crf import TagRules
from elmokit.tasks.run_folder import (
    ARCHIVE_SEED,
    BEST_WEIGHTS,
    OWN_BILM,
    data_checksums,
    vocabulary_content,
    write_facts,
    write_start,
)
from elmokit.tasks.sst import distinct_classes
from elmokit.tasks.tags import rules_of
from elmokit.tasks.task import AnyModel, AnyTask, Labels, TaskSetup
from elmokit.tasks.task_config import Spelling

ArchiveStart = Literal["allennlp", "zero", "warm"]
SEVERAL_TEXTS = ("nli", "qa")  # the tasks whose examples have several texts
TRAINING_ONLY = ("initializer", "regularizer")
"""Keys of a model that do not matter once it is trained."""
# Tensors without a counterpart: they follow from others, or cancel out in a softmax.
CONSTRAINT_MASK = "crf._constraint_mask"
DERIVED = tuple(f"{module}_bias" for module in ATTENTIONS)


@dataclass(frozen=True)
class OpenedArchive:
    """A model trained by AllenNLP, converted to a model of elmokit."""

    setup: TaskSetup
    """The task with its config, vocabularies and labels, for the CPU."""
    model: AnyModel
    elmo: Elmo | None
    """The ELMo inside the archive."""
    archive: TaskArchive
    notes: list[str]
    """Notes for the user: differences in how text is read, and ``assumed``."""
    assumed: str | None
    """Assumptions about an ELMo with unknown options."""


def open_task_archive(
    source: str | Path, start: ArchiveStart = "allennlp", options: Path | str | None = None
) -> OpenedArchive:
    """Open a model trained by AllenNLP, on the CPU.

    Args:
        source: ``model.tar.gz``, or the directory of an unpacked one.
        start: LSTM state in which ELMo starts sentences. "allennlp" does what AllenNLP does for its first batch:
            sentences start from zero, but a hypothesis from the state after the premise, and a passage from the state
            after the question. (AllenNLP's later batches depend on the order of the examples, because they start from
            the state after the previous batch.) "zero" and "warm" are as in ``Elmo``.
        options: The options file of its ELMo, if the archive does not contain it; archives since version 1.0 do not.
            Without it, the clips and the activation are assumed to be those of the published models.

    Raises:
        ModelError: The archive cannot be read, or its tensors do not fit its config.
        ConfigError: It has a model or settings that elmokit does not have.
    """
    archive = read_archive(source)
    tensors = split_joint(join_mixes(archive.tensors))
    for name in DERIVED:
        tensors.pop(name, None)
    mask = tensors.pop(CONSTRAINT_MASK, None)
    task, config, inputs, notes = convert_archive(archive)
    embeddings = Embeddings(_embedder_prefix(tensors), inputs.names, {})
    project_words(tensors, embeddings)
    config = _with_sizes(config, archive, embeddings, tensors, inputs.min_chars)
    config = _as_allennlp_predicts(config, task, archive, start)
    labels = _labels(task.name, archive)
    if isinstance(config, ArchivedNerConfig):
        constraints = _constraints(config, mask, labels["tags"], archive.source)
        config = replace(config, model=replace(config.model, constraints=constraints))
    vocabularies, embeddings = _vocabularies(archive, config, embeddings, inputs.namespaces)
    elmo, elmo_notes, assumed = elmo_of(archive, config, inputs.elmo_files, tensors, options)
    notes += elmo_notes
    layers = None if elmo is None else ComputedLayers(elmo)
    setup = TaskSetup(task, config, Inputs(vocabularies, layers), labels, torch.device("cpu"))
    model = setup.build()
    rows = ROWS[task.name](model, embeddings)
    load_arrays(model, arrays_of(rows, model.state_dict(), tensors, archive.source))
    return OpenedArchive(setup, model, elmo, archive, notes, assumed)


def _constraints(
    config: ArchivedNerConfig, mask: Tensor | None, tags: Sequence[str], source: Path
) -> Literal["decoding", "both", "none"]:
    """Return the constraints stored with the weights. AllenNLP uses them for decoding even if its config was edited.

    Args:
        config: The converted config.
        mask: ``(tags + 2, tags + 2)``: 1 where the column's tag may follow the row's tag. The start and end of a
            sentence come after the tags. None if it is not stored.
        tags: The tags, in the order of the mask.
        source: The archive, for errors.

    Raises:
        ConfigError: The constraints belong to another tagging scheme than the config's.
    """
    n_tags = len(tags)
    if mask is None or mask.shape != (n_tags + 2, n_tags + 2):
        # If the shape is wrong, the transitions have the wrong shape, too, which is an error later.
        return config.model.constraints
    start, end = n_tags, n_tags + 1
    is_allowed = mask > 0
    stored = TagRules(is_allowed[:n_tags, :n_tags], is_allowed[start, :n_tags], is_allowed[:n_tags, end])
    if all(bool(allowed.all()) for allowed in stored):
        return "none"
    if not _equal_rules(stored, rules_of(tags, config.model.tags)):
        raise ConfigError(
            f"{source}: the tagging scheme in {CONFIG} is {config.model.tags}, but the constraints in the weights "
            f"({CONSTRAINT_MASK}) are for another one. If label_encoding was edited, restore it."
        )
    return "decoding"


def _equal_rules(first: TagRules, second: TagRules) -> bool:
    return (
        torch.equal(first.follow, second.follow)
        and torch.equal(first.start, second.start)
        and torch.equal(first.end, second.end)
    )


def convert_archive(archive: TaskArchive) -> tuple[AnyTask, Any, ModelInputs, list[str]]:
    """Convert an archive's config. Returns the task, its config and inputs, and differences in how text is read."""
    # The training settings of the config are not read.
    top = ConfigTable(
        {"model": table_in(archive.config, "model"), "dataset_reader": archive.config.get("dataset_reader")}
    )
    try:
        model, reader = top.table("model"), top.table("dataset_reader")
        # `_labels` reads the label namespace.
        model.drop("label_namespace", *TRAINING_ONLY)
        counterpart = counterpart_of(model)
        config, inputs = convert_model(counterpart, model, reader)
        report_reader(reader)
        batch_size = _batch_size(archive, config.train.batch_size)
        config = replace(config, train=replace(config.train, batch_size=batch_size))
    except ConfigError as error:
        raise ConfigError(f"{archive.source}: {error}") from None
    model.report_unused()
    reader.report_unused()
    in_weights = [line for line, mark in top.differences if mark == "weights"]
    if in_weights:
        raise ConfigError(f"{archive.source} cannot be opened: {'; '.join(in_weights)}.")
    notes = [line for line, mark in top.differences if mark == "text"]
    return ARCHIVED_TASKS[counterpart.task], config, inputs, notes


def _batch_size(archive: TaskArchive, ours: int) -> int:
    """Return the batch size, which affects character features of old versions; ``ours`` if it is not given."""
    loader = table_in(archive.config, "data_loader")
    for table in (table_in(archive.config, "iterator"), table_in(loader, "batch_sampler"), loader):
        if table:
            return ConfigTable(table, "data_loader").take("batch_size", int, DEFAULT_BATCH_SIZE)
    return ours


def _as_allennlp_predicts(config: Any, task: AnyTask, archive: TaskArchive, start: str) -> Any:
    """Set ELMo's start state, and the decoding of AllenNLP."""
    if isinstance(config, ArchivedSrlConfig):
        decoding: Literal["allennlp", "allennlp 0.x"] = "allennlp 0.x" if archive.is_before(1, 0) else "allennlp"
        config = replace(config, model=replace(config.model, decoding=decoding))
    elmo = config.elmo
    if elmo is None:
        return config
    if start == "allennlp":
        start = "continued" if task.name in SEVERAL_TEXTS else "zero"
    # The model is not trained further. Layers in float16 would change the scores.
    elmo = replace(elmo, start=start, cache_dtype="float32", trainable=False)
    # Even fixed weights of layers are among the archive's tensors.
    if elmo.input is not None:
        elmo = replace(elmo, input=replace(elmo.input, layers="all"))
    if elmo.output is not None:
        elmo = replace(elmo, output=replace(elmo.output, layers="all"))
    return replace(config, elmo=elmo)


def _embedder_prefix(tensors: Iterable[str]) -> str:
    """Return the name of the embedders' module, which has no underscore in some models."""
    is_plain = any(name.startswith("text_field_embedder.") for name in tensors)
    return "text_field_embedder." if is_plain else "_text_field_embedder."


def _with_sizes(
    config: Any, archive: TaskArchive, embeddings: Embeddings, tensors: Mapping[str, Tensor], min_chars: int | None
) -> Any:
    """Set what the archive shows but the config may lack: sizes, and how AllenNLP computes character features."""
    where = str(archive.source)
    if config.words is not None:
        _, dim = shape_of(tensors, f"{embeddings.name_of('words')}weight", 2, where)
        config = replace(config, words=replace(config.words, vectors=(), dim=dim))
    if config.chars is not None:
        _, dim = shape_of(tensors, f"{embeddings.name_of('chars')}_embedding._module.weight", 2, where)
        chars = replace(config.chars, dim=dim, windows="complete")
        if archive.is_before(1, 3):
            chars = replace(chars, windows="batch", min_chars=min_chars)
        config = replace(config, chars=chars)
    return config


def _vocabularies(
    archive: TaskArchive, config: Any, embeddings: Embeddings, namespaces: Mapping[str, str]
) -> tuple[Vocabularies, Embeddings]:
    """Return the archive's words and characters, and the embeddings with the rows of unknown words and characters."""
    unknown = _unknown_entry(archive)
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
    return Vocabularies(tables, chars, None, spelling), replace(embeddings, unknown_rows=rows)


def _labels(task: str, archive: TaskArchive) -> Labels:
    """Return the labels in the order of the archive's vocabulary, by our names of the lists."""
    if task == "qa":
        return {}
    if task == "coref":
        return {"genres": [""]}
    if task == "parsing":
        return {"constituents": entries_of(archive, "labels", NO_LABEL), "tags": _parts_of_speech(archive)}
    labels = entries_of(archive, str(archive.config["model"].get("label_namespace", "labels")))
    if task == "sst":
        return {"classes": _classes(archive, labels)}
    if task == "nli":
        return {"classes": labels}
    if task == "srl":
        return {"tags": labels, "predicates": []}
    return {"tags": labels}


def _classes(archive: TaskArchive, labels: Sequence[str]) -> list[str]:
    """Return the names of the labels of ``bcn``, which are numbers in the archive."""
    granularity = table_in(archive.config, "dataset_reader").get("granularity", "5-class")
    names = distinct_classes(int(granularity[0]))
    by_number = {str(number): name for number, name in enumerate(names)}
    if not by_number.keys() >= set(labels):
        raise FormatError(f"{archive.source}: its labels are {', '.join(labels)}, not those of {granularity}.")
    return [by_number[label] for label in labels]


def _parts_of_speech(archive: TaskArchive) -> list[str]:
    """Return the parts of speech that a parser reads, including the entries for padding and for unknown ones."""
    embedding = archive.config["model"].get("pos_tag_embedding")
    if not isinstance(embedding, dict):
        return []
    reader = table_in(archive.config, "dataset_reader")
    name = reader.get("pos_label_namespace") or embedding.get("vocab_namespace") or "pos"
    entries = list(entries_of(archive, str(name)))
    own_unknown = _unknown_entry(archive)
    if own_unknown in entries:
        entries[entries.index(own_unknown)] = UNKNOWN
    return entries


def _unknown_entry(archive: TaskArchive) -> str:
    return str(table_in(archive.config, "vocabulary").get("oov_token") or UNKNOWN)


def describe_archive(opened: OpenedArchive) -> dict[str, Any]:
    """Return facts about an opened archive to show to the user."""
    setup, archive = opened.setup, opened.archive
    facts: dict[str, Any] = {
        "task": setup.task.name,
        "model": archive.config["model"].get("type"),
        "allennlp": archive.version or "not recorded",
        "parameters": sum(parameter.numel() for parameter in opened.model.parameters()),
    }
    known = setup.inputs.vocabularies
    for name, table in known.tables.items():
        facts[name] = len(table.words)
    if known.chars is not None:
        facts["characters"] = len(known.chars) if known.spelling == "characters" else "bytes"
    for name, labels in setup.labels.items():
        if any(labels):
            facts[name] = labels
    if opened.elmo is not None:
        bilm = opened.elmo.model.config
        facts["elmo"] = {"layers": bilm.n_layers + 1, "dim": bilm.output_dim, "start": setup.config.elmo.start}
    return facts


def save_as_run(opened: OpenedArchive, folder: str | Path) -> None:
    """Write the model of an archive as a run directory, atomically."""
    folder = Path(folder)
    if folder.exists():  # `atomic_write` would suggest a flag that the command does not have
        raise OutputError(f"{folder} already exists; choose another directory.")
    setup = opened.setup
    content = vocabulary_content(setup.inputs.vocabularies, setup.labels)
    origin = {"archive": str(opened.archive.source), "allennlp": opened.archive.version, "notes": opened.notes}
    checksums = data_checksums(setup.task, setup.config)
    with atomic_write(folder, folder=True) as run:
        write_start(run, setup.task, setup.config, content)
        write_facts(run, setup.task, {}, opened.elmo, {**origin, "data": checksums})
        if opened.elmo is not None:
            save_folder(opened.elmo.model, run / OWN_BILM)
        seed = run / f"seed-{ARCHIVE_SEED}"
        seed.mkdir()
        save_tensors(opened.model.state_dict(), seed / BEST_WEIGHTS)
        # An archive does not contain the scores of its model.
        write_json(seed / "result.json", {"seed": ARCHIVE_SEED, "dev": {}})
