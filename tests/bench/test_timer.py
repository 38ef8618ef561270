"""The ticker: as many ticks as are due, however late somebody looks. No tick is asserted to be on time."""

from __future__ import annotations

import time

import pytest

from comet_bench.timer import SenderCosts, Ticker, monotonic_is_shared


@pytest.mark.parametrize("sleepy", [False, True])
async def test_no_tick_is_lost_when_nobody_looks(sleepy: bool) -> None:
    assert monotonic_is_shared()
    interval_ns = 100_000
    start_ns = time.perf_counter_ns()
    ticker = Ticker(start_ns, interval_ns, sleepy=sleepy)
    try:
        count = 0
        while count < 50:
            due = await ticker.due()
            assert due >= 1
            count += due
            busy_until = time.perf_counter_ns() + 3 * interval_ns
            while time.perf_counter_ns() < busy_until:
                pass  # a program that is late: the ticks add up meanwhile
        elapsed_ns = time.perf_counter_ns() - start_ns
    finally:
        ticker.close()
    assert count <= elapsed_ns // interval_ns + 1


@pytest.mark.parametrize("sleepy", [False, True])
async def test_turning_until_a_tick_is_due_is_no_cost_of_the_sender(sleepy: bool) -> None:
    interval_ns = 4_000_000
    ticker = Ticker(time.perf_counter_ns() + interval_ns, interval_ns, sleepy=sleepy)
    try:
        for _ in range(50):  # one that was seen too late has no turns
            before_ns, turned_ns = time.process_time_ns(), ticker.turned_ns
            costs = SenderCosts(ticker)
            await ticker.due()
            cost_us = costs.per_event(2)["producer_event_us"]
            if ticker.turned_ns > turned_ns:
                break
        used_ns = time.process_time_ns() - before_ns
    finally:
        ticker.close()
    assert (ticker.turned_ns > 0) or sleepy
    assert 0 <= 2 * cost_us * 1e3 <= used_ns - (ticker.turned_ns - turned_ns)


async def test_a_ticker_wants_an_interval() -> None:
    with pytest.raises(AssertionError):
        Ticker(1, 0)
