"""The tables of the tasks in AllenNLP's configs: rows for each model, and for words, characters and ELMo.

Each row names a key of theirs, our setting, its kind, AllenNLP's default and a rule (``config_table.Row``). Functions
convert what rows cannot say: where a value depends on others, or where one of theirs is several of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elmokit.config import MAX_LAYERS, check_at_least, check_choice, did_you_mean
from elmokit.errors import ConfigError
from elmokit.formats import sources
from elmokit.formats.sidecars import OPTIONS, own_file
from elmokit.tasks.allennlp.config_table import ConfigTable, Row, Rule, to_json

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
WHOLE_DOCUMENTS = 1_000_000  # sentences
READERS = {"conll2003", "sst_tokens", "snli", "srl", "coref", "squad", "ptb_trees"}
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
FEEDFORWARD_DEFAULTS = {"hidden_dims": 0, "activations": "", "dropout": 0.0}
ACTIVATIONS = {"relu": "relu", "tanh": "tanh", "linear": "none"}


def always(theirs: str, value: Any, default: Any = None) -> Row:
    """Return the row of a key that has one value here."""
    return Row(theirs, value, default=default, rule="always")


def in_training(theirs: str, value: Any) -> Row:
    """Return the row of a key that has one value here, and whose value does not matter to a trained model."""
    return Row(theirs, value, rule="always", mark="training")


def needless(*keys: str) -> tuple[Row, ...]:
    """Return the rows of keys that need not be set here."""
    return tuple(Row(theirs, rule="needless") for theirs in keys)


def table(theirs: str, *rows: Row) -> Row:
    """Return the row of a table."""
    return Row(theirs, rows, rule="table")


def _scorer(theirs: str, rule: Rule) -> Row:
    """Return the row of one of the two scorers of coreference, which have the same settings here."""
    return table(
        theirs,
        always("activations", "relu"),
        Row("hidden_dims", "scorer_hidden", int, 150, rule),
        Row("num_layers", "scorer_layers", int, 2, rule),
        Row("dropout", "dropout", float, 0.0, rule, "training"),
        *needless("input_dim"),
    )


# Embedders. What is needless: there is one vocabulary of each kind, derived from the training text; row 0 is padding.
WORDS = (
    Row("embedding_dim", "dim", int, rule="given"),
    Row("trainable", "train", bool, True),
    *needless("vocab_namespace", "sparse", "num_embeddings", "padding_index"),
)
CHARS = (
    Row("dropout", "dropout", float, 0.0),
    table("embedding", Row("embedding_dim", "dim", int, 16), *needless("num_embeddings", "vocab_namespace")),
)
CHARS_RNN = (
    Row("hidden_size", "hidden", int, 0),
    Row("num_layers", "n_layers", int, 1),
    Row("bidirectional", "bidirectional", bool, False),
    always("bias", True),
    in_training("dropout", 0.0),
    *needless("input_size"),
)
MIX = (
    Row("dropout", "dropout", float, 0.5),
    Row("do_layer_norm", "layer_norm", bool, False),
)
# Layers that several models have. Sizes of inputs are derived from other sizes.
BIDIRECTIONAL = (always("bidirectional", True, False), *needless("input_size"))
LSTM = (always("type", "lstm"), *BIDIRECTIONAL)
ONE_LAYER = (*BIDIRECTIONAL, always("num_layers", 1), in_training("dropout", 0.0))
ENCODER = (always("type", "lstm"), *ONE_LAYER, Row("hidden_size", "hidden", int, 0))
SAME_ENCODER = (always("type", "lstm"), *ONE_LAYER, Row("hidden_size", "hidden", int, 0, "same"))
FEEDFORWARD = (always("num_layers", 1), always("activations", "relu"), *needless("input_dim"))
LINEAR_SIMILARITY = tuple(
    table(
        name,  # before version 1.0, and since
        always("type", "linear"),
        always("combination", "x,y,x*y"),
        *needless("tensor_1_dim", "tensor_2_dim"),
    )
    for name in ("similarity_function", "matrix_attention")
)
HIGHWAY = (always("use_highway", True), in_training("layer_dropout_probability", 0.0), *needless("input_size"))
# Models. Scores are always the official ones.
NER = (
    Row("dropout", "dropout", float, 0.0),
    Row("include_start_end_transitions", "learn_ends", bool, True),
    *needless("top_k", "calculate_span_f1", "verbose_metrics"),
)
SST = (
    Row("embedding_dropout", "input_dropout", float, 0.0),
    table(
        "pre_encode_feedforward",
        *FEEDFORWARD,
        Row("hidden_dims", "projection_dim", int, 0),
        Row("dropout", "projection_dropout", float, 0.0),
    ),
    table("encoder", *ENCODER),
    table("integrator", *SAME_ENCODER),
    Row("integrator_dropout", "pooled_dropout", float, 0.0),
)
NLI = (
    Row("dropout", "dropout", float, 0.5),
    table("encoder", *ENCODER),
    table("inference_encoder", *SAME_ENCODER),
    *(table(name, always("type", "dot_product")) for name in ("similarity_function", "matrix_attention")),
    table(
        "projection_feedforward",
        *FEEDFORWARD,
        Row("hidden_dims", "hidden", int, 0, "same"),
        in_training("dropout", 0.0),
    ),
    table(
        "output_feedforward",
        *FEEDFORWARD,
        Row("hidden_dims", "hidden", int, 0, "same"),
        Row("dropout", "dropout", float, 0.0, "same", "training"),
    ),
    table(
        "output_logit", always("num_layers", 1), always("activations", "linear"), *needless("input_dim", "hidden_dims")
    ),
)
SRL = (
    Row("binary_feature_dim", "predicate_dim", int, 100),
    table(
        "encoder",
        always("type", ALTERNATING),
        Row("hidden_size", "hidden", int, 0),
        Row("num_layers", "layers", int, 1),
        Row("recurrent_dropout_probability", "dropout", float, 0.0),
        Row("use_input_projection_bias", "input_bias", bool, True),
        *HIGHWAY,
    ),
    in_training("embedding_dropout", 0.0),
    in_training("label_smoothing", None),
    *needless("ignore_span_metric", "srl_eval_path"),
)
COREF = (
    Row("lexical_dropout", "lexical_dropout", float, 0.2),
    Row("feature_size", "feature_dim", int, 20),
    Row("max_span_width", "max_width", int, 10),
    Row("spans_per_word", "keep", float, 0.4),
    Row("max_antecedents", "antecedents", int, 100),
    Row("coarse_to_fine", "coarse_to_fine", bool, False),
    Row("inference_order", "rounds", int, 1),
    table(
        "context_layer",
        *LSTM,
        Row("hidden_size", "hidden", int, 0),
        Row("num_layers", "layers", int, 1),
        Row("dropout", "lstm_dropout", float, 0.0),
    ),
    _scorer("mention_feedforward", "take"),
    _scorer("antecedent_feedforward", "same"),
)
BIDAF = (
    Row("num_highway_layers", "highway_layers", int, 2),
    Row("dropout", "dropout", float, 0.2),
    table("phrase_layer", *ENCODER),
    table(
        "modeling_layer",
        *LSTM,
        Row("hidden_size", "hidden", int, 0, "same"),
        Row("dropout", "dropout", float, 0.0, "between", "training"),
        Row("num_layers", "modeling_layers", int, 1),
    ),
    table("span_end_encoder", *SAME_ENCODER),
    *LINEAR_SIMILARITY,
    *needless("mask_lstms"),
)
BIDAF_PLUS_PLUS = (
    Row("dropout", "dropout", float, 0.2),
    table("phrase_layer", always("type", "gru"), *ONE_LAYER, Row("hidden_size", "hidden", int, 0)),
    *LINEAR_SIMILARITY,
)
PARSING = (
    table("pos_tag_embedding", Row("embedding_dim", "tag_dim", int, 0), *needless("vocab_namespace", "num_embeddings")),
    table(
        "encoder",
        *LSTM,
        Row("hidden_size", "hidden", int, 0),
        Row("num_layers", "layers", int, 1),
        Row("dropout", "lstm_dropout", float, 0.0),
    ),
    table(
        "span_extractor",
        always("type", "bidirectional_endpoint"),
        always("forward_combination", "y-x"),
        always("backward_combination", "x-y"),
        Row("use_sentinels", "learn_ends", bool, True),
        *needless("input_dim"),
    ),
    *needless("evalb_directory_path"),
)


def convert_embedders(model: ConfigTable, reader: ConfigTable) -> Tables:
    """Convert a text field embedder and the indexers with the same names to ``words``, ``chars`` and ``elmo``."""
    embedders = model.table("text_field_embedder")
    indexers = reader.table("token_indexers")
    given = _read_indexers(indexers)
    tables: Tables = {"words": False, "chars": False}
    embedders.expect("type", "basic")
    embedders.expect("allow_unmatched_keys", False)
    inner = embedders.table("token_embedders")
    for name, embedder in sorted((inner if inner.exists else embedders).tables().items()):
        kind = embedder.content.get("type", "embedding")  # AllenNLP's default
        if kind not in EMBEDDERS:
            continue  # all of it is reported
        embedder.drop("type")
        if kind == "embedding" and tables["words"] is False:
            tables["words"] = _convert_words(embedder) | given["words"].pop(name, {})
        elif kind == "character_encoding" and tables["chars"] is False:
            tables["chars"] = _convert_chars(embedder) | given["chars"].pop(name, {})
        elif kind == "elmo_token_embedder" and "elmo" not in tables:
            tables["elmo"] = _convert_elmo(embedder)
        else:
            embedder.refuse("type", f" = {to_json(kind)}: a second one; a model has one here")
    for unread in given.values():
        for name, settings in unread.items():
            if any(settings.values()):
                indexers.differs(name, f" = {to_json(settings)}: no embedder has its name")
    return tables


def _read_indexers(indexers: ConfigTable) -> dict[str, dict[str, Tables]]:
    """Return what each indexer says about ``words`` (are they lowercased?) or ``chars`` (how are they spelled?)."""
    given: dict[str, dict[str, Tables]] = {"words": {}, "chars": {}}
    for name, indexer in indexers.tables().items():
        kind = indexer.content.get("type", "single_id")
        if kind not in ("single_id", "characters", "elmo_characters"):
            continue  # all of it is reported
        indexer.drop("type")
        if kind == "single_id":
            given["words"][name] = {"lowercase": indexer.take("lowercase_tokens", bool, False)}
        elif kind == "characters":
            indexer.drop("min_padding_length")  # a word's features do not depend on padding
            if (tokenizer := indexer.content.get("character_tokenizer")) in SPELLINGS.values():
                spelling = next(ours for ours, theirs in SPELLINGS.items() if theirs == tokenizer)
                given["chars"][name] = {"spelling": spelling}
                indexer.drop("character_tokenizer")
            indexer.unsupported("character_tokenizer", f"only these can be read: {to_json(SPELLINGS)}", "weights")
        for key in ("start_tokens", "end_tokens"):
            indexer.unsupported(key, mark="weights")
    return given


def _convert_words(embedder: ConfigTable) -> Tables:
    """Convert an ``embedding`` to ``words``."""
    words: Tables = {"lowercase": False, "min_count": 1, "unit_length": False, "unknown": "random"}
    if path := local_path(embedder, "pretrained_file", "words.vectors"):
        words["vectors"] = path
    embedder.convert(WORDS, words)
    return words


def _convert_chars(embedder: ConfigTable) -> Tables:
    """Convert a ``character_encoding`` to ``chars``."""
    chars: Tables = {"min_count": 1, "max_chars": False}
    embedder.convert(CHARS, chars)
    encoder = embedder.table("encoder")
    kind = encoder.take("type", str, "")
    if kind not in CHAR_LAYERS:
        encoder.refuse("type", f" = {to_json(kind)}: only {', '.join(CHAR_LAYERS)} read characters here")
        return chars
    chars["layer"] = kind
    if kind != "cnn":
        encoder.convert(CHARS_RNN, chars)
        return chars
    widths, count = encoder.take("ngram_filter_sizes", list, [2, 3, 4, 5]), encoder.take("num_filters", int, 0)
    chars["filters"] = [[width, count] for width in widths]
    chars["activation"] = encoder.take("conv_layer_activation", str, "relu")
    encoder.drop("embedding_dim")
    return chars


def _convert_elmo(embedder: ConfigTable) -> Tables:
    """Convert an ``elmo_token_embedder`` to ``elmo`` with an input mix."""
    model = _elmo_model(embedder)
    mix = _elmo_mix(embedder)
    embedder.unsupported("projection_dim", "the mix is not projected")
    for cached in ("namespace_to_cache", "vocab_to_cache"):
        if model.get("trainable"):
            embedder.unsupported(cached, "the char CNN is trained, and not a table of token vectors")
        embedder.drop(cached)  # layers are cached
    return {**model, "input": mix, "output": False}


def _elmo_model(elmo: ConfigTable) -> Tables:
    """Convert the biLM's two files to ``elmo.model``, and whether it is trained to ``elmo.trainable``.

    Published files become the name of their model.
    """
    tables: Tables = {"model": _elmo_files(elmo)}
    elmo.convert([Row("requires_grad", "trainable", bool, rule="given")], tables)
    return tables


def _elmo_files(elmo: ConfigTable) -> str:
    weights, options = elmo.take("weight_file", str, ""), elmo.take("options_file", str, "")
    if not weights:
        if options:
            elmo.differs("options_file", f" = {to_json(options)}: there is no weight_file", "training")
        return "original"  # AllenNLP's default
    for model in sources.published_models():
        for location in model.locations:
            if location.weights == weights and location.options in (options, None):
                return model.name
    # Split and joined as strings, because a path object would change a URL.
    start = weights.rfind("/") + 1
    expected = [weights[:start] + name for name in (own_file(Path("folder", weights[start:]), OPTIONS).name, OPTIONS)]
    if options and options not in expected:
        elmo.differs("options_file", f" = {to_json(options)}: options are expected next to the weights", "training")
    return weights


def _elmo_mix(elmo: ConfigTable) -> Tables:
    """Convert the dropout, layer norm and fixed weights of a mix."""
    mix: Tables = {}
    elmo.convert(MIX, mix)
    # Fixed weights can be expressed here if they choose some layers, or give all layers the same weight.
    raw = elmo.content.get("scalar_mix_parameters")
    if isinstance(raw, list) and raw and all(isinstance(number, int | float) for number in raw):
        kept = [layer for layer, number in enumerate(raw) if number > EXCLUDED_BELOW]
        if len(kept) == 1 or (len({raw[layer] for layer in kept}) == 1 and len(kept) == len(raw)):
            mix["layers"] = kept if len(kept) < len(raw) else "average"
            elmo.drop("scalar_mix_parameters")
    elmo.unsupported("scalar_mix_parameters", "weights cannot be given; choose layers with elmo.input.layers")
    return mix


def local_path(table: ConfigTable, key: str, ours: str) -> str:
    """Take a path. Of a URL, return the name of the file, and report that the user must download it."""
    name = table.take(key, str, "")
    if "://" not in name:
        return name
    table.differs(key, f" = {to_json(name)}: download it, and set {ours} to its path", "training")
    return re.split(r"[/#]", name.rstrip(")"))[-1]


def _convert_ner(model: ConfigTable, reader: ConfigTable, tables: Tables) -> None:
    ours = tables["model"]
    ours["tags"], knows_scheme = _convert_tags(model, reader, tables["data"])
    # AllenNLP constrains decoding by default if the config names the scheme of the tags.
    ours["constraints"] = "decoding" if model.take("constrain_crf_decoding", bool, knows_scheme) else "none"
    _convert_ner_encoder(model.table("encoder"), ours)
    _convert_feedforward(model.table("feedforward"), ours)


def _convert_tags(model: ConfigTable, reader: ConfigTable, data: Tables) -> tuple[str, bool]:
    """Return our name of the model's tagging scheme, and whether the config of the model names it."""
    # The scheme that the reader makes of IOB1 or BIO: the second key is that of older versions.
    converted = ""
    for key in ("convert_to_coding_scheme", "coding_scheme"):
        converted = reader.take(key, str, converted)
    # The scheme that the CRF obeys; the second key is that of old versions.
    encoding = ""
    for key in ("label_encoding", "constraint_type"):
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
        encoder.refuse("type", f" = {to_json(kind)}: only {', '.join(NER_ENCODERS)} here")
        return
    ours["encoder"] = NER_ENCODERS[kind]
    if ours["encoder"] in ("lstm", "gru"):
        encoder.convert((*BIDIRECTIONAL, Row("dropout", "dropout", float, 0.0, "between", "training")), ours)
    else:
        encoder.convert((Row("recurrent_dropout_probability", "recurrent_dropout", float, 0.0), *HIGHWAY), ours)
    if ours["encoder"] == "alternating":
        encoder.convert([Row("use_input_projection_bias", "input_bias", bool, True)], ours)
    n_layers = _n_layers(encoder)
    ours["hidden"] = [encoder.take("hidden_size", int, 0)] * n_layers


def _convert_feedforward(layers: ConfigTable, ours: Tables) -> None:
    """Convert feed-forward layers, all of which have the same activation and the dropout of ``ours`` here."""
    if not layers.exists:
        return
    layers.drop("input_dim")
    n_layers = _n_layers(layers)
    sizes, activations, dropouts = (
        value if isinstance(value, list) else [value] * n_layers
        for value in (layers.content.pop(key, default) for key, default in FEEDFORWARD_DEFAULTS.items())
    )
    if len(set(map(str, activations))) != 1 or str(activations[0]) not in ACTIVATIONS:
        here = f"one of {', '.join(ACTIVATIONS)} in all layers here"
        layers.refuse("activations", f" = {to_json(activations)}: {here}")
        return
    ours["feedforward"], ours["activation"] = sizes, ACTIVATIONS[activations[0]]
    if any(dropout != ours["dropout"] for dropout in dropouts):
        layers.differs("dropout", f" = {to_json(dropouts)}: here it is model.dropout", "training")


def _n_layers(layers: ConfigTable) -> int:
    """Return the number of layers; checked here already, because lists of that length are made of it."""
    n_layers = layers.take("num_layers", int, 1)
    check_at_least(layers.path_of("num_layers"), n_layers, 1, MAX_LAYERS)
    return n_layers


def _convert_sst(model: ConfigTable, reader: ConfigTable, tables: Tables) -> None:
    output = model.table("output_layer")
    if output.exists:
        _convert_output_layers(output, tables["model"])
    elmo = model.table("elmo")
    uses_mix = {
        "input": model.take("use_input_elmo", bool, False),
        "output": model.take("use_integrator_output_elmo", bool, False),
    }
    if elmo.exists and "elmo" in tables:
        model.differs("elmo", ": a second ELMo beside that of the text_field_embedder; a model has one here")
    elif elmo.exists:
        elmo.drop("num_output_representations")  # each position has its own mix
        mix = _elmo_mix(elmo)
        mixes = {position: dict(mix) if used else False for position, used in uses_mix.items()}
        tables["elmo"] = {**_elmo_model(elmo), **mixes}
    if reader.exists:
        tables["data"]["phrases"] = "all" if reader.take("use_subtrees", bool, False) else "roots"
        classes = reader.take("granularity", str, "5-class")
        tables["data"]["classes"] = CLASSES[check_choice(reader.path_of("granularity"), classes, CLASSES)]


def _convert_output_layers(output: ConfigTable, ours: Tables) -> None:
    output.drop("num_layers", "input_dim")
    pools = output.content.pop("pool_sizes", None)  # only maxout layers have it
    key = "output_dims" if pools is not None else "hidden_dims"
    sizes = output.take(key, list, [])
    n_layers = len(sizes)  # the last one has the number of classes
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
        output.differs("dropout", ": no dropout after the last layer here", "training")


def _convert_nli(model: ConfigTable, reader: ConfigTable, tables: Tables) -> None:
    if reader.content.get("tokenizer") in SPLIT_AT_SPACES:
        reader.drop("tokenizer")
        tables["data"]["tokenize"] = "spaces"
    else:
        _report_tokenizer(model, reader, tables)


def _report_tokenizer(model: ConfigTable, reader: ConfigTable, tables: Tables) -> None:
    """Report how raw text is tokenized, which differs in any case."""
    if reader.exists:
        tokenizer = reader.content.pop("tokenizer", "spaCy, AllenNLP's default")
        reader.differs("tokenizer", f": {to_json(tokenizer)}; here the Penn Treebank's rules")


def _convert_srl(model: ConfigTable, reader: ConfigTable, tables: Tables) -> None:
    ours = tables["model"]
    if "input_bias" in ours:
        ours["input_bias"] = "always" if ours["input_bias"] else "never"


def _convert_parsing(model: ConfigTable, reader: ConfigTable, tables: Tables) -> None:
    ours = tables["model"]
    layers = model.table("feedforward")
    dropout = layers.content.get("dropout")
    if isinstance(dropout, int | float):
        ours["dropout"] = dropout
    _convert_feedforward(layers, ours)
    ours["tags"] = reader.take("use_pos_tags", bool, True)
    tables["data"]["brackets"] = reader.take("convert_parentheses", bool, False)


@dataclass(frozen=True)
class Counterpart:
    """The task that corresponds to a model of AllenNLP, and how its config is converted."""

    task: str
    rows: tuple[Row, ...]
    """Of the model."""
    metrics: tuple[str, ...]
    """AllenNLP's names of the metric that selects the best epoch here."""
    convert: Callable[[ConfigTable, ConfigTable, Tables], None] | None = None
    """Takes the tables of the model and of the dataset reader, and adds to ``model`` and ``data`` what rows do not."""
    constants: Tables = field(default_factory=dict)
    """Settings of the model that no key of theirs says."""
    reader_rows: tuple[Row, ...] = ()
    """Of the dataset reader."""
    initial_weights: str = "drawn like PyTorch does"
    """How weights are initialized here."""
    initializers: tuple[tuple[str, str], ...] = ()
    """Patterns and types of AllenNLP's initializers that do the same."""


INSTEAD = {
    "decomposable_attention": "The task nli is the model of the ELMo paper: import a config of esim instead.",
    "biaffine_parser": "To use ELMo in a parser of your own, see docs/how-to/pytorch.md.",
}
"""Models that AllenNLP published with ELMo and that have no counterpart, and what to do instead."""
COUNTERPARTS = {
    "crf_tagger": Counterpart(
        "ner",
        NER,
        ("+f1-measure-overall",),
        _convert_ner,
        {"variational": False},
        (always("tag_label", "ner"), *needless("label_namespace")),
    ),
    "bcn": Counterpart("sst", SST, ("+accuracy",), _convert_sst),
    "esim": Counterpart(
        "nli",
        NLI,
        ("+accuracy",),
        _convert_nli,
        {"attention_dropout": 0.0},
        initial_weights="Glorot uniform, recurrent matrices orthogonal, biases 0, forget gates' 1",
        initializers=(
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
        SRL,
        ("+f1-measure-overall",),
        _convert_srl,
        initial_weights="orthogonal, biases of the LSTM 0, its forget gates' 1",
        initializers=(("tag_projection_layer.*weight", "orthogonal"),),
    ),
    "coref": Counterpart(
        "coref",
        COREF,
        ("+coref_f1",),
        constants={"network": "allennlp", "train_sentences": WHOLE_DOCUMENTS},  # AllenNLP trains on whole documents
        reader_rows=(Row("max_span_width", "max_width", int, rule="same"),),
        initial_weights="Glorot uniform, biases 0, those of the LSTM drawn like PyTorch does",
    ),
    "constituency_parser": Counterpart(
        "parsing",
        PARSING,
        ("+evalb_f1_measure",),
        _convert_parsing,
        {"tag_dim": False, "feedforward": [], "dropout": 0.0},
        needless("label_namespace_prefix", "pos_label_namespace"),
    ),
    "bidaf": Counterpart(
        "qa", BIDAF, ("+f1",), _report_tokenizer, {"network": "bidaf", "max_answer": False, "no_answer": False}
    ),
    "bidaf-self-atten": Counterpart(
        "qa",
        BIDAF_PLUS_PLUS,
        ("+f1",),
        _report_tokenizer,
        initial_weights="Glorot uniform, matrices of GRUs truncated normal",
    ),
}


def counterpart_of(model: ConfigTable) -> Counterpart:
    """Take the type of a model, and return its counterpart."""
    kind = model.take("type", str, "")
    if kind not in COUNTERPARTS:
        raise ConfigError(
            f"model.type is {kind!r}, expected one of: {', '.join(COUNTERPARTS)}."
            f"{f' {INSTEAD[kind]}' if kind in INSTEAD else did_you_mean(kind, COUNTERPARTS)}"
        )
    return COUNTERPARTS[kind]


def convert_model(counterpart: Counterpart, model: ConfigTable, reader: ConfigTable) -> Tables:
    """Convert a model and how it reads its examples to our tables: what a training config and an archive both have."""
    tables: Tables = {"task": counterpart.task, "data": {}, "model": dict(counterpart.constants)}
    tables |= convert_embedders(model, reader)
    model.convert(counterpart.rows, tables["model"])
    if counterpart.convert is not None:
        counterpart.convert(model, reader, tables)
    reader.convert(counterpart.reader_rows, tables["model"])
    return tables


def report_reader(reader: ConfigTable) -> None:
    """Report a dataset reader whose files are not read here."""
    kind = reader.take("type", str, "")
    if kind and kind not in READERS:
        reader.differs("type", f" = {to_json(kind)}: see docs/reference/tasks.md for the formats that are read here")
    reader.drop("lazy")
