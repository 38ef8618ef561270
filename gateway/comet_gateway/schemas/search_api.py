"""OpenAPI descriptions of search and export."""

from __future__ import annotations

from typing import Any, Final

from comet_gateway.http.raw_route import path, query
from comet_gateway.schemas.common import NATURAL_TEXT
from comet_gateway.schemas.lists import POSITION_SCHEMA
from comet_gateway.schemas.records_api import CURSOR, FILTER_PARAMETER, RECORD_OUT, TEXT64, TOPIC

Schema = dict[str, Any]

_NEEDLE: Final[Schema] = {"type": "string", "maxLength": 1_000}
_POSITION: Final = "earliest, latest, a time such as 2026-01-31T12:00:00Z, a time ago such as -15m, or an offset"
_SELECTION: Final[list[Schema]] = [
    query("start", f"Start, inclusive: {_POSITION} (of one partition).", {**POSITION_SCHEMA, "default": "earliest"}),
    query("end", f"End, exclusive: {_POSITION} (of one partition).", {**POSITION_SCHEMA, "default": "latest"}),
    query("order", "Records that come first.", {"type": "string", "enum": ["oldest", "newest"], "default": "oldest"}),
    query(
        "partitions",
        "Only these partitions, separated by commas.",
        {"type": "string", "pattern": "^[0-9]{1,9}(,[0-9]{1,9})*$"},
        example="0,1",
    ),
    query("key", "The key contains this text, in any case.", _NEEDLE, example="EUR"),
    query("value", "The value contains this text, in any case.", _NEEDLE),
    query("header", "A header, as `name: value`, contains this text, in any case.", _NEEDLE, example="source: demo"),
    FILTER_PARAMETER,
    query("cursor", "Cursor of an earlier search.", CURSOR),
    query(
        "values", "Form of values, as when records are read.",
        {"type": "string", "enum": ["auto", "text", "base64"], "default": "auto"},
    ),
    query(
        "isolation", "committed: without records of open and aborted transactions.",
        {"type": "string", "enum": ["committed", "uncommitted"], "default": "committed"},
    ),
]  # fmt: skip

_PROGRESS_MEMBERS: Final[Schema] = {
    "scanned": {**TEXT64, "description": "Records scanned."},
    "bytes": {**TEXT64, "description": "Bytes of their keys and values."},
    "matched": {**TEXT64, "description": "Records returned."},
    "of": {**TEXT64, "description": "Offsets in the requested range: an estimate of its records."},
    "left": {**TEXT64, "description": "Offsets not scanned yet."},
    "unreadable": {**TEXT64, "description": "Offsets that were skipped: their batch is corrupt."},
    "through_us": {
        "anyOf": [TEXT64, {"type": "null"}],
        "description": "All records before this time were scanned; newest first: all after it.",
    },
    "seconds": {"type": "number"},
}
_REASON: Final[Schema] = {
    "enum": ["limit", "end", "budget"],
    "description": "limit: `limit` records found; end: all scanned; budget: the search reached its bounds.",
}


def _line(name: str, members: Schema) -> Schema:
    return {
        "type": "object", "required": [name], "additionalProperties": False,
        "properties": {name: {"type": "object", "properties": members, "required": [*members]}},
    }  # fmt: skip


LINE: Final[Schema] = {
    "title": "SearchLine",
    "oneOf": [
        _line("progress", _PROGRESS_MEMBERS),
        {
            "type": "object", "required": ["record"], "additionalProperties": False,
            "properties": {
                "record": RECORD_OUT,
                "cut": {"const": True, "description": "With `preview`: the value is cut."},
                "size": {"type": "integer", "description": "Bytes of the whole value."},
            },
        },
        _line("end", {"reason": _REASON, "cursor": {"type": "string"}, **_PROGRESS_MEMBERS}),
        {
            "type": "object", "required": ["problem"], "additionalProperties": False,
            "properties": {"problem": {"$ref": "#/components/schemas/ProblemDocument"}},
        },
    ],
}  # fmt: skip
_EXAMPLE: Final = """\
{"record":{"partition":0,"offset":"42","timestamp_us":"1767225600000000","key":"EURUSD","value":{"bid":1.08}}}
{"progress":{"scanned":"4096","bytes":"81920","matched":"1","of":"10000","left":"5904","through_us":"1767225600000000",\
"seconds":0.004}}
{"end":{"reason":"end","cursor":"c1.000102030405060708090a0b0c0d0e0f.0-10000-1","scanned":"10000","bytes":"200000",\
"matched":"1","of":"10000","left":"0","through_us":"1767225660000000","seconds":0.009}}
"""

SEARCH: Final[Schema] = {
    "parameters": [
        TOPIC,
        *_SELECTION,
        query("limit", "Records at most.", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 100}),
        query(
            "preview",
            "Bytes of a value at most; a longer one is cut, with its size.",
            {"type": "integer", "minimum": 1, "maximum": 8 << 20},
        ),
    ],
    "responses": {
        "200": {
            "description": "Lines, during the search; the last is `end` or `problem`.",
            "content": {
                "application/x-ndjson": {
                    "schema": {"type": "string", "description": "One SearchLine a line.", "x-line": LINE},
                    "example": _EXAMPLE,
                }
            },
        }
    },
}

_FILE: Final[Schema] = {"type": "string", "format": "binary"}
EXPORT: Final[Schema] = {
    "parameters": [
        TOPIC,
        query(
            "format",
            "csv: text that looks like a formula to a spreadsheet gets an apostrophe before it, and bytes that are "
            "not UTF-8 are base64:…; parquet needs pyarrow on the gateway.",
            {"type": "string", "enum": ["json", "ndjson", "csv", "parquet"], "default": "ndjson"},
        ),
        query(
            "corrupt",
            "At a corrupt batch. raise: the export fails or is cut off; skip: it continues behind it.",
            {"type": "string", "enum": ["raise", "skip"], "default": "raise"},
        ),
        *_SELECTION,
        query("limit", "Records at most.", {"type": "integer", "minimum": 1, "maximum": 1_000_000, "default": 10_000}),
    ],
    "responses": {
        "200": {
            "description": "The file.",
            "headers": {
                "Content-Disposition": {"description": "A name for the file.", "schema": {"type": "string"}},
            },
            "content": {
                "application/json": {"schema": {"type": "array", "items": RECORD_OUT}},
                "application/x-ndjson": {"schema": {"type": "string", "description": "One StoredRecord a line."}},
                "text/csv": {"schema": {"type": "string"}},
                "application/vnd.apache.parquet": {"schema": _FILE},
            },
        }
    },
}

VALUE: Final[Schema] = {
    "parameters": [
        TOPIC,
        path("partition", "Its number.", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, example=0),
        path(
            "offset", "Of the record.", {"type": "string", "format": "int64", "pattern": NATURAL_TEXT}, example="42"
        ),
    ],
    "responses": {
        "200": {
            "description": "The bytes.",
            "content": {"application/octet-stream": {"schema": _FILE}},
            "headers": {
                "Content-Disposition": {"description": "A name for the file.", "schema": {"type": "string"}},
            },
        }
    },
}  # fmt: skip
