"""How numbers are written: three digits that count, two units at most, and never a unit's worth of a smaller one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_web.components import numbers
from comet_web.document import DASH


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (12.34, "12.3"), (999, "999"), (999.6, "1.00 k"), (1234, "1.23 k"), (-4.5e7, "-45.0 M")],
)
def test_three_digits_count(value: float, text: str) -> None:
    assert numbers.short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"), (0.9996, "1.0 s"), (4.24, "4.2 s"), (9.96, "10 s"), (59.4, "59 s"), (59.7, "1 min"),
        (200, "3 min 20 s"), (3_599.6, "1 h"), (7_500, "2 h 5 min"), (90_000, "1 d 1 h"), (604_800, "7 d"),
    ],
)  # fmt: skip
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert numbers.duration_text(seconds) == text


@given(st.floats(0, 1e9))
def test_no_duration_is_a_whole_larger_unit(seconds: float) -> None:
    text = numbers.duration_text(seconds)
    assert text not in ("1000 ms", "60 s", "60 min", "24 h") and " 60 " not in text


def test_how_long_ago_does_not_flicker() -> None:
    now = 100_000_000
    assert [numbers.ago(now - back, now).text for back in (0, 999_999, 1_000_000, 8_600_000)] == [
        "just now", "just now", "1 s ago", "8 s ago",
    ]  # fmt: skip
    assert numbers.ago(now + 5, now).text == "just now", "clocks differ"
    assert numbers.ago(None, now).text == DASH
    assert numbers.ago(now, now).title == "1970-01-01 00:01:40.000 UTC"


def test_what_is_not_known_is_a_dash() -> None:
    unknown = (numbers.count(None), numbers.rate(None), numbers.size(None), numbers.duration(None), numbers.moment(0))
    assert {cell.text for cell in unknown} == {DASH}
    assert numbers.count(0).text == "0" and numbers.size(0).text == "0 B"


@pytest.mark.parametrize("time_us", [2**62, -(2**62), 253_402_300_800_000_000])
def test_a_time_that_no_calendar_has_is_the_number_it_is(time_us: int) -> None:
    """A record's time is whatever its producer says; no page may fall over it."""
    assert numbers.moment_text(time_us) == f"{time_us} µs"
    assert numbers.ago(time_us, 0).title == f"{time_us} µs"
