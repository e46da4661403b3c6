"""Let programs that import AllenNLP's ELMo run unchanged, without AllenNLP.

Importing this module puts elmokit's classes under AllenNLP's module names into ``sys.modules``::

    import elmokit.compat.as_allennlp
    from allennlp.commands.elmo import ElmoEmbedder  # or a library that does so, such as flair 0.15's ELMoEmbeddings

Only the names of ELMo exist (``PROVIDED``); any other import from ``allennlp`` fails as usual for a missing name. If
AllenNLP itself is installed, this module raises an error instead of mixing two implementations in one process.

Pickles that are written afterwards refer to the classes in ``elmokit.compat`` and can be read without this module.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from elmokit.compat import allennlp as elmo
from elmokit.compat.allennlp_modules import DEFAULT_MODEL

VERSION = "2.10.1"  # the version whose interface elmokit follows, for programs that ask

PROVIDED: dict[str, dict[str, object]] = {
    "allennlp": {"__version__": VERSION},
    "allennlp.commands": {},
    # AllenNLP's two defaults are download addresses; here a published name, which needs no options file.
    "allennlp.commands.elmo": {
        "ElmoEmbedder": elmo.ElmoEmbedder,
        "DEFAULT_OPTIONS_FILE": None,
        "DEFAULT_WEIGHT_FILE": DEFAULT_MODEL,
        "DEFAULT_BATCH_SIZE": 64,
    },
    "allennlp.common": {"Params": elmo.Params},
    "allennlp.common.checks": {"ConfigurationError": elmo.ConfigurationError},
    "allennlp.common.params": {"Params": elmo.Params},
    "allennlp.data": {},
    "allennlp.data.token_indexers": {"ELMoTokenCharactersIndexer": elmo.ELMoTokenCharactersIndexer},
    "allennlp.data.token_indexers.elmo_indexer": {
        "ELMoCharacterMapper": elmo.ELMoCharacterMapper,
        "ELMoTokenCharactersIndexer": elmo.ELMoTokenCharactersIndexer,
    },
    "allennlp.modules": {"Elmo": elmo.Elmo, "ScalarMix": elmo.ScalarMix},
    "allennlp.modules.elmo": {
        "Elmo": elmo.Elmo,
        "_ElmoBiLm": elmo._ElmoBiLm,
        "_ElmoCharacterEncoder": elmo._ElmoCharacterEncoder,
        "batch_to_ids": elmo.batch_to_ids,
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
        "remove_sentence_boundaries": elmo.remove_sentence_boundaries,
    },
}
"""The names in each module of AllenNLP; a package comes before its modules."""


def install() -> None:
    """Put the modules into ``sys.modules``.

    Raises:
        ImportError: AllenNLP itself is installed or imported.
    """
    # find_spec also finds a module that is already imported.
    if (spec := importlib.util.find_spec("allennlp")) is not None:
        place = spec.origin or ", ".join(spec.submodule_search_locations or [])
        raise ImportError(
            f"elmokit.compat.as_allennlp replaces AllenNLP, but AllenNLP itself is installed ({place}). Uninstall it "
            "or import the classes from elmokit.compat.allennlp instead."
        )
    for name, members in PROVIDED.items():
        module = ModuleType(name, f"AllenNLP's {name}, as far as ELMo needs it, provided by elmokit.")
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []  # makes it a package, in which the import system then finds no other module
        module.__file__ = __file__  # named in the message about a name that is missing
        vars(module).update(members)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


install()
