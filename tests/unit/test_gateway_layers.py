"""What a request goes through on its way in, and an answer on its way out: no more than is needed."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from comet_gateway import create_app
from comet_gateway.http.middleware import Front
from comet_gateway.http.uvicorn_http import Cork


class Transport:
    def __init__(self) -> None:
        self.told: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.told.append(data)

    def close(self) -> None:
        self.told.append("closed")


class Cycle:
    """uvicorn's, as far as is looked at."""

    def __init__(self, *, more_body: bool) -> None:
        self.more_body = more_body
        self.keep_alive = True


def corked(*, more_body: bool = False) -> tuple[Cork, list[bytes | str]]:
    transport = Transport()
    cork = Cork(
        cast(asyncio.WriteTransport, transport),
        asyncio.get_running_loop(),
        cast(RequestResponseCycle, Cycle(more_body=more_body)),
        lambda: transport.told.append("lingers"),
    )
    return cork, transport.told


async def test_head_and_body_leave_in_one_write_and_the_rest_as_it_comes() -> None:
    cork, told = corked()
    cork.write(b"head")
    assert told == []
    cork.write(b"-body")
    cork.write(b"-more")
    await asyncio.sleep(0)
    assert told == [b"head-body", b"-more"]


async def test_a_head_that_has_no_body_yet_leaves_with_the_next_turn() -> None:
    cork, told = corked()
    cork.write(b"head")
    await asyncio.sleep(0)
    assert told == [b"head"]
    cork.write(b"body")
    assert told == [b"head", b"body"]


async def test_a_head_without_a_body_leaves_before_the_end() -> None:
    cork, told = corked()
    cork.write(b"head")
    cork.close()
    await asyncio.sleep(0)
    assert told == [b"head", "closed"]


@pytest.mark.parametrize("more_body", [False, True])
async def test_a_complete_answer_before_the_end_of_the_body_closes_the_connection(more_body: bool) -> None:
    cork, told = corked(more_body=more_body)
    cork.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 4\r\n\r\n")
    cork.write(b"body")
    cork.close()
    close = b"connection: close\r\n" if more_body else b""
    head = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 4\r\n" + close + b"\r\n"
    assert told == [head + b"body", "lingers" if more_body else "closed"]


async def test_a_streamed_answer_may_go_on_after_the_end_of_the_body() -> None:
    cork, told = corked(more_body=True)
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    cork.write(head)
    await asyncio.sleep(0)
    assert told == [head]


class Outer:
    """Somebody else's layer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def test_ours_is_the_outermost_layer_but_for_those_of_whoever_embeds_us() -> None:
    assert isinstance(create_app().build_middleware_stack(), Front)
    app = create_app()
    app.add_middleware(Outer)
    stack: Any = app.build_middleware_stack()
    assert isinstance(stack, Outer) and isinstance(stack.app, Front)
