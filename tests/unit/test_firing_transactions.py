"""The transactions in which schedules fire, against a coordinator and topics that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from comet.errors import ProducerFenced, TransactionAborted, Unavailable
from comet.v1 import groups_pb2 as groups
from comet.v1 import records_pb2 as pb
from comet_broker.schedules import transaction
from comet_broker.schedules.transaction import FiringTransactions, published


class Calls:
    """A coordinator that gives these answers to requests for an end."""

    def __init__(self, ends: Sequence[Any] = ()) -> None:
        self.opened = 0
        self.ends: list[groups.EndTransaction] = []
        self._answers = list(ends)

    async def open(self, opening: groups.OpenTransactions) -> groups.OpenedTransactions:
        assert opening.transactional_id == "__schedules-1"
        self.opened += 1
        return groups.OpenedTransactions(producer_id=7, epoch=10 * self.opened)

    async def end(self, ending: groups.EndTransaction) -> groups.EndedTransaction:
        self.ends.append(ending)
        answer = self._answers.pop(0) if self._answers else None
        if answer is not None:
            raise answer
        return groups.EndedTransaction(next_epoch=ending.epoch + 1)


async def nothing(_: pb.PublishRequest) -> pb.PublishResponse:
    return pb.PublishResponse()


def made(calls: Calls, publish: transaction.Publish = nothing) -> FiringTransactions:
    return FiringTransactions("__schedules-1", calls, publish)  # type: ignore[arg-type]


async def test_one_transaction_follows_the_other_without_opening_again() -> None:
    calls = Calls()
    one = made(calls)
    for _ in range(3):
        await one.begin()
        await one.end(commit=True)
    assert calls.opened == 1
    assert [ending.epoch for ending in calls.ends] == [10, 11, 12]


async def test_records_belong_to_the_transaction() -> None:
    seen: list[pb.PublishRequest] = []

    async def publish(request: pb.PublishRequest) -> pb.PublishResponse:
        seen.append(request)
        return pb.PublishResponse()

    one = made(Calls(), publish)
    await one.begin()
    await one.publish(pb.PublishRequest(topic="t"))
    (request,) = seen
    assert (request.transactional, request.producer_id, request.producer_epoch, request.sequence) == (True, 7, 10, 0)


async def test_an_end_is_asked_for_until_there_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "PAUSE_S", 0.0)
    calls = Calls([Unavailable("away"), Unavailable("away")])
    one = made(calls)
    await one.begin()
    await one.end(commit=True)
    assert [(ending.epoch, ending.commit) for ending in calls.ends] == [(10, True)] * 3


@pytest.mark.parametrize("error", [TransactionAborted("too late"), ProducerFenced("another leads")])
async def test_a_refused_end_is_an_answer_and_the_next_one_is_opened_again(error: Exception) -> None:
    calls = Calls([error])
    one = made(calls)
    await one.begin()
    with pytest.raises(type(error)):
        await one.end(commit=True)
    await one.begin()
    assert calls.opened == 2


async def test_an_abort_without_an_answer_is_left_to_the_next_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "PAUSE_S", 0.0)
    monkeypatch.setattr(transaction, "PAUSE_S_MAX", 0.01)
    calls = Calls([Unavailable("away")] * 100_000)
    one = made(calls)
    await one.begin()
    await one.abort()
    assert calls.ends
    assert not calls.ends[0].commit
    await one.begin()
    assert calls.opened == 2


async def test_a_topic_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "PUBLISH_S_MAX", 0.01)
    given_up = asyncio.Event()

    async def silent(_: pb.PublishRequest) -> pb.PublishResponse:
        try:
            await asyncio.Event().wait()
            raise AssertionError
        finally:
            given_up.set()

    with pytest.raises(Unavailable, match="topic t did not take its records"):
        await published(silent, pb.PublishRequest(topic="t"))
    assert given_up.is_set()
