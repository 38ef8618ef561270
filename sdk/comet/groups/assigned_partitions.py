"""The partitions that are assigned to a group consumer: gained, released and lost while it reads.

    Changes ─► gained     read from what is committed, or from `start`
           ├─► release    no more records; processed, committed, then released
           └─► lost       no more records; another member has it

Asking for the next record marks the previous one as processed; processed records are committed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

from comet import limits
from comet.client.client import Client
from comet.client.retry import Backoff
from comet.consumer.broker_subscription import PartitionSubscription
from comet.consumer.iteration import RecordIterator
from comet.errors import Closed, CometError
from comet.groups.commits import Commits, OffsetToCommit
from comet.groups.member import Member
from comet.groups.membership import Changes, Given
from comet.groups.options import Holding, OnPartitions
from comet.types import AtOffset, Earliest, Position, TopicPartition
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb

log = logging.getLogger("comet")

T = TypeVar("T")


class AssignedPartitions(RecordIterator[T]):
    """The base of GroupConsumer: reads the partitions that are assigned to it. GroupConsumer sets these attributes."""

    auto_commit: bool
    _client: Client
    _member: Member
    _commits: Commits
    _start_at: Position
    _callbacks: dict[str, OnPartitions | None]
    _holdings: dict[TopicPartition, Holding]
    _returned: asyncio.Future[None] | None  # the next time that something is handed back
    _closed: bool

    @property
    def group(self) -> str:
        """The group's name."""
        return self._member.group

    # ---- what the group gives and takes

    def _changed(self, changes: Changes) -> None:
        for place in changes.lost:
            self._let_go(self._holdings.pop(place))
        if changes.lost:
            self._notify("lost", list(changes.lost))
        self._gain(changes.gained)
        if changes.release and not self._closed:  # perhaps what was gained just now
            requested = [self._holdings[place] for place in changes.release]
            self._release([one for one in requested if not one.releasing])
        if changes.over is not None:
            self._fetcher.fail(changes.over)

    def _gain(self, gained: Sequence[Given]) -> None:
        unknown: list[Holding] = []
        for given in gained:
            holding = self._holdings[given.place] = Holding(given)
            if given.offset is None:
                unknown.append(holding)
            else:
                self._read(holding, AtOffset(given.offset), given.epoch)
        if unknown:
            self._client.spawn(self._begin(unknown))
        if gained:
            self._notify("assigned", [given.place for given in gained])
            if self._closed:  # it is about to leave, and has given up all it had before
                self._notify("revoked", [given.place for given in gained])

    def _read(self, holding: Holding, where: Position, epoch: int | None = None) -> None:
        holding.reader = self._fetcher.assign(holding.place, holding.given.topic_id, where, epoch)
        if holding.reader.position >= 0:
            holding.begin()

    def _let_go(self, holding: Holding) -> None:
        """Stops handing out its records."""
        holding.begin()
        if holding.reader is not None and self._fetcher.readers.get(holding.place) is holding.reader:
            self._fetcher.unassign(holding.place)
            self._drop(holding.reader)

    async def _begin(self, holdings: list[Holding]) -> None:
        """Starts partitions without a committed offset: at `start`, but at the beginning if the group reads the topic
        already, since then the partition was added later and all its records are new."""
        entries = {} if isinstance(self._start_at, Earliest) else await self._known_offsets(holdings)
        if entries is None:
            return
        topics = {topic_id for topic_id, _ in entries}
        for holding in holdings:
            if not self._holds(holding) or holding.reader is not None:
                continue
            topic_id = holding.given.topic_id
            entry = entries.get((topic_id, holding.place.partition))
            if entry is not None:
                holding.committed = entry.offset
                self._read(
                    holding, AtOffset(entry.offset), entry.leader_epoch if entry.HasField("leader_epoch") else None
                )
            else:
                self._read(holding, Earliest() if topic_id in topics else self._start_at)

    async def _known_offsets(
        self, holdings: list[Holding]
    ) -> dict[tuple[bytes, int], groups_pb.PartitionOffset] | None:
        backoff = Backoff(self._client.random)
        fetch = pb.ClientFrame(fetch_committed=groups_pb.FetchCommitted(group=self.group))
        while any(map(self._holds, holdings)):
            try:
                answer = (await self._member.coordinator.request(fetch)).committed
            except Closed:
                return None
            except CometError as error:
                log.warning("comet: group %s: where to begin is not known yet: %s", self.group, error)
                await asyncio.sleep(backoff.next_s(error.retry_after_ms))
                continue
            return {(topic.topic_id, entry.partition): entry for topic in answer.topics for entry in topic.offsets}
        return None

    def _begun(self, reader: PartitionSubscription) -> None:
        """The position of a partition is known; a first one is committed for the group."""
        holding = self._holdings.get(reader.place)
        if holding is not None and holding.reader is reader:
            holding.begin()
            if holding.first is None:
                holding.first = reader.position
            if holding.committed is None:
                self._commits.add([self._mark(holding, holding.first)])

    def _holds(self, holding: Holding) -> bool:
        return self._holdings.get(holding.place) is holding

    # ---- giving up

    def _release(self, holdings: list[Holding]) -> None:
        """Releases partitions; those that the application is processing do not delay the others."""
        busy = [one for one in holdings if self._in_hand(one)]
        free = [one for one in holdings if one not in busy]
        for holding in holdings:
            holding.releasing = True
            if holding.begun.done():
                self._let_go(holding)
        for some in (free, busy):
            if some:
                self._client.spawn(self._give_up(some))

    async def _give_up(self, holdings: list[Holding]) -> None:
        await asyncio.wait([one.begun for one in holdings], timeout=limits.FIRST_POSITION_MS / 1000)
        for holding in holdings:
            if self._holds(holding):
                self._let_go(holding)
        while any(map(self._in_hand, holdings)):
            await self._next_return()
        await self._revoke(holdings)
        try:
            await self._commits.commit(self._due(holdings))
        except CometError as error:
            log.warning("comet: group %s: released without its last commit: %s", self.group, error)
        released: list[tuple[TopicPartition, bytes]] = []
        for holding in holdings:
            if self._holds(holding) and self._member.state.released(holding.place, holding.given.since):
                del self._holdings[holding.place]
                released.append((holding.place, holding.given.topic_id))
        if released:
            await self._member.release(released)

    async def _revoke(self, holdings: Iterable[Holding]) -> None:
        """Calls `on_revoked` once, and waits for it."""
        notified = [one for one in holdings if self._holds(one) and not one.revoked]
        for holding in notified:
            holding.revoked = True
        await self._call("revoked", sorted(one.place for one in notified))

    def _in_hand(self, holding: Holding) -> bool:
        """Whether the application is processing records of that partition. With commits of its own and an `on_revoked`,
        it finishes them there instead."""
        if not self.auto_commit and self._callbacks["revoked"] is not None:
            return False
        if holding.reader is None:
            return False
        mine = self._reader is holding.reader and (self._last is not None or self._whole_from is not None)
        return mine or holding.reader in self._held

    def _handed_back(self) -> None:
        super()._handed_back()
        if self._returned is not None:
            self._returned.set_result(None)
            self._returned = None

    async def _next_return(self) -> None:
        if self._returned is None:
            self._returned = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._returned)

    # ---- callbacks

    def _notify(self, which: str, places: list[TopicPartition]) -> None:
        """Calls a callback; an awaitable that it returns is awaited in the background."""
        outcome = self._run_callback(which, places)
        if outcome is not None:
            self._client.spawn(self._finish(which, outcome))

    async def _call(self, which: str, places: list[TopicPartition]) -> None:
        outcome = self._run_callback(which, places) if places else None
        if outcome is not None:
            await self._finish(which, outcome)

    def _run_callback(self, which: str, places: list[TopicPartition]) -> Awaitable[None] | None:
        callback = self._callbacks[which]
        try:
            outcome = None if callback is None else callback(places)
        except Exception:
            log.exception("comet: group %s: on_%s failed", self.group, which)
            return None
        return outcome if inspect.isawaitable(outcome) else None

    async def _finish(self, which: str, outcome: Awaitable[None]) -> None:
        try:
            await outcome
        except Exception:
            log.exception("comet: group %s: on_%s failed", self.group, which)

    # ---- how far it has come

    def _done(self, reader: PartitionSubscription) -> int:
        """The offset up to which the application has processed a partition."""
        done = self._held.get(reader, reader.position)
        if self._reader is reader:
            if self._last is not None:
                return min(self._last.offset, done)
            if self._whole_from is not None:
                return min(self._whole_from, done)
        return done

    def _position(self, reader: PartitionSubscription) -> int:
        """The offset after the last record handed out."""
        return self._last.offset + 1 if self._reader is reader and self._last is not None else reader.position

    def _mark(self, holding: Holding, offset: int) -> OffsetToCommit:
        epoch = None if holding.reader is None else holding.reader.epoch_before(offset)
        return OffsetToCommit(holding.place, holding.given.topic_id, holding.given.since, offset, epoch)

    def _due(self, holdings: Iterable[Holding] | None = None) -> list[OffsetToCommit]:
        """Offsets that can be committed and are not: with auto_commit the processed ones, else only first positions."""
        found: list[OffsetToCommit] = []
        for holding in self._holdings.values() if holdings is None else filter(self._holds, holdings):
            if holding.reader is None or holding.reader.position < 0:
                continue
            if not self.auto_commit and holding.committed is not None:
                continue
            done = self._done(holding.reader) if self.auto_commit or holding.first is None else holding.first
            if holding.committed is None or done > holding.committed:
                found.append(self._mark(holding, done))
        return found

    def _was_committed(self, place: TopicPartition, since: int, offset: int) -> None:
        holding = self._holdings.get(place)
        if holding is not None and holding.given.since == since:
            holding.committed = max(offset, -1 if holding.committed is None else holding.committed)
