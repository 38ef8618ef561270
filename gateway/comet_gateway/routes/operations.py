"""Routes for operators: liveness, readiness and metrics."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from comet_gateway.schemas.common import Model

router = APIRouter(tags=["operations"])


class Alive(Model):
    status: Literal["alive"] = "alive"


class Ready(Model):
    """Readiness of the gateway, and the reasons if it is not ready."""

    status: Literal["ready", "not ready"] = Field(examples=["ready"])
    reasons: Annotated[list[str], Field(examples=[["no broker can be reached at localhost:9092"]])]


@router.get("/livez", operation_id="isAlive", summary="Check liveness", response_model=Alive)
async def livez() -> Alive:
    """Answers while the process can answer at all; restart it otherwise."""
    return Alive()


@router.get(
    "/readyz",
    operation_id="isReady",
    summary="Check readiness",
    response_model=Ready,
    responses={503: {"description": "Not ready: send requests to another gateway.", "model": Ready}},
)
async def readyz(request: Request, response: Response) -> Ready:
    """Answers 503 while no broker can be reached, and from the start of a shutdown on.

    Brokers are checked once a second at most, however often this is requested."""
    reasons = await request.app.state.readiness.reasons()
    if reasons:
        response.status_code = 503
    return Ready(status="not ready" if reasons else "ready", reasons=reasons)


_TEXT: dict[str, Any] = {"schema": {"type": "string"}, "example": "comet_gateway_requests_running 1.0\n"}


@router.get(
    "/metrics",
    operation_id="getMetrics",
    summary="Get metrics for Prometheus",
    response_class=Response,
    responses={200: {"description": "Prometheus' text format.", "content": {"text/plain": _TEXT}}},
)
async def show_metrics(request: Request) -> Response:
    """Gets metrics of requests, latencies, connections and deliveries. Brokers have those of topics and groups."""
    kind, page = request.app.state.metrics.exposition(request.headers.get("accept", ""))
    return Response(page, media_type=kind)
