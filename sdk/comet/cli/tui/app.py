"""The app of `comet tui`: screens with one table at a time, which query the cluster once a second.

main screen    topics, groups, brokers ─► Enter: partitions of a topic or a group, m: the last records of a topic
every screen   query ─► tables ─► sorted and filtered rows ─► grid
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, Static

import comet
from comet.cli.tui.figures import cluster_tables, group_tables, record_tables, topic_tables
from comet.cli.tui.grid import CHARACTERS_MIN, FigureGrid, cut
from comet.cli.tui.queries import ClusterQueries, RecentRecords
from comet.cli.tui.tables import FigureTable, TableView, staleness
from comet.errors import CometError
from comet.units import count

EVERY_S: Final = 1.0  # the brokers measure once a second, too
ROUND_S: Final = 10.0  # of all requests of a round
TABS_CHARACTERS: Final = 40  # beside the title
NO_TABLE: Final = FigureTable("", (), ())
Query = Callable[[], Awaitable[list[FigureTable]]]

KEYS: Final = """\
1 2 3, Tab   the tables of the screen
↑ ↓ PgUp …   move; ← → for columns that do not fit
Enter        partitions of the topic or group
m            last records of the topic, live
/            filter: rows with this text; Enter keeps it, Escape ends it
s            sort by the next column; or click on its name
r            the other way round
p            pause, and go on
Escape       back
q, Ctrl-C    end"""


class FilterLine(Input):
    """The line in which a filter is typed. It is shown while it is open."""

    def open(self, text: str) -> None:
        self.value = text
        self.add_class("open")
        self.focus()

    def close(self) -> bool:
        """Returns to the grid; whether it was open."""
        was_open = self.has_class("open")
        self.remove_class("open")
        self.screen.query_one(FigureGrid).focus()
        return was_open


class LiveScreen(Screen[None]):
    """The tables of one subject. It queries while it is on top, one round after the other. If a round fails, the last
    figures stay, marked as old."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Details", key_display="Enter", priority=True),
        Binding("m", "records", "Records"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("p", "pause", "Pause"),
        Binding("tab", "next_table", show=False, priority=True),
        *(Binding(str(number), f"table({number - 1})", show=False) for number in range(1, 4)),
        Binding("escape", "back", show=False, priority=True),
    ]
    CSS = """
    #title, #state { height: 1; }
    #title { text-style: bold; }
    FilterLine { height: 1; border: none; padding: 0; display: none; }
    FilterLine.open { display: block; }
    FigureGrid { height: 1fr; }
    FigureGrid.old { text-opacity: 60%; }
    FigureGrid:focus { background-tint: $foreground 0%; }
    FigureGrid > .datatable--fixed { background: $surface; }
    """

    def __init__(
        self,
        title: str,
        query: Query,
        open_screen: Callable[[str, str], None],
        *,
        tables: Sequence[FigureTable] = (),
        topic: str = "",
    ) -> None:
        super().__init__()
        self._title = title
        self._query = query
        self._open_screen = open_screen
        self._tables = list(tables)
        self._topic = topic  # whose records the key m shows, where rows are no topics
        self._number = 0  # of the table that is shown
        self._views: dict[int, TableView] = {}
        self._answered = time.time()
        self._reason = ""
        self._paused = False

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield FigureGrid()
        yield FilterLine(placeholder="filter", compact=True)
        yield Static(id="state")
        yield Footer()

    # ---- rounds

    def on_mount(self) -> None:
        self.set_interval(EVERY_S, self._show_state)

    def on_screen_resume(self) -> None:
        self.run_worker(self._run(), exclusive=True)

    def on_screen_suspend(self) -> None:
        self.workers.cancel_node(self)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._round()
            except Exception as error:  # noqa: BLE001 - the command reports it once the terminal is restored
                self.app.exit(error)
                return
            await asyncio.sleep(max(0.0, began + EVERY_S - loop.time()))

    async def _round(self) -> None:
        if self._paused:
            return
        try:
            async with asyncio.timeout(ROUND_S):
                self._tables = await self._query()
        except CometError as error:
            self._reason = error.message
        except TimeoutError:
            self._reason = f"more than {ROUND_S:.0f} s"
        else:
            self._reason, self._answered = "", time.time()
        self._show()

    # ---- drawing

    @property
    def _table(self) -> FigureTable:
        return self._tables[self._number] if self._number < len(self._tables) else NO_TABLE

    @property
    def _view(self) -> TableView:
        return self._views.get(self._number, TableView())

    def _show(self) -> None:
        with self.app.batch_update():
            self.query_one(FigureGrid).show(self._table, self._view)
        self._show_state()

    def _show_state(self) -> None:
        """The names of the tables, and a line that says what is shown and how old it is."""
        table, grid = self._table, self.query_one(FigureGrid)
        title = Text(cut(self._title, max(CHARACTERS_MIN, self.size.width - TABS_CHARACTERS)), no_wrap=True)
        for at, one in enumerate(self._tables):
            title.append("  ")
            title.append(cut(f" {at + 1} {one.name} {one.about} ", TABS_CHARACTERS), "reverse" if one is table else "")
        self.query_one("#title", Static).update(title)
        old = "" if self._paused else staleness(time.time() - self._answered, self._reason)
        grid.set_class(bool(old), "old")
        parts = [Text("paused", "reverse")] if self._paused else []
        parts += [Text(f"old figures: {cut(old, 200)}", "bold red")] if old else []
        rows = f"{grid.row_count:,} of {count(len(table.rows), 'row')}"
        rows += f" with {cut(self._view.filter, CHARACTERS_MIN)!r}" if self._view.filter else ""
        parts.append(Text(f"{rows} · {time.strftime('%H:%M:%S', time.localtime(self._answered))}"))
        self.query_one("#state", Static).update(Text(" · ", no_wrap=True, overflow="ellipsis").join(parts))

    def on_resize(self) -> None:
        self._show()

    # ---- keys

    def _change(self, view: TableView) -> None:
        self._views[self._number] = view
        self._show()

    def action_table(self, number: int) -> None:
        if number < len(self._tables):
            self._number = number
            self.query_one(FigureGrid).empty()
            self._show()

    def action_next_table(self) -> None:
        self.action_table((self._number + 1) % max(len(self._tables), 1))

    def action_sort(self) -> None:
        if columns := len(self._table.columns):
            at = self._view.column
            self._change(self._view.by(0 if at is None else (at + 1) % columns, self._table))

    def action_reverse(self) -> None:
        if self._table.columns:
            self._change(self._view.by(self._view.column or 0, self._table))

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        self._change(self._view.by(event.column_index, self._table))

    def action_filter(self) -> None:
        self.query_one(FilterLine).open(self._view.filter)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._change(replace(self._view, filter=event.value.strip()))

    def action_back(self) -> None:
        """Ends the filter, else the screen."""
        if self.query_one(FilterLine).close() or self._view.filter:
            self._change(replace(self._view, filter=""))
        elif len(self.app.screen_stack) > 2:  # the app's own and the main screen
            self.app.pop_screen()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._show_state()

    @on(DataTable.RowSelected)  # by a click; Enter comes here first
    def action_open(self) -> None:
        """Keeps the filter that is being typed, else opens the row."""
        row = self.query_one(FigureGrid).current
        if not self.query_one(FilterLine).close() and self._table.opens and row is not None:
            self._open_screen(self._table.opens, row.key)

    def action_records(self) -> None:
        row = self.query_one(FigureGrid).current
        topic = row.key if row is not None and self._table.opens == "topic" else self._topic
        if topic:
            self._open_screen("records", topic)


class KeysScreen(ModalScreen[None]):
    """The list of keys. Any key closes it."""

    CSS = """
    KeysScreen { align: center middle; }
    KeysScreen Static { width: auto; height: auto; border: round $primary; padding: 0 1; }
    """

    def compose(self) -> ComposeResult:
        yield Static(KEYS, markup=False)

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss()


class CometTui(App[Exception]):
    """`comet tui`. The caller owns queries and reader. The result is the unexpected error that ended it, if any."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(
        self, address: str, queries: ClusterQueries, reader: comet.Reader, tables: Sequence[FigureTable]
    ) -> None:
        super().__init__()
        self._address = address
        self._queries = queries
        self._reader = reader
        self._first = tables

    def on_mount(self) -> None:
        async def query() -> list[FigureTable]:
            return cluster_tables(await self._queries.snapshot())

        self.push_screen(LiveScreen(f"comet {self._address}", query, self.open_screen, tables=self._first))

    def open_screen(self, kind: str, name: str) -> None:
        """Shows the partitions of a topic or a group, or the last records of a topic."""
        recent = RecentRecords(self._queries, self._reader, name)

        async def topic() -> list[FigureTable]:
            return topic_tables(await self._queries.query(lambda admin: admin.describe_topic(name)))

        async def group() -> list[FigureTable]:
            return group_tables(await self._queries.query(lambda admin: admin.describe_group(name)))

        async def records() -> list[FigureTable]:
            return record_tables(await recent.newest())

        query = {"topic": topic, "group": group, "records": records}[kind]
        title = f"group {name}" if kind == "group" else f"topic {name}"
        self.push_screen(LiveScreen(title, query, self.open_screen, topic=name if kind == "topic" else ""))

    def action_keys(self) -> None:
        self.push_screen(KeysScreen())
