"""Raw text: split into sentences and tokens; and text that was not split is noticed."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest

import elmokit
from elmokit import Elmo, tokenize
from elmokit.embedding.reading import corpus_rows
from elmokit.errors import ConfigError, TextError
from elmokit.evaluation.occurrences import OccurrenceIndex
from elmokit.text.first_lines import check_tokens
from elmokit.text.marks import INVISIBLE
from elmokit.text.text import Text
from elmokit.text.tokenize import Word, get_span_tokenizer, get_tokenizer, group_words, locate_tokens
from tests.helpers.shell import Shell
from tests.text.test_english import PARTS, TOKENS

PARAGRAPH = "It's raining. We left at 5 p.m. on foot.\n\nMr. Smith didn't.\n"
SENTENCES = [
    ["It", "'s", "raining", "."],
    ["We", "left", "at", "5", "p.m.", "on", "foot", "."],
    ["Mr.", "Smith", "did", "n't", "."],
]
JAPANESE = "猫が窓辺に座っている。外では雨が降り続いていた。"


def test_english_is_split_into_sentences_and_treebank_tokens() -> None:
    assert elmokit.tokenize(PARAGRAPH) == SENTENCES
    assert elmokit.tokenize(" \n") == []


def test_other_languages_are_split_by_spacy() -> None:
    pytest.importorskip("spacy")
    sentences = elmokit.tokenize("Das kostet ca. 5 Euro. Wir gehen z.B. morgen.", "de")
    assert sentences == [["Das", "kostet", "ca.", "5", "Euro", "."], ["Wir", "gehen", "z.B.", "morgen", "."]]


def test_embed_raw_stores_a_row_for_each_sentence(shell: Shell) -> None:
    Path("raw.txt").write_text(PARAGRAPH)
    ran = shell("embed", "raw.txt", "out.hdf5", "--raw", "--top")
    assert ran.code == 0, ran.err
    assert "3 sentences, 17 tokens" in ran.err
    expected = Elmo.from_pretrained().embed(SENTENCES, layers="top")
    with h5py.File("out.hdf5") as file:
        for index, vectors in enumerate(expected):
            np.testing.assert_allclose(file[str(index)][...], vectors, atol=1e-5)
        names = json.loads(file["sentence_to_index"][0])
    assert names == {" ".join(sentence): str(index) for index, sentence in enumerate(SENTENCES)}


WRAPPED = """\
The house stood at the end of a long road that nobody had mended
since the war. In the evening its windows were dark, and only the
dog of a neighbor came to sit on the steps, as Mrs. Hale had once
let it do.

Nobody knew when the family would return. A letter had come in
the spring, from a port in the south.
"""
NOT_WRAPPED = [
    "the old man and the sea are one thing in this world\n" * 5,  # without any mark
    "Why I left home\nHow to mend a road. Part one\nThe house at the end of the road\nWho was there\n",  # titles
    "The house stood at the end of a long road now.\nA letter had come in the spring from the port.\n" * 3,
    "it was late, and we left\nthe house. nobody saw\nus go, and the rain had\nstopped.",  # verse
]


def test_wrapped_lines_are_joined_to_paragraphs(shell: Shell) -> None:
    joined = [paragraph.replace("\n", " ") for paragraph in WRAPPED.strip().split("\n\n")]
    with pytest.warns(UserWarning, match="The lines of the text are wrapped, so they are joined"):
        sentences = elmokit.tokenize(WRAPPED.replace("\n", "\r\n"))
    assert len(sentences) == 4
    assert sentences == elmokit.tokenize("\n".join(joined))
    with pytest.warns(UserWarning, match="wrapped"):
        spans = list(get_span_tokenizer("treebank")(WRAPPED))
    assert [WRAPPED[start:stop] for start, stop in spans] == [token for tokens in sentences for token in tokens]
    Path("raw.txt").write_text(WRAPPED)
    with pytest.warns(UserWarning, match=r"The lines of raw\.txt are wrapped"):
        read = list(elmokit.Text("raw.txt", kind="raw").sentences())
    assert read == sentences
    assert [sentence.line for sentence in read] == [1, 1, 6, 6]
    with pytest.warns(UserWarning, match=r"raw\.txt"):
        rows = [sentence.tokens for sentence in corpus_rows(Text("raw.txt", kind="raw", documents=True))]
    assert rows == [*sentences[:2], [], *sentences[2:]]
    with pytest.warns(UserWarning, match="a blank line ends a paragraph"):
        assert shell("embed", "raw.txt", "out.npz", "--raw").code == 0
    with np.load("out.npz") as archive:
        assert np.diff(archive["offsets"]).tolist() == list(map(len, sentences))


@pytest.mark.parametrize("flags", [(), ("--documents",)])
def test_words_of_wrapped_lines_are_in_the_sentences_of_their_paragraph(shell: Shell, flags: tuple[str, ...]) -> None:
    Path("raw.txt").write_text(WRAPPED)
    with pytest.warns(UserWarning, match=r"The lines of raw\.txt are wrapped"):
        out = shell("surprisal", "raw.txt", "--words", *flags).out
    rows = [line.split("\t") for line in out.splitlines()[1:]]
    assert [row[4] for row in rows] == WRAPPED.split()
    assert list(dict.fromkeys((line, text, sentence) for line, text, sentence, *_ in rows)) == [
        ("1", "0", "0"), ("1", "0", "1"), ("6", "1", "0"), ("6", "1", "1")
    ]  # fmt: skip


@pytest.mark.parametrize("text", NOT_WRAPPED)
def test_lines_of_other_texts_are_not_joined(text: str) -> None:
    assert elmokit.tokenize(text) == [sentence for line in text.split("\n") for sentence in elmokit.tokenize(line)]


SHORT = """Nobody had seen him since the spring. He'd been
ill for years, and his daughter said
so.

She came on Sundays with
soup.

The door
stayed shut.
"""


def test_a_short_wrapped_text_is_joined_and_a_doubtful_one_reported(shell: Shell) -> None:
    with pytest.warns(UserWarning, match="The lines of the text are wrapped, so they are joined"):
        assert [tokens[0] for tokens in elmokit.tokenize(SHORT)] == ["Nobody", "He", "She", "The"]
    doubtful = "He'd been\nill for years.\n" + "The door stayed shut.\nNobody came.\n" * 2
    message = "'He\\'d been' may continue with 'ill for years.'|\"He'd been\" may continue with 'ill for years.'"
    with pytest.warns(UserWarning, match=message):
        assert len(elmokit.tokenize(doubtful)) == 6
    assert len(elmokit.tokenize(doubtful, wrapped="yes")) == 5
    assert len(elmokit.tokenize(doubtful, wrapped="no")) == 6
    assert len(elmokit.tokenize(SHORT, wrapped="no")) == 8
    with pytest.raises(ConfigError, match="wrapped is 'maybe'"):
        elmokit.tokenize(SHORT, wrapped="maybe")  # type: ignore[call-overload]


@pytest.mark.slow
def test_a_flag_of_each_command_that_reads_raw_text_says_whether_its_lines_are_wrapped(shell: Shell) -> None:
    Path("raw.txt").write_text(SHORT)
    for wrapped, n in (("yes", 4), ("no", 8)):
        flags = ("--wrapped", wrapped)
        assert shell("embed", "raw.txt", f"{wrapped}.npz", "--raw", *flags).code == 0
        with np.load(f"{wrapped}.npz") as archive:
            assert len(archive["offsets"]) - 1 == n
        facts = json.loads(shell("evaluate", "perplexity", "raw.txt", "--raw", "--json", *flags).out)
        assert facts["n_sentences"] == n
        tokens = shell("surprisal", "raw.txt", "--raw", *flags).out.splitlines()[1:]
        assert len({line.split("\t")[0] for line in tokens}) == n
        words = [line.split("\t") for line in shell("surprisal", "raw.txt", "--words", *flags).out.splitlines()[1:]]
        assert len({(row[1], row[2]) for row in words}) == n
        assert shell("neighbors", "index", "raw.txt", f"index-{wrapped}", "--raw", *flags).code == 0
        assert len(OccurrenceIndex(f"index-{wrapped}").starts) == n
    for command in ("embed raw.txt out.npz", "evaluate perplexity raw.txt", "surprisal raw.txt"):
        ran = shell(*command.split(), "--wrapped", "yes")
        assert (ran.code, ran.err) == (2, "elmokit: --wrapped needs --raw.\n")
    with pytest.raises(ConfigError, match="wrapped is for raw text"):
        elmokit.Text("raw.txt", wrapped="yes")


def test_embed_refuses_raw_text_unless_it_is_named(shell: Shell) -> None:
    Path("raw.txt").write_text(PARAGRAPH)
    ran = shell("embed", "raw.txt", "out.npz")
    assert (ran.code, ran.out) == (2, "")
    assert (
        "raw.txt looks like raw text: 'raining.' is read as one token. Pass --raw to split it, or --text-kin" in ran.err
    )
    assert not list(Path().glob("out*"))
    with pytest.warns(UserWarning, match="looks like raw text"):
        assert shell("embed", "raw.txt", "out.npz", "--text-kind", "tokens").code == 0


def test_a_line_without_spaces_is_noticed_once(tmp_path: Path) -> None:
    path = tmp_path / "ja.txt"
    path.write_text(f"{JAPANESE}\n{JAPANESE}\n", encoding="utf-8")
    with pytest.warns(UserWarning, match="24 characters, is read as one token.*--raw --language CODE") as caught:
        assert list(Text(path).token_lists()) == [[JAPANESE]] * 2
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="24 characters"):
        elmokit.tokenize(JAPANESE)
    path.write_text("猫 が 窓辺 に 座っ て いる 。\nDonaudampfschifffahrtsgesellschaft\n", encoding="utf-8")
    with warnings.catch_warnings(action="error"):
        list(Text(path).token_lists())


@pytest.mark.parametrize("sentence", [[JAPANESE], [JAPANESE, "。"]], ids=["alone", "with a mark"])
def test_a_first_sentence_without_spaces_is_refused(sentence: list[str]) -> None:
    with pytest.raises(TextError, match="24 characters, is read as one token"):
        check_tokens("ja.txt", [sentence], refuse=True)


def test_a_tokenization_is_chosen_by_its_name() -> None:
    assert get_tokenizer("spaces")("the  cat\tsat\u00a0down.") == ["the", "cat", "sat\u00a0down."]
    assert get_tokenizer("treebank")("It's here.") == ["It", "'s", "here", "."]


def test_lines_end_where_those_of_a_file_end() -> None:
    assert elmokit.tokenize("One line\r\nTwo\rThree") == [["One", "line"], ["Two"], ["Three"]]
    assert elmokit.tokenize("One\x0cline\u2028alone") == [["One", "line", "alone"]]


def test_a_period_at_the_end_of_any_sentence_of_a_text_is_a_token() -> None:
    text = "The bank fell. Oil rose.\noil fell.\r\nEnd"
    tokens = [token for sentence in tokenize(text) for token in sentence]
    assert get_tokenizer("treebank")(text) == tokens
    assert [text[start:stop] for start, stop in get_span_tokenizer("treebank")(text)] == tokens


def test_offsets_say_where_each_token_is_in_the_text() -> None:
    rng = random.Random(0)
    parts = [*PARTS, *4 * ["\u00ad", "\u200b", "\r", "\n", "\ufeff"]]
    texts = ["".join(rng.choices(parts, k=rng.randrange(30))) for _ in range(200)]
    for text in (*TOKENS, *texts):
        located = tokenize(text, offsets=True, wrapped="no")
        assert [[token.text for token in sentence] for sentence in located] == tokenize(text, wrapped="no")
        assert all(text[token.start : token.stop] == token.text for sentence in located for token in sentence)
        # A word is what is between white space, and every token is in one.
        words = group_words(text, located)
        assert [word.text for word in words] == [word for word in text.split() if word.strip(INVISIBLE)]
        assert all(text[word.start : word.stop] == word.text for word in words)
        places = [(number, position) for number, one in enumerate(located) for position in range(len(one))]
        assert [place for word in words for place in word.tokens] == places


@pytest.mark.parametrize("language", ["de", "fr", "zh", "hi"])
def test_offsets_of_tokens_of_spacy_are_places_in_the_text(language: str) -> None:
    pytest.importorskip("spacy")
    text = "  L\u2019homme n'a pas\u00a0dit « oui ».\r\nDas  kostet ca. 5\u00ad0 €!  猫在睡觉。 कुत्ता सोता है। \u200b"
    located = tokenize(text, language, offsets=True)
    assert [[token.text for token in sentence] for sentence in located] == tokenize(text, language)
    assert all(text[token.start : token.stop] == token.text for sentence in located for token in sentence)


def test_a_token_with_a_space_joins_the_words_that_it_is_part_of() -> None:
    text = "(Học sinh) đi"
    located = locate_tokens(text, [["(", "Học sinh", ")", "đi"]])
    assert group_words(text, located) == [
        Word("(Học sinh)", 0, 10, [(0, 0), (0, 1), (0, 2)]),
        Word("đi", 11, 13, [(0, 3)]),
    ]
