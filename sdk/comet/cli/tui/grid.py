"""The table on a screen of `comet tui`: only changed cells are drawn again.

Texts of other programs are drawn as rich's Text, which knows no markup, and without control characters.
"""

from __future__ import annotations

from typing import Final

from rich.text import Text
from textual.widgets import DataTable

from comet.cli._colours import STATE_COLUMNS, colour_of
from comet.cli.tui.tables import ROWS_MAX, FigureCell, FigureRow, FigureTable, TableView, next_index
from comet.units import one_line

SHORTENED: Final = frozenset({"topic", "group", "member", "key", "topics"})  # columns
CHARACTERS_MIN: Final = 16


class FigureGrid(DataTable[Text]):
    """The rows of one table, sorted and filtered. Rows have their index as key: a row that moves changes its cells."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row", fixed_columns=1)
        self._shown: list[FigureRow] = []
        self._drawn: list[list[tuple[str, str]]] = []

    @property
    def current(self) -> FigureRow | None:
        """The row of the cursor."""
        return self._shown[self.cursor_row] if self.cursor_row < len(self._shown) else None

    def empty(self) -> None:
        """Forgets rows and columns, and with them the place of the cursor."""
        self.clear(columns=True)
        self._shown, self._drawn = [], []

    def show(self, table: FigureTable, view: TableView) -> int:
        """Draws a table; returns the number of rows that are shown."""
        cursor, current = self.cursor_row, self.current
        self._shown = view.rows(table)[:ROWS_MAX]
        names = [_title(name, at, view) for at, name in enumerate(table.columns)]
        if [str(column.label) for column in self.ordered_columns] != names:
            self.clear(columns=True)
            self._drawn = []
            for at, name in enumerate(names):
                self.add_column(Text(name), key=str(at))
        while len(self._drawn) > len(self._shown):
            self._drawn.pop()
            self.remove_row(str(len(self._drawn)))
        limit = max(CHARACTERS_MIN, self.size.width // 4)
        for index, row in enumerate(self._shown):
            self._draw(index, row, [_drawn(*one, limit) for one in zip(row.cells, table.columns, strict=True)])
        self.move_cursor(row=next_index(current.key if current else "", cursor, self._shown), animate=False)
        return len(self._shown)

    def _draw(self, index: int, row: FigureRow, drawn: list[tuple[str, str]]) -> None:
        if index == len(self._drawn):
            self.add_row(*map(_text, row.cells, drawn), key=str(index))
            self._drawn.append(drawn)
            return
        for at, (old, new) in enumerate(zip(self._drawn[index], drawn, strict=True)):
            if old != new:
                self.update_cell(str(index), str(at), _text(row.cells[at], new), update_width=True)
        self._drawn[index] = drawn


def cut(text: str, characters: int) -> str:
    """A text as one harmless line of at most that length."""
    line = one_line(text)
    return line if len(line) <= characters else line[: characters - 1] + "…"


def _title(column: str, at: int, view: TableView) -> str:
    return column if at != view.column else f"{column} {'▼' if view.descending else '▲'}"


def _drawn(cell: FigureCell, column: str, limit: int) -> tuple[str, str]:
    """The text of a cell as it is drawn, and its colour."""
    text = cut(cell.text, limit) if column in SHORTENED else one_line(cell.text)
    return text, colour_of(text) if column in STATE_COLUMNS else ""


def _text(cell: FigureCell, drawn: tuple[str, str]) -> Text:
    return Text(drawn[0], drawn[1], justify="left" if isinstance(cell.order, str) else "right", no_wrap=True)
