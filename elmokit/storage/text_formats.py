"""Tell sentences from other formats: CoNLL-U is read, markup and tables are refused, and raw text is warned of.

Read as sentences, such a file gives numbers that look right: tags, identifiers and brackets become tokens. A format is
refused only where most lines have its structure, because honest text has a few tabs, brackets and ``<3``.
"""

from __future__ import annotations

import csv
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

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
            columns = [find_column(path, names, name) for name in wanted]
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


def find_column(path: str | Path, names: Sequence[str], wanted: str) -> int:
    """Return the index of a column by its name, in any case unless there is one in the same case."""
    if wanted in names:
        return names.index(wanted)
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
_MARKUP_START = re.compile(r"<(?:!doctype\s|\?xml\s|html(?:\s[^<>]*)?>\s*(?:<|$))", re.I)
# Markdown begins with some of HTML's elements, too.
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
    # `<user>` and `<unk>` are words of honest texts, and `<s> ... </s>` sentence boundaries.
    closed = {tag[2] for line in lines for tag in _TAG.finditer(line) if tag[1]} - {"s", "S"}
    at_edge = [line for line in lines if line[0] == "<" or line[-1] == ">"]
    n_marked = sum(any(tag[2] in closed or tag[3] for tag in _TAG.finditer(line)) for line in at_edge)
    return 2 * n_marked > len(lines)


def is_json_object(line: str) -> bool:
    """Say whether a line is one of JSON lines rather than a sentence that begins with a brace."""
    return _JSON_OBJECT.match(line.lstrip()) is not None


def _is_json(lines: Sequence[str]) -> bool:
    return _JSON_START.match(" ".join(lines)) is not None


def _is_table(lines: Sequence[str]) -> bool:
    pairs = list(pairwise(line.count("\t") for line in lines))
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


_RESIDUES = re.compile(r"[A-Z*.-]+|[ACGTUNacgtun.-]+")


def _is_fasta(lines: Sequence[str]) -> bool:
    others = [line for line in lines if line[0] not in ">;"]
    return lines[0][0] == ">" and bool(others) and all(map(_RESIDUES.fullmatch, others))


def _is_fastq(lines: Sequence[str]) -> bool:
    if len(lines) < 4 or lines[0][0] != "@" or lines[2] not in ("+", f"+{lines[0][1:]}"):
        return False
    return len(lines[1]) == len(lines[3]) and _RESIDUES.fullmatch(lines[1]) is not None


_TIMES = re.compile(r"(?:\d+:)?\d+:\d\d[.,]\d{3}\s+-->\s+(?:\d+:)?\d+:\d\d[.,]\d{3}(?:\s.*)?")


def _is_subtitles(lines: Sequence[str]) -> bool:
    # WebVTT can have a header and notes before the first times, and each can have a number or a name.
    return any(map(_TIMES.fullmatch, lines if lines[0].startswith("WEBVTT") else lines[:3]))


def _is_arpa(lines: Sequence[str]) -> bool:
    return "\\data\\" in lines and any(line.startswith("ngram 1=") for line in lines)


_EXTRACT = "Extract its text first."
_FORMATS: tuple[tuple[str, Callable[[Sequence[str]], bool], str], ...] = (
    ("CoNLL-U", _is_conllu, "Give it a name that ends in .conllu: then its words are read."),
    (JSON, _is_json, _EXTRACT),
    ("HTML or XML", _is_markup, _EXTRACT),
    (
        "FASTA",
        _is_fasta,
        "Pass --fasta, if the command has it, or write one sequence per line with spaces between its residues.",
    ),
    ("FASTQ", _is_fastq, "Write one sequence per line with spaces between its residues."),
    (
        "subtitles",
        _is_subtitles,
        "Extract their text: grep -v -e '-->' -e '^[0-9]*$' -e '^WEBVTT' OLD > NEW",
    ),
    ("a language model in the ARPA format", _is_arpa, "Give the text that it was made of."),
    (
        TABLE,
        _is_table,
        "Select the column of the text: cut -f 2; or, if tabs separate tokens, replace them by spaces: tr '\\t' ' '",
    ),
    ("a table of comma-separated values", _is_csv, "Select the column of the text first."),
)

MAX_CHARACTERS = 20
"""Tokens with more characters of these scripts are taken for unsplit text. Words in them are rarely longer than ten."""
# Japanese, Chinese, Thai, Lao, Burmese and Khmer
_UNSPLIT = re.compile(
    "[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\u0e01-\u0e5b\u0e81-\u0edf\u1000-\u109f\u1780-\u17dd]"
)
_MARKS = frozenset(
    [*".,;:?!\"'()", "''", "``", "--", "...", "-LRB-", "-RRB-", *"\u2026\u201c\u201d\u00ab\u00bb\u060c\u061f\u3002"]
)
_SENTENCE_END = re.compile(r"[.!?\u2026]")
_ENDS_SENTENCE = re.compile(r"[.!?\u2026][\W_]*$")
_ATTACHED = re.compile(r"[^\W\d_]{2,}[.,;:?!][\"')\u2019\u201d]*")
MIN_ATTACHED = 3
"""Tokens such as "mat." that make a text look raw; a text of few sentences needs one."""


def check_tokens(name: str, sentences: Iterable[Sequence[str]], is_split: bool = False, refuse: bool = False) -> None:
    """Warn if the first sentences of a text look as if they were not split into tokens, or raise a TextError.

    Split at spaces, a line of Japanese is one token, and in English "mat." is read as one word. Nothing fails, but the
    vectors mean little. Tokenized text has punctuation marks as tokens of their own, so the first sentence with
    punctuation decides. None of 49 tokenized files in English, Turkish and Uyghur is taken for raw text.

    Args:
        name: The name of the text.
        sentences: The first sentences of the text. There are at most ``HEAD_LINES`` of them, unless it is split.
        is_split: Whether a tokenizer has split it: then punctuation is not looked at.
        refuse: Raise the error, if it is certain: a token such as "mat." ends a sentence, or there are several.
    """
    attached: list[str] = []
    n_sentences = 0
    is_certain = False
    for tokens in sentences:
        n_sentences += 1
        for token in tokens:
            if len(token) > MAX_CHARACTERS and len(_UNSPLIT.findall(token)) > MAX_CHARACTERS:
                what = f"{token[:10]!r}..., {len(token)} characters, is read as one token"
                _report(name, what, "--raw --language CODE", refuse and not is_split)
                return
        is_split = is_split or not _MARKS.isdisjoint(tokens)
        if not is_split:
            attached += [token for token in tokens if _ATTACHED.fullmatch(token)]
            is_certain = is_certain or any(map(_ENDS_SENTENCE.search, tokens[-1:]))
        if len(attached) >= MIN_ATTACHED:
            break
    if len(attached) >= MIN_ATTACHED or (attached and not is_split and n_sentences < HEAD_LINES):
        is_certain = is_certain or len(attached) >= MIN_ATTACHED
        _report(name, f"{attached[0]!r} is read as one token", "--raw", refuse and is_certain)


def _report(name: str, what: str, flags: str, refuse: bool) -> None:
    problem = f"{name} looks like raw text: {what}."
    if refuse:
        raise TextError(f"{problem} Pass {flags} to split it, or --tokenized to read it as it is.")
    # One location for all readers, so that a text that is read twice is reported once.
    warnings.warn(
        f"{problem} Pass {flags}, if the command has it, or separate its tokens by spaces, as elmokit.tokenize does.",
        stacklevel=1,
    )


Wrapped = Literal["auto", "yes", "no"]
"""Whether the lines of raw text are wrapped, as in e-mail or a book: then a paragraph has several, and ends at a blank
line. "auto" decides by the first lines, and says so where some lines go on with the next."""


@dataclass(frozen=True)
class RawSplitter:
    """Splits a line of raw text, or a paragraph of wrapped lines, into tokenized sentences."""

    split: Callable[[str], list[list[str]]]
    wrapped: Wrapped = "auto"

    def __call__(self, line: str) -> list[list[str]]:
        """Return the sentences of a line."""
        return self.split(line)


MIN_WIDTH, MIN_CONTINUED = 40, 2
"""The shortest lines of wrapped text, and how many of its lines go on with a small letter."""
MIN_CONTINUED_SHARE = 0.05
"""Of lines that are not joined, how many must go on with a small letter to be reported."""


def are_wrapped(name: str, lines: Sequence[str]) -> bool:
    """Decide by the first lines of raw text whether they are wrapped, and warn if they are, or may be.

    Most lines of wrapped text end inside a sentence, and there is no room for the next word: the line would be longer
    than nearly all others. Or most go on with a small letter, in a text whose sentences begin with capitals.
    """
    lines = [line.strip() for line in lines]
    pairs = _lines_with_the_next(lines)
    inside = [pair for pair in pairs if not _ENDS_SENTENCE.search(pair[0])]
    continued = [pair for pair in inside if pair[1][0].islower()]
    is_prose = any(map(_SENTENCE_END.search, lines))
    if not continued or not is_prose:
        return False
    if _are_most_full(lines, pairs, inside) or _most_go_on(lines, pairs, continued):
        warnings.warn(
            f"The lines of {name} are wrapped, so they are joined: a blank line ends a paragraph. "
            'If they are not, pass --wrapped no (wrapped="no").',
            stacklevel=1,
        )
        return True
    if _sentences_begin_with_capitals(lines) and len(continued) >= MIN_CONTINUED_SHARE * len(pairs):
        line, after = continued[0]
        warnings.warn(
            f"The lines of {name} are read one by one, but {line[-20:]!r} may go on with {after[:20]!r}. If they are "
            'wrapped, pass --wrapped yes (wrapped="yes"), which joins them; if not, no.',
            stacklevel=1,
        )
    return False


def _lines_with_the_next(lines: Sequence[str]) -> list[tuple[str, str]]:
    return [(line, after) for line, after in pairwise(lines) if line and after]


def _are_most_full(lines: Sequence[str], pairs: Sequence[tuple[str, str]], inside: Sequence[tuple[str, str]]) -> bool:
    """Say whether most lines end inside a sentence and have no room for the next word."""
    lengths = sorted(map(len, filter(None, lines)))
    width = lengths[(len(lengths) - 1) * 9 // 10]
    full = [after for line, after in inside if len(line) + 1 + len(after.split()[0]) > width]
    n_small = sum(after[0].islower() for after in full)
    return width >= MIN_WIDTH and 2 * len(full) > len(pairs) and n_small >= MIN_CONTINUED


def _most_go_on(lines: Sequence[str], pairs: Sequence[tuple[str, str]], continued: Sequence[tuple[str, str]]) -> bool:
    """Say whether most lines go on with a small letter, in a text whose sentences begin with capitals."""
    is_most = len(continued) >= MIN_CONTINUED and 2 * len(continued) > len(pairs)
    return is_most and _sentences_begin_with_capitals(lines)


def _sentences_begin_with_capitals(lines: Sequence[str]) -> bool:
    """Say whether nearly all lines that surely begin a sentence do not begin with a small letter."""
    begins = [after for line, after in pairwise(["", *lines]) if after and (not line or _ENDS_SENTENCE.search(line))]
    n_small = sum(line[0].islower() for line in begins)
    return 5 * n_small <= len(begins)
