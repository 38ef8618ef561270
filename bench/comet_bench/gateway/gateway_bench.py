"""`comet bench gateway`: the gateway's throughput and latency, beside bare servers that do nothing else.

    limit_ws_broadcast    a bare uvicorn loop that sends the frames of the run of `ws_fanout` before it, to as many
    ws_fanout             WebSockets that follow one topic, as fast as possible
    limit_sse_broadcast   the bare loop with server-sent events
    sse_fanout            server-sent events, as fast as possible
    limit_echo            POST to a bare ASGI application that answers with the body
    limit_bare_post       POST to a bare FastAPI route that parses the body
    post_one              POST of one record to the gateway, the same bodies
    post_batch            POST of many records
    limit_ws_echo         one WebSocket to a bare echo, 200 messages a second
    latency_ws            200 events a second, from a producer through broker and gateway to one WebSocket
    ws_paced              20 events a second to every one of many WebSockets
    ws_stalled            the same, while some of them do not read
    ws_conflate           many updates of many keys, to clients that take the latest of each

The figures are explained in docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from comet_bench.broker.broker_bench import RECORD_BYTES, written
from comet_bench.gateway.servers import Served, start_bare, start_gateway
from comet_bench.harness import Progress, Report, Subject, Subjects, Suite, alone, compared, run_compared
from comet_bench.processes import START_TIMEOUT_S, BenchFailed, Broker, Worker, given_broker, own_broker
from comet_bench.report import Result

STALLED_RECORD_BYTES: Final = 1_000
PACED_RATE: Final = 20
LATENCY_RATE: Final = 200
POSTING: Final = 32  # connections with one request each
BATCHING: Final = 4
BATCH_RECORDS: Final = 1_000
CONFLATE_MS: Final = 250
SYMBOLS: Final = 10_000
UPDATES_RATE: Final = 20_000
CONFLATE_CLIENTS: Final = 100
SETTLE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class GatewaySizes:
    """The amount of work of a run."""

    clients: int
    fanout_records: int
    post_s: float
    latency_s: float
    paced_s: float
    deaf: int  # clients that stop reading,
    deaf_s: float  # for so long
    conflate_s: float
    runs: int
    pairs: int  # runs of compared subjects


FULL: Final = GatewaySizes(1_000, 500, 5.0, 10.0, 20.0, 100, 60.0, 20.0, runs=1, pairs=5)
QUICK: Final = GatewaySizes(1_000, 200, 2.0, 4.0, 6.0, 100, 10.0, 6.0, runs=1, pairs=1)


class GatewayBench:
    """A broker and its gateway. Every run has a topic of its own."""

    def __init__(self, sizes: GatewaySizes, broker: Broker, gateway: Served, folder: Path) -> None:
        self.sizes = sizes
        self.address = broker.address
        self.gateway = gateway
        self._folder = folder

    def topic(self) -> str:
        name = f"bench-{uuid.uuid4().hex[:12]}"
        asyncio.run(_create(self.address, name))
        return name

    def frames(self) -> Path:
        return self._folder / f"frames-{uuid.uuid4().hex[:12]}.json"

    @contextmanager
    def metered(self) -> Iterator[Callable[[], Result]]:
        """Measures cores and memory of the gateway within the block."""
        meter, start = self.gateway.meter, time.perf_counter()
        meter.restart_peak()
        before = meter.read()

        def used() -> Result:
            now = meter.read()
            cores = (now.cpu_s - before.cpu_s) / (time.perf_counter() - start)
            return {"gateway_cores": cores, "gateway_rss_bytes": now.rss_peak_bytes}

        yield used


async def _create(address: str, name: str) -> None:
    import comet

    async with comet.Admin(address) as admin:
        await admin.create_topic(name)


def listening(kind: str, topic: str, **options: Any) -> dict[str, Any]:
    """The configuration of clients of that kind for a topic of the gateway."""
    if kind == "ws":
        return {"path": "/v1/ws", "subscribe": {"type": "subscribe", "id": "bench", "topic": topic, **options}}
    query = "".join(f"&{name}={value}" for name, value in options.items())
    return {"path": f"/v1/topics/{topic}/stream?start=latest{query}"}


_BARE_PATHS: Final = {"ws": "/ws", "sse": "/events"}


# ---- as fast as possible


def _fanout(bench: GatewayBench, kind: str, frames: Path) -> Result:
    sizes, topic = bench.sizes, bench.topic()
    config = {"clients": sizes.clients, "events": sizes.fanout_records, "record_bytes": RECORD_BYTES}
    with Worker(
        "gateway_fanout", **bench.gateway.at, **listening(kind, topic), **config, kind=kind, topic=topic,
        address=bench.address, frames=str(frames),
    ) as crowd:  # fmt: skip
        crowd.ready()
        with bench.metered() as used:
            crowd.go()
            return crowd.done() | used()


def _broadcast(bench: GatewayBench, kind: str, frames: Path) -> Result:
    sizes = bench.sizes
    config = {"clients": sizes.clients, "events": sizes.fanout_records}
    with start_bare(frames) as bare, Worker(
        "gateway_fanout", **bare.at, **config, kind=kind, path=_BARE_PATHS[kind]
    ) as crowd:  # fmt: skip
        crowd.ready()
        crowd.go()
        return crowd.done()


def fanout(kind: str) -> Subject[GatewayBench]:
    def run(bench: GatewayBench, report: Report) -> list[list[Result]]:
        """The gateway first, so that the bare loop can repeat its frames."""
        bare, through = [], []
        for number in range(1, bench.sizes.pairs + 1):
            frames = bench.frames()
            found = report(1, number, lambda: _fanout(bench, kind, frames))  # noqa: B023 - called here
            bare.append(report(0, number, lambda: _broadcast(bench, kind, frames)))  # noqa: B023
            through.append(found | {"share": found["deliveries_per_s"] / bare[-1]["deliveries_per_s"]})
        return [bare, through]

    return run


# ---- requests


def _post(bench: GatewayBench, at: dict[str, Any], path: str, records: int = 1) -> Result:
    with Worker(
        "gateway_posters", **at, path=path, records=records, record_bytes=RECORD_BYTES, seconds=bench.sizes.post_s,
        connections=POSTING if records == 1 else BATCHING,
    ) as posters:  # fmt: skip
        posters.ready()
        with bench.metered() as used:
            posters.go()
            done = posters.done()
            use = used()
    if "topics" in path:
        _check_answer(json.loads(done["answer"]), records)
        _check_topic(bench.address, path.split("/")[3], done["answered"] * records)
    fields = ("requests_per_s", "records_per_s", "p50_ms", "p99_ms") if records > 1 else _ONE
    return {name: done[name] for name in fields} | (use if "topics" in path else {})


_ONE: Final = ("requests_per_s", "p50_ms", "p99_ms")


def _check_answer(answer: Any, records: int) -> None:
    """Checks that the answer has an offset for each record."""
    results = answer["results"] if isinstance(answer, dict) and "results" in answer else [answer]
    if len(results) != records or not all(int(result["offset"]) >= 0 for result in results):
        raise BenchFailed(f"the gateway answered {records} records with {str(answer)[:500]}")


def _check_topic(address: str, topic: str, records: int) -> None:
    """Checks that all acknowledged records are in the topic."""
    there = asyncio.run(written(address, topic))
    if there < records:
        raise BenchFailed(f"{records} records were answered, {there} are in the topic")


def post_one(bench: GatewayBench, report: Report) -> list[list[Result]]:
    echoes, bares, ours = [], [], []
    with start_bare() as bare:
        for number in range(1, bench.sizes.pairs + 1):
            echoes.append(report(0, number, lambda: _post(bench, bare.at, "/echo")))
            bares.append(report(1, number, lambda: _post(bench, bare.at, "/fast")))
            path = f"/v1/topics/{bench.topic()}/records"
            found = report(2, number, lambda: _post(bench, bench.gateway.at, path))  # noqa: B023 - called here
            ours.append(found | {"share": found["requests_per_s"] / bares[-1]["requests_per_s"]})
    return [echoes, bares, ours]


def post_batch(bench: GatewayBench) -> Result:
    return _post(bench, bench.gateway.at, f"/v1/topics/{bench.topic()}/records", BATCH_RECORDS)


# ---- at a given pace


def _paced(
    bench: GatewayBench, clients: int, rate: int, seconds: float, size: int = RECORD_BYTES, deaf: int = 0
) -> Result:
    """The time from when each event was due until a client has it."""
    topic, records = bench.topic(), int(rate * seconds)
    before = bench.gateway.meter.read().rss_bytes
    with (
        Worker(
            "gateway_crowd", **bench.gateway.at, **listening("ws", topic), kind="ws", clients=clients, deaf=deaf
        ) as crowd,
        Worker(
            "gateway_pace", address=bench.address, topic=topic, warm_topic=bench.topic(), rate=rate, records=records,
            record_bytes=size, sleepy=clients > 1,
        ) as sender,
    ):  # fmt: skip
        crowd.ready()
        sender.ready()
        with bench.metered() as used:
            if deaf:
                crowd.go(order="stall")
                crowd.ready()
            sender.go()
            crowd.go(order="wait", records=records)
            sender.done()
            crowd.receive("ready", seconds + START_TIMEOUT_S)
            use = used()
        cut_off = {}
        if deaf:
            crowd.go(order="resume", records=records)
            cut_off = crowd.receive("ready", 2 * START_TIMEOUT_S + START_TIMEOUT_S)
        crowd.go(order="stop")
        done = crowd.done()
    found = {"p50_ms": done["p50_ms"], "p99_ms": done["p99_ms"]} | use
    return found | ({"gateway_before_bytes": before, **cut_off} if deaf else {})


def ws_paced(bench: GatewayBench) -> Result:
    return _paced(bench, bench.sizes.clients, PACED_RATE, bench.sizes.paced_s)


def ws_stalled(bench: GatewayBench) -> Result:
    sizes = bench.sizes
    return _paced(bench, sizes.clients, PACED_RATE, sizes.deaf_s, STALLED_RECORD_BYTES, sizes.deaf)


def latency(bench: GatewayBench, report: Report) -> list[list[Result]]:
    echoes, ours, seconds = [], [], bench.sizes.latency_s
    with start_bare() as bare:
        for number in range(1, bench.sizes.pairs + 1):
            echoes.append(report(0, number, lambda: _echoed(bench, bare)))
            ours.append(report(1, number, lambda: _paced(bench, 1, LATENCY_RATE, seconds)))
    return [echoes, ours]


def _echoed(bench: GatewayBench, bare: Served) -> Result:
    records = int(LATENCY_RATE * bench.sizes.latency_s)
    with Worker("gateway_echoed", **bare.at, rate=LATENCY_RATE, records=records, record_bytes=RECORD_BYTES) as one:
        one.ready()
        one.go()
        return one.done()


# ---- the latest of each key


def ws_conflate(bench: GatewayBench) -> Result:
    topic, records = bench.topic(), int(UPDATES_RATE * bench.sizes.conflate_s)
    config = {"topic": topic, "records": records, "symbols": SYMBOLS, "record_bytes": RECORD_BYTES}
    how = listening("ws", topic, policy="conflate", interval_ms=CONFLATE_MS)
    with (
        Worker(
            "gateway_conflated", **bench.gateway.at, **how, **config, kind="ws", clients=CONFLATE_CLIENTS,
            sampled=10, settle_s=SETTLE_S,
        ) as crowd,
        Worker("gateway_quotes", address=bench.address, rate=UPDATES_RATE, **config) as sender,
    ):  # fmt: skip
        crowd.ready()
        sender.ready()
        with bench.metered() as used:
            crowd.go()
            crowd.ready()
            sender.go()
            sent = sender.done()
            use = used()
        crowd.go()
        done = crowd.done()
    return done | {"updates_per_s": records / sent["seconds"]} | use


# ---- all subjects

# Compared subjects are measured in turn.
_SUBJECTS: Final[Subjects[GatewayBench]] = {
    ("limit_ws_broadcast", "ws_fanout"): fanout("ws"),
    ("limit_sse_broadcast", "sse_fanout"): fanout("sse"),
    ("limit_echo", "limit_bare_post", "post_one"): post_one,
    ("post_batch",): alone(post_batch),
    ("limit_ws_echo", "latency_ws"): latency,
    ("ws_paced",): alone(ws_paced),
    ("ws_stalled",): alone(ws_stalled),
    ("ws_conflate",): alone(ws_conflate),
}
COMPARED: Final = compared(_SUBJECTS)
ABOUT: Final = {
    "limit_ws_broadcast": "a bare loop that sends the frames of ws_fanout to as many WebSockets",
    "ws_fanout": "WebSockets that follow one topic, as fast as possible",
    "limit_sse_broadcast": "the same of server-sent events",
    "sse_fanout": "server-sent events of one topic, as fast as possible",
    "limit_echo": "a bare server that answers a POST with its body",
    "limit_bare_post": "a bare FastAPI route that parses the body of post_one",
    "post_one": "POST of one record",
    "post_batch": f"POST of {BATCH_RECORDS:,} records",
    "limit_ws_echo": "round trip over one WebSocket of a bare server",
    "latency_ws": "latency of 200 events/s to one WebSocket",
    "ws_paced": "latency of 20 events/s to each of 1,000 WebSockets",
    "ws_stalled": "the same while 100 of them do not read",
    "ws_conflate": "20,000 updates/s of 10,000 keys, conflated for 100 WebSockets",
}


def run_gateway(
    names: Sequence[str], sizes: GatewaySizes, *, address: str | None, folder: Path | None, progress: Progress
) -> dict[str, Result]:
    """Results by name; those that are compared with each other come together."""

    @contextmanager
    def surroundings(_subject: str) -> Iterator[GatewayBench]:
        with (
            given_broker(address) if address is not None else own_broker(folder) as broker,
            start_gateway(broker.address) as gateway,
            TemporaryDirectory(prefix="comet-bench-", dir=folder) as scratch,
        ):
            yield GatewayBench(sizes, broker, gateway, Path(scratch))

    return run_compared(_SUBJECTS, names, surroundings, progress)


SUITE: Final = Suite(ABOUT, FULL, QUICK, run_gateway, COMPARED)
