"""What is told of the cluster, from what changes in its picture."""

from __future__ import annotations

import msgspec
import pytest

from comet.settings.topic import TopicConfig
from comet_broker import limits
from comet_broker.core.cluster import (
    CONTROLLER,
    DRAINS,
    BrokerRecord,
    ClusterState,
    ControllerRecord,
    PartitionState,
    Stored,
    TopicSpec,
    broker_key,
    partition_key,
    topic_key,
)
from comet_broker.core.event_log import COUNTING_US, SINGLY_MAX, EventLog
from comet_broker.metadata.store import KeyValue

SECOND = 1_000_000
IDS = {"quotes": "a" * 32, "trades": "b" * 32}


class World:
    """A picture that changes, and who writes down what is told of it."""

    def __init__(self, brokers: int = 3, partitions: int = 0) -> None:
        self.state = ClusterState()
        self.now_us = 1_000 * SECOND
        self._created: dict[str, int] = {}
        for broker in range(1, brokers + 1):
            self._apply(broker_key(broker), record(broker))
        if partitions:
            self._apply(topic_key("quotes"), spec("quotes", partitions))
        for index in range(partitions):
            self._apply(partition_key((IDS["quotes"], index)), led_by(1 + index % brokers))
        self.event_log = EventLog()
        self.event_log.begin(self.state)

    def _apply(self, key: str, value: Stored | bytes | None) -> None:
        self.state.revision += 1
        revision = self.state.revision
        data = value.encode() if isinstance(value, Stored) else value
        if data is None:
            self._created.pop(key, None)
            self.state.apply(key, None)
        else:
            self.state.apply(key, KeyValue(key, data, self._created.setdefault(key, revision), revision))

    def change(self, *changes: tuple[str, Stored | bytes | None]) -> None:
        """All at once, as the view does."""
        for key, value in changes:
            self._apply(key, value)
        self.event_log.note(self.state, [key for key, _ in changes], self.now_us)

    def lead(self, indexes: range, broker: int) -> None:
        self.change(*((partition_key((IDS["quotes"], index)), led_by(broker)) for index in indexes))

    def told(self, after_s: float = 1) -> list[str]:
        """What is new after a second."""
        since, self.now_us = self.now_us, self.now_us + round(after_s * SECOND)
        self.event_log.settle(self.now_us)
        return [event.text for event in self.event_log.events(since)]


def record(broker: int) -> BrokerRecord:
    return BrokerRecord("host", 9090 + broker, "1.0", f"folder-{broker}", 0)


def led_by(broker: int) -> PartitionState:
    return PartitionState(leader=broker, epoch=1, replicas=(1, 2, 3), in_sync={})


def spec(name: str, partitions: int = 2, **settings: object) -> TopicSpec:
    return TopicSpec(IDS[name], partitions, 0, msgspec.convert(settings, TopicConfig), replicas=3)


def test_how_it_was_at_first_is_no_news() -> None:
    world = World(partitions=10)
    assert world.told() == []
    world.event_log.note(world.state, [broker_key(1), topic_key("quotes"), CONTROLLER], world.now_us)
    assert world.told() == []


def test_brokers_come_and_go_and_start_again() -> None:
    world = World()
    world.change((broker_key(2), None))
    assert world.told() == ["broker 2 is gone"]
    world.change((broker_key(2), record(2)))
    assert world.told() == ["broker 2 is there, at host:9092, version 1.0"]
    world.change((broker_key(2), None), (broker_key(2), record(2)))
    assert world.told() == ["broker 2 has started again, at host:9092, version 1.0"]
    [event] = world.event_log.events(world.now_us - 1)
    assert (event.kind, event.broker, event.revision) == ("broker", 2, world.state.revision)


def test_topics_are_made_changed_and_deleted() -> None:
    world = World()
    world.change((topic_key("quotes"), spec("quotes", 1)), (partition_key((IDS["quotes"], 0)), led_by(1)))
    assert world.told() == ["topic quotes was created: 1 partition, 3 replicas each"]
    world.change((topic_key("quotes"), spec("quotes", 6, retention_ms=60_000, flush="always")))
    [told] = world.told()
    assert told.startswith("topic quotes was changed: 6 partitions, before 1; ")
    assert set(told.split(": ", 1)[1].split("; ")[1:]) == {
        "retention_ms 60000, before 604800000",
        "flush always, before interval",
    }
    world.change((topic_key("quotes"), spec("quotes", 6, retention_ms=60_000, flush="always")))
    assert world.told() == [], "nothing is different"
    world.change((topic_key("quotes"), None), (partition_key((IDS["quotes"], 0)), None))
    assert world.told() == ["topic quotes was deleted"]


def test_a_topic_that_is_made_again_is_another_one() -> None:
    world = World(partitions=2)
    other = msgspec.structs.replace(spec("quotes"), id="c" * 32)
    world.change((topic_key("quotes"), other))
    assert world.told() == ["topic quotes was deleted", "topic quotes was created: 2 partitions, 3 replicas each"]


def test_few_elections_are_told_one_by_one() -> None:
    world = World(partitions=6)
    world.change((broker_key(1), None))
    world.lead(range(0, 6, 3), 2)
    assert world.told() == [
        "broker 1 is gone",
        "broker 1 is gone: broker 2 leads quotes/0",
        "broker 1 is gone: broker 2 leads quotes/3",
    ]
    event = world.event_log.events()[-1]
    assert (event.kind, event.topic, event.partition, event.broker) == ("election", "quotes", 3, 2)
    world.lead(range(1), 3)
    assert world.told() == ["broker 3 leads quotes/0, before it was broker 2"]
    world.lead(range(1), 0)
    assert world.told() == ["quotes/0 has no leader"]
    assert world.event_log.events()[-1].kind == "offline"
    world.lead(range(1), 3)
    assert world.told() == ["broker 3 leads quotes/0, which had no leader"]


def test_a_drain_says_why_others_lead() -> None:
    world = World(partitions=3)
    world.change((f"{DRAINS}1", b""))
    world.lead(range(1), 2)
    assert world.told() == [
        "broker 1 is drained: it hands over all leadership",
        "broker 1 is drained: broker 2 leads quotes/0",
    ]
    world.change((f"{DRAINS}1", None))
    assert world.told() == ["broker 1 is no longer drained: it may lead again"]
    world.change((broker_key(3), msgspec.structs.replace(record(3), draining=True)))
    assert world.told() == ["broker 3 is about to stop"]


def test_many_elections_are_one_line_that_counts_on() -> None:
    world = World(brokers=2, partitions=5_000)
    world.change((broker_key(1), None))
    for first in range(0, 5_000, 1_000):
        world.lead(range(first, first + 1_000, 2), 2)
        news = world.told()
        assert news[-1] == f"broker 1 is gone: {500 * (first // 1_000 + 1):,} partitions have a new leader"
    assert [event.text for event in world.event_log.events()] == [
        "broker 1 is gone",
        "broker 1 is gone: 2,500 partitions have a new leader",
    ]
    world.told(after_s=COUNTING_US / SECOND + 1)
    world.change((broker_key(1), record(1)))
    world.lead(range(4), 1)
    world.change((broker_key(1), None))
    world.lead(range(4), 2)
    assert world.told()[-1] == "broker 1 is gone: 4 partitions have a new leader", "another time, another line"


def test_it_counts_no_further_when_the_clock_was_set_back() -> None:
    world = World(brokers=2, partitions=100)
    world.lead(range(0, 10, 2), 2)
    assert world.told() == ["5 partitions have moved from broker 1"]
    world.now_us -= 100 * SECOND
    world.lead(range(20, 30, 2), 2)
    world.told()
    assert [event.text for event in world.event_log.events()] == ["5 partitions have moved from broker 1"] * 2


@pytest.mark.parametrize("before", [0, 1])
def test_a_controller_is_told_once_there_is_another(before: int) -> None:
    world = World()
    if before:
        world.change((CONTROLLER, ControllerRecord(1, 1)))
        world.told()
    world.change((CONTROLLER, None))
    assert world.told() == []
    world.change((CONTROLLER, ControllerRecord(2, 1)))
    assert world.told() == ["broker 2 is the controller" + (", after broker 1" if before else "")]


def test_what_is_remembered_is_bounded() -> None:
    world = World()
    for _ in range(limits.EVENTS_MAX):
        world.change((broker_key(2), None))
        world.told()
        world.change((broker_key(2), record(2)))
        world.told()
    events = world.event_log.events()
    assert len(events) == limits.EVENTS_MAX
    assert events == sorted(events, key=lambda event: event.time_us)


def test_so_many_at_once_are_told_one_by_one() -> None:
    world = World(brokers=2, partitions=100)
    world.lead(range(0, 2 * SINGLY_MAX, 2), 2)
    assert len(world.told()) == SINGLY_MAX
    world.lead(range(20, 22 + 2 * SINGLY_MAX, 2), 2)
    assert len(world.told()) == 1
