"""Routes of long-lived connections: `/v1/ws`, `/v1/topics/{topic}/stream`, and the schema of WebSocket frames."""

from __future__ import annotations

import time
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.routing import WebSocketRoute

from comet_gateway.config import Limits
from comet_gateway.http.problems import answers
from comet_gateway.http.raw_route import Answer, RawRoute, query
from comet_gateway.push import frames
from comet_gateway.push.sse import open_stream
from comet_gateway.push.websocket import WebSocketEndpoint
from comet_gateway.schemas.records_api import FILTER, TOPIC

router = APIRouter(tags=["push"])
router.routes.append(WebSocketRoute("/v1/ws", WebSocketEndpoint(), name="ws"))

_CURSOR: Final = "c1.0f8e2b1c9d3a4e5f60718293a4b5c6d7.1-17-3.0-1042-3"
_START: Final = "`earliest`, `latest`, a time, a time ago, or an offset."
_EXAMPLE: Final = f"""retry: 1000

event: subscribed
id: {_CURSOR}
data: {{"topic":"quotes","cursor":"{_CURSOR}","recovered":true,"missing":[]}}

id: c1.0f8e2b1c9d3a4e5f60718293a4b5c6d7.1-17-3.0-1043-3
data: {{"partition":0,"offset":"1042","timestamp_us":"1732212345678901","key":"EURUSD","value":{{"bid":1.08}}}}

"""
STREAM: Final[dict[str, Any]] = {
    "parameters": [
        TOPIC,
        query("start", f"Where to start: {_START}", {"type": "string", "default": "latest"}, example="-15m"),
        query("cursor", "Where to resume, instead of `start`: an `id` of an earlier stream.", {"type": "string"}),
        query(
            "partitions", "Partition numbers, separated by commas; default: all.",
            {"type": "string", "pattern": "^[0-9]{1,6}(,[0-9]{1,6}){0,999}$"}, example="0,1",
        ),
        query(
            "values", "Form of values: JSON if they are JSON, text, or base64.",
            {"type": "string", "enum": ["auto", "text", "base64"], "default": "auto"},
        ),
        query(
            "policy", "For a slow client. block: it gets all records, later; drop_oldest: it misses records, and gets "
            "their offsets; conflate: it gets the latest record of each key.",
            {"type": "string", "enum": ["block", "drop_oldest", "conflate"], "default": "block"},
        ),
        query(
            "buffer", "With `drop_oldest`: records that the client may be behind.",
            {"type": "integer", "minimum": 1, "maximum": Limits().buffer_max, "default": 10_000},
        ),
        query(
            "interval_ms", "With `conflate`: time between updates at least.",
            {"type": "integer", "minimum": 10, "maximum": 60_000, "default": 250},
        ),
        query(
            "snapshot", "Start with the latest record of each key.",
            {"type": "string", "enum": ["none", "latest"], "default": "none"},
        ),
        query("filter", FILTER, {"type": "string", "maxLength": 2_000}, example="bid>1"),
        query("from", f"Start of a replay. {_START}", {"type": "string"}, example="-1h"),
        query("to", f"End of a replay. {_START}", {"type": "string"}),
        query(
            "speed", "Speed of a replay: a multiple of the recorded pace; 0: as fast as possible.",
            {"type": "number", "minimum": 0, "maximum": 1_000_000, "default": 1},
        ),
        {
            "name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"},
            "description": "Sent by an EventSource when it reconnects: like `cursor`, and takes precedence.",
        },
    ],
    "responses": {
        "200": {
            "description": "Events, until the client disconnects.",
            "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
        }
    },
}  # fmt: skip


async def stream(request: Request) -> Answer:
    """Pushes records as server-sent events as they are written, for a browser's EventSource.

    The first event, `subscribed`, has the start and the records missing since the cursor. Each record is an event with
    its cursor as `id`; `snapshot` and `latest` hold many records, `lost` lists records that this client does not get.
    `error` and `end` are the last event; after `goaway` the client reconnects, to any gateway, with its last id.
    """
    topic: str = request.path_params["topic"]
    return await open_stream(request, topic, now_us=time.time_ns() // 1000)


router.routes.append(
    RawRoute(
        "/v1/topics/{topic}/stream",
        stream,
        methods=["GET"],
        name="stream",
        tags=["push"],
        summary="Follow a topic with server-sent events",
        openapi_extra=STREAM,
        responses=answers(
            "TOPIC_NOT_FOUND",
            "PARTITION_NOT_FOUND",
            "MALFORMED_CURSOR",
            "MALFORMED_FILTER",
            "VALIDATION",
            "TRUNCATED",
            "DATA_LOSS",
            "OFFSET_OUT_OF_RANGE",
        ),
    )
)


@router.get("/v1/ws/schema", summary="Get the JSON Schema of WebSocket frames")
def schema() -> dict[str, Any]:
    """Gets a JSON Schema (2020-12). A client sends `$defs.ClientFrame` to `/v1/ws`, and gets `$defs.ServerFrame`."""
    return frames.schema()
