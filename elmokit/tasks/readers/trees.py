"""Read labeled trees in brackets, the format of the Stanford Sentiment Treebank: one tree per line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from elmokit.errors import TextError
from elmokit.storage.text_files import read_lines

SYMBOL = re.compile(r"[()]|[^() \t]+")  # not \s: a no-break space is part of its word


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

    def invalid(reason: str) -> TextError:
        return TextError(f"{where}: {reason}. Expected one tree such as (3 (2 Mira) (3 (2 rides) (4 well))).")

    tokens: list[str] = []
    nodes: list[tuple[int, int, str]] = []
    open_nodes: list[int] = []  # indices in ``nodes``
    symbols = SYMBOL.findall(line)
    position = 0
    while position < len(symbols):
        symbol = symbols[position]
        if symbol == "(":
            if nodes and not open_nodes:
                raise invalid("more than one tree on the line")
            if position + 1 >= len(symbols) or symbols[position + 1] in "()":
                raise invalid("an opening bracket has no label")
            open_nodes.append(len(nodes))
            nodes.append((len(tokens), -1, symbols[position + 1]))
            position += 2
            continue
        if not open_nodes:
            raise invalid("unmatched closing bracket" if symbol == ")" else f"{symbol!r} is outside the tree")
        start, _, label = nodes[open_nodes[-1]]
        if symbol == ")":
            if len(tokens) == start:
                raise invalid(f"the node with label {label!r} contains no word")
            nodes[open_nodes.pop()] = (start, len(tokens), label)
        else:
            is_only_child = symbols[position - 2] == "(" and symbols[position + 1 : position + 2] == [")"]
            if not is_only_child:
                raise invalid(f"the word {symbol!r} is not the only child of its node")
            tokens.append(symbol)
        position += 1
    if open_nodes:
        raise invalid(f"unbalanced brackets: {len(open_nodes)} never closed")
    if not nodes:
        raise invalid("the line contains no tree")
    return LabeledTree(tokens, [TreeNode(*node) for node in nodes], where)
