from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_ARGUMENT: _ClassVar[ErrorCode]
    ERROR_CODE_MALFORMED_FRAME: _ClassVar[ErrorCode]
    ERROR_CODE_CORRUPT_BATCH: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_VERSION: _ClassVar[ErrorCode]
    ERROR_CODE_RECORD_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_EXISTS: _ClassVar[ErrorCode]
    ERROR_CODE_PARTITION_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_LEADER: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_OUT_OF_RANGE: _ClassVar[ErrorCode]
    ERROR_CODE_DATA_LOSS: _ClassVar[ErrorCode]
    ERROR_CODE_SEQUENCE_GAP: _ClassVar[ErrorCode]
    ERROR_CODE_SEQUENCE_TOO_OLD: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_PRODUCER: _ClassVar[ErrorCode]
    ERROR_CODE_PRODUCER_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_DISK_FULL: _ClassVar[ErrorCode]
    ERROR_CODE_LOG_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_DRAINING: _ClassVar[ErrorCode]
    ERROR_CODE_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_TIMEOUT: _ClassVar[ErrorCode]
    ERROR_CODE_LIMIT_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_ENOUGH_REPLICAS: _ClassVar[ErrorCode]
    ERROR_CODE_TRUNCATED: _ClassVar[ErrorCode]
    ERROR_CODE_BROKER_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_LEADERSHIP_LOST: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_COORDINATOR: _ClassVar[ErrorCode]
    ERROR_CODE_COORDINATOR_LOADING: _ClassVar[ErrorCode]
    ERROR_CODE_MEMBER_UNKNOWN: _ClassVar[ErrorCode]
    ERROR_CODE_MEMBER_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_GENERATION: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_NOT_EMPTY: _ClassVar[ErrorCode]
    ERROR_CODE_LOCK_EXPIRED: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTION_ABORTED: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTION_NOT_OPEN: _ClassVar[ErrorCode]
    ERROR_CODE_KEY_REUSED: _ClassVar[ErrorCode]
    ERROR_CODE_FORBIDDEN: _ClassVar[ErrorCode]
    ERROR_CODE_CREDENTIALS_REFUSED: _ClassVar[ErrorCode]
    ERROR_CODE_REVISION_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_KEY_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_CALENDAR_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_CALENDAR_CHANGED: _ClassVar[ErrorCode]
    ERROR_CODE_MALFORMED_FILTER: _ClassVar[ErrorCode]
    ERROR_CODE_SCHEDULE_NOT_FOUND: _ClassVar[ErrorCode]

class Acks(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACKS_NONE: _ClassVar[Acks]
    ACKS_LEADER: _ClassVar[Acks]
    ACKS_ALL: _ClassVar[Acks]

class FlushPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FLUSH_POLICY_UNSPECIFIED: _ClassVar[FlushPolicy]
    FLUSH_POLICY_ALWAYS: _ClassVar[FlushPolicy]
    FLUSH_POLICY_INTERVAL: _ClassVar[FlushPolicy]
    FLUSH_POLICY_OS: _ClassVar[FlushPolicy]

class Consistency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSISTENCY_UNSPECIFIED: _ClassVar[Consistency]
    CONSISTENCY_CONSISTENT: _ClassVar[Consistency]
    CONSISTENCY_AVAILABLE: _ClassVar[Consistency]

class CleanupPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLEANUP_POLICY_UNSPECIFIED: _ClassVar[CleanupPolicy]
    CLEANUP_POLICY_DELETE: _ClassVar[CleanupPolicy]
    CLEANUP_POLICY_COMPACT: _ClassVar[CleanupPolicy]
    CLEANUP_POLICY_COMPACT_DELETE: _ClassVar[CleanupPolicy]

class SettingSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SETTING_SOURCE_UNSPECIFIED: _ClassVar[SettingSource]
    SETTING_SOURCE_TOPIC: _ClassVar[SettingSource]
    SETTING_SOURCE_CLUSTER: _ClassVar[SettingSource]
    SETTING_SOURCE_BUILT_IN: _ClassVar[SettingSource]
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_INVALID_ARGUMENT: ErrorCode
ERROR_CODE_MALFORMED_FRAME: ErrorCode
ERROR_CODE_CORRUPT_BATCH: ErrorCode
ERROR_CODE_UNSUPPORTED_VERSION: ErrorCode
ERROR_CODE_RECORD_TOO_LARGE: ErrorCode
ERROR_CODE_TOPIC_NOT_FOUND: ErrorCode
ERROR_CODE_TOPIC_EXISTS: ErrorCode
ERROR_CODE_PARTITION_NOT_FOUND: ErrorCode
ERROR_CODE_NOT_LEADER: ErrorCode
ERROR_CODE_OFFSET_OUT_OF_RANGE: ErrorCode
ERROR_CODE_DATA_LOSS: ErrorCode
ERROR_CODE_SEQUENCE_GAP: ErrorCode
ERROR_CODE_SEQUENCE_TOO_OLD: ErrorCode
ERROR_CODE_UNKNOWN_PRODUCER: ErrorCode
ERROR_CODE_PRODUCER_FENCED: ErrorCode
ERROR_CODE_DISK_FULL: ErrorCode
ERROR_CODE_LOG_FAILED: ErrorCode
ERROR_CODE_DRAINING: ErrorCode
ERROR_CODE_UNAVAILABLE: ErrorCode
ERROR_CODE_TIMEOUT: ErrorCode
ERROR_CODE_LIMIT_EXCEEDED: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
ERROR_CODE_NOT_ENOUGH_REPLICAS: ErrorCode
ERROR_CODE_TRUNCATED: ErrorCode
ERROR_CODE_BROKER_NOT_FOUND: ErrorCode
ERROR_CODE_LEADERSHIP_LOST: ErrorCode
ERROR_CODE_NOT_COORDINATOR: ErrorCode
ERROR_CODE_COORDINATOR_LOADING: ErrorCode
ERROR_CODE_MEMBER_UNKNOWN: ErrorCode
ERROR_CODE_MEMBER_FENCED: ErrorCode
ERROR_CODE_STALE_GENERATION: ErrorCode
ERROR_CODE_GROUP_NOT_FOUND: ErrorCode
ERROR_CODE_GROUP_NOT_EMPTY: ErrorCode
ERROR_CODE_LOCK_EXPIRED: ErrorCode
ERROR_CODE_TRANSACTION_ABORTED: ErrorCode
ERROR_CODE_TRANSACTION_NOT_OPEN: ErrorCode
ERROR_CODE_KEY_REUSED: ErrorCode
ERROR_CODE_FORBIDDEN: ErrorCode
ERROR_CODE_CREDENTIALS_REFUSED: ErrorCode
ERROR_CODE_REVISION_MISMATCH: ErrorCode
ERROR_CODE_KEY_NOT_FOUND: ErrorCode
ERROR_CODE_CALENDAR_NOT_FOUND: ErrorCode
ERROR_CODE_CALENDAR_CHANGED: ErrorCode
ERROR_CODE_MALFORMED_FILTER: ErrorCode
ERROR_CODE_SCHEDULE_NOT_FOUND: ErrorCode
ACKS_NONE: Acks
ACKS_LEADER: Acks
ACKS_ALL: Acks
FLUSH_POLICY_UNSPECIFIED: FlushPolicy
FLUSH_POLICY_ALWAYS: FlushPolicy
FLUSH_POLICY_INTERVAL: FlushPolicy
FLUSH_POLICY_OS: FlushPolicy
CONSISTENCY_UNSPECIFIED: Consistency
CONSISTENCY_CONSISTENT: Consistency
CONSISTENCY_AVAILABLE: Consistency
CLEANUP_POLICY_UNSPECIFIED: CleanupPolicy
CLEANUP_POLICY_DELETE: CleanupPolicy
CLEANUP_POLICY_COMPACT: CleanupPolicy
CLEANUP_POLICY_COMPACT_DELETE: CleanupPolicy
SETTING_SOURCE_UNSPECIFIED: SettingSource
SETTING_SOURCE_TOPIC: SettingSource
SETTING_SOURCE_CLUSTER: SettingSource
SETTING_SOURCE_BUILT_IN: SettingSource

class Error(_message.Message):
    __slots__ = ("code", "message", "retry_after_ms", "details")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    retry_after_ms: int
    details: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., details: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TopicConfig(_message.Message):
    __slots__ = ("retention_ms", "retention_bytes", "retention_records", "flush", "flush_interval_ms", "record_bytes_max", "segment_bytes", "segment_ms", "min_insync", "consistency", "cleanup_policy", "min_dirty_percent", "min_compaction_lag_ms", "max_compaction_lag_ms", "delete_retention_ms", "record_ttl_ms")
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_RECORDS_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    FLUSH_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    RECORD_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_INSYNC_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    CLEANUP_POLICY_FIELD_NUMBER: _ClassVar[int]
    MIN_DIRTY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MIN_COMPACTION_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_COMPACTION_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    DELETE_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RECORD_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    retention_ms: int
    retention_bytes: int
    retention_records: int
    flush: FlushPolicy
    flush_interval_ms: int
    record_bytes_max: int
    segment_bytes: int
    segment_ms: int
    min_insync: int
    consistency: Consistency
    cleanup_policy: CleanupPolicy
    min_dirty_percent: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    record_ttl_ms: int
    def __init__(self, retention_ms: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., retention_records: _Optional[int] = ..., flush: _Optional[_Union[FlushPolicy, str]] = ..., flush_interval_ms: _Optional[int] = ..., record_bytes_max: _Optional[int] = ..., segment_bytes: _Optional[int] = ..., segment_ms: _Optional[int] = ..., min_insync: _Optional[int] = ..., consistency: _Optional[_Union[Consistency, str]] = ..., cleanup_policy: _Optional[_Union[CleanupPolicy, str]] = ..., min_dirty_percent: _Optional[int] = ..., min_compaction_lag_ms: _Optional[int] = ..., max_compaction_lag_ms: _Optional[int] = ..., delete_retention_ms: _Optional[int] = ..., record_ttl_ms: _Optional[int] = ...) -> None: ...

class TopicDefaults(_message.Message):
    __slots__ = ("config", "sources", "replicas")
    class SourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: SettingSource
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[SettingSource, str]] = ...) -> None: ...
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    config: TopicConfig
    sources: _containers.ScalarMap[str, SettingSource]
    replicas: int
    def __init__(self, config: _Optional[_Union[TopicConfig, _Mapping]] = ..., sources: _Optional[_Mapping[str, SettingSource]] = ..., replicas: _Optional[int] = ...) -> None: ...

class Broker(_message.Message):
    __slots__ = ("id", "host", "port", "version", "rack", "draining", "wire_port", "wire_socket")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    WIRE_PORT_FIELD_NUMBER: _ClassVar[int]
    WIRE_SOCKET_FIELD_NUMBER: _ClassVar[int]
    id: int
    host: str
    port: int
    version: str
    rack: str
    draining: bool
    wire_port: int
    wire_socket: str
    def __init__(self, id: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., version: _Optional[str] = ..., rack: _Optional[str] = ..., draining: _Optional[bool] = ..., wire_port: _Optional[int] = ..., wire_socket: _Optional[str] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("index", "leader", "leader_epoch", "replicas", "in_sync", "conflicts", "target")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    index: int
    leader: int
    leader_epoch: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    in_sync: _containers.RepeatedScalarFieldContainer[int]
    conflicts: _containers.RepeatedCompositeFieldContainer[Conflict]
    target: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, index: _Optional[int] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., in_sync: _Optional[_Iterable[int]] = ..., conflicts: _Optional[_Iterable[_Union[Conflict, _Mapping]]] = ..., target: _Optional[_Iterable[int]] = ...) -> None: ...

class Conflict(_message.Message):
    __slots__ = ("broker", "leader", "epoch", "offset", "high_watermark", "log_end", "problem")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    broker: int
    leader: int
    epoch: int
    offset: int
    high_watermark: int
    log_end: int
    problem: str
    def __init__(self, broker: _Optional[int] = ..., leader: _Optional[int] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_end: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "id", "partitions", "config", "created_us", "sources", "defaults")
    class SourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: SettingSource
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[SettingSource, str]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    config: TopicConfig
    created_us: int
    sources: _containers.ScalarMap[str, SettingSource]
    defaults: TopicDefaults
    def __init__(self, name: _Optional[str] = ..., id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., config: _Optional[_Union[TopicConfig, _Mapping]] = ..., created_us: _Optional[int] = ..., sources: _Optional[_Mapping[str, SettingSource]] = ..., defaults: _Optional[_Union[TopicDefaults, _Mapping]] = ...) -> None: ...

class PartitionStatus(_message.Message):
    __slots__ = ("index", "log_start", "log_end", "high_watermark", "bytes", "segments", "failed", "lost", "broker", "leader_epoch", "leader", "last_stable_offset", "in_rate", "in_bytes_rate", "last_us")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    IN_RATE_FIELD_NUMBER: _ClassVar[int]
    IN_BYTES_RATE_FIELD_NUMBER: _ClassVar[int]
    LAST_US_FIELD_NUMBER: _ClassVar[int]
    index: int
    log_start: int
    log_end: int
    high_watermark: int
    bytes: int
    segments: int
    failed: bool
    lost: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    broker: int
    leader_epoch: int
    leader: bool
    last_stable_offset: int
    in_rate: float
    in_bytes_rate: float
    last_us: int
    def __init__(self, index: _Optional[int] = ..., log_start: _Optional[int] = ..., log_end: _Optional[int] = ..., high_watermark: _Optional[int] = ..., bytes: _Optional[int] = ..., segments: _Optional[int] = ..., failed: _Optional[bool] = ..., lost: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., broker: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., leader: _Optional[bool] = ..., last_stable_offset: _Optional[int] = ..., in_rate: _Optional[float] = ..., in_bytes_rate: _Optional[float] = ..., last_us: _Optional[int] = ...) -> None: ...

class OffsetRange(_message.Message):
    __slots__ = ("first", "end")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("offset", "timestamp_us", "earliest", "latest")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    offset: int
    timestamp_us: int
    earliest: bool
    latest: bool
    def __init__(self, offset: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ...) -> None: ...
