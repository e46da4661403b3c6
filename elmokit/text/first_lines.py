"""What the first lines of a text show: another format, raw text among tokens, or wrapped lines.

Read as sentences, files in other formats, such as markup and tables, would give plausible numbers: tags, identifiers
and brackets become tokens. A format is refused only if most lines have its structure, because ordinary text has some
tabs, brackets and ``<3``, too. Raw text that is read as tokens gives a warning, and wrapped raw lines are joined.
"""

from __future__ import annotations

import csv
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import chain, groupby, islice, pairwise, takewhile
from typing import Literal

from elmokit.errors import TextError

HEAD_LINES = 100
"""Number of lines that are checked for the format."""
HEAD_CHARACTERS = 1 << 20
"""Number of characters after which fewer lines are checked."""
JSON = "JSON"
TABLE = "a table"


def look_ahead(lines: Iterable[tuple[int, str]]) -> tuple[list[tuple[int, str]], Iterator[tuple[int, str]]]:
    """Read the first lines of a text ahead; return them, and all lines."""
    lines = iter(lines)
    head: list[tuple[int, str]] = []
    n_characters = 0
    for number, line in islice(lines, HEAD_LINES):
        head.append((number, line))
        n_characters += len(line)
        if n_characters > HEAD_CHARACTERS:
            break
    return head, chain(head, lines)


def refuse_other_formats(name: str, head: Iterable[str], accepted: Sequence[str] = ()) -> None:
    """Raise a TextError if the first lines of a text are in another format, unless it is ``accepted``."""
    lines = list(filter(None, map(str.strip, head)))
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
_TAG = re.compile(r"</?([A-Za-z][\w:.-]*)(\s[^<>]*=[^<>]*)?/?>")
_CLOSING_TAG = re.compile(r"</([A-Za-z][\w:.-]*)>")
_JSON_OBJECT = re.compile(r'\{\s*"[^"]*"\s*:')
# A text can begin with `[ Music ]` or `[1]`.
_JSON_START = re.compile(r'\{\s*"[^"]*"\s*:|\[\s*(?:\{\s*"|"(?:[^"\\]|\\.)*"\s*[,\]])')


def _is_conllu(lines: Sequence[str]) -> bool:
    return _most(lines, _CONLLU_LINE.fullmatch)


def _is_markup(lines: Sequence[str]) -> bool:
    if any(map(_MARKUP_START.match, lines[:3])) or _ELEMENT.fullmatch(lines[0]):
        return True
    # Ordinary texts have words such as `<user>` and `<unk>`, and sentence boundaries, `<s> ... </s>`.
    closed = set(_CLOSING_TAG.findall("\n".join(lines))) - {"s", "S"}
    return _most(lines, lambda line: _has_markup(line, closed))


def _has_markup(line: str, closed: Set[str]) -> bool:
    """Check whether a line begins or ends with a mark, and has a tag with attributes or of a ``closed`` element."""
    if line[0] != "<" and line[-1] != ">":
        return False
    return any(tag[1] in closed or tag[2] for tag in _TAG.finditer(line))


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
    outside_numbers = re.compile(rf"(?<!\d){separator}|{separator}(?!\d)|^[^ ]*$")
    kept = []
    for line in lines:
        if outside_numbers.search(line):
            kept.append(line)
        else:
            kept.append(line.replace(separator, ""))
    try:
        rows = list(csv.reader(kept, delimiter=separator))
    except csv.Error:
        return False
    width, n_rows = Counter(map(len, rows)).most_common(1)[0]
    n_tight = sum(1 for row in rows if _has_cells(row))
    is_large = (len(rows) - 1) * (width - 1) >= 2
    is_regular = 10 * min(n_rows, n_tight) >= 9 * len(rows)
    return is_large and is_regular


# In sentences, commas are followed by a space or the line end, and semicolons can start a smiley.
_CELL = re.compile(r"(?![\0- ]).*[^\W_]", re.DOTALL)


def _has_cells(row: Sequence[str]) -> bool:
    others = list(filter(None, row[1:]))
    return bool(others) and all(map(_CELL.match, others))


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
        "Select the text column, as with cut -f 2 (surprisal: --words --column NAME); or, if tabs separate tokens, "
        "replace them with spaces: tr '\\t' ' '",
    ),
    (
        "a table of comma-separated values",
        _is_csv,
        "Select the text column first (surprisal: --words --column NAME).",
    ),
)


MAX_CHARACTERS = 20
"""Longer tokens in these scripts are considered unsplit text. Their words are rarely longer than ten characters."""
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
_MAY_PRECEDE_SENTENCE = re.compile(rf"^$|{_ENDS_SENTENCE.pattern}")
_ATTACHED = re.compile(r"[^\W\d_]{2,}[.,;:?!][\"')\u2019\u201d]*")
MIN_ATTACHED = 3
"""Number of tokens such as "mat." that make a text look raw; in a text with few sentences, one suffices."""


def check_tokens(name: str, sentences: Iterable[Sequence[str]], refuse: bool = False) -> None:
    """Warn, or raise a TextError, if the first sentences of a text do not look tokenized.

    If split at spaces, a line of Japanese is one token, and in English, "mat." is read as one word. Nothing fails, but
    the vectors mean little. In tokenized text, punctuation marks are separate tokens, so the first sentence with
    punctuation decides. None of 49 tokenized files in English, Turkish and Uyghur is mistaken for raw text.

    Args:
        name: The name of the text.
        sentences: The first sentences of the text, at most ``HEAD_LINES``.
        refuse: Raise the error in clear cases: if a token such as "mat." ends a sentence, or there are several.
    """
    sentences = list(sentences)
    doubtful = list(takewhile(_MARKS.isdisjoint, sentences))
    first_marked = len(doubtful)
    if check_split(name, sentences[: first_marked + 1], refuse):
        return
    attached = list(filter(_ATTACHED.fullmatch, chain.from_iterable(doubtful)))  # tokens such as "mat."
    if len(attached) >= MIN_ATTACHED:
        _report(name, f"{attached[0]!r} is read as one token", "--raw", refuse)
    elif attached and len(doubtful) == len(sentences) < HEAD_LINES:
        ends = [tokens[-1] for tokens in filter(None, doubtful)]
        is_clear = any(map(_ENDS_SENTENCE.search, ends))
        _report(name, f"{attached[0]!r} is read as one token", "--raw", refuse and is_clear)
    else:
        check_split(name, sentences[first_marked:])


def check_split(name: str, sentences: Iterable[Sequence[str]], refuse: bool = False) -> bool:
    """Warn, or raise a TextError to ``refuse``, if a token is too long to be a word of a script without spaces.

    Returns:
        Whether there is such a token.
    """
    for token in chain.from_iterable(sentences):
        if len(token) > MAX_CHARACTERS and len(_UNSPLIT.findall(token)) > MAX_CHARACTERS:
            what = f"{token[:10]!r}..., {len(token)} characters, is read as one token"
            _report(name, what, "--raw --language CODE", refuse)
            return True
    return False


def _report(name: str, what: str, flags: str, refuse: bool) -> None:
    problem = f"{name} looks like raw text: {what}."
    if refuse:
        raise TextError(f"{problem} Pass {flags} to split it, or --text-kind tokens to read it as it is.")
    # The same location for all readers, so a text that is read twice is reported once.
    warnings.warn(
        f"{problem} Pass {flags}, if the command supports it, or separate the tokens with spaces (elmokit.tokenize).",
        stacklevel=1,
    )


Wrapped = Literal["auto", "yes", "no"]
"""Whether the lines of raw text are wrapped, as in e-mail or books: paragraphs then have several lines and end at a
blank line. "auto" decides from the first lines, with a warning if some seem to continue on the next."""
MIN_WIDTH, MIN_CONTINUED = 40, 2
"""Minimum line length of wrapped text, and the fraction of its lines that continue with a lower-case letter."""
MIN_CONTINUED_SHARE = 0.05
"""Fraction of unjoined lines that must continue with a lower-case letter to be reported."""


def are_wrapped(name: str, lines: Sequence[str]) -> bool:
    """Decide from the first lines of raw text whether they are wrapped; warn if they are or might be.

    Text is wrapped if most lines end inside a sentence and have no room for the next word, which would make them longer
    than nearly all others; or if most continue with a lower-case letter, and sentences begin with capitals.
    """
    lines = [line.strip() for line in lines]
    pairs = list(filter(all, pairwise(lines)))  # lines with the next one, if neither is blank
    inside = [pair for pair in pairs if not _ENDS_SENTENCE.search(pair[0])]
    continued = [pair for pair in inside if pair[1][0].islower()]
    is_prose = any(map(_SENTENCE_END.search, lines))
    if not continued or not is_prose:
        return False
    if _are_most_full(lines, pairs, inside, continued) or _most_go_on(lines, pairs, continued):
        warnings.warn(
            f"The lines of {name} are wrapped, so they are joined: a blank line ends a paragraph. "
            'If they are not, pass --wrapped no (wrapped="no").',
            stacklevel=1,
        )
        return True
    if _sentences_begin_with_capitals(lines) and len(continued) >= MIN_CONTINUED_SHARE * len(pairs):
        line, after = continued[0]
        last_words = " ".join(line.split()[-4:])[-40:]
        first_words = " ".join(after.split()[:4])[:40]
        warnings.warn(
            f"The lines of {name} are read one by one, but {last_words!r} may continue with {first_words!r}. If they "
            'are wrapped, pass --wrapped yes (wrapped="yes") to join them; if not, pass no.',
            stacklevel=1,
        )
    return False


Pairs = Sequence[tuple[str, str]]
"""Lines with the next one."""


def _are_most_full(lines: Sequence[str], pairs: Pairs, inside: Pairs, continued: Pairs) -> bool:
    """Check whether most lines end inside a sentence and have no room for the next word."""
    lengths = sorted(map(len, filter(None, lines)))
    width = lengths[(len(lengths) - 1) * 9 // 10]

    def is_full(pair: tuple[str, str]) -> bool:
        line, after = pair
        next_word = after.split()[0]
        return len(line) + 1 + len(next_word) > width

    if width < MIN_WIDTH:
        return False
    return 2 * sum(map(is_full, inside)) > len(pairs) and sum(map(is_full, continued)) >= MIN_CONTINUED


def _most_go_on(lines: Sequence[str], pairs: Pairs, continued: Pairs) -> bool:
    """Check whether most lines continue with a lower-case letter, in a text whose sentences begin with capitals."""
    is_most = len(continued) >= MIN_CONTINUED and 2 * len(continued) > len(pairs)
    return is_most and _sentences_begin_with_capitals(lines)


def _sentences_begin_with_capitals(lines: Sequence[str]) -> bool:
    """Check whether nearly all lines that certainly begin a sentence do not begin with a lower-case letter."""
    starts = "".join(after[:1] for line, after in pairwise(["", *lines]) if _MAY_PRECEDE_SENTENCE.search(line))
    return 5 * sum(map(str.islower, starts)) <= len(starts)


def join_wrapped(name: str, lines: Iterable[tuple[int, str]], wrapped: Wrapped = "auto") -> Iterator[tuple[int, str]]:
    """Join the lines of each paragraph if raw text is wrapped; a paragraph gets the number of its first line."""
    head, lines = look_ahead(lines)
    if wrapped == "no" or (wrapped == "auto" and not are_wrapped(name, [line for _, line in head])):
        yield from lines
        return
    for is_text, paragraph in groupby(lines, key=lambda line: bool(line[1].strip())):
        if is_text:
            numbers, texts = zip(*paragraph, strict=True)
            yield numbers[0], " ".join(texts)
        else:
            yield from paragraph  # where documents end
