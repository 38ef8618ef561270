"""One run of a cluster with a compacted topic: records, tombstones and transactions by key, while faults strike.

    writers, each with its own keys ─┐
    a writer of transactions         ├─ faults ─► mend ─► all in sync ─► writers finish ─► a round on every replica
    readers from the start, again    ┘            ─► what is left of each key ─► replicas compared, offset by offset

All is flushed before it is acknowledged by all, so that no fault takes an acknowledged record away. Of each key the
last acknowledged write is read in the end, or a later one whose outcome is unknown; a deleted key is not there. No
reader meets an older record of a key after a newer one, nor a record of an aborted transaction. A filter finds what it
would find in all of that.

The monitor of `cluster` follows files batch by batch, and leaves a compacted topic out: this scenario judges it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final
from zlib import crc32

from comet import records
from comet.consumer.consumer import Consumer
from comet.errors import CometError
from comet.producer.producer import Producer
from comet.producer.transaction import TransactionalProducer
from comet.settings.topic import CleanupPolicy, Flush, TopicConfig
from comet_broker.partitions.partition import Partition
from comet_broker.storage import rewrite
from comet_broker.storage.log import Log
from comet_testing.simulation.loop import SimLoop, run
from tests.sim import cluster_faults
from tests.sim.checker import Verdict
from tests.sim.cluster import HARM_S, READ_S_MAX, RUN_S_MAX, ClusterScenario
from tests.sim.cluster_checks import check
from tests.sim.cluster_profile import ClusterProfile, ClusterTopic, draw
from tests.sim.cluster_world import ALL, ClusterWorld
from tests.sim.planting import replaced
from tests.sim.result import Result
from tests.sim.workload import close_quietly
from tests.waiting import until

TOPIC: Final = "keyed"
TP: Final = (TOPIC, 0)
FAULTS: Final = (
    "kill", "kill_all", "power_cut", "power_cut_all", "kill_in_write", "power_cut_in_write", "drain", "pause",
    "partition", "cut_links", "store_away", "slow_disk", "disk_full", "follower_returns",
)  # fmt: skip
KEYS_EACH: Final = 5
JUDGED: Final = ("C5", "C6", "C25", "C29", "C31", "C32")  # the others are of the monitor's files, or of other clients
ROUNDS_S_MAX: Final = 60.0
FILLER: Final = b"filler"  # their key
FILLERS: Final = 30  # records that make a segment full
CHOSEN: Final = (b"p1", b"t")  # the beginnings of keys
FILTER: Final = '@key ^= "p1" || @key ^= "t"'
_VALUE_BYTES: Final = 3_000


@dataclass(frozen=True, slots=True)
class CompactedTopic(ClusterTopic):
    delete_retention_ms: int = 0

    def config(self) -> TopicConfig:
        return replace(
            ClusterTopic.config(self),
            cleanup_policy=CleanupPolicy.COMPACT,
            min_dirty_percent=1,
            delete_retention_ms=self.delete_retention_ms,
        )


@dataclass(slots=True)
class Written:
    """What may be the last record of a key: numbers of writes, negative ones for tombstones."""

    acked: int | None = None
    unknown: list[int] = field(default_factory=list)

    def allowed(self) -> set[int]:
        return {*self.unknown, *(() if self.acked is None else (self.acked,))}


class CompactionScenario(ClusterScenario):
    def __init__(self, world: ClusterWorld, profile: ClusterProfile) -> None:
        super().__init__(world, profile)
        self.written: dict[bytes, Written] = defaultdict(Written)
        self.aborted: set[tuple[bytes, int]] = set()
        self.order: dict[tuple[bytes, int], int] = {}  # of a key's writes
        self.end = 0  # of what is judged

    def _topics(self) -> list[ClusterTopic]:
        plain = self._topic(TOPIC, 3, 2, available=False)
        fields = {name: getattr(plain, name) for name in plain.__dataclass_fields__}
        retention_ms = self.random.choice((0, 5_000, 20_000))
        return [CompactedTopic(**fields | {"partitions": 1}, delete_retention_ms=retention_ms)]

    async def run(self) -> None:
        world = self.world
        loop = asyncio.get_running_loop()
        keepers = [
            loop.create_task(cluster_faults.keep(world, host), name=f"keeper {host.broker_id}") for host in world.hosts
        ]
        brokers = world.monitor.state.brokers
        assert await until(lambda: len(brokers) == len(world.hosts), within_s=30), "the brokers did not start"
        await self._create_topics()
        for number in range(2):
            world.client(f"p{number}", self._write(f"p{number}"))
        world.client("pt", self._write_in_transactions())
        world.client("c", self._read_again_and_again("c"))
        world.client("cf", self._read_again_and_again("cf", filter=FILTER))
        await self.harm()
        await asyncio.sleep(max(0.0, HARM_S - world.now()))
        world.note("mend")
        cluster_faults.mend(world)
        world.stopping = True
        await self._settle("after all was mended")
        await self._finish("pc")
        await self._fill_segments()
        await self._rounds()
        await self._judge()
        for task in keepers:
            if task.done():
                task.result()
            task.cancel()
        for host in world.up():
            host.look_for_trouble()
        await self._admin.close()
        world.history.complaints += [f"an exception was not handled: {text}" for text in world.loop.unhandled]

    # ---- clients

    def _options(self, name: str) -> dict[str, Any]:
        world = self.world
        return {
            "name": name, "connect": world.network.connect(name), "random": world.random(f"{name}/sdk"),
            "clock_us": world.clock.wall_us,
        }  # fmt: skip

    def _value(self, random: Random, number: int) -> bytes | None:
        return None if number < 0 else b"%d " % number + bytes(random.randrange(_VALUE_BYTES))

    def _time_to_live(self, key: bytes, number: int) -> dict[str, Any]:
        """What else a write is sent with."""
        return {}

    def _begin(self, key: bytes, number: int) -> None:
        self.order[key, number] = len(self.order)
        self.written[key].unknown.append(number)

    def _acknowledged(self, key: bytes, number: int) -> None:
        one = self.written[key]
        one.acked = number
        one.unknown = [other for other in one.unknown if self.order[key, other] > self.order[key, number]]

    async def _write(self, name: str) -> None:
        world, random, number = self.world, self.world.random(name), 0
        producer = Producer(world.addresses, acks="all", timeout_ms=5_000, **self._options(name))
        while not world.stopping:
            number += 1
            key = b"%s-%d" % (name.encode(), random.randrange(KEYS_EACH))
            one = -number if random.random() < 0.2 else number
            self._begin(key, one)
            try:
                await producer.publish(TOPIC, self._value(random, one), key=key, **self._time_to_live(key, one))
            except CometError as error:
                world.note(f"{name} {one} of {key!r}: {error.code}")
            else:
                self._acknowledged(key, one)
            await world.sleep(random, self.profile.pause_s or 0.3)
        await close_quietly(producer)

    async def _write_in_transactions(self) -> None:
        """Keys of its own, in twos: half of the transactions are aborted."""
        world, random, number = self.world, self.world.random("pt"), 0
        producer: TransactionalProducer | None = None
        while not world.stopping:
            await world.sleep(random, 1.0)
            number += 2
            writes = [(b"t-%d" % random.randrange(2), number + at) for at in (0, 1)]
            for key, one in writes:
                self._begin(key, one)
            try:
                if producer is None:
                    producer = TransactionalProducer(world.addresses, "tx", timeout_ms=5_000, **self._options("pt"))
                    await producer.start()
            except CometError as error:
                world.note(f"the transactional producer was told {error.code}")
                state = "aborted"
            else:
                state = await self._transact(producer, random, writes)
            self._ended(writes, state)
            if state == "unknown" or world.stopping:
                if producer is not None:
                    await close_quietly(producer)
                producer = None

    async def _transact(self, producer: TransactionalProducer, random: Random, writes: list[tuple[bytes, int]]) -> str:
        abort = random.random() < 0.5
        transaction = producer.transaction()
        try:
            async with transaction:
                for key, one in writes:
                    await transaction.send(TOPIC, self._value(random, one), key=key, **self._time_to_live(key, one))
                if abort:
                    raise _Abort
        except (_Abort, CometError) as error:
            self.world.note(f"transaction of {writes}: {error!r}")
            if isinstance(error, CometError) and transaction.state != "aborted":
                return "unknown"
        return transaction.state

    def _ended(self, writes: list[tuple[bytes, int]], state: str) -> None:
        for key, one in writes:
            if state == "committed":
                self._acknowledged(key, one)
            elif state == "aborted":
                self.aborted.add((key, one))
                self.written[key].unknown.remove(one)

    async def _read_again_and_again(self, name: str, **more: Any) -> None:
        world, random = self.world, self.world.random(name)
        while not world.stopping:
            try:
                await self._read(f"{name} at {world.now():.0f}", within_s=random.uniform(1.0, 20.0), **more)
            except CometError as error:
                world.note(f"{name} was told {error.code}")
            await world.sleep(random, 1.0)

    async def _read(self, name: str, *, within_s: float, end: int = 1 << 62, **more: Any) -> dict[bytes, int]:
        """What a reader from the start meets last of each key."""
        found: dict[bytes, int] = {}
        options = self._options(name) | more
        consumer: Consumer[bytes] = Consumer(self.world.addresses, TOPIC, start="earliest", **options)
        try:
            async with asyncio.timeout(within_s):
                await consumer.start()
                while consumer.positions().get(0, 0) < end:
                    record = await consumer.get(timeout_s=1.0)
                    if record is not None:
                        self._met(name, found, record)
        except TimeoutError:
            pass
        finally:
            await close_quietly(consumer)
        return found

    def _met(self, name: str, found: dict[bytes, int], record: Any) -> None:
        key = record.key
        complaints = self.world.history.complaints
        self.world.history.compared += 1
        number = None if record.value is None else int(record.value.split(b" ", 1)[0])
        if number is None:
            # A tombstone does not say which one it is: it is newer than what was met before.
            found[key] = -1
            return
        if (key, number) in self.aborted:
            complaints.append(f"{name} read {number} of {key!r} at {record.offset}, which was aborted")
        before = found.get(key)
        if before is not None and before > 0 and self.order[key, number] < self.order[key, before]:
            complaints.append(f"{name} read {number} of {key!r} at {record.offset} after {before}")
        found[key] = number

    # ---- the end

    async def _fill_segments(self) -> None:
        """So that all that was written lies in full segments."""
        began = self.world.now()
        producer = Producer(self.world.addresses, acks="all", timeout_ms=20_000, **self._options("filler"))
        for number in range(1, FILLERS + 1):
            self._begin(FILLER, number)
            try:
                ttl = self._time_to_live(FILLER, number)
                await producer.publish(TOPIC, b"%d " % number + bytes(_VALUE_BYTES), key=FILLER, **ttl)
            except CometError as error:
                self.world.history.complaints.append(f"after all was mended the topic took no record: {error!r}")
                break
            self._acknowledged(FILLER, number)
        await close_quietly(producer)
        self.world.history.settled_within_s = self.world.now() - began

    def _replicas(self) -> list[Partition]:
        return [one for host in self.world.up() for one in host.partitions() if (one.topic, one.index) == TP]

    def _rounded(self) -> bool:
        replicas = self._replicas()
        notes = [one.log.compaction.notes for one in replicas]
        return (
            len(replicas) == 3
            and all(one.applied is not None and one.due is None for one in notes)
            and len({one.applied.offset for one in notes if one.applied is not None}) == 1
            and notes[0].applied is not None
            and notes[0].applied.clean_end > self.end
        )

    async def _rounds(self) -> None:
        leader = self._led(TP)
        self.end = 0 if leader is None else leader.log.log_end - FILLERS
        if not await until(self._rounded, within_s=ROUNDS_S_MAX, every_s=0.2):
            notes = [one.log.compaction.notes for one in self._replicas()]
            self.world.history.complaints.append(f"the plans are not carried out: {notes}")
            return
        digests = {one.log.compaction.notes.applied.digest for one in self._replicas()}  # type: ignore[union-attr]
        kept = [_offsets(one.log, self.end) for one in self._replicas()]
        if len(digests) > 1 or kept[0] != kept[1] or kept[1] != kept[2]:
            self.world.history.complaints.append(f"replicas keep other records: {list(map(len, kept))}, {digests}")
        keys = len(self.written)
        if len(kept[0]) > 2 * keys:
            self.world.history.complaints.append(f"{len(kept[0])} records of {keys} keys stay")

    async def _judge(self) -> None:
        leader = self._led(TP)
        end = 0 if leader is None else leader.high_watermark
        found = await self._read("the last reader", within_s=READ_S_MAX, end=end)
        chosen = await self._read("the last reader with a filter", within_s=READ_S_MAX, end=end, filter=FILTER)
        if self._values(chosen) != self._values({key: last for key, last in found.items() if key.startswith(CHOSEN)}):
            self.world.history.complaints.append(f"a filter finds {chosen}, of {found}")
        for key, written in self.written.items():
            allowed, last = written.allowed(), found.get(key)
            deleted = any(self._may_be_gone(key, one) for one in allowed) or written.acked is None
            if (last is None or last < 0) and not deleted:
                self.world.history.complaints.append(f"nothing is left of {key!r}: {allowed}")
            elif last is not None and last > 0 and last not in allowed:
                self.world.history.complaints.append(f"{last} is left of {key!r}, not one of {allowed}")

    def _may_be_gone(self, key: bytes, number: int) -> bool:
        """Whether the last write of a key may leave nothing: a tombstone."""
        return number < 0

    def _values(self, found: dict[bytes, int]) -> dict[bytes, int]:
        """Without what may go at any time."""
        return {key: number for key, number in found.items() if not self._may_be_gone(key, number)}


class _Abort(Exception):
    pass


def _offsets(log: Log, end: int) -> list[int]:
    """The offsets of records that a log holds below `end`."""
    found: list[int] = []
    offset = log.log_start
    buffer = memoryview(bytearray(1 << 20))
    while offset < end:
        extent = log.extent(offset)
        try:
            result = extent.read(buffer, wait=True)
        finally:
            extent.release()
        assert result is not None and result.size
        for one in records.iterate(bytes(buffer[: result.size])):
            found += [] if one.header.control else [at for at in one.offsets if at < end]
        offset = result.next_offset
    return found


def simulate(
    seed: int,
    profile: ClusterProfile | None = None,
    scenario: type[CompactionScenario] = CompactionScenario,
    name: str = "compaction",
) -> Result:
    """Runs one seed on a loop of its own and judges what happened."""
    given = profile or ClusterProfile()
    random = Random(f"{seed}/{name}")
    base = ClusterProfile(
        brokers=3,
        replicas=3,
        min_insync=2,
        available=False,
        flush=Flush.ALWAYS,
        acks=ALL,
        admin=False,
        pause_s=random.choice((0.1, 0.3)),
        faults=given.faults or tuple(random.sample(FAULTS, random.randint(1, 5))),
        fault_every_s=given.fault_every_s,
        final_crash="none",
    )
    drawn = draw(seed, base)
    began = time.perf_counter()
    worlds: list[ClusterWorld] = []

    async def main(loop: SimLoop) -> None:
        loop.seconds_max = RUN_S_MAX
        settings = {
            "session_ms": random.choice((2_000, 3_000)),
            "replica_lag_ms": random.choice((1_000, 3_000)),
            "rebalance_ms": random.choice((2_000, 10_000)),
            "compaction_memory": random.choice((1 << 10, 64 << 20)),
        }
        world = ClusterWorld(loop, seed, 3, settings)
        worlds.append(world)
        world.note(f"{drawn} {settings}")
        await scenario(world, drawn).run()

    error = ""
    try:
        with replaced([(rewrite, "key_hash", _key_hash)]):
            run(main)
    except (AssertionError, TimeoutError, CometError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    world = worlds[0]
    findings = check(world.history, world.monitor, set()).findings
    verdict = Verdict({name: findings[name] for name in JUDGED})
    return Result(seed, drawn, verdict, world.history, world.log, time.perf_counter() - began, error, name, world.now())


def _key_hash(key: bytes | None) -> int:
    """The same in each process, so that a seed repeats its run."""
    return crc32(key or b"")
