"""What stays connected: `/v1/ws`, `/v1/topics/{topic}/stream`, and the schema of the former's frames."""

from __future__ import annotations

import time
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.routing import WebSocketRoute

from comet_gateway.config import Limits
from comet_gateway.http.problems import answers
from comet_gateway.push import frames
from comet_gateway.push.sse import open_stream
from comet_gateway.push.websocket import WebSocketEndpoint
from comet_gateway.routes.raw import Answer, RawRoute, query
from comet_gateway.schemas.records_api import TOPIC

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
        query("start", f"Where to begin: {_START}", {"type": "string", "default": "latest"}, example="-15m"),
        query("cursor", "Where to go on, in place of `start`: any `id` of a stream before.", {"type": "string"}),
        query(
            "partitions", "Numbers, with commas between them; else all.",
            {"type": "string", "pattern": "^[0-9]{1,6}(,[0-9]{1,6}){0,999}$"}, example="0,1",
        ),
        query(
            "values", "How values are written: as JSON where they are JSON, as text, or as base64.",
            {"type": "string", "enum": ["auto", "text", "base64"], "default": "auto"},
        ),
        query(
            "policy", "What becomes of a client that is too slow: it gets all, later; it is told what it missed; it "
            "gets the latest record of each key.",
            {"type": "string", "enum": ["block", "drop_oldest", "conflate"], "default": "block"},
        ),
        query(
            "buffer", "With `drop_oldest`: how many records it may be behind.",
            {"type": "integer", "minimum": 1, "maximum": Limits().buffer_max, "default": 10_000},
        ),
        query(
            "interval_ms", "With `conflate`: how often at most.",
            {"type": "integer", "minimum": 10, "maximum": 60_000, "default": 250},
        ),
        query(
            "snapshot", "First the latest record of each key.",
            {"type": "string", "enum": ["none", "latest"], "default": "none"},
        ),
        query("from", f"Replay from there. {_START}", {"type": "string"}, example="-1h"),
        query("to", f"Replay up to there. {_START}", {"type": "string"}),
        query(
            "speed", "How many times as fast as it was recorded; 0: as fast as it goes.",
            {"type": "number", "minimum": 0, "maximum": 1_000_000, "default": 1},
        ),
        {
            "name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"},
            "description": "What an EventSource sends when it comes back: as `cursor`, and before it.",
        },
    ],
    "responses": {
        "200": {
            "description": "Events, until the client goes.",
            "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
        }
    },
}  # fmt: skip


async def stream(request: Request) -> Answer:
    """Records as server-sent events, as they are written; what a browser's EventSource reads.

    The first event, `subscribed`, says where it begins and what is missing since the cursor. Each record is an event
    with its cursor as `id`; `snapshot` and `latest` hold many records, `lost` says what this client does not get. After
    `error` and `end` nothing follows; after `goaway` the client comes back, to another gateway, with its last id.
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
        summary="Follow a topic as server-sent events",
        openapi_extra=STREAM,
        responses=answers(
            "TOPIC_NOT_FOUND",
            "PARTITION_NOT_FOUND",
            "MALFORMED_CURSOR",
            "VALIDATION",
            "TRUNCATED",
            "DATA_LOSS",
            "OFFSET_OUT_OF_RANGE",
        ),
    )
)


@router.get("/v1/ws/schema", summary="The frames of the WebSocket, as a JSON Schema")
def schema() -> dict[str, Any]:
    """JSON Schema 2020-12. `$defs.ClientFrame` is what a client sends to `/v1/ws`, `$defs.ServerFrame` what it gets."""
    return frames.schema()
