"""Open a task model that AllenNLP trained: config converted, vocabulary and tensors mapped, ELMo taken out.

::

    config.json              the training config
    weights.th               a pickled state dict
    vocabulary/              one list per namespace, and non_padded_namespaces.txt
    files_to_archive.json    before version 1.0: files that the config names ...
    fta/KEY                  ... by their key in the config
    meta.json                since version 2.6: the version of AllenNLP

The archive may come from anywhere: only these files are unpacked, and only tensors are read from the pickle.

AllenNLP saves all parameters of its ELMo with those of the task model. The sizes follow from the tensors. What they do
not show, the clips and the activation, comes from the options file: the user may give it, the archive may have it, or
the config names one that exists. Otherwise it is as in the published models, and the user is told so unless the config
names one of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from elmokit.config import read_json, write_json
from elmokit.embedding.elmo import Elmo
from elmokit.engine.architecture import BiLMConfig, CharCNNConfig
from elmokit.errors import (
    ConfigError,
    FormatError,
    ModelError,
    ModelNotFoundError,
    OutputError,
    TensorMismatchError,
    TextError,
)
from elmokit.formats import sources
from elmokit.formats.allennlp_weights import encoder_to_allennlp, from_allennlp, lstm_to_allennlp
from elmokit.formats.archives import is_archive, unpacked
from elmokit.formats.bilm_tf import config_from_options, read_options
from elmokit.formats.folder import save_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import open_model
from elmokit.formats.sidecars import visible_files
from elmokit.formats.tensor_rows import FileArrays, TensorRow, read_through, same_rows
from elmokit.formats.torch_save import read_state_dict
from elmokit.network.bilm import BiLM
from elmokit.network.tensors import save_tensors, tensor_of
from elmokit.network.torch_network import load_arrays
from elmokit.storage.atomic import atomic_write
from elmokit.storage.text_files import expand_user, read_lines
from elmokit.storage.whole_files import is_file
from elmokit.storage.whole_number import whole_number
from elmokit.tasks.allennlp.archived_configs import ArchivedNerConfig, ArchivedSrlConfig
from elmokit.tasks.allennlp.config_table import ConfigTable
from elmokit.tasks.allennlp.model_configs import convert_model, counterpart_of, report_reader
from elmokit.tasks.allennlp.parsing import NO_LABEL, UNKNOWN
from elmokit.tasks.allennlp.task_tensors import ATTENTIONS, ROWS, Embeddings, join_mixes, project_words, split_joint
from elmokit.tasks.allennlp.variants import ARCHIVED_TASKS
from elmokit.tasks.elmo_layers import ComputedLayers
from elmokit.tasks.inputs import Inputs, Vocabularies, WordTable
from elmokit.tasks.nn.crf import TagRules
from elmokit.tasks.run_folder import (
    ARCHIVE_SEED,
    BEST_WEIGHTS,
    OWN_BILM,
    data_checksums,
    write_facts,
    write_start,
)
from elmokit.tasks.sst import CLASSES
from elmokit.tasks.tags import PREFIXES, rules_of
from elmokit.tasks.task import AnyTask, Labels, TaskModel, TaskSetup
from elmokit.tasks.task_vocabulary import vocabulary_content
from elmokit.tasks.word_characters import BYTES, Spelling

CONFIG, WEIGHTS, VOCABULARY = "config.json", "weights.th", "vocabulary"
UNPACKED = (CONFIG, WEIGHTS, "meta.json", "*.txt", "*options_file")
NON_PADDED = "non_padded_namespaces.txt"
PADDING_ROW = "@@PADDING@@"
NEWLINE = "@@NEWLINE@@"  # AllenNLP writes it for a line break inside an entry
ENCODER, LSTM = "_token_embedder.", "_elmo_lstm."
PUBLISHED = ("small", "medium", "original", "original-5.5b")
"""The models of the paper's authors, whose options are the defaults of ``BiLMConfig``."""
CACHE = "_word_embedding.weight"  # context-free vectors of the vocabulary, computed from the other tensors
VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True)
class TaskArchive:
    """The content of an archive."""

    source: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    namespaces: dict[str, list[str]]
    """The vocabulary: the entries of each namespace by their row. Padded namespaces have an entry for padding."""
    options: dict[str, Any] | None
    """The options of the ELMo inside, if the archive has them."""
    version: str | None
    """The version of AllenNLP that saved it; None before 2.6, which did not record it."""

    @property
    def is_from_before_1(self) -> bool:
        """Whether AllenNLP 0.x trained the model: it needed an iterator, and knew similarity functions."""
        model = self.config.get("model", {})
        return "iterator" in self.config or (isinstance(model, dict) and "similarity_function" in model)


def is_task_archive(path: Path) -> bool:
    """Check whether a path is an archive of AllenNLP or the unpacked directory of one."""
    if path.is_dir():
        return (path / CONFIG).is_file() and (path / WEIGHTS).is_file()
    return path.is_file() and is_archive(path)


def read_archive(source: str | Path) -> TaskArchive:
    """Read an archive, or the directory of an unpacked one."""
    path = expand_user(source, ModelNotFoundError)
    if path.is_dir():
        return _read_folder(path, path)
    if not path.is_file() or not is_archive(path):
        raise ModelNotFoundError(f"{path} is not an archive of AllenNLP (model.tar.gz), nor the directory of one.")
    with unpacked(path, UNPACKED, lambda folder: (folder / CONFIG).is_file()) as archive:
        try:
            return _read_folder(archive.folder, path)
        except (ModelError, TextError) as error:
            raise type(error)(str(error).replace(str(archive.folder), str(path))) from None


def _read_folder(folder: Path, source: Path) -> TaskArchive:
    config = read_json(folder / CONFIG, "configuration of AllenNLP's archive")
    tensors = read_state_dict(folder / WEIGHTS)
    options = visible_files(folder / "fta", "*options_file")
    version = None
    if (folder / "meta.json").is_file():
        stated = read_json(folder / "meta.json").get("version")
        version = stated if isinstance(stated, str) and VERSION.match(stated) else None
    return TaskArchive(
        source,
        config,
        tensors,
        _read_vocabulary(folder / VOCABULARY),
        read_options(options[0]) if options else None,
        version,
    )


def _read_vocabulary(folder: Path) -> dict[str, list[str]]:
    patterns = list(read_lines(folder / NON_PADDED)) if (folder / NON_PADDED).is_file() else ["*labels", "*tags"]
    namespaces = {}
    for file in visible_files(folder, "**/*.txt"):
        if file.name == NON_PADDED:
            continue
        name = file.relative_to(folder).as_posix().removesuffix(".txt")
        entries = [line.replace(NEWLINE, "\n") for line in read_lines(file)]
        is_padded = not any(_matches(pattern, name) for pattern in patterns)
        namespaces[name] = [PADDING_ROW, *entries] if is_padded else entries
    return namespaces


def _matches(pattern: str, namespace: str) -> bool:
    """Match as AllenNLP does, where only a star at the beginning of a pattern is special."""
    return namespace.endswith(pattern[1:]) if pattern.startswith("*") else namespace == pattern


def known_entries(archive: TaskArchive, name: str, unknown: str) -> tuple[list[str], int]:
    """Return the entries of a padded namespace without padding and "unknown", and the row of "unknown"."""
    entries = entries_of(archive, name, unknown)
    row = entries.index(unknown)
    return [entry for index, entry in enumerate(entries) if index not in (0, row)], row


def entries_of(archive: TaskArchive, name: str, needed: str | None = None) -> list[str]:
    """Return the entries of a namespace, one of which may be needed."""
    entries = archive.namespaces.get(name, [])
    if not entries or needed not in (None, *entries):
        expected = f"namespace {name!r}" if needed is None else f"namespace {name!r} with an entry {needed}"
        raise FormatError(
            f"{archive.source}: expected a {expected} in the vocabulary, whose namespaces are: "
            f"{', '.join(archive.namespaces) or 'none'}."
        )
    return entries


def config_of_tensors(tensors: Mapping[str, Tensor], options: dict[str, Any] | None, where: str) -> BiLMConfig:
    """Return the architecture of an ELMo."""
    if options is not None:
        # AllenNLP's ELMo has two directions, and the options of the published models do not say so.
        return config_from_options({**options, "bidirectional": True}, {}, where)
    filters: list[tuple[int, int]] = []
    while (name := f"{ENCODER}char_conv_{len(filters)}.weight") in tensors:
        count, _, width = shape_of(tensors, name, 3, where)
        filters.append((width, count))
    n_highway = 0
    while f"{ENCODER}_highways._layers.{n_highway}.weight" in tensors:
        n_highway += 1
    n_layers = 0
    while f"{LSTM}forward_layer_{n_layers}.state_linearity.weight" in tensors:
        n_layers += 1
    n_chars, char_dim = shape_of(tensors, f"{ENCODER}_char_embedding_weights", 2, where)
    projection_dim, _ = shape_of(tensors, f"{ENCODER}_projection.weight", 2, where)
    gates, _ = shape_of(tensors, f"{LSTM}forward_layer_0.state_linearity.weight", 2, where)
    try:
        return BiLMConfig(
            CharCNNConfig(tuple(filters), char_dim, n_highway, n_chars=n_chars - 1),
            projection_dim=projection_dim,
            hidden_dim=gates // 4,
            n_layers=n_layers,
        )
    except ConfigError as error:
        raise TensorMismatchError(f"{where}: the ELMo inside has tensors of unusual sizes: {error}") from None


def shape_of(tensors: Mapping[str, Tensor], name: str, n_axes: int, where: str) -> tuple[int, ...]:
    """Return the shape of a tensor that must have a number of axes."""
    if name not in tensors or tensors[name].dim() != n_axes:
        found = f"one of shape {tuple(tensors[name].shape)}" if name in tensors else "none"
        raise TensorMismatchError(f"{where}: expected a tensor {name} with {n_axes} axes, found {found}.")
    return tuple(tensors[name].shape)


def bilm_of(tensors: Mapping[str, Tensor], config: BiLMConfig, prefix: str, source: Path) -> PretrainedBiLM:
    """Build the biLM of an ELMo from its tensors, whose names have a prefix."""
    with torch.device("meta"):
        bilm = BiLM(config)
        # Inside the block, because what is made here has no content either.
        encoder, lstm = encoder_to_allennlp(bilm), lstm_to_allennlp(bilm)
    named = {f"{ENCODER}{name}": part for name, part in encoder.items()}
    named |= {f"{LSTM}{name}": part for name, part in lstm.items()}
    arrays = _arrays_of(same_rows(named, prefix), named, tensors, source)
    bilm = from_allennlp({name: tensor_of(array) for name, array in arrays.items()}, config).eval()
    card = {"from": f"the ELMo inside {source.name}"}
    return PretrainedBiLM.from_modules(bilm, family="allennlp", source=source, card=card, exact_marks=True)


def _arrays_of(
    rows: Sequence[TensorRow], wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: Path
) -> FileArrays:
    """Return arrays of an archive's tensors by our names. All names and shapes are checked."""
    shapes, found = ({name: tuple(part.shape) for name, part in parts.items()} for parts in (wanted, tensors))
    return read_through(rows, shapes, found, lambda name: tensors[name].numpy(), str(source))


def has_published_options(elmo: Mapping[str, Any]) -> bool:
    """Check whether a config's table names the options of one of the authors' models, AllenNLP's default included."""
    name = elmo.get("options_file")
    models = (model for model in sources.published_models() if model.name in PUBLISHED)
    return name is None or any(location.options == name for model in models for location in model.locations)


def assumed_options(config: BiLMConfig, elmo: Mapping[str, Any]) -> str:
    """Return a sentence that says what was assumed about an ELMo whose options are unknown."""
    assert config.char_cnn is not None
    named = f", and {elmo['options_file']!r} does not exist here" if elmo.get("options_file") else ""
    return (
        f"the archive does not hold the options file of its ELMo{named}: assumed are activation = "
        f"{config.char_cnn.activation}, cell_clip = {config.cell_clip} and proj_clip = {config.projection_clip}, as "
        "in the published models. If it was trained with others, give the file: elmokit task open --options FILE"
    )


def options_named_by(elmo: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read the options file that a config names, if it is a file of this machine."""
    name = elmo.get("options_file")
    if not isinstance(name, str) or "://" in name or not is_file(Path(name)):
        return None
    return read_options(name)


ArchiveStart = Literal["allennlp", "zero", "warm"]
SEVERAL_TEXTS = ("nli", "qa")  # the tasks whose examples have several
KINDS = {"embedding": "words", "character_encoding": "chars", "elmo_token_embedder": "elmo"}
TRAINING_ONLY = ("initializer", "regularizer")
"""Keys of a model that do not matter once it is trained."""
# Tensors without a counterpart: what follows from others, or cancels out in a softmax.
CONSTRAINT_MASK = "crf._constraint_mask"
DERIVED = tuple(f"{module}_bias" for module in ATTENTIONS)


@dataclass(frozen=True)
class OpenedArchive:
    """A trained model of AllenNLP as one of ours."""

    setup: TaskSetup
    """On the CPU."""
    model: TaskModel[Any, Any]
    elmo: Elmo | None
    """The ELMo inside."""
    archive: TaskArchive
    notes: list[str]
    """What the user must know: how text is read here, and ``assumed``."""
    assumed: str | None
    """What was assumed about ELMo because its options are unknown."""


def open_task_archive(
    source: str | Path, start: ArchiveStart = "allennlp", options: Path | str | None = None
) -> OpenedArchive:
    """Open a trained model of AllenNLP on the CPU.

    Args:
        source: ``model.tar.gz``, or the directory of an unpacked one.
        start: LSTM state that ELMo's sentences start from: as in AllenNLP, zero, or the model's start state.
            "allennlp" is what AllenNLP computes for its first batch: zero, where the hypothesis continues from the
            premise, and the passage from the question. (Its later batches continue from the batch before, so that they
            depend on the order of the examples.) "zero" and "warm" as in ``Elmo``.
        options: The options file of its ELMo, if the archive does not hold it. AllenNLP stopped adding it at 1.0.
            Without it, the clips and the activation are those of the published models.
    """
    archive = read_archive(source)
    tensors = split_joint(join_mixes(archive.tensors))
    for name in DERIVED:
        tensors.pop(name, None)
    mask = tensors.pop(CONSTRAINT_MASK, None)
    task, config, notes = convert_archive(archive)
    embeddings, namespaces = _embeddings(archive)
    project_words(tensors, embeddings)
    config = _with_sizes(config, archive, embeddings, tensors)
    config = _as_allennlp_predicts(config, task, archive, start)
    labels = _labels(task.name, archive)
    if isinstance(config, ArchivedNerConfig):
        config, constraint_notes = _with_constraints(config, mask, labels["tags"], archive.source)
        notes += constraint_notes
    vocabularies, embeddings = _vocabularies(archive, config, embeddings, namespaces)
    elmo, elmo_notes, assumed = _elmo_of(archive, config, tensors, options)
    notes += elmo_notes
    layers = None if elmo is None else ComputedLayers(elmo)
    setup = TaskSetup(task, config, Inputs(vocabularies, layers), labels, torch.device("cpu"))
    model = setup.build()
    load_arrays(model, _arrays_of(ROWS[task.name](model, embeddings), model.state_dict(), tensors, archive.source))
    return OpenedArchive(setup, model, elmo, archive, notes, assumed)


def _with_constraints(
    config: ArchivedNerConfig, mask: Tensor | None, tags: Sequence[str], source: Path
) -> tuple[ArchivedNerConfig, list[str]]:
    """Return a config with the constraints of the weights, by which AllenNLP decodes even if its config was edited.

    Returns also what differs from the config, for the user.

    Args:
        config: As it was converted.
        mask: ``(tags + 2, tags + 2)``: 1 where the tag of the column may follow that of the row; the start and the end
            of a sentence come after the tags. None if the weights have none.
        tags: In the order of the mask.
        source: The archive, for errors.

    Raises:
        ConfigError: They are those of other tags than the config says.
    """
    n_tags = len(tags)
    if mask is None or mask.shape != (n_tags + 2, n_tags + 2):
        return config, []  # in the second case the transitions have another shape, too, which is an error
    stored = TagRules(mask[:n_tags, :n_tags] > 0, mask[n_tags, :n_tags] > 0, mask[:n_tags, n_tags + 1] > 0)
    is_constrained = not all(bool(allowed.all()) for allowed in stored)
    schemes = [scheme for scheme in PREFIXES if _equal_rules(stored, rules_of(tags, scheme))]
    if is_constrained and config.model.tags not in schemes:
        found = f"those of {schemes[0]}" if schemes else "those of no scheme of tags"
        raise ConfigError(
            f"{source}: {CONSTRAINT_MASK}, by which AllenNLP decodes, has {found}, not those of "
            f"label_encoding in {CONFIG}. Was that edited? Restore it."
        )
    constraints: Literal["decoding", "none"] = "decoding" if is_constrained else "none"
    if constraints == config.model.constraints:
        return config, []
    note = "constrain_crf_decoding: as when the model was trained, which its weights say; the config was edited"
    return replace(config, model=replace(config.model, constraints=constraints)), [note]


def _equal_rules(one: TagRules, other: TagRules) -> bool:
    return all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


def _elmo_of(
    archive: TaskArchive, config: Any, tensors: dict[str, Tensor], options: str | Path | None
) -> tuple[Elmo | None, list[str], str | None]:
    """Open the ELMo of a model and remove its tensors. Returns also notes, and the one that says what was assumed."""
    if config.elmo is None:
        if options is not None:
            raise ConfigError(f"{archive.source} has no ELMo, so it cannot use the options file {options}.")
        return None, [], None
    notes = []
    if any(mix is not None and mix.layer_norm for mix in (config.elmo.input, config.elmo.output)):
        notes.append("do_layer_norm: AllenNLP normalized over the boundaries of sentences too; scores differ")
    bilm, assumed = _bilm_of(archive, tensors, options)
    if assumed is not None:
        notes.append(assumed)
    return Elmo(bilm, start=config.elmo.elmo_start), notes, assumed


def _bilm_of(
    archive: TaskArchive, tensors: dict[str, Tensor], options: str | Path | None
) -> tuple[PretrainedBiLM, str | None]:
    """Take the biLM out of an archive's tensors, or open the one that it names. Returns also what was assumed."""
    table = _elmo_table(archive)
    encoder = next((name for name in tensors if f"{LSTM}{ENCODER}" in name), None)
    if encoder is None:
        return _named_bilm(archive, table, options), None
    prefix = encoder.partition(f"{LSTM}{ENCODER}")[0] + LSTM
    own = {name: tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
    own.pop(prefix + CACHE, None)
    where = str(archive.source if options is None else options)
    content = archive.options or options_named_by(table) if options is None else read_options(options)
    config = config_of_tensors({name.removeprefix(prefix): part for name, part in own.items()}, content, where)
    bilm = bilm_of(own, config, prefix, archive.source)
    if content is not None or has_published_options(table):
        return bilm, None
    return bilm, assumed_options(config, table)


def _named_bilm(archive: TaskArchive, elmo: Mapping[str, Any], options: str | Path | None) -> PretrainedBiLM:
    """Open the biLM that a config's table names."""
    weights = elmo.get("weight_file")
    if not isinstance(weights, str) or not weights:
        raise ConfigError(f"{archive.source} neither holds the tensors of its ELMo nor names a weight_file.")
    return open_model(weights, options=options or elmo.get("options_file"), exact_marks=True)


def convert_archive(archive: TaskArchive) -> tuple[AnyTask, Any, list[str]]:
    """Convert the config of the model. Returns the task, our config, and what differs in reading text."""
    # The training part of the config is not read.
    top = ConfigTable(
        {"model": _table(archive.config, "model"), "dataset_reader": archive.config.get("dataset_reader")}
    )
    try:
        model, reader = top.table("model"), top.table("dataset_reader")
        # `_labels` reads the name of the list of tags.
        model.drop("label_namespace", *TRAINING_ONLY)
        counterpart = counterpart_of(model)
        config = convert_model(counterpart, model, reader)
        report_reader(reader)
        batch_size = _batch_size(archive, config.train.batch_size)
        config = replace(config, train=replace(config.train, batch_size=batch_size))
    except ConfigError as error:
        raise ConfigError(f"{archive.source}: {error}") from None
    model.report_unused()
    reader.report_unused()
    if different := [line for line, mark in top.differences if mark == "weights"]:
        raise ConfigError(f"{archive.source} cannot be opened: {'; '.join(different)}.")
    notes = [line for line, mark in top.differences if mark == "text"]
    return ARCHIVED_TASKS[counterpart.task], config, notes


def _batch_size(archive: TaskArchive, ours: int) -> int:
    """Return the examples of a batch, on which character features of old versions depend; ours if it is not given."""
    loader = _table(archive.config, "data_loader")
    tables = (_table(archive.config, "iterator"), _table(loader, "batch_sampler"), loader)
    given = next((table for table in tables if table), None)
    if given is None:
        return ours
    return ConfigTable(given, "data_loader").take("batch_size", int, 32)  # AllenNLP's default


def _embedders(archive: TaskArchive) -> dict[str, dict[str, Any]]:
    """Return the tables of the token embedders by name, in the order in which AllenNLP concatenates them."""
    field = _table(archive.config, "model", "text_field_embedder")
    inner = _table(field, "token_embedders") if "token_embedders" in field else field
    return {name: inner[name] for name in sorted(inner) if isinstance(inner[name], dict)}


def _embeddings(archive: TaskArchive) -> tuple[Embeddings, dict[str, str]]:
    """Return the token embedders, and the namespaces of the vocabulary of words and characters."""
    prefix = "_text_field_embedder."
    if any(name.startswith("text_field_embedder.") for name in archive.tensors):
        prefix = "text_field_embedder."
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


def _as_allennlp_predicts(config: Any, task: AnyTask, archive: TaskArchive, start: ArchiveStart) -> Any:
    """Return a config with the state from which ELMo starts, and with the decoding of AllenNLP."""
    if isinstance(config, ArchivedSrlConfig):
        is_old = _is_before(archive, "1.0")
        config = replace(config, model=replace(config.model, decoding="allennlp 0.x" if is_old else "allennlp"))
    if config.elmo is None:
        return config
    state: str = start
    if start == "allennlp":
        state = "continued" if task.name in SEVERAL_TEXTS else "zero"
    mixes = [None if mix is None else replace(mix, layers="all") for mix in (config.elmo.input, config.elmo.output)]
    # It will not be trained further. Layers in float16 would change the scores.
    unchanged = {"cache_dtype": "float32", "trainable": False}
    return replace(config, elmo=replace(config.elmo, start=state, input=mixes[0], output=mixes[1], **unchanged))


def _with_sizes(config: Any, archive: TaskArchive, embeddings: Embeddings, tensors: Mapping[str, Tensor]) -> Any:
    """Return a config with what the archive knows and the config may not: sizes, and how AllenNLP computes character
    features.
    """
    where = str(archive.source)
    if config.words is not None:
        _, dim = shape_of(tensors, f"{embeddings.name_of('words')}weight", 2, where)
        config = replace(config, words=replace(config.words, vectors=(), dim=dim))
    if config.chars is not None:
        name = next(name for name, kind in embeddings.kinds.items() if kind == "chars")
        _, dim = shape_of(tensors, f"{embeddings.name_of('chars')}_embedding._module.weight", 2, where)
        chars = replace(config.chars, dim=dim, windows="complete")
        if _is_before(archive, "1.3"):
            least = _table(archive.config, "dataset_reader", "token_indexers", name).get("min_padding_length")
            chars = replace(chars, windows="batch", min_chars=least or None)
        config = replace(config, chars=chars)
    return config


def _is_before(archive: TaskArchive, version: str) -> bool:
    """Check whether a model was saved before a version. Those of 1.0 to 2.5, which did not record it, count as new."""
    if archive.version is None:
        return archive.is_from_before_1
    own, limit = ([int(part) for part in re.findall(r"\d+", text)[:2]] for text in (archive.version, version))
    return own < limit


def _vocabularies(
    archive: TaskArchive,
    config: Any,
    embeddings: Embeddings,
    namespaces: Mapping[str, str],
) -> tuple[Vocabularies, Embeddings]:
    """Return the words and characters of the archive, and record the rows of unknown words."""
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


def _elmo_table(archive: TaskArchive) -> dict[str, Any]:
    """Return the config's table that names the files of ELMo."""
    embedder = archive.config["model"].get("elmo")
    embedders = [table for table in _embedders(archive).values() if table.get("type") == "elmo_token_embedder"]
    return embedder if isinstance(embedder, dict) else next(iter(embedders), {})


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
    if task == "parsing":
        return {"constituents": entries_of(archive, "labels", NO_LABEL), "tags": _parts_of_speech(archive)}
    granularity = _table(archive.config, "dataset_reader").get("granularity", "5-class")
    names = list(dict.fromkeys(one for one in CLASSES[int(granularity[0])] if one is not None))
    numbers = map(whole_number, labels)
    classes = [names[number] for number in numbers if number is not None and number < len(names)]
    if len(classes) < len(labels):
        raise FormatError(f"{archive.source}: its labels are {', '.join(labels)}, not those of {granularity}.")
    return {"classes": classes}


def _parts_of_speech(archive: TaskArchive) -> list[str]:
    """Return the entries of the parts of speech that a parser reads, those for padding and unknown ones included."""
    reader, embedding = _table(archive.config, "dataset_reader"), archive.config["model"].get("pos_tag_embedding")
    if not isinstance(embedding, dict):
        return []
    name = reader.get("pos_label_namespace") or embedding.get("vocab_namespace") or "pos"
    own = _unknown_entry(archive)
    return [UNKNOWN if entry == own else entry for entry in entries_of(archive, str(name))]


def _unknown_entry(archive: TaskArchive) -> str:
    return str(_table(archive.config, "vocabulary").get("oov_token") or UNKNOWN)


def describe_archive(opened: OpenedArchive) -> dict[str, Any]:
    """Return facts about an opened archive, for the user."""
    setup, archive = opened.setup, opened.archive
    facts: dict[str, Any] = {
        "task": setup.task.name,
        "model": archive.config["model"].get("type"),
        "allennlp": archive.version or "not recorded",
        "parameters": sum(parameter.numel() for parameter in opened.model.parameters()),
    }
    known = setup.inputs.vocabularies
    facts |= {name: len(table.words) for name, table in known.tables.items()}
    if known.chars is not None:
        facts["characters"] = len(known.chars) if known.spelling == "characters" else "bytes"
    facts |= {name: labels for name, labels in setup.labels.items() if any(labels)}
    if opened.elmo is not None:
        bilm = opened.elmo.model.config
        facts["elmo"] = {"layers": bilm.n_layers + 1, "dim": bilm.output_dim, "start": setup.config.elmo.start}
    return facts


def save_as_run(opened: OpenedArchive, folder: str | Path) -> None:
    """Write the model of an archive as a run directory, atomically."""
    folder = Path(folder)
    if folder.exists():  # `atomic_write` would advise a flag that the command does not have
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
        # An archive does not say how the model was scored.
        write_json(seed / "result.json", {"seed": ARCHIVE_SEED, "dev": {}})
