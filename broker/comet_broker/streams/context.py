"""The broker's services for a session, and the interfaces of the parts that handle its other frames."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from comet.v1 import records_pb2 as pb
from comet.wire.liveness import Liveness
from comet_broker.access.client_access import ClientAccess
from comet_broker.access.quotas import ClientUsage
from comet_broker.env import Env
from comet_broker.metrics.meter import RequestMeter
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.topics import TopicTable
from comet_broker.streams.answers import AnswerQueue, Replies
from comet_broker.streams.subscriptions import Feed


@dataclass(slots=True)
class StreamClient:
    """The client at the other end of a stream."""

    number: int  # of the stream
    peer: str  # its address
    access: ClientAccess
    usage: ClientUsage
    liveness: Liveness
    transport: str = "grpc"
    name: str = ""  # as its Hello has it
    heartbeats: bool = False  # its Hello promises them, and asks for them


class FrameHandler(Protocol):
    """Handles some kinds of frames of one session."""

    def take(self, request: int, kind: str, frame: Any) -> bool:
        """Handles one frame; False if it is not one of these. Raises the CometError that answers it."""

    def close(self) -> None:
        """Ends with the session."""


class MemberHandler(FrameHandler, Protocol):
    """The handler of groups and transactions."""

    def heard(self) -> None:
        """Counts as a heartbeat of each member of this stream."""


class ShareHandler(FrameHandler, Protocol):
    """The handler of share groups, which has deliveries of its own."""

    def next_frame(self) -> bytes | None: ...
    def remove(self, number: int, handles: list[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The broker's services for a session."""

    env: Env
    topics: TopicTable
    reader: LogReader
    meter: RequestMeter
    check_draining: Callable[[], None]  # raises Draining once the broker takes nothing new
    cluster_id: Callable[[], str]
    metadata: Callable[[pb.FetchMetadataRequest], Awaitable[pb.FetchMetadataResponse]]
    fetch: Callable[[pb.FetchRequest], Awaitable[tuple[pb.FetchResponse, bytes]]]  # without its batches, and these
    keys: Callable[[Replies, AnswerQueue, StreamClient], FrameHandler]
    batch_bytes_max: int
    members: Callable[[Replies], MemberHandler]
    sharing: Callable[[Replies, Feed], ShareHandler]
