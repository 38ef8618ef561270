"""The audit log of real brokers: refused calls, denials, admin acts and first uses, as lines and in the topic."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

import comet
from comet.security.access_keys import add_access_key, brokers_file
from comet.security.certificates import Authority
from comet.types import AUDIT_TOPIC
from comet.v1 import groups_pb2, records_pb2
from comet.v1.types_pb2 import ACKS_ALL
from comet.wire.bearer import FileBearer, read_access_key
from comet.wire.grpc_channel import GrpcChannel
from comet.wire.tls import TlsFiles
from comet_broker.audit.log import LOGGER
from comet_broker.config import BrokerConfig
from comet_broker.server import Server
from tests.etcd import Etcd
from tests.integration.test_access_keys import ME, TOPIC, Keyed, keyed
from tests.robustness.process import BrokerProcess
from tests.waiting import until_answered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

BAD_KEY: Final = "comet_0123456789ab_" + "x" * 43
Event = dict[str, Any]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed(tmp_path) as found:
        yield found


async def events(bootstrap: comet.Bootstrap) -> list[Event]:
    """All records of the topic."""
    found: list[Event] = []
    async with comet.Reader(bootstrap) as reader:
        async for part in reader.read(AUDIT_TOPIC, 0):
            assert isinstance(part, comet.RecordBatch)
            found += [json.loads(value or b"") for value in part.values]
    return found


async def seen(bootstrap: comet.Bootstrap, wanted: Callable[[Event], bool], number: int = 1) -> list[Event]:
    """The events that are wanted, once the topic has so many."""
    found: list[Event] = []

    async def there() -> bool:
        nonlocal found
        try:
            found = [event for event in await events(bootstrap) if wanted(event)]
        except comet.TopicNotFound:
            return False
        return len(found) >= number

    assert await until_answered(there, within_s=20), found
    return found


def lines(caplog: pytest.LogCaptureFixture) -> list[Event]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]


async def test_refused_calls_are_one_line_and_one_record(broker: Keyed, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER)
    assert len(BAD_KEY) == len(read_access_key(broker.admin_key))
    bad = broker.write("bad", BAD_KEY)
    channel = GrpcChannel(broker.server.address, tls=TlsFiles(broker.ca), bearer=FileBearer(bad))
    for _ in range(20):
        with pytest.raises(comet.CredentialsRefused):
            await channel.unary(
                "comet.v1.Comet/FetchMetadata",
                records_pb2.FetchMetadataRequest(),
                records_pb2.FetchMetadataResponse,
                10.0,
            )
    await channel.close()
    ours = broker.bootstrap(broker.admin_key)
    (event,) = await seen(ours, lambda event: event["event"] == "refused")
    assert (event["address"], event["code"], event["broker"]) == ("127.0.0.1", "CREDENTIALS_REFUSED", 1)
    assert "0123456789ab" in event["message"] and BAD_KEY not in json.dumps(event)
    assert [line for line in lines(caplog) if line["event"] == "refused"] == [event]
    assert broker.server.broker.statistics()["audit"]["events"]["refused"] >= 20


async def test_denials_acts_and_first_uses_are_recorded(broker: Keyed) -> None:
    file, key_id = await broker.key("billing.key")
    await broker.admin.access.add_rule(ME, ["write"], comet.ResourceKind.TOPIC, TOPIC)
    ours = broker.bootstrap(broker.admin_key)
    async with comet.Producer(broker.bootstrap(file)) as producer:
        for number in range(50):
            await producer.publish(TOPIC, b"%d" % number)
    async with comet.Admin(broker.bootstrap(file)) as mine:
        with pytest.raises(comet.Forbidden):
            await mine.delete_topic(TOPIC)
        with pytest.raises(comet.Forbidden):
            await mine.alter_topic(TOPIC, retention_ms=1)
    channel = GrpcChannel(broker.server.address, tls=TlsFiles(broker.ca), bearer=FileBearer(file))
    with pytest.raises(comet.TopicNotFound):
        await channel.unary(
            "comet.v1.Comet/Fetch", records_pb2.FetchRequest(topic="hidden"), records_pb2.FetchResponse, 10.0
        )
    await channel.close()
    mine_seen = await seen(ours, lambda event: event.get("principal") == ME and event["event"] != "admin", 4)
    assert [(one["event"], one["operation"], one["name"], one.get("code", "")) for one in mine_seen] == [
        ("first_use", "write", TOPIC, ""),
        ("denied", "delete", TOPIC, "FORBIDDEN"),
        ("denied", "alter", TOPIC, "FORBIDDEN"),
        ("denied", "read", "hidden", "TOPIC_NOT_FOUND"),
    ]
    assert {one["credential"] for one in mine_seen} == {key_id}
    acts = await seen(ours, lambda event: event["event"] == "admin", 3)
    assert [(one["principal"], one["operation"], one.get("code", "")) for one in acts] == [
        ("client:admin", "CreateTopic", ""),
        ("client:admin", "CreateAccessKey", ""),
        ("client:admin", "AddRule", ""),
    ]
    assert acts[1]["request"]["principal"] == ME and "sha256" not in acts[1]["request"]
    assert acts[2]["request"]["rule"]["operations"] == ["write"]
    with pytest.raises(comet.TopicExists):
        await broker.admin.create_topic(TOPIC)
    failed = await seen(ours, lambda event: event.get("code") == "TOPIC_EXISTS")
    assert failed[0]["operation"] == "CreateTopic"


async def test_no_client_writes_it_and_rules_say_which_read_it(broker: Keyed) -> None:
    ours = broker.bootstrap(broker.admin_key)
    await seen(ours, lambda event: event["event"] == "admin")
    async with comet.Producer(ours) as producer:
        with pytest.raises(comet.Forbidden, match="only brokers write the audit log"):
            await producer.publish(AUDIT_TOPIC, b"forged")
    forged = records_pb2.PublishRequest(topic=AUDIT_TOPIC, records=[records_pb2.Record(value=b"forged")], acks=ACKS_ALL)
    channel = GrpcChannel(broker.server.address, tls=TlsFiles(broker.ca), bearer=FileBearer(broker.admin_key))
    with pytest.raises(comet.Forbidden, match="only brokers"):
        await channel.unary("comet.v1.Comet/Publish", forged, records_pb2.PublishResponse, 10.0)
    letters = groups_pb2.AcquireRequest(
        topic=TOPIC, group="g", records_max=1, options=groups_pb2.ShareOptions(dead_letter=AUDIT_TOPIC)
    )
    with pytest.raises(comet.Forbidden, match="only brokers"):
        await channel.unary("comet.v1.Comet/Acquire", letters, groups_pb2.AcquireResponse, 10.0)
    await channel.close()
    for act in (
        broker.admin.delete_topic(AUDIT_TOPIC),
        broker.admin.create_topic(AUDIT_TOPIC),
        broker.admin.delete_records(AUDIT_TOPIC, 0, 1),
    ):
        with pytest.raises(comet.Forbidden, match="only brokers"):
            await act
    explained = await broker.admin.access.explain_access(
        "client:admin", comet.RuleOperation.WRITE, comet.ResourceKind.TOPIC, AUDIT_TOPIC
    )
    assert not explained.allowed and explained.why == "only brokers write the audit log"
    file, _ = await broker.key("billing.key")
    with pytest.raises(comet.TopicNotFound):
        await events(broker.bootstrap(file))
    await broker.admin.access.add_rule(ME, ["read"], comet.ResourceKind.TOPIC, AUDIT_TOPIC)
    assert not [event for event in await events(broker.bootstrap(file)) if event.get("message") == "forged"]
    denied = await seen(ours, lambda event: event["event"] == "denied" and event["name"] == AUDIT_TOPIC, 3)
    assert {one["operation"] for one in denied} == {"write", "create", "delete"}


async def test_a_member_of_a_pattern_gets_no_audit_log(broker: Keyed) -> None:
    ours = broker.bootstrap(broker.admin_key)
    await seen(ours, lambda event: event["event"] == "admin")
    async with comet.Producer(ours) as producer:
        await producer.publish(TOPIC, b"1")
    async with comet.GroupConsumer(ours, pattern=".*", group="all", start="earliest") as consumer:
        assert (await anext(consumer)).topic == TOPIC
        assert {one.topic for one in consumer.assignment()} == {TOPIC}


async def test_a_process_writes_lines_at_its_default_log_level(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "security", "comet")
    issued = authority.issue_broker(1, ["127.0.0.1"])
    key = add_access_key(tmp_path / "security", "admin")
    process = BrokerProcess(
        tmp_path / "data",
        options=(
            f"--clients-cert={issued.cert}",
            f"--clients-key={issued.key}",
            f"--access-keys={brokers_file(tmp_path / 'security')}",
            "--superusers=client:admin",
        ),
    )
    await asyncio.to_thread(process.start)
    try:
        async with comet.Admin(comet.Bootstrap(process.address, ca=authority.ca, access_key=key)) as admin:
            await admin.create_topic(TOPIC)
    finally:
        await asyncio.to_thread(process.terminate)
    (line,) = (line for line in process.log.read_text().splitlines() if f" {LOGGER}: " in line)
    event = json.loads(line.partition(f" {LOGGER}: ")[2])
    assert (event["event"], event["operation"], event["name"]) == ("admin", "CreateTopic", TOPIC)
    assert read_access_key(key) not in process.log.read_text()


async def test_three_brokers_write_one_topic(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "security", "comet")
    etcd = await asyncio.to_thread(Etcd.start, tmp_path / "etcd")
    names = ("admin", "billing")
    admins, others = (authority.issue_client(name) for name in names)

    def config(number: int) -> BrokerConfig:
        issued = authority.issue_broker(number, ["127.0.0.1"])
        pem: dict[str, Any] = {"ca": authority.ca, "cert": issued.cert, "key": issued.key}
        settings = {f"{name}_{kind}": path for name in ("clients", "brokers") for kind, path in pem.items()}
        return BrokerConfig(
            data=tmp_path / str(number),
            broker_id=number,
            port=0,
            brokers_port=0,
            etcd=(etcd.endpoint,),
            default_replicas=3,
            superusers=("client:admin",),
            drain_grace_ms=100,
            **settings,
        )

    try:
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(Server(config(number))) for number in (1, 2, 3)]
            addresses = [server.address for server in servers]
            ours = comet.Bootstrap(",".join(addresses), ca=authority.ca, cert=admins.cert, key=admins.key)
            for address in addresses:  # each broker refuses something to someone
                channel = GrpcChannel(address, tls=TlsFiles(authority.ca, others.cert, others.key))
                with pytest.raises(comet.TopicNotFound):
                    await channel.unary(
                        "comet.v1.Comet/Fetch", records_pb2.FetchRequest(topic="t"), records_pb2.FetchResponse, 10.0
                    )
                await channel.close()
            brokers_port = servers[0].broker.registration.brokers_port
            stranger = GrpcChannel(f"127.0.0.1:{brokers_port}", tls=TlsFiles(authority.ca, others.cert, others.key))
            with pytest.raises(comet.Forbidden):
                await stranger.unary(
                    "comet.v1.Comet/Publish", records_pb2.PublishRequest(), records_pb2.PublishResponse, 10.0
                )
            await stranger.close()
            denied = await seen(ours, lambda event: event["event"] == "denied", 3)
            assert {event["broker"] for event in denied} == {1, 2, 3}
            (refused,) = await seen(ours, lambda event: event["event"] == "refused")
            assert refused["code"] == "FORBIDDEN" and refused["address"] == "127.0.0.1"
            async with comet.Admin(ours) as admin:
                topic = await admin.describe_topic(AUDIT_TOPIC)
                assert (topic.replicas, topic.partition_count, topic.internal) == (3, 1, True)
                assert topic.config.min_insync == 2
    finally:
        etcd.remove()
