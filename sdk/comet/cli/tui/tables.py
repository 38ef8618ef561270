"""Tables of texts with what they are sorted by, and the rows of them that a screen shows. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

ROWS_MAX: Final = 500  # on a screen; a filter finds the others
UNKNOWN: Final = "-"
LATE_S: Final = 3.0  # figures are marked as old from that age on


class FigureCell(NamedTuple):
    """A text, and its place in the order of its column. `order` None: unknown, which comes last."""

    text: str
    order: float | str | None


def word(text: str) -> FigureCell:
    return FigureCell(text or UNKNOWN, text)


def figure(value: float | None, text: Callable[[float], str] = "{:,}".format) -> FigureCell:
    return FigureCell(UNKNOWN, None) if value is None else FigureCell(text(value), value)


class FigureRow(NamedTuple):
    """A row, and the name of its topic, group or partition, which stays while its figures change."""

    key: str
    cells: tuple[FigureCell, ...]


@dataclass(frozen=True, slots=True)
class FigureTable:
    """A table and, beside its name, figures of the whole. `opens`: what its rows are."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[FigureRow, ...]
    about: str = ""
    opens: Literal["", "topic", "group"] = ""


@dataclass(frozen=True, slots=True)
class TableView:
    """How a table is shown: the column that it is sorted by, None for the order of its rows, and a filter."""

    column: int | None = None
    descending: bool = False
    filter: str = ""

    def by(self, column: int, table: FigureTable) -> TableView:
        """Sorted by a column: by names up, by numbers down; the other way round if it is sorted by it already."""
        if column == self.column:
            return replace(self, descending=not self.descending)
        numbers = any(isinstance(row.cells[column].order, (int, float)) for row in table.rows)
        return replace(self, column=column, descending=numbers)

    def rows(self, table: FigureTable) -> list[FigureRow]:
        """The rows with the filter in one of their words, in any case, in this order."""
        part = self.filter.casefold()
        found = [row for row in table.rows if not part or _has(row, part)]
        at = self.column
        if at is None:
            return found
        known: list[tuple[float | str, FigureRow]] = []
        unknown = []
        for row in found:
            order = row.cells[at].order
            if order is None:
                unknown.append(row)
            else:
                known.append((order, row))
        known.sort(key=lambda one: one[0], reverse=self.descending)
        return [row for _, row in known] + unknown


def _has(row: FigureRow, part: str) -> bool:
    return any(part in cell.text.casefold() for cell in row.cells if isinstance(cell.order, str))


def staleness(age_s: float, reason: str) -> str:
    """Why figures of that age are old; empty for new ones.

    >>> staleness(0.4, ""), staleness(3.2, ""), staleness(12.0, "no broker answers")
    ('', 'no answer for 3 s', 'no answer for 12 s: no broker answers')
    """
    if not reason and age_s < LATE_S:
        return ""
    return f"no answer for {age_s:.0f} s" + (f": {reason}" if reason else "")


def next_index(key: str, cursor: int, rows: list[FigureRow]) -> int:
    """The row of the cursor in new rows. The first row is a place; another one follows the row with its key."""
    if cursor == 0:
        return 0
    return next((at for at, row in enumerate(rows) if row.key == key), min(cursor, max(len(rows) - 1, 0)))
