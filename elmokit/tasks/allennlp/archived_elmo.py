"""Open the ELMo inside an AllenNLP archive.

AllenNLP saves the parameters of ELMo with those of the task model, and the tensors show its sizes. They do not show the
clips and the activation, which come from the options file: the user's, the archive's, or an existing file named in the
config. Without a file, they are assumed to be as in the published models, with a note to the user unless the config
names one of these models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.embedding.elmo import Elmo
from elmokit.engine.architecture import BiLMConfig, CharCNNConfig
from elmokit.errors import ConfigError, TensorMismatchError
from elmokit.formats import sources
from elmokit.formats.allennlp_weights import encoder_to_allennlp, from_allennlp, lstm_to_allennlp
from elmokit.formats.bilm_tf import config_from_options, read_options
from elmokit.formats.open import open_model
from elmokit.formats.tensor_rows import same_rows
from elmokit.network.bilm import BiLM
from elmokit.network.tensors import tensor_of
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.tasks.allennlp.archive_files import TaskArchive
from elmokit.tasks.allennlp.task_tensors import arrays_of, shape_of

ENCODER, LSTM = "_token_embedder.", "_elmo_lstm."
PUBLISHED = ("small", "medium", "original", "original-5.5b")
"""The models of the paper's authors, whose options are the defaults of ``BiLMConfig``."""
CACHE = "_word_embedding.weight"  # the vocabulary's context-free vectors, computed from the other tensors


def elmo_of(
    archive: TaskArchive,
    config: Any,
    files: Mapping[str, Any],
    tensors: dict[str, Tensor],
    options: str | Path | None,
) -> tuple[Elmo | None, list[str], str | None]:
    """Open the ELMo of a model, and remove its tensors.

    Args:
        archive: The archive.
        config: The converted config of the model.
        files: The table of AllenNLP's config that names the files of ELMo.
        tensors: The archive's tensors.
        options: The user's options file, if any.

    Returns:
        ELMo, notes for the user, and the note about assumptions, if there is one.
    """
    if config.elmo is None:
        if options is not None:
            raise ConfigError(f"{archive.source} has no ELMo, so it cannot use the options file {options}.")
        return None, [], None
    notes = []
    mixes = (config.elmo.input, config.elmo.output)
    if any(mix is not None and mix.layer_norm for mix in mixes):
        notes.append("do_layer_norm: AllenNLP also normalized over sentence boundaries; scores differ")
    bilm, assumed = _bilm_of(archive, files, tensors, options)
    if assumed is not None:
        notes.append(assumed)
    return Elmo(bilm, start=config.elmo.elmo_start), notes, assumed


def _bilm_of(
    archive: TaskArchive, files: Mapping[str, Any], tensors: dict[str, Tensor], options: str | Path | None
) -> tuple[PretrainedBiLM, str | None]:
    """Take the biLM out of an archive's tensors, or open the one named in the config. Also returns assumptions."""
    prefix = _elmo_prefix(tensors)
    if prefix is None:
        return _named_bilm(archive, files, options), None
    own = {}
    for name in list(tensors):
        if name.startswith(prefix):
            own[name] = tensors.pop(name)
    own.pop(prefix + CACHE, None)
    without_prefix = {name.removeprefix(prefix): tensor for name, tensor in own.items()}
    if options is not None:
        content: dict[str, Any] | None = read_options(options)
        where = str(options)
    else:
        content = archive.options or options_named_by(files)
        where = str(archive.source)
    config = config_of_tensors(without_prefix, content, where)
    bilm = bilm_of(own, config, prefix, archive.source)
    if content is not None or has_published_options(files):
        return bilm, None
    return bilm, assumed_options(config, files)


def _elmo_prefix(tensors: Iterable[str]) -> str | None:
    """Return the prefix of the names of ELMo's tensors; None if there are none."""
    for name in tensors:
        module, found, _ = name.partition(f"{LSTM}{ENCODER}")
        if found:
            return module + LSTM
    return None


def _named_bilm(archive: TaskArchive, elmo: Mapping[str, Any], options: str | Path | None) -> PretrainedBiLM:
    """Open the biLM named in a table of the config."""
    weights = elmo.get("weight_file")
    if not isinstance(weights, str) or not weights:
        raise ConfigError(f"{archive.source} neither contains its ELMo's tensors nor names a weight_file.")
    return open_model(weights, options=options or elmo.get("options_file"), exact_marks=True)


def config_of_tensors(tensors: Mapping[str, Tensor], options: dict[str, Any] | None, where: str) -> BiLMConfig:
    """Return the architecture of an ELMo, from its options if they are known, else from the shapes of its tensors."""
    if options is not None:
        # AllenNLP's ELMo always has two directions, but the options of the published models do not say so.
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


def bilm_of(tensors: Mapping[str, Tensor], config: BiLMConfig, prefix: str, source: Path) -> PretrainedBiLM:
    """Build the biLM of an ELMo from its tensors, whose names have the prefix."""
    with torch.device("meta"):
        bilm = BiLM(config)
        # Inside the block, because these tensors have no content either.
        encoder, lstm = encoder_to_allennlp(bilm), lstm_to_allennlp(bilm)
    named = {f"{ENCODER}{name}": part for name, part in encoder.items()}
    named |= {f"{LSTM}{name}": part for name, part in lstm.items()}
    arrays = arrays_of(same_rows(named, prefix), named, tensors, source)
    checked = {name: tensor_of(array) for name, array in arrays.items()}
    bilm = from_allennlp(checked, config).eval()
    card = {"from": f"the ELMo inside {source.name}"}
    return PretrainedBiLM.from_modules(bilm, family="allennlp", source=source, card=card, exact_marks=True)


def has_published_options(elmo: Mapping[str, Any]) -> bool:
    """Check whether a config names the options of one of the authors' models, one of which is AllenNLP's default."""
    name = elmo.get("options_file")
    if name is None:
        return True
    for model in sources.published_models():
        if model.name in PUBLISHED and any(location.options == name for location in model.locations):
            return True
    return False


def assumed_options(config: BiLMConfig, elmo: Mapping[str, Any]) -> str:
    """Describe the assumptions about an ELMo with unknown options."""
    assert config.char_cnn is not None
    named = ""
    if elmo.get("options_file"):
        named = f", and {elmo['options_file']!r} does not exist here"
    return (
        f"the archive does not have the options file of its ELMo{named}: assuming activation = "
        f"{config.char_cnn.activation}, cell_clip = {config.cell_clip} and proj_clip = {config.projection_clip}, as "
        "in the published models. If it was trained with other values, pass the file: elmokit task open --options FILE"
    )


def options_named_by(elmo: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read the options file named in a config, if it exists on this machine."""
    name = elmo.get("options_file")
    if not isinstance(name, str) or "://" in name or not Path(name).is_file():
        return None
    return read_options(name)
