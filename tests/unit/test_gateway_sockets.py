"""A WebSocket whose client has fallen silent, or only seems to have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from comet_gateway.http.uvicorn_websocket import SocketProtocol
from comet_gateway.push.close_codes import AGAIN

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[SocketProtocol, asyncio.StreamReader]]:
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws=SocketProtocol, ws_ping_interval=60)
    config.load()
    loop = asyncio.get_running_loop()
    made: asyncio.Future[SocketProtocol] = loop.create_future()

    def make() -> SocketProtocol:
        made.set_result(SocketProtocol(config=config, server_state=ServerState(), app_state={}))
        return made.result()

    server = await loop.create_server(make, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        try:
            yield await made, reader
        finally:
            writer.close()
            await writer.wait_closed()


async def test_who_does_not_answer_a_ping_may_come_again() -> None:
    async with opened() as (one, reader):
        one.send_keepalive_ping()
        assert (await reader.readexactly(6))[:2] == b"\x89\x04"
        one.keepalive_timeout()
        async with asyncio.timeout(60):
            closed = await reader.read()
        assert closed[0] == 0x88
        assert int.from_bytes(closed[2:4], "big") in AGAIN


async def test_a_process_that_was_stopped_waits_for_answers_that_it_has_not_heard_yet() -> None:
    async with opened() as (one, _):
        one.send_keepalive_ping()
        assert one.pong_timer is not None
        one.pong_timer.cancel()
        one.pong_timer = one.loop.call_at(one.loop.time() - 60, lambda: None)  # its time came while nothing ran
        one.keepalive_timeout()
        assert not one.gone
        one.pong_timer.cancel()
        one.keepalive_timeout()
        assert one.gone, "it had its time"
