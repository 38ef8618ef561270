"""The virtual loop itself: time, order, pause, death, and that being stuck is an error that says where."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from comet_testing.simulation.loop import Deadlock, Livelock, Node, SimLoop, run


def test_hours_take_no_time() -> None:
    async def main(loop: SimLoop) -> float:
        await asyncio.sleep(3 * 3600)
        return loop.time()

    started = time.process_time()
    assert run(main) == pytest.approx(3 * 3600)
    assert time.process_time() - started < 5


def test_timers_fire_in_order_of_time_and_time_stands_still_between_them() -> None:
    async def main(loop: SimLoop) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def note(name: str, delay: float) -> None:
            await asyncio.sleep(delay)
            seen.append((name, round(loop.time(), 6)))

        await asyncio.gather(note("b", 0.2), note("a", 0.1), note("c", 0.3))
        return seen

    assert run(main) == [("a", 0.1), ("b", 0.2), ("c", 0.3)]


def test_asyncio_timeouts_work() -> None:
    async def main(loop: SimLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await loop.create_future()
        return loop.time()

    assert run(main) == pytest.approx(5)


def test_a_deadlock_names_who_waits_and_where() -> None:
    async def waits_for_nothing(loop: SimLoop) -> None:
        await loop.create_future()

    async def main(loop: SimLoop) -> None:
        await asyncio.create_task(waits_for_nothing(loop), name="the stuck one")

    with pytest.raises(Deadlock, match=r"(?s)the stuck one: test_loop\.py:\d+ in waits_for_nothing"):
        run(main)


def test_a_loop_that_never_lets_time_pass_is_an_error() -> None:
    async def main(loop: SimLoop) -> None:
        while True:  # noqa: ASYNC110 - to spin is the point
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        run(main)


def counting(counts: list[str]) -> Callable[[], Coroutine[Any, Any, None]]:
    async def count() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                counts.append("tick")
        finally:
            counts.append("finally")

    return count


def test_a_killed_node_stops_at_its_await_and_runs_no_finally() -> None:
    async def main(loop: SimLoop) -> list[str]:
        counts: list[str] = []
        node = Node(loop, "victim")
        node.spawn(counting(counts)(), "counts")
        await asyncio.sleep(3.5)
        node.kill()
        await asyncio.sleep(10)
        return list(counts)

    assert run(main) == ["tick"] * 3


def test_what_a_paused_node_missed_runs_when_it_goes_on() -> None:
    async def main(loop: SimLoop) -> tuple[int, int]:
        counts: list[str] = []
        node = Node(loop, "sleeper")
        node.spawn(counting(counts)(), "counts")
        await asyncio.sleep(2.5)
        node.pause()
        await asyncio.sleep(10)
        paused = len(counts)
        node.resume()
        await asyncio.sleep(1.5)
        return paused, len(counts)

    # One timer was due; it fires late, at 12.5 s, and the next one a second after that.
    assert run(main) == (2, 4)


def test_children_of_a_task_belong_to_its_node() -> None:
    async def main(loop: SimLoop) -> list[str]:
        counts: list[str] = []
        node = Node(loop, "parent")

        async def parent() -> None:
            loop.call_later(2, counts.append, "timer")
            await asyncio.gather(asyncio.create_task(counting(counts)()))

        node.spawn(parent(), "parent")
        await asyncio.sleep(1.5)
        node.kill()
        await asyncio.sleep(10)
        return list(counts)

    assert run(main) == ["tick"]


def test_a_living_task_is_cancelled_at_the_end_and_may_clean_up() -> None:
    counts: list[str] = []

    async def main(loop: SimLoop) -> None:
        Node(loop, "alive").spawn(counting(counts)(), "counts")
        await asyncio.sleep(1.5)

    run(main)
    assert counts == ["tick", "finally"]


def test_an_exception_nobody_takes_is_kept_for_the_verdict() -> None:
    async def main(loop: SimLoop) -> list[str]:
        loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(0)
        return loop.unhandled

    assert "ZeroDivisionError" in run(main)[0]


def test_what_a_dead_node_waits_for_at_its_end_is_taken_apart_too() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.gather(asyncio.sleep(1))

    coroutine: Any = stubborn()

    async def main(loop: SimLoop) -> None:
        node = Node(loop, "a")
        node.spawn(coroutine, "stubborn")
        await asyncio.sleep(1)
        node.kill()

    run(main)
    assert coroutine.cr_frame is None
