"""The follower's side of replication: from this broker to each broker that leads a partition it has a replica of.

    Replicator.update(partition)      its leader is known, or has changed
       └─► LeaderLink (one per leading broker)
              connect ─► Hello ─► Follow for each partition
              Following{from} ─► truncate to `from` on a worker ─► Progress     (core.conflicts: or do not follow)
              Delivery ─► Partition.replicate ─► Progress (gathered into few frames)
              nothing received for three seconds ─► the connection is closed, and opened again

A broken link reconnects after a short wait. The broker behind it may be gone: if the network is certain that no process
listens there, the cluster is notified at once instead of waiting for a lease to expire.

Owned by the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from comet.errors import CometError, DataLoss, LogFailed, Unavailable
from comet.v1 import replication_pb2 as pb
from comet.wire.frames import DELIVERY_PREFIX_BYTES, Frame, joined, parse_delivery, progress_frame
from comet.wire.liveness import BETWEEN_BROKERS
from comet.wire.protobuf import error_from_pb
from comet.wire.transport import Stream
from comet_broker import limits
from comet_broker.cluster.membership import Membership
from comet_broker.cluster.suspects import Suspects
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import NO_BROKER, GivenUp
from comet_broker.core.conflicts import TruncationVerdict
from comet_broker.env import Env
from comet_broker.failures import Guard, Kind
from comet_broker.partitions.conflicts import Conflicts, conflict_with, given_up_from, is_given_up, judged
from comet_broker.partitions.context import Gap
from comet_broker.partitions.leader_eligibility import LeaderEligibility
from comet_broker.partitions.log_ends import LogEnds, whole_end
from comet_broker.partitions.partition import Partition
from comet_broker.ports import Network, PeerChannel
from comet_broker.replication.heartbeats import FROM_FOLLOWER, Heartbeats
from comet_broker.storage.aside import NotSetAside
from comet_broker.streams.stream_writer import Outbox, StreamWriter

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 1.0
REFOLLOW_S: Final = 0.05
ASIDE_RETRY_S: Final = 10.0  # until setting records aside is retried


@dataclass(frozen=True, slots=True)
class FollowerContext:
    """The broker's services for its links to leaders."""

    env: Env
    view: ClusterView
    network: Network
    membership: Membership
    suspects: Suspects
    eligibility: LeaderEligibility
    conflicts: Conflicts
    log_ends: LogEnds


class Replicator:
    """The links of one broker to the leaders that it follows."""

    def __init__(self, context: FollowerContext) -> None:
        self._context = context
        self._links: dict[int, LeaderLink] = {}  # by the leading broker

    def update(self, partition: Partition) -> None:
        """Follows the partition's current leader, or stops following."""
        leader = self._leader_of(partition)
        for broker, link in list(self._links.items()):
            if broker != leader:
                link.leave(partition)
                if not link.wanted:
                    del self._links[broker]
                    link.stop()
        if leader == NO_BROKER:
            return
        link = self._links.get(leader) or LeaderLink(self._context, leader)
        self._links[leader] = link
        link.check_address()
        link.follow(partition)

    def _leader_of(self, partition: Partition) -> int:
        """The leader to follow; NO_BROKER if this broker leads, or must not touch its log."""
        me, state = self._context.env.me, partition.state
        if state is None or state.leader == me or partition.closed is not None or partition.log.failed is not None:
            return NO_BROKER
        if partition.fault:
            return NO_BROKER  # stopped until it is reopened
        if partition.log.lost and (me in state.in_sync or me in state.eligible):
            return NO_BROKER  # it has to be truncated for the repair, and must not be counted on by then
        return state.leader

    def mend(self, partition: Partition) -> None:
        """Updates a damaged replica once the cluster knows the damage; no state change may come to trigger it."""
        if self._leader_of(partition) != NO_BROKER:
            self.update(partition)

    def renew(self) -> None:
        """Reconnects to the leaders, so that they get this broker's new epoch after a registration."""
        for link in self._links.values():
            link.renew()

    async def close(self) -> None:
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.stop()

    def statistics(self) -> list[dict[str, Any]]:
        return [link.statistics() for link in self._links.values()]


class LeaderLink:
    """The stream to one leading broker. Lives as long as there is a partition to follow there."""

    def __init__(self, context: FollowerContext, leader: int) -> None:
        self.leader = leader
        self.wanted: dict[int, Partition] = {}  # by this broker's handle
        self._by_id: dict[tuple[bytes, int], Partition] = {}
        self._context = context
        self._env = context.env
        self._stream: Stream | None = None
        self._requested: dict[int, int] = {}  # own handle -> the epoch in which Follow was sent on this stream
        self._refusing: dict[int, int] = {}  # own handle -> the loss accepted when it refused to follow in this epoch
        self._reported_lost: dict[int, tuple[tuple[int, int], ...]] = {}  # own handle -> the damage known at Follow
        self._missing: dict[int, str] = {}  # own handle -> the leader's damage that was logged last
        self._by_handle: dict[int, tuple[Partition, int]] = {}  # the leader's handle -> partition, epoch
        self._theirs: dict[int, int] = {}  # own handle -> the leader's
        self._moved: dict[int, Partition] = {}  # Progress is due
        self._truncating: set[int] = set()  # own handles of logs to be truncated: they do not begin until then
        self._deleting_records: set[int] = set()  # own handles of logs whose records are being deleted as at the leader
        self._address: str | None = None  # the leader's last known address
        self._frames: deque[bytes] = deque()
        self._outbox = Outbox()
        self._writer: StreamWriter | None = None  # of the stream that is open
        self._heartbeats: Heartbeats | None = None  # of the stream that is open
        self._beating = False  # a heartbeat is due
        self._reading = False  # a frame of the leader is being handled: its answers are written after that
        self._again = asyncio.Event()  # set to retry at once
        self._task = context.env.tasks.keep(self._run, f"follow broker {leader}")

    # ---- followed partitions

    def follow(self, partition: Partition) -> None:
        self.wanted[partition.handle] = partition
        self._by_id[partition.topic_id, partition.index] = partition
        partition.flushing.report_to(lambda: self._progress_due(partition))
        state = partition.state
        if state is not None and self._refusing.get(partition.handle, state.loss_accepted) != state.loss_accepted:
            self._requested.pop(partition.handle, None)
        if partition.log.lost != self._reported_lost.get(partition.handle, partition.log.lost):
            self.renew()  # damage was found since: a new stream carries no answers to the old report
        else:
            self._request(partition)

    def leave(self, partition: Partition) -> None:
        if self.wanted.pop(partition.handle, None) is None:
            return
        del self._by_id[partition.topic_id, partition.index]
        partition.flushing.report_to(None)
        self._moved.pop(partition.handle, None)
        self._refusing.pop(partition.handle, None)
        self._reported_lost.pop(partition.handle, None)
        self._missing.pop(partition.handle, None)
        theirs = self._theirs.pop(partition.handle, None)
        epoch = self._requested.pop(partition.handle, 0)
        if theirs is not None:
            self._by_handle.pop(theirs, None)
            self._send(pb.FollowerFrame(unfollow=pb.Unfollow(handle=theirs, leader_epoch=epoch)))

    def _request(self, partition: Partition) -> None:
        """Requests to follow the partition, once per epoch and stream, with the state of this log."""
        if self._stream is None or self._requested.get(partition.handle) == partition.leader_epoch:
            return
        if partition.follower.truncating:
            self._request_again(partition, REFOLLOW_S)
            return
        storage = partition.log
        if (found := given_up_from(partition)) is not None:
            if partition.handle not in self._truncating:
                self._truncating.add(partition.handle)
                self._env.tasks.spawn(self._give_up(partition, found), f"give up the end of {partition}")
            return
        self._requested[partition.handle] = partition.leader_epoch
        theirs = self._theirs.pop(partition.handle, None)
        if theirs is not None:
            self._by_handle.pop(theirs, None)
        self._reported_lost[partition.handle] = storage.lost
        follow = pb.Follow(
            topic_id=partition.topic_id,
            partition=partition.index,
            leader_epoch=partition.leader_epoch,
            log_start=storage.log_start,
            log_end=whole_end(partition),
            epochs=[pb.EpochStart(epoch=epoch, start_offset=start) for epoch, start in storage.epochs.entries],
        )
        self._send(pb.FollowerFrame(follow=follow))

    def _request_again(self, partition: Partition, after_s: float) -> None:
        """Requests again for a partition that the leader refused, or that got out of step."""
        handle = partition.handle
        self._moved.pop(handle, None)
        theirs = self._theirs.pop(handle, None)
        if theirs is not None:
            self._by_handle.pop(theirs, None)

        def request() -> None:
            if self.wanted.get(handle) is partition and partition.closed is None:
                self._requested.pop(handle, None)
                with self._guard(partition):
                    self._request(partition)

        asyncio.get_running_loop().call_later(after_s, request)

    # ---- the stream

    async def _run(self) -> None:
        """Keeps the link up; cancelled by `stop`."""
        wait_s = RETRY_S
        channel: PeerChannel | None = None
        try:
            while True:
                self._again.clear()
                address = self._context.view.address_of(self.leader)
                if address is not None and self._context.membership.broker_epoch:
                    self._address = address
                    channel = self._context.network.connect(address)
                    began = self._env.clock.monotonic()
                    try:
                        await self._hold(channel)
                    except CometError as error:
                        log.info(
                            "the stream to broker %d ended: %s", self.leader, error, extra={"peer_broker": self.leader}
                        )
                    except Exception:
                        log.exception("following broker %d failed", self.leader, extra={"peer_broker": self.leader})
                    finally:
                        self._reset()
                        await channel.close()
                        channel = None
                    if self._env.clock.monotonic() - began > RETRY_S_MAX:
                        wait_s = RETRY_S
                    await self._context.suspects.check(self.leader)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._again.wait()
                wait_s = min(wait_s * 2, RETRY_S_MAX)
        finally:
            if channel is not None:
                await channel.close()

    async def _hold(self, channel: PeerChannel) -> None:
        stream = self._stream = await channel.replicate(self._context.view.wire_of(self.leader))
        if self._again.is_set() or self._moved_away():  # meanwhile, when there was no stream to end
            stream.cancel()
            return
        hello = pb.ReplicaHello(
            cluster_id=self._context.view.cluster_id,
            broker=self._env.me,
            broker_epoch=self._context.membership.broker_epoch,
        )
        self._frames = deque([pb.FollowerFrame(hello=hello).SerializeToString()])
        writer = self._writer = StreamWriter(self.next_report, over=lambda: False, close=stream.cancel)
        writer.start(
            lambda frame: stream.write(joined(frame)), self._outbox, lambda error: self._written(stream, error)
        )
        self._heartbeats = Heartbeats(self._env.clock, beat=self._beat, silent=self._silent)
        liveness = self._heartbeats.liveness
        try:
            for partition in list(self.wanted.values()):
                with self._guard(partition):
                    self._request(partition)
            writer.advance()
            while (frame := await stream.read()) is not None:
                liveness.received += 1
                self._reading = True
                try:
                    self._receive(frame)
                finally:
                    self._reading = False
                writer.advance()
        except Unavailable as error:
            if liveness.silent:
                raise Unavailable(f"nothing was received for {BETWEEN_BROKERS.silence_s:.0f} s") from error
            raise
        finally:
            self._heartbeats.stop()
            stream.cancel()
            writer.stop()
            self._writer = self._heartbeats = None

    def _reset(self) -> None:
        self._stream = None
        self._requested.clear()
        self._refusing.clear()
        self._reported_lost.clear()
        self._by_handle.clear()
        self._theirs.clear()
        self._moved.clear()
        self._frames.clear()
        self._beating = False

    def next_report(self) -> bytes | None:
        """The next frame to the leader: of each partition, only its latest progress."""
        report = self._next()
        if report is not None and self._heartbeats is not None:
            self._heartbeats.liveness.sent += 1
        return report

    def _next(self) -> bytes | None:
        if self._frames:
            return self._frames.popleft()
        while self._moved:
            handle = next(iter(self._moved))
            partition = self._moved.pop(handle)
            theirs = self._theirs.get(handle)
            if theirs is not None:
                with self._guard(partition):
                    return self._progress(partition, theirs)
        beating, self._beating = self._beating, False
        return FROM_FOLLOWER if beating else None

    def _beat(self) -> None:
        self._beating = True
        self._rouse()

    def _silent(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def _progress(self, partition: Partition, theirs: int) -> bytes:
        storage = partition.log
        return progress_frame(theirs, self._by_handle[theirs][1], storage.log_end, storage.flushed_end)

    def _progress_due(self, partition: Partition) -> None:
        if partition.handle in self._theirs:
            self._moved[partition.handle] = partition
            self._rouse()

    def _send(self, frame: pb.FollowerFrame) -> None:
        if self._stream is not None:
            self._frames.append(frame.SerializeToString())
            self._rouse()

    def _rouse(self) -> None:
        if self._writer is not None and not self._reading:
            self._writer.rouse()

    def _written(self, stream: Stream, error: Exception | None) -> None:
        """Ends a stream that cannot be written to; its reader learns why."""
        if error is None:
            return
        if not isinstance(error, CometError):
            log.error("writing to broker %d failed", self.leader, exc_info=error, extra={"peer_broker": self.leader})
        stream.cancel()

    # ---- frames from the leader

    def _receive(self, data: Frame) -> None:
        delivery = parse_delivery(data)
        if delivery is not None:
            handle, high_watermark, epoch = delivery
            self._deliver(handle, epoch, high_watermark, memoryview(data)[DELIVERY_PREFIX_BYTES:])
            return
        try:
            frame = pb.LeaderFrame.FromString(bytes(data))
        except DecodeError:
            raise Unavailable(
                f"broker {self.leader} sent {len(data)} bytes that do not parse as a LeaderFrame"
            ) from None
        match frame.WhichOneof("frame"):
            case "watermark":
                mark = frame.watermark
                found = self._by_handle.get(mark.handle)
                if found is not None and found[1] == mark.leader_epoch:
                    with self._guard(found[0]):
                        found[0].follower.learn(mark.leader_epoch, mark.high_watermark)
                        self._delete_records(found[0], mark.log_start)
            case "following":
                self._following(frame.following)
            case "refused":
                self._refused(frame.refused)
            case "heartbeat":
                if self._heartbeats is not None:
                    self._heartbeats.liveness.expect(frame.heartbeat.next_frame_bytes / limits.LINK_BYTES_PER_S_MIN)
            case _:
                log.warning(
                    "broker %d sent a frame of an unknown kind", self.leader, extra={"peer_broker": self.leader}
                )

    def _deliver(self, handle: int, epoch: int, high_watermark: int, batches: memoryview) -> None:
        found = self._by_handle.get(handle)
        if found is None or found[1] != epoch:
            return
        partition = found[0]
        was_whole = partition.follower.whole
        try:
            partition.follower.replicate(batches, epoch, high_watermark)
        except (Gap, CometError) as error:
            log.warning("cannot follow %s: %s", partition, error)
            if isinstance(error, LogFailed):
                partition.failed(error)
                self.leave(partition)
                return
            self._request_again(partition, RETRY_S_MAX if isinstance(error, CometError) else 0)
        except Exception as error:  # noqa: BLE001 - an error of one partition must not stop the others
            self._halt(partition, error)
        else:
            self._progress_due(partition)
            if not was_whole and partition.follower.whole:
                self._context.eligibility.requalify(partition)

    def _guard(self, partition: Partition) -> Guard:
        """Guards a step: an error of one partition ends neither the stream nor the following of others."""
        return self._env.failures.guard(
            Kind.PARTITION, str(partition), "following", lambda error: self._halt(partition, error)
        )

    def _halt(self, partition: Partition, error: Exception) -> None:
        try:
            self._context.eligibility.halt(partition, error)
        finally:
            self.leave(partition)

    def _find(self, topic_id: bytes, index: int, epoch: int) -> Partition | None:
        partition = self._by_id.get((topic_id, index))
        return partition if partition is not None and partition.leader_epoch == epoch else None

    def _following(self, following: pb.Following) -> None:
        partition = self._find(following.topic_id, following.partition, following.leader_epoch)
        if partition is None or partition.leads or partition.handle in self._truncating:
            return  # an outdated answer to a repeated request
        start: int = getattr(following, "from")
        with self._guard(partition):
            verdict = judged(partition, following)
            if verdict is TruncationVerdict.REFUSED:
                self._refuse(partition, following)
            elif not following.restart and partition.follower.outdated(
                start, following.leader_epoch, following.clean_end, following.rewrites
            ):
                self._start_over(partition, following, start)
            elif start == partition.log.log_end and not following.restart:
                self._begin(partition, following)
            else:
                self._truncating.add(partition.handle)
                cut = self._truncate(partition, following, start, aside=verdict is TruncationVerdict.ACCEPTED)
                self._env.tasks.spawn(cut, f"truncate {partition}")

    def _start_over(self, partition: Partition, following: pb.Following, start: int) -> None:
        """Discards the log and fetches all of it: it counts as damaged, so it is kept until nothing counts on it."""
        log.warning(
            "%s ends at offset %d, and broker %d has compacted its log up to offset %d: all is fetched again",
            partition, start, self.leader, following.clean_end, extra={"peer_broker": self.leader},
        )  # fmt: skip
        self._unfollow(following)
        partition.log.state.quarantine(partition.log.log_start, partition.log.log_end)
        self._context.eligibility.disqualify(partition)
        state, me = partition.state, self._env.me
        if state is not None and me not in state.in_sync and me not in state.eligible:
            self._request_again(partition, 0)  # else once the cluster knows the damage, see Replicator.mend

    def _unfollow(self, following: pb.Following) -> None:
        self._send(pb.FollowerFrame(unfollow=pb.Unfollow(handle=following.handle, leader_epoch=following.leader_epoch)))

    def _refuse(self, partition: Partition, following: pb.Following, problem: str = "") -> None:
        """Does not follow the leader in this epoch, unless that loss of committed records is accepted."""
        self._refusing[partition.handle] = 0 if partition.state is None else partition.state.loss_accepted
        self._context.conflicts.found(partition, conflict_with(self.leader, partition, following, problem))
        self._unfollow(following)

    async def _give_up(self, partition: Partition, found: GivenUp) -> None:
        """Truncates records that an operator has given up, before this broker reports its log."""
        again_s, at, storage = REFOLLOW_S, found.offset, partition.log
        try:
            if await is_given_up(partition, found):
                log.warning("truncating %s from %d to %d, given up by an operator", partition, at, storage.log_end)
                await partition.follower.truncate(
                    at, partition.leader_epoch, restart=at <= storage.log_start, aside=True
                )
            if storage.log_end <= at or not await is_given_up(partition, found):
                partition.follower.finish_giving_up(found)
        except (NotSetAside, CometError, OSError) as error:
            log.error("cannot truncate %s: %s", partition, error)
            again_s = ASIDE_RETRY_S
        except Exception as error:  # noqa: BLE001 - that partition stops
            self._halt(partition, error)
            return
        finally:
            self._truncating.discard(partition.handle)
        self._request_again(partition, again_s)

    async def _truncate(self, partition: Partition, following: pb.Following, start: int, *, aside: bool) -> None:
        stream = self._stream
        try:
            await partition.follower.truncate(start, following.leader_epoch, restart=following.restart, aside=aside)
        except NotSetAside as error:
            self._refuse(partition, following, str(error))
            self._request_again(partition, ASIDE_RETRY_S)
            partition.reconsider()
            return
        except (CometError, OSError) as error:
            log.error("cannot truncate %s: %s", partition, error)
            if partition.log.failed is not None:
                partition.failed(partition.log.failed)
                self.leave(partition)
            else:
                self._request_again(partition, RETRY_S_MAX)
            return
        except Exception as error:  # noqa: BLE001 - it stops this partition and ends no link
            self._halt(partition, error)
            return
        finally:
            self._truncating.discard(partition.handle)
            self._context.log_ends.update(partition)
        if partition.leads or self.wanted.get(partition.handle) is not partition:
            return
        if self._stream is not stream or partition.leader_epoch != following.leader_epoch:
            self._request_again(partition, 0)
        elif partition.log.log_end != start:
            self._request_again(partition, REFOLLOW_S)  # the agreed offset lies within a batch: agree on an earlier one
        else:
            with self._guard(partition):
                self._begin(partition, following)

    def _begin(self, partition: Partition, following: pb.Following) -> None:
        self._theirs[partition.handle] = following.handle
        self._by_handle[following.handle] = (partition, following.leader_epoch)
        partition.follower.begin(following.leader_epoch, following.clean_end, following.rewrites)
        partition.follower.learn(following.leader_epoch, following.high_watermark)
        self._progress_due(partition)
        self._refusing.pop(partition.handle, None)
        self._context.conflicts.settled(partition)
        self._context.eligibility.requalify(partition)
        self._delete_records(partition, following.log_start)

    def _delete_records(self, partition: Partition, log_start: int) -> None:
        """Deletes the records that the leader has deleted: they must not come back, and no comparison shows them."""
        if log_start > partition.log.log_start and partition.handle not in self._deleting_records:
            self._deleting_records.add(partition.handle)
            self._env.tasks.spawn(self._forget_before(partition, log_start), f"delete records of {partition}")

    async def _forget_before(self, partition: Partition, log_start: int) -> None:
        try:
            await partition.housekeeping.delete_before(min(log_start, partition.log.log_end))
        except (CometError, OSError) as error:
            log.warning("%s still starts at %d: %s", partition, partition.log.log_start, error)
        finally:
            self._deleting_records.discard(partition.handle)

    def _refused(self, refused: pb.Refused) -> None:
        partition = self._find(refused.topic_id, refused.partition, refused.leader_epoch)
        if partition is None:
            return
        error = error_from_pb(refused.error)
        log.debug(
            "broker %d refuses to be followed in %s: %s",
            self.leader,
            partition,
            error,
            extra={"peer_broker": self.leader},
        )
        if isinstance(error, DataLoss) and self._missing.get(partition.handle) != error.message:
            self._missing[partition.handle] = error.message
            log.error(
                "%s cannot follow broker %d, its only in-sync replica: %s. This replica stays out of sync until the "
                "records before offset %s are deleted (comet topic delete-records)",
                partition, self.leader, error, error.details.get("end", "the end of the damage"),
                extra={"peer_broker": self.leader},
            )  # fmt: skip
        after_s = max(error.retry_after_ms / 1000, REFOLLOW_S)
        self._request_again(partition, after_s if error.retriable else RETRY_S_MAX)

    # ---- life

    def check_address(self) -> None:
        """Reconnects if the leader's address has changed: at the old one no process may be left to answer."""
        if self._stream is not None and self._moved_away():
            self.renew()

    def _moved_away(self) -> bool:
        return self._context.view.address_of(self.leader) not in (None, self._address)

    def renew(self) -> None:
        """Connects again, at once."""
        if self._stream is not None:
            self._stream.cancel()
        self._again.set()

    def stop(self) -> None:
        self._task.cancel()

    def statistics(self) -> dict[str, Any]:
        return {"leader": self.leader, "wanted": len(self.wanted), "following": len(self._theirs)}
