"""One Stream call, without the transport: frames in, frames out.

        receive(frame)  never waits: it decides, appends, and queues the answers
    poll()          the next frame: answers first, then acknowledgements (as many as have gathered, in one
                    frame), then deliveries in turn; taken by the `writer`

The handler of a frame is found by the frame's kind:

    produce                         ProduceFrames
    attach, find_offset             PartitionFrames
    subscribe, unsubscribe, credit  SubscriptionFrames
    fetch                           FetchFrames
    publish, read_keys              KeyFrames
    groups and transactions         coordination.group_frames
    share groups                    sharing.stream

A session is bounded: answers by SESSION_ANSWERS_MAX (the transport stops reading while `answers` is full), deliveries
by the client's credit and one frame at a time, the rest by the limits on subscriptions. A client over its quota is read
and sent to later. A malformed frame gets a typed error for that request and affects no other.

Owned by the transport's handler, lives as long as its call, runs on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from comet.errors import CometError, MalformedFrame, Unavailable
from comet.v1 import records_pb2 as pb
from comet.wire.frames import BROKER_HEARTBEAT, CLIENT_HEARTBEAT, Frame, Outgoing, parse_produce
from comet.wire.liveness import OF_CLIENTS, LivenessVerdict
from comet.wire.version import VERSION
from comet_broker import limits
from comet_broker.access.client_access import set_caller
from comet_broker.access.needs import FRAMES
from comet_broker.streams.answers import AnswerQueue, Replies
from comet_broker.streams.context import FrameHandler, SessionContext, ShareHandler, StreamClient
from comet_broker.streams.fetch_frames import FetchFrames
from comet_broker.streams.pacing import Pacing
from comet_broker.streams.partition_frames import PartitionFrames
from comet_broker.streams.produce_frames import ProduceFrames
from comet_broker.streams.stream_writer import StreamWriter
from comet_broker.streams.subscription_frames import SubscriptionFrames, report_end
from comet_broker.streams.subscriptions import Feed


class Session:
    """`ended` is called with the session when it is over."""

    def __init__(self, context: SessionContext, client: StreamClient, ended: Callable[[Session], None]) -> None:
        self.writer = StreamWriter(self.poll, over=self._is_over, close=self.close)
        self.answers = AnswerQueue(self.writer.rouse, context.env.in_flight)
        self.sent_bytes = 0  # of deliveries
        self.received_bytes = 0
        self.client = client
        self._context = context
        self._ended = ended
        self._input_over = False
        self._replies = Replies(
            f"stream {client.number}",
            self.answers,
            rouse=self.writer.rouse,
            tasks=context.env.tasks,
            meter=context.meter,
        )
        self._feed = Feed(
            context.env, context.reader, context.meter, partial(report_end, self._replies), self.writer.rouse
        )
        sharing = context.sharing(self._replies, self._feed)
        members = context.members(self._replies)
        fetches = FetchFrames(context, client, self._replies)
        self._pacing = Pacing(client.usage, self.answers, self._replies, members.heard)
        self._produce = ProduceFrames(
            context.topics, context.env.clock, context.meter, self.answers, self._replies, client
        )
        self._handlers = self._handlers_by_kind(sharing)
        keys = context.keys(self._replies, self.answers, client)
        self._others: tuple[FrameHandler, ...] = members, sharing, fetches, keys
        self._sources = fetches.next_frame, self._feed.next_delivery, sharing.next_frame

    def _handlers_by_kind(self, sharing: ShareHandler) -> dict[str, Callable[[int, Any], None]]:
        context = self._context
        partitions = PartitionFrames(context.topics, context.reader, self._replies, context.check_draining)
        subscriptions = SubscriptionFrames(context.topics, context.reader, self._feed, self._replies, sharing.remove)
        return {
            "produce": self._produce.take,
            "credit": subscriptions.credit,
            "attach": partitions.attach,
            "subscribe": subscriptions.subscribe,
            "unsubscribe": subscriptions.unsubscribe,
            "find_offset": partitions.find_offset,
            "fetch_metadata": self._fetch_metadata,
            "hello": self._hello,
            "ping": self._ping,
        }

    # ---- the transport's side

    def receive(self, frame: Frame) -> None:
        """Takes one frame of the client."""
        self.received_bytes += len(frame)
        self.client.liveness.received += 1
        produce = parse_produce(frame)
        if self._pacing.usage.limited:
            self._pacing.received(len(frame), batch=produce is not None)
        if produce is not None:
            self._produce.produce(*produce)
        elif frame != CLIENT_HEARTBEAT:
            self._receive_any(frame)

    def heard(self) -> None:
        self.client.liveness.received += 1

    @property
    def pause(self) -> Callable[[], Awaitable[None]] | None:
        return self._pacing.pause

    @property
    def closed(self) -> bool:
        return self._replies.closed

    def _is_over(self) -> bool:
        """Whether `poll` returns the last frames now."""
        return self.closed or self._all_sent()

    def input_over(self) -> None:
        """Called after the client's last frame; it still gets its answers and subscriptions."""
        self._input_over = True
        self.writer.rouse()

    def _all_sent(self) -> bool:
        return self._input_over and not (self.answers.owed or self._replies.running or self._feed.push.cursors)

    def poll(self) -> Outgoing | None:
        """The next frame to send, if there is one now."""
        if self.answers.frames:
            return self.answers.take()
        if self._produce.acknowledged:
            return self._produce.take_acks()
        limited = self._pacing.usage.limited
        if limited and self._pacing.sends_later():
            return None
        for source in self._sources:
            frame = source()
            if frame is None:
                continue
            self.sent_bytes += len(frame)
            if limited:
                self._pacing.usage.sent(len(frame))
            return frame
        # The attempt to build a delivery may have ended a subscription, and queued the reason.
        return self.answers.take() if self.answers.frames else None

    def close(self) -> None:
        """Removes everything of the session when the call is over."""
        if self.closed:
            return
        self._replies.closed = True
        self._pacing.close()
        parts: tuple[FrameHandler | Feed, ...] = (*self._others, self._feed)
        for part in parts:
            try:
                part.close()
            except Exception as error:  # noqa: BLE001 - the rest of the stream is still to be removed
                self._context.env.tasks.report(f"the end of stream {self.client.number}", error)
        self._produce.close()
        self.writer.rouse()
        self.answers.close()
        self._ended(self)

    def look(self, now: float) -> None:
        """Sends a heartbeat if it is due, and ends the stream of a client that is silent."""
        client, in_flight = self.client, self._context.env.in_flight
        if not client.heartbeats and client.transport == "grpc":
            return  # gRPC's own pings notice silence
        liveness = client.liveness
        liveness.sent = self.writer.sent
        if self.answers.full or in_flight.full or self.pause is not None:
            liveness.received += 1  # what has come may not be read now
        verdict = liveness.check(now)
        if verdict is LivenessVerdict.SILENT:
            silence = f"nothing came from this client for {OF_CLIENTS.silence_s:.0f} s"
            self.writer.end_call(Unavailable(f"{silence}: its connection was cut, or its event loop stood still"))
        elif verdict is LivenessVerdict.HEARTBEAT and client.heartbeats and not self.answers.frames:
            self.answers.add(BROKER_HEARTBEAT)

    def go_away(self, reason: str) -> None:
        """Tells the client that the broker is about to stop."""
        self._replies.answer(pb.ServerFrame(go_away=pb.GoAway(reason=reason)))

    # ---- all frames but the hot produce frame

    def _receive_any(self, data: Frame) -> None:
        try:
            frame = pb.ClientFrame.FromString(bytes(data))
        except DecodeError:
            self._replies.fail(0, MalformedFrame(f"{len(data)} bytes do not parse as a ClientFrame of comet.v1"))
            return
        request = frame.request
        try:
            self._take(request, frame)
        except CometError as error:
            self._replies.fail(request, error)
        except Exception as error:  # noqa: BLE001 - reported
            self._replies.fail(request, self._replies.unexpected(error))

    def _take(self, request: int, frame: pb.ClientFrame) -> None:
        kind = frame.WhichOneof("frame")
        if kind is None or kind not in FRAMES:
            raise MalformedFrame("a frame that is empty or of an unknown kind")
        content = getattr(frame, kind)
        access = self.client.access
        if access.enforced and kind != "produce":  # that asks for itself
            access.check(FRAMES[kind](content, self._context.topics.by_handle))
        if kind in self._handlers:
            self._handlers[kind](request, content)
        else:
            handled = any(part.take(request, kind, content) for part in self._others)
            assert handled, f"no handler of {kind} frames"

    def _fetch_metadata(self, request: int, wanted: pb.FetchMetadataRequest) -> None:
        self._replies.spawn(request, self._answer_metadata(request, wanted))

    async def _answer_metadata(self, request: int, wanted: pb.FetchMetadataRequest) -> None:
        set_caller(self.client.access, self.client.peer)
        self._replies.answer(pb.ServerFrame(request=request, metadata=await self._context.metadata(wanted)))

    def _hello(self, request: int, hello: pb.Hello) -> None:
        self.client.name = hello.client[:200]
        self.client.heartbeats = hello.heartbeats
        welcome = pb.Welcome(
            cluster_id=self._context.cluster_id(),
            broker_id=self._context.env.me,
            version=VERSION,
            batch_bytes_max=self._context.batch_bytes_max,
            credit_bytes_max=limits.CREDIT_BYTES_MAX,
        )
        self._replies.answer(pb.ServerFrame(request=request, welcome=welcome))

    def _ping(self, request: int, _: pb.Ping) -> None:
        self._replies.answer(pb.ServerFrame(request=request, pong=pb.Pong()))

    def statistics(self) -> dict[str, Any]:
        return {
            "stream": self.client.number,
            "peer": self.client.peer,
            "client": self.client.name,
            "transport": self.client.transport,
            "subscriptions": len(self._feed.push.subscriptions),
            "partitions": len(self._feed.push.cursors),
            "owed": self.answers.owed,
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
        }
