"""Where market data comes from. A provider has a name and a `stream` of lists of quotes and trades.

    synthetic                       a made-up market, seeded; needs no network
    replay                          quotes and trades of a CSV or Parquet file
    coinbase, binance, alpaca       real markets, over one machine for connections: sockets

One for another market implements the same protocol, gets a row in choose, and nothing else changes.
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
        """Whether it goes on without us. What is live and cannot be written in time is dropped, oldest first; what is
        not waits until it can be."""

    def stream(self) -> AsyncGenerator[Sequence[Event], None]:
        """What happens, as it does; all of one moment together, in order. Ends when the source does."""

    def statistics(self) -> Mapping[str, int]:
        """Counts that somebody may want to know at the end, those that are not 0 above all: rows or messages that were
        no use, gaps, connections."""
