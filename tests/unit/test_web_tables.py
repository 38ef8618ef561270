"""From all rows to the page that was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from comet_web.components.table import PAGE_ROWS, shaped
from comet_web.document import UNKNOWN, Cell, Column, Row, Table
from comet_web.page_request import PageRequest

COLUMNS = (Column("name", "Name"), Column("size", "Size", numeric=True), Column("fixed", "Fixed", sortable=False))


def row(name: str, size: int | None) -> Row:
    return Row(name, (Cell(name), UNKNOWN if size is None else Cell(f"{size} B", size), Cell("")))


def table(
    rows: Sequence[Row], query: Mapping[str, str] | None = None, *, main: bool = True, whole: bool = False
) -> Table:
    return shaped("rows", COLUMNS, rows, PageRequest(query=query or {}, whole=whole), main=main, sort="name")


def names(found: Table) -> list[str]:
    return [row.key for row in found.rows]


MANY = [row(f"{number:04}", number) for number in range(2 * PAGE_ROWS + 50)]


@pytest.mark.parametrize("main", [True, False])
def test_a_table_comes_in_pages(main: bool) -> None:
    page = "page" if main else "rows.page"
    assert names(table(MANY, main=main)) == [row.key for row in MANY[:PAGE_ROWS]]
    last = table(MANY, {page: "3"}, main=main)
    assert (names(last), last.page, last.pages) == ([row.key for row in MANY[2 * PAGE_ROWS :]], 3, 3)
    assert table(MANY, {page: "99"}, main=main).page == 3, "there are no more"
    for wrong in ("0", "-1", "x", "9" * 20, "\u0663"):
        assert table(MANY, {page: wrong}, main=main).page == 1


def test_no_table_takes_what_is_asked_of_another() -> None:
    assert table(MANY, {"rows.page": "2", "rows.sort": "-size"}).page == 1
    other = table(MANY, {"page": "2", "sort": "-size"}, main=False)
    assert (other.page, other.sort, other.descending) == (1, "name", False)


def test_a_file_has_all_rows_of_the_main_table() -> None:
    assert len(table(MANY, whole=True).rows) == len(MANY)
    assert len(table(MANY, main=False, whole=True).rows) == PAGE_ROWS


def test_what_is_not_known_comes_last_in_both_directions() -> None:
    rows = [row("a", None), row("b", 1), row("c", 2)]
    assert names(table(rows, {"sort": "size"})) == ["b", "c", "a"]
    assert names(table(rows, {"sort": "-size"})) == ["c", "b", "a"]


def test_what_cannot_be_sorted_by_stays_as_it_came() -> None:
    for sort in ("fixed", "-nothing"):
        found = table([row("b", 1), row("a", 2)], {"sort": sort})
        assert (names(found), found.sort, found.descending) == (["b", "a"], "", False)
