"""Minimal pairs in BLiMP's layout: reading, scoring, published results."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path

import pytest

from elmokit.engine.architecture import PRESETS
from elmokit.errors import TextError
from elmokit.evaluation.minimal_pairs import (
    Paradigm,
    evaluate_minimal_pairs,
    read_minimal_pairs,
    read_published_accuracies,
)
from elmokit.formats.open import open_model
from elmokit.lm.surprisal import score_minimal_pairs, surprisals
from elmokit.text.vocabulary import SPECIALS
from tests.conftest import random_model
from tests.helpers.shell import Shell

PARADIGMS = [
    Paradigm("order", "syntax", [("the cat sat .", "cat the sat ."), ("the dog ran .", "dog ran the .")]),
    Paradigm("same", "syntax", [("the cat .", "the cat .")]),
    Paradigm("unknown", "words", [("the zebra .", "the mat ."), ("the mat .", "the mat mat .")]),
]
PUBLISHED = (
    "UID\tlinguistics_term\tngram\tlstm\norder\tsyntax\t0.5\t0.7\nsame\tother\t0.25\t\nunknown\twords\t1\t0.5\n"
    "overall\toverall\t0.9\t0.9\n"
)


def write_pairs(path: Path, paradigms: list[Paradigm] = PARADIGMS) -> None:
    rows = [
        {"sentence_good": good, "sentence_bad": bad, "UID": one.name, "linguistics_term": one.phenomenon, "pairID": "0"}
        for one in paradigms
        for good, bad in one.pairs
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def test_files_in_the_layout_of_blimp_are_read_by_paradigm(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.jsonl")
    read = read_minimal_pairs([tmp_path / "pairs.jsonl"])
    assert [dataclasses.replace(one, rows=[]) for one in read] == PARADIGMS
    row = {"sentence_good": "a", "sentence_bad": "b"}
    (tmp_path / "bare.jsonl").write_text(f"{json.dumps(row)}\n\n")
    assert read_minimal_pairs([tmp_path / "bare.jsonl"]) == [Paradigm("bare", "", [("a", "b")], [row])]


@pytest.mark.parametrize(("name", "separator"), [("pairs.tsv", "\t"), ("pairs.csv", ","), ("pairs.csv", ";")])
def test_pairs_of_a_table_keep_its_columns(name: str, separator: str, tmp_path: Path) -> None:
    rows = [
        ["item", "good", "UID", "bad"],
        ["1", '"He said ""go"", then."', "x", "He say."],
        ["2", "a", "y", "b"],
        ["3", "c", "x", "d"],
    ]
    (tmp_path / name).write_text("".join(f"{separator.join(row)}\n" for row in rows))
    x, y = read_minimal_pairs([tmp_path / name])
    assert (x.name, x.pairs) == ("x", [('He said "go", then.', "He say."), ("c", "d")])
    assert y.rows == [{"item": "2", "good": "a", "UID": "y", "bad": "b"}]
    (tmp_path / "case.csv").write_text("Good,Bad\na,b\n")
    assert read_minimal_pairs([tmp_path / "case.csv"])[0].pairs == [("a", "b")]


def test_a_row_for_each_pair_says_what_decided(shell: Shell) -> None:
    rows = "item\tgood\tbad\n" + "".join(f"{n}\t{good}\t{bad}\n" for n, (good, bad) in enumerate(PARADIGMS[0].pairs))
    Path("pairs.tsv").write_text(rows)
    call = ("evaluate", "minimal-pairs", "pairs.tsv", "--model", "model", "--tokenizer", "spaces")
    ran = shell(*call, "--per-pair", "results.csv", "--json")
    assert ran.code == 0, ran.err
    accuracy = json.loads(ran.out)["accuracy"]["overall"]
    with Path("results.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0])[:3] == ["item", "good", "bad"]
    for choice in ("forward", "backward", "both"):
        correct = [float(row[f"correct_{choice}"]) for row in table]
        assert sum(correct) / len(correct) == accuracy[choice]
        if choice != "both":
            pairs = [(float(row[f"good_{choice}_nats"]), float(row[f"bad_{choice}_nats"])) for row in table]
            assert correct == [good < bad for good, bad in pairs]
    nats = [sentence.total_nats[0] for sentence in surprisals(open_model("model"), [["the", "cat", "sat", "."]])]
    assert float(table[0]["good_forward_nats"]) == pytest.approx(nats[0], abs=1e-5)


def test_two_paradigms_of_one_name_are_refused() -> None:
    with pytest.raises(TextError, match="Two paradigms have the name 'order'"):
        evaluate_minimal_pairs(random_model(), [*PARADIGMS, PARADIGMS[0]], str.split)


def test_accuracies_follow_from_the_probabilities_of_the_sentences() -> None:
    model = random_model()
    result = evaluate_minimal_pairs(model, PARADIGMS, str.split)
    for paradigm, score in zip(PARADIGMS, result.paradigms, strict=True):
        nats = [
            [next(iter(surprisals(model, [sentence.split()]))).total_nats for sentence in pair]
            for pair in paradigm.pairs
        ]
        assert score.correct["forward"] == sum(good[0] < bad[0] for good, bad in nats)
        assert score.correct["backward"] == sum(good[1] < bad[1] for good, bad in nats)
        assert score.correct["both"] == sum(sum(good) < sum(bad) for good, bad in nats)
    order, _, unknown = result.paradigms
    assert result.accuracy("both") == pytest.approx((order.accuracy("both") + 0 + unknown.accuracy("both")) / 3)
    assert result.accuracy("both", "syntax") == pytest.approx(order.accuracy("both") / 2)


def test_ties_count_as_wrong_and_are_reported_with_unknown_words() -> None:
    result = evaluate_minimal_pairs(random_model(), PARADIGMS, str.split)
    same = result.paradigms[1]
    assert same.ties == {"forward": 1, "backward": 1, "both": 1, "unknown words paid": 1}
    assert same.correct == {"forward": 0, "backward": 0, "both": 0, "unknown words paid": 0}
    assert [one.n_unknown for one in result.paradigms] == [0, 0, 1]
    assert [one.n_unequal for one in result.paradigms] == [0, 0, 1]
    assert "In 1 pair (20.0%), the sentences have unequal numbers of them" in result.to_text()
    assert "Ties, which count as wrong: forward 1 (20.000%)" in result.to_text()
    assert result.to_dict()["unknown_ratio"] == pytest.approx(1 / 35)
    assert f"of the tokens are not in the vocabulary ({result.unknown_words[0]!r})." in result.to_text()


def test_an_unknown_word_can_be_charged_like_the_rarest_word_of_the_vocabulary() -> None:
    model = random_model()
    pair = (["the", "zebra", "sat", "."], ["the", "mat", "sat", "."])
    scores = score_minimal_pairs(model, [pair])
    unknown, known = surprisals(model, pair)
    rank = len(model.vocabulary) - len(SPECIALS)  # of the last word, whose frequency is 1 / rank by Zipf's law
    price = math.log(rank * sum(1 / other for other in range(1, rank + 1)))
    for direction in (0, 1):
        assert scores.paid_nats[0, 1, direction] == pytest.approx(known.total_nats[direction])
        paid = unknown.total_nats[direction] - float(unknown.nats[direction, 2]) + price
        assert scores.paid_nats[0, 0, direction] == pytest.approx(paid, rel=1e-6)
    assert (scores.n_unknown, scores.unknown.tolist()) == (1, [[1, 0]])


def test_a_model_of_one_direction_has_no_sum() -> None:
    config = dataclasses.replace(PRESETS["tiny"], bidirectional=False)
    result = evaluate_minimal_pairs(random_model(config), PARADIGMS, str.split)
    assert result.choices == ["forward", "unknown words paid"]


def test_published_results_are_averaged_over_the_same_paradigms(tmp_path: Path) -> None:
    (tmp_path / "published.tsv").write_text(PUBLISHED)
    published = read_published_accuracies(tmp_path / "published.tsv")
    result = evaluate_minimal_pairs(random_model(), PARADIGMS, str.split, published=published)
    # The published table has "same" in another phenomenon than the file, and lacks one of its cells.
    assert result.phenomena == ["syntax", "other", "words"]
    assert result.to_dict()["published"]["overall"]["ngram"] == pytest.approx((0.5 + 0.25 + 1) / 3)
    assert result.table_rows()[1]["ngram"] == pytest.approx(25)
    assert result.table_rows(by_paradigm=True)[0]["lstm"] == pytest.approx(70)
    assert result.to_dict()["published"]["overall"]["lstm"] is None
    json.dumps(result.to_dict(), allow_nan=False)


def test_a_paradigm_can_have_the_name_of_the_last_row() -> None:
    paradigms = [dataclasses.replace(PARADIGMS[0], name="overall", rows=[]), *PARADIGMS[1:]]
    rows = evaluate_minimal_pairs(random_model(), paradigms, str.split).table_rows(by_paradigm=True)
    assert [row["accuracy (%)"] for row in rows] == [*(one.name for one in paradigms), "overall"]
    assert rows[0]["pairs"] == len(PARADIGMS[0].pairs)


def test_the_command_prints_a_table_or_json(shell: Shell) -> None:
    write_pairs(Path("pairs.jsonl"))
    Path("published.tsv").write_text(PUBLISHED)
    call = ("evaluate", "minimal-pairs", "pairs.jsonl", "--model", "model", "--tokenizer", "spaces")
    ran = shell(*call, "--published", "published.tsv")
    assert ran.code == 0, ran.err
    head = "accuracy (%) pairs forward backward both unknown words paid ngram lstm"
    assert ran.out.splitlines()[0].split() == head.split()
    assert ran.out.splitlines()[4].split()[:2] == ["overall", "5"]
    facts = json.loads(shell(*call, "--json").out)
    assert [one["name"] for one in facts["paradigms"]] == ["order", "same", "unknown"]
