"""The writer of a stream: frames in order, one at a time, and an end that comes whatever happens."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from comet.errors import Unavailable
from comet.wire.frames import Outgoing, joined
from comet_broker.rpc import service
from comet_broker.streams.stream_writer import Outbox, StreamWriter


class FakeSession:
    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.over = False
        self.closed = False
        self.writer = StreamWriter(self.poll, over=lambda: self.over, close=self.close)
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, wire: Wire, outbox: Outbox) -> None:
        self.writer.start(wire.write, outbox, self._done)

    def _done(self, error: Exception | None) -> None:
        if error is None:
            self.written.set_result(None)
        else:
            self.written.set_exception(error)
            self.close()

    def poll(self) -> bytes | None:
        return self.frames.popleft() if self.frames else None

    def say(self, *frames: bytes) -> None:
        self.frames.extend(frames)
        self.writer.rouse()

    def close(self) -> None:
        self.closed = self.over = True
        self.frames.clear()
        self.writer.rouse()


class Wire:
    """Takes frames; each write waits for `release` while `slow`."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.slow = False
        self.error: Exception | None = None
        self.waiting: asyncio.Future[None] | None = None

    async def write(self, frame: Outgoing) -> None:
        self.written.append(joined(frame))
        if self.slow:
            self.waiting = asyncio.get_running_loop().create_future()
            await self.waiting
        if self.error is not None:
            raise self.error

    def release(self) -> None:
        assert self.waiting is not None
        self.waiting.set_result(None)


def start() -> tuple[FakeSession, Wire, Outbox]:
    session, wire, outbox = FakeSession(), Wire(), Outbox()
    session.start(wire, outbox)
    return session, wire, outbox


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_a_frame_sets_off_is_written_when_the_outbox_is_flushed_and_not_before() -> None:
    session, wire, outbox = start()
    outbox.hold()
    session.say(b"1", b"2")
    assert wire.written == []
    outbox.flush()
    assert wire.written == [b"1", b"2"]


async def test_a_frame_that_nothing_set_off_is_written_in_the_next_turn() -> None:
    session, wire, _ = start()
    session.say(b"1")
    session.say(b"2")
    assert wire.written == []
    await turns()
    assert wire.written == [b"1", b"2"]


async def test_only_one_write_is_under_way() -> None:
    session, wire, _ = start()
    wire.slow = True
    session.say(b"1", b"2")
    await turns()
    session.say(b"3")
    await turns()
    assert wire.written == [b"1"]
    wire.slow = False
    wire.release()
    await turns()
    assert wire.written == [b"1", b"2", b"3"]


async def test_it_is_done_when_the_session_is_over_and_everything_was_written() -> None:
    session, wire, _ = start()
    wire.slow = True
    session.say(b"1")
    await turns()
    session.over = True
    session.writer.rouse()
    await turns()
    assert not session.written.done()
    wire.release()
    await session.written


async def test_stopping_ends_the_write_under_way() -> None:
    session, wire, _ = start()
    wire.slow = True
    session.say(b"1", b"2")
    await turns()
    session.writer.stop()
    wire.release()
    await turns()
    await session.written
    assert wire.written == [b"1"]


@pytest.mark.parametrize("slow", [False, True])
async def test_nothing_is_written_after_a_write_that_failed(slow: bool) -> None:
    session, wire, _ = start()
    wire.slow, wire.error = slow, asyncio.InvalidStateError("gone")
    session.say(b"1", b"2")
    await turns()
    if slow:
        wire.release()
    with pytest.raises(asyncio.InvalidStateError, match="gone"):
        await session.written
    assert session.closed
    assert wire.written == [b"1"]


async def test_a_transport_that_takes_the_frames_itself_waits_for_them() -> None:
    session = FakeSession()
    taking = asyncio.create_task(session.writer.next_frame())
    await turns()
    session.say(b"1")
    assert await taking == b"1"
    taking = asyncio.create_task(session.writer.next_frame())
    await turns()
    session.close()
    assert await taking is None


async def test_a_side_that_ends_the_call_says_so_once() -> None:
    session = FakeSession()
    first, second = Unavailable("the first reason"), Unavailable("the second")
    session.writer.end_call(first)
    session.writer.end_call(second)
    assert session.closed and session.writer.failure is first


@pytest.mark.parametrize("error", [asyncio.InvalidStateError("gone"), ValueError("a bug"), None])
async def test_a_call_ends_quietly_with_its_connection_and_loudly_with_a_bug(error: Exception | None) -> None:
    session, wire, outbox = FakeSession(), Wire(), Outbox()
    wire.error = error
    call: Any = SimpleNamespace(write=wire.write, peer=lambda: "peer")
    served: Any = session
    written = service._start(served, call, outbox)
    session.say(b"1")
    session.over = True
    await turns()
    if isinstance(error, ValueError):
        with pytest.raises(ValueError, match="a bug"):
            await written
    else:
        await written
    assert session.closed is (error is not None)


async def test_any_other_error_fails_its_own_call_and_nobody_else() -> None:
    session, wire, outbox = start()
    other, other_wire = FakeSession(), Wire()
    other.start(other_wire, outbox)
    wire.error = ValueError("a bug")
    outbox.hold()
    session.say(b"1")
    other.say(b"2")
    outbox.flush()
    with pytest.raises(ValueError, match="a bug"):
        await session.written
    assert session.closed
    assert other_wire.written == [b"2"]
