"""OpenAPI descriptions of the record routes, which are raw: FastAPI cannot derive them."""

from __future__ import annotations

from typing import Any, Final

from comet.limits import DELAY_MS_MAX
from comet.settings.topic import TTL_MS_MAX
from comet.types import SCHEDULE_ID, TOPIC_NAME
from comet_gateway.http.raw_route import path, query
from comet_gateway.schemas.common import DIGITS, NATURAL_TEXT, digits_between
from comet_gateway.schemas.lists import POSITION_SCHEMA

Schema = dict[str, Any]

TEXT64: Final[Schema] = {"type": "string", "format": "int64", "pattern": "^-?[0-9]{1,19}$"}
_TIME: Final[Schema] = {
    "anyOf": [
        {"type": "string", "pattern": NATURAL_TEXT},
        {"type": "integer", "minimum": 0, "exclusiveMaximum": 2**63},
    ],
    "description": "Microseconds since 1970, 64 bits.",
}
_TTL: Final[Schema] = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": TTL_MS_MAX},
        {"const": -1},
        {"type": "string", "pattern": f"^(-1|{digits_between(1, TTL_MS_MAX)})$"},
    ],
    "description": "Milliseconds from the timestamp to the time from which on the record is not delivered; -1: none.",
}
_BASE64: Final[Schema] = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^([A-Za-z0-9+/]{4})*$|^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)$",
}

_DELAYED: Final[Schema] = {
    "delay_ms": {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": DELAY_MS_MAX},
            {"type": "string", "pattern": f"^({digits_between(0, DELAY_MS_MAX)})$"},
        ],
        "description": "The record is written after so many milliseconds. Excludes `due` and `timestamp_us`.",
    },
    "due": {
        "type": "string", "maxLength": 200,
        "description": "The record is written at this time, as in 2026-12-01T09:30:00-05:00. Excludes `delay_ms` and "
        "`timestamp_us`.",
    },
    "schedule_id": {
        "type": "string", "pattern": f"^{SCHEDULE_ID.pattern}$",
        "description": "Of a delayed record: its schedule, which is stored once. Default: a new one.",
    },
}  # fmt: skip

TOPIC: Final = path(
    "topic", "The topic's name.", {"type": "string", "pattern": f"^{TOPIC_NAME.pattern}$"}, example="quotes"
)

_HEADER_IN: Final[Schema] = {
    "oneOf": [
        {
            "type": "object", "properties": {"name": {"type": "string"}, member: schema},
            "required": ["name", member], "additionalProperties": False,
        }
        for member, schema in (("value", {"type": "string"}), ("base64", _BASE64))
    ]
}  # fmt: skip
_BESIDE: Final[Schema] = {
    "key": {"type": ["string", "null"]},
    "key_base64": _BASE64,
    "headers": {
        "anyOf": [
            {"type": "array", "items": _HEADER_IN},
            {"type": "object", "additionalProperties": {"type": "string"}},
        ]
    },
    "timestamp_us": _TIME,
    "ttl_ms": _TTL,
    "partition": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
}
_CONTENTS: Final[dict[str, Schema]] = {
    "value": {"description": "Any JSON; kept byte for byte."},
    "text": {"type": "string"},
    "base64": _BASE64,
    "tombstone": {"const": True, "description": "No value: the key is deleted."},
}


def _record_in(content: str, key: str, more: Schema | None = None) -> Schema:
    """A record with this content, or without any: an edit that keeps it."""
    other = "key_base64" if key == "key" else "key"
    beside = {name: schema for name, schema in _BESIDE.items() if name != other} | (more or {})
    return {
        "type": "object", "title": f"Record with {content or 'its content'} and {key}",
        "properties": ({content: _CONTENTS[content]} if content else {}) | beside,
        "required": [content] if content else [], "additionalProperties": False,
    }  # fmt: skip


RECORD_IN: Final[Schema] = {
    "title": "Record",
    "anyOf": [_record_in(content, key, _DELAYED) for content in _CONTENTS for key in ("key", "key_base64")],
}
RECORD_EDIT: Final[Schema] = {
    "title": "RecordEdit",
    "anyOf": [_record_in(content, key) for content in (*_CONTENTS, "") for key in ("key", "key_base64")],
}
BODY: Final[Schema] = {
    "anyOf": [
        {
            "type": "object", "title": "Records",
            "properties": {"records": {"type": "array", "items": RECORD_IN, "minItems": 1}},
            "required": ["records"], "additionalProperties": False,
        },
        RECORD_IN,
    ]
}  # fmt: skip

_PROBLEM: Final[Schema] = {"$ref": "#/components/schemas/ProblemDocument"}
RESULT: Final[Schema] = {
    "title": "Result",
    "oneOf": [
        {
            "type": "object",
            "properties": {
                "partition": {"type": "integer"},
                "offset": {**TEXT64, "description": "Absent with acks=0."},
                "duplicate": {"const": True, "description": "Written by an earlier request with the same key."},
            },
            "required": ["partition"], "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                "schedule_id": {"type": "string", "description": "Of a delayed record: with it, it can be cancelled."},
                "next_us": {
                    **TEXT64,
                    "description": "When it is due. Absent if an earlier request stored it, and it is written or "
                    "cancelled by now.",
                },
                "duplicate": {"const": True, "description": "Stored by an earlier request with the same id."},
            },
            "required": ["schedule_id"], "additionalProperties": False,
        },
        {
            "type": "object", "properties": {"problem": _PROBLEM}, "required": ["problem"],
            "additionalProperties": False,
        },
    ],
}  # fmt: skip


_SAME: Final[Schema] = {"topic": "$request.path.topic"}
_GO_ON: Final[Schema] = {"cursor": "$response.body#/cursor"}


def _links(**operations: Schema) -> Schema:
    """OpenAPI links of an answer: operations by id, with their parameters from it."""
    return {name: {"operationId": name, "parameters": parameters} for name, parameters in operations.items()}


def _results(description: str, results: list[Schema], *, lines: bool = False) -> Schema:
    schema = {
        "type": "object", "properties": {"results": {"type": "array", "items": RESULT}}, "required": ["results"],
    }  # fmt: skip
    content: Schema = {"application/json": {"schema": schema, "example": {"results": results}}}
    if lines:
        content["application/x-ndjson"] = {
            "schema": {"type": "string", "description": "One Result for each line, in order."},
            "example": '{"partition":0,"offset":"42"}\n{"partition":0,"offset":"43"}\n',
        }
    return {
        "description": description,
        "content": content,
        "links": _links(
            readTopic=_SAME,
            readPartition={
                **_SAME,
                "partition": "$response.body#/results/0/partition",
                "offset": "$response.body#/results/0/offset",
            },
        ),
    }


_LINES_EXAMPLE: Final = '{"key":"EURUSD","value":{"bid":1.08}}\n{"key":"GBPUSD","text":"1.27"}\n'
_WRITTEN: Final = {"partition": 0, "offset": "42"}
_TOO_LARGE: Final = {
    "type": "urn:comet:problem:RECORD_TOO_LARGE", "title": "Record too large", "status": 413,
    "code": "RECORD_TOO_LARGE", "detail": "the record has 2000000 bytes; the topic allows 1048576",
}  # fmt: skip

PRODUCE: Final[Schema] = {
    "parameters": [
        TOPIC,
        query(
            "acks",
            "Replicas that must have a record: 1: the leader; all: every in-sync replica; 0: not acknowledged.",
            {"type": "string", "enum": ["0", "1", "all"], "default": "1"},
        ),
        query(
            "timeout_ms",
            "Time after which the answer for a record is TIMEOUT: it may or may not be written.",
            {"type": "integer", "minimum": 1, "maximum": 60_000, "default": 30_000},
        ),
        {
            "name": "Idempotency-Key", "in": "header", "required": False,
            "description": "Makes a retry safe, through any gateway: the records of one key are written once. Not "
            "allowed with NDJSON or acks=0.",
            "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"}, "example": "order-4711",
        },
    ],
    "requestBody": {
        "required": True,
        "description": "One record, or many. Content-Encoding: none, gzip or zstd.",
        "content": {
            "application/json": {
                "schema": BODY,
                "examples": {
                    "one": {"summary": "One record", "value": {"key": "EURUSD", "value": {"bid": 1.08, "ask": 1.09}}},
                    "many": {
                        "summary": "Many records",
                        "value": {
                            "records": [
                                {"key": "EURUSD", "value": {"bid": 1.08}, "headers": {"source": "demo"}},
                                {"key": "GBPUSD", "text": "1.27", "timestamp_us": "1767225600000000"},
                                {"base64": "AAEC", "partition": 0},
                                {"key": "USDDEM", "tombstone": True},
                            ]
                        },
                    },
                    "delayed": {
                        "summary": "A record that is written in five minutes",
                        "value": {"key": "EURUSD", "value": {"bid": 1.08}, "delay_ms": 300_000},
                    },
                },
            },
            "application/x-ndjson": {
                "schema": {"type": "string", "description": "One Record a line."}, "example": _LINES_EXAMPLE,
            },
        },
    },
    "responses": {
        "200": _results("All were written; partitions and offsets in their order.", [_WRITTEN], lines=True),
        "202": _results("acks=0: accepted, not acknowledged.", [{"partition": 0}]),
        "207": _results("Some were written, some were not.", [_WRITTEN, {"problem": _TOO_LARGE}]),
    },
}  # fmt: skip

# ---- reading

_HEADER_OUT: Final[Schema] = {
    "type": "object", "required": ["name"], "additionalProperties": False,
    "properties": {"name": {"type": "string"}, "value": {"type": "string"}, "base64": _BASE64},
}  # fmt: skip
RECORD_OUT: Final[Schema] = {
    "type": "object", "title": "StoredRecord",
    "properties": {
        "partition": {"type": "integer", "minimum": 0},
        "offset": TEXT64,
        "timestamp_us": TEXT64,
        "key": {"type": "string", "description": "`key_base64` if it is not UTF-8; both absent if there is no key."},
        "key_base64": _BASE64,
        "value": {"description": "If it is JSON, as written; otherwise `text` or `base64`."},
        "text": {"type": "string"},
        "base64": _BASE64,
        "encrypted": {
            "type": "string", "description": "Of a value that is encrypted end to end: the id of its wrapping key.",
        },
        "tombstone": {"const": True},
        "headers": {"type": "array", "items": _HEADER_OUT},
    },
    "required": ["partition", "offset", "timestamp_us"], "additionalProperties": False,
}  # fmt: skip
_RECORD: Final[Schema] = {
    "partition": 0, "offset": "42", "timestamp_us": "1767225600000000", "key": "EURUSD", "value": {"bid": 1.08},
    "headers": [{"name": "source", "value": "demo"}],
}  # fmt: skip
_CURSOR_EXAMPLE: Final = "c1.000102030405060708090a0b0c0d0e0f.0-43-1"
_POSITION: Final = "earliest, latest, a time such as 2026-01-31T12:00:00Z, or a time ago such as -15m"
CURSOR: Final[Schema] = {
    "type": "string",
    "pattern": f"^c1\\.[0-9a-f]{{32}}(\\.[0-9]{{1,5}}-({DIGITS})(-[0-9]{{1,9}})?)+$",
}
_CURSOR: Final = query("cursor", "Cursor of an earlier answer, instead of a start.", CURSOR)


FILTER: Final = """A condition that records have to match: on fields of JSON values, `@key`, `@header.NAME`,
`@timestamp`, `@offset`, `@partition`, `@schema`, `@size`, `@tombstone`; joined by `&&`, `||`, `!` and parentheses.

`price>100`, `user.name=anna`, `legs[0].size<=5`, `side in (buy, sell)`, `@key ^= EUR`, `exists(error)`.

Operators: `=` `!=` `>` `>=` `<` `<=` `in`, and for text `~` `!~` (contains, in any case), `^=` (begins with) and `$=`
(ends with). The operand is a number, `true`, `false`, `null` or text; quote text that looks like one of the others or
begins with a space. On a list, a name applies to each entry, and one match is enough. An absent field, or one of
another type, matches neither a condition nor its contrary."""
FILTER_PARAMETER: Final[Schema] = {
    **query("filter", FILTER, {"type": "array", "items": {"type": "string", "maxLength": 2_000}, "maxItems": 8}),
    "style": "form", "explode": True,
}  # fmt: skip


def _common(records_max: int = 10_000, bytes_max: int = 8 << 20) -> list[Schema]:
    return [
        FILTER_PARAMETER,
        query("limit", "Records at most.", {"type": "integer", "minimum": 1, "maximum": records_max, "default": 100}),
        query(
            "max_bytes",
            "Bytes of keys and values at most; but at least one record.",
            {"type": "integer", "minimum": 1, "maximum": bytes_max, "default": 1 << 20},
        ),
        query(
            "values",
            "Form of values. auto: JSON if they are JSON, text if they are UTF-8, otherwise base64; text: never as "
            "JSON; base64: always.",
            {"type": "string", "enum": ["auto", "text", "base64"], "default": "auto"},
        ),
        query(
            "isolation",
            "committed: without records of open and aborted transactions.",
            {"type": "string", "enum": ["committed", "uncommitted"], "default": "committed"},
        ),
    ]


def _headers(names: dict[str, str]) -> Schema:
    return {name: {"description": about, "schema": {"type": "string"}} for name, about in names.items()}


def _records(members: dict[str, Schema], example: Schema, headers: dict[str, str], links: Schema) -> Schema:
    schema = {
        "type": "object", "additionalProperties": False, "required": ["records", *members],
        "properties": {"records": {"type": "array", "items": RECORD_OUT}, **members},
    }  # fmt: skip
    return {
        "description": "The records, and a cursor to continue; with NDJSON or Arrow, the cursor is in headers.",
        "headers": _headers(headers),
        "links": links,
        "content": {
            "application/json": {"schema": schema, "example": {"records": [_RECORD], **example}},
            "application/x-ndjson": {
                "schema": {"type": "string", "description": "One StoredRecord a line."},
                "example": '{"partition":0,"offset":"42","timestamp_us":"1767225600000000","value":1}\n',
            },
            "application/vnd.apache.arrow.stream": {
                "schema": {
                    "type": "string", "format": "binary",
                    "description": "Columns partition, offset, timestamp, key, value and headers.",
                }
            },
        },
    }  # fmt: skip


_OFFSETS: Final = {"next_offset": TEXT64, "log_start": TEXT64, "log_end": TEXT64}
_OFFSETS_EXAMPLE: Final = {"next_offset": "43", "log_start": "0", "log_end": "1042"}

_UNREADABLE: Final[Schema] = {
    "type": "array",
    "description": "Offsets [first, end) that were skipped: their batch is corrupt. Absent if there are none.",
    "items": {
        "type": "object", "properties": {"first": TEXT64, "end": TEXT64}, "required": ["first", "end"],
        "additionalProperties": False,
    },
}  # fmt: skip

FETCH: Final[Schema] = {
    "parameters": [
        TOPIC,
        path("partition", "Its number.", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, example=0),
        query(
            "offset",
            "The first offset to read.",
            {"type": "string", "format": "int64", "pattern": NATURAL_TEXT},
            example="42",
        ),
        query("start", f"Instead of an offset: {_POSITION}.", {**POSITION_SCHEMA, "default": "earliest"}),
        _CURSOR,
        query(
            "wait_ms",
            "Time to wait for the first record if there is none yet.",
            {"type": "integer", "minimum": 0, "maximum": 30_000, "default": 0},
        ),
        *_common(),
    ],
    "responses": {
        "200": _records(
            {**_OFFSETS, "cursor": {"type": "string"}},
            {**_OFFSETS_EXAMPLE, "cursor": _CURSOR_EXAMPLE},
            {
                "Comet-Cursor": "As `cursor`.", "Comet-Next-Offset": "As `next_offset`.",
                "Comet-Log-Start": "As `log_start`.", "Comet-Log-End": "As `log_end`.",
            },
            _links(readPartition={**_SAME, "partition": "$request.path.partition", **_GO_ON}, readTopic=_SAME),
        )
    },
}  # fmt: skip

FETCH_TOPIC: Final[Schema] = {
    "parameters": [
        TOPIC,
        query(
            "order",
            "Records that come first.",
            {"type": "string", "enum": ["oldest", "newest"], "default": "oldest"},
        ),
        query("start", f"Start, inclusive: {_POSITION}.", {**POSITION_SCHEMA, "default": "earliest"}),
        query("end", f"End, exclusive: {_POSITION}.", {**POSITION_SCHEMA, "default": "latest"}),
        _CURSOR,
        query(
            "partitions",
            "Only these partitions, separated by commas.",
            {"type": "string", "pattern": "^[0-9]{1,9}(,[0-9]{1,9})*$"},
            example="0,1",
        ),
        *_common(),
    ],
    "responses": {
        "200": _records(
            {
                "cursor": {"type": "string"},
                "more": {"type": "boolean", "description": "There was more to read."},
                "partitions": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"partition": {"type": "integer"}, **_OFFSETS, "unreadable": _UNREADABLE},
                        "required": ["partition", *_OFFSETS], "additionalProperties": False,
                    },
                },
            },
            {"cursor": _CURSOR_EXAMPLE, "more": True, "partitions": [{"partition": 0, **_OFFSETS_EXAMPLE}]},
            {
                "Comet-Cursor": "As `cursor`.", "Comet-More": "As `more`.",
                "Comet-Unreadable": "As `unreadable`: PARTITION/FIRST-END, separated by commas.",
            },
            _links(
                readTopic={**_SAME, **_GO_ON, "order": "$request.query.order"},
                readPartition={**_SAME, "partition": "$response.body#/records/0/partition"},
            ),
        )
    },
}  # fmt: skip
