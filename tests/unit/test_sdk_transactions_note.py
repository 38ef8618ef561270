"""The note of a producer is that of its last commit that counts, and nothing else. On virtual time."""

# ruff: noqa: PT012 - what is raised comes out of the whole block of a transaction

from __future__ import annotations

import pytest

from comet.errors import InvalidArgument, Timeout, TransactionAborted, TransactionNotOpen
from tests.unit.sdk_fake import Fate
from tests.unit.sdk_fake_transactions import TransactionBroker
from tests.unit.test_sdk_transactions import producer, scenario


@scenario()
async def test_whoever_opens_the_id_finds_the_note_of_the_last_commit(broker: TransactionBroker) -> None:
    async with producer(broker) as p:
        assert p.note == b""
        for number in (b"1", b"2"):
            async with p.transaction() as tx:
                await tx.send("quotes", number)
                tx.note(b"not this one")
                tx.note(number)
            assert p.note == number
        async with p.transaction() as tx:
            await tx.send("quotes", b"without a note")
        assert p.note == b"2"
    async with producer(broker) as again, producer(broker, "another") as another:
        assert (again.note, another.note) == (b"2", b"")


@scenario()
async def test_a_note_alone_is_committed_and_one_taken_back_is_not(broker: TransactionBroker) -> None:
    async with producer(broker) as p:
        async with p.transaction() as tx:
            tx.note(b"nothing to write")
        assert (tx.state, p.note, len(broker.endings)) == ("committed", b"nothing to write", 1)
        async with p.transaction() as tx:
            tx.note(b"changed my mind")
            tx.note(b"")
        assert (tx.state, p.note, len(broker.endings)) == ("committed", b"nothing to write", 1)


@scenario()
async def test_the_note_of_what_was_aborted_is_forgotten(broker: TransactionBroker) -> None:
    async with producer(broker) as p:
        async with p.transaction() as tx:
            tx.note(b"1")
        with pytest.raises(ZeroDivisionError):
            async with p.transaction() as tx:
                await tx.send("quotes", b"2")
                tx.note(b"2")
                raise ZeroDivisionError
        with pytest.raises(TransactionAborted):
            async with p.transaction() as tx:
                await (await tx.send("quotes", b"3"))
                tx.note(b"3")
                broker.time_out("p")
        assert p.note == b"1"
        async with p.transaction() as tx:
            await tx.send("quotes", b"4")
        assert p.note == b"1"
    async with producer(broker) as again:
        assert again.note == b"1"


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("anew", [True, False])
def test_a_note_is_not_claimed_before_its_commit_is_known(written: bool, anew: bool) -> None:
    @scenario()
    async def check(broker: TransactionBroker) -> None:
        async with producer(broker, transaction_timeout_ms=2000) as p:
            async with p.transaction() as tx:
                tx.note(b"1")
            broker.ends = lambda ending: Fate.WRITTEN_UNANSWERED if written else Fate.LOST
            with pytest.raises(Timeout):
                async with p.transaction() as tx:
                    tx.note(b"2")
            assert (tx.state, p.note) == ("unknown", b"1")
            broker.ends = lambda ending: Fate.WRITTEN
            if anew:
                async with producer(broker) as again:
                    assert again.note == (b"2" if written else b"1")
            else:
                async with p.transaction() as tx:
                    assert p.note == b"2"

    check()


@scenario()
async def test_a_note_has_a_limit_and_belongs_into_the_block(broker: TransactionBroker) -> None:
    async with producer(broker) as p:
        async with p.transaction() as tx:
            with pytest.raises(InvalidArgument, match="at most 256 bytes, not 257"):
                tx.note(bytes(257))
            tx.note(bytes(256))
        assert p.note == bytes(256)
        with pytest.raises(TransactionNotOpen):
            tx.note(b"late")
