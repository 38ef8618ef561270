from comet.v1 import groups_pb2 as _groups_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AddPartitionRequest(_message.Message):
    __slots__ = ("producer_id", "epoch", "topic_id", "partition")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    topic_id: bytes
    partition: int
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class AddPartitionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WriteMarkersRequest(_message.Message):
    __slots__ = ("producer_id", "epoch", "commit", "partitions")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    commit: bool
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionId]
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., commit: _Optional[bool] = ..., partitions: _Optional[_Iterable[_Union[PartitionId, _Mapping]]] = ...) -> None: ...

class PartitionId(_message.Message):
    __slots__ = ("topic_id", "partition")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class WriteMarkersResponse(_message.Message):
    __slots__ = ("codes",)
    CODES_FIELD_NUMBER: _ClassVar[int]
    codes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, codes: _Optional[_Iterable[int]] = ...) -> None: ...

class OutcomeRequest(_message.Message):
    __slots__ = ("producer_id", "epoch")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class OutcomeResponse(_message.Message):
    __slots__ = ("over", "committed", "decided")
    OVER_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    over: bool
    committed: bool
    decided: bool
    def __init__(self, over: _Optional[bool] = ..., committed: _Optional[bool] = ..., decided: _Optional[bool] = ...) -> None: ...

class PartitionEndsRequest(_message.Message):
    __slots__ = ("queries",)
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    queries: _containers.RepeatedCompositeFieldContainer[PartitionEndQuery]
    def __init__(self, queries: _Optional[_Iterable[_Union[PartitionEndQuery, _Mapping]]] = ...) -> None: ...

class PartitionEndQuery(_message.Message):
    __slots__ = ("topic_id", "partition", "offset", "timestamp_us", "group")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    offset: int
    timestamp_us: int
    group: str
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class PartitionEndsResponse(_message.Message):
    __slots__ = ("ends",)
    ENDS_FIELD_NUMBER: _ClassVar[int]
    ends: _containers.RepeatedCompositeFieldContainer[PartitionEnd]
    def __init__(self, ends: _Optional[_Iterable[_Union[PartitionEnd, _Mapping]]] = ...) -> None: ...

class PartitionEnd(_message.Message):
    __slots__ = ("code", "log_start", "high_watermark", "last_stable_offset", "append_time_us", "offset_at", "floor", "acknowledged", "in_flight", "redelivered", "dead_lettered", "dead_waiting", "dead_problem")
    CODE_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    OFFSET_AT_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    DEAD_WAITING_FIELD_NUMBER: _ClassVar[int]
    DEAD_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    code: int
    log_start: int
    high_watermark: int
    last_stable_offset: int
    append_time_us: int
    offset_at: int
    floor: int
    acknowledged: int
    in_flight: int
    redelivered: int
    dead_lettered: int
    dead_waiting: int
    dead_problem: str
    def __init__(self, code: _Optional[int] = ..., log_start: _Optional[int] = ..., high_watermark: _Optional[int] = ..., last_stable_offset: _Optional[int] = ..., append_time_us: _Optional[int] = ..., offset_at: _Optional[int] = ..., floor: _Optional[int] = ..., acknowledged: _Optional[int] = ..., in_flight: _Optional[int] = ..., redelivered: _Optional[int] = ..., dead_lettered: _Optional[int] = ..., dead_waiting: _Optional[int] = ..., dead_problem: _Optional[str] = ...) -> None: ...

class FoundGroupRequest(_message.Message):
    __slots__ = ("group", "topic_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic_id: bytes
    def __init__(self, group: _Optional[str] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class FoundGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WarnRequest(_message.Message):
    __slots__ = ("broker", "floor")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    broker: int
    floor: str
    def __init__(self, broker: _Optional[int] = ..., floor: _Optional[str] = ...) -> None: ...

class WarnResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
