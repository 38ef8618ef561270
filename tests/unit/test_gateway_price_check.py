"""Outliers among prices."""

from __future__ import annotations

import pytest

from comet_gateway.dashboard.candles import Tick
from comet_gateway.dashboard.price_check import PriceCheck


def tick(price: float, bid: float | None = None, ask: float | None = None) -> Tick:
    return Tick("A", price, bid, ask, 1.0, 0)


@pytest.mark.parametrize(
    ("ticks", "outliers"),
    [
        ([tick(100, 99.9, 100.1), tick(131, 99.9, 100.1), tick(100.1, 99.9, 100.1)], [1]),
        ([tick(100, 99.9, 100.1), tick(131, 99.9, 100.1), tick(131, 99.9, 100.1)], [1, 2]),  # its last stays
        ([tick(100, 99.9, 100.1), tick(131, 130.9, 131.1), tick(131, 130.9, 131.1)], []),  # the market moved
        ([tick(100, 99.9, 100.1), tick(106, 99, 101)], []),  # a wide spread
        ([tick(100, 99.9, 100.1), tick(100, 119.9, 120.1), tick(100, 121, 121.1)], []),  # an old last, newer quotes
        ([tick(100, 119.9, 120.1), tick(100, 119.9, 120.1), tick(120, 119.9, 120.1)], []),  # of which nothing is known
        ([tick(100), tick(131), tick(100.1), tick(99)], [1]),
        ([tick(100), tick(131), tick(131.5), tick(130)], [1]),  # the second one confirms the jump
        ([tick(100), tick(131), tick(42), tick(100)], [1, 2]),
        ([tick(100), tick(131, 0, 0), tick(100, 0, 100)], [1]),  # half a quote
        ([tick(-5), tick(-5.1), tick(7), tick(-5)], [2]),
    ],
)  # fmt: skip
def test_outliers(ticks: list[Tick], outliers: list[int]) -> None:
    check = PriceCheck()
    assert [at for at, one in enumerate(ticks) if check.outlier(one)] == outliers
