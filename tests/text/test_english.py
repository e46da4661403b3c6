# ruff: noqa: RUF001 (ambiguous characters are what this is about)
"""English text is split as in the Penn Treebank, with typographic marks as with ASCII ones."""

from __future__ import annotations

import itertools
import random
import re
from itertools import pairwise

import pytest

from elmokit.text import english
from elmokit.text.english import sentence_spans, token_spans

TOKENS = {  # with a bar between them
    "It's raining, isn't it?": "It|'s|raining|,|is|n't|it|?",
    "We cannot leave at 5 p.m. on foot.": "We|can|not|leave|at|5|p.m.|on|foot|.",
    '"No," he said; "never."': '"|No|,|"|he|said|;|"|never|.|"',
    "The dogs' bowls cost $3.88 (or 3,36): 'cheap'!": "The|dogs|'|bowls|cost|$|3.88|(|or|3,36|)|:|'|cheap|'|!",
    "'Twas gonna be--I'll say... wait": "'|Twas|gon|na|be|--|I|'ll|say|...|wait",
    "``Quoted'' text [in] {a} 100%": "``|Quoted|''|text|[|in|]|{|a|}|100|%",
    # Apostrophes that are typed with another character.
    "I don’t know what you’re doing.": "I|do|n’t|know|what|you|’re|doing|.",
    "It’s they’ll I’m we’ve the dog’s he’d": "It|’s|they|’ll|I|’m|we|’ve|the|dog|’s|he|’d",
    "O’Brien’s o’clock l’État d’you y’all’d rock’n’roll": "O’Brien|’s|o’clock|l’État|d’you|y’all|’d|rock’n’roll",
    "CAN’T d’ye more’n 1990’s 6’2”": "CA|N’T|d|’ye|more|’n|1990|’s|6’2|”",
    "John ’s in, ’n’ out": "John|’s|in|,|’n|’|out",
    "donʼt don´t don‘t don′t": "do|nʼt|do|n´t|do|n‘t|do|n′t",
    # They are quotes, or the end of a plural possessive.
    "the dogs’ bowls, the dogsʼ bowls": "the|dogs|’|bowls|,|the|dogs|ʼ|bowls",
    "‘Hello’ he said.": "‘|Hello|’|he|said|.",
    "“‘Hello,’” he said ‘no’.": "“|‘|Hello|,|’|”|he|said|‘|no|’|.",
    "’Twas the ’90s, tell ’em ‘old’-style": "’|Twas|the|’|90s|,|tell|’|em|‘|old|’|-style",
    # Other marks.
    "wait… Well…he left….": "wait|…|Well|…|he|left|…|.",
    "…and .… so": "…|and|.…|so",
    "he said—no, 1914–18 well‑known −5": "he|said|—|no|,|1914|–|18|well‑known|−5",
    "‚Hallo‘ „Hallo“ ‹so› «so» ‛so’ ‟so”": "‚|Hallo|‘|„|Hallo|“|‹|so|›|«|so|»|‛|so|’|‟|so|”",
    "5′10″ tall, 10\u202f000\u00a0km\u2009off": "5′10|″|tall|,|10|000|km|off",
    # Nothing that is invisible is a token, or hides the end of one.
    "\ufeffco\u00adop don’\u200bt \u200b leave.\u200b": "co\u00adop|do|n’\u200bt|leave|.",
}
SENTENCES = {
    "Mr. Smith left at 5 p.m. on foot. (So did I!) No? J. Bach, No. 5.": [
        "Mr. Smith left at 5 p.m. on foot.",
        "(So did I!)",
        "No?",
        "J. Bach, No. 5.",
    ],
    '"I left." She stayed. It rained...': ['"I left."', "She stayed.", "It rained..."],
    "“I left.” She stayed. ‘He’s here.’ ‹So?› Well…": [
        "“I left.”",
        "She stayed.",
        "‘He’s here.’",
        "‹So?›",
        "Well…",
    ],
    # A sentence goes on after a quotation, and after an abbreviation, whatever ends the next word.
    '"No!" he said. \'Why?\' “So?!” it (why?) went. "Is it Mr. Smith?" So!': [
        '"No!" he said.',
        "'Why?'",
        "“So?!” it (why?) went.",
        '"Is it Mr. Smith?"',
        "So!",
    ],
    "“I left.”—She stayed.\u200b Then \u00adI. \ufeff": ["“I left.”", "—She stayed.", "Then \u00adI."],
}
WORDS = """
a b it is was Mr not can d 'ye gim me gon na wan got ta more 'n 't 's 'll n't 're 'S N'T '' ' " ` `` . .. ... ? !
, : ; -- - ( ) [ ] { } < > * @ # $ % & / 1 22 1,000. -5. U.S. J. e.g. etc. p.m. The he – — « » “ ” „ _ é ½ ² Ⓐ ſ"""
STRANGE = ["\u0301", "\u200c", "\u200d", "\u212a", "\u0661", "\x1c", "\x85", "\xa0", "\u2003", "\t", ". . ."]
PARTS = [*WORDS.split(), *STRANGE, *12 * [" "]]


def split(text: str, spans: list[tuple[int, int]]) -> list[str]:
    return [text[start:stop] for start, stop in spans]


@pytest.mark.parametrize("sentence", TOKENS)
def test_a_sentence_is_split_into_tokens(sentence: str) -> None:
    assert split(sentence, token_spans(sentence)) == TOKENS[sentence].split("|")


@pytest.mark.parametrize("text", SENTENCES)
def test_a_text_is_split_into_sentences(text: str) -> None:
    assert split(text, sentence_spans(text)) == SENTENCES[text]


@pytest.mark.slow  # for the import of NLTK
def test_tokens_and_sentences_are_those_of_nltk() -> None:
    nltk = pytest.importorskip("nltk")
    parameters = nltk.tokenize.punkt.PunktParameters()
    parameters.abbrev_types = set(english._ABBREVIATIONS)
    punkt, treebank = nltk.tokenize.punkt.PunktSentenceTokenizer(parameters), nltk.tokenize.NLTKWordTokenizer()
    chosen = random.Random(0)
    texts = ["".join(chosen.choices(PARTS, k=chosen.randrange(1, 14))) for _ in range(4000)]
    for text in [*TOKENS, *SENTENCES, *texts]:
        if text not in texts and not text.isascii():
            continue
        assert token_spans(text) == list(treebank.span_tokenize(text)), text
        # NLTK knows no end between a quotation and a dash, and takes that of a quotation or of the next word for one.
        if not re.search(r"[—–]|[?!][\"')\]‘’“”«»]+\s+[a-z]|\.\s+\S*[.?!]", text):
            assert sentence_spans(text) == list(punkt.span_tokenize(text)), text


# How the time grows with the length: benchmarks/long_lines.py.
@pytest.mark.parametrize("part", ["'", ". ", "a.)", '." ', "a’", "can not ", "\u200b."])
def test_a_long_line_is_split_to_its_end(part: str) -> None:
    text = part * (40_000 // len(part)) + "x"
    for spans in (token_spans(text), sentence_spans(text)):
        between = pairwise([0, *itertools.chain.from_iterable(spans), len(text)])
        outside = [text[start:stop] for start, stop in itertools.islice(between, 0, None, 2)]
        assert not "".join(outside).strip(" \u200b")
        assert spans[-1][1] == len(text)


def test_many_spaces_are_between_two_tokens() -> None:
    text = "." + 100_000 * " " + "x"
    assert (len(token_spans(text)), len(sentence_spans(text))) == (2, 2)
