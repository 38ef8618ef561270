"""The ends of the stream of `comet bench spark`: a cheap feed, and a viewer of the bars.

quotes_feed   RATE quotes a second, encoded before but for their time, to the topic of a feed
bars_watch    a WebSocket of the gateway that takes the bars of a second, and the job's status records
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from comet_bench.broker.clients import plain_values

if TYPE_CHECKING:
    from comet import Producer
    from comet_bench.link import Link, Work

RECORD_BYTES: Final = 100
TICK_S: Final = 0.01
SECOND_US: Final = 1_000_000
PRICES: Final = 20  # different quotes of a symbol
BLOCK_RECORDS: Final = 50_000
BLOCKS_IN_FLIGHT: Final = 4
POLL_S: Final = 0.05
SECONDS_MAX: Final = 600  # of sent quotes and received bars


def _symbol(number: int) -> str:
    return f"SYM{number:04}"


def _head(symbol: str, number: int) -> bytes:
    """An encoded quote without its time, which comes last."""
    bid = 100 + number % 977 / 100
    quote = {
        "symbol": symbol, "bid": bid, "ask": round(bid + 0.05, 2), "bid_size": 100 + number % 900,
        "ask_size": 100 + number % 700, "last": bid, "last_size": number % 50,
    }  # fmt: skip
    return json.dumps(quote, separators=(",", ":")).encode()[:-1] + b',"timestamp_us":'


def quote_values(count: int) -> list[bytes]:
    """Quotes as the demo's feed writes them."""
    return [_head(_symbol(number % 200), number) + b"%d}" % (1_700_000_000_000_000 + number) for number in range(count)]


VALUES: Final[dict[str, Callable[[int], list[bytes]]]] = {
    "bytes": lambda count: plain_values(count, RECORD_BYTES),
    "quotes": quote_values,
}


async def spark_fill(link: Link, config: Any) -> dict[str, Any]:
    """Fills a topic; every partition gets the same number of records."""
    import comet

    values = VALUES[config["values"]](BLOCK_RECORDS)
    each = config["records"] // config["partitions"]
    await link.go()
    async with comet.Producer(config["address"]) as producer:
        waiting: deque[Any] = deque()
        for first in range(0, each, BLOCK_RECORDS):
            for partition in range(config["partitions"]):
                block = values[: each - first]
                waiting.append(await producer.send_many(config["topic"], block, partition=partition))
                if len(waiting) > BLOCKS_IN_FLIGHT:
                    await waiting.popleft()
        for bulk in waiting:
            await bulk
    return {}


# ---- the feed


class PartitionLoad(NamedTuple):
    """The quotes of one partition, which are repeated."""

    partition: int
    keys: list[str]
    heads: list[bytes]


def loads(symbols: int, partitions: int) -> list[PartitionLoad]:
    """The loads of all partitions: each has the symbols whose keys belong to it."""
    from comet.records import partition_for

    loads = []
    for partition in range(partitions):
        names = [_symbol(number) for number in range(symbols)]
        mine = [name for name in names if partition_for(name.encode(), partitions) == partition]
        heads = [_head(name, price * 7 + index) for price in range(PRICES) for index, name in enumerate(mine)]
        if mine:
            loads.append(PartitionLoad(partition, mine * PRICES, heads))
    return loads


class QuoteFeed:
    """Sends until it is ended. `sent` counts the quotes of each second."""

    def __init__(self, config: Any, producer: Producer) -> None:
        self.sent: Counter[int] = Counter()
        self.ended = False  # after the turn that is under way
        self._config = config
        self._producer = producer
        self._loads = loads(config["symbols"], config["partitions"])

    async def run(self) -> None:
        total = sum(len(load.heads) for load in self._loads)
        begun, done, at = time.perf_counter(), 0, [0] * len(self._loads)
        while not self.ended:
            due = int((time.perf_counter() - begun) * self._config["rate"])
            now_us = time.time_ns() // 1000
            tail = b"%d}" % now_us
            for number, load in enumerate(self._loads):
                first, at[number] = at[number], due * len(load.heads) // total
                for start, end in turns(first, at[number], len(load.heads)):
                    values = [head + tail for head in load.heads[start:end]]
                    await self._producer.send_many(
                        self._config["topic"], values, keys=load.keys[start:end], partition=load.partition
                    )
                self.sent[now_us - now_us % SECOND_US] += at[number] - first
            done = due
            while len(self.sent) > SECONDS_MAX:
                del self.sent[min(self.sent)]
            late_s = time.perf_counter() - begun - done / self._config["rate"]
            await asyncio.sleep(max(TICK_S - late_s, 0.0))


def turns(first: int, end: int, size: int) -> list[tuple[int, int]]:
    """The pieces from `first` to `end` of a repeated sequence."""
    found = []
    while first < end:
        start = first % size
        length = min(end - first, size - start)
        found.append((start, start + length))
        first += length
    return found


async def quotes_feed(link: Link, config: Any) -> dict[str, Any]:
    """Feeds from the first order to the second, and reports the quotes sent, by second."""
    import comet

    async with comet.Producer(config["address"], acks=0) as producer:
        feed = QuoteFeed(config, producer)
        await link.go()
        feeding = asyncio.ensure_future(feed.run())
        order = asyncio.ensure_future(link.next_order())
        await asyncio.wait([feeding, order], return_when=asyncio.FIRST_COMPLETED)
        feed.ended = True
        order.cancel()
        await feeding
    return {"sent": {str(second): count for second, count in feed.sent.items()}}


# ---- the screen


class Bars:
    """The newest version of each bar, and when it arrived."""

    def __init__(self) -> None:
        self.arrived_us: dict[tuple[int, str], int] = {}
        self.quotes: dict[tuple[int, str], int] = {}
        self.lag_us: int | None = None
        self.state = ""
        self.problem = ""

    def take(self, topic: str, values: list[Any], now_us: int, job: str) -> None:
        for value in values:
            if topic == job:
                self.state, self.problem = value["state"], value.get("error") or ""
                if value["event_us"] is not None:
                    self.lag_us = value["at_us"] - value["event_us"]
                continue
            bar = (value["start_us"], value["symbol"])
            self.arrived_us.pop(bar, None)  # so that the last one received is the last of them
            self.arrived_us[bar], self.quotes[bar] = now_us, value["quotes"]
        while self.arrived_us and max(self.arrived_us)[0] - min(self.arrived_us)[0] > SECONDS_MAX * SECOND_US:
            for by_bar in (self.arrived_us, self.quotes):
                del by_bar[min(by_bar)]

    def report(self, first_us: int = 0, end_us: int = 1 << 62) -> dict[str, Any]:
        """The report on the bars that begin in that time."""
        there = [bar for bar in self.arrived_us if first_us <= bar[0] < end_us]
        return {
            "bars": len(there),
            "quotes": sum(self.quotes[bar] for bar in there),
            "last_us": max((self.arrived_us[bar] for bar in there), default=0),
            "lag_us": self.lag_us,
            "state": self.state,
            "problem": self.problem,
        }

    def delays_ms(self, first_us: int, end_us: int) -> list[float]:
        """The delays after their windows of the bars that begin in that time, sorted."""
        return sorted(
            (arrived_us - start_us - SECOND_US) / 1e3
            for (start_us, _), arrived_us in self.arrived_us.items()
            if first_us <= start_us < end_us
        )


async def bars_watch(link: Link, config: Any) -> dict[str, Any]:
    """Reports the bars received at each order, and their delays at the last one."""
    from websockets.asyncio.client import connect

    bars = Bars()
    url = f"ws://{config['host']}:{config['port']}/v1/ws"
    async with connect(url, subprotocols=["comet.v1"], max_size=None) as socket:  # type: ignore[list-item]
        for topic in (config["bars"], config["job"]):
            await socket.send(json.dumps({"type": "subscribe", "id": topic, "topic": topic, "start": "earliest"}))

        async def listen() -> None:
            async for text in socket:
                frame = json.loads(text)
                if frame["type"] == "error":
                    raise RuntimeError(frame["problem"])
                if frame["type"] == "records":
                    values = [record["value"] for record in frame["records"]]
                    bars.take(frame["topic"], values, time.time_ns() // 1000, config["job"])

        listening = asyncio.ensure_future(listen())
        try:
            order = await link.go()
            while "end" not in order:
                if listening.done():
                    listening.result()
                order = await link.next_order(**bars.report(*order.get("between", ())))
        finally:
            listening.cancel()
    return {"delays_ms": bars.delays_ms(*order["end"])} | bars.report(*order["end"])


WORKS: Final[dict[str, Work]] = {"spark_fill": spark_fill, "quotes_feed": quotes_feed, "bars_watch": bars_watch}
