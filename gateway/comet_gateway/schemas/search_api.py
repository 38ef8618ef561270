"""What searching and exporting say of themselves in the OpenAPI."""

from __future__ import annotations

from typing import Any, Final

from comet_gateway.routes.raw import path, query
from comet_gateway.schemas.common import NATURAL_TEXT
from comet_gateway.schemas.records_api import RECORD_OUT, TEXT64, TOPIC

Schema = dict[str, Any]

_NEEDLE: Final[Schema] = {"type": "string", "maxLength": 1_000}
_POSITION: Final = "earliest, latest, a time such as 2026-01-31T12:00:00Z, a time ago such as -15m, or an offset"
WHERE: Final = """A condition on the fields of values that are JSON, or several with `&&`; all have to hold.

`price>100`, `user.name=anna`, `legs[0].size<=5`, `tags~urgent`, `exists(user.email)`, `!exists(error)`.

Operators: `=` `!=` `>` `>=` `<` `<=`, and `~` `!~` for a text that holds another, whatever the case. What is compared
with is a number, `true`, `false`, `null` or a text; a text that looks like one of the others, or begins with a space,
stands in quotation marks. A name asked of a list is asked of its entries, and one that fits is enough. What is not
there answers nothing."""

_SELECTION: Final[list[Schema]] = [
    query("start", f"Nothing before it: {_POSITION} (of one partition).", {"type": "string", "default": "earliest"}),
    query("end", f"Nothing from it on: {_POSITION} (of one partition).", {"type": "string", "default": "latest"}),
    query("order", "Which come first.", {"type": "string", "enum": ["oldest", "newest"], "default": "oldest"}),
    query(
        "partitions",
        "Only of these, separated by commas.",
        {"type": "string", "pattern": "^[0-9]{1,9}(,[0-9]{1,9})*$"},
        example="0,1",
    ),
    query("key", "The key holds this text, whatever the case.", _NEEDLE, example="EUR"),
    query("value", "The value holds this text, whatever the case.", _NEEDLE),
    query("header", "A header, as `name: value`, holds this text, whatever the case.", _NEEDLE, example="source: demo"),
    {
        **query("where", WHERE, {"type": "array", "items": {"type": "string", "maxLength": 500}, "maxItems": 8}),
        "style": "form", "explode": True,
    },
    query("cursor", "Where an earlier search ended.", {"type": "string", "pattern": "^c1\\."}),
    query(
        "values", "How values stand in JSON; as when records are read.",
        {"type": "string", "enum": ["auto", "text", "base64"], "default": "auto"},
    ),
    query(
        "isolation", "committed: nothing of transactions that are open or were aborted.",
        {"type": "string", "enum": ["committed", "uncommitted"], "default": "committed"},
    ),
]  # fmt: skip

_PROGRESS_MEMBERS: Final[Schema] = {
    "scanned": {**TEXT64, "description": "Records that were looked at."},
    "bytes": {**TEXT64, "description": "Bytes of their keys and values."},
    "matched": {**TEXT64, "description": "Records that were given."},
    "of": {**TEXT64, "description": "Offsets in what was asked for: about so many records."},
    "left": {**TEXT64, "description": "Offsets that are yet to be looked at."},
    "unreadable": {**TEXT64, "description": "Offsets that were passed over: their batch is corrupt."},
    "through_us": {
        "anyOf": [TEXT64, {"type": "null"}],
        "description": "All before this time was looked at; newest first: all after it.",
    },
    "seconds": {"type": "number"},
}
_REASON: Final[Schema] = {
    "enum": ["limit", "end", "budget"],
    "description": "limit: as many as were asked for; end: there is nothing more; budget: it took all it may.",
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
                "cut": {"const": True, "description": "With `preview`: the value is only the beginning of it."},
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
            "Bytes of a value at most; of a longer one the beginning is given, and how long it is.",
            {"type": "integer", "minimum": 1, "maximum": 8 << 20},
        ),
    ],
    "responses": {
        "200": {
            "description": "Lines, while it looks; the last is `end`, or `problem`.",
            "content": {
                "application/x-ndjson": {
                    "schema": {"type": "string", "description": "SearchLine, one a line.", "x-line": LINE},
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
            "csv: a text that a spreadsheet would take for a formula gets an apostrophe before it, and what is no "
            "UTF-8 stands as base64:…; parquet needs pyarrow where the gateway runs.",
            {"type": "string", "enum": ["json", "ndjson", "csv", "parquet"], "default": "ndjson"},
        ),
        query(
            "corrupt",
            "At a batch that is corrupt. raise: the export is a problem, or breaks off; skip: it goes on behind it.",
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
                "application/x-ndjson": {"schema": {"type": "string", "description": "StoredRecord, one a line."}},
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
