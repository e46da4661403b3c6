"""Read trees in brackets; read, write and score constituency trees, with scores as in ``evalb``.

``evalb`` (Sekine and Collins, with ``COLLINS.prm``) compares the brackets of a predicted and a gold tree by label,
start and end. Punctuation and traces do not count as words, brackets without other words do not count, ADVP and PRT are
the same label, and labels are compared without the part after - or =.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from elmokit.errors import TextError
from elmokit.tasks.scores import Counts, percent

PIECE = re.compile(r"[()]|[^\s()]+")
FUNCTION = re.compile(r"[-=|]")
ROOTS = ("", "TOP", "VROOT")
NOT_COUNTED = {"TOP", "-NONE-", ",", ":", "``", "''", "."}
SAME_LABEL = {"PRT": "ADVP"}
BRACKET_TOKENS = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}
TOKEN_OF_BRACKET = {"(": "-LRB-", ")": "-RRB-"}
NO_TAG = "XX"


class Span(NamedTuple):
    """A constituent."""

    start: int
    stop: int
    """One past the last token."""
    label: str


@dataclass
class Bracket:
    """A bracket of a tree, with a label, and a word or other brackets inside."""

    outer: Bracket | None
    start: int
    stop: int = 0
    """One past its last token."""
    label: str = ""
    word: str | None = None
    """None if it contains other brackets."""
    is_empty: bool = True


class TreeReader:
    """Reads a tree in brackets piece by piece. A piece is ``(``, a label, a word, or ``)``."""

    def __init__(self) -> None:
        self.brackets: list[Bracket] = []
        """Outer brackets come before inner ones."""
        self.tokens: list[str] = []
        self._open: Bracket | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the whole tree was read."""
        return len(self.brackets) > 0 and self._open is None

    def add(self, piece: str) -> bool:
        """Add the next piece. Return False if it is invalid here."""
        bracket = self._open
        if piece == "(":
            return self._begin(bracket)
        if bracket is None:
            return False
        if piece == ")":
            bracket.stop = len(self.tokens)
            self._open = bracket.outer
            return not bracket.is_empty
        if not bracket.is_empty:
            return False
        if not bracket.label:
            bracket.label = piece
            return True
        bracket.word, bracket.is_empty = piece, False
        self.tokens.append(piece)
        return True

    def _begin(self, outer: Bracket | None) -> bool:
        if self.is_complete or (outer is not None and outer.word is not None):
            return False
        if outer is not None:
            outer.is_empty = False
        self._open = Bracket(outer, start=len(self.tokens))
        self.brackets.append(self._open)
        return True


@dataclass
class Tree:
    """A sentence and its constituents."""

    where: str
    """File and line, for error messages."""
    tokens: list[str]
    tags: list[str]
    spans: list[Span]
    """Outer constituents come before inner ones. Outermost brackets without a label, TOP and VROOT are left out."""


def read_trees(lines: Iterable[tuple[int, str]], name: str) -> Iterator[Tree]:
    """Read trees such as ``(S (NP (PRP She)) (VP (VBZ sleeps)))``, which may span several lines.

    Functions are removed from labels: NP-SBJ becomes NP.

    Args:
        lines: Numbered lines.
        name: The name of the text, for errors.

    Raises:
        TextError: The brackets do not match, or a bracket contains neither a tag and a word nor a label and brackets.
    """
    reader, where = TreeReader(), ""
    for number, line in lines:
        for piece in PIECE.findall(line):
            if not reader.brackets:
                where = f"{name}, line {number}"
            if not reader.add(piece):
                raise TextError(
                    f"{where}: {piece!r} is unexpected in a tree; expected brackets such as (NP (DT the) (NN cat))."
                )
            if reader.is_complete:
                yield _tree_of(reader, where)
                reader = TreeReader()
    if reader.brackets:
        raise TextError(f"{where}: a tree starts here, but the text ends before its last bracket.")


def _tree_of(reader: TreeReader, where: str) -> Tree:
    tags, spans = [], []
    for bracket in reader.brackets:
        if bracket.word is not None:
            tags.append(bracket.label)
        elif not _is_root(bracket):
            spans.append(Span(bracket.start, bracket.stop, _category(bracket)))
    return Tree(where, reader.tokens, tags, spans)


def _category(bracket: Bracket) -> str:
    """Return a bracket's label without functions."""
    return FUNCTION.split(bracket.label)[0]


def _is_root(bracket: Bracket) -> bool:
    return _category(bracket) in ROOTS and (bracket.outer is None or _is_root(bracket.outer))


def chains_of(spans: Iterable[Span]) -> dict[tuple[int, int], str]:
    """Return the label of each range of tokens. The labels of several constituents are joined, outer first: S-VP."""
    chains: dict[tuple[int, int], str] = {}
    for start, stop, label in spans:
        before = chains.get((start, stop))
        chains[start, stop] = label if before is None else f"{before}-{label}"
    return chains


def to_brackets(tokens: Sequence[str], tags: Sequence[str] | None, spans: Sequence[Span]) -> str:
    """Return a tree in brackets on one line.

    Args:
        tokens: The words.
        tags: Their parts of speech. As in AllenNLP, without tags, a one-word constituent contains the plain word, and
            other words get the tag XX.
        spans: The constituents, outer ones before inner ones.
    """
    words = []
    alone = {start for start, stop, _ in spans if stop == start + 1}
    for index, token in enumerate(tokens):
        word = TOKEN_OF_BRACKET.get(token, token)
        if tags is not None:
            word = f"({tags[index]} {word})"
        elif index not in alone:
            word = f"({NO_TAG} {word})"
        words.append(word)
    for start, stop, label in reversed(spans):
        words[start] = f"({label} {words[start]}"
        words[stop - 1] += ")"
    return " ".join(words)


def evalb(gold: Sequence[Tree], predicted: Sequence[Sequence[Span]]) -> dict[str, float]:
    """Compute F1, precision and recall of brackets, and the percentage of sentences without errors."""
    correct = n_predicted = n_gold = 0
    n_exact = n_scored = 0
    for tree, spans in zip(gold, predicted, strict=True):
        if all(tag in NOT_COUNTED for tag in tree.tags):
            continue
        expected = _counted(tree.spans, tree.tags)
        found = _counted(spans, tree.tags)
        correct += (expected & found).total()
        n_gold += expected.total()
        n_predicted += found.total()
        n_scored += 1
        if expected == found:
            n_exact += 1
    counts = Counts(correct, n_predicted, n_gold)
    scores = {"f1": counts.f1, "precision": counts.precision, "recall": counts.recall}
    return {**scores, "exact": percent(n_exact, n_scored)}


def _counted(spans: Iterable[Span], tags: Sequence[str]) -> Counter[Span]:
    """Count the constituents that are scored, with positions that leave out punctuation and traces."""
    n_before = [0]  # for each position, the number of words before it
    for tag in tags:
        n_words = n_before[-1]
        n_before.append(n_words if tag in NOT_COUNTED else n_words + 1)
    counted: Counter[Span] = Counter()
    for start, stop, label in spans:
        label = re.split("[-=]", label)[0]
        span = Span(n_before[start], n_before[stop], SAME_LABEL.get(label, label))
        if span.start < span.stop and label not in NOT_COUNTED:
            counted[span] += 1
    return counted
