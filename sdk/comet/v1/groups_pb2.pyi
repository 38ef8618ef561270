from comet.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GroupKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_KIND_UNSPECIFIED: _ClassVar[GroupKind]
    GROUP_KIND_CONSUMER: _ClassVar[GroupKind]
    GROUP_KIND_SHARE: _ClassVar[GroupKind]

class AcknowledgeType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACKNOWLEDGE_TYPE_UNSPECIFIED: _ClassVar[AcknowledgeType]
    ACKNOWLEDGE_TYPE_ACCEPT: _ClassVar[AcknowledgeType]
    ACKNOWLEDGE_TYPE_RELEASE: _ClassVar[AcknowledgeType]
    ACKNOWLEDGE_TYPE_REJECT: _ClassVar[AcknowledgeType]
    ACKNOWLEDGE_TYPE_EXTEND: _ClassVar[AcknowledgeType]
    ACKNOWLEDGE_TYPE_RETURN: _ClassVar[AcknowledgeType]
GROUP_KIND_UNSPECIFIED: GroupKind
GROUP_KIND_CONSUMER: GroupKind
GROUP_KIND_SHARE: GroupKind
ACKNOWLEDGE_TYPE_UNSPECIFIED: AcknowledgeType
ACKNOWLEDGE_TYPE_ACCEPT: AcknowledgeType
ACKNOWLEDGE_TYPE_RELEASE: AcknowledgeType
ACKNOWLEDGE_TYPE_REJECT: AcknowledgeType
ACKNOWLEDGE_TYPE_EXTEND: AcknowledgeType
ACKNOWLEDGE_TYPE_RETURN: AcknowledgeType

class FindCoordinatorRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class FindCoordinatorResponse(_message.Message):
    __slots__ = ("slot", "broker", "host", "port", "wire_port", "wire_socket")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    WIRE_PORT_FIELD_NUMBER: _ClassVar[int]
    WIRE_SOCKET_FIELD_NUMBER: _ClassVar[int]
    slot: int
    broker: int
    host: str
    port: int
    wire_port: int
    wire_socket: str
    def __init__(self, slot: _Optional[int] = ..., broker: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., wire_port: _Optional[int] = ..., wire_socket: _Optional[str] = ...) -> None: ...

class TopicPartitions(_message.Message):
    __slots__ = ("topic", "topic_id", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("group", "member", "instance", "topics", "pattern", "kind", "session_timeout_ms", "release_timeout_ms", "client", "generation", "owned", "assignment", "rack")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    group: str
    member: str
    instance: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    pattern: str
    kind: GroupKind
    session_timeout_ms: int
    release_timeout_ms: int
    client: str
    generation: int
    owned: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    assignment: str
    rack: str
    def __init__(self, group: _Optional[str] = ..., member: _Optional[str] = ..., instance: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., pattern: _Optional[str] = ..., kind: _Optional[_Union[GroupKind, str]] = ..., session_timeout_ms: _Optional[int] = ..., release_timeout_ms: _Optional[int] = ..., client: _Optional[str] = ..., generation: _Optional[int] = ..., owned: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., assignment: _Optional[str] = ..., rack: _Optional[str] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ("member", "generation", "heartbeat_ms", "session_timeout_ms")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    member: str
    generation: int
    heartbeat_ms: int
    session_timeout_ms: int
    def __init__(self, member: _Optional[str] = ..., generation: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ..., session_timeout_ms: _Optional[int] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("group", "member")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    group: str
    member: str
    def __init__(self, group: _Optional[str] = ..., member: _Optional[str] = ...) -> None: ...

class Left(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("group", "member", "generation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    member: str
    generation: int
    def __init__(self, group: _Optional[str] = ..., member: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("group", "member", "generation", "owned", "release")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    group: str
    member: str
    generation: int
    owned: _containers.RepeatedCompositeFieldContainer[AssignedTopic]
    release: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    def __init__(self, group: _Optional[str] = ..., member: _Optional[str] = ..., generation: _Optional[int] = ..., owned: _Optional[_Iterable[_Union[AssignedTopic, _Mapping]]] = ..., release: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ...) -> None: ...

class AssignedTopic(_message.Message):
    __slots__ = ("topic", "topic_id", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[AssignedPartition]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[AssignedPartition, _Mapping]]] = ...) -> None: ...

class AssignedPartition(_message.Message):
    __slots__ = ("partition", "since", "offset", "leader_epoch")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    partition: int
    since: int
    offset: int
    leader_epoch: int
    def __init__(self, partition: _Optional[int] = ..., since: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class Evicted(_message.Message):
    __slots__ = ("group", "member", "error")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    group: str
    member: str
    error: _types_pb2.Error
    def __init__(self, group: _Optional[str] = ..., member: _Optional[str] = ..., error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("group", "member", "generation", "partitions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member: str
    generation: int
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    def __init__(self, group: _Optional[str] = ..., member: _Optional[str] = ..., generation: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PartitionOffset(_message.Message):
    __slots__ = ("partition", "offset", "leader_epoch", "expected")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    leader_epoch: int
    expected: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., expected: _Optional[int] = ...) -> None: ...

class TopicOffsets(_message.Message):
    __slots__ = ("topic", "topic_id", "offsets")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., offsets: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("group", "member", "generation", "topics")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member: str
    generation: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicOffsets]
    def __init__(self, group: _Optional[str] = ..., member: _Optional[str] = ..., generation: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicOffsets, _Mapping]]] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("topics", "refused")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicOffsets]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedOffset]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicOffsets, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[RefusedOffset, _Mapping]]] = ...) -> None: ...

class RefusedOffset(_message.Message):
    __slots__ = ("topic", "partition", "error")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error: _types_pb2.Error
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ...) -> None: ...

class FetchCommitted(_message.Message):
    __slots__ = ("group", "topics")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    def __init__(self, group: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ...) -> None: ...

class ShareOptions(_message.Message):
    __slots__ = ("lock_ms", "deliveries_max", "dead_letter", "by_key", "start", "filter")
    LOCK_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_MAX_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    BY_KEY_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    lock_ms: int
    deliveries_max: int
    dead_letter: str
    by_key: bool
    start: _types_pb2.Position
    filter: str
    def __init__(self, lock_ms: _Optional[int] = ..., deliveries_max: _Optional[int] = ..., dead_letter: _Optional[str] = ..., by_key: _Optional[bool] = ..., start: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., filter: _Optional[str] = ...) -> None: ...

class ShareSubscribe(_message.Message):
    __slots__ = ("subscription", "group", "member", "partitions", "in_flight_max", "options")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_MAX_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    subscription: int
    group: str
    member: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    in_flight_max: int
    options: ShareOptions
    def __init__(self, subscription: _Optional[int] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., in_flight_max: _Optional[int] = ..., options: _Optional[_Union[ShareOptions, _Mapping]] = ...) -> None: ...

class ShareSubscribed(_message.Message):
    __slots__ = ("subscription",)
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    subscription: int
    def __init__(self, subscription: _Optional[int] = ...) -> None: ...

class ShareDelivery(_message.Message):
    __slots__ = ("subscription", "partition", "leader_epoch", "acquired", "batches")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ACQUIRED_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    subscription: int
    partition: int
    leader_epoch: int
    acquired: _containers.RepeatedCompositeFieldContainer[AcquiredRecords]
    batches: bytes
    def __init__(self, subscription: _Optional[int] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., acquired: _Optional[_Iterable[_Union[AcquiredRecords, _Mapping]]] = ..., batches: _Optional[bytes] = ...) -> None: ...

class AcquiredRecords(_message.Message):
    __slots__ = ("first", "end", "delivery_count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    delivery_count: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ..., delivery_count: _Optional[int] = ...) -> None: ...

class Acknowledge(_message.Message):
    __slots__ = ("subscription", "partition", "kind", "firsts", "ends", "delay_ms", "reason")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIRSTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    subscription: int
    partition: int
    kind: AcknowledgeType
    firsts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    delay_ms: int
    reason: str
    def __init__(self, subscription: _Optional[int] = ..., partition: _Optional[int] = ..., kind: _Optional[_Union[AcknowledgeType, str]] = ..., firsts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Acknowledged(_message.Message):
    __slots__ = ("lost_firsts", "lost_ends")
    LOST_FIRSTS_FIELD_NUMBER: _ClassVar[int]
    LOST_ENDS_FIELD_NUMBER: _ClassVar[int]
    lost_firsts: _containers.RepeatedScalarFieldContainer[int]
    lost_ends: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lost_firsts: _Optional[_Iterable[int]] = ..., lost_ends: _Optional[_Iterable[int]] = ...) -> None: ...

class OpenTransactions(_message.Message):
    __slots__ = ("transactional_id", "group", "timeout_ms", "member")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    group: str
    timeout_ms: int
    member: str
    def __init__(self, transactional_id: _Optional[str] = ..., group: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., member: _Optional[str] = ...) -> None: ...

class OpenedTransactions(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "epoch", "note")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    epoch: int
    note: bytes
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., note: _Optional[bytes] = ...) -> None: ...

class EndTransaction(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "epoch", "commit", "offsets", "group", "note")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    epoch: int
    commit: bool
    offsets: Commit
    group: str
    note: bytes
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., commit: _Optional[bool] = ..., offsets: _Optional[_Union[Commit, _Mapping]] = ..., group: _Optional[str] = ..., note: _Optional[bytes] = ...) -> None: ...

class EndedTransaction(_message.Message):
    __slots__ = ("next_epoch",)
    NEXT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    next_epoch: int
    def __init__(self, next_epoch: _Optional[int] = ...) -> None: ...

class Aborted(_message.Message):
    __slots__ = ("partition", "transactions")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    transactions: _containers.RepeatedCompositeFieldContainer[AbortedTransaction]
    def __init__(self, partition: _Optional[int] = ..., transactions: _Optional[_Iterable[_Union[AbortedTransaction, _Mapping]]] = ...) -> None: ...

class AbortedTransaction(_message.Message):
    __slots__ = ("producer_id", "epoch", "first", "end")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    first: int
    end: int
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("group", "topic", "partitions", "records_max", "bytes_max", "wait_ms", "options", "peek", "forwarded")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PEEK_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    records_max: int
    bytes_max: int
    wait_ms: int
    options: ShareOptions
    peek: bool
    forwarded: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., records_max: _Optional[int] = ..., bytes_max: _Optional[int] = ..., wait_ms: _Optional[int] = ..., options: _Optional[_Union[ShareOptions, _Mapping]] = ..., peek: _Optional[bool] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class AcquireResponse(_message.Message):
    __slots__ = ("ranges", "missing")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[AcquiredRange]
    missing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ranges: _Optional[_Iterable[_Union[AcquiredRange, _Mapping]]] = ..., missing: _Optional[_Iterable[int]] = ...) -> None: ...

class AcquiredRange(_message.Message):
    __slots__ = ("partition", "topic_id", "leader_epoch", "lock_id", "records", "batches")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOCK_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    topic_id: bytes
    leader_epoch: int
    lock_id: int
    records: _containers.RepeatedCompositeFieldContainer[AcquiredRecords]
    batches: bytes
    def __init__(self, partition: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., leader_epoch: _Optional[int] = ..., lock_id: _Optional[int] = ..., records: _Optional[_Iterable[_Union[AcquiredRecords, _Mapping]]] = ..., batches: _Optional[bytes] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("group", "topic", "acknowledgements", "forwarded")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENTS_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    acknowledgements: _containers.RepeatedCompositeFieldContainer[Acknowledgement]
    forwarded: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., acknowledgements: _Optional[_Iterable[_Union[Acknowledgement, _Mapping]]] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("partition", "topic_id", "lock_id", "kind", "firsts", "ends", "delay_ms", "reason")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    LOCK_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIRSTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    partition: int
    topic_id: bytes
    lock_id: int
    kind: AcknowledgeType
    firsts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    delay_ms: int
    reason: str
    def __init__(self, partition: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., lock_id: _Optional[int] = ..., kind: _Optional[_Union[AcknowledgeType, str]] = ..., firsts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AcknowledgeResponse(_message.Message):
    __slots__ = ("acknowledged",)
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    acknowledged: _containers.RepeatedCompositeFieldContainer[AcknowledgeResult]
    def __init__(self, acknowledged: _Optional[_Iterable[_Union[AcknowledgeResult, _Mapping]]] = ...) -> None: ...

class AcknowledgeResult(_message.Message):
    __slots__ = ("lost_firsts", "lost_ends", "error")
    LOST_FIRSTS_FIELD_NUMBER: _ClassVar[int]
    LOST_ENDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    lost_firsts: _containers.RepeatedScalarFieldContainer[int]
    lost_ends: _containers.RepeatedScalarFieldContainer[int]
    error: _types_pb2.Error
    def __init__(self, lost_firsts: _Optional[_Iterable[int]] = ..., lost_ends: _Optional[_Iterable[int]] = ..., error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ...) -> None: ...
