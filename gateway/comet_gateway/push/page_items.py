"""The parts of a page's document and of its deltas, as they go over the WebSocket: for the schema of frames.

`comet_web.document` and `comet_web.delta` make them. In a document every member is present, in a delta only what
changed. Numbers are JSON numbers here: times are below 2^53.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Number = int | float | None
Line = list[Number]  # None: unknown at that step


class CellItem(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A value with more than its text: `t` is shown, `v` is the value behind it."""

    t: str
    v: str | int | float | None = None
    c: Annotated[str, Meta(description="good, warn, bad, muted or info")] = ""
    h: Annotated[str, Meta(description="shown on hover")] = ""
    a: Annotated[str, Meta(description="address of another page")] = ""
    s: Annotated[Line, Meta(description="sparkline")] | None = None
    b: Annotated[float, Meta(description="share of a bar, 0 to 1")] | None = None


Cell = str | CellItem


class TableItem(Struct, forbid_unknown_fields=True):
    """A table: its rows by key, and the order of the keys. `filter` is null for a table without one."""

    order: list[str]
    rows: dict[str, list[Cell]]
    links: dict[str, str]
    total: int
    matched: int
    page: int
    pages: int
    sort: str
    filter: str | None
    problem: str


class ChartItem(Struct, forbid_unknown_fields=True):
    """Lines over time: the last points are of `end_us`, those before of each `step_s` earlier."""

    step_s: int
    end_us: int
    names: list[str]
    values: list[Line]
    unit: str
    kind: str
    summary: str
    marks: list[tuple[int, str]]


class DocumentItem(Struct, forbid_unknown_fields=True):
    """The content of a page."""

    time_us: int
    fields: dict[str, Cell]
    tables: dict[str, TableItem]
    charts: dict[str, ChartItem]


class TableDelta(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The changed members of a table. A row is whole, or its changed cells by the number of their column; an empty
    link was removed. A new table is whole."""

    rows: dict[str, list[Cell] | dict[str, Cell]] | None = None
    gone: list[str] | None = None
    order: list[str] | None = None
    links: dict[str, str] | None = None
    total: int | None = None
    matched: int | None = None
    page: int | None = None
    pages: int | None = None
    sort: str | None = None
    filter: str | None = None
    problem: str | None = None


class ChartDelta(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The changed members of a chart. `append` has the new points of each line, and as many leave it at the front; then
    `late` replaces points, by line and index. With `values` the chart is whole."""

    step_s: int | None = None
    end_us: int | None = None
    names: list[str] | None = None
    values: list[Line] | None = None
    unit: str | None = None
    kind: str | None = None
    summary: str | None = None
    marks: list[tuple[int, str]] | None = None
    append: list[Line] | None = None
    late: dict[str, dict[str, Number]] | None = None


class DeltaItem(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The changes of a document; what is `gone` has left it."""

    time_us: int
    fields: dict[str, Cell] | None = None
    gone_fields: list[str] | None = None
    tables: dict[str, TableDelta] | None = None
    gone_tables: list[str] | None = None
    charts: dict[str, ChartDelta] | None = None
    gone_charts: list[str] | None = None
