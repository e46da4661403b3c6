"""Tell sentences from other formats by the first lines of a file: CoNLL-U is read, markup and columns are refused.

Read as sentences, such a file gives numbers that look right: tags, identifiers and brackets become tokens. A format is
refused only where most lines have its structure, because honest text has a few tabs, brackets and ``<3``.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from elmokit.errors import ConfigError, TextError
from elmokit.storage.progress import count_of

CONLLU = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
PLUS = "# global.columns ="  # the first line of CoNLL-U Plus names its columns
CONLLU_SUFFIXES = (".conllu", ".conllup")
NOT_GIVEN = "_"
HEAD_LINES = 100
"""Lines that show the format of a file."""
HEAD_CHARACTERS = 1 << 20
"""After as many characters, fewer lines do."""
JSON = "JSON"
TABLE = "a table"


def read_conllu_rows(
    path: str | Path, lines: Iterable[str], *wanted: str
) -> Iterator[tuple[int, list[tuple[str, ...]]]]:
    """Yield the sentences of CoNLL-U or CoNLL-U Plus: the line of the first word, and for each word the wanted columns.

    Multiword tokens (``1-2``) and empty nodes (``8.1``) are skipped.
    """
    names = list(CONLLU)
    columns: list[int] = []
    rows: list[tuple[str, ...]] = []
    first = 0
    for number, line in enumerate(lines, start=1):
        if number == 1:
            if line.startswith(PLUS):
                names = line.removeprefix(PLUS).split()
            columns = [_column(path, names, name) for name in wanted]
        if line.startswith("#") and (not rows or names[0] == "ID"):  # otherwise it can be the word "#"
            continue
        if not line.strip():
            if rows:
                yield first, rows
            rows = []
            continue
        cells = line.split("\t")
        if len(cells) != len(names):
            raise TextError(
                f"{path}, line {number}: {count_of(len(cells), 'column')}, expected {len(names)} separated by tabs."
            )
        if "ID" not in names or cells[names.index("ID")].isdigit():
            first = first if rows else number
            rows.append(tuple(cells[column] for column in columns))
    if rows:
        yield first, rows


def _column(path: str | Path, names: Sequence[str], wanted: str) -> int:
    for index, name in enumerate(names):
        if name.lower() == wanted.lower():
            return index
    raise ConfigError(f"{path} has no column {wanted!r}; its columns are {', '.join(names)}.")


def conllu_lines(path: str | Path, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield each sentence of CoNLL-U as a line of words, and the number of the line of its first word."""
    for number, rows in read_conllu_rows(path, lines, "FORM"):
        words = [word for (word,) in rows]
        if len(words) > 1 and set(words) == {NOT_GIVEN}:
            raise TextError(f"{path}, line {number}: all words are '_', so this treebank has no text. Add its text.")
        # A word such as "10 000" has a space, which stays inside of its token.
        yield number, " ".join(word.replace(" ", "\u00a0") for word in words)


def refuse_other_formats(name: str, head: Iterable[str], accepted: Sequence[str] = ()) -> None:
    """Raise a TextError if the first lines of a text have another format; ``accepted`` formats are let through."""
    lines = [line.strip() for line in head if line.strip()]
    format_, advice = next(((one, advice) for one, matches, advice in _FORMATS if lines and matches(lines)), (None, ""))
    if format_ is not None and format_ not in accepted:
        raise TextError(f"{name} looks like {format_}, not like text with one sentence per line. {advice}")


def _most(lines: Sequence[str], matches: Callable[[str], object]) -> bool:
    return 2 * sum(map(bool, map(matches, lines))) > len(lines)


_CONLLU_LINE = re.compile(r"\d+(?:[-.]\d+)?(?:\t[^\t]+){9}|# (?:sent_id|text) = .*")


def _is_conllu(lines: Sequence[str]) -> bool:
    return _most(lines, _CONLLU_LINE.fullmatch)


_MARKUP_START = re.compile(r"<(?:!doctype\s|\?xml\s|html(?:\s[^<>]*)?>\s*(?:<|$))", re.I)
# Markdown begins with some of HTML's elements, too.
_ELEMENT = re.compile(r"<(?!(?:a|p|div|img|h\d|center|picture|details)\s)[a-z][\w:.-]*\s[^<>]*=\s*[\"'][^<>]*>", re.I)
_TAG = re.compile(r"<(/?)([A-Za-z][\w:.-]*)(\s[^<>]*=[^<>]*)?/?>")


def _is_markup(lines: Sequence[str]) -> bool:
    if any(map(_MARKUP_START.match, lines[:3])) or _ELEMENT.fullmatch(lines[0]):
        return True
    # `<user>` and `<unk>` are words of honest texts, and `<s> ... </s>` sentence boundaries.
    closed = {tag[2] for line in lines for tag in _TAG.finditer(line) if tag[1]} - {"s", "S"}
    at_edge = [line for line in lines if line[0] == "<" or line[-1] == ">"]
    n_marked = sum(any(tag[2] in closed or tag[3] for tag in _TAG.finditer(line)) for line in at_edge)
    return 2 * n_marked > len(lines)


_JSON_PART = re.compile(r"[\[\]{},\s]*(?:\"(?:[^\"\\]|\\.)*\"\s*(?::.*)?|-?\d[\d.eE+-]*|true|false|null)?[\[\]{},\s]*")


def _is_json(lines: Sequence[str]) -> bool:
    if lines[0][0] not in "[{":
        return False
    if _most(lines, _is_json_value):
        return True
    # The lines of a value that is written on several; a text can begin with `[ Music ]`.
    has_values = any(line.strip("[]{}, ") for line in lines)
    return has_values and lines[0].strip("[{ ")[:1] in ("", '"') and all(map(_JSON_PART.fullmatch, lines))


def _is_json_value(line: str) -> bool:
    for text in (line, line.lstrip("[ ").rstrip("], ")):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        # `[ 1 ]` can be a footnote.
        if isinstance(value, dict) or (isinstance(value, list) and value and not isinstance(value[0], int | float)):
            return bool(value)
    return False


def _is_table(lines: Sequence[str]) -> bool:
    cells = [line.split("\t") for line in lines]
    pairs = list(pairwise(map(len, cells)))
    # Tabs can separate the tokens of a text. Then their number changes from line to line, and there are no spaces.
    has_columns = 2 * sum(one == other for one, other in pairs) >= len(pairs)
    return bool(pairs) and _most(lines, lambda line: "\t" in line) and (has_columns or _most(lines, lambda s: " " in s))


def _is_csv(lines: Sequence[str]) -> bool:
    return any(_has_separators(lines, separator) for separator in ",;")


def _has_separators(lines: Sequence[str], separator: str) -> bool:
    # "10,000" in a sentence is no border of cells.
    numbers = re.compile(rf"(?<=\d){separator}(?=\d)")
    without = [numbers.sub("", line) if " " in line else line for line in lines]
    kept = [new if separator not in new else line for line, new in zip(lines, without, strict=True)]
    try:
        rows = list(csv.reader(kept, delimiter=separator))
    except csv.Error:
        return False
    width, n_rows = Counter(map(len, rows)).most_common(1)[0]
    n_tight = sum(map(_has_cells, rows))
    return (len(rows) - 1) * (width - 1) >= 2 and 10 * min(n_rows, n_tight) >= 9 * len(rows)


def _has_cells(row: Sequence[str]) -> bool:
    # In a sentence, a space or the end of the line follows a comma, and a smiley begins with a semicolon.
    others = list(filter(None, row[1:]))
    return bool(others) and all(cell[0] > " " and any(map(str.isalnum, cell)) for cell in others)


_LABEL = re.compile(r"O|[BIESLU]-\S+|[A-Z]{2,5}\$?")
_NUMBER = re.compile(r"-?\d*\.?\d+(?:e-?\d+)?", re.I)


def _is_columns(lines: Sequence[str]) -> bool:
    if lines[0].startswith(("-DOCSTART-", "#begin document")):
        return True
    rows = [line.split() for line in lines]
    n_alike = sum(len(row) == len(other) > 1 for row, other in pairwise(rows))
    has_words = any(row[0] != row[0].upper() for row in rows)
    n_labeled = sum(map(_is_labeled, rows)) if has_words else 0
    n_numbers = sum(len(row) > 3 and all(map(_NUMBER.fullmatch, row[1:])) for row in rows)
    # 1 to n in each sentence, as in the shared tasks before CoNLL-U
    numbers = [0, *(int(row[0]) if len(row) > 5 and row[0].isdecimal() else -1 for row in rows)]
    n_counted = sum(other in (1, one + 1) for one, other in pairwise(numbers) if other > 0)
    n_sure = 10 * max(n_labeled, n_numbers, n_counted)
    return len(rows) > 2 and 10 * n_alike >= 8 * (len(rows) - 1) and n_sure >= 9 * len(rows)


def _is_labeled(row: Sequence[str]) -> bool:
    # The label of a punctuation mark can be the mark, which is also how a sentence ends.
    return _LABEL.fullmatch(row[-1]) is not None or not any(map(str.isalnum, "".join(row)))


_NODE = re.compile(r"\((?:\s*\()?[A-Z\d][A-Z\d$|=-]*(?:\s|$)")


def _is_tree(lines: Sequence[str]) -> bool:
    return _most(lines, _NODE.match) and sum(line.count("(") for line in lines) > len(lines) + 1


def _is_fasta(lines: Sequence[str]) -> bool:
    sequences = [line for line in lines if not line.startswith(">")]
    return (
        re.match(r">\S", lines[0]) is not None
        and bool(sequences)
        and all(re.fullmatch(r"[A-Z]{5,}\*?", line) for line in sequences)
    )


_TIME = re.compile(r"(?:\d+:)?\d\d:\d\d[.,]\d{3} --> ")


def _is_subtitles(lines: Sequence[str]) -> bool:
    return lines[0].startswith("WEBVTT") or any(map(_TIME.match, lines[:3]))


def _is_latex(lines: Sequence[str]) -> bool:
    code = (line for line in lines if line[0] != "%")
    return next(code, "").startswith((r"\documentclass", r"\begin{document}"))


_SENTENCES = "Write the words of each sentence on one line"
_EXTRACT = "Extract its text first."
_COLUMN = "Select the column of the text"
_FORMATS: tuple[tuple[str, Callable[[Sequence[str]], bool], str], ...] = (
    ("CoNLL-U", _is_conllu, "Give it a name that ends in .conllu: then its words are read."),
    (JSON, _is_json, _EXTRACT),
    ("HTML or XML", _is_markup, _EXTRACT),
    (TABLE, _is_table, f"{_COLUMN}: cut -f 2; or, if tabs separate tokens, replace them by spaces: tr '\\t' ' '"),
    ("a table of comma-separated values", _is_csv, f"{_COLUMN} first."),
    ("columns of words and their tags or numbers", _is_columns, f"{_SENTENCES}, without the other columns."),
    ("syntax trees", _is_tree, f"{_SENTENCES}, without the brackets."),
    ("FASTA", _is_fasta, "elmokit embed reads it with --fasta."),
    ("subtitles", _is_subtitles, _EXTRACT),
    ("LaTeX", _is_latex, _EXTRACT),
)
