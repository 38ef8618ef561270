"""The newest trades of one symbol, as its quotes tell of them. Pure."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from comet_web.facts import TapeTrade

TRADES_MAX: Final = 60
TRADE_BYTES: Final = 300  # with its numbers


class TradeTape:
    """Trades, oldest first, and the partitions in which the symbol has records."""

    __slots__ = ("partitions", "trades")

    def __init__(self) -> None:
        self.partitions: set[int] = set()
        self.trades: deque[TapeTrade] = deque(maxlen=TRADES_MAX)

    def put_before(self, older: TradeTape) -> None:
        """Adds older trades, as far as there is room."""
        self.partitions |= older.partitions
        self.trades.extendleft(islice(reversed(older.trades), TRADES_MAX - len(self.trades)))
