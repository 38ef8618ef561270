"""The frames of the WebSocket `/v1/ws`: JSON text, one object each, told apart by `type`.

    client                                      server
                                                welcome        limits, once
    subscribe   id, topic|topics|pattern, …  ─► subscribed     per topic: where it begins, what is missing
                                                snapshot …     latest of each key first, where asked for
                                                records …      or latest (conflate), lost (what it will not get)
    permit      id, count                    ─► records …
    replay      id, pause|resume|step|speed  ─► records … end
    ack         id, cursor | records         ─► acked          members of groups; nack, reject, extend: shared ones
    produce     id, topic, record|records    ─► receipt        in the order of the frames
    unsubscribe id                           ─► end
    ping        id                           ─► pong
    anything                                 ─► error          a problem, with the id and type of what it answers
                                                goaway         connect again; the connection ends

`id` is the client's: of a subscription while it lasts, of one request else. An error never ends anything but what it
is about. Numbers of 64 bits are strings; in what a client sends they may be numbers. The structures below are the
specification: frames are read and written with them, and `schema()` is made from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from comet_gateway.http.problems import Problem
from comet_gateway.push.subscribe_request import Policy, Values
from comet_gateway.schemas.records import RecordIn

VERSION: Final = 1

Id = Annotated[str, Meta(min_length=1, max_length=64, description="Chosen by the client.")]
Name = Annotated[str, Meta(min_length=1, max_length=249)]
Partition = Annotated[int, Meta(ge=0, le=100_000)]
Milliseconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
# 64 bits: strings from the server, either from a client.
Digits = Annotated[str, Meta(pattern="^-?[0-9]{1,19}$")]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | Digits
Position = Annotated[
    str | Annotated[int, Meta(ge=0, le=2**63 - 1)],
    Meta(description='"earliest", "latest", a time, a time ago such as "-15m", or an offset.'),
]


class Frame(Struct, tag_field="type", forbid_unknown_fields=True, omit_defaults=True):
    """Any frame."""


# ---- what a client sends


class Window(Struct, forbid_unknown_fields=True, frozen=True):
    """A part of the past, at its recorded pace times `speed`; 0: as fast as it goes."""

    start: Position = msgspec.field(name="from", default="earliest")
    end: Position = msgspec.field(name="to", default="latest")
    speed: Annotated[float, Meta(ge=0, le=1_000_000)] = 1.0
    paused: bool = False


class GroupTerms(Struct, forbid_unknown_fields=True, frozen=True):
    """The socket is a member of this group. The terms of a shared one are the group's: all members say the same."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    kind: Literal["consumer", "share"] = "consumer"
    auto: bool = False  # consumer group: what was delivered is committed when more is; without it only `ack` commits
    in_flight: Annotated[int, Meta(ge=1, le=10_000)] = 100  # shared: records that are not acknowledged, at most
    lock_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 30_000
    deliveries_max: Annotated[int, Meta(ge=0, le=1_000)] = 0
    dead_letter: Annotated[str, Meta(max_length=249)] = ""
    by_key: bool = False


class Subscribe(Frame, tag="subscribe"):
    """Ask for records: of one topic, of several, or of all whose names match a regular expression."""

    id: Id
    topic: Name | None = None
    topics: Annotated[list[Name], Meta(min_length=1, max_length=100)] | None = None
    pattern: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    start: Position = "latest"
    cursor: str | None = None  # with `topic`: in place of `start`
    cursors: dict[str, str] | None = None  # the same, by topic
    partitions: Annotated[list[Partition], Meta(min_length=1, max_length=1_000)] | None = None
    values: Values = Values.AUTO
    policy: Policy = Policy.BLOCK
    buffer: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    interval_ms: Annotated[int, Meta(ge=10, le=60_000)] = 250
    snapshot: Literal["none", "latest"] = "none"
    permits: Count | None = None
    group: Annotated[str, Meta(min_length=1, max_length=255)] | GroupTerms | None = None
    replay: Window | None = None


class Unsubscribe(Frame, tag="unsubscribe"):
    """The subscription is over; a member leaves its group."""

    id: Id


class Permit(Frame, tag="permit"):
    """So many records more may be sent on a subscription that was made with `permits`."""

    id: Id
    count: Annotated[int, Meta(ge=1, le=1_000_000_000)]


class RecordPlace(Struct, forbid_unknown_fields=True, frozen=True):
    """One record. The topic may be left out where the subscription has only one."""

    partition: Partition
    offset: Int64
    topic: Name | None = None


Places = Annotated[list[RecordPlace], Meta(min_length=1, max_length=10_000)]


class Ack(Frame, tag="ack"):
    """With a cursor: a consumer group has come so far. With records: a share group is done with them."""

    id: Id
    cursor: str | None = None
    records: Places | None = None


class NackFrame(Frame, tag="nack"):
    """These are to be given out again, not before `delay_ms` are over."""

    id: Id
    records: Places
    delay_ms: Milliseconds = 0


class RejectFrame(Frame, tag="reject"):
    """These are never to be given out again."""

    id: Id
    records: Places
    reason: Annotated[str, Meta(max_length=1_000)] = ""


class Extend(Frame, tag="extend"):
    """These take longer: their locks begin anew."""

    id: Id
    records: Places


class Produce(Frame, tag="produce"):
    """Write records, each as a POST takes it. Frames may follow without waiting; receipts come in their order."""

    id: Id
    topic: Name
    record: RecordIn | None = None
    records: Annotated[list[RecordIn], Meta(min_length=1, max_length=10_000)] | None = None
    acks: Literal[0, 1] | Literal["all"] = 1  # noqa: PYI030 - msgspec takes one type in a Literal
    idempotency_key: Annotated[str, Meta(pattern="^[!-~]{1,200}$")] | None = None


class ReplayFrame(Frame, tag="replay"):
    """Steers a replay. A step gives `count` records, and the replay stays paused."""

    id: Id
    action: Literal["pause", "resume", "step", "speed"]
    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    speed: Annotated[float, Meta(ge=0, le=1_000_000)] | None = None


class Ping(Frame, tag="ping"):
    """Is anybody there?"""

    id: Id | None = None


Acknowledge = Ack | NackFrame | RejectFrame | Extend
ClientFrame = Subscribe | Unsubscribe | Permit | Ack | NackFrame | RejectFrame | Extend | Produce | ReplayFrame | Ping


# ---- what the server sends

Trouble = Annotated[
    Mapping[str, Any],
    Meta(
        description="RFC 9457; `code` is what a program looks at. There may be more members.",
        extra_json_schema={
            "properties": {"code": {"type": "string"}, "detail": {"type": "string"}, "status": {"type": "integer"}},
            "required": ["type", "title", "status", "code", "detail"],
        },
    ),
]


class Header(Struct, frozen=True, omit_defaults=True):
    """A header of a record; `base64` where its bytes are not UTF-8."""

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
    """What one connection may take."""

    frame_bytes_max: int
    subscriptions_max: int
    in_flight_max: int
    idle_s: float


class Welcome(Frame, tag="welcome"):
    """The first frame."""

    version: int
    gateway: str
    limits: Bounds


class Subscribed(Frame, tag="subscribed"):
    """Where a topic begins; of a group, that the socket is its member. `recovered` where there was a cursor."""

    id: str
    topic: str | None = None
    cursor: str | None = None
    recovered: bool | None = None
    missing: Sequence[MissingItem] = ()
    group: str | None = None
    member: str | None = None


class RecordsFrame(Frame, tag="records"):
    """Records, each partition's in order. `partition` where all are of one. Behind them, the cursor."""

    id: str
    topic: str
    records: list[RecordItem]
    partition: int | None = None
    cursor: str | None = None


class SnapshotFrame(Frame, tag="snapshot"):
    """The latest records of keys. Only the cursor of the last part is one to come back with."""

    id: str
    topic: str
    records: list[RecordItem]
    cursor: str
    last: bool
    complete: bool


class LatestFrame(Frame, tag="latest"):
    """The latest record of each key that changed; `conflated` others were passed over."""

    id: str
    topic: str
    records: list[RecordItem]
    cursor: str
    conflated: int


class LostFrame(Frame, tag="lost"):
    """What this subscriber does not get."""

    id: str
    topic: str
    count: int
    missing: Sequence[MissingItem]
    cursor: str | None = None  # of members of groups there is none: the group keeps their place


class Assigned(Frame, tag="assigned"):
    """Partitions that this member of a group owns from now on."""

    id: str
    partitions: Sequence[Owned]


class Revoked(Frame, tag="revoked"):
    """Partitions that this member gives up; `lost` where another has them already."""

    id: str
    partitions: Sequence[Owned]
    lost: bool


class WrittenItem(Struct, frozen=True, omit_defaults=True):
    """What became of one record: where it is, or a problem. With acks=0 only the partition."""

    partition: int | None = None
    offset: Digits | None = None
    duplicate: bool = False
    problem: Trouble | None = None


class Receipt(Frame, tag="receipt"):
    """What became of the records of a produce frame, in their order."""

    id: str
    results: Sequence[WrittenItem]


class AcknowledgedItem(Struct, frozen=True, omit_defaults=True):
    """What became of what was said of one record: kept, or a problem."""

    topic: str
    partition: int
    offset: Digits
    problem: Trouble | None = None


class Acked(Frame, tag="acked"):
    """What was said is kept: up to this cursor, or of these records."""

    id: str
    of: Literal["ack", "nack", "reject", "extend"]
    cursor: str | None = None
    results: Sequence[AcknowledgedItem] | None = None


class Error(Frame, tag="error"):
    """Something could not be done. `of` is the type of the frame that asked for it, `topic` the one it is about."""

    problem: Trouble
    id: str | None = None
    of: str | None = None
    topic: str | None = None


class Pong(Frame, tag="pong"):
    """Yes."""

    id: str | None = None


class EndFrame(Frame, tag="end"):
    """The subscription is over, its id free."""

    id: str
    reason: Literal["unsubscribed", "replayed", "failed"]
    cursor: str | None = None


class GoAway(Frame, tag="goaway"):
    """The gateway stops: connect again after so long, to any other, with the cursors you have."""

    reconnect_ms: int


ServerFrame = (
    Welcome | Subscribed | RecordsFrame | SnapshotFrame | LatestFrame | LostFrame | Assigned | Revoked
    | Receipt | Acked | Error | Pong | EndFrame | GoAway
)  # fmt: skip

_decoder: Final = msgspec.json.Decoder(ClientFrame)
encode: Final = msgspec.json.Encoder().encode


class FrameKind(Struct, frozen=True):
    """What can be said of a frame that does not fit."""

    type: Any = None
    id: Any = None


_kind: Final = msgspec.json.Decoder(FrameKind)


def read(text: str | bytes) -> ClientFrame:
    """Raises Problem."""
    try:
        frame: ClientFrame = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Problem("MALFORMED_FRAME", f"not a frame: {error}"[:500]) from None
    return frame


def about(text: str | bytes) -> tuple[str | None, str | None]:
    """The type and the id of a frame that does not fit, as far as it has them."""
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
