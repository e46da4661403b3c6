"""Constituency trees: read from brackets, written as brackets, and scored like ``evalb``.

``evalb`` (Sekine and Collins, with ``COLLINS.prm``) compares the brackets of a predicted and a gold tree by label,
start and end. Punctuation and traces do not count as words, brackets around nothing else do not count at all, ADVP and
PRT are one label, and what follows - or = in a label is ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
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
class Tree:
    """A sentence with its constituents."""

    where: str
    """File and line, for error messages."""
    tokens: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    """Each constituent before those inside it; without an outermost bracket that has no label, or TOP or VROOT."""


def read_trees(lines: Iterable[tuple[int, str]], name: str) -> Iterator[Tree]:
    """Read trees such as ``(S (NP (PRP She)) (VP (VBZ sleeps)))``, each on one line or on several.

    Functions are removed from labels: NP-SBJ becomes NP.

    Args:
        lines: With their numbers.
        name: The name of the text, for errors.

    Raises:
        TextError: The brackets do not match, or a bracket is neither a tag with a word nor a label with brackets.
    """
    reader = None
    for number, line in lines:
        for piece in PIECE.findall(line):
            if reader is None:
                reader = _TreeReader(f"{name}, line {number}")
            reader.add(piece)
            if reader.is_complete:
                yield reader.tree
                reader = None
    if reader is not None:
        raise TextError(f"{reader.tree.where}: a tree begins here, and the text ends before its last bracket.")


@dataclass
class _Open:
    """A bracket that is not closed yet."""

    label: str | None = None
    start: int = 0
    position: int = 0
    """Where its constituent comes in the list."""
    word: str | None = None
    has_brackets: bool = False


class _TreeReader:
    """Reads one tree, piece by piece."""

    def __init__(self, where: str) -> None:
        self.tree = Tree(where)
        self.open: list[_Open] = []
        self.is_complete = False

    def add(self, piece: str) -> None:
        if piece == "(":
            self._open()
        elif not self.open:
            raise self._error(piece)
        elif piece == ")":
            self._close()
        elif self.open[-1].label is None:
            self.open[-1].label = piece
        elif self.open[-1].word is None and not self.open[-1].has_brackets:
            self.open[-1].word = piece
        else:
            raise self._error(piece)

    def _open(self) -> None:
        if self.open:
            outer = self.open[-1]
            if outer.word is not None:
                raise self._error("(")
            outer.label = outer.label or ""
            outer.has_brackets = True
        self.open.append(_Open(start=len(self.tree.tokens), position=len(self.tree.spans)))

    def _close(self) -> None:
        bracket, tree = self.open.pop(), self.tree
        self.is_complete = not self.open
        if bracket.word is not None:
            tree.tokens.append(bracket.word)
            tree.tags.append(bracket.label or "")
            return
        if not bracket.has_brackets:
            raise self._error(")")
        label = FUNCTION.split(bracket.label or "")[0]
        is_root = label in ROOTS and all(outer.label in ROOTS for outer in self.open)
        if not is_root:
            tree.spans.insert(bracket.position, Span(bracket.start, len(tree.tokens), label))

    def _error(self, piece: str) -> TextError:
        return TextError(
            f"{self.tree.where}: {piece!r} is unexpected in a tree; expected brackets such as (NP (DT the) (NN cat))."
        )


def chains_of(spans: Iterable[Span]) -> dict[tuple[int, int], str]:
    """Return the label of each range of tokens. Those of several constituents are joined, the outer one first: S-VP."""
    chains: dict[tuple[int, int], str] = {}
    for start, stop, label in spans:
        before = chains.get((start, stop))
        chains[start, stop] = label if before is None else f"{before}-{label}"
    return chains


def to_brackets(tokens: Sequence[str], tags: Sequence[str] | None, spans: Sequence[Span]) -> str:
    """Return a tree on one line.

    Args:
        tokens: The words.
        tags: Their parts of speech. Without them, a constituent of one word has no bracket inside, and any other word
            has the tag XX, as in AllenNLP.
        spans: The constituents, each before those inside it.
    """
    words = []
    alone = {start for start, stop, _ in spans if stop == start + 1}
    for index, token in enumerate(tokens):
        word = TOKEN_OF_BRACKET.get(token, token)
        if tags is not None:
            words.append(f"({tags[index]} {word})")
        else:
            words.append(word if index in alone else f"({NO_TAG} {word})")
    for start, stop, label in reversed(spans):
        words[start] = f"({label} {words[start]}"
        words[stop - 1] += ")"
    return " ".join(words)


def evalb(gold: Sequence[Tree], predicted: Sequence[Sequence[Span]]) -> dict[str, float]:
    """Return F1, precision and recall of brackets, and the part of sentences without any error, in percent."""
    correct, n_predicted, n_gold, n_exact, n_scored = 0, 0, 0, 0, 0
    for tree, spans in zip(gold, predicted, strict=True):
        if all(tag in NOT_COUNTED for tag in tree.tags):
            continue
        expected, found = _counted(tree.spans, tree.tags), _counted(spans, tree.tags)
        n_correct = (expected & found).total()
        correct += n_correct
        n_gold += expected.total()
        n_predicted += found.total()
        n_scored += 1
        if expected == found:
            n_exact += 1
    counts = Counts(correct, n_predicted, n_gold)
    scores = {"f1": counts.f1, "precision": counts.precision, "recall": counts.recall}
    return {**scores, "exact": percent(n_exact, n_scored)}


def _counted(spans: Iterable[Span], tags: Sequence[str]) -> Counter[Span]:
    """Return the constituents that count, by the words that count."""
    n_before = [0, *accumulate(tag not in NOT_COUNTED for tag in tags)]
    counted: Counter[Span] = Counter()
    for start, stop, label in spans:
        label = re.split("[-=]", label)[0]
        span = Span(n_before[start], n_before[stop], SAME_LABEL.get(label, label))
        if span.start < span.stop and label not in NOT_COUNTED:
            counted[span] += 1
    return counted
