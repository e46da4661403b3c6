"""Griffe extension: the docstrings of this package, in the form that mkdocstrings reads.

Docstrings name code with reStructuredText's roles, such as ``:class:`Elmo``, which IDEs understand. They describe
several arguments in one entry where one sentence is true of all. mkdocstrings reads Markdown, and wants one entry for
each argument, and lines of a result indented if they continue the line before. Fields of a config are declared with
``setting(default, help)``, of which signatures show the default, and descriptions the help.
"""

from __future__ import annotations

import ast
import contextlib
import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`(?:~[\w.]*\.)?([^`]+)`")
"""A name with its role. Of a name that starts with ``~``, only the last part is shown."""
LITERAL_BLOCK = re.compile(r"::(?=\n\n)")
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
SHARED_ENTRY = re.compile(r"^(?P<indent> +)(?P<names>\w+(?:, \w+)+)(?P<rest>: .*(?:\n(?P=indent) +.*)*)", re.MULTILINE)
RESULTS = re.compile(r"^(?P<indent> *)(?:Returns|Yields):\n(?P<lines>(?:(?P=indent) +.*\n?)+)", re.MULTILINE)
RESULT_NAME = re.compile(r"\w+: ")


class MarkdownDocstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            text = LITERAL_BLOCK.sub(":", ROLE.sub(r"`\1`", obj.docstring.value))
            text = EXAMPLE.sub("Examples:", text)  # the name of the section whose code is highlighted
            text = RESULTS.sub(_indent_continuations, text)
            obj.docstring.value = SHARED_ENTRY.sub(_split_entry, text)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Show the default and the help of a field of a config."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "setting":
            default, help = value.arguments[:2]
            attr.value = None if str(default) in ("MISSING", "dataclasses.MISSING") else default
            with contextlib.suppress(ValueError):  # an f-string, which only running the code would format
                attr.docstring = griffe.Docstring(ast.literal_eval(str(help)), parent=attr)


def _split_entry(entry: re.Match[str]) -> str:
    return "\n".join(f"{entry['indent']}{name}{entry['rest']}" for name in entry["names"].split(", "))


def _indent_continuations(section: re.Match[str]) -> str:
    """Indent the lines of a result that continue the line before, and do not start with a name of their own."""
    first, *lines = section["lines"].splitlines(keepends=True)
    indented = [line if RESULT_NAME.match(line.strip()) else f"    {line}" for line in lines]
    return section[0].removesuffix(section["lines"]) + first + "".join(indented)
