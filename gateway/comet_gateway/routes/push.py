"""What stays connected: `/v1/ws`, `/v1/topics/{topic}/stream`, and the schema of the former's frames."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.routing import WebSocketRoute

from comet_gateway.push import frames
from comet_gateway.push.websocket import WebSocketEndpoint

router = APIRouter(tags=["push"])
router.routes.append(WebSocketRoute("/v1/ws", WebSocketEndpoint(), name="ws"))


@router.get("/v1/ws/schema", summary="The frames of the WebSocket, as a JSON Schema")
def schema() -> dict[str, Any]:
    """JSON Schema 2020-12. `$defs.ClientFrame` is what a client sends to `/v1/ws`, `$defs.ServerFrame` what it gets."""
    return frames.schema()
