"""The frames of a WebSocket's subscription to topics, or of a replay: takes its events, and encodes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from comet_gateway.http.problems import KINDS, Problem
from comet_gateway.http.wire import Frame
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


class SubscriptionFrames:
    """One subscription as a source of frames. `begin` gives it its subscription or replay."""

    def __init__(
        self,
        id_: str,
        subscribe: Callable[[], Awaitable[PumpedSubscription]],
        write_bytes: int,
        topics: tuple[str, ...],
    ) -> None:
        self._id = id_
        self._subscribe = subscribe
        self._topics = frozenset(topics)  # the named topics; empty with a pattern
        self._write_bytes = write_bytes  # approximate bytes of one write
        # The bytes of records are shared by all subscriptions; only the heads are its own.
        encoded_id = frames.encode(id_)
        self._records = b'{"type":"records","id":%b,' % encoded_id
        self._latest = b'{"type":"latest","id":%b,' % encoded_id
        self._snapshot = b'{"type":"snapshot","id":%b,' % encoded_id
        self._subscription: PumpedSubscription | None = None
        self._granted = 0  # permits before the subscription started
        self._steering: list[frames.ReplayFrame] = []  # before the replay started
        self._event: Event | Ended | None = None  # the next one, until it can be sent
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

    async def begin(self) -> None:
        subscription = self._subscription = await self._subscribe()
        if self._granted:
            subscription.permit(self._granted)
        for frame in self._steering:
            self.steer(frame)

    async def ready(self) -> None:
        assert self._subscription is not None
        if self._failed and self._over():
            return
        if self._subscription.ready():
            await asyncio.sleep(0)  # one that is far behind gives others a turn
        self._event = await self._subscription.next()

    async def take(self) -> list[Frame] | frames.EndFrame:
        """The event and those already available, up to about `write_bytes`."""
        event, subscription = self._event, self._subscription
        self._event = None
        if event is None:
            return frames.EndFrame(self._id, "failed")
        if isinstance(event, Ended):
            return frames.EndFrame(self._id, "replayed", event.cursor)
        assert subscription is not None
        frame = self._frame(event)
        taken, size = [frame], sum(map(len, frame))
        while size < self._write_bytes and subscription.ready() and not (self._failed and self._over()):
            frame = self._frame(await subscription.next())
            taken.append(frame)
            size += sum(map(len, frame))
        return taken

    async def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()

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
