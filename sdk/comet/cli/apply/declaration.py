"""What a file declares, and what a cluster has. Plain data.

Rules, members of roles and quotas are told apart by a text: the rule itself, the role and its principal, the principal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from comet.settings.topic import TopicDefaults

if TYPE_CHECKING:
    from comet.admin.quotas import Quota
    from comet.admin.rules import RoleMember, Rule
    from comet.entities import TopicInfo

LIMITS = ("bytes_in", "bytes_out", "requests", "streams")  # of a quota


@dataclass(frozen=True, slots=True)
class DeclaredTopic:
    """A topic of the file. `lines` are those of its fields and settings, and "" of the topic itself."""

    name: str
    partitions: int | None = None
    replicas: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Declaration:
    """All that a file declares. Without a name, what it makes is not remembered."""

    name: str = ""
    topics: Mapping[str, DeclaredTopic] = field(default_factory=dict)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    members: Mapping[str, RoleMember] = field(default_factory=dict)
    quotas: Mapping[str, Quota] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Current:
    """The state of the cluster, as far as a file can declare it."""

    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    members: Mapping[str, RoleMember] = field(default_factory=dict)
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    defaults: TopicDefaults = field(default_factory=TopicDefaults)
    brokers: int = 1


def own_settings(topic: TopicInfo) -> dict[str, Any]:
    """The settings that are set for the topic itself."""
    from comet.settings.topic import TOPIC_SETTINGS, SettingSource

    return {name: getattr(topic.config, name) for name in TOPIC_SETTINGS if topic.source(name) is SettingSource.TOPIC}


def limits_of(quota: Quota) -> dict[str, int]:
    """The limits of a quota, without those that are 0."""
    return {name: value for name in LIMITS if (value := getattr(quota, name))}
