"""Runs a WebSocket's subscription or replay: takes events, and writes them as frames."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from comet_gateway.http.problems import KINDS, Problem
from comet_gateway.http.wire import Frame, Wire
from comet_gateway.push import frames
from comet_gateway.push.events import Begun, Event, Failed, Latest, Lost, Missing
from comet_gateway.push.replay import Ended, Replay
from comet_gateway.push.subscribe_request import SubscribeRequest

STEERING_MAX: Final = 100  # replay frames before its start


class PumpedSubscription(Protocol):
    """A subscription of the hub, or a replay."""

    async def next(self) -> Event | Ended: ...
    def ready(self) -> bool: ...
    def permit(self, records: int) -> None: ...
    def close(self) -> None: ...
    def statistics(self) -> dict[str, Any]: ...


class SubscribeHub(Protocol):
    """The part of the hub that is used here."""

    async def subscribe(self, request: SubscribeRequest) -> PumpedSubscription: ...


class SubscriptionPump:
    """One subscription. Run by its own task, which the connection cancels to end it."""

    def __init__(
        self,
        id_: str,
        begin: Callable[[], Awaitable[PumpedSubscription]],
        wire: Wire,
        write_bytes: int,
        topics: tuple[str, ...],
    ) -> None:
        self._id = id_
        self._begin = begin
        self._topics = frozenset(topics)  # the named topics; empty with a pattern
        self._wire = wire
        self._write_bytes = write_bytes  # approximate bytes of one write
        # The bytes of records are shared by all subscriptions; only the heads are its own.
        encoded_id = frames.encode(id_)
        self._records = b'{"type":"records","id":%b,' % encoded_id
        self._latest = b'{"type":"latest","id":%b,' % encoded_id
        self._snapshot = b'{"type":"snapshot","id":%b,' % encoded_id
        self._subscription: PumpedSubscription | None = None
        self._granted = 0  # permits before the subscription started
        self._steering: list[frames.ReplayFrame] = []  # before the replay started
        self._failed: set[str] = set()

    def grant(self, count: int) -> None:
        if self._subscription is None:
            self._granted += count
        else:
            self._subscription.permit(count)

    def steer(self, frame: frames.ReplayFrame) -> None:
        if isinstance(self._subscription, Replay):
            self._subscription.steer(frame.action, frame.count, frame.speed)
        elif len(self._steering) < STEERING_MAX:
            self._steering.append(frame)
        else:
            raise Problem("TOO_MANY_REQUESTS", "the replay has not started yet")

    async def run(self) -> frames.EndFrame:
        subscription = self._subscription = await self._begin()
        try:
            if self._granted:
                subscription.permit(self._granted)
            for frame in self._steering:
                self.steer(frame)
            while True:
                # Events are taken only when they can be sent: until then the subscriber is a position without bytes.
                await self._wire.room()
                event = await subscription.next()
                await self._wire.room()  # other subscriptions may have filled the connection meanwhile
                if isinstance(event, Ended):
                    return frames.EndFrame(self._id, "replayed", event.cursor)
                await self._wire.write(await self._gather(event, subscription))
                if self._failed and self._over():
                    return frames.EndFrame(self._id, "failed")
                if subscription.ready():
                    await asyncio.sleep(0)  # one that is far behind gives others a turn
        finally:
            subscription.close()

    async def _gather(self, event: Event, subscription: PumpedSubscription) -> list[Frame]:
        """The event and those already available, without waiting."""
        frame = self._frame(event)
        gathered, size = [frame], sum(map(len, frame))
        while size < self._write_bytes and subscription.ready() and not (self._failed and self._over()):
            frame = self._frame(await subscription.next())
            gathered.append(frame)
            size += sum(map(len, frame))
        return gathered

    def _frame(self, event: Event | Ended) -> Frame:
        match event:
            case Latest():
                return self._latest_frame(event)
            case Begun():
                missing = missing_of(event.missing)
                begun = frames.Subscribed(self._id, event.topic, event.cursor, event.recovered, missing)
                return [frames.encode(begun)]
            case Lost():
                missing = missing_of(event.missing)
                return [frames.encode(frames.LostFrame(self._id, event.topic, event.count, missing, event.cursor))]
            case Failed():
                self._failed.add(event.topic)
                error = frames.error_of(problem_of(event), id_=self._id, of="subscribe", topic=event.topic or None)
                return [frames.encode(error)]
            case Ended():
                raise AssertionError("Ended is sent as the end frame")
            case _:
                return [self._records, event.members(), b"}"]

    def _latest_frame(self, event: Latest) -> Frame:
        if not event.snapshot:
            return [self._latest, b'"conflated":%d,' % event.conflated, event.write_members(), b"}"]
        last, complete = (b"true" if one else b"false" for one in (event.last, event.complete))
        return [self._snapshot, b'"last":%b,"complete":%b,' % (last, complete), event.write_members(), b"}"]

    def _over(self) -> bool:
        """Whether all named topics have failed; with a pattern, others may follow."""
        return "" in self._failed or (bool(self._topics) and self._failed >= self._topics)


def missing_of(missing: Sequence[Missing]) -> list[frames.MissingItem]:
    return [frames.MissingItem(one.partition, str(one.first), str(one.end), one.reason) for one in missing]


def problem_of(event: Failed) -> Problem:
    code = event.code if event.code in KINDS else "INTERNAL"
    return Problem(code, event.detail, retry_after_ms=event.retry_after_ms, more=event.more)
