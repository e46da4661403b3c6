"""Marks that other programs leave in text: escapes, subwords, unknown words, sentence boundaries and padding.

As words, they would be unknown and change the vectors of their neighbors. A model reads marks that stand for a plain
mark as that mark, unless its vocabulary has marks of the same program; all others are read as words. A one-line
warning reports it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from elmokit.text.characters import UNKNOWN

_ESCAPES = {
    "&apos;": "'",
    "&quot;": '"',
    "&amp;": "&",
    "&lt;": "<",
    "&gt;": ">",
    "&#124;": "|",
    "&#91;": "[",
    "&#93;": "]",
    "&#39;": "'",
    "&bar;": "|",
}
_ESCAPE = re.compile("|".join(_ESCAPES))
_BRACKETS = dict(zip(("lrb", "rrb", "lsb", "rsb", "lcb", "rcb"), "()[]{}", strict=True))


@dataclass(frozen=True)
class ForeignMarks:
    """Marks of one program or convention."""

    name: str
    """A description, with the spellings."""
    pattern: str
    """Matches whole tokens that are or contain such a mark."""
    cure: str
    plain: Callable[[str], str] | None = None
    """Maps a token to its plain form; None if it is read as a word."""
    plain_name: str = "plain marks"


def _without_escapes(token: str) -> str:
    return _ESCAPE.sub(lambda escape: _ESCAPES[escape[0]], token)


def _without_treebank(token: str) -> str:
    if token in ("``", "''"):
        return '"'
    if token[0] == "/":
        return token[1:]
    if token[0] == "-":
        return _BRACKETS[token[1:4].lower()]
    return re.sub(r"\\([/*])", r"\1", token)


UNKNOWN_MARKS = ("<unk>", UNKNOWN, "<Unk>", "[UNK]", "@@UNKNOWN@@", "<oov>", "<OOV>")
"""What programs write instead of unknown words."""
_WITHOUT_BOUNDARIES = "Remove them: sentence boundaries are added when the text is read."
FOREIGN = {
    "escapes": ForeignMarks(
        "escapes of HTML and the Moses tokenizer (&apos; &quot; &amp; &lt; &gt; &#124; &#91; &#93;)",
        f".*(?:{'|'.join(_ESCAPES)}).*",
        "The Moses tokenizer also splits words differently (don &apos;t). Undo both with a detokenizer (sacremoses "
        "detokenize), and pass --raw.",
        _without_escapes,
    ),
    "treebank": ForeignMarks(
        "marks of the Penn Treebank (-LRB- -RRB- -LSB- -RSB- -LCB- -RCB- \\/ \\* /. `` '')",
        r"-[lrLR][rscRSC][bB]-|``|''|/[.?!,;:-]|(?:[^\\]*\\[/*])+[^\\]*",
        "To avoid this message, replace them with plain marks.",
        _without_treebank,
    ),
    "wikitext": ForeignMarks(
        "separators of WikiText (@-@ @,@ @.@)",
        r"@[-,.:/\u2013]@",
        "Join the parts that they separate: sed -E 's/ @(.)@ /\\1/g'",
        lambda token: token[1],
    ),
    "unknown": ForeignMarks(
        "marks of unknown words (<unk> [UNK] @@UNKNOWN@@)",
        "|".join(map(re.escape, UNKNOWN_MARKS)),
        "If possible, use a version of the text with the original words.",
        lambda token: UNKNOWN,
        "<UNK>",
    ),
    "s": ForeignMarks("sentence boundaries of another program (<s> </s>)", "</?s>", _WITHOUT_BOUNDARIES),
    "eos": ForeignMarks(
        "sentence boundaries of another program (<bos> <eos>)", r"<[be]os>|<[BE]OS>|\[[BE]OS\]", _WITHOUT_BOUNDARIES
    ),
    "cls": ForeignMarks(
        "sentence boundaries of another program ([CLS] [SEP])", r"\[CLS\]|\[SEP\]", _WITHOUT_BOUNDARIES
    ),
    "endoftext": ForeignMarks(
        "sentence boundaries of another program (<|endoftext|>)", r"<\|(?:start|end)of\w+\|>", _WITHOUT_BOUNDARIES
    ),
    "padding": ForeignMarks(
        "padding of another program (<pad> [PAD] @@PADDING@@)",
        r"<pad>|<PAD>|\[PAD\]|@@PADDING@@",
        "Remove it: sentences in a batch can have different lengths.",
    ),
    "wordpiece": ForeignMarks(
        "subwords of WordPiece (##ing)", r"##\w+", "Join them into words, which the model knows: sed 's/ ##//g'"
    ),
    "bpe": ForeignMarks(
        "subwords of BPE (walk@@ ing)", r"\w+@@", "Join them into words, which the model knows: sed 's/@@ //g'"
    ),
    "sentencepiece": ForeignMarks(
        "subwords of SentencePiece (\u2581walk ing)",
        "\u2581.*",
        "Join them into words, which the model knows: decode them with SentencePiece, and pass --raw.",
    ),
}
"""All marks, from the most to the least common mistake."""
_FOREIGN = re.compile("|".join(f"(?P<{key}>{marks.pattern})" for key, marks in FOREIGN.items()), re.DOTALL)
NEVER_WORDS = ("s", "eos", "cls", "endoftext", "padding")
"""Marks that should never be read as words."""


def find_foreign(token: str) -> str | None:
    """Return the key of the marks in a token, or None."""
    if token.isalnum():
        return None
    match = _FOREIGN.fullmatch(token)
    return None if match is None else match.lastgroup


def warn_of_foreign(key: str, read_as: str) -> None:
    """Warn about marks in the text and how they are read. Python shows the same warning once."""
    marks = FOREIGN[key]
    warnings.warn(f"The text has {marks.name}, which {read_as}. {marks.cure}", stacklevel=1)


_ENTITY = re.compile("&(?:#\\d+|#[xX][0-9a-fA-F]+|([A-Za-z][A-Za-z0-9]*));")


def warn_of_entities(text: str) -> None:
    """Warn if raw text has an HTML entity such as &amp;, which would be split into three tokens."""
    if "&" not in text:
        return
    from html.entities import name2codepoint  # a large, rarely needed table

    for entity in _ENTITY.finditer(text):
        if entity[1] is None or entity[1] in name2codepoint or entity[1] == "apos":
            warnings.warn(
                "The text has HTML entities such as &amp;, which are split into words and marks. To decode them: "
                "python -c 'import html, sys; sys.stdout.writelines(map(html.unescape, sys.stdin))' < TEXT",
                stacklevel=1,
            )
            return
