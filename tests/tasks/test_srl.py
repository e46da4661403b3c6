"""Semantic role labeling: the model, its labels, and runs from a file to predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elmokit.errors import TextError
from elmokit.tasks import srl
from elmokit.tasks.allennlp.archived_configs import ArchivedSrlConfig, ArchivedSrlModelConfig
from elmokit.tasks.allennlp.variants import AllenNLPSrlTask, viterbi_of_allennlp
from elmokit.tasks.inputs import InputLayer, Inputs, Vocabularies, WordTable
from elmokit.tasks.nn.crf import RulePenalties, TagRules, viterbi
from elmokit.tasks.scores import Chunk
from elmokit.tasks.srl import Proposition, SrlConfig, _tags_from_brackets, parse_proposition, read_srl
from elmokit.text.columns import ColumnSentence
from tests.helpers.paths import DATA
from tests.helpers.srl_columns import CONLL_2012
from tests.helpers.task_examples import SRL

TASK = AllenNLPSrlTask()
ALLENNLP = DATA / "allennlp-tasks"

EXAMPLES = [parse_proposition(line, f"written, line {n}") for n, line in enumerate(SRL.splitlines(), start=1)]
KNOWN = TASK.labels(EXAMPLES, ArchivedSrlConfig())


def tiny(**changes: object) -> tuple[SrlConfig, srl.SrlModel, Inputs]:
    torch.manual_seed(3)
    config = replace(TASK.presets["small"], model=replace(ArchivedSrlModelConfig(6, 24, 4, 0.1), **changes))  # type: ignore[arg-type]
    words = sorted({token for example in EXAMPLES for token in example.tokens})
    inputs = Inputs(Vocabularies({"words": WordTable(words, 12, True)}))
    assert config.words is not None
    layer = InputLayer(inputs, {"words": config.words}, None, None)
    model = TASK.build(config, layer, KNOWN)
    assert isinstance(model, srl.SrlModel)
    return config, model, inputs


def test_the_published_sizes_have_the_published_number_of_weights() -> None:
    inputs = Inputs(Vocabularies({"words": WordTable([], 100, True)}))
    config = ArchivedSrlConfig()
    assert config.words is not None
    tags = {"tags": [f"B-{n}" for n in range(64)] + [f"I-{n}" for n in range(64)] + ["O"]}  # about OntoNotes'
    model = TASK.build(config, InputLayer(inputs, {"words": config.words}, None, None), tags)
    n_weights = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("inputs"))
    assert n_weights == pytest.approx(7.77e6, rel=5e-3)


def test_the_loss_is_a_mean_over_tokens_then_sentences() -> None:
    config, model, inputs = tiny()
    model.eval()
    apart = [model.loss(TASK.collate([example], inputs, KNOWN, config)).item() for example in EXAMPLES]
    together = model.loss(TASK.collate(EXAMPLES, inputs, KNOWN, config)).item()
    assert together == pytest.approx(sum(apart) / len(apart), rel=1e-5)
    scores = model.scores(TASK.collate(EXAMPLES[-1:], inputs, KNOWN, config))[0].log_softmax(dim=-1)
    tags = [KNOWN["tags"].index(tag) for tag in EXAMPLES[-1].tags or ()]
    assert apart[-1] == pytest.approx(-(scores[0, tags[0]] + scores[1, tags[1]]).item() / 2, rel=1e-5)


def test_predictions_obey_bio_though_the_model_is_untrained() -> None:
    config, model, inputs = tiny()
    with torch.no_grad():
        frames = model.eval().predict(TASK.collate(EXAMPLES, inputs, KNOWN, config))
    for example, found in zip(EXAMPLES, frames, strict=True):
        for frame in TASK.to_record(example, found)["frames"]:
            line = f"{frame['predicate']} {' '.join(example.tokens)} ||| {' '.join(frame['tags'])}"
            assert parse_proposition(line, "again").tags == tuple(frame["tags"])  # the reader refuses ill-formed BIO


def test_decoding_like_allennlp_finds_the_tags_that_allennlp_found() -> None:
    for case in json.loads((ALLENNLP / "viterbi.json").read_text()):
        rules = srl.rules_of(case["tags"], "IOB2")
        probabilities = torch.tensor(case["probabilities"])
        mask = torch.ones(probabilities.shape[:2], dtype=torch.bool)
        for version, paths in case["paths"].items():
            assert viterbi_of_allennlp(probabilities, mask, rules, lowest_of_ties=version == "0.9.0") == paths
        exact = viterbi(probabilities, mask, *RulePenalties(len(case["tags"]), rules)())
        assert all(ours != theirs for ours, theirs in zip(exact, case["paths"]["2.10.1"], strict=True))


def test_a_near_tie_is_decoded_exactly_or_rounded_as_in_allennlp(monkeypatch: pytest.MonkeyPatch) -> None:
    example = Proposition("written", ("Mira", "rides"), 1, None)
    known = {"tags": ["O", "B-A", "I-A"], "predicates": []}
    # "B-A I-A" sums to 0.9994, "O O" to 0.9985; in units of 1/128, rounded after each token, to 63 + 64 and 65 + 63.
    scores = torch.tensor([[[0.504, 0.4959, 0.0001], [0.4945, 0.002, 0.5035]]]).log()
    monkeypatch.setattr(srl.SrlModel, "scores", lambda self, batch: scores)
    found = {}
    for decoding in ("log-probabilities", "allennlp", "allennlp 0.x"):
        config, _, inputs = tiny(decoding=decoding)
        layer = InputLayer(inputs, {"words": config.words}, None, None)
        model = TASK.build(config, layer, known)
        ((_, chunks),) = model.predict(TASK.collate([example], inputs, known, config))[0]
        found[decoding] = chunks
    assert found == {"log-probabilities": [Chunk(0, 2, "A")], "allennlp": [], "allennlp 0.x": []}


def test_padding_changes_nothing_in_decoding_like_allennlp() -> None:
    torch.manual_seed(0)
    rules = srl.rules_of(["O", "B-A", "I-A", "B-C", "I-C"], "IOB2")
    probabilities, lengths = torch.randn(40, 6, 5).softmax(-1), torch.arange(40) % 7
    mask = torch.arange(6)[None, :] < lengths[:, None]
    for row, path in enumerate(viterbi_of_allennlp(probabilities, mask, rules, lowest_of_ties=False)):
        alone = slice(row, row + 1), slice(0, max(1, int(lengths[row])))
        assert [path] == viterbi_of_allennlp(probabilities[alone], mask[alone], rules, lowest_of_ties=False)
        assert len(path) == lengths[row]


def test_rules_that_allow_no_path_are_broken() -> None:
    nothing = TagRules(torch.zeros(2, 2, dtype=torch.bool), *(torch.zeros(2, dtype=torch.bool) for _ in range(2)))
    emissions = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    assert viterbi(emissions, torch.ones(1, 2, dtype=torch.bool), *RulePenalties(2, nothing)()) == [[1, 0]]


def test_the_predicate_makes_the_difference() -> None:
    config, model, inputs = tiny()
    same_words = TASK.collate(EXAMPLES[3:5], inputs, KNOWN, config)
    first, second = model.eval().scores(same_words)
    assert not torch.allclose(first, second)


def test_a_continued_predicate_is_marked_too() -> None:
    example = parse_proposition("0 put it off ||| B-V B-ARG1 B-C-V", "written")
    known = TASK.labels([example], SrlConfig())
    batch = TASK.collate([example], Inputs(Vocabularies({})), known, SrlConfig())
    assert batch.is_predicate.tolist() == [[1, 0, 1]]


def test_plain_text_gets_the_predicates_that_training_saw() -> None:
    config, model, inputs = tiny()
    assert KNOWN["predicates"] == ["fixed", "ran", "said", "sold", "wait"]
    text = ["Ada fixed the car , said Mira .", "no such verb here", "", "2 the old car ran |||"]
    examples = list(TASK.read_text(text, "text", str.split, config))
    with torch.no_grad():
        frames = model.eval().predict(TASK.collate(examples, inputs, KNOWN, config))
        alone = model.predict(TASK.collate(examples[1:3], inputs, KNOWN, config))
    assert [[place for place, _ in found] for found in frames] == [[1, 5], [], [], [2]]
    assert alone == [[], []]


def test_a_sentence_without_predicate_trains_but_does_not_score() -> None:
    config, model, inputs = tiny()
    bare = Proposition("written", ("Mira", "."), None, ("O", "O"))
    batch = TASK.collate([bare, EXAMPLES[0]], inputs, KNOWN, config)
    assert batch.tags is not None
    assert batch.tags.shape[0] == 2
    assert model.loss(batch).isfinite()
    assert model.predict(batch)[0] == []
    assert TASK.score([bare], [[]], config)["f1"] == 0


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [0, 2, 1, 5, 3, 4], [5, 3, 0, 4, 2, 1]])
def test_predicates_are_words_that_mostly_are_one_in_any_order_of_the_lines(order: list[int]) -> None:
    lines = ["0 said it works ||| B-V O O", "2 said it works ||| O O B-V", "0 left he knows ||| B-V O O"]
    lines += ["2 left he knows ||| O O B-V", "0 run ||| B-V"]
    examples = [
        *TASK.read_text(lines, "lines", str.split, SrlConfig()),
        Proposition("b", ("a", "run"), None, ("O", "O")),
    ]
    known = TASK.labels([examples[number] for number in order], SrlConfig())
    assert known["predicates"] == ["knows", "left", "said", "works"]


@pytest.mark.parametrize(
    ("example", "named"),
    [
        (parse_proposition("0 wait |||", "x"), "x: no tags"),
        (Proposition("x", ("a",), None, ("O",)), "contain no predicate"),
    ],
)
def test_what_cannot_be_learned_is_refused(example: Proposition, named: str) -> None:
    with pytest.raises(TextError, match=named):
        TASK.labels([example], SrlConfig())


def test_a_frame_is_shown_with_brackets() -> None:
    frames = [(1, [Chunk(0, 1, "ARG0"), Chunk(1, 2, "V"), Chunk(2, 4, "ARG1")])]
    assert TASK.to_text(EXAMPLES[0], frames) == "fixed: [ARG0 Mira] [V fixed] [ARG1 her bike] ."
    assert TASK.to_text(EXAMPLES[0], []) == "Mira fixed her bike ."


TOKENS = ("Mira", "fixed", "her", "bike", ".")
SENTENCE = ColumnSentence("x", 1, [])
FIXED = ("B-ARG0", "B-V", "B-ARG1", "I-ARG1", "O")

CONLL_2005 = """Mira  -   (A0*)
fixed fix (V*)
her   -   (A1*
bike  -   *)
.     -   *

Yes   -
"""
PROPBANK = """# sent_id = demo-1
Mira\t-\tB-ARG0
fixed\tfix.01\tB-V
her\t-\tB-ARG1
bike\t-\tI-ARG1
.\t-\tO

# sent_id = demo-2
Yes\t-

"""
ONE_LINE = "1 Mira fixed her bike . ||| B-ARG0 B-V B-ARG1 I-ARG1 O\n"


def read(folder: Path, text: str) -> list[Proposition]:
    path = folder / "roles"
    path.write_text(text)
    return list(read_srl(str(path)))


@pytest.mark.parametrize("text", [CONLL_2012, CONLL_2005.replace("A0", "ARG0").replace("A1", "ARG1"), PROPBANK])
def test_every_column_format_gives_the_same_propositions(text: str, tmp_path: Path) -> None:
    with_roles, without = read(tmp_path, text)
    assert (with_roles.tokens, with_roles.predicate, with_roles.tags) == (TOKENS, 1, FIXED)
    assert (without.tokens, without.predicate, without.tags) == (("Yes",), None, ("O",))


def test_the_one_line_format_gives_them_too(tmp_path: Path) -> None:
    (found,) = read(tmp_path, ONE_LINE)
    assert (found.tokens, found.predicate, found.tags) == (TOKENS, 1, FIXED)
    assert parse_proposition("0 Run ! |||", "here") == Proposition("here", ("Run", "!"), 0, None)


def test_where_names_the_first_line_of_the_sentence(tmp_path: Path) -> None:
    assert [found.where.rpartition(", ")[2] for found in read(tmp_path, PROPBANK)] == ["line 2", "line 9"]


def test_two_predicates_give_two_propositions(tmp_path: Path) -> None:
    text = "He\t-\tB-A0\tO\nsaw\tsee.01\tB-V\tO\nher\t-\tB-A1\tB-A0\nrun\trun.01\tI-A1\tB-V\n"
    assert [found.predicate for found in read(tmp_path, text)] == [1, 3]


def test_a_token_may_be_a_hash_or_a_quote(tmp_path: Path) -> None:
    text = '#\t-\tB-A1\nrose\trise.01\tB-V\n"\t-\tO\n'
    assert read(tmp_path, text)[0].tokens == ("#", "rose", '"')
    assert read(tmp_path, text.replace("\t", " "))[0].tokens == ("#", "rose", '"')


def test_only_the_outermost_of_nested_brackets_is_kept() -> None:
    assert _tags_from_brackets(["(ARG2(ARG1*)", "*)", "(V*)"], SENTENCE) == ["B-ARG2", "I-ARG2", "B-V"]


def test_adjacent_arguments_of_one_role_are_kept_apart() -> None:
    assert _tags_from_brackets(["(A0*)", "(A0*", "*)"], SENTENCE) == ["B-A0", "B-A0", "I-A0"]


def test_the_shared_propbank_data_is_read_completely(shared: Path) -> None:
    propositions = list(read_srl(str(shared / "data" / "srl-propbank-ewt" / "dev.props")))
    assert sum(one.predicate is not None for one in propositions) == 4906
    assert len({one.where for one in propositions}) == 1938
