"""A channel and its client: what waits between them, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, cast

import pytest

from comet_gateway.dashboard.channel_session import UNREAD_MAX, ChannelSession
from comet_gateway.dashboard.channels import Channel
from comet_gateway.dashboard.sources import Sources
from comet_gateway.dashboard.subscriptions import ChannelSubscription
from comet_gateway.http.auth import Principal, Role
from comet_gateway.http.problems import Problem
from comet_gateway.http.wire import AsgiWire
from comet_gateway.push.frames import EndFrame
from comet_gateway.push.pump import pump
from tests.integration.live_gateway import SERVER


def session() -> ChannelSession:
    return ChannelSession(cast(Sources, None), Principal("anna", Role.VIEWER))


async def test_what_a_client_says_waits_until_the_channel_listens() -> None:
    one = session()
    for number in range(UNREAD_MAX):
        one.deliver({"n": number})
    with pytest.raises(Problem, match="unread control frames"):
        one.deliver({})
    assert await one.receive() == {"n": 0}
    assert [said["n"] for said in one.received()] == list(range(1, UNREAD_MAX))
    assert one.received() == []


class Client:
    """Reads the first `reads` frames, then stops."""

    def __init__(self, reads: int) -> None:
        self.frames: list[dict[str, Any]] = []
        self.reads = reads
        self.full = asyncio.Event()

    async def take(self, message: Any) -> None:
        frame = json.loads(message["text"])
        SERVER.validate(frame)
        self.frames.append(frame)
        if len(self.frames) >= self.reads:
            self.full.set()
            await asyncio.Event().wait()


async def test_a_channel_advances_as_its_client_reads_and_is_closed_with_it() -> None:
    made: list[int] = []
    closed = asyncio.Event()

    async def numbers(_: ChannelSession, params: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        try:
            for number in range(params["count"]):
                made.append(number)
                yield {"n": number}
        finally:
            closed.set()

    def followed(count: int, client: Client) -> Coroutine[Any, Any, EndFrame]:
        source = ChannelSubscription("é", Channel(Role.VIEWER, numbers), {"count": count}, session())
        return pump(source, AsgiWire(client.take))

    client = Client(reads=9)
    assert await followed(3, client) == EndFrame("é", "done")
    assert client.frames == [{"type": "event", "id": "é", "seq": n, "event": {"n": n}} for n in range(3)]
    made.clear()
    closed.clear()

    client = Client(reads=2)
    running = asyncio.create_task(followed(1_000, client))
    await client.full.wait()
    assert made == [0, 1]
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled() and closed.is_set()
