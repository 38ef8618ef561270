"""The pump of a subscription: nothing is taken that cannot be written, and what was begun is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from comet_gateway.http.problems import Problem
from comet_gateway.http.wire import Frame, Gone
from comet_gateway.push.frames import EndFrame
from comet_gateway.push.pump import pump
from tests.waiting import until

PATIENCE_S = 30.0
END = EndFrame("a", "done")


class Wire:
    """Has room for a number of writes; `drain` adds room."""

    def __init__(self, log: list[str], room: int) -> None:
        self.log = log
        self.left = room
        self.gone = False
        self._changed = asyncio.Event()

    async def room(self) -> None:
        while self.left <= 0:
            self.log.append("full")
            self._changed.clear()
            await self._changed.wait()
        if self.gone:
            raise Gone

    async def write(self, frames: Sequence[Frame]) -> None:
        self.left -= 1
        self.log.append(b" ".join(part for frame in frames for part in frame).decode())

    def drain(self, room: int) -> None:
        self.left = room
        self._changed.set()

    def abort(self) -> None: ...


class Numbers:
    """Counts up to `last`; a number below zero is nothing to write."""

    def __init__(self, log: list[str], last: int, first: int = 0) -> None:
        self.log = log
        self.last = last
        self.next = first
        self.error: Exception | None = None

    async def begin(self) -> None:
        self.log.append("begin")
        if self.error is not None:
            raise self.error

    async def ready(self) -> None:
        self.log.append("ready")

    async def take(self) -> list[Frame] | EndFrame:
        if self.next > self.last:
            return END
        self.next += 1
        return [[b"%d" % (self.next - 1)]] if self.next > 0 else []

    async def close(self) -> None:
        self.log.append("close")


async def test_a_source_is_taken_from_to_its_end() -> None:
    log: list[str] = []
    assert await pump(Numbers(log, last=1, first=-1), Wire(log, room=9)) == END
    assert log == ["begin", "ready", "ready", "0", "ready", "1", "ready", "close"]


async def test_nothing_is_taken_while_there_is_no_room() -> None:
    log: list[str] = []
    source, wire = Numbers(log, last=9), Wire(log, room=1)
    running = asyncio.create_task(pump(source, wire))
    assert await until(lambda: "full" in log, within_s=PATIENCE_S)
    assert log == ["begin", "ready", "0", "full"] and source.next == 1
    wire.drain(1)
    assert await until(lambda: log.count("full") == 2, within_s=PATIENCE_S)
    assert log[4:] == ["ready", "1", "full"] and source.next == 2
    running.cancel()
    await asyncio.wait([running])
    assert log[-1] == "close"


class Late(Numbers):
    """While it waits for a number, other subscriptions fill the connection."""

    def __init__(self, log: list[str], wire: Wire) -> None:
        super().__init__(log, last=0)
        self.wire = wire

    async def ready(self) -> None:
        await super().ready()
        self.wire.left = 0


async def test_room_is_waited_for_again_when_something_has_come() -> None:
    log: list[str] = []
    wire = Wire(log, room=1)
    running = asyncio.create_task(pump(Late(log, wire), wire))
    assert await until(lambda: "full" in log, within_s=PATIENCE_S)
    assert log == ["begin", "ready", "full"]
    wire.drain(1)
    assert await until(lambda: "0" in log, within_s=PATIENCE_S)
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize("error", [Problem("OVERLOADED", "full"), ValueError("a bug")])
async def test_what_cannot_begin_is_closed(error: Exception) -> None:
    log: list[str] = []
    source = Numbers(log, last=0)
    source.error = error
    with pytest.raises(type(error)):
        await pump(source, Wire(log, room=1))
    assert log == ["begin", "close"]


async def test_a_connection_that_ended_ends_it() -> None:
    log: list[str] = []
    wire = Wire(log, room=1)
    wire.gone = True
    with pytest.raises(Gone):
        await pump(Numbers(log, last=0), wire)
    assert log == ["begin", "close"]
