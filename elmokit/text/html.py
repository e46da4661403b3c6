"""Tables in HTML for notebooks. Their styles are inline, because a notebook shows each result by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(rows: Iterable[Sequence[object]], caption: str) -> str:
    """Return a table; the first cell of each row is its heading."""
    parts = [f'<table><caption style="text-align:left">{escape(caption)}</caption><tbody>']
    for first, *others in rows:
        cells = "".join(f'<td style="text-align:left">{escape(str(cell))}</td>' for cell in others)
        parts.append(f'<tr><th scope="row" style="text-align:left">{escape(str(first))}</th>{cells}</tr>')
    return "".join([*parts, "</tbody></table>"])
