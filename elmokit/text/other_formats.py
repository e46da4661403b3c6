"""Refuse texts in other formats, such as markup and tables.

Read as sentences, such files would give plausible numbers: tags, identifiers and brackets become tokens. A format is
refused only if most lines have its structure, because ordinary text has some tabs, brackets and ``<3``, too.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from elmokit.errors import TextError

HEAD_LINES = 100
"""Number of lines that are checked for the format."""
HEAD_CHARACTERS = 1 << 20
"""Number of characters after which fewer lines are checked."""
JSON = "JSON"
TABLE = "a table"


def refuse_other_formats(name: str, head: Iterable[str], accepted: Sequence[str] = ()) -> None:
    """Raise a TextError if the first lines of a text are in another format, unless it is ``accepted``."""
    lines = [line.strip() for line in head if line.strip()]
    if not lines:
        return
    for format_, matches, advice in _FORMATS:
        if matches(lines):
            if format_ not in accepted:
                raise TextError(f"{name} looks like {format_}, not like text with one sentence per line. {advice}")
            return


def _most(lines: Sequence[str], matches: Callable[[str], object]) -> bool:
    n_matching = sum(1 for line in lines if matches(line))
    return 2 * n_matching > len(lines)


_CONLLU_LINE = re.compile(r"\d+(?:[-.]\d+)?(?:\t[^\t]+){9}|# (?:sent_id|text) = .*")
_MARKUP_START = re.compile(r"<(?:!doctype\s|\?xml\s|html(?:\s[^<>]*)?>\s*(?:<|$))", re.I)
# Markdown can begin with some HTML elements, too.
_ELEMENT = re.compile(r"<(?!(?:a|p|div|img|h\d|center|picture|details)\s)[a-z][\w:.-]*\s[^<>]*=\s*[\"'][^<>]*>", re.I)
_TAG = re.compile(r"<(/?)([A-Za-z][\w:.-]*)(\s[^<>]*=[^<>]*)?/?>")
_JSON_OBJECT = re.compile(r'\{\s*"[^"]*"\s*:')
# A text can begin with `[ Music ]` or `[1]`.
_JSON_START = re.compile(r'\{\s*"[^"]*"\s*:|\[\s*(?:\{\s*"|"(?:[^"\\]|\\.)*"\s*[,\]])')


def _is_conllu(lines: Sequence[str]) -> bool:
    return _most(lines, _CONLLU_LINE.fullmatch)


def _is_markup(lines: Sequence[str]) -> bool:
    if any(map(_MARKUP_START.match, lines[:3])) or _ELEMENT.fullmatch(lines[0]):
        return True
    # Ordinary texts have words such as `<user>` and `<unk>`, and sentence boundaries, `<s> ... </s>`.
    tags_of = [list(_TAG.finditer(line)) for line in lines]
    closed = {tag[2] for tags in tags_of for tag in tags if tag[1]} - {"s", "S"}
    n_marked = 0
    for line, tags in zip(lines, tags_of, strict=True):
        has_markup = any(tag[2] in closed or tag[3] for tag in tags)
        at_edge = line[0] == "<" or line[-1] == ">"
        if at_edge and has_markup:
            n_marked += 1
    return 2 * n_marked > len(lines)


def is_json_object(line: str) -> bool:
    """Check whether a line is a JSON object rather than a sentence that begins with a brace."""
    return _JSON_OBJECT.match(line.lstrip()) is not None


def _is_json(lines: Sequence[str]) -> bool:
    return _JSON_START.match(" ".join(lines)) is not None


def _is_table(lines: Sequence[str]) -> bool:
    if len(lines) < 2 or not _most(lines, lambda line: "\t" in line):
        return False
    # Tabs can separate the tokens of a text. Then their number varies between lines, and there are no spaces.
    n_tabs = [line.count("\t") for line in lines]
    n_equal = sum(1 for one, other in pairwise(n_tabs) if one == other)
    has_columns = 2 * n_equal >= len(lines) - 1
    return has_columns or _most(lines, lambda line: " " in line)


def _is_csv(lines: Sequence[str]) -> bool:
    return any(_has_separators(lines, separator) for separator in ",;")


def _has_separators(lines: Sequence[str], separator: str) -> bool:
    # The comma of "10,000" in a sentence does not separate cells.
    in_number = re.compile(rf"(?<=\d){separator}(?=\d)")
    kept = []
    for line in lines:
        without = in_number.sub("", line) if " " in line else line
        kept.append(line if separator in without else without)
    try:
        rows = list(csv.reader(kept, delimiter=separator))
    except csv.Error:
        return False
    width, n_rows = Counter(map(len, rows)).most_common(1)[0]
    n_tight = sum(1 for row in rows if _has_cells(row))
    is_large = (len(rows) - 1) * (width - 1) >= 2
    is_regular = 10 * min(n_rows, n_tight) >= 9 * len(rows)
    return is_large and is_regular


def _has_cells(row: Sequence[str]) -> bool:
    # In sentences, commas are followed by a space or the line end, and semicolons can start a smiley.
    others = [cell for cell in row[1:] if cell]
    for cell in others:
        if cell[0] <= " " or not any(map(str.isalnum, cell)):
            return False
    return bool(others)


_RESIDUES = re.compile(r"[A-Z*.-]+|[ACGTUNacgtun.-]+")


def _is_fasta(lines: Sequence[str]) -> bool:
    if lines[0][0] != ">":
        return False
    sequences = [line for line in lines if line[0] not in ">;"]
    return bool(sequences) and all(map(_RESIDUES.fullmatch, sequences))


def _is_fastq(lines: Sequence[str]) -> bool:
    if len(lines) < 4:
        return False
    header, residues, repeated, qualities = lines[:4]
    if header[0] != "@" or repeated not in ("+", f"+{header[1:]}"):
        return False
    return len(residues) == len(qualities) and _RESIDUES.fullmatch(residues) is not None


_TIMES = re.compile(r"(?:\d+:)?\d+:\d\d[.,]\d{3}\s+-->\s+(?:\d+:)?\d+:\d\d[.,]\d{3}(?:\s.*)?")


def _is_subtitles(lines: Sequence[str]) -> bool:
    # WebVTT can have a header and notes before the first timestamps, each of which can have a number or name.
    if not lines[0].startswith("WEBVTT"):
        lines = lines[:3]
    return any(map(_TIMES.fullmatch, lines))


def _is_arpa(lines: Sequence[str]) -> bool:
    return "\\data\\" in lines and any(line.startswith("ngram 1=") for line in lines)


_EXTRACT = "Extract its text first."
_FORMATS: tuple[tuple[str, Callable[[Sequence[str]], bool], str], ...] = (
    ("CoNLL-U", _is_conllu, "To read its words, rename it to end in .conllu."),
    (JSON, _is_json, _EXTRACT),
    ("HTML or XML", _is_markup, _EXTRACT),
    (
        "FASTA",
        _is_fasta,
        "Pass --text-kind fasta, if the command supports it, or write one sequence per line with spaces between its "
        "residues.",
    ),
    ("FASTQ", _is_fastq, "Write one sequence per line with spaces between its residues."),
    (
        "subtitles",
        _is_subtitles,
        "Extract their text: grep -v -e '-->' -e '^[0-9]*$' -e '^WEBVTT' OLD > NEW",
    ),
    ("a language model in the ARPA format", _is_arpa, "Use the text that it was built from."),
    (
        TABLE,
        _is_table,
        "Select the text column, as with cut -f 2; or, if tabs separate tokens, replace them with spaces: tr '\\t' ' '",
    ),
    ("a table of comma-separated values", _is_csv, "Select the text column first."),
)
