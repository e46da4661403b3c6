"""Register elmokit's classes in ``sys.modules`` under the names of another program.

:mod:`elmokit.compat.as_allennlp` and :mod:`elmokit.compat.as_originals` use it.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType

from elmokit.compat import allennlp as elmo
from elmokit.compat import allennlp_common
from elmokit.compat import allennlp_embedder as command
from elmokit.compat.allennlp_modules import DEFAULT_MODEL

VERSION = "2.10.1"  # the version whose interface elmokit follows, for programs that ask


def names_of(*sources: object) -> Callable[[str], dict[str, object]]:
    """Return a function that looks up space-separated names in the first of these modules that has them."""

    def look_up(names: str) -> dict[str, object]:
        return {
            name: next(getattr(source, name) for source in sources if hasattr(source, name)) for name in names.split()
        }

    return look_up


_of = names_of(elmo, command, allennlp_common)
_INDEXERS = _of("ELMoCharacterMapper ELMoTokenCharactersIndexer")
_FUNCTIONS = _of("add_sentence_boundary_token_ids get_device_of remove_sentence_boundaries")

ALLENNLP: dict[str, dict[str, object]] = {
    "allennlp": {"__version__": VERSION},
    "allennlp.commands": {},
    # AllenNLP's defaults are two URLs; here, the default is a published name, which needs no options file.
    "allennlp.commands.elmo": {
        **_of("ElmoEmbedder"),
        "DEFAULT_OPTIONS_FILE": None,
        "DEFAULT_WEIGHT_FILE": DEFAULT_MODEL,
        "DEFAULT_BATCH_SIZE": 64,
    },
    "allennlp.commands.subcommand": _of("Subcommand"),
    "allennlp.common": _of("FromParams Params Tqdm"),
    "allennlp.common.checks": _of("ConfigurationError check_for_gpu"),
    "allennlp.common.file_utils": _of("cached_path"),
    "allennlp.common.params": _of("Params"),
    "allennlp.common.tqdm": _of("Tqdm"),
    "allennlp.common.util": _of("lazy_groups_of prepare_global_logging"),
    "allennlp.data": _of("Token"),
    "allennlp.data.token_indexers": _of("ELMoTokenCharactersIndexer"),
    "allennlp.data.token_indexers.elmo_indexer": _INDEXERS,
    "allennlp.data.tokenizers": _of("Token"),
    "allennlp.data.tokenizers.token": _of("Token"),  # 0.x
    "allennlp.data.tokenizers.token_class": _of("Token"),  # from 1.0 on
    "allennlp.modules": _of("Elmo ScalarMix"),
    "allennlp.modules.elmo": {
        **_of("Elmo _ElmoBiLm _ElmoCharacterEncoder batch_to_ids"),
        # Names that the module imported and that programs import from it.
        **_INDEXERS,
        **_FUNCTIONS,
        **_of("ConfigurationError ElmoLstm Params ScalarMix Token cached_path lazy_groups_of"),
        "logger": logging.getLogger("allennlp.modules.elmo"),
    },
    "allennlp.modules.elmo_lstm": _of("ElmoLstm"),
    "allennlp.modules.lstm_cell_with_projection": _of("LstmCellWithProjection"),
    "allennlp.modules.scalar_mix": _of("ScalarMix"),
    "allennlp.modules.token_embedders": _of("ElmoTokenEmbedder ElmoTokenEmbedderMultiLang"),
    "allennlp.modules.token_embedders.elmo_token_embedder": _of("ElmoTokenEmbedder"),
    "allennlp.modules.token_embedders.elmo_token_embedder_multilang": _of("ElmoTokenEmbedderMultiLang"),
    "allennlp.nn": {},
    "allennlp.nn.util": _FUNCTIONS | _of("get_lengths_from_binary_sequence_mask"),
}
"""The names in each module of AllenNLP; a package comes before its modules."""


Provided = Mapping[str, Mapping[str, object]]
"""The names in each module of a program; a package comes before its modules."""


def installed_path(package: str) -> str | None:
    """Find the path of an installed package; None if it is not installed."""
    # An imported package counts as installed, unless `provide` created it.
    if isinstance(sys.modules.get(package), StandIn):
        return None
    spec = importlib.util.find_spec(package)
    return None if spec is None else spec.origin or ", ".join(spec.submodule_search_locations or [])


def provide(modules: Provided) -> None:
    """Register modules with these names in ``sys.modules``. Other names fail like any missing name."""
    for name, members in modules.items():
        package, _, child = name.rpartition(".")
        module = StandIn(name, f"{name}, as far as ELMo needs it, provided by elmokit.")
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []  # makes it a package without other modules
        module.__file__ = __file__  # shown in the message about a missing name
        vars(module).update(members)
        sys.modules[name] = module
        if package:
            setattr(sys.modules[package], child, module)


class StandIn(ModuleType):
    """A module created by :func:`provide`."""
