"""Supervision: after an unexpected error about one partition, slot, group or transactional id the others go on, and it
stands still, is shown, and is taken up again by an operator."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from comet.errors import NotCoordinator, Unavailable
from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as pb
from comet.v1 import records_pb2 as records_pb
from comet.wire.protobuf import error_from_pb
from comet_broker.broker import Broker
from comet_broker.core.cluster import NO_BROKER
from comet_broker.core.slots import slot_of
from comet_broker.failures import Failure
from comet_broker.partitions.partition import Partition
from comet_broker.storage.data_folder import read_identity
from tests import waiting
from tests.integration.group_client import Member, Stream, settled
from tests.integration.local_cluster import LocalCluster, until
from tests.integration.stream_client import Client
from tests.integration.test_groups import code, fill, make_topic, ready
from tests.integration.test_isolation import Transactional

PARTITIONS = 6


def raiser(*_: object, **__: object) -> None:
    raise AssertionError("an unexpected error")


def bug(where: object, name: str) -> Callable[[], None]:
    """From now on the method raises; until what is returned is called."""
    setattr(where, name, raiser)
    return lambda: delattr(where, name)


def standing(broker: Broker) -> list[Failure]:
    return [one for one in broker.env.failures.all() if one.until is None]


async def resume(cluster: LocalCluster, broker: int) -> admin.ResumeResponse:
    answer = await cluster.call("comet.v1.Admin/Resume", admin.ResumeRequest(), on=broker)
    assert isinstance(answer, admin.ResumeResponse)
    for one in cluster.brokers.values():
        one.env.tasks.failed.clear()
    return answer


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as cluster:
        request = admin.CreateTopicRequest(name="t", partitions=PARTITIONS, replicas=3)
        await cluster.call("comet.v1.Admin/CreateTopic", request)
        await cluster.opened("t", partitions=PARTITIONS)
        for index in range(PARTITIONS):
            await led(cluster, index)
        yield cluster


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path, brokers=1) as cluster:
        await make_topic(cluster)
        yield cluster


async def in_sync(cluster: LocalCluster, index: int, count: int) -> None:
    await until(lambda: len(cluster.state("t", index).in_sync) == count, f"{count} of t/{index} are in sync")


async def led(cluster: LocalCluster, index: int) -> None:
    """While leadership moves there is none for a moment."""
    await until(lambda: cluster.leader("t", index) != NO_BROKER, f"t/{index} has a leader")


async def write(cluster: LocalCluster, index: int, value: bytes, acks: int = 2) -> records_pb.ServerFrame:
    await led(cluster, index)
    client = Client(cluster.brokers[cluster.leader("t", index)])
    handle = await client.attach("t", index)
    client.produce(handle, value, acks=acks)
    answer = await client.answer()
    client.session.close()
    return answer


async def acked(cluster: LocalCluster, index: int, value: bytes) -> None:
    """Writes as a client does: again after a refusal, such as while leadership moves."""
    while (answer := await write(cluster, index, value)).WhichOneof("frame") != "acks":
        error = error_from_pb(answer.error.error)
        assert error.retriable and not error.outcome_unknown, error
        await asyncio.sleep(0)


# ---- partitions


@pytest.mark.parametrize("where", ["progress", "shrunk", "adopt"])
async def test_a_leadership_that_fails_passes_on_and_no_stream_ends(three: LocalCluster, where: str) -> None:
    leader = three.leader("t", 0)
    broker = three.brokers[leader]
    mine = [index for index in range(1, PARTITIONS) if three.leader("t", index) == leader]
    streams = set(broker._replica_sessions._open)
    partition = three.replicas("t", 0)[leader]
    assert mine and streams and partition.leadership is not None
    bug(partition.leadership.replicas, where)
    if where == "progress":
        answer = await write(three, 0, b"may be lost")
        assert code(answer.error.error) == "LEADERSHIP_LOST"
    elif where == "adopt":
        others = sorted({1, 2, 3} - {leader}, key=lambda broker: broker == three.state("t", 0).replicas[1])
        request = admin.MovePartitionRequest(name="t", partition=0, replicas=[leader, *others])
        await three.call("comet.v1.Admin/MovePartition", request)
    await until(lambda: three.leader("t", 0) not in (NO_BROKER, leader), "another leads the one")
    assert all(three.leader("t", index) == leader for index in mine), "and this one the others"
    assert streams <= broker._replica_sessions._open, "on the streams that there were"
    (shown,) = standing(broker)
    assert (shown.kind, shown.name) == ("partition", "t/0") and "an unexpected error" in shown.reason
    for index in mine:
        await acked(three, index, b"x")
    await in_sync(three, 0, 2)  # it does not follow, either
    resumed = await resume(three, leader)
    assert (resumed.resumed, len(resumed.failed)) == (1, 0)
    await in_sync(three, 0, 3)
    assert not standing(broker) and not broker.statistics()["failed"]
    await acked(three, 0, b"y")


async def test_a_follower_that_fails_stands_still_and_the_link_goes_on(three: LocalCluster) -> None:
    leader = three.leader("t", 0)
    broker = three.brokers[leader % 3 + 1]
    partition = three.replicas("t", 0)[leader % 3 + 1]
    bug(partition.follower, "learn")
    await acked(three, 0, b"x")
    await in_sync(three, 0, 2)
    assert [one.name for one in standing(broker)] == ["t/0"]
    same = [index for index in range(1, PARTITIONS) if three.leader("t", index) == leader]
    for index in same:
        await acked(three, index, b"x")
        assert len(three.state("t", index).in_sync) == 3
    assert (await resume(three, leader % 3 + 1)).resumed == 1
    await in_sync(three, 0, 3)


async def test_what_the_store_says_of_one_is_heard_of_the_others(three: LocalCluster) -> None:
    broker = three.brokers[1]
    bug(three.replicas("t", 0)[1], "apply")
    other = next(number for number in (2, 3) if three.leader("t", 0) != number)
    await three.stop(other)
    for index in range(1, PARTITIONS):
        await until(lambda index=index: three.leader("t", index) not in (NO_BROKER, other), "others lead")  # type: ignore[misc]
    await three.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="u", replicas=2))
    await until(lambda: 1 in three.replicas("u"), "topics are followed as before")
    assert [one.name for one in standing(broker)] == ["t/0"]
    await three.start(other)
    assert (await resume(three, 1)).resumed == 1
    await in_sync(three, 0, 3)


async def test_a_partition_of_one_replica_stands_still_and_says_why(one: LocalCluster) -> None:
    broker = one.brokers[1]
    await write(one, 0, b"kept")
    partition = one.replicas("t", 0)[1]
    mend = bug(partition.log, "append")
    answer = await write(one, 0, b"fails")
    assert code(answer.error.error) == "LEADERSHIP_LOST"
    client = Client(broker)
    handle = await client.attach("t", 0)
    client.produce(handle, b"later")
    answer = await client.answer()
    assert code(answer.error.error) == "NOT_LEADER" and "an unexpected error" in answer.error.error.message
    other = await client.attach("t", 1)
    client.produce(other, b"x")
    assert (await client.answer()).WhichOneof("frame") == "acks"
    mend()
    assert (await resume(one, 1)).resumed == 1
    await until(lambda: one.leader("t", 0) == 1, "it leads again")
    await acked(one, 0, b"after")
    reader = Client(broker)
    await reader.subscribe(await reader.attach("t", 0))
    assert await reader.values(2) == [b"kept", b"after"]


async def test_a_log_that_lost_its_end_while_it_was_opened_anew_is_not_written_in_the_same_epoch(
    one: LocalCluster,
) -> None:
    broker = one.brokers[1]
    await write(one, 0, b"kept")
    partition = one.replicas("t", 0)[1]
    mend = bug(partition.log, "append")
    await write(one, 0, b"fails")
    mend()
    closing = broker.topics._close

    async def close(partition: Any, error: Any) -> None:
        await closing(partition, error)
        broker.topics._ends[partition.tp] += 5  # as if so many records had been there

    broker.topics._close = close  # type: ignore[method-assign]
    for _ in range(2):
        assert (await resume(one, 1)).resumed <= 1
        client = Client(broker)
        client.produce(await client.attach("t", 0), b"later")
        answer = await client.answer()
        assert code(answer.error.error) == "NOT_LEADER" and "restart the broker" in answer.error.error.message
        (failure,) = standing(broker)
        assert "ended at 6 when it was closed, and at 1 when it was opened" in failure.reason
    # The log that was opened shows no loss any more: the folder says so, until a start has reported it.
    found = read_identity(broker.folder.files)
    assert found is not None and found.lossy
    await broker.registration.note_loss_known(broker.view, broker.membership.broker_epoch)
    assert not broker.registration.record().clean
    await one.stop(1)
    assert not (await one.start(1)).folder.identity.clean


@pytest.mark.parametrize("what", ["close", "_write_clean_end"])
async def test_a_log_that_is_closed_without_a_proof_of_its_end_counts_as_short_before_it_is_opened_anew(
    one: LocalCluster, what: str
) -> None:
    """Its last sync fails, or its clean marker cannot be written: a loss may leave no trace."""
    broker = one.brokers[1]
    await write(one, 0, b"kept")
    partition = one.replicas("t", 0)[1]
    mend = bug(partition.log, "append")
    await write(one, 0, b"fails")
    mend()
    opening, lossy = broker.topics._open, []

    def fail() -> None:
        error = OSError(errno.EIO, "an error of the disk")
        raise partition.log.state.poison(error, "syncing") if what == "close" else error

    async def open_again(*args: Any) -> Partition:
        found = read_identity(broker.folder.files)
        assert found is not None
        lossy.append(found.lossy)
        return await opening(*args)

    setattr(partition.log.durability, what, fail)
    broker.topics._open = open_again  # type: ignore[method-assign, assignment]
    await resume(one, 1)
    assert lossy == [True]


async def test_a_batch_that_breaks_the_checks_ends_neither_the_stream_nor_the_leadership(one: LocalCluster) -> None:
    client = Client(one.brokers[1])
    handle = await client.attach("t", 0)
    partition = one.replicas("t", 0)[1]
    mend = bug(partition.log.producers, "check")
    client.produce(handle, b"x")
    assert code((await client.answer()).error.error) == "INTERNAL"
    mend()
    client.produce(handle, b"y")
    assert (await client.answer()).WhichOneof("frame") == "acks"
    assert not standing(one.brokers[1])
    one.brokers[1].env.tasks.failed.clear()


async def test_a_subscription_that_fails_ends_alone(one: LocalCluster) -> None:
    broker = one.brokers[1]
    client = Client(broker)
    handles = [await client.attach("t", index) for index in (0, 1)]
    await client.subscribe(handles[0], subscription=1)
    await client.subscribe(handles[1], subscription=2)
    mend = bug(one.replicas("t", 0)[1].readers.tail, "frame_from")
    await write(one, 0, b"unread")
    answer = await client.answer()
    assert (answer.error.subscription, code(answer.error.error)) == (1, "INTERNAL")
    await write(one, 1, b"read")
    assert await client.values(1) == [b"read"]
    mend()
    await client.subscribe(handles[0], subscription=1)
    assert await client.values(1) == [b"unread"]
    broker.env.tasks.failed.clear()


async def test_one_that_cannot_be_closed_keeps_no_other_from_being_closed(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, brokers=1) as cluster:
        await make_topic(cluster)
        broker = cluster.brokers[1]
        replicas = [cluster.replicas("t", index)[1] for index in range(4)]
        bug(replicas[0].readers.tail, "clear")
        bug(replicas[1].flushing, "sync")
        await broker.drain()
        await broker.close()
        assert all(partition.log.state.closed for partition in replicas[1:])
        broker.env.tasks.failed.clear()
        del cluster.network.brokers[cluster.address(1)]
        del cluster.brokers[1]


# ---- slots, groups


def names(same_slot: bool) -> tuple[str, str]:
    """Two groups of one slot, or of two."""
    first = "g"
    return first, next(
        name for number in range(10_000) if (slot_of(name := f"g-{number}") == slot_of(first)) == same_slot
    )


@pytest.mark.parametrize("where", ["tick", "plan", "news", "topics", "heard_from"])
async def test_a_group_that_fails_stands_still_and_no_other_of_its_slot(one: LocalCluster, where: str) -> None:
    broker = one.brokers[1]
    await fill(one)
    bad, good = names(same_slot=True)
    await ready(one, bad)
    failing, well = Member(broker, bad), Member(broker, good)
    await failing.join("t")
    await failing.owns(4)
    assert (await failing.commit("t", {0: 3})).WhichOneof("frame") == "committed"
    await well.join("t")
    await well.owns(4)
    group = broker.coordinator.of(bad).groups.find(bad)
    assert group is not None
    bug(group.machine, where)
    second = Member(broker, bad)
    request = second.stream.send(join=pb.Join(group=bad, topics=["t"]))
    if where == "topics":
        await one.call("comet.v1.Admin/AddPartitions", admin.AddPartitionsRequest(name="t", total=5))
    elif where == "heard_from":
        failing.stream.post(heartbeat=pb.Heartbeat(group=bad, member=failing.id))
    await failing.until(lambda: failing.evicted is not None)
    assert failing.evicted is not None and code(failing.evicted.error) == "NOT_COORDINATOR"
    async with asyncio.timeout(30):
        assert (await request).WhichOneof("frame") in ("error", "joined")
    answer = await failing.stream.ask(join=pb.Join(group=bad, topics=["t"], member=failing.id))
    assert code(answer.error.error) == "UNAVAILABLE"
    assert "an unexpected error" in answer.error.error.message and "resume" in answer.error.error.message
    (shown,) = standing(broker)
    assert (shown.kind, shown.name) == ("group", bad)
    # The other group of the slot
    third = Member(broker, good)
    await third.join("t")
    await settled([well, third], 5 if where == "topics" else 4)
    assert (await well.commit("t", {next(iter(well.owned))[1]: 0})).WhichOneof("frame") == "committed"
    assert broker.coordinator.slot(slot_of(bad)).epoch == 1, "the slot is held as before"
    # Taken up again: what was committed is there
    answered = await resume(one, 1)
    assert (answered.resumed, len(answered.failed)) == (1, 0)
    again = Member(broker, bad)
    await again.join("t", member=failing.id)
    again.hear()
    committed = await again.stream.ask(fetch_committed=pb.FetchCommitted(group=bad))
    assert committed.committed.topics[0].offsets[0].offset == 3
    for member in (failing, well, second, third, again):
        await member.close()


async def test_a_group_whose_record_cannot_be_loaded_keeps_no_other_from_being_loaded(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, brokers=1) as cluster:
        await make_topic(cluster)
        bad, good = names(same_slot=True)
        await ready(cluster, bad)
        for name in (bad, good):
            member = Member(cluster.brokers[1], name)
            await member.join("t")
            await member.owns(4)
            await member.close()
        slot = cluster.brokers[1].coordinator.of(bad)
        prefix = slot.claim.prefix
        items = (await cluster._store.range(prefix)).items
        record = next(item for item in items if item.key == f"{prefix}groups/{bad}")
        from comet_broker.coordination.group import LiveGroup

        real = LiveGroup.load

        def load(self: LiveGroup, found: Any) -> None:
            if self.name == bad:
                raise KeyError("a member")
            real(self, found)

        await cluster.stop(1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LiveGroup, "load", load)
            broker = await cluster.start(1)
            await ready(cluster, good)
            assert broker.coordinator.of(good).groups.find(good) is not None
            with pytest.raises(Unavailable, match="KeyError"):
                broker.coordinator.of(bad).groups.find(bad)
            answer = await resume(cluster, 1)
            assert [one.name for one in answer.failed] == [bad], "it fails again, and says so"
        assert (await resume(cluster, 1)).resumed == 1
        group = broker.coordinator.of(bad).groups.find(bad)
        assert group is not None and group.machine.members.keys() and record.value
        broker.env.tasks.failed.clear()


async def test_a_slot_that_fails_is_claimed_anew_and_no_other_is_given_up(one: LocalCluster) -> None:
    broker = one.brokers[1]
    bad, good = names(same_slot=False)
    members = {}
    for name in (bad, good):
        await ready(one, name)
        members[name] = Member(broker, name)
        await members[name].join("t")
        await members[name].owns(4)
    slot = broker.coordinator.of(bad)
    bug(slot.claim.journal, "_apply")
    await fill(one)
    answer = await members[bad].commit("t", {0: 1})
    assert code(answer.error.error) == "NOT_COORDINATOR", "it is to be repeated at whoever has the slot next"
    (shown,) = [found for found in broker.env.failures.all() if found.kind == "slot"]
    assert shown.name == str(slot.number)
    with pytest.raises(Unavailable, match="an unexpected error"):
        broker.coordinator.of(bad)
    assert (await members[good].commit("t", {0: 1})).WhichOneof("frame") == "committed"
    assert broker.coordinator.of(good).epoch == 1
    await resume(one, 1)
    await ready(one, bad)
    assert broker.coordinator.of(bad).epoch == 2
    again = Member(broker, bad)
    await again.join("t", member=members[bad].id)
    await again.owns(4)
    assert (await again.commit("t", {0: 1})).WhichOneof("frame") == "committed"
    for member in (*members.values(), again):
        await member.close()


async def test_a_slot_that_fails_is_claimed_anew_without_an_operator(one: LocalCluster) -> None:
    broker = one.brokers[1]
    await ready(one, "g")
    slot = broker.coordinator.of("g")
    bug(slot.groups.topics, "view_moved")
    await one.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="u"))
    await until(lambda: slot.closed is not None, "it is given up")

    def served() -> bool:
        try:
            return broker.coordinator.of("g").epoch == 2
        except (NotCoordinator, Unavailable):
            return False

    assert await waiting.until(served, within_s=30, every_s=0.05)
    broker.env.tasks.failed.clear()


# ---- transactions


async def test_a_transactional_id_that_fails_stands_still_and_no_other(one: LocalCluster) -> None:
    broker = one.brokers[1]
    first = Transactional(broker)
    handle = await first.attach()
    bad, good = names(same_slot=True)
    await first.open(bad)
    second = Transactional(broker)
    await second.attach()
    await second.open(good)
    transactions = broker.coordinator.of(bad).transactions
    real = transactions._markers.write

    async def write(producer_id: int, *rest: Any) -> None:
        if producer_id == first.producer_id:
            raise AssertionError("an unexpected error")
        await real(producer_id, *rest)

    setattr(transactions._markers, "write", write)  # noqa: B010 - mypy lets no method be assigned
    await first.write(handle, b"a")
    await second.write(handle, b"b")
    with pytest.raises(Exception, match="an unexpected error"):
        await first.end(commit=True)
    await second.end(commit=True)
    (shown,) = standing(broker)
    assert (shown.kind, shown.name) == ("transaction", bad)
    with pytest.raises(Exception, match="is stopped"):
        await first.open(bad)
    assert one.replicas("t", 0)[1].watermarks.isolation.first_offset(first.producer_id, first.epoch) == 0, (
        "open in the log"
    )
    delattr(transactions._markers, "write")
    assert (await resume(one, 1)).resumed == 1
    isolation = one.replicas("t", 0)[1].watermarks.isolation
    await until(lambda: isolation.first_offset(first.producer_id, first.epoch) < 0, "it is ended, as was decided")
    ended = isolation.ended(first.producer_id, first.epoch)
    assert ended is not None and ended.commit
    await first.open(bad)
    await first.write(handle, b"c")
    await first.end(commit=True)


# ---- streams, tasks


async def test_a_request_that_fails_ends_neither_the_stream_nor_its_other_requests(one: LocalCluster) -> None:
    broker = one.brokers[1]
    stream = Stream(broker)
    cluster_id = broker.view.cluster_id
    del broker.view.cluster_id
    answer = await stream.ask(hello=records_pb.Hello(client="c"))
    assert code(answer.error.error) == "INTERNAL"
    broker.view.cluster_id = cluster_id
    assert (await stream.ask(hello=records_pb.Hello(client="c"))).WhichOneof("frame") == "welcome"
    await stream.close()
    broker.env.tasks.failed.clear()


async def test_a_listener_of_the_registration_that_fails_keeps_no_other_from_hearing(one: LocalCluster) -> None:
    broker = one.brokers[1]
    heard: list[str] = []
    membership = broker.membership
    membership.on_lost[:0] = [raiser]
    membership.on_lost.append(lambda: heard.append("lost"))
    membership.on_registered.append(lambda: heard.append("registered"))
    membership.lease, lease = 0, membership.lease
    await broker.guard.revoke_lease(lease)
    await until(lambda: heard == ["lost", "registered"], "it registers again")
    broker.env.tasks.failed.clear()


async def test_a_task_that_dies_is_started_again_and_shown(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, brokers=1, retention_check_ms=20) as cluster:
        await make_topic(cluster)
        broker = cluster.brokers[1]
        mend = bug(broker.topics, "retry")
        await until(lambda: "housekeeping" in broker.env.tasks.failing, "it has died")
        assert "housekeeping" in {found.name for found in broker.env.failures.all() if found.kind == "task"}
        assert "an unexpected error" in broker.statistics()["failing_tasks"]["housekeeping"]
        mend()
        looked: list[int] = []
        log = cluster.replicas("t", 0)[1].log
        setattr(log.segments, "roll_by_age", partial(looked.append, 1))  # noqa: B010 - mypy lets no method be assigned
        await resume(cluster, 1)
        await until(lambda: bool(looked), "it is started again")
