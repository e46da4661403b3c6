"""Semantic role labeling: the model, its labels, and runs from a file to predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elmokit.errors import TextError
from elmokit.tasks import srl
from elmokit.tasks.allennlp.variants import viterbi_of_allennlp
from elmokit.tasks.inputs import Inputs, Vocabularies
from elmokit.tasks.nn.crf import RulePenalties, TagRules, viterbi
from elmokit.tasks.srl import Proposition, SrlConfig, SrlTask, parse_proposition, read_srl
from elmokit.tasks.tags import Chunk
from tests.helpers.paths import DATA
from tests.helpers.task_examples import built

TASK = SrlTask()
ALLENNLP = DATA / "allennlp-tasks"


def test_the_loss_of_a_sentence_is_a_mean_over_its_tokens(tmp_path: Path) -> None:
    setup, model, (*_, example) = built("srl", tmp_path)
    batch = setup.batch([example], model.eval())
    scores = model.scores(batch)[0].log_softmax(dim=-1)
    tags = [setup.labels["tags"].index(tag) for tag in example.tags]
    assert model.loss(batch).item() == pytest.approx(-(scores[0, tags[0]] + scores[1, tags[1]]).item() / 2, rel=1e-5)


def test_predictions_obey_bio_though_the_model_is_untrained(tmp_path: Path) -> None:
    setup, model, examples = built("srl", tmp_path)
    for example, frames in zip(examples, setup.predict_with(model, examples), strict=True):
        for frame in TASK.to_record(example, frames)["frames"]:
            line = f"{frame['predicate']} {' '.join(example.tokens)} ||| {' '.join(frame['tags'])}"
            assert parse_proposition(line, "again").tags == tuple(frame["tags"])  # the reader refuses ill-formed BIO


def test_decoding_like_allennlp_finds_the_tags_that_allennlp_found() -> None:
    for case in json.loads((ALLENNLP / "viterbi.json").read_text()):
        rules = srl.rules_of(case["tags"], "IOB2")
        probabilities = torch.tensor(case["probabilities"])
        mask = torch.ones(probabilities.shape[:2], dtype=torch.bool)
        for version, paths in case["paths"].items():
            assert viterbi_of_allennlp(probabilities, mask, rules, lowest_of_ties=version == "0.9.0") == paths
        exact = viterbi(probabilities, mask, RulePenalties(len(case["tags"]), rules)())
        assert all(ours != theirs for ours, theirs in zip(exact, case["paths"]["2.10.1"], strict=True))


def test_a_near_tie_is_decoded_exactly_or_rounded_as_in_allennlp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = Proposition("written", ("Mira", "rides"), 1, None)
    # "B-A I-A" sums to 0.9994, "O O" to 0.9985; in units of 1/128, rounded after each token, to 63 + 64 and 65 + 63.
    scores = torch.tensor([[[0.504, 0.4959, 0.0001], [0.4945, 0.002, 0.5035]]]).log()
    monkeypatch.setattr(srl.SrlModel, "scores", lambda self, batch: scores)
    found = {}
    for decoding in ("log-probabilities", "allennlp", "allennlp 0.x"):
        setup, _, _ = built("srl", tmp_path, model={"decoding": decoding})
        setup = replace(setup, labels={"tags": ["O", "B-A", "I-A"], "predicates": []})
        ((_, chunks),) = setup.predict_with(setup.build(), [example])[0]
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
    assert viterbi(emissions, torch.ones(1, 2, dtype=torch.bool), RulePenalties(2, nothing)()) == [[1, 0]]


def test_the_predicate_makes_the_difference(tmp_path: Path) -> None:
    setup, model, examples = built("srl", tmp_path)
    first, second = model.eval().scores(setup.batch(examples[3:5], model))  # the same words
    assert not torch.allclose(first, second)


def test_a_continued_predicate_is_marked_too() -> None:
    example = parse_proposition("0 put it off ||| B-V B-ARG1 B-C-V", "written")
    known = TASK.labels([example], SrlConfig())
    batch = TASK.collate([example], Inputs(Vocabularies({})), known, SrlConfig())
    assert batch.is_predicate.tolist() == [[1, 0, 1]]


def test_plain_text_gets_the_predicates_that_training_saw(tmp_path: Path) -> None:
    setup, model, _ = built("srl", tmp_path)
    assert setup.labels["predicates"] == ["fixed", "ran", "said", "sold", "wait"]
    text = ["Ada fixed the car , said Mira .", "no such verb here", "", "2 the old car ran |||"]
    examples = list(TASK.read_text(text, "text", str.split, setup.config))
    frames = setup.predict_with(model, examples)
    assert [[place for place, _ in found] for found in frames] == [[1, 5], [], [], [2]]
    assert setup.predict_with(model, examples[1:3]) == [[], []]


def test_a_sentence_without_predicate_trains_but_does_not_score(tmp_path: Path) -> None:
    setup, model, examples = built("srl", tmp_path)
    bare = Proposition("written", ("Mira", "."), None, ("O", "O"))
    batch = setup.batch([bare, examples[0]], model)
    assert batch.tags.shape[0] == 2
    assert model.loss(batch).isfinite()
    assert model.predict(batch)[0] == []
    assert TASK.score([bare], [[]], setup.config)["f1"] == 0


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
    example = parse_proposition(ONE_LINE.rstrip(), "here")
    assert TASK.to_text(example, frames) == "fixed: [ARG0 Mira] [V fixed] [ARG1 her bike] ."
    assert TASK.to_text(example, []) == "Mira fixed her bike ."


CONLL_2012 = """#begin document (nw/demo/00/demo_0001); part 000
nw/demo/00/demo_0001 0 0 Mira  NNP  (TOP(S(NP*) -   -  - spk1 (PERSON) (ARG0*) (3)
nw/demo/00/demo_0001 0 1 fixed VBD  (VP*        fix 01 1 spk1 *        (V*)    -
nw/demo/00/demo_0001 0 2 her   PRP$ (NP*        -   -  - spk1 *        (ARG1*  (4|(3)
nw/demo/00/demo_0001 0 3 bike  NN   *))         -   -  - spk1 *        *)      4)
nw/demo/00/demo_0001 0 4 .     .    *))         -   -  - spk1 *        *       -

nw/demo/00/demo_0001 0 0 Yes   UH   (TOP(S*))   -   -  - spk1 *        -
#end document
"""
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


WITH_ROLES = ("Mira fixed her bike .", 1, "B-ARG0 B-V B-ARG1 I-ARG1 O")
BOTH = [WITH_ROLES, ("Yes", None, "O")]
ODD_TOKENS = '#\t-\tB-A1\nrose\trise.01\tB-V\n"\t-\tO\n'
TWO_PREDICATES = "He\t-\tB-A0\tO\nsaw\tsee.01\tB-V\tO\nher\t-\tB-A1\tB-A0\nrun\trun.01\tI-A1\tB-V\n"
# A file, and the tokens, the predicate and the tags of its propositions.
READ: list[tuple[str, list[tuple[str, int | None, str]]]] = [
    (CONLL_2012, BOTH),
    (CONLL_2005.replace("A0", "ARG0").replace("A1", "ARG1"), BOTH),
    (PROPBANK, BOTH),
    (ONE_LINE, [WITH_ROLES]),
    (TWO_PREDICATES, [("He saw her run", 1, "B-A0 B-V B-A1 I-A1"), ("He saw her run", 3, "O O B-A0 B-V")]),
    (ODD_TOKENS, [('# rose "', 1, "B-A1 B-V O")]),
    (ODD_TOKENS.replace("\t", " "), [('# rose "', 1, "B-A1 B-V O")]),
    ("a - (A2(A1*)\nb - *)\nc c (V*)\n", [("a b c", 2, "B-A2 I-A2 B-V")]),  # of nested brackets, the outermost
    ("a - (A0*)\nb - (A0*\nc - *)\nd d (V*)\n", [("a b c d", 3, "B-A0 B-A0 I-A0 B-V")]),  # two arguments of one role
]


@pytest.mark.parametrize(("text", "expected"), READ, ids=range(len(READ)))
def test_every_format_gives_its_propositions(
    text: str, expected: list[tuple[str, int | None, str]], tmp_path: Path
) -> None:
    (tmp_path / "roles").write_text(text)
    found = list(read_srl(str(tmp_path / "roles")))
    assert [(" ".join(one.tokens), one.predicate, " ".join(one.tags or ())) for one in found] == expected
    if text == PROPBANK:  # the first line of each sentence
        assert [one.where.rpartition(", ")[2] for one in found] == ["line 2", "line 9"]


def test_a_line_to_predict_on_has_no_tags() -> None:
    assert parse_proposition("0 Run ! |||", "here") == Proposition("here", ("Run", "!"), 0, None)


def test_the_shared_propbank_data_is_read_completely(shared: Path) -> None:
    propositions = list(read_srl(str(shared / "data" / "srl-propbank-ewt" / "dev.props")))
    assert sum(one.predicate is not None for one in propositions) == 4906
    assert len({one.where for one in propositions}) == 1938
