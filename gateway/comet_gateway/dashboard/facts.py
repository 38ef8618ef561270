"""Loaders of the facts of pages, by name.

A missing topic, group or broker raises the SDK's error, which becomes the page's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Final

import comet
from comet.errors import BrokerNotFound, CometError
from comet.settings.topic import TOPIC_SETTINGS
from comet_gateway.dashboard import (
    access,
    alerts,
    audit_trail,
    build_facts,
    dead_letters,
    diagnostics,
    quotes,
    schedules,
    topic_keys,
    topic_records,
)
from comet_gateway.dashboard.broker_pool import ANSWER_S
from comet_gateway.dashboard.sources import Sources
from comet_web import facts
from comet_web.page_request import ADMIN, PageRequest

Loader = Callable[[Sources, PageRequest], Awaitable[Any]]

RECENT_S: Final = 0.5  # that an answer is reused for several users
CLOSELY_S: Final = 5.0  # for the full statistics of a broker, which are large


def range_of(request: PageRequest) -> str:
    """The range in the address; 15 minutes if missing or unknown."""
    found = request.query.get("range", "")
    return found if found in facts.RANGES_S else "15m"


async def nothing(sources: Sources, request: PageRequest) -> None:
    """For pages without facts of the cluster."""


async def cluster(sources: Sources, request: PageRequest) -> facts.Cluster:
    return await sources.sampler.cluster(range_of(request))


async def health(sources: Sources, request: PageRequest) -> facts.Cluster:
    """The cluster; for admins with its access keys, some of which may expire soon."""
    known = await cluster(sources, request)
    return replace(known, keys=await access.issued_keys(sources)) if request.may(ADMIN) else known


# ---- a topic


async def topic(sources: Sources, request: PageRequest) -> facts.TopicDetail:
    name, range_ = request.params["topic"], range_of(request)
    known = await sources.sampler.cluster(range_)
    info, tracks = await asyncio.gather(
        _topic(sources, name),
        sources.sampler.topic_tracks(name, range_),
    )
    return facts.TopicDetail(
        cluster=known,
        topic=known.topics.get(name) or build_facts.topic_with_leaders(info).topic,
        partitions=info.partitions,
        settings=topic_settings(info),
        tracks=tracks,
        compacted=info.config.compacts,
    )


async def records_of_topic(sources: Sources, request: PageRequest) -> facts.TopicRecords:
    return await topic_records.load(sources, request, await topic(sources, request))


async def keys_of_topic(sources: Sources, request: PageRequest) -> facts.TopicKeys:
    return await topic_keys.load(sources, request, await topic(sources, request))


async def topic_consumers(sources: Sources, request: PageRequest) -> facts.TopicConsumers:
    """The lags of the selected group; the default is the only group of the topic."""
    detail = await topic(sources, request)
    reading = detail.topic.groups
    name = request.query.get("group", reading[0] if len(reading) == 1 else "")
    if name not in reading:
        return facts.TopicConsumers(detail)
    info = await _described(sources, name)
    lags = tuple(_lag(lag) for lag in info.lags if lag.topic == detail.topic.name)
    return facts.TopicConsumers(detail, name, lags)


async def _topic(sources: Sources, name: str) -> comet.TopicDetails:
    query = sources.sampler.query
    return await sources.recently(("topic", name), RECENT_S, lambda: query(lambda admin: admin.describe_topic(name)))


async def _described(sources: Sources, group: str) -> comet.GroupInfo:
    query = sources.sampler.query
    return await sources.recently(("group", group), RECENT_S, lambda: query(lambda admin: admin.describe_group(group)))


def topic_settings(info: comet.TopicDetails) -> tuple[facts.Setting, ...]:
    """All settings of a topic, with their sources and defaults as the broker tells them."""
    values, defaults = info.config.plain(), info.defaults.plain()
    return tuple(
        facts.Setting(
            name=name,
            value=str(values[name]),
            default=str(defaults[name]),
            source=info.source(name).value,
            about=row.about,
            unit=row.unit,
        )
        for name, row in TOPIC_SETTINGS.items()
    )


# ---- a group


async def group(sources: Sources, request: PageRequest) -> facts.GroupDetail:
    name, range_ = request.params["group"], range_of(request)
    known = await sources.sampler.cluster(range_)
    info, tracks = await asyncio.gather(
        _described(sources, name),
        sources.sampler.group_tracks(name, range_),
    )
    return facts.GroupDetail(
        cluster=known,
        group=known.groups.get(name) or _group(info),
        members=tuple(_member(member) for member in info.members),
        lags=tuple(_lag(lag) for lag in info.lags),
        tracks=tracks,
        rebalances_us=tuple(info.rebalances_us),
        reset_allowed=not info.members,
        assignment=info.summary.assignment,
    )


def _group(info: comet.GroupInfo) -> facts.Group:
    """A group that the sampler does not know yet."""
    summary = info.summary
    lags: dict[str, int] = {}
    for lag in info.lags:
        lags[lag.topic] = lags.get(lag.topic, 0) + lag.lag
    return facts.Group(
        name=summary.name,
        kind=summary.kind,
        state=summary.state,
        members=summary.members,
        topics=tuple(summary.topics),
        coordinator=summary.coordinator,
        lag=sum(lags.values()),
        lags=lags,
        age_s=max((lag.age_s for lag in info.lags), default=0.0),
    )


def _member(member: comet.GroupMember) -> facts.Member:
    return facts.Member(
        id=member.id,
        instance=member.instance,
        client=member.client,
        owned=_owned(member.owned),
        silent_ms=member.silent_ms,
        session_timeout_ms=member.session_timeout_ms,
        assignment=member.assignment,
        rack=member.rack,
    )


def _owned(partitions: Iterable[comet.TopicPartition]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for one in partitions:
        found.setdefault(one.topic, []).append(one.partition)
    return {topic: tuple(sorted(indexes)) for topic, indexes in sorted(found.items())}


def _lag(lag: comet.PartitionLag) -> facts.Lag:
    return facts.Lag(**asdict(lag) | {"member": lag.member or ""})


# ---- a broker


async def broker(sources: Sources, request: PageRequest) -> facts.BrokerDetail:
    text, range_ = request.params["broker"], range_of(request)
    known = await sources.sampler.cluster(range_)
    id_ = int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else 0
    found = next((one for one in known.brokers if one.id == id_), None)
    if found is None:
        there = ", ".join(str(one.id) for one in known.brokers) or "none"
        raise BrokerNotFound(f"broker {text[:20]!r} does not exist; known brokers: {there}")
    statistics: Mapping[str, Any] = {}
    if found.up:
        admin = sources.sampler.admin_of(id_)
        with suppress(CometError, TimeoutError):  # it may have just stopped: then they are unknown
            async with asyncio.timeout(ANSWER_S):
                statistics = await sources.recently(("broker", id_), CLOSELY_S, admin.statistics)
    return facts.BrokerDetail(
        cluster=known,
        broker=found,
        tracks=sources.sampler.broker_tracks(id_, range_),
        sessions=tuple(statistics.get("sessions") or ()),
        logs=tuple(statistics.get("partitions") or ()),
        settings=_broker_settings(statistics),
    )


def _broker_settings(statistics: Mapping[str, Any]) -> tuple[facts.Setting, ...]:
    """The settings in a broker's statistics."""
    rows = statistics.get("settings") or ()
    return tuple(
        facts.Setting(
            name=row["name"],
            value=str(row["value"]),
            default=str(row.get("default", "")),
            source=row.get("source", ""),
            about=row.get("about", ""),
            unit=row.get("unit", ""),
        )
        for row in rows
    )


LOADERS: Final[Mapping[str, Loader]] = {
    "nothing": nothing,
    "about": diagnostics.about,
    "cluster": cluster,
    "health": health,
    "access": access.access,
    "alerts": alerts.alerts,
    "audit": audit_trail.audit,
    "topic": topic,
    "topic_consumers": topic_consumers,
    "topic_keys": keys_of_topic,
    "topic_records": records_of_topic,
    "group": group,
    "broker": broker,
    "quotes": quotes.quotes,
    "schedule": schedules.schedule,
    "schedules": schedules.schedules,
    "dead_letters": dead_letters.dead_letters,
    "dead_letter_topic": dead_letters.dead_letter_topic,
}
