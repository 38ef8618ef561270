"""Who coordinates what, in a cluster whose brokers come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from comet.errors import CometError, CoordinatorLoading, InvalidArgument, NotCoordinator, StoreDamaged
from comet.v1 import groups_pb2 as pb
from comet_broker.coordination.journal import slot_prefix
from comet_broker.coordination.slot import Slot
from comet_broker.core import slots
from comet_broker.metadata.store import Put, RangeResult
from tests.integration.local_cluster import LocalCluster, until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        yield one


async def find(cluster: LocalCluster, name: str, *, on: int | None = None) -> int:
    found = await cluster.call("comet.v1.Comet/FindCoordinator", pb.FindCoordinatorRequest(name=name), on=on)
    assert isinstance(found, pb.FindCoordinatorResponse)
    assert found.slot == slots.slot_of(name)
    return found.broker


async def slot_of(cluster: LocalCluster, name: str) -> Slot:
    """The slot at its coordinator, once that is ready."""
    ready: list[Slot] = []

    def look() -> bool:
        for broker in cluster.brokers.values():
            try:
                ready.append(broker.coordinator.of(name))
            except CometError:
                continue
            return True
        return False

    await until(look, "a coordinator is ready")
    return ready[0]


async def test_every_broker_names_the_same_coordinator(cluster: LocalCluster) -> None:
    for number in range(20):
        answers = {await find(cluster, f"group-{number}", on=broker) for broker in cluster.brokers}
        assert len(answers) == 1


async def test_only_the_coordinator_answers_for_a_slot(cluster: LocalCluster) -> None:
    owner = await find(cluster, "g")
    with pytest.raises(CoordinatorLoading):
        cluster.brokers[owner].coordinator.of("g")
    await slot_of(cluster, "g")
    for number, broker in cluster.brokers.items():
        if number != owner:
            with pytest.raises(NotCoordinator) as refused:
                broker.coordinator.of("g")
            assert refused.value.details["leader"] == str(owner)
            assert refused.value.details["host"] == f"broker-{owner}"


class EmptyOnce:
    """A store that seems to hold nothing below a prefix, the first time it is asked: as one that was just exchanged."""

    def __init__(self, inner: Any, prefix: str) -> None:
        self.asked = 0
        self._inner = inner
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def range(self, prefix: str) -> RangeResult:
        found: RangeResult = await self._inner.range(prefix)
        self.asked += prefix == self._prefix
        return RangeResult((), found.revision) if prefix == self._prefix and self.asked == 1 else found


async def test_a_slot_is_not_loaded_from_a_store_that_does_not_have_its_claim(cluster: LocalCluster) -> None:
    """It would be: nothing is committed."""
    broker = cluster.brokers[await find(cluster, "g")]
    store = EmptyOnce(broker.guard, slot_prefix(slots.slot_of("g")))
    broker.coordinator._store = store  # type: ignore[assignment]
    await slot_of(cluster, "g")
    assert store.asked == 2


async def test_what_was_written_is_there_for_the_next_coordinator(cluster: LocalCluster) -> None:
    owner = await find(cluster, "g")
    slot = await slot_of(cluster, "g")
    await slot.claim.journal.written(Put(slot.claim.prefix + "elsewhere", b"kept"))
    await cluster.stop(owner)
    successor = await slot_of(cluster, "g")
    assert successor.number == slot.number
    assert successor.epoch == slot.epoch + 1
    assert slot.closed is not None
    assert await find(cluster, "g") != owner
    kept = await cluster.brokers[await find(cluster, "g")].guard.get(slot.claim.prefix + "elsewhere")
    assert kept is not None and kept.value == b"kept"


@pytest.mark.parametrize("key", ["groups/spoilt", "offsets/spoilt/00"])
async def test_a_group_that_cannot_be_read_keeps_no_other_from_being_there(cluster: LocalCluster, key: str) -> None:
    owner = await find(cluster, "g")
    slot = await slot_of(cluster, "g")
    await slot.claim.journal.written(Put(slot.claim.prefix + key, b"{}"))
    await cluster.stop(owner)
    successor = await slot_of(cluster, "g")
    assert successor.groups.find("g") is None
    with pytest.raises(StoreDamaged):
        successor.groups.find("spoilt")


async def test_a_broker_that_comes_back_takes_its_slots_again(cluster: LocalCluster) -> None:
    owner = await find(cluster, "g")
    await slot_of(cluster, "g")
    await cluster.stop(owner)
    successor = await slot_of(cluster, "g")
    await cluster.start(owner)
    await until(lambda: successor.closed is not None, "the slot goes back")
    again = await slot_of(cluster, "g")
    assert again.epoch == successor.epoch + 1
    assert await find(cluster, "g") == owner
    with pytest.raises(NotCoordinator):
        await successor.claim.journal.written(Put(successor.claim.prefix + "x", b""))


async def test_a_coordinator_that_has_not_heard_cannot_write(cluster: LocalCluster) -> None:
    owner = await find(cluster, "g")
    slot = await slot_of(cluster, "g")
    broker = cluster.brokers[owner]
    broker.view.state.coordinators.clear()  # it sees nothing of what happens
    for other in cluster.brokers.values():
        if other is not broker:
            other.view.state.brokers.pop(owner)
            other.coordinator._claim_chosen(other.view.state.coordinators)
    await until(lambda: any(one.coordinator._slots for one in cluster.brokers.values() if one is not broker), "claimed")
    with pytest.raises(NotCoordinator):
        await slot.claim.journal.written(Put(slot.claim.prefix + "x", b"zombie"))
    assert slot.closed is not None


async def test_a_name_that_is_none_is_refused(cluster: LocalCluster) -> None:
    for name in ("", "a/b", "x" * 250, "-x"):
        with pytest.raises(InvalidArgument, match="not a valid group name"):
            await find(cluster, name)
