"""Griffe extension: the docstrings of this package, in the form that mkdocstrings reads.

Docstrings name code with reStructuredText's roles, such as ``:class:`Elmo``, which IDEs understand. They describe
several arguments in one entry where one sentence is true of all. mkdocstrings reads Markdown, and wants one entry for
each argument.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`~?([^`]+)`")
LITERAL_BLOCK = re.compile(r"::(?=\n\n)")
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
SHARED_ENTRY = re.compile(r"^(?P<indent> +)(?P<names>\w+(?:, \w+)+)(?P<rest>: .*(?:\n(?P=indent) +.*)*)", re.MULTILINE)


class MarkdownDocstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            text = LITERAL_BLOCK.sub(":", ROLE.sub(r"`\1`", obj.docstring.value))
            text = EXAMPLE.sub("Examples:", text)  # the name of the section whose code is highlighted
            obj.docstring.value = SHARED_ENTRY.sub(_split_entry, text)


def _split_entry(entry: re.Match[str]) -> str:
    return "\n".join(f"{entry['indent']}{name}{entry['rest']}" for name in entry["names"].split(", "))
