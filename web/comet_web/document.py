"""The content of a page: fields, tables, charts. Rendered as HTML first, then updated by deltas.

As JSON (`wire`); a cell with only a text is a string:

    {"time_us": 1, "fields": {"in": cell},
     "tables": {"topics": {"order": [key], "rows": {key: [cell, …]}, "links": {key: address},
                           "total": 340, "matched": 12, "page": 1, "pages": 1,
                           "sort": "-in", "filter": "q", "problem": ""}},
     "charts": {"records": {"step_s": 1, "end_us": 2, "names": ["in", "out"], "values": [[…], […]], "marks": []}}}
    cell = "text" | {"t": text, "v": value, "c": tone, "h": title, "a": address, "s": [sparkline], "b": share of a bar}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

DASH: Final = "–"  # unknown

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """One value: `text` is displayed, `value` is for sorting and CSV (None: the text), `title` shows on hover."""

    text: str
    value: Value = None
    tone: str = ""  # good, warn, bad, muted, info
    title: str = ""
    href: str = ""
    spark: Sequence[float | None] | None = None
    bar: float | None = None  # 0 to 1

    def wire(self) -> Any:
        found: dict[str, Any] = {"t": self.text}
        if self.value is not None and self.value != self.text:
            found["v"] = self.value
        found |= {name: text for name, text in (("c", self.tone), ("h", self.title), ("a", self.href)) if text}
        if self.spark is not None:
            found["s"] = list(self.spark)
        if self.bar is not None:
            found["b"] = round(self.bar, 4)
        return found if len(found) > 1 else self.text


UNKNOWN: Final = Cell(DASH, tone="muted", title="not known")


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    label: str
    unit: str = ""  # in the header
    numeric: bool = False  # right-aligned, in tabular figures
    sortable: bool = True
    title: str = ""
    wide: bool = True  # hidden on a narrow screen; the first column never is
    hidden: bool = False  # until a user selects it


@dataclass(frozen=True, slots=True)
class Row:
    """`key` identifies the row while its cells change; `cells` are in the order of the columns."""

    key: str
    cells: tuple[Cell, ...]
    href: str = ""
    label: str = ""  # for screen readers; empty: the first cell


@dataclass(frozen=True, slots=True)
class Table:
    """One page of rows, as filtered and sorted."""

    id: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    total: int
    matched: int
    page: int = 1
    pages: int = 1
    sort: str = ""  # key of a column
    descending: bool = False
    filter: str | None = None  # None: the table has no filter
    problem: str = ""  # with the filter

    def wire(self) -> dict[str, Any]:
        return {
            "order": [row.key for row in self.rows],
            "rows": {row.key: [cell.wire() for cell in row.cells] for row in self.rows},
            "links": {row.key: row.href for row in self.rows if row.href},
            "total": self.total,
            "matched": self.matched,
            "page": self.page,
            "pages": self.pages,
            "sort": f"-{self.sort}" if self.descending else self.sort,
            "filter": self.filter,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time that share an axis, with a one-line `summary`."""

    id: str
    names: tuple[str, ...]
    step_s: int
    end_us: int
    values: tuple[Sequence[float | None], ...]  # one for each name, equally long
    unit: str = ""  # "records/s", "B/s", "ms", …
    kind: str = "line"  # "line", "area" (stacked), "bar"
    summary: str = ""
    marks: tuple[tuple[int, str], ...] = ()  # time_us, text of an event

    def wire(self) -> dict[str, Any]:
        return {
            "step_s": self.step_s,
            "end_us": self.end_us,
            "names": list(self.names),
            "values": [list(line) for line in self.values],
            "unit": self.unit,
            "kind": self.kind,
            "summary": self.summary,
            "marks": [list(mark) for mark in self.marks],
        }


@dataclass(frozen=True, slots=True)
class Document:
    time_us: int  # of its facts
    title: str
    fields: Mapping[str, Cell] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    charts: Mapping[str, Chart] = field(default_factory=dict)

    def wire(self) -> dict[str, Any]:
        return {
            "time_us": self.time_us,
            "fields": {name: cell.wire() for name, cell in self.fields.items()},
            "tables": {name: table.wire() for name, table in self.tables.items()},
            "charts": {name: chart.wire() for name, chart in self.charts.items()},
        }
