"""HTTP/1.1 as the gateway speaks it, byte by byte, with an application that says what it heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from comet_gateway.http.uvicorn_http import Protocol

HOST = b"Host: localhost\r\n"
OFFER = HOST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with what was asked for."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message.get("body", b""), message.get("more_body", False)
    said = f"{scope['method']} {scope['path']} ".encode() + body + b"\n"
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

    def make() -> Protocol:
        one = Protocol(config=config, server_state=state, app_state={})
        loop.call_soon(made.set_result, one)  # when it has its connection
        return one

    server = await loop.create_server(make, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield await made, reader, writer
        finally:
            writer.close()
            await writer.wait_closed()


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
