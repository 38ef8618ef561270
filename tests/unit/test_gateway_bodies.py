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
from starlette.types import Message, Receive

from comet_gateway.config import MIB, Limits
from comet_gateway.http import request_body
from comet_gateway.http.problems import Problem
from comet_gateway.http.traffic import Traffic

PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstandard.compress}
SMALL = Limits(body_bytes_max=1000, unpacked_bytes_max=5000, line_bytes_max=100)


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


def encoded(encoding: str) -> Mapping[bytes, bytes]:
    return {b"content-encoding": encoding.encode()}


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


async def lines_of(
    chunks: Sequence[bytes], limits: Limits = SMALL, headers: Mapping[bytes, bytes] | None = None
) -> list[tuple[int, bytes | None]]:
    """Number and text of each line; None for one that was too long."""
    found: list[tuple[int, bytes | None]] = []
    async for run in request_body.read_lines(coming(chunks), headers or {}, limits, Traffic(limits)):
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
    assert await request_body.read(coming(pieces(data, size)), {}, SMALL) == data


@pytest.mark.parametrize("encoding", PACKERS)
@given(st.binary(max_size=3000), st.integers(1, 50))
async def test_a_packed_body_is_what_was_packed(encoding: str, data: bytes, size: int) -> None:
    packed = PACKERS[encoding](data)
    limits = replace(SMALL, body_bytes_max=10_000)
    assert await request_body.read(coming(pieces(packed, size)), encoded(encoding), limits) == data


@pytest.mark.parametrize("encoding", PACKERS)
async def test_several_packed_parts_follow_each_other(encoding: str) -> None:
    packed = b"".join(PACKERS[encoding](part) for part in (b"one ", b"", b"two"))
    for size in (1, 7, 1000):
        assert await request_body.read(coming(pieces(packed, size)), encoded(encoding), SMALL) == b"one two"


async def test_a_body_has_a_limit() -> None:
    assert len(await request_body.read(coming([bytes(500), bytes(500)]), {}, SMALL)) == 1000
    problem = await problem_of(request_body.read(coming([bytes(500), bytes(501)]), {}, SMALL))
    assert (problem.code, problem.kind.status, problem.more) == ("BODY_TOO_LARGE", 413, {"body_bytes_max": "1000"})


async def test_a_body_that_says_that_it_is_too_large_is_not_read() -> None:
    problem = await problem_of(request_body.read(never, {b"content-length": b"1001"}, SMALL))
    assert problem.code == "BODY_TOO_LARGE"


@pytest.mark.parametrize("encoding", PACKERS)
async def test_a_bomb_is_noticed_before_it_goes_off(encoding: str) -> None:
    packed = PACKERS[encoding](bytes(200 * MIB))
    assert len(packed) < MIB
    limits = Limits(unpacked_bytes_max=2 * MIB)
    tracemalloc.start()
    try:
        for size in (100, len(packed)):
            problem = await problem_of(request_body.read(coming(pieces(packed, size)), encoded(encoding), limits))
            assert (problem.code, problem.more) == ("BODY_TOO_LARGE", {"unpacked_bytes_max": str(2 * MIB)})
        assert tracemalloc.get_traced_memory()[1] < 24 * MIB
    finally:
        tracemalloc.stop()


async def test_a_frame_with_a_window_that_is_too_large_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    maker = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = maker.compress(bytes(100)) + maker.flush()
    problem = await problem_of(request_body.read(coming([packed]), encoded("zstd"), SMALL))
    assert problem.code == "MALFORMED_BODY"


@pytest.mark.parametrize("encoding", PACKERS)
async def test_what_is_not_packed_as_it_says_is_malformed(encoding: str) -> None:
    packed = PACKERS[encoding](b"x" * 100)
    damaged = bytearray(PACKERS[encoding](bytes(range(256))))
    damaged[len(damaged) // 2] ^= 0x55
    for data in (b'{"value":1}', packed[:-1], packed + b"junk", b"", bytes(damaged[:-8])):
        problem = await problem_of(request_body.read(coming([data]), encoded(encoding), SMALL))
        assert (problem.code, problem.kind.status) == ("MALFORMED_BODY", 400), data


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "zstd;q=1", "é"])
async def test_another_encoding_is_refused(encoding: str) -> None:
    problem = await problem_of(request_body.read(never, encoded(encoding), SMALL))
    assert problem.kind.status == 415


@pytest.mark.parametrize("encoding", ["", "identity", "GZIP", " x-gzip "])
async def test_encodings_are_named_as_one_likes(encoding: str) -> None:
    data = gzip.compress(b"1") if "zip" in encoding.lower() else b"1"
    assert await request_body.read(coming([data]), encoded(encoding), SMALL) == b"1"


async def test_half_a_body_is_none() -> None:
    with pytest.raises(ClientDisconnect):
        await request_body.read(coming([b'{"value":1}'], breaks_off=True), {}, SMALL)


async def test_a_body_that_stalls_is_given_up() -> None:
    problem = await problem_of(request_body.read(never, {}, replace(SMALL, idle_s=0.01)))
    assert (problem.code, problem.kind.status) == ("BODY_STALLED", 408)


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
    begun = request_body.read_lines(coming([b"1\n" + b"a" * 90, b"a\n", b"b" * 90]), {}, limits, traffic)
    assert [traffic.body_bytes async for _ in begun] == [0, 90, 90]
    assert traffic.body_bytes == 0
    traffic.hold(100)
    refused = request_body.read_lines(coming([b"1\n" + b"a" * 90, b"a\n"]), {}, limits, traffic)
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
    lines = request_body.read_lines(coming([packed[:-9]]), encoded("gzip"), Limits(), Traffic(Limits()))
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
