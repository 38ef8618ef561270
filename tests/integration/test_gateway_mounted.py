"""A gateway inside another application, under a path, served by another server's settings."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI
from websockets.asyncio.client import connect

import comet.testing
from comet_gateway import GatewayConfig, create_app


@asynccontextmanager
async def mounted() -> AsyncIterator[str]:
    """The address of the application, which has a gateway at /events."""
    with comet.testing.broker(["quotes"]) as broker, socket.create_server(("127.0.0.1", 0)) as listening:
        gateway = create_app(GatewayConfig(bootstrap=broker.address))
        started = asyncio.Event()

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            async with gateway.router.lifespan_context(gateway):
                started.set()
                yield

        app = FastAPI(lifespan=lifespan)
        app.mount("/events", gateway)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            async with asyncio.timeout(30):
                await started.wait()
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


async def test_a_mounted_gateway_works_as_one_alone_and_says_where_it_is() -> None:
    async with mounted() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=30) as client:
        assert (await client.get("/events/readyz")).json()["status"] == "ready"
        written = await client.post("/events/v1/topics/quotes/records", json={"value": 1})
        assert written.json() == {"results": [{"partition": 0, "offset": "0"}]}
        assert (await client.get("/v1/topics")).status_code == 404
        assert (await client.get("/events/nothing")).json()["code"] == "NOT_FOUND"

        async with connect(f"ws://{address}/events/v1/ws") as connection:
            assert json.loads(await connection.recv())["type"] == "welcome"
            await connection.send('{"type":"subscribe","id":"a","topics":["quotes"],"start":"earliest"}')
            assert json.loads(await connection.recv())["type"] == "subscribed"
            assert json.loads(await connection.recv())["records"][0]["value"] == 1

        made = await client.post("/events/v1/topics", json={"name": "trades"})
        assert made.headers["location"] == "/events/v1/topics/trades"
        assert (await client.get(made.headers["location"])).json()["name"] == "trades"
        assert (await client.get("/events/openapi.json")).json()["servers"][0]["url"] == "/events"
        assert 'src="/events/docs/' in (await client.get("/events/docs")).text
        assert (await client.get("/events/docs/docs.js")).status_code == 200

        endless = await client.head("/events/v1/topics/quotes/stream")
        assert (endless.status_code, endless.headers["allow"]) == (405, "GET"), "without an end there is no HEAD"
        assert (await client.delete("/events/v1/topics")).headers["allow"] == "GET, HEAD, POST"
