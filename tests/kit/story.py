"""A run with much in it, to be compared with itself."""

from __future__ import annotations

import sys

import comet
from comet.testing import cluster, run


def transcript(seed: int) -> str:
    app = comet.App("localhost:9092")

    @app.on("orders", group="billing", start="earliest", delivery="exactly_once")
    async def bill(number: int) -> None:
        await app.send("bills", number)

    @app.on("orders", group="reminders", start="earliest")
    async def remind(number: int) -> None:
        await app.publish("reminders", number, delay="1h")

    async def main() -> str:
        async with cluster(brokers=3, seed=seed) as one:
            for topic in ("orders", "bills", "reminders"):
                await one.topic(topic, partitions=2)
            async with one.app(app):
                for number in range(10):
                    await one.publish("orders", number, key=str(number))
                await one.kill(leader_of="orders/0")
                await one.advance("2h")
                await one.isolate(app, await one.leader("orders/1"))
                await one.publish("orders", 10)
                await one.advance("30s")
                await one.heal()
                await one.kill(app)
                await one.restart(app)
                await one.advance("1h")
            return f"{sorted(await one.values('bills', int))}\n{one.transcript}\n{one.transcript.digest}"

    return run(main())


if __name__ == "__main__":
    print(transcript(int(sys.argv[1])))
