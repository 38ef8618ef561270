"""Outliers among the prices of one symbol. Pure.

A price with a bid and an ask is an outlier if it is further from their middle than 1 % and five spreads: the rule of
the demo's job. A last price that has not changed since it was in the market stays good while the quotes move away from
it. A price without a quote is an outlier if it jumps, and the next one does not confirm it.
"""

from __future__ import annotations

from typing import Final

from comet_gateway.dashboard.candles import Tick

SHARE: Final = 0.01
SPREADS: Final = 5
JUMP_SHARE: Final = 0.05  # without a quote


class PriceCheck:
    """Gets the prices of one symbol in their order. One for new records, and one for each stretch of the history."""

    __slots__ = ("_good", "_suspect")

    def __init__(self, before: float | None = None) -> None:
        self._good = before  # the last good price
        self._suspect: float | None = None

    def outlier(self, tick: Tick) -> bool:
        """Whether to leave the price out."""
        price, before, suspect = tick.price, self._good, self._suspect
        self._suspect = None
        if before is not None and price != before:
            bid, ask = tick.bid, tick.ask
            if bid is not None and ask is not None and bid > 0 and ask > 0:
                middle = (bid + ask) / 2
                if abs(price - middle) > SHARE * middle + SPREADS * abs(ask - bid):
                    return True
            elif _jumps(price, before) and (suspect is None or _jumps(price, suspect)):
                self._suspect = price
                return True
        self._good = price
        return False


def _jumps(price: float, before: float) -> bool:
    return abs(price - before) > JUMP_SHARE * abs(before)
