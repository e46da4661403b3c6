"""The names of AllenNLP that elmokit provides, for :mod:`elmokit.compat.as_allennlp`."""

from __future__ import annotations

from elmokit.compat import allennlp as elmo
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
    "allennlp.common": {"Params": elmo.Params},
    "allennlp.common.checks": {"ConfigurationError": elmo.ConfigurationError},
    "allennlp.common.file_utils": {"cached_path": elmo.cached_path},
    "allennlp.common.params": {"Params": elmo.Params},
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
