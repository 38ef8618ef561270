"""Whether the market of a topic of quotes NAME is open: the keys of the compacted topic NAME.market, if it exists.

    key: a market    value: JSON, {"open": true}; other fields are ignored    timestamp: when it opened or closed

Owned by a `QuoteFeed`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from comet.records.expiry import has_expired
from comet_gateway.brokers.key_tables import KeyTables
from comet_gateway.dashboard.key_watcher import Entry, KeyWatcher
from comet_web import facts

MARKETS_MAX: Final = 100  # of one topic; with more the state is unknown


class _MarketValue(msgspec.Struct):
    open: bool


_decode = msgspec.json.Decoder(_MarketValue).decode


class MarketStates:
    def __init__(self, topic: str, tables: KeyTables, clock_us: Callable[[], int]) -> None:
        self.watcher = KeyWatcher(f"{topic}.market", tables, self._take, self._complete)
        self._clock_us = clock_us
        self._states: dict[str, tuple[facts.Market, int]] = {}  # by key, with the time when the value expires

    def state(self, now_us: int) -> facts.Market | None:
        """Closed if all markets are, since the last one closed; else open. None: unknown, or the topic is missing."""
        if not self.watcher.followed or self.watcher.failed or len(self._states) > MARKETS_MAX:
            return None
        states = [market for market, expires_us in self._states.values() if not has_expired(expires_us, now_us)]
        opened = [market.since_us for market in states if market.open]
        if opened:
            return facts.Market(True, min(opened))
        return facts.Market(False, max(market.since_us for market in states)) if states else None

    def _take(self, entry: Entry, changed: bool) -> str | None:
        """Takes an entry; returns its key if it has a state. Malformed values are ignored."""
        key = entry.key.decode("utf-8", "replace")
        if entry.value is None:
            self._states.pop(key, None)
            return None
        try:
            is_open = _decode(entry.value).open
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        before = self._states.get(key)
        if before is None and len(self._states) > MARKETS_MAX:
            return None
        since_us = min(entry.timestamp_us, self._clock_us())
        if changed and before is not None and before[0].open == is_open:
            since_us = before[0].since_us  # closed again: it was closed all the while
        self._states[key] = facts.Market(is_open, since_us), entry.expires_us
        return key

    def _complete(self, keys: Collection[str]) -> None:
        for key in self._states.keys() - keys:
            del self._states[key]
