"""Connections of bytes on the simulated network: order, pieces, back-pressure, stalls, death, and what a cut leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from random import Random
from typing import Any

import pytest

from comet import limits
from comet_testing.simulation.link import WINDOW_BYTES
from comet_testing.simulation.loop import SimLoop, run
from comet_testing.simulation.network import Network
from comet_testing.simulation.wire import Sent, SimTransport
from tests.waiting import pace

BYTES = Random(1).randbytes(10_000)


class Side(asyncio.BufferedProtocol):
    """Keeps what comes, in a buffer of a few bytes."""

    def __init__(self) -> None:
        self.came = bytearray()
        self.pieces = 0
        self.full = False
        self.resumed = 0
        self.lost: list[Exception | None] = []
        self._buffer = bytearray(700)

    def get_buffer(self, _: int) -> Any:
        return memoryview(self._buffer)

    def buffer_updated(self, size: int) -> None:
        assert not self.lost
        self.pieces += 1
        self.came += self._buffer[:size]

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self.resumed += 1

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)


class Connection:
    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.network = Network(loop, Random(seed))
        self.client, self.broker = Side(), Side()
        self.up = SimTransport(self.network, ("client", "broker"), copy_context(), self.client)
        self.down = SimTransport(self.network, ("broker", "client"), copy_context(), self.broker)
        self.up.other, self.down.other = self.down, self.up
        for end in (self.up, self.down):
            end.set_write_buffer_limits(limits.MIB)


Body = Callable[[Connection], Coroutine[Any, Any, None]]


def connected(body: Body, seed: int = 1) -> None:
    run(lambda loop: body(Connection(loop, seed)))


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_in_order_in_pieces_of_any_size(seed: int) -> None:
    async def body(one: Connection) -> None:
        for at in range(0, len(BYTES), 100):
            one.up.writelines([BYTES[at : at + 30], BYTES[at + 30 : at + 100]])
            await pace(0.001)
        await pace(1)
        assert one.broker.came == BYTES and one.broker.pieces > 20
        assert not one.client.came

    connected(body, seed)


def test_a_sender_is_told_to_wait_for_a_reader_that_does_not_read() -> None:
    async def body(one: Connection) -> None:
        one.down.pause_reading()
        sent = 0
        while not one.client.full:
            one.up.write(BYTES)
            sent += len(BYTES)
        assert WINDOW_BYTES < sent <= WINDOW_BYTES + limits.MIB + len(BYTES)
        await pace(60)
        assert one.client.full and not one.broker.came
        one.down.resume_reading()
        await pace(1)
        assert len(one.broker.came) == sent
        assert one.client.resumed == 1

    connected(body)


def test_a_stall_delays_and_loses_nothing() -> None:
    async def body(one: Connection) -> None:
        one.up.stall(one.network.now() + 10)
        one.up.write(BYTES)
        one.down.write(BYTES)
        await pace(9.9)
        assert not one.broker.came and one.client.came == BYTES
        await pace(0.2)
        assert one.broker.came == BYTES

    connected(body)


def test_a_cut_leaves_a_part_of_what_was_under_way_and_both_sides_hear_of_it() -> None:
    parts = set()

    async def body(one: Connection) -> None:
        one.up.write(BYTES)
        error = ConnectionResetError("cut")
        for end in (one.up, one.down):
            end.reset(error)
        await pace(1)
        assert one.client.lost == one.broker.lost == [error]
        assert BYTES.startswith(one.broker.came)
        one.up.write(BYTES)
        await pace(1)
        parts.add(len(one.broker.came))

    for seed in range(20):
        connected(body, seed)
    assert len(parts) > 10 and parts - {0, len(BYTES)}


@pytest.mark.parametrize("dies", [False, True])
def test_the_end_of_one_side_reaches_the_other_unless_the_connection_has_died(dies: bool) -> None:
    async def body(one: Connection) -> None:
        one.up.dead = dies
        one.up.write(BYTES)
        one.up.abort()
        await pace(60)
        assert one.client.lost == [None]
        assert len(one.broker.lost) == (not dies) and BYTES.startswith(one.broker.came)
        assert not dies or not one.broker.came
        await pace(3_600)
        assert len(one.broker.lost) == 1, "TCP gives up at last"

    connected(body)


def test_what_is_received_is_held_against_what_was_sent() -> None:
    async def body(one: Connection) -> None:
        sent = Sent(one.network, ("client", "broker"))
        for frame in (b"one", b"two", b"three"):
            sent.note(frame)
        sent.compare(bytearray(b"one"))
        assert not one.network.complaints
        sent.compare(b"tw")
        sent.compare(b"three")
        sent.compare(b"four")
        assert one.network.complaints == [
            "a frame of 2 bytes came from client, and the next one sent has 3",
            "a frame of 4 bytes came from client, and none was under way",
        ]

    connected(body)
