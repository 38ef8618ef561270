"""Statistics and History of the Admin service: this broker's metrics, now and over time.

Long answers are built in slices, so that clients of the broker do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from comet.errors import CometError, InvalidArgument, LimitExceeded
from comet.v1 import admin_pb2 as pb
from comet_broker import limits
from comet_broker.cluster.peers import Peers
from comet_broker.coordination.coordinator import Coordinator
from comet_broker.coordination.group_summary import group_tracks, groups_here
from comet_broker.core import slots
from comet_broker.core.event_log import Event
from comet_broker.core.history import MINUTE_S, STEP_S_MAX
from comet_broker.core.metrics_store import FLOWS, GAUGES, TOPIC_FLOWS
from comet_broker.metrics.sampler import Recorder
from comet_broker.metrics.statistics import BrokerStatistics
from comet_broker.partitions.topics import TopicTable

REQUEST_S_MAX: Final = 2.0  # timeout of a request to another broker
TRACKS_AT_ONCE: Final = 40


class AdminMetrics:
    """The coroutines behind the unary calls, protobuf in and out; raises CometErrors."""

    def __init__(
        self,
        me: int,
        *,
        topics: TopicTable,
        peers: Peers,
        coordinator: Coordinator,
        recorder: Recorder,
        statistics: BrokerStatistics,
    ) -> None:
        self._me = me
        self._topics = topics
        self._peers = peers
        self._coordinator = coordinator
        self._recorder = recorder
        self._statistics = statistics

    async def statistics(self, request: pb.StatisticsRequest) -> pb.StatisticsResponse:
        numbers = self._statistics.summary() if request.brief else self._statistics.full()
        # `partitions` selects the summaries of all partitions; everything else has a field of its own.
        if request.topics:
            numbers["topics"] = await self._recorder.topics()
        if request.groups:
            numbers["groups"] = await groups_here(self._coordinator.ready_slots())
        return pb.StatisticsResponse(json=msgspec.json.encode(numbers).decode())

    async def history(self, request: pb.HistoryRequest) -> pb.HistoryResponse:
        step_s = request.step_s or 1
        if step_s > MINUTE_S and (step_s % MINUTE_S or step_s > STEP_S_MAX):
            raise InvalidArgument(
                f"step_s is 1 to {MINUTE_S}, or a multiple of {MINUTE_S} up to {STEP_S_MAX}, not {step_s}"
            )
        answer = pb.HistoryResponse()
        if not request.forwarded:
            await self._recorder.ticked.wait()  # a broker that has just started has no metrics for a second
            await self._add_figures(answer, request, step_s)
            answer.events.extend(map(_event_to_pb, self._recorder.event_log.events(request.since_us)))
        await self._add_groups(answer, request, step_s)
        return answer

    async def _add_figures(self, answer: pb.HistoryResponse, request: pb.HistoryRequest, step_s: int) -> None:
        store = self._recorder.store
        topics = list(store.topics) if request.every_topic else list(filter(self._topics.exists, request.topics))
        first, last = store.presence.steps(step_s, request.since_us)
        values = (last - first + 1) * (len(FLOWS) + len(GAUGES) + len(TOPIC_FLOWS) * len(topics))
        if values > limits.HISTORY_VALUES_MAX:
            raise LimitExceeded(
                f"that is {values:,} values, and the limit is {limits.HISTORY_VALUES_MAX:,}: use longer"
                " steps, a later start, or fewer topics"
            )
        if first > last:
            return
        for number, track in enumerate(store.tracks(step_s, request.since_us, topics)):
            answer.tracks.add(
                topic=track.topic,
                figure=track.figure,
                step_s=track.step_s,
                end_us=track.end_us,
                values=track.values,
            )
            if number % TRACKS_AT_ONCE == 0:
                await asyncio.sleep(0)

    # ---- groups: from their coordinators

    async def _add_groups(self, answer: pb.HistoryResponse, request: pb.HistoryRequest, step_s: int) -> None:
        elsewhere: dict[str, list[str]] = {}
        for name in dict.fromkeys(request.groups):
            number = slots.slot_of(slots.check_name(name))
            try:
                groups = self._coordinator.slot(number).groups
                group = groups.find(name)
            except CometError:
                address = "" if request.forwarded else self._coordinator_of(number)
                if address:
                    elsewhere.setdefault(address, []).append(name)
                continue
            if group is not None:
                answer.tracks.extend(group_tracks(groups, group, step_s, request.since_us))
        for tracks in await asyncio.gather(
            *(self._fetch_tracks(where, names, request) for where, names in elsewhere.items())
        ):
            answer.tracks.extend(tracks)

    def _coordinator_of(self, number: int) -> str:
        """The address of another broker that has the slot; empty if there is none."""
        try:
            broker, record = self._coordinator.whereabouts(number)
        except CometError:
            return ""
        return "" if broker == self._me else record.brokers_address

    async def _fetch_tracks(
        self, address: str, names: Sequence[str], request: pb.HistoryRequest
    ) -> Sequence[pb.HistoryTrack]:
        """The tracks of these groups from another broker; empty if it does not answer: they are unknown then."""
        passed_on = pb.HistoryRequest(groups=names, step_s=request.step_s, since_us=request.since_us, forwarded=True)
        try:
            answer = await self._peers.call(
                address, "comet.v1.Admin/History", passed_on, pb.HistoryResponse, REQUEST_S_MAX
            )
        except CometError:
            return ()
        return answer.tracks


def _event_to_pb(event: Event) -> pb.ClusterEvent:
    return pb.ClusterEvent(
        time_us=event.time_us,
        revision=event.revision,
        kind=event.kind,
        text=event.text,
        topic=event.topic,
        partition=event.partition,
        broker=event.broker or 0,
    )
