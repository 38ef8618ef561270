"""The quota of bytes in flight, answers that calls share, and the guard of the process's memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from comet.errors import CometError, LimitExceeded, Unavailable
from comet_broker import limits
from comet_broker.memory import guard
from comet_broker.memory.guard import MemoryGuard
from comet_broker.memory.in_flight import InFlight
from comet_broker.partitions.shared_answers import SharedAnswers
from comet_broker.streams.answers import AnswerQueue
from comet_broker.system import SystemProcess, _group_limits
from tests.unit.replica_world import settle

T = TypeVar("T")


async def test_a_call_is_refused_while_the_quota_is_used_up() -> None:
    quota = InFlight(100)
    quota.hold(99)
    quota.check()
    quota.hold(1)
    with pytest.raises(LimitExceeded, match="hold 100 of 100 bytes") as refused:
        quota.check()
    assert refused.value.retriable and refused.value.retry_after_ms > 0
    assert quota.refused == 1
    quota.release(1)
    quota.check()


async def test_streams_go_on_when_there_is_room() -> None:
    quota = InFlight(100)
    quota.hold(150)
    reading = [asyncio.ensure_future(quota.relieved()) for _ in range(3)]
    await settle()
    quota.release(50)
    await settle()
    assert not any(one.done() for one in reading)
    reading[0].cancel()
    quota.release(1)
    await asyncio.gather(*reading[1:])


async def test_a_short_process_is_full_whatever_is_held() -> None:
    quota = InFlight(100)
    quota.press(pressed=True)
    with pytest.raises(LimitExceeded, match="short of memory"):
        quota.check()
    reading = asyncio.ensure_future(quota.relieved())
    quota.hold(1)
    quota.release(1)
    await settle()
    assert not reading.done()
    quota.press(pressed=False)
    await reading


async def test_large_answers_wait_for_their_turn_within_half_of_the_quota() -> None:
    quota = InFlight(100)
    order: list[int] = []

    async def answer(number: int, size: int) -> None:
        await quota.reserve(size)
        order.append(number)

    waiting = [asyncio.ensure_future(answer(number, size)) for number, size in enumerate((20, 20, 20, 5, 90))]
    await settle()
    assert order == [0, 1] and quota.held_bytes == 40, "the small one behind does not overtake"
    assert not quota.full
    waiting[3].cancel()
    await settle()
    quota.give_back(20)
    await settle()
    assert order == [0, 1, 2]
    quota.give_back(20)
    quota.give_back(20)
    await settle()
    assert order == [0, 1, 2, 4], "an answer that is larger than the room is sent alone"
    quota.give_back(90)
    assert quota.held_bytes == 0 and not quota.reserving


async def test_a_call_that_is_cancelled_with_its_turn_gives_it_back() -> None:
    quota = InFlight(100)
    await quota.reserve(50)
    waiting = asyncio.ensure_future(quota.reserve(50))
    await settle()
    quota.give_back(50)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert quota.held_bytes == 0 and not quota.reserving


async def test_calls_that_wait_are_limited_by_the_quota() -> None:
    quota = InFlight(8 * limits.CALL_BYTES)
    assert quota.waiting_max == 2
    with quota.waiting_call(), quota.waiting_call():
        with pytest.raises(LimitExceeded, match="2 calls wait"), quota.waiting_call():
            pytest.fail("it waits")
        assert quota.waiting == 2
    assert quota.waiting == 0


async def test_answers_in_a_stream_are_in_flight_until_they_are_taken() -> None:
    quota = InFlight(1 << 30)
    answers = AnswerQueue(lambda: None, quota)
    answers.add(b"x" * limits.SESSION_ANSWER_BYTES_MAX)
    answers.add(b"y")
    assert quota.held_bytes == limits.SESSION_ANSWER_BYTES_MAX + 1
    assert answers.full, "by its bytes"
    relieved = asyncio.ensure_future(answers.relieved())
    await settle()
    assert len(answers.take()) == limits.SESSION_ANSWER_BYTES_MAX
    await relieved
    assert quota.held_bytes == 1
    answers.close()
    answers.add(b"z")
    assert quota.held_bytes == 0


# ---- shared answers


async def test_calls_with_one_request_share_an_answer() -> None:
    shared: SharedAnswers[bytes] = SharedAnswers()
    made: list[bytes] = []

    async def make() -> bytes:
        await settle()
        made.append(b"answer %d" % len(made))
        return made[-1]

    async def call(version: int, may_answer: asyncio.Event) -> bytes:
        with shared.expect("key"):
            await may_answer.wait()
            return await shared.answer("key", version, make)

    first, later = asyncio.Event(), asyncio.Event()
    together = [asyncio.ensure_future(call(1, first)) for _ in range(100)]
    last = asyncio.ensure_future(call(2, later))
    await settle()
    first.set()
    await settle()
    together[0].cancel()
    answers = await asyncio.gather(*together[1:])
    assert len(made) == 1 and all(answer is made[0] for answer in answers)
    later.set()
    assert await last == b"answer 1", "what is known now is another version"
    assert len(shared) == 0


async def test_the_error_of_a_shared_answer_reaches_all() -> None:
    shared: SharedAnswers[bytes] = SharedAnswers()

    async def make() -> bytes:
        raise Unavailable("gone")

    async def call() -> bytes:
        with shared.expect("key"):
            return await shared.answer("key", 1, make)

    found = await asyncio.gather(call(), call(), return_exceptions=True)
    assert [type(one) for one in found] == [Unavailable, Unavailable]


# ---- the guard


class Calls:
    """memory.guard.Sheddable."""

    def __init__(self) -> None:
        self.unfinished = self.some = 0

    def end_unfinished(self, error: CometError) -> int:
        assert error.retriable and error.retry_after_ms > 0
        self.unfinished += 1
        return 2

    def end_some(self, _: CometError) -> int:
        self.some += 1
        return 1


class Worker:
    async def run(self, function: Callable[[], T]) -> T:
        return function()


async def test_the_guard_sheds_more_the_less_memory_is_left() -> None:
    calls, quota = Calls(), InFlight(1 << 20)
    watch = MemoryGuard(SystemProcess(), Worker(), 1000, quota, [calls])
    assert not watch.look(round(1000 * guard.UNFINISHED_SHARE) - 1)
    assert calls.unfinished == 0
    assert watch.look(round(1000 * guard.UNFINISHED_SHARE) + 1)
    assert (calls.unfinished, calls.some, quota.full, watch.ended) == (1, 0, False, 2)
    watch.look(round(1000 * guard.FULL_SHARE) + 1)
    assert (calls.unfinished, calls.some, quota.full) == (2, 0, True)
    watch.look(round(1000 * guard.STREAMS_SHARE) + 1)
    assert (calls.unfinished, calls.some, watch.ended) == (3, 1, 7)
    watch.look(round(1000 * guard.FULL_SHARE) - 1)
    assert quota.full, "not at the first byte below"
    watch.look(round(1000 * guard.FULL_SHARE * guard.CALM_SHARE) - 1)
    assert not quota.full


def test_the_memory_limit_is_the_lowest_of_the_control_groups(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("4:memory:/a/b\n3:cpu:/a\n0::/x/y\n")
    for folder, name, text in (
        ("memory/a/b", "memory.limit_in_bytes", "300\n"),
        ("memory/a", "memory.limit_in_bytes", "200\n"),
        ("x/y", "memory.max", "max\n"),
        ("x", "memory.max", "500\n"),
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    assert sorted(_group_limits(groups, tmp_path)) == [200, 300, 500]
    assert _group_limits(tmp_path / "missing", tmp_path) == []
    found = SystemProcess().memory_limit_bytes()
    assert found is not None and found > 1 << 20
