"""What is kept between two looks at a page: one of a kind, answers for a moment, nothing that went wrong."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from comet.errors import Unavailable
from comet_gateway.config import GatewayConfig
from comet_gateway.dashboard.sources import RECENT_MAX, Sources
from comet_testing.simulation import loop as sim


def sources() -> Sources:
    backend = cast(Any, SimpleNamespace(bootstrap="b:1", admin=None))
    nothing = cast(Any, None)
    return Sources(GatewayConfig(), backend, nothing, gatekeeper=nothing, traffic=nothing, metrics=nothing)


class Board:
    def __init__(self, of: Sources) -> None:
        self.of = of
        self.closed = False

    def statistics(self) -> dict[str, int]:
        return {"pages": 3}

    async def close(self) -> None:
        self.closed = True


class Asked:
    """A question that takes half a second, and counts."""

    def __init__(self) -> None:
        self.times = 0
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.times += 1
        await asyncio.sleep(0.5)
        if self.error is not None:
            raise self.error
        return self.times


def test_there_is_one_of_a_kind_and_it_is_closed_with_the_rest() -> None:
    async def main(_: sim.SimLoop) -> None:
        one = sources()
        board = one.part(Board)
        assert one.part(Board) is board
        assert board.of is one
        assert one.statistics()["pages"] == 3
        await one.close()
        assert board.closed

    sim.run(main)


def test_an_answer_does_for_all_who_ask_at_once_and_a_moment_later() -> None:
    async def main(_: sim.SimLoop) -> None:
        one, question = sources(), Asked()
        assert await asyncio.gather(*(one.recently("k", 2, question) for _ in range(5))) == [1] * 5
        assert await one.recently("other", 2, question) == 2
        await asyncio.sleep(1)
        assert await one.recently("k", 2, question) == 1
        await asyncio.sleep(2)
        assert await one.recently("k", 2, question) == 3
        one.renew()  # something was changed
        assert await one.recently("k", 2, question) == 4
        await one.close()

    sim.run(main)


def test_what_went_wrong_is_not_kept_and_who_goes_away_takes_nothing_from_the_others() -> None:
    async def main(loop: sim.SimLoop) -> None:
        one, question = sources(), Asked()
        question.error = Unavailable("nobody")
        for _ in range(2):
            with pytest.raises(Unavailable):
                await one.recently("k", 60, question)
        assert question.times == 2
        question.error = None
        impatient = asyncio.create_task(one.recently("k", 60, question))
        patient = asyncio.create_task(one.recently("k", 60, question))
        await asyncio.sleep(0.1)
        impatient.cancel()
        assert await patient == 3
        await one.close()
        assert not loop.unhandled

    sim.run(main)


def test_so_many_answers_are_kept_and_no_more() -> None:
    async def main(_: sim.SimLoop) -> None:
        one, question = sources(), Asked()
        await asyncio.gather(*(one.recently(number, 60, question) for number in range(RECENT_MAX + 1)))
        assert question.times == RECENT_MAX + 1
        await one.recently(RECENT_MAX, 60, question)
        assert question.times == RECENT_MAX + 1
        await one.recently(0, 60, question)  # the oldest had to go
        assert question.times == RECENT_MAX + 2
        await one.close()

    sim.run(main)
