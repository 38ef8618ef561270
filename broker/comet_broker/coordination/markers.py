"""Sends the markers of an ended transaction to the leaders of its partitions, until each has them in its log.

    coordinator ── WriteMarkers{producer, epoch, commit, partitions} ──► each leader, this broker among them
                     the leader ── Outcome{producer, epoch} ──► the coordinator that it knows: decided so?
                ◄── a code per partition ──
                repeated for those without a marker, at their current leaders; a deleted topic needs none

A marker may be written more than once, by this coordinator or the next: the leader knows which epochs are over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from comet.errors import Closed, CometError, Internal, InvalidArgument, NotEnoughReplicas, Timeout, Unavailable
from comet.v1 import coordination_pb2 as pb
from comet.wire.protobuf import error_to_pb
from comet_broker import limits
from comet_broker.cluster.peers import Peers
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import NO_BROKER, PartitionId, partition_key
from comet_broker.metadata.store import MetadataStore, StoreUnavailable
from comet_broker.partitions.topics import TopicTable

log = logging.getLogger(__name__)

METHOD: Final = "comet.v1.Coordination/WriteMarkers"
CALL_S_MAX: Final = 2.0  # a stopped leader is replaced in about that time; another call costs little
CALLS_MAX: Final = 32  # under way to one leader
RETRY_S: Final = 0.02
RETRY_S_MAX: Final = 1.0
LOUD_AFTER: Final = 8  # attempts, after which it is logged as a warning


class Markers:
    """Owned by the transactions of one slot; on the loop's thread."""

    def __init__(self, me: int, *, store: MetadataStore, view: ClusterView, peers: Peers, topics: TopicTable) -> None:
        self._me = me
        self._store = store
        self._view = view
        self._peers = peers
        self._topics = topics
        self._calls: dict[int, asyncio.Semaphore] = {}  # by leader, as many as there are brokers
        self._moved = asyncio.Event()
        self.written = 0
        self.attempts_failed = 0

    async def write(self, producer_id: int, epoch: int, commit: bool, tps: Iterable[PartitionId]) -> None:
        """Returns when every partition has the marker. May be cancelled at any time."""
        missing = set(tps)
        pause_s, attempts = RETRY_S, 0
        while missing:
            request = pb.WriteMarkersRequest(producer_id=producer_id, epoch=epoch, commit=commit)
            failed = await self._attempt(request, missing)
            self.written += len(missing) - len(failed)
            missing = failed.keys() - await self._gone(failed)
            if not missing:
                return
            attempts += 1
            self.attempts_failed += 1
            level = logging.WARNING if attempts % LOUD_AFTER == 0 else logging.DEBUG
            why = next(iter(failed.values()))
            log.log(
                level,
                "transaction %d of producer %d ends late: %s",
                epoch,
                producer_id,
                why,
                extra={"producer_id": producer_id},
            )
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)

    async def _attempt(self, request: pb.WriteMarkersRequest, tps: Iterable[PartitionId]) -> dict[PartitionId, str]:
        """The partitions that are still without a marker, with the reason."""
        failed: dict[PartitionId, str] = {}
        by_leader: dict[int, list[PartitionId]] = {}
        for tp in sorted(tps):
            state = self._topics.state_of(*tp)
            if state is None or state.leader == NO_BROKER:
                failed[tp] = "a partition has no leader now"
            else:
                by_leader.setdefault(state.leader, []).append(tp)
        if len(by_leader) == 1:
            ((leader, there),) = by_leader.items()
            return {**failed, **await self._request(leader, request, there)}
        for found in await asyncio.gather(
            *(self._request(leader, request, there) for leader, there in by_leader.items())
        ):
            failed.update(found)
        return failed

    async def _request(
        self, leader: int, request: pb.WriteMarkersRequest, tps: list[PartitionId]
    ) -> dict[PartitionId, str]:
        part = pb.WriteMarkersRequest(
            producer_id=request.producer_id,
            epoch=request.epoch,
            commit=request.commit,
            partitions=[pb.PartitionId(topic_id=bytes.fromhex(topic_id), partition=index) for topic_id, index in tps],
        )
        try:
            async with self._calls.setdefault(leader, asyncio.Semaphore(CALLS_MAX)):
                response = await self._call(leader, part)
        except CometError as error:
            return dict.fromkeys(tps, f"broker {leader}: {error}")
        except Exception as error:  # a decided transaction is never given up
            log.exception("markers for broker %d", leader, extra={"peer_broker": leader})
            return dict.fromkeys(tps, f"broker {leader}: {error!r}")
        if len(response.codes) != len(tps):
            return dict.fromkeys(tps, f"broker {leader} answered {len(response.codes)} of {len(tps)} partitions")
        return {
            tp: f"broker {leader} answered with error {code}"
            for tp, code in zip(tps, response.codes, strict=True)
            if code != 0
        }

    async def _call(self, leader: int, request: pb.WriteMarkersRequest) -> pb.WriteMarkersResponse:
        if leader == self._me:
            try:
                async with asyncio.timeout(CALL_S_MAX):  # one partition may be stopped, and others wait for their turn
                    return await write_here(self._topics, self._view, request)
            except TimeoutError:
                raise Timeout(f"a marker has not reached all in-sync replicas in {CALL_S_MAX} s") from None
        address = self._view.address_of(leader)
        if address is None:
            raise Unavailable(f"broker {leader} is not registered")
        return await self._peers.call(address, METHOD, request, pb.WriteMarkersResponse, CALL_S_MAX)

    async def _gone(self, tps: Iterable[PartitionId]) -> set[PartitionId]:
        """The partitions of deleted topics. A topic that is unknown here may still exist: its leader knows it, and the
        partition has a key until the deletion is complete."""
        state = self._view.state
        gone = set()
        for tp in tps:
            if tp[0] in state.deleted:
                gone.add(tp)
            elif tp not in state.partitions:
                try:
                    if await self._store.get(partition_key(tp)) is None:
                        gone.add(tp)
                except (StoreUnavailable, Closed):
                    continue
                except Exception:  # as above: retried
                    log.exception("whether %s is gone", tp)
        return gone

    def view_moved(self) -> None:
        """Wakes the writers: another broker may lead by now."""
        self._moved.set()
        self._moved.clear()

    async def _pause(self, pause_s: float) -> None:
        """Waits for a reason to retry: the time is up, or the cluster view has moved."""
        await asyncio.sleep(RETRY_S)
        try:
            async with asyncio.timeout(pause_s):
                await self._moved.wait()
        except TimeoutError:
            return


async def write_here(topics: TopicTable, view: ClusterView, request: pb.WriteMarkersRequest) -> pb.WriteMarkersResponse:
    """The leader's side: writes the markers of all partitions that this broker leads at once."""
    if len(request.partitions) > limits.TRANSACTION_PARTITIONS_MAX:
        raise InvalidArgument(f"a transaction writes to at most {limits.TRANSACTION_PARTITIONS_MAX} partitions")

    async def write(tp: PartitionId) -> int:
        try:
            await _write_one(topics, view, tp, request)
        except CometError as error:
            return error_to_pb(error).code
        except Exception as error:  # an error of one partition must not cost the others their markers
            log.exception("the marker of transaction %d for %s failed", request.epoch, tp)
            return error_to_pb(Internal(repr(error))).code
        return 0

    codes = await asyncio.gather(*(write((one.topic_id.hex(), one.partition)) for one in request.partitions))
    return pb.WriteMarkersResponse(codes=codes)


async def _write_one(topics: TopicTable, view: ClusterView, tp: PartitionId, request: pb.WriteMarkersRequest) -> None:
    if tp[0] in view.state.deleted:
        return
    state = topics.state_of(*tp)
    if state is None:
        raise Unavailable("this broker does not know the partition yet", retry_after_ms=50)
    partition = topics.leading(tp, state.epoch)
    if partition.leadership is not None and not partition.leadership.replicas.enough:
        ended = partition.watermarks.isolation.ended(request.producer_id, request.epoch)
        if ended is not None and ended.offset >= partition.committed:
            # It is appended. A repeated request should not wait for it many times over.
            raise NotEnoughReplicas(f"{partition} has too few in-sync replicas for its marker", retry_after_ms=100)
    await partition.transaction_batches.write_marker(request.producer_id, request.epoch, request.commit)
