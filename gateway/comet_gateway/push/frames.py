"""The frames of the WebSocket `/v1/ws`: JSON text, one object each, with its `type`.

    client                                      server
                                                welcome        limits, once
    subscribe   id, topic|topics|pattern, …  ─► subscribed     per topic: its start, missing records
                                                snapshot …     latest of each key first, if requested
                                                records …      or latest (conflate), lost (missing records)
    permit      id, count                    ─► records …
    replay      id, pause|resume|step|speed  ─► records … end
    subscribe   id, page                     ─► page, delta …  a page of the dashboard, then its changes
    subscribe   id, channel, params          ─► event … end    a channel of the dashboard
    control     id, params                   ─► event …        controls a channel
    ack         id, cursor | records         ─► acked          members of groups; nack, reject, extend: share groups
    produce     id, topic, record|records    ─► receipt        in the order of the frames
    unsubscribe id                           ─► end
    ping        id                           ─► pong
    anything                                 ─► error          a problem, with the id and type of the frame
                                                goaway         connect again; the connection ends

The client chooses `id`: of a subscription while it lasts, otherwise of one request. An error ends only the subscription
or request that it names; a page that cannot be built stays subscribed. 64-bit numbers are strings; clients may send
numbers. The structures below are the specification: frames are decoded and encoded with them, and `schema()` is derived
from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from comet.types import AssignmentStrategy
from comet_gateway.http.problems import Problem
from comet_gateway.push.page_items import DeltaItem, DocumentItem
from comet_gateway.push.subscribe_request import Policy
from comet_gateway.records.record_json import Values
from comet_gateway.schemas.records import RecordIn

VERSION: Final = 1

Id = Annotated[str, Meta(min_length=1, max_length=64, description="Chosen by the client.")]
Name = Annotated[str, Meta(min_length=1, max_length=249)]
Partition = Annotated[int, Meta(ge=0, le=100_000)]
Milliseconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
# 64 bits: strings from the server, strings or numbers from a client.
Digits = Annotated[str, Meta(pattern="^-?[0-9]{1,19}$")]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | Digits
Position = Annotated[
    str | Annotated[int, Meta(ge=0, le=2**63 - 1)],
    Meta(description='"earliest", "latest", a time, a time ago such as "-15m", or an offset.'),
]


class Frame(Struct, tag_field="type", forbid_unknown_fields=True, omit_defaults=True):
    """Any frame."""


# ---- from the client


class Window(Struct, forbid_unknown_fields=True, frozen=True):
    """A time range to replay, at its recorded pace times `speed`; 0: as fast as possible."""

    start: Position = msgspec.field(name="from", default="earliest")
    end: Position = msgspec.field(name="to", default="latest")
    speed: Annotated[float, Meta(ge=0, le=1_000_000)] = 1.0
    paused: bool = False


class GroupTerms(Struct, forbid_unknown_fields=True, frozen=True):
    """Membership of a group. The options of a share group belong to the group: all members give the same."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    kind: Literal["consumer", "share"] = "consumer"
    auto: bool = False  # consumer group: commits delivered records at the next delivery; otherwise only `ack` commits
    assignment: AssignmentStrategy = "sticky"  # consumer group: its assignment strategy
    rack: str = ""  # consumer group: for the strategy "rack"
    in_flight: Annotated[int, Meta(ge=1, le=10_000)] = 100  # share group: unacknowledged records at most
    lock_ms: int = 30_000
    deliveries_max: int = 0
    dead_letter: str = ""
    by_key: bool = False


class Subscribe(Frame, tag="subscribe"):
    """Subscribes to one topic, several, or all whose names match a regular expression; or to a page or channel of the
    dashboard."""

    id: Id
    topic: Name | None = None
    topics: Annotated[list[Name], Meta(min_length=1, max_length=100)] | None = None
    pattern: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    start: Position = "latest"
    cursor: str | None = None  # with `topic`: instead of `start`
    cursors: dict[str, str] | None = None  # the same, by topic
    partitions: Annotated[list[Partition], Meta(min_length=1, max_length=1_000)] | None = None
    values: Values = Values.AUTO
    policy: Policy = Policy.BLOCK
    buffer: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    interval_ms: Annotated[int, Meta(ge=10, le=60_000)] = 250
    snapshot: Literal["none", "latest"] = "none"
    permits: Count | None = None
    filter: Annotated[str, Meta(max_length=2_000, description="A condition that records have to match.")] = ""
    group: Annotated[str, Meta(min_length=1, max_length=255)] | GroupTerms | None = None
    replay: Window | None = None
    page: Annotated[str, Meta(min_length=1, max_length=16_384, description="Path and query of a page.")] | None = None
    channel: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    params: dict[str, Any] | None = None  # of a channel


class Unsubscribe(Frame, tag="unsubscribe"):
    """Ends a subscription; a member leaves its group."""

    id: Id


class Permit(Frame, tag="permit"):
    """Allows more records on a subscription with `permits`."""

    id: Id
    count: Annotated[int, Meta(ge=1, le=1_000_000_000)]


class RecordId(Struct, forbid_unknown_fields=True, frozen=True):
    """One record. The topic is optional if the subscription has only one."""

    partition: Partition
    offset: Int64
    topic: Name | None = None


RecordIds = Annotated[list[RecordId], Meta(min_length=1, max_length=10_000)]


class Ack(Frame, tag="ack"):
    """With a cursor: commits offsets of a consumer group. With records: accepts them in a share group."""

    id: Id
    cursor: str | None = None
    records: RecordIds | None = None


class NackFrame(Frame, tag="nack"):
    """Releases records for another delivery after `delay_ms`."""

    id: Id
    records: RecordIds
    delay_ms: Milliseconds = 0


class RejectFrame(Frame, tag="reject"):
    """Rejects records: they are not delivered again."""

    id: Id
    records: RecordIds
    reason: Annotated[str, Meta(max_length=1_000)] = ""


class Extend(Frame, tag="extend"):
    """Restarts the locks of records that take longer."""

    id: Id
    records: RecordIds


class Produce(Frame, tag="produce"):
    """Writes records, in the form of a POST. Frames can be sent without waiting; receipts come in their order."""

    id: Id
    topic: Name
    record: RecordIn | None = None
    records: Annotated[list[RecordIn], Meta(min_length=1, max_length=10_000)] | None = None
    acks: Literal[0, 1] | Literal["all"] = 1  # noqa: PYI030 - msgspec takes one type in a Literal
    idempotency_key: Annotated[str, Meta(pattern="^[!-~]{1,200}$")] | None = None


class ReplayFrame(Frame, tag="replay"):
    """Controls a replay. A step sends `count` records, and the replay stays paused."""

    id: Id
    action: Literal["pause", "resume", "step", "speed"]
    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    speed: Annotated[float, Meta(ge=0, le=1_000_000)] | None = None


class Control(Frame, tag="control"):
    """Controls a channel: `{"rows": false}` of a tail, `{"stop": true}` of a search."""

    id: Id
    params: dict[str, Any]


class Ping(Frame, tag="ping"):
    """Checks the connection; answered by pong."""

    id: Id | None = None


Acknowledge = Ack | NackFrame | RejectFrame | Extend
ClientFrame = (
    Subscribe | Unsubscribe | Permit | Ack | NackFrame | RejectFrame | Extend | Produce | ReplayFrame | Control | Ping
)


# ---- from the server

Trouble = Annotated[
    Mapping[str, Any],
    Meta(
        description="RFC 9457; `code` is for programs. There may be more members.",
        extra_json_schema={
            "properties": {"code": {"type": "string"}, "detail": {"type": "string"}, "status": {"type": "integer"}},
            "required": ["type", "title", "status", "code", "detail"],
        },
    ),
]


class Header(Struct, frozen=True, omit_defaults=True):
    """A header of a record; `base64` if its bytes are not UTF-8."""

    name: str
    value: str | None = None
    base64: str | None = None


class RecordItem(Struct, frozen=True, omit_defaults=True):
    """A record: exactly one of `value`, `text`, `base64`, `tombstone`. `delivery_count` only in share groups."""

    partition: int
    offset: Digits
    timestamp_us: Digits
    key: str | None = None
    key_base64: str | None = None
    value: Any = None
    text: str | None = None
    base64: str | None = None
    tombstone: Literal[True] | None = None
    headers: list[Header] | None = None
    delivery_count: int | None = None


class MissingItem(Struct, frozen=True):
    """Records [first, end) that this subscriber will never get."""

    partition: int
    first: Digits
    end: Digits
    reason: str


class Owned(Struct, frozen=True):
    """A partition of a topic."""

    topic: str
    partition: int


class Bounds(Struct, frozen=True):
    """Limits of one connection."""

    frame_bytes_max: int
    subscriptions_max: int
    watches_max: int  # of them: pages and channels
    in_flight_max: int
    idle_s: float


class Welcome(Frame, tag="welcome"):
    """The first frame."""

    version: int
    gateway: str
    limits: Bounds
    request_id: str  # of the connection, as in the gateway's log


class Subscribed(Frame, tag="subscribed"):
    """The start in a topic, or the membership of a group. `recovered` if a cursor was given."""

    id: str
    topic: str | None = None
    cursor: str | None = None
    recovered: bool | None = None
    missing: Sequence[MissingItem] = ()
    group: str | None = None
    member: str | None = None


class RecordsFrame(Frame, tag="records"):
    """Records, in order per partition, and the cursor behind them. `partition` if all are of one."""

    id: str
    topic: str
    records: list[RecordItem]
    partition: int | None = None
    cursor: str | None = None


class SnapshotFrame(Frame, tag="snapshot"):
    """The latest records of keys. Only the last part has a cursor to resume from."""

    id: str
    topic: str
    records: list[RecordItem]
    cursor: str
    last: bool
    complete: bool


class LatestFrame(Frame, tag="latest"):
    """The latest record of each key that changed; `conflated` others were skipped."""

    id: str
    topic: str
    records: list[RecordItem]
    cursor: str
    conflated: int


class LostFrame(Frame, tag="lost"):
    """Records that this subscriber does not get."""

    id: str
    topic: str
    count: int
    missing: Sequence[MissingItem]
    cursor: str | None = None  # absent for group members: the group has committed offsets


class Assigned(Frame, tag="assigned"):
    """Partitions that are assigned to this group member."""

    id: str
    partitions: Sequence[Owned]


class Revoked(Frame, tag="revoked"):
    """Partitions that are revoked from this member; `lost` if another member has them already."""

    id: str
    partitions: Sequence[Owned]
    lost: bool


class PageFrame(Frame, tag="page"):
    """The whole document of a page; `interval_s` between two updates, 0: without updates."""

    id: str
    seq: int
    interval_s: float
    document: DocumentItem


class DeltaFrame(Frame, tag="delta"):
    """The changes of a page since the frame before, whose `seq` is one less; `skipped` versions were left out."""

    id: str
    seq: int
    delta: DeltaItem
    skipped: int = 0


class EventFrame(Frame, tag="event"):
    """An event of a channel."""

    id: str
    seq: int
    event: Mapping[str, Any]


class WrittenItem(Struct, frozen=True, omit_defaults=True):
    """The result for one record: partition and offset, or a problem. With acks=0 only the partition. Of a delayed
    record: the id of its schedule, and when it is due."""

    partition: int | None = None
    offset: Digits | None = None
    schedule_id: str | None = None
    next_us: Digits | None = None
    duplicate: bool = False
    problem: Trouble | None = None


class Receipt(Frame, tag="receipt"):
    """The results for the records of a produce frame, in their order."""

    id: str
    results: Sequence[WrittenItem]


class AcknowledgedItem(Struct, frozen=True, omit_defaults=True):
    """The result of one acknowledgement: stored, or a problem."""

    topic: str
    partition: int
    offset: Digits
    problem: Trouble | None = None


class Acked(Frame, tag="acked"):
    """Acknowledgements are stored: up to this cursor, or of these records."""

    id: str
    of: Literal["ack", "nack", "reject", "extend"]
    cursor: str | None = None
    results: Sequence[AcknowledgedItem] | None = None


class Error(Frame, tag="error"):
    """A problem. `of` is the type of the frame that it answers, `topic` the topic concerned."""

    problem: Trouble
    id: str | None = None
    of: str | None = None
    topic: str | None = None


class Pong(Frame, tag="pong"):
    """The answer to ping."""

    id: str | None = None


class EndFrame(Frame, tag="end"):
    """The subscription has ended; its id is free."""

    id: str
    reason: Literal["unsubscribed", "replayed", "done", "failed"]
    cursor: str | None = None


class GoAway(Frame, tag="goaway"):
    """The gateway stops: connect again after the delay, to any other, with the latest cursors."""

    reconnect_ms: int


ServerFrame = (
    Welcome | Subscribed | RecordsFrame | SnapshotFrame | LatestFrame | LostFrame | Assigned | Revoked
    | PageFrame | DeltaFrame | EventFrame | Receipt | Acked | Error | Pong | EndFrame | GoAway
)  # fmt: skip

_decoder: Final = msgspec.json.Decoder(ClientFrame)
encode: Final = msgspec.json.Encoder().encode


class FrameKind(Struct, frozen=True):
    """Type and id of a malformed frame."""

    type: Any = None
    id: Any = None


_kind: Final = msgspec.json.Decoder(FrameKind)


def read(text: str | bytes) -> ClientFrame:
    """Decodes a frame. Raises Problem."""
    try:
        frame: ClientFrame = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Problem("MALFORMED_FRAME", f"malformed frame: {error}"[:500]) from None
    return frame


def about(text: str | bytes) -> tuple[str | None, str | None]:
    """The type and id of a malformed frame, if it has them."""
    try:
        found = _kind.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None, None
    type_ = found.type if isinstance(found.type, str) else None
    id_ = found.id if isinstance(found.id, str) else None
    return type_ and type_[:64], id_ and id_[:64]


def error_of(problem: Problem, *, id_: str | None, of: str | None, topic: str | None = None) -> Error:
    return Error(problem=problem.document(), id=id_, of=of, topic=topic)


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of all frames: `$defs` has `ClientFrame` and `ServerFrame`."""
    (client, server), parts = msgspec.json.schema_components(
        [ClientFrame, ServerFrame], ref_template="#/$defs/{name}"
    )  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:comet:schema:frames:1",
        "title": "Frames of Comet's WebSocket",
        "description": "A client sends ClientFrame, the server ServerFrame, each one JSON text message.",
        "anyOf": [{"$ref": "#/$defs/ClientFrame"}, {"$ref": "#/$defs/ServerFrame"}],
        "$defs": {**parts, "ClientFrame": client, "ServerFrame": server},
    }
