"""When the market was closed, against a naive count of each moment."""

from __future__ import annotations

import random

import pytest

from comet_demo.analytics.market_closures import Closure, State, closures_of, overlaps


def test_the_market_is_closed_while_all_known_markets_are() -> None:
    states = [State(10, "A", False), State(20, "B", True), State(30, "B", False), State(40, "A", True)]
    assert closures_of(states) == [Closure(10, 20), Closure(30, 40)]
    assert closures_of([*states, State(50, "A", None)])[-1] == Closure(50, None), "B alone is left"
    assert closures_of([State(1, "A", False), State(2, "A", None)]) == [Closure(1, 2)]
    assert closures_of([]) == []


@pytest.mark.parametrize("seed", range(20))
def test_closures_are_what_is_counted_moment_by_moment(seed: int) -> None:
    chance = random.Random(seed)
    times = chance.sample(range(100), 12)
    states = [State(at, chance.choice("AB"), chance.choice([True, False, None])) for at in times]
    closed = [_closed(states, at) for at in range(101)]
    found = closures_of(states)
    for begin in range(100):
        for end in range(begin + 1, 101):
            assert overlaps(found, begin, end) == any(closed[begin:end]), (begin, end)


def _closed(states: list[State], at_us: int) -> bool:
    """By the last state of each market up to this moment."""
    last: dict[str, bool | None] = {}
    for state in sorted(states):
        if state.at_us <= at_us:
            last[state.market] = state.is_open
    known = [one for one in last.values() if one is not None]
    return bool(known) and not any(known)


def test_a_silence_touches_a_closure_from_the_close_up_to_the_opening() -> None:
    closures = [Closure(10, 20), Closure(30, None)]
    assert [overlaps(closures, *one) for one in ((5, 10), (5, 11), (19, 25), (20, 30), (20, 31), (99, 100))] == [
        False, True, True, False, True, True,
    ]  # fmt: skip
