"""Many subscriptions of one connection, and a client that does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from comet_gateway.http.wire import FastWire, Frame
from comet_gateway.push.events import Begun
from comet_gateway.push.pump import pump
from comet_gateway.push.subscribe_request import SubscribeRequest
from comet_gateway.push.subscription import Subscription
from comet_gateway.push.subscription_frames import SubscriptionFrames

SUBSCRIPTIONS = 64


class Stuck:
    """A connection that is full with the first write, for good."""

    def __init__(self) -> None:
        self.written = 0
        self.full = False
        self.gone = False

    async def drained(self) -> None:
        await asyncio.Event().wait()

    def bound(self, waiting_bytes: int) -> None: ...

    def write_frames(self, frames: Sequence[Frame]) -> None:
        self.written += 1
        self.full = True

    def abort(self) -> None: ...


class Nobody:
    def left(self, subscription: Subscription) -> None: ...


async def test_what_waits_in_a_connection_does_not_grow_with_its_subscriptions() -> None:
    socket = Stuck()
    wire = FastWire(socket, 1 << 16)
    made: list[Subscription] = []

    async def begin() -> Subscription:
        made.append(Subscription(SubscribeRequest(topics=("t",)), Nobody()))
        return made[-1]

    sources = [SubscriptionFrames(str(number), begin, 1 << 16, ("t",)) for number in range(SUBSCRIPTIONS)]
    tasks = [asyncio.create_task(pump(source, wire)) for source in sources]
    while len(made) < SUBSCRIPTIONS or any(one._waiter is None for one in made):  # noqa: ASYNC110 - they wait for events
        await asyncio.sleep(0)
    for one in made:
        one.notify(Begun("t", ""))
    while any(one._waiter is not None for one in made):  # noqa: ASYNC110 - they were given one
        await asyncio.sleep(0)
    assert socket.written == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
