"""AllenNLP's models of the six tasks to the ``model`` tables of ours, with what differs told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elmokit.errors import ConfigError
from elmokit.tasks.allennlp_parts import Content, elmo_mix, elmo_model
from elmokit.tasks.allennlp_table import Given, shown

DERIVED = "derived"
SCORER = ("scorer_hidden", "scorer_layers", "dropout")
WHOLE_DOCUMENTS = 1_000_000  # sentences
QA_START = "Glorot uniform, matrices of GRUs truncated normal"
CLASSES = {"5-class": 5, "3-class": 3, "2-class": 2}


@dataclass(frozen=True)
class Counterpart:
    """Which task a model of theirs is, and how its tables are read."""

    task: str
    read: Callable[[Given, Given | None, Content], None]
    """Of the model and the dataset reader, into the content: its ``model`` and ``data`` tables."""
    metrics: tuple[str, ...]
    """AllenNLP's names for the score that decides here."""
    start: str = "as PyTorch draws them"
    """How the weights start here."""
    initializers: tuple[tuple[str, str], ...] = ()
    """Pattern and type of AllenNLP's initializers that say the same."""


def tagger(model: Given, reader: Given | None, content: Content) -> None:
    """``crf_tagger``: named entities."""
    ours = content["model"]
    scheme = "IOB1" if reader is None else reader.take("coding_scheme", str, "IOB1")
    is_told = "label_encoding" in model.content or "constraint_type" in model.content
    constrained = model.take("constrain_crf_decoding", bool, is_told)
    for key in ("label_encoding", "constraint_type"):
        model.expect(key, scheme)
    ours["constraints"] = "decoding" if constrained else "none"
    ours["dropout"] = model.take("dropout", float, 0.0)
    ours["learn_ends"] = model.take("include_start_end_transitions", bool, True)
    ours["variational"] = False
    ours["hidden"] = _layers(model.table("encoder"), ours["dropout"])
    ours["tags"] = "BIOUL" if scheme == "BIOUL" else "IOB2"
    if scheme not in ("BIOUL", "BIO"):
        model.findings.without.append(f"dataset_reader.coding_scheme = {scheme!r}: here the model tags as IOB2")
    model.needless("calculate_span_f1", "conlleval's F1 is what is reported")
    model.needless("verbose_metrics", "every type's F1 is reported")
    if reader is not None:
        reader.expect("tag_label", "ner")
        content["data"]["tags"] = "IOB1"
        reader.needless("label_namespace", "there is one list of tags")


def _layers(encoder: Given | None, dropout: float) -> list[int]:
    """The units of each layer of a bidirectional LSTM."""
    if encoder is None:
        raise ConfigError("model.encoder: expected a table, found none.")
    _recurrent(encoder, "lstm")
    between = encoder.take("dropout", float, 0.0)
    n_layers = encoder.take("num_layers", int, 1)
    if n_layers > 1 and between != dropout:
        encoder.findings.without.append(f"{encoder.place('dropout')} = {between}: here it is model.dropout")
    sizes = [encoder.take("hidden_size", int, 0)] * n_layers
    encoder.leave()
    return sizes


def _recurrent(encoder: Given, kind: str) -> None:
    """Tick off what is always so of an encoder."""
    encoder.expect("type", kind)
    encoder.expect("bidirectional", True, False)
    encoder.needless("input_size", DERIVED)


def _one_layer(encoder: Given | None, kind: str = "lstm") -> int | None:
    """The units of a bidirectional layer, each way; None where it is not described."""
    if encoder is None:
        return None
    _recurrent(encoder, kind)
    encoder.expect("num_layers", 1)
    encoder.needless("dropout", "there is one layer") if encoder.content.get("dropout") == 0 else None
    size = encoder.take("hidden_size", int, 0)
    encoder.leave()
    return size


def _same(model: Given, key: str, kind: str, size: int | None) -> None:
    """A layer whose size is that of another here."""
    path = model.place(key)
    given = _one_layer(model.table(key), kind)
    if given not in (None, size):
        model.findings.without.append(f"{path}.hidden_size = {given}: here it is model.hidden")


def _feedforward(model: Given, key: str, activation: str) -> tuple[int | None, float]:
    """The size and the dropout of a layer that stands alone."""
    given = model.table(key)
    if given is None:
        return None, 0.0
    given.expect("num_layers", 1)
    given.needless("input_dim", DERIVED)
    for name in ("hidden_dims", "activations", "dropout"):
        value = given.content.get(name)
        if isinstance(value, list) and len(value) == 1:
            given.content[name] = value[0]
    given.expect("activations", activation)
    size, dropout = given.take("hidden_dims", int, 0), given.take("dropout", float, 0.0)
    given.leave()
    return size, dropout


def sentiment(model: Given, reader: Given | None, content: Content) -> None:
    """``bcn``: the biattentive classification network."""
    ours = content["model"]
    ours["input_dropout"] = model.take("embedding_dropout", float, 0.0)
    size, ours["projection_dropout"] = _feedforward(model, "pre_encode_feedforward", "relu")
    ours["projection_dim"] = size or 300
    ours["hidden"] = _one_layer(model.table("encoder"))
    _same(model, "integrator", "lstm", ours["hidden"])
    ours["pooled_dropout"] = model.take("integrator_dropout", float, 0.0)
    _output_layers(model.table("output_layer"), ours)
    given = model.table("elmo")
    at_input = model.take("use_input_elmo", bool, False)
    at_output = model.take("use_integrator_output_elmo", bool, False)
    if given is not None:
        given.needless("num_output_representations", "one mix for each place")
        found, mix = elmo_model(given), elmo_mix(given)
        given.expect("requires_grad", False)
        given.leave()
        content["elmo"] = {
            **found,
            "input": dict(mix) if at_input else False,
            "output": dict(mix) if at_output else False,
        }
    if reader is not None:
        content["data"]["phrases"] = "all" if reader.take("use_subtrees", bool, False) else "roots"
        classes = reader.take("granularity", str, "5-class")
        if classes not in CLASSES:
            raise ConfigError(f"{reader.place('granularity')} is {classes!r}; there are {', '.join(CLASSES)}.")
        content["data"]["classes"] = CLASSES[classes]


def _output_layers(given: Given | None, ours: Content) -> None:
    if given is None:
        return
    given.needless("num_layers", "as many as there are sizes")
    given.needless("input_dim", DERIVED)
    pools = given.content.pop("pool_sizes", None)
    key = "output_dims" if pools is not None else "hidden_dims"
    sizes = given.take(key, list, [])
    if sizes:
        given.findings.needless.append(
            f"{given.place(key)}, the last of them, {shown(sizes[-1])}: the number of classes"
        )
    n_layers = len(sizes)
    dropout = given.content.pop("dropout", 0.0)
    dropout = dropout if isinstance(dropout, list) else [dropout] * n_layers
    if pools is not None:
        pools = pools if isinstance(pools, list) else [pools] * n_layers
        ours["pool"] = pools[0]
        if set(pools) != {pools[0]}:
            given.findings.without.append(f"{given.place('pool_sizes')} = {shown(pools)}: one pool for all layers here")
    else:
        activations = given.content.pop("activations", "relu")
        if activations not in ("relu", ["relu"] * (n_layers - 1) + ["linear"]):
            given.findings.without.append(
                f"{given.place('activations')} = {shown(activations)}: ReLU, the last linear, here"
            )
    ours["output"] = "relu" if pools is None else "maxout"
    ours["output_hidden"], ours["output_dropout"] = sizes[:-1], dropout[: n_layers - 1]
    if dropout[n_layers - 1 :] not in ([], [0], [0.0]):
        given.findings.without.append(f"{given.place('dropout')}: no dropout after the last layer here")
    given.leave()


def inference(model: Given, reader: Given | None, content: Content) -> None:
    """``esim``: natural language inference."""
    ours = content["model"]
    ours["dropout"] = model.take("dropout", float, 0.5)
    ours["attention_dropout"] = 0.0
    ours["hidden"] = _one_layer(model.table("encoder"))
    _same(model, "inference_encoder", "lstm", ours["hidden"])
    similarity = model.table("similarity_function")
    if similarity is not None:
        similarity.expect("type", "dot_product")
        similarity.leave()
    for key in ("projection_feedforward", "output_feedforward"):
        size, dropout = _feedforward(model, key, "relu")
        if size not in (None, ours["hidden"]):
            model.findings.without.append(f"{model.place(key)}.hidden_dims = {size}: here it is model.hidden")
        if key == "output_feedforward" and dropout != ours["dropout"]:
            model.findings.without.append(f"{model.place(key)}.dropout = {dropout}: here it is model.dropout")
    logit = model.table("output_logit")
    if logit is not None:
        for key in ("input_dim", "hidden_dims"):
            logit.needless(key, DERIVED)
        logit.expect("num_layers", 1)
        logit.expect("activations", "linear")
        logit.leave()
    if reader is not None:
        _told_tokenizer(reader)


def _told_tokenizer(reader: Given) -> None:
    """AllenNLP split raw text by spaCy where nothing else was said."""
    given = reader.content.pop("tokenizer", "spaCy, AllenNLP's default")
    reader.findings.without.append(f"{reader.place('tokenizer')}: {shown(given)}; here in the Penn Treebank's manner")


def roles(model: Given, reader: Given | None, content: Content) -> None:
    """``srl``: the deep highway LSTM in alternating directions."""
    ours = content["model"]
    ours["predicate_dim"] = model.take("binary_feature_dim", int, 100)
    encoder = model.table("encoder")
    if encoder is not None:
        kind = encoder.content.get("type")
        encoder.expect("type", "alternating_lstm_cuda" if kind == "alternating_lstm_cuda" else "alternating_lstm")
        ours["hidden"], ours["layers"] = encoder.take("hidden_size", int, 0), encoder.take("num_layers", int, 1)
        ours["dropout"] = encoder.take("recurrent_dropout_probability", float, 0.0)
        ours["input_bias"] = "always" if encoder.take("use_input_projection_bias", bool, True) else "never"
        encoder.expect("use_highway", True)
        encoder.needless("input_size", DERIVED)
        encoder.leave()
    model.needless("ignore_span_metric", "scored as srl-eval.pl does")
    model.needless("srl_eval_path", "scored as srl-eval.pl does, in Python")
    model.expect("embedding_dropout", 0.0)
    model.expect("label_smoothing", None)


def coreference(model: Given, reader: Given | None, content: Content) -> None:
    """``coref``: end-to-end coreference, over the whole document as one sequence and without speakers and genres."""
    ours = content["model"]
    model.findings.without.append(
        f"{model.path}.type: AllenNLP's LSTM reads a document as one sequence, and its pairs know neither speakers nor "
        "genre; here it reads sentence by sentence, and they do, as in Lee et al. 2017"
    )
    model.findings.without.append(
        f"{model.path}.type: the spans that AllenNLP keeps may cross each other, and which words a span attends to is "
        "scored from word vectors; here kept spans do not cross, and it is scored from the LSTM's output"
    )
    ours["train_sentences"] = WHOLE_DOCUMENTS  # AllenNLP trains on each document as a whole
    context = model.table("context_layer")
    if context is not None:
        _recurrent(context, "lstm")
        ours["hidden"], ours["layers"] = context.take("hidden_size", int, 0), context.take("num_layers", int, 1)
        ours["lstm_dropout"] = context.take("dropout", float, 0.0)
        context.leave()
    ours["scorer_hidden"], ours["scorer_layers"], ours["dropout"] = _scorer(model, "mention_feedforward")
    if (pairs := _scorer(model, "antecedent_feedforward")) != tuple(ours[key] for key in SCORER):
        model.findings.without.append(f"{model.place('antecedent_feedforward')}: {pairs}, here as mention_feedforward")
    for theirs, our_name, kind, default in (
        ("lexical_dropout", "lexical_dropout", float, 0.2),
        ("feature_size", "feature_dim", int, 20),
        ("max_span_width", "max_width", int, 10),
        ("spans_per_word", "keep", float, 0.4),
        ("max_antecedents", "antecedents", int, 100),
        ("coarse_to_fine", "coarse_to_fine", bool, False),
        ("inference_order", "rounds", int, 1),
    ):
        ours[our_name] = model.take(theirs, kind, default)
    if reader is not None:
        reader.expect("max_span_width", ours["max_width"])


def _scorer(model: Given, key: str) -> tuple[int, int, float]:
    """Units, layers and dropout of a feed-forward net."""
    given = model.table(key)
    if given is None:
        return 150, 2, 0.2
    given.needless("input_dim", DERIVED)
    given.expect("activations", "relu")
    found = given.take("hidden_dims", int, 150), given.take("num_layers", int, 2), given.take("dropout", float, 0.0)
    given.leave()
    return found


def answerer(model: Given, reader: Given | None, content: Content) -> None:
    """``bidaf``: Seo's model, without self-attention; here answers come from BiDAF++."""
    ours = content["model"]
    model.findings.without.append(
        f"{model.path}.type: BiDAF of Seo et al. 2017; the task qa is BiDAF++ with self-attention, GRUs and a bound on "
        "the answer's length, the model of the ELMo paper"
    )
    ours["hidden"] = _one_layer(model.table("phrase_layer"), "gru") or False
    ours["dropout"] = model.take("dropout", float, 0.2)
    similarity = model.table("similarity_function")
    if similarity is not None:
        similarity.expect("type", "linear")
        similarity.expect("combination", "x,y,x*y")
        similarity.needless("tensor_1_dim", DERIVED)
        similarity.needless("tensor_2_dim", DERIVED)
        similarity.leave()
    if reader is not None:
        _told_tokenizer(reader)


COUNTERPARTS = {
    "crf_tagger": Counterpart("ner", tagger, ("+f1-measure-overall",)),
    "bcn": Counterpart("sst", sentiment, ("+accuracy",)),
    "esim": Counterpart(
        "nli",
        inference,
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
        roles,
        ("+f1-measure-overall",),
        "orthogonal, biases of the LSTM 0, its forget gates' 1",
        (("tag_projection_layer.*weight", "orthogonal"),),
    ),
    "coref": Counterpart(
        "coref", coreference, ("+coref_f1",), "Glorot uniform, each gate of the LSTM orthonormal, biases 0"
    ),
    "bidaf": Counterpart("qa", answerer, ("+f1",), QA_START),
    "bidaf-self-atten": Counterpart("qa", answerer, ("+f1",), QA_START),
}
