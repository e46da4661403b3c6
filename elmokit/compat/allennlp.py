"""AllenNLP's ELMo under its old names, for scripts of AllenNLP 0.4 to 2.10.

Change the import line and nothing else::

    from elmokit.compat.allennlp import Elmo, batch_to_ids  # was: from allennlp.modules.elmo import Elmo, batch_to_ids
    from elmokit.compat.allennlp import ElmoEmbedder  # was: from allennlp.commands.elmo import ElmoEmbedder

Names, arguments, defaults, shapes, ``state_dict`` and numbers are AllenNLP's; masks are bool, as in 2.10. State
too behaves as there: row r of a batch goes on from where row r of the batch before ended, so that vectors depend
on what was read before. ``stateful=False`` starts every batch afresh, and ``reset_states()`` forgets. (New work is
better served by ``elmokit.Elmo``, whose sentences do not depend on each other and start warm.)

A ``weight_file`` may be whatever elmokit opens, with or without an ``options_file``. Where AllenNLP's behaviour was
a defect, the docstring says what happens instead.
"""

from __future__ import annotations

from elmokit.compat.allennlp_embedder import ElmoEmbedder
from elmokit.compat.allennlp_layers import (
    ConfigurationError,
    ScalarMix,
    _ElmoCharacterEncoder,
    add_sentence_boundary_token_ids,
    remove_sentence_boundaries,
)
from elmokit.compat.allennlp_lstm import ElmoLstm, LstmCellWithProjection
from elmokit.compat.allennlp_modules import Elmo, ElmoTokenEmbedder, _ElmoBiLm
from elmokit.compat.allennlp_text import (
    ELMoCharacterMapper,
    ELMoTokenCharactersIndexer,
    batch_to_ids,
    create_elmo_embeddings_from_vocab,
)

__all__ = [
    "ConfigurationError",
    "ELMoCharacterMapper",
    "ELMoTokenCharactersIndexer",
    "Elmo",
    "ElmoEmbedder",
    "ElmoLstm",
    "ElmoTokenEmbedder",
    "LstmCellWithProjection",
    "ScalarMix",
    "_ElmoBiLm",
    "_ElmoCharacterEncoder",
    "add_sentence_boundary_token_ids",
    "batch_to_ids",
    "create_elmo_embeddings_from_vocab",
    "remove_sentence_boundaries",
]
