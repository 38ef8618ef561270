"""The benchmark of the gateway: its clients under any cut of the bytes, its checks, and every name as a tiny load."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_bench.gateway import load
from comet_bench.gateway.checks import (
    HOT_SYMBOLS,
    Conflated,
    Pace,
    Wrong,
    check_events,
    check_frames,
    hot_symbol,
    plain_event,
)
from comet_bench.gateway.clients import (
    MARK,
    Answers,
    EventsClient,
    Listener,
    Poster,
    Refused,
    Tally,
    WebSocketClient,
    masked,
)
from comet_bench.gateway.gateway_bench import ABOUT, COMPARED, GatewaySizes, run_gateway
from comet_bench.gateway.load import event
from comet_bench.link import Link
from comet_bench.machine import describe
from comet_bench.report import Result, combine, document, table_row

TINY = GatewaySizes(
    clients=20,
    fanout_records=50,
    post_s=0.3,
    latency_s=0.5,
    paced_s=0.5,
    deaf=2,
    deaf_s=0.5,
    conflate_s=1.0,
    runs=1,
    pairs=2,
)
USED = {"gateway_cores", "gateway_rss_bytes", "runs"}
LATENCY = {"p50_ms", "p99_ms"}
FANOUT = {"deliveries_per_s", "records_per_s"}
POST = {"requests_per_s"} | LATENCY
EXPECTED = {
    "limit_ws_broadcast": FANOUT | {"runs"},
    "ws_fanout": FANOUT | USED | {"share"},
    "limit_sse_broadcast": FANOUT | {"runs"},
    "sse_fanout": FANOUT | USED | {"share"},
    "limit_echo": POST | {"runs"},
    "limit_bare_post": POST | {"runs"},
    "post_one": POST | USED | {"share"},
    "post_batch": POST | USED | {"records_per_s"},
    "limit_ws_echo": LATENCY | {"runs"},
    "latency_ws": LATENCY | USED,
    "ws_paced": LATENCY | USED,
    "ws_stalled": LATENCY | USED | {"gateway_before_bytes", "cut_off"},
    "ws_conflate": FANOUT | USED | {"updates_per_s", "updates_per_key_s", "updates_per_key_s_max"},
}

# A second update of a key is none where a machine stood still and all of them came as one.
NOT_ALWAYS = {"gateway_cores", "cut_off", "updates_per_key_s"}


def nothing(name: str, run: int, result: Result | None) -> None:
    """Progress is for people."""


def test_what_was_promised_is_there_in_that_order() -> None:
    assert list(ABOUT) == list(EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ws_fanout", "sse_fanout", "post_one", "post_batch", "latency_ws", "ws_paced", "ws_stalled", "ws_conflate"]
)
def test_the_gateway_gives_every_figure(name: str, tmp_path: Path) -> None:
    results = run_gateway([name], TINY, address=None, folder=tmp_path, progress=nothing)
    assert name in results
    for found, result in results.items():
        assert result.keys() == EXPECTED[found]
        assert result["runs"] == (TINY.pairs if found in COMPARED else TINY.runs)
        assert all(value > 0 for field, value in result.items() if field not in NOT_ALWAYS)
        assert len(table_row(found, result)) == len(table_row("nothing", {}))
    assert list(tmp_path.iterdir()) == []
    json.dumps(document(describe(), results))


def test_every_field_can_be_combined_and_is_shown() -> None:
    for name, fields in EXPECTED.items():
        result = combine([dict.fromkeys(fields - {"runs"}, 0.875), dict.fromkeys(fields - {"runs"}, 0.875)])
        assert result.keys() == fields
        also = table_row(name, result)[-1]
        assert ("1 requests/s" in also) == ("requests_per_s" in fields)
        assert ("1 deliveries/s" in also) == ("deliveries_per_s" in fields)
        assert ("p50 0.88 ms, p99 0.88 ms" in also) == ("p50_ms" in fields)
        assert ("0.88 cores" in also) == ("gateway_cores" in fields)
        assert ("1 cut off" in also) == ("cut_off" in fields)
        assert ("0.9 a key, at most 1 in a second" in also) == ("updates_per_key_s_max" in fields)


# ---- clients


class Transport:
    """What a client has written, and whether it was cut."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.aborted = True


def text_frame(payload: bytes, first: int = 0x81) -> bytes:
    size = len(payload)
    if size < 126:
        return bytes([first, size]) + payload
    if size < 1 << 16:
        return bytes([first, 126]) + size.to_bytes(2, "big") + payload
    return bytes([first, 127]) + size.to_bytes(8, "big") + payload


def records_frame(first: int, count: int, size: int = 100) -> bytes:
    records = [{"partition": 0, "offset": str(7 + n), "value": json.loads(event(n, size))} for n in _of(first, count)]
    text = json.dumps({"type": "records", "id": "b", "records": records, "cursor": "c1"}, separators=(",", ":"))
    return text.encode()


def records_event(number: int, size: int = 100) -> bytes:
    record = {"partition": 0, "offset": str(7 + number), "value": json.loads(event(number, size))}
    return b"id: c1\ndata: %b\n\n" % json.dumps(record, separators=(",", ":")).encode()


def _of(first: int, count: int) -> range:
    return range(first, first + count)


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(at)]


def listening(client: Listener) -> Transport:
    client.sampled = True
    transport = Transport()
    client.connection_made(transport)
    return transport


@given(
    st.lists(st.sampled_from([(1, 80), (1, 300), (3, 100), (1, 70_000)]), max_size=6),
    st.lists(st.integers(0, 200_000), max_size=12),
)
async def test_a_websocket_client_counts_whatever_the_pieces(shapes: list[tuple[int, int]], cuts: list[int]) -> None:
    tally = Tally(ages=True)
    client = WebSocketClient(tally, "h", "/ws", b"{}")
    transport = listening(client)
    frames, sent = [], 0
    for count, size in shapes:
        frames.append(records_frame(sent, count, size))
        sent += count
    said = [text_frame(b'{"type":"subscribed"}'), *map(text_frame, frames), text_frame(b"hey", 0x89)]
    stream = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n" + b"".join(said)
    for piece in pieces(stream, cuts):
        client.data_received(piece)
    assert client.begun.done() and not client.ended
    assert (client.records, tally.records, tally.deliveries) == (sent, sent, len(frames))
    assert client.stored == frames
    check_frames(client.stored, sent)
    assert transport.written[1:] == [masked(0x81, b"{}"), masked(0x8A, b"hey")]


@given(st.integers(0, 8), st.lists(st.integers(0, 3_000), max_size=12), st.booleans())
async def test_an_events_client_counts_whatever_the_pieces(count: int, cuts: list[int], chunked: bool) -> None:
    tally = Tally()
    client = EventsClient(tally, "h", "/events")
    listening(client)
    events = [records_event(number) for number in range(count)]
    body = [b'event: subscribed\ndata: {"type":"subscribed"}\n\n', *events, b": still here\n\n"]
    if chunked:
        body = [b"%x\r\n%b\r\n" % (len(part), part) for part in body]
    for piece in pieces(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + b"".join(body), cuts):
        client.data_received(piece)
    assert client.begun.done() and not client.ended
    assert (client.records, tally.records, tally.deliveries) == (count, count, count)
    assert [plain_event(one) for one in client.stored] == events
    check_events(client.stored, count)


async def test_a_refusal_reaches_who_waits() -> None:
    client = WebSocketClient(Tally(), "h", "/ws", b"{}")
    transport = listening(client)
    client.data_received(b"HTTP/1.1 403 Forbidden\r\n\r\nno")
    assert transport.aborted
    with pytest.raises(Refused, match="403"):
        await client.begun

    tally = Tally()
    client = WebSocketClient(tally, "h", "/ws", b"{}")
    listening(client)
    client.data_received(b"HTTP/1.1 101 OK\r\n\r\n" + text_frame(b"subscribed"))
    waiting = asyncio.ensure_future(tally.reach(1))
    await asyncio.sleep(0)
    client.data_received(text_frame((1013).to_bytes(2, "big") + b"full", 0x88))
    with pytest.raises(Refused, match="close 1013 full"):
        await waiting


async def test_a_goal_is_reached_with_the_last_record() -> None:
    tally = Tally()
    client = WebSocketClient(tally, "h", "/ws", b"{}")
    listening(client)
    client.data_received(b"HTTP/1.1 101 OK\r\n\r\n" + text_frame(records_frame(0, 1)))
    waiting, sooner = (asyncio.ensure_future(tally.reach(records)) for records in (3, 2))
    await asyncio.sleep(0)
    assert not sooner.done()
    client.data_received(text_frame(records_frame(1, 1)))
    await sooner
    assert not waiting.done()
    client.data_received(text_frame(records_frame(2, 1)))
    await waiting
    await tally.reach(3)


@given(st.lists(st.integers(0, 400), max_size=8))
async def test_a_poster_sends_the_next_when_the_answer_is_complete(cuts: list[int]) -> None:
    answers = Answers()
    answers.counting = True
    poster = Poster(answers, [b"one", b"two"])
    transport = Transport()
    poster.connection_made(transport)
    poster.begin()
    answer = b"HTTP/1.1 200 OK\r\nDate: x\r\nContent-Length: 9\r\n\r\n123456789"
    for number in range(1, 4):
        for piece in pieces(answer, cuts):
            poster.data_received(piece)
        assert answers.count == number and answers.last == b"123456789"
        assert transport.written == [b"one", b"two", b"one", b"two"][: number + 1]
    poster.data_received(b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\n{}")
    with pytest.raises(Refused, match="503"):
        await answers.failed


# ---- loads


class Told(Link):
    """Orders that are there before anybody waits for them."""

    def __init__(self) -> None:
        """Without a command that would give them."""

    async def next_order(self, **state: Any) -> dict[str, Any]:
        return {}


async def test_a_server_that_stands_still_for_a_whole_run_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    free, turns, wait = asyncio.Event(), itertools.count(1), load._run_for

    async def waited(_: float, answers: Answers) -> None:
        if next(turns) > 2:  # behind what is to warm it up, and behind the run itself
            free.set()
        await wait(0.0, answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.rpartition(b":")[2]))
                await free.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    monkeypatch.setattr(load, "_run_for", waited)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        config = {"host": host, "port": port, "path": "/", "records": 1, "record_bytes": 60}
        done = await load.posters(Told(), config | {"seconds": 0.0, "connections": 2})
    assert done["answered"] > 0 and done["answer"] == "{}"


async def test_last_values_that_are_late_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["2 of 10", "1 of 10", ""]

    class Late(Conflated):
        def wrong(self, clients: Sequence[Listener]) -> str:
            return said.pop(0)

        def updates_per_key(self) -> dict[str, float]:
            return {}

    monkeypatch.setattr(load, "Conflated", Late)
    config = {"host": "h", "port": 1, "records": 10, "symbols": HOT_SYMBOLS + 2, "clients": 0, "kind": "ws"}
    done = await load.conflated(Told(), config | {"settle_s": 0.0})
    assert done == {"deliveries_per_s": 0, "records_per_s": 0} and not said


# ---- checks


@pytest.mark.parametrize(
    "frames",
    [
        [records_frame(0, 2)],
        [records_frame(0, 1), records_frame(2, 2)],
        [records_frame(0, 2), records_frame(1, 2)],
        [records_frame(0, 3).replace(b'"cursor":"c1"', b'"cursor":""')],
        [records_frame(0, 3).replace(b'"00000001"', b'"00000002"')],
    ],
    ids=["too few", "a hole", "twice", "no cursor", "another value"],
)
def test_wrong_frames_are_noticed(frames: list[bytes]) -> None:
    check_frames([records_frame(0, 1), records_frame(1, 2)], 3)
    with pytest.raises(Wrong):
        check_frames(frames, 3)


def test_wrong_events_are_noticed() -> None:
    events = [records_event(number) for number in range(3)]
    check_events(events, 3)
    for wrong in (events[:2], [events[0], *events], [events[0], events[2]], [events[0].replace(b"id: c1\n", b"")]):
        with pytest.raises(Wrong):
            check_events(wrong, 3)


@pytest.mark.parametrize("due", [None, 123_456_789])
def test_an_event_has_its_size_and_no_mark(due: int | None) -> None:
    value = event(42, 150, due)
    assert len(value) == 150 and MARK not in value
    assert json.loads(value)["n"] == "00000042"
    assert json.loads(value).get("due") == due


async def test_a_last_value_that_is_not_the_latest_is_noticed() -> None:
    tally = Conflated(records=6, symbols=HOT_SYMBOLS + 2)
    clients = [WebSocketClient(tally, "h", "/ws", b"{}") for _ in range(2)]
    listening(clients[0])

    def latest(*numbers: int) -> bytes:
        records: list[Any] = [
            {
                "offset": str(number),
                "key": f"S{hot_symbol(number, HOT_SYMBOLS + 2):05}",
                "value": json.loads(event(number, 80)),
            }
            for number in numbers
        ]
        text = json.dumps({"type": "latest", "records": records, "cursor": "c1", "conflated": 0}, separators=(",", ":"))
        return text.encode()

    for client in clients:
        client.data_received = None  # type: ignore[assignment,method-assign] # frames are taken by hand
    first = latest(0, 1, 2, 3, 5)  # the symbol of 0 is also that of 4
    tally.take(clients[0], first, 0, len(first))
    tally.take(clients[1], first, 0, len(first))
    assert tally.wrong(clients) == "2 of 10"
    rest = latest(4)
    tally.take(clients[0], rest, 0, len(rest))
    assert tally.wrong(clients) == "1 of 10"
    tally.take(clients[1], rest, 0, len(rest))
    assert not tally.wrong(clients)
    assert tally.updates_per_key() == {"updates_per_key_s": 1, "updates_per_key_s_max": 2}
    assert tally.records == 12


@given(st.lists(st.integers(0, 600).map(lambda n: n / 1024), min_size=1, max_size=30))  # their sums are exact
def test_the_pace_is_that_of_the_busiest_second(gaps: list[float]) -> None:
    pace, times, now = Pace(), [], 0.0
    for gap in gaps:
        now += gap
        times.append(now)
        pace.take(now, {"k": "v"})
    assert pace.most == max(sum(1 for time in times if at - 1 < time <= at) for at in times)


def test_updates_are_of_a_few_hot_symbols_and_of_all() -> None:
    symbols = 1_000
    chosen = [hot_symbol(number, symbols) for number in range(2 * symbols)]
    assert set(chosen) == set(range(symbols))
    assert sum(symbol < HOT_SYMBOLS for symbol in chosen) == symbols
