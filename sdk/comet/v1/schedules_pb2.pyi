from comet.v1 import records_pb2 as _records_pb2
from comet.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScheduleState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEDULE_STATE_ANY: _ClassVar[ScheduleState]
    SCHEDULE_STATE_ACTIVE: _ClassVar[ScheduleState]
    SCHEDULE_STATE_PAUSED: _ClassVar[ScheduleState]
SCHEDULE_STATE_ANY: ScheduleState
SCHEDULE_STATE_ACTIVE: ScheduleState
SCHEDULE_STATE_PAUSED: ScheduleState

class Schedule(_message.Message):
    __slots__ = ("topic", "id", "spec", "record", "late", "late_max_ms", "jitter_ms", "end_us", "fires_max", "paused", "reason", "waits_for", "next_us", "fired", "skipped", "fired_us", "author", "author_roles", "created_us", "tzdata", "revision")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    LATE_MAX_MS_FIELD_NUMBER: _ClassVar[int]
    JITTER_MS_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    FIRES_MAX_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    NEXT_US_FIELD_NUMBER: _ClassVar[int]
    FIRED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    FIRED_US_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_ROLES_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    TZDATA_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    id: str
    spec: str
    record: _records_pb2.Record
    late: str
    late_max_ms: int
    jitter_ms: int
    end_us: int
    fires_max: int
    paused: bool
    reason: str
    waits_for: str
    next_us: int
    fired: int
    skipped: int
    fired_us: int
    author: str
    author_roles: _containers.RepeatedScalarFieldContainer[str]
    created_us: int
    tzdata: str
    revision: int
    def __init__(self, topic: _Optional[str] = ..., id: _Optional[str] = ..., spec: _Optional[str] = ..., record: _Optional[_Union[_records_pb2.Record, _Mapping]] = ..., late: _Optional[str] = ..., late_max_ms: _Optional[int] = ..., jitter_ms: _Optional[int] = ..., end_us: _Optional[int] = ..., fires_max: _Optional[int] = ..., paused: _Optional[bool] = ..., reason: _Optional[str] = ..., waits_for: _Optional[str] = ..., next_us: _Optional[int] = ..., fired: _Optional[int] = ..., skipped: _Optional[int] = ..., fired_us: _Optional[int] = ..., author: _Optional[str] = ..., author_roles: _Optional[_Iterable[str]] = ..., created_us: _Optional[int] = ..., tzdata: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class PutSchedulesRequest(_message.Message):
    __slots__ = ("topic", "schedules", "dry_run", "forwarded")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    schedules: _containers.RepeatedCompositeFieldContainer[SchedulePut]
    dry_run: bool
    forwarded: bool
    def __init__(self, topic: _Optional[str] = ..., schedules: _Optional[_Iterable[_Union[SchedulePut, _Mapping]]] = ..., dry_run: _Optional[bool] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class SchedulePut(_message.Message):
    __slots__ = ("schedule", "delay_ms", "revision", "fresh")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    delay_ms: int
    revision: int
    fresh: bool
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ..., delay_ms: _Optional[int] = ..., revision: _Optional[int] = ..., fresh: _Optional[bool] = ...) -> None: ...

class PutSchedulesResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SchedulePutResult]
    def __init__(self, results: _Optional[_Iterable[_Union[SchedulePutResult, _Mapping]]] = ...) -> None: ...

class SchedulePutResult(_message.Message):
    __slots__ = ("schedule", "created", "error")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    created: bool
    error: _types_pb2.Error
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ..., created: _Optional[bool] = ..., error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("topic", "prefix", "after", "limit", "state", "partition", "forwarded")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    prefix: str
    after: str
    limit: int
    state: ScheduleState
    partition: int
    forwarded: bool
    def __init__(self, topic: _Optional[str] = ..., prefix: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ..., state: _Optional[_Union[ScheduleState, str]] = ..., partition: _Optional[int] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class ListSchedulesResponse(_message.Message):
    __slots__ = ("schedules", "after")
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    after: str
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ..., after: _Optional[str] = ...) -> None: ...

class ScheduleRequest(_message.Message):
    __slots__ = ("topic", "id", "revision", "dry_run", "forwarded")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    id: str
    revision: int
    dry_run: bool
    forwarded: bool
    def __init__(self, topic: _Optional[str] = ..., id: _Optional[str] = ..., revision: _Optional[int] = ..., dry_run: _Optional[bool] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class MoveScheduleRequest(_message.Message):
    __slots__ = ("topic", "id", "spec", "revision", "dry_run", "forwarded")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    id: str
    spec: str
    revision: int
    dry_run: bool
    forwarded: bool
    def __init__(self, topic: _Optional[str] = ..., id: _Optional[str] = ..., spec: _Optional[str] = ..., revision: _Optional[int] = ..., dry_run: _Optional[bool] = ..., forwarded: _Optional[bool] = ...) -> None: ...
