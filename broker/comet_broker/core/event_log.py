"""The cluster's events, as sentences for people: the differences between one state of the cluster and the next.

    note    these keys have changed: gathers the differences by kind and cause
    settle  once a second: makes events of the gathered differences, one each if they are few, else one per cause

An event with a count goes on counting for a while, so that five thousand elections that take ten seconds are one line.
Remembers the last EVENTS_MAX events.

Pure. Owned by the recorder; it compares each state with the next, so it needs every change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from comet_broker import limits
from comet_broker.core.cluster import (
    BROKERS,
    CONFLICTS,
    CONTROLLER,
    DRAINS,
    NO_BROKER,
    PARTITIONS,
    TOPICS,
    BrokerRecord,
    ClusterState,
    PartitionId,
    TopicSpec,
    partition_of,
)

SINGLY_MAX: Final = 3  # of one cause, within one second
COUNTING_US: Final = 10_000_000  # after the last of them


@dataclass(frozen=True, slots=True)
class Event:
    time_us: int
    revision: int  # of the metadata
    kind: str  # "election", "offline", "conflict", "broker", "drain", "controller", "topic"
    text: str
    topic: str = ""
    partition: int | None = None
    broker: int | None = None


class Cause(NamedTuple):
    """Differences with the same cause become one event. `many` is its text."""

    kind: str
    many: str  # with {count} in it


@dataclass(slots=True)
class Gathered:
    count: int = 0
    events: list[Event] = field(default_factory=list)  # the first of them


@dataclass(slots=True, eq=False)
class LoggedEvent:
    """A remembered event, which stands for `count` differences of its cause."""

    event: Event
    count: int
    updated_us: int


class EventLog:
    def __init__(self) -> None:
        self._logged: deque[LoggedEvent] = deque(maxlen=limits.EVENTS_MAX)  # the latest at the end
        self._gathered: dict[Cause, Gathered] = {}
        self._counting: dict[Cause, LoggedEvent] = {}  # events with a count that may still grow
        self._brokers: dict[int, tuple[int, BrokerRecord]] = {}  # with their broker epochs
        self._topics: dict[str, TopicSpec] = {}
        self._names: dict[str, str] = {}  # of topics, by their ids
        self._leaders: dict[PartitionId, int] = {}
        self._drains: set[int] = set()
        self._controller = NO_BROKER

    def begin(self, state: ClusterState) -> None:
        """Takes the first state, which has no earlier one to compare with."""
        self._brokers = {broker: (found.create_revision, found.value) for broker, found in state.brokers.items()}
        self._topics = {name: found.value for name, found in state.topics.items()}
        self._names = {found.value.id: name for name, found in state.topics.items()}
        self._leaders = {partition: found.value.leader for partition, found in state.partitions.items()}
        self._drains = set(state.drains)
        self._controller = _controller(state)

    def events(self, since_us: int = 0) -> list[Event]:
        """Events that were logged, or whose count grew, after that time; the latest at the end."""
        return [logged.event for logged in self._logged if logged.updated_us > since_us]

    # ---- comparing

    def note(self, state: ClusterState, keys: Iterable[str], now_us: int) -> None:
        """Gathers the differences in these keys, topics first: the first leaders of a new topic are no event."""
        now = _Moment(state, now_us, self._gather)
        partitions: list[str] = []
        for key in dict.fromkeys(keys):
            if key.startswith(PARTITIONS):
                partitions.append(key)
            elif key.startswith(TOPICS):
                self._note_topic(now, key.removeprefix(TOPICS))
            elif key.startswith(BROKERS):
                self._note_broker(now, int(key.removeprefix(BROKERS)))
            elif key.startswith(DRAINS):
                self._note_drain(now, int(key.removeprefix(DRAINS)))
            elif key == CONTROLLER:
                self._note_controller(now)
            elif key.startswith(CONFLICTS):
                self._note_conflict(now, key)
        for key in partitions:
            topic_id, _, index = key.removeprefix(PARTITIONS).partition("/")
            self._note_partition(now, self._names.get(topic_id, ""), (topic_id, int(index)))

    def _note_conflict(self, now: _Moment, key: str) -> None:
        partition, broker = partition_of(key), int(key.removeprefix(CONFLICTS).partition("/")[0])
        topic = "" if partition is None else self._names.get(partition[0], "")
        if partition is None or not topic:
            return
        name, found = f"{topic}/{partition[1]}", now.state.conflicts.get((broker, *partition))
        one = f"the replica of {name} on broker {broker} is no longer in conflict"
        many = "{count} replicas are no longer in conflict"
        if found is not None:
            one = f"the replica of {name} on broker {broker} does not follow: {found.value}"
            many = "{count} replicas do not follow, as they would lose committed records"
        now.report("conflict", one, many, topic=topic, partition=partition[1], broker=broker)

    def _note_broker(self, now: _Moment, broker: int) -> None:
        found = now.state.brokers.get(broker)
        before = self._brokers.get(broker)
        if found is None:
            if self._brokers.pop(broker, None) is not None:
                now.report("broker", f"broker {broker} is gone", broker=broker)
            return
        record = found.value
        self._brokers[broker] = (found.create_revision, record)
        where = f"at {record.host}:{record.port}, version {record.version}"
        if before is None:
            now.report("broker", f"broker {broker} is there, {where}", broker=broker)
        elif before[0] != found.create_revision:
            now.report("broker", f"broker {broker} has started again, {where}", broker=broker)
        elif record.draining and not before[1].draining:
            now.report("broker", f"broker {broker} is about to stop", broker=broker)

    def _note_drain(self, now: _Moment, broker: int) -> None:
        drains, drained = broker in now.state.drains, broker in self._drains
        if drains and not drained:
            self._drains.add(broker)
            now.report("drain", f"broker {broker} is drained: it hands over all leadership", broker=broker)
        elif drained and not drains:
            self._drains.discard(broker)
            now.report("drain", f"broker {broker} is no longer drained: it may lead again", broker=broker)

    def _note_controller(self, now: _Moment) -> None:
        before, found = self._controller, _controller(now.state)
        if found in (NO_BROKER, before):
            return  # no event until there is another controller
        self._controller = found
        text = f"broker {self._controller} is the controller"
        now.report("controller", text + (f", after broker {before}" if before else ""), broker=self._controller)

    def _note_topic(self, now: _Moment, name: str) -> None:
        found = now.state.topics.get(name)
        before = self._topics.pop(name, None)
        if found is not None:
            self._topics[name] = found.value
            self._names[found.value.id] = name
        if before is not None and (found is None or found.value.id != before.id):
            for partition in [(before.id, index) for index in range(before.partitions)]:
                self._leaders.pop(partition, None)
            self._names.pop(before.id, None)
            now.report("topic", f"topic {name} was deleted", "{count} topics were deleted", topic=name)
            before = None
        if found is None:
            return
        if before is None:
            size = f"{_several(found.value.partitions, 'partition')}, {_several(found.value.replicas, 'replica')} each"
            now.report("topic", f"topic {name} was created: {size}", "{count} topics were created", topic=name)
            return
        changes = _changes(before, found.value)
        if changes:
            now.report("topic", f"topic {name} was changed: {changes}", "{count} topics were changed", topic=name)

    def _note_partition(self, now: _Moment, topic: str, partition: PartitionId) -> None:
        found = now.state.partitions.get(partition)
        if found is None:
            self._leaders.pop(partition, None)
            return
        leader, before = found.value.leader, self._leaders.get(partition)
        self._leaders[partition] = leader
        if before is None or leader == before or not topic:
            return  # new, or of a topic that is deleted
        why, old = "", now.state.brokers.get(before)
        if before != NO_BROKER:
            if old is None:
                why = f"broker {before} is gone"
            elif before in now.state.drains or old.value.draining:
                why = f"broker {before} is drained"
        name = f"{topic}/{partition[1]}"
        kind, one, many = "election", f"broker {leader} leads {name}", "{count} partitions have a new leader"
        if leader == NO_BROKER:
            kind, one, many = "offline", f"{name} has no leader", "{count} partitions have no leader"
        elif before == NO_BROKER:
            one, many = f"broker {leader} leads {name}, which had no leader", "{count} partitions have a leader again"
        elif not why:
            one, many = f"{one}, before it was broker {before}", f"{{count}} partitions have moved from broker {before}"
        if why:
            one, many = f"{why}: {one}", f"{why}: {many}"
        now.report(kind, one, many, topic=topic, partition=partition[1], broker=leader or before)

    # ---- logging

    def _gather(self, cause: Cause, event: Event) -> None:
        gathered = self._gathered.setdefault(cause, Gathered())
        gathered.count += 1
        if len(gathered.events) < SINGLY_MAX:
            gathered.events.append(event)

    def settle(self, now_us: int) -> None:
        """Logs the gathered differences as events."""
        gathered, self._gathered = self._gathered, {}
        self._counting = {
            cause: logged for cause, logged in self._counting.items() if 0 <= now_us - logged.updated_us <= COUNTING_US
        }
        for cause, one in gathered.items():
            logged = self._counting.get(cause)
            if logged is not None and logged in self._logged:
                logged.count += one.count
                logged.event = replace(logged.event, text=_counted(cause, logged.count))
                logged.updated_us = now_us
            elif one.count <= SINGLY_MAX:
                self._logged.extend(LoggedEvent(event, 1, now_us) for event in one.events)
            else:
                event = replace(one.events[0], text=_counted(cause, one.count), topic="", partition=None)
                logged = self._counting[cause] = LoggedEvent(event, one.count, now_us)
                self._logged.append(logged)


class _Moment:
    """A state of the cluster, its time, and the callback that gathers its differences."""

    def __init__(self, state: ClusterState, now_us: int, gather: Callable[[Cause, Event], None]) -> None:
        self.state = state
        self._now_us = now_us
        self._gather = gather

    def report(
        self,
        kind: str,
        one: str,
        many: str = "",
        *,
        topic: str = "",
        partition: int | None = None,
        broker: int | None = None,
    ) -> None:
        """Reports a difference. Without `many` it is a cause of its own."""
        event = Event(self._now_us, self.state.revision, kind, one, topic, partition, broker)
        self._gather(Cause(kind, many or one + " ({count} times)"), event)


def _controller(state: ClusterState) -> int:
    return NO_BROKER if state.controller is None else state.controller.broker


def _counted(cause: Cause, count: int) -> str:
    return cause.many.format(count=f"{count:,}")


def _several(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _changes(before: TopicSpec, after: TopicSpec) -> str:
    found = []
    if after.partitions != before.partitions:
        found.append(f"{_several(after.partitions, 'partition')}, before {before.partitions:,}")
    if after.replicas != before.replicas:
        found.append(f"{_several(after.replicas, 'replica')}, before {before.replicas:,}")
    found += [
        f"{name} {value}, before {earlier}"
        for (name, value), earlier in zip(after.config.plain().items(), before.config.plain().values(), strict=True)
        if value != earlier
    ]
    return "; ".join(found)
