"""Decodes records in requests into columns, for every route that takes records.

    {"value": {"bid": 1.08}}          any JSON, kept byte for byte
    {"text": "EURUSD 1.08"}           its UTF-8
    {"base64": "AAEC"}                any bytes
    {"tombstone": true}               no value: the key is deleted

    and optionally, with any of them
    key | key_base64                  text, or any bytes
    headers                           [{"name": "source", "value": "demo"}, {"name": "h", "base64": "AA=="}], names may
                                      repeat; or {"source": "demo"}
    timestamp_us                      64 bits: a string or a number; default: the time at the gateway
    ttl_ms                            milliseconds from the timestamp to its expiry, or -1: never; default: that of
                                      the topic
    partition                         default: by the key, or any
    delay_ms | due                    when the record is written: after so many milliseconds, or at this time, as in
                                      2026-12-01T09:30:00-05:00; that is its timestamp
    schedule_id                       of a delayed record: it is stored once; default: a new one

A body is one record, or {"records": [...]}; NDJSON has one record a line. Unknown, repeated or contradicting members
refuse the whole body: none of its records is written.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from comet.errors import CometError, InvalidArgument
from comet.limits import DELAY_MS_MAX
from comet.producer.delayed_record import due_time
from comet.schedules.spec import parse_time
from comet.schedules.zones import EPOCH
from comet.tracing.headers import has_context
from comet.types import check_schedule_id
from comet.wire.record_ttl import check_ttl
from comet_gateway.http.problems import Problem
from comet_gateway.schemas.common import INT64_MAX
from comet_gateway.schemas.strict_json import (
    Members,
    Wrong,
    check_text,
    each_once,
    fault,
    load,
    once,
    refuse_duplicates,
)

Pairs = list[tuple[str, bytes]]

PARTITION_MAX: Final = 2**31 - 1


class _Plain(Struct, forbid_unknown_fields=True, gc=False):
    """The form of nearly all records: tried first, at half the cost."""

    value: Raw
    key: str | None = None


_Whole = Annotated[float, Meta(multiple_of=1)]  # 5.0 is 5, as in JSON Schema


class RecordIn(Struct, forbid_unknown_fields=True, gc=False):
    """The general form of a record."""

    value: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET
    tombstone: bool | UnsetType = UNSET
    key: str | UnsetType | None = UNSET
    key_base64: bytes | UnsetType = UNSET
    headers: Raw | UnsetType = UNSET
    timestamp_us: int | _Whole | str | UnsetType = UNSET
    ttl_ms: int | _Whole | str | UnsetType = UNSET
    partition: int | _Whole | UnsetType = UNSET
    delay_ms: int | _Whole | str | UnsetType = UNSET
    due: str | UnsetType = UNSET
    schedule_id: str | UnsetType = UNSET


class _PlainBody(Struct, forbid_unknown_fields=True, gc=False):
    value: Raw | UnsetType = UNSET
    key: str | None = None
    records: list[_Plain] | UnsetType = UNSET


class _Body(RecordIn, forbid_unknown_fields=True, gc=False):
    records: list[RecordIn] | UnsetType = UNSET


class Delayed(NamedTuple):
    """When a delayed record is due, and the id of its schedule."""

    delay: timedelta | None
    due: datetime | None
    schedule_id: str | None


NOT_DELAYED: Final = Delayed(None, None, None)


@dataclass(slots=True)
class Columns:
    """Records by column. A column without any content is None."""

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    headers: list[Pairs] | None = None
    timestamps_us: list[int | None] | None = None
    ttls_ms: list[int | None] | None = None
    partitions: list[int | None] | None = None
    delayed: list[Delayed | None] | None = None
    # To find duplicates: the count of each member, and content that is not parsed.
    members: dict[str, int] = field(default_factory=dict)
    opaque: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.values)

    def add_context(self, context: Pairs) -> None:
        """Adds the headers of a trace to the records that have none of a trace."""
        if self.headers is None:
            self.headers = [context] * len(self)
        else:
            self.headers = [given if has_context(given) else [*given, *context] for given in self.headers]


_plain_body: Final = msgspec.json.Decoder(_PlainBody)
_body: Final = msgspec.json.Decoder(_Body)
_plain_lines: Final = msgspec.json.Decoder(_Plain)
_lines: Final = msgspec.json.Decoder(RecordIn)


_FAULTS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_body(body: bytes, records_max: int) -> Columns:
    """Decodes the records of a document. Raises Problem: MALFORMED_BODY with position, VALIDATION with path."""
    try:
        found = _decode_body(body, records_max)
    except _FAULTS as error:
        raise fault(body, error) from None
    return _checked(body, found)


def _decode_body(body: bytes, records_max: int) -> Columns:
    try:
        plain = _plain_body.decode(body)
    except msgspec.ValidationError:
        pass
    else:
        if plain.records is UNSET:
            if plain.value is not UNSET:
                return _plain_columns([cast("_Plain", plain)])
        elif plain.value is UNSET and plain.key is None:
            _check_count(plain.records, records_max)
            return _plain_columns(plain.records, {"records": 1})
    found = _body.decode(body)
    if found.records is UNSET:
        return columns([found])
    if any(getattr(found, name) is not UNSET for name in _NAMES):
        raise Problem("VALIDATION", "a document must be one record or have `records`, not both")
    _check_count(found.records, records_max)
    return columns(found.records, {"records": 1})


def _check_count(records: Sequence[object], records_max: int) -> None:
    if not records:
        raise Problem("VALIDATION", "`records` is empty")
    if len(records) > records_max:
        detail = f"{len(records)} records in one document; at most {records_max} are allowed"
        raise Problem("BODY_TOO_LARGE", detail, more={"records_max": records_max})


def decode_lines(data: bytes, count: int) -> Columns | None:
    """Decodes lines; None if one of them is wrong, or their number is not `count`."""
    try:
        try:
            found = _plain_columns(_plain_lines.decode_lines(data))
        except msgspec.ValidationError:
            found = columns(_lines.decode_lines(data))
        check_text(data)
    except (*_FAULTS, Problem):
        return None
    return found if len(found) == count and each_once(data, found.members, found.opaque) else None


def decode_line(line: bytes) -> Columns:
    """Decodes one line. Raises Problem."""
    try:
        found = columns([_lines.decode(line)])
    except _FAULTS as error:
        raise fault(line, error) from None
    return _checked(line, found)


def read_records(data: bytes, records: Sequence[RecordIn], members: Iterable[str], records_max: int) -> Columns:
    """Converts the records of a decoded document with the given other members. Raises Problem."""
    _check_count(records, records_max)
    # An optional member counts as present if its name occurs anywhere: a duplicate occurs once more.
    return _checked(data, columns(records, {name: int(b'"%b"' % name.encode() in data) for name in members}))


def _checked(data: bytes, found: Columns) -> Columns:
    """Refuses faults that the decoder does not find."""
    check_text(data)
    if not each_once(data, found.members, found.opaque):
        refuse_duplicates(data)
    return found


# ---- columns


def _plain_columns(records: Sequence[_Plain], members: dict[str, int] | None = None) -> Columns:
    values: list[bytes | None] = [bytes(record.value) for record in records]
    keys = [record.key for record in records]
    keyless = keys.count(None)
    found = Columns(values, opaque=cast("list[bytes]", values), members=members or {})
    found.members["value"] = len(values)
    # A null key counts as absent: then duplicates are searched the slow way.
    found.members["key"] = len(values) - keyless
    if keyless == 0:
        found.keys = [key.encode() for key in keys]  # type: ignore[union-attr]  # there is no None
    elif keyless < len(values):
        found.keys = [None if key is None else key.encode() for key in keys]
    return found


_NAMES: Final = RecordIn.__struct_fields__
_DELAYED: Final = {"delay_ms", "due", "schedule_id"}
_CONTENT: Final = ("value", "text", "base64", "tombstone")


def columns(records: Sequence[RecordIn], members: dict[str, int] | None = None) -> Columns:
    """Converts records to columns. Raises Problem with the index of the first that contradicts itself."""
    count = len(records)
    given: dict[str, list[Any]] = {}
    for name in _NAMES:
        column = list(map(attrgetter(name), records))
        if column.count(UNSET) < count:
            given[name] = column
    found = Columns(_values(given, count), members=members or {})
    found.keys = _keys(given, count)
    if "headers" in given:
        found.headers = [_each(index, count, _headers, raw) for index, raw in enumerate(given["headers"])]
    if "timestamp_us" in given:
        found.timestamps_us = [_each(index, count, _timestamp, at) for index, at in enumerate(given["timestamp_us"])]
    if "ttl_ms" in given:
        found.ttls_ms = [_each(index, count, _ttl, ttl) for index, ttl in enumerate(given["ttl_ms"])]
    if "partition" in given:
        found.partitions = [
            _each(index, count, _partition, partition) for index, partition in enumerate(given["partition"])
        ]
    if given.keys() & _DELAYED:
        found.delayed = [_each(index, count, _delayed, record) for index, record in enumerate(records)]
    found.members |= {name: count - column.count(UNSET) for name, column in given.items()}
    found.opaque = [bytes(raw) for name in ("value", "headers") for raw in given.get(name, ()) if raw is not UNSET]
    return found


def _values(given: dict[str, list[Any]], count: int) -> list[bytes | None]:
    contents = [name for name in _CONTENT if name in given]
    if len(contents) == 1 and UNSET not in (column := given[contents[0]]):
        return [_each(index, count, _CONVERT[contents[0]], content) for index, content in enumerate(column)]
    found: list[bytes | None] = []
    for index in range(count):
        has = [name for name in contents if given[name][index] is not UNSET]
        if len(has) != 1:
            reason = f"it has {' and '.join(has)}" if has else "it has none of them"
            raise _contradiction(index, count, f"a record must have one of value, text, base64 and tombstone: {reason}")
        found.append(_each(index, count, _CONVERT[has[0]], given[has[0]][index]))
    return found


def _keys(given: dict[str, list[Any]], count: int) -> list[bytes | None] | None:
    texts, binaries = given.get("key"), given.get("key_base64")
    if texts is None and binaries is None:
        return None
    keys: list[bytes | None] = [None] * count
    for index, key in enumerate(texts or ()):
        if key is not UNSET and key is not None:
            keys[index] = key.encode()
    for index, key in enumerate(binaries or ()):
        if key is not UNSET:
            if texts is not None and texts[index] is not UNSET:
                raise _contradiction(index, count, "a record must have key or key_base64, not both")
            keys[index] = key
    return keys


def _tombstone(is_one: bool) -> None:
    if not is_one:
        raise Wrong("`tombstone` must be true if present")


_CONVERT: Final[dict[str, Callable[[Any], bytes | None]]] = {
    "value": bytes, "text": str.encode, "base64": bytes, "tombstone": _tombstone,
}  # fmt: skip


def _timestamp(at: float | str | UnsetType) -> int | None:
    if at is UNSET:
        return None
    if isinstance(at, str) and not (0 < len(at) <= 19 and at.isascii() and at.isdecimal()):
        raise Wrong(f"`timestamp_us` must be microseconds since 1970, not {at[:40]!r}")
    at = int(at)
    if not 0 <= at <= INT64_MAX:
        raise Wrong("`timestamp_us` must be microseconds since 1970, in 63 bits")
    return at


def _ttl(ttl: float | str | UnsetType) -> int | None:
    if ttl is UNSET:
        return None
    if isinstance(ttl, str) and not (len(ttl) <= 19 and ttl.isascii() and ttl.removeprefix("-").isdecimal()):
        raise Wrong(f"`ttl_ms` must be a number of milliseconds, not {ttl[:40]!r}")
    try:
        return check_ttl(int(ttl))
    except InvalidArgument as error:
        raise Wrong(str(error)) from None


def _partition(partition: float | UnsetType) -> int | None:
    if partition is UNSET:
        return None
    partition = int(partition)
    if not 0 <= partition <= PARTITION_MAX:
        raise Wrong(f"`partition` must be from 0 to {PARTITION_MAX}")
    return partition


def _delayed(record: RecordIn) -> Delayed | None:
    delay_ms, due, schedule_id = record.delay_ms, record.due, record.schedule_id
    if delay_ms is UNSET and due is UNSET and schedule_id is UNSET:
        return None
    if record.timestamp_us is not UNSET:
        raise Wrong("`timestamp_us` of a delayed record is the time when it is due: leave it out")
    try:
        found = Delayed(
            None if delay_ms is UNSET else timedelta(milliseconds=_delay_ms(delay_ms)),
            None if due is UNSET else EPOCH + timedelta(microseconds=parse_time(due)),
            None if schedule_id is UNSET else check_schedule_id(schedule_id),
        )
        due_time(found.delay, found.due)
    except CometError as error:
        raise Wrong(error.message) from None
    return found


def _delay_ms(delay_ms: float | str) -> int:
    if isinstance(delay_ms, str) and not (len(delay_ms) <= 19 and delay_ms.isascii() and delay_ms.isdecimal()):
        raise Wrong(f"`delay_ms` must be a number of milliseconds, not {delay_ms[:40]!r}")
    delay_ms = int(delay_ms)
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise Wrong(f"`delay_ms` must be from 0 to {DELAY_MS_MAX}, a year")
    return delay_ms


def _headers(raw: Raw | UnsetType) -> Pairs:
    if raw is UNSET:
        return []
    # Its grammar was checked with the record's; only this parser finds duplicates.
    given = load(bytes(raw))
    if isinstance(given, Members):
        once(name for name, _ in given)
        return [(_header_name(name), _header_text(value)) for name, value in given]
    if not isinstance(given, list):
        raise Wrong("`headers` must be a list of headers, or an object")
    return list(map(_header, given))


def _header(given: Any) -> tuple[str, bytes]:
    if not isinstance(given, Members):
        raise Wrong('a header must be {"name": …, "value": …} or {"name": …, "base64": …}')
    once(name for name, _ in given)
    members = dict(given)
    name = _header_name(members.pop("name", None))
    if len(members) != 1 or not members.keys() <= {"value", "base64"}:
        raise Wrong("a header must have name and either value or base64, and nothing else")
    if "value" in members:
        return name, _header_text(members["value"])
    try:
        return name, b64decode(members["base64"], validate=True)
    except (TypeError, ValueError):
        raise Wrong(f"header {name[:40]!r} is not base64") from None


def _header_name(name: Any) -> str:
    if not isinstance(name, str):
        raise Wrong("a header's name must be text")
    name.encode()  # refuses half of a surrogate pair
    return name


def _header_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise Wrong("a header's value must be text; use base64 for other bytes")
    return value.encode()


def _each(index: int, count: int, convert: Callable[[Any], Any], content: Any) -> Any:
    try:
        return convert(content)
    except (Wrong, UnicodeEncodeError, RecursionError) as error:
        raise _contradiction(index, count, str(error)) from None


def _contradiction(index: int, count: int, why: str) -> Problem:
    if count == 1:
        return Problem("VALIDATION", why)
    return Problem("VALIDATION", f"record {index}: {why}", more={"record": index})
