"""How the states of share groups are kept: gathered, fenced one by one, and looked up when nobody told the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from comet_broker.metadata.store import OPERATIONS_MAX, KeyValue, Put
from comet_broker.sharing import journal as module
from comet_broker.sharing.journal import ShareJournal
from comet_broker.system import SystemClock
from comet_broker.tasks import Tasks
from tests.unit.cluster_world import FaultyStore


class State:
    """Keeps a number; whoever writes puts its name before it."""

    def __init__(self, journal: ShareJournal, key: str, writer: bytes = b"me") -> None:
        self.key = key
        self.mod_revision = 0
        self.over = False
        self.number = 0
        self.kept_number = -1
        self.replaced_by: bytes | None = None
        self._journal = journal
        self._writer = writer
        self._taken = -1
        self._changed = asyncio.Event()

    def set(self, number: int) -> None:
        self.number = number
        self._journal.mark(self)

    async def wait(self, number: int) -> None:
        while self.kept_number < number:
            self._changed.clear()
            await self._changed.wait()

    def halt(self, error: Exception) -> None:
        self.over, self.replaced_by = True, repr(error).encode()

    def take(self) -> bytes:
        if self.number < 0:
            raise ZeroDivisionError("an unexpected error")
        self._taken = self.number
        return self._writer + b"%d" % self.number

    def stored(self, revision: int) -> None:
        self.mod_revision, self.kept_number = revision, self._taken
        self._changed.set()

    def judge(self, item: KeyValue | None) -> bool | None:
        if item is None or item.mod_revision == self.mod_revision:
            return False
        if not item.value.startswith(self._writer):
            return None
        self.mod_revision = item.mod_revision
        return item.value == self._writer + b"%d" % self._taken

    def replaced(self) -> None:
        self.over, self.replaced_by = True, b"somebody"
        self._changed.set()


@pytest.fixture
async def store() -> AsyncIterator[FaultyStore]:
    one = FaultyStore(SystemClock())
    yield one
    await one.close()


@pytest.fixture
async def journal(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ShareJournal]:
    for name in ("GATHER_S", "RETRY_S", "RETRY_S_MAX"):
        monkeypatch.setattr(module, name, 0.0)
    tasks = Tasks()
    yield ShareJournal(store, tasks)
    await tasks.close()
    assert not tasks.failed


async def test_many_states_share_a_transaction_and_changes_gather(store: FaultyStore, journal: ShareJournal) -> None:
    states = [State(journal, f"shares/{number}") for number in range(OPERATIONS_MAX)]
    for number in range(10):
        for state in states:
            state.set(number)
    await asyncio.gather(*(state.wait(9) for state in states))
    assert journal.transactions == 1
    assert {item.value for item in (await store.range("shares/")).items} == {b"me9"}


async def test_a_lost_answer_is_looked_up(store: FaultyStore, journal: ShareJournal) -> None:
    state = State(journal, "shares/a")
    store.lost_answers = 1
    state.set(1)
    await state.wait(1)
    assert journal.transactions == 0, "it was found there"
    state.set(2)
    await state.wait(2)
    assert (await store.range("shares/")).items[0].value == b"me2"


async def test_who_was_replaced_keeps_nothing_and_holds_up_no_other(store: FaultyStore, journal: ShareJournal) -> None:
    mine, lost = State(journal, "shares/a"), State(journal, "shares/b")
    await store.transact([], [Put("shares/b", b"other7")])
    mine.set(1)
    lost.set(1)
    await mine.wait(1)
    assert lost.replaced_by is not None
    assert [item.value for item in (await store.range("shares/")).items] == [b"me1", b"other7"]
    lost.set(2)
    mine.set(2)
    await mine.wait(2)
    assert (await store.range("shares/")).items[1].value == b"other7"


async def test_while_the_store_is_away_everything_waits(store: FaultyStore, journal: ShareJournal) -> None:
    state, gone = State(journal, "shares/a"), State(journal, "shares/b")
    store.down = True
    state.set(1)
    gone.set(1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert state.kept_number == -1
    gone.over = True
    store.down = False
    await state.wait(1)
    assert [item.key for item in (await store.range("shares/")).items] == ["shares/a"]


async def test_an_error_that_nobody_has_thought_of_ends_one_state(store: FaultyStore, journal: ShareJournal) -> None:
    broken, state = State(journal, "shares/a"), State(journal, "shares/b")
    broken.set(-1)
    state.set(1)
    await state.wait(1)
    assert broken.over
    huge = State(journal, "shares/c", writer=b"x" * 2_000_000)
    huge.set(1)
    state.set(2)
    for _ in range(50):
        await asyncio.sleep(0)
    assert huge.over, "more than a transaction takes"
    state.over = False
    state.set(3)
    await state.wait(3)
