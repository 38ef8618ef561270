"""How long a producer of transactions waits for a coordinator: `timeout_ms`, however long a transaction may be open.

On virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from comet import limits
from comet.errors import CometError, Timeout, TransactionAborted, Unavailable
from tests.unit.sdk_fake import Fate
from tests.unit.sdk_fake_transactions import TransactionBroker
from tests.unit.test_sdk_producer import now
from tests.unit.test_sdk_transactions import producer, scenario

WAITING: Final[dict[str, Any]] = {"timeout_ms": 2_000, "transaction_timeout_ms": 600_000}


async def lasts(work: Callable[[], Awaitable[None]], error: type[CometError], match: str | None = None) -> float:
    """In seconds, until it fails."""
    began = now()
    with pytest.raises(error, match=match):
        await work()
    return now() - began


@scenario()
async def test_opening_where_nobody_is_names_whom_it_asked(broker: TransactionBroker) -> None:
    broker.up = False
    p = producer(broker, **WAITING)
    assert await lasts(p.start, Unavailable, "'p' was not reached at fake:9092 within 2000 ms") <= 2
    assert await lasts(p.reopen, Unavailable) <= 2
    broker.up = True
    await p.start()
    assert [opening.timeout_ms for opening in broker.openings] == [600_000], "that is for the broker to keep"
    await p.close()


@scenario()
async def test_a_commit_that_is_not_answered(broker: TransactionBroker) -> None:
    async with producer(broker, **WAITING) as p:
        tx = p.transaction()

        async def commit() -> None:
            async with tx:
                await tx.send("quotes", b"1")
                broker.ends = lambda ending: Fate.WRITTEN_UNANSWERED

        assert await lasts(commit, Timeout) <= 2.1
        assert tx.state == "unknown"
        broker.ends = lambda ending: Fate.WRITTEN
        async with p.transaction():
            pass
    assert broker.committed() == [b"1"]


@scenario()
async def test_who_has_waited_for_answers_in_vain_says_once_that_it_aborts_and_goes(broker: TransactionBroker) -> None:
    """Whoever begins the next transaction says it again."""
    async with producer(broker, **WAITING) as p:
        tx = p.transaction()

        async def write() -> None:
            async with tx:
                await (await tx.send("quotes", b"1"))
                broker.frozen = True
                await tx.send("quotes", b"2")

        assert await lasts(write, TransactionAborted) <= 2.1 + limits.LAST_WORD_MS / 1000
        assert tx.state == "aborted"
        broker.frozen = False
        async with p.transaction() as tx:
            await tx.send("quotes", b"3")
    assert broker.committed() == [b"3"]
