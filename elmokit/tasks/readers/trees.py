"""Read labeled trees in brackets, the format of the Stanford Sentiment Treebank: one tree per line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from elmokit.errors import TextError
from elmokit.storage.text_files import read_lines

SYMBOL = re.compile(r"[()]|[^() \t]+")  # not \s: a no-break space is part of its word
END = ""
"""The symbol after the last one of a line."""


@dataclass(frozen=True)
class TreeNode:
    """A phrase: tokens ``start`` to ``stop - 1`` of the sentence, and its label."""

    start: int
    stop: int
    label: str


@dataclass(frozen=True)
class LabeledTree:
    """A sentence and the labels of all its phrases, in pre-order: the root comes first."""

    tokens: list[str]
    nodes: list[TreeNode]
    where: str
    """File and line, for error messages."""


def read_trees(path: str) -> Iterator[LabeledTree]:
    """Read the trees of a file, which may be compressed. Blank lines are skipped."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            yield parse_tree(line, f"{path}, line {number}")


def parse_tree(line: str, where: str) -> LabeledTree:
    """Parse one tree such as ``(3 (2 Mira) (3 (2 rides) (4 superbly)))``.

    The parser keeps its own stack instead of recursing, so that the depth of a tree is not limited.
    """

    tokens: list[str] = []
    nodes: list[tuple[int, int, str]] = []
    open_nodes: list[int] = []  # indices in ``nodes``
    symbols = [*SYMBOL.findall(line), END]
    for position, symbol in enumerate(symbols):
        is_label = position > 0 and symbols[position - 1] == "("
        if is_label:
            is_allowed = symbol not in ("(", ")", END)
        elif symbol == "(":
            is_allowed = bool(open_nodes) or not nodes
        elif symbol == ")":
            is_allowed = bool(open_nodes) and len(tokens) > nodes[open_nodes[-1]][0]
        elif symbol == END:
            is_allowed = bool(nodes) and not open_nodes
        else:  # a word is the only child of its node
            is_allowed = position > 1 and symbols[position - 2] == "(" and symbols[position + 1] == ")"
        if not is_allowed:
            found = repr(symbol) if symbol else "the end of the line"
            raise TextError(
                f"{where}: found {found} as symbol {position + 1}, expected one tree such as "
                "(3 (2 Mira) (3 (2 rides) (4 well)))."
            )
        if is_label:
            open_nodes.append(len(nodes))
            nodes.append((len(tokens), -1, symbol))
        elif symbol == ")":
            node = open_nodes.pop()
            nodes[node] = (nodes[node][0], len(tokens), nodes[node][2])
        elif symbol not in ("(", END):
            tokens.append(symbol)
    return LabeledTree(tokens, [TreeNode(*node) for node in nodes], where)
