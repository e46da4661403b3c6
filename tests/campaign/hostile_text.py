"""Text that breaks programs which take a shortcut: every plane of Unicode, line ends that are none, names of files."""

from __future__ import annotations

from random import Random

_SEPARATORS = "\x0b\x0c\x1c\x1d\x1e\x85\u00a0\u1680\u2003\u2028\u2029\u3000"
"""Characters at which Python's ``split`` and ``splitlines`` split, but a tokenized text does not."""
_INVISIBLE = "\u200b\u200d\u200e\u202e\u2066\ufe0f\ufeff\u00ad\x01\x1b\x7f\u0300\u0301\U000e0001"
_WORDS = (
    *("<S>", "</S>", "<UNK>", "!!!MAXTERMID", "<unk>", "%2F", "%00", "%#2", ".", "..", "/", "a/b", "../../etc/passwd"),
    *("NaN", "1e999", "null", "None", "[]", "{}", '"', "'", "\\", "\\n", "\\ud800", "$(reboot)", "`id`", "=1+1", "#"),
    *("sentence_to_index", "sentence_indices", "vectors", "0", "-1", "00", "--", "-", "--help", "~", "\r", "a\rb"),
    *("\ufffd", "e\u0301" * 30, "👩‍👩‍👧‍👦", "ﷺ", "ß", "İ", "ǅ", "ﬀ", "Ω", "\u0130" * 25, "é" * 24, "é" * 25),
)


def hostile_token(random: Random) -> str:
    """Return a token. It has no space, tab or newline, because these end one."""
    kind = random.randrange(8)
    if kind == 0:
        return random.choice(_WORDS)
    if kind == 1:
        return random.choice("aé漢😀") * random.randrange(44, 54)  # around the 50 bytes that the char CNN reads
    if kind == 2:
        return random.choice("ab") * random.choice((100, 1000, 5000))
    if kind == 3:
        return "".join(random.choice(_SEPARATORS + _INVISIBLE + "ab") for _ in range(random.randrange(1, 6)))
    return "".join(_character(random) for _ in range(random.randrange(1, 12)))


def _character(random: Random) -> str:
    last = random.choice((0x7F, 0x7FF, 0xFFFF, 0x10FFFF))
    while True:
        code = random.randrange(1, last + 1)
        if not 0xD800 <= code <= 0xDFFF and chr(code) not in " \t\n\0":
            return chr(code)


def hostile_line(random: Random) -> str:
    """Return a line without its newline: mostly short, some long, blank or with spaces and tabs in odd places."""
    kind = random.randrange(20)
    if kind == 0:
        return random.choice(("", " ", "\t", "  \t ", "\r", "\u3000"))
    n_tokens = random.choice((100, 300)) if kind == 1 else random.randrange(1, 9)
    separators = (" ", " ", " ", "  ", "\t", " \t ")
    line = "".join(hostile_token(random) + random.choice(separators) for _ in range(n_tokens))
    return random.choice(("", " ", "\t")) + (line if kind == 2 else line.rstrip(" \t"))


def tokens_of(line: str) -> list[str]:
    """Return the tokens of a line, by definition: what is between spaces and tabs, without line ends after the last."""
    tokens, token = [], ""
    for character in line.rstrip("\r"):
        if character in " \t":
            tokens.append(token)
            token = ""
        else:
            token += character
    return [token for token in (*tokens, token) if token]
