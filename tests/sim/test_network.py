"""Pipes of the simulated network: order, back-pressure, stalls, and what a cut leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import TypeVar

import pytest

from comet.errors import Unavailable
from comet_testing.simulation.link import WINDOW_BYTES, Pipe
from comet_testing.simulation.loop import SimLoop, run
from comet_testing.simulation.network import Network

T = TypeVar("T")


def with_pipe(body: Callable[[Pipe, SimLoop], Coroutine[None, None, T]], seed: int = 1) -> T:
    async def main(loop: SimLoop) -> T:
        return await body(Pipe(Network(loop, Random(seed)), ("client", "broker")), loop)

    return run(main)


@pytest.mark.parametrize("seed", range(5))
def test_frames_arrive_in_order_after_some_delay(seed: int) -> None:
    async def body(pipe: Pipe, loop: SimLoop) -> tuple[list[bytes | None], float]:
        for number in range(100):
            await pipe.put(b"%d" % number)
        pipe.end()
        return [await pipe.get() for _ in range(101)], loop.time()

    frames, seconds = with_pipe(body, seed)
    assert frames == [*(b"%d" % number for number in range(100)), None]
    assert seconds > 0


def test_a_sender_waits_for_a_reader_that_does_not_read() -> None:
    async def body(pipe: Pipe, loop: SimLoop) -> int:
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await pipe.put(bytes(1000))
                sent += 1

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(flood(), 60)
        return sent

    assert with_pipe(body) * 1000 <= WINDOW_BYTES + 1000


def test_a_stall_delays_and_loses_nothing() -> None:
    async def body(pipe: Pipe, loop: SimLoop) -> tuple[list[bytes | None], float]:
        pipe.stall(10)
        for number in range(3):
            await pipe.put(b"%d" % number)
        return [await pipe.get() for _ in range(3)], loop.time()

    frames, seconds = with_pipe(body)
    assert frames == [b"0", b"1", b"2"]
    assert seconds >= 10


@pytest.mark.parametrize("arriving", range(4))
def test_a_cut_leaves_a_prefix_and_then_the_error_for_both_sides(arriving: int) -> None:
    async def body(pipe: Pipe, loop: SimLoop) -> list[bytes | None]:
        for number in range(3):
            await pipe.put(b"%d" % number)
        pipe.sever(Unavailable("cut"), arriving)
        with pytest.raises(Unavailable):
            await pipe.put(b"late")
        frames = [await pipe.get() for _ in range(min(arriving, 3))]
        with pytest.raises(Unavailable):
            await pipe.get()
        await asyncio.sleep(1)
        return frames

    assert with_pipe(body) == [b"0", b"1", b"2"][:arriving]


def test_a_waiting_reader_and_a_waiting_writer_hear_of_a_cut() -> None:
    async def body(pipe: Pipe, loop: SimLoop) -> None:
        async def write() -> None:
            while True:
                await pipe.put(bytes(10_000))

        reader, writer = asyncio.create_task(pipe.get()), asyncio.create_task(write())
        await asyncio.sleep(0)
        pipe.sever(Unavailable("cut"), 0)
        for task in (reader, writer):
            with pytest.raises(Unavailable):
                await task

    with_pipe(body)
