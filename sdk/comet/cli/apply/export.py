"""The state of a cluster as a file that `comet apply` takes: without internal topics and without a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comet.cli.apply.declaration import Current, limits_of, own_settings
from comet.settings.topic import TOPIC_SETTINGS
from comet.units import format_value

if TYPE_CHECKING:
    from comet.entities import TopicInfo


def exported(now: Current) -> str:
    """YAML, the same for the same state."""
    import yaml

    roles: dict[str, list[str]] = {}
    for member in now.members.values():
        roles.setdefault(member.role, []).append(member.principal)
    document: dict[str, Any] = {
        "topics": {name: _topic(topic) for name, topic in sorted(now.topics.items()) if not topic.internal},
        "rules": sorted(now.rules),
        "roles": {role: sorted(members) for role, members in sorted(roles.items())},
        "quotas": {
            principal: {
                name: _plain(format_value("bytes" if name.startswith("bytes") else "", value))
                for name, value in limits_of(quota).items()
            }
            for principal, quota in sorted(now.quotas.items())
        },
    }
    filled = {name: section for name, section in document.items() if section}
    return yaml.safe_dump(filled or {"topics": {}}, sort_keys=False, allow_unicode=True, width=1_000)


def _topic(topic: TopicInfo) -> dict[str, Any]:
    found: dict[str, Any] = {"partitions": topic.partition_count, "replicas": topic.replicas}
    settings = {name: _plain(TOPIC_SETTINGS[name].format(value)) for name, value in own_settings(topic).items()}
    return found | ({"settings": settings} if settings else {})


def _plain(text: str) -> str | int:
    """A number as a number, which YAML writes without quotes."""
    return int(text) if text.isdigit() else text
