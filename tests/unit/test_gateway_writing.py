"""What a WebSocket writes, while no broker answers."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

import comet
from comet.types import Receipt
from comet_gateway.brokers.backend import Backend
from comet_gateway.config import Limits
from comet_gateway.http.traffic import Traffic
from comet_gateway.http.wire import Gone
from comet_gateway.metrics import Metrics
from comet_gateway.push import frames
from comet_gateway.push.writing import Writing

LIMITS = Limits(in_flight_bytes_max=5_000, request_bytes_max=7_000)


class Producer:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.answers: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def publish_once(self, topic: str, records: list[comet.NewRecord], **_: Any) -> list[Receipt]:
        await asyncio.shield(self.answers)
        return [Receipt(topic, 0, 7, 0) for _ in records]


def frame(id_: str, size: int) -> tuple[frames.Produce, str]:
    asked = {"type": "produce", "id": id_, "topic": "t", "idempotency_key": "k", "record": {"text": "x" * size}}
    text = json.dumps(asked)
    found = frames.read(text)
    assert isinstance(found, frames.Produce)
    return found, text


def itself(producer: comet.Producer) -> comet.Producer:
    return producer


async def allowed(_: str) -> None:
    """The user may write every topic."""


async def test_what_is_not_answered_is_bounded_in_bytes_for_one_and_for_all() -> None:
    producer, traffic, told = Producer(), Traffic(LIMITS), asyncio.Queue[bytes]()
    backend = cast(Backend, SimpleNamespace(producers=dict.fromkeys(comet.Acks, producer)))
    one, other = (Writing(backend, told.put, LIMITS, Metrics(), traffic, allowed, itself) for _ in range(2))
    running = [asyncio.create_task(each.run()) for each in (one, other)]
    for number in range(5):
        await one.write(*frame(str(number), 1_000))
    held = traffic.body_bytes
    assert held > 5_000
    waits = asyncio.create_task(one.write(*frame("5", 10)))
    await other.write(*frame("a", 1_000))
    await asyncio.wait([waits], timeout=0)
    assert not waits.done(), "one connection has as much under way as it may"
    await other.write(*frame("b", 1_000))
    other_bytes = traffic.body_bytes - held
    assert 1_000 < other_bytes < 1_200, "there was no room for the second in all of the gateway"
    producer.answers.set_result(None)
    answers = [await told.get() for _ in range(8)]
    assert sum(b"OVERLOADED" in text for text in answers) == 1
    assert sum(b'"receipt"' in text for text in answers) == 7
    await waits
    assert traffic.body_bytes == 0
    for task in running:
        task.cancel()


async def test_what_is_not_answered_at_the_end_of_a_connection_is_let_go() -> None:
    traffic = Traffic(LIMITS)
    backend = cast(Backend, SimpleNamespace(producers=dict.fromkeys(comet.Acks, Producer())))
    writing = Writing(backend, asyncio.Queue[bytes]().put, LIMITS, Metrics(), traffic, allowed, itself)
    await writing.write(*frame("1", 1_000))
    running = asyncio.create_task(writing.run())
    running.cancel()  # before it had its first turn
    await asyncio.wait([running])
    writing.close()
    assert traffic.body_bytes == 0


async def test_the_reader_does_not_wait_for_receipts_that_a_client_who_went_cannot_be_told() -> None:
    """The first answer leaves too little room still, and there is no second."""

    async def gone(_: bytes) -> None:
        raise Gone

    producer, traffic = Producer(), Traffic(LIMITS)
    backend = cast(Backend, SimpleNamespace(producers=dict.fromkeys(comet.Acks, producer)))
    writing = Writing(backend, gone, LIMITS, Metrics(), traffic, allowed, itself)
    for number, size in enumerate([10, 3_000, 3_000]):
        await writing.write(*frame(str(number), size))
    running = asyncio.create_task(writing.run())
    reading = asyncio.create_task(writing.write(*frame("3", 10)))
    producer.answers.set_result(None)
    await asyncio.wait([running])
    assert isinstance(running.exception(), Gone)
    with pytest.raises(Gone):
        await asyncio.wait_for(reading, 30)
    writing.close()
    assert traffic.body_bytes == 0
