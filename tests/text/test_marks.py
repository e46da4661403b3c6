# ruff: noqa: RUF001 (ambiguous characters are what this is about)
"""Tokens with typographic marks are read as a model knows them."""

from __future__ import annotations

import itertools
import unicodedata
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmokit
from elmokit import Elmo, ElmoModule, LanguageModel, SentenceEmbedder, open_model, save_model
from elmokit.compat.many_langs import Embedder
from elmokit.embedding.outputs.output_format import read_about
from elmokit.errors import OutputError
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.characters import encode_tokens
from elmokit.text.lexicon import Lexicon, Marks
from elmokit.text.marks import EXACT, MarkReader, read_capitals
from elmokit.text.text import Text
from elmokit.text.vocabulary import SPECIALS, Vocabulary
from elmokit.training.shards import ReadingOrder, SentenceBlocks
from elmokit.training.windows import WindowStream
from tests.helpers.many_langs_files import toy_model
from tests.helpers.shell import Shell
from tests.helpers.tiny_training import SETTINGS, Reports

TYPED = "I don’t know what “they” said—it’s a well‑known trick… ‘no’ – oﬃce co\u00adoperation"
PLAIN = "I don't know what \"they\" said -- it's a well-known trick ... 'no' – office cooperation"


@pytest.mark.parametrize(
    ("token", "read"),
    [
        *[("n’t", "n't"), ("’s", "'s"), ("O′Brienʼs", "O'Brien's"), ("’", "'"), ("‘", "'"), ("“", '"'), ("»", '"')],
        *[("…", "..."), ("—", "--"), ("–", "-"), ("re‑enter", "re-enter"), ("−5", "-5"), ("ﬁn", "fin")],
        *[
            ("co\u00adop\u200b", "coop"),
            ("\ufeffThe", "The"),
            ("\u200b", "\u200b"),
            ("é", "é"),
            ("نمی\u200cخواهم",) * 2,
        ],
    ],
)
def test_marks_that_a_model_does_not_know_are_read_in_ascii(token: str, read: str) -> None:
    assert MarkReader()(token) == read
    assert EXACT(token) == token


def test_what_a_vocabulary_knows_is_read_as_it_is() -> None:
    read = Vocabulary([*SPECIALS, "n't", "l’", "’", "–", "don’t"]).read
    assert [read(token) for token in ("don’t", "l’", "’", "–")] == ["don’t", "l’", "’", "–"]
    assert read("n’t") == "n't"  # the word is known with the other apostrophe only
    assert read("O’Brien") == "O’Brien"  # neither is known, and the apostrophe is
    assert [read(token) for token in ("—", "1914–18…")] == ["—", "1914–18…"]  # so its text was not changed to ASCII
    assert Vocabulary([*SPECIALS, "–", "'"]).read("–’…") == "–'..."


def test_what_the_characters_of_a_lexicon_have_is_read_as_it_is() -> None:
    marks = Marks("<oov>", "<bos>", "<eos>", "<bow>", "<eow>", "<pad>")
    common = ["<oov>", "<bos>", "<eos>"]
    lexicon = Lexicon(marks, 9, (*common, "n't"), (*common, "<bow>", "<eow>", "<pad>", *"ntO’"))
    assert [lexicon.read(token) for token in ("O’t", "n’t", "t…")] == ["O’t", "n't", "t..."]


def test_both_spellings_of_a_text_have_the_same_numbers() -> None:
    lm, elmo = LanguageModel.from_pretrained(), Elmo.from_pretrained()
    (typed,), (plain,) = map(elmokit.tokenize, ("I don’t know what you’re doing.", "I don't know what you're doing."))
    assert typed == ["I", "do", "n’t", "know", "what", "you", "’re", "doing", "."]
    assert lm.perplexity([typed]).mean == lm.perplexity([plain]).mean < 6
    assert lm.substitutes(typed, 3) == lm.substitutes(plain, 3)
    (typed,), (plain,) = map(elmokit.tokenize, (TYPED, PLAIN))
    assert len(typed) == len(plain)
    for vectors in (elmo.embed, SentenceEmbedder.by_name(elmo, "whitened").embed, elmo.ids):
        np.testing.assert_array_equal(vectors([typed])[0], vectors([plain])[0])  # type: ignore[operator]
    scored, expected = itertools.chain(lm.surprisal([typed]), lm.surprisal([plain]))
    np.testing.assert_array_equal(scored.nats, expected.nats)
    np.testing.assert_array_equal(scored.is_unknown, expected.is_unknown)
    assert scored.tokens[1:-1] == typed


CODES = [
    ("The café was closed .", "The cafe\u0301 was closed ."),
    ("A crème brûlée and a piñata .", unicodedata.normalize("NFD", "A crème brûlée and a piñata .")),
    ("Åxzy is 10 Ω .", "\u212bxzy is 10 \u2126 ."),
    ("서울 is a city .", unicodedata.normalize("NFD", "서울 is a city .")),
    ("Hello , Anna !", "Ｈｅｌｌｏ ， Ａnna ！"),
    ("سلام .", "\ufeb3\ufefc\ufee1 ."),
    ("ガラス .", "ｶﾞﾗｽ ."),
]


@pytest.mark.parametrize(("text", "other"), CODES)
def test_characters_with_several_codes_have_the_same_numbers(text: str, other: str) -> None:
    assert text != other
    lm = LanguageModel.from_pretrained()
    expected, found = ([word._asdict() for word in lm.word_surprisal([one])] for one in (text, other))
    assert [other[word.pop("start") : word.pop("stop")] for word in found] == other.split()
    assert [word.pop("word") for word in found] == other.split()
    for word in expected:
        assert word.pop("word") == text[word.pop("start") : word.pop("stop")]
    assert found == expected
    elmo = Elmo(lm.model)
    for vectors in (elmo.embed, SentenceEmbedder(elmo).embed, elmo.ids):
        np.testing.assert_array_equal(*map(vectors, ([text.split()], [other.split()])))  # type: ignore[call-overload]
    if len(text) == len(unicodedata.normalize("NFC", other)):
        one, two = (replace(lm.perplexity([words.split()]), unknown_words=()) for words in (text, other))
        assert one == two
    exact = lm.model.replace(exact_marks=True)
    bytes_of = encode_tokens(other.split(), 50)
    np.testing.assert_array_equal(exact.encode(other.split())[:, -50:], bytes_of)


def test_words_stay_as_the_vocabulary_has_them() -> None:
    decomposed = Vocabulary([*SPECIALS, "cafe\u0301", "the"]).read
    assert decomposed("café") == decomposed("cafe\u0301") == "cafe\u0301"
    assert decomposed("e\u0301cole") == "e\u0301cole"  # not known, and the text of the vocabulary was not composed
    both = Vocabulary([*SPECIALS, "cafe\u0301", "café", "Ａ", "A"]).read
    assert [both(word) for word in ("café", "cafe\u0301", "Ａ", "Ｂ")] == ["café", "cafe\u0301", "Ａ", "Ｂ"]
    assert MarkReader()("\ufdfa") == "\ufdfa"  # a whole phrase, which would bring spaces into a token


def test_a_lexicon_composes_only_to_its_own_characters() -> None:
    marks = Marks("<oov>", "<bos>", "<eos>", "<bow>", "<eow>", "<pad>")
    common = ("<oov>", "<bos>", "<eos>")
    lexicon = Lexicon(marks, 9, common, (*common, "<bow>", "<eow>", "<pad>", *"aeéu\u0301"))
    assert [lexicon.read(token) for token in ("e\u0301", "u\u0301")] == ["é", "u\u0301"]


def test_a_model_without_a_list_of_words_reads_marks_in_ascii(model: PretrainedBiLM, tmp_path: Path) -> None:
    bare = model.replace(vocabulary=None, softmax=None)
    np.testing.assert_array_equal(bare.encode(["n’t"]), bare.encode(["n't"]))
    bytes_of = encode_tokens(["n’t"], model.config.char_cnn.max_chars)
    np.testing.assert_array_equal(bare.replace(exact_marks=True).encode(["n’t"]), bytes_of)
    save_model(bare.replace(exact_marks=True), tmp_path / "saved")
    np.testing.assert_array_equal(open_model(tmp_path / "saved").encode(["n’t"]), bytes_of)
    knows = bare.replace(vocabulary=Vocabulary([*SPECIALS, "’"]))
    np.testing.assert_array_equal(knows.encode(["n’t"]), bytes_of)


def test_every_way_to_open_a_model_can_read_marks_as_they_are(model: PretrainedBiLM, tmp_path: Path) -> None:
    save_model(model, tmp_path / "model")
    openers: list[Callable[..., Any]] = [
        *(open_model, Elmo.from_pretrained, ElmoModule.from_pretrained),
        *(LanguageModel.from_pretrained, SentenceEmbedder.from_pretrained),
    ]
    for opener in openers:
        usual, exact = opener(tmp_path / "model"), opener(tmp_path / "model", exact_marks=True)
        assert [_model_of(one).read("’") for one in (usual, exact)] == ["'", "’"], opener


def _model_of(opened: Any) -> PretrainedBiLM:
    """Return the model inside what was opened."""
    if isinstance(opened, SentenceEmbedder):
        opened = opened.elmo
    return opened if isinstance(opened, PretrainedBiLM) else opened.model


def test_commands_read_marks_as_they_are_where_asked(shell: Shell, model: PretrainedBiLM) -> None:
    save_model(model, "marked")
    Path("text.txt").write_text("the ’ cat\n", encoding="utf-8")
    exact = LanguageModel(model.replace(exact_marks=True))
    usual = (*("--model", "marked"), "text.txt")
    assert shell("embed", *usual, "usual.npz").code == 0
    assert shell("embed", *usual, "exact.npz", "--exact-marks").code == 0
    with np.load("usual.npz") as in_ascii, np.load("exact.npz") as as_written:
        assert np.abs(in_ascii["vectors"] - as_written["vectors"]).max() > 0.01
    assert read_about("exact.npz")["exact_marks"] is True
    assert "exact_marks" not in read_about("usual.npz")
    assert shell("surprisal", *usual, "--exact-marks", "--out", "table.tsv").code == 0
    forward = [float(line.split("\t")[2]) for line in Path("table.tsv").read_text(encoding="utf-8").splitlines()[2:5]]
    np.testing.assert_allclose(forward, exact.surprisal([["the", "’", "cat"]])[0].nats[0, 1:4], atol=1e-4)
    assert shell("convert", "marked", "copy", "--exact-marks").code == 0
    assert open_model("copy").exact_marks
    assert "exact marks" in shell("convert", "marked", "copy.hdf5", "--exact-marks").err  # which it cannot hold
    assert "typographic marks" in shell("info", "--model", "copy", "--all").out


@pytest.mark.slow
def test_a_fine_tuned_model_keeps_how_it_reads_marks(model: PretrainedBiLM, folder: Path) -> None:
    Path("text.txt").write_text("the ’ cat sat\n" * 20, encoding="utf-8")
    settings: dict[str, Any] = {**SETTINGS, "held_out": "text.txt", "out": "run", "report": Reports()}
    del settings["preset"], settings["max_words"]
    tuned = elmokit.finetune(model, "text.txt", exact_marks=True, **settings)
    assert tuned.model.exact_marks
    with pytest.raises(OutputError, match="exact marks True, and now it is not set"):
        elmokit.finetune(model, "text.txt", **settings)


def test_the_old_class_reads_marks_as_they_are(tmp_path: Path) -> None:
    toy = toy_model()
    typed, plain, unknown = Embedder(toy.write(tmp_path / "toy")).sents2elmo([["d—s"], ["d-s"], ["dzs"]])
    np.testing.assert_allclose(typed, toy.layers(["d—s"]).mean(axis=0), atol=1e-5)
    assert (typed.shape, np.abs(plain - unknown).max()) == ((1, 8), 0)


def test_the_perplexity_of_bilm_tf_is_that_of_the_marks_themselves(model: PretrainedBiLM, tmp_path: Path) -> None:
    lm = LanguageModel(model)
    found = []
    for text in ("the ’ cat\n", "the ' cat\n"):
        (tmp_path / "text.txt").write_text(text, encoding="utf-8")
        found.append((lm.bilm_tf_perplexity(tmp_path / "text.txt", 1).mean, lm.perplexity([text.split()]).mean))
    (first, own), (second, other) = found
    assert first != second
    assert own == other


def test_training_reads_the_words_of_the_vocabulary_in_both_spellings(tmp_path: Path) -> None:
    vocabulary = Vocabulary([*SPECIALS, "do", "n't"])
    path = tmp_path / "text.txt"
    path.write_text("do n’t\ndo n't\ndo n‑t\n", encoding="utf-8")

    def encode(tokens: object) -> np.ndarray:
        return vocabulary.word_ids(map(vocabulary.read, tokens)) + 1  # type: ignore[call-overload]

    for read, targets in ((vocabulary.read, [4, 1, 3, 4, 1, 3, 2, 1]), (EXACT, [2, 1, 3, 4, 1, 3, 2, 1])):
        window = next(
            WindowStream([SentenceBlocks(Text(path), ReadingOrder(shuffle=False))], vocabulary, encode, 1, 9, read=read)
        )
        assert window.targets[0, 0].tolist() == [3, *targets]


CASED = [
    "The men went to the house of John Smith in London , and they didn't see him .",
    "In 1914 the United States had a population of 99 million .",
    "I think that we should call the police before it gets dark .",
]


def test_sentences_in_capitals_are_read_in_the_case_of_the_vocabulary_and_it_is_said() -> None:
    lm = LanguageModel.from_pretrained()
    cased = [sentence for text in CASED for sentence in elmokit.tokenize(text)]
    capitals = [[token.upper() for token in sentence] for sentence in cased]
    elmo, message = Elmo(lm.model), "Sentences in capitals are read"
    with pytest.warns(UserWarning, match=message):
        vectors = elmo.embed(capitals, layers="top")
    one, other = map(np.concatenate, (elmo.embed(cased, layers="top"), vectors))
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    assert ((one * other).sum(axis=1) / norms).mean() > 0.95
    with pytest.warns(UserWarning, match=message):
        found = lm.perplexity(capitals)
    np.testing.assert_allclose(found.bits_per_character, lm.perplexity(cased).bits_per_character, rtol=0.15)
    with pytest.warns(UserWarning, match=message):
        words = lm.word_surprisal([" ".join(capitals[2])])
    assert [word.word for word in words] == capitals[2]
    with pytest.warns(UserWarning, match=message):
        np.testing.assert_array_equal(elmo.ids(capitals), elmo.ids([*map(lm.model.read.in_case, capitals)]))
    with pytest.warns(UserWarning, match=message):
        (document,) = elmo.embed_documents([capitals[:1]], layers="top")
    np.testing.assert_allclose(document[0], vectors[0], atol=1e-5)
    exact = lm.model.replace(exact_marks=True)
    assert exact.read.in_case(capitals[0]) is capitals[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SentenceEmbedder(elmo).embed(capitals)  # their documentation says so


def test_only_sentences_of_words_that_are_known_in_another_case_are_in_capitals() -> None:
    ranks = {
        word: rank
        for rank, word in enumerate([*SPECIALS, "the", "US", "us", "troops", "NATO", "London", "left", "The"])
    }
    read = {
        "US TROOPS LEFT LONDON .": "US troops left London .",
        "THE US LEFT THE , XYZ": "The US left the , xyz",
        "US NATO": "US NATO",
        "US XYZ NATO .": "US XYZ NATO .",  # nothing is known in another case
        "TROOPS": "TROOPS",  # a word by itself may be a name
        "The US LEFT LONDON": "The US LEFT LONDON",
        "THE US LEFT THE US , THE US LEFT THE troops US": "The US left the US , the US left the troops US",
        "The cat sat .": "The cat sat .",
    }
    for text, expected in read.items():
        assert " ".join(read_capitals(text.split(), ranks)) == expected
