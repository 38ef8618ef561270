"""HTTP/1.1 as the gateway speaks it, byte by byte, with an application that says what it heard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from comet_gateway.http import uvicorn_http
from comet_gateway.http.uvicorn_http import Protocol

HOST = b"Host: localhost\r\n"
OFFER = HOST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with what was asked for."""
    if scope["path"] == "/refused":
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"3")]})
        await send({"type": "http.response.body", "body": b"no\n"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message.get("body", b""), message.get("more_body", False)
    said = f"{scope['method']} {scope['path']} ".encode() + body + b"\n"
    if scope["path"] == "/headers":
        said = b",".join(sorted(name for name, _ in scope["headers"])) + b"\n"
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(said)).encode())]}
    )
    await send({"type": "http.response.body", "body": said})


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[Protocol, asyncio.StreamReader, asyncio.StreamWriter]]:
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    config.load()
    state = uvicorn.server.ServerState()
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Protocol] = loop.create_future()
    over = asyncio.Event()

    class Ending(Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            over.set()

    def make() -> Protocol:
        one = Ending(config=config, server_state=state, app_state={})
        loop.call_soon(made.set_result, one)  # when it has its connection
        return one

    server = await loop.create_server(make, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield await made, reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            async with asyncio.timeout(60):
                await over.wait()


async def answer(reader: asyncio.StreamReader) -> str:
    async with asyncio.timeout(60):
        head = await reader.readuntil(b"\r\n\r\n")
        return f"{head.split()[1].decode()} {(await reader.readline()).decode().strip()}"


@pytest.mark.parametrize("apart", [False, True], ids=["in one piece", "in pieces"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_who_would_rather_speak_http2_is_answered_in_http1_and_keeps_his_body(apart: bool, chunked: bool) -> None:
    size = b"Transfer-Encoding: chunked\r\n" if chunked else b"Content-Length: 11\r\n"
    body = b'b\r\n{"value":1}\r\n0\r\n\r\n' if chunked else b'{"value":1}'
    pieces = [b"POST /a%20b HTTP/1.1\r\n" + OFFER + size + b"\r\n", body, b"GET /next HTTP/1.1\r\n" + HOST + b"\r\n"]
    async with connection() as (one, reader, _):
        for piece in pieces if apart else [b"".join(pieces)]:
            one.data_received(piece)
            await asyncio.sleep(0)
        assert await answer(reader) == '200 POST /a b {"value":1}'
        assert await answer(reader) == "200 GET /next"


async def test_a_proxy_it_is_not() -> None:
    async with connection() as (_, reader, writer):
        writer.write(b"CONNECT example.com:80 HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await answer(reader)).startswith("400")
        assert await reader.read() == b""


async def test_nonsense_is_nothing_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with connection() as (_, reader, writer):
        writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert (await answer(reader)).startswith("400")
    assert not caplog.records


async def test_a_process_that_was_stopped_does_not_blame_its_clients() -> None:
    async with connection() as (one, reader, _):
        one.data_received(b"GET /slow HTTP/1.1\r\n")
        assert one._check_timer is not None
        one._check_timer.cancel()
        # As if nothing had run for a minute: neither what is behind the head nor the look was heard of.
        one._heard -= 60
        one._check_timer = one.loop.call_at(one.loop.time() - 60, lambda: None)
        one._check_progress()
        one.data_received(HOST + b"\r\n")
        assert await answer(reader) == "200 GET /slow"


async def test_a_connection_beyond_the_limit_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connection() as (_, reader, writer):
        writer.write(b"GET /one HTTP/1.1\r\n" + HOST + b"\r\n")
        assert await answer(reader) == "200 GET /one"
    monkeypatch.setattr(Protocol, "open_max", 0)
    async with connection() as (one, reader, _):
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        assert one.transport.is_closing()
        assert one not in one.connections


# ---- what a body has beside its data


def chunked(path: bytes = b"/") -> bytes:
    return b"POST %b HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n" % (path, HOST)


def too_large(data: bytes) -> bool:
    """Whether it is the problem, and all of it."""
    head, _, body = data.partition(b"\r\n\r\n")
    fields = head.lower().split(b"\r\n")
    return (
        fields[0].startswith(b"http/1.1 431")
        and b"connection: close" in fields
        and b"content-type: application/problem+json" in fields
        and b"content-length: %d" % len(body) in fields
        and json.loads(body)["code"] == "HEADERS_TOO_LARGE"
    )


ENDLESS = {
    "fields": [b"2\r\nab\r\n0\r\n", *[b"x: %b\r\n" % (b"y" * 1000)] * 100],
    "one field": [b"2\r\nab\r\n0\r\nx: ", *[b"y" * 1000] * 100],
    "one name": [b"2\r\nab\r\n0\r\n", *[b"y" * 1000] * 100],
    "an extension of a chunk": [b"2;", *[b"y" * 1000] * 100],
    "in one read": [b"2\r\nab\r\n0\r\n" + b"x: %b\r\n" % (b"y" * 1000) * 100 + b"\r\n"],
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_what_a_body_has_beside_its_data_is_bounded(kind: str) -> None:
    async with connection() as (one, reader, _):
        one.data_received(chunked())
        for data in ENDLESS[kind]:
            one.data_received(data)
        async with asyncio.timeout(60):
            assert too_large(await reader.read())


async def test_trailers_are_taken_and_are_no_headers() -> None:
    trailers = b"Host: other\r\nAuthorization: Bearer x\r\n\r\n"
    async with connection() as (one, reader, _):
        for _ in range(2):
            one.data_received(chunked(b"/headers") + b"2\r\nab\r\n0\r\n" + trailers)
            assert await answer(reader) == "200 host,transfer-encoding"


async def test_a_body_of_small_chunks_is_no_trailer() -> None:
    async with connection() as (one, reader, _):
        one.data_received(chunked())
        for _ in range(200):
            one.data_received(b"1;x=%b\r\na\r\n" % (b"y" * 1000))
        one.data_received(b"0\r\n\r\n")
        assert await answer(reader) == "200 POST / " + "a" * 200


async def test_a_head_in_one_read_has_the_same_bound() -> None:
    async with connection() as (one, reader, _):
        one.data_received(b"GET / HTTP/1.1\r\n" + HOST + b"x: %b\r\n" % (b"y" * 1000) * 70 + b"\r\n")
        async with asyncio.timeout(60):
            assert too_large(await reader.read())


async def test_a_large_body_in_one_read_is_no_large_head() -> None:
    async with connection() as (one, reader, _):
        one.data_received(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000)
        async with asyncio.timeout(60):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_a_fault_of_the_next_request_leaves_the_answer_to_this_one() -> None:
    async with connection() as (one, reader, _):
        one.data_received(b"GET /first HTTP/1.1\r\n" + HOST + b"\r\nnonsense\r\n\r\n")
        assert await answer(reader) == "200 GET /first"
        async with asyncio.timeout(60):
            assert await reader.read() == b""


# ---- answers before the end of the body


@pytest.mark.parametrize("size", [b"Transfer-Encoding: chunked", b"Content-Length: 1000000"])
async def test_a_connection_ends_after_an_answer_that_did_not_wait_for_the_body(size: bytes) -> None:
    async with connection() as (one, reader, writer):
        writer.write(b"POST /refused HTTP/1.1\r\n" + HOST + size + b"\r\n\r\n")
        async with asyncio.timeout(60):
            data = await reader.read()
        assert data.startswith(b"HTTP/1.1 401")
        assert b"\r\nconnection: close\r\n" in data
        for _ in range(100):  # is dropped
            one.data_received(b"x" * 10_000)
        assert not one.cycle.body


async def test_a_client_that_still_sends_gets_its_answer() -> None:
    """A connection that is closed with unread data is reset, and what was sent with it."""
    async with connection() as (_, reader, writer):
        writer.write(b"POST /refused HTTP/1.1\r\n" + HOST + b"Content-Length: 100000000\r\n\r\n")
        async with asyncio.timeout(60):
            for _ in range(200):
                writer.write(bytes(50_000))
                await writer.drain()
            assert (await reader.read()).startswith(b"HTTP/1.1 401")


async def test_a_connection_stays_after_an_answer_if_the_body_has_arrived() -> None:
    async with connection() as (one, reader, _):
        one.data_received(b"POST /refused HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nab")
        assert await answer(reader) == "401 no"
        one.data_received(b"GET /next HTTP/1.1\r\n" + HOST + b"\r\n")
        assert await answer(reader) == "200 GET /next"


async def test_a_client_that_goes_on_sending_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_http, "LINGER_S", 0.05)
    async with connection() as (_, reader, writer):
        writer.write(b"POST /refused HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
        async with asyncio.timeout(60):
            assert (await reader.read()).startswith(b"HTTP/1.1 401")
            with suppress(ConnectionError):
                await flood(writer)


async def flood(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0)
