"""A limit on failed logins: an address with many of them is refused until a minute is over."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")
log = logging.getLogger(__name__)

FAILURES_MAX: Final = 10  # of one address in a window; then it is refused until the window is over
WINDOW_S: Final = 60.0
ADDRESSES_MAX: Final = 10_000  # with failures, kept in memory


class AddressThrottle:
    """Belongs to one application; used on its loop. `what` names the failures in the log."""

    def __init__(self, what: str, clock: Callable[[], float] = monotonic) -> None:
        self._what = what
        self._clock = clock
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()  # address -> end of its window, count
        self.failures = 0  # of all addresses, ever

    def left_s(self, address: str) -> float:
        """The time for which the address is still refused; 0: it is not."""
        until, count = self._failures.get(address, (0.0, 0))
        return max(0.0, until - self._clock()) if count >= FAILURES_MAX else 0.0

    def failed(self, address: str) -> None:
        self.failures += 1
        now = self._clock()
        until, count = self._failures.get(address, (0.0, 0))
        until, count = (until, count + 1) if now < until else (now + WINDOW_S, 1)
        remember(self._failures, address, (until, count))
        if count == FAILURES_MAX:
            log.warning("address throttled after %d %s: %s", count, self._what, address, extra={"address": address})


def remember(table: OrderedDict[K, V], key: K, value: V, most: int = ADDRESSES_MAX) -> None:
    """Puts a value into a bounded table, in place of the oldest."""
    table[key] = value
    table.move_to_end(key)
    if len(table) > most:
        table.popitem(last=False)
