"""What the routes of records say of themselves in the OpenAPI, which FastAPI cannot read off their code."""

from __future__ import annotations

from typing import Any, Final

from comet.types import TOPIC_NAME
from comet_gateway.routes.raw import path, query

Schema = dict[str, Any]

TEXT64: Final[Schema] = {"type": "string", "format": "int64", "pattern": "^-?[0-9]{1,19}$"}
_TIME: Final[Schema] = {
    "anyOf": [
        {"type": "string", "pattern": "^[0-9]{1,18}$"},
        {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    ],
    "description": "Microseconds since 1970, 64 bits.",
}
_BASE64: Final[Schema] = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^([A-Za-z0-9+/]{4})*$|^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)$",
}

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
    "partition": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
}
_CONTENTS: Final[dict[str, Schema]] = {
    "value": {"description": "Any JSON; kept byte for byte as it comes."},
    "text": {"type": "string"},
    "base64": _BASE64,
    "tombstone": {"const": True, "description": "There is no value: the key is deleted."},
}


def _record_in(content: str, key: str) -> Schema:
    other = "key_base64" if key == "key" else "key"
    beside = {name: schema for name, schema in _BESIDE.items() if name != other}
    return {
        "type": "object", "title": f"Record with {content} and {key}",
        "properties": {content: _CONTENTS[content], **beside}, "required": [content], "additionalProperties": False,
    }  # fmt: skip


RECORD_IN: Final[Schema] = {
    "title": "Record",
    "anyOf": [_record_in(content, key) for content in _CONTENTS for key in ("key", "key_base64")],
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
                "offset": {**TEXT64, "description": "Left out with acks=0: nobody knows it."},
                "duplicate": {"const": True, "description": "It was written by an earlier request with the same key."},
            },
            "required": ["partition"], "additionalProperties": False,
        },
        {
            "type": "object", "properties": {"problem": _PROBLEM}, "required": ["problem"],
            "additionalProperties": False,
        },
    ],
}  # fmt: skip


def _results(description: str, results: list[Schema], *, lines: bool = False) -> Schema:
    schema = {
        "type": "object", "properties": {"results": {"type": "array", "items": RESULT}}, "required": ["results"],
    }  # fmt: skip
    content: Schema = {"application/json": {"schema": schema, "example": {"results": results}}}
    if lines:
        content["application/x-ndjson"] = {
            "schema": {"type": "string", "description": "Result, one a line: one for each line, in order."},
            "example": '{"partition":0,"offset":"42"}\n{"partition":0,"offset":"43"}\n',
        }
    return {"description": description, "content": content}


_LINES_EXAMPLE: Final = '{"key":"EURUSD","value":{"bid":1.08}}\n{"key":"GBPUSD","text":"1.27"}\n'
_WRITTEN: Final = {"partition": 0, "offset": "42"}
_TOO_LARGE: Final = {
    "type": "urn:comet:problem:RECORD_TOO_LARGE", "title": "A record is too large", "status": 413,
    "code": "RECORD_TOO_LARGE", "detail": "a record of 2000000 bytes; the topic takes 1048576",
}  # fmt: skip

PRODUCE: Final[Schema] = {
    "parameters": [
        TOPIC,
        query(
            "acks",
            "When a record counts as written: 1, its leader has it; all, every in-sync replica; 0, nobody is asked.",
            {"type": "string", "enum": ["0", "1", "all"], "default": "1"},
        ),
        query(
            "timeout_ms",
            "After so long the answer for a record is TIMEOUT: it may or may not be written.",
            {"type": "integer", "minimum": 1, "maximum": 60_000, "default": 30_000},
        ),
        {
            "name": "Idempotency-Key", "in": "header", "required": False,
            "description": "Makes a retry safe, through any gateway: the records of one key are written once. Not with "
            "NDJSON, nor with acks=0.",
            "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"}, "example": "order-4711",
        },
    ],
    "requestBody": {
        "required": True,
        "description": "One record, or many. May be compressed: Content-Encoding gzip or zstd.",
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
                },
            },
            "application/x-ndjson": {
                "schema": {"type": "string", "description": "Record, one a line."}, "example": _LINES_EXAMPLE,
            },
        },
    },
    "responses": {
        "200": _results("All are written; where, in their order.", [_WRITTEN], lines=True),
        "202": _results("acks=0: they are on their way.", [{"partition": 0}]),
        "207": _results("Some are written, some are not.", [_WRITTEN, {"problem": _TOO_LARGE}]),
    },
}  # fmt: skip
