from comet.v1 import types_pb2 as _types_pb2
from comet.v1 import records_pb2 as _records_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FollowerFrame(_message.Message):
    __slots__ = ("hello", "follow", "progress", "unfollow", "heartbeat")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    UNFOLLOW_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    hello: ReplicaHello
    follow: Follow
    progress: Progress
    unfollow: Unfollow
    heartbeat: ReplicaHeartbeat
    def __init__(self, hello: _Optional[_Union[ReplicaHello, _Mapping]] = ..., follow: _Optional[_Union[Follow, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., unfollow: _Optional[_Union[Unfollow, _Mapping]] = ..., heartbeat: _Optional[_Union[ReplicaHeartbeat, _Mapping]] = ...) -> None: ...

class LeaderFrame(_message.Message):
    __slots__ = ("delivery", "following", "watermark", "refused", "heartbeat")
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    delivery: _records_pb2.Delivery
    following: Following
    watermark: Watermark
    refused: Refused
    heartbeat: ReplicaHeartbeat
    def __init__(self, delivery: _Optional[_Union[_records_pb2.Delivery, _Mapping]] = ..., following: _Optional[_Union[Following, _Mapping]] = ..., watermark: _Optional[_Union[Watermark, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., heartbeat: _Optional[_Union[ReplicaHeartbeat, _Mapping]] = ...) -> None: ...

class ReplicaHello(_message.Message):
    __slots__ = ("cluster_id", "broker", "broker_epoch")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    broker: int
    broker_epoch: int
    def __init__(self, cluster_id: _Optional[str] = ..., broker: _Optional[int] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class Follow(_message.Message):
    __slots__ = ("topic_id", "partition", "leader_epoch", "log_start", "log_end", "epochs")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    leader_epoch: int
    log_start: int
    log_end: int
    epochs: _containers.RepeatedCompositeFieldContainer[EpochStart]
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., log_start: _Optional[int] = ..., log_end: _Optional[int] = ..., epochs: _Optional[_Iterable[_Union[EpochStart, _Mapping]]] = ...) -> None: ...

class EpochStart(_message.Message):
    __slots__ = ("epoch", "start_offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start_offset: int
    def __init__(self, epoch: _Optional[int] = ..., start_offset: _Optional[int] = ...) -> None: ...

class Following(_message.Message):
    __slots__ = ("topic_id", "partition", "leader_epoch", "handle", "restart", "high_watermark", "log_start", "log_end", "clean_end", "rewrites")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    CLEAN_END_FIELD_NUMBER: _ClassVar[int]
    REWRITES_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    leader_epoch: int
    handle: int
    restart: bool
    high_watermark: int
    log_start: int
    log_end: int
    clean_end: int
    rewrites: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., handle: _Optional[int] = ..., restart: _Optional[bool] = ..., high_watermark: _Optional[int] = ..., log_start: _Optional[int] = ..., log_end: _Optional[int] = ..., clean_end: _Optional[int] = ..., rewrites: _Optional[int] = ..., **kwargs) -> None: ...

class Refused(_message.Message):
    __slots__ = ("topic_id", "partition", "leader_epoch", "error")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    leader_epoch: int
    error: _types_pb2.Error
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("handle", "leader_epoch", "log_end", "flushed_end")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_END_FIELD_NUMBER: _ClassVar[int]
    handle: int
    leader_epoch: int
    log_end: int
    flushed_end: int
    def __init__(self, handle: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., log_end: _Optional[int] = ..., flushed_end: _Optional[int] = ...) -> None: ...

class Watermark(_message.Message):
    __slots__ = ("handle", "leader_epoch", "high_watermark", "log_start", "log_end")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    handle: int
    leader_epoch: int
    high_watermark: int
    log_start: int
    log_end: int
    def __init__(self, handle: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_start: _Optional[int] = ..., log_end: _Optional[int] = ...) -> None: ...

class Unfollow(_message.Message):
    __slots__ = ("handle", "leader_epoch")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    handle: int
    leader_epoch: int
    def __init__(self, handle: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class ReplicaHeartbeat(_message.Message):
    __slots__ = ("next_frame_bytes",)
    NEXT_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    next_frame_bytes: int
    def __init__(self, next_frame_bytes: _Optional[int] = ...) -> None: ...
