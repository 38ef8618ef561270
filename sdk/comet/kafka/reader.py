"""Reads topics of a Kafka cluster by librdkafka: what is there, where partitions begin and end, and records in chunks.

Calls block; one thread at a time makes them. Memory is bounded by librdkafka's queue, 16 MiB, and by a chunk. Only
committed records are read (read_committed). Nothing is written to Kafka, and no group is joined: the group id that the
library requires is never used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from comet.errors import (
    CometError,
    CredentialsRefused,
    DataLoss,
    Forbidden,
    Internal,
    InvalidArgument,
    TopicNotFound,
    Unavailable,
)
from comet.kafka.block import Chunk, KafkaRecords

log = logging.getLogger("comet.kafka")
log.addHandler(logging.NullHandler())  # librdkafka logs each attempt to connect; the last one is in the error

Partition = tuple[str, int]

ANSWER_S_MAX: Final = 15.0
CONFIG_S_MAX: Final = 5.0
PATIENCE_S: Final = 30.0  # without any broker, before an import ends
POLL_S: Final = 0.25
GATHER_S: Final = 0.1  # after the first record of a chunk
CHUNK_BYTES: Final = 4 << 20
CHUNK_RECORDS: Final = 20_000
OBJECT_BYTES: Final = 100  # of a record or a header, beside its content
_CHOSEN_BY_USER: Final = {"queued.max.messages.kbytes": "16384", "fetch.message.max.bytes": "8388608"}
_FIXED: Final = {
    "group.id": "comet-import",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
}
_NO_TIMESTAMP: Final = 0
_REFUSED: Final = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}
_FORBIDDEN: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_MISSING: Final = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_REMOVED: Final = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_NO_ANSWER: Final = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}
_CONFIG_HINT: Final = "give librdkafka's properties in a file: --config FILE, e.g. security.protocol, ssl.ca.location"


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """What Kafka says of itself."""

    id: str
    topics: Mapping[str, int]  # with their numbers of partitions
    has_controller: bool


class KafkaReader:
    """A connection to a Kafka cluster. Lives for one import; `close` ends it."""

    def __init__(self, bootstrap: str, properties: Mapping[str, str]) -> None:
        self._bootstrap = bootstrap
        self._last_error = ""
        self._refusal: CometError | None = None
        self._down_since: float | None = None
        self._connection: dict[str, Any] = {
            **properties, "bootstrap.servers": bootstrap, "logger": log, "error_cb": self._on_error,
        }  # fmt: skip
        try:
            self._consumer = Consumer(_CHOSEN_BY_USER | self._connection | _FIXED)
        except (KafkaException, ValueError, TypeError) as error:
            text = str(error.args[0].str() if isinstance(error, KafkaException) else error)
            raise InvalidArgument(
                f"librdkafka refuses the configuration: {text}", details={"hint": _CONFIG_HINT}
            ) from None
        self.ends: dict[Partition, int] = {}  # of partitions that are still read; where to stop, unless it follows
        self.held: dict[Partition, int] = {}  # open transactions of Kafka before such an end
        self._follow = False

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = error.str()
        if error.code() in _REFUSED:
            self._refusal = _comet_error(error, f"Kafka at {self._bootstrap}")
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and self._down_since is None:
            self._down_since = time.monotonic()

    # ---- what is there

    def cluster(self) -> KafkaCluster:
        """The topics and the id of the cluster. Raises Unavailable, or CredentialsRefused."""
        try:
            found = self._consumer.list_topics(timeout=ANSWER_S_MAX)
        except KafkaException as error:
            self._consumer.poll(0)  # delivers the errors of connections
            raise self._unreachable(error.args[0]) from None
        topics = {name: len(topic.partitions) for name, topic in found.topics.items() if topic.error is None}
        return KafkaCluster(
            found.cluster_id or "", topics, found.controller_id is not None and found.controller_id >= 0
        )

    def _unreachable(self, error: KafkaError) -> CometError:
        if self._refusal is not None:
            return self._refusal
        why = f": {self._last_error}" if self._last_error else ""
        if error.code() in (
            KafkaError._TRANSPORT,
            KafkaError._TIMED_OUT,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._RESOLVE,
        ):
            return Unavailable(
                f"no broker of Kafka answers at {self._bootstrap}{why}",
                details={"hint": f"check the address of --from; for TLS and SASL {_CONFIG_HINT}"},
            )
        return _comet_error(error, f"Kafka at {self._bootstrap}")

    def configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Kafka's configuration of topics; of none where Kafka does not tell it."""
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        found: dict[str, dict[str, str]] = {}
        try:
            admin = AdminClient(self._connection)  # kept until it has answered
            for resource, future in admin.describe_configs(resources, request_timeout=CONFIG_S_MAX).items():
                entries = future.result(CONFIG_S_MAX + 1).values()
                found[resource.name] = {one.name: one.value for one in entries if one.value is not None}
        except (KafkaException, TimeoutError) as error:  # the right DescribeConfigs may be missing
            log.info("comet: Kafka does not tell the configuration of topics: %s", error)
        return found

    def bounds(self, at: Partition) -> tuple[int, int]:
        """The first offset and the end of a partition."""
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*at), timeout=ANSWER_S_MAX)
        except KafkaException as error:
            raise self._unreachable(error.args[0]) from None
        return low, high

    def offset_at(self, at: Partition, timestamp_ms: int) -> int | None:
        """The first offset with this timestamp or a later one; None if there is none."""
        try:
            (found,) = self._consumer.offsets_for_times([TopicPartition(*at, timestamp_ms)], timeout=ANSWER_S_MAX)
        except KafkaException as error:
            raise self._unreachable(error.args[0]) from None
        if found.error is not None:
            raise _comet_error(found.error, f"partition {at[1]} of {at[0]}")
        return found.offset if found.offset >= 0 else None

    def lag(self, positions: Mapping[Partition, int]) -> int:
        """Offsets between positions and the newest known ends, without asking Kafka."""
        total = 0
        for at, position in positions.items():
            end = self.ends.get(at, position)
            if self._follow:
                _, end = self._consumer.get_watermark_offsets(TopicPartition(*at), cached=True)
            total += max(end - position, 0)
        return total

    # ---- records

    def begin(self, positions: Mapping[Partition, int], ends: Mapping[Partition, int], *, follow: bool) -> None:
        """Reads from these positions, up to the ends or, with `follow`, without an end."""
        self._follow = follow
        left = {at: ends[at] for at, position in positions.items() if follow or position < ends[at]}
        self.ends = left
        self._consumer.assign([TopicPartition(*at, positions[at]) for at in left])

    @property
    def done(self) -> bool:
        """Whether each partition was read up to its end; never with `follow`."""
        return not self.ends

    def read(self) -> Chunk:
        """The next records, after a quarter of a second at most: none may have come."""
        chunk = Chunk()
        deadline = time.monotonic() + POLL_S
        while not self.done and chunk.held_bytes < CHUNK_BYTES and chunk.records < CHUNK_RECORDS:
            message = self._consumer.poll(max(deadline - time.monotonic(), 0))
            if self._refusal is not None:
                raise self._refusal
            if message is None:
                break
            if (error := message.error()) is not None:
                self._on_message_error(message, error)
                continue
            self._down_since = None
            if not chunk.records:
                deadline = min(deadline, time.monotonic() + GATHER_S)
            self._take(chunk, message)
        self._check_reachable()
        return chunk

    def _take(self, chunk: Chunk, message: Any) -> None:
        at = (message.topic(), message.partition())
        offset = message.offset()
        if not self._follow:
            end = self.ends.get(at)
            if end is None:
                return  # read ahead by librdkafka, behind the end
            if offset >= end - 1:
                self._finish(at)
            if offset >= end:
                return
        part = chunk.parts.get(at)
        if part is None:
            part = chunk.parts[at] = KafkaRecords(*at)
        kind, milliseconds = message.timestamp()
        key, value, headers = message.key(), message.value(), message.headers()
        part.offsets.append(offset)
        part.keys.append(key)
        part.values.append(value)
        part.headers.append([(name, content or b"") for name, content in headers] if headers else None)
        part.timestamps_us.append(None if kind == _NO_TIMESTAMP or milliseconds < 0 else milliseconds * 1000)
        chunk.records += 1
        size = (
            len(key or b"")
            + len(value or b"")
            + sum(len(name) + len(content or b"") for name, content in headers or ())
        )
        chunk.bytes += size
        chunk.held_bytes += size + OBJECT_BYTES * (1 + len(headers or ()))

    def _finish(self, at: Partition) -> None:
        del self.ends[at]
        self._consumer.incremental_unassign([TopicPartition(*at)])

    def _on_message_error(self, message: Any, error: KafkaError) -> None:
        at = (message.topic(), message.partition())
        if error.code() == KafkaError._PARTITION_EOF:
            self._down_since = None
            if not self._follow and at in self.ends:
                if message.offset() < self.ends[at]:
                    self.held[at] = message.offset()
                self._finish(at)
        elif not error.retriable() and error.code() not in _NO_ANSWER:
            raise _comet_error(error, f"partition {at[1]} of {at[0]}")

    def _check_reachable(self) -> None:
        """Raises Unavailable once no broker has answered for half a minute."""
        if self._down_since is not None and time.monotonic() - self._down_since >= PATIENCE_S:
            self.cluster()
            self._down_since = None

    def close(self) -> None:
        self._consumer.close()


def _comet_error(error: KafkaError, where: str) -> CometError:
    text = f"{where}: {error.str()}"
    code = error.code()
    if code in _REFUSED:
        return CredentialsRefused(text, details={"hint": f"check the file of --config; {_CONFIG_HINT}"})
    if code in _FORBIDDEN:
        return Forbidden(text, details={"hint": "Kafka's ACLs must allow Read and Describe on the topics"})
    if code in _MISSING:
        return TopicNotFound(text, details={"hint": "it was deleted in Kafka"})
    if code in _REMOVED:
        hint = "Kafka removed records before they were copied; run the import again: it says how many, and goes on"
        return DataLoss(text, details={"hint": hint})
    if error.retriable():
        return Unavailable(text, details={"hint": "run the import again: it carries on where it stopped"})
    return Internal(text, details={"hint": "run the import again: it carries on where it stopped"})
