"""The streamed answer of a redrive or discard request: lines of progress and failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from fastapi import Response
from starlette.types import Receive, Scope, Send

from comet_gateway.config import Limits
from comet_gateway.dead_letters.redrive import RedriveFailure, RedriveProgress, Settling
from comet_gateway.http.problems import Problem
from comet_gateway.schemas.dead_letters import SettlingPlan
from comet_gateway.search.answer import WalkAnswer
from comet_gateway.search.slots import Slots


class SettlingSlots(Slots):
    """Limits redrive and discard requests at once. One for an application, owned by its sources."""

    what = "requests redrive or discard dead letters"

    def most(self, limits: Limits) -> int:
        return limits.redrives_max


class AnswerLines:
    """Encodes the lines of one answer."""

    def __init__(self, settling: Settling, plan: SettlingPlan, draining: asyncio.Event, request_id: str) -> None:
        self._settling = settling
        self._plan = plan
        self._draining = draining
        self._request_id = request_id

    async def __call__(self) -> AsyncGenerator[bytes]:
        yield b'{"plan":%b}\n' % self._plan.model_dump_json().encode()
        events = self._settling.events()
        try:
            async for event in events:
                if self._draining.is_set():
                    self._settling.stop(Problem("DRAINING", "the gateway is about to stop"))
                yield self._line(event)
        finally:
            await events.aclose()

    def _line(self, event: RedriveFailure | RedriveProgress) -> bytes:
        if isinstance(event, RedriveFailure):
            at = event.dead_letter
            failure = {"partition": at.partition, "offset": str(at.offset), "problem": event.problem.document()}
            return msgspec.json.encode({"failure": failure}) + b"\n"
        numbers: dict[str, Any] = {
            "dead_letters": event.dead_letters, "done": event.done, "already": event.already, "failed": event.failed
        }  # fmt: skip
        if event.over:
            numbers["stopped"] = event.stopped
            if event.problem is not None:
                numbers["problem"] = event.problem.document(self._request_id)
        return msgspec.json.encode({"end" if event.over else "progress": numbers}) + b"\n"


class Streamed(Response):
    """A response whose body is an answer that sends itself."""

    def __init__(self, answer: WalkAnswer) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - it has its request
        await self._answer(send)
