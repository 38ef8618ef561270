"""Many deadlines in one heap, against a plain table of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from comet_broker.core.deadlines import Deadlines

NAMES = ["a", "b", "c"]
happenings = st.lists(
    st.tuples(st.sampled_from(["set", "set", "set", "drop", "pass"]), st.sampled_from(NAMES), st.integers(0, 20)),
    max_size=200,
)


@given(happenings)
def test_each_is_due_once_and_in_time(schedule: list[tuple[str, str, int]]) -> None:
    deadlines, plain, now = Deadlines(), dict[str, float](), 0.0
    for what, name, amount in schedule:
        match what:
            case "set":
                deadlines.set(name, now + amount)
                plain[name] = now + amount
            case "drop":
                deadlines.drop(name)
                plain.pop(name, None)
            case _:
                now += amount
                due = {name for name, until in plain.items() if until <= now}
                assert set(deadlines.pop(now)) == due
                assert sorted(deadlines.pop(now)) == [], "once"
                plain = {other: until for other, until in plain.items() if until > now}
        assert len(deadlines) == len(plain)
        if plain:
            assert deadlines.next is not None
            assert deadlines.next <= min(plain.values())


def test_what_is_renewed_all_the_time_leaves_nothing_behind() -> None:
    deadlines = Deadlines()
    for turn in range(10_000):
        deadlines.set("forward", 1e6 - turn)
        deadlines.set("back", 1e6 + turn)
    assert len(deadlines._heap) < 100
    assert deadlines.pop(1e6) == ["forward"]
    assert deadlines.pop(2e6) == ["back"]
    assert deadlines.next is None
