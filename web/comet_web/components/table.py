"""One page of a table's rows: filtered, sorted, cut to a page. Pure.

The query parameters of a page's main table are `filter`, `sort` (a column's key; with a leading -: descending) and
`page`, of other tables `ID.sort` and `ID.page`. Unknown values sort last in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from comet_web.document import DASH, Cell, Column, Row, Table
from comet_web.page_request import PageRequest

PAGE_ROWS: Final = 100


def shaped(
    id_: str,
    columns: Sequence[Column],
    rows: Iterable[Row],
    request: PageRequest,
    *,
    main: bool = True,
    sort: str = "",
    text: Callable[[Row], str] | None = None,
) -> Table:
    """The table that the request names. `sort` is the default order; `text` gives the text that the filter matches
    (default: the first cell)."""
    everything = list(rows)
    chosen = request.query.get("sort" if main else f"{id_}.sort", "") or sort
    key, descending = chosen.removeprefix("-"), chosen.startswith("-")
    index = next((number for number, column in enumerate(columns) if column.key == key and column.sortable), None)
    found = everything
    if main and request.matches is not None:
        matches, of = request.matches, text or _first
        found = [row for row in everything if matches(of(row))]
    if index is None:
        key, descending = "", False
    else:
        at = index
        known = [row for row in found if not _unknown(row.cells[at])]
        unknown = [row for row in found if _unknown(row.cells[at])]
        found = sorted(known, key=lambda row: _order(row.cells[at]), reverse=descending) + unknown
    matched, pages = len(found), 1
    page = 1
    if not (main and request.whole):
        pages = max(1, -(-matched // PAGE_ROWS))
        page = min(_number(request.query.get("page" if main else f"{id_}.page", "")), pages)
        found = found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]
    return Table(
        id=id_,
        columns=tuple(columns),
        rows=tuple(found),
        total=len(everything),
        matched=matched,
        page=page,
        pages=pages,
        sort=key,
        descending=descending,
        filter=request.query.get("filter", "") if main else None,
        problem=request.filter_problem if main else "",
    )


def _first(row: Row) -> str:
    return row.cells[0].text


def _unknown(cell: Cell) -> bool:
    return cell.value is None and cell.text == DASH


def _order(cell: Cell) -> tuple[int, float, str]:
    """Sort key of a cell: numbers before texts, as a column may hold both."""
    value = cell.text if cell.value is None else cell.value
    return (1, 0.0, value.casefold()) if isinstance(value, str) else (0, float(value), "")


def _number(text: str) -> int:
    return max(1, int(text)) if text.isascii() and text.isdecimal() and len(text) < 8 else 1
