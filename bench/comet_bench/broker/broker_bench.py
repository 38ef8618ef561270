"""The subjects of `comet bench`, one function each: the processes that run, and the figures made of their answers.

A subject gets a Bench and returns one run's fields (see report.FIELDS). Subjects with a broker get a fresh one
for all their runs; every run has a topic of its own.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from comet_bench.harness import Progress, Subjects, Suite, alone, run_compared
from comet_bench.machine import EventCosts, ProcessMeter, Usage
from comet_bench.processes import RUN_TIMEOUT_S, Broker, Worker, crowd, given_broker, own_broker
from comet_bench.report import Result, quantiles

if TYPE_CHECKING:
    from comet.client.bootstrap import Addresses

RECORD_BYTES: Final = 100
LARGER: Final = {"1k": 1 << 10, "10k": 10 << 10}  # records of the bulk loads, by the ends of the rows' names
FANOUT: Final = 50
FANOUT_RATES: Final = (200, 1_000)  # records a second to many processes
RELAY_RATE: Final = 1_000
# The wait before a paced load, so that every process is up; and its warm-up, which no figure counts.
LEAD_S: Final = 0.2
WARM_SHARE: Final = 0.1
SETTLE_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work of a run."""

    records: int  # of the bulk loads; of larger records there are as many bytes
    each_records: int
    typed_records: int
    fanout_records: int
    fanout_processes: int
    fanout_s: float
    paced_s: float
    idle_subscribers: int
    limit_bytes: int
    runs: int

    def records_of(self, size: int) -> int:
        return self.records * RECORD_BYTES // size


FULL: Final = Sizes(
    records=10_000_000,
    each_records=2_000_000,
    typed_records=4_000_000,
    fanout_records=500_000,
    fanout_processes=FANOUT,
    fanout_s=5.0,
    paced_s=10.0,
    idle_subscribers=1_000,
    limit_bytes=4 << 30,
    runs=3,
)
QUICK: Final = Sizes(
    records=2_000_000,
    each_records=500_000,
    typed_records=1_000_000,
    fanout_records=100_000,
    fanout_processes=FANOUT,
    fanout_s=1.0,
    paced_s=1.0,
    idle_subscribers=1_000,
    limit_bytes=1 << 30,
    runs=1,
)


@dataclass(slots=True)
class Bench:
    """One subject's surroundings: the broker, the sizes, and helpers for a run."""

    sizes: Sizes
    folder: Path | None
    broker: Broker | None = None
    topics: list[str] = field(default_factory=list)
    _warm: str = ""

    @property
    def address(self) -> str:
        assert self.broker is not None
        return self.broker.address

    def topic(self) -> str:
        """A new topic, which the broker deletes at the end of the subject."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        asyncio.run(create_topics(self.address, [name]))
        self.topics.append(name)
        return name

    def drop_topics(self) -> None:
        asyncio.run(delete_topics(self.address, self.topics))
        self.topics.clear()

    @property
    def warm_topic(self) -> str:
        """The topic for the first record of producers, which no figure counts."""
        if self._warm not in self.topics:
            self._warm = self.topic()
        return self._warm

    def worker(self, name: str, **config: Any) -> Worker:
        return Worker(name, **config)

    def client(self, name: str, topic: str, records: int, size: int = RECORD_BYTES, **config: Any) -> Worker:
        return Worker(
            name,
            address=self.address,
            topic=topic,
            warm_topic=self.warm_topic,
            records=records,
            record_bytes=size,
            **config,
        )

    @contextmanager
    def metered(self) -> Iterator[Callable[[], Result]]:
        """Measures the broker's use within the block; the function that it gives returns it."""
        with broker_use(self.broker) as used:
            yield used


@contextmanager
def broker_use(broker: Broker | None) -> Iterator[Callable[[], Result]]:
    """A broker's use from here on; empty if its process is not ours."""
    meter = broker.meter if broker else None
    if meter is not None:
        meter.restart_peak()
    before = meter.read() if meter is not None else None
    yield lambda: _used(meter, before)


def _used(meter: ProcessMeter | None, before: Usage | None) -> Result:
    if meter is None or before is None:
        return {}
    after = meter.read()
    return {"broker_rss_bytes": after.rss_peak_bytes, "broker_cpu_s": after.cpu_s - before.cpu_s}


async def create_topics(addresses: Addresses, names: Sequence[str]) -> None:
    import comet

    async with comet.Admin(addresses) as admin:
        for name in names:
            await admin.create_topic(name)


async def delete_topics(addresses: Addresses, names: Sequence[str]) -> None:
    import comet

    async with comet.Admin(addresses) as admin:
        for name in names:
            await admin.delete_topic(name)


async def written(address: str, topic: str) -> int:
    """The number of records written to a topic. Fetched without a stream: gRPC ends a cancelled stream late, and
    complains on stderr if another event loop runs by then."""
    import comet

    async with comet.Admin(address) as admin:
        found = await admin.describe_topic(topic)
    return sum(partition.last_stable_offset or 0 for partition in found.partitions)


def _speed(records: int, size: int, seconds: float) -> Result:
    assert seconds > 0
    return {"records_per_s": records / seconds, "bytes_per_s": size / seconds}


def _produce(bench: Bench, name: str, topic: str, records: int, size: int = RECORD_BYTES, **config: Any) -> Result:
    with bench.client(name, topic, records, size, **config) as producer:
        producer.ready()
        with bench.metered() as used:
            producer.go()
            done = producer.done()
            return _speed(records, done["bytes"], done["end"] - done["start"]) | used()


def produce_many(bench: Bench, size: int = RECORD_BYTES) -> Result:
    return _produce(bench, "produce_many", bench.topic(), bench.sizes.records_of(size), size, json=False)


def produce_each(bench: Bench) -> Result:
    return _produce(bench, "produce_each", bench.topic(), bench.sizes.each_records)


def sync_send(bench: Bench) -> Result:
    return _produce(bench, "sync_send", bench.topic(), bench.sizes.each_records)


def _catch_up(bench: Bench, name: str, records: int, size: int = RECORD_BYTES, *, json: bool = False) -> Result:
    """The topic is filled first, outside the clock."""
    topic = bench.topic()
    _produce(bench, "produce_many", topic, records, size, json=json)
    with bench.client(name, topic, records, size) as consumer:
        consumer.ready()
        with bench.metered() as used:
            consumer.go()
            done = consumer.done()
            assert (done["seen"], done["bytes"]) == (records, records * size), (name, done)
            return _speed(records, done["bytes"], done["end"] - done["start"]) | used()


def consume_raw(bench: Bench, size: int = RECORD_BYTES) -> Result:
    return _catch_up(bench, "consume_raw", bench.sizes.records_of(size), size)


def consume_each(bench: Bench) -> Result:
    return _catch_up(bench, "consume_each", bench.sizes.each_records)


def sync_consume(bench: Bench) -> Result:
    return _catch_up(bench, "sync_consume", bench.sizes.each_records)


def consume_typed(bench: Bench) -> Result:
    return _catch_up(bench, "consume_typed", bench.sizes.typed_records, json=True)


def _follow(bench: Bench, records: int, subscribers: int, size: int = RECORD_BYTES, *, each: bool = False) -> Result:
    """A producer and its subscribers at once: from the first send until the last one has seen the last record."""
    topic = bench.topic()
    with ExitStack() as stack:
        consumer = stack.enter_context(bench.client("tail", topic, records, size, subscribers=subscribers, each=each))
        sending = "produce_each" if each else "produce_many"
        producer = stack.enter_context(bench.client(sending, topic, records, size, json=False))
        consumer.ready()
        producer.ready()
        with bench.metered() as used:
            consumer.go()
            producer.go()
            sent, seen = producer.done(), consumer.done()
            assert seen["seen"] == records * subscribers, (seen["seen"], records)
            speed = _speed(seen["seen"], sent["bytes"] * subscribers, seen["end"] - sent["start"])
            return speed | used()


def live(bench: Bench, size: int = RECORD_BYTES) -> Result:
    return _follow(bench, bench.sizes.records_of(size), 1, size)


def live_each(bench: Bench) -> Result:
    return _follow(bench, bench.sizes.each_records, 1, each=True)


def fanout_50(bench: Bench) -> Result:
    return _follow(bench, bench.sizes.fanout_records, FANOUT)


# Of servers without a memory worth noting.
_UNMETERED: Final = nullcontext[Callable[[], Result]](dict)


def paced_config(rate: int, seconds: float) -> dict[str, int]:
    """The load of a paced producer, and of its consumer: the first records are warm-up."""
    records = round(rate * seconds)
    return {"rate": rate, "records": records, "skip": round(records * WARM_SHARE)}


def end_to_end(
    consumer: Worker, producer: Worker, metered: AbstractContextManager[Callable[[], Result]] = _UNMETERED
) -> Result:
    """Runs a paced producer and the consumer that times its records."""
    consumer.ready()
    producer.ready()
    with metered as used:
        consumer.go()
        producer.go(lead_s=LEAD_S)
        return consumer.done() | producer.done() | used()


def latency(bench: Bench, rate: int) -> Result:
    assert bench.broker is not None
    topic, config = bench.topic(), paced_config(rate, bench.sizes.paced_s)
    with (
        bench.client("stopwatch", topic, **config, servers={"broker": bench.broker.pids}) as consumer,
        bench.client("pace", topic, **config) as producer,
    ):
        return end_to_end(consumer, producer, bench.metered())


def fanout_processes(bench: Bench, rate: int) -> Result:
    """A paced producer, and many processes with one consumer each. The producer sleeps until a record is due: the
    others need the cores."""
    assert bench.broker is not None
    topic, config = bench.topic(), paced_config(rate, bench.sizes.fanout_s)
    count, pids = bench.sizes.fanout_processes, bench.broker.pids
    with ExitStack() as stack:
        start = partial(bench.client, "subscriber", topic, **config, servers={})
        consumers = stack.enter_context(crowd(count, start))
        producer = stack.enter_context(bench.client("pace", topic, **config, sleepy=True))
        producer.ready()
        used = stack.enter_context(bench.metered())
        broker = EventCosts(broker=pids)
        for consumer in consumers:
            consumer.go()
        producer.go(lead_s=LEAD_S)
        sent = producer.done()
        received = [consumer.receive("ready", RUN_TIMEOUT_S) for consumer in consumers]
        use = used() | broker.per_event(config["records"] * count)
        for consumer in consumers:
            consumer.go()
        for consumer in consumers:
            consumer.done()
    each_us = statistics.median(one["consumer_event_us"] for one in received)
    ages_us = list(chain.from_iterable(one["ages_us"] for one in received))
    assert len(ages_us) == (config["records"] - config["skip"]) * count, len(ages_us)
    return quantiles(ages_us) | {"consumer_event_us": each_us} | sent | use


def idle_subscribers(bench: Bench) -> Result:
    """The broker's cost of each of many subscribers to an idle topic."""
    assert bench.broker is not None
    topic, meter, count = bench.topic(), bench.broker.meter, bench.sizes.idle_subscribers
    if meter is None:
        return {}
    before = meter.read().rss_bytes
    with bench.client("idle", topic, 0, subscribers=count) as consumers:
        consumers.ready()
        after = meter.read().rss_bytes
        consumers.go()
        consumers.done()
    return {"broker_rss_bytes": after, "subscriber_rss_bytes": (after - before) / count}


def startup(bench: Bench) -> Result:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="comet-bench-", dir=bench.folder))
        worker = stack.enter_context(bench.worker("startup", folder=folder))
        worker.ready()
        worker.go()
        return worker.done()


def filtered(bench: Bench, text: str) -> Result:
    """Without a broker: batches in memory."""
    config = {"filter": text, "records": bench.sizes.typed_records, "record_bytes": RECORD_BYTES}
    with bench.worker("filter", **config) as worker:
        worker.ready()
        worker.go()
        return worker.done()


def limit_grpc_stream(bench: Bench) -> Result:
    """Plain gRPC, with messages as large as those of send_many."""
    return _grpc_stream(bench, tuned=False)


def limit_grpc_stream_tuned(bench: Bench) -> Result:
    """The same in processes and channels set up as Comet's are."""
    return _grpc_stream(bench, tuned=True)


def _grpc_stream(bench: Bench, *, tuned: bool) -> Result:
    from comet.limits import BULK_BATCH_BYTES

    message_bytes = BULK_BATCH_BYTES
    with bench.worker("grpc_sink", tuned=tuned) as sink:
        port = sink.ready()["port"]
        messages = bench.sizes.limit_bytes // 4 // message_bytes
        config = {"port": port, "messages": messages, "message_bytes": message_bytes, "tuned": tuned}
        with bench.worker("grpc_source", **config) as source:
            source.ready()
            source.go()
            return source.done()


def limit_grpc_echo(bench: Bench) -> Result:
    """At 1,000 a second, messages about as large as a batch of one record with its frame."""
    records = round(1_000 * bench.sizes.paced_s)
    with bench.worker("grpc_echo") as echo:
        config = {"port": echo.ready()["port"], "rate": 1_000, "records": records, "message_bytes": 2 * RECORD_BYTES}
        with bench.worker("grpc_pace", skip=round(records * WARM_SHARE), **config) as pace:
            pace.ready()
            pace.go()
            return pace.done()


def limit_wire_relay(bench: Bench) -> Result:
    """As `latency_1000`, with the plainest program in place of the broker."""
    config = paced_config(RELAY_RATE, bench.sizes.paced_s) | {"message_bytes": RECORD_BYTES}
    with ExitStack() as stack:
        relay = stack.enter_context(bench.worker("relay"))
        ports = relay.ready()
        servers = {"broker": [relay.pid]}
        consumer = stack.enter_context(bench.worker("relay_stopwatch", **config, **ports, servers=servers))
        producer = stack.enter_context(bench.worker("relay_pace", **config, **ports))
        return end_to_end(consumer, producer)


def limit_clock(bench: Bench) -> Result:
    """At the rate of latency_5000: a pause of the processor delays all ticks that are due meanwhile."""
    with bench.worker("clock", rate=5_000, records=round(5_000 * bench.sizes.paced_s)) as watch:
        watch.ready()
        watch.go()
        return watch.done()


def limit_tcp(bench: Bench) -> Result:
    with bench.worker("tcp_sink") as sink:
        port = sink.ready()["port"]
        with bench.worker("tcp_source", port=port, bytes=bench.sizes.limit_bytes) as source:
            source.ready()
            sink.go()
            source.go()
            start = source.done()["start"]
        received = sink.done()
        return {"bytes_per_s": received["total"] / (received["end"] - start)}


def _alone(bench: Bench, name: str, **config: Any) -> Result:
    with bench.worker(name, bytes=bench.sizes.limit_bytes // 4, **config) as worker:
        worker.ready()
        worker.go()
        return worker.done()


def limit_file(bench: Bench) -> Result:
    return _alone(bench, "file", folder=str(bench.folder) if bench.folder else None)


def limit_memcpy(bench: Bench) -> Result:
    return _alone(bench, "memcpy")


@dataclass(frozen=True, slots=True)
class Subject:
    run: Callable[[Bench], Result]
    needs_broker: bool
    about: str


def _larger(name: str, run: Callable[..., Result]) -> dict[str, Subject]:
    """The rows of larger records."""
    return {
        f"{name}_{end}": Subject(partial(run, size=size), True, f"the same, records of {size >> 10} KiB")
        for end, size in LARGER.items()
    }


SUBJECTS: Final[dict[str, Subject]] = {
    "produce_many": Subject(produce_many, True, "send_many, acknowledged"),
    **_larger("produce_many", produce_many),
    "produce_each": Subject(produce_each, True, "send one by one, acknowledged"),
    "sync_send": Subject(sync_send, True, "the same with comet.sync"),
    "consume_raw": Subject(consume_raw, True, "catch up, values as bytes"),
    **_larger("consume_raw", consume_raw),
    "consume_each": Subject(consume_each, True, "catch up record by record"),
    "sync_consume": Subject(sync_consume, True, "the same with comet.sync"),
    "consume_typed": Subject(consume_typed, True, "catch up, JSON to msgspec events"),
    "live": Subject(live, True, "produce and consume at once"),
    **_larger("live", live),
    "live_each": Subject(live_each, True, "produce and consume at once, both record by record"),
    "latency_1000": Subject(partial(latency, rate=1_000), True, "end to end at 1,000 events/s"),
    "latency_5000": Subject(partial(latency, rate=5_000), True, "end to end at 5,000 events/s"),
    "fanout_50": Subject(fanout_50, True, "one producer, 50 subscribers; records delivered"),
    **{
        f"fanout_50_processes_{rate}": Subject(
            partial(fanout_processes, rate=rate), True, f"end to end to 50 processes at {rate:,} events/s"
        )
        for rate in FANOUT_RATES
    },
    "idle_subscribers": Subject(idle_subscribers, True, "idle subscribers"),
    "filter_key": Subject(partial(filtered, text='@key = "key 7"'), False, "evaluating a filter of the key"),
    "filter_fields": Subject(
        partial(filtered, text="bid > 100 && ask < 50"), False, "evaluating a filter of two fields of JSON"
    ),
    "filter_literal": Subject(
        partial(filtered, text='symbol = "ACME" && bid > 100'), False, "the same, with a text that one in eight has"
    ),
    "startup": Subject(startup, False, "comet up to the first acknowledged record"),
    "limit_wire_relay": Subject(limit_wire_relay, False, "a bare relay of the wire's frames at 1,000 messages/s"),
    "limit_grpc_echo": Subject(limit_grpc_echo, False, "bare gRPC round trip at 1,000 messages/s"),
    "limit_grpc_stream": Subject(limit_grpc_stream, False, "bare gRPC byte stream, frames as send_many makes"),
    "limit_grpc_stream_tuned": Subject(limit_grpc_stream_tuned, False, "the same, the processes set up as Comet's"),
    "limit_clock": Subject(limit_clock, False, "watching the clock: how late 5,000 ticks/s are seen"),
    "limit_tcp": Subject(limit_tcp, False, "loopback TCP"),
    "limit_file": Subject(limit_file, False, "appending to a file, page cache"),
    "limit_memcpy": Subject(limit_memcpy, False, "copying memory"),
}


def run_subjects(
    names: Sequence[str], sizes: Sizes, *, address: str | None, folder: Path | None, progress: Progress
) -> dict[str, Result]:
    """Results by name. With an address, that broker is measured, without its memory and CPU."""

    @contextmanager
    def surroundings(name: str) -> Iterator[Bench]:
        if not SUBJECTS[name].needs_broker:
            yield Bench(sizes, folder)
            return
        with given_broker(address) if address is not None else own_broker(folder) as broker:
            yield Bench(sizes, folder, broker)

    subjects: Subjects[Bench] = {(name,): alone(_tidied(subject.run)) for name, subject in SUBJECTS.items()}
    return run_compared(subjects, names, surroundings, progress)


def _tidied(run: Callable[[Bench], Result]) -> Callable[[Bench], Result]:
    """Deletes the topics of each run."""

    def tidied(bench: Bench) -> Result:
        result = run(bench)
        if bench.broker is not None:
            bench.drop_topics()
        return result

    return tidied


SUITE: Final = Suite(
    {name: subject.about for name, subject in SUBJECTS.items()}, FULL, QUICK, run_subjects,
    without_broker=frozenset(name for name, subject in SUBJECTS.items() if not subject.needs_broker),
)  # fmt: skip
