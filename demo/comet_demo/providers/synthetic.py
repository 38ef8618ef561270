"""The simulated market in real time: a clock around `market.Market`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

from comet_demo.model import Instrument, now_us
from comet_demo.providers import Event
from comet_demo.providers.market import Market

STEP_S: Final = 0.02
SLICE_US: Final = 50_000  # of market time made in one step, at most
# After a sleep or when too slow, the market catches up by at most this, and skips the rest.
CATCH_UP_US: Final = 500_000


class SyntheticProvider:
    """`settings` are those of Market. `now_us` is the wall clock."""

    name = "synthetic"
    live = True

    def __init__(
        self,
        instruments: Sequence[Instrument],
        random: Random,
        *,
        rate: float,
        now_us: Callable[[], int] = now_us,
        **settings: Any,
    ) -> None:
        self._instruments = instruments
        self._random = random
        self._rate = rate
        self._now_us = now_us
        self._settings = settings
        self._skipped_us = 0

    async def stream(self) -> AsyncGenerator[Sequence[Event], None]:
        """The events since the last step, fifty times a second, without end."""
        start_us = self._now_us()
        market = Market(self._instruments, self._random, rate=self._rate, start_us=start_us, **self._settings)
        while True:
            await asyncio.sleep(STEP_S)
            now_us = self._now_us()
            late_us = now_us - CATCH_UP_US - market.at_us
            if late_us > 0:  # after a laptop's sleep hours of quotes would be due at once
                self._skipped_us += late_us
                market.skip_to(now_us - CATCH_UP_US)
            # One slice, then other tasks run: a process too slow for the rate generates fewer events.
            if events := market.advance(min(now_us, market.at_us + SLICE_US)):
                yield events

    def statistics(self) -> Mapping[str, int]:
        return {"milliseconds skipped": self._skipped_us // 1000}
