"""The table of topic settings, and the configuration of a topic, which is made of it.

    TopicSetting      a row: name, unit, default, bounds or words, label, text
    TopicConfig       the settings of a topic, one field for each row
    TOPIC_SETTINGS    the rows by name
    TopicDefaults     what a new topic gets, as a broker answers

Pure. A setting is a row here, a field of the protocol, and its behaviour; the rest is made from the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Annotated, Any, Final

from comet.errors import InvalidArgument, RecordTooLarge
from comet.units import format_value, parse_value

NO_LIMIT: Final = -1
REPLICAS_MAX: Final = 15
_DAY_MS: Final = 24 * 3600 * 1000
TTL_MS_MAX: Final = 10 * 366 * _DAY_MS  # of a record, from its timestamp to its expiry
_UNLIMITED: Final = ("-1", "none", "unlimited", "forever")
_REPLICATED: Final = 3  # replicas from which `default_replicated` counts


class Flush(str, Enum):
    """When a topic's log is synced to disk: before each acknowledgement, at an interval, or by the operating system.

    >>> TopicConfig(flush=Flush.ALWAYS).flush.value
    'always'
    """

    ALWAYS = "always"
    INTERVAL = "interval"
    OS = "os"


class CleanupPolicy(str, Enum):
    """What is removed from a topic: old records, superseded ones, or both.

    >>> TopicConfig(cleanup_policy=CleanupPolicy.COMPACT).retention()
    {}
    """

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_DELETE = "compact-delete"


class Consistency(str, Enum):
    """Which records readers of a topic see: those that every in-sync replica has, or all that the broker has.

    >>> TopicConfig(consistency=Consistency.AVAILABLE).consistency.value
    'available'
    """

    CONSISTENT = "consistent"
    AVAILABLE = "available"


class SettingSource(str, Enum):
    """Where the value of a topic's setting comes from: set for this topic, the cluster's default when the topic was
    created or the setting was unset, or the default of the program.

    >>> SettingSource("built-in")
    <SettingSource.BUILT_IN: 'built-in'>
    """

    TOPIC = "topic"
    CLUSTER = "cluster"
    BUILT_IN = "built-in"


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A row of the table of topic settings: a field of TopicConfig.

    Protocol, command line, settings of brokers, REST, pages and documents are made from it. `unit` is "ms", "bytes",
    another noun, or "" for a setting that takes one of `words`. `low` is NO_LIMIT where -1 stands for "no limit".
    """

    name: str
    type: type[int | Enum]
    unit: str
    default: Any
    label: str
    about: str
    low: int = 0
    high: int = 0
    bits: int = 64  # of the number; in JSON, 64 bits are a string
    cluster: bool = True  # a broker's settings can have another default, `topic_NAME`
    default_replicated: Any = None  # the default with three or more replicas, if it is another one
    since: str = "0.1.0"

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(str(word.value) for word in self.type) if issubclass(self.type, Enum) else ()

    @property
    def unlimited(self) -> bool:
        return self.low == NO_LIMIT

    @property
    def shown_default(self) -> str:
        more = (
            ""
            if self.default_replicated is None
            else f"; {self.format(self.default_replicated)} with 3 or more replicas"
        )
        return self.format(self.default) + more

    @property
    def bounds(self) -> str:
        """The valid values, as text."""
        if self.words:
            return ", ".join(self.words)
        return "any, or none" if self.unlimited else f"{self.format(self.low)} to {self.format(self.high)}"

    def default_for(self, replicas: int) -> Any:
        """The built-in default of a topic with this number of replicas."""
        use_replicated = self.default_replicated is not None and replicas >= _REPLICATED
        return self.default_replicated if use_replicated else self.default

    def check(self, value: object) -> None:
        """Raises InvalidArgument for a value of another type, or out of bounds."""
        if not isinstance(value, self.type) or isinstance(value, bool):
            raise self._unknown_word(value) if self.words else self._out_of_bounds(value)
        if isinstance(value, int) and not self.low <= value <= self.high:
            raise self._out_of_bounds(value)

    def convert(self, value: object) -> Any:
        """The value of a word or a number, unchecked. Raises InvalidArgument for an unknown word."""
        if not issubclass(self.type, Enum):
            return value
        try:
            return self.type(value)
        except ValueError:
            raise self._unknown_word(value) from None

    def parse(self, text: str) -> Any:
        """Parses text with a unit. Raises InvalidArgument, also for a value out of bounds.

        >>> TOPIC_SETTINGS["retention_ms"].parse("7d"), TOPIC_SETTINGS["retention_bytes"].parse("none")
        (604800000, -1)
        """
        if self.words:
            return self.convert(text)
        if self.unlimited and text.lower() in _UNLIMITED:
            return NO_LIMIT
        value = parse_value(self.name, self.unit, text)
        self.check(value)
        return value

    def format(self, value: Any) -> str:
        """Formats a value so that `parse` parses it back.

        >>> TOPIC_SETTINGS["segment_bytes"].format(134217728), TOPIC_SETTINGS["flush"].format(Flush.OS)
        ('128MiB', 'os')
        """
        if self.words:
            return str(plain(value))
        return "none" if value == NO_LIMIT else format_value(self.unit, value)

    def _out_of_bounds(self, value: object) -> InvalidArgument:
        return InvalidArgument(
            f"{self.name} must be a whole number from {self.low} to {self.high}, not {plain(value)!r}"
        )

    def _unknown_word(self, value: object) -> InvalidArgument:
        *most, last = self.words
        return InvalidArgument(f"{self.name} must be {', '.join(most)} or {last}, not {plain(value)!r}")


def plain(value: Any) -> Any:
    """The value of a setting without its enumeration: a number, or a word."""
    return value.value if isinstance(value, Enum) else value


def _setting(kind: type[int | Enum], default: Any, unit: str, label: str, about: str, **more: Any) -> Any:
    """The field of a setting; `settings_of` gives its row the name."""
    return field(default=default, metadata={"row": TopicSetting("", kind, unit, default, label, about, **more)})


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of a topic; -1 means "no limit" in the retention fields and in max_compaction_lag_ms.

    >>> TopicConfig(retention_ms=3_600_000).retention_bytes
    -1
    """

    # A setting is a field here, a field of the protocol, and its behaviour in the broker. The rest follows.
    retention_ms: int = _setting(
        int, 7 * _DAY_MS, "ms", "Retention time", "How long records are kept.", low=NO_LIMIT, high=1 << 53
    )
    retention_bytes: int = _setting(
        int,
        NO_LIMIT,
        "bytes",
        "Retention size per partition",
        "How many bytes of each partition are kept.",
        low=NO_LIMIT,
        high=1 << 53,
    )
    retention_records: int = _setting(
        int,
        NO_LIMIT,
        "records",
        "Retained records per partition",
        "How many records of each partition are kept.",
        low=NO_LIMIT,
        high=1 << 53,
    )
    record_ttl_ms: int = _setting(
        int,
        NO_LIMIT,
        "ms",
        "Time to live of records",
        "A record is not delivered from this time after its timestamp on, unless it was sent with a time to live of "
        "its own. A change applies to records that are sent later. 0: no limit, too.",
        low=NO_LIMIT,
        high=TTL_MS_MAX,
        cluster=False,
    )
    flush: Flush = _setting(  # noqa: RUF009 - it makes a field
        Flush,
        Flush.INTERVAL,
        "",
        "Flush to disk",
        "When the log is synced to disk. always: before each acknowledgement; interval: every flush_interval_ms; "
        "os: by the operating system.",
    )
    flush_interval_ms: int = _setting(
        int,
        50,
        "ms",
        "Flush interval",
        "How often the log is synced to disk, with flush=interval.",
        low=1,
        high=60_000,
        bits=32,
    )
    record_bytes_max: int = _setting(
        int, 1 << 20, "bytes", "Largest record", "The largest record that is accepted.", low=1, high=7 << 20, bits=32
    )
    segment_bytes: int = _setting(
        int,
        128 << 20,
        "bytes",
        "Segment size",
        "Size at which a new segment is started. Retention deletes whole segments.",
        low=64 << 10,
        high=1 << 30,
    )
    segment_ms: int = _setting(
        int, _DAY_MS, "ms", "Segment age", "Age at which a new segment is started.", low=100, high=10 * 366 * _DAY_MS
    )
    min_insync: int = _setting(
        int,
        1,
        "replicas",
        "Minimum in-sync replicas",
        "In-sync replicas that acks=all needs; it is refused while fewer are in sync.",
        low=1,
        high=REPLICAS_MAX,
        bits=32,
        cluster=False,  # it follows the number of the topic's replicas
        default_replicated=2,
    )
    cleanup_policy: CleanupPolicy = _setting(  # noqa: RUF009
        CleanupPolicy,
        CleanupPolicy.DELETE,
        "",
        "Cleanup policy",
        "delete: retention deletes old records. compact: of each key, the last record stays, and those before it go "
        "some time later; every record needs a key. compact-delete: both.",
        cluster=False,
    )
    min_dirty_percent: int = _setting(
        int,
        50,
        "percent",
        "Share of new records for a compaction",
        "A partition is compacted when this share of its full segments was not compacted yet.",
        low=1,
        high=100,
        bits=32,
        cluster=False,
    )
    min_compaction_lag_ms: int = _setting(
        int,
        0,
        "ms",
        "Shortest time before compaction",
        "Superseded records stay at least so long: a reader that is less far behind sees every record.",
        high=10 * 366 * _DAY_MS,
        cluster=False,
    )
    max_compaction_lag_ms: int = _setting(
        int,
        NO_LIMIT,
        "ms",
        "Longest time before compaction",
        "Superseded records go after this time, also if the share of new ones is small.",
        low=NO_LIMIT,
        high=10 * 366 * _DAY_MS,
        cluster=False,
    )
    delete_retention_ms: int = _setting(
        int,
        _DAY_MS,
        "ms",
        "Retention of tombstones",
        "How long a tombstone stays after the first compaction that met it.",
        high=10 * 366 * _DAY_MS,
        cluster=False,
    )
    consistency: Consistency = _setting(  # noqa: RUF009
        Consistency,
        Consistency.CONSISTENT,
        "",
        "Consistency",
        "consistent: readers see records that all in-sync replicas have, and one of these leads. available: readers "
        "see all records of their broker, and any replica may lead; records may be lost.",
        cluster=False,
    )

    def __post_init__(self) -> None:
        for name, row in TOPIC_SETTINGS.items():
            row.check(getattr(self, name))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(TOPIC_SETTINGS)

    def plain(self) -> dict[str, int | str]:
        """All settings as numbers and words."""
        return {name: plain(getattr(self, name)) for name in TOPIC_SETTINGS}

    def retention(self) -> dict[str, int]:
        """The limits beyond which records are deleted, by setting; none where records are kept forever.

        >>> TopicConfig(retention_records=1_000).retention()
        {'retention_ms': 604800000, 'retention_records': 1000}
        """
        if self.cleanup_policy is CleanupPolicy.COMPACT:
            return {}
        limits = {name: getattr(self, name) for name in ("retention_ms", "retention_bytes", "retention_records")}
        return {name: limit for name, limit in limits.items() if limit != NO_LIMIT}

    @property
    def compacts(self) -> bool:
        """Whether superseded records go, so that every record needs a key."""
        return self.cleanup_policy is not CleanupPolicy.DELETE

    def refuses_acks_all(self, in_sync: int) -> bool:
        """Whether acks="all" is refused with this number of in-sync replicas.

        >>> TopicConfig(min_insync=2).refuses_acks_all(in_sync=1)
        True
        """
        return in_sync < self.min_insync

    @property
    def available(self) -> bool:
        """Whether readers see records that other replicas may lack. Such a topic takes no transactions."""
        return self.consistency is Consistency.AVAILABLE

    def oversized(self, values: Sequence[bytes | None]) -> list[int]:
        """Indexes of the values that are too large for a record of the topic.

        >>> TopicConfig(record_bytes_max=4).oversized([b"1234", None, b"12345"])
        [2]
        """
        most = self.record_bytes_max
        if max(map(len, filter(None, values)), default=0) <= most:
            return []
        return [index for index, value in enumerate(values) if value is not None and len(value) > most]

    def record_too_large(self, topic: str, size: int) -> RecordTooLarge:
        """The error for a record of `size` bytes."""
        return RecordTooLarge(
            f"a record of {size} bytes is over record_bytes_max={self.record_bytes_max} of topic {topic!r}",
            details={"record_bytes_max": str(self.record_bytes_max)},
        )


# The table of topic settings, by name.
TOPIC_SETTINGS: Final[Mapping[str, TopicSetting]] = {
    one.name: replace(one.metadata["row"], name=one.name) for one in fields(TopicConfig)
}


def topic_setting(name: str) -> TopicSetting:
    """A row by its name. Raises InvalidArgument."""
    row = TOPIC_SETTINGS.get(name)
    if row is None:
        raise InvalidArgument(f"unknown topic setting: {name!r}; use one of {', '.join(TOPIC_SETTINGS)}")
    return row


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """The settings and replicas of a new topic unless they are given: the defaults of the broker that answers, and
    where each comes from.

    >>> TopicDefaults(TopicConfig(retention_ms=3_600_000), {"retention_ms": SettingSource.CLUSTER}).source("flush")
    <SettingSource.BUILT_IN: 'built-in'>
    """

    config: TopicConfig = field(default_factory=TopicConfig)
    sources: Annotated[Mapping[str, SettingSource], "Where defaults come from: the cluster, or built in."] = field(
        default_factory=dict, hash=False
    )
    replicas: Annotated[int, "Replicas of each partition of a new topic."] = 1

    def source(self, name: str) -> SettingSource:
        """Where the default of a setting comes from."""
        return self.sources.get(name, SettingSource.BUILT_IN)
