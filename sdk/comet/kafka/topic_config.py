"""The topics to copy, the properties of a Kafka client in a file, and settings in Comet for a topic of Kafka. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from comet.errors import InvalidArgument, TopicNotFound
from comet.settings.topic import NO_LIMIT, TOPIC_SETTINGS, TopicConfig
from comet.types import is_internal_topic

_DEFAULT_MESSAGE_BYTES: Final = (1 << 20) + 12  # Kafka's default: a mebibyte, and the overhead of a batch
_COMPACTION: Final = {
    "min.compaction.lag.ms": "min_compaction_lag_ms",
    "delete.retention.ms": "delete_retention_ms",
}
_SHOWN: Final = 10  # names of topics in a hint


def parse_properties(text: str, file: str) -> dict[str, str]:
    r"""The lines NAME=VALUE of a file of librdkafka's properties; # begins a comment line.

    >>> parse_properties("# TLS\nsecurity.protocol = SSL\n", "client.properties")
    {'security.protocol': 'SSL'}
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not equals or not name.strip():
            raise InvalidArgument(f"{file}, line {number}: a property is NAME=VALUE")  # the line may have a secret
        found[name.strip()] = value.strip()
    return found


def chosen_topics(words: Sequence[str], topics: Collection[str]) -> list[str]:
    """The topics that names and patterns mean, of those in Kafka; a pattern leaves out internal ones.

    >>> chosen_topics(["orders", "eu.*"], ["orders", "eu.a", "__offsets"])
    ['eu.a', 'orders']
    """
    found: set[str] = set()
    visible = sorted(name for name in topics if not is_internal_topic(name))
    for word in words:
        if is_internal_topic(word):
            raise InvalidArgument(f"{word} cannot be copied: topics with two underscores in front are internal")
        matched = [word] if word in topics else [name for name in visible if fnmatchcase(name, word)]
        if not matched:
            shown = ", ".join(visible[:_SHOWN]) + (", ..." if len(visible) > _SHOWN else "")
            hint = f"topics of that Kafka cluster: {shown}" if visible else "that Kafka cluster has no topics"
            raise TopicNotFound(f"Kafka has no topic {word!r}", details={"hint": hint})
        found.update(matched)
    return sorted(found)


def settings_of(config: Mapping[str, str]) -> dict[str, int | str]:
    """Settings of a new topic in Comet from Kafka's configuration, as far as it is known.

    >>> settings_of({"retention.ms": "86400000", "cleanup.policy": "delete"})
    {'retention_ms': 86400000}
    >>> settings_of({"cleanup.policy": "compact", "retention.ms": "86400000"})
    {'cleanup_policy': 'compact'}
    """
    found: dict[str, int | str] = {}
    policies = config.get("cleanup.policy", "delete").split(",")
    if "compact" in policies:
        found["cleanup_policy"] = "compact-delete" if "delete" in policies else "compact"
        for name, setting in _COMPACTION.items():
            if name in config:
                found[setting] = min(int(config[name]), TOPIC_SETTINGS[setting].high)
    for name, setting in (("retention.ms", "retention_ms"), ("retention.bytes", "retention_bytes")):
        if "delete" in policies and (value := config.get(name)) is not None:
            found[setting] = max(int(value), NO_LIMIT)
    largest = int(config.get("max.message.bytes", 0))
    if largest > _DEFAULT_MESSAGE_BYTES:
        found["record_bytes_max"] = min(largest, TOPIC_SETTINGS["record_bytes_max"].high)
    return found


def retention_text(config: TopicConfig) -> str:
    """What is deleted from a topic, as text.

    >>> retention_text(TopicConfig())
    'retention_ms=7d'
    """
    limits = config.retention()
    compacted = ["the last record of each key"] if config.compacts else []
    return (
        ", ".join(compacted + [f"{name}={TOPIC_SETTINGS[name].format(limit)}" for name, limit in limits.items()])
        or "forever"
    )


def size_hint(topic: str, size: int) -> str:
    """The next step after a record that is too large for a topic."""
    row = TOPIC_SETTINGS["record_bytes_max"]
    if size > row.high:
        return (
            f"the highest {row.name} is {row.format(row.high)}: begin behind that record, with a new topic and --start"
        )
    return f"comet topic alter {topic} --set {row.name}={size}; then run the import again"
