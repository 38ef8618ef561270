"""Providers: the sources of market data. A provider has a name and a `stream` of lists of quotes and trades.

    synthetic                       a simulated market, seeded; needs no network
    replay                          quotes and trades of a CSV or Parquet file
    coinbase, binance, alpaca       real markets, over `comet.sources.websocket`

A provider for another market implements the same protocol and gets a row in choose; nothing else changes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol, TypeAlias

from comet_demo.model import Quote, Trade

Event: TypeAlias = Quote | Trade


class Provider(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def live(self) -> bool:
        """Whether the source does not wait. Live events that cannot be written in time are dropped, the oldest first;
        others wait."""

    def stream(self) -> AsyncGenerator[Sequence[Event], None]:
        """The events as they happen; all of one moment together, in order. Ends when the source does."""

    def statistics(self) -> Mapping[str, int]:
        """Counts for the report at the end, which shows those that are not 0: rows or messages that were skipped, gaps,
        connections."""
