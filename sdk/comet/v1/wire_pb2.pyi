from comet.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WireHello(_message.Message):
    __slots__ = ("version", "call", "authorization", "broker_id", "cluster_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZATION_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    version: int
    call: str
    authorization: str
    broker_id: int
    cluster_id: str
    def __init__(self, version: _Optional[int] = ..., call: _Optional[str] = ..., authorization: _Optional[str] = ..., broker_id: _Optional[int] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class WireWelcome(_message.Message):
    __slots__ = ("version", "frame_bytes_max")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    version: int
    frame_bytes_max: int
    def __init__(self, version: _Optional[int] = ..., frame_bytes_max: _Optional[int] = ...) -> None: ...

class WireEnd(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _types_pb2.Error
    def __init__(self, error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ...) -> None: ...
