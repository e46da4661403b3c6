"""Labelled trees in brackets, as the Stanford Sentiment Treebank has them: one tree a line, a label at every node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from elmokit.errors import TextError
from elmokit.io.text_files import read_lines

_PART = re.compile(r"[()]|[^() \t]+")  # a no-break space is part of its word


@dataclass(frozen=True)
class Node:
    """A phrase: tokens ``start`` to ``stop - 1`` of the sentence, and its label."""

    start: int
    stop: int
    label: str


@dataclass(frozen=True)
class LabelledTree:
    """A sentence and the labels of all its phrases, the root first, each before those inside it."""

    tokens: list[str]
    nodes: list[Node]
    where: str
    """File and line, for errors."""


def read_trees(path: str) -> Iterator[LabelledTree]:
    """The trees of a file (``.gz``, ``.xz`` too); blank lines are passed over.

    Raises:
        TextError: the file cannot be read, or a line is no tree.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            yield parse_tree(line, f"{path}, line {number}")


def parse_tree(line: str, where: str) -> LabelledTree:
    """One tree: ``(3 (2 Mira) (3 (2 rides) (4 superbly)))``.

    Raises:
        TextError: brackets do not match, or a node is neither ``(label word)`` nor ``(label node node ...)``.
    """

    def refuse(reason: str) -> TextError:
        return TextError(f"{where}: {reason}. Expected one tree such as (3 (2 Mira) (3 (2 rides) (4 well))).")

    tokens: list[str] = []
    nodes: list[tuple[int, int, str]] = []
    open_nodes: list[int] = []  # places in ``nodes``
    parts = _PART.findall(line)
    place = 0
    while place < len(parts):
        part = parts[place]
        if part == "(":
            if nodes and not open_nodes:
                raise refuse("more than one tree on the line")
            if place + 1 >= len(parts) or parts[place + 1] in "()":
                raise refuse("a bracket opens without a label")
            open_nodes.append(len(nodes))
            nodes.append((len(tokens), -1, parts[place + 1]))
            place += 2
            continue
        if not open_nodes:
            raise refuse("a bracket closes that was not opened" if part == ")" else f"{part!r} stands outside the tree")
        start, _, label = nodes[open_nodes[-1]]
        if part == ")":
            if len(tokens) == start:
                raise refuse(f"the node with label {label!r} holds no word")
            nodes[open_nodes.pop()] = (start, len(tokens), label)
        else:
            is_alone = parts[place - 2] == "(" and place + 1 < len(parts) and parts[place + 1] == ")"
            if not is_alone:
                raise refuse(f"the word {part!r} does not stand alone in a bracket with its label")
            tokens.append(part)
        place += 1
    if open_nodes:
        raise refuse(f"unbalanced brackets: {len(open_nodes)} never closed")
    if not nodes:
        raise refuse("there is no tree")
    return LabelledTree(tokens, [Node(*node) for node in nodes], where)
