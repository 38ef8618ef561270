"""The checks of `comet doctor --bootstrap` in a running cluster: brokers, failed parts, conflicts, leaders."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from comet.cli._finding import Finding
from comet.errors import CometError
from comet.units import count

if TYPE_CHECKING:
    from comet.admin.calendars import CalendarInfo
    from comet.entities import PartitionInfo, TopicInfo

ANSWER_S_MAX: Final = 10.0
NAMED_MAX: Final = 3  # problems shown; the others are counted


def check_cluster(addresses: tuple[str, ...]) -> list[Finding]:
    """Findings about each broker, then about the partitions."""
    return asyncio.run(_check(addresses))


async def _check(addresses: tuple[str, ...]) -> list[Finding]:
    import comet

    findings = [_about_broker(address, await _statistics(address)) for address in addresses]
    try:
        async with asyncio.timeout(ANSWER_S_MAX), comet.Admin(list(addresses)) as admin:
            cluster, topics = await admin.describe_cluster(), await admin.list_topics()
            calendars = (await admin.calendars.list_calendars()).calendars
            seen = {one.id for one in cluster.brokers}
            others = [
                _about_broker(f"{one.host}:{one.port}", await admin.statistics(one.id, brief=True))
                for one in cluster.brokers
                if f"{one.host}:{one.port}" not in addresses
            ]
    except (CometError, TimeoutError) as error:
        advice = "start the brokers; see the findings about each"
        return [*findings, Finding("cluster", "fail", str(error) or "no answer", advice)]
    members = Finding("cluster", "ok", f"{count(len(seen), 'broker')}, {count(len(topics), 'topic')}")
    found = [*findings, *others, members, _about_conflicts(topics), _about_leaders(topics)]
    return [*found, _about_calendars(calendars, time.time_ns() // 1_000)] if calendars else found


async def _statistics(address: str) -> dict[str, Any] | str:
    """A broker's statistics, or the error."""
    import comet

    try:
        async with asyncio.timeout(ANSWER_S_MAX), comet.Admin(address) as admin:
            return await admin.statistics(brief=True)
    except (CometError, TimeoutError) as error:
        return str(error) or "no answer"


def _about_broker(address: str, found: dict[str, Any] | str) -> Finding:
    name = f"broker {address}"
    if isinstance(found, str):
        return Finding(name, "fail", found, "start it, or correct the address")
    metadata = found.get("metadata") or {}
    if not metadata.get("trusted", True):
        advice = "restore the right metadata store, or accept this one: comet cluster recover"
        return Finding(name, "fail", str(metadata["reason"]), advice)
    failed = [f"{one['kind']} {one['name']} ({one['reason']})" for one in found.get("failed", ())]
    if failed:
        return Finding(name, "fail", f"failed: {some_of(failed)}", "report it, then: comet cluster resume")
    problems = [f"{topic}: {why}" for topic, why in found.get("problems", {}).items()]
    if problems:
        return Finding(name, "fail", some_of(problems), "repair the disk or free space; the broker retries by itself")
    return Finding(name, "ok", f"version {found['version']}, {count(found['topics'], 'topic')}")


def _about_conflicts(topics: list[TopicInfo]) -> Finding:
    found = [
        f"{topic.name}/{one.partition}: broker {conflict.broker} has committed records up to {conflict.high_watermark},"
        f" its leader {conflict.leader} agrees up to {conflict.offset}"
        for topic in topics
        for one in topic.partitions
        for conflict in one.conflicts
    ]
    if not found:
        return Finding("conflicts", "ok", "no replica has more committed records than its leader")
    return Finding("conflicts", "fail", some_of(found), "choose the replica to keep: comet topic elect TOPIC PARTITION")


def _about_leaders(topics: list[TopicInfo]) -> Finding:
    partitions: list[tuple[TopicInfo, PartitionInfo]] = [(topic, one) for topic in topics for one in topic.partitions]
    offline = [f"{topic.name}/{one.partition}" for topic, one in partitions if one.leader is None]
    if offline:
        return Finding("leaders", "fail", f"no leader: {some_of(offline)}", "start the brokers that hold them")
    behind = [f"{topic.name}/{one.partition}" for topic, one in partitions if one.under_replicated]
    if behind:
        return Finding("leaders", "warn", f"not all in sync: {some_of(behind)}", "see comet cluster")
    return Finding("leaders", "ok", f"{count(len(partitions), 'partition')} with a leader and all replicas in sync")


def _about_calendars(calendars: Sequence[CalendarInfo], now_us: int) -> Finding:
    from comet.schedules.calendars import warning

    ending = [one for one in calendars if warning(one.name, one.known_until, now_us)]
    if ending:
        known = some_of([f"{one.name} until {one.known_until}" for one in ending])
        advice = "refresh them: comet calendar import NAME"
        return Finding("calendars", "warn", f"known for 30 days at most: {known}", advice)
    return Finding("calendars", "ok", f"{count(len(calendars), 'calendar')}, known for more than 30 days")


def some_of(texts: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(texts) - NAMED_MAX} more" if len(texts) > NAMED_MAX else ""
    return "; ".join(texts[:NAMED_MAX]) + more
