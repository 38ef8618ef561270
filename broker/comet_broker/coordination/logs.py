"""A coordinator's knowledge of logs on all brokers: the topics, and the ends of their partitions.

    catalog        all topics with their ids and partitions, from the view
        learn(needed)  asks for ends that are not known to be far enough: local replicas first, then the leaders,
                                      with all requests to one leader gathered into one call at a time
        ask(asked)     asks the leaders in any case

A known end stays valid: committed records do not vanish at that end. Owned by the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from comet.errors import CometError, Internal, OffsetOutOfRange, Unavailable
from comet.v1 import coordination_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire.protobuf import error_from_pb, error_to_pb
from comet_broker.cluster.peers import Peers
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import NO_BROKER, PartitionId
from comet_broker.core.group_record import Shape
from comet_broker.env import Env
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable

REQUEST_S_MAX: Final = 2.0
QUERIES_MAX: Final = 1_000  # in one call
ENDS_MAX: Final = 100_000
PARTITION_ENDS: Final = "comet.v1.Coordination/PartitionEnds"

Call = Callable[[Sequence[PartitionId]], Awaitable[None]]
Report = Callable[[Exception], None]
Spawn = Callable[[Coroutine[Any, Any, None]], None]
Answer = Callable[[pb.PartitionEndsRequest], Awaitable[pb.PartitionEndsResponse]]


class Logs:
    """`answer` answers for the partitions that this broker leads; see ends.LocalEnds."""

    def __init__(self, env: Env, *, view: ClusterView, peers: Peers, topics: TopicTable, answer: Answer) -> None:
        self._env = env
        self._view = view
        self._peers = peers
        self._topics = topics
        self._answer = answer
        self._ends: dict[PartitionId, int] = {}
        self._unknown: dict[PartitionId, CometError] = {}  # the last error in learning an end
        self._catalog: Mapping[str, Shape] = {}
        self._catalog_revision = -1
        self._queues: dict[int, _Queue] = {}  # by leader

    # ---- topics

    def catalog(self) -> Mapping[str, Shape]:
        """All topics in the current view. The same object until the view changes."""
        state = self._view.state
        if self._catalog_revision != state.revision:
            found = {name: Shape(topic.value.id, topic.value.partitions) for name, topic in state.topics.items()}
            self._catalog_revision = state.revision
            if found != self._catalog:
                self._catalog = found
        return self._catalog

    def racks(self, tp: PartitionId) -> set[str]:
        """The racks of the partition's in-sync replicas."""
        state = self._view.state
        found = state.partitions.get(tp)
        brokers = [] if found is None else [state.brokers[one] for one in found.value.in_sync if one in state.brokers]
        return {broker.value.rack for broker in brokers if broker.value.rack}

    # ---- ends

    def refusal(self, tp: PartitionId, offset: int) -> CometError | None:
        """Why an offset cannot be committed; None if it can. Call `learn` first."""
        end = self._ends.get(tp, -1)
        if offset <= end:
            return None
        error = self._unknown.get(tp)
        if error is not None:
            return error
        if end < 0:
            return Unavailable("the end of the partition is not known yet; retry", retry_after_ms=50)
        return OffsetOutOfRange(
            f"offset {offset} lies beyond the end of the partition, {end}", details={"log_end": str(end)}
        )

    def note(self, tp: PartitionId, end: int) -> None:
        """Notes an end that the partition has reached."""
        self._unknown.pop(tp, None)
        if end > self._ends.get(tp, -1):
            if len(self._ends) >= ENDS_MAX and tp not in self._ends:
                del self._ends[next(iter(self._ends))]
            self._ends[tp] = end

    def known(self, needed: Iterable[tuple[str, PartitionId, int]]) -> bool:
        """Whether no leader has to be asked."""
        for topic, tp, offset in needed:
            if offset > self._ends.get(tp, -1):
                partition = self._here(topic, tp)
                if partition is None or offset > partition.high_watermark:
                    return False
                self.note(tp, partition.high_watermark)
        return True

    async def learn(self, needed: Iterable[tuple[str, PartitionId, int]]) -> None:
        """Learns the ends of partitions, up to the given offsets. Never raises: see `refusal`."""
        missing: dict[int, list[PartitionId]] = {}
        for topic, tp, offset in needed:
            if offset <= self._ends.get(tp, -1):
                continue
            partition = self._here(topic, tp)
            if partition is not None:
                self.note(tp, partition.high_watermark)
                if offset <= partition.high_watermark:
                    continue
            missing.setdefault(self._leader(tp), []).append(tp)
        if missing:
            await asyncio.gather(*(self._learn_from(leader, tps) for leader, tps in missing.items()))

    def _here(self, topic: str, tp: PartitionId) -> Partition | None:
        found = self._topics.by_name.get(topic)
        return found.partitions.get(tp[1]) if found is not None and found.spec.id == tp[0] else None

    def _leader(self, tp: PartitionId) -> int:
        state = self._topics.state_of(*tp)
        return NO_BROKER if state is None else state.leader

    async def _learn_from(self, leader: int, tps: Sequence[PartitionId]) -> None:
        queue = self._queues.get(leader)
        if queue is None:
            queue = self._queues[leader] = _Queue()

        def report(error: Exception) -> None:
            self._env.tasks.report(f"asking broker {leader} for ends", error)

        await queue.fetch(tps, lambda gathered: self._learn_now(leader, gathered), self._spawn, report)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._env.tasks.spawn(work, "ask leaders for ends")

    async def _learn_now(self, leader: int, tps: Sequence[PartitionId]) -> None:
        await self._fetch_from(
            leader, [pb.PartitionEndQuery(topic_id=bytes.fromhex(p[0]), partition=p[1]) for p in tps]
        )

    async def fetch(self, queries: Sequence[pb.PartitionEndQuery]) -> list[pb.PartitionEnd]:
        """The leaders' answers, in order; with a code where there is none now."""
        by_leader: dict[int, list[int]] = {}
        for number, one in enumerate(queries):
            by_leader.setdefault(self._leader((one.topic_id.hex(), one.partition)), []).append(number)
        groups = list(by_leader.items())
        answers = await asyncio.gather(
            *(self._fetch_from(leader, [queries[n] for n in numbers]) for leader, numbers in groups)
        )
        ends = [pb.PartitionEnd() for _ in queries]
        for (_, numbers), answer in zip(groups, answers, strict=True):
            for number, end in zip(numbers, answer, strict=True):
                ends[number] = end
        return ends

    async def _fetch_from(self, leader: int, queries: Sequence[pb.PartitionEndQuery]) -> list[pb.PartitionEnd]:
        """Asks one leader, and notes the ends in its answer."""
        ends: list[pb.PartitionEnd] = []
        for start in range(0, len(queries), QUERIES_MAX):
            chunk = queries[start : start + QUERIES_MAX]
            try:
                answer = await self._call(leader, pb.PartitionEndsRequest(queries=chunk))
            except CometError as error:
                ends += [pb.PartitionEnd(code=error_to_pb(error).code)] * len(chunk)
            except Exception as error:  # noqa: BLE001 - the error is the answer; other leaders are still asked
                self._env.tasks.report(f"asking broker {leader} for ends", error)
                ends += [pb.PartitionEnd(code=error_to_pb(Internal(repr(error))).code)] * len(chunk)
            else:
                ends += answer.ends
        for one, end in zip(queries, ends, strict=True):
            tp = (one.topic_id.hex(), one.partition)
            if end.code:
                self._unknown[tp] = unknown(end)
                while len(self._unknown) > ENDS_MAX:
                    del self._unknown[next(iter(self._unknown))]
            else:
                self.note(tp, end.high_watermark)
        return ends

    async def _call(self, leader: int, request: pb.PartitionEndsRequest) -> pb.PartitionEndsResponse:
        if leader == self._env.me:
            return await self._answer(request)
        address = self._view.address_of(leader)
        if address is None:
            raise Unavailable("a partition has no leader now", retry_after_ms=100)
        answer = await self._peers.call(address, PARTITION_ENDS, request, pb.PartitionEndsResponse, REQUEST_S_MAX)
        if len(answer.ends) != len(request.queries):
            raise Unavailable(f"broker {leader} answered {len(answer.ends)} of {len(request.queries)} partitions")
        return answer


class _Queue:
    """The requests to one leader: one call under way; the next one takes all that arrive meanwhile."""

    def __init__(self) -> None:
        self._waiting: dict[PartitionId, None] = {}
        self._next: asyncio.Future[None] | None = None
        self._busy = False

    async def fetch(self, tps: Iterable[PartitionId], call: Call, spawn: Spawn, report: Report) -> None:
        self._waiting.update(dict.fromkeys(tps))
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        answered = self._next
        if not self._busy:
            self._busy = True
            spawn(self._run(call, report))
        await asyncio.shield(answered)

    async def _run(self, call: Call, report: Report) -> None:
        answered: asyncio.Future[None] | None = None
        try:
            while self._next is not None:
                tps, self._waiting = list(self._waiting), {}
                answered, self._next = self._next, None
                try:
                    await call(tps)
                except Exception as error:  # noqa: BLE001 - the waiting requests learn that the end is unknown
                    report(error)
                answered.set_result(None)
        finally:
            self._busy = False
            for one in (answered, self._next):
                if one is not None and not one.done():
                    one.cancel()
            self._next = None


def unknown(end: pb.PartitionEnd) -> CometError:
    """The error of a leader that did not answer for a partition, as a retriable one."""
    code = error_from_pb(types.Error(code=cast("types.ErrorCode", end.code))).code  # may be of a later version
    return Unavailable(f"the partition's leader did not report its end: {code}", retry_after_ms=50)
