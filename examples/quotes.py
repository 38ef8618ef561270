"""A model, a producer and a consumer.

Start a broker with `comet up`, make a topic with `comet topic create quotes`, then run this file.
"""

from __future__ import annotations

import sys

import comet


@comet.model
class Quote:
    symbol: str
    bid: float
    ask: float


async def main(address: str) -> None:
    async with comet.Producer(address) as producer:
        deliveries = [
            await producer.send("quotes", Quote("EURUSD", 1.08 + n / 10_000, 1.0802 + n / 10_000), key="EURUSD")
            for n in range(10)
        ]
        receipts = [await delivery for delivery in deliveries]
    async with comet.Consumer(address, "quotes", type=Quote, start=receipts[0].offset, partitions=[0]) as consumer:
        async for record in consumer:
            sys.stdout.write(f"{record.offset} {record.value.symbol} {record.value.ask - record.value.bid:.5f}\n")
            if record.offset == receipts[-1].offset:
                break


if __name__ == "__main__":
    comet.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"))
