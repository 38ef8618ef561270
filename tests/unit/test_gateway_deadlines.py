"""Time limits that begin when there is something to wait for."""

from __future__ import annotations

import asyncio

import pytest

from comet_gateway.http.timeouts import until


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_what_is_there_is_returned_even_when_it_is_late() -> None:
    async def there() -> str:
        return "there"

    assert await until(now() - 1, there()) == "there"


async def test_what_takes_several_waits_is_returned() -> None:
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))

    async def work() -> tuple[int, int, int]:
        one = await first
        await asyncio.sleep(0)
        return one, await second, 3

    task = asyncio.create_task(until(now() + 60, work()))
    await asyncio.sleep(0)
    first.set_result(1)
    await asyncio.sleep(0)
    assert not task.done()
    second.set_result(2)
    assert await task == (1, 2, 3)


async def test_a_deadline_is_computed_only_if_the_work_waits() -> None:
    asked = []

    def deadline() -> float:
        asked.append(True)
        return now() + 60

    assert await until(deadline, asyncio.sleep(0, "waits")) == "waits"
    assert len(asked) == 1

    async def there() -> str:
        return "there"

    assert await until(deadline, there()) == "there"
    assert len(asked) == 1


async def test_a_deadline_that_cannot_be_had_ends_the_work() -> None:
    heard = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            heard.append("over")

    with pytest.raises(ZeroDivisionError):
        await until(lambda: 1 / 0, work())
    assert heard == ["over"]


async def test_the_time_runs_out_and_the_work_hears_of_it() -> None:
    heard = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            heard.append("over")

    with pytest.raises(TimeoutError):
        await until(now() + 0.01, work())
    assert heard == ["over"]


async def test_work_may_outlive_its_cancellation() -> None:

    async def work() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "kept"
        return "never"

    task = asyncio.create_task(until(now() + 60, work()))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "kept"


async def test_cancelling_reaches_the_work_and_is_no_time_out() -> None:
    waits = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await waits

    task = asyncio.create_task(until(now() + 60, work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert waits.cancelled()


@pytest.mark.parametrize("turns", [0, 1])
async def test_an_error_comes_through(turns: int) -> None:
    async def work() -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await until(now() + 60, work())
