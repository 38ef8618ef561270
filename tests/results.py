"""What a job that computes on quotes writes, made by hand: for tests of those who read it."""

from __future__ import annotations

import json
import time
from typing import Any, Final

import comet

STEPS_S: Final = {"bars.1s": 1, "bars.1m": 60, "bars.5m": 300}
KINDS: Final = (*STEPS_S, "stats", "alerts", "job")


def now_us() -> int:
    return time.time_ns() // 1000


def bar(symbol: str, close: float, *, end_us: int, step_s: int = 1, **more: Any) -> dict[str, Any]:
    """Of the last whole step before `end_us`."""
    end_us = end_us // (step_s * 1_000_000) * step_s * 1_000_000
    return {
        "symbol": symbol, "start_us": end_us - step_s * 1_000_000, "end_us": end_us, "open": close - 0.1,
        "high": close + 0.2, "low": close - 0.2, "close": close, "volume": 300.0, "vwap": close + 0.05, "trades": 3,
        "quotes": 12, "spread_mean": 0.02, "spread_max": 0.04,
    } | more  # fmt: skip


def stat(symbol: str, mean: float, *, end_us: int, window_s: int = 60, **more: Any) -> dict[str, Any]:
    return {
        "symbol": symbol, "start_us": end_us - window_s * 1_000_000, "end_us": end_us, "mean": mean, "ema": mean + 0.1,
        "return": 0.0042, "volatility": 0.0123, "volume": 12_000.0, "trades": 90, "high": mean + 1, "low": mean - 1,
    } | more  # fmt: skip


def alert(kind: str, symbol: str, text: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "symbol": symbol, "time_us": now_us(), "value": 1.5, "limit": 1.0, "text": text} | more


def job(query: str, *, state: str = "running", event_us: int | None = None, **more: Any) -> dict[str, Any]:
    at_us = now_us()
    return {
        "query": query, "state": state, "batch": 41, "rows": 120, "rows_per_s": 118.5, "batch_ms": 240.0,
        "event_us": at_us if event_us is None else event_us, "watermark_us": at_us - 1_000_000, "at_us": at_us,
        "window_s": STEPS_S.get(query, 60), "mode": "update", "error": None,
    } | more  # fmt: skip


async def make_topics(admin: comet.Admin, topic: str, *kinds: str) -> None:
    for kind in kinds or KINDS:
        await admin.create_topic(f"{topic}.{kind}", partitions=2 if kind in STEPS_S else 1)


async def write(producer: comet.TransactionalProducer, topic: str, kind: str, *values: dict[str, Any]) -> None:
    """In one transaction, as a batch of the job is written."""
    async with producer.transaction() as transaction:
        for value in values:
            key = str(value["query"] if kind == "job" else value["symbol"])
            await transaction.send(f"{topic}.{kind}", json.dumps(value).encode(), key=key.encode())
