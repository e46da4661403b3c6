"""What the readers refuse: every error is a TextError that names the line and what is wrong in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmokit.errors import TextError
from elmokit.tasks import trees
from elmokit.tasks.coref import read_coref
from elmokit.tasks.nli import read_pairs
from elmokit.tasks.qa import read_questions, read_squad
from elmokit.tasks.srl import Proposition, read_srl
from elmokit.tasks.sst import LabeledTree, TreeNode, read_trees
from elmokit.tasks.task_table import TASKS
from tests.tasks.test_coref import CONLL
from tests.tasks.test_qa import question, squad_file
from tests.tasks.test_srl import CONLL_2005, CONLL_2012, ONE_LINE, PROPBANK


def questions(path: str) -> Iterable[object]:
    return read_questions(Path(path).read_text().splitlines(), path)


def all_answers(path: str) -> Iterable[object]:
    return read_squad(path, unanswerable="keep")


def named_entities(path: str) -> Iterable[object]:
    return TASKS["ner"].read(path, TASKS["ner"].presets["small"])


def phrases(path: str) -> Iterable[object]:
    return TASKS["sst"].read(path, TASKS["sst"].presets["small"])


def constituents(path: str) -> Iterable[object]:
    return trees.read_trees(enumerate(Path(path).read_text().splitlines(), start=1), path)


def texts_of(name: str) -> Callable[[str], Iterable[object]]:
    """Return what reads the texts of a task to predict on."""
    task = TASKS[name]
    return lambda path: task.read_text(Path(path).read_text().splitlines(), path, str.split, task.presets["small"])


PAIR = '{"gold_label":"neutral","sentence1":"A","sentence2":"B"}'
DIGITS = "1" * 5000
TREES = [
    ("(2 (2 a) (2 b)", "line 1: found the end"),
    ("(2 a)\n(2 a))", "line 2: found ')' as symbol 5"),
    ("(2 a) (2 b)", "found '(' as symbol 5"),
    ("2 a", "'2' as symbol 1"),
    ("(2 a b)", "'b'"),
    ("(2 a (2 b))", "'(' as symbol 4"),
    ("(2 (2 a) b)", "'b'"),
    ("()", "')'"),
    ("(2)", "')'"),
    ("(2 (2 a) (3))", "')' as symbol 9"),
    ("(", "the end"),
    ("(2 a", "the end"),
]
SENTENCE = "(S (NP (PRP She)) (VP (VBD read) (NP (DT a) (NN book))) (. .))"
CONSTITUENTS = [
    ("(S (NP (PRP She))", "line 1: a tree starts here"),
    (f"{SENTENCE}\n\n(S", "line 3: a tree starts here"),
    ("She left", "line 1: 'She' is unexpected"),
    (f"{SENTENCE}\n)", "line 2: ')' is unexpected"),
    ("(S (NP she he))", "'he' is unexpected"),
    ("(S she (NP he))", "'(' is unexpected"),
    ("(S (NP (PRP he) she))", "'she' is unexpected"),
    ("(S ())", "')' is unexpected"),
    ("(S)", "')' is unexpected"),
]
PAIRS = [
    (PAIR.replace("sentence2", "other"), "line 1: the pair has no sentence2 or sentence_B"),
    (PAIR.replace("sentence1", "other"), "no sentence1"),
    (PAIR.replace("gold_label", "other"), "no gold_label"),
    (PAIR.replace("neutral", " "), "no gold_label"),
    (PAIR.replace('"neutral"', "1"), "gold_label"),
    ("gold_label\tsentence1\tsentence2\nneutral\ta\tb\n\ta c\tb\n", "line 3: the pair has no"),
    (f"{PAIR}\n{{broken", "line 2, column 2: "),
    (f"{PAIR}\n[]", "line 2: "),
    ("sentence1\tsentence2\nA\tB\n", "line 1: expected JSON lines, or a header"),
    ("sentence1\tsentence2\tgold_label\tsentence1\n", "line 1: expected JSON lines, or a header"),
    ("sentence1\tsentence2\tgold_label\nA\tB\n", "line 2: 2 columns, expected 3"),
    ("sentence1\tsentence2\tgold_label\nA\tB\tC\tD\n", "line 2: 4 columns, expected 3"),
]
COREF = [
    (CONLL.replace("4)\n", "-\n", 1), "line 4: this mention of chain 4"),
    (CONLL.replace("(4|(3)", "(3)"), "line 5: '4)' in the last column"),
    (CONLL.replace("(4|(3)", "4|(3)"), "line 4: '4|(3)' in the last column"),
    (CONLL.replace("(4|(3)", "(x)"), "line 4: '(x)' in the last column"),
    (CONLL.replace("#end document\n", ""), "line 1: the document that starts here"),
    (CONLL.replace("#end document\n", "") + CONLL, "line 1: the document that starts here"),
    (CONLL.replace("NNP  (TOP(S(NP*)", "NNP"), "line 3: 13 columns, expected 12"),
    (CONLL + "#end document\n", "line 12: expected '#begin document"),
    (CONLL.partition("\n")[2], "line 1: expected '#begin document"),
    ("#begin document (x); part 0\nx 0 0 w\n#end document\n", "line 2: 4 columns, expected at least 5"),
    (f'{{"sentences": [["a"]], "clusters": [[[0, {DIGITS}]]]}}', "line 1: "),
    ('{"sentences": [["a"]]', "line 1, column 22: "),
    ('\n{"sentences": ["a"]}', "Expected `array`, got `str`"),
    ('{"doc_key": "x"}', "`sentences`"),
    ('{"sentences": [["a"]], "clusters": [[[0, 1]]]}', "line 1: a mention from word 0 to 1"),
    ('{"sentences": [["a"]], "clusters": [[[-1, 0]]]}', "word -1"),
    ('{"sentences": [["a", "b"]], "clusters": [[[1, 0]]]}', "word 1 to 0"),
    ('{"sentences": [["a"]], "speakers": [["x", "y"]]}', "line 1: expected one speaker"),
]
SRL = [
    (PROPBANK.replace("her\t-\tB-ARG1", "her\t-"), "line 4: 2 columns, expected 3"),
    (PROPBANK.replace("fix.01", "-"), "line 2: 3 columns and 0 predicates"),
    (PROPBANK.replace("B-V", "O"), "line 3, column 3: expected B-V"),
    (PROPBANK.replace("B-ARG1", "O"), "line 2, token 3: 'I-ARG1' after 'O'"),
    (PROPBANK.replace("I-ARG1", "I-ARG2"), "'I-ARG2' after 'B-ARG1'"),
    (PROPBANK.replace("B-ARG1", "ARG1"), "line 2, token 2: 'ARG1'"),
    (PROPBANK.replace("B-ARG1", "B-"), "'B-'"),
    ("word\n", "line 1: 1 column"),
    (CONLL_2005.replace("*)\n.", "*\n."), "line 5: the sentence ends, but (A1*"),
    (CONLL_2005.replace("(A1*", "*"), "line 4: '*)'"),
    (CONLL_2005.replace("(A1*", "(A1"), "line 3: '(A1'"),
    (CONLL_2012.replace("(V*)", "(A2*)"), "line 2, column 12: expected B-V"),
    ("#begin document (x); part 0\nx 0 0 word\n", "line 2: 4 columns, expected at least 12"),
    (ONE_LINE + "fixed it\n", "line 2: expected the index of the predicate"),
    (f"{DIGITS} Run ! ||| B-V O\n", "line 1: expected the index of the predicate"),
    ("2 Run ! ||| B-V O\n", "line 1: expected the index of the predicate"),
    ("0 Run ! ||| B-V\n", "line 1: expected the index of the predicate"),
    ("||| B-V\n", "line 1: expected the index of the predicate"),
    ("0 Run ! ||| B-V I-A0\n", "line 1, token 1: "),
    ("0 Mira ran ||| B-ARG0 B-V\n", "line 1: expected B-V or I-V for the predicate; found 'B-ARG0'"),
]
SQUAD = [
    ('{"data": [\n{"a" 1}]}', "line 2, column 6: "),
    ('{"questions": []}', "`data`"),
    ('{"data": [{"paragraphs": [{"qas": []}]}]}', "`context` - at `$.data[0].paragraphs"),
    (squad_file(question(("x", 0)), context="x \ud800"), "\\ud800"),
    ("[" * 100_000, "recursion depth"),
    (squad_file(question(("x", 0)), context=" \n"), "the passage ' \\n' contains no word"),
    (squad_file({"id": "q7", "question": " ", "answers": []}), "question 'q7'"),
]
QUESTIONS = [
    ("When?", "expected a question, a tab and a passage"),
    ("\tpassage", "line 1: the question '' contains no word"),
    ("When?\t ", "line 1: the passage ' ' contains no word"),
    ('{"question": "q"}', "line 1: the JSON object has neither context nor passage"),
    ('{"question": ', "line 1, column "),
    ('{"data": 3}', "not SQuAD's JSON"),
]
SENTENCES = [
    ('{"text": "Mira sleeps."}', "line 1: the JSON object has no sentence, tokens or words"),
    ('\n{"sentence": 3}', "line 2: not one JSON object per line with sentence, tokens or words"),
    ('{"sentence": "Mira"', "line 1, column 20: invalid JSON"),
]
TEXT_PAIRS = [
    ("no tab", "line 1: expected a premise and a hypothesis"),
    ("a\tb\tc", "line 1: expected a premise and a hypothesis"),
    ("{", "line 1, column 2: invalid JSON"),
]
DOCUMENTS = [
    ('{"document": " "}', "line 1: the document ' ' contains no word"),
    ('{"text": "Mira sleeps."}', "line 1: "),
]
COLUMNS = ["Anna left Paris yesterday, with John.\n" * 3, "Anna left her home.\nJohn stayed at his home.\n"]
REFUSED: list[tuple[Callable[[str], Iterable[object]], str, str]] = [
    *((read_trees, *row) for row in TREES),
    *((constituents, *row) for row in CONSTITUENTS),
    *((read_pairs, *row) for row in PAIRS),
    *((read_coref, *row) for row in COREF),
    *((read_srl, *row) for row in SRL),
    *((all_answers, *row) for row in SQUAD),
    *((questions, *row) for row in QUESTIONS),
    *((texts_of(name), *row) for name in ("ner", "sst", "srl") for row in SENTENCES),
    *((texts_of("nli"), *row) for row in TEXT_PAIRS),
    *((texts_of("coref"), *row) for row in DOCUMENTS),
    (phrases, "(2 a)\n(2 (5 a) (1 b))\n", "line 2: the label is '5'"),
    (phrases, "((2 a))\n", "line 1: the label is ''"),
    *((named_entities, text, "looks like raw text: ") for text in COLUMNS),
]


@pytest.mark.parametrize(("read", "text", "mentioned"), REFUSED, ids=range(len(REFUSED)))
def test_a_file_with_a_mistake_is_refused_with_its_line(
    read: Callable[[str], Iterable[object]], text: str, mentioned: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TextError, match=f"(?s)^{re.escape(str(path))}.*{re.escape(mentioned)}"):
        list(read(str(path)))


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.sampled_from([read_trees, read_pairs, read_coref, read_srl]),
    st.text(alphabet='#begin document(x);\n0-|() {}"[],AVIBO.*\t2\u00a0\u3000', max_size=100),
)
def test_any_text_is_read_or_refused_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, read: Callable[[str], Iterable[object]], text: str
) -> None:
    path = tmp_path_factory.mktemp("any") / "file.txt"
    path.write_text(text, encoding="utf-8", errors="ignore")
    try:
        found = list(read(str(path)))
    except TextError as error:
        assert re.search(r"line \d+", str(error))  # noqa: PT017
        found = []
    for one in found:
        if isinstance(one, LabeledTree):
            assert one.nodes[0] == TreeNode(0, len(one.tokens), one.nodes[0].label)
            assert all(node.start < node.stop <= len(one.tokens) for node in one.nodes)
        if isinstance(one, Proposition):
            assert one.tags is None or len(one.tags) == len(one.tokens)
