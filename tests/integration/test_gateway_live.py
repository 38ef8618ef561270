"""The live socket of a tab, with a gateway and a broker behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

import comet
from comet.errors import TopicNotFound
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.dashboard.channels import CHANNELS, Channel
from comet_gateway.dashboard.live import Watching
from comet_gateway.dashboard.live_pages import LivePages
from comet_gateway.http.auth import Role, new_token
from tests.integration.live_gateway import PATIENCE_S, Gateway, live_gateway, small
from tests.property.test_web_delta import apply
from tests.waiting import until


class Tab:
    def __init__(self, connection: websockets.ClientConnection) -> None:
        self._connection = connection

    async def say(self, **frame: Any) -> None:
        await self._connection.send(json.dumps(frame))

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            frame: dict[str, Any] = json.loads(await self._connection.recv())
        return frame

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not wanted(frame := await self.hear()):
            pass
        return frame

    async def shown(
        self, id_: int, document: dict[str, Any], wanted: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """The document, kept up to date until it is as wanted."""
        while not wanted(document):
            frame = await self.until(lambda frame: frame.get("id") == id_ and "seq" in frame)
            document = frame["document"] if "document" in frame else apply(document, frame["delta"])
        return document

    async def closed(self) -> int:
        try:
            while True:
                await self.hear()
        except websockets.ConnectionClosed as error:
            return error.rcvd.code if error.rcvd is not None else 1006

    async def raw(self, data: bytes) -> None:
        await self._connection.send(data)


@asynccontextmanager
async def tab(gateway: Gateway, **settings: Any) -> AsyncIterator[Tab]:
    address = gateway.url.replace("http", "ws", 1) + "/live"
    async with websockets.connect(address, max_size=None, **settings) as connection:
        yield Tab(connection)


def live_pages(gateway: Gateway) -> LivePages:
    found: LivePages = gateway.server.app.state.sources.part(Watching).pages
    return found


def text(cell: Any) -> str:
    return str(cell["t"] if isinstance(cell, dict) else cell)


async def test_a_page_is_sent_and_then_what_changes_of_it() -> None:
    async with live_gateway({"quotes": 3}) as gateway, tab(gateway) as one, tab(gateway) as other:
        await one.say(id=1, watch="/topics")
        first = await one.hear()
        assert (first["id"], first["seq"], first["interval_s"]) == (1, 0, 1)
        document = first["document"]
        assert document["tables"]["topics"]["order"] == ["quotes"]
        await other.say(id=9, watch="/topics")
        assert (await other.hear())["id"] == 9
        assert live_pages(gateway).count == 1

        async with comet.Producer(gateway.broker) as producer:
            await producer.send_many("quotes", [b"1", b"2", b"3"])
            await producer.flush()

        def counted(document: dict[str, Any]) -> bool:
            return "3" in [text(cell) for cell in document["tables"]["topics"]["rows"]["quotes"]][2:]

        document = await one.shown(1, document, counted)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S) as client:
            assert (await client.post("/v1/topics", json={"name": "trades"})).status_code == 201
        await one.shown(1, document, lambda document: document["tables"]["topics"]["order"] == ["quotes", "trades"])


async def test_what_is_not_there_is_a_problem_until_it_is() -> None:
    async with live_gateway(["quotes"]) as gateway, tab(gateway) as one:
        await one.say(id=1, watch="/topics/trades")
        lost = await one.hear()
        assert (lost["id"], lost["problem"]["code"]) == (1, "TOPIC_NOT_FOUND")
        async with comet.Admin(gateway.broker) as admin:
            await admin.create_topic("trades", partitions=2)
        shown = await one.until(lambda frame: "document" in frame)
        assert (shown["id"], shown["seq"]) == (1, 0)


async def test_a_page_that_nobody_looks_at_is_not_made() -> None:
    async with live_gateway(["quotes"]) as gateway:
        async with tab(gateway) as one, tab(gateway) as other:
            for number, who in enumerate((one, other), 1):
                await who.say(id=number, watch="/")
                await who.hear()
            await one.say(id=1, unwatch=True)
            await one.say(id=2, watch="/nowhere")
            assert (await one.until(lambda frame: frame["id"] == 2))["problem"]["code"] == "NOT_FOUND"
            assert live_pages(gateway).count == 1
            await one.say(id=3, watch="/topics")
            await one.until(lambda frame: frame["id"] == 3)
            await one.say(id=3, watch="/topics?sort=-topic")
            await one.until(lambda frame: frame.get("document") is not None)
            assert live_pages(gateway).count == 2
        async with asyncio.timeout(PATIENCE_S):
            while live_pages(gateway).count:  # noqa: ASYNC110 - the sockets' ends are heard of by the loop
                await asyncio.sleep(0)


async def test_so_much_may_be_asked_for_and_no_more() -> None:
    limits = small(watches_max=2, live_pages_max=1, frame_bytes_max=1_000)
    async with live_gateway(["quotes"], limits=limits) as gateway:
        async with tab(gateway) as one:
            await one.say(id=1, watch="/topics")
            await one.hear()
            await one.say(id=2, watch="/topics?page=2")
            refused = await one.until(lambda frame: frame["id"] == 2)
            assert refused["problem"]["code"] == "OVERLOADED"
            await one.say(id=2, watch="/topics")
            await one.until(lambda frame: frame["id"] == 2)
            await one.say(id=3, watch="/topics")
            refused = await one.until(lambda frame: frame["id"] == 3)
            assert refused["problem"]["code"] == "TOO_MANY_SUBSCRIPTIONS"
            await one.say(id=4, watch="x" * 2_000)
            assert await one.closed() == 1009
        async with tab(gateway) as one:
            await one.raw(b"binary")
            assert await one.closed() == 1003
        traffic = gateway.server.app.state.traffic
        assert await until(lambda: traffic.statistics()["sockets"] == 0, within_s=PATIENCE_S)


async def test_a_channel_is_heard_spoken_to_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def echo(session: ChannelSession, params: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        try:
            yield {"hello": params["name"], "principal": session.principal.name}
            while True:
                said = await session.receive()
                if said == {"fail": True}:
                    raise TopicNotFound("there is no such topic")
                yield {"said": said}
        finally:
            ended.set()

    monkeypatch.setitem(CHANNELS, "echo", Channel(Role.VIEWER, echo))
    async with live_gateway(["quotes"]) as gateway, tab(gateway) as one:
        await one.say(id=7, open="echo", params={"name": "anna"})
        assert await one.hear() == {"id": 7, "seq": 0, "event": {"hello": "anna", "principal": "anyone"}}
        await one.say(id=7, say={"n": 1})
        assert await one.hear() == {"id": 7, "seq": 1, "event": {"said": {"n": 1}}}
        await one.say(id=7, close=True)
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
        await one.say(id=7, say={"n": 2})
        assert (await one.hear())["problem"]["code"] == "SUBSCRIPTION_NOT_FOUND"
        ended.clear()
        await one.say(id=7, open="echo", params={"name": "ben"})
        await one.hear()
        await one.say(id=7, say={"fail": True})
        told = await one.hear()
        assert (told["id"], told["problem"]["code"]) == (7, "TOPIC_NOT_FOUND")
        assert told["problem"]["request_id"]
        assert ended.is_set()
        ended.clear()
        await one.say(id=8, open="echo", params={})  # a bug, in the channel
        assert (await one.hear())["problem"]["code"] == "INTERNAL"


async def test_tabs_are_told_to_go_elsewhere_when_the_gateway_stops() -> None:
    async with live_gateway(["quotes"]) as gateway, tab(gateway) as one:
        await one.say(id=1, watch="/topics")
        await one.hear()
        gateway.server.stop()
        await one.until(lambda frame: "goaway" in frame)
        assert await one.closed() == 1012


async def test_a_socket_ends_with_its_token(tmp_path: Path) -> None:
    tokens = {name: new_token(name, role) for name, role in (("anna", "viewer"), ("ben", "admin"))}
    path = tmp_path / "tokens.toml"
    path.write_text("".join(row for _, row in tokens.values()))
    async with live_gateway(["quotes"], tokens_file=str(path)) as gateway:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with tab(gateway):
                pass
        assert refused.value.response.status_code == 401
        headers = {"authorization": f"Bearer {tokens['anna'][0]}"}
        async with tab(gateway, additional_headers=headers) as one:
            await one.say(id=1, watch="/topics")
            assert "document" in await one.hear()
            path.write_text(tokens["ben"][1])
            gateway.server.app.state.gatekeeper.reload()
            assert await one.closed() == 1008


async def test_no_page_of_another_origin_gets_a_socket() -> None:
    async with live_gateway(["quotes"]) as gateway:
        for origin in ("http://evil.example", "http://127.0.0.1:1", "null"):
            with pytest.raises(websockets.InvalidStatus) as refused:
                async with tab(gateway, origin=websockets.Origin(origin)):
                    pass
            assert refused.value.response.status_code == 403
        async with tab(gateway, origin=websockets.Origin(gateway.url)) as one:
            await one.say(id=1, watch="/topics")
            assert "document" in await one.hear()
