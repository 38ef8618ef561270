"""What those who run a gateway look at: is it alive, is it ready, how is it doing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from comet_gateway import metrics
from comet_gateway.schemas.common import Model

router = APIRouter(tags=["operations"])


class Alive(Model):
    status: Literal["alive"] = "alive"


class Ready(Model):
    """Whether to send requests here, and if not, why."""

    status: Literal["ready", "not ready"] = Field(examples=["ready"])
    reasons: Annotated[list[str], Field(examples=[["no broker can be reached at localhost:9092"]])]


@router.get("/livez", operation_id="isAlive", summary="Is the process alive?", response_model=Alive)
async def livez() -> Alive:
    """Answers as long as the process can answer anything; restart it when it does not."""
    return Alive()


@router.get(
    "/readyz",
    operation_id="isReady",
    summary="Can it serve?",
    response_model=Ready,
    responses={503: {"description": "Not now: send requests elsewhere.", "model": Ready}},
)
async def readyz(request: Request, response: Response) -> Ready:
    """503 while no broker can be reached, and from the moment on when the gateway is about to stop.

    Looked at once a second at most, however often it is asked."""
    reasons = await request.app.state.readiness.reasons()
    if reasons:
        response.status_code = 503
    return Ready(status="not ready" if reasons else "ready", reasons=reasons)


_TEXT: dict[str, Any] = {"schema": {"type": "string"}, "example": "comet_gateway_requests_running 1.0\n"}


@router.get(
    "/metrics",
    operation_id="getMetrics",
    summary="Figures for Prometheus",
    response_class=Response,
    responses={200: {"description": "Prometheus' text format.", "content": {"text/plain": _TEXT}}},
)
async def show_metrics(request: Request) -> Response:
    """Requests, latencies, connections, deliveries. Topics' and groups' own figures are the brokers'."""
    return Response(request.app.state.metrics.exposition(), media_type=metrics.CONTENT_TYPE)
