"""The format of fastNLP's ``ElmoEmbedding``: a directory with a configuration, a lexicon of characters and one pickle.

==============  ======================================================================================
``*.json``      one file: the sizes, in the tables ``char_cnn`` and ``lstm``
``char.dic``    ``character<TAB>row`` per line
``*.pkl``       one file: a dict of the state dicts ``char_cnn`` (character table, convolutions, highway layers,
                projection) and ``lstm``
==============  ======================================================================================

fastNLP published the four English models of AllenNLP this way (``elmo_en_Small.zip`` and so on). Its network is that of
ELMoForManyLangs without words, whose reader does the work here, with other names for the token layer's tensors. Unlike
there, ``<bow>`` is before a token and ``<eow>`` after it, and a character that ``char.dic`` lacks is ``<oov>``, a
sentence mark among them. This was inferred from fastNLP's code; its published files were unreachable.
"""

from __future__ import annotations

from pathlib import Path

from elmokit.config import read_json
from elmokit.engine.config import tensor_shapes
from elmokit.formats import many_langs
from elmokit.formats.bilm_tf import config_errors
from elmokit.formats.format import Format
from elmokit.formats.many_langs_config import ManyLangsSettings, bilm_config
from elmokit.formats.model import PretrainedBiLM, Weights
from elmokit.formats.pickles import read_state_dict
from elmokit.formats.sidecars import visible_files
from elmokit.formats.tensor_rows import read_through
from elmokit.formats.words import with_words
from elmokit.text.lexicon import Lexicon, Marks

FAMILY = "fastNLP"
PARTS = ("char_cnn", "lstm")
UNKNOWN, BEGIN_SENTENCE, END_SENTENCE = "<oov>", "<bos>", "<eos>"
# The beginnings of names here and in ELMoForManyLangs.
_NAMES = (
    ("char_cnn.char_emb_layer.", "token_embedder.char_emb_layer.embedding."),
    ("char_cnn.char_conv_", "token_embedder.convolutions."),
    ("char_cnn._highways.", "token_embedder.highways."),
    ("char_cnn._projection.", "token_embedder.projection."),
    ("lstm.", "encoder."),
)
_MANY_LANGS_PICKLES = {"encoder.pkl", "token_embedder.pkl", "classifier.pkl"}


class FastNLP(Format):
    """A directory of fastNLP's ``ElmoEmbedding``."""

    name = FAMILY
    description = "a directory of fastNLP"
    reads_options = False
    files = ("*.json", "*.dic", "*.pkl")

    def recognizes(self, path: Path) -> bool:
        if not (path / "char.dic").is_file():
            return False
        pickles, configurations = visible_files(path, "*.pkl"), visible_files(path, "*.json")
        return len(pickles) == len(configurations) == 1 and pickles[0].name not in _MANY_LANGS_PICKLES

    def load(self, path: Path, options: Path | None = None, words: Path | None = None) -> PretrainedBiLM:
        (configuration,), (weights,) = visible_files(path, "*.json"), visible_files(path, "*.pkl")
        settings = _settings(configuration)
        named = {_to_many_langs(name): array for name, array in read_state_dict(weights, PARTS).items()}
        tensors = many_langs.parts_by_name(named)
        config = bilm_config(settings, {name: array.shape for name, array in tensors.items()})
        assert config.char_cnn is not None
        tensors = {_to_fast_nlp(name): array for name, array in tensors.items()}
        rows = [row._replace(theirs=_to_fast_nlp(row.theirs)) for row in many_langs.many_langs_rows(config)]
        shapes = {name: array.shape for name, array in tensors.items()}
        what = f"{weights} (sizes from {configuration.name})"
        arrays = read_through(rows, tensor_shapes(config), shapes, tensors.__getitem__, what)
        chars = many_langs.read_entries(path / "char.dic", config.char_cnn.n_chars, weights.name, every_row=False)
        lexicon = Lexicon(_marks(chars), settings.max_chars, chars=chars)
        model = PretrainedBiLM(Weights(config, arrays), self.name, source=path, lexicon=lexicon)
        return with_words(model, words)


def _settings(path: Path) -> ManyLangsSettings:
    """Read the configuration into the form of ELMoForManyLangs."""
    content = read_json(path)
    with config_errors(str(path)):
        tokens = content["char_cnn"]
        tokens = {**tokens, "word_dim": 0, "char_dim": tokens["embedding"]["dim"]}
        return ManyLangsSettings(content["lstm"], tokens, 0.0, str(path), family=FAMILY)


def _marks(chars: tuple[str | None, ...]) -> Marks:
    begin, end = (mark if mark in chars else UNKNOWN for mark in (BEGIN_SENTENCE, END_SENTENCE))
    return Marks(UNKNOWN, begin, end, begin_token="<bow>", end_token="<eow>", padding="<pad>")


def _to_many_langs(name: str) -> str:
    return next((theirs + name.removeprefix(ours) for ours, theirs in _NAMES if name.startswith(ours)), name)


def _to_fast_nlp(name: str) -> str:
    return next((ours + name.removeprefix(theirs) for ours, theirs in _NAMES if name.startswith(theirs)), name)


FORMAT = FastNLP()
