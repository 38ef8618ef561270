"""Documents of schedules: the body of a request, and the OpenAPI descriptions of it and of an answer.

    {"spec": "every 15m", "record": {"key": "EURUSD", "value": {"bid": 1.08}}, "late": "skip", "late_max_ms": "5000",
     "jitter_ms": "0", "end_us": "0", "fires_max": "0"}

Only `spec` and `record` are required. The record is one as it is written to a topic, without the members that say when:
its timestamp is the due time. An answer has the state of the schedule beside; `records.schedule_json` writes it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from pydantic import Field, TypeAdapter, WithJsonSchema, create_model

from comet.admin.schedules import ScheduleInfo
from comet.schedules.due import LatePolicy
from comet.schedules.spec import TEXT_CHARS_MAX, TIME_MAX_US
from comet.values.record import NewRecord
from comet_gateway.http.problems import Problem
from comet_gateway.schemas.common import INT64_MAX, int64_between
from comet_gateway.schemas.derived import model_of
from comet_gateway.schemas.records import RecordIn, read_records
from comet_gateway.schemas.records_api import RECORD_IN, RECORD_OUT, TEXT64, Schema
from comet_gateway.schemas.strict_json import fault

_DAY_MS: Final = 86_400_000
# Numbers of 64 bits, with the highest that is taken.
_NUMBERS: Final = {
    "late_max_ms": (366 * _DAY_MS, "For `skip`, which needs 1,000 or more: times that are later have no record."),
    "jitter_ms": (_DAY_MS, "Each time is later by 0 to this, by a hash of id and time."),
    "end_us": (TIME_MAX_US, "It has no time after this one, in microseconds since 1970; 0: no end."),
    "fires_max": (INT64_MAX, "It ends after this many records; 0: no limit."),
}
_OF_TIME: Final = ("timestamp_us", "delay_ms", "due", "schedule_id")  # members of other records
_Number = int | Annotated[float, Meta(multiple_of=1)] | str


class _ScheduleBody(Struct, forbid_unknown_fields=True, gc=False):
    spec: Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
    record: RecordIn
    late: LatePolicy | None = None
    late_max_ms: _Number = 0
    jitter_ms: _Number = 0
    end_us: _Number = 0
    fires_max: _Number = 0


_decode: Final = msgspec.json.Decoder(_ScheduleBody).decode


class ScheduleRequest(Struct, frozen=True):
    """A schedule to store."""

    spec: str
    record: NewRecord
    late: str
    late_max_ms: int
    jitter_ms: int
    end_us: int
    fires_max: int


def decode_schedule(body: bytes) -> ScheduleRequest:
    """Decodes a body. Raises Problem: MALFORMED_BODY with position, VALIDATION with path."""
    try:
        found = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise fault(body, error) from None
    columns = read_records(body, [found.record], _ScheduleBody.__struct_fields__, 1)
    if columns.timestamps_us is not None or columns.delayed is not None:
        raise Problem("VALIDATION", f"the record of a schedule has no {', '.join(_OF_TIME)}: its `spec` says when")
    record = NewRecord(
        columns.values[0],
        None if columns.keys is None else columns.keys[0],
        () if columns.headers is None else columns.headers[0],
        None,
        None if columns.partitions is None else columns.partitions[0],
        None if columns.ttls_ms is None else columns.ttls_ms[0],
    )
    numbers = {name: _whole(name, getattr(found, name), most) for name, (most, _) in _NUMBERS.items()}
    return ScheduleRequest(found.spec, record, found.late.value if found.late else "", **numbers)


def _whole(name: str, given: float | str, most: int) -> int:
    if not isinstance(given, str) or (len(given) <= 19 and given.isascii() and given.isdecimal()):
        number = int(given)
        if 0 <= number <= most:
            return number
    raise Problem("VALIDATION", f"{name} must be a whole number from 0 to {most}, not {str(given)[:40]!r}")


# ---- OpenAPI


def _without_time(record: Schema) -> Schema:
    return record | {"properties": {name: one for name, one in record["properties"].items() if name not in _OF_TIME}}


_RECORD: Final[Schema] = {"title": "ScheduledRecord", "anyOf": [_without_time(one) for one in RECORD_IN["anyOf"]]}
BODY: Final[Schema] = {
    "required": True,
    "description": "The schedule. Content-Encoding: none, gzip or zstd.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object", "title": "ScheduleBody",
                "properties": {
                    "spec": {
                        "type": "string", "maxLength": TEXT_CHARS_MAX,
                        "description": "When it is due, such as `cron 30 9 * * 1-5 America/New_York`.",
                    },
                    "record": _RECORD,
                    "late": {
                        "anyOf": [{"enum": [policy.value for policy in LatePolicy]}, {"type": "null"}],
                        "description": "For missed times. Default: `fire` for `at`, `fire_last` for the others.",
                    },
                    **{
                        name: TypeAdapter(int64_between(0, most)).json_schema() | {"description": about, "default": "0"}
                        for name, (most, about) in _NUMBERS.items()
                    },
                },
                "required": ["spec", "record"], "additionalProperties": False,
            },
            "example": {"spec": "every 15m", "record": {"key": "EURUSD", "value": {"report": "quotes"}}},
        },
    },
}  # fmt: skip

_STORED: Final[Schema] = {
    "type": "object",
    "properties": {
        name: one
        for name, one in RECORD_OUT["properties"].items()
        if name not in ("offset", "timestamp_us")
    } | {"ttl_ms": {**TEXT64, "description": "Absent: that of the topic; -1: no expiry."}},
    "additionalProperties": False,
}  # fmt: skip

ScheduleDocument = create_model(
    "ScheduleDocument",
    __base__=model_of(ScheduleInfo),
    __doc__="A schedule with its record and its state.",
    record=(Annotated[dict[str, Any], WithJsonSchema(_STORED)], Field(description="What is written when it is due.")),
)
