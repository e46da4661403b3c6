"""Read labeled pairs of sentences: JSON lines (SNLI), and tab-separated tables with a header (SNLI, SICK)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from elmokit.errors import TextError
from elmokit.storage.progress import count_of
from elmokit.storage.text_files import read_lines, split_tokens
from elmokit.tasks.readers.json_text import parse_json

NO_MAJORITY = "-"  # SNLI: the annotators did not agree
# Names of the columns in SNLI, in SICK's SemEval release, and in SICK's full release.
FIRST = ("sentence1", "sentence_A")
SECOND = ("sentence2", "sentence_B")
LABEL = ("gold_label", "entailment_judgment", "entailment_label")
PARSES = ("sentence1_binary_parse", "sentence2_binary_parse")


@dataclass(frozen=True)
class RawPair:
    """A pair of sentences before tokenization."""

    first: str
    second: str
    label: str | None
    """In lower case; None if the file has no labels."""
    parses: tuple[str, str] | None
    """SNLI's binary parses, which contain the tokens."""
    where: str
    """File and line, for error messages."""


def read_pairs(path: str) -> Iterator[RawPair]:
    """Read the pairs of a file, which may be compressed; JSON lines if it starts with a brace, a table otherwise.

    Pairs without a majority label are skipped, as in all published work on SNLI.
    """
    header: list[str] | None = None
    is_json: bool | None = None
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if is_json is None:
            is_json = line.lstrip().startswith("{")
        if not is_json and header is None:
            header = _parse_header(line, where)
            continue
        pair = parse_pair(line, where) if is_json else _pair_from_values(_parse_row(line, header or [], where), where)
        if pair.label is None:
            raise TextError(f"{where}: no label. Expected the key {' or '.join(LABEL)}.")
        if pair.label != NO_MAJORITY:
            yield pair


def parse_pair(line: str, where: str) -> RawPair:
    """Parse a pair in JSON, with or without a label."""
    return _pair_from_values(parse_json(line, where, dict[str, Any], "one JSON object per line"), where)


def tokens_of_parse(parse: str) -> list[str]:
    """Return the tokens of a binary parse, which is the sentence with brackets added."""
    return [part for part in split_tokens(parse) if part not in ("(", ")")]


def _pair_from_values(values: dict[str, Any], where: str) -> RawPair:
    first, second = _first_of(values, FIRST, where), _first_of(values, SECOND, where)
    if first is None or second is None:
        missing = FIRST if first is None else SECOND
        raise TextError(f"{where}: no {' or '.join(missing)}. Found {', '.join(map(str, values)) or 'nothing'}.")
    label = _first_of(values, LABEL, where)
    if label is not None and not label.strip():
        raise TextError(f"{where}: the label is empty. Write it, or {NO_MAJORITY} if there is none.")
    one, two = (_first_of(values, (name,), where) for name in PARSES)
    parses = None if one is None or two is None else (one, two)
    return RawPair(first, second, None if label is None else label.lower(), parses, where)


def _first_of(values: dict[str, Any], names: tuple[str, ...], where: str) -> str | None:
    for name in names:
        if (value := values.get(name)) is not None:
            if not isinstance(value, str):
                raise TextError(f"{where}: {name} is {value!r}. Expected a string.")
            return value
    return None


def _parse_header(line: str, where: str) -> list[str]:
    names = line.split("\t")
    for choices in (FIRST, SECOND, LABEL):
        if not set(choices) & set(names):
            raise TextError(
                f"{where}: the header has no column {' or '.join(choices)}. Expected JSON lines, or a tab-separated "
                "table with the names of its columns on the first line."
            )
    for name in (*FIRST, *SECOND, *LABEL, *PARSES):
        if names.count(name) > 1:
            raise TextError(f"{where}: the header names the column {name!r} twice. Rename or remove one of them.")
    return names


def _parse_row(line: str, header: list[str], where: str) -> dict[str, Any]:
    columns = line.split("\t")
    last_needed = max(header.index(name) for name in header if name in FIRST + SECOND + LABEL)
    if not last_needed < len(columns) <= len(header):  # SNLI's own tables omit trailing empty columns
        raise TextError(f"{where}: {count_of(len(columns), 'column')}, expected {len(header)}, as in the header.")
    return dict(zip(header, columns, strict=False))
