"""The OpenAPI 3.1 document: the routes' own descriptions, and the parts that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from comet_gateway.http.auth import ROLES, Role
from comet_gateway.http.problems import EVERYWHERE, KINDS, MEDIA_TYPE, answers
from comet_gateway.schemas.common import ProblemDocument

ABOUT: Final = """\
Write, read and follow topics of a Comet cluster.

- 64-bit numbers (offsets, times in microseconds, lags, sizes) are strings in answers; requests may have them as
  strings or as numbers.
- Errors are problem documents (RFC 9457, `application/problem+json`); their `code` is stable. With 429 and 503,
  `Retry-After` says when to try again.
- Every answer has an `X-Request-Id`: the request's own, or a new one.
- Clients of `/v1/ws` and `/v1/topics/{topic}/stream` can reconnect to any gateway and resume with their cursors.
"""
TAGS: Final = {
    "records": "Write and read records.",
    "keys": "Topics as tables of keys and values: read, and set on a condition.",
    "push": "Follow topics as they grow: WebSocket and server-sent events.",
    "share groups": "Work in a share group without a session: acquire records, then acknowledge them, at any gateway.",
    "topics": "Create, inspect, change and delete topics.",
    "groups": "Consumer groups: members, committed offsets and lag.",
    "dead letters": "Records that applications gave up on: list, redrive or discard them.",
    "alerts": "Rules that gateways evaluate, with their states, and the delivery of notices.",
    "brokers": "The cluster and its brokers.",
    "rules": "Rules of access: what clients of the brokers may do.",
    "access-keys": "Access keys: by which clients of the brokers say who they are.",
    "roles": "Roles: principals of the brokers' clients that have the same rules.",
    "quotas": "Quotas: how much each client of the brokers may use of each broker.",
    "calendars": "Market calendars, and the next times of schedules.",
    "schedules": "Schedules: records that brokers write to topics when they are due.",
    "operations": "Health and metrics of this gateway, for load balancers, Kubernetes and Prometheus.",
}
METHODS: Final = ("get", "put", "post", "delete", "patch", "head", "options")
_BEARER: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token from the gateway's tokens file.",
}
# Codes that an operation has only in some cases.
_IF_TOKEN: Final = frozenset({"UNAUTHENTICATED", "FORBIDDEN", "PROVIDER_UNAVAILABLE"})
_HEADERS: Final = {
    "X-Request-Id": {"description": "The id of the request, as in the gateway's log.", "schema": {"type": "string"}},
}
_RETRY: Final = {
    "Retry-After": {"description": "Seconds to wait before a retry.", "schema": {"type": "integer", "minimum": 1}},
}
_COUNTED_BY_FASTAPI: Final = ("HTTPValidationError", "ValidationError")


def description(app: FastAPI, *, tokens: bool) -> Callable[[str], bytes]:
    """A function that returns the document as JSON, for the path that the gateway is mounted under (empty: none).

    Made at the first request. `app.openapi` returns the same. `tokens`: whether this gateway requires tokens."""
    made: list[bytes] = []

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, tokens)
        return app.openapi_schema

    def encoded(mounted: str) -> bytes:
        if mounted:
            return msgspec.json.encode(document() | {"servers": _servers(mounted)})
        if not made:
            made.append(msgspec.json.encode(document()))
        return made[0]

    app.openapi = document  # type: ignore[method-assign] # as FastAPI's documentation has it
    return encoded


def _servers(url: str) -> list[dict[str, str | Any]]:
    return [{"url": url, "description": "This gateway."}]


def _document(app: FastAPI, tokens: bool) -> dict[str, Any]:
    found = get_openapi(
        title="Comet",
        version=app.version,
        openapi_version="3.1.0",
        description=ABOUT,
        routes=app.routes,
        tags=[{"name": name, "description": about} for name, about in TAGS.items()],
        servers=_servers("/"),
        license_info=None,
    )
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["ProblemDocument"] = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    if tokens:
        components["securitySchemes"] = {"bearer": _BEARER}
    for path, method, operation in operations(found):
        _complete(operation, ROLES.get((method.upper(), path), Role.ADMIN), tokens)
    for name in _COUNTED_BY_FASTAPI:
        schemas.pop(name, None)
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each operation with its path and method."""
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield path, method, item[method]


def _complete(operation: dict[str, Any], role: Role, tokens: bool) -> None:
    """Adds the parts that all operations share: errors, the required role, headers of answers."""
    open_to_all = role is Role.ANYONE or not tokens
    operation["security"] = [] if open_to_all else [{"bearer": []}]
    if role is not Role.ANYONE:
        text = f"{operation.get('description', '')}\n\nRequires the role {role.name.lower()} if tokens are configured."
        operation["description"] = text.strip()
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422", "")):
        del responses["422"]
    takes_document = "application/json" in operation.get("requestBody", {}).get("content", {})
    codes = [code for code in EVERYWHERE if not (open_to_all and code in _IF_TOKEN)]
    if takes_document:
        codes += ["MALFORMED_BODY", "BODY_STALLED", "BODY_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE"]
    for status, response in answers(*codes).items():
        own = responses.get(str(status))
        if own is None:
            responses[str(status)] = response
            continue
        own_text = own.get("description", "")
        more = [code for code in codes if KINDS[code].status == status and code not in own_text]
        own["description"] = "; ".join(filter(None, [own_text, *(f"{code}: {KINDS[code].title}" for code in more)]))
        own.setdefault("content", {}).setdefault(MEDIA_TYPE, response["content"][MEDIA_TYPE])
    for status, response in responses.items():
        response.setdefault("headers", {}).update(_HEADERS | (_RETRY if status in ("429", "503") else {}))
    operation["responses"] = dict(sorted(responses.items()))
