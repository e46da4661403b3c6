"""The simple reader of Jsonnet agrees with Jsonnet on everything that it accepts."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.tasks.allennlp.simple_jsonnet import RESERVED, NotSimpleError, parse_simple

pytestmark = pytest.mark.slow

VARIABLES = {"TRAIN": "conll/train", "EMPTY": "", "ODD": 'a "b" \\ \u00e9\n'}


def by_jsonnet(text: str) -> Any:
    """Return the value that Jsonnet gives a file, or an exception if it rejects it."""
    jsonnet = pytest.importorskip("_jsonnet")
    try:
        return json.loads(jsonnet.evaluate_snippet("file", text, ext_vars=VARIABLES))
    except (RuntimeError, ValueError) as error:
        return error


def same(ours: Any, theirs: Any) -> bool:
    """Compare two values; unlike in ``==``, true is not 1."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return isinstance(ours, bool) == isinstance(theirs, bool) and bool(ours == theirs)


CHARACTERS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["0", "-0", "-0.0", "- 5", "1E3", "1.50e+2", "2e-3", "1e-400", "9007199254740993"]),
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS.map(lambda text: ("number", text)) | CHARACTERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(CHARACTERS, inner, max_size=4),
    max_leaves=12,
)


class Writer:
    """Writes a value as Jsonnet in a random style: comments, quotes, commas, local names and joined strings."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names: list[str] = []

    def blank(self) -> str:
        return self.random.choice(["", "", " ", "\n\t", "\r\n", "// c }\n", "# 'c\n", '/* c\n "*/', "/*/ * /**/"])

    def string(self, text: str) -> str:
        quote = self.random.choice("\"'")
        quoted = json.dumps(text, ensure_ascii=self.random.random() < 0.5)[1:-1]
        if quote == "'":
            quoted = quoted.replace('\\"', '"').replace("'", "\\'")
        if self.random.random() < 0.3 and "\\\\" not in quoted:
            quoted = quoted.replace("\\n", "\n")  # Jsonnet's strings can have line ends
        return quote + quoted + quote

    def key(self, text: str) -> str:
        is_name = re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", text) is not None and text not in RESERVED
        return text if is_name and self.random.random() < 0.7 else self.string(text)

    def value(self, value: Any) -> str:
        n_names, bindings = len(self.names), ""
        while self.random.random() < 0.2:
            # A new name, or an older one with another value, which hides it from here on.
            name = self.random.choice([f"name_{len(self.names)}", *self.names])
            bound = self.plain(name) if name not in self.names else self.string(name)
            bindings += f"{self.blank()}local {name}{self.blank()}={self.blank()}{bound}{self.blank()};"
            self.names.append(name)
        text = bindings + self.blank() + self.plain(value) + self.blank()
        del self.names[n_names:]
        return text

    def plain(self, value: Any) -> str:
        if isinstance(value, tuple):
            added = [f"{self.random.uniform(-9, 9)}" for _ in range(self.random.choice([0, 0, 0, 1, 2]))]
            return f"{self.blank()}+{self.blank()}".join([str(value[1]), *added])
        if isinstance(value, str) and self.random.random() < 0.3:
            cut = self.random.randrange(len(value) + 1)
            return f"{self.plain(value[:cut])}{self.blank()}+{self.blank()}{self.plain(value[cut:])}"
        if isinstance(value, str):
            names = [f"std.extVar({self.string(name)})" for name in VARIABLES] + self.names[-1:]
            return self.random.choice(names) if self.random.random() < 0.2 else self.string(value)
        if isinstance(value, list):
            return f"[{','.join(self.value(part) for part in value)}{self.comma(value)}]"
        if isinstance(value, dict):
            pairs = [f"{self.blank()}{self.key(key)}{self.blank()}:{self.value(part)}" for key, part in value.items()]
            return f"{{{','.join(pairs)}{self.comma(value)}}}"
        return json.dumps(value)

    def comma(self, value: Any) -> str:
        return self.blank() + ("," + self.blank() if value and self.random.random() < 0.3 else "")


@settings(max_examples=20, deadline=None)
@given(st.lists(VALUES, min_size=10, max_size=30), st.integers(0, 2**32))
def test_a_generated_file_has_the_value_that_jsonnet_gives_it(values: list[Any], seed: int) -> None:
    texts = [Writer(seed + number).value(value) for number, value in enumerate(values)]
    # One evaluation for all of them, because each takes Jsonnet some 50 ms.
    expected = by_jsonnet("[" + ",".join(f"({text})" for text in texts) + "]")
    assert isinstance(expected, list), (texts, expected)
    for text, value in zip(texts, expected, strict=True):
        assert same(parse_simple(text, VARIABLES), value), text


PIECES = [
    *["{", "}", "[", "]", ":", "::", ",", ";", "=", "+", "-", "(", ")", ".", "|||", "@", "!", "/", "//", "/*", "*/"],
    *["local", "if", "true", "null", "in", "self", "std", "std.extVar", 'std.extVar("TRAIN")', "a", "b", "_", "\n"],
    *["0", "1", "01", "1.", ".5", "1e", "1e5", "1_0", "0x1", '"', "'", '"a"', "'b'", '"\\u0041"', '"\\x"', "\\"],
    *["#", " ", "\u00a0"],
]


def check_if_accepted(text: str) -> None:
    try:
        ours = parse_simple(text, VARIABLES)
    except NotSimpleError:
        return
    expected = by_jsonnet(text)
    if "undefined external variable" not in str(expected):
        assert same(ours, expected), text


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12))
def test_what_is_accepted_of_any_text_has_the_value_that_jsonnet_gives_it(pieces: list[str]) -> None:
    check_if_accepted("".join(pieces))


@settings(max_examples=100, deadline=None)
@given(VALUES, st.integers(0, 2**32), st.integers(0, 10**6), st.sampled_from(PIECES))
def test_a_change_at_any_place_is_read_as_jsonnet_reads_it_or_rejected(
    value: Any, seed: int, place: int, piece: str
) -> None:
    text = Writer(seed).value(value)
    place %= len(text) + 1
    check_if_accepted(text[:place] + piece + text[place + len(piece) % 2 :])
