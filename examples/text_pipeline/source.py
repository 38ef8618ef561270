"""The source: an HTTP server that writes each line once, however often it is sent.

    POST /lines  Idempotency-Key: K  {"text": ..., "writer": ...}  ─► 200 when the line is committed
                                                                   ─► 503: not known; send it again under the same key

Lines that wait are written in one transaction. Which keys have been written is read from the topic itself, at the start
and whenever the outcome of a transaction is not known. There is one source at a time: the transactional id shuts out
the one before, so that nothing of it can appear after the new one has read the topic.

    python source.py [BROKER] [PORT]
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated

import topics
import uvicorn
from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel

import comet

TOPIC = "lines"
KEY_HEADER = "idempotency-key"
LINES_PER_TRANSACTION = 1_000
WAITING_MAX = 10_000

log = logging.getLogger("source")


class Line(BaseModel):
    text: str
    writer: str = ""


@dataclass
class Waiting:
    """A line that is not written yet."""

    key: str
    line: Line
    answer: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Writer:
    """Writes lines, each key once."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._written: set[str] = set()
        self._waiting: dict[str, Waiting] = {}
        self._more = asyncio.Event()
        self._replaced: comet.ProducerFenced | None = None

    async def write(self, key: str, line: Line) -> None:
        """Returns when the line is in the topic."""
        if key in self._written:
            return
        if self._replaced is not None:
            raise self._replaced
        waiting = self._waiting.get(key)
        if waiting is None:
            if len(self._waiting) >= WAITING_MAX:
                raise comet.LimitExceeded(f"{WAITING_MAX} lines wait already")
            waiting = self._waiting[key] = Waiting(key, line)
            self._more.set()
        await asyncio.shield(waiting.answer)

    async def run(self) -> None:
        """Opens the id, reads what is written, writes what comes; and all of it again after any trouble."""
        while True:
            try:
                async with comet.TransactionalProducer(self._address, "text-pipeline-source") as producer:
                    await self._read()
                    while True:
                        await self._write_some(producer)
            except comet.ProducerFenced as error:
                log.error("another source has taken over: %s", error)
                self._replaced = error
                self._answer_all(error)
                return
            except comet.CometError as error:
                log.warning("begins again: %s", error)
                self._answer_all(error)
                await asyncio.sleep(0.2)

    async def _read(self) -> None:
        """Notes the keys of all lines that are committed. Nobody else can add to them any more."""
        async with comet.Consumer(self._address, TOPIC, start="earliest") as consumer:
            ends = await consumer.end_offsets()
            while any(consumer.positions().get(partition, 0) < end for partition, end in ends.items()):
                batch = await consumer.get_batch(timeout_s=0.1)
                if batch is not None:
                    for headers in batch.headers:
                        self._note(dict(headers)[KEY_HEADER].decode())

    def _note(self, key: str) -> None:
        self._written.add(key)
        waiting = self._waiting.pop(key, None)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result(None)

    async def _write_some(self, producer: comet.TransactionalProducer) -> None:
        while not self._waiting:
            self._more.clear()
            await self._more.wait()
        some = list(self._waiting.values())[:LINES_PER_TRANSACTION]
        async with producer.transaction() as tx:
            for one in some:
                await tx.send(TOPIC, one.line.text, key=one.line.writer, headers={KEY_HEADER: one.key})
        for one in some:
            self._note(one.key)

    def _answer_all(self, error: comet.CometError) -> None:
        """The clients are to ask again."""
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.answer.done():
                one.answer.set_exception(error)
                one.answer.exception()


def create_app(address: str) -> FastAPI:
    writers: list[Writer] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await topics.make(address, TOPIC)
        writers.append(Writer(address))
        running = asyncio.create_task(writers[0].run())
        yield
        running.cancel()
        await asyncio.wait([running])

    app = FastAPI(lifespan=lifespan)

    @app.post("/lines")
    async def post(line: Line, idempotency_key: Annotated[str, Header(min_length=1, max_length=200)]) -> dict[str, str]:
        try:
            async with asyncio.timeout(30):
                await writers[0].write(idempotency_key, line)
        except (comet.CometError, TimeoutError) as error:
            raise HTTPException(503, f"send it again under the same key: {error}") from None
        return {"key": idempotency_key}

    return app


if __name__ == "__main__":
    broker, port = (*sys.argv[1:], *("localhost:9092", "8000")[len(sys.argv) - 1 :])
    uvicorn.run(create_app(broker), host="127.0.0.1", port=int(port), log_level="warning")
