"""A client of the rolled cluster: sends numbered records one after the other with acks="all", and after a line on stdin
reads all of them.

    python -m tests.deploy.rollout_client ADDRESS,...      prints "running", then the result as JSON
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Final

import comet
from tests.waiting import pace

TOPIC: Final = "rolled"
PARTITIONS: Final = 12
SENDERS: Final = 8
PAUSE_S: Final = 0.005


async def main(addresses: str) -> None:
    async with comet.Admin(addresses) as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replicas=3)
    acknowledged: list[str] = []
    failed: list[str] = []
    stopping = asyncio.Event()

    async def send(sender: int, producer: comet.Producer) -> None:
        number = 0
        while not stopping.is_set():
            value = f"{sender}-{number}"
            try:
                await producer.publish(TOPIC, value, key=value)
            except comet.CometError as error:
                failed.append(f"{value}: {error}")
            else:
                acknowledged.append(value)
            number += 1
            await pace(PAUSE_S)

    async with comet.Producer(addresses, acks="all") as producer, asyncio.TaskGroup() as tasks:
        for sender in range(SENDERS):
            tasks.create_task(send(sender, producer))
        print("running", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        stopping.set()
    async with comet.Admin(addresses) as admin:
        total = sum((await admin.offsets(TOPIC)).values())
    read: list[str] = []
    async with comet.Consumer(addresses, TOPIC, type=str, start="earliest") as consumer:
        while len(read) < total:
            record = await consumer.get(timeout_s=30)
            assert record is not None, f"{len(read)} of {total} records"
            read.append(record.value)
    missing = sorted(set(acknowledged) - set(read))
    result = {
        "acknowledged": len(acknowledged),
        "failed": failed,
        "missing": missing,
        "twice": len(read) - len(set(read)),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
