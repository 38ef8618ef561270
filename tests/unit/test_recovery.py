"""What `comet cluster recover` plans from the folders and the store, and what it writes."""

from __future__ import annotations

from typing import Any

import pytest

from comet.errors import InvalidArgument
from comet.settings.topic import TopicConfig
from comet_broker.core.cluster import (
    ID,
    LINEAGE,
    BrokerRecord,
    ClusterState,
    CoordinatorRecord,
    Lineage,
    LineageEntry,
    PartitionState,
    TopicSpec,
    coordinator_key,
    partition_key,
    topic_key,
)
from comet_broker.core.controller import LOSSY, decide
from comet_broker.core.lineage import Floor, LineageFinding, judge, seen_in
from comet_broker.core.recovery import CopyInventory, Inventory, NamedSpec, batches, planned
from comet_broker.core.slots import SLOTS
from comet_broker.metadata.store import KeyValue, Put

TOPIC_ID = "0f" * 16
TP = (TOPIC_ID, 0)
SPEC = TopicSpec(TOPIC_ID, 1, 0, TopicConfig(min_insync=2), 3)


def copy(end: int, watermark: int, *epochs: tuple[int, int], **more: Any) -> CopyInventory:
    return CopyInventory(TOPIC_ID, 0, 0, end, watermark, epochs or ((1, 0),), **more)


def folder(
    broker: int, *copies: CopyInventory, revision: int = 500, reason: str = "went back", **more: Any
) -> Inventory:
    floor = more.pop("floor", Floor("c", "old", revision, epochs={f"{TOPIC_ID}/0": 3}))
    given = {"cluster_id": "c", "running": False, "topics": (NamedSpec("t", SPEC),), **more}
    return Inventory(broker=broker, folder=f"f{broker}", reason=reason, floor=floor, copies=copies, **given)


def items(state: PartitionState | None = None, *, cluster: str = "c", topic: bool = True) -> list[KeyValue]:
    found = []
    if cluster:
        found.append(KeyValue(ID, cluster.encode(), 2, 2))
    if topic:
        found.append(KeyValue(topic_key("t"), SPEC.encode(), 3, 3))
    if state is not None:
        found.append(KeyValue(partition_key(TP), state.encode(), 4, 40))
        entries = (LineageEntry(1, "first", 5), LineageEntry(2, "second"))
        found.append(KeyValue(LINEAGE, Lineage(entries).encode(), 5, 30))
    return found


STATE = PartitionState(1, 2, (1, 2, 3), {1: 7, 2: 8, 3: 9}, folders={1: "f1", 2: "f2", 3: "f3"})


def listed(found: list[KeyValue], revision: int = 100) -> ClusterState:
    return ClusterState.of(found, revision)


def test_the_copy_that_loses_least_is_chosen_before_the_one_with_the_highest_epoch() -> None:
    """A replica that led on a restored store alone has the highest epoch, and lacks what was acknowledged before."""
    whole, behind = copy(533, 530, (1, 0), (3, 100)), copy(533, 533, (1, 0), (3, 100))
    alone = copy(210, 205, (1, 0), (3, 100), (4, 201))
    plan = planned([folder(1, whole), folder(2, behind), folder(3, alone, reason="")], listed(items(STATE)))
    (one,) = plan.partitions
    assert one.chosen == 1 and one.loses == 0
    assert {choice.broker: choice.loses for choice in one.choices} == {1: 0, 2: 0, 3: 332}
    assert one.epoch == 5, "above every log's, the store's and the floors'"
    assert plan.answered == (1, 2, 3) and plan.missing == ()


def test_of_equal_copies_the_longer_one_is_chosen_then_one_that_the_store_names() -> None:
    longer = planned([folder(1, copy(10, 10)), folder(2, copy(12, 10))], listed(items(STATE)))
    assert longer.partitions[0].chosen == 2
    elsewhere = planned(
        [folder(4, copy(10, 10)), folder(5, copy(10, 10)), folder(3, copy(10, 10))], listed(items(STATE))
    )
    assert elsewhere.partitions[0].chosen == 3
    assert elsewhere.missing == (1, 2)
    damaged = planned([folder(1, copy(10, 10, damaged=True)), folder(2, copy(10, 10))], listed(items(STATE)))
    assert damaged.partitions[0].chosen == 2


def test_epochs_are_above_the_floor_of_a_folder_without_the_partition() -> None:
    high = Floor("c", "old", 500, epochs={f"{TOPIC_ID}/0": 17})
    plan = planned([folder(1, copy(10, 10)), folder(2, floor=high)], listed(items(STATE)))
    assert plan.partitions[0].epoch == 18


@pytest.mark.parametrize(
    ("inventories", "found", "why"),
    [
        ([folder(1), folder(2, cluster_id="d")], items(STATE), "different clusters"),
        ([folder(1)], items(STATE, cluster="d"), "belongs to cluster d"),
        ([folder(1, reason="")], items(STATE), "nothing to recover"),
    ],
)
def test_what_cannot_be_recovered_is_refused(inventories: list[Inventory], found: list[KeyValue], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        planned(inventories, listed(found))


def made(inventories: list[Inventory], found: list[KeyValue], revision: int = 100) -> list[KeyValue]:
    """What the store holds after the recovery."""
    state = listed(found, revision)
    plan = planned(inventories, state)
    heads = {slot: (f"coordination/{slot}/head", b"h") for slot in range(SLOTS)}
    store = {item.key: item for item in found}
    for batch in batches(plan, inventories, state, {}, heads, LineageEntry(1, "mark")):
        for compare in batch.compares:
            assert compare.mod_revision == (store[compare.key].mod_revision if compare.key in store else 0)
        assert len({put.key for put in batch.operations}) == len(batch.operations) <= 100
        revision += 1
        for put in batch.operations:
            store[put.key] = KeyValue(put.key, put.value, revision, revision)
    return list(store.values())


def test_after_a_recovery_folders_go_on_and_the_chosen_broker_leads_as_soon_as_it_is_there() -> None:
    inventories = [folder(1, copy(10, 10)), folder(2, copy(12, 10)), folder(3, copy(3, 3), reason="")]
    after = made(inventories, items(STATE))
    revision = max(item.mod_revision for item in after)
    for one in inventories:
        assert judge(one.floor, seen_in(after, revision)).finding in (LineageFinding.RECOVERED, LineageFinding.SAME)
    assert not judge(Floor("c", "other", 501), seen_in(after, revision)).sound, "it was not asked, and knows more"
    state = listed(after, revision)
    now = state.partitions[TP].value
    assert (now.leader, now.in_sync, now.eligible, now.loss_accepted) == (0, {2: LOSSY}, {}, now.epoch)
    assert now.epoch == 4
    for broker, leads in ((1, False), (3, False), (2, True)):
        record = BrokerRecord("h", 1, "v", f"f{broker}", 0)
        state.apply(f"cluster/brokers/{broker}", KeyValue(f"cluster/brokers/{broker}", record.encode(), 900, 900))
        written = [
            PartitionState.decode(operation.value)
            for change in decide(state, last_resort=True)
            for operation in change.operations
            if operation.key == partition_key(TP) and isinstance(operation, Put)
        ]
        assert any(new.leader == 2 and new.epoch == 5 for new in written) == leads
        assert not any(new.leader not in (0, 2) for new in written)


def test_an_emptied_store_gets_its_id_topics_and_partitions_back() -> None:
    after = made([folder(1, copy(10, 10)), folder(2, copy(12, 12))], [], revision=1)
    state = listed(after, max(item.mod_revision for item in after))
    assert state.cluster_id == "c"
    assert state.topics["t"].value == SPEC
    now = state.partitions[TP].value
    assert now.in_sync == {2: LOSSY} and set(now.replicas) == {1, 2} and now.epoch == 4
    assert state.lineage is not None and state.lineage.value.entries[-1].recovery == 1
    assert judge(Floor("c", "old", 500), seen_in(after, 9)).sound


def test_a_chosen_broker_that_is_no_replica_takes_the_place_of_one_that_has_nothing() -> None:
    after = made([folder(1, copy(10, 10)), folder(4, copy(12, 12))], items(STATE))
    assert listed(after).partitions[TP].value.replicas == (1, 2, 4)


def test_coordinators_get_epochs_above_all_that_revisions_allowed() -> None:
    found = items(STATE)
    found.append(KeyValue(coordinator_key(3), CoordinatorRecord(1, 9, 700).encode(), 10, 10))
    state = listed(made([folder(1, copy(10, 10))], found))
    assert state.coordinators[3].value.epoch == 701
    assert state.coordinators[4].value.epoch == 501
    assert all(state.broker_epoch(one.value.broker) != one.value.broker_epoch for one in state.coordinators.values())


def test_topics_of_which_only_records_are_left_are_reported() -> None:
    plan = planned([folder(1, copy(10, 10), topics=())], listed(items(topic=False)))
    assert plan.unknown == (TOPIC_ID,) and plan.partitions == ()


def test_the_digest_is_of_what_is_accepted() -> None:
    one = planned([folder(1, copy(10, 10))], listed(items(STATE), 100))
    assert one.digest == planned([folder(1, copy(10, 10))], listed(items(STATE), 200)).digest
    assert one.digest != planned([folder(1, copy(11, 10))], listed(items(STATE), 100)).digest


def test_a_partition_that_is_placed_after_a_recovery_gets_an_epoch_that_was_never_given() -> None:
    """The snapshot has the topic, and not its partition yet; nothing of that is in any folder any more."""
    state = listed(made([folder(1, topics=())], items()))
    for broker in (1, 2, 3):
        record = BrokerRecord("h", 1, "v", f"f{broker}", 0)
        state.apply(f"cluster/brokers/{broker}", KeyValue(f"cluster/brokers/{broker}", record.encode(), 900, 900))
    (change,) = decide(state, last_resort=True)
    (put,) = change.operations
    assert isinstance(put, Put) and PartitionState.decode(put.value).epoch == 501
