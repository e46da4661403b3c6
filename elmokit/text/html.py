"""Tables in HTML for notebooks. Their styles are inline, because a notebook shows each result by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


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
