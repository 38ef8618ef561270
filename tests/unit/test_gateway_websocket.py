"""One WebSocket, without a server: frames that come together, and what is left when it is over."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

import comet
from comet_gateway.brokers.backend import Backend
from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.http.auth import UNRESTRICTED
from comet_gateway.http.problems import Problem
from comet_gateway.http.traffic import Traffic
from comet_gateway.metrics import Metrics
from comet_gateway.push import frames
from comet_gateway.push.connections import Connections
from comet_gateway.push.group_member import ShareMember
from comet_gateway.push.parse_subscribe import join
from comet_gateway.push.websocket import WebSocketConnection
from comet_gateway.records.record_json import Values


def connection(messages: list[dict[str, Any]], connections: Connections) -> WebSocketConnection:
    """Its client has sent all of it before anything is read, and is gone then."""
    coming = iter(messages)

    async def receive() -> Any:
        return next(coming)

    async def send(_: Any) -> None:
        pass

    config = GatewayConfig()
    state = SimpleNamespace(
        config=config, hub=None, backend=None, connections=connections, metrics=Metrics(),
        traffic=Traffic(config.limits), dashboard=None, users=SimpleNamespace(producer_for=lambda *_: None),
    )  # fmt: skip
    scope = {
        "type": "websocket", "app": SimpleNamespace(state=state), "comet.principal": UNRESTRICTED,
        "comet.request_id": "r1",
    }  # fmt: skip
    return WebSocketConnection(scope, receive, send)


def said(**frame: Any) -> dict[str, Any]:
    return {"type": "websocket.receive", "text": json.dumps(frame)}


@pytest.mark.parametrize("then", [[said(type="unsubscribe", id="a")], []], ids=["dropped", "gone"])
async def test_a_subscription_that_ends_before_its_first_turn_is_not_counted_for_ever(
    then: list[dict[str, Any]],
) -> None:
    connections = Connections(Limits(), asyncio.Event(), Counter())
    subscribe = said(type="subscribe", id="a", topic="t")
    messages = [{"type": "websocket.connect"}, subscribe, *then, {"type": "websocket.disconnect"}]
    await connection(messages, connections).run()
    assert connections.statistics()["subscriptions"] == 0
    assert connections.statistics()["connections"] == 0


async def test_a_frame_that_is_refused_has_acknowledged_none_of_its_records() -> None:
    acked: list[int] = []

    class Record:
        topic, partition, offset = "t", 0, 7

        async def ack(self) -> None:
            acked.append(self.offset)

    joined = join(
        frames.GroupTerms("g", kind="share"), topics=["t", "u"], pattern="", start="latest", values=Values.AUTO,
        permits=None, now_us=0,
    )  # fmt: skip
    backend = cast(Backend, SimpleNamespace(bootstrap="127.0.0.1:1"))
    member = ShareMember("a", joined, backend, Limits())
    member._hold(cast("comet.ShareRecord[bytes]", Record()))
    of_none = frames.Ack("a", records=[frames.RecordId(0, 7, "t"), frames.RecordId(0, 8)])
    with pytest.raises(Problem, match="give the topic"):
        await member.acknowledge(of_none)
    answer = await member.acknowledge(frames.Ack("a", records=[frames.RecordId(0, 7, "t")]))
    assert isinstance(answer, frames.Acked)
    assert answer.results is not None
    assert answer.results[0].problem is None, "it is in hand still"
    assert acked == [7]
