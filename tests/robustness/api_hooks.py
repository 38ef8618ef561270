"""How schemathesis is to make requests of the gateway: for test_gateway_api, and SCHEMATHESIS_HOOKS of its runner."""

from __future__ import annotations

import json
from typing import Any, Final

import schemathesis

KNOWN: Final = {"topic": "quotes", "group": "engine", "partition": 0, "broker": 1}
BODY_MAX: Final = {"partitions": 3, "total": 4}


@schemathesis.serializer("application/x-ndjson")
def lines(_context: Any, value: Any) -> bytes:
    """A document as its one line; what is to be sent as it stands, as it stands."""
    return value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n"


@schemathesis.hook
def filter_case(_context: Any, case: schemathesis.Case[Any]) -> bool:
    """What is no text cannot be sent as lines: it becomes a line, and the answer to that says what is wrong."""
    return case.media_type != "application/x-ndjson" or isinstance(case.body, str | bytes)


@schemathesis.hook
def map_path_parameters(_context: Any, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Half of the names are those of something that is there; of what is not there all is soon said."""
    return parameters and {
        name: KNOWN[name] if name in KNOWN and len(str(value)) % 2 else value for name, value in parameters.items()
    }


@schemathesis.hook
def map_query(_context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """No time-out so short that a busy machine makes it a 504."""
    if query and isinstance(query.get("timeout_ms"), int):
        query["timeout_ms"] = max(query["timeout_ms"], 5_000)
    return query


@schemathesis.hook
def map_body(_context: Any, body: Any) -> Any:
    """Topics of a thousand partitions would be all that the broker does."""
    if isinstance(body, dict):
        for name, most in BODY_MAX.items():
            if isinstance(body.get(name), int):
                body[name] = min(body[name], most)
    return body
