"""The routes of a producer, one per topic with its partition senders, and the slicing of columns into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from comet import limits
from comet.client.client import Client
from comet.client.new_topic import Create, found_or_created
from comet.entities import TopicInfo
from comet.producer.partitioner import check_partition
from comet.producer.sender import PartitionSender
from comet.records import measure, partition_for
from comet.settings.topic import TopicConfig

Column = Sequence[bytes | None]
# Makes the sender of a partition; it calls back when it has closed a batch to further records.
MakeSender = Callable[[str, int, Callable[[PartitionSender], None]], PartitionSender]

_OVERHEAD: Final = limits.RECORD_OVERHEAD_BYTES
_SAMPLE: Final = 64  # records that the length of the first slice is guessed from


class Route:
    """A topic's senders, one per partition, and the current one, which gets records without a key.

    The current one changes with every batch, so that those records spread evenly and still travel in large batches.
    """

    __slots__ = ("config", "current", "make", "overhead", "senders", "topic", "value_size_max")

    def __init__(self, topic: str, make: MakeSender) -> None:
        self.topic = topic
        self.make = make
        self.senders: list[PartitionSender] = []
        self.current: PartitionSender
        self.config: TopicConfig
        self.overhead = _OVERHEAD  # bytes of a record beside its content
        self.value_size_max = 0  # of the largest value with its overhead, for the hot path

    def update(self, info: TopicInfo) -> None:
        """Adds senders for new partitions, and updates the topic's settings."""
        self.config = info.config
        ttl_ms = max(info.config.record_ttl_ms, 0)
        self.overhead = _OVERHEAD + limits.EXPIRY_BYTES if ttl_ms else _OVERHEAD
        self.value_size_max = info.config.record_bytes_max + self.overhead
        for index in range(len(self.senders), len(info.partitions)):
            self.senders.append(self.make(self.topic, index, self.sealed))
        for sender in self.senders:
            sender.accumulator.ttl_ms = ttl_ms

    def sealed(self, sender: PartitionSender) -> None:
        if sender is self.current:
            self.current = self.senders[(sender.accumulator.partition + 1) % len(self.senders)]

    def sender(self, key: bytes | None, partition: int | None) -> PartitionSender:
        """The sender of a record: that of the given partition, else of its key's partition, else the current one."""
        if partition is not None:
            return self.senders[check_partition(self.topic, partition, len(self.senders))]
        if key is not None:
            return self.senders[partition_for(key, len(self.senders))]
        return self.current

    def check_size(self, largest: int) -> None:
        """Raises RecordTooLarge for a value over the topic's limit."""
        if largest + self.overhead > self.value_size_max:
            raise self.config.record_too_large(self.topic, largest)


class Routes:
    """The routes of one producer, by topic. `open` has those of topics that exist, as far as is known."""

    __slots__ = ("_client", "_create", "_lapsed", "_make", "open")

    def __init__(self, client: Client, make: MakeSender, create: Create = False) -> None:
        self.open: dict[str, Route] = {}
        self._lapsed: dict[str, Route] = {}  # of topics that were not found; the next send looks them up again
        self._client = client
        self._make = make
        self._create = create

    def add(self, topic: str, info: TopicInfo) -> Route:
        """The route of a topic that was looked up."""
        route = self.open.get(topic)
        if route is not None:
            return route
        # A new accumulator would begin at epoch 0 again, under the same producer id: the broker would
        # take its first batches for those of long ago, and acknowledge them without writing them.
        route = self._lapsed.pop(topic, None)
        if route is None:
            route = Route(topic, self._make)
            route.update(info)
            route.current = route.senders[self._client.random.randrange(len(route.senders))]
            self._client.watch(lambda: list(self.open), self._topic_changed)
        route.update(info)
        self.open[topic] = route
        return route

    def lapse(self, topic: str) -> None:
        """Closes the route of a topic that was not found."""
        route = self.open.pop(topic, None)
        if route is not None:
            self._lapsed[topic] = route

    async def look_up(self, topic: str) -> TopicInfo:
        """The metadata of a topic, which is made if it is missing and `create` says so; one that this producer has
        written to stays deleted. Raises TopicNotFound, Forbidden."""
        return await found_or_created(self._client, topic, False if topic in self._lapsed else self._create)

    def senders(self) -> list[PartitionSender]:
        return [sender for route in (*self.open.values(), *self._lapsed.values()) for sender in route.senders]

    def _topic_changed(self, info: TopicInfo) -> None:
        route = self.open.get(info.name)
        if route is not None:
            route.update(info)


class Slice(NamedTuple):
    """Columns of one batch, with their size in memory."""

    values: Column
    keys: Column | None
    lengths: int | list[int]  # of the values, see `measure`
    size: int
    first: int  # where it begins in the columns


def cut(values: Column, keys: Column | None, batch_bytes: int, others: Sequence[int] | None = None) -> Iterator[Slice]:
    """Cuts columns into slices of about `batch_bytes`, in order; a record larger than that gets one of its own.
    `others` has the bytes of each record besides key and value.

    One slice predicts the length of the next, so records of a similar size are not measured one by one.

    >>> [len(slice.values) for slice in cut([b"x" * 100] * 10, None, 400)]
    [3, 3, 3, 1]
    """
    sample = values[:_SAMPLE]
    at, step = 0, max(batch_bytes * _SAMPLE // (total(measure(sample), len(sample)) + _OVERHEAD * _SAMPLE), 1)
    while at < len(values):
        part = values[at : at + step]
        part_keys = None if keys is None else keys[at : at + step]
        lengths = measure(part)
        size = total(lengths, len(part)) + _OVERHEAD * len(part)
        if part_keys is not None:
            size += total(measure(part_keys), len(part))
        if others is not None:
            size += sum(others[at : at + step])
        if len(part) > 1 and (size > batch_bytes * 5 // 4 or len(part) > limits.BATCH_RECORDS_MAX):
            step = max(min(len(part) * batch_bytes // size, limits.BATCH_RECORDS_MAX, len(part) - 1), 1)
            continue
        yield Slice(part, part_keys, lengths, size, at)
        at += len(part)
        step = max(min(len(part) * batch_bytes // size, 2 * len(part)), 1)


def total(lengths: int | list[int], count: int) -> int:
    """Bytes of `count` values of these lengths together."""
    return lengths * count if isinstance(lengths, int) else sum(lengths)
