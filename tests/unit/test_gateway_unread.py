"""Who does not read what is sent: left alone for so long, and then cut off, whatever has become of the answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.http import uvicorn_http
from comet_gateway.http.slow_client import Unread
from comet_gateway.http.uvicorn_http import Protocol
from comet_gateway.http.uvicorn_websocket import SocketProtocol
from comet_gateway.server import Server

LARGE = b"x" * (4 << 20)  # more than the kernel takes


class Buffer:
    """A transport, as far as is looked at."""

    def __init__(self) -> None:
        self.waiting = 0

    def get_write_buffer_size(self) -> int:
        return self.waiting


def looks(unread: Unread, buffer: Buffer, *waiting: int) -> list[bool]:
    found = []
    for buffer.waiting in waiting:
        found.append(unread.too_long(buffer, 1.0))
    return found


def test_taking_nothing_is_allowed_for_so_long() -> None:
    assert looks(Unread(2.5), Buffer(), 9, 9, 9, 9, 9) == [False, False, False, True, True]


def test_nothing_that_waits_is_nothing_unread() -> None:
    assert not any(looks(Unread(2.5), Buffer(), *[0] * 10))


def test_who_takes_a_little_goes_on() -> None:
    assert looks(Unread(2.5), Buffer(), 9, 9, 8, 8, 8, 7, 7) == [False] * 7


def test_that_more_is_written_says_nothing_of_the_reader() -> None:
    assert looks(Unread(2.5), Buffer(), 9, 10, 11, 12) == [False, False, False, True]


def test_who_took_enough_for_more_to_be_written_goes_on() -> None:
    unread, buffer = Unread(2.5), Buffer()
    for _ in range(5):
        assert looks(unread, buffer, 9, 9) == [False, False]
        unread.went_on()


# ---- connections


async def _whole(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": LARGE})


async def _unfinished(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": LARGE, "more_body": True})


async def _endless(send: Send) -> None:
    await _unfinished(send)
    while True:
        await send({"type": "http.response.body", "body": b"data\n\n", "more_body": True})
        await asyncio.sleep(0)


Answer = Callable[[Send], Awaitable[None]]


class Cut(Protocol):
    """Says when it is over."""

    unread_s = 0.1

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.over = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.over.set()


@asynccontextmanager
async def connection(answer: Answer, kind: type[Cut] = Cut) -> AsyncIterator[tuple[Cut, socket.socket]]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def unless_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            task.cancel()

        task = asyncio.ensure_future(answer(send))
        watching = asyncio.ensure_future(unless_gone())
        await asyncio.wait([task])
        watching.cancel()

    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    config.load()
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Cut] = loop.create_future()

    def make() -> Cut:
        one = kind(config=config, server_state=ServerState(), app_state={})
        loop.call_soon(made.set_result, one)  # when it has its connection
        return one

    server = await loop.create_server(make, "127.0.0.1", 0)
    with socket.socket() as client:
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with server:
            await loop.sock_connect(client, server.sockets[0].getsockname())
            await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            yield await made, client
            client.close()  # the server waits for its connections from Python 3.12 on


@pytest.mark.parametrize("answer", [_whole, _unfinished, _endless])
async def test_a_connection_whose_answer_nobody_reads_is_cut(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_http, "CHECK_S", 0.01)
    async with connection(answer) as (one, _), asyncio.timeout(60):
        await one.over.wait()


async def test_what_the_kernel_takes_counts_even_where_more_is_written() -> None:
    async with connection(_endless) as (one, _):
        _goes_on(one)


def _goes_on(one: Cut | SocketProtocol) -> None:
    buffer = Buffer()
    buffer.waiting = 9
    assert not one._unread.too_long(buffer, one.unread_s)
    for _ in range(5):
        assert not one._unread.too_long(buffer, one.unread_s)
        one.resume_writing()


# ---- WebSockets


@pytest.fixture
async def websocket() -> AsyncIterator[tuple[SocketProtocol, socket.socket]]:
    """One that is open, as it is from `connection_made` on, with a client that reads nothing."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("nobody asked")

    class Short(SocketProtocol):
        unread_s = 0.1

    config = uvicorn.Config(app, log_config=None, lifespan="off", ws=Short, ws_ping_interval=0.01, ws_ping_timeout=0.01)
    config.load()
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Short] = loop.create_future()

    def make() -> Short:
        one = Short(config=config, server_state=ServerState(), app_state={})
        loop.call_soon(made.set_result, one)  # when it has its connection
        return one

    server = await loop.create_server(make, "127.0.0.1", 0)
    with socket.socket() as client:
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with server:
            await loop.sock_connect(client, server.sockets[0].getsockname())
            yield await made, client
            client.close()  # the server waits for its connections from Python 3.12 on


async def _gone(one: SocketProtocol) -> None:
    async with asyncio.timeout(60):
        assert (await one.queue.get())["type"] == "websocket.disconnect"


async def test_a_websocket_that_nobody_reads_is_cut_even_after_it_was_closed(
    websocket: tuple[SocketProtocol, socket.socket],
) -> None:
    one, _ = websocket
    one.transport.write(LARGE)
    one.transport.close()
    await _gone(one)


async def test_what_the_kernel_takes_of_a_websocket_counts(websocket: tuple[SocketProtocol, socket.socket]) -> None:
    _goes_on(websocket[0])


async def test_a_ping_behind_what_is_unread_is_waited_for(websocket: tuple[SocketProtocol, socket.socket]) -> None:
    one, _ = websocket
    one.transport.write(LARGE)
    one.pending_ping_payload = b"ping"
    one.keepalive_timeout()
    assert not one.close_sent and not one.transport.is_closing()
    assert one.pending_ping_payload == b"ping" and one.pong_timer is not None, "a pong is still one"
    await _gone(one)


def test_the_limit_is_that_of_all_connections() -> None:
    config = Server(GatewayConfig(limits=Limits(unread_s=7))).config
    assert [kind.unread_s for kind in (config.http_protocol_class, config.ws_protocol_class)] == [7, 7]  # type: ignore[union-attr]
