"""Task models that AllenNLP trained: opened, they compute what AllenNLP computed."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from elmokit.errors import ConfigError, FormatError, ModelNotFoundError, TensorMismatchError
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.formats.sources import find_published
from elmokit.tasks.allennlp.archive_files import TaskArchive, read_archive
from elmokit.tasks.allennlp.task_archive import convert_archive, open_task_archive, save_as_run
from elmokit.tasks.qa import answer_text
from elmokit.tasks.run import TaskRun, evaluate_run, open_run, train_task
from elmokit.tasks.tags import tags_of
from tests.helpers.allennlp_configs import published
from tests.helpers.paths import DATA
from tests.helpers.shell import Shell

TASK_DATA = DATA / "allennlp-tasks"
# AllenNLP saved these archives with its own archiver: see tests/data/README.md.
FOLDERS = {"2.10.1": TASK_DATA, "0.9.0": TASK_DATA / "0.9.0"}
EXPECTED: dict[str, Any] = {
    version: json.loads((folder / "expected.json").read_text()) for version, folder in FOLDERS.items()
}
TEXTS = {path.stem: path for path in TASK_DATA.iterdir() if path.suffix in (".txt", ".jsonl", ".json")}
ARCHIVES = [(name, version) for version, found in EXPECTED.items() for name in found]
CLASSIFIERS = [(name, version) for name, version in ARCHIVES if name.split("-")[0] in ("ner", "sst", "nli", "srl")]
# Archives of 2.10.1 do not hold the options of their ELMo, and its options are the assumed ones.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have the options file")
CLASS_NAMES = ("very negative", "negative", "neutral", "positive", "very positive")


def archive_of(kind: str, version: str = "2.10.1") -> Path:
    return FOLDERS[version] / f"{kind}.tar.gz"


def scores_of(run: TaskRun, examples: list[Any]) -> Tensor:
    """Return the scores before the softmax, as the models of AllenNLP call them "logits"."""
    model: Any = run.model
    batch = run.batch(examples, run.model)
    compute: dict[str, Callable[[], Tensor]] = {
        "ner": lambda: model.emissions(batch.tokens),
        "srl": lambda: model.scores(batch),
        "sst": lambda: model.scores(*batch.texts),
        "nli": lambda: model.scores(*batch.texts),
    }
    with torch.no_grad():
        return compute[run.task.name]()


def predicted(run: TaskRun, example: Any, prediction: Any) -> Any:
    """Return a prediction in AllenNLP's form."""
    if run.task.name == "ner":
        return tags_of(prediction, len(example.tokens), run.config.model.tags)
    if run.task.name == "srl":
        return tags_of(prediction[0][1], len(example.tokens), "IOB2")
    label = max(prediction, key=prediction.get)
    return str(CLASS_NAMES.index(label)) if run.task.name == "sst" else label


@pytest.mark.slow
@pytest.mark.parametrize(("name", "version"), CLASSIFIERS)
def test_scores_and_predictions_are_those_of_allennlp(name: str, version: str) -> None:
    kind = name.split("-")[0]
    run = open_run(archive_of(name, version))
    examples = run.read(str(TEXTS[kind]))
    found = EXPECTED[version][name]
    assert len(examples) == len(found["examples"])
    logits, answer = ("label_logits" if kind == "nli" else "logits"), ("tags" if kind in ("ner", "srl") else "label")
    for example, expected in zip(examples, found["examples"], strict=True):
        scores = scores_of(run, [example])[0]
        torch.testing.assert_close(scores, torch.tensor(expected[logits]), atol=1e-5, rtol=1e-5)
        if answer in expected:  # ESIM of 0.9 returns no label
            assert predicted(run, example, run.predict([example])[0]) == expected[answer]
    # All examples as one batch, whose padding must not change anything.
    for row, (example, expected) in enumerate(zip(examples, found["batch"], strict=True)):
        scores = scores_of(run, examples)[row]
        theirs = torch.tensor(expected[logits])
        n_tokens = len(example.tokens) if answer == "tags" else len(theirs)
        # Products of a batch are summed in another order, which differs between processors: 1.1e-5 was seen.
        torch.testing.assert_close(scores[:n_tokens], theirs[:n_tokens], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "version"), [archive for archive in ARCHIVES if archive[0].startswith("coref")])
def test_spans_antecedents_and_clusters_are_those_of_allennlp(name: str, version: str) -> None:
    run = open_run(archive_of(name, version))
    all_expected = EXPECTED[version][name]["examples"]
    model: Any = run.model
    examples = run.read(str(TEXTS["coref"]))
    for example, expected in zip(examples, all_expected, strict=True):
        with torch.no_grad():
            found = model.antecedents(run.batch([example], model).documents[0])
        assert [list(span) for span in zip(found.starts, found.ends, strict=True)] == expected["top_spans"]
        theirs = torch.tensor(expected["scores"])
        theirs = theirs.masked_fill(theirs < -1e30, float("-inf"))  # where there is no antecedent
        # Of each span, because the candidates are in another order: here the best or nearest first.
        ours = torch.sort(found.scores, dim=1).values
        torch.testing.assert_close(ours, torch.sort(theirs, dim=1).values, atol=1e-5, rtol=1e-5)
        clusters = [[list(mention) for mention in cluster] for cluster in run.predict([example])[0]]
        assert clusters == expected["clusters"]
    assert any(expected["clusters"] for expected in all_expected)


@pytest.mark.parametrize("version", FOLDERS)
def test_answers_are_those_of_allennlp(version: str) -> None:
    run = open_run(archive_of("qa", version))
    examples = run.read(str(TEXTS["qa"]))
    for example, expected in zip(examples, EXPECTED[version]["qa"]["examples"], strict=True):
        with torch.no_grad():
            found = run.model(run.batch([example], run.model))
        for ours, which in zip(found, ("start", "end"), strict=True):
            theirs = torch.tensor(expected[f"span_{which}_logits"]).log_softmax(0)
            torch.testing.assert_close(ours[0], theirs, atol=1e-5, rtol=1e-5)
        (answer,) = run.predict([example], best=1)
        assert answer_text(example, answer) == expected["best_span_str"]
        assert [best[:2] for best in answer.best] == [answer[:2]]


@pytest.mark.parametrize(("name", "version"), [archive for archive in ARCHIVES if archive[0].startswith("parsing")])
def test_trees_are_those_of_allennlp(name: str, version: str) -> None:
    """Those of "parsing-words", which is hardly trained, have many spans that cross, and roots without a label."""
    run = open_run(archive_of(name, version))
    examples = run.read(str(TEXTS["parsing"]))
    found = EXPECTED[version][name]
    model: Any = run.model
    for example, expected in zip(examples, found["examples"], strict=True):
        assert run.task.to_text(example, run.predict([example])[0]) == expected["tree"]
        if "class_probabilities" in expected:
            with torch.no_grad():
                scores = model.scores(run.batch([example], run.model))[0]
            theirs = torch.tensor(expected["class_probabilities"])
            torch.testing.assert_close(scores.softmax(dim=1), theirs, atol=1e-5, rtol=1e-5)
    together = [run.task.to_text(*pair) for pair in zip(examples, run.predict(examples), strict=True)]
    assert together == [expected["tree"] for expected in found["batch"]]


F1 = {"f1": "f1-measure-overall", "precision": "precision-overall", "recall": "recall-overall"}
METRICS = {
    "ner": F1,
    "sst": {"accuracy": "accuracy"},
    "nli": {"accuracy": "accuracy"},
    "srl": F1,
    "coref": {"average_f1": "coref_f1"},
    "qa": {"em": "em", "f1": "f1"},
    "parsing": {"f1": "evalb_f1_measure", "precision": "evalb_precision", "recall": "evalb_recall"},
}


@pytest.mark.parametrize(("name", "version"), ARCHIVES)
def test_official_scores_are_those_of_allennlp(name: str, version: str) -> None:
    kind = name.split("-")[0]
    found = EXPECTED[version][name]
    n_examples, scores = evaluate_run(archive_of(name, version), str(TEXTS[kind]))
    assert n_examples == len(found["examples"])
    for ours, theirs in METRICS[kind].items():
        assert scores[0][ours] == pytest.approx(100 * found["metrics"][theirs], abs=1e-6)


@pytest.mark.parametrize(
    "kind", [kind if kind == "ner" else pytest.param(kind, marks=pytest.mark.slow) for kind in EXPECTED["2.10.1"]]
)
def test_an_archive_written_as_a_run_predicts_the_same(kind: str, tmp_path: Path) -> None:
    archive = open_run(archive_of(kind))
    save_as_run(open_task_archive(archive_of(kind)), tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")  # its ELMo is in the directory
    run = open_run(tmp_path / "moved")
    examples = run.read(str(TEXTS[kind.split("-")[0]]))
    assert run.predict(examples) == archive.predict(examples)
    if run.config.elmo is not None:
        assert open_model(tmp_path / "moved" / "bilm").config.output_dim == 8


def test_open_describes_an_archive_and_writes_a_run(task_shell: Shell) -> None:
    ran = task_shell("open", str(archive_of("ner")), "--run", "run")
    assert ran.code == 0, ran.err
    assert "task        ner\n" in ran.out
    assert "allennlp    2.10.1\n" in ran.out
    assert "elmo        layers 3, dim 8, start zero\n" in ran.out
    assert json.loads(Path("run/run.json").read_text())["allennlp"] == "2.10.1"
    assert "run already exists" in task_shell("open", str(archive_of("ner")), "--run", "run").err
    assert (
        task_shell("evaluate", "run", str(TEXTS["ner"])).out
        == task_shell("evaluate", str(archive_of("ner")), str(TEXTS["ner"])).out
    )
    facts = json.loads(task_shell("open", str(archive_of("sst")), "--json", "--start", "warm").out)
    assert facts["elmo"] == {"layers": 3, "dim": 8, "start": "warm"}
    assert sorted(facts["classes"]) == sorted(CLASS_NAMES)
    Path("text").write_text("1 Mira fixed her old bike . |||\n")
    assert task_shell("predict", str(archive_of("srl")), "text").code == 0


def unpack(kind: str, folder: Path, version: str = "2.10.1") -> Path:
    with tarfile.open(archive_of(kind, version)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def ner(tmp_path: Path) -> Path:
    """A directory with the files of the archive of NER."""
    return unpack("ner", tmp_path / "ner")


def scores_by(path: Path, kind: str = "ner") -> Tensor:
    """Return the scores of the model of an archive for the written examples."""
    run = open_run(path)
    return scores_of(run, run.read(str(TEXTS[kind])))


def setting(path: str, value: Any) -> Callable[[Path], None]:
    """Change one value of the config."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        *tables, key = path.replace("EMBEDDERS", "model.text_field_embedder.token_embedders").split(".")
        table = config
        for name in tables:
            table = table.setdefault(name, {})
        table[key] = value
        (folder / "config.json").write_text(json.dumps(config))

    return change


def with_tensors(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = torch.load(folder / "weights.th", weights_only=True)
    change(tensors)
    torch.save(tensors, folder / "weights.th")


def test_archives_of_0_9_bring_their_options_and_old_character_features() -> None:
    opened = open_task_archive(archive_of("ner", "0.9.0"))
    assert opened.archive.options == json.loads((TASK_DATA / "elmo_options.json").read_text())
    assert opened.archive.version is None
    config = opened.setup.config
    assert (config.chars.windows, config.chars.min_chars, config.train.batch_size) == ("batch", 3, 4)


@pytest.mark.parametrize("kind", METRICS)
def test_every_setting_of_the_published_configs_can_be_opened(kind: str) -> None:
    config = published(kind)
    task, _, _, notes = convert_archive(TaskArchive(Path("model.tar.gz"), config, {}, {}, None, None))
    assert task.name == kind
    assert all(note.startswith("dataset_reader.tokenizer") for note in notes)


def edit_options(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the options of the ELMo in an archive, and return their file."""
    (path,) = folder.glob("fta/*options_file")
    options = json.loads(path.read_text())
    change(options)
    path.write_text(json.dumps(options))
    return path


def test_options_of_published_models_name_no_directions(tmp_path: Path) -> None:
    folder = unpack("srl", tmp_path / "srl", "0.9.0")
    path = edit_options(folder, lambda options: options.pop("bidirectional"))
    assert torch.equal(scores_by(folder, "srl"), scores_by(archive_of("srl", "0.9.0"), "srl"))
    path.write_text('{"lstm": 1}')
    with pytest.raises(FormatError, match="no table 'lstm'"):
        open_run(folder)


def test_what_is_assumed_without_the_options_of_elmo_is_said(task_shell: Shell, tmp_path: Path) -> None:
    folder = unpack("srl", tmp_path / "srl", "0.9.0")
    path = edit_options(folder, lambda options: options["char_cnn"].update(activation="tanh"))
    with_tanh = scores_by(folder, "srl")
    assert open_task_archive(folder).assumed is None
    path.rename(tmp_path / "options.json")
    with pytest.warns(UserWarning, match=r"assuming activation = relu, cell_clip = 3.0 and proj_clip = 3.0"):
        assumed = scores_by(folder, "srl")
    assert not torch.allclose(assumed, with_tanh, atol=0.1)
    assert "options.json' does not exist here: assuming" in task_shell("open", str(folder)).err
    ran = task_shell("open", str(folder), "--options", "options.json", "--run", "run")
    assert (ran.code, ran.err) == (0, "")
    torch.testing.assert_close(scores_by(Path("run"), "srl"), with_tanh)


@pytest.mark.parametrize(("name", "is_assumed"), [("original", False), ("pubmed", True)])
def test_the_options_of_the_published_english_models_are_known(name: str, is_assumed: bool, ner: Path) -> None:
    found = find_published(name)
    setting("EMBEDDERS.elmo.weight_file", found.locations[0].weights)(ner)
    setting("EMBEDDERS.elmo.options_file", found.locations[0].options)(ner)
    assert (open_task_archive(ner).assumed is not None) is is_assumed


def test_options_that_do_not_fit_the_archive_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    with pytest.raises(ModelNotFoundError, match=r"options file .* is missing"):
        open_task_archive(archive_of("ner"), options=path)
    options = json.loads((TASK_DATA / "elmo_options.json").read_text())
    path.write_text(json.dumps(options))
    with pytest.raises(ConfigError, match="has no ELMo"):
        open_task_archive(archive_of("ner-gru"), options=path)
    path.write_text(json.dumps({**options, "lstm": {**options["lstm"], "dim": 7}}))
    with pytest.raises(TensorMismatchError, match=r"state_linearity.weight .* is \(24, 4\), expected \(28, 4\)"):
        open_task_archive(archive_of("ner"), options=path)


def test_character_features_include_padding_before_version_1_3(ner: Path) -> None:
    assert open_run(ner).config.chars.windows == "complete"
    (ner / "meta.json").write_text('{"version": "1.2.2"}')
    chars = open_run(ner).config.chars
    assert (chars.windows, chars.min_chars) == ("batch", 3)


def test_the_unknown_word_may_have_any_row(ner: Path) -> None:
    path = ner / "vocabulary" / "tokens.txt"
    unknown, first, second, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, second, unknown, *rest]) + "\n")
    tensor(WORDS, lambda table: table[[0, 2, 3, 1, *range(4, len(table))]])(ner)
    assert torch.equal(scores_by(ner), scores_by(archive_of("ner")))


def test_only_a_star_at_the_beginning_matches_several_namespaces(ner: Path) -> None:
    vocabulary = ner / "vocabulary"
    for name in ("tag?", "tags", "old_tags"):
        (vocabulary / f"{name}.txt").write_text("one\n")
    (vocabulary / "non_padded_namespaces.txt").write_text("tag?\n*labels\n*d_tags\n")
    namespaces = read_archive(ner).namespaces
    assert [len(namespaces[name]) for name in ("tag?", "tags", "old_tags")] == [1, 2, 1]


def content(file: str, text: str | None) -> Callable[[Path], None]:
    """Replace the content of a file, or delete it."""

    def change(folder: Path) -> None:
        (folder / file).unlink() if text is None else (folder / file).write_text(text, encoding="utf-8")

    return change


def tensor(name: str, change: Callable[[Tensor], Tensor | None]) -> Callable[[Path], None]:
    """Change a tensor, or remove it."""

    def change_one(tensors: dict[str, Tensor]) -> None:
        new = change(tensors.pop(name))
        if new is not None:
            tensors[name] = new

    return lambda folder: with_tensors(folder, change_one)


ELMO = {"type": "elmo_token_embedder"}
WORDS = "text_field_embedder.token_embedder_tokens.weight"
ELMO_LSTM = "text_field_embedder.token_embedder_elmo._elmo._elmo_lstm"
CHAR_CNN = f"{ELMO_LSTM}._token_embedder.char_conv_0.weight"
REFUSED: list[tuple[str, Callable[[Path], None], type[Exception], str]] = [
    ("ner", content("config.json", "{"), FormatError, "config.json"),
    ("ner", content("config.json", "[]"), FormatError, "config.json"),
    ("ner", content("config.json", None), ModelNotFoundError, "config.json is missing"),
    ("ner", content("config.json", "{}"), ConfigError, "model.type"),
    ("ner", content("config.json", '{"model": []}'), ConfigError, "model.type"),
    ("ner", content("config.json", '{"model": "crf_tagger"}'), ConfigError, "model.type"),
    ("ner", setting("model.type", "bert"), ConfigError, "model.type is 'bert'"),
    ("ner", setting("model.text_field_embedder", []), ConfigError, "text_field_embedder"),
    ("ner", setting("EMBEDDERS", []), ConfigError, "token_embedders"),
    ("ner", setting("model.encoder", {}), ConfigError, "model.encoder.type"),
    ("ner", setting("model.encoder.type", "rnn"), ConfigError, "model.encoder.type"),
    ("ner", setting("model.encoder.bidirectional", False), ConfigError, "model.encoder.bidirectional = false"),
    ("ner", setting("EMBEDDERS.elmo.dropout", 10**400), ConfigError, "elmo.dropout"),
    ("ner", setting("EMBEDDERS.elmo.projection_dim", 3), ConfigError, "elmo.projection_dim = 3"),
    ("ner", setting("EMBEDDERS.second", ELMO), ConfigError, 'second.type = "elmo_token_embedder"'),
    ("ner", setting("EMBEDDERS.bert", {"type": "bert"}), ConfigError, 'bert.type = "bert"'),
    ("sst", setting("EMBEDDERS.second", ELMO), ConfigError, "model.elmo: a second ELMo"),
    ("ner", setting("dataset_reader.token_indexers.token_characters.start_tokens", ["@"]), ConfigError, "start_tokens"),
    ("ner", content("weights.th", "no pickle"), FormatError, "weights.th"),
    ("ner", content("weights.th", None), ModelNotFoundError, "weights.th"),
    ("ner", tensor(WORDS, lambda table: None), TensorMismatchError, WORDS),
    ("ner", tensor(WORDS, lambda table: table[0]), TensorMismatchError, WORDS),
    ("ner", tensor(CHAR_CNN, lambda weight: weight[0]), TensorMismatchError, "char_conv_0.weight"),
    ("ner", content("vocabulary/labels.txt", None), FormatError, "'labels'"),
    ("ner", content("vocabulary/labels.txt", "O\nB-PER\n"), TensorMismatchError, "crf.transitions"),
    ("ner", content("vocabulary/tokens.txt", "a\n"), FormatError, "'tokens' with an entry @@UNKNOWN@@"),
    ("ner", content("vocabulary/tokens.txt", None), FormatError, "'tokens' with an entry @@UNKNOWN@@"),
    ("ner", content("vocabulary/non_padded_namespaces.txt", "*"), TensorMismatchError, WORDS),
    ("ner-gru", setting("model.label_encoding", "BIO"), ConfigError, "the tagging scheme in config.json is IOB2"),
    (
        "ner-gru",
        tensor("crf._constraint_mask", lambda mask: mask.tril()),
        ConfigError,
        "the tagging scheme in config.json is IOB1",
    ),
    ("sst", content("vocabulary/labels.txt", "0\n²\n"), FormatError, "its labels are 0, ²"),
]


@pytest.mark.parametrize(("kind", "change", "error", "mentioned"), REFUSED, ids=range(len(REFUSED)))
def test_an_archive_that_cannot_be_opened_is_refused_by_name(
    kind: str, change: Callable[[Path], None], error: type[Exception], mentioned: str, tmp_path: Path
) -> None:
    folder = unpack(kind, tmp_path / kind)
    change(folder)
    with pytest.raises(error, match=re.escape(mentioned)) as raised:
        open_task_archive(folder)
    assert "\n" not in str(raised.value)


def test_an_archive_without_the_tensors_of_its_elmo_opens_the_one_it_names(ner: Path, tmp_path: Path) -> None:
    inside = open_task_archive(ner).elmo
    save_model(inside.model, tmp_path / "elmo_weights.hdf5")

    def drop(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if "_elmo_lstm" in name]:
            del tensors[name]

    with_tensors(ner, drop)
    for key, name in (("weight_file", "elmo_weights.hdf5"), ("options_file", "elmo_options.json")):
        setting(f"EMBEDDERS.elmo.{key}", str(tmp_path / name))(ner)
    torch.testing.assert_close(scores_by(ner), scores_by(archive_of("ner")))


def test_an_elmo_that_was_trained_with_the_task_is_taken_from_the_archive(ner: Path, tmp_path: Path) -> None:
    setting("EMBEDDERS.elmo.requires_grad", True)(ner)
    tensor(f"{ELMO_LSTM}._token_embedder._projection.bias", lambda bias: bias + 1)(ner)
    assert not torch.allclose(scores_by(ner), scores_by(archive_of("ner")))
    opened = open_task_archive(ner)
    assert opened.elmo is not None
    save_as_run(opened, tmp_path / "run")
    assert torch.equal(scores_by(tmp_path / "run"), scores_by(ner))


@pytest.mark.parametrize("name", [name for name, version in ARCHIVES if name.startswith("ner") and version == "2.10.1"])
def test_an_archive_is_decoded_by_the_constraints_of_its_weights(name: str, tmp_path: Path) -> None:
    opened = open_task_archive(archive_of(name))
    stored = opened.archive.tensors["crf._constraint_mask"]
    n_tags = len(opened.setup.labels["tags"])
    is_constrained = not bool((stored[:n_tags, :n_tags] > 0).all())
    assert opened.setup.config.model.constraints == ("decoding" if is_constrained else "none")
    folder = unpack(name, tmp_path / "ner")
    setting("model.constrain_crf_decoding", not is_constrained)(folder)
    assert open_task_archive(folder).setup.config == opened.setup.config


def test_models_of_allennlp_are_not_trained_further(tmp_path: Path) -> None:
    run = open_run(archive_of("nli"))
    with pytest.raises(ConfigError, match=r"elmo\.start is 'continued'"):
        train_task(run.task, run.config, tmp_path / "run")


def test_an_archive_has_one_model() -> None:
    with pytest.raises(ModelNotFoundError, match="seed 3"):
        open_run(archive_of("ner"), seed=3)


@pytest.mark.parametrize(
    ("path", "value"),
    [("EMBEDDERS.elmo.scalar_mix_parameters", [0.1, 0.9, -0.3]), ("model.ignore_loss_on_o_tags", True)],
)
def test_a_setting_that_only_training_reads_or_that_the_tensors_have_changes_nothing(
    path: str, value: Any, ner: Path
) -> None:
    setting(path, value)(ner)
    assert torch.equal(scores_by(ner), scores_by(archive_of("ner")))


def test_word_vectors_that_are_projected_open_as_what_they_become(ner: Path) -> None:
    setting("EMBEDDERS.tokens.projection_dim", 4)(ner)
    generator = torch.Generator().manual_seed(1)
    weight = torch.linalg.qr(torch.randn(4, 4, generator=generator)).Q
    bias = torch.randn(4, generator=generator)

    def add_projection(tensors: dict[str, Tensor]) -> None:
        tensors[WORDS] = (tensors[WORDS] - bias) @ weight  # the inverse of an orthogonal matrix is its transpose
        name = WORDS.removesuffix("weight")
        tensors |= {f"{name}_projection.weight": weight, f"{name}_projection.bias": bias}

    with_tensors(ner, add_projection)
    torch.testing.assert_close(scores_by(ner), scores_by(archive_of("ner")), atol=1e-5, rtol=1e-5)
