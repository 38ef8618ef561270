"""A member of a group: joins, sends heartbeats, joins again after any interruption, and leaves.

    Member ──Join, Heartbeat, Release, Leave──► coordinator
           ◄─ Assignment, Evicted ─────────────
           ──► changed(Changes): actions for the consumer that owns it, in order; must not wait

The state machine is in membership.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from comet import limits
from comet.client.client import Client
from comet.client.coordinator import Coordinator
from comet.client.retry import Backoff
from comet.client.watchdog import Watch
from comet.errors import Closed, CometError, Internal, MemberUnknown, NotCoordinator
from comet.groups.membership import AssignedPartition, Changes, Membership, Phase
from comet.groups.missing_topics import report_missing
from comet.types import TopicPartition
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from comet.wire.protobuf import error_from_pb

log = logging.getLogger("comet")


class Member:
    """A member; owned by one consumer, on its loop."""

    def __init__(self, client: Client, join: groups_pb.Join, changed: Callable[[Changes], None], watch: Watch) -> None:
        self.group = join.group
        self.state = Membership()
        self.coordinator = Coordinator(client, join.group)
        self._client = client
        self._join_frame = join
        self._changed = changed
        self._watch = watch
        self._heartbeat_s = 0.0
        self._early: list[pb.ServerFrame] = []  # frames that came before the answer to Join
        self._joining: asyncio.Task[None] | None = None
        self._again = False
        self._timer: asyncio.TimerHandle | None = None
        self._first: asyncio.Future[None] | None = None  # the first assignment
        self._missing: asyncio.Task[None] | None = None  # reports missing topics

    # ---- life

    async def start(self) -> None:
        """Joins; returns once it has its first assignment. Raises what it was refused with."""
        if self._first is None:
            self._first = asyncio.get_running_loop().create_future()
            self.coordinator.listen(self._pushed, self._moved)
            self._join_soon()
        await asyncio.shield(self._first)
        if self._missing is None:
            named = report_missing(self._client, self.group, self._join_frame.topics, lambda: set(self.state.owned))
            self._missing = self._client.spawn(named)

    def topics_found(self) -> bool:
        """Whether every topic that it names exists, as far as is known: it waits for no topic."""
        if self._missing is None:
            return False
        return self._missing.done() or set(self._join_frame.topics) <= {topic for topic, _ in self.state.owned}

    async def leave(self, *, farewell: bool) -> None:
        """Ends the membership. Without Leave its partitions are kept for the session timeout."""
        was_in = self.state.phase is Phase.IN
        member = self.state.member
        self.state.left()
        self._stop()
        if self._joining is not None:
            self._joining.cancel()
        if farewell and was_in:
            leave = pb.ClientFrame(leave=groups_pb.Leave(group=self.group, member=member))
            try:
                await self.coordinator.request(leave, limits.LEAVE_TIMEOUT_MS)
            except CometError as error:
                log.info(
                    "comet: group %s: Leave failed, so the session has to time out: %s",
                    self.group,
                    error,
                    extra={"group": self.group},
                )
        self._settle_first(Closed("the consumer was closed"))

    def _stop(self) -> None:
        self._watch.stop()
        if self._missing is not None:
            self._missing.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _settle_first(self, error: CometError | None) -> None:
        if self._first is not None and not self._first.done():
            if error is None:
                self._first.set_result(None)
            else:
                self._first.set_exception(error)
                self._first.exception()

    # ---- joining

    def _join_soon(self) -> None:
        self._again = True
        if self._joining is None or self._joining.done():
            self._joining = self._client.spawn(self._join())
            self._joining.add_done_callback(self._join_ended)

    async def _join(self) -> None:
        backoff = Backoff(self._client.random, max_ms=limits.BACKOFF_MAX_MS)
        while self._again and self.state.must_join:
            self._again = False
            try:
                answer = await self.coordinator.request(pb.ClientFrame(join=self._frame()))
            except CometError as error:
                if isinstance(error, Closed):
                    raise
                if self._first is not None and not self._first.done() and self.state.must_join:
                    raise  # to the caller of start; later joins are retried
                log.warning("comet: group %s: join failed: %s", self.group, error, extra={"group": self.group})
                self._act(self.state.refused(error))
                await asyncio.sleep(backoff.next_s(error.retry_after_ms))
                continue
            self._joined(answer.joined)
            if self._again:  # the stream ended after the answer to Join arrived
                self._act(self.state.disconnected())

    def _frame(self) -> groups_pb.Join:
        frame = groups_pb.Join()
        frame.CopyFrom(self._join_frame)
        frame.member, frame.generation = self.state.member, self.state.generation
        for topic, topic_id, partitions in self.state.still_read():
            frame.owned.add(topic=topic, topic_id=topic_id, partitions=partitions)
        return frame

    def _joined(self, joined: groups_pb.Joined) -> None:
        self._act(self.state.joined(joined.member, joined.generation))
        self._heartbeat_s = (joined.heartbeat_ms or limits.SESSION_TIMEOUT_MS // 4) / 1000
        session_ms = joined.session_timeout_ms or self._join_frame.session_timeout_ms or limits.SESSION_TIMEOUT_MS
        self._watch.start(f"group {self.group}", session_ms / 1000)
        if self._timer is not None:
            self._timer.cancel()
        self._schedule()
        early, self._early = self._early, []
        for frame in early:
            self._pushed(frame)

    def _join_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or self.state.phase is Phase.OVER:
            return
        if error is None:
            if self._again and self.state.must_join:
                self._join_soon()
            return
        if isinstance(error, Closed):
            return
        if not isinstance(error, CometError):
            log.error(
                "comet: group %s: unexpected error in joining", self.group, exc_info=error, extra={"group": self.group}
            )
            error = Internal(f"unexpected error in joining group {self.group!r}: {error!r}")
        self._act(Changes(over=error))

    # ---- frames of the coordinator

    def _pushed(self, frame: pb.ServerFrame) -> None:
        if not self.state.member:
            if len(self._early) < limits.PUSHES_STORED_MAX:
                self._early.append(frame)
            return
        if frame.WhichOneof("frame") == "evicted":
            self._evicted(frame.evicted.member, error_from_pb(frame.evicted.error))
        else:
            self._assigned(frame.assignment)

    def _assigned(self, assignment: groups_pb.Assignment) -> None:
        assigned = [
            AssignedPartition(
                TopicPartition(topic.topic, one.partition),
                topic.topic_id,
                one.since,
                one.offset if one.HasField("offset") else None,
                one.leader_epoch if one.HasField("leader_epoch") else None,
            )
            for topic in assignment.owned
            for one in topic.partitions
        ]
        release = [
            TopicPartition(topic.topic, partition) for topic in assignment.release for partition in topic.partitions
        ]
        self._act(self.state.assigned(assignment.member, assignment.generation, assigned, release))
        if assignment.member == self.state.member:
            self._settle_first(None)

    def _evicted(self, member: str, error: CometError) -> None:
        connection = self.coordinator.connected
        if isinstance(error, NotCoordinator) and connection is not None and member == self.state.member:
            self.coordinator.misled(connection, error)  # the group has moved to another coordinator
            return
        self._act(self.state.evicted(member, error))

    def _moved(self, error: CometError) -> None:
        if self.state.phase is Phase.IN:
            log.info(
                "comet: group %s: looking up the coordinator again: %s", self.group, error, extra={"group": self.group}
            )
        self._act(self.state.disconnected())

    def check_membership(self, error: CometError) -> None:
        """Handles an error of a request that means that the member was removed or fenced."""
        if isinstance(error, MemberUnknown) or error.code == "MEMBER_FENCED":
            self._act(self.state.evicted(self.state.member, error))

    def refused_offset(self, tp: TopicPartition, since: int, error: CometError) -> None:
        self._act(self.state.refused_offset(tp, since, error))

    def _act(self, changes: Changes) -> None:
        if changes.lost:
            named = ", ".join(f"{topic}/{partition}" for topic, partition in changes.lost)
            why = "the group no longer assigns them to this member" if changes.why is None else str(changes.why)
            held_up = self._watch.explain()
            log.warning(
                "comet: group %s: lost %s: %s%s",
                self.group,
                named,
                why,
                f"; {held_up}" if held_up else "",
                extra={"group": self.group},
            )
        if changes.over is not None:
            self.state.phase = Phase.OVER
            self._stop()
            self._settle_first(changes.over)
        if changes:
            self._changed(changes)
        if changes.join:
            self._join_soon()

    # ---- heartbeats

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._heartbeat_s, self._beat)

    def _beat(self) -> None:
        if self.state.phase is Phase.OVER:
            return
        state = self.state
        if state.phase is Phase.IN:
            heartbeat = groups_pb.Heartbeat(group=self.group, member=state.member, generation=state.generation)
            connection = self.coordinator.connected

            def refused(error: CometError) -> None:
                if error.metadata_stale and connection is not None:
                    self.coordinator.misled(connection, error)
                else:
                    self.check_membership(error)

            self.coordinator.notify(pb.ClientFrame(heartbeat=heartbeat), refused)
        self._schedule()

    # ---- releasing

    async def release(self, released: Iterable[tuple[TopicPartition, bytes]]) -> None:
        """Reports released partitions to the coordinator."""
        frame = groups_pb.Release(group=self.group, member=self.state.member, generation=self.state.generation)
        topics: dict[tuple[str, bytes], list[int]] = {}
        released = list(released)
        for tp, topic_id in released:
            topics.setdefault((tp.topic, topic_id), []).append(tp.partition)
        for (topic, topic_id), partitions in topics.items():
            frame.partitions.add(topic=topic, topic_id=topic_id, partitions=sorted(partitions))
        try:
            await self.coordinator.request(pb.ClientFrame(release=frame))
        except CometError as error:
            self.state.release_failed(tp for tp, _ in released)
            self.check_membership(error)
