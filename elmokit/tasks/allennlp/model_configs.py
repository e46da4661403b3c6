"""Convert the configs of AllenNLP's models, with one function per model, for archives and training configs.

A function takes all keys that it knows from the model's table. A value with a counterpart becomes a setting, a value
that is fixed here is compared, and a value that follows from others is dropped. The remaining keys are reported
(``ConfigTable``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from elmokit.config import MAX_LAYERS, check_at_least, check_choice, did_you_mean
from elmokit.errors import ConfigError
from elmokit.formats import sources
from elmokit.formats.sidecars import OPTIONS, own_file
from elmokit.tasks.allennlp.archived_configs import (
    ArchivedCharsConfig,
    ArchivedCorefConfig,
    ArchivedCorefModelConfig,
    ArchivedElmoConfig,
    ArchivedNerConfig,
    ArchivedNerModelConfig,
    ArchivedNliConfig,
    ArchivedNliData,
    ArchivedNliModelConfig,
    ArchivedQaConfig,
    ArchivedQaModelConfig,
    ArchivedSrlConfig,
    ArchivedSrlModelConfig,
    ArchivedSstConfig,
)
from elmokit.tasks.allennlp.config_table import ConfigTable, Value, to_json
from elmokit.tasks.allennlp.parsing import ParsingConfig, ParsingData, ParsingModelConfig
from elmokit.tasks.ner import NerData
from elmokit.tasks.sst import SstData, SstModelConfig
from elmokit.tasks.tags import Scheme
from elmokit.tasks.task_config import MixConfig, Spelling, WordsConfig

Settings = dict[str, Any]
"""Arguments of a config class."""
Activation = Literal["relu", "tanh", "none"]
EXCLUDED_BELOW = -1e4  # layers with a raw mix weight this low have the weight 0
CHAR_LAYERS: dict[str, Literal["cnn", "lstm", "gru"]] = {"cnn": "cnn", "lstm": "lstm", "gru": "gru"}
KINDS = {"embedding": "words", "character_encoding": "chars", "elmo_token_embedder": "elmo"}
"""Our names of AllenNLP's token embedders."""
SPELLINGS: dict[Spelling, Settings] = {
    "bytes": {"byte_encoding": "utf-8"},
    "marked bytes": {"byte_encoding": "utf-8", "start_tokens": [259], "end_tokens": [260]},
}
"""AllenNLP's character tokenizer for each ``chars.spelling``."""
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
SCHEMES: dict[str, Scheme] = {"BIO": "IOB2", "IOB1": "IOB1", "BIOUL": "BIOUL"}
"""Our names of AllenNLP's tagging schemes."""
BIO_READERS = ("conll2000", "ontonotes_ner")  # the others read IOB1
CLASSES: dict[str, Literal[5, 3, 2]] = {"5-class": 5, "3-class": 3, "2-class": 2}
ALTERNATING = ("alternating_lstm", "alternating_lstm_cuda")
NER_ENCODERS: dict[str, Literal["lstm", "gru", "highway", "alternating"]] = {
    "lstm": "lstm",
    "gru": "gru",
    "stacked_bidirectional_lstm": "highway",
    "alternating_lstm": "alternating",
    "alternating_lstm_cuda": "alternating",
}
"""Our names of AllenNLP's encoders in ``crf_tagger``."""
ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "tanh": "tanh", "linear": "none"}


@dataclass
class ModelInputs:
    """The inputs of a model, and facts about AllenNLP's embedders that are needed to open an archive."""

    words: WordsConfig | None = None
    chars: ArchivedCharsConfig | None = None
    elmo: ArchivedElmoConfig | None = None
    names: dict[str, str] = field(default_factory=dict)
    """AllenNLP's name of each kind of embedder ("words", "chars" or "elmo"), in the order in which it joins them."""
    namespaces: dict[str, str] = field(default_factory=dict)
    """The vocabulary's namespaces for words and characters."""
    min_chars: int | None = None
    """The number of characters to which shorter words are padded."""
    elmo_files: dict[str, Any] = field(default_factory=dict)
    """The table that names the files of ELMo."""


@dataclass
class Indexers:
    """How words become indices, by the names of the indexers, which equal those of the embedders."""

    lowercase: dict[str, bool] = field(default_factory=dict)
    """Whether words are lowercased."""
    spelling: dict[str, Spelling] = field(default_factory=dict)
    """How words are spelled, if not by their characters."""
    min_chars: dict[str, Any] = field(default_factory=dict)
    """The number of characters to which shorter words are padded."""


def read_inputs(model: ConfigTable, reader: ConfigTable) -> ModelInputs:
    """Convert a text field embedder and the indexers with the same names."""
    embedders, table = model.table("text_field_embedder"), reader.table("token_indexers")
    indexers = _read_indexers(table)
    embedders.expect("type", "basic")
    embedders.expect("allow_unmatched_keys", False)
    inner = embedders.table("token_embedders")
    by_name = inner.tables() if inner.exists else embedders.tables()
    inputs = ModelInputs()
    for name in sorted(by_name):
        _add_embedder(inputs, name, by_name[name], indexers)
    for name, is_lowercase in indexers.lowercase.items():
        if is_lowercase:
            table.differs(name, ' = {"lowercase": true}: no embedder has its name')
    for name, unread in indexers.spelling.items():
        table.differs(name, f' = {{"spelling": "{unread}"}}: no embedder has its name')
    return inputs


def _add_embedder(inputs: ModelInputs, name: str, embedder: ConfigTable, indexers: Indexers) -> None:
    """Convert an embedder, and take its indexer."""
    theirs = embedder.content.get("type", "embedding")  # AllenNLP's default
    kind = KINDS.get(str(theirs))
    if kind is None:
        return  # the whole table is reported
    if kind in inputs.names:
        embedder.refuse("type", f" = {to_json(theirs)}: a second one; only one is supported")
        return
    embedder.drop("type")
    inputs.names[kind] = name
    if kind == "words":
        inputs.namespaces[kind] = str(embedder.content.get("vocab_namespace") or "tokens")
        inputs.words = _words(embedder, indexers.lowercase.pop(name, False))
    elif kind == "chars":
        table = embedder.content.get("embedding")
        namespace = table.get("vocab_namespace") if isinstance(table, dict) else None
        inputs.namespaces[kind] = str(namespace or "token_characters")
        inputs.min_chars = indexers.min_chars.get(name) or None
        inputs.chars = _chars(embedder, indexers.spelling.pop(name, "characters"))
    else:
        inputs.elmo_files = dict(embedder.content)
        inputs.elmo = _elmo(embedder)


def _read_indexers(indexers: ConfigTable) -> Indexers:
    found = Indexers()
    for name, indexer in indexers.tables().items():
        kind = indexer.content.get("type", "single_id")
        if kind not in ("single_id", "characters", "elmo_characters"):
            continue  # the whole table is reported
        indexer.drop("type")
        if kind == "single_id":
            found.lowercase[name] = indexer.take("lowercase_tokens", bool, False)
        elif kind == "characters":
            found.min_chars[name] = indexer.content.pop("min_padding_length", None)
            tokenizer = indexer.content.get("character_tokenizer")
            for ours, theirs in SPELLINGS.items():
                if tokenizer == theirs:
                    found.spelling[name] = ours
                    indexer.drop("character_tokenizer")
            indexer.unsupported("character_tokenizer", f"only these can be read: {to_json(SPELLINGS)}", "weights")
        for key in ("start_tokens", "end_tokens"):
            indexer.unsupported(key, mark="weights")
    return found


def _words(embedder: ConfigTable, lowercase: bool) -> WordsConfig:
    """Convert an ``embedding``. There is one vocabulary of words, from the training text; row 0 is padding."""
    embedder.drop("vocab_namespace", "sparse", "num_embeddings", "padding_index")
    # For an archive, the table is projected when it is opened.
    embedder.unsupported("projection_dim", "word vectors are not projected", "training")
    vectors = local_path(embedder, "pretrained_file", "words.vectors")
    dim = embedder.take("embedding_dim", int, 0)
    train = embedder.take("trainable", bool, True)
    return WordsConfig(vectors=vectors or (), dim=dim or None, train=train, lowercase=lowercase)


def _chars(embedder: ConfigTable, spelling: Spelling) -> ArchivedCharsConfig:
    """Convert a ``character_encoding``."""
    table = embedder.layers("embedding")
    table.drop("num_embeddings", "vocab_namespace")
    settings: Settings = {
        "dropout": embedder.take("dropout", float, 0.0),
        "dim": table.take("embedding_dim", int, 16),
        "spelling": spelling,
    }
    encoder = embedder.table("encoder")
    kind = encoder.choose("type", CHAR_LAYERS, "read characters here")
    if kind == "cnn":
        encoder.drop("embedding_dim")
        widths = encoder.take("ngram_filter_sizes", list, [2, 3, 4, 5])
        count = encoder.take("num_filters", int, 0)
        for width in widths:
            check_at_least(encoder.path_of("ngram_filter_sizes"), width, 1)
        settings["filters"] = tuple((width, count) for width in widths)
        activation = encoder.take("conv_layer_activation", str, "relu")
        settings["activation"] = check_choice(encoder.path_of("conv_layer_activation"), activation, ACTIVATIONS)
        settings["activation"] = ACTIVATIONS[activation]
    elif kind is not None:
        settings["hidden"] = encoder.take("hidden_size", int, 0)
        settings["n_layers"] = encoder.take("num_layers", int, 1)
        settings["bidirectional"] = encoder.take("bidirectional", bool, False)
        encoder.expect("bias", True)
        encoder.expect("dropout", 0.0, mark="training")
        encoder.drop("input_size")
    return ArchivedCharsConfig(layer=kind or "cnn", **settings)


def _elmo(embedder: ConfigTable) -> ArchivedElmoConfig:
    """Convert an ``elmo_token_embedder``, which becomes an input mix."""
    model = _elmo_files(embedder)
    trainable = embedder.take("requires_grad", bool, False)
    mix = _mix(embedder)
    embedder.unsupported("projection_dim", "the mix is not projected")
    for cached in ("namespace_to_cache", "vocab_to_cache"):
        if trainable:
            embedder.unsupported(cached, "the char CNN is trained instead of a table of token vectors")
        embedder.drop(cached)  # layers are cached instead
    return ArchivedElmoConfig(model=model, trainable=trainable, input=mix)


def _elmo_files(elmo: ConfigTable) -> str:
    """Convert the biLM's two files to ``elmo.model``. Published files become the name of the model."""
    weights = elmo.take("weight_file", str, "")
    options = elmo.take("options_file", str, "")
    if not weights:
        if options:
            elmo.differs("options_file", f" = {to_json(options)}: there is no weight_file", "training")
        return "original"  # AllenNLP's default
    for model in sources.published_models():
        for location in model.locations:
            if location.weights == weights and location.options in (options, None):
                return model.name
    # Paths are handled as strings, because a path object would change a URL.
    folder, slash, name = weights.rpartition("/")
    own = own_file(Path("folder", name), OPTIONS).name
    if options and options not in (folder + slash + own, folder + slash + OPTIONS):
        elmo.differs("options_file", f" = {to_json(options)}: options are expected next to the weights", "training")
    return weights


def _mix(elmo: ConfigTable) -> MixConfig:
    """Convert the dropout, layer norm and fixed weights of a mix."""
    dropout = elmo.take("dropout", float, 0.5)
    layer_norm = elmo.take("do_layer_norm", bool, False)
    layers = _layers_of_weights(elmo.content.get("scalar_mix_parameters"))
    if layers != "all":
        elmo.drop("scalar_mix_parameters")
    # An archive has other weights among its tensors.
    why = "weights cannot be set; choose layers with elmo.input.layers"
    elmo.unsupported("scalar_mix_parameters", why, "training")
    return MixConfig(layers, dropout=dropout, layer_norm=layer_norm)


def _layers_of_weights(raw: Any) -> Literal["all", "average"] | tuple[int, ...]:
    """Return the choice of layers that fixed raw mix weights express: a single layer, or the mean of all."""
    if not isinstance(raw, list) or not all(isinstance(number, int | float) for number in raw):
        return "all"
    if len(set(raw)) == 1:
        return "average"
    kept = [layer for layer, number in enumerate(raw) if number > EXCLUDED_BELOW]
    if len(kept) == 1:
        return tuple(kept)
    return "all"


def local_path(table: ConfigTable, key: str, ours: str) -> str:
    """Take a path. For a URL, return the file name, and report that the user must download the file."""
    name = table.take(key, str, "")
    if "://" not in name:
        return name
    table.differs(key, f" = {to_json(name)}: download it, and set {ours} to its path", "training")
    return re.split(r"[/#]", name.rstrip(")"))[-1]


# Layers that several models have. Input sizes are derived from other sizes.


def _bidirectional(layer: ConfigTable, kind: str | None) -> None:
    """Check that a layer has the given kind, if any, and reads in both directions."""
    if kind is not None:
        layer.expect("type", kind)
    layer.expect("bidirectional", True, False)
    layer.drop("input_size")


def _encoder(model: ConfigTable, name: str, same: int | None = None) -> int:
    """Return the units of an encoder with one bidirectional layer. They may have to be the ``same`` as ``hidden``."""
    layer = model.layers(name)
    if same is not None and not layer.exists:
        return same
    _bidirectional(layer, "lstm")
    layer.expect("num_layers", 1)
    layer.expect("dropout", 0.0, mark="training")
    if same is not None:
        layer.same("hidden_size", same, "hidden")
        return same
    return layer.take("hidden_size", int, 0)


def _feedforward_layer(model: ConfigTable, name: str, activation: str = "relu") -> ConfigTable:
    """Take the table of a single feed-forward layer, and check its activation."""
    layer = model.layers(name)
    layer.expect("num_layers", 1)
    layer.expect("activations", activation)
    layer.drop("input_dim")
    return layer


def _feedforward(layers: ConfigTable, dropout: float) -> Settings:
    """Convert feed-forward layers. Here, all of them have the same activation, and the dropout of the model."""
    if not layers.exists:
        return {}
    layers.drop("input_dim")
    n_layers = _n_layers(layers)
    sizes = _numbers(layers, "hidden_dims", int, 0, n_layers)
    activations = _for_each_layer(layers.content.pop("activations", ""), n_layers)
    dropouts = _numbers(layers, "dropout", float, 0.0, n_layers)
    distinct = {str(activation) for activation in activations}
    if len(distinct) != 1 or not distinct <= ACTIVATIONS.keys():
        here = f"one of {', '.join(ACTIVATIONS)} in all layers here"
        layers.refuse("activations", f" = {to_json(activations)}: {here}")
        return {}
    if any(of_layer != dropout for of_layer in dropouts):
        layers.differs("dropout", f" = {to_json(dropouts)}: here it is model.dropout", "training")
    return {"feedforward": tuple(sizes), "activation": ACTIVATIONS[activations[0]]}


def _for_each_layer(value: Any, n_layers: int) -> list[Any]:
    return value if isinstance(value, list) else [value] * n_layers


def _numbers(layers: ConfigTable, key: str, kind: type[Value], default: Value, n_layers: int) -> list[Value]:
    """Take a number for each layer. AllenNLP allows a list, or a single number for all layers."""
    values = layers.content.get(key)
    if not isinstance(values, list):
        return [layers.take(key, kind, default)] * n_layers
    layers.drop(key)
    numbers = []
    for value in values:
        of_layer = ConfigTable({key: value}, layers.path)
        numbers.append(of_layer.take(key, kind, default))
    return numbers


def _n_layers(layers: ConfigTable) -> int:
    """Return the number of layers. It is checked here because lists of this length are made next."""
    n_layers = layers.take("num_layers", int, 1)
    check_at_least(layers.path_of("num_layers"), n_layers, 1, MAX_LAYERS)
    return n_layers


def _highway(encoder: ConfigTable) -> None:
    """Take the settings that all layers with a highway gate have."""
    encoder.expect("use_highway", True)
    encoder.expect("layer_dropout_probability", 0.0, mark="training")
    encoder.drop("input_size")


def _similarity(model: ConfigTable, kind: str) -> None:
    """Take the similarity function of an attention, by its names before and since version 1.0."""
    for name in ("similarity_function", "matrix_attention"):
        similarity = model.layers(name)
        if not similarity.exists:
            continue
        similarity.expect("type", kind)
        if kind == "linear":
            similarity.expect("combination", "x,y,x*y")
            similarity.drop("tensor_1_dim", "tensor_2_dim")


def _report_tokenizer(reader: ConfigTable) -> None:
    """Report how raw text is tokenized, because that always differs."""
    if reader.exists:
        tokenizer = reader.content.pop("tokenizer", "spaCy, AllenNLP's default")
        reader.differs("tokenizer", f": {to_json(tokenizer)}; here the Penn Treebank's rules")


# Models, without their inputs. Scores are always the official ones.


def ner_config(model: ConfigTable, reader: ConfigTable) -> ArchivedNerConfig:
    """Convert ``crf_tagger``."""
    model.drop("top_k", "calculate_span_f1", "verbose_metrics")
    model.expect("ignore_loss_on_o_tags", False, mark="training")
    reader.expect("tag_label", "ner")
    reader.drop("label_namespace")
    dropout = model.take("dropout", float, 0.0)
    tags, names_scheme, data = _tags(model, reader)
    # By default, AllenNLP constrains decoding if the config names the tagging scheme.
    is_constrained = model.take("constrain_crf_decoding", bool, names_scheme)
    learn_ends = model.take("include_start_end_transitions", bool, True)
    encoder = _ner_encoder(model.table("encoder"), dropout)
    feedforward = _feedforward(model.table("feedforward"), dropout)
    return ArchivedNerConfig(
        data=data,
        model=ArchivedNerModelConfig(
            dropout=dropout,
            variational=False,
            tags=tags,
            constraints="decoding" if is_constrained else "none",
            learn_ends=learn_ends,
            **encoder,
            **feedforward,
        ),
    )


def _tags(model: ConfigTable, reader: ConfigTable) -> tuple[Scheme, bool, NerData]:
    """Return the model's tagging scheme, whether the model's config names it, and the tagging of the files."""
    # The scheme to which the reader converts tags. The second key is from older versions.
    converted = reader.take("convert_to_coding_scheme", str, "")
    converted = reader.take("coding_scheme", str, converted)
    # The scheme of the CRF's constraints. The second key is from older versions.
    encoding = model.take("label_encoding", str, "")
    encoding = model.take("constraint_type", str, encoding)
    of_reader = "BIO" if reader.content.get("type") in BIO_READERS else "IOB1"
    scheme = encoding or converted or of_reader
    check_choice("the tagging scheme", scheme, SCHEMES)
    if converted == "BIOUL" and scheme != "BIOUL":
        model.differs("label_encoding", f" = {to_json(encoding)}: the reader makes BIOUL tags")
    of_files: Scheme = "IOB1"  # it also reads valid BIO
    if reader.exists and scheme == "BIOUL" and converted != "BIOUL":
        of_files = "BIOUL"
        reader.differs("convert_to_coding_scheme", ": not the model's BIOUL, so the files must have BIOUL tags")
    return SCHEMES[scheme], bool(encoding), NerData(tags=of_files)


def _ner_encoder(encoder: ConfigTable, dropout: float) -> Settings:
    """Convert the encoder of ``crf_tagger``."""
    kind = encoder.choose("type", NER_ENCODERS, "here")
    if kind is None:
        return {}
    settings: Settings = {"encoder": kind}
    if kind in ("lstm", "gru"):
        _bidirectional(encoder, None)
        _dropout_between(encoder, dropout)
    else:
        settings["recurrent_dropout"] = encoder.take("recurrent_dropout_probability", float, 0.0)
        _highway(encoder)
    if kind == "alternating":
        settings["input_bias"] = encoder.take("use_input_projection_bias", bool, True)
    n_layers = _n_layers(encoder)
    settings["hidden"] = (encoder.take("hidden_size", int, 0),) * n_layers
    return settings


def _dropout_between(layers: ConfigTable, dropout: float) -> None:
    """Take the dropout between layers, which is ``model.dropout`` here. It has no effect if there is only one layer."""
    if layers.content.get("num_layers", 1) == 1:
        layers.drop("dropout")
    elif layers.exists:
        layers.same("dropout", dropout, "dropout", "training", 0.0)


def sst_config(model: ConfigTable, reader: ConfigTable) -> ArchivedSstConfig:
    """Convert ``bcn``, whose ELMo is not one of the token embedders."""
    project = _feedforward_layer(model, "pre_encode_feedforward")
    hidden = _encoder(model, "encoder")
    _encoder(model, "integrator", same=hidden)
    data = SstData()
    if reader.exists:
        classes = reader.take("granularity", str, "5-class")
        check_choice(reader.path_of("granularity"), classes, CLASSES)
        use_subtrees = reader.take("use_subtrees", bool, False)
        data = SstData(classes=CLASSES[classes], phrases="all" if use_subtrees else "roots")
    return ArchivedSstConfig(
        data=data,
        elmo=_sst_elmo(model),
        model=SstModelConfig(
            input_dropout=model.take("embedding_dropout", float, 0.0),
            projection_dim=project.take("hidden_dims", int, 0),
            projection_dropout=project.take("dropout", float, 0.0),
            hidden=hidden,
            pooled_dropout=model.take("integrator_dropout", float, 0.0),
            **_output_layers(model.table("output_layer")),
        ),
    )


def _sst_elmo(model: ConfigTable) -> ArchivedElmoConfig | None:
    """Convert the ELMo of ``bcn``, whose mixes enter at one or two positions."""
    elmo = model.table("elmo")
    at_input = model.take("use_input_elmo", bool, False)
    at_output = model.take("use_integrator_output_elmo", bool, False)
    if not elmo.exists:
        return None
    elmo.drop("num_output_representations")  # each position has its own mix
    mix = _mix(elmo)
    files = _elmo_files(elmo)
    trainable = elmo.take("requires_grad", bool, False)
    return ArchivedElmoConfig(
        model=files, trainable=trainable, input=mix if at_input else None, output=mix if at_output else None
    )


def _output_layers(output: ConfigTable) -> Settings:
    """Convert the output layers of ``bcn``. The last one has an output for each class."""
    if not output.exists:
        return {}
    output.drop("num_layers", "input_dim")
    settings: Settings = {}
    if output.content.get("pool_sizes") is not None:  # only maxout layers have it
        sizes = output.take("output_dims", list, [])
        settings["output"] = "maxout"
        settings["pool"] = _pool_size(output, len(sizes))
    else:
        sizes = output.take("hidden_dims", list, [])
        settings["output"] = "relu"
        activations = output.content.pop("activations", "relu")
        if activations != "relu":
            _check_activations(output, activations, len(sizes))
    n_hidden = len(sizes) - 1
    dropout = _numbers(output, "dropout", float, 0.0, len(sizes))
    settings["output_hidden"] = tuple(sizes[:-1])
    settings["output_dropout"] = tuple(dropout[:n_hidden])
    if dropout[n_hidden:] not in ([], [0.0]):
        output.differs("dropout", ": no dropout after the last layer here", "training")
    return settings


def _pool_size(output: ConfigTable, n_layers: int) -> int:
    """Return the pool size of maxout layers, which is the same for all layers here."""
    pools = _numbers(output, "pool_sizes", int, 0, n_layers)
    if not pools:
        name = "pool_sizes" if n_layers else "output_dims"
        raise ConfigError(f"{output.path_of(name)}: expected a number for each layer, found none.")
    if any(pool != pools[0] for pool in pools):
        output.differs("pool_sizes", f" = {to_json(pools)}: all layers have the same size here")
    return pools[0]


def _check_activations(layers: ConfigTable, activations: Any, n_layers: int) -> None:
    """Report activations other than ReLU with a linear last layer."""
    if activations != ["relu"] * (n_layers - 1) + ["linear"]:
        layers.differs("activations", f" = {to_json(activations)}: ReLU and a linear last layer here")


def nli_config(model: ConfigTable, reader: ConfigTable) -> ArchivedNliConfig:
    """Convert ``esim``."""
    dropout = model.take("dropout", float, 0.5)
    hidden = _encoder(model, "encoder")
    _encoder(model, "inference_encoder", same=hidden)
    _similarity(model, "dot_product")
    project = _feedforward_layer(model, "projection_feedforward")
    project.expect("dropout", 0.0, mark="training")
    output = _feedforward_layer(model, "output_feedforward")
    if output.exists:
        output.same("dropout", dropout, "dropout", "training", 0.0)
    for layer in (project, output):
        if layer.exists:
            layer.same("hidden_dims", hidden, "hidden")
    _feedforward_layer(model, "output_logit", "linear").drop("hidden_dims")
    return ArchivedNliConfig(
        data=_pairs(reader), model=ArchivedNliModelConfig(hidden=hidden, dropout=dropout, attention_dropout=0.0)
    )


def _pairs(reader: ConfigTable) -> ArchivedNliData:
    """Convert how pairs of sentences are tokenized."""
    end_tokens: tuple[str, ...] = ()
    tokenizer = reader.content.get("tokenizer")
    if isinstance(tokenizer, dict) and "end_tokens" in tokenizer:
        table = ConfigTable(tokenizer, reader.path_of("tokenizer"))
        end_tokens = tuple(map(str, table.take("end_tokens", list, [])))
        reader.content["tokenizer"] = table.content or None
    if reader.content.get("tokenizer") in SPLIT_AT_SPACES:
        reader.drop("tokenizer")
        return ArchivedNliData(tokenize="spaces", end_tokens=end_tokens)
    _report_tokenizer(reader)
    return ArchivedNliData(end_tokens=end_tokens)


def decomposable_attention_config(model: ConfigTable, reader: ConfigTable) -> ArchivedNliConfig:
    """Convert ``decomposable_attention``."""
    _similarity(model, "dot_product")
    attend = model.table("attend_feedforward")
    compare = model.table("compare_feedforward")
    aggregate = model.table("aggregate_feedforward")
    dropout = _first_dropout(attend)
    attend_sizes = _feedforward(attend, dropout).get("feedforward", ())
    compare_sizes = _feedforward(compare, dropout).get("feedforward", ())
    aggregate.drop("input_dim")
    n_layers = _n_layers(aggregate)
    sizes = _numbers(aggregate, "hidden_dims", int, 0, n_layers)
    activations = _for_each_layer(aggregate.content.pop("activations", ""), n_layers)
    _check_activations(aggregate, activations, n_layers)
    aggregate.drop("dropout")
    return ArchivedNliConfig(
        data=_pairs(reader),
        model=ArchivedNliModelConfig(
            network="decomposable attention",
            dropout=dropout,
            attend=attend_sizes,
            compare=compare_sizes,
            aggregate=tuple(sizes[:-1]),
        ),
    )


def _first_dropout(layers: ConfigTable) -> float:
    """Return the dropout of feed-forward layers if they have a single value, else 0. The table keeps it."""
    dropout = layers.content.get("dropout")
    return float(dropout) if isinstance(dropout, int | float) else 0.0


def srl_config(model: ConfigTable, reader: ConfigTable) -> ArchivedSrlConfig:
    """Convert ``srl``."""
    model.drop("ignore_span_metric", "srl_eval_path")
    model.expect("embedding_dropout", 0.0, mark="training")
    model.expect("label_smoothing", None, mark="training")
    encoder = model.layers("encoder")
    encoder.expect("type", ALTERNATING)
    _highway(encoder)
    has_bias = encoder.take("use_input_projection_bias", bool, True)
    return ArchivedSrlConfig(
        model=ArchivedSrlModelConfig(
            predicate_dim=model.take("binary_feature_dim", int, 100),
            hidden=encoder.take("hidden_size", int, 0),
            layers=encoder.take("num_layers", int, 1),
            dropout=encoder.take("recurrent_dropout_probability", float, 0.0),
            input_bias="always" if has_bias else "never",
        ),
    )


def coref_config(model: ConfigTable, reader: ConfigTable) -> ArchivedCorefConfig:
    """Convert ``coref``. AllenNLP trains on whole documents."""
    context = model.layers("context_layer")
    _bidirectional(context, "lstm")
    mentions, antecedents = model.layers("mention_feedforward"), model.layers("antecedent_feedforward")
    for scorer in (mentions, antecedents):
        scorer.expect("activations", "relu")
        scorer.drop("input_dim")
    units = mentions.take("hidden_dims", int, 150)
    n_layers = mentions.take("num_layers", int, 2)
    dropout = mentions.take("dropout", float, 0.0)
    if antecedents.exists:
        antecedents.same("hidden_dims", units, "scorer_hidden", default=150)
        antecedents.same("num_layers", n_layers, "scorer_layers", default=2)
        antecedents.same("dropout", dropout, "dropout", "training", 0.0)
    max_width = model.take("max_span_width", int, 10)
    if reader.content.get("max_span_width") is not None:
        reader.same("max_span_width", max_width, "max_width")
    return ArchivedCorefConfig(
        model=ArchivedCorefModelConfig(
            network="allennlp",
            train_sentences=WHOLE_DOCUMENTS,
            hidden=context.take("hidden_size", int, 0),
            layers=context.take("num_layers", int, 1),
            lexical_dropout=model.take("lexical_dropout", float, 0.2),
            lstm_dropout=context.take("dropout", float, 0.0),
            dropout=dropout,
            max_width=max_width,
            scorer_hidden=units,
            scorer_layers=n_layers,
            feature_dim=model.take("feature_size", int, 20),
            keep=model.take("spans_per_word", float, 0.4),
            antecedents=model.take("max_antecedents", int, 100),
            coarse_to_fine=model.take("coarse_to_fine", bool, False),
            rounds=model.take("inference_order", int, 1),
        ),
    )


def bidaf_config(model: ConfigTable, reader: ConfigTable) -> ArchivedQaConfig:
    """Convert ``bidaf``."""
    model.drop("mask_lstms")
    _similarity(model, "linear")
    _report_tokenizer(reader)
    dropout = model.take("dropout", float, 0.2)
    hidden = _encoder(model, "phrase_layer")
    modeling = model.layers("modeling_layer")
    n_modeling = ArchivedQaModelConfig.modeling_layers
    if modeling.exists:
        _bidirectional(modeling, "lstm")
        modeling.same("hidden_size", hidden, "hidden")
        _dropout_between(modeling, dropout)
        n_modeling = modeling.take("num_layers", int, 1)
    _encoder(model, "span_end_encoder", same=hidden)
    return ArchivedQaConfig(
        model=ArchivedQaModelConfig(
            network="bidaf",
            hidden=hidden,
            dropout=dropout,
            max_answer=None,
            no_answer=False,
            highway_layers=model.take("num_highway_layers", int, 2),
            modeling_layers=n_modeling,
        ),
    )


def parsing_config(model: ConfigTable, reader: ConfigTable) -> ParsingConfig:
    """Convert ``constituency_parser``."""
    model.drop("evalb_directory_path")
    reader.drop("label_namespace_prefix", "pos_label_namespace")
    tags = model.layers("pos_tag_embedding")
    tags.drop("vocab_namespace", "num_embeddings")
    encoder = model.layers("encoder")
    _bidirectional(encoder, "lstm")
    spans = model.layers("span_extractor")
    spans.expect("type", "bidirectional_endpoint")
    spans.expect("forward_combination", "y-x")
    spans.expect("backward_combination", "x-y")
    spans.drop("input_dim")
    layers = model.table("feedforward")
    dropout = _first_dropout(layers)
    feedforward: Settings = {"feedforward": ()}
    feedforward |= _feedforward(layers, dropout)
    return ParsingConfig(
        data=ParsingData(brackets=reader.take("convert_parentheses", bool, False)),
        model=ParsingModelConfig(
            tags=reader.take("use_pos_tags", bool, True),
            tag_dim=tags.take("embedding_dim", int, 0) if tags.exists else None,
            hidden=encoder.take("hidden_size", int, 0),
            layers=encoder.take("num_layers", int, 1),
            lstm_dropout=encoder.take("dropout", float, 0.0),
            learn_ends=spans.take("use_sentinels", bool, True),
            dropout=dropout,
            **feedforward,
        ),
    )


@dataclass(frozen=True)
class Counterpart:
    """The task that corresponds to a model of AllenNLP, and how its config is converted."""

    task: str
    convert: Callable[[ConfigTable, ConfigTable], Any]
    """Takes the tables of the model and of the dataset reader; returns a config of the task without its inputs."""
    metric: str
    """AllenNLP's name for the metric that selects the best epoch here."""
    initial_weights: str = "PyTorch's defaults"
    """How weights are initialized here; follows "the initial weights are"."""


INSTEAD = {
    "biaffine_parser": "To use ELMo in a parser of your own, see docs/how-to/pytorch.md.",
}
"""Advice for models that AllenNLP published with ELMo but that have no counterpart."""
COUNTERPARTS = {
    "crf_tagger": Counterpart("ner", ner_config, "+f1-measure-overall"),
    "bcn": Counterpart("sst", sst_config, "+accuracy"),
    "esim": Counterpart(
        "nli",
        nli_config,
        "+accuracy",
        "Glorot uniform, recurrent matrices orthogonal, biases 0, forget gates' 1",
    ),
    "decomposable_attention": Counterpart("nli", decomposable_attention_config, "+accuracy"),
    "srl": Counterpart(
        "srl",
        srl_config,
        "+f1-measure-overall",
        "orthogonal, biases of the LSTM 0, its forget gates' 1",
    ),
    "coref": Counterpart(
        "coref",
        coref_config,
        "+coref_f1",
        "Glorot uniform, biases 0; PyTorch's defaults in the LSTM",
    ),
    "constituency_parser": Counterpart("parsing", parsing_config, "+evalb_f1_measure"),
    "bidaf": Counterpart("qa", bidaf_config, "+f1"),
}


def counterpart_of(model: ConfigTable) -> Counterpart:
    """Take the type of a model, and return its counterpart."""
    kind = model.take("type", str, "")
    if kind in COUNTERPARTS:
        return COUNTERPARTS[kind]
    advice = did_you_mean(kind, COUNTERPARTS)
    if kind in INSTEAD:
        advice = f" {INSTEAD[kind]}"
    raise ConfigError(f"model.type is {kind!r}, expected one of: {', '.join(COUNTERPARTS)}.{advice}")


def convert_model(counterpart: Counterpart, model: ConfigTable, reader: ConfigTable) -> tuple[Any, ModelInputs]:
    """Convert the tables of a model and its dataset reader. Returns the task's config, and the model's inputs."""
    inputs = read_inputs(model, reader)
    elmo = model.content.get("elmo")
    elmo_files = dict(elmo) if isinstance(elmo, dict) else {}
    config = counterpart.convert(model, reader)
    if config.elmo is not None:
        if inputs.elmo is not None:
            model.differs("elmo", ": a second ELMo besides the text_field_embedder's; only one is supported")
        inputs = replace(inputs, elmo=config.elmo, elmo_files=elmo_files)
    return replace(config, words=inputs.words, chars=inputs.chars, elmo=inputs.elmo), inputs


def report_reader(reader: ConfigTable) -> None:
    """Report a dataset reader for files that are not supported here."""
    kind = reader.take("type", str, "")
    if kind and kind not in READERS:
        reader.differs("type", f" = {to_json(kind)}: see docs/reference/tasks.md for the formats that are read here")
    reader.drop("lazy")
