"""The broker of sdk_fake with groups: a coordinator that a test directs, or that gives everything to whoever joins.

`give` says what a member owns from now on and what of that it is to release; `entries` is what is committed; `commits`,
`released` and `left` are what members have said. `refuse` decides what is said to a request instead of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from comet.errors import CometError, MemberUnknown, NotCoordinator, StaleGeneration
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from comet.wire import protobuf
from tests.unit.sdk_fake import ADDRESS, FakeBroker, FakeChannel, FakeStream

PartitionName = tuple[str, int]  # topic, partition

Owner = tuple[str, int]  # member, and the generation since when


class GroupStream(FakeStream):
    broker: GroupBroker

    def _check(self, kind: str, frame: Any) -> None:
        error = self.broker.refuse(kind, frame)
        if error is not None:
            raise error

    def _known(self, member: str) -> None:
        if member not in self.broker.members:
            raise MemberUnknown("who is this? join again")
        self.broker.heard[member] = self.broker.heard.get(member, 0) + 1

    def _on_join(self, request: int, join: groups_pb.Join) -> None:
        self._check("join", join)
        self.broker.joins.append(join)
        if join.member:
            self._known(join.member)
        member = join.member or self.broker.new_member(join)
        self.broker.members[member] = self
        joined = groups_pb.Joined(
            member=member, generation=self.broker.generation, heartbeat_ms=self.broker.heartbeat_ms,
            session_timeout_ms=join.session_timeout_ms,
        )  # fmt: skip
        self.send(pb.ServerFrame(request=request, joined=joined))
        if join.member or not self.broker.automatic:
            self.broker.tell(member)
        else:
            self.broker.give(member, self.broker.tps(join.topics))

    def _on_heartbeat(self, request: int, heartbeat: groups_pb.Heartbeat) -> None:
        self._check("heartbeat", heartbeat)
        self._known(heartbeat.member)

    def _on_release(self, request: int, release: groups_pb.Release) -> None:
        self._check("release", release)
        self._known(release.member)
        for topic in release.partitions:
            for partition in topic.partitions:
                self.broker.released.append((topic.topic, partition))
                self.broker.owners.pop((topic.topic, partition), None)
        self.send(pb.ServerFrame(request=request, released=groups_pb.Released()))

    def _on_leave(self, request: int, leave: groups_pb.Leave) -> None:
        self._check("leave", leave)
        self.broker.left.append(leave.member)
        self.broker.members.pop(leave.member, None)
        self.send(pb.ServerFrame(request=request, left=groups_pb.Left()))

    def _on_commit(self, request: int, commit: groups_pb.Commit) -> None:
        self._check("commit", commit)
        if commit.member:
            self._known(commit.member)
        self.broker.commits.append(commit)
        self.send(pb.ServerFrame(request=request, committed=self.broker.commit(commit)))

    def _on_fetch_committed(self, request: int, fetch: groups_pb.FetchCommitted) -> None:
        self._check("fetch_committed", fetch)
        answer = groups_pb.Committed()
        for (topic, partition), (offset, epoch) in sorted(self.broker.committed.items()):
            found = answer.topics.add(topic=topic, topic_id=self.broker.ids[topic])
            found.offsets.add(partition=partition, offset=offset, leader_epoch=epoch)
        self.send(pb.ServerFrame(request=request, committed=answer))


class GroupChannel(FakeChannel):
    def stream(self) -> FakeStream:
        stream = super().stream()
        stream.__class__ = GroupStream
        return stream


class GroupBroker(FakeBroker):
    def __init__(self, topics: dict[str, int] | None = None) -> None:
        super().__init__(topics)
        self.automatic = True
        self.generation = 1
        self.heartbeat_ms = 1_000
        self.members: dict[str, FakeStream] = {}
        self.owners: dict[PartitionName, Owner] = {}
        self.committed: dict[PartitionName, tuple[int, int | None]] = {}
        self.heard: dict[str, int] = {}
        self.joins: list[groups_pb.Join] = []
        self.commits: list[groups_pb.Commit] = []
        self.released: list[PartitionName] = []
        self.left: list[str] = []
        self.refuse_offset: Callable[[PartitionName], CometError | None] = lambda tp: None
        self.refuse: Callable[[str, Any], CometError | None] = lambda kind, frame: None
        self._members = 0

    def connect(self, address: str) -> FakeChannel:
        return GroupChannel(self, address)

    def new_member(self, join: groups_pb.Join) -> str:
        self._members += 1
        return f"{join.client or 'member'}-{self._members}"

    def tps(self, topics: Iterable[str]) -> list[PartitionName]:
        return [(topic, partition.index) for topic in topics for partition in self.topics.get(topic, ())]

    def give(self, member: str, tps: Iterable[PartitionName], release: Iterable[PartitionName] = ()) -> None:
        """The member owns these from now on, in a new generation; what it had before it has since then."""
        self.generation += 1
        wanted = set(tps)
        for tp, (owner, _) in list(self.owners.items()):
            if owner == member and tp not in wanted:
                del self.owners[tp]
        for tp in wanted:
            if self.owners.get(tp, ("", 0))[0] != member:
                self.owners[tp] = member, self.generation
        self.tell(member, release)

    def tell(self, member: str, release: Iterable[PartitionName] = ()) -> None:
        assignment = groups_pb.Assignment(group=self.group_of(member), member=member, generation=self.generation)
        for (topic, partition), (owner, since) in sorted(self.owners.items()):
            if owner == member:
                offset, epoch = self.committed.get((topic, partition), (None, None))
                owned = assignment.owned.add(topic=topic, topic_id=self.ids[topic])
                owned.partitions.add(partition=partition, since=since, offset=offset, leader_epoch=epoch)
        for topic, partition in release:
            assignment.release.add(topic=topic, topic_id=self.ids[topic], partitions=[partition])
        self.members[member].send(pb.ServerFrame(assignment=assignment))

    def group_of(self, member: str) -> str:
        return self.joins[-1].group

    def evict(self, member: str, error: CometError) -> None:
        stream = self.members[member]
        if not isinstance(error, NotCoordinator):
            del self.members[member]
            self.owners = {tp: owner for tp, owner in self.owners.items() if owner[0] != member}
        evicted = groups_pb.Evicted(group=self.group_of(member), member=member, error=protobuf.error_to_pb(error))
        stream.send(pb.ServerFrame(evicted=evicted))

    def commit(self, commit: groups_pb.Commit) -> groups_pb.Committed:
        answer = groups_pb.Committed()
        for topic in commit.topics:
            assert topic.topic_id == self.ids[topic.topic]
            for entry in topic.offsets:
                tp = topic.topic, entry.partition
                owner, since = self.owners.get(tp, ("", 0))
                refusal = self.refuse_offset(tp)
                if refusal is not None:
                    answer.refused.add(
                        topic=topic.topic, partition=entry.partition, error=protobuf.error_to_pb(refusal)
                    )
                    continue
                if owner != commit.member or commit.generation < since:
                    error = protobuf.error_to_pb(StaleGeneration("it is another's"))
                    answer.refused.add(topic=topic.topic, partition=entry.partition, error=error)
                    continue
                known, _ = self.committed.get(tp, (-1, None))
                if entry.offset > known:
                    self.committed[tp] = entry.offset, entry.leader_epoch if entry.HasField("leader_epoch") else None
                committed = answer.topics.add(topic=topic.topic, topic_id=topic.topic_id)
                committed.offsets.add(partition=entry.partition, offset=self.committed[tp][0])
        return answer

    def answer(self, method: str, request: Any) -> Any:
        if method == "comet.v1.Comet/FindCoordinator":
            host, port = ADDRESS.split(":")
            return groups_pb.FindCoordinatorResponse(slot=1, broker=1, host=host, port=int(port))
        return super().answer(method, request)
