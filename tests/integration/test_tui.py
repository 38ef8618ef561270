"""`comet tui` against real brokers: what its screens show, keys, hostile texts, and a cluster that goes away."""

from __future__ import annotations

import asyncio
import fcntl
import html
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from typer.testing import CliRunner

import comet
import comet.testing
from comet.cli._commands import app as commands
from comet.cli.tui import command
from comet.cli.tui.app import EVERY_S, CometTui, LiveScreen
from comet.cli.tui.figures import cluster_tables
from comet.cli.tui.grid import FigureGrid
from comet.cli.tui.queries import ClusterQueries, RecentRecords, reader
from comet.cli.tui.tables import ROWS_MAX, FigureRow, FigureTable, figure, word
from comet.errors import Unavailable
from comet.processes.child import Child, started
from tests.integration.local_cluster import LocalCluster
from tests.integration.test_cli_flows import COMET
from tests.robustness.process import free_port
from tests.waiting import pace, until, until_answered

WAIT_S = 30.0
NARROW = (80, 24)
HOSTILE = "\x1b[31;1mred\x1b[0m \x1b]0;title\x07 \x9b2J [bold]markup[/bold] [@click=app.quit]x[/] \u202egnp\n\r\tend"
HARMLESS = "[31;1mred"


def screen(pilot: Pilot[Exception]) -> list[str]:
    """The lines of the terminal."""
    app = pilot.app
    picture = app.export_screenshot()
    lines: dict[float, str] = {}
    for y, text in re.findall(r'<text [^>]*y="([0-9.]+)"[^>]*>(.*?)</text>', picture, re.DOTALL):
        lines[float(y)] = lines.get(float(y), "") + html.unescape(text).replace("\xa0", " ").rstrip("\n")
    return [line for _, line in sorted(lines.items())]


async def shown(pilot: Pilot[Exception], *parts: str) -> str:
    """The line that has these parts, once there is one."""
    found: list[str] = []

    def there() -> bool:
        found[:] = [line for line in screen(pilot) if all(part in line for part in parts)]
        return bool(found)

    assert await until(there, within_s=WAIT_S), (parts, screen(pilot))
    return found[0]


def absent(pilot: Pilot[Exception], part: str) -> Callable[[], bool]:
    return lambda: not any(part in line for line in screen(pilot))


@asynccontextmanager
async def tui(
    address: str, *, size: tuple[int, int] = NARROW, keyring: comet.Keyring | None = None
) -> AsyncIterator[Pilot[Exception]]:
    queries = ClusterQueries(address)
    async with reader(address, keyring) as records:
        app = CometTui(address, queries, records, cluster_tables(await queries.snapshot()))
        async with app.run_test(size=size) as pilot:
            yield pilot
    await queries.close()


async def send(address: str, topic: str, *values: bytes | None, key: str | bytes | None = None) -> None:
    async with comet.Producer(address) as producer:
        for value in values:
            await producer.send(topic, value, key=key)
        await producer.flush()


async def test_the_tables_show_topics_groups_with_lag_and_brokers() -> None:
    async with comet.testing.broker({"quotes": 2, "bars": 1}) as broker, comet.Admin(broker.address) as admin:
        await send(broker.address, "quotes", *[b"x"] * 60)
        await admin.reset_group("engine", "earliest", topics=["quotes"])
        async with tui(broker.address) as pilot:
            assert "ok" in await shown(pilot, "quotes", "60", "/s")
            assert await shown(pilot, "1 topics 2", "2 groups 1", "3 brokers 1")
            await pilot.press("2")
            assert "empty" in await shown(pilot, "engine", "60", "quotes")
            await send(broker.address, "quotes", *[b"x"] * 11)
            await shown(pilot, "engine", "71")
            await pilot.press("3")
            assert "3" in await shown(pilot, "controller", broker.address)
            await pilot.press("tab", "down")
            await shown(pilot, "bars")


async def test_enter_opens_partitions_and_escape_returns() -> None:
    async with comet.testing.broker({"bars": 1, "quotes": 3}) as broker, comet.Admin(broker.address) as admin:
        await send(broker.address, "quotes", *[b"x"] * 30)
        await admin.reset_group("engine", 4, topics=["bars"])
        await admin.reset_group("engine", "earliest", topics=["quotes"])
        async with tui(broker.address) as pilot:
            await pilot.press("down", "enter")
            await shown(pilot, "topic quotes", "1 partitions 3")
            await shown(pilot, "partition", "leader", "in sync")
            await send(broker.address, "quotes", *[b"x"] * 5)
            assert await until(lambda: sum(_column(pilot, "records")) == 35, within_s=WAIT_S)
            await pilot.press("escape", "2", "enter")
            await shown(pilot, "group engine", "1 partitions 4, empty with 0 members")
            assert await until(lambda: sum(_column(pilot, "lag")) == 35, within_s=WAIT_S)
            await pilot.press("escape", "escape", "escape")
            await shown(pilot, "2 groups 1")


def _column(pilot: Pilot[Exception], name: str) -> list[int]:
    grid = pilot.app.screen.query_one(FigureGrid)
    at = [str(column.label).rstrip(" ▲▼") for column in grid.ordered_columns].index(name)
    cells = [str(grid.get_row_at(row)[at]) for row in range(grid.row_count)]
    return [int(cell.replace(",", "")) for cell in cells if cell != "-"]


async def test_records_are_live_newest_first_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comet.cli.tui.queries.RECORDS_MAX", 20)
    async with comet.testing.broker({"quotes": 3}) as broker:
        await send(broker.address, "quotes", *(b"old-%d" % number for number in range(50)))
        async with tui(broker.address) as pilot:
            await pilot.press("m")
            await shown(pilot, "topic quotes", "1 last records 20")
            await send(broker.address, "quotes", b'{"bid": 1.5}', key="ACME")
            assert "old" not in await shown(pilot, "ACME", '{"bid": 1.5}')
            assert str(pilot.app.screen.query_one(FigureGrid).get_row_at(0)[3]) == "ACME"
            await pilot.press("p")
            await shown(pilot, "paused")
            await send(broker.address, "quotes", None, key="GONE")
            await pace(2 * EVERY_S)
            assert absent(pilot, "GONE")()
            await pilot.press("p")
            await shown(pilot, "GONE", "(tombstone)")


async def test_few_large_records_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comet.cli.tui.queries.RECORDS_BYTES_MAX", 300_000)
    async with comet.testing.broker(["large"]) as broker:
        await send(broker.address, "large", *[b"x" * 100_000] * 150)
        queries = ClusterQueries(broker.address)
        async with reader(broker.address, None) as records:
            recent = RecentRecords(queries, records, "large")
            found = await recent.newest()
            assert 3 <= len(found) < 120 and found[0].offset == 149
            assert await recent.newest() is found, "nothing was written, so nothing is read"
        await queries.close()


async def test_encrypted_values_need_their_key() -> None:
    keyring = comet.Keyring({"2026": bytes(range(32))})
    async with comet.testing.broker(["quotes"]) as broker:
        async with comet.Producer(broker.address, encryption=keyring) as producer:
            await producer.publish("quotes", "EURUSD 1.08", key="EURUSD")
        async with tui(broker.address) as pilot:
            await pilot.press("m")
            await shown(pilot, "EURUSD", "(encrypted with key 2026)")
        async with tui(broker.address, keyring=keyring) as pilot:
            await pilot.press("m")
            await shown(pilot, "EURUSD 1.08")
        async with tui(broker.address, keyring=comet.Keyring({"2025": bytes(32)})) as pilot:
            await pilot.press("m")
            await shown(pilot, "EURUSD", "(record 0 of quotes/0: value cannot be")


async def test_a_filter_and_an_order() -> None:
    async with comet.testing.broker(["bars", "quotes-eu", "quotes-us"]) as broker:
        await send(broker.address, "quotes-us", *[b"x"] * 5)
        async with tui(broker.address) as pilot:
            await pilot.press("slash", *"quo", "enter")
            await shown(pilot, "2 of 3 rows with 'quo'")
            await shown(pilot, "quotes-us", "5")
            assert absent(pilot, "bars")()
            await pilot.press("s", "s", "s", "s")
            await shown(pilot, "records ▼")
            assert await until(lambda: _column(pilot, "records") == [5, 0], within_s=WAIT_S)
            await pilot.press("r")
            await shown(pilot, "records ▲")
            assert await until(lambda: _column(pilot, "records") == [0, 5], within_s=WAIT_S)
            await pilot.press("escape")
            await shown(pilot, "3 of 3 rows")
            await pilot.press("slash", "q", "question_mark", "escape")
            await shown(pilot, "3 of 3 rows")
            await pilot.press("question_mark")
            await shown(pilot, "last records of the topic, live")
            await pilot.press("q")
            await shown(pilot, "3 of 3 rows")
            await pilot.press("q")
        assert pilot.app.return_code == 0


# ---- hostile texts


def harmless(pilot: Pilot[Exception]) -> None:
    everything = "".join(screen(pilot)) + pilot.app.export_screenshot().replace("\n", "")
    assert all(one.isprintable() for one in everything), [one for one in everything if not one.isprintable()]


async def test_keys_and_values_are_shown_as_they_are_and_harmless() -> None:
    async with comet.testing.broker(["orders"]) as broker:
        await send(broker.address, "orders", HOSTILE.encode(), b"\xff\x9b31m", key=b"\x1b]2;t\x07[link]key")
        async with tui(broker.address, size=(240, 24)) as pilot:
            await pilot.press("m")
            assert "[bold]markup[/bold] [@click=app.quit]x[/]" in await shown(pilot, HARMLESS, "[link]key")
            harmless(pilot)


class OneScreen(App[Exception]):
    """Shows tables that no cluster answers."""

    def __init__(self, title: str, *tables: FigureTable) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.rounds = 0
        self.under_way: list[int] = [0]
        self.opened: list[tuple[str, str]] = []
        self._title = title
        self._tables = tables

    def on_mount(self) -> None:
        self.push_screen(LiveScreen(self._title, self.query_tables, self.open_screen))

    async def query_tables(self) -> list[FigureTable]:
        self.rounds += 1
        self.under_way.append(self.under_way[-1] + 1)
        try:
            await self.answers.wait()
        finally:
            self.under_way.append(self.under_way[-1] - 1)
        if self.error is not None:
            raise self.error
        return list(self._tables)

    def open_screen(self, kind: str, name: str) -> None:
        self.opened.append((kind, name))


async def test_names_states_columns_and_reasons_are_harmless_too() -> None:
    row = FigureRow(HOSTILE, (word(HOSTILE), word(HOSTILE), figure(3)))
    table = FigureTable(HOSTILE, ("topic", "state", "records"), (row,), HOSTILE, opens="topic")
    app = OneScreen(HOSTILE, table)
    async with app.run_test(size=NARROW) as pilot:
        await shown(pilot, HARMLESS, "3")
        harmless(pilot)
        await pilot.press("enter", "m")
        assert app.opened == [("topic", HOSTILE), ("records", HOSTILE)]
        app.error = Unavailable(HOSTILE)
        await shown(pilot, "old figures", HARMLESS)
        harmless(pilot)
    assert app.return_value is None


async def test_many_rows_are_cut_and_an_unexpected_error_ends_the_app() -> None:
    rows = tuple(FigureRow(f"t{number}", (word(f"t{number}"),)) for number in range(ROWS_MAX + 1))
    app = OneScreen("many", FigureTable("topics", ("topic",), rows, opens="topic"))
    async with app.run_test(size=NARROW) as pilot:
        await shown(pilot, f"{ROWS_MAX} of {ROWS_MAX + 1} rows")
        await pilot.press("slash", *f"t{ROWS_MAX}", "enter")
        await shown(pilot, f"1 of {ROWS_MAX + 1} rows")
        await pilot.press("enter")
        assert app.opened == [("topic", f"t{ROWS_MAX}")]
        app.error = ValueError("a bug")
        assert await until(lambda: app.return_value is app.error, within_s=WAIT_S)


async def test_the_cursor_follows_its_row() -> None:
    def table(*names: str) -> FigureTable:
        return FigureTable("topics", ("topic",), tuple(FigureRow(name, (word(name),)) for name in names), opens="topic")

    app = OneScreen("moving", table("a", "b", "c"))
    async with app.run_test(size=NARROW) as pilot:
        await shown(pilot, "3 of 3 rows")
        await pilot.press("down")
        app._tables = (table("0", "a", "b", "c"),)
        await shown(pilot, "4 of 4 rows")
        await pilot.press("enter")
        assert app.opened == [("topic", "b")]


async def test_one_round_is_under_way_and_a_slow_one_is_marked() -> None:
    app = OneScreen("slow", FigureTable("topics", ("topic",), (FigureRow("a", (word("a"),)),)))
    async with app.run_test(size=NARROW) as pilot:
        await shown(pilot, "1 of 1 row")
        app.answers.clear()
        await shown(pilot, "old figures: no answer for")
        await shown(pilot, " a ")
        app.answers.set()
        assert await until(absent(pilot, "old figures"), within_s=WAIT_S)
        app.answers.clear()
        assert await until(lambda: app.under_way[-1] == 1, within_s=WAIT_S)

        covering = OneScreen("", FigureTable("topics", ("topic",), ()))
        await app.push_screen(LiveScreen("on top", covering.query_tables, app.open_screen))
        before = app.rounds
        assert await until(lambda: covering.rounds == 3, within_s=WAIT_S)
        assert (app.rounds, app.under_way[-1]) == (before, 0), "a covered screen does not query"
        app.answers.set()
        await pilot.press("escape")
        assert await until(lambda: app.rounds == before + 2, within_s=WAIT_S)
        assert max(app.under_way) == 1


# ---- clusters that go away


@pytest.mark.parametrize("gone", [signal.SIGKILL, signal.SIGSTOP])
async def test_figures_stay_marked_as_old_while_the_cluster_is_away(tmp_path: Path, gone: signal.Signals) -> None:
    port = free_port()
    words = ("up", "--data", str(tmp_path / "data"), "--port", str(port), "--no-gateway", "--metrics-port", "0")
    address = f"127.0.0.1:{port}"
    with started(Child("comet up", [*COMET, *words, "--json"], piped=True)) as broker:
        await asyncio.to_thread(broker.line, WAIT_S)
        async with comet.Admin(address) as admin:
            await admin.create_topic("quotes")
        await send(address, "quotes", b"1", b"2")
        async with tui(address) as pilot:
            await shown(pilot, "quotes", "2")
            broker.signal(gone)
            await shown(pilot, "old figures: no answer for", address)
            assert pilot.app.screen.query_one(FigureGrid).has_class("old")
            await shown(pilot, "quotes", "2")
            await pilot.press("enter")
            await shown(pilot, "topic quotes")
            await shown(pilot, "old figures")
            await pilot.press("escape")
            if gone == signal.SIGKILL:
                await asyncio.to_thread(broker.wait, WAIT_S)
                broker.start()
                await asyncio.to_thread(broker.line, WAIT_S)
            else:
                broker.signal(signal.SIGCONT)
            await send(address, "quotes", b"3")
            await shown(pilot, "quotes", "3")
            assert await until(absent(pilot, "old figures"), within_s=WAIT_S)
            assert not pilot.app.screen.query_one(FigureGrid).has_class("old")


class SilentAdmin(comet.Admin):
    """A client of a broker that takes requests and does not answer."""

    async def statistics(self, *_: object, **__: object) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def list_topics(self) -> list[comet.TopicInfo]:
        raise AssertionError("lists come from a broker that answers")


class EndingAdmin(comet.Admin):
    """A client of a broker that ends between two requests."""

    async def list_topics(self) -> list[comet.TopicInfo]:
        raise Unavailable("it has gone")


async def test_a_broker_without_an_answer_costs_no_other_ones_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comet.cli.tui.queries.BROKER_S", 0.5)
    async with LocalCluster(tmp_path) as cluster:
        connect = cluster.network.connect
        async with comet.Admin(cluster.addresses, connect=connect) as admin:
            for number in range(6):
                await admin.create_topic(f"t{number}", partitions=1, replicas=1)

        def client(address: str) -> comet.Admin:
            return clients.get(address, comet.Admin)(address, connect=connect)

        bootstrap = ",".join(cluster.addresses)
        clients: dict[str, type[comet.Admin]] = {bootstrap: SilentAdmin, "broker-3:9092": SilentAdmin}
        queries = ClusterQueries(bootstrap, client)

        async def round_(known: int, states: set[str]) -> bool:
            """Whether that many topics have figures, and the brokers one of these states."""
            topics, _, brokers = cluster_tables(await queries.snapshot())
            records = [row.cells[3].text for row in topics.rows]
            found = {row.key: row.cells[1].text.replace("controller", "ok") for row in brokers.rows}
            assert set(records) <= {"0", "-"} and found["1"] == "ok"
            return records.count("0") == known and set(found.values()) == states

        assert await until_answered(lambda: round_(4, {"ok", "silent"}), within_s=WAIT_S)
        await cluster.stop(2)
        assert await until_answered(lambda: round_(2, {"ok", "silent", "offline"}), within_s=WAIT_S)
        await cluster.start(2)
        assert await until_answered(lambda: round_(4, {"ok", "silent"}), within_s=WAIT_S)
        await queries.close()

        clients = dict.fromkeys(["broker-1:9092", "broker-2:9092"], EndingAdmin)
        queries = ClusterQueries(bootstrap, client)
        assert await until_answered(lambda: round_(6, {"ok"}), within_s=WAIT_S)
        await queries.close()


# ---- the command


def test_a_missing_package_and_a_missing_terminal_are_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    told = CliRunner().invoke(commands, ["tui"])
    assert told.exit_code == 2 and "comet tui needs a terminal" in told.stderr
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    told = CliRunner().invoke(commands, ["tui"])
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == (
        "error: comet tui needs textual [INVALID_ARGUMENT]\nhint: pip install '.[tui]' (in a checkout of Comet)\n"
    )


def read_until(terminal: int, part: bytes) -> bytes:
    found = b""
    while part not in found:
        found += os.read(terminal, 1 << 16)  # pytest-timeout ends it
    return found


@pytest.mark.parametrize("end", ["q", "SIGTERM"])
def test_it_runs_in_a_terminal_without_colours_and_restores_it(end: str) -> None:
    with comet.testing.broker(["quotes"]) as broker:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        before = termios.tcgetattr(theirs)
        environment = os.environ | {"NO_COLOR": "1", "TERM": "xterm-256color", "COMET_BOOTSTRAP": broker.address}
        process = subprocess.Popen(
            [*COMET, "tui"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        try:
            drawn = read_until(ours, b"quotes")
            drawn += read_until(ours, b"Quit")
            if end == "q":
                os.write(ours, b"q")
            else:
                process.send_signal(signal.SIGTERM)
            drawn += read_until(ours, b"\x1b[?1049l")
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
        colours = {one for one in re.findall(rb"\x1b\[([0-9;]*)m", drawn) if b"38;" in one or b"48;" in one}
        greys = {tuple(part.split(b";")[2:5]) for one in colours for part in re.findall(rb"[34]8;2;[0-9;]{5,11}", one)}
        assert all(len(set(grey)) == 1 for grey in greys), greys
        assert termios.tcgetattr(theirs) == before
        os.close(ours)
        os.close(theirs)
        assert b"Traceback" not in drawn
