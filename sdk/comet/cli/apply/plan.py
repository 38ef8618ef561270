"""The changes that make a cluster what a file declares. Pure: the same state gives the same plan, and after it is
carried out, none.

What the file does not mention stays as it is, but for two: a setting of a declared topic that the file does not set
takes the cluster's default again, and with `prune` goes what runs with the same name made and the file no longer
declares.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from comet.cli.apply.applied import Applied
from comet.cli.apply.declaration import Current, Declaration, DeclaredTopic, limits_of, own_settings
from comet.cli.apply.yaml_tree import Problem
from comet.settings.topic import TOPIC_SETTINGS, SettingSource
from comet.types import is_internal_topic
from comet.units import count, format_value

if TYPE_CHECKING:
    from comet.admin.quotas import Quota
    from comet.entities import TopicInfo

# The acts, in the order of their steps: rules that deny are added first and removed last.
_ORDER: Final = (
    *("CreateTopic", "AlterTopic", "AddPartitions", "AddRule", "GrantRole", "SetQuota"),
    *("RemoveRule", "RevokeRole", "RemoveQuota", "DeleteTopic"),
)


@dataclass(frozen=True, slots=True)
class ApplyStep:
    """One call of the Admin service."""

    act: str
    sign: str  # +, ~ or -
    kind: str
    name: str
    item: Any  # of the act: what it creates or removes; settings and names to unset; a number of partitions
    detail: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.sign} {self.kind} {self.name}{f' {self.detail}' if self.detail else ''}"


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """The steps, or the problems that forbid them."""

    steps: tuple[ApplyStep, ...]
    problems: tuple[Problem, ...]
    left: tuple[str, ...]  # what earlier runs made, the file no longer declares, and stays without prune
    unsure: tuple[str, ...]  # topics that an interrupted run may have made, and the file no longer declares
    before: Applied  # to remember before the first step

    def after(self, ids: Mapping[str, str]) -> Applied:
        """What to remember after the last step. `ids` are those of created topics."""
        gone: dict[str, set[str]] = {}
        for step in self.steps:
            if step.sign == "-":
                gone.setdefault(step.kind, set()).add(step.name)
        topics = {name: ids.get(name, known) for name, known in self.before.topics.items()}
        return Applied(
            {name: known for name, known in topics.items() if name not in gone.get("topic", ())},
            self.before.rules - gone.get("rule", set()),
            self.before.members - gone.get("role", set()),
            self.before.quotas - gone.get("quota", set()),
        )


def plan_changes(
    wanted: Declaration, now: Current, applied: Applied, *, prune: bool = False, adopt: bool = False
) -> ApplyPlan:
    """`applied` is what earlier runs made. With `adopt` the file counts as having made all that it declares."""
    gone = list(_gone(wanted, now, applied))
    steps = [*_topic_steps(wanted, now), *_access_steps(wanted, now), *(gone if prune else ())]
    steps.sort(key=lambda step: (_ORDER.index(step.act), _last(step)))
    unsure = [
        name for name, known in applied.topics.items() if not known and name in now.topics and name not in wanted.topics
    ]
    return ApplyPlan(
        tuple(steps),
        tuple(problem for topic in wanted.topics.values() for problem in _problems(topic, now)),
        tuple(f"{step.kind} {step.name}" for step in ([] if prune else gone)),
        tuple(unsure),
        _before(wanted, now, applied, adopt=adopt),
    )


def _last(step: ApplyStep) -> bool:
    """Whether it comes after others of its act."""
    denies = step.kind == "rule" and step.item.deny
    return denies if step.sign == "-" else step.kind == "rule" and not denies


# ---- topics


def _topic_steps(wanted: Declaration, now: Current) -> Iterator[ApplyStep]:
    for name, topic in wanted.topics.items():
        found = now.topics.get(name)
        line = topic.lines.get("", 0)
        if found is None:
            yield ApplyStep("CreateTopic", "+", "topic", name, topic, f"({', '.join(_described(topic))})", line)
            continue
        own = own_settings(found)
        given = {key: value for key, value in topic.settings.items() if key not in own or own[key] != value}
        unset = [key for key in own if key not in topic.settings]
        if given or unset:
            detail = ", ".join(_changes(found, given, unset))
            yield ApplyStep("AlterTopic", "~", "topic", name, (given, unset), detail, line)
        if topic.partitions is not None and topic.partitions > found.partition_count:
            detail = f"partitions {found.partition_count} -> {topic.partitions}"
            line = topic.lines.get("partitions", line)
            yield ApplyStep("AddPartitions", "~", "topic", name, topic.partitions, detail, line)


def _described(topic: DeclaredTopic) -> Iterator[str]:
    yield count(topic.partitions or 1, "partition")
    if topic.replicas is not None:
        yield count(topic.replicas, "replica")
    for name, value in topic.settings.items():
        yield f"{name} {TOPIC_SETTINGS[name].format(value)}"


def _changes(topic: TopicInfo, given: Mapping[str, Any], unset: Collection[str]) -> Iterator[str]:
    for name in (*given, *unset):
        row = TOPIC_SETTINGS[name]
        before = row.format(getattr(topic.config, name))
        default = "" if topic.source(name) is SettingSource.TOPIC else " (default)"
        yield f"{name} {before}{default} -> {row.format(given[name]) if name in given else 'default'}"


def _problems(topic: DeclaredTopic, now: Current) -> Iterator[Problem]:
    """Changes that cannot be made. Messages are those of the acts."""
    found = now.topics.get(topic.name)
    line = topic.lines.get("replicas", topic.lines.get("", 0))
    if found is None:
        replicas = topic.replicas or now.defaults.replicas
        if replicas > now.brokers:
            yield Problem(line, f"{replicas} replicas need as many brokers, and {now.brokers} are alive")
    else:
        replicas = found.replicas
        if topic.partitions is not None and topic.partitions < found.partition_count:
            text = f"topic {topic.name!r} has {found.partition_count} partitions; their number can only grow"
            yield Problem(topic.lines.get("partitions", line), text)
        if topic.replicas is not None and topic.replicas != replicas:
            text = (
                f"topic {topic.name!r} has {count(replicas, 'replica')}, not {topic.replicas}, and apply moves none: "
                f"comet topic move {topic.name} PARTITION --to ID,ID,..."
            )
            yield Problem(line, text)
    min_insync = topic.settings.get("min_insync", 1)
    if min_insync > replicas:
        text = f"min_insync={min_insync} can never be met with {replicas} replicas"
        yield Problem(topic.lines.get("min_insync", line), text)


# ---- access


def _access_steps(wanted: Declaration, now: Current) -> Iterator[ApplyStep]:
    for text, rule in wanted.rules.items():
        if text not in now.rules:
            yield ApplyStep("AddRule", "+", "rule", text, rule)
    for text, member in wanted.members.items():
        if text not in now.members:
            yield ApplyStep("GrantRole", "+", "role", text, member)
    for principal, quota in wanted.quotas.items():
        known = now.quotas.get(principal)
        if known is None or limits_of(known) != limits_of(quota):
            detail = ", ".join(_limits(known, quota))
            yield ApplyStep("SetQuota", "+" if known is None else "~", "quota", principal, quota, detail)


def _limits(before: Quota | None, after: Quota) -> Iterator[str]:
    old, new = {} if before is None else limits_of(before), limits_of(after)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            texts = [_limit(name, limits.get(name, 0)) for limits in (old, new)]
            yield f"{name} {texts[1]}" if before is None else f"{name} {texts[0]} -> {texts[1]}"


def _limit(name: str, value: int) -> str:
    if not value:
        return "none"
    return format_value("bytes" if name.startswith("bytes") else "", value)


# ---- what runs with this name made


def _gone(wanted: Declaration, now: Current, applied: Applied) -> Iterator[ApplyStep]:
    """The steps that remove what earlier runs made and the file no longer declares."""
    for name, known in applied.topics.items():
        found = now.topics.get(name)
        if found is None or name in wanted.topics or is_internal_topic(name) or found.id.hex() != known:
            continue
        yield ApplyStep("DeleteTopic", "-", "topic", name, found, f"({count(found.partition_count, 'partition')})")
    for text in sorted(applied.rules & now.rules.keys() - wanted.rules.keys()):
        yield ApplyStep("RemoveRule", "-", "rule", text, now.rules[text])
    for text in sorted(applied.members & now.members.keys() - wanted.members.keys()):
        yield ApplyStep("RevokeRole", "-", "role", text, now.members[text])
    for principal in sorted(applied.quotas & now.quotas.keys() - wanted.quotas.keys()):
        yield ApplyStep("RemoveQuota", "-", "quota", principal, principal)


def _before(wanted: Declaration, now: Current, applied: Applied, *, adopt: bool) -> Applied:
    """What to remember before the first step: what earlier runs made and is still there, and what this one makes."""

    def made(known: frozenset[str], wanted: Collection[str], now: Collection[str]) -> frozenset[str]:
        return frozenset((known & set(now)) | (set(wanted) if adopt else set(wanted) - set(now)))

    return Applied(
        dict(_topics_made(wanted, now, applied, adopt=adopt)),
        made(applied.rules, wanted.rules, now.rules),
        made(applied.members, wanted.members, now.members),
        made(applied.quotas, wanted.quotas, now.quotas),
    )


def _topics_made(wanted: Declaration, now: Current, applied: Applied, *, adopt: bool) -> Iterator[tuple[str, str]]:
    for name, known in applied.topics.items():
        found = now.topics.get(name)
        if found is not None and known in ("", found.id.hex()):
            yield name, found.id.hex() if name in wanted.topics else known
    for name in wanted.topics:
        found = now.topics.get(name)
        if found is None:
            yield name, ""
        elif adopt:
            yield name, found.id.hex()
