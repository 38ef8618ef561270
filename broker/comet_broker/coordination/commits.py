"""The commits of one slot: offsets of its groups, from members, from clients without a membership, and in transactions.

    Commit ─► the log ends that are not known here ─► admitted by the fence ─► the group writes them ─► Committed

Everything from the fence to the queued write happens in one turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from comet.errors import CometError, GroupNotEmpty, InvalidArgument
from comet.v1 import groups_pb2 as pb
from comet.v1 import records_pb2 as records_pb
from comet_broker import limits
from comet_broker.coordination.committed_offsets import Admitted
from comet_broker.coordination.fence import admit, partitions_of
from comet_broker.coordination.group import MemberConnection
from comet_broker.coordination.group_messages import committed
from comet_broker.coordination.groups import Groups
from comet_broker.coordination.journal import Operation, Written
from comet_broker.core.group_members import CONSUMER
from comet_broker.env import Env


class Commits:
    """Owned by the slot."""

    def __init__(self, groups: Groups, env: Env) -> None:
        self._groups = groups
        self._logs = groups.logs
        self._clock = env.clock

    def commit(self, stream: MemberConnection, request: int, commit: pb.Commit) -> None:
        """Handles a commit, in the order of frames if the log ends are known. A member may commit and release without
        waiting in between."""
        if self._logs.known(partitions_of(commit, self._logs)):
            self._commit(stream, request, commit)
        else:
            stream.spawn(request, self._commit_later(stream, request, commit))

    async def _commit_later(self, stream: MemberConnection, request: int, commit: pb.Commit) -> None:
        await self.learn_ends(commit)
        self._groups.check_open()
        try:
            self._commit(stream, request, commit)
        except CometError:
            raise
        except Exception as error:
            raise self._groups.halt(commit.group, "commit", error) from error

    def _commit(self, stream: MemberConnection, request: int, commit: pb.Commit) -> None:
        admitted = self.admit(commit)

        def done(error: CometError | None) -> None:
            if error is None:
                stream.send(records_pb.ServerFrame(request=request, committed=admitted.committed()))
            else:
                stream.fail(request, error)

        writer = self._groups.make(commit.group).writer
        writer.last_commit_us = self._clock.wall_us()
        writer.commit(admitted, done)

    async def fetch_committed(self, fetch: pb.FetchCommitted) -> pb.Committed:
        group = self._groups.find(fetch.group)
        if group is None:
            return pb.Committed()
        await group.writer.caught_up()
        return committed(group.offsets, fetch.topics)

    # ---- for transactions: await learn_ends(commit), then in one turn admit(commit), check `refused`, and write

    async def learn_ends(self, commit: pb.Commit) -> None:
        """Makes sure that the log ends that `admit` needs are known here."""
        if sum(len(topic.offsets) for topic in commit.topics) > limits.COMMIT_OFFSETS_MAX:
            raise InvalidArgument(f"a commit holds at most {limits.COMMIT_OFFSETS_MAX} offsets")
        await self._logs.learn(partitions_of(commit, self._logs))

    def admit(self, commit: pb.Commit) -> Admitted:
        """Checks the fences of a commit now; refused offsets are in `refused`. Changes nothing.

        Raises MemberUnknown, MemberFenced, GroupNotEmpty or InvalidArgument.
        """
        if commit.member:
            group = self._groups.known(commit.group)
            group.machine.heard_from(commit.member, self._clock.monotonic())
        else:
            group = self._groups.make(commit.group)
            if group.machine.members:
                raise GroupNotEmpty(f"group {group.name!r} has members: only they commit its offsets")
        if group.machine.kind != CONSUMER:
            raise InvalidArgument(f"group {group.name!r} is a share group: acknowledge its records instead")
        return admit(group, commit, self._logs, up_to_date=self._groups.topics.up_to_date)

    def write(self, admitted: Admitted, operations: Sequence[Operation], done: Written) -> None:
        """Writes the admitted offsets and `operations` in one journal write: both or neither. In the same turn as
        `admit`. After done(None), `admitted.committed()` is the answer."""
        if self._groups.closed is not None:
            done(self._groups.closed)
        else:
            writer = self._groups.make(admitted.group).writer
            if admitted.entries:
                writer.last_commit_us = self._clock.wall_us()
            writer.write(admitted, operations, done)
