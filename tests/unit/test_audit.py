"""The audit log of a broker: its tables and bounds, and its topic on virtual time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from google.protobuf.message import Message

from comet.admin.acts import ACTS
from comet.errors import CometError, CredentialsRefused, Forbidden, InvalidArgument, TopicExists, TopicNotFound
from comet.types import AUDIT_TOPIC
from comet.v1 import admin_pb2 as admin
from comet.v1 import records_pb2 as pb
from comet_broker import limits
from comet_broker.access.client_access import ClientAccess, Need, set_caller
from comet_broker.access.control import AccessControl
from comet_broker.access.holder import CredentialHolder
from comet_broker.audit.acts import shown
from comet_broker.audit.event import MESSAGE_CHARS_MAX, OTHERS, TEXT_CHARS_MAX, AuditEvent, host_of
from comet_broker.audit.event_counts import REPORT_S, EventCounts
from comet_broker.audit.event_queue import EventQueue, QueuedEvent
from comet_broker.audit.first_uses import FirstUses
from comet_broker.audit.log import DAY_US, LOGGER, AuditLog
from comet_broker.audit.topic import BROKERS_WAIT_S, RETENTION_MS, RETRY_S_MAX
from comet_broker.broker import Broker
from comet_broker.config import BrokerConfig
from comet_broker.core.cluster import topic_key
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import Compare, Delete, Put, StoreUnavailable, TransactionResult
from comet_broker.rpc.listeners import check_listeners
from comet_broker.rpc.local_channel import LocalNetwork
from comet_broker.storage.memory import MemoryFiles
from comet_testing.simulation.clock import SimClock
from comet_testing.simulation.loop import SimLoop, run
from tests.unit.storage_world import HandClock
from tests.unit.test_access_control import rule, state_of

T = TypeVar("T")
ME = "client:billing"
ADMIN = "client:admin"
PEER = "ipv4:10.0.0.7:54321"


def refused(number: int) -> AuditEvent:
    return AuditEvent(event="refused", address="10.0.0.7", message=str(number))


class Lines:
    """The events of the log, as lines."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, logger=LOGGER)
        self._caplog = caplog

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if record.name == LOGGER]

    def take(self) -> list[dict[str, Any]]:
        found = [json.loads(text) for text in self.texts]
        self._caplog.clear()
        return found


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


# ---- repetitions


def test_the_first_event_is_reported_at_once_and_repetitions_once_a_minute() -> None:
    table = EventCounts(10, 5)
    assert table.note("a", "key", refused(1), 0.0) == refused(1)
    assert [table.note("a", "key", refused(1), 1.0) for _ in range(7)] == [None] * 7
    assert table.due(REPORT_S - 1, 100) == []
    (event,) = table.due(REPORT_S, 100)
    assert (event.count, event.message) == (7, "1")
    assert table.due(2 * REPORT_S - 1, 100) == [] and len(table) == 1
    assert table.due(2 * REPORT_S, 100) == [] and len(table) == 0, "a minute without a repetition"
    assert table.note("a", "key", refused(1), 2 * REPORT_S) == refused(1)


def test_an_owner_has_a_limited_number_of_rows_and_so_has_the_table() -> None:
    table = EventCounts(20, 5)
    told = [table.note("a", number, refused(number), 0.0) for number in range(1_000)]
    assert [one.message for one in told if one is not None] == ["0", "1", "2", "3", "4", ""]
    told = [table.note(f"owner {number}", 0, refused(number), 0.0) for number in range(1_000)]
    assert len([one for one in told if one is not None]) == 15 and len(table) == 21
    found = table.due(REPORT_S, 100)
    assert [(one.name, one.address, one.count) for one in found] == [
        (OTHERS, "10.0.0.7", 994),
        (OTHERS, "", 1_000 - 15),
    ]
    assert table.note("owner 1000", 0, refused(0), 2 * REPORT_S - 1) == refused(0), "rows without repetitions are gone"


def test_repetitions_are_reported_a_few_at_a_time_and_the_rest_at_the_end() -> None:
    table = EventCounts(1_000, 1_000)
    for _ in range(3):
        for number in range(250):
            table.note("a", number, refused(number), 0.0)
    first, second = table.due(REPORT_S, 100), table.due(REPORT_S, 100)
    assert [one.message for one in first + second] == [str(number) for number in range(200)]
    rest = table.rest()
    assert [(one.message, one.count) for one in rest] == [(str(number), 2) for number in range(200, 250)]
    assert len(table) == 0 and table.note("a", 0, refused(0), REPORT_S) is not None


def test_100_000_bad_keys_of_one_address_and_of_many_are_few_events(lines: Lines) -> None:
    clock = HandClock()
    audit = AuditLog(1, clock)
    for number in range(100_000):
        audit.refused(PEER, CredentialsRefused(f"the access key {number:012x} is not known"))
    assert len(lines.take()) == limits.AUDIT_ADDRESS_ROWS_MAX + 1
    for number in range(100_000):
        audit.refused(f"ipv4:10.{number >> 16}.{number >> 8 & 255}.{number & 255}:1", CredentialsRefused("not known"))
    assert len(lines.take()) <= limits.AUDIT_ROWS_MAX + 1
    assert len(audit.queue) <= limits.AUDIT_QUEUE_MAX
    clock.now_us += int(REPORT_S * 1e6)
    for _ in range(20):
        audit.report_due()
    reported = lines.take()
    unreported = limits.AUDIT_ADDRESS_ROWS_MAX + 1 + limits.AUDIT_ROWS_MAX - limits.AUDIT_ADDRESS_ROWS_MAX
    assert sum(one["count"] for one in reported) == 200_000 - unreported
    assert audit.statistics()["events"] == {"refused": 200_000}


# ---- first uses


def test_a_use_is_the_first_once_a_day() -> None:
    uses = FirstUses(10, 5)
    assert uses.note(1, ME, "read t") == (ME, "read t")
    assert uses.note(1, ME, "read t") is None
    assert uses.note(1, ADMIN, "read t") == (ADMIN, "read t")
    assert uses.note(2, ME, "read t") == (ME, "read t")


def test_first_uses_have_limits_and_say_so_once() -> None:
    uses = FirstUses(10, 5)
    of_one = [uses.note(1, ME, number) for number in range(100)]
    assert [use for use in of_one if use is not None] == [*((ME, number) for number in range(5)), (ME, OTHERS)]
    of_many = [uses.note(1, f"client:{number}", 0) for number in range(100)]
    assert [use for use in of_many if use is not None] == [
        *((f"client:{number}", 0) for number in range(4)),
        (OTHERS, OTHERS),
    ]
    assert uses.note(1, ME, 3) is None
    assert uses.note(2, ME, 99) == (ME, 99), "a new day"


def test_a_principal_that_floods_the_day_hides_no_other(lines: Lines) -> None:
    clock = HandClock()
    audit = AuditLog(1, clock)
    mine, other = (ClientAccess(name, lambda *_: True, address=PEER, watch=audit) for name in (ME, ADMIN))
    for number in range(20_000):
        mine.check([("read", "topic", f"t{number}")])
    other.check([("write", "group", "g"), ("alter", "cluster", "*")])
    found = lines.take()
    assert len(found) == limits.AUDIT_PRINCIPAL_USES_MAX + 2
    assert (found[-2]["principal"], found[-2]["name"]) == (ME, OTHERS)
    assert (found[-1]["principal"], found[-1]["name"], found[-1]["address"]) == (ADMIN, "g", "10.0.0.7")
    clock.now_us += DAY_US
    other.check([("write", "group", "g")])
    assert len(lines.take()) == 1


# ---- events


def test_an_event_is_one_line_of_printable_ascii_whatever_a_client_chooses(lines: Lines) -> None:
    audit = AuditLog(7, HandClock())
    access = ClientAccess(ME, lambda *_: False, credential="3f9a51c07d42", address=PEER, watch=audit)
    hostile = 'x"\n\r\t\x00\x1b[31m\x7f\x9b\u2028\u202e\U0001f600' + "y" * 1_000_000
    with pytest.raises(TopicNotFound):
        access.check([("read", "topic", hostile)])
    (text,) = lines.texts
    assert text.isascii() and text.isprintable() and len(text) < 10_000
    event = json.loads(text)
    assert event["name"] == hostile[: TEXT_CHARS_MAX - 1] + "…"
    assert len(event["message"]) == MESSAGE_CHARS_MAX
    assert list(event) == [
        "time", "broker", "event", "principal", "credential", "address", "operation", "kind", "name", "code", "message",
    ]  # fmt: skip
    assert (event["time"], event["broker"], event["code"]) == ("2030-03-17T17:46:40.000000+00:00", 7, "TOPIC_NOT_FOUND")


def test_denials_are_counted_by_what_is_denied(lines: Lines) -> None:
    audit = AuditLog(1, HandClock())
    denials: list[Need] = [("write", "topic", "a"), ("write", "topic", "b"), ("read", "topic", "a")]
    for port in range(50):
        access = ClientAccess(ME, lambda *_: False, address=f"ipv4:10.0.0.{port}:1", watch=audit)
        for need in denials:
            with pytest.raises(CometError):
                access.check([need])
    assert [(one["operation"], one["kind"], one["name"]) for one in lines.take()] == denials
    audit.report_rest()
    assert [one["count"] for one in lines.take()] == [49] * 3


def test_what_is_checked_before_a_denial_is_not_used(lines: Lines) -> None:
    audit = AuditLog(1, HandClock())
    access = ClientAccess(ME, lambda _, __, kind, ___: kind == "group", watch=audit)
    with pytest.raises(CometError):
        access.check([("read", "group", "g"), ("read", "topic", "t")])
    assert [one["event"] for one in lines.take()] == ["denied"]


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:5", "127.0.0.1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5", "fe80::1%eth0"),
        ("ipv6:[::1]:5", "::1"),
        ("unix:/run/x", "unix:/run/x"),
        ("", ""),
    ],
)
def test_the_host_of_a_peer(peer: str, host: str) -> None:
    assert host_of(peer) == host


# ---- the queue


def queued(number: int) -> QueuedEvent:
    return QueuedEvent(b"k", b"%d" % number, 0)


def test_a_full_queue_drops_the_newest_and_keeps_places_for_admin_acts() -> None:
    queue = EventQueue()
    for number in range(2_000):
        queue.put(queued(number), admin=False)
    assert len(queue) == limits.AUDIT_QUEUE_MAX - limits.AUDIT_QUEUE_ADMIN_MIN
    for number in range(2_000, 4_000):
        queue.put(queued(number), admin=True)
    assert len(queue) == limits.AUDIT_QUEUE_MAX
    assert queue.first(1) == [queued(0)] and queue.dropped == 3_000
    assert queue.take_unreported() == 3_000 and queue.take_unreported() == 0
    assert queue.filled.is_set() and not queue.emptied.is_set()
    queue.remove(limits.AUDIT_QUEUE_MAX)
    assert queue.emptied.is_set() and not queue.filled.is_set()


# ---- admin acts


def filled(message: Message) -> None:
    """Sets every field, bytes to a text that is looked for."""
    for field in message.DESCRIPTOR.fields:
        if field.type == field.TYPE_MESSAGE:
            inner = getattr(message, field.name)
            filled(inner.add() if field.is_repeated else inner)
        elif field.type == field.TYPE_BYTES:
            setattr(message, field.name, b"hush" * 8)


def test_no_request_shows_bytes() -> None:
    for act in ACTS.values():
        request = act.request()
        filled(request)
        text = json.dumps(shown(request))
        assert "aHVza" not in text and "hush" not in text, act.name
    creation = admin.CreateAccessKeyRequest(id="0" * 12, principal=ME, sha256=b"x" * 32, lifetime_s=5)
    assert shown(creation) == {"id": "0" * 12, "principal": ME, "lifetime_s": 5}
    assert creation.sha256, "the request itself stays"


def test_a_large_request_is_only_its_size() -> None:
    large = admin.DeleteTopicRequest(name="x" * 10_000, dry_run=True)
    assert shown(large) == {"bytes": large.ByteSize(), "dry_run": True}
    escaped = admin.DeleteTopicRequest(name="\x01" * 1_000)
    assert shown(escaped) == {"bytes": escaped.ByteSize()}
    assert shown(admin.DeleteTopicRequest(name="t")) == {"name": "t"}


# ---- access


def test_only_brokers_write_the_audit_log() -> None:
    control = AccessControl([ADMIN])
    access = control.of(ADMIN)
    access.check([("read", "topic", AUDIT_TOPIC), ("alter", "topic", AUDIT_TOPIC), ("write", "topic", "__other")])
    for operation in ("write", "create", "delete"):
        with pytest.raises(Forbidden, match="only brokers write the audit log"):
            access.check([(operation, "topic", AUDIT_TOPIC)])
        assert not control.explain(ADMIN, operation, "topic", AUDIT_TOPIC).allowed
    assert control.explain(ADMIN, "read", "topic", AUDIT_TOPIC).allowed


def test_a_rule_must_name_the_audit_log() -> None:
    control = AccessControl([ADMIN])
    for revision, name in enumerate(("*", "__a*", AUDIT_TOPIC), 1):
        control.moved(state_of(rule("read", name), rule("read", "*", principal="*"), revision=revision))
        allowed = name != "*"
        for operation in ("read", "describe"):
            assert control.of(ME).allows(operation, "topic", AUDIT_TOPIC) is allowed
            assert control.explain(ME, operation, "topic", AUDIT_TOPIC).allowed is allowed
        assert not control.of(ME).allows("write", "topic", AUDIT_TOPIC)
        assert control.of(ME).allows("read", "topic", "__other") and control.of(ME).allows("read", "topic", "t")
    control.moved(state_of(rule("read", AUDIT_TOPIC), rule("read", "*", effect="deny"), revision=9))
    assert not control.of(ME).allows("read", "topic", AUDIT_TOPIC), "a deny for all includes it"


def test_without_rules_clients_are_told_apart_only_for_an_audit_log() -> None:
    holder = CredentialHolder(ME, "id")
    assert not AccessControl(()).of_holder(holder).enforced
    audited = AccessControl((), AuditLog(1, HandClock()))
    access = audited.of_holder(holder, PEER)
    assert access.enforced and access.address == PEER
    access.check([("delete", "topic", "t"), ("alter", "cluster", "*")])
    with pytest.raises(Forbidden):
        access.check([("write", "topic", AUDIT_TOPIC)])


def test_an_audit_log_needs_clients_that_can_be_told_apart() -> None:
    assert not BrokerConfig(Path("data")).audited and BrokerConfig(Path("data"), superusers=(ADMIN,)).audited
    assert not BrokerConfig(Path("data"), superusers=(ADMIN,), audit=False).audited
    with pytest.raises(InvalidArgument, match="for the audit log, clients are recognised by their certificates"):
        check_listeners(BrokerConfig(Path("data"), audit=True))


# ---- the topic


class DirectWorker:
    """ports.Worker."""

    async def run(self, function: Callable[[], T]) -> T:
        return function()


class FlakyStore(MemoryStore):
    """Takes no new topic while it is away."""

    away = False

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        if self.away and any(one.key == topic_key(AUDIT_TOPIC) for one in operations):
            raise StoreUnavailable("it is away")
        return await super().transact(compares, operations)


class World:
    """A broker with an audit log, and clients without a transport."""

    def __init__(self, loop: SimLoop, **settings: Any) -> None:
        self.clock = SimClock(loop)
        self.store = FlakyStore(self.clock)
        self.files = MemoryFiles(Random(1))
        network = LocalNetwork()
        self.broker = Broker(
            BrokerConfig(data=Path("data"), host="broker", superusers=(ADMIN,), **settings),
            files=self.files,
            store=self.store,
            clock=self.clock,
            worker=DirectWorker(),
            random=Random(1),
            network=network,
            boot_id="boot",
        )
        network.brokers["broker:9092"] = self.broker
        assert self.broker.audit is not None
        self.audit = self.broker.audit

    async def call(self, path: str, request: Message, principal: str = ADMIN) -> Message:
        """As the transport answers a call."""
        (method,) = (one for one in self.broker.methods if one.path == f"comet.v1.{path}")
        access = self.broker.access.of_holder(CredentialHolder(principal, "3f9a51c07d42"), PEER)

        async def answered() -> Message:
            set_caller(access, PEER)
            access.check(method.needs(request))
            return await method(request)

        return await asyncio.create_task(answered())

    def refuse(self, number: int) -> None:
        self.audit.refused(f"ipv4:10.0.{number >> 8}.{number & 255}:1", CredentialsRefused("not known"))

    async def written(self, number: int) -> list[dict[str, Any]]:
        """The records of the topic, once there are so many."""
        while True:
            topic = self.broker.topics.by_name.get(AUDIT_TOPIC)
            if topic is not None and topic.partitions[0].high_watermark >= number:
                break
            await asyncio.sleep(0.1)
        request = pb.FetchRequest(topic=AUDIT_TOPIC, records_max=10_000)
        (method,) = (one for one in self.broker.methods if one.path == "comet.v1.Comet/Fetch")
        found: Any = await method(request)
        values = [json.loads(record.value) for record in found.records]
        for record, value in zip(found.records, values, strict=True):
            assert record.key.decode() == (value.get("principal") or value.get("address") or "broker:1")
        return values


def scenario(test: Callable[[World], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def main(loop: SimLoop) -> None:
        world = World(loop, **settings)
        await world.broker.start()
        await world.broker.join()
        await test(world)
        assert not world.broker.env.tasks.failed
        await world.broker.close()

    run(main)


def test_admin_acts_are_written_with_their_outcome(lines: Lines) -> None:
    async def test(world: World) -> None:
        await world.call("Admin/CreateTopic", admin.CreateTopicRequest(name="t", partitions=2))
        with pytest.raises(TopicExists):
            await world.call("Admin/CreateTopic", admin.CreateTopicRequest(name="t"))
        await world.call("Admin/DeleteTopic", admin.DeleteTopicRequest(name="t", dry_run=True))
        await world.call("Admin/ListTopics", admin.ListTopicsRequest())
        with pytest.raises(Forbidden):
            await world.call("Admin/CreateTopic", admin.CreateTopicRequest(name="u"), ME)
        found = await world.written(4)
        assert found == lines.take(), "the lines are the same"
        assert [(one["event"], one["operation"], one.get("code", ""), one["name"]) for one in found] == [
            ("admin", "CreateTopic", "", "t"),
            ("admin", "CreateTopic", "TOPIC_EXISTS", "t"),
            ("admin", "DeleteTopic", "", "t"),
            ("denied", "create", "FORBIDDEN", "u"),
        ]
        assert found[0]["request"] == {"name": "t", "partitions": 2} and "dry_run" not in found[0]
        assert found[2]["dry_run"] is True and found[2]["credential"] == "3f9a51c07d42"
        config = world.broker.topics.by_name[AUDIT_TOPIC].spec.config
        assert (config.retention_ms, config.retention_bytes) == (RETENTION_MS, 1 << 30)
        assert world.broker.statistics()["audit"] == {
            "events": {"admin": 3, "denied": 1}, "queued": 0, "dropped": 0, "problem": "",
        }  # fmt: skip

    scenario(test)


def test_another_brokers_forwarded_act_is_not_recorded_again(lines: Lines) -> None:
    async def test(world: World) -> None:
        (method,) = (one for one in world.broker.methods if one.path == "comet.v1.Admin/CreateTopic")
        await method(admin.CreateTopicRequest(name="t"))
        assert lines.take() == []

    scenario(test)


def test_events_wait_while_the_topic_cannot_be_written_and_drops_are_counted(lines: Lines) -> None:
    async def test(world: World) -> None:
        world.store.away = True
        most = limits.AUDIT_QUEUE_MAX - limits.AUDIT_QUEUE_ADMIN_MIN
        for number in range(900):
            world.refuse(number)
        await asyncio.sleep(2 * RETRY_S_MAX)
        assert AUDIT_TOPIC not in world.broker.topics.by_name
        found = world.broker.statistics()["audit"]
        assert (found["queued"], found["dropped"]) == (most, 100) and "it is away" in found["problem"]
        world.store.away = False
        written = await world.written(most + 1)
        assert [one["event"] for one in written] == ["refused"] * most + ["dropped"]
        assert written[-1]["count"] == 100
        assert len(lines.take()) == 901, "every event has its line"
        assert world.broker.statistics()["audit"]["problem"] == ""
        world.refuse(1_000)
        assert len(await world.written(most + 2)) == most + 2

    scenario(test)


def test_events_wait_while_the_disk_is_full(lines: Lines) -> None:
    async def test(world: World) -> None:
        world.refuse(0)
        await world.written(1)
        world.files.faults.capacity_bytes = 0
        for number in range(1, 11):
            world.refuse(number)
            await asyncio.sleep(1)
        found = world.broker.statistics()["audit"]
        assert (found["queued"], found["dropped"]) == (10, 0) and "disk" in found["problem"], found
        world.files.faults.capacity_bytes = None
        assert [one["address"] for one in await world.written(11)] == [f"10.0.0.{number}" for number in range(11)]
        assert len(lines.take()) == 11

    scenario(test)


def test_a_batch_whose_answer_is_lost_is_not_written_twice(lines: Lines) -> None:
    async def test(world: World) -> None:
        topic: Any = world.broker._audit_topic
        publish = topic._publish

        async def lost(request: pb.PublishRequest) -> pb.PublishResponse:
            topic._publish = publish
            await publish(request)
            raise TimeoutError

        topic._publish = lost
        world.refuse(1)
        await world.written(1)
        world.refuse(2)
        found = await world.written(2)
        assert [one["address"] for one in found] == ["10.0.0.1", "10.0.0.2"]
        assert world.broker.statistics()["audit"]["queued"] == 0

    scenario(test)


def test_batches_are_a_second_apart(lines: Lines) -> None:
    async def test(world: World) -> None:
        world.refuse(0)
        await world.written(1)
        partition = world.broker.topics.by_name[AUDIT_TOPIC].partitions[0]
        before = partition.counts.appended_batches
        for number in range(1, 101):
            world.refuse(number)
            await asyncio.sleep(0.05)
        await world.written(101)
        assert partition.counts.appended_batches - before <= 6

    scenario(test)


def test_a_stop_writes_what_is_queued_and_repetitions(lines: Lines) -> None:
    async def test(world: World) -> None:
        world.refuse(1)
        await world.written(1)
        world.refuse(1)
        world.refuse(2)
        begin = world.clock.monotonic()
        await world.broker.drain()
        assert world.clock.monotonic() - begin < 0.5 * limits.AUDIT_FLUSH_S_MAX, "without the pause between batches"
        found = await world.written(3)
        assert [(one["address"], one.get("count")) for one in found] == [
            ("10.0.0.1", None),
            ("10.0.0.2", None),
            ("10.0.0.1", 1),
        ]

    scenario(test)


def test_a_stop_does_not_wait_for_a_topic_that_cannot_be_written(lines: Lines) -> None:
    async def test(world: World) -> None:
        world.store.away = True
        world.refuse(1)
        begin = world.clock.monotonic()
        await world.broker.drain()
        assert world.clock.monotonic() - begin <= limits.AUDIT_FLUSH_S_MAX + 0.1
        assert len(lines.take()) == 1

    scenario(test)


def test_a_new_cluster_waits_a_while_for_brokers_that_hold_the_replicas(lines: Lines) -> None:
    async def test(world: World) -> None:
        world.refuse(1)
        begin = world.clock.monotonic()
        await world.written(1)
        assert world.clock.monotonic() - begin >= BROKERS_WAIT_S
        assert world.broker.topics.by_name[AUDIT_TOPIC].spec.replicas == 1

    scenario(test, default_replicas=3)


def test_a_rule_for_all_ends_no_stream_of_a_superuser() -> None:
    ended: list[bool] = []
    control = AccessControl([ADMIN])
    control.on_restricted.append(lambda restricted: ended.extend(map(restricted, map(control.of, (ADMIN, ME)))))
    control.moved(state_of(rule("read", "t", effect="deny", principal="*"), revision=1))
    assert ended == [False, True]
