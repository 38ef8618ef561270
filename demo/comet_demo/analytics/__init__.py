"""The computations on quotes and trades: from frames to frames, so that they are the same for a stream and a file.

    timely                 raw frame of a stream -> without records from the future
    quotes_of, trades_of   raw frame of a topic -> its columns
    bars, bars_of          open, high, low, close, volume, VWAP, spreads of each window     update, append
    stats                  averages, return and volatility of sliding windows               append
    alerts                 crossed, stale, gaps and outliers, each a stream of its own      append
    as_records             any of them -> key and value, for a topic

None of them reads the clock, starts a query, or runs Python per row. Only alerts read a topic: with `MarketClosures`,
and only if there are silences.
`docs/demo.md` has the formulas.
"""

from comet_demo.analytics.candles import bars, bars_of
from comet_demo.analytics.frames import TICK, as_records, quotes_of, timely, trades_of
from comet_demo.analytics.market_closures import MarketClosures
from comet_demo.analytics.quality import alerts, crossed, gaps, outliers, stale
from comet_demo.analytics.statistics import stats

__all__ = [
    "TICK",
    "MarketClosures",
    "alerts",
    "as_records",
    "bars",
    "bars_of",
    "crossed",
    "gaps",
    "outliers",
    "quotes_of",
    "stale",
    "stats",
    "timely",
    "trades_of",
]
