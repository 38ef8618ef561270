"""Routes to topics as tables of keys: read, set on a condition, delete, list, and the revisions of a key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Final
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Request
from starlette.types import Scope

import comet
from comet.settings.topic import TTL_MS_MAX
from comet.types import check_topic_name
from comet_gateway.brokers.key_tables import KeyTables
from comet_gateway.http import request_body
from comet_gateway.http.problems import Problem, answers
from comet_gateway.http.query_params import QueryParams
from comet_gateway.http.raw_route import Answer, RawRoute, Reply
from comet_gateway.records.record_json import key_and_value
from comet_gateway.schemas.kv_api import DELETE, GET, HISTORY, LIST, PUT

router = APIRouter(prefix="/v1", route_class=RawRoute)

_WRONG: Final = ("TOPIC_NOT_FOUND", "VALIDATION", "NOT_LEADER", "DATA_LOSS", "LOG_FAILED")
_UNWRITTEN: Final = (
    "REVISION_MISMATCH", "RECORD_TOO_LARGE", "LEADERSHIP_LOST", "NOT_ENOUGH_REPLICAS", "DISK_FULL", "SEQUENCE_TOO_OLD",
)  # fmt: skip
_REVISION_MAX: Final = 2**63 - 2
_ETAG: Final = re.compile(r'"([0-9]{1,18})"')


class Stale(Enum):
    """Whether any replica may answer."""

    NO = "no"
    YES = "yes"


@router.get(
    "/kv/{topic}",
    operation_id="listKeys",
    summary="List keys with their values",
    tags=["keys"],
    openapi_extra=LIST,
    responses=answers(*_WRONG),
)
async def list_keys(request: Request) -> Answer:
    """Returns the keys that have a value, in the order of their bytes, a page at a time."""
    query = QueryParams(request.scope["query_string"], {"prefix", "after", "limit", "stale"})
    limit = query.number("limit", 100, 1, 1_000)
    after = _decoded(query.text("after")) if "after" in query else None
    async with _table(request) as kv:
        found = await kv.entries(_bytes("prefix", query.text("prefix")), after=after, limit=limit, stale=_stale(query))
    more = b""
    if len(found) == limit:
        more = b',"after":"%b"' % found[-1].key.hex().encode()
    return Reply(b'{"entries":[%b]%b}' % (_written(found), more))


@router.get(
    "/kv-history/{topic}",
    operation_id="readKeyHistory",
    summary="Read the last revisions of a key",
    tags=["keys"],
    openapi_extra=HISTORY,
    responses=answers(*_WRONG),
)
async def history(request: Request) -> Answer:
    """Returns the last revisions of a key, deletions included, the newest first."""
    query = QueryParams(request.scope["query_string"], {"key", "limit", "stale"})
    key = _key(query.text("key"))
    async with _table(request) as kv:
        found = await kv.history(key, query.number("limit", 64, 1, 64), stale=_stale(query))
    return Reply(b'{"entries":[%b]}' % _written(found))


@router.get(
    "/kv/{topic}/{key:path}",
    operation_id="readKey",
    summary="Read the value of a key",
    tags=["keys"],
    openapi_extra=GET,
    responses=answers(*_WRONG, "KEY_NOT_FOUND"),
)
async def get(request: Request) -> Answer:
    """Returns the value as it was written, with its revision as ETag."""
    query = QueryParams(request.scope["query_string"], {"revision", "stale"})
    key = _key_of_path(request.scope)
    revision = query.number("revision", 0, 0, _REVISION_MAX) if "revision" in query else None
    async with _table(request) as kv:
        found = await kv.get(key, revision=revision, stale=_stale(query))
    if found is None or found.value is None:
        raise Problem("KEY_NOT_FOUND", f"the key {key[:100]!r} has no value")
    return Reply(found.value, kind=b"application/octet-stream", headers={"etag": f'"{found.revision}"'})


@router.put(
    "/kv/{topic}/{key:path}",
    operation_id="setKey",
    summary="Set a key",
    tags=["keys"],
    openapi_extra=PUT,
    responses=answers(*_WRONG, *_UNWRITTEN, "BODY_STALLED", "BODY_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE"),
)
async def put(request: Request) -> Answer:
    """Sets a key to the body, as it is: always, or with a condition only if that holds.

    Without an answer the key may be set or not: read it before you repeat a request with a condition.
    """
    scope = request.scope
    query = QueryParams(scope["query_string"], {"ttl_ms"})
    ttl_ms = query.number("ttl_ms", 1, 1, TTL_MS_MAX) if "ttl_ms" in query else None
    key, headers = _key_of_path(scope), scope["comet.headers"]
    revision, absent = _if_match(headers), headers.get(b"if-none-match")
    if absent is not None and (absent != b"*" or revision is not None):
        raise Problem("VALIDATION", "If-None-Match takes only *, and does not go with If-Match")
    value = await request_body.read(scope["comet.body"], headers, scope["app"].state.config.limits)
    async with _table(request) as kv:
        if absent is not None:
            new = await kv.create(key, value, ttl_ms=ttl_ms)
        elif revision is not None:
            new = await kv.update(key, value, revision, ttl_ms=ttl_ms)
        else:
            new = await kv.put(key, value, ttl_ms=ttl_ms)
    return _revision(new)


@router.delete(
    "/kv/{topic}/{key:path}",
    operation_id="deleteKey",
    summary="Delete a key",
    tags=["keys"],
    openapi_extra=DELETE,
    responses=answers(*_WRONG, *_UNWRITTEN, "KEY_NOT_FOUND"),
)
async def delete(request: Request) -> Answer:
    """Deletes a key, with `If-Match` only at this revision."""
    scope = request.scope
    QueryParams(scope["query_string"], ())
    key = _key_of_path(scope)
    async with _table(request) as kv:
        gone = await kv.delete(key, _if_match(scope["comet.headers"]))
    if gone is None:
        raise Problem("KEY_NOT_FOUND", f"the key {key[:100]!r} has no value")
    return _revision(gone)


def _table(request: Request) -> AbstractAsyncContextManager[comet.KV[bytes]]:
    tables: KeyTables = request.scope["app"].state.backend.key_tables
    return tables.of(check_topic_name(request.scope["path_params"]["topic"]))


def _stale(query: QueryParams) -> bool:
    return query.choice("stale", Stale.NO) is Stale.YES


def _bytes(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Problem("VALIDATION", f"{name} must be UTF-8") from None


def _key(text: str) -> bytes:
    if not text:
        raise Problem("VALIDATION", "key must not be empty")
    return _bytes("key", text)


def _key_of_path(scope: Scope) -> bytes:
    """The key at the end of the path. As text, the path has lost bytes that are not UTF-8."""
    before = scope["path"].removesuffix(scope["path_params"]["key"])
    key = unquote_to_bytes(scope["raw_path"])[len(before.encode()) :]
    if not key:
        raise Problem("VALIDATION", "key must not be empty")
    return key


def _decoded(after: str) -> bytes:
    try:
        found = bytes.fromhex(after)
    except ValueError:
        found = b""
    if not found:
        raise Problem("VALIDATION", "after must be that of the page before")
    return found


def _if_match(headers: request_body.Headers) -> int | None:
    given = headers.get(b"if-match")
    if given is None:
        return None
    found = _ETAG.fullmatch(given.decode("latin-1"))
    if found is None:
        raise Problem("VALIDATION", 'If-Match takes one revision as an ETag has it, such as "42"')
    return int(found[1])


def _revision(revision: int) -> Answer:
    return Reply(b'{"revision":"%d"}' % revision, headers={"etag": f'"{revision}"'})


def _written(entries: Iterable[comet.KVEntry[bytes]]) -> bytes:
    return b",".join(map(_entry, entries))


def _entry(entry: comet.KVEntry[bytes]) -> bytes:
    ended = b"" if entry.ended is None else b',"ended":"%d"' % entry.ended
    content = key_and_value(entry.key, entry.value)
    return b'{"revision":"%d","timestamp_us":"%d"%b%b}' % (entry.revision, entry.timestamp_us, content, ended)
