"""The leader's side of one Replicate call: the partitions that another broker follows here.

    Follow    ─► where do the two logs agree? ─► Following{from}
    Progress  ─► the partition's LeaderState    the first one starts the deliveries
    Watermark ◄─ when the watermark has moved and no delivery has carried it for a moment
    Heartbeat ◄─► when nothing else was sent for a while; the call of a silent follower is ended

Deliveries need no credit: the next one is built when the transport has taken the last, so a slow follower holds one
frame of memory, and the rest stays in the log.

Owned by the transport's handler. Implements streams.stream_writer.ServedStream, as a Session does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from google.protobuf.message import DecodeError

from comet.errors import CometError, Forbidden, MalformedFrame, NotLeader, Unavailable
from comet.v1 import replication_pb2 as pb
from comet.wire.frames import Frame, Outgoing, parse_progress
from comet.wire.liveness import BETWEEN_BROKERS
from comet.wire.protobuf import error_to_pb
from comet_broker import limits
from comet_broker.core.cluster import NO_BROKER
from comet_broker.core.push import Cursor
from comet_broker.env import Env
from comet_broker.metrics.meter import RequestMeter
from comet_broker.partitions.leader_eligibility import LeaderEligibility
from comet_broker.partitions.leader_state import LeaderState
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable
from comet_broker.replication.heartbeats import FROM_LEADER, Heartbeats, announce
from comet_broker.streams.answers import AnswerQueue
from comet_broker.streams.stream_writer import StreamWriter
from comet_broker.streams.subscriptions import Feed

log = logging.getLogger(__name__)

WATERMARK_DELAY_S: Final = 0.003  # in which a delivery may carry it
WATERMARK_BUSY_S: Final = 0.010  # the same where deliveries have been carrying it
_SUBSCRIPTION: Final = 0


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """The broker's services for a stream of a follower."""

    env: Env
    cluster_id: Callable[[], str]
    topics: TopicTable
    reader: LogReader
    meter: RequestMeter
    eligibility: LeaderEligibility


class ReplicaSession:
    """`over` is called with the session when it is over; `certified` is the broker that the caller's certificate
    names."""

    def __init__(
        self,
        context: ReplicaContext,
        number: int,
        peer: str,
        over: Callable[[ReplicaSession], None],
        certified: int | None = None,
    ) -> None:
        self.number = number
        self.peer = peer
        self.closed = False
        self.pause = None  # followers have no quota
        self.writer = StreamWriter(self.poll, over=self._is_over, close=self.close)
        self.rouse = self.writer.rouse
        self.answers = AnswerQueue(self.rouse, context.env.in_flight)
        self.follower = 0  # the broker that follows, after its Hello
        self.broker_epoch = 0
        self._context = context
        self._over = over
        self._certified = certified
        self._clock = context.env.clock
        self._feed = Feed(context.env, context.reader, context.meter, self._ended, self.rouse, follower=True)
        self._following: dict[int, Partition] = {}  # by handle: those with a Following sent
        self._stale: dict[int, int] = {}  # by handle, its watermark has moved: the deliveries' offset at that time
        self._marks: dict[int, Partition] = {}  # by handle: a Watermark is due
        self._watermark_timer: asyncio.TimerHandle | None = None
        self._input_over = False
        self._opened_at = self._clock.monotonic()
        self._heartbeats = Heartbeats(self._clock, beat=self._beat, silent=self._silent)
        self._liveness = self._heartbeats.liveness
        self._beating = False  # a heartbeat is due
        self._large: Outgoing | None = None  # the next frame, which has been announced

    # ---- the transport's side

    def receive(self, data: Frame) -> None:
        """Takes one frame of the follower."""
        self._liveness.received += 1
        progress = parse_progress(data)
        if progress is not None:
            self._progress(*progress)
            return
        try:
            frame = pb.FollowerFrame.FromString(bytes(data))
        except DecodeError:
            raise MalformedFrame(f"{len(data)} bytes do not parse as a FollowerFrame of comet.v1") from None
        match frame.WhichOneof("frame"):
            case "progress":
                report = frame.progress
                self._progress(report.handle, report.leader_epoch, report.log_end, report.flushed_end)
            case "follow":
                self._follow(frame.follow)
            case "unfollow":
                self._unfollow(frame.unfollow)
            case "hello":
                self._hello(frame.hello)
            case "heartbeat":
                pass
            case _:
                raise MalformedFrame("a frame that is empty or of an unknown kind")

    def heard(self) -> None:
        self._liveness.received += 1

    def poll(self) -> Outgoing | None:
        """The next frame to send, if there is one now."""
        frame = self._next()
        if frame is not None:
            self._liveness.sent += 1
        return frame

    def _next(self) -> Outgoing | None:
        if self._large is not None:
            large, self._large = self._large, None
            return large
        if self.answers.frames:
            return self.answers.take()
        while self._marks:
            handle, partition = self._marks.popitem()
            if self._following.get(handle) is partition and partition.leads:
                return _watermark(partition)
        frame = self._feed.next_delivery()
        if frame is not None:
            if len(frame) <= limits.ANNOUNCED_BYTES:
                return frame
            self._large = frame
            return announce(len(frame))
        # The attempt to build a delivery may have ended a cursor, and queued the reason.
        if self.answers.frames:
            return self.answers.take()
        beating, self._beating = self._beating, False
        return FROM_LEADER if beating else None

    def _is_over(self) -> bool:
        return self.closed or self._input_over

    def input_over(self) -> None:
        self._input_over = True
        self.rouse()

    def close(self) -> None:
        """Ends the session when the call is over; the progress that the follower reported still counts."""
        if self.closed:
            return
        self.closed = True
        self._heartbeats.stop()
        self._large = None
        if self._watermark_timer is not None:
            self._watermark_timer.cancel()
        for partition in self._following.values():
            if partition.leadership is not None:
                partition.leadership.unfollow(self.follower, self)
        self._following.clear()
        self._feed.close()
        self._marks.clear()
        self.rouse()
        self.answers.close()
        self._over(self)

    # ---- liveness of the follower

    def _beat(self) -> None:
        self._beating = True
        self.rouse()

    def _silent(self) -> None:
        if self.writer.failure is None:
            log.info(
                "stream of broker %d (%s) ended: nothing was received",
                self.follower,
                self.peer,
                extra={"peer_broker": self.follower},
            )
        self._end_call(Unavailable(f"the leader received nothing for {BETWEEN_BROKERS.silence_s:.0f} s; connect again"))

    def fell_behind(self, handle: int, lag_s: float) -> None:
        """Ends the stream of a follower that leaves the in-sync replicas, since a new stream may mend it. A stream that
        is younger than the time to catch up is left alone."""
        if self.writer.failure is None and self._clock.monotonic() - self._opened_at >= lag_s:
            partition = self._following.get(handle, handle)
            log.info(
                "stream of broker %d ended: it fell behind with %s",
                self.follower,
                partition,
                extra={"peer_broker": self.follower},
            )
            self._end_call(Unavailable(f"the follower fell behind with {partition} and left in_sync; connect again"))

    def _end_call(self, error: CometError) -> None:
        if not self.closed:
            self.writer.end_call(error)

    # ---- frames from the follower

    def _hello(self, hello: pb.ReplicaHello) -> None:
        cluster_id = self._context.cluster_id()
        if hello.cluster_id != cluster_id:
            raise Unavailable(f"this is cluster {cluster_id}, not {hello.cluster_id}")
        if self.follower:
            raise MalformedFrame("a follower sends Hello once")
        if not hello.broker_epoch or hello.broker in (NO_BROKER, self._context.env.me):
            raise MalformedFrame(
                f"broker {hello.broker}, broker epoch {hello.broker_epoch}, is not a registered follower"
            )
        if self._certified not in (None, hello.broker):
            raise Forbidden(f"the certificate is that of broker {self._certified}, not of broker {hello.broker}")
        self.follower, self.broker_epoch = hello.broker, hello.broker_epoch

    def _follow(self, follow: pb.Follow) -> None:
        partition: Partition | None = None
        try:
            partition = self._context.topics.leading((follow.topic_id.hex(), follow.partition), follow.leader_epoch)
            self._begin(partition, follow)
        except CometError as error:
            refused = pb.Refused(
                topic_id=follow.topic_id,
                partition=follow.partition,
                leader_epoch=follow.leader_epoch,
                error=error_to_pb(error),
            )
            self._answer(pb.LeaderFrame(refused=refused))
        except Exception as error:
            if partition is None:
                raise
            self._context.eligibility.halt(partition, error)  # the stream goes on for the others

    def _begin(self, partition: Partition, follow: pb.Follow) -> None:
        if not self.follower:
            raise MalformedFrame("a follower sends Hello first")
        state = partition.state
        assert partition.leadership is not None and state is not None
        if self.follower not in state.holders:
            raise NotLeader(f"broker {self.follower} is not a replica of {partition}")
        start, restart = self._where_to_begin(partition, follow)
        self._drop(partition)
        self._following[partition.handle] = partition
        partition.leadership.follow(self.follower, self.broker_epoch, self)
        following = pb.Following(
            topic_id=follow.topic_id,
            partition=follow.partition,
            leader_epoch=partition.leader_epoch,
            handle=partition.handle,
            restart=restart,
            high_watermark=partition.committed,
            log_start=partition.log.log_start,
            log_end=partition.log.log_end,
            clean_end=partition.log.compaction.notes.clean_end,
            rewrites=partition.log.compaction.rewrites,
        )
        setattr(following, "from", start)  # a keyword of Python's
        self._answer(pb.LeaderFrame(following=following))

    @staticmethod
    def _where_to_begin(partition: Partition, follow: pb.Follow) -> tuple[int, bool]:
        """The offset up to which the follower's log agrees with the leader's, and whether it restarts there. It
        restarts if the leader has nothing left of what they have in common."""
        storage = partition.log
        theirs = [(entry.epoch, entry.start_offset) for entry in follow.epochs]
        if any(start < before for (_, before), (_, start) in pairwise(theirs)):
            raise MalformedFrame("the epochs of a follower's log must rise")
        agreed = storage.epochs.divergence(storage.log_start, storage.log_end, theirs, follow.log_start, follow.log_end)
        if agreed < storage.log_start or agreed < follow.log_start:
            return storage.log_start, True
        return agreed, False

    def _progress(self, handle: int, leader_epoch: int, log_end: int, flushed_end: int) -> None:
        partition = self._following.get(handle)
        if partition is None or partition.leadership is None or leader_epoch != partition.leader_epoch:
            return
        try:
            self._take_progress(handle, partition, partition.leadership, log_end, flushed_end)
        except MalformedFrame as error:
            log.error(
                "broker %d may not follow %s: %s", self.follower, partition, error, extra={"peer_broker": self.follower}
            )
            partition.leadership.unfollow(self.follower, self)
            self._refuse(partition, error)
            self._drop(partition)
        except Exception as error:  # noqa: BLE001 - it ends one leadership, not the stream
            self._context.eligibility.halt(partition, error)

    def _take_progress(
        self, handle: int, partition: Partition, leadership: LeaderState, log_end: int, flushed_end: int
    ) -> None:
        if log_end > partition.log.log_end:
            raise MalformedFrame(f"a follower of {partition} has more than its leader")
        if not 0 <= flushed_end <= log_end:
            raise MalformedFrame(f"a follower of {partition} has {flushed_end} of {log_end} on disk")
        if handle not in self._feed.push.cursors:
            self._feed.add(_SUBSCRIPTION, partition, log_end)
            self._feed.grant(_SUBSCRIPTION, limits.CREDIT_BYTES_MAX)
            self._marks[handle] = partition  # it missed the watermarks that were sent during its truncation
            self.rouse()
        else:
            self._feed.grant(_SUBSCRIPTION, limits.CREDIT_BYTES_MAX)  # the largest credit
        leadership.progress(self.follower, self.broker_epoch, log_end, flushed_end)

    def _unfollow(self, unfollow: pb.Unfollow) -> None:
        partition = self._following.get(unfollow.handle)
        if partition is not None:
            if partition.leadership is not None:
                partition.leadership.unfollow(self.follower, self)
            self._drop(partition)

    def _drop(self, partition: Partition) -> None:
        self._following.pop(partition.handle, None)
        if partition.handle in self._feed.push.cursors:
            self._feed.remove(_SUBSCRIPTION, [partition.handle])
            # Its pending deliveries are dropped unreported, and must not block the others.
            self._feed.grant(_SUBSCRIPTION, limits.CREDIT_BYTES_MAX)

    # ---- notifications from the partition (leader_state.Link)

    def watermark_moved(self, handle: int) -> None:
        if handle in self._stale or handle not in self._following:
            return
        self._stale[handle] = self._sent_to(handle)
        if self._watermark_timer is None and not self.closed:
            self._watermark_timer = asyncio.get_running_loop().call_later(WATERMARK_DELAY_S, self._watermarks)

    def _watermarks(self) -> None:
        """Sends the watermarks that no delivery has carried; the next delivery carries those of busy partitions."""
        self._watermark_timer = None
        stale, self._stale = self._stale, {}
        for handle, sent_to in stale.items():
            partition = self._following.get(handle)
            if partition is None or not partition.leads:
                continue
            if self._sent_to(handle) != sent_to:
                self._stale[handle] = self._sent_to(handle)
            else:
                self._marks[handle] = partition
        if self._stale:
            self._watermark_timer = asyncio.get_running_loop().call_later(WATERMARK_BUSY_S, self._watermarks)
        if self._marks:
            self.rouse()

    def log_start_moved(self, handle: int) -> None:
        partition = self._following.get(handle)
        if partition is not None:
            self._marks[handle] = partition
            self.rouse()

    def _sent_to(self, handle: int) -> int:
        """The offset up to which the partition was sent to the follower."""
        cursor = self._feed.push.cursors.get(handle)
        return -1 if cursor is None else cursor.next_offset

    def leadership_over(self, handle: int, error: CometError) -> None:
        partition = self._following.get(handle)
        if partition is not None:
            self._refuse(partition, error)
            self._drop(partition)

    def _ended(self, cursor: Cursor[Partition], error: CometError) -> None:
        """Refuses the follower, which starts over: the next records could not be read, or are not there any more."""
        partition = cursor.partition
        self._following.pop(partition.handle, None)
        if partition.leadership is not None:
            partition.leadership.unfollow(self.follower, self)
        self._refuse(partition, error)

    def _refuse(self, partition: Partition, error: CometError) -> None:
        refused = pb.Refused(
            topic_id=partition.topic_id,
            partition=partition.index,
            leader_epoch=partition.leader_epoch,
            error=error_to_pb(error),
        )
        self._answer(pb.LeaderFrame(refused=refused))

    def _answer(self, frame: pb.LeaderFrame) -> None:
        if not self.closed:
            self.answers.add(frame.SerializeToString())

    def statistics(self) -> dict[str, Any]:
        return {"peer": self.peer, "broker": self.follower, "partitions": len(self._following)}


def _watermark(partition: Partition) -> bytes:
    watermark = pb.Watermark(
        handle=partition.handle,
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.committed,
        log_start=partition.log.log_start,
        log_end=partition.log.log_end,
    )
    return pb.LeaderFrame(watermark=watermark).SerializeToString()
