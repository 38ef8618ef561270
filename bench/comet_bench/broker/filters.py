"""The evaluation of filters alone: batches as a consumer gets them, decoded and checked, on one core."""

from __future__ import annotations

import json
import random
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from comet.values.record import RecordBatch
    from comet_bench.link import Link, Work

BATCH_RECORDS: Final = 5_000
SYMBOLS: Final = ("ACME", "EURUSD", "GBPUSD", "USDJPY", "TSLA", "AAPL", "MSFT", "NFLX")
SEED: Final = 1


def _value(draw: random.Random, number: int, size: int) -> bytes:
    quote: dict[str, Any] = {
        "symbol": draw.choice(SYMBOLS), "bid": round(draw.random() * 200, 2), "ask": round(draw.random() * 200, 2),
        "n": number, "venue": "XNAS", "pad": "",
    }  # fmt: skip
    short = len(json.dumps(quote, separators=(",", ":")))
    quote["pad"] = "x" * max(size - short, 0)
    return json.dumps(quote, separators=(",", ":")).encode()


def _raw(size: int) -> bytes:
    from comet import records

    draw = random.Random(SEED)
    values = [_value(draw, number, size) for number in range(BATCH_RECORDS)]
    keys = [b"key %d" % draw.randrange(1_000) for _ in values]
    return b"".join(records.encode(values, keys=keys, timestamps=1))


def _opened(raw: bytes) -> RecordBatch[bytes]:
    """The batch, with nothing of it read yet."""
    from comet import records
    from comet.values.record import RecordBatch

    batch = records.decode(raw)
    batch.check()
    return RecordBatch("bench", 0, batch)


async def work_filter(link: Link, config: Any) -> dict[str, Any]:
    from comet.filters import parse

    chosen, raw = parse(config["filter"], now_us=0), _raw(config["record_bytes"])
    matched = len(chosen.rows(_opened(raw)))
    rounds = max(config["records"] // BATCH_RECORDS, 1)
    await link.go()
    spent = 0.0
    for _ in range(rounds):
        batch = _opened(raw)
        began = time.perf_counter()
        found = chosen.rows(batch)
        spent += time.perf_counter() - began
        assert len(found) == matched
    records = rounds * BATCH_RECORDS
    return {"records_per_s": records / spent, "bytes_per_s": rounds * len(raw) / spent}


WORKS: Final[dict[str, Work]] = {"filter": work_filter}
