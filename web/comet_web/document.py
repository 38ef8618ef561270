"""What a page shows: fields, tables, charts. Rendered into HTML at first, then kept up to date by what changes of it.

As JSON (`wire`), where a cell that is nothing but its text is a string:

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

DASH: Final = "–"  # what is not known

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """`text` as it is shown, `value` to sort by and for CSV (None: the text), `title` on hover."""

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
    unit: str = ""  # stands in the header
    numeric: bool = False  # to the right, in tabular figures
    sortable: bool = True
    title: str = ""
    wide: bool = True  # may be left out on a narrow screen; the first column never is
    hidden: bool = False  # until somebody chooses it


@dataclass(frozen=True, slots=True)
class Row:
    """`key` is what it is known by while it changes; `cells` in the order of the columns."""

    key: str
    cells: tuple[Cell, ...]
    href: str = ""
    label: str = ""  # what is called when it is chosen; empty: the first cell


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
    filter: str | None = None  # None: this one has no filter
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
    """Lines over time that share an axis. `summary` says in one line what there is to see."""

    id: str
    names: tuple[str, ...]
    step_s: int
    end_us: int
    values: tuple[Sequence[float | None], ...]  # one for each name, equally long
    unit: str = ""  # "records/s", "B/s", "ms", …
    kind: str = "line"  # "line", "area" (stacked), "bar"
    summary: str = ""
    marks: tuple[tuple[int, str], ...] = ()  # time_us, text: what happened then

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
    time_us: int  # that its facts are of
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
