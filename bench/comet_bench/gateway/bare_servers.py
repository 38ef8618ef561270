"""The bare servers that a gateway is compared with. Prints its port.

    python -m comet_bench.gateway.bare_servers FRAMES

They run on uvicorn as the gateway does, with uvloop and httptools and no access log, and have only the measured parts.
FRAMES is a file with frames that a client has received from the gateway, or "-".

    GET  /ws           a WebSocket that gets every frame of a broadcast
    GET  /events       the same as server-sent events
    POST /broadcast    the loop: for each frame, to each connection, `await send`
    GET  /echo         a WebSocket that sends back what it gets
    POST /echo         answers with the body
    POST /fast         a FastAPI route that takes the request and parses its body, and answers with what one record gets
    POST /model        the same with the body declared as a pydantic model
"""

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, Final

HOST: Final = "127.0.0.1"
SUBSCRIBED: Final = '{"type":"subscribed"}'
RECEIPT: Final[dict[str, int | str]] = {"partition": 0, "offset": "12345", "timestamp_us": "1732212345678901"}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Broadcast:
    """The connections, and the loop over them. Lives as long as the process."""

    def __init__(self, frames: list[str]) -> None:
        self._texts = [{"type": "websocket.send", "text": frame} for frame in frames]
        self._chunks = [{"type": "http.response.body", "body": frame.encode(), "more_body": True} for frame in frames]
        self._sockets: set[Send] = set()
        self._streams: set[Send] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """The plainest loop; it waits only for a connection that cannot take more."""
        for messages, sends in ((self._texts, self._sockets), (self._chunks, self._streams)):
            everyone = list(sends)
            for message in messages if everyone else ():
                for send in everyone:
                    await send(message)

    async def socket(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()  # what would be a subscription
        await send({"type": "websocket.send", "text": SUBSCRIBED})
        await _while_connected(self._sockets, receive, send, "websocket.disconnect")

    async def stream(self, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        greeting = f"event: subscribed\ndata: {SUBSCRIBED}\n\n".encode()
        await send({"type": "http.response.body", "body": greeting, "more_body": True})
        await _while_connected(self._streams, receive, send, "http.disconnect")


async def _while_connected(sends: set[Send], receive: Receive, send: Send, over: str) -> None:
    sends.add(send)
    try:
        while (await receive())["type"] != over:
            pass
    finally:
        sends.discard(send)


async def _echo_socket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


async def _read(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _answer(send: Send, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _routes() -> Application:
    """The routes of a service without Comet. FastAPI reads their annotations, so this module does not postpone them."""
    import msgspec
    import pydantic
    from fastapi import FastAPI, Request, Response

    class Record(pydantic.BaseModel):
        value: Any
        key: str | None = None

    app = FastAPI(openapi_url=None)

    @app.post("/fast")
    async def fast(request: Request) -> Response:
        msgspec.json.decode(await request.body())
        return Response(msgspec.json.encode(RECEIPT), media_type="application/json")

    @app.post("/model")
    async def model(record: Record) -> dict[str, int | str]:
        assert record.value is not None
        return RECEIPT

    return app


def application(frames: list[str]) -> Application:
    broadcast, routes = Broadcast(frames), _routes()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await routes(scope, receive, send)
        elif scope["type"] == "websocket":
            await (broadcast.socket if scope["path"] == "/ws" else _echo_socket)(receive, send)
        elif scope["path"] == "/events":
            await broadcast.stream(receive, send)
        elif scope["path"] == "/broadcast":
            broadcast.start()
            await _answer(send, b"{}")
        elif scope["path"] == "/echo":
            await _answer(send, await _read(receive))
        else:
            await routes(scope, receive, send)

    return app


def main() -> None:
    import uvicorn

    name = sys.argv[1]
    frames = [] if name == "-" else json.loads(Path(name).read_text())
    config = uvicorn.Config(
        application(frames), host=HOST, port=0, loop="uvloop", http="httptools", log_level="warning", access_log=False,
        ws_ping_interval=None,
    )  # fmt: skip

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            gc.collect()
            gc.freeze()  # as the gateway does
            sys.stdout.write(f"{self.servers[0].sockets[0].getsockname()[1]}\n")
            sys.stdout.flush()

    Server(config).run()


if __name__ == "__main__":
    main()
