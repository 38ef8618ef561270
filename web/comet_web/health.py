"""The health of a cluster, with reasons ordered by severity. Pure; shown on the overview."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from comet.wire.expiry import DAY_US, EXPIRES_NOW_DAYS, EXPIRES_SOON_DAYS, KEY_EXPIRES_SOON_DAYS, expiry_text
from comet_web.components import numbers
from comet_web.facts import Cluster, Group, IssuedKey
from comet_web.page_request import path

FALLING_BEHIND_MAX: Final = 3  # groups that are named; more are counted
FAILED_MAX: Final = 5  # failed entities of a broker that are named
FRESH_S: Final = 60.0  # a group whose oldest unprocessed record is younger keeps up, even if its lag grows
WARM_UP_S: Final = 120.0  # of a new group: its members start, and have the records from before that to process
LAG_NOTED: Final = 1_000  # records: a smaller lag is no reason, even if it grows


@dataclass(frozen=True, slots=True)
class Reason:
    key: str  # stays while the numbers in the text change
    tone: str  # "bad": something does not work; "warn": it works with less redundancy
    text: str
    href: str = ""
    word: str = "Broken"  # the state of a cluster for which this is the worst reason, if it is bad


@dataclass(frozen=True, slots=True)
class Health:
    word: str
    tone: str
    reasons: tuple[Reason, ...]


def judged(cluster: Cluster) -> Health:
    reasons = tuple(sorted(_reasons(cluster), key=lambda reason: reason.tone != "bad"))
    if not cluster.reachable:
        return Health("Unreachable", "bad", reasons)
    bad = [reason.word for reason in reasons if reason.tone == "bad"]
    if bad:
        return Health("Broken" if "Broken" in bad else bad[0], "bad", reasons)
    if reasons:
        return Health("At risk", "warn", reasons)
    return Health("Healthy", "good", ())


def _reasons(cluster: Cluster) -> Iterator[Reason]:
    if not cluster.reachable:
        known = f"; showing data as of {numbers.moment_text(cluster.time_us)}" if cluster.time_us else ""
        yield Reason("unreachable", "bad", f"No broker answers: {cluster.reason or 'unknown reason'}{known}")
    yield from security(cluster)
    yield from _brokers(cluster)
    yield from _partitions(cluster)
    yield from _groups(cluster)


def security(cluster: Cluster) -> Iterator[Reason]:
    """Brokers that strangers may use, and certificates and access keys that expire soon; with the cure."""
    for broker in cluster.brokers:
        href = path("brokers", broker.id)
        if broker.insecure:
            text = (
                f"Broker {broker.id} answers strangers beyond loopback: insecure = true. Make certificates with "
                "comet security init, and remove insecure from its settings file"
            )
            yield Reason(f"broker {broker.id} insecure", "bad", text, href, "Insecure")
        for listener, expires_us in sorted(broker.certificates.items()):
            left_us = expires_us - cluster.time_us
            if left_us > EXPIRES_SOON_DAYS * DAY_US:
                continue
            text = (
                f"Broker {broker.id}: the certificate of the {listener} listener "
                f"{expiry_text(expires_us, cluster.time_us)}. Issue it again: comet security broker {broker.id}"
            )
            tone = "bad" if left_us <= EXPIRES_NOW_DAYS * DAY_US else "warn"
            word = "At risk" if left_us > 0 else "Broken"
            yield Reason(f"broker {broker.id} certificate {listener}", tone, text, href, word)
    for key in ending(cluster.keys, cluster.time_us):
        assert key.expires_us is not None, "it ends"
        text = (
            f"Access key {key.id} of {key.principal} {expiry_text(key.expires_us, cluster.time_us)}, and no other "
            f"replaces it. Create one: comet key create {key.principal}; or revoke it"
        )
        yield Reason(f"access key {key.id}", "warn", text, "/access")


def expires_soon(key: IssuedKey, now_us: int) -> bool:
    """Whether a key expires soon, or has expired."""
    return key.expires_us is not None and key.expires_us - now_us <= KEY_EXPIRES_SOON_DAYS * DAY_US


def ending(keys: Iterable[IssuedKey], now_us: int) -> list[IssuedKey]:
    """Keys that expire soon or have expired, and that no later key of the same principal replaces."""
    last: dict[str, IssuedKey] = {}
    for key in keys:
        known = last.get(key.principal)
        if known is None or _end(key) > _end(known):
            last[key.principal] = key
    return [key for key in last.values() if expires_soon(key, now_us)]


def _end(key: IssuedKey) -> float:
    return float("inf") if key.expires_us is None else key.expires_us


def _brokers(cluster: Cluster) -> Iterator[Reason]:
    for broker in cluster.brokers:
        href = path("brokers", broker.id)
        if not broker.up and cluster.reachable:
            yield Reason(f"broker {broker.id} down", "warn", f"Broker {broker.id} does not answer", href)
        for problem in broker.problems:
            yield Reason(f"broker {broker.id} {problem}", "bad", f"Broker {broker.id}: {problem}", href)
        stopped = [one for one in broker.failed if one.stopped]
        for one in stopped[:FAILED_MAX]:
            text = f"Broker {broker.id}: {one.kind} {one.name} has failed and stopped: {one.reason}"
            yield Reason(f"broker {broker.id} {one.kind} {one.name}", "bad", text, href)
        if len(stopped) > FAILED_MAX:
            more = f"Broker {broker.id}: {len(stopped) - FAILED_MAX} more have failed and stopped"
            yield Reason(f"broker {broker.id} failed", "bad", more, href)
        if broker.draining:
            left = f"draining: {numbers.counted(broker.leading, 'partition')} left" if broker.leading else "drained"
            yield Reason(f"broker {broker.id} drained", "warn", f"Broker {broker.id} is {left}", href)
    if cluster.reachable and cluster.brokers and cluster.controller is None:
        yield Reason("controller", "bad", "No controller: leaders cannot be elected", "/brokers")


def _partitions(cluster: Cluster) -> Iterator[Reason]:
    for tone, text, counts in (
        ("bad", "without a leader", {name: topic.offline for name, topic in cluster.topics.items()}),
        ("bad", "with a replica in conflict", {name: topic.conflicts for name, topic in cluster.topics.items()}),
        ("warn", "under-replicated", {name: topic.under_replicated for name, topic in cluster.topics.items()}),
    ):
        hit = {name: count for name, count in counts.items() if count}
        if not hit:
            continue
        worst = max(hit, key=lambda name: hit[name])
        of = worst if len(hit) == 1 else f"{len(hit):,} topics, most of {worst}"
        href = path("topics", worst)
        yield Reason(text, tone, f"{numbers.counted(sum(hit.values()), 'partition')} {text}, of {of}", href)


def keeps_up(group: Group) -> bool:
    """Whether all unprocessed records are new: such a lag goes up and down with every batch."""
    return group.age_s is not None and group.age_s < FRESH_S


def falls_behind(group: Group) -> bool:
    return group.growing is True and not keeps_up(group) and not warms_up(group)


def warms_up(group: Group) -> bool:
    """Whether the first lag of the group was measured a short time ago."""
    if group.trend is None:
        return False
    values = group.trend.values
    first = next((at for at, lag in enumerate(values) if lag is not None), len(values))
    return (len(values) - first) * group.trend.step_s < WARM_UP_S


def _groups(cluster: Cluster) -> Iterator[Reason]:
    behind = [group for group in cluster.groups.values() if falls_behind(group) and (group.lag or 0) >= LAG_NOTED]
    behind.sort(key=lambda group: -(group.lag or 0))
    for group in behind[:FALLING_BEHIND_MAX]:
        text = f"Group {group.name} is falling behind: lag is {numbers.counted(group.lag or 0, 'record')} and growing"
        yield Reason(f"group {group.name}", "warn", text, path("groups", group.name))
    if len(behind) > FALLING_BEHIND_MAX:
        more = numbers.counted(len(behind) - FALLING_BEHIND_MAX, "more group")
        yield Reason("groups", "warn", f"{more} falling behind", "/groups")
