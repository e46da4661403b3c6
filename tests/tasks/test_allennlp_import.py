"""AllenNLP's configs are converted to configs of ours, and values without a counterpart are reported."""

from __future__ import annotations

import contextlib
import copy
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmokit.cli.main import elmokit
from elmokit.errors import ConfigError, ElmoError
from elmokit.tasks.allennlp.config_import import import_config
from elmokit.tasks.config_file import config_of
from elmokit.tasks.task_config import OptimizerConfig
from tests.helpers.allennlp_configs import PUBLISHED, as_version_2, elmo, written
from tests.helpers.paths import DATA

IMPORTED = DATA / "allennlp-tasks" / "imported"
FINE_GRAINED: dict[str, dict[str, Any]] = {  # of the model that AllenNLP published for fine-grained NER
    "encoder": {
        "type": "stacked_bidirectional_lstm",
        "hidden_size": 200,
        "input_size": 1202,
        "num_layers": 2,
        "recurrent_dropout_probability": 0.5,
        "use_highway": True,
    },
    "feedforward": {"activations": "tanh", "dropout": 0.5, "hidden_dims": 400, "input_dim": 400, "num_layers": 1},
}


class Imported(NamedTuple):
    """What an import returned."""

    config: Any
    toml: str
    reported: str


def imported(folder: Path, content: Any) -> Imported:
    toml, differences = import_config(written(folder, content))
    config = config_of(tomllib.loads(toml), "imported")[1]
    return Imported(config, toml, "\n".join(line for line, _ in differences))


def with_value(content: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *tables, key = path.split(".")
    table = content
    for name in tables:
        table = table[name]
    table[key] = value
    return content


def leaves(content: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(content, dict):
        return [leaf for key, value in content.items() for leaf in leaves(value, f"{path}.{key}".lstrip("."))]
    return [(path, content)]


@pytest.mark.parametrize("name", [*PUBLISHED, "ner-fine-grained", "ner-alternating"])
def test_a_config_is_imported_with_every_number(tmp_path: Path, name: str) -> None:
    """``imported/`` has what they become, byte for byte."""
    content = PUBLISHED[name.partition("-")[0]]()
    if name == "ner-fine-grained":
        chars = {"type": "lstm", "hidden_size": 128, "input_size": 25, "num_layers": 1}
        content["model"]["text_field_embedder"]["token_embedders"]["token_characters"]["encoder"] = chars
        content["model"] |= FINE_GRAINED
    if name == "ner-alternating":
        sizes = {"type": "alternating_lstm", "input_size": 1202, "hidden_size": 30, "num_layers": 2}
        content["model"]["encoder"] = {**sizes, "use_input_projection_bias": False}
    assert import_config(written(tmp_path, content))[0] == (IMPORTED / f"{name}.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PUBLISHED)
def test_later_versions_spell_the_same_config_in_another_way(tmp_path: Path, name: str) -> None:
    before = imported(tmp_path, PUBLISHED[name]())
    after = imported(tmp_path, as_version_2(PUBLISHED[name]()))
    assert after.config == before.config
    assert after.reported.replace("data_loader.batch_sampler", "iterator") == before.reported


def test_an_initializer_is_reported_with_what_is_done_here(tmp_path: Path) -> None:
    content = PUBLISHED["srl"]()
    reported = imported(tmp_path, content).reported
    assert "model.initializer: here the initial weights are orthogonal, biases of the LSTM 0" in reported
    content["model"]["initializer"] = {"regexes": content["model"]["initializer"], "prevent_regexes": ["elmo"]}
    assert imported(tmp_path, content).reported == reported  # the later form
    del content["model"]["initializer"]
    assert "initializer" not in imported(tmp_path, content).reported


def test_minimum_counts_of_words_and_characters_are_imported_and_others_reported(tmp_path: Path) -> None:
    counts = {"vocabulary": {"min_count": {"tokens": 3, "token_characters": 5, "labels": 7}}}
    config, _, reported = imported(tmp_path, PUBLISHED["ner"]() | counts)
    assert (config.words.min_count, config.chars.min_count) == (3, 5)
    assert "vocabulary.min_count.labels = 7" in reported
    reported = imported(tmp_path, PUBLISHED["nli"]() | counts).reported  # with ELMo alone
    for expected in ("tokens = 3", "token_characters = 5", "labels = 7"):
        assert f"vocabulary.min_count.{expected}" in reported


NEEDLESS = {  # what follows from other values, and what has no effect on results
    *("input_size", "input_dim", "tensor_1_dim", "tensor_2_dim", "token_characters.encoder.embedding_dim"),
    "pos_tag_embedding.vocab_namespace",
    *("output_logit.hidden_dims", "output_layer.num_layers", "num_output_representations", "min_padding_length"),
    *("sorting_keys", "cuda_device", "num_serialized_models_to_keep", "model.initializer"),
}


def other_value(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, list):
        return [*value, value[-1]]
    return value / 2 if isinstance(value, float) and value else value + 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_value_of_a_published_config_is_imported_or_reported(tmp_path: Path, name: str) -> None:
    """Changing any value changes what is imported or what is reported."""
    content = PUBLISHED[name]()
    before = imported(tmp_path, content).toml
    for path, value in leaves(content):
        if path.startswith("validation_dataset_reader") or path.endswith(tuple(NEEDLESS)):
            continue
        with contextlib.suppress(ElmoError):  # reported as well
            changed = with_value(copy.deepcopy(content), path, other_value(value))
            assert imported(tmp_path, changed).toml != before, path


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_unknown_key_is_reported_in_any_table(tmp_path: Path, name: str) -> None:
    content = PUBLISHED[name]()
    content.pop("validation_dataset_reader", None)  # dev data is read like training data

    def tables(table: dict[str, Any]) -> list[dict[str, Any]]:
        inner = [
            value for key, value in table.items() if isinstance(value, dict) and key != "validation_dataset_reader"
        ]
        return [table, *(one for value in inner for one in tables(value))]

    for number, table in enumerate(tables(content)):
        table["wholly_new"] = number
    text = import_config(written(tmp_path, content))[0]
    for number in range(len(tables(content))):
        assert re.search(rf'wholly_new"?( =|:) {number}\b', text), number


def test_missing_values_get_the_defaults_of_allennlp(tmp_path: Path) -> None:
    content = PUBLISHED["ner"]() | {"trainer": {"optimizer": "adadelta"}, "iterator": "basic", "random_seed": 7}
    train = imported(tmp_path, content).config.train
    assert (train.epochs, train.batch_size, train.patience, train.max_grad_norm) == (20, 32, None, None)
    assert train.optimizer == OptimizerConfig("adadelta", learning_rate=1.0, rho=0.9, epsilon=1e-6)
    assert train.seeds == (7,)
    assert imported(tmp_path, content | {"pytorch_seed": 3}).config.train.seeds == (3,)
    content = PUBLISHED["ner"]()
    content["model"]["dropout"] = None
    del content["trainer"]["validation_metric"]
    config, _, reported = imported(tmp_path, content)
    assert config.model.dropout == 0.0
    assert "trainer.validation_metric: not given, so AllenNLP uses the loss" in reported


EMBEDDERS = "model.text_field_embedder.token_embedders"
RNNS = "only lstm, gru, stacked_bidirectional_lstm, alternating_lstm, alternating_lstm_cuda here"
TWO = {"num_layers": 2, "hidden_dims": 9}  # feed-forward layers
RELU = '{"type": "relu"}'
ONE = ": one of relu, tanh, linear in all layers here"
CHARS = "only cnn, lstm, gru read characters here"
REPORTED: list[tuple[str, str, Any, str | None]] = [  # a value of a published config, and the line about it
    ("coref", "model.antecedent_feedforward.hidden_dims", [150, 150], None),
    ("coref", "model.antecedent_feedforward.activations", ["relu", "relu"], None),
    ("coref", "model.antecedent_feedforward.hidden_dims", 90, " = 90: here it is model.scorer_hidden"),
    ("parsing", "model.span_extractor.forward_combination", "x,y", ' = "x,y": always "y-x" here'),
    ("parsing", "model.span_extractor.num_width_embeddings", 5, " = 5"),
    ("nli", "model.projection_feedforward.dropout", 0.3, " = 0.3: always 0.0 here"),
    ("nli", "model.output_feedforward.dropout", 0.3, " = 0.3: here it is model.dropout"),
    ("ner", "trainer.validation_metric", "-loss", ' = "-loss": here f1 selects the best epoch'),
    ("qa", "model.modeling_layer.hidden_size", 60, " = 60: here it is model.hidden"),
    ("qa", "model.span_end_encoder.hidden_size", 70, " = 70: here it is model.hidden"),
    (
        "ner",
        "model.encoder",
        FINE_GRAINED["encoder"] | {"use_highway": False},
        ".use_highway = false: always true here",
    ),
    (
        "ner",
        "model.encoder",
        {"type": "pytorch_transformer", "num_layers": 6},
        f'.type = "pytorch_transformer": {RNNS}',
    ),
    ("ner", "model.feedforward", TWO | {"activations": ["relu", "tanh"]}, f'.activations = ["relu", "tanh"]{ONE}'),
    ("ner", "model.feedforward", TWO | {"activations": {"type": "relu"}}, f".activations = [{RELU}, {RELU}]{ONE}"),
    ("ner", f"{EMBEDDERS}.token_characters.encoder", {"type": "boe", "embedding_dim": 16}, f'.type = "boe": {CHARS}'),
    ("ner", f"{EMBEDDERS}.second", elmo(0.5), '.type = "elmo_token_embedder": a second one; only one is supported'),
    ("nli", f"{EMBEDDERS}.elmo.options_file", "elsewhere.json", ' = "elsewhere.json": options are expected next to'),
    ("ner", "model.regularizer", [[".*", {"type": "l2", "alpha": 0.5}]], ': [".*", '),
    ("ner", "model.regularizer", [["encoder", {"type": "l2", "alpha": 0.5}]], ': ["encoder", '),
    ("sst", "model.elmo", "elmo_token_embedder", '.type = "elmo_token_embedder"'),
]


def reported_lines(folder: Path, content: Any) -> list[str]:
    """Import a config, which need not be complete, and return what has no counterpart."""
    return [line for line, _ in import_config(written(folder, content))[1]]


@pytest.mark.parametrize(("name", "path", "value", "line"), REPORTED)
def test_a_value_without_a_counterpart_is_reported_once(
    tmp_path: Path, name: str, path: str, value: Any, line: str | None
) -> None:
    before = reported_lines(tmp_path, PUBLISHED[name]())
    new = [one for one in reported_lines(tmp_path, with_value(PUBLISHED[name](), path, value)) if one not in before]
    assert len(new) == (line is not None)
    assert line is None or new[0].startswith(f"{path}{line}")


def test_decomposable_attention_is_a_network_of_its_own_for_pairs_with_end_tokens(tmp_path: Path) -> None:
    content = PUBLISHED["nli"]()
    layers = {"num_layers": 2, "hidden_dims": 200, "activations": "relu", "dropout": 0.2}
    last = {"num_layers": 2, "hidden_dims": [150, 3], "activations": ["relu", "linear"], "dropout": [0.2, 0.0]}
    content["model"] = {
        "type": "decomposable_attention",
        "text_field_embedder": content["model"]["text_field_embedder"],
        "similarity_function": "dot_product",
        "attend_feedforward": layers,
        "compare_feedforward": layers,
        "aggregate_feedforward": last,
    }
    content["dataset_reader"]["tokenizer"] = {"end_tokens": ["@@NULL@@"]}
    config = imported(tmp_path, content).config
    assert (config.data.tokenize, config.data.end_tokens) == ("treebank", ("@@NULL@@",))
    model = config.model
    assert (model.network, model.attend, model.compare) == ("decomposable attention", (200, 200), (200, 200))
    assert (model.aggregate, model.dropout) == ((150,), 0.2)
    last["activations"] = ["tanh", "linear"]
    assert any("model.aggregate_feedforward.activations" in line for line in reported_lines(tmp_path, content))


@pytest.mark.parametrize(
    ("reader", "model", "tags", "constraints", "files"),
    [
        ({"convert_to_coding_scheme": "BIOUL"}, {"label_encoding": "BIOUL"}, "BIOUL", "decoding", "IOB1"),
        ({"coding_scheme": "BIOUL"}, {"constraint_type": "BIOUL"}, "BIOUL", "decoding", "IOB1"),
        ({"convert_to_coding_scheme": "BIOUL"}, {}, "BIOUL", "none", "IOB1"),
        ({}, {"label_encoding": "BIO"}, "IOB2", "decoding", "IOB1"),
        ({"convert_to_coding_scheme": None}, {"label_encoding": "IOB1"}, "IOB1", "decoding", "IOB1"),
        ({}, {"label_encoding": "IOB1", "constrain_crf_decoding": False}, "IOB1", "none", "IOB1"),
        ({"type": "ontonotes_ner"}, {"label_encoding": None, "constrain_crf_decoding": None}, "IOB2", "none", "IOB1"),
        ({}, {"label_encoding": "BIOUL"}, "BIOUL", "decoding", "BIOUL"),
    ],
)
def test_every_spelling_of_a_tagging_scheme_is_imported(
    reader: dict[str, Any], model: dict[str, Any], tags: str, constraints: str, files: str, tmp_path: Path
) -> None:
    content = PUBLISHED["ner"]()
    del content["dataset_reader"]["coding_scheme"], content["model"]["label_encoding"]
    content["dataset_reader"] |= reader
    content["model"] |= model
    config, _, reported = imported(tmp_path, content)
    assert (config.model.tags, config.model.constraints, config.data.tags) == (tags, constraints, files)
    assert ("so the files must have BIOUL tags" in reported) is (files == "BIOUL")


@pytest.mark.parametrize(
    ("weights", "layers"),
    [([-9e10, 1, -9e10], (1,)), ([0, 0, 0], "average"), ([0.5, 0.5, 0.5], "average"), ([0.1, 0.2, 0.3], "all")],
)
def test_fixed_mix_weights_become_a_choice_of_layers_if_they_are_one(
    tmp_path: Path, weights: list[float], layers: Any
) -> None:
    content = with_value(PUBLISHED["ner"](), f"{EMBEDDERS}.elmo.scalar_mix_parameters", weights)
    config, _, reported = imported(tmp_path, content)
    assert config.elmo.input.layers == layers
    assert ("scalar_mix_parameters" in reported) is (layers == "all")


@pytest.mark.parametrize(
    ("weights", "options"), [("pubmed_weights", "pubmed_options"), ("weights", "options"), ("pubmed", "pubmed_options")]
)
def test_files_next_to_each_other_are_one_model(tmp_path: Path, weights: str, options: str) -> None:
    content = PUBLISHED["nli"]()
    given = content["model"]["text_field_embedder"]["token_embedders"]["elmo"]
    given.update(weight_file=f"my/{weights}.hdf5", options_file=f"my/{options}.json")
    config, _, reported = imported(tmp_path, content)
    assert config.elmo.model == f"my/{weights}.hdf5"
    assert "options_file" not in reported


REFUSED = [
    ("ner", "model.type", "biaffine_parser", "'biaffine_parser', .* docs/how-to/pytorch.md"),
    ("ner", "model.type", "crf_taggr", r"model\.type is 'crf_taggr', .* Did you mean 'crf_tagger'"),
    ("ner", "model", None, r"model\.type is ''"),
    ("ner", "model", ["crf_tagger"], "model: expected a table"),
    ("ner", "model.label_encoding", "BMES", "the tagging scheme is 'BMES'"),
    ("ner", "model.encoder.num_layers", 1e20, r"^model\.encoder\.num_layers is 100,0"),
    ("ner", "model.feedforward", {"num_layers": 0}, r"^model\.feedforward\.num_layers is 0"),
    ("ner", "model.regularizer", [["scalar_parameters", {"type": "l2", "alpha": "a"}]], r"model\.regularizer\.alpha"),
    ("ner", "trainer.num_epochs", "ten", r'trainer\.num_epochs: expected an integer, found "ten"'),
    ("ner", "trainer.num_epochs", True, r"trainer\.num_epochs: expected an integer, found true"),
    ("ner", "trainer.num_epochs", 0, "epochs is 0"),
    ("ner", "trainer.optimizer.type", "bert_adam", r"trainer\.optimizer\.type is 'bert_adam'"),
    ("ner", "iterator", 3, "iterator: expected a table"),
    ("sst", "dataset_reader.granularity", "4-class", r"dataset_reader\.granularity is '4-class'"),
    ("sst", "model.output_layer.output_dims", [], r"output_layer\.output_dims: expected a number for each layer"),
    ("sst", "model.output_layer.pool_sizes", [], r"output_layer\.pool_sizes: expected a number for each layer"),
    ("sst", "model.output_layer.pool_sizes", {}, r"output_layer\.pool_sizes: expected an integer, found {}"),
    ("sst", "model.output_layer.pool_sizes", [{}], r"output_layer\.pool_sizes: expected an integer, found {}"),
    ("sst", "model.output_layer.pool_sizes", 0, "pool is 0"),
    ("sst", "model.output_layer.dropout", ["a", 0.1, 0.1], r'output_layer\.dropout: expected a number, found "a"'),
]


@pytest.mark.parametrize(("name", "path", "value", "message"), REFUSED)
def test_a_config_that_cannot_be_imported_is_refused(
    name: str, path: str, value: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        import_config(written(tmp_path, with_value(PUBLISHED[name](), path, value)))


@pytest.mark.parametrize("content", [{}, {"a": 1}, {"token_embedders": {"elmo": elmo(0.5)}}, [1, 2], "text", None])
def test_a_file_that_is_not_a_training_config_of_allennlp_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ConfigError, match=r"Expected a training config of AllenNLP, |expected a table"):
        import_config(written(tmp_path, content))


COMMENTED = """
local units = 200;  // Jsonnet, with comments
local data = std.extVar("DATA");
{
  dataset_reader: {type: "conll2003"}, train_data_path: data + "/eng.train", validation_data_path: "dev.txt",
  model: {type: "crf_tagger", encoder: {type: "lstm", bidirectional: true, hidden_size: units, num_layers: 1}},
}
"""


def test_missing_external_variables_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "ner.jsonnet"
    path.write_text(COMMENTED)
    toml, differences = import_config(path)
    assert tomllib.loads(toml)["model"]["hidden"] == [200]
    assert tomllib.loads(toml)["data"].items() >= {"dev": "dev.txt", "tags": "IOB1"}.items()
    assert "train" not in tomllib.loads(toml)["data"]
    line = "train_data_path: the external variable DATA has no value: pass --var DATA=VALUE, or set data.train"
    assert (line, "training") in differences
    toml, differences = import_config(path, {"DATA": "conll"})
    assert tomllib.loads(toml)["data"]["train"] == "conll/eng.train"
    assert not any("external variable" in line for line, _ in differences)


def test_external_variables_can_be_anywhere_and_are_text(tmp_path: Path) -> None:
    path = tmp_path / "elmo.jsonnet"
    path.write_text(
        'local elmo = {type: "elmo_token_embedder", weight_file: "/models/" + std.extVar("SIZE") + ".hdf5", '
        'dropout: std.extVar("P"), do_layer_norm: std.extVar("NORM")}; '
        '{model: {type: "crf_tagger", text_field_embedder: {token_embedders: {elmo: elmo}}, '
        'encoder: {type: "lstm", bidirectional: true, hidden_size: 5}}}'
    )
    given = {"SIZE": "tiny", "P": "0.25", "NORM": "True"}
    found = tomllib.loads(import_config(path, given)[0])["elmo"]
    assert found["model"] == "/models/tiny.hdf5"
    assert found["input"] == {"layers": "all", "dropout": 0.25, "layer_norm": True, "penalty": 0.0}
    for name, key in (("SIZE", "weight_file"), ("P", "dropout"), ("NORM", "do_layer_norm")):
        others = {other: value for other, value in given.items() if other != name}
        with pytest.raises(ConfigError, match=rf"{key}: the external variable {name} has no value; pass --var"):
            import_config(path, others)
    with pytest.raises(ConfigError, match='dropout: expected a number, found "much"'):
        import_config(path, {**given, "P": "much"})


def test_the_command_line_prints_the_toml_and_reports_the_rest_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, PUBLISHED["ner"]())
    elmokit.main(["task", "import", str(path)], prog_name="elmokit", standalone_mode=False)
    out, err = capsys.readouterr()
    assert tomllib.loads(out)["task"] == "ner"
    assert "not supported" in err
    with pytest.raises(ConfigError, match="--var is 'TRAIN'"):
        elmokit.main(["task", "import", str(path), "--var", "TRAIN"], prog_name="elmokit", standalone_mode=False)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "l2", "cnn", "x", 1e20]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "a"]), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_an_unexpected_value_anywhere_is_reported_or_rejected(tmp_path: Path, data: st.DataObject) -> None:
    content = PUBLISHED[data.draw(st.sampled_from(sorted(PUBLISHED)))]()
    table = content
    while True:
        key = data.draw(st.sampled_from(sorted(table)))
        if not isinstance(table[key], dict) or not table[key] or data.draw(st.booleans()):
            break
        table = table[key]
    table[key] = data.draw(JSON_VALUES)
    with contextlib.suppress(ElmoError):
        import_config(written(tmp_path, content))


def trainable_elmo(content: dict[str, Any]) -> dict[str, Any]:
    """Switch on the training of the biLM in a config, wherever its ELMo is."""
    embedders = content["model"]["text_field_embedder"]["token_embedders"]
    (content["model"]["elmo"] if "elmo" in content["model"] else embedders["elmo"])["requires_grad"] = True
    return content


@pytest.mark.parametrize("name", ["ner", "sst", "nli", "srl", "qa"])
def test_a_bilm_that_requires_gradients_is_trained_at_the_optimizers_rate(tmp_path: Path, name: str) -> None:
    config, _, reported = imported(tmp_path, trainable_elmo(PUBLISHED[name]()))
    assert config.elmo.trainable
    assert config.elmo.learning_rate == config.train.optimizer.learning_rate
    assert (config.elmo.freeze_epochs, config.elmo.unfreeze_every, config.elmo.layer_decay) == (0, None, 1.0)
    assert "requires_grad" not in reported
    assert not imported(tmp_path, PUBLISHED[name]()).config.elmo.trainable


@pytest.mark.parametrize("value", [None, {}, []])
def test_an_empty_regularizer_is_not_reported(tmp_path: Path, value: Any) -> None:
    config, _, reported = imported(tmp_path, with_value(PUBLISHED["ner"](), "model.regularizer", value))
    assert config.elmo.input.penalty == 0.0
    assert "regularizer" not in reported


def test_groups_of_parameters_and_penalties_of_other_weights_are_reported(tmp_path: Path) -> None:
    content = trainable_elmo(PUBLISHED["ner"]())
    content["trainer"]["optimizer"]["parameter_groups"] = [[["_elmo_lstm"], {"lr": 1e-5}]]
    content["model"]["regularizer"] = [["_elmo.*parameters", {"type": "l2", "alpha": 0.001}]]
    config, _, reported = imported(tmp_path, content)
    assert (config.elmo.learning_rate, config.elmo.input.penalty) == (1e-3, 0.0)
    assert 'parameter_groups = [[["_elmo_lstm"], {"lr": 1e-05}]]: only the biLM can have its own' in reported
    assert 'model.regularizer: ["_elmo.*parameters", ' in reported
