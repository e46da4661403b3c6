"""Constituency parsing: trees in brackets, the scores of evalb, and which spans are constituents."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmokit.tasks.allennlp.parsing import ParsingModel, _Scored, _spacy_tagger, without_crossing
from elmokit.tasks.config_file import config_of
from elmokit.tasks.run import open_run, train_task
from elmokit.tasks.trees import Span, Tree, chains_of, evalb, read_trees, to_brackets
from tests.helpers.paths import DATA
from tests.helpers.shell import Shell

# The archive does not hold the options of its ELMo, and its options are the assumed ones.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have the options file")
TREES = DATA / "allennlp-tasks" / "parsing.txt"
SENTENCE = "(S (NP (PRP She)) (VP (VBD read) (NP (DT a) (NN book))) (. .))"


ARCHIVE = str(DATA / "allennlp-tasks" / "parsing.tar.gz")


def tree(text: str) -> Tree:
    (only,) = read_trees(enumerate(text.splitlines(), start=1), "text")
    return only


@pytest.mark.parametrize(
    "text",
    [
        SENTENCE,
        f"({SENTENCE})",
        f"(TOP {SENTENCE})",
        f"(VROOT {SENTENCE})",
        SENTENCE.replace("NP", "NP-SBJ=1").replace(" (", "\n  ("),
        SENTENCE.replace("(NP", "(NP|X"),
    ],
)
def test_a_tree_is_read_without_root_and_functions(text: str) -> None:
    read = tree(text)
    assert read.tokens == ["She", "read", "a", "book", "."]
    assert read.tags == ["PRP", "VBD", "DT", "NN", "."]
    assert read.spans == [Span(0, 5, "S"), Span(0, 1, "NP"), Span(1, 4, "VP"), Span(2, 4, "NP")]
    assert to_brackets(read.tokens, read.tags, read.spans) == SENTENCE


def test_several_constituents_of_the_same_words_are_one_label() -> None:
    read = tree("(S (VP (VB Go)))")
    assert chains_of(read.spans) == {(0, 1): "S-VP"}
    assert to_brackets(read.tokens, read.tags, read.spans) == "(S (VP (VB Go)))"
    assert to_brackets(read.tokens, None, read.spans) == "(S (VP Go))"
    assert to_brackets(["Go", "on"], None, [Span(0, 2, "S"), Span(0, 1, "VP")]) == "(S (VP Go) (XX on))"


def test_a_bracket_that_is_a_word_is_written_as_the_treebank_does() -> None:
    assert to_brackets(["(", ")"], ["-LRB-", "-RRB-"], [Span(0, 2, "PRN")]) == "(PRN (-LRB- -LRB-) (-RRB- -RRB-))"


@st.composite
def sentences(draw: st.DrawFn) -> Tree:
    """Draw a tree."""
    n_tokens = draw(st.integers(1, 6))
    spans = [Span(0, n_tokens, "S")]
    ranges = [(0, n_tokens)]
    while ranges:
        start, stop = ranges.pop()
        middle = draw(st.integers(start, stop))
        for part in ((start, middle), (middle, stop)):
            if start < middle < stop:
                spans += [Span(*part, label) for label in draw(st.lists(st.sampled_from(["NP", "VP"]), max_size=2))]
                ranges.append(part)
    tags = draw(st.lists(st.sampled_from(["NN", "DT"]), min_size=n_tokens, max_size=n_tokens))
    return Tree("text, line 1", [f"w{k}" for k in range(n_tokens)], tags, sorted(spans, key=lambda s: (s[0], -s[1])))


@given(sentences())
def test_a_tree_that_is_written_is_read_back_and_has_no_error(written: Tree) -> None:
    read = tree(to_brackets(written.tokens, written.tags, written.spans))
    assert read == written
    assert evalb([written], [read.spans]) == dict.fromkeys(("f1", "precision", "recall", "exact"), 100.0)


# Correct, predicted and gold brackets, as evalb prints them.
SCORED: list[tuple[str, str, tuple[int, int, int]]] = [
    (SENTENCE, SENTENCE, (4, 4, 4)),
    (SENTENCE, "(S (NP (PRP She)) (VBD read) (NP (DT a) (NN book)) (. .))", (3, 3, 4)),
    # Punctuation is left out, so that a bracket may include it or not.
    ("(S (NP (NN a)) (, ,) (VP (VB b)))", "(S (NP (NN a) (, ,)) (VP (VB b)))", (3, 3, 3)),
    ("(S (NP (-NONE- *)) (VP (VB b)))", "(S (VP (-NONE- *) (VB b)))", (2, 2, 2)),
    ("(S (PRT (RP up)) (NP (NN a)))", "(S (ADVP (RP up)) (NP (NN a)))", (3, 3, 3)),
    ("(S (NP (NP (NN a))))", "(S (NP (NN a)))", (2, 2, 3)),
    ("(S (NP (NN a)))", "(NO (LABEL (NP (NN a))))", (1, 3, 2)),
    ("(X (. .))", "(NP (. .))", (0, 0, 0)),  # nothing is left of it
]


def test_without_learned_ends_the_first_token_stands_in_for_both() -> None:
    keeps = torch.nn.Identity()
    model: Any = types.SimpleNamespace(before=None, after=None, feedforward=keeps, to_labels=keeps)
    hidden = torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])  # one unit forward, one backward
    ends = {(0, 0): (0, 10), (0, 1): (1, 30), (0, 2): (3, 0), (1, 1): (1, 20), (1, 2): (3, -10), (2, 2): (2, -30)}
    assert ParsingModel._of_spans(model, hidden).tolist() == [list(map(float, pair)) for pair in ends.values()]


@pytest.mark.parametrize(("gold", "predicted", "counts"), SCORED)
def test_brackets_are_scored_like_evalb(gold: str, predicted: str, counts: tuple[int, int, int]) -> None:
    correct, n_predicted, n_gold = counts
    scores = evalb([tree(gold)], [tree(predicted).spans])
    assert scores["precision"] == (100 * correct / n_predicted if n_predicted else 0.0)
    assert scores["recall"] == (100 * correct / n_gold if n_gold else 0.0)


def scored(*spans: tuple[int, int, float, float]) -> list[_Scored]:
    return [_Scored(start, stop, 0, probability, without) for start, stop, probability, without in spans]


@pytest.mark.parametrize(
    ("spans", "kept"),
    [
        ([(0, 3, 0.9, 0.1), (0, 2, 0.6, 0.1), (1, 3, 0.5, 0.1)], [(0, 3), (0, 2)]),
        ([(0, 3, 0.9, 0.1), (0, 2, 0.5, 0.1), (1, 3, 0.6, 0.1)], [(0, 3), (1, 3)]),
        # The first of two that are as good goes.
        ([(0, 2, 0.5, 0.1), (1, 3, 0.5, 0.1)], [(1, 3)]),
        # The first goes, and the span that has moved up to its place is compared in the next pass.
        ([(0, 2, 0.4, 0.1), (1, 4, 0.5, 0.1), (3, 6, 0.6, 0.1)], [(3, 6)]),
    ],
)
def test_of_two_spans_that_cross_the_less_probable_one_goes(
    spans: Sequence[tuple[int, int, float, float]], kept: Sequence[tuple[int, int]]
) -> None:
    assert [(span.start, span.stop) for span in without_crossing(scored(*spans))] == list(kept)


@pytest.mark.slow
def test_a_parser_is_trained_on_trees(tmp_path: Path) -> None:
    content = {
        "task": "parsing",
        "data": {"train": str(TREES), "dev": str(TREES)},
        "words": {"dim": 16},
        "model": {"tag_dim": 8, "hidden": 16, "layers": 1, "feedforward": [16], "dropout": 0.0},
        "train": {"epochs": 40, "batch_size": 3, "optimizer": {"name": "adam", "learning_rate": 0.02}},
    }
    results = train_task(*config_of(content, "the test"), tmp_path / "run")
    assert results["dev"]["f1"]["mean"] > 80
    run = open_run(tmp_path / "run")
    (example,) = run.task.read_text(["She/PRP ran/VBD"], "text", str.split, run.config)
    assert run.task.to_text(example, run.predict([example])[0]).startswith("(S ")


def test_one_dropped_tag_or_a_raw_sentence_is_refused_by_a_model_that_reads_tags(task_shell: Shell) -> None:
    tagged = "She/PRP read/VBD it/PRP ./.\n"
    in_json = '{"tokens": ["She", "read", "it", "."], "pos_tags": ["PRP", "VBD", "PRP", "."]}\n'
    for text in (tagged, in_json):
        Path("text").write_text(text)
        ran = task_shell("predict", ARCHIVE, "text")
        assert (ran.code, ran.out) == (0, "(S (NP (PRP She)) (VBD read) (PRP it) (. .))\n")
    one_tag = '{"tokens": ["She", "ran"], "pos_tags": ["PRP"]}'
    for text in (f"{tagged}She/PRP read it/PRP\n", '{"tokens": ["She"]}\n', f"{one_tag}\n"):
        Path("text").write_text(text)
        refused = task_shell("predict", ARCHIVE, "text")
        assert refused.code == 2
        assert "expected a part of speech for each token" in refused.err
    Path("text").write_text("\n")
    assert '"constituents": []' in task_shell("predict", ARCHIVE, "text", "--json").out


class Word:
    """A token of spaCy's."""

    def __init__(self, text: str, tag: str) -> None:
        self.text, self.tag_, self.is_space = text, tag, text.isspace()


def test_a_raw_sentence_is_tagged_by_spacy_as_in_allennlp(task_shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    spacy: Any = types.ModuleType("spacy")
    words = [Word("She", "PRP"), Word("read", "VBD"), Word(" ", "_SP"), Word("it", "PRP"), Word(".", ".")]
    spacy.load = lambda name, disable: lambda text: words
    monkeypatch.setitem(sys.modules, "spacy", spacy)
    _spacy_tagger.cache_clear()
    Path("text").write_text('{"sentence": "She read  it."}\n')
    assert task_shell("predict", ARCHIVE, "text").out == "(S (NP (PRP She)) (VBD read) (PRP it) (. .))\n"

    def missing(name: str, disable: Sequence[str]) -> None:
        raise OSError(f"[E050] Can't find model '{name}'. It doesn't seem to be a Python package. And more.")

    spacy.load = missing
    _spacy_tagger.cache_clear()
    advice = "Can't find model 'en_core_web_sm'. Install it (python -m spacy"
    assert advice in task_shell("predict", ARCHIVE, "text").err
    monkeypatch.setitem(sys.modules, "spacy", None)
    assert "[spacy]" in task_shell("predict", ARCHIVE, "text").err
    _spacy_tagger.cache_clear()
