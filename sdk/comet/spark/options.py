"""The checked options of a source. Names are those of Spark's Kafka source if they mean the same. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from comet import patterns
from comet.consumer.options import parsed_filter
from comet.errors import InvalidArgument
from comet.spark.connection_options import CONNECTION_OPTIONS, ConnectionOptions
from comet.spark.parsing import Table, chosen, number, parsed, switch, text
from comet.types import check_topic_name

EARLIEST: Final = -2  # as an offset, as Kafka's source writes it
LATEST: Final = -1
MAX_INT: Final = (1 << 63) - 1

Ends = Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ConnectionOptions):
    """One read. Travels to the executors, so it holds nothing but data."""

    topics: tuple[str, ...] = ()  # exactly one of these three is given
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    starting: Ends | None = None  # None: earliest for batches, latest for streams
    starting_ms: int | None = None  # a time, before `starting`
    ending: Ends = "latest"
    ending_ms: int | None = None
    offsets_per_trigger: int | None = None
    partitions_min: int = 0
    partitions_max: int = 0  # 0: as many as there are
    fail_on_loss: bool = True
    headers: bool = False
    append_time: bool = False
    committed: bool = True  # else uncommitted records too
    group: str = ""  # gets the progress of a stream as committed offsets
    event: str = ""  # the type of values: DDL, or module:Class
    permissive: bool = False  # a value that is not such a model becomes null, instead of failing the query
    pushdown: bool = False  # use filters, if Spark has them enabled
    settle_ms: int = 0  # wait of a stream's batch before it looks up the end
    wait_ms: int = 200  # wait of a stream for records before it reports none
    filter: str = ""  # only records that match become rows
    snapshot: bool = False  # of each key, only the last record below the end

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Parses the values of `.option(…)`. Raises InvalidArgument."""
        options = cls(**parsed(_NAMES, given))
        if sum(map(bool, (options.topics, options.pattern, options.assigned))) != 1:
            raise InvalidArgument("give exactly one of the options subscribe, subscribePattern and assign")
        if 0 < options.partitions_max < options.partitions_min:
            raise InvalidArgument(
                f"maxPartitions ({options.partitions_max}) is less than minPartitions ({options.partitions_min})"
            )
        if options.snapshot:
            options._check_snapshot()
        return options

    def _check_snapshot(self) -> None:
        """Raises InvalidArgument for options that would make another thing of a snapshot."""
        if self.starting not in (None, "earliest") or self.starting_ms is not None:
            raise InvalidArgument("a snapshot begins with the log: leave out startingOffsets and startingTimestamp")
        if not self.committed:
            raise InvalidArgument("a snapshot has committed records only: leave out isolation=uncommitted")
        if self.partitions_min:
            raise InvalidArgument("a snapshot reads each partition in one task: leave out minPartitions")
        if self.pushdown:
            raise InvalidArgument(
                "pushdown would cut the range of a snapshot: leave it out; the option filter is applied"
            )


def _topics(name: str, value: str) -> tuple[str, ...]:
    found = [check_topic_name(part.strip()) for part in value.split(",") if part.strip()]
    if not found:
        raise InvalidArgument(f"the option {name} names no topic")
    return tuple(dict.fromkeys(found))


def _pattern(name: str, value: str) -> str:
    patterns.compiled(value)
    return text(name, value)


def _assigned(name: str, value: str) -> dict[str, tuple[int, ...]]:
    document = _object(name, value)
    found: dict[str, tuple[int, ...]] = {}
    for topic, numbers in document.items():
        if not isinstance(numbers, list) or not numbers or not all(_is_count(number) for number in numbers):
            raise InvalidArgument(f'{name} takes {{"topic": [0, 1]}}, not {value!r}')
        found[check_topic_name(topic)] = tuple(sorted(set(numbers)))
    return found


def _ends(name: str, value: str) -> Ends:
    written = value.strip()
    if written == "earliest":
        return "earliest"
    if written == "latest":
        return "latest"
    found: dict[str, dict[int, int]] = {}
    for topic, offsets in _object(name, written).items():
        if not isinstance(offsets, dict):
            raise InvalidArgument(f'{name} takes earliest, latest or {{"topic": {{"0": 23}}}}, not {value!r}')
        found[check_topic_name(topic)] = {_partition(name, key): _offset(name, at) for key, at in offsets.items()}
    return found


def _filter(name: str, value: str) -> str:
    found = text(name, value)
    if parsed_filter(found, now_us=0) != parsed_filter(found, now_us=1):
        raise InvalidArgument(
            f"the option {name} has a time ago, and a task that is repeated has to read the same: give the time, "
            "as in @timestamp > 2026-01-31T12:00:00Z"
        )
    return found


def _object(name: str, value: str) -> dict[str, Any]:
    try:
        document = json.loads(value)
    except ValueError as error:
        raise InvalidArgument(f"option {name} is not JSON: {error}") from None
    if not isinstance(document, dict) or not document:
        raise InvalidArgument(f"the option {name} takes a JSON object with at least one topic, not {value!r}")
    return document


def _partition(name: str, key: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", key):
        raise InvalidArgument(f"{name}: {key!r} is not the number of a partition")
    return int(key)


def _offset(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not EARLIEST <= value <= MAX_INT:
        raise InvalidArgument(f"{name}: {value!r} is not an offset; -2 is earliest, -1 latest")
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 20


_NAMES: Final[Table] = {
    **CONNECTION_OPTIONS,
    "subscribe": ("topics", _topics),
    "subscribePattern": ("pattern", _pattern),
    "assign": ("assigned", _assigned),
    "startingOffsets": ("starting", _ends),
    "endingOffsets": ("ending", _ends),
    "startingTimestamp": ("starting_ms", number(0)),
    "endingTimestamp": ("ending_ms", number(0)),
    "maxOffsetsPerTrigger": ("offsets_per_trigger", number(1)),
    "minPartitions": ("partitions_min", number(1)),
    "maxPartitions": ("partitions_max", number(1)),
    "failOnDataLoss": ("fail_on_loss", switch),
    "includeHeaders": ("headers", switch),
    "includeAppendTime": ("append_time", switch),
    "isolation": ("committed", chosen(committed=True, uncommitted=False)),
    "group": ("group", text),
    "schema": ("event", text),
    "mode": ("permissive", chosen(failfast=False, permissive=True)),
    "pushdown": ("pushdown", switch),
    "settleMs": ("settle_ms", number(0)),
    "waitMs": ("wait_ms", number(0)),
    "filter": ("filter", _filter),
    "snapshot": ("snapshot", switch),
}
