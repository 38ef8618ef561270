"""Pages and channels of the dashboard over the WebSocket, with a gateway and a broker behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

import comet
from comet.errors import TopicNotFound
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.dashboard.channels import CHANNELS, Channel
from comet_gateway.dashboard.live_pages import LivePages
from comet_gateway.dashboard.subscriptions import Watching
from comet_gateway.http.auth import Role, new_token
from comet_web.pages import PAGES, Page
from tests.integration.live_gateway import PATIENCE_S, Gateway, Socket, live_gateway, small
from tests.property.test_web_delta import apply
from tests.waiting import until


async def shown(
    one: Socket, id_: str, document: dict[str, Any], wanted: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The document of a page, kept up to date until it is as wanted."""
    while not wanted(document):
        frame = await one.until("page", "delta", id=id_)
        document = frame["document"] if frame["type"] == "page" else apply(document, frame["delta"])
    return document


def live_pages(gateway: Gateway) -> LivePages:
    found: LivePages = gateway.server.app.state.sources.part(Watching).pages
    return found


def text(cell: Any) -> str:
    return str(cell["t"] if isinstance(cell, dict) else cell)


async def test_a_page_is_sent_and_then_what_changes_of_it() -> None:
    async with live_gateway({"quotes": 3}) as gateway, gateway.socket() as one, gateway.socket() as other:
        await one.say(type="subscribe", id="t", page="/topics")
        first = await one.hear()
        assert (first["type"], first["id"], first["seq"], first["interval_s"]) == ("page", "t", 0, 1)
        document = first["document"]
        assert document["tables"]["topics"]["order"] == ["quotes"]
        await other.say(type="subscribe", id="other", page="/topics")
        assert (await other.hear())["id"] == "other"
        assert live_pages(gateway).count == 1

        async with comet.Producer(gateway.broker) as producer:
            await producer.send_many("quotes", [b"1", b"2", b"3"])
            await producer.flush()

        def counted(document: dict[str, Any]) -> bool:
            return "3" in [text(cell) for cell in document["tables"]["topics"]["rows"]["quotes"]][2:]

        document = await shown(one, "t", document, counted)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S) as client:
            assert (await client.post("/v1/topics", json={"name": "trades"})).status_code == 201
        await shown(one, "t", document, lambda document: document["tables"]["topics"]["order"] == ["quotes", "trades"])


async def test_a_socket_carries_a_page_a_channel_and_a_topic_at_once() -> None:
    async with live_gateway(["quotes"]) as gateway, gateway.socket() as one:
        await one.say(type="subscribe", id="page", page="/topics/quotes?range=15m")
        await one.say(type="subscribe", id="tail", channel="tail", params={"topic": "quotes"})
        await one.subscribe("topic", "quotes", start="earliest")
        await one.until("page", id="page")
        await one.until("event", id="tail")
        told = await one.ask(type="produce", id="r", topic="quotes", record={"text": "hello"})
        assert told["type"] == "receipt"
        assert [record["text"] for record in await one.records("topic", 1)] == ["hello"]
        event: dict[str, Any] = {"rows": []}
        while not event["rows"]:
            event = (await one.until("event", id="tail"))["event"]
        assert "hello" in json.dumps(event["rows"])
        for id_ in ("page", "tail", "topic"):
            await one.say(type="unsubscribe", id=id_)
            assert (await one.until("end", id=id_))["reason"] == "unsubscribed"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_every_page_is_as_the_schema_says(page: Page) -> None:
    """`Socket` checks each frame against it."""
    names = {"topic": "quotes", "broker": "1", "group": "g", "schedule": "report"}
    async with live_gateway(["quotes"]) as gateway, gateway.socket() as one:
        if "{schedule}" in page.path:
            async with comet.Admin(gateway.broker) as admin:
                await admin.schedules.put_schedule("quotes", "report", "every 1h", value=b"{}")
        address = page.path.format(**names)
        await one.say(type="subscribe", id="p", page=address)
        frame = await one.hear()
        if frame["type"] == "page":
            assert frame["interval_s"] == page.interval_s
            if page.interval_s:
                assert (await one.until("delta", id="p"))["seq"] == 1
        else:
            assert (page.name, frame["problem"]["status"]) in {("group", 404), ("dead_letter_topic", 404)}, frame


async def test_what_is_not_there_is_a_problem_until_it_is() -> None:
    async with live_gateway(["quotes"]) as gateway, gateway.socket() as one:
        await one.say(type="subscribe", id="t", page="/topics/trades")
        lost = await one.hear()
        assert (lost["type"], lost["id"], lost["of"]) == ("error", "t", "subscribe")
        assert lost["problem"]["code"] == "TOPIC_NOT_FOUND"
        async with comet.Admin(gateway.broker) as admin:
            await admin.create_topic("trades", partitions=2)
        assert (await one.until("page"))["seq"] == 0


async def test_a_page_that_nobody_looks_at_is_not_made() -> None:
    async with live_gateway(["quotes"]) as gateway:
        async with gateway.socket() as one, gateway.socket() as other:
            for who in (one, other):
                await who.say(type="subscribe", id="p", page="/")
                await who.until("page")
            await one.say(type="unsubscribe", id="p")
            await one.say(type="subscribe", id="q", page="/nowhere")
            assert (await one.until("error"))["problem"]["code"] == "NOT_FOUND"
            assert live_pages(gateway).count == 1
            await one.say(type="subscribe", id="p", page="/topics")  # the id is free
            await one.until("page", id="p")
            await one.say(type="unsubscribe", id="p")
            await one.say(type="subscribe", id="p", page="/topics?sort=-topic")
            await one.until("page", id="p")
            assert live_pages(gateway).count == 2
        assert await until(lambda: live_pages(gateway).count == 0, within_s=PATIENCE_S)


async def test_so_much_may_be_asked_for_and_no_more() -> None:
    limits = small(watches_max=2, live_pages_max=1, frame_bytes_max=1_000)
    async with live_gateway(["quotes"], limits=limits) as gateway:
        async with gateway.socket() as one:
            await one.say(type="subscribe", id="1", page="/topics")
            await one.until("page", id="1")
            await one.say(type="subscribe", id="2", page="/topics?page=2")
            assert (await one.until("error", id="2"))["problem"]["code"] == "OVERLOADED"
            assert (await one.until("end", id="2"))["reason"] == "failed"
            await one.say(type="subscribe", id="2", page="/topics")
            await one.until("page", id="2")
            await one.say(type="subscribe", id="3", page="/topics")
            assert (await one.until("error", id="3"))["problem"]["code"] == "TOO_MANY_SUBSCRIPTIONS"
            await one.say(type="subscribe", id="4", page="x" * 2_000)
            assert await one.closed() == 1009
        async with gateway.socket() as one:
            await one.connection.send(b"binary")
            assert await one.closed() == 1003
        traffic = gateway.server.app.state.traffic
        assert await until(lambda: traffic.statistics()["sockets"] == 0, within_s=PATIENCE_S)


async def test_pages_that_are_left_as_fast_as_they_are_asked_for_leave_room() -> None:
    """As fast typing into a filter sends them: all at once, before the gateway has handled any."""
    async with live_gateway(["quotes"]) as gateway, gateway.socket() as one:
        for number in range(200):
            await one.say(type="subscribe", id=str(number), page=f"/topics?filter={number}")
            await one.say(type="unsubscribe", id=str(number))
        await one.say(type="subscribe", id="last", page="/topics")
        assert (await one.until("page", "error", id="last"))["type"] == "page"
        assert live_pages(gateway).count == 1


async def test_a_channel_is_heard_spoken_to_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def echo(session: ChannelSession, params: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        try:
            yield {"hello": params["name"], "principal": session.principal.name}
            while True:
                said = await session.receive()
                if said == {"fail": True}:
                    raise TopicNotFound("there is no such topic")
                if said == {"finish": True}:
                    return
                yield {"said": said}
        finally:
            ended.set()

    monkeypatch.setitem(CHANNELS, "echo", Channel(Role.VIEWER, echo))
    async with live_gateway(["quotes"]) as gateway, gateway.socket() as one:
        await one.say(type="subscribe", id="e", channel="echo", params={"name": "anna"})
        hello = {"hello": "anna", "principal": "anyone"}
        assert await one.hear() == {"type": "event", "id": "e", "seq": 0, "event": hello}
        await one.say(type="control", id="e", params={"n": 1})
        assert await one.hear() == {"type": "event", "id": "e", "seq": 1, "event": {"said": {"n": 1}}}
        assert await one.ask(type="unsubscribe", id="e") == {"type": "end", "id": "e", "reason": "unsubscribed"}
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
        refused = await one.ask(type="control", id="e", params={"n": 2})
        assert refused["problem"]["code"] == "SUBSCRIPTION_NOT_FOUND"
        ended.clear()
        await one.say(type="subscribe", id="e", channel="echo", params={"name": "ben"})
        await one.until("event", id="e")
        failed = await one.ask(type="control", id="e", params={"fail": True})
        assert (failed["id"], failed["problem"]["code"]) == ("e", "TOPIC_NOT_FOUND")
        assert (await one.until("end", id="e"))["reason"] == "failed"
        assert ended.is_set()
        await one.say(type="subscribe", id="e", channel="echo", params={"name": "eve"})
        assert await one.ask(type="control", id="e", params={"finish": True}) == {
            "type": "end", "id": "e", "reason": "done",
        }  # fmt: skip
        broken = await one.ask(type="subscribe", id="f", channel="echo", params={})  # a bug, in the channel
        assert broken["problem"]["code"] == "INTERNAL"


async def test_who_follows_a_page_is_told_to_go_elsewhere_when_the_gateway_stops() -> None:
    async with live_gateway(["quotes"]) as gateway, gateway.socket() as one:
        await one.say(type="subscribe", id="p", page="/topics")
        await one.until("page")
        gateway.server.stop()
        await one.until("goaway")
        assert await one.closed() == 1012


async def test_a_page_ends_with_its_token_and_is_as_for_its_role(tmp_path: Path) -> None:
    tokens = {name: new_token(name, role) for name, role in (("anna", "viewer"), ("ben", "admin"))}
    path = tmp_path / "tokens.toml"
    path.write_text("".join(row for _, row in tokens.values()))
    async with live_gateway(["quotes"], tokens_file=str(path)) as gateway:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with gateway.socket():
                pass
        assert refused.value.response.status_code == 401
        headers = {"authorization": f"Bearer {tokens['anna'][0]}"}
        async with gateway.socket(additional_headers=headers) as one:
            await one.say(type="subscribe", id="a", page="/about")
            about = json.dumps((await one.until("page", id="a"))["document"])
            assert "anna" in about and "viewer" in about and "ben" not in about
            path.write_text(tokens["ben"][1])
            gateway.server.app.state.gatekeeper.reload()
            assert await one.closed() == 1008


async def test_a_gateway_without_dashboard_has_no_pages() -> None:
    async with live_gateway(["quotes"], dashboard=False) as gateway, gateway.socket() as one:
        for wanted in ({"page": "/topics"}, {"channel": "tail", "params": {"topic": "quotes"}}):
            refused = await one.ask(type="subscribe", id="p", **wanted)
            assert refused["problem"]["code"] == "NOT_FOUND"
        await one.subscribe("p", "quotes")


async def test_no_page_of_another_origin_gets_a_socket() -> None:
    async with live_gateway(["quotes"]) as gateway:
        for origin in ("http://evil.example", "http://127.0.0.1:1", "null"):
            with pytest.raises(websockets.InvalidStatus) as refused:
                async with gateway.socket(origin=websockets.Origin(origin)):
                    pass
            assert refused.value.response.status_code == 403
        async with gateway.socket(origin=websockets.Origin(gateway.url)) as one:
            await one.say(type="subscribe", id="p", page="/topics")
            await one.until("page")
