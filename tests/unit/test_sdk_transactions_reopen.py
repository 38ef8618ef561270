"""One producer for many ids, one after the other: what counts of each is known when it is opened. On virtual time."""

from __future__ import annotations

import pytest

from comet.errors import InvalidArgument, ProducerFenced, Timeout
from tests.unit.sdk_fake import Fate
from tests.unit.sdk_fake_transactions import TransactionBroker
from tests.unit.test_sdk_transactions import producer, scenario


@scenario({"quotes": 1})
async def test_each_id_has_its_note_and_its_records(broker: TransactionBroker) -> None:
    async with producer(broker, "a") as p:
        for name in ("a", "b", "a", "c"):
            await p.reopen(name)
            async with p.transaction() as tx:
                await tx.send_many("quotes", [name.encode()], headers=[{"h": b"1"}], timestamps_us=[7])
                tx.note(p.note + name.encode())
        await p.reopen("a")
        assert (p.transactional_id, p.note) == ("a", b"aa")
        await p.reopen()
        assert (p.transactional_id, p.note) == ("a", b"aa")
    assert broker.committed() == [b"a", b"b", b"a", b"c"]


@scenario()
async def test_whoever_was_shut_out_can_come_back(broker: TransactionBroker) -> None:
    async with producer(broker) as p, producer(broker) as other:
        with pytest.raises(ProducerFenced):
            async with p.transaction() as tx:
                await tx.send("quotes", b"too late")
        await p.reopen()
        async with p.transaction() as tx:
            await tx.send("quotes", b"again")
        with pytest.raises(ProducerFenced):
            async with other.transaction() as tx:
                await tx.send("quotes", b"too late as well")


@scenario()
async def test_what_became_of_an_end_without_an_answer_is_found_out(broker: TransactionBroker) -> None:
    lost = True
    broker.ends = lambda ending: Fate.WRITTEN_UNANSWERED if lost else Fate.WRITTEN
    async with producer(broker, timeout_ms=1000) as p:
        with pytest.raises(Timeout):
            async with p.transaction() as tx:
                tx.note(b"written, without an answer")
        lost = False
        await p.reopen()
        assert p.note == b"written, without an answer"


@scenario()
async def test_it_is_for_between_transactions(broker: TransactionBroker) -> None:
    async with producer(broker) as p:
        async with p.transaction():
            with pytest.raises(InvalidArgument, match="is open"):
                await p.reopen("another")
        assert p.transactional_id == "p"
