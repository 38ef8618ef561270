"""Bodies of requests: whole or by lines, packed or not, within their limits, however they are cut on their way."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from comet_gateway.config import MIB, Limits
from comet_gateway.http import incoming_body, request_body
from comet_gateway.http.auth import ANONYMOUS, Principal, Role
from comet_gateway.http.incoming_body import IncomingBody
from comet_gateway.http.problems import Problem
from comet_gateway.http.shares import Holder
from comet_gateway.http.traffic import Traffic

PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstandard.compress}
SMALL = Limits(body_bytes_max=1000, unpacked_bytes_max=5000, line_bytes_max=100)
ANN = Holder("ann", "192.0.2.1", is_admin=False)


def coming(chunks: Sequence[bytes], *, breaks_off: bool = False) -> Receive:
    """What a server gives: the chunks, and then nothing more, or the news that the client is gone."""
    messages: Iterator[Message] = iter(
        [
            *({"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks),
            {"type": "http.disconnect"} if breaks_off else {"type": "http.request", "body": b""},
        ]
    )

    async def receive() -> Message:
        return next(messages)

    return receive


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


def arriving(
    receive: Receive,
    limits: Limits,
    traffic: Traffic | None = None,
    *,
    sender: Holder = ANN,
    kind: str = request_body.JSON,
) -> IncomingBody:
    scope: Scope = {
        "comet.headers": {b"content-type": kind.encode(), b"content-length": b"9"},  # too small to be counted
        "comet.principal": ANONYMOUS if sender.anonymous else Principal(sender.name, Role.OPERATOR),
        "client": (sender.name if sender.anonymous else "192.0.2.9", 5),
    }
    return IncomingBody(scope, receive, traffic or Traffic(limits), limits, document=False)


async def whole(receive: Receive, headers: Mapping[bytes, bytes], limits: Limits) -> bytes:
    return await request_body.read(arriving(receive, limits), headers, limits)


def encoded(encoding: str) -> Mapping[bytes, bytes]:
    return {b"content-encoding": encoding.encode()}


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


async def lines_of(
    chunks: Sequence[bytes], limits: Limits = SMALL, headers: Mapping[bytes, bytes] | None = None
) -> list[tuple[int, bytes | None]]:
    """Number and text of each line; None for one that was too long."""
    found: list[tuple[int, bytes | None]] = []
    async for run in request_body.read_lines(arriving(coming(chunks), limits), headers or {}, limits):
        if isinstance(run, request_body.Line):
            found.append((run.number, None))
        else:
            found.extend(run.split())
    return found


async def problem_of(reading: object) -> Problem:
    with pytest.raises(Problem) as caught:
        await reading  # type: ignore[misc]
    return caught.value


# ---- whole


@given(st.binary(max_size=300), st.integers(1, 50))
async def test_a_body_is_what_was_sent(data: bytes, size: int) -> None:
    assert await whole(coming(pieces(data, size)), {}, SMALL) == data


@pytest.mark.parametrize("encoding", PACKERS)
@given(st.binary(max_size=3000), st.integers(1, 50))
async def test_a_packed_body_is_what_was_packed(encoding: str, data: bytes, size: int) -> None:
    packed = PACKERS[encoding](data)
    limits = replace(SMALL, body_bytes_max=10_000)
    assert await whole(coming(pieces(packed, size)), encoded(encoding), limits) == data


@pytest.mark.parametrize("encoding", PACKERS)
async def test_several_packed_parts_follow_each_other(encoding: str) -> None:
    packed = b"".join(PACKERS[encoding](part) for part in (b"one ", b"", b"two"))
    for size in (1, 7, 1000):
        assert await whole(coming(pieces(packed, size)), encoded(encoding), SMALL) == b"one two"


async def test_a_body_has_a_limit() -> None:
    assert len(await whole(coming([bytes(500), bytes(500)]), {}, SMALL)) == 1000
    problem = await problem_of(whole(coming([bytes(500), bytes(501)]), {}, SMALL))
    assert (problem.code, problem.kind.status, problem.more) == ("BODY_TOO_LARGE", 413, {"body_bytes_max": "1000"})


async def test_a_body_that_says_that_it_is_too_large_is_not_read() -> None:
    problem = await problem_of(whole(never, {b"content-length": b"1001"}, SMALL))
    assert problem.code == "BODY_TOO_LARGE"


@pytest.mark.parametrize("encoding", PACKERS)
async def test_a_bomb_is_noticed_before_it_goes_off(encoding: str) -> None:
    packed = PACKERS[encoding](bytes(200 * MIB))
    assert len(packed) < MIB
    limits = Limits(unpacked_bytes_max=2 * MIB)
    tracemalloc.start()
    try:
        for size in (100, len(packed)):
            problem = await problem_of(whole(coming(pieces(packed, size)), encoded(encoding), limits))
            assert (problem.code, problem.more) == ("BODY_TOO_LARGE", {"unpacked_bytes_max": str(2 * MIB)})
        assert tracemalloc.get_traced_memory()[1] < 24 * MIB
    finally:
        tracemalloc.stop()


async def test_a_frame_with_a_window_that_is_too_large_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    maker = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = maker.compress(bytes(100)) + maker.flush()
    problem = await problem_of(whole(coming([packed]), encoded("zstd"), SMALL))
    assert problem.code == "MALFORMED_BODY"


@pytest.mark.parametrize("encoding", PACKERS)
async def test_what_is_not_packed_as_it_says_is_malformed(encoding: str) -> None:
    packed = PACKERS[encoding](b"x" * 100)
    damaged = bytearray(PACKERS[encoding](bytes(range(256))))
    damaged[len(damaged) // 2] ^= 0x55
    for data in (b'{"value":1}', packed[:-1], packed + b"junk", b"", bytes(damaged[:-8])):
        problem = await problem_of(whole(coming([data]), encoded(encoding), SMALL))
        assert (problem.code, problem.kind.status) == ("MALFORMED_BODY", 400), data


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "zstd;q=1", "é"])
async def test_another_encoding_is_refused(encoding: str) -> None:
    problem = await problem_of(whole(never, encoded(encoding), SMALL))
    assert problem.kind.status == 415


@pytest.mark.parametrize("encoding", ["", "identity", "GZIP", " x-gzip "])
async def test_encodings_are_named_as_one_likes(encoding: str) -> None:
    data = gzip.compress(b"1") if "zip" in encoding.lower() else b"1"
    assert await whole(coming([data]), encoded(encoding), SMALL) == b"1"


async def test_half_a_body_is_none() -> None:
    with pytest.raises(ClientDisconnect):
        await whole(coming([b'{"value":1}'], breaks_off=True), {}, SMALL)


async def test_a_body_that_stalls_is_given_up() -> None:
    problem = await problem_of(whole(never, {}, replace(SMALL, idle_s=0.01)))
    assert (problem.code, problem.kind.status) == ("BODY_STALLED", 408)


@pytest.mark.parametrize("encoding", PACKERS)
async def test_an_unpacked_body_is_counted_while_it_is_held(encoding: str) -> None:
    packed = PACKERS[encoding](bytes(4 * MIB))
    limits = Limits(request_bytes_max=10 * MIB)
    traffic = Traffic(limits)
    bodies = [arriving(coming([packed]), limits, traffic) for _ in range(3)]
    for number in (1, 2):
        assert len(await request_body.read(bodies[number], encoded(encoding), limits)) == 4 * MIB
        assert traffic.body_bytes == number * 4 * MIB
    problem = await problem_of(request_body.read(bodies[0], encoded(encoding), limits))
    assert (problem.code, problem.kind.status, problem.retry_after_s) == ("OVERLOADED", 503, 1)
    for body in bodies:
        body.close()
    assert traffic.body_bytes == 0
    assert traffic.turned_away == {"bytes": 1}


@pytest.mark.parametrize("encoding", PACKERS)
async def test_an_unpacked_piece_of_lines_is_counted_while_it_is_cut(encoding: str) -> None:
    packed = PACKERS[encoding](b"1\n" * (2 * MIB))
    traffic = Traffic(Limits())
    runs = request_body.read_lines(arriving(coming([packed]), Limits(), traffic), encoded(encoding), Limits())
    assert min([traffic.body_bytes async for _ in runs]) > 0
    assert traffic.body_bytes == 0


# ---- in time


@pytest.fixture
def feed() -> tuple[asyncio.Queue[Message], Receive]:
    """A client: what is put is what comes."""
    queue: asyncio.Queue[Message] = asyncio.Queue()
    return queue, queue.get


def part(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


Feed = tuple[asyncio.Queue[Message], Receive]


async def test_a_body_that_drips_is_given_up(feed: Feed) -> None:
    queue, receive = feed
    limits = Limits(body_grace_s=0.2, body_rate_min=1000)
    dripping = asyncio.get_running_loop()

    def drip() -> None:
        queue.put_nowait(part(b"x"))
        timer.append(dripping.call_later(0.02, drip))

    timer = [dripping.call_soon(drip)]
    began = dripping.time()
    async with asyncio.timeout(60):
        problem = await problem_of(request_body.read(arriving(receive, limits), {}, limits))
    timer[-1].cancel()
    assert (problem.code, problem.kind.status) == ("BODY_STALLED", 408)
    assert dripping.time() - began >= 0.2


async def test_a_large_body_has_time_for_its_bytes(feed: Feed) -> None:
    queue, receive = feed
    limits = Limits(body_grace_s=0.01, body_rate_min=1000, idle_s=0.5)
    body = arriving(receive, limits)
    queue.put_nowait(part(bytes(100_000)))
    assert len((await body.receive())["body"]) == 100_000
    waiting = asyncio.create_task(body.receive())  # 100 seconds, were it not for the silence
    await asyncio.wait([waiting], timeout=0.1)
    assert not waiting.done()
    assert (await problem_of(waiting)).code == "BODY_STALLED"


async def test_a_streamed_body_may_be_slow(feed: Feed) -> None:
    queue, receive = feed
    limits = Limits(body_grace_s=0.01, idle_s=60)
    body = arriving(receive, limits, kind=request_body.NDJSON)
    waiting = asyncio.create_task(body.receive())
    await asyncio.wait([waiting], timeout=0.1)
    queue.put_nowait(part(b"x"))
    assert (await waiting)["body"] == b"x"


async def test_a_process_that_was_paused_does_not_blame_the_client(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, receive = feed
    monkeypatch.setattr(incoming_body, "LATE_S", -1.0)  # every timer counts as late
    body = arriving(receive, Limits(body_grace_s=0.01))
    waiting = asyncio.create_task(body.receive())
    await asyncio.wait([waiting], timeout=0.1)
    queue.put_nowait(part(b"x"))
    assert (await waiting)["body"] == b"x"


# ---- places


async def test_a_body_that_is_there_takes_no_place() -> None:
    limits = Limits(bodies_max=1)
    traffic = Traffic(limits)
    traffic.await_body(ANN)
    assert await request_body.read(arriving(coming([b"1", b"2"]), limits, traffic), {}, limits) == b"12"


async def test_a_body_that_is_waited_for_takes_a_place_in_place_of_its_request(feed: Feed) -> None:
    queue, receive = feed
    traffic = Traffic(Limits())
    traffic.begin()
    body = arriving(receive, Limits(), traffic)
    for message in (part(b"x"), part(b"y", more=False)):
        waiting = asyncio.create_task(body.receive())
        await asyncio.sleep(0)
        assert (traffic.requests, traffic.bodies) == (0, 1)
        queue.put_nowait(message)
        assert await waiting == message
    assert (traffic.requests, traffic.bodies) == (1, 0)
    body.close()
    assert (traffic.requests, traffic.bodies) == (1, 0)


async def test_a_request_that_ends_before_its_body_gives_its_place_back(feed: Feed) -> None:
    traffic = Traffic(Limits())
    traffic.begin()
    body = arriving(feed[1], replace(Limits(), body_grace_s=0.01), traffic)
    assert (await problem_of(body.receive())).code == "BODY_STALLED"
    assert (traffic.requests, traffic.bodies) == (0, 1)
    body.close()
    assert (traffic.requests, traffic.bodies) == (1, 0)


@pytest.mark.parametrize(
    ("sender", "share", "code"),
    [
        (ANN, 75, "TOO_MANY_REQUESTS"),
        (Holder("192.0.2.1", "192.0.2.1", is_admin=False, anonymous=True), 13, "TOO_MANY_REQUESTS"),
        (None, 25, "OVERLOADED"),  # another address each time
    ],
)
async def test_a_sender_has_a_share_of_the_places(sender: Holder | None, share: int, code: str) -> None:
    limits = Limits(bodies_max=100)
    traffic = Traffic(limits)

    def place(number: int) -> IncomingBody:
        own = sender or Holder(f"192.0.2.{number}", f"192.0.2.{number}", is_admin=False, anonymous=True)
        return arriving(never, limits, traffic, sender=own)

    bodies = [place(number) for number in range(share)]
    waiting = [asyncio.create_task(body.receive()) for body in bodies]
    await asyncio.sleep(0)
    assert traffic.bodies == share
    problem = await problem_of(place(share).receive())
    assert problem.code == code
    other = asyncio.create_task(arriving(never, limits, traffic, sender=ANN._replace(name="bob")).receive())
    await asyncio.sleep(0)
    assert traffic.bodies == share + 1
    for task in (*waiting, other):
        task.cancel()
    await asyncio.gather(*waiting, other, return_exceptions=True)


# ---- by lines


def expected(data: bytes, longest: int) -> list[tuple[int, bytes | None]]:
    """The dumb way."""
    found: list[tuple[int, bytes | None]] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if len(line) > longest:
            found.append((number, None))
        elif line.strip():
            found.append((number, line))
    return found


@settings(max_examples=300)
@given(
    st.lists(st.binary(max_size=6).map(lambda part: part.replace(b"z", b"\n")) | st.just(b"\n") | st.just(b"x" * 9)),
    st.integers(1, 20),
)
async def test_lines_are_cut_where_they_end(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)
    limits = replace(SMALL, line_bytes_max=12)
    # A line break may or may not count into the length of its line, so lines of just that length are left out.
    if all(len(line) not in (12, 13) for line in data.split(b"\n")):
        assert await lines_of(pieces(data, size), limits) == expected(data, 12)


async def test_a_line_that_is_too_long_takes_no_memory_and_the_next_one_counts() -> None:
    chunks = [b"1\n", *[bytes(1000) for _ in range(100)], b"\n3\n" + b"y" * 200 + b"\n5"]
    assert await lines_of(chunks) == [(1, b"1"), (2, None), (3, b"3"), (4, None), (5, b"5")]


async def test_a_line_that_is_begun_is_counted_while_it_is_held() -> None:
    limits = replace(SMALL, request_bytes_max=150)
    traffic = Traffic(limits)
    chunks = coming([b"1\n" + b"a" * 90, b"a\n", b"b" * 90])
    begun = request_body.read_lines(arriving(chunks, limits, traffic), {}, limits)
    assert [traffic.body_bytes async for _ in begun] == [0, 90, 90]
    assert traffic.body_bytes == 0
    traffic.hold(100)
    chunks = coming([b"1\n" + b"a" * 90, b"a\n"])
    refused = request_body.read_lines(arriving(chunks, limits, traffic), {}, limits)
    assert await anext(refused) == request_body.BodyLines(1, b"1\n")
    with pytest.raises(Problem, match="near the limit"):
        await anext(refused)
    assert traffic.body_bytes == 100


async def test_lines_have_no_limit_together() -> None:
    data = b'{"value":1}\n' * 10_000
    assert len(await lines_of(pieces(data, 777))) == 10_000


@pytest.mark.parametrize("encoding", PACKERS)
async def test_lines_come_packed_too(encoding: str) -> None:
    data = b"".join(b'{"value":%d}\n' % number for number in range(1000))
    found = await lines_of(pieces(PACKERS[encoding](data), 100), Limits(), encoded(encoding))
    assert found == [(number + 1, b'{"value":%d}' % number) for number in range(1000)]


@pytest.mark.parametrize("encoding", PACKERS)
async def test_lines_stay_in_proportion_to_what_came(encoding: str) -> None:
    packed = PACKERS[encoding](b"\n" * (20 * MIB))
    with pytest.raises(Problem) as caught:
        await lines_of(pieces(packed, 1000), Limits(unpacked_bytes_max=MIB), encoded(encoding))
    assert caught.value.code == "BODY_TOO_LARGE"


async def test_a_stream_that_was_cut_off_gives_what_came_whole() -> None:
    packed = zlib.compress(b"1\n" * 1000, wbits=31)
    lines = request_body.read_lines(arriving(coming([packed[:-9]]), Limits()), encoded("gzip"), Limits())
    first = await anext(lines)
    assert isinstance(first, request_body.BodyLines)
    assert first.data.startswith(b"1\n1\n")
    assert (await problem_of(anext(lines))).code == "MALFORMED_BODY"


# ---- types


@pytest.mark.parametrize(
    "stated", ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"']
)
def test_a_type_may_be_spelled_in_several_ways(stated: str) -> None:
    assert (
        request_body.media_type({b"content-type": stated.encode()}, request_body.JSON, request_body.NDJSON)
        == request_body.JSON
    )


@pytest.mark.parametrize(
    "stated", ["", "text/plain", "application/json; charset=latin-1", "application/x-www-form-urlencoded", "é"]
)
def test_another_type_is_refused(stated: str) -> None:
    with pytest.raises(Problem) as caught:
        request_body.media_type({b"content-type": stated.encode()}, request_body.JSON, request_body.NDJSON)
    assert caught.value.kind.status == 415
