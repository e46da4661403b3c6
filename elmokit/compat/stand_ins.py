"""Put elmokit's classes into ``sys.modules`` under the names of another program.

:mod:`elmokit.compat.as_allennlp` and :mod:`elmokit.compat.as_originals` use it.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType

from elmokit.compat import allennlp as elmo
from elmokit.compat import allennlp_command as command
from elmokit.compat.allennlp_common import FromParams
from elmokit.compat.allennlp_modules import DEFAULT_MODEL

VERSION = "2.10.1"  # the version whose interface elmokit follows, for programs that ask

ALLENNLP: dict[str, dict[str, object]] = {
    "allennlp": {"__version__": VERSION},
    "allennlp.commands": {},
    # AllenNLP's two defaults are download addresses; here a published name, which needs no options file.
    "allennlp.commands.elmo": {
        "ElmoEmbedder": elmo.ElmoEmbedder,
        "DEFAULT_OPTIONS_FILE": None,
        "DEFAULT_WEIGHT_FILE": DEFAULT_MODEL,
        "DEFAULT_BATCH_SIZE": 64,
    },
    "allennlp.commands.subcommand": {"Subcommand": command.Subcommand},
    "allennlp.common": {"FromParams": FromParams, "Params": elmo.Params, "Tqdm": command.Tqdm},
    "allennlp.common.checks": {
        "ConfigurationError": elmo.ConfigurationError,
        "check_for_gpu": command.check_for_gpu,
    },
    "allennlp.common.file_utils": {"cached_path": elmo.cached_path},
    "allennlp.common.params": {"Params": elmo.Params},
    "allennlp.common.tqdm": {"Tqdm": command.Tqdm},
    "allennlp.common.util": {
        "cleanup_global_logging": command.cleanup_global_logging,
        "lazy_groups_of": command.lazy_groups_of,
        "pad_sequence_to_length": command.pad_sequence_to_length,
        "prepare_global_logging": command.prepare_global_logging,
    },
    "allennlp.data": {"Token": elmo.Token},
    "allennlp.data.token_indexers": {"ELMoTokenCharactersIndexer": elmo.ELMoTokenCharactersIndexer},
    "allennlp.data.token_indexers.elmo_indexer": {
        "ELMoCharacterMapper": elmo.ELMoCharacterMapper,
        "ELMoTokenCharactersIndexer": elmo.ELMoTokenCharactersIndexer,
    },
    "allennlp.data.tokenizers": {"Token": elmo.Token},
    "allennlp.data.tokenizers.token": {"Token": elmo.Token},  # 0.x
    "allennlp.data.tokenizers.token_class": {"Token": elmo.Token},  # from 1.0 on
    "allennlp.modules": {"Elmo": elmo.Elmo, "ScalarMix": elmo.ScalarMix},
    "allennlp.modules.elmo": {
        "Elmo": elmo.Elmo,
        "_ElmoBiLm": elmo._ElmoBiLm,
        "_ElmoCharacterEncoder": elmo._ElmoCharacterEncoder,
        "batch_to_ids": elmo.batch_to_ids,
        # What the module imported, and programs import from there.
        "ConfigurationError": elmo.ConfigurationError,
        "ELMoCharacterMapper": elmo.ELMoCharacterMapper,
        "ELMoTokenCharactersIndexer": elmo.ELMoTokenCharactersIndexer,
        "ElmoLstm": elmo.ElmoLstm,
        "Params": elmo.Params,
        "ScalarMix": elmo.ScalarMix,
        "Token": elmo.Token,
        "add_sentence_boundary_token_ids": elmo.add_sentence_boundary_token_ids,
        "cached_path": elmo.cached_path,
        "get_device_of": command.get_device_of,
        "lazy_groups_of": command.lazy_groups_of,
        "logger": logging.getLogger("allennlp.modules.elmo"),
        "remove_sentence_boundaries": elmo.remove_sentence_boundaries,
    },
    "allennlp.modules.elmo_lstm": {"ElmoLstm": elmo.ElmoLstm},
    "allennlp.modules.lstm_cell_with_projection": {"LstmCellWithProjection": elmo.LstmCellWithProjection},
    "allennlp.modules.scalar_mix": {"ScalarMix": elmo.ScalarMix},
    "allennlp.modules.token_embedders": {
        "ElmoTokenEmbedder": elmo.ElmoTokenEmbedder,
        "ElmoTokenEmbedderMultiLang": elmo.ElmoTokenEmbedderMultiLang,
    },
    "allennlp.modules.token_embedders.elmo_token_embedder": {"ElmoTokenEmbedder": elmo.ElmoTokenEmbedder},
    "allennlp.modules.token_embedders.elmo_token_embedder_multilang": {
        "ElmoTokenEmbedderMultiLang": elmo.ElmoTokenEmbedderMultiLang
    },
    "allennlp.nn": {},
    "allennlp.nn.util": {
        "add_sentence_boundary_token_ids": elmo.add_sentence_boundary_token_ids,
        "get_device_of": command.get_device_of,
        "get_lengths_from_binary_sequence_mask": command.get_lengths_from_binary_sequence_mask,
        "remove_sentence_boundaries": elmo.remove_sentence_boundaries,
    },
}
"""The names in each module of AllenNLP; a package comes before its modules."""


Provided = Mapping[str, Mapping[str, object]]
"""The names in each module of a program; a package comes before its modules."""


def installed_path(package: str) -> str | None:
    """Find the path of an installed package; None if it is not installed."""
    # A package that is imported already counts as installed, unless `provide` made it.
    if isinstance(sys.modules.get(package), StandIn):
        return None
    spec = importlib.util.find_spec(package)
    return None if spec is None else spec.origin or ", ".join(spec.submodule_search_locations or [])


def provide(modules: Provided) -> None:
    """Put modules with these names into ``sys.modules``. Any other name fails as usual for one that is missing."""
    for name, members in modules.items():
        package, _, child = name.rpartition(".")
        module = StandIn(name, f"{name}, as far as ELMo needs it, provided by elmokit.")
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []  # makes it a package, in which the import system then finds no other module
        module.__file__ = __file__  # named in the message about a name that is missing
        vars(module).update(members)
        sys.modules[name] = module
        if package:
            setattr(sys.modules[package], child, module)


class StandIn(ModuleType):
    """A module that :func:`provide` made."""
