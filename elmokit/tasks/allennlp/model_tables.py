"""The tables of the six tasks in AllenNLP's configs: rows for each model, and for words, characters and ELMo.

Each row names a key of theirs, our setting, its kind, AllenNLP's default and a rule (``config_table.Row``). Functions
convert what rows cannot say: where a value depends on others, or where one of theirs is several of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmokit.config import MAX_LAYERS, check_at_least, check_choice
from elmokit.errors import ConfigError
from elmokit.formats import published
from elmokit.formats.sidecars import OPTIONS, own_file
from elmokit.tasks.allennlp.config_table import ConfigTable, Row, to_json

Tables = dict[str, Any]
"""A config of ours, or a part of one, as plain values."""
EXCLUDED_BELOW = -1e4  # a raw mix weight this low gives its layer the weight 0
CHAR_LAYERS = ("cnn", "lstm", "gru")
EMBEDDERS = ("embedding", "character_encoding", "elmo_token_embedder")
SPELLINGS: dict[str, dict[str, Any]] = {
    "bytes": {"byte_encoding": "utf-8"},
    "marked bytes": {"byte_encoding": "utf-8", "start_tokens": [259], "end_tokens": [260]},
}
"""AllenNLP's character tokenizers by our ``chars.spelling``."""
DERIVED = "derived from other sizes"
WHOLE_DOCUMENTS = 1_000_000  # sentences
QA_INITIAL_WEIGHTS = "Glorot uniform, matrices of GRUs truncated normal"
SPLIT_AT_SPACES: tuple[object, ...] = (
    {"type": "just_spaces"},
    {"type": "whitespace"},
    "just_spaces",
    "whitespace",
    {"word_splitter": {"type": "just_spaces"}},
    {"type": "word", "word_splitter": {"type": "just_spaces"}},
)
SCHEMES = {"BIO": "IOB2", "IOB1": "IOB1", "BIOUL": "BIOUL"}
"""Our names of AllenNLP's tagging schemes."""
BIO_READERS = ("conll2000", "ontonotes_ner")  # the others read IOB1
CLASSES = {"5-class": 5, "3-class": 3, "2-class": 2}
ALTERNATING = ("alternating_lstm", "alternating_lstm_cuda")
NER_ENCODERS = {
    "lstm": "lstm",
    "gru": "gru",
    "stacked_bidirectional_lstm": "highway",
    **dict.fromkeys(ALTERNATING, "alternating"),
}
"""Our names of AllenNLP's encoders in ``crf_tagger``."""
FEEDFORWARD = {"hidden_dims": 0, "activations": "", "dropout": 0.0}
ACTIVATIONS = {"relu": "relu", "tanh": "tanh", "linear": "none"}


def always(theirs: str, value: Any, default: Any = None) -> Row:
    """Return the row of a key that has one value here."""
    return Row(theirs, value, default=default, rule="always")


def needless(why: str, *keys: str) -> tuple[Row, ...]:
    """Return the rows of keys that need not be set here."""
    return tuple(Row(theirs, why, rule="needless") for theirs in keys)


NER = (
    Row("dropout", "dropout", float, 0.0, "take unless null"),
    Row("include_start_end_transitions", "learn_ends", bool, True),
)
NER_NEEDLESS = (
    *needless("the best sequence of tags is predicted", "top_k"),
    *needless("conlleval's F1 is reported", "calculate_span_f1"),
    *needless("the F1 of every type is reported", "verbose_metrics"),
)
NER_READER = (always("tag_label", "ner"), *needless("there is one list of tags", "label_namespace"))
HIGHWAY = (always("use_highway", True), always("layer_dropout_probability", 0.0))
SRL = (
    *needless("scored like srl-eval.pl", "ignore_span_metric", "srl_eval_path"),
    always("embedding_dropout", 0.0),
    always("label_smoothing", None),
)
SRL_ENCODER = (
    Row("hidden_size", "hidden", int, 0),
    Row("num_layers", "layers", int, 1),
    Row("recurrent_dropout_probability", "dropout", float, 0.0),
)
COREF = (
    Row("lexical_dropout", "lexical_dropout", float, 0.2),
    Row("feature_size", "feature_dim", int, 20),
    Row("max_span_width", "max_width", int, 10),
    Row("spans_per_word", "keep", float, 0.4),
    Row("max_antecedents", "antecedents", int, 100),
    Row("coarse_to_fine", "coarse_to_fine", bool, False),
    Row("inference_order", "rounds", int, 1),
)
COREF_CONTEXT = (
    Row("hidden_size", "hidden", int, 0),
    Row("num_layers", "layers", int, 1),
    Row("dropout", "lstm_dropout", float, 0.0),
)
SCORER = (
    *needless(DERIVED, "input_dim"),
    always("activations", "relu"),
    Row("hidden_dims", "scorer_hidden", int, 150),
    Row("num_layers", "scorer_layers", int, 2),
    Row("dropout", "dropout", float, 0.0),
)
SIMILARITY = (
    always("type", "linear"),
    always("combination", "x,y,x*y"),
    *needless(DERIVED, "tensor_1_dim", "tensor_2_dim"),
)
LOGIT = (
    *needless(DERIVED, "input_dim", "hidden_dims"),
    always("num_layers", 1),
    always("activations", "linear"),
)
WORDS_NEEDLESS = (
    *needless("there is one vocabulary of words", "vocab_namespace"),
    *needless("gradients are the same", "sparse"),
    *needless("derived from the training text", "num_embeddings"),
    *needless("row 0 is padding", "padding_index"),
)
CHARS_NEEDLESS = (
    *needless("derived from the characters of the training text", "num_embeddings"),
    *needless("there is one vocabulary of characters", "vocab_namespace"),
)
CHARS_RNN = (
    Row("hidden_size", "hidden", int, 0),
    Row("num_layers", "n_layers", int, 1),
    Row("bidirectional", "bidirectional", bool, False),
    always("bias", True),
    always("dropout", 0.0),
    *needless(DERIVED, "input_size"),
)
MIX = (
    Row("dropout", "dropout", float, 0.5),
    Row("do_layer_norm", "layer_norm", bool, False),
)


@dataclass(frozen=True)
class Counterpart:
    """The task that corresponds to a model of AllenNLP, and how its config is converted."""

    task: str
    convert: Callable[[ConfigTable, ConfigTable, Tables], None]
    """Takes the tables of the model and of the dataset reader, and fills in ``model`` and ``data``."""
    metrics: tuple[str, ...]
    """AllenNLP's names of the metric that selects the best epoch here."""
    initial_weights: str = "drawn like PyTorch does"
    """How weights are initialized here."""
    initializers: tuple[tuple[str, str], ...] = ()
    """Patterns and types of AllenNLP's initializers that do the same."""


def convert_embedders(model: ConfigTable, reader: ConfigTable, is_fragment: bool = False) -> Tables:
    """Convert a text field embedder and the indexers with the same names to ``words``, ``chars`` and ``elmo``.

    In a fragment, what an indexer says about words or characters is kept if their embedder is not in it.
    """
    field = model.table("text_field_embedder")
    indexers = reader.table("token_indexers")
    given = _read_indexers(indexers)
    tables: Tables = {"words": False, "chars": False}
    field.expect("type", "basic")
    field.expect("allow_unmatched_keys", False)
    inner = field.table("token_embedders")
    for name, embedder in sorted((inner if inner.exists else field).tables().items()):
        kind = embedder.take("type", str, "embedding")  # AllenNLP's default
        if kind == "embedding" and tables["words"] is False:
            tables["words"] = _convert_words(embedder) | given["words"].pop(name, {})
        elif kind == "character_encoding" and tables["chars"] is False:
            tables["chars"] = _convert_chars(embedder) | given["chars"].pop(name, {})
        elif kind == "elmo_token_embedder" and "elmo" not in tables:
            tables["elmo"] = convert_elmo(embedder)
        elif kind in EMBEDDERS:
            embedder.replace("type", f" = {to_json(kind)}: a second one; a model has one here")
        else:
            embedder.put_back("type", kind)
    for kind, unread in given.items():
        for name, settings in unread.items():
            if is_fragment and tables[kind] is False:
                tables[kind] = settings
            elif any(settings.values()):
                indexers.differs(name, f" = {to_json(settings)}: no embedder has its name")
    return tables


def _read_indexers(indexers: ConfigTable) -> dict[str, dict[str, Tables]]:
    """Return what each indexer says about ``words`` (whether they are lowercased) or ``chars`` (how they are spelled).

    The other indexers are explained.
    """
    given: dict[str, dict[str, Tables]] = {"words": {}, "chars": {}}
    for name, indexer in indexers.tables().items():
        kind = indexer.take("type", str, "single_id")
        if kind == "single_id":
            given["words"][name] = {"lowercase": indexer.take("lowercase_tokens", bool, False)}
        elif kind == "characters":
            indexer.redundant("a word's features do not depend on padding", "min_padding_length")
            if (tokenizer := indexer.content.get("character_tokenizer")) in SPELLINGS.values():
                spelling = next(ours for ours, theirs in SPELLINGS.items() if theirs == tokenizer)
                given["chars"][name] = {"spelling": spelling}
                indexer.content.pop("character_tokenizer")
            indexer.unsupported(f"only these can be read: {to_json(SPELLINGS)}", "character_tokenizer")
        elif kind == "elmo_characters":
            indexer.report.redundant.append(f"{indexer.path}: the biLM brings its own characters")
        else:
            indexer.put_back("type", kind)
    return given


def _convert_words(embedder: ConfigTable) -> Tables:
    """Convert an ``embedding`` to ``words``."""
    words: Tables = {"lowercase": False, "min_count": 1, "unit_length": False, "unknown": "random"}
    if embedder.content.get("pretrained_file") is None:
        embedder.content.pop("pretrained_file", None)
    else:
        words["vectors"] = local_path(embedder, "pretrained_file", "words.vectors")
    if "embedding_dim" in embedder.content:
        words["dim"] = embedder.take("embedding_dim", int, 0)
    words["train"] = embedder.take("trainable", bool, True)
    embedder.convert(WORDS_NEEDLESS, words)
    return words


def _convert_chars(embedder: ConfigTable) -> Tables:
    """Convert a ``character_encoding`` to ``chars``."""
    chars: Tables = {"dropout": embedder.take("dropout", float, 0.0), "min_count": 1, "max_chars": False}
    embedding = embedder.table("embedding")
    if embedding.exists:
        chars["dim"] = embedding.take("embedding_dim", int, 16)
    embedding.convert(CHARS_NEEDLESS, chars)
    encoder = embedder.table("encoder")
    kind = encoder.take("type", str, "")
    if kind not in CHAR_LAYERS:
        encoder.replace("type", f" = {to_json(kind)}: only {', '.join(CHAR_LAYERS)} read characters here")
        return chars
    chars["layer"] = kind
    if kind != "cnn":
        encoder.convert(CHARS_RNN, chars)
        return chars
    widths, count = encoder.take("ngram_filter_sizes", list, [2, 3, 4, 5]), encoder.take("num_filters", int, 0)
    chars["filters"] = [[width, count] for width in widths]
    chars["activation"] = encoder.take("conv_layer_activation", str, "relu")
    encoder.redundant("derived from other sizes", "embedding_dim")
    return chars


def convert_elmo(embedder: ConfigTable) -> Tables:
    """Convert an ``elmo_token_embedder`` to ``elmo`` with an input mix."""
    model = elmo_model(embedder)
    mix = elmo_mix(embedder)
    embedder.unsupported("the mix is not projected", "projection_dim")
    cached = ("namespace_to_cache", "vocab_to_cache")
    if model.get("trainable"):
        embedder.unsupported("the char CNN is trained, and not a table of token vectors", *cached)
    embedder.redundant("layers are cached", *cached)
    return {**model, "input": mix, "output": False}


def elmo_model(elmo: ConfigTable) -> Tables:
    """Convert the biLM's two files to ``elmo.model``, and whether it is trained to ``elmo.trainable``.

    Published files become the name of their model.
    """
    training = {"trainable": elmo.take("requires_grad", bool, False)} if "requires_grad" in elmo.content else {}
    return {**_elmo_files(elmo), **training}


def _elmo_files(elmo: ConfigTable) -> Tables:
    weights, options = elmo.take("weight_file", str, ""), elmo.take("options_file", str, "")
    if not weights:
        if options:
            elmo.differs("options_file", f" = {to_json(options)}: there is no weight_file")
        return {"model": "original"}  # AllenNLP's default
    for model in published.models():
        for location in model.locations:
            if location.weights == weights and location.options in (options, None):
                return {"model": model.name}
    # Split and joined as strings, because a path object would change a URL.
    start = weights.rfind("/") + 1
    expected = [weights[:start] + name for name in (own_file(Path("folder", weights[start:]), OPTIONS).name, OPTIONS)]
    if options and options not in expected:
        elmo.differs("options_file", f" = {to_json(options)}: options are expected next to the weights")
    return {"model": weights}


def elmo_mix(elmo: ConfigTable) -> Tables:
    """Convert the dropout, layer norm and fixed weights of a mix."""
    mix: Tables = {}
    elmo.convert(MIX, mix)
    # Fixed weights can be expressed here if they choose some layers, or give all layers the same weight.
    raw = elmo.content.get("scalar_mix_parameters")
    if isinstance(raw, list) and raw and all(isinstance(number, int | float) for number in raw):
        kept = [layer for layer, number in enumerate(raw) if number > EXCLUDED_BELOW]
        if len(kept) == 1 or (len({raw[layer] for layer in kept}) == 1 and len(kept) == len(raw)):
            mix["layers"] = kept if len(kept) < len(raw) else "average"
            elmo.redundant(f"elmo.input.layers = {to_json(mix['layers'])}, with gamma trained", "scalar_mix_parameters")
    elmo.unsupported("weights cannot be given; choose layers with elmo.input.layers", "scalar_mix_parameters")
    return mix


def local_path(table: ConfigTable, key: str, ours: str) -> str:
    """Take a path. Of a URL, return the name of the file, and report that the user must download it."""
    name = table.take(key, str, "")
    if "://" not in name:
        return name
    table.differs(key, f" = {to_json(name)}: download it, and set {ours} to its path")
    return re.split(r"[/#]", name.rstrip(")"))[-1]


def convert_ner(model: ConfigTable, reader: ConfigTable, tables: Tables) -> None:
    """Convert ``crf_tagger``."""
    ours = tables["model"]
    ours["tags"], knows_scheme = _convert_tags(model, reader, tables["data"])
    # AllenNLP constrains decoding by default if the config names the scheme of the tags.
    model.drop_null("constrain_crf_decoding")
    ours["constraints"] = "decoding" if model.take("constrain_crf_decoding", bool, knows_scheme) else "none"
    model.convert(NER, ours)
    ours["variational"] = False
    _convert_ner_encoder(model.table("encoder"), ours)
    _convert_ner_feedforward(model.table("feedforward"), ours)
    model.convert(NER_NEEDLESS, ours)
    reader.convert(NER_READER, ours)


def _convert_tags(model: ConfigTable, reader: ConfigTable, data: Tables) -> tuple[str, bool]:
    """Return our name of the model's tagging scheme, and whether the config of the model names it."""
    # The scheme that the reader makes of IOB1 or BIO: the second key is that of older versions.
    converted = ""
    for key in ("convert_to_coding_scheme", "coding_scheme"):
        reader.drop_null(key)
        converted = reader.take(key, str, converted)
    # The scheme that the CRF obeys; the second key is that of old versions.
    encoding = ""
    for key in ("label_encoding", "constraint_type"):
        model.drop_null(key)
        encoding = model.take(key, str, encoding)
    scheme = encoding or converted or ("BIO" if reader.content.get("type") in BIO_READERS else "IOB1")
    check_choice("the tagging scheme", scheme, SCHEMES)
    if converted == "BIOUL" and scheme != "BIOUL":
        model.differs("label_encoding", f" = {to_json(encoding)}: the reader makes BIOUL tags")
    if reader.exists:
        data["tags"] = "IOB1"  # it reads valid BIO, too
        if scheme == "BIOUL" and converted != "BIOUL":
            data["tags"] = scheme
            reader.differs("convert_to_coding_scheme", ": not BIOUL as the model's, so the files must have BIOUL tags")
    return SCHEMES[scheme], bool(encoding)


def _convert_ner_encoder(encoder: ConfigTable, ours: Tables) -> None:
    """Convert the encoder of ``crf_tagger``."""
    kind = encoder.take("type", str, "")
    if kind not in NER_ENCODERS:
        encoder.replace("type", f" = {to_json(kind)}: only {', '.join(NER_ENCODERS)} here")
        return
    ours["encoder"] = NER_ENCODERS[kind]
    n_layers = _n_layers(encoder)
    ours["hidden"] = [encoder.take("hidden_size", int, 0)] * n_layers
    encoder.redundant(DERIVED, "input_size")
    if ours["encoder"] in ("lstm", "gru"):
        encoder.expect("bidirectional", True, False)
        between_layers = encoder.take("dropout", float, 0.0)
        if n_layers > 1 and between_layers != ours["dropout"]:
            encoder.differs("dropout", f" = {between_layers}: here it is model.dropout")
        return
    ours["recurrent_dropout"] = encoder.take("recurrent_dropout_probability", float, 0.0)
    if ours["encoder"] == "alternating":
        ours["input_bias"] = encoder.take("use_input_projection_bias", bool, True)
    encoder.convert(HIGHWAY, ours)


def _convert_ner_feedforward(layers: ConfigTable, ours: Tables) -> None:
    """Convert the feed-forward layers of ``crf_tagger``, all of which have the same activation here."""
    if not layers.exists:
        return
    layers.redundant(DERIVED, "input_dim")
    n_layers = _n_layers(layers)
    sizes, activations, dropouts = (
        value if isinstance(value, list) else [value] * n_layers
        for value in (layers.content.pop(key, default) for key, default in FEEDFORWARD.items())
    )
    if len(set(map(str, activations))) != 1 or str(activations[0]) not in ACTIVATIONS:
        here = f"one of {', '.join(ACTIVATIONS)} in all layers here"
        layers.replace("activations", f" = {to_json(activations)}: {here}")
        return
    ours["feedforward"], ours["activation"] = sizes, ACTIVATIONS[activations[0]]
    if any(dropout != ours["dropout"] for dropout in dropouts):
        layers.differs("dropout", f" = {to_json(dropouts)}: here it is model.dropout")


def _n_layers(layers: ConfigTable) -> int:
    """Return the number of layers; checked here already, because lists of that length are made of it."""
    n_layers = layers.take("num_layers", int, 1)
    check_at_least(layers.path_of("num_layers"), n_layers, 1, MAX_LAYERS)
    return n_layers


def _expect_bidirectional(encoder: ConfigTable, kind: str) -> None:
    """Explain the settings of a recurrent layer that cannot be chosen here."""
    encoder.expect("type", kind)
    encoder.expect("bidirectional", True, False)
    encoder.redundant(DERIVED, "input_size")


def _hidden_size(encoder: ConfigTable, kind: str = "lstm") -> int | None:
    """Return the units per direction of one bidirectional layer; None if it is not described."""
    if not encoder.exists:
        return None
    _expect_bidirectional(encoder, kind)
    encoder.expect("num_layers", 1)
    if encoder.content.get("dropout") == 0:
        encoder.redundant("there is one layer", "dropout")
    return encoder.take("hidden_size", int, 0)


def _expect_hidden_size(model: ConfigTable, key: str, size: int | None) -> None:
    """Report a layer that has another size than ``model.hidden``, which it shares here."""
    encoder = model.table(key)
    hidden_size = _hidden_size(encoder)
    if hidden_size not in (None, size):
        encoder.differs("hidden_size", f" = {hidden_size}: here it is model.hidden")


def _join_equal(layers: ConfigTable, n_layers: object) -> None:
    """Replace lists of equal values, of which AllenNLP allows one for each layer, by the value."""
    for name in ("hidden_dims", "activations", "dropout"):
        value = layers.content.get(name)
        if isinstance(value, list) and value and len(value) == n_layers and all(one == value[0] for one in value):
            layers.content[name] = value[0]


def _feedforward(layer: ConfigTable) -> tuple[int | None, float]:
    """Return the size and dropout of a feed-forward network of one ReLU layer."""
    if not layer.exists:
        return None, 0.0
    layer.expect("num_layers", 1)
    layer.redundant(DERIVED, "input_dim")
    _join_equal(layer, 1)
    layer.expect("activations", "relu")
    return layer.take("hidden_dims", int, 0), layer.take("dropout", float, 0.0)


def convert_sst(model: ConfigTable, reader: ConfigTable, tables: Tables) -> None:
    """Convert ``bcn``, the biattentive classification network."""
    ours = tables["model"]
    ours["input_dropout"] = model.take("embedding_dropout", float, 0.0)
    size, ours["projection_dropout"] = _feedforward(model.table("pre_encode_feedforward"))
    ours["projection_dim"] = size or 300
    ours["hidden"] = _hidden_size(model.table("encoder"))
    _expect_hidden_size(model, "integrator", ours["hidden"])
    ours["pooled_dropout"] = model.take("integrator_dropout", float, 0.0)
    output = model.table("output_layer")
    if output.exists:
        _convert_output_layers(output, ours)
    elmo = model.table("elmo")
    uses_mix = {
        "input": model.take("use_input_elmo", bool, False),
        "output": model.take("use_integrator_output_elmo", bool, False),
    }
    if elmo.exists:
        if "elmo" in tables:
            model.differs("elmo", ": a second ELMo beside that of the text_field_embedder; a model has one here")
        else:
            elmo.redundant("each position has its own mix", "num_output_representations")
            mix = elmo_mix(elmo)
            mixes = {position: dict(mix) if used else False for position, used in uses_mix.items()}
            tables["elmo"] = {**elmo_model(elmo), **mixes}
    if reader.exists:
        tables["data"]["phrases"] = "all" if reader.take("use_subtrees", bool, False) else "roots"
        classes = reader.take("granularity", str, "5-class")
        tables["data"]["classes"] = CLASSES[check_choice(reader.path_of("granularity"), classes, CLASSES)]


def _convert_output_layers(output: ConfigTable, ours: Tables) -> None:
    output.redundant("as many as there are sizes", "num_layers")
    output.redundant(DERIVED, "input_dim")
    pools = output.content.pop("pool_sizes", None)  # only maxout layers have it
    key = "output_dims" if pools is not None else "hidden_dims"
    sizes = output.take(key, list, [])
    if sizes:
        line = f"{output.path_of(key)}, the last of them, {to_json(sizes[-1])}: the number of classes"
        output.report.redundant.append(line)
    n_layers = len(sizes)
    dropout = output.content.pop("dropout", 0.0)
    dropout = dropout if isinstance(dropout, list) else [dropout] * n_layers
    if pools is not None:
        pools = pools if isinstance(pools, list) else [pools] * n_layers
        if not pools:
            raise ConfigError(
                f"{output.path_of('pool_sizes' if sizes else key)}: expected a number for each layer, found none."
            )
        ours["pool"] = pools[0]
        if any(pool != pools[0] for pool in pools):
            output.differs("pool_sizes", f" = {to_json(pools)}: all layers have the same size here")
    else:
        activations = output.content.pop("activations", "relu")
        if activations not in ("relu", ["relu"] * (n_layers - 1) + ["linear"]):
            output.differs("activations", f" = {to_json(activations)}: ReLU and a linear last layer here")
    ours["output"] = "relu" if pools is None else "maxout"
    ours["output_hidden"], ours["output_dropout"] = sizes[:-1], dropout[: n_layers - 1]
    if dropout[n_layers - 1 :] not in ([], [0], [0.0]):
        output.differs("dropout", ": no dropout after the last layer here")


def convert_nli(model: ConfigTable, reader: ConfigTable, tables: Tables) -> None:
    """Convert ``esim``."""
    ours = tables["model"]
    ours["dropout"] = model.take("dropout", float, 0.5)
    ours["attention_dropout"] = 0.0
    ours["hidden"] = _hidden_size(model.table("encoder"))
    _expect_hidden_size(model, "inference_encoder", ours["hidden"])
    for key in ("similarity_function", "matrix_attention"):  # before version 1.0, and since
        model.table(key).expect("type", "dot_product")
    for key in ("projection_feedforward", "output_feedforward"):
        size, dropout = _feedforward(model.table(key))
        if size not in (None, ours["hidden"]):
            model.differs(f"{key}.hidden_dims", f" = {size}: here it is model.hidden")
        if key == "output_feedforward" and dropout != ours["dropout"]:
            model.differs(f"{key}.dropout", f" = {dropout}: here it is model.dropout")
        if key == "projection_feedforward" and dropout:
            model.differs(f"{key}.dropout", f" = {dropout}: there is none here")
    model.table("output_logit").convert(LOGIT, ours)
    if reader.content.get("tokenizer") in SPLIT_AT_SPACES:
        reader.content.pop("tokenizer")
        tables["data"]["tokenize"] = "spaces"
    else:
        _report_tokenizer(reader)


def _expect_linear_similarity(model: ConfigTable) -> None:
    """Check that passage and question are compared as here: linearly, from both vectors and their product."""
    for key in ("similarity_function", "matrix_attention"):  # before version 1.0, and since
        model.table(key).convert(SIMILARITY, {})


def _report_tokenizer(reader: ConfigTable) -> None:
    """Report how raw text is tokenized, which differs in any case."""
    if reader.exists:
        tokenizer = reader.content.pop("tokenizer", "spaCy, AllenNLP's default")
        reader.differs("tokenizer", f": {to_json(tokenizer)}; here the Penn Treebank's rules")


def convert_srl(model: ConfigTable, reader: ConfigTable, tables: Tables) -> None:
    """Convert ``srl``."""
    ours = tables["model"]
    ours["predicate_dim"] = model.take("binary_feature_dim", int, 100)
    encoder = model.table("encoder")
    if encoder.exists:
        kind = encoder.content.get("type")
        encoder.expect("type", kind if kind in ALTERNATING else ALTERNATING[0])
        encoder.convert(SRL_ENCODER, ours)
        ours["input_bias"] = "always" if encoder.take("use_input_projection_bias", bool, True) else "never"
        encoder.expect("use_highway", True)
        encoder.redundant(DERIVED, "input_size")
    model.convert(SRL, ours)


def convert_coref(model: ConfigTable, reader: ConfigTable, tables: Tables) -> None:
    """Convert ``coref``."""
    ours = tables["model"]
    ours["network"] = "allennlp"
    ours["train_sentences"] = WHOLE_DOCUMENTS  # AllenNLP trains on whole documents
    context = model.table("context_layer")
    if context.exists:
        _expect_bidirectional(context, "lstm")
        context.convert(COREF_CONTEXT, ours)
    mentions, pairs = (_scorer(model.table(f"{name}_feedforward")) for name in ("mention", "antecedent"))
    ours |= mentions
    if pairs != mentions:
        values = tuple(pairs.values())
        model.differs("antecedent_feedforward", f": {values}; here it is like mention_feedforward")
    model.convert(COREF, ours)
    reader.expect("max_span_width", ours["max_width"])


def _scorer(layers: ConfigTable) -> Tables:
    """Return the units, layers and dropout of a feed-forward network."""
    if not layers.exists:
        return {"scorer_hidden": 150, "scorer_layers": 2, "dropout": 0.2}
    sizes: Tables = {}
    _join_equal(layers, layers.content.get("num_layers"))
    layers.convert(SCORER, sizes)
    return sizes


def convert_bidaf(model: ConfigTable, reader: ConfigTable, tables: Tables) -> None:
    """Convert ``bidaf``, the model of Seo et al. 2017."""
    ours = tables["model"]
    ours |= {"network": "bidaf", "max_answer": False, "no_answer": False}
    ours["highway_layers"] = model.take("num_highway_layers", int, 2)
    ours["hidden"] = _hidden_size(model.table("phrase_layer")) or False
    modeling = model.table("modeling_layer")
    if modeling.exists:
        _expect_bidirectional(modeling, "lstm")
        ours["modeling_layers"] = modeling.take("num_layers", int, 1)
        size, dropout = modeling.take("hidden_size", int, 0), modeling.take("dropout", float, 0.0)
        if size != ours["hidden"]:
            modeling.differs("hidden_size", f" = {size}: here it is model.hidden")
    ours["dropout"] = model.take("dropout", float, 0.2)
    if modeling.exists and ours["modeling_layers"] > 1 and dropout != ours["dropout"]:
        modeling.differs("dropout", f" = {dropout}: here it is model.dropout")
    _expect_hidden_size(model, "span_end_encoder", ours["hidden"] or None)
    _expect_linear_similarity(model)
    model.redundant("padding never changes results here", "mask_lstms")
    _report_tokenizer(reader)


def convert_qa(model: ConfigTable, reader: ConfigTable, tables: Tables) -> None:
    """Convert ``bidaf-self-atten``, which is BiDAF++."""
    ours = tables["model"]
    ours["hidden"] = _hidden_size(model.table("phrase_layer"), "gru") or False
    ours["dropout"] = model.take("dropout", float, 0.2)
    _expect_linear_similarity(model)
    _report_tokenizer(reader)


INSTEAD = {
    "decomposable_attention": "The task nli is the model of the ELMo paper: import a config of esim instead.",
    "constituency_parser": "To use ELMo in a parser of your own, see docs/how-to/pytorch.md.",
}
"""Models that AllenNLP published with ELMo and that have no counterpart, and what to do instead."""
COUNTERPARTS = {
    "crf_tagger": Counterpart("ner", convert_ner, ("+f1-measure-overall",)),
    "bcn": Counterpart("sst", convert_sst, ("+accuracy",)),
    "esim": Counterpart(
        "nli",
        convert_nli,
        ("+accuracy",),
        "Glorot uniform, recurrent matrices orthogonal, biases 0, forget gates' 1",
        (
            (".*linear_layers.*weight", "xavier_uniform"),
            (".*linear_layers.*bias", "zero"),
            (".*weight_ih.*", "xavier_uniform"),
            (".*weight_hh.*", "orthogonal"),
            (".*bias_ih.*", "zero"),
            (".*bias_hh.*", "lstm_hidden_bias"),
        ),
    ),
    "srl": Counterpart(
        "srl",
        convert_srl,
        ("+f1-measure-overall",),
        "orthogonal, biases of the LSTM 0, its forget gates' 1",
        (("tag_projection_layer.*weight", "orthogonal"),),
    ),
    "coref": Counterpart(
        "coref", convert_coref, ("+coref_f1",), "Glorot uniform, biases 0, those of the LSTM drawn like PyTorch does"
    ),
    "bidaf": Counterpart("qa", convert_bidaf, ("+f1",)),
    "bidaf-self-atten": Counterpart("qa", convert_qa, ("+f1",), QA_INITIAL_WEIGHTS),
}
