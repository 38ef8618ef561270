"""The feed: takes quotes from a provider and produces them. `python -m comet_demo.feed --bootstrap HOST:PORT`.

The key is the symbol, so that all quotes of one instrument stay in order in one partition.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from contextlib import suppress
from random import Random

import comet
from comet_demo.model import INSTRUMENTS, TOPIC
from comet_demo.providers import Provider
from comet_demo.providers.synthetic import SyntheticProvider


async def feed(provider: Provider, bootstrap: str, topic: str = TOPIC) -> None:
    """Produces until it is cancelled or the provider ends."""
    async with comet.Producer(bootstrap) as producer:
        async for quotes in provider.stream():
            for quote in quotes:
                await producer.send(topic, quote, key=quote.symbol.encode(), timestamp_us=quote.timestamp_us)


async def ensure_topic(bootstrap: str, topic: str = TOPIC, partitions: int = 4) -> None:
    """Makes the topic unless it is there; an hour of quotes is plenty for a demo."""
    async with comet.Admin(bootstrap) as admin:
        with suppress(comet.TopicExists):
            await admin.create_topic(topic, partitions=partitions, retention_ms=3_600_000)


def main() -> None:
    parser = argparse.ArgumentParser(prog="comet_demo.feed", description="Produces synthetic quotes.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--rate", type=float, default=1000.0, help="quotes a second, outside bursts")
    parser.add_argument("--seed", type=int, default=None, help="the same seed gives the same market")
    options = parser.parse_args()
    random = Random(options.seed)
    provider = SyntheticProvider(INSTRUMENTS, random, rate=options.rate)

    async def run() -> None:
        await ensure_topic(options.bootstrap)
        running = asyncio.ensure_future(feed(provider, options.bootstrap))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        with suppress(asyncio.CancelledError):  # asked to stop; the producer has been closed on the way out
            await running

    comet.run(run())


if __name__ == "__main__":
    main()
