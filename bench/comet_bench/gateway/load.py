"""The processes of `comet bench gateway`: crowds of clients, and producers for them.

A crowd takes orders while it listens; see `crowd`. Each record has its number and, where ages are measured, the time at
which it was due, not that at which it was sent.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from comet_bench.gateway.checks import Conflated, check_events, check_frames, hot_symbol, plain_event
from comet_bench.gateway.clients import (
    Answers,
    CrowdMark,
    EventsClient,
    Listener,
    Poster,
    Refused,
    Tally,
    WebSocketClient,
    connect,
    masked,
)
from comet_bench.report import quantiles
from comet_bench.timer import Ticker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from comet_bench.link import Link, Work

# One client in so many stores everything, and the first of them the frames that a bare server repeats.
SAMPLED: Final = 100
# Events in flight, on average: a saturated gateway always has work, and no client falls behind its memory.
WINDOW: Final = 16
WARM_SHARE: Final = 0.1
POST_WARM_S: Final = 0.5
QUOTES_TICK_S: Final = 0.01
CATCH_UP_S: Final = 60.0
POLL_S: Final = 0.05


def event(number: int, size: int, due_ns: int | None = None) -> bytes:
    """A JSON value of `size` bytes, or more if its fields need them."""
    stamp = "" if due_ns is None else f'"due":{due_ns},'
    text = f'{{{stamp}"symbol":"SYM{number % 500:03}","n":"{number:08}","pad":""}}'
    return f'{text[:-2]}{"x" * max(size - len(text), 0)}"}}'.encode()


def _crowd(config: Any, tally: Tally) -> list[Listener]:
    host = f"{config['host']}:{config['port']}"
    sampled = range(0, config["clients"], config.get("sampled", SAMPLED))
    subscribe = json.dumps(config.get("subscribe", {})).encode()
    clients: list[Listener] = []
    for index in range(config["clients"]):
        if config["kind"] == "ws":
            clients.append(WebSocketClient(tally, host, config["path"], subscribe))
        else:
            clients.append(EventsClient(tally, host, config["path"]))
        clients[-1].sampled = index in sampled
    return clients


async def _leave(clients: list[Listener]) -> None:
    for client in clients:
        client.expendable = True  # the end of the connection is not a failure from here on
        client.transport.abort()
    await asyncio.sleep(0)


# ---- as fast as possible


async def fanout(link: Link, config: Any) -> dict[str, Any]:
    """Each client gets `events` records. The clock runs from the warm-up's last delivery to the very last one."""
    tally = Tally()
    clients = _crowd(config, tally)
    await connect(clients, config["host"], config["port"])
    await link.go()
    count, events = len(clients), config["events"]
    warm = int(events * WARM_SHARE)
    sending = asyncio.ensure_future(_send_fanout(config, tally) if "address" in config else _start_broadcast(config))
    try:
        start, end = await _unless_failed(
            asyncio.gather(tally.reach(count * warm), tally.reach(count * events)), sending
        )  # fmt: skip
    finally:
        sending.cancel()
    wrong = [client.records for client in clients if client.records != events]
    if wrong:
        raise Refused(f"{len(wrong)} clients have another number of records than {events}: {wrong[:3]}")
    check = check_frames if config["kind"] == "ws" else check_events
    for client in clients:
        if client.sampled:
            check(client.stored, events)
    if "frames" in config:
        first = clients[0].stored if config["kind"] == "ws" else map(plain_event, clients[0].stored)
        _keep(Path(config["frames"]), first)
    await _leave(clients)
    return {
        "deliveries_per_s": (end.deliveries - start.deliveries) / (end.at - start.at),
        "records_per_s": (end.records - start.records) / (end.at - start.at),
    }


def _keep(file: Path, frames: Iterable[bytes]) -> None:
    file.write_text(json.dumps([frame.decode() for frame in frames]))


async def _unless_failed(
    marks: asyncio.Future[tuple[CrowdMark, CrowdMark]], sending: asyncio.Future[None]
) -> tuple[CrowdMark, CrowdMark]:  # fmt: skip
    """Waits for the first; the other fails earlier or not at all."""
    both: set[asyncio.Future[Any]] = {marks, sending}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not marks.done():
        sending.result()
    return await marks


async def _send_fanout(config: Any, tally: Tally) -> None:
    """Sends event after event, each when the clients have nearly all previous ones."""
    import comet

    window = config.get("window", WINDOW)
    async with comet.Producer(config["address"]) as producer:
        for number in range(config["events"]):
            await producer.send(config["topic"], event(number, config["record_bytes"]))
            if number >= window:
                await tally.reach((number - window) * config["clients"])
        await producer.flush()


async def _start_broadcast(config: Any) -> None:
    reader, writer = await asyncio.open_connection(config["host"], config["port"])
    writer.write(_post(config, "/broadcast", b"{}"))
    if not (await reader.readline()).startswith(b"HTTP/1.1 200"):
        raise Refused("the bare server does not broadcast")
    writer.close()


# ---- at a given pace


async def crowd(link: Link, config: Any) -> dict[str, Any]:
    """Listens. Orders: `wait` until the clients that read have `records` each, `stall` so many, `resume` them and wait
    until they have as many, `stop`."""
    tally = Tally(ages=True)
    clients = _crowd(config, tally)
    deaf = clients[len(clients) - config.get("deaf", 0) :]
    await connect(clients, config["host"], config["port"], ethernet=len(deaf))
    answer: dict[str, Any] = {}
    while (order := await link.go(**answer))["order"] != "stop":
        answer = {}
        if order["order"] == "wait":
            await tally.reach(order["records"] * (len(clients) - len(deaf)))
        elif order["order"] == "stall":
            for client in deaf:
                client.timed = False
                client.stall()
        else:
            answer = await _resume(deaf, order["records"])
    assert tally.ages_us is not None
    skipped = int(len(tally.ages_us) * WARM_SHARE)
    ages = tally.ages_us[skipped:]
    check = check_frames if config["kind"] == "ws" else check_events
    for client in clients:
        if client.sampled:
            check(client.stored, client.records)
    await _leave(clients)
    found = quantiles(ages)
    return {"p50_ms": found["p50_us"] / 1e3, "p99_ms": found["p99_us"] / 1e3, "records": tally.records}


async def _resume(deaf: list[Listener], records: int) -> dict[str, Any]:
    """Waits for the records that were sent while the clients did not read, unless the gateway has cut them off."""
    for client in deaf:
        client.resume()
    deadline = time.monotonic() + CATCH_UP_S
    while any(not client.ended and client.records < records for client in deaf):
        if time.monotonic() > deadline:
            raise Refused(f"clients that read again have {sorted(client.records for client in deaf)} of {records}")
        await asyncio.sleep(POLL_S)
    return {"cut_off": sum(1 for client in deaf if client.ended)}


async def pace_events(link: Link, config: Any) -> dict[str, Any]:
    """Sends `rate` events a second, each with the time it is due, with the SDK, to a broker."""
    import comet

    async with comet.Producer(config["address"]) as producer:
        await producer.publish(config["warm_topic"], b"{}")
        await link.go()
        interval_ns = 1_000_000_000 // config["rate"]
        due_ns = time.perf_counter_ns() + interval_ns
        ticker = Ticker(due_ns, interval_ns, sleepy=config["sleepy"])
        try:
            number = 0
            while number < config["records"]:
                for _ in range(min(await ticker.due(), config["records"] - number)):
                    await producer.send(config["topic"], event(number, config["record_bytes"], due_ns))
                    due_ns += interval_ns
                    number += 1
        finally:
            ticker.close()
        await producer.flush()
    return {}


async def echoed(link: Link, config: Any) -> dict[str, Any]:
    """One WebSocket to a bare echo: what goes out comes back, at a fixed pace."""
    tally = Tally(ages=True)
    client = WebSocketClient(tally, f"{config['host']}:{config['port']}", "/echo", b'"subscribed"')
    await connect([client], config["host"], config["port"])
    await link.go()
    interval_ns = 1_000_000_000 // config["rate"]
    due_ns = time.perf_counter_ns() + interval_ns
    ticker = Ticker(due_ns, interval_ns)
    try:
        number = 0
        while number < config["records"]:
            for _ in range(min(await ticker.due(), config["records"] - number)):
                record = event(number, config["record_bytes"], due_ns)
                client.transport.write(
                    masked(0x81, b'{"type":"records","records":[{"offset":"0","value":%b}]}' % record)
                )
                due_ns += interval_ns
                number += 1
    finally:
        ticker.close()
    await tally.reach(config["records"])
    assert tally.ages_us is not None
    found = quantiles(tally.ages_us[int(len(tally.ages_us) * WARM_SHARE) :])
    await _leave([client])
    return {"p50_ms": found["p50_us"] / 1e3, "p99_ms": found["p99_us"] / 1e3}


# ---- the latest of each key


async def quotes(link: Link, config: Any) -> dict[str, Any]:
    """Sends `rate` updates a second of `symbols` keys: every other one is of a few hot ones."""
    import comet

    total, symbols = config["records"], config["symbols"]
    async with comet.Producer(config["address"]) as producer:
        await link.go()
        start, sent = time.perf_counter(), 0
        while sent < total:
            until = min(int((time.perf_counter() - start) * config["rate"]), total)
            if until > sent:
                numbers = range(sent, until)
                keys = [f"S{hot_symbol(number, symbols):05}" for number in numbers]
                values = [event(number, config["record_bytes"]) for number in numbers]
                await producer.send_many(config["topic"], values, keys=keys)
                sent = until
            await asyncio.sleep(QUOTES_TICK_S)
        await producer.flush()
        return {"seconds": time.perf_counter() - start}


async def conflated(link: Link, config: Any) -> dict[str, Any]:
    """Listens until every client has the last value of every key, or the time for it is over."""
    tally = Conflated(config["records"], config["symbols"])
    clients = _crowd(config, tally)
    await connect(clients, config["host"], config["port"])
    await link.go()
    first = time.perf_counter()
    await link.go()  # all records are sent
    await asyncio.sleep(config["settle_s"])
    deadline = time.monotonic() + CATCH_UP_S
    while wrong := tally.wrong(clients):  # the check takes long and blocks the clients: not often
        if time.monotonic() > deadline:
            raise Refused(f"the last values are not the latest: {wrong}")
        await asyncio.sleep(config["settle_s"])
    seconds = time.perf_counter() - first
    await _leave(clients)
    return {
        "deliveries_per_s": tally.deliveries / seconds,
        "records_per_s": tally.records / seconds,
        **tally.updates_per_key(),
    }


# ---- requests


def _post(config: Any, path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {config['host']}:{config['port']}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def posters(link: Link, config: Any) -> dict[str, Any]:
    """`connections` that each have one request under way, for some seconds."""
    answers = Answers()
    records, size = config["records"], config["record_bytes"]
    values = [event(number, size).decode() for number in range(max(records, SAMPLED))]
    if records > 1:
        bodies = ['{"records":[' + ",".join(f'{{"value":{value}}}' for value in values) + "]}"]
    else:
        bodies = [f'{{"value":{value}}}' for value in values]
    requests = [_post(config, config["path"], body.encode()) for body in bodies]
    loop = asyncio.get_running_loop()
    each = []
    for _ in range(config["connections"]):
        _, poster = await loop.create_connection(lambda: Poster(answers, requests), config["host"], config["port"])
        each.append(poster)
    await link.go()
    for poster in each:
        poster.begin()
    await _run_for(POST_WARM_S, answers)
    answers.counting, start = True, time.perf_counter()
    await _run_for(config["seconds"], answers)
    while not answers.count:  # a disk or a machine may stall for longer than a short run
        if time.perf_counter() - start > config["seconds"] + CATCH_UP_S:
            raise Refused("the server answered no request")
        await _run_for(POLL_S, answers)
    answers.counting, seconds = False, time.perf_counter() - start
    answers.over = True
    for poster in each:
        poster.close()
    found = quantiles(answers.ages_us)
    return {
        "requests_per_s": answers.count / seconds,
        "records_per_s": answers.count * records / seconds,
        "p50_ms": found["p50_us"] / 1e3,
        "p99_ms": found["p99_us"] / 1e3,
        "answered": answers.count,
        "answer": answers.last.decode(),
    }


async def _run_for(seconds: float, answers: Answers) -> None:
    done, _ = await asyncio.wait({answers.failed}, timeout=seconds)
    for failed in done:
        failed.result()


WORKS: Final[dict[str, Work]] = {
    "gateway_fanout": fanout,
    "gateway_crowd": crowd,
    "gateway_pace": pace_events,
    "gateway_echoed": echoed,
    "gateway_quotes": quotes,
    "gateway_conflated": conflated,
    "gateway_posters": posters,
}
