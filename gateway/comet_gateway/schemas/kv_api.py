"""OpenAPI descriptions of keys and values."""

from __future__ import annotations

from typing import Any, Final

from comet.settings.topic import TTL_MS_MAX
from comet_gateway.http.raw_route import path, query
from comet_gateway.schemas.records_api import TEXT64, TOPIC

Schema = dict[str, Any]

_BYTES: Final[Schema] = {"type": "string", "format": "binary"}
_KEY: Final = path("key", "The key, percent-encoded: any bytes.", {"type": "string", "minLength": 1}, example="EURUSD")
_STALE: Final = query("stale", "Whether any replica may answer, which may be behind.", {
    "type": "string", "enum": ["yes", "no"], "default": "no",
})  # fmt: skip
_ETAG: Final = {"ETag": {"description": "The revision, in quotes.", "schema": {"type": "string"}}}
_IF_MATCH: Final[Schema] = {
    "name": "If-Match", "in": "header", "required": False, "example": '"42"',
    "description": "Only if the key has this revision, as an ETag has it.",
    "schema": {"type": "string", "pattern": '^"[0-9]{1,18}"$'},
}  # fmt: skip
_IF_NONE_MATCH: Final[Schema] = {
    "name": "If-None-Match", "in": "header", "required": False, "description": "`*`: only if the key has no value.",
    "schema": {"type": "string", "enum": ["*"]},
}  # fmt: skip
_ENTRY: Final[Schema] = {
    "type": "object",
    "required": ["revision", "timestamp_us"],
    "properties": {
        "revision": {**TEXT64, "description": "The offset of the record."},
        "timestamp_us": TEXT64,
        "key": {"type": "string"},
        "key_base64": {"type": "string", "description": "In place of `key`, if it is not UTF-8."},
        "value": {"description": "A value that is JSON."},
        "text": {"type": "string", "description": "A value that is text and not JSON."},
        "base64": {"type": "string", "description": "Any other value."},
        "encrypted": {"type": "string", "description": "The id of the wrapping key of an encrypted value."},
        "tombstone": {"type": "boolean", "description": "true: this revision deleted the key."},
        "ended": {**TEXT64, "description": "The revision that a deletion ended."},
    },
}
_ENTRIES: Final[Schema] = {"type": "array", "items": _ENTRY}
_REVISION: Final[Schema] = {
    "type": "object", "required": ["revision"], "properties": {"revision": TEXT64},
}  # fmt: skip


def _document(about: str, schema: Schema, **more: Any) -> Schema:
    return {"description": about, "content": {"application/json": {"schema": schema}}, **more}


LIST: Final[Schema] = {
    "parameters": [
        TOPIC,
        query("prefix", "Only keys that begin with this.", {"type": "string"}),
        query("after", "`after` of the page before.", {"type": "string", "pattern": "^([0-9a-f]{2})+$"}),
        query("limit", "Keys at most.", {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 100}),
        _STALE,
    ],
    "responses": {
        "200": _document("The keys that have a value, in the order of their bytes.", {
            "type": "object",
            "required": ["entries"],
            "properties": {
                "entries": _ENTRIES,
                "after": {"type": "string", "description": "Of the next page; absent on the last one."},
            },
        }),
    },
}  # fmt: skip
GET: Final[Schema] = {
    "parameters": [
        TOPIC,
        _KEY,
        query("revision", "This revision of the key.", {"type": "integer", "minimum": 0, "maximum": 2**63 - 2}),
        _STALE,
    ],
    "responses": {
        "200": {
            "description": "The value.", "headers": _ETAG, "content": {"application/octet-stream": {"schema": _BYTES}},
        },
    },
}  # fmt: skip
HISTORY: Final[Schema] = {
    "parameters": [
        TOPIC,
        query("key", "The key.", {"type": "string", "minLength": 1}, example="EURUSD") | {"required": True},
        query("limit", "Revisions at most.", {"type": "integer", "minimum": 1, "maximum": 64, "default": 64}),
        _STALE,
    ],
    "responses": {
        "200": _document("The last revisions, the newest first.", {
            "type": "object", "required": ["entries"], "properties": {"entries": _ENTRIES},
        }),
    },
}  # fmt: skip
_TTL: Final = query(
    "ttl_ms", "Milliseconds after which the key has no value any more, unless it is set again.",
    {"type": "integer", "minimum": 1, "maximum": TTL_MS_MAX},
)  # fmt: skip
PUT: Final[Schema] = {
    "parameters": [TOPIC, _KEY, _TTL, _IF_MATCH, _IF_NONE_MATCH],
    "requestBody": {
        "required": True,
        "description": "The value, as it is.",
        "content": {"application/octet-stream": {"schema": _BYTES}},
    },
    "responses": {"200": _document("The new revision.", _REVISION, headers=_ETAG)},
}
DELETE: Final[Schema] = {
    "parameters": [TOPIC, _KEY, _IF_MATCH],
    "responses": {"200": _document("The revision of the deletion.", _REVISION, headers=_ETAG)},
}
