"""The writer of a stream: frames in order, one at a time, and an end that comes whatever happens."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import pytest

from comet_broker.rpc.writer import Outbox, Writer
from comet_broker.streams.session import Session


class FakeSession:
    number = 1

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.over = False
        self.closed = False
        self.rouse: Callable[[], None] = lambda: None

    def listen(self, listener: Callable[[], None]) -> None:
        self.rouse = listener

    def poll(self) -> bytes | None:
        return self.frames.popleft() if self.frames else None

    def say(self, *frames: bytes) -> None:
        self.frames.extend(frames)
        self.rouse()

    def close(self) -> None:
        self.closed = self.over = True
        self.frames.clear()
        self.rouse()


class Wire:
    """Takes frames; each write waits for `release` while `slow`."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.slow = False
        self.error: Exception | None = None
        self.waiting: asyncio.Future[None] | None = None

    async def write(self, frame: bytes) -> None:
        self.written.append(frame)
        if self.slow:
            self.waiting = asyncio.get_running_loop().create_future()
            await self.waiting
        if self.error is not None:
            raise self.error

    def release(self) -> None:
        assert self.waiting is not None
        self.waiting.set_result(None)


def start() -> tuple[FakeSession, Wire, Outbox, Writer]:
    session, wire, outbox = FakeSession(), Wire(), Outbox()
    return session, wire, outbox, Writer(cast("Session", session), wire.write, outbox)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_a_frame_sets_off_is_written_when_the_outbox_is_flushed_and_not_before() -> None:
    session, wire, outbox, _ = start()
    outbox.hold()
    session.say(b"1", b"2")
    assert wire.written == []
    outbox.flush()
    assert wire.written == [b"1", b"2"]


async def test_a_frame_that_nothing_set_off_is_written_in_the_next_turn() -> None:
    session, wire, _, _ = start()
    session.say(b"1")
    session.say(b"2")
    assert wire.written == []
    await turns()
    assert wire.written == [b"1", b"2"]


async def test_only_one_write_is_under_way() -> None:
    session, wire, _, _ = start()
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
    session, wire, _, writer = start()
    wire.slow = True
    session.say(b"1")
    await turns()
    session.over = True
    session.rouse()
    await turns()
    assert not writer.done.done()
    wire.release()
    await writer.done


async def test_stopping_ends_the_write_under_way() -> None:
    session, wire, _, writer = start()
    wire.slow = True
    session.say(b"1", b"2")
    await turns()
    writer.stop()
    wire.release()
    await turns()
    await writer.done
    assert wire.written == [b"1"]


@pytest.mark.parametrize("slow", [False, True])
async def test_a_connection_that_is_gone_closes_the_session(slow: bool) -> None:
    session, wire, _, writer = start()
    wire.slow, wire.error = slow, asyncio.InvalidStateError("gone")
    session.say(b"1", b"2")
    await turns()
    if slow:
        wire.release()
    await writer.done
    assert session.closed
    assert wire.written == [b"1"]


async def test_any_other_error_fails_its_own_call_and_nobody_else() -> None:
    session, wire, outbox, writer = start()
    other, other_wire = FakeSession(), Wire()
    Writer(cast("Session", other), other_wire.write, outbox)
    wire.error = ValueError("a bug")
    outbox.hold()
    session.say(b"1")
    other.say(b"2")
    outbox.flush()
    with pytest.raises(ValueError, match="a bug"):
        await writer.done
    assert session.closed
    assert other_wire.written == [b"2"]
