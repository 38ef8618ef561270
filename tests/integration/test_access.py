"""Rules of access at a broker: each call and frame is tried with exactly the rights that it needs, and one fewer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import comet
from comet.admin.acts import ACTS
from comet.security.certificates import Authority, Issued
from comet.v1 import admin_pb2, groups_pb2, records_pb2, schedules_pb2, types_pb2
from comet.wire.grpc_channel import GrpcChannel
from comet.wire.protobuf import error_from_pb
from comet.wire.tls import TlsFiles
from comet_broker.access.needs import CALLS, FRAMES
from comet_broker.config import BrokerConfig
from comet_broker.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TOPIC, GROUP, TRANSACTION = "orders-1", "billing", "load-1"
ME: Final = "client:billing"
DENIED: Final = ("FORBIDDEN", "TOPIC_NOT_FOUND", "GROUP_NOT_FOUND")
Right = tuple[str, str, str]

READ, WRITE, DESCRIBE = (("read", "topic", TOPIC), ("write", "topic", TOPIC), ("describe", "topic", TOPIC))
MEMBER = ("read", "group", GROUP)
OPERATOR, LOOKER = ("alter", "cluster", "*"), ("describe", "cluster", "*")

# What each call needs, beside what every client may: a second opinion on the table of the broker.
CALL_RIGHTS: Final[dict[str, tuple[Right, ...]]] = {
    "Comet/FetchMetadata": (),
    "Comet/FindCoordinator": (),
    "Comet/Publish": (WRITE,),
    "Comet/Fetch": (READ,),
    "Comet/ReadKeys": (READ,),
    "Comet/Acquire": (MEMBER, READ),
    "Comet/Acknowledge": (MEMBER, READ),
    "Admin/CreateTopic": (("create", "topic", TOPIC),),
    "Admin/ListTopics": (),
    "Admin/DescribeTopic": (DESCRIBE,),
    "Admin/AlterTopic": (("alter", "topic", TOPIC),),
    "Admin/DeleteTopic": (("delete", "topic", TOPIC),),
    "Admin/AddPartitions": (("alter", "topic", TOPIC),),
    "Admin/DeleteRecords": (("delete", "topic", TOPIC),),
    "Admin/MovePartition": (OPERATOR,),
    "Admin/ElectLeader": (OPERATOR,),
    "Admin/ListGroups": (),
    "Admin/DescribeGroup": (("describe", "group", GROUP),),
    "Admin/GroupLag": (("describe", "group", GROUP),),
    "Admin/ResetGroup": (("alter", "group", GROUP),),
    "Admin/DeleteGroup": (("delete", "group", GROUP),),
    "Admin/DescribeCluster": (LOOKER,),
    "Admin/DrainBroker": (OPERATOR,),
    "Admin/Resume": (OPERATOR,),
    "Admin/Statistics": (LOOKER,),
    "Admin/History": (LOOKER,),
    "Admin/Inventory": (OPERATOR,),
    "Admin/RecoverCluster": (OPERATOR,),
    "Admin/AddRule": (OPERATOR,),
    "Admin/RemoveRule": (OPERATOR,),
    "Admin/ListRules": (LOOKER,),
    "Admin/ExplainAccess": (LOOKER,),
    "Admin/CheckAccess": (),
    "Admin/CreateAccessKey": (OPERATOR,),
    "Admin/ListAccessKeys": (LOOKER,),
    "Admin/RevokeAccessKey": (OPERATOR,),
    "Admin/GrantRole": (OPERATOR,),
    "Admin/RevokeRole": (OPERATOR,),
    "Admin/ListRoles": (LOOKER,),
    "Admin/SetQuota": (OPERATOR,),
    "Admin/ListQuotas": (LOOKER,),
    "Admin/RemoveQuota": (OPERATOR,),
    "Admin/ListCalendars": (LOOKER,),
    "Admin/GetCalendar": (LOOKER,),
    "Admin/PutCalendar": (OPERATOR,),
    "Admin/DeleteCalendar": (OPERATOR,),
    "Admin/ListSchedules": (),
    "Admin/GetSchedule": (READ,),
    "Admin/PutSchedules": (WRITE,),
    "Admin/CancelSchedule": (WRITE,),
    "Admin/PauseSchedule": (WRITE,),
    "Admin/ResumeSchedule": (WRITE,),
    "Admin/RunSchedule": (WRITE,),
    "Admin/MoveSchedule": (WRITE,),
}


@dataclass
class Secured:
    """A broker that enforces rules, its superuser, and the channel of one other client."""

    address: str
    admin: comet.Admin
    files: dict[str, str]
    channel: GrpcChannel
    held: list[Right] = field(default_factory=list)

    async def allow(self, rights: Iterable[Right]) -> None:
        """The client has these and no others."""
        for operation, kind, name in self.held:
            await self.admin.access.remove_rule(ME, [operation], comet.ResourceKind(kind), name)
        self.held = list(rights)
        for operation, kind, name in self.held:
            assert (await self.admin.access.add_rule(ME, [operation], comet.ResourceKind(kind), name)).enforced

    async def code_of_call(self, path: str, request: Message, response: type[Message]) -> str:
        """The code of the error; empty: it was answered."""
        try:
            await self.channel.unary(f"comet.v1.{path}", request, response, 20.0)
        except comet.CometError as error:
            return error.code
        return ""

    async def codes_of_frames(self, frames: Iterable[records_pb2.ClientFrame]) -> list[str]:
        """The same for each frame of a stream, one after the other."""
        stream, found = self.channel.stream(), list[str]()
        try:
            for number, frame in enumerate(frames, 1):
                frame.request = number
                await stream.write(frame.SerializeToString())
                while True:
                    answer = records_pb2.ServerFrame.FromString(bytes(await stream.read() or b""))
                    if answer.request == number:
                        break
                    if answer.WhichOneof("frame") == "acks":
                        answer.ClearField("error")
                        break
                failed = answer.WhichOneof("frame") == "error"
                found.append(error_from_pb(answer.error.error).code if failed else "")
        finally:
            stream.cancel()
        return found


def files_of(authority: Authority, issued: Issued) -> dict[str, str]:
    return {"ca": str(authority.ca), "cert": str(issued.cert), "key": str(issued.key)}


@asynccontextmanager
async def secured(folder: Path) -> AsyncIterator[Secured]:
    authority = Authority.create(folder / "security", "comet")
    broker = authority.issue_broker(1, ["127.0.0.1"])
    config = BrokerConfig(
        data=folder / "data",
        port=0,
        clients_ca=authority.ca,
        clients_cert=broker.cert,
        clients_key=broker.key,
        superusers=("client:admin",),
        gateways=("client:gateway",),
        drain_grace_ms=100,
    )
    admins, ours = (files_of(authority, authority.issue_client(name)) for name in ("admin", "billing"))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(config))
        admin = await stack.enter_async_context(comet.Admin(comet.Bootstrap(server.address, **admins)))
        channel = GrpcChannel(server.address, tls=TlsFiles(*(Path(ours[kind]) for kind in ("ca", "cert", "key"))))
        stack.push_async_callback(channel.close)
        await admin.create_topic(TOPIC)
        await admin.create_topic("secret")
        await admin.commit_offsets(GROUP, {(TOPIC, 0): 0})
        yield Secured(server.address, admin, ours, channel)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Secured]:
    async with secured(tmp_path) as found:
        yield found


def request_of(path: str) -> tuple[Message, type[Message]]:
    """A request of the call, about the topic, the group or the cluster, that changes nothing; and its answer."""
    module: Any = admin_pb2 if path.startswith("Admin/") else records_pb2
    service, _, name = path.partition("/")
    method = module.DESCRIPTOR.services_by_name[service].methods_by_name[name]
    request = GetMessageClass(method.input_type)()
    of_group = name in ACTS and ACTS[name].needs.endswith("group")
    names = {"name": GROUP if of_group else TOPIC, "topic": TOPIC, "group": GROUP, "dry_run": True}
    for field_name, value in names.items():
        described = method.input_type.fields_by_name.get(field_name)
        if described is not None and described.message_type is None:
            setattr(request, field_name, value)
    return request, GetMessageClass(method.output_type)


async def test_a_call_needs_exactly_its_rights(broker: Secured) -> None:
    assert {f"comet.v1.{path}" for path in CALL_RIGHTS} == set(CALLS), "name the rights of each call, here too"
    for path, rights in CALL_RIGHTS.items():
        request, response = request_of(path)
        for missing in rights:
            await broker.allow([right for right in rights if right != missing])
            assert await broker.code_of_call(path, request, response) in DENIED, (path, missing)
        await broker.allow(rights)
        assert await broker.code_of_call(path, request, response) not in DENIED, path


async def test_a_client_neither_lists_schedules_of_others_nor_makes_them_for_others(broker: Secured) -> None:
    """Also not with what only brokers say to each other."""
    await broker.admin.schedules.put_schedule("secret", "hidden", "every 1h", value=b"v", key=b"k")
    await broker.allow([WRITE, READ])
    for index in range(4):
        for forwarded in (False, True):
            request = schedules_pb2.ListSchedulesRequest(partition=index, forwarded=forwarded)
            found = await broker.channel.unary(
                "comet.v1.Admin/ListSchedules", request, schedules_pb2.ListSchedulesResponse, 20.0
            )
            assert isinstance(found, schedules_pb2.ListSchedulesResponse)
            assert [one.id for one in found.schedules] == []
    forged = schedules_pb2.Schedule(id="mine", spec="every 1h", author="client:admin", author_roles=["admins"])
    put = schedules_pb2.PutSchedulesRequest(
        topic=TOPIC, schedules=[schedules_pb2.SchedulePut(schedule=forged)], forwarded=True
    )
    await broker.channel.unary("comet.v1.Admin/PutSchedules", put, schedules_pb2.PutSchedulesResponse, 20.0)
    assert (await broker.admin.schedules.get_schedule(TOPIC, "mine")).schedule.author == ME


# What each right holds beside itself.
IMPLIED: Final[dict[Right, set[Right]]] = {
    **{(operation, "topic", TOPIC): {DESCRIBE} for operation in ("read", "write", "alter", "delete")},
    **{(operation, "group", GROUP): {("describe", "group", GROUP)} for operation in ("read", "alter", "delete")},
    OPERATOR: {LOOKER},
}


async def test_a_right_opens_no_other_call(broker: Secured) -> None:
    """A client with one of the rights of the table, and a client with none, is answered its own calls alone."""
    for right in (None, *dict.fromkeys(one for rights in CALL_RIGHTS.values() for one in rights)):
        held = {right, *IMPLIED.get(right, ())} if right else set[Right]()
        await broker.allow([right] if right else [])
        codes = {path: await broker.code_of_call(path, *request_of(path)) for path in CALL_RIGHTS}
        answered = {path for path, code in codes.items() if code not in DENIED}
        assert answered == {path for path, rights in CALL_RIGHTS.items() if held.issuperset(rights)}, right


def frames_of(kind: str) -> list[records_pb2.ClientFrame]:
    """A stream whose last frame is of that kind; partitions are named by handles, which an Attach gives."""
    topics = [groups_pb2.TopicOffsets(topic=TOPIC, offsets=[groups_pb2.PartitionOffset(partition=0, offset=0)])]
    earliest = types_pb2.Position(earliest=True)
    made: dict[str, Callable[[], Any]] = {
        "hello": records_pb2.Hello,
        "ping": records_pb2.Ping,
        "fetch_metadata": records_pb2.FetchMetadataRequest,
        "fetch": lambda: records_pb2.FetchRequest(topic=TOPIC, whole_batches=True, forwarded=True),
        "publish": lambda: records_pb2.PublishRequest(topic=TOPIC),
        "read_keys": lambda: records_pb2.ReadKeysRequest(topic=TOPIC),
        "attach": lambda: records_pb2.Attach(topic=TOPIC),
        "produce": lambda: records_pb2.Produce(partition=1, acks=types_pb2.ACKS_LEADER),
        "find_offset": lambda: records_pb2.FindOffset(partition=1, position=earliest),
        "subscribe": lambda: records_pb2.Subscribe(
            subscription=1, starts=[records_pb2.Start(partition=1, position=earliest)]
        ),
        "unsubscribe": lambda: records_pb2.Unsubscribe(subscription=1),
        "join": lambda: groups_pb2.Join(group=GROUP, topics=[TOPIC]),
        "leave": lambda: groups_pb2.Leave(group=GROUP, member="m"),
        "release": lambda: groups_pb2.Release(group=GROUP, member="m"),
        "commit": lambda: groups_pb2.Commit(group=GROUP, member="m", topics=topics),
        "fetch_committed": lambda: groups_pb2.FetchCommitted(group=GROUP),
        "share_subscribe": lambda: groups_pb2.ShareSubscribe(
            subscription=2, group="sharers", member="m", partitions=[1], in_flight_max=1,
            options=groups_pb2.ShareOptions(dead_letter="dead"),
        ),
        "open_transactions": lambda: groups_pb2.OpenTransactions(transactional_id=TRANSACTION),
        "end_transaction": lambda: groups_pb2.EndTransaction(transactional_id=TRANSACTION),
    }  # fmt: skip
    return [records_pb2.ClientFrame(**{kind: made[kind]()})]


FRAME_RIGHTS: Final[dict[str, tuple[Right, ...]]] = {
    "hello": (),
    "ping": (),
    "fetch_metadata": (),
    "fetch": (READ,),
    "publish": (WRITE,),
    "read_keys": (READ,),
    "attach": (DESCRIBE,),
    "produce": (WRITE,),
    "find_offset": (DESCRIBE,),
    "subscribe": (READ,),
    "unsubscribe": (),
    "join": (MEMBER, READ),
    "leave": (MEMBER,),
    "release": (MEMBER,),
    "commit": (MEMBER, READ),
    "fetch_committed": (("describe", "group", GROUP),),
    "share_subscribe": (("read", "group", "sharers"), READ, ("write", "topic", "dead")),
    "open_transactions": (("write", "transaction", TRANSACTION),),
    "end_transaction": (("write", "transaction", TRANSACTION),),
}
# They are not answered; heartbeats are of members, the others of what the same stream has been allowed.
UNANSWERED: Final = {"heartbeat", "credit", "acknowledge"}


async def test_a_frame_needs_exactly_its_rights(broker: Secured) -> None:
    assert set(FRAME_RIGHTS) | UNANSWERED == set(FRAMES), "name the rights of each frame, here too"
    for kind, rights in FRAME_RIGHTS.items():
        for missing in rights:
            await broker.allow([right for right in rights if right != missing])
            (code,) = await broker.codes_of_frames(frames_of(kind))
            assert code in DENIED, (kind, missing, code)
        await broker.allow(rights)
        (code,) = await broker.codes_of_frames(frames_of(kind))
        assert code not in DENIED, (kind, code)


async def test_what_one_may_not_describe_does_not_exist(broker: Secured) -> None:
    await broker.allow([("read", "topic", "orders-*"), ("describe", "group", "billing")])
    async with comet.Admin(comet.Bootstrap(broker.address, **broker.files)) as ours:
        assert [topic.name for topic in await ours.list_topics()] == [TOPIC]
        assert (await ours.find_topics("")).total == 1
        assert [group.name for group in await ours.list_groups()] == [GROUP]
        with pytest.raises(comet.TopicNotFound):
            await ours.describe_topic("secret")
        with pytest.raises(comet.Forbidden, match="client:billing may not delete topic") as refused:
            await ours.delete_records(TOPIC, 0, 0)
        assert "comet acl add" in str(refused.value.details)


async def test_clients_get_the_error_at_once(broker: Secured) -> None:
    await broker.allow([DESCRIBE])
    ours = comet.Bootstrap(broker.address, **broker.files)
    async with asyncio.timeout(30):
        async with comet.Producer(ours) as producer:
            with pytest.raises(comet.Forbidden, match="may not write topic"):
                await producer.publish(TOPIC, b"1")
        with pytest.raises(comet.Forbidden, match="may not read topic"):
            async with comet.Consumer(ours, TOPIC, start="earliest") as consumer:
                await anext(consumer)
        with pytest.raises(comet.Forbidden, match="may not read group"):
            async with comet.GroupConsumer(ours, TOPIC, group=GROUP) as consumer:
                await anext(consumer)
        with pytest.raises(comet.Forbidden, match="may not write transaction"):
            async with comet.TransactionalProducer(ours, TRANSACTION) as loader, loader.transaction():
                pass


async def test_a_topic_is_made_where_rules_allow_it(broker: Secured) -> None:
    ours = comet.Bootstrap(broker.address, **broker.files)
    await broker.allow([("write", "topic", "made")])
    async with comet.Producer(ours, create=True) as producer:
        with pytest.raises(comet.Forbidden, match=r"cannot make it: .*may not create"):
            await producer.publish("made", b"1")
        await broker.allow([("write", "topic", "made"), ("create", "topic", "made")])
        assert (await producer.publish("made", b"1")).offset == 0


async def test_a_rule_reaches_open_streams(broker: Secured) -> None:
    await broker.allow([READ, WRITE])
    ours = comet.Bootstrap(broker.address, **broker.files)
    async with comet.Producer(ours) as producer, comet.Consumer(ours, TOPIC, start="earliest") as consumer:
        await producer.publish(TOPIC, b"1")
        assert (await anext(consumer)).value == b"1"
        await broker.admin.access.add_rule("*", ["read"], comet.ResourceKind.TOPIC, "orders-*", deny=True)
        with pytest.raises(comet.CometError) as refused:
            async with asyncio.timeout(30):
                await anext(consumer)
        assert refused.value.code in DENIED
        await producer.publish(TOPIC, b"2")  # that was not taken away


async def test_a_role_is_granted_and_revoked_under_open_streams(broker: Secured) -> None:
    access = broker.admin.access
    for rule in (READ, WRITE):
        await access.add_rule("role:finance", [rule[0]], comet.ResourceKind(rule[1]), rule[2])
    ours = comet.Bootstrap(broker.address, **broker.files)
    async with comet.Producer(ours) as producer:
        with pytest.raises(comet.TopicNotFound):
            await producer.publish(TOPIC, b"0")
    assert (await access.grant_role("role:finance", ME)).changed
    assert not (await access.grant_role("role:finance", ME)).changed
    async with comet.Producer(ours) as producer, comet.Consumer(ours, TOPIC, start="earliest") as consumer:
        await producer.publish(TOPIC, b"1")
        assert (await anext(consumer)).value == b"1"
        (member,) = (await access.list_roles(principal=ME)).members
        assert (member.role, member.principal, member.author) == ("role:finance", ME, "client:admin")
        assert not (await access.list_roles(role="role:other")).members
        assert (await access.revoke_role("role:finance", ME)).changed
        with pytest.raises(comet.TopicNotFound):
            async with asyncio.timeout(30):
                await anext(consumer)
    assert not (await access.revoke_role("role:finance", ME)).changed


async def test_a_gateway_acts_for_a_user(broker: Secured, tmp_path: Path) -> None:
    authority = Authority.open(tmp_path / "security")
    files = files_of(authority, authority.issue_client("gateway"))
    await broker.admin.access.add_rule("role:readers", ["read"], comet.ResourceKind.TOPIC, TOPIC)
    await broker.admin.access.add_rule("user:ann", ["alter"], comet.ResourceKind.CLUSTER, "*")
    needs = [("read", "topic", TOPIC), ("write", "topic", TOPIC), ("read", "topic", "secret"), ("read", "group", "g")]
    async with comet.Admin(comet.Bootstrap(broker.address, **files)) as gateway:
        ann = gateway.acting_for("user:ann", ("role:readers",))
        found = (await ann.access.check(needs)).errors
        assert [error.code if error else "" for error in found] == ["", "FORBIDDEN", "TOPIC_NOT_FOUND", "FORBIDDEN"]
        assert "user:ann may not write topic" in str(found[1])
        assert [topic.name for topic in await ann.list_topics()] == [TOPIC]
        assert not await gateway.list_topics(), "it has no rules of its own"
        await ann.access.add_rule("user:bob", ["read"], comet.ResourceKind.TOPIC, TOPIC)
        (rule,) = (await broker.admin.access.list_rules(principal="user:bob")).rules
        assert rule.author == "user:ann"
        for name, why in (("client:admin", "may not act for a superuser"), ("client:billing", "acts for users")):
            with pytest.raises(comet.CometError, match=why):
                await gateway.acting_for(name).list_topics()
        with pytest.raises(comet.InvalidArgument, match="1001 needs in one request"):
            await ann.access.check(needs[:1] * 1001)
        with pytest.raises(comet.InvalidArgument, match="no operation 'alter'"):
            await ann.access.check([("alter", "transaction", "t")])
    async with comet.Admin(comet.Bootstrap(broker.address, **broker.files)) as other:
        with pytest.raises(comet.Forbidden, match="client:billing may not act for others"):
            await other.acting_for("user:ann").list_topics()


async def test_what_is_no_role_or_no_principal_is_refused(broker: Secured) -> None:
    access = broker.admin.access
    for role, principal in (("finance", ME), ("role:a", "role:b"), ("role:a", "*")):
        with pytest.raises(comet.InvalidArgument):
            await access.grant_role(role, principal)
    with pytest.raises(comet.InvalidArgument, match="is a role"):
        await access.create_access_key("role:finance")
    with pytest.raises(comet.InvalidArgument, match="is a role"):
        await access.set_quota("role:finance", requests=1)
    read, topic = comet.RuleOperation.READ, comet.ResourceKind.TOPIC
    with pytest.raises(comet.InvalidArgument, match="is not a role"):
        await access.explain_access(ME, read, topic, TOPIC, roles="finance")


async def test_a_client_without_rules_may_not_take_the_rules_away(broker: Secured) -> None:
    async with comet.Admin(comet.Bootstrap(broker.address, **broker.files)) as ours:
        for attempt in (ours.access.add_rule, ours.access.remove_rule):
            with pytest.raises(comet.Forbidden):
                await attempt(ME, ["alter"], comet.ResourceKind.CLUSTER, "*")
        for change in (ours.access.grant_role, ours.access.revoke_role):
            with pytest.raises(comet.Forbidden):
                await change("role:finance", ME)
    listed = await broker.admin.access.list_rules()
    assert listed.enforced and listed.superusers == ("client:admin",) and not listed.rules
    read, topic = comet.RuleOperation.READ, comet.ResourceKind.TOPIC
    assert not (await broker.admin.access.explain_access(ME, read, topic, "t")).allowed
