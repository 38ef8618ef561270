"""The journal of a slot: order, gathering, fencing, and outcomes that nobody told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest

from comet.errors import CometError, LimitExceeded, NotCoordinator, StoreDamaged
from comet_broker.coordination import journal as module
from comet_broker.coordination.journal import Head, Journal
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import (
    OPERATIONS_MAX,
    Compare,
    Delete,
    Put,
    StoreUnavailable,
    TransactionResult,
)
from comet_broker.system import SystemClock
from comet_broker.tasks import Tasks

HEAD = "coordination/7/head"


class Weather(MemoryStore):
    """A store that fails as it is told to: "before" and "after" a transaction takes effect."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.script: list[str] = []
        self.transactions: list[Sequence[Put | Delete]] = []

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        what = self.script.pop(0) if self.script else ""
        if what == "broken":
            raise ZeroDivisionError
        if what == "before":
            raise StoreUnavailable("it did not get there")
        await asyncio.sleep(0)  # others get a turn, so that writes gather
        result = await super().transact(compares, operations)
        self.transactions.append(operations)
        if what == "after":
            raise StoreUnavailable("the answer did not come back")
        return result


class World:
    def __init__(self, store: Weather, tasks: Tasks) -> None:
        self.store = store
        self.tasks = tasks
        self.lost: list[CometError] = []
        self.broken: list[Exception] = []

    async def claim(self, broker: int, epoch: int) -> Journal:
        item = await self.store.get(HEAD)
        floor = 0 if item is None else Head.decode(item.value).generation_floor
        head = Head(broker=broker, epoch=epoch, sequence=0, generation_floor=floor)
        compare = Compare(HEAD, 0 if item is None else item.mod_revision)
        result = await self.store.transact([compare], [Put(HEAD, head.encode())])
        assert result.applied
        return Journal(
            self.store,
            key=HEAD,
            head=head,
            revision=result.revision,
            tasks=self.tasks,
            lost=self.lost.append,
            halt=self.broken.append,
        )

    async def value(self, key: str) -> bytes | None:
        item = await self.store.get(key)
        return None if item is None else item.value


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    monkeypatch.setattr(module, "RETRY_S_MAX", 0.0)
    tasks = Tasks()
    one = World(Weather(), tasks)
    yield one
    await tasks.close()
    await one.store.close()
    assert not tasks.failed


async def test_what_gathers_while_one_transaction_is_under_way_goes_together(world: World) -> None:
    journal = await world.claim(1, 1)
    world.store.transactions.clear()
    await asyncio.gather(*(journal.written(Put(f"a/{number}", b"%d" % number)) for number in range(50)))
    assert await world.value("a/49") == b"49"
    assert len(world.store.transactions) == journal.transactions <= 2
    assert journal.writes == 50


async def test_the_last_of_several_values_of_a_key_counts_and_all_are_told(world: World) -> None:
    journal = await world.claim(1, 1)
    told: list[CometError | None] = []
    for number in range(5):
        journal.write([Put("k", b"%d" % number)], told.append)
    journal.write([Delete("gone")], told.append)
    await journal.written(Put("end", b""))
    assert told == [None] * 6
    assert await world.value("k") == b"4"


async def test_more_than_a_transaction_holds_goes_in_several_and_one_write_is_never_torn(world: World) -> None:
    journal = await world.claim(1, 1)
    world.store.transactions.clear()
    half = OPERATIONS_MAX // 2
    writes = [[Put(f"{number}/{at}", b"") for at in range(half)] for number in range(4)]
    await asyncio.gather(*(journal.written(*write) for write in writes))
    for operations in world.store.transactions:
        keys = {one.key for one in operations}
        assert len(operations) <= OPERATIONS_MAX
        for number in range(4):
            assert sum(key.startswith(f"{number}/") for key in keys) in {0, half}


async def test_a_write_that_no_transaction_can_hold_is_refused(world: World) -> None:
    journal = await world.claim(1, 1)
    with pytest.raises(LimitExceeded):
        await journal.written(*(Put(f"{at}", b"") for at in range(OPERATIONS_MAX)))
    with pytest.raises(LimitExceeded):
        await journal.written(Put("big", bytes(2 << 20)))
    await journal.written(Put("small", b"1"))
    assert await world.value("small") == b"1"


@pytest.mark.parametrize("script", [["before"], ["after"], ["before", "after"], ["after", "before"], ["before"] * 5])
async def test_an_outcome_that_is_not_known_is_looked_up(world: World, script: list[str]) -> None:
    journal = await world.claim(1, 1)
    world.store.script = list(script)
    await journal.written(Put("k", b"1"))
    await journal.written(Put("k", b"2"))
    assert await world.value("k") == b"2"
    item = await world.store.get(HEAD)
    assert item is not None
    assert Head.decode(item.value).sequence == journal.transactions
    assert not world.lost


async def test_whoever_was_replaced_writes_nothing_and_hears_of_it(world: World) -> None:
    old = await world.claim(1, 1)
    await old.written(Put("k", b"old"))
    new = await world.claim(2, 2)
    await new.written(Put("k", b"new"))
    with pytest.raises(NotCoordinator):
        await old.written(Put("k", b"zombie"))
    assert await world.value("k") == b"new"
    assert [type(error) for error in world.lost] == [NotCoordinator]
    told: list[CometError | None] = []
    old.write([Put("k", b"again")], told.append)
    assert isinstance(told[0], NotCoordinator)
    await new.written(Put("k", b"newer"))


@pytest.mark.parametrize("script", [[], ["before"], ["after"]])
async def test_a_broker_that_claims_again_is_another_coordinator(world: World, script: list[str]) -> None:
    """A write of its own earlier epoch must not come between its new ones."""
    old = await world.claim(1, 1)
    new = await world.claim(1, 2)
    world.store.script = list(script)
    with pytest.raises(NotCoordinator):
        await old.written(Put("k", b"old"))
    await new.written(Put("k", b"new"))
    assert await world.value("k") == b"new"


async def test_close_fails_who_waits_and_what_comes_later(world: World) -> None:
    journal = await world.claim(1, 1)
    told: list[CometError | None] = []
    journal.write([Put("a", b"")], told.append)
    await asyncio.sleep(0)  # under way
    journal.write([Put("b", b"")], told.append)
    error = NotCoordinator("moved")
    journal.close(error)
    journal.write([Put("c", b"")], told.append)
    await world.tasks.close()
    assert told == [error] * 3
    assert await world.value("c") is None


async def test_an_unexpected_error_is_told_to_all_who_wait_and_to_the_owner(world: World) -> None:
    journal = await world.claim(1, 1)
    world.store.script = ["", "broken"]
    told: list[CometError | None] = []
    journal.write([Put("a", b"")], told.append)
    await asyncio.sleep(0)  # under way
    journal.write([Put("b", b"")], told.append)
    with pytest.raises(NotCoordinator):
        await journal.written(Put("c", b""))
    assert [error and error.code for error in told] == [None, "NOT_COORDINATOR"]
    assert [type(error) for error in world.broken] == [ZeroDivisionError]
    assert not world.lost
    await world.tasks.close()


async def test_an_answer_that_raises_keeps_no_other_write_from_its_own(world: World) -> None:
    journal = await world.claim(1, 1)
    told: list[CometError | None] = []

    def raises(_: CometError | None) -> None:
        raise AssertionError("of one group")

    journal.write([Put("a", b"1")], raises)
    journal.write([Put("b", b"1")], told.append)
    await journal.written(Put("c", b"1"))
    assert told == [None]
    assert not world.broken and not world.lost
    assert len(world.tasks.failed) == 1
    world.tasks.failed.clear()
    await world.tasks.close()


async def test_a_store_that_has_gone_back_is_an_error_of_the_slot(world: World) -> None:
    journal = await world.claim(1, 1)
    for number in range(3):
        await journal.written(Put("a", b"%d" % number))
    item = await world.store.get(HEAD)
    assert item is not None
    old = Head(broker=1, epoch=1, sequence=1).encode()
    await world.store.transact([Compare(HEAD, item.mod_revision)], [Put(HEAD, old)])
    with pytest.raises(NotCoordinator):
        await journal.written(Put("a", b"lost?"))
    assert [type(error) for error in world.broken] == [StoreDamaged]
    await world.tasks.close()


@pytest.mark.parametrize("seed", range(30))
async def test_under_any_weather_every_write_that_is_confirmed_is_there_in_order(world: World, seed: int) -> None:
    random = Random(seed)
    journal = await world.claim(1, 1)
    world.store.script = [random.choice(["before", "after", "", ""]) for _ in range(60)]
    confirmed: dict[str, int] = {}

    async def writer(key: str) -> None:
        for number in range(20):
            await journal.written(Put(key, b"%d" % number))
            confirmed[key] = number
            item = await world.store.get(key)
            assert item is not None and int(item.value) >= number
            for _ in range(random.randrange(3)):
                await asyncio.sleep(0)

    await asyncio.gather(*(writer(f"k/{number}") for number in range(4)))
    for key, number in confirmed.items():
        item = await world.store.get(key)
        assert item is not None and int(item.value) == number


async def test_the_floor_of_generations_is_raised_with_the_deletion_and_never_falls(world: World) -> None:
    journal = await world.claim(1, 1)
    await journal.written(Put("groups/g", b"1"))
    world.store.transactions.clear()
    world.store.script = ["before", "after"]
    deleting = journal.written(Delete("groups/g"), generation=7)
    assert journal.generation_floor == 7, "a group that is made now begins above it"
    await deleting
    assert [one.key for one in world.store.transactions[0]] == [HEAD, "groups/g"]
    await asyncio.gather(
        journal.written(Delete("groups/h"), generation=9), journal.written(Delete("groups/i"), generation=3)
    )
    await journal.written(Put("k", b"1"))
    assert journal.generation_floor == 9
    successor = await world.claim(2, 2)
    assert successor.generation_floor == 9
    await successor.written(Put("k", b"2"))
    item = await world.store.get(HEAD)
    assert item is not None and Head.decode(item.value).generation_floor == 9


def test_a_head_without_a_floor_is_read() -> None:
    assert Head.decode(b'{"broker":1,"epoch":2,"sequence":3}').generation_floor == 0
