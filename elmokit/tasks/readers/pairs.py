"""Read labeled pairs of sentences: JSON lines (SNLI), and tab-separated tables with a header (SNLI, SICK)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

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
NAMES = (*FIRST, *SECOND, *LABEL, *PARSES)
_JsonPair = msgspec.defstruct("_JsonPair", [(name, str | None, None) for name in NAMES])


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
        values = _parse_json(line, where) if is_json else _parse_row(line, header or [], where)
        pair = _pair_of(values, where, (FIRST, SECOND, LABEL))
        if pair.label != NO_MAJORITY:
            yield pair


def parse_pair(line: str, where: str) -> RawPair:
    """Parse a pair in JSON, with or without a label."""
    return _pair_of(_parse_json(line, where), where, (FIRST, SECOND))


def tokens_of_parse(parse: str) -> list[str]:
    """Return the tokens of a binary parse, which is the sentence with brackets added."""
    return [part for part in split_tokens(parse) if part not in ("(", ")")]


def _parse_json(line: str, where: str) -> dict[str, str | None]:
    values = parse_json(line, where, _JsonPair, "one JSON object per line with two sentences")
    return {name: getattr(values, name) for name in NAMES}


def _pair_of(values: Mapping[str, str | None], where: str, needed: Sequence[tuple[str, ...]]) -> RawPair:
    def get(*names: str) -> str | None:
        return next((value for name in names if (value := values.get(name)) is not None), None)

    for names in needed:
        value = get(*names)
        if value is None or (names is LABEL and not value.strip()):
            raise TextError(f"{where}: the pair has no {' or '.join(names)}.")
    label, one, two = get(*LABEL), get(PARSES[0]), get(PARSES[1])
    parses = None if one is None or two is None else (one, two)
    return RawPair(get(*FIRST) or "", get(*SECOND) or "", None if label is None else label.lower(), parses, where)


def _parse_header(line: str, where: str) -> list[str]:
    names = line.split("\t")
    known = [name for name in names if name in NAMES]
    if not all(set(choices) & set(known) for choices in (FIRST, SECOND, LABEL)) or len(set(known)) < len(known):
        expected = ", ".join(" or ".join(choices) for choices in (FIRST, SECOND, LABEL))
        raise TextError(
            f"{where}: expected JSON lines, or a header that names each of these columns once, separated by tabs: "
            f"{expected}."
        )
    return names


def _parse_row(line: str, header: list[str], where: str) -> dict[str, str | None]:
    columns = line.split("\t")
    last_needed = max(header.index(name) for name in header if name in FIRST + SECOND + LABEL)
    if not last_needed < len(columns) <= len(header):  # SNLI's own tables omit trailing empty columns
        raise TextError(f"{where}: {count_of(len(columns), 'column')}, expected {len(header)}, as in the header.")
    return dict(zip(header, columns, strict=False))
