"""Results: what an evaluation measured, declared once, and shown as JSON, text, Markdown, HTML and a figure.

A result is a frozen dataclass. A field that is declared with :func:`value`, or a property with :func:`computed`, is in
the JSON; with a title, it is also a column of the table::

    @dataclass(frozen=True)
    class LayerScore(Record):
        name: str = value("layer")
        accuracy: float = value("accuracy", ".1f", unit="%", scale=100)


    @dataclass(frozen=True)
    class LayerScores(TableResult):
        rows: list[LayerScore] = value()

The JSON and the columns are in the order of the class body. A result adds what is special about it: notes, the most
important numbers, and how its figure is drawn if bars will not do.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from elmokit.errors import ConfigError
from elmokit.evaluation.figures import COLUMN, plot_bars, save_figure, styled_figure
from elmokit.evaluation.tables import Table, escape_markdown
from elmokit.text import html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Function = TypeVar("Function", bound=Callable[..., Any])
Images = Mapping[str, str]
"""The Markdown of figures, by the name of the part of a result that they show; "" for the result itself."""
NO_IMAGES: Images = MappingProxyType({})


@dataclass(frozen=True)
class Value:
    """How a field or property is shown; the arguments of :func:`value`."""

    title: str | tuple[str, ...] | None
    format: str | Callable[[Any], str]
    unit: str
    scale: float
    error: str
    key: str
    in_json: bool

    @property
    def label(self) -> str:
        """The title with the unit, as the head of a column and the label of an axis."""
        return f"{self.title} ({self.unit})" if self.unit else str(self.title)

    def show(self, cell: Any) -> str:
        """Format one cell: nothing for None and NaN."""
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return ""
        if callable(self.format):
            return self.format(cell)
        return format(cell if self.scale == 1 else self.scale * cell, self.format)


def value(
    title: str | tuple[str, ...] | None = None,
    format: str | Callable[[Any], str] = "",
    *,
    unit: str = "",
    scale: float = 1,
    error: str = "",
    key: str = "",
    in_json: bool = True,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a field of a result or of a row.

    Args:
        title: The head of its column; None for no column. A dict has a column for each key, after the title if that is
            not empty; a list has a column for each of several titles. A column without any value is left out.
        format: A format specification such as ``".2f"``, or a function.
        unit: Added to the title in parentheses.
        scale: What a number is multiplied by, such as 100 for percent.
        error: The field or property with its standard error, which is shown after ±.
        key: Its key in the JSON; by default the name.
        in_json: Whether it is in the JSON.
        default: The field's default.
    """
    shown = Value(title, format, unit, scale, error, key, in_json)
    return dataclasses.field(default=default, metadata={"value": shown})


def computed(
    title: str | tuple[str, ...] | None = None,
    format: str | Callable[[Any], str] = "",
    *,
    scale: float = 1,
    key: str = "",
    in_json: bool = True,
) -> Callable[[Function], Function]:
    """Declare a property, below ``@property``. Arguments as in :func:`value`."""

    def declare(function: Function) -> Function:
        vars(function)["value"] = Value(title, format, "", scale, "", key, in_json)
        return function

    return declare


class Record:
    """Declared values: a row of a table, or a result."""

    declared: ClassVar[dict[str, Value]] = {}
    """The declared fields and properties, in the order of the class body."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        declared = dict(cls.declared)
        for name, item in vars(cls).items():
            if isinstance(item, dataclasses.Field) and "value" in item.metadata:
                declared[name] = item.metadata["value"]
            elif isinstance(item, property) and (shown := vars(item.fget).get("value")):
                declared[name] = shown
        cls.declared = declared

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        return {
            shown.key or name: _as_json(getattr(self, name)) for name, shown in self.declared.items() if shown.in_json
        }


class Result(Record, ABC):
    """What an evaluation returns. Subclass :class:`TableResult`, or :class:`ResultGroup` for several results."""

    figure_title: ClassVar[str] = ""
    """What its figure shows, for the report; empty for no figure."""

    @property
    def figure_size(self) -> tuple[float, float]:
        """Width and height in inches."""
        return COLUMN, 2.4

    def headlines(self) -> list[tuple[str, str]]:
        """Return the most important numbers, for the top of the report: what it is, and its value."""
        return []

    @abstractmethod
    def to_text(self) -> str:
        """Return tables and notes for people."""

    @abstractmethod
    def to_markdown(self, images: Images = NO_IMAGES) -> str:
        """Return the figures, tables and notes as Markdown."""

    @abstractmethod
    def _repr_html_(self) -> str: ...

    def figures(self) -> dict[str, Result]:
        """Return the parts of the result that have a figure, by name: "" for the result itself."""
        return {"": self} if self.figure_title else {}

    def draw(self, path: str | Path, overwrite: bool = False) -> tuple[Path, Path]:
        """Draw the figure as PNG and SVG. Errors as in ``save_figure``."""
        with styled_figure(*self.figure_size) as figure:
            self.plot(figure)
            return save_figure(figure, path, overwrite)

    def plot(self, figure: Figure) -> None:
        """Draw on an empty figure."""
        raise ConfigError("This result has no figure.")


class TableResult(Result):
    """A result with one table, of its ``rows``."""

    rows: Sequence[Record]

    @property
    def caption(self) -> str:
        """The title of the table in a notebook."""
        return ""

    def table_rows(self) -> Sequence[Record]:
        """Return the rows of the table, if there are others than ``rows``."""
        return self.rows

    def table(self) -> Table:
        """Return the table."""
        return tabulate(self.table_rows())

    def notes(self) -> list[str]:
        """Return sentences about the data."""
        return []

    def to_text(self) -> str:
        """Return the table and the notes for people."""
        notes = self.notes()
        return "\n".join([self.table().to_text(), *([""] if notes else []), *notes])

    def to_markdown(self, images: Images = NO_IMAGES) -> str:
        """Return the figure, the table and the notes as Markdown."""
        return paragraphs(*images.values(), self.table().to_markdown(), escape_markdown(" ".join(self.notes())))

    def _repr_html_(self) -> str:
        table = self.table()
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes())
        return html.table(table.rows, table.head, self.caption) + notes

    def plot(self, figure: Figure) -> None:
        """Draw a bar for each row: the first column with numbers."""
        rows = self.table_rows()
        name, *others = (name for name, shown in rows[0].declared.items() if shown.title is not None)
        number = next((other for other in others if isinstance(getattr(rows[0], other), int | float)), None)
        if number is None:
            super().plot(figure)
            return
        shown = rows[0].declared[number]
        labels, lengths = ([getattr(row, column) for row in rows] for column in (name, number))
        errors = [shown.scale * getattr(row, shown.error) for row in rows] if shown.error else None
        plot_bars(figure, labels, [shown.scale * length for length in lengths], errors, shown.label)


Member = TypeVar("Member", bound=Result)


@dataclass(frozen=True)
class ResultGroup(Result, Generic[Member]):
    """Several results of one evaluation, by name."""

    results: dict[str, Member]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values, by name."""
        return {name: result.to_dict() for name, result in self.results.items()}

    def headlines(self) -> list[tuple[str, str]]:
        """Return the most important numbers of all results."""
        return [line for result in self.results.values() for line in result.headlines()]

    def heading(self, name: str) -> str:
        """Return a line above a result; empty for none."""
        return ""

    def to_text(self) -> str:
        """Return the headings, tables and notes for people."""
        texts = ((self.heading(name), result.to_text()) for name, result in self.results.items())
        return "\n\n".join("\n".join(filter(None, lines)) for lines in texts)

    def to_markdown(self, images: Images = NO_IMAGES) -> str:
        """Return the figures, headings, tables and notes as Markdown."""
        texts = [images[""]] if "" in images else []
        for name, result in self.results.items():
            own_images = {"": images[name]} if name in images else NO_IMAGES
            texts += [escape_markdown(self.heading(name)), result.to_markdown(own_images)]
        return paragraphs(*texts)

    def _repr_html_(self) -> str:
        texts = ((self.heading(name), result._repr_html_()) for name, result in self.results.items())
        return "".join(f"<p>{escape(heading)}</p>{shown}" if heading else shown for heading, shown in texts)

    def figures(self) -> dict[str, Result]:
        """Return the figure of the group, or else of each result."""
        return super().figures() or {name: result for name, result in self.results.items() if result.figure_title}


def tabulate(rows: Sequence[Record]) -> Table:
    """Return a table with the columns that the class of the rows declares."""
    head: list[str] = []
    columns: list[list[str]] = []
    for name, shown in (rows[0].declared if rows else {}).items():
        cells = [getattr(row, name) for row in rows]
        if shown.title is None or all(cell is None for cell in cells):
            continue
        if isinstance(shown.title, tuple):
            head += shown.title
            columns += [[shown.show(cell[index]) for cell in cells] for index in range(len(shown.title))]
        elif any(isinstance(cell, Mapping) for cell in cells):
            for key in dict.fromkeys(key for cell in cells for key in cell):
                head.append(f"{shown.title}, {key}" if shown.title else str(key))
                columns.append([shown.show(cell.get(key)) for cell in cells])
        else:
            head.append(shown.label)
            errors = [f" ± {shown.show(getattr(row, shown.error))}" if shown.error else "" for row in rows]
            columns.append([shown.show(cell) + error for cell, error in zip(cells, errors, strict=True)])
    return Table(head, [list(row) for row in zip(*columns, strict=True)])


def paragraphs(*texts: str) -> str:
    """Join texts that are not empty by blank lines."""
    return "\n\n".join(filter(None, texts))


def _as_json(item: Any) -> Any:
    if isinstance(item, Record):
        return item.to_dict()
    if isinstance(item, tuple) and hasattr(item, "_asdict"):
        return _as_json(item._asdict())
    if isinstance(item, Mapping):
        return {str(key): _as_json(member) for key, member in item.items()}
    if isinstance(item, list | tuple):
        return [_as_json(member) for member in item]
    return None if isinstance(item, float) and math.isnan(item) else item
