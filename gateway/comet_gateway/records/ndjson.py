"""The streamed answer to NDJSON records: one line for each, in order, while more arrive.

    body ─► runs of whole lines ─► written ─► under way (bounded) ─► awaited in order ─► lines of the answer

Backpressure works both ways: with too much under way no more is read, and while the answer is not read no more is
awaited. A malformed line is answered by a problem with its number, and the rest continues. A client that sends all
before it reads gets stuck only behind `answer_bytes_max` of answers, some 170,000 records, and is disconnected after
`idle_s` without progress. A draining gateway answers what it has read, says so in a last line, and ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, Literal, Self

from starlette.requests import ClientDisconnect
from starlette.types import Send

import comet
from comet.errors import CometError
from comet_gateway.brokers.catalog import Catalog
from comet_gateway.config import Limits
from comet_gateway.http.problems import Problem
from comet_gateway.http.request_body import NDJSON, BodyLines, Line
from comet_gateway.metrics import Metrics
from comet_gateway.records.write import WriteResult, write
from comet_gateway.schemas.records import Columns, decode_line, decode_lines

ANSWER_BYTES: Final = 48  # of the answer for one record
TURN_LINES: Final = 100  # that are parsed one by one before other tasks get a turn

_HEADERS: Final = [
    (b"content-type", NDJSON.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class LinesAnswer:
    """The answer to one request. Called to send it, after `begun`."""

    def __init__(
        self,
        lines: AsyncGenerator[BodyLines | Line],
        prepare: Callable[[Columns], Awaitable[None]],
        producer: comet.Producer,
        catalog: Catalog,
        topic: str,
        limits: Limits,
        timeout_s: float,
        metrics: Metrics,
        draining: asyncio.Event,
    ) -> None:
        self._lines = lines
        self._prepare = prepare  # called before records are written; raises the Problem of a user that may not
        self._producer = producer
        self._catalog = catalog
        self._topic = topic
        self._limits = limits
        self._timeout_s = timeout_s
        self._metrics = metrics
        self._draining = draining
        self._first: BodyLines | Line | None = None
        self._waiting: deque[tuple[WriteResult | str, float]] = deque()  # with its deadline
        self._unanswered = 0  # approximate bytes
        self._ended = False  # the whole body was read
        self._more = asyncio.Event()
        self._room = asyncio.Event()

    async def begun(self) -> Self:
        """Waits for the first result, so that an error of the whole request can still set the status."""
        await self._catalog.topic(self._topic)
        self._first = await anext(self._lines, None)
        return self

    async def __call__(self, send: Send) -> None:
        reading = asyncio.create_task(self._read(), name="gateway: lines of records")
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await self._answer(send)
            await reading  # its error, a disconnect included, ends the answer early
            await send({"type": "http.response.body", "body": b""})
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            for one, _ in self._waiting:
                if isinstance(one, WriteResult):
                    one.abandon()
            await self._lines.aclose()

    # ---- in

    async def _read(self) -> None:
        stopping = asyncio.create_task(self._draining.wait(), name="gateway: until it stops")
        try:
            found = self._first
            while found is not None:
                await self._take(found)
                found = await self._next(stopping)
        except Problem as problem:  # with the whole body: the rest cannot be split into lines
            self._put(_line(problem))
        finally:
            stopping.cancel()
            self._ended = True
            self._more.set()

    async def _next(self, stopping: asyncio.Task[Literal[True]]) -> BodyLines | Line | None:
        coming = asyncio.ensure_future(anext(self._lines, None))
        try:
            await asyncio.wait([coming, stopping], return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                raise Problem("DRAINING", "the gateway is about to stop: records without an answer were not written")
            return await coming
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

    async def _until_room(self) -> None:
        while self._unanswered > self._limits.answer_bytes_max:
            self._room.clear()
            await self._room.wait()

    async def _take(self, found: BodyLines | Line) -> None:
        if isinstance(found, Line):
            detail = f"a line of more than {self._limits.line_bytes_max} bytes"
            self._put(_line(Problem("BODY_TOO_LARGE", detail, more={"line": found.number})))
            await self._until_room()
            return
        self._metrics.bytes_in += len(found.data)
        count = found.data.count(b"\n") + (not found.data.endswith(b"\n"))
        columns = decode_lines(found.data, count)
        if columns is not None:
            await self._write(columns)
            await self._until_room()
            return
        for turn, (number, line) in enumerate(found.split(), 1):
            try:
                columns = decode_line(line)
            except Problem as problem:
                problem.more["line"] = number
                self._put(_line(problem))
            else:
                await self._write(columns)
            await self._until_room()
            if turn % TURN_LINES == 0:
                await asyncio.sleep(0)

    async def _write(self, columns: Columns) -> None:
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        self._metrics.records_in += len(columns)
        try:
            await self._prepare(columns)
            written = await write(self._producer, self._catalog, self._topic, columns, deadline)
        except (CometError, Problem) as error:
            self._catalog.forget(self._topic)
            written = WriteResult(len(columns))
            written.fail(range(len(columns)), error if isinstance(error, Problem) else Problem.of(error))
        self._put(written, deadline)

    def _put(self, one: WriteResult | str, deadline: float = 0) -> None:
        self._waiting.append((one, deadline))
        self._unanswered += _bytes(one)
        self._more.set()

    # ---- out

    async def _answer(self, send: Send) -> None:
        while self._waiting or not self._ended:
            if not self._waiting:
                self._more.clear()
                await self._more.wait()
                continue
            one, deadline = self._waiting[0]
            if isinstance(one, WriteResult):
                await one.wait(deadline)
            self._waiting.popleft()
            await self._send(send, one)

    async def _send(self, send: Send, one: WriteResult | str) -> None:
        texts = [one] if isinstance(one, str) else one.texts
        size = _bytes(one)
        # All that is complete by now is sent together.
        while self._waiting and isinstance(text := self._waiting[0][0], str) and len(texts) < TURN_LINES:
            self._waiting.popleft()
            texts = [*texts, text]
            size += _bytes(text)
        body = "\n".join([*texts, ""]).encode()
        try:
            async with asyncio.timeout(self._limits.idle_s):
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError:  # the client does not read
            raise ClientDisconnect from None
        self._unanswered -= size
        self._room.set()


def _bytes(one: WriteResult | str) -> int:
    """Approximate bytes of its answer."""
    return len(one) if isinstance(one, str) else ANSWER_BYTES * one.count


def _line(problem: Problem) -> str:
    return f'{{"problem":{problem.body().decode()}}}'
