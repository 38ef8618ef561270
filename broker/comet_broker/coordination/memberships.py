"""The members of the groups of one slot, as their streams join, send heartbeats, release partitions and leave."""

from __future__ import annotations

from typing import Final

from comet.errors import CometError, InvalidArgument
from comet.types import check_topic_name
from comet.v1 import groups_pb2 as pb
from comet.v1 import records_pb2 as records_pb
from comet_broker import limits
from comet_broker.coordination.group import MemberConnection
from comet_broker.coordination.group_messages import evicted
from comet_broker.coordination.groups import Groups
from comet_broker.core.assignment import STICKY
from comet_broker.core.group_members import CONSUMER, Claim
from comet_broker.env import Env

SESSION_MS: Final = 10_000
RELEASE_MS: Final = 60_000


class Memberships:
    """Owned by the slot."""

    def __init__(self, groups: Groups, env: Env) -> None:
        self._groups = groups
        self._clock = env.clock
        self._random = env.random
        self._streams: dict[MemberConnection, set[tuple[str, str]]] = {}  # group and member

    def join(self, stream: MemberConnection, request: int, join: pb.Join) -> None:
        claim = _claim(join)
        group = self._groups.make(join.group)
        machine = group.machine
        if machine.kind != claim.kind and not machine.members:
            if group.exists or group.offsets:
                raise InvalidArgument(
                    f"group {group.name!r} is of the other kind (consumer or share group); delete it first"
                )
            machine.kind = claim.kind
        try:
            member = group.join(stream, request, claim, self._new_id)
        except CometError as error:
            if claim.member:
                stream.send(evicted(join.group, claim.member, error))
            raise
        self._streams.setdefault(stream, set()).add((group.name, member))

    def _new_id(self) -> str:
        return f"{self._random.getrandbits(96):024x}"

    def heartbeat(self, stream: MemberConnection, heartbeat: pb.Heartbeat) -> None:
        try:
            self._groups.known(heartbeat.group).machine.heard_from(heartbeat.member, self._clock.monotonic())
        except CometError as error:
            stream.fail(0, error)
            stream.send(evicted(heartbeat.group, heartbeat.member, error))

    def stream_heard(self, stream: MemberConnection) -> None:
        """Counts as a heartbeat of each member of a stream that is not read for a while."""
        for name, member in self._streams.get(stream, ()):
            group = self._groups.get(name)
            if group is not None and group.streams.get(member) is stream and member in group.machine.members:
                group.machine.heard_from(member, self._clock.monotonic())

    def leave(self, stream: MemberConnection, request: int, leave: pb.Leave) -> None:
        """Removes a member; leaving twice is no error."""
        group = self._groups.find(leave.group)
        if group is None or leave.member not in group.machine.members:
            stream.send(records_pb.ServerFrame(request=request, left=pb.Left()))
            return
        self._streams.get(stream, set()).discard((group.name, leave.member))
        group.leave(stream, request, leave.member)

    def release(self, stream: MemberConnection, request: int, release: pb.Release) -> None:
        tps = [(topic.topic_id.hex(), index) for topic in release.partitions for index in topic.partitions]
        self._groups.known(release.group).release(stream, request, release.member, tps, release.generation)

    def stream_closed(self, stream: MemberConnection) -> None:
        """Detaches the stream from its members, which have the rest of their session timeouts to come back."""
        for name, member in self._streams.pop(stream, ()):
            group = self._groups.get(name)
            if group is not None and group.streams.get(member) is stream:
                del group.streams[member]

    def close(self, _: CometError) -> None:
        """The slot is over; its groups have evicted their members."""
        self._streams.clear()


def _claim(join: pb.Join) -> Claim:
    if len(join.topics) > limits.JOIN_TOPICS_MAX:
        raise InvalidArgument(f"a member subscribes to at most {limits.JOIN_TOPICS_MAX} topics; use a pattern")
    return Claim(
        member=join.member,
        instance=join.instance,
        client=_printable(join.client),
        topics=tuple(sorted({check_topic_name(name) for name in join.topics})),
        pattern=join.pattern,
        kind=join.kind or CONSUMER,
        session_ms=join.session_timeout_ms or SESSION_MS,
        release_ms=join.release_timeout_ms or RELEASE_MS,
        assignment=join.assignment or STICKY,
        rack=_printable(join.rack),
    )


def _printable(name: str) -> str:
    """A name for people, without characters that would need more bytes in the record than they have letters."""
    cleaned = "".join(character for character in name[: limits.CLIENT_NAME_BYTES_MAX] if character.isprintable())
    short = cleaned.replace("\\", "/").replace('"', "'").encode()[: limits.CLIENT_NAME_BYTES_MAX]
    return short.decode(errors="ignore")
