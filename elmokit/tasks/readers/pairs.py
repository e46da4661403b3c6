"""Pairs of sentences with a label: SNLI's JSON lines, and tables with tabs and a head line (SNLI's text form, SICK)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from elmokit.errors import TextError
from elmokit.io.text_files import read_lines, split_tokens

NO_MAJORITY = "-"  # SNLI's annotators did not agree
# Names of the columns: SNLI's, SICK's from SemEval, SICK's full release.
FIRST = ("sentence1", "sentence_A")
SECOND = ("sentence2", "sentence_B")
LABEL = ("gold_label", "entailment_judgment", "entailment_label")
PARSES = ("sentence1_binary_parse", "sentence2_binary_parse")


@dataclass(frozen=True)
class Pair:
    """A line of the file."""

    first: str
    second: str
    label: str | None
    """In small letters; None where there is none."""
    parses: tuple[str, str] | None
    """SNLI's binary parses, which hold the tokens."""
    where: str


def read_pairs(path: str) -> Iterator[Pair]:
    """The pairs of a file (``.gz``, ``.xz`` too) but those without a majority label; JSON if it begins with a brace.

    Raises:
        TextError: the file cannot be read, a line is broken JSON or has another number of columns, or something is
            missing in it.
    """
    head: list[str] | None = None
    is_json: bool | None = None
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if is_json is None:
            is_json = line.lstrip().startswith("{")
        if not is_json and head is None:
            head = _head(line, where)
            continue
        content = parse_object(line, where) if is_json else _row(line, head or [], where)
        pair = pair_of(content, where)
        if pair.label is None:
            raise TextError(f"{where}: there is no label; expected {' or '.join(LABEL)}.")
        if pair.label != NO_MAJORITY:
            yield pair


def pair_of(content: dict[str, Any], where: str) -> Pair:
    """A pair from named values.

    Raises:
        TextError: a sentence is missing, or something is no text.
    """
    first, second = _value(content, FIRST, where), _value(content, SECOND, where)
    if first is None or second is None:
        wanted = FIRST if first is None else SECOND
        raise TextError(
            f"{where}: there is no {' or '.join(wanted)}; found {', '.join(map(str, content)) or 'nothing'}."
        )
    label = _value(content, LABEL, where)
    one, two = (_value(content, (name,), where) for name in PARSES)
    parses = None if one is None or two is None else (one, two)
    return Pair(first, second, None if label is None else label.lower(), parses, where)


def parse_object(line: str, where: str) -> dict[str, Any]:
    """A line of JSON that must be an object.

    Raises:
        TextError: it is not.
    """
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TextError(f"{where}: broken JSON ({error}). Expected one object a line.") from None
    if not isinstance(content, dict):
        raise TextError(f"{where}: expected a JSON object with named values, found {line.strip()[:40]!r}.")
    return content


def leaves(parse: str) -> list[str]:
    """The tokens of a binary parse: what is left when its brackets are dropped."""
    return [part for part in split_tokens(parse) if part not in ("(", ")")]


def _value(content: dict[str, Any], names: tuple[str, ...], where: str) -> str | None:
    for name in names:
        if name in content:
            value = content[name]
            if not isinstance(value, str):
                raise TextError(f"{where}: {name} is {value!r}; expected text.")
            return value
    return None


def _head(line: str, where: str) -> list[str]:
    names = line.split("\t")
    for wanted in (FIRST, SECOND, LABEL):
        if not set(wanted) & set(names):
            raise TextError(
                f"{where}: the head line names no {' or '.join(wanted)}. Expected JSON lines, or a table with tabs "
                "between its columns and their names on the first line."
            )
    return names


def _row(line: str, head: list[str], where: str) -> dict[str, Any]:
    columns = line.split("\t")
    # SNLI's own tables leave trailing empty columns out
    if len(columns) > len(head) or len(columns) <= max(
        head.index(name) for name in head if name in FIRST + SECOND + LABEL
    ):
        raise TextError(f"{where}: {len(columns)} columns, expected {len(head)}, as in the head line.")
    return dict(zip(head, columns, strict=False))
