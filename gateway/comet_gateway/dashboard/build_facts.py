"""Builds facts from the answers of brokers. Pure.

A figure without an answer is unknown, and so is a sum with an unknown part: if one leader of a topic is silent, its
number of records is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import comet
from comet.admin.results import broker_failures
from comet.settings.topic import TOPIC_SETTINGS
from comet_web import facts

TREND_STEP_S: Final = 30  # of the lags in the answers of brokers
EVENTS_MAX: Final = 500
Numbers = Mapping[str, Any]  # the statistics of a broker


@dataclass(frozen=True, slots=True)
class Known:
    """One known broker. `numbers` None: it does not answer."""

    id: int
    address: str
    rack: str
    version: str
    draining: bool
    alive: bool  # registered in the cluster
    numbers: Numbers | None


def broker(known: Known, controller: int | None, replicas: Mapping[int, int]) -> facts.Broker:
    """Facts of a broker. `replicas` counts replicas by broker."""
    base = facts.Broker(
        id=known.id,
        address=known.address,
        rack=known.rack,
        controller=known.id == controller,
        draining=known.draining,
        version=known.version,
        replicas=replicas.get(known.id, 0),
    )
    if known.numbers is None:
        return base
    numbers = known.numbers
    rates, totals = numbers.get("rates") or {}, numbers.get("totals") or {}
    problems = [f"{name}: {text}" for name, text in (numbers.get("problems") or {}).items()]
    if not known.alive:
        problems.append("it answers, but its registration has expired")
    return replace(
        base,
        up=True,
        insecure=bool(numbers.get("insecure")),
        certificates=numbers.get("certificates") or {},
        version=numbers.get("version", known.version),
        started_us=numbers.get("started_us"),
        leading=totals.get("leading"),
        replicas=totals.get("partitions", base.replicas),
        sessions=numbers.get("session_count"),
        in_rate=rates.get("records_in"),
        in_bytes_rate=rates.get("bytes_in"),
        out_rate=rates.get("records_out"),
        out_bytes_rate=rates.get("bytes_out"),
        errors_rate=rates.get("errors"),
        ack_p99_ms=(numbers.get("latency") or {}).get("ack_p99_ms"),
        disk_used=numbers.get("disk_used", totals.get("bytes")),
        disk_free=numbers.get("free_bytes"),
        cpu=numbers.get("cpu"),
        memory_bytes=numbers.get("memory_bytes"),
        problems=tuple(problems),
        failed=broker_failures(known.id, numbers),
    )


# ---- topics


@dataclass(frozen=True, slots=True)
class TopicWithLeaders:
    """A topic by its metadata; constant until they change."""

    topic: facts.Topic
    leaders: frozenset[int]


def topic_with_leaders(info: comet.TopicInfo) -> TopicWithLeaders:
    topic = facts.Topic(
        name=info.name,
        internal=info.internal,
        partitions=info.partition_count,
        replicas=info.replicas,
        in_sync=info.in_sync,
        under_replicated=info.under_replicated,
        offline=info.leaderless,
        conflicts=sum(bool(one.conflicts) for one in info.partitions),
        retention={TOPIC_SETTINGS[name].unit: limit for name, limit in info.config.retention().items()},
    )
    return TopicWithLeaders(topic, frozenset(one.leader for one in info.partitions if one.leader is not None))


def replicas(topics: Iterable[comet.TopicInfo]) -> dict[int, int]:
    """The number of replicas of each broker."""
    found: defaultdict[int, int] = defaultdict(int)
    for topic in topics:
        for one in topic.partitions:
            for holder in one.replicas:
                found[holder] += 1
    return dict(found)


def topics(
    by_name: Mapping[str, TopicWithLeaders],
    led: Mapping[int, Numbers],
    groups: Mapping[str, facts.Group],
    trends: Mapping[str, facts.Track],
) -> dict[str, facts.Topic]:
    """Facts of all topics. `led` has the numbers of each answering broker for topics that it leads, by name."""
    readers: defaultdict[str, list[facts.Group]] = defaultdict(list)
    for group in groups.values():
        for name in group.topics:
            readers[name].append(group)
    return {name: _topic(metadata, led, readers.get(name, ()), trends.get(name)) for name, metadata in by_name.items()}


def _topic(
    metadata: TopicWithLeaders, led: Mapping[int, Numbers], readers: Sequence[facts.Group], trend: facts.Track | None
) -> facts.Topic:
    base = metadata.topic
    parts = [led.get(leader, {}).get(base.name) for leader in metadata.leaders]
    known = [part for part in parts if part is not None]
    whole = bool(known) and len(known) == len(parts)
    lags = [lag for group in readers if (lag := group.lags.get(base.name)) is not None]
    found = replace(
        base,
        last_us=max((last for part in known if (last := part.get("last_us"))), default=None),
        groups=tuple(sorted(group.name for group in readers)),
        lag_max=max(lags, default=None),
        trend=trend,
    )
    if not whole:
        return found
    stored = known if not base.offline else []
    return replace(
        found,
        records=_sum(stored, "records"),
        bytes=_sum(stored, "bytes"),
        in_rate=_sum(known, "in_rate"),
        in_bytes_rate=_sum(known, "in_bytes_rate"),
        out_rate=_sum(known, "out_rate"),
    )


def _sum(parts: Sequence[Numbers], name: str) -> Any:
    values = [part.get(name) for part in parts]
    return None if not values or None in values else sum(values)


# ---- groups


def groups(
    coordinated: Mapping[int, Mapping[str, facts.Group]],
    before: Mapping[str, facts.Group],
    coordinating: Container[int],
) -> dict[str, facts.Group]:
    """The groups by answering coordinator. Groups of a silent broker stay while it may coordinate them, with unknown
    lag."""
    found = {
        name: replace(group, lag=None, lags={}, age_s=None, drain_s=None, growing=None, trend=None)
        for name, group in before.items()
        if group.coordinator not in coordinated and group.coordinator in coordinating
    }
    for each in coordinated.values():
        found |= each
    return dict(sorted(found.items()))


def groups_of(coordinator: int, numbers: Numbers) -> dict[str, facts.Group]:
    """The groups in the answer of their coordinator."""
    now_us = numbers.get("now_us") or 0
    return {one["group"]: _group(one, coordinator, now_us) for one in numbers.get("groups") or ()}


def _group(one: Numbers, coordinator: int, now_us: int) -> facts.Group:
    trend = one.get("trend")
    return facts.Group(
        name=one["group"],
        kind=one["kind"],
        state=one["state"],
        members=one["members"],
        topics=tuple(one["topics"]),
        coordinator=coordinator,
        lag=one.get("lag"),
        lags=one.get("lags") or {},
        age_s=one.get("age_s"),
        drain_s=one.get("drain_s"),
        growing=one.get("growing"),
        last_commit_us=one.get("last_commit_us"),
        trend=None if not trend else facts.Track(TREND_STEP_S, now_us, trend),
    )


# ---- events


class Events:
    """Events of the cluster, newest first. Every broker records and merges them in its own way; so one broker gives the
    events since its start, the next one those before, and so on."""

    def __init__(self) -> None:
        self._by_broker: dict[int, dict[tuple[object, ...], facts.Event]] = {}
        self._started_us: dict[int, int] = {}
        self._all: tuple[facts.Event, ...] = ()
        self._of: tuple[int, ...] | None = None  # brokers in the order used for `_all`

    def take(self, broker: int, events: Iterable[comet.ClusterEvent], started_us: int) -> None:
        known = self._by_broker.setdefault(broker, {})
        self._started_us[broker] = started_us
        for one in events:
            # Only the text of a counting event changes.
            key = (one.time_us, one.revision, one.kind, one.topic, one.partition, one.broker)
            event = facts.Event(one.time_us, one.kind, one.text, one.topic, one.partition, one.broker)
            if known.get(key) != event:
                known[key] = event
                self._of = None
        if len(known) > EVENTS_MAX:
            self._by_broker[broker] = dict(sorted(known.items(), key=_when)[-EVENTS_MAX:])

    def forget(self, broker: int) -> None:
        self._by_broker.pop(broker, None)
        self._started_us.pop(broker, None)

    def all(self, answering: Container[int]) -> tuple[facts.Event, ...]:
        order = tuple(sorted(self._by_broker, key=lambda one: (one not in answering, self._started_us[one])))
        if order != self._of:
            self._of = order
            found: list[facts.Event] = []
            before_us = float("inf")
            for broker in order:
                found += [event for event in self._by_broker[broker].values() if event.time_us < before_us]
                before_us = min(before_us, self._started_us[broker])
            found.sort(key=lambda event: -event.time_us)
            self._all = tuple(found[:EVENTS_MAX])
        return self._all


def _when(item: tuple[tuple[object, ...], facts.Event]) -> int:
    return item[1].time_us
