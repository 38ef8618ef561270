"""One principal takes what it can get of a gateway; an administrator is served all the same."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

import comet
from comet_gateway.http.auth import new_token
from tests.robustness.gateway_process import GatewayProcess
from tests.robustness.process import broker

PATIENCE_S = 20.0
PLACES = 12
SHARE = 6
LIMITS = (f"--replays-max={PLACES}", f"--connections-max={PLACES}", f"--requests-max={PLACES}")
REPLAY = {"from": "-1h", "to": "latest", "paused": True}


class World:
    def __init__(self, gateway: GatewayProcess, tokens: dict[str, str]) -> None:
        self.gateway = gateway
        self.tokens = tokens
        self.ws = gateway.url.replace("http", "ws", 1) + "/v1/ws"

    def socket(self, name: str) -> websockets.connect:
        text = base64.urlsafe_b64encode(self.tokens[name].encode()).decode().rstrip("=")
        return websockets.connect(self.ws, subprotocols=[f"comet.bearer.{text}", "comet.v1"])  # type: ignore[list-item]

    def http(self, name: str) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.tokens[name]}"}
        return httpx.AsyncClient(base_url=self.gateway.url, headers=headers, timeout=PATIENCE_S)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = {name: new_token(name, role) for name, role in (("ann", "viewer"), ("ada", "admin"))}
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("".join(row for _, row in made.values()))
    tokens.chmod(0o600)
    with broker(tmp_path / "data") as running:
        async with comet.Admin(running.address) as admin:
            await admin.create_topic("quotes", flush="os")
        async with comet.Producer(running.address) as producer:
            await producer.publish("quotes", "one")
        gateway = GatewayProcess(tmp_path / "gateway", [running.address], "--tokens-file", str(tokens), *LIMITS)
        gateway.launch()
        try:
            await gateway.ready()
            yield World(gateway, {name: token for name, (token, _) in made.items()})
            assert not gateway.complaints(), gateway.said()
        finally:
            gateway.kill()


async def answer(socket: websockets.ClientConnection, id_: str) -> dict[str, Any]:
    """The first frame of a subscription."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            frame: dict[str, Any] = json.loads(await socket.recv())
            if frame.get("id") == id_:
                return frame


async def replay(socket: websockets.ClientConnection, id_: str) -> dict[str, Any]:
    await socket.send(json.dumps({"type": "subscribe", "id": id_, "topic": "quotes", "replay": REPLAY}))
    return await answer(socket, id_)


async def test_paused_replays_of_a_viewer_leave_some_to_an_administrator(world: World) -> None:
    async with world.socket("ann") as hers, world.socket("ada") as admins:
        answers = [await replay(hers, str(number)) for number in range(PLACES)]
        assert [one["type"] for one in answers] == ["subscribed"] * SHARE + ["error"] * (PLACES - SHARE)
        problem = answers[-1]["problem"]
        assert (problem["code"], problem["limit"]) == ("TOO_MANY_REQUESTS", "principal_share_percent")
        assert problem["detail"] == "'ann' has 6 of 12 replays, its share"
        assert (await replay(admins, "a"))["type"] == "subscribed"


async def test_sockets_of_a_viewer_leave_some_to_an_administrator(world: World) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(SHARE):
            await stack.enter_async_context(world.socket("ann"))
        with pytest.raises(websockets.InvalidStatus) as caught:
            await stack.enter_async_context(world.socket("ann"))
        assert caught.value.response.status_code == httpx.codes.TOO_MANY_REQUESTS
        assert json.loads(caught.value.response.body)["limit"] == "principal_share_percent"
        async with world.http("ann") as http:
            refused = await http.get("/v1/topics/quotes/stream")  # an event stream is one of the same places
            assert refused.status_code == httpx.codes.TOO_MANY_REQUESTS
        await stack.enter_async_context(world.socket("ada"))


async def test_waiting_requests_of_a_viewer_leave_some_to_an_administrator(world: World) -> None:
    path = "/v1/topics/quotes/partitions/0/records"
    waiting = {"start": "latest", "wait_ms": "30000"}
    async with world.http("ann") as http, world.http("ada") as admins:
        polls = [asyncio.create_task(http.get(path, params=waiting)) for _ in range(PLACES)]
        try:
            refused = []
            async with asyncio.timeout(PATIENCE_S):
                for done in asyncio.as_completed(polls):
                    refused.append(await done)
                    if len(refused) == PLACES - SHARE:
                        break
            assert {one.status_code for one in refused} == {httpx.codes.TOO_MANY_REQUESTS}
            assert {one.json()["detail"] for one in refused} == {"'ann' has 6 of 12 waiting requests, its share"}
            assert (await admins.get("/v1/topics")).status_code == httpx.codes.OK
            found = await admins.get(path, params={**waiting, "wait_ms": "1"})
            assert found.status_code == httpx.codes.OK
        finally:
            for one in polls:
                one.cancel()
            await asyncio.gather(*polls, return_exceptions=True)
