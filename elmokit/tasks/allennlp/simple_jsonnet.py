"""Read the part of Jsonnet that nearly every published config of AllenNLP is written in.

That part is JSON with comments (``//``, ``#``, ``/* */``), trailing commas, single-quoted strings, keys without quotes,
external variables (``std.extVar("NAME")``), names bound by ``local name = value;``, and strings or numbers added with
``+``. It needs no evaluator. A file that contains more is left to Jsonnet itself; a file that is accepted here has the
same value in Jsonnet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

UNSET = 'std.extVar("{}")'
"""The value of an external variable that was not given, with its name in place of the braces."""
MAX_DEPTH = 100  # tables and lists inside each other; published configs have about ten
LONGEST_SHOWN = 40

_STRING = r""" "[^"\\]*(?:\\.[^"\\]*)*" | '[^'\\]*(?:\\.[^'\\]*)*' """
_TOKEN = re.compile(
    rf"""(?P<blank> [ \t\r\n]+ | (?://|\#)[^\n]* | /\*.*?\*/ )
      | (?P<variable> std\.extVar\([ ]*(?:{_STRING})[ ]*\) )
      | (?P<name> [A-Za-z_][A-Za-z0-9_]* )
      | (?P<number> (?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)? )
      | (?P<string> {_STRING} )
      | (?P<sign> \|\|\| | :{{2,3}} | \+:{{1,3}} | . )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)", re.DOTALL)
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", **{sign: sign for sign in "\"'\\/"}}
CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
COMPUTING_WORDS = frozenset(
    [
        *["assert", "else", "error", "for", "function", "if", "import", "importbin", "importstr", "in", "self", "std"],
        *["super", "tailstrict", "then"],
    ]
)
COMPUTING_SIGNS = frozenset([*"().$@|!<>%&^~*/", "|||", "::", ":::", "+:", "+::", "+:::"])
UNBOUND = object()
RESERVED = COMPUTING_WORDS | CONSTANTS.keys() | {"local"}


def unset_variable(value: str) -> str | None:
    """Return the name of the first external variable in a string that was not given; None if there is none."""
    match = re.search(r'std\.extVar\("(.*?)"\)', value)
    return match[1] if match else None


class Token(NamedTuple):
    """A name, number, string, sign or external variable. The last token of a file is empty."""

    kind: str
    text: str
    line: int


class NotSimpleError(Exception):
    """The text is not in the part of Jsonnet that is read here.

    Args:
        reason: What was expected and found, and where.
        computing: The first token of the file that only Jsonnet can evaluate. None if there is none: then the file is
            most likely JSON with a mistake.
    """

    def __init__(self, reason: str, computing: Token | None = None) -> None:
        super().__init__(reason)
        self.computing = computing


def parse_simple(text: str, variables: Mapping[str, str]) -> Any:
    """Return the value of a file.

    Args:
        text: The content of the file.
        variables: Values of the external variables. A missing one becomes ``UNSET`` with its name.
    """
    tokens = _tokens(text)
    try:
        return _Parser(tokens, variables).file()
    except NotSimpleError as error:
        raise NotSimpleError(str(error), error.computing or _first_computing(tokens)) from None


def starts_with_key(text: str) -> bool:
    """Return whether a file starts with a key and a colon: the entries of a table without its braces."""
    first, second = (*_tokens(text), None)[:2]
    is_key = first is not None and (first.kind == "string" or (first.kind == "name" and first.text not in RESERVED))
    return is_key and second is not None and second.text == ":"


def _tokens(text: str) -> list[Token]:
    tokens, line = [], 1
    for match in _TOKEN.finditer(text):
        kind, word = str(match.lastgroup), match[0]
        if kind == "sign" and (word in "'\"" or text.startswith("/*", match.start())):
            # A string or comment without an end. To search for an end at each later one too would take quadratic time.
            tokens.append(Token("unended", word, line))
            break
        if kind != "blank":
            tokens.append(Token(kind, word, line))
        line += word.count("\n")
    return [*tokens, Token("end", "", line)]


def _first_computing(tokens: list[Token]) -> Token | None:
    for token in tokens:
        words = {"name": COMPUTING_WORDS, "sign": COMPUTING_SIGNS}.get(token.kind, ())
        if token.text in words:
            return token
    return None


class _Parser:
    """A recursive-descent parser of one file."""

    def __init__(self, tokens: list[Token], variables: Mapping[str, str]) -> None:
        self.tokens, self.position = tokens, 0
        self.variables = variables
        self.names: dict[str, Any] = {}
        self.used_names: list[str] = []

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def at(self, text: str) -> bool:
        """Return whether the next token is a certain sign or name."""
        return self.token.kind in ("sign", "name") and self.token.text == text

    def skip(self, text: str) -> bool:
        """Go past a sign or name, and return whether it was there."""
        is_next = self.at(text)
        self.position += is_next
        return is_next

    def expected(self, what: str) -> NotSimpleError:
        """Return the error that something else was found."""
        text = self.token.text
        text = f"{text[:LONGEST_SHOWN]}..." if len(text) > LONGEST_SHOWN else text
        shown = repr(text) if text else "the end of the file"
        return NotSimpleError(f"line {self.token.line}: expected {what}, found {shown}")

    def expect(self, sign: str) -> None:
        """Go past a sign that must come next."""
        if not self.skip(sign):
            raise self.expected(repr(sign))

    def file(self) -> Any:
        value = self.expression(0)
        if self.token.kind != "end":
            raise self.expected("the end of the file")
        return value

    def expression(self, depth: int) -> Any:
        """Read any number of ``local`` bindings, then a value or a sum of values."""
        if depth > MAX_DEPTH:
            raise NotSimpleError(f"line {self.token.line}: nested more than {MAX_DEPTH} deep")
        hidden: list[tuple[str, Any]] = []
        while self.skip("local"):
            for name, value in self.bindings(depth).items():
                hidden.append((name, self.names.get(name, UNBOUND)))
                self.names[name] = value
        value = self.operand(depth)
        while self.at("+"):
            plus = self.token
            self.position += 1
            value = self.sum_(plus, value, self.operand(depth))
        for name, outer in reversed(hidden):  # the bindings end with the expression
            self.names[name] = outer
        return value

    def sum_(self, plus: Token, value: Any, other: Any) -> Any:
        """Add two numbers or join two strings."""
        if _is_number(value) and _is_number(other):
            return _double(float(value) + float(other))
        if not isinstance(value, str) or not isinstance(other, str):
            # Jsonnet also adds lists and tables, and writes any value that is added to a string as text.
            raise NotSimpleError(f"line {plus.line}: expected two strings or two numbers around '+'", plus)
        return value + other

    def bindings(self, depth: int) -> dict[str, Any]:
        """Read what follows ``local``: ``a = value, b = value;``."""
        bound: dict[str, Any] = {}
        local, n_used = self.tokens[self.position - 1], len(self.used_names)
        while not bound or self.skip(","):
            name = self.token
            if name.kind != "name" or name.text in RESERVED or name.text in bound:
                raise self.expected("a new name")
            self.position += 1
            self.expect("=")
            bound[name.text] = self.expression(depth + 1)
        # In Jsonnet, the values after one "local" see all names that it binds, whereas here they see older bindings.
        if not bound.keys().isdisjoint(self.used_names[n_used:]):
            raise NotSimpleError(f"line {local.line}: expected values that do not use names of the same local", local)
        self.expect(";")
        return bound

    def operand(self, depth: int) -> Any:
        """Read a value that is not a sum."""
        token = self.token
        if token.kind == "string":
            return self.string(token.text)
        if token.kind == "number" or self.at("-"):
            return self.number()
        if self.skip("["):
            return self.list_(depth)
        if self.skip("{"):
            return self.table(depth)
        if token.kind == "variable":
            name = self.string(token.text[token.text.index("(") + 1 : -1].strip(" "))
            return self.variables.get(name, UNSET.format(name))
        value = CONSTANTS.get(token.text, self.names.get(token.text, UNBOUND))
        if token.kind != "name" or value is UNBOUND:
            raise self.expected("a value")
        self.position += 1
        self.used_names.append(token.text)
        return value

    def list_(self, depth: int) -> list[Any]:
        values: list[Any] = []
        while not self.skip("]"):
            values.append(self.expression(depth + 1))
            if not self.at("]"):
                self.expect(",")
        return values

    def table(self, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not self.skip("}"):
            key = self.key()
            if key in values:
                self.position -= 1
                raise self.expected("a key that the table does not have yet")
            self.expect(":")
            values[key] = self.expression(depth + 1)
            if not self.at("}"):
                self.expect(",")
        return values

    def key(self) -> str:
        if self.token.kind == "string":
            return self.string(self.token.text)
        if self.at("["):  # the name of the key is computed
            raise NotSimpleError(f"line {self.token.line}: expected a key, found '['", self.token)
        if self.token.kind != "name" or self.token.text in RESERVED:
            raise self.expected("a key")
        self.position += 1
        return self.tokens[self.position - 1].text

    def string(self, quoted: str) -> str:
        """Go past a token, and return the string that it contains."""
        try:
            value = _unquoted(quoted)
        except ValueError:
            raise self.expected("a string with the escapes of JSON") from None
        self.position += 1
        return value

    def number(self) -> int | float:
        sign = -1 if self.skip("-") else 1
        digits = self.token.text
        if self.token.kind != "number" or math.isinf(float(digits)):
            raise self.expected("a number")
        self.position += 1
        return sign * (_double(float(digits)) if digits.isdigit() else float(digits))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _double(number: float) -> int | float:
    """Return an integer as ``int`` if a double holds it exactly: all numbers of Jsonnet are doubles."""
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _unquoted(quoted: str) -> str:
    """Return the content of a string in quotes."""

    def unescaped(escape: re.Match[str]) -> str:
        sign = escape[0][1]
        if len(escape[0]) > 2:
            return chr(int(escape[0][2:], 16))
        if sign not in ESCAPES:
            raise ValueError(sign)
        return ESCAPES[sign]

    if "\0" in quoted:
        raise ValueError(quoted)
    content = _ESCAPE.sub(unescaped, quoted[1:-1])
    # A character beyond U+FFFF is escaped as two halves, which this joins.
    return content.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
