"""Pieces of HTML for notebooks. Their styles are inline, because a notebook shows each result by itself.

Backgrounds are half transparent, so that the text keeps the color of the notebook's theme, light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STRONGEST = 0.6
"""The opacity of a background for the share 1. More would make the text hard to read in a dark theme."""


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = (), caption: str = "") -> str:
    """Return a table; the first cell of each row is its heading."""
    parts = ["<table>"]
    if caption:
        parts.append(f'<caption style="text-align:left">{escape(caption)}</caption>')
    if header:
        cells = "".join(f'<th scope="col" style="text-align:left">{escape(cell)}</th>' for cell in header)
        parts.append(f"<thead><tr>{cells}</tr></thead>")
    parts.append("<tbody>")
    for first, *others in rows:
        cells = "".join(f'<td style="text-align:left">{escape(str(cell))}</td>' for cell in others)
        parts.append(f'<tr><th scope="row" style="text-align:left">{escape(str(first))}</th>{cells}</tr>')
    return "".join([*parts, "</tbody></table>"])


def colored_tokens(tokens: Iterable[tuple[str, str, float, str]], label: str) -> str:
    """Return a line of tokens: each with the number below it, the strength of its color (0 to 1), and its tooltip."""
    boxes = []
    for token, number, share, title in tokens:
        opacity = STRONGEST * min(max(share, 0.0), 1.0)
        boxes.append(
            f'<span title="{escape(title)}" style="background:rgba(240,140,58,{opacity:.2f});border-radius:4px;'
            'display:inline-block;margin:2px;padding:2px 6px;text-align:center">'
            f'{escape(token)}<br><small style="font-variant-numeric:tabular-nums">{escape(number)}</small></span>'
        )
    return f"<div><b>{escape(label)}</b><br>{''.join(boxes)}</div>"
