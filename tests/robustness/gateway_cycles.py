"""`python -m tests.robustness.gateway_cycles --minutes 3 [--seed N] [--clients 200]`: gateways and brokers die under
WebSocket and SSE clients that come back with their cursors.

Three brokers and a real etcd, two gateways, half of the clients on WebSockets and half on SSE. All the time the leader
of a partition is killed, a gateway is killed, stopped in good order or stands still, or leader and gateway die at once.
A client that loses its gateway goes to the other one with the cursor it had last, as a browser would.

At the end everything is mended, all clients come to the end of the topic, and what each of them got is held against the
topic: every record exactly once and in the order of its partition, or within what the client was told is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
import websockets

import comet
from tests.robustness.cluster import ClusterProcesses, cluster
from tests.robustness.gateway_process import GatewayProcess
from tests.waiting import pace, until

TOPIC: Final = "prices"
PARTITIONS: Final = 4
RATE: Final = 25.0
CATCH_UP_S_MAX: Final = 60.0
SILENCE_S_MAX: Final = 15.0  # a client that hears nothing for so long, not even a heartbeat, goes elsewhere
AGAIN_S: Final = (0.05, 0.5)

RecordId = tuple[int, int]  # partition, offset


@dataclass(slots=True)
class Client:
    """One subscriber over all its connections, and what it was given."""

    name: str
    gateways: list[GatewayProcess]
    random: Random
    got: dict[RecordId, str] = field(default_factory=dict)
    next: dict[int, int] = field(default_factory=dict)
    cursor: str = ""
    told_missing: list[tuple[int, int, int]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    connections: int = 0
    recoveries: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Connects, and again and again, until it is cancelled."""
        while True:
            gateway = self.random.choice(self.gateways)
            try:
                await self.connected(gateway.url)
                self.errors["ended"] += 1
            except (OSError, httpx.HTTPError, websockets.WebSocketException, TimeoutError) as error:
                self.errors[type(error).__name__] += 1
            await pace(self.random.uniform(*AGAIN_S))

    async def connected(self, url: str) -> None:
        raise NotImplementedError

    def begun(self, told: dict[str, Any]) -> None:
        self.connections += 1
        missing = [(one["partition"], int(one["first"]), int(one["end"])) for one in told.get("missing", ())]
        if self.cursor:
            self.recoveries += 1
            if told["recovered"] is not (not missing):
                self.violations.append(f"{self.name}: told recovered {told['recovered']} with {missing} missing")
        self.skip(missing)
        self.cursor = told["cursor"]

    def skip(self, missing: list[tuple[int, int, int]]) -> None:
        for partition, first, end in missing:
            self.told_missing.append((partition, first, end))
            if self.next.get(partition, 0) != first:
                self.violations.append(
                    f"{self.name}: told that {partition}/{first}-{end} is missing, after {self.next}"
                )
            self.next[partition] = end

    def take(self, record: dict[str, Any], cursor: str) -> None:
        partition, offset = record["partition"], int(record["offset"])
        expected = self.next.get(partition, 0)
        if offset != expected:
            self.violations.append(f"{self.name}: got {partition}/{offset} where {expected} was next")
        self.next[partition] = offset + 1
        self.got[partition, offset] = record["text"]
        self.cursor = cursor


class WebSocketClient(Client):
    async def connected(self, url: str) -> None:
        address = url.replace("http", "ws", 1) + "/v1/ws"
        async with websockets.connect(address, ping_interval=5, ping_timeout=SILENCE_S_MAX) as socket:
            asked: dict[str, Any] = {"type": "subscribe", "id": "one", "topic": TOPIC, "start": "earliest"}
            if self.cursor:
                asked["cursors"] = {TOPIC: self.cursor}
            await socket.send(json.dumps(asked))
            async for text in socket:
                frame = json.loads(text)
                match frame["type"]:
                    case "subscribed":
                        self.begun(frame)
                    case "records":
                        for record in frame["records"]:
                            self.take(record, frame["cursor"])
                    case "lost":
                        missing = [(one["partition"], int(one["first"]), int(one["end"])) for one in frame["missing"]]
                        self.skip(missing)
                        self.cursor = frame["cursor"]
                    case "goaway":
                        self.errors["goaway"] += 1
                    case "error":
                        self.errors[frame["problem"]["code"]] += 1
                        return


class SseClient(Client):
    async def connected(self, url: str) -> None:
        headers = {"last-event-id": self.cursor} if self.cursor else {}
        timeout = httpx.Timeout(SILENCE_S_MAX)
        address = f"{url}/v1/topics/{TOPIC}/stream?start=earliest"
        async with httpx.AsyncClient(timeout=timeout) as http, http.stream("GET", address, headers=headers) as answer:
            if answer.status_code != httpx.codes.OK:
                self.errors[str(answer.status_code)] += 1
                return
            async for name, event_id, data in events(answer.aiter_lines()):
                if name == "subscribed":
                    self.begun(json.loads(data))
                elif name in {"", "record"}:
                    self.take(json.loads(data), event_id)
                elif name == "lost":
                    told = json.loads(data)
                    self.skip([(one["partition"], int(one["first"]), int(one["end"])) for one in told["missing"]])
                    self.cursor = told["cursor"]
                else:
                    self.errors[name] += 1


async def events(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, str, str]]:
    """Server-sent events as the standard reads them: name, id, data."""
    name, event_id = "", ""
    data: list[str] = []
    async for line in lines:
        if not line:
            if data:
                yield name, event_id, "\n".join(data)
            name, data = "", []
            continue
        what, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if what == "event":
            name = value
        elif what == "id":
            event_id = value
        elif what == "data":
            data.append(value)


@dataclass(slots=True)
class Report:
    faults: Counter[str] = field(default_factory=Counter)
    clients: int = 0
    connections: int = 0
    recoveries: int = 0
    sent: int = 0
    records: int = 0
    delivered: int = 0
    told_missing: int = 0
    caught_up_s: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    gateway_bytes: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {what}" for what, count in sorted(self.faults.items()))
        errors = ", ".join(f"{count} {code}" for code, count in self.errors.most_common(8)) or "none"
        return (
            f"faults: {faults or 'none'}; {self.clients} clients, {self.connections} connections, of which "
            f"{self.recoveries} with a cursor; how they ended: {errors}\n"
            f"{self.records} records, each to every client: {self.delivered} deliveries, {self.told_missing} ranges "
            f"told as missing; caught up {self.caught_up_s:.1f} s after all was mended; gateways' memory at most "
            f"{self.gateway_bytes >> 20} MiB; {len(self.violations)} violations"
        )


class Storm:
    """One run. Owned by `run`; all on one loop."""

    def __init__(self, folder: Path, one: ClusterProcesses, clients: int, random: Random) -> None:
        self.one = one
        self.random = random
        self.report = Report(clients=clients)
        self.gateways = [GatewayProcess(folder / f"gateway-{number}", one.addresses) for number in (1, 2)]
        kinds = (WebSocketClient, SseClient)
        self.clients = [
            kinds[number % 2](f"{kinds[number % 2].__name__} {number}", self.gateways, Random(random.random()))
            for number in range(clients)
        ]
        self.over = asyncio.Event()  # no more faults
        self.mended = asyncio.Event()  # no more records

    async def start(self) -> None:
        async with comet.Admin(self.one.addresses) as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS, replicas=3, min_insync=2)
        await self.one.well(TOPIC)
        for gateway in self.gateways:
            gateway.launch()
        await asyncio.gather(*(gateway.ready() for gateway in self.gateways))

    async def rage(self, seconds: float) -> None:
        running = [asyncio.create_task(client.run()) for client in self.clients]
        feeding = asyncio.create_task(self._feed())
        watching = asyncio.create_task(self._watch())
        try:
            striking = asyncio.create_task(self._strike())
            await asyncio.wait([striking, feeding, watching, *running], timeout=seconds, return_when="FIRST_COMPLETED")
            self.over.set()
            await striking
            self.mended.set()
            await feeding
            await self.one.well(TOPIC)
            mended = time.monotonic()
            await self._compare()
            self.report.caught_up_s = time.monotonic() - mended
        finally:
            for task in (*running, feeding, watching):
                task.cancel()
            ended = await asyncio.gather(*running, feeding, watching, return_exceptions=True)
            self.report.violations += [
                f"a task ended with {one!r}" for one in ended if isinstance(one, Exception)
            ]  # fmt: skip
            for gateway in self.gateways:
                gateway.kill()
                self.report.violations += gateway.complaints()

    async def _feed(self) -> None:
        began = time.monotonic()
        async with comet.Producer(self.one.addresses, acks="all", timeout_ms=120_000) as producer:
            while not self.mended.is_set():
                while self.report.sent < (time.monotonic() - began) * RATE:
                    number = self.report.sent
                    await producer.send(TOPIC, f"record number {number}", key=f"k{number % 50}")
                    self.report.sent += 1
                await pace(0.01)

    async def _watch(self) -> None:
        while True:
            self.report.gateway_bytes = max(self.report.gateway_bytes, *(one.memory() for one in self.gateways))
            await pace(0.5)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), seconds)

    # ---- faults

    async def _strike(self) -> None:
        faults = (self._kill_leader, self._kill_gateway, self._stop_gateway, self._pause_gateway, self._kill_both)
        turn = 0
        while not self.over.is_set() or turn < len(faults):  # each of them once, however slow the machine is
            await self._rest(self.random.uniform(1.0, 3.0))
            fault = faults[turn] if turn < len(faults) else self.random.choice(faults)
            turn += 1
            self.report.faults[fault.__name__.strip("_").replace("_", " ")] += 1
            await fault()
            await self.one.well(TOPIC)

    async def _kill_leader(self) -> None:
        leader = await self.one.leader(TOPIC, self.random.randrange(PARTITIONS))
        self.one.brokers[leader].kill()
        await self._rest(self.random.uniform(0.5, 2.0))
        await self.one.restart(leader)

    async def _kill_gateway(self) -> None:
        gateway = self.random.choice(self.gateways)
        gateway.kill()
        await self._rest(self.random.uniform(0.2, 1.0))
        gateway.launch()
        await gateway.ready()

    async def _stop_gateway(self) -> None:
        gateway = self.random.choice(self.gateways)
        code = await asyncio.to_thread(gateway.terminate)
        if code:
            self.report.violations.append(f"{gateway.log.name}: stopped in good order, it ended with code {code}")
        gateway.launch()
        await gateway.ready()

    async def _pause_gateway(self) -> None:
        gateway = self.random.choice(self.gateways)
        gateway.pause()
        await self._rest(self.random.uniform(0.5, 3.0))
        gateway.resume()

    async def _kill_both(self) -> None:
        gateway = self.random.choice(self.gateways)
        leader = await self.one.leader(TOPIC, self.random.randrange(PARTITIONS))
        gateway.kill()
        self.one.brokers[leader].kill()
        await self._rest(self.random.uniform(0.2, 1.5))
        gateway.launch()
        await self.one.restart(leader)
        await gateway.ready()

    # ---- what came of it

    async def _compare(self) -> None:
        topic = await self._everything()
        self.report.records = len(topic)
        done = await until(
            lambda: all(len(client.got) >= len(topic) for client in self.clients), within_s=CATCH_UP_S_MAX
        )  # fmt: skip
        if not done:
            behind = [
                f"{one.name}: {len(one.got)} of {len(topic)}" for one in self.clients if len(one.got) < len(topic)
            ]
            self.report.violations.append(f"{len(behind)} clients did not come to the end: {behind[:5]}")
        for client in self.clients:
            self.report.violations += client.violations
            self.report.connections += client.connections
            self.report.recoveries += client.recoveries
            self.report.told_missing += len(client.told_missing)
            self.report.delivered += len(client.got)
            self.report.errors += client.errors
            if client.got.items() != topic.items():
                wrong = sorted(client.got.items() ^ topic.items())
                self.report.violations.append(f"{client.name}: {len(wrong)} records are not the topic's: {wrong[:3]}")
        if self.report.records < self.report.sent:
            self.report.violations.append(f"{self.report.sent} records were acknowledged, {len(topic)} are there")

    async def _everything(self) -> dict[RecordId, str]:
        topic: dict[RecordId, str] = {}
        async with comet.Consumer(self.one.addresses, TOPIC, start="earliest", type=str) as consumer:
            left = sum((await consumer.end_offsets()).values())
            while len(topic) < left:
                record = await consumer.get()
                assert record is not None
                topic[record.partition, record.offset] = record.value
        return topic


async def run(folder: Path, *, seconds: float, seed: int, clients: int) -> Report:
    async with cluster(folder) as one:
        storm = Storm(folder, one, clients, Random(seed))
        await storm.start()
        await storm.rage(seconds)
        storm.report.violations += one.complaints()
    return storm.report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="comet-gateway-") as folder:
        report = asyncio.run(
            run(Path(folder), seconds=given.minutes * 60, seed=given.seed, clients=given.clients)
        )  # fmt: skip
    print(report)
    for violation in report.violations[:20]:
        print(f"  {violation}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
