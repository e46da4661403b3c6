from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit import Elmo, LanguageModel, tokenize
from elmokit.embedding.computer import Computer
from elmokit.engine.architecture import PRESETS
from elmokit.errors import FormatError, TextError
from elmokit.formats.save import save_model
from elmokit.lm.bilm_tf_perplexity import bilm_tf_perplexity
from elmokit.lm.perplexity import perplexity
from elmokit.lm.spelling import spelling_of
from elmokit.lm.surprisal import find_region, score_minimal_pairs, surprisals
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.vocabulary import SPECIALS
from tests.conftest import random_model
from tests.helpers.shell import Shell

TEXT = [["the", "cat", "sat", "."], ["dog"], ["the", "zebra", "ran", "."]]


def as_lists(sentences: object) -> list[tuple[list[str], list[list[float]]]]:
    return [(s.tokens, np.nan_to_num(s.nats).tolist()) for s in sentences]


def test_the_softmax_moves_with_the_model(model: PretrainedBiLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmokit.embedding.computer.check_device", lambda device: None)  # "meta" computes nothing
    bilm, softmax = model.build_modules()
    assert softmax is not None
    Computer(model, bilm=bilm, softmax=softmax).to("meta")
    assert {parameter.device.type for parameter in softmax.parameters()} == {"meta"}


def test_methods_return_what_the_functions_return(model: PretrainedBiLM) -> None:
    lm = LanguageModel(model)
    assert as_lists(lm.surprisal(TEXT)) == as_lists(surprisals(model, TEXT))
    assert lm.perplexity(TEXT) == perplexity(model, TEXT, spelling=spelling_of(model))
    documents = [TEXT[:2], [], TEXT[2:]]
    assert [as_lists(document) for document in lm.surprisal_documents(documents)] == [
        as_lists(surprisals(model, [document], documents=True)) for document in documents
    ]
    assert lm.perplexity(documents, documents=True).mean_nats == perplexity(model, documents, documents=True).mean_nats
    assert lm.bilm_tf_perplexity(TEXT, 2) == bilm_tf_perplexity(model, TEXT, 2)
    zero = LanguageModel(model, start="zero")
    assert as_lists(zero.surprisal(TEXT)) == as_lists(surprisals(model, TEXT, "zero"))
    assert zero.perplexity(TEXT).mean_nats == perplexity(model, TEXT, "zero").mean_nats != lm.perplexity(TEXT).mean_nats


def test_a_text_can_be_files_or_sentences(model: PretrainedBiLM, tmp_path: Path) -> None:
    lm = LanguageModel(model)
    for number, sentence in enumerate(TEXT):
        (tmp_path / f"{number}.txt").write_text(" ".join(sentence) + "\n")
    expected = lm.perplexity(TEXT).mean_nats
    for texts in (tmp_path, str(tmp_path / "*.txt"), sorted(tmp_path.iterdir()), iter(TEXT)):
        assert lm.perplexity(texts).mean_nats == pytest.approx(expected)


def test_a_blank_line_and_the_end_of_a_file_end_a_document(model: PretrainedBiLM, shell: Shell) -> None:
    save_model(model, "lm")
    Path("a.txt").write_text("the cat sat .\ndog\n\n \nthe cat .\n")
    Path("b.txt").write_text("The cat sat. The dog.\n\nIt ran.\n")
    Path("c.txt").write_bytes(Path("a.txt").read_bytes())
    lm = LanguageModel.from_pretrained("lm")
    for name, documents, flags in (
        ("a.txt", [[["the", "cat", "sat", "."], ["dog"]], [["the", "cat", "."]]], ()),
        ("b.txt", [[["The", "cat", "sat", "."], ["The", "dog", "."]], [["It", "ran", "."]]], ("--raw",)),
    ):
        rows = shell("surprisal", name, "--model", "lm", "--documents", *flags).out.splitlines()[1:]
        scored = [sentence for document in lm.surprisal_documents(documents) for sentence in document]
        assert [row.split("\t")[2] or "nan" for row in rows] == [f"{n:.6f}" for one in scored for n in one.nats[0]]
    facts = json.loads(shell("evaluate", "perplexity", "a.txt", "a.txt", "--model", "lm", "--documents", "--json").out)
    once, twice = (lm.perplexity(texts, documents=True).mean_nats for texts in ("a.txt", ["a.txt", "c.txt"]))
    assert (facts["documents"], tuple(facts["mean_nats"].values())) == (True, once)
    assert twice == pytest.approx(once)  # the end of a file ends a document


def test_progress_counts_every_prediction(model: PretrainedBiLM, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(" ".join(sentence) + "\n" for sentence in TEXT))
    found: list[tuple[str, int, int | None]] = []
    result = LanguageModel(model).perplexity(tmp_path / "text.txt", progress=lambda *report: found.append(report))
    assert found[-1] == ("perplexity", result.n_predictions, result.n_predictions)


def test_substitutes_equal_those_of_a_direct_softmax(model: PretrainedBiLM) -> None:
    lm, sentence, position = LanguageModel(model), TEXT[2], 2
    # The surprisal of each word of the vocabulary in the word's place is minus the log of its probability there.
    variants = [[*sentence[:position], word, *sentence[position + 1 :]] for word in model.vocabulary.words]
    nats = np.array([found.nats[:, position + 1] for found in lm.surprisal(variants)])
    # Divided by the frequency, because each direction expects frequent words by itself.
    words = [word for word in model.vocabulary.words if word not in SPECIALS]
    zipf = {word: 1 / rank / sum(1 / r for r in range(1, len(words) + 1)) for rank, word in enumerate(words, start=1)}
    frequencies = np.array([zipf.get(word, max(zipf.values())) for word in model.vocabulary.words])
    both = np.exp(-nats.sum(axis=1)) / frequencies**0.75
    for direction, expected in (
        ("forward", np.exp(-nats[:, 0])),
        ("backward", np.exp(-nats[:, 1])),
        ("both", both / both.sum()),
    ):
        found = lm.substitutes(sentence, position, direction, n=1000, special_words=True)
        assert [model.vocabulary.words[substitute.word_id] for substitute in found] == [s.word for s in found]
        assert sorted(s.word for s in found) == sorted(model.vocabulary.words)
        probabilities = np.array([s.probability for s in found])
        np.testing.assert_allclose(probabilities, expected[[s.word_id for s in found]], rtol=1e-4)
        assert (np.diff(probabilities) <= 0).all()
        assert probabilities.sum() == pytest.approx(1)
        again = lm.substitutes(sentence, position - len(sentence), direction, n=3, special_words=True)
        assert again == found[:3]


@pytest.mark.filterwarnings("error")
def test_substitutes_of_huge_scores_have_probabilities_or_are_refused(model: PretrainedBiLM) -> None:
    _, softmax = model.build_modules()
    with torch.no_grad():
        softmax.bias[4] = -3.4e38
    model = model.replace(softmax=softmax)
    assert all(0 <= word.probability <= 1 for word in LanguageModel(model).substitutes(TEXT[0], 1, "both", n=1000))
    with torch.no_grad():
        softmax.weight *= 1e38
    model = model.replace(softmax=softmax)
    with pytest.raises(FormatError, match="computes NaN or infinity"):
        LanguageModel(model).substitutes(TEXT[0], 1, "both")


def test_substitutes_leave_out_special_words_and_renormalize(model: PretrainedBiLM) -> None:
    lm = LanguageModel(model)
    for direction in ("forward", "backward", "both"):
        every = lm.substitutes(TEXT[0], 1, direction, n=1000, special_words=True)
        kept = lm.substitutes(TEXT[0], 1, direction, n=1000)
        words = [substitute for substitute in every if substitute.word not in SPECIALS]
        assert len(words) == len(every) - 3
        assert [(s.word, s.score) for s in kept] == [(s.word, s.score) for s in words]
        total = sum(s.probability for s in words)
        assert [s.probability for s in kept] == pytest.approx([s.probability / total for s in words])


def test_substitutes_without_a_position_are_for_every_token(model: PretrainedBiLM) -> None:
    lm = LanguageModel(model)
    for direction in ("forward", "both"):
        found = lm.substitutes(TEXT[0], direction=direction, n=3, special_words=True)
        assert len(found) == len(TEXT[0])
        for position, words in enumerate(found):
            here = lm.substitutes(TEXT[0], position, direction, 3, special_words=True)
            assert [one.word for one in words] == [one.word for one in here]
    assert lm.substitutes([]) == []


def test_substitutes_in_a_document_have_the_probabilities_of_its_surprisal(model: PretrainedBiLM) -> None:
    lm = LanguageModel(model)
    (scored,) = lm.surprisal_documents([TEXT])
    for number, direction in enumerate(("forward", "backward")):
        found = lm.substitutes(TEXT[2], 2, direction, n=1000, special_words=True, before=TEXT[:2])
        (word,) = [one for one in found if one.word == TEXT[2][2]]
        assert -np.log(word.probability) == pytest.approx(float(scored[2].nats[number, 3]), abs=1e-5)


def test_a_language_model_can_be_pickled_after_it_was_used(model: PretrainedBiLM) -> None:
    lm = LanguageModel(model)
    before = lm.perplexity(TEXT)
    assert pickle.loads(pickle.dumps(lm)).perplexity(TEXT) == before


def test_minimal_pairs_compare_whole_sentences(model: PretrainedBiLM) -> None:
    pairs = [(TEXT[0], TEXT[2]), (TEXT[2], TEXT[0])]
    result = score_minimal_pairs(model, pairs)
    first, second = surprisals(model, [TEXT[0], TEXT[2]])
    assert result.nats[0].tolist() == pytest.approx(np.array([first.total_nats, second.total_nats]))
    assert result.accuracy == 0.5
    assert result.accuracy_per_direction == (0.5, 0.5)


def test_a_notebook_shows_the_facts_of_a_model(model: PretrainedBiLM) -> None:
    for shown in (model, Elmo(model), LanguageModel(model)):
        assert f">{model.n_parameters:,}</td>" in shown._repr_html_()
        assert "<caption" in shown._repr_html_()


RAW = ["The cat sat. It wasn't a zebra.", "", "the dog ran.--the cat", " \n"]


@pytest.mark.parametrize("documents", [False, True])
def test_the_words_and_the_ends_of_sentences_add_up_to_the_text(documents: bool, model: PretrainedBiLM) -> None:
    lm = LanguageModel(model)
    rows = lm.word_surprisal(RAW, documents=documents)
    assert [(row.text_index, row.sentence_index, row.word_index, row.word) for row in rows] == [
        *((0, int(number > 2), number, word) for number, word in enumerate(RAW[0].split())),
        *((2, 0, number, word) for number, word in enumerate(RAW[2].split())),
    ]
    assert all(RAW[row.text_index][row.start : row.stop] == row.word for row in rows)
    split = [tokenize(text) for text in RAW]
    for index, sentences in enumerate(lm.surprisal_documents(split) if documents else map(lm.surprisal, split)):
        own = [row for row in rows if row.text_index == index]
        assert sum(row.n_tokens for row in own) == sum(len(sentence.tokens) - 2 for sentence in sentences)
        for direction, end in enumerate((-1, 0)):
            words = sum((row.forward_nats, row.backward_nats or 0.0)[direction] for row in own)
            ends = sum(float(sentence.nats[direction, end]) for sentence in sentences)
            assert words + ends == pytest.approx(sum(sentence.total_nats[direction] for sentence in sentences))
    assert list(lm.word_surprisal(iter(RAW), documents=documents, batch_tokens=4)) == rows


@pytest.mark.parametrize("documents", [False, True])
def test_a_region_is_the_sum_over_the_tokens_that_it_touches(documents: bool, model: PretrainedBiLM) -> None:
    lm = LanguageModel(model)
    text = "The cat sat. It wasn't a zebra, the dog ran."
    found = lm.region_surprisal(
        [text] * 5, ["cat sat", (4, 12), "n't a zebra", " the dog ran.", "sat. It"], documents=documents
    )
    tokens = [token for sentence in tokenize(text) for token in sentence]
    scored = lm.surprisal_documents([tokenize(text)])[0] if documents else lm.surprisal(tokenize(text))
    nats = np.concatenate([one.nats[:, 1:-1] for one in scored], axis=1)
    assert tokens == ["The", "cat", "sat", ".", "It", "was", "n't", "a", "zebra", ",", "the", "dog", "ran", "."]
    for row, (region, words, first, last) in zip(
        found,
        [
            ("cat sat", "cat sat.", 1, 3),
            ("cat sat.", "cat sat.", 1, 4),
            ("n't a zebra", "wasn't a zebra,", 6, 9),
            ("the dog ran.", "the dog ran.", 10, 14),
            ("sat. It", "sat. It", 2, 5),
        ],
        strict=True,
    ):
        assert (row.region, row.words, row.n_tokens) == (region, words, last - first)
        assert text[row.start : row.stop] == region
        assert row.cuts_word == (region != words)
        assert (row.forward_nats, row.backward_nats) == pytest.approx(nats[:, first:last].sum(axis=1), rel=1e-5)
        assert row.unknown == ("zebra" in region or "It" in region or "n't" in region)
    words = lm.word_surprisal([text], documents=documents)
    assert found[1].forward_nats == pytest.approx(sum(row.forward_nats for row in words[1:3]), rel=1e-6)


def test_of_equal_parts_of_a_text_the_one_between_words_is_the_region() -> None:
    assert find_region("He washed was it", "was") == (10, 13)
    assert find_region("didn't", "n't") == (3, 6)
    assert find_region("a (b) c", "(b)") == (2, 5)


@pytest.mark.parametrize(
    ("text", "region", "problem"),
    [
        ("the cat", "dog", "the region 'dog' is not in 'the cat'"),
        ("the cat", " ", "the region '' is not in"),
        ("the cat saw the dog", "the", "occurs 2 times .*: pass offsets, such as 0:3"),
        ("the cat", (3, 4), "3:4 has no word of 'the cat'"),
        ("the cat", (4, 9), "4:9 has no word of 'the cat', which has 7 characters"),
        ("the cat", (4, 4), "4:4 has no word"),
    ],
)
def test_a_region_must_be_in_its_text_once(
    text: str, region: str | tuple[int, int], problem: str, model: PretrainedBiLM
) -> None:
    with pytest.raises(TextError, match=f"^Text 1: .*{problem}"):
        LanguageModel(model).region_surprisal(["the dog", text], ["dog", region])


def test_there_is_a_region_for_each_text(model: PretrainedBiLM) -> None:
    with pytest.raises(TextError, match="2 texts but 1 regions"):
        LanguageModel(model).region_surprisal(["the dog", "the cat"], ["dog"])


def test_a_word_with_an_unknown_token_is_marked_and_its_letters_have_a_price(model: PretrainedBiLM) -> None:
    lm = LanguageModel(model)
    zebra, cat = lm.word_surprisal(["zebra, the cat"])[::2]
    assert (zebra.unknown, cat.unknown, zebra.n_tokens) == (True, False, 2)
    assert zebra.spelling_nats == pytest.approx(spelling_of(model).nats("zebra") + spelling_of(model).nats(","))
    assert cat.spelling_nats == 0


def test_words_of_a_model_of_one_direction_lack_the_other() -> None:
    config = replace(PRESETS["tiny"], bidirectional=False)
    (row, *_) = LanguageModel(random_model(config)).word_surprisal(["the cat"])
    assert row.backward_nats is None
