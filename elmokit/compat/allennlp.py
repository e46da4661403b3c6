"""AllenNLP's ELMo under its old names, for programs written for AllenNLP 0.4 to 2.10.

Change only the import line::

    from elmokit.compat.allennlp import Elmo, batch_to_ids  # was: from allennlp.modules.elmo import Elmo, batch_to_ids
    from elmokit.compat.allennlp import ElmoEmbedder  # was: from allennlp.commands.elmo import ElmoEmbedder

With :mod:`elmokit.compat.as_allennlp`, not even that is necessary.

Names, arguments, defaults, shapes, numbers and the contents of ``state_dict`` are the same as in AllenNLP; masks are
bool, as in 2.10. The LSTM state is carried as in AllenNLP: row r of a batch starts where row r of the previous batch
ended, so vectors depend on earlier batches. Pass ``stateful=False`` to start every batch from zero, or call
``reset_states()``. For new code, use ``elmokit.Elmo``, whose vectors do not depend on other sentences.

``weight_file`` may be any model that elmokit opens, with or without an ``options_file``. If AllenNLP had a bug, the
docstring describes what happens instead.

Like all of :mod:`elmokit.compat`, this module repeats names that other parts of elmokit also use (``Elmo``,
``ScalarMix``, ``Vocabulary`` in :mod:`elmokit.compat.bilm`, ...). They are the names in the replaced programs and
cannot be changed.
"""

from __future__ import annotations

from elmokit.errors import needs_torch

with needs_torch("elmokit.compat.allennlp"):
    import torch  # noqa: F401

from elmokit.compat.allennlp_common import ConfigurationError, Params, cached_path
from elmokit.compat.allennlp_embedder import ElmoEmbedder
from elmokit.compat.allennlp_layers import (
    ScalarMix,
    _ElmoCharacterEncoder,
    add_sentence_boundary_token_ids,
    remove_sentence_boundaries,
)
from elmokit.compat.allennlp_lstm import ElmoLstm, LstmCellWithProjection
from elmokit.compat.allennlp_modules import Elmo, ElmoTokenEmbedder, ElmoTokenEmbedderMultiLang, _ElmoBiLm
from elmokit.compat.allennlp_text import (
    ELMoCharacterMapper,
    ELMoTokenCharactersIndexer,
    Token,
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
    "ElmoTokenEmbedderMultiLang",
    "LstmCellWithProjection",
    "Params",
    "ScalarMix",
    "Token",
    "_ElmoBiLm",
    "_ElmoCharacterEncoder",
    "add_sentence_boundary_token_ids",
    "batch_to_ids",
    "cached_path",
    "create_elmo_embeddings_from_vocab",
    "remove_sentence_boundaries",
]
