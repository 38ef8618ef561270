"""What the controller decides, over random histories of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from comet_broker.core.cluster import DEFECTIVE, NO_BROKER, PartitionState
from comet_broker.core.controller import decide, draining
from comet_broker.core.placement import Load, choose_replicas
from comet_broker.metadata.store import Put
from tests.property.cluster_model import TP, Cluster, snapshot

BROKERS = 4
BROKER = st.integers(1, BROKERS)
ROUNDS_MAX = 4

CALM = ["append", "append", "commit", "sync", "catch up", "catch up", "follow", "grow", "hand over", "start", "look"]
TROUBLE = ["kill", "kill", "stop", "shrink", "drain", "move"]
DISASTER = ["lose power", "damage", "replace disk"]
CONTROL = ["control", "control", "control", "patient", "rebalance", "stale"]


def histories(*kinds: list[str]) -> st.SearchStrategy[list[tuple[str, int]]]:
    names = [name for kind in kinds for name in kind]
    return st.lists(st.tuples(st.sampled_from(names), BROKER), min_size=10, max_size=80)


SHAPES = st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])


ACTIONS: dict[str, Callable[[Cluster, int], None]] = {
    "append": lambda cluster, broker: cluster.append(),
    "commit": lambda cluster, broker: cluster.commit(),
    "sync": Cluster.sync,
    "catch up": Cluster.replicate,
    "follow": lambda cluster, broker: cluster.replicate(broker, 1),
    "grow": Cluster.grow,
    "shrink": Cluster.shrink,
    "hand over": lambda cluster, broker: cluster.hand_over(),
    "start": Cluster.start,
    "kill": Cluster.kill,
    "stop": Cluster.stop,
    "lose power": Cluster.lose_power,
    "damage": Cluster.damage,
    "replace disk": Cluster.replace_disk,
    "drain": Cluster.drain,
    "move": Cluster.move,
    "look": lambda cluster, broker: cluster.look(),
}


def step(cluster: Cluster, name: str, broker: int) -> None:
    if name in ACTIONS:
        ACTIONS[name](cluster, broker)
    else:
        control(cluster, name)


def control(cluster: Cluster, name: str) -> None:
    """One round of the controller, with all that must hold of it."""
    before = cluster.found
    changes = cluster.control(
        rebalance=name == "rebalance", last_resort=name not in {"patient", "stale"}, stale=name == "stale"
    )
    for change in changes:
        for operation in change.operations:
            assert isinstance(operation, Put) or operation.key.startswith(DEFECTIVE), "nothing goes without a tombstone"
    if name != "stale" and cluster.found != before:
        check_change(cluster, before.value, cluster.state)


def check_change(cluster: Cluster, before: PartitionState, after: PartitionState) -> None:
    view = cluster.view
    assert after.in_sync, "in_sync is never empty"
    same = (after.leader, after.in_sync.get(after.leader)) == (before.leader, before.in_sync.get(before.leader))
    assert after.epoch == before.epoch + (not same), "a new epoch for each change of leadership, and for nothing else"
    defective = {broker for broker, *where in view.defective if tuple(where) == TP}
    if after.leader == NO_BROKER:
        assert after.handover == NO_BROKER
        members = {**before.in_sync, **before.eligible}
        assert after.in_sync.keys() == before.in_sync.keys()
        for broker in members.keys() - defective:
            assert (
                broker not in view.brokers
                or not view.brokers[broker].value.clean
                or before.folder_replaced(broker, view.brokers[broker].value)
                or (members[broker] != view.broker_epoch(broker))
            ), "somebody could have led"
        return
    assert view.broker_epoch(after.leader) == after.in_sync[after.leader] != 0, (
        "the leader is alive, and in sync as it is"
    )
    assert after.leader in after.holders or not same or before.leader not in before.holders
    had_all = {*before.in_sync, *before.eligible}
    if after.leader not in had_all or before.folder_replaced(after.leader, view.brokers[after.leader].value):
        gone = all(
            broker in view.brokers and before.folder_replaced(broker, view.brokers[broker].value) for broker in had_all
        )
        assert gone or cluster.available, "somebody has all there is to have"
    assert after.leader not in defective or before.replicas == (after.leader,)
    for broker, broker_epoch in after.in_sync.items():
        assert broker_epoch == view.broker_epoch(broker), "only the living are in sync"
        assert broker in after.holders or broker == after.leader
    if len(after.in_sync) < cluster.min_insync:
        left = {**before.eligible, **before.in_sync}.keys() - after.in_sync.keys() - defective
        assert left & set(after.holders) == after.eligible.keys(), "those that left may come back to lead"
    else:
        assert not after.eligible
    if after.handover != NO_BROKER:
        assert after.handover in after.in_sync and after.handover not in defective | {after.leader}
    if after.replicas != before.replicas:
        assert after.replicas == before.target and not after.target
        assert after.in_sync.keys() >= set(after.replicas) and after.leader in after.replicas
        assert len(after.in_sync) >= min(cluster.min_insync, len(before.replicas)), "a move takes no safety away"


def settle(cluster: Cluster) -> None:
    """Once nothing else happens, there is nothing left to do within a few rounds."""
    for _ in range(ROUNDS_MAX):
        if not cluster.control(rebalance=True, last_resort=True):
            return
    raise AssertionError(f"the controller goes on for ever: {decide(cluster.view, rebalance=True)}")


@given(SHAPES, histories(CALM, CALM, TROUBLE, CONTROL))
def test_nothing_committed_is_lost_while_no_disk_loses_anything(
    shape: tuple[int, int], history: list[tuple[str, int]]
) -> None:
    """Brokers are killed, stopped, drained, fall behind, partitions move: every leader has all that was committed."""
    cluster = Cluster(BROKERS, *shape)
    for name, broker in history:
        step(cluster, name, broker)
        leader = cluster.leader
        if leader is not None:
            assert leader.log[: len(cluster.committed)] == cluster.committed, f"lost after {name} {broker}"
    settle(cluster)


@given(SHAPES, histories(CALM, CALM, TROUBLE, DISASTER, CONTROL))
def test_a_leader_that_lost_something_is_chosen_only_if_nobody_is_known_to_have_it(
    shape: tuple[int, int], history: list[tuple[str, int]]
) -> None:
    cluster = Cluster(BROKERS, *shape)
    for name, broker in history:
        before, view = cluster.state, snapshot(cluster.view)
        step(cluster, name, broker)
        leader = cluster.leader
        lost = leader is not None and leader.log[: len(cluster.committed)] != cluster.committed
        if lost and name in CONTROL:
            members = {**before.eligible, **before.in_sync}
            for other, broker_epoch in members.items():
                registered = view.brokers.get(other)
                known_whole = registered is not None and (
                    registered.create_revision == broker_epoch
                    or (
                        registered.value.clean
                        and broker_epoch != 0
                        and not before.folder_replaced(other, registered.value)
                    )
                )
                if known_whole and (other, *TP) not in view.defective:
                    has = cluster.machines[other].log[: len(cluster.committed)] == cluster.committed
                    assert not has, f"broker {other} has what the new leader lacks, after {name}"
        if lost:
            cluster.accept_loss()
    settle(cluster)


@given(SHAPES, histories(CALM, TROUBLE, DISASTER, ["replace disk", "start", "grow"], CONTROL), st.booleans())
def test_who_began_anew_leads_only_if_nobody_else_has_a_copy(
    shape: tuple[int, int], history: list[tuple[str, int]], available: bool
) -> None:
    """Whatever a new leader lacks is cut from all others, and of one with a new disk that is everything."""
    cluster = Cluster(BROKERS, *shape, available=available)
    for name, broker in history:
        epoch = cluster.state.epoch
        assert cluster.leader is None or not cluster.machines[cluster.state.leader].bare
        bare = {broker: machine.bare for broker, machine in cluster.machines.items()}
        step(cluster, name, broker)
        state = cluster.state
        if state.epoch > epoch and cluster.leader is not None and bare[state.leader]:
            assert all(bare[other] for other in state.replicas), f"broker {state.leader} leads after {name}"
        cluster.accept_loss()
    settle(cluster)


@given(SHAPES, histories(CALM, TROUBLE, DISASTER, CONTROL))
def test_an_available_topic_has_a_leader_while_anybody_lives(
    shape: tuple[int, int], history: list[tuple[str, int]]
) -> None:
    cluster = Cluster(BROKERS, *shape, available=True)
    for name, broker in history:
        if name in CONTROL:
            before = cluster.state.epoch
            cluster.control(rebalance=name == "rebalance", last_resort=False)
            assert cluster.state.epoch >= before
            fit = [
                b
                for b in cluster.state.holders
                if b in cluster.view.brokers and (b, *TP) not in cluster.view.defective and not cluster.machines[b].bare
            ]
            assert bool(fit) <= (cluster.leader is not None)
        else:
            step(cluster, name, broker)
    settle(cluster)


@given(SHAPES, histories(CALM, TROUBLE, DISASTER, CONTROL))
def test_when_all_is_well_again_all_is_as_it_should_be(shape: tuple[int, int], history: list[tuple[str, int]]) -> None:
    """Everyone comes back and follows: the preferred leader leads, all are in sync, and where they should be."""
    cluster = Cluster(BROKERS, *shape)
    for name, broker in history:
        step(cluster, name, broker)
    for broker in cluster.machines:
        cluster.start(broker)
        if broker in cluster.view.drains:
            cluster.drain(broker)
    for key in list(cluster.store.items):
        if key.startswith("cluster/defective/"):
            cluster.delete(key)
    wanted = cluster.state.target or cluster.state.replicas
    for _ in range(6):
        cluster.control(rebalance=True, last_resort=True)
        cluster.accept_loss()
        cluster.append()
        for broker in cluster.machines:
            cluster.replicate(broker)
            cluster.grow(broker)
        cluster.commit()
        cluster.hand_over()
    assert not cluster.control(rebalance=True, last_resort=True)
    state = cluster.state
    assert state.replicas == wanted
    assert state.leader == wanted[0]
    assert state.in_sync == {broker: cluster.machines[broker].broker_epoch for broker in wanted}
    assert (state.target, state.eligible, state.handover) == ((), {}, NO_BROKER)


@given(SHAPES, histories(CALM, TROUBLE, CONTROL))
def test_who_drains_leads_nothing_that_another_could(shape: tuple[int, int], history: list[tuple[str, int]]) -> None:
    cluster = Cluster(BROKERS, *shape)
    for name, broker in history:
        step(cluster, name, broker)
        if name in CONTROL and name != "stale" and draining(cluster.view, cluster.state.leader):
            state = cluster.state
            others = [b for b in state.in_sync if b in state.holders and not draining(cluster.view, b)]
            arrived = set(state.target) <= state.in_sync.keys() if state.target else False
            assert not others or state.handover in others or arrived


# ---- placement


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 5)), min_size=1, max_size=6),
)
def test_replicas_and_leaders_are_spread_evenly(brokers: int, topics: list[tuple[int, int]]) -> None:
    cluster = Load()
    racks = dict.fromkeys(range(1, brokers + 1), "")
    for partitions, replicas in topics:
        topic = Load()
        placed = choose_replicas(racks, partitions, replicas, topic, cluster)
        assert len(placed) == (partitions if replicas <= brokers else 0)
        assert all(len(set(members)) == replicas for members in placed)
        counted = Load.of(placed)
        assert (counted.replicas, counted.leaders) == (topic.replicas, topic.leaders)
        assert _spread(topic.replicas, brokers) <= 1
        assert _spread(topic.leaders, brokers) <= 1
    assert _spread(cluster.replicas, brokers) <= 1


@given(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=8), st.integers(1, 5), st.integers(1, 20))
def test_replicas_are_on_as_many_racks_as_there_are(names: list[str], replicas: int, partitions: int) -> None:
    racks = dict(enumerate(names, 1))
    room = Counter(names)
    for placed in choose_replicas(racks, partitions, replicas, Load(), Load()):
        used = Counter(racks[broker] for broker in placed)
        assert len(used) == min(replicas, len(room))
        fullest = max(used.values())
        assert all(used[rack] >= min(fullest - 1, room[rack]) for rack in room), (
            "a rack is used twice before the others"
        )


def _spread(counts: Counter[int], brokers: int) -> int:
    each = [counts[broker] for broker in range(1, brokers + 1)]
    return max(each) - min(each)
