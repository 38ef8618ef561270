"""A topic as a table of keys: conditions against what is not committed yet, transactions, deletion, rebuilding."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import pytest

import comet
import comet.testing
from comet.records import partition_for
from comet.v1 import admin_pb2 as admin
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire.protobuf import error_from_pb
from comet_broker import limits
from comet_broker.broker import Broker
from comet_broker.core.quotas import Quota
from comet_broker.key_values.table import KeyTable
from comet_broker.key_values.view import KeyView
from tests.integration.stream_client import Call, Client

ABSENT = -1
HOUR_MS = 3_600_000
FLUSHED = types.TopicConfig(flush=types.FLUSH_POLICY_ALWAYS)


def conditional(key: bytes, value: bytes | None, expected: int | None, **more: Any) -> pb.PublishRequest:
    record = pb.Record(key=key, value=value, expected=expected)
    return pb.PublishRequest(topic="t", partition=0, records=[record], acks=types.ACKS_ALL, **more)


async def topic(call: Call, partitions: int = 1) -> None:
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="t", partitions=partitions, config=FLUSHED))


# ---- frames


async def test_a_condition_sees_records_that_are_not_committed_yet(broker: Broker, call: Call) -> None:
    """Both are taken in one turn; no fsync comes between, so the first is committed after the second is compared."""
    await topic(call)
    client = Client(broker)
    client.send(publish=conditional(b"k", b"0", ABSENT))
    await client.answer()
    first = client.send(publish=conditional(b"k", b"1", 0))
    second = client.send(publish=conditional(b"k", b"2", 0))
    third = client.send(publish=conditional(b"other", b"3", ABSENT))
    answers = {answer.request: answer for answer in [await client.answer() for _ in range(3)]}
    assert answers[first].published.receipts[0].offset == 1
    error = error_from_pb(answers[second].error.error)
    assert isinstance(error, comet.RevisionMismatch)
    assert error.revision == 1
    assert answers[third].published.receipts[0].offset == 2


async def test_a_mismatch_is_told_once_the_record_it_names_is_committed(broker: Broker, call: Call) -> None:
    await topic(call)
    client = Client(broker)
    client.send(publish=conditional(b"k", b"0", ABSENT))
    await client.answer()
    taken = client.send(publish=conditional(b"k", None, 0))
    refused = client.send(publish=conditional(b"k", b"2", 0))
    answers = [await client.answer(), await client.answer()]
    assert [answer.request for answer in answers] == [taken, refused]
    assert error_from_pb(answers[1].error.error).details == {"revision": "-1"}


async def test_a_write_that_is_sent_again_is_written_once_and_not_its_own_mismatch(broker: Broker, call: Call) -> None:
    await topic(call)
    client = Client(broker)
    request = conditional(b"k", b"0", ABSENT, idempotency_key="one")
    for duplicate in (False, True):
        client.send(publish=request)
        (receipt,) = (await client.answer()).published.receipts
        assert (receipt.offset, receipt.duplicate) == (0, duplicate)
    again = await call("comet.v1.Comet/Publish", request)
    assert again.receipts[0].duplicate


async def test_a_refused_request_writes_nothing(broker: Broker, call: Call) -> None:
    await topic(call)
    both = conditional(b"a", b"1", ABSENT)
    both.records.append(pb.Record(key=b"b", value=b"1", expected=7))
    with pytest.raises(comet.RevisionMismatch):
        await call("comet.v1.Comet/Publish", both)
    assert broker.topics.partition("t", 0).log.log_end == 0
    both.records[1].expected = ABSENT
    assert [one.offset for one in (await call("comet.v1.Comet/Publish", both)).receipts] == [0, 1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"acks": types.ACKS_LEADER, "records": [pb.Record(key=b"a", expected=0)]}, "acks=all"),
        ({"records": [pb.Record(value=b"1", expected=0)]}, "needs a key"),
        ({"records": [pb.Record(key=b"a", expected=-2)]}, "-1 for a key without a value"),
        ({"records": [pb.Record(key=b"a", expected=0), pb.Record(key=b"a")]}, "different keys"),
        (
            {"partition": None, "records": [pb.Record(key=b"a", expected=0, partition=at) for at in (0, 1)]},
            "go to one partition",
        ),
    ],
)
async def test_a_condition_that_cannot_be_compared_is_refused(
    broker: Broker, call: Call, change: dict[str, Any], why: str
) -> None:
    await topic(call, partitions=2)
    request = {"topic": "t", "partition": 0, "acks": types.ACKS_ALL, **change}
    with pytest.raises(comet.InvalidArgument, match=why):
        await call("comet.v1.Comet/Publish", pb.PublishRequest(**request))
    assert broker.topics.partition("t", 0).log.log_end == 0


@pytest.mark.parametrize(
    "change", [{"partition": None}, {"acks": types.ACKS_NONE}, {"forwarded": True}, {"content_digest": 1}]
)
async def test_a_publish_on_a_stream_is_to_one_partition_and_from_a_client(
    broker: Broker, call: Call, change: dict[str, Any]
) -> None:
    await topic(call)
    client = Client(broker)
    request = {"topic": "t", "partition": 0, "acks": types.ACKS_ALL, "records": [pb.Record(value=b"1")], **change}
    client.send(publish=pb.PublishRequest(**request))
    assert isinstance(error_from_pb((await client.answer()).error.error), comet.InvalidArgument)


@pytest.mark.parametrize(
    "what",
    [
        {},
        {"keys": pb.KeyList()},
        {"keys": pb.KeyList(keys=[b"a"] * (limits.READ_KEYS_MAX + 1))},
        {"range": pb.KeyRange(limit=limits.READ_KEYS_MAX + 1)},
        {"revision": pb.KeyRevision(key=b"a", revision=-1)},
    ],
)
async def test_a_read_beyond_its_limits_is_refused(broker: Broker, call: Call, what: dict[str, Any]) -> None:
    await topic(call)
    with pytest.raises(comet.InvalidArgument):
        await call("comet.v1.Comet/ReadKeys", pb.ReadKeysRequest(topic="t", **what))
    client = Client(broker)
    client.send(read_keys=pb.ReadKeysRequest(topic="t", **what))
    assert isinstance(error_from_pb((await client.answer()).error.error), comet.InvalidArgument)


async def test_a_record_without_a_key_is_no_revision_of_an_empty_one(broker: Broker, call: Call) -> None:
    await topic(call)
    records = [pb.Record(value=b"no key"), pb.Record(key=b"", value=b"an empty key")]
    await call(
        "comet.v1.Comet/Publish", pb.PublishRequest(topic="t", partition=0, records=records, acks=types.ACKS_ALL)
    )
    for revision, found in ((0, []), (1, [b"an empty key"])):
        request = pb.ReadKeysRequest(topic="t", revision=pb.KeyRevision(key=b"", revision=revision))
        answer = await call("comet.v1.Comet/ReadKeys", request)
        assert [record.value for record in answer.records] == found


async def test_answers_are_bounded(broker: Broker, call: Call) -> None:
    await topic(call)
    keys = [b"%d" % at for at in range(5)]
    for key in keys:
        record = pb.Record(key=key, value=bytes(400_000))
        await call("comet.v1.Comet/Publish", pb.PublishRequest(topic="t", records=[record], acks=types.ACKS_ALL))
    with pytest.raises(comet.InvalidArgument, match="fewer keys"):
        await call("comet.v1.Comet/ReadKeys", pb.ReadKeysRequest(topic="t", keys=pb.KeyList(keys=keys)))
    found: list[bytes] = []
    after: bytes | None = None
    while True:
        wanted = pb.ReadKeysRequest(topic="t", range=pb.KeyRange(after=after))
        answer = await call("comet.v1.Comet/ReadKeys", wanted)
        assert 1 <= len(answer.records) <= 3
        found += [record.key for record in answer.records]
        if not answer.HasField("after"):
            break
        after = answer.after
    assert found == keys


async def test_answers_count_for_the_quota_of_their_client(broker: Broker, call: Call) -> None:
    await topic(call)
    record = pb.Record(key=b"a", value=bytes(100_000))
    await call("comet.v1.Comet/Publish", pb.PublishRequest(topic="t", records=[record], acks=types.ACKS_ALL))
    client = Client(broker)
    usage = client.session.client.usage
    usage.set_quota(Quota("client:test", bytes_out=10_000))
    wanted = pb.ReadKeysRequest(topic="t", keys=pb.KeyList(keys=[b"a"]))
    client.send(read_keys=wanted)
    assert (await client.answer()).keys.records[0].value == record.value
    assert usage.send_later_s() > 5
    client.send(read_keys=wanted)
    assert not client.session.answers.frames, "it waits until the debt is paid"


# ---- a KV


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with comet.testing.broker({"t": 3}) as one:
        yield one.address


@pytest.fixture
async def kv(address: str) -> AsyncIterator[comet.KV[Any]]:
    async with comet.KV(address, "t", type=int, timeout_ms=10_000) as one:
        yield one


async def test_create_update_and_delete_compare_revisions(kv: comet.KV[int]) -> None:
    first = await kv.create("a", 1)
    with pytest.raises(comet.RevisionMismatch) as refused:
        await kv.create("a", 2)
    assert refused.value.revision == first
    second = await kv.update("a", 2, first)
    with pytest.raises(comet.RevisionMismatch):
        await kv.delete("a", first)
    gone = await kv.delete("a", second)
    assert await kv.get("a") is None
    assert await kv.delete("a") is None
    with pytest.raises(comet.RevisionMismatch) as refused:
        await kv.update("a", 3, second)
    assert refused.value.revision == -1
    third = await kv.create("a", 3)  # over a tombstone, in one trip
    history = [(one.revision, one.value, one.ended) for one in await kv.history("a")]
    assert history == [(third, 3, None), (gone, None, second), (second, 2, None), (first, 1, None)]
    assert await kv.get("a", revision=first) == (await kv.history("a"))[3]
    assert await kv.get("a", revision=third + 100) is None
    assert await kv.get("b", revision=first) is None


async def test_records_of_any_producer_count(kv: comet.KV[int], address: str) -> None:
    async with comet.Producer(address) as producer:
        receipt = await producer.publish("t", 7, key="a")
        found = await kv.get("a")
        assert found is not None
        assert (found.value, found.revision) == (7, receipt.offset)
        await producer.publish("t", None, key="a")
        assert await kv.get("a") is None
        await producer.publish("t", 8)  # without a key
        assert await kv.keys() == []


async def test_only_committed_transactions_count(address: str) -> None:
    async with (
        comet.KV(address, "t", type=int, timeout_ms=300) as kv,
        comet.TransactionalProducer(address, "writer") as producer,
    ):
        first = await kv.put("a", 1)
        async with producer.transaction() as transaction:
            await (await transaction.send("t", 2, key="a"))
            await (await transaction.send("t", 3, key="a"))
            found = await kv.get("a")
            assert found is not None
            assert found.value == 1
            with pytest.raises((comet.Unavailable, comet.Timeout)):  # neither 1 nor 3 is known to be the last
                await kv.update("a", 4, first)
        found = await kv.get("a")
        assert found is not None
        assert found.value == 3
        assert [one.value for one in await kv.history("a")] == [3, 2, 1]
        transaction = producer.transaction()
        await transaction.__aenter__()
        lost = await (await transaction.send("t", 5, key="a"))
        await transaction.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
        assert await kv.get("a") == found
        assert await kv.get("a", revision=lost.offset) is None
        assert await kv.update("a", 6, found.revision) > lost.offset


async def test_writes_at_once_are_refused_or_written_each_for_itself(kv: comet.KV[int]) -> None:
    taken = {at: await kv.create(f"{at}", -1) for at in (3, 11)}
    results = await asyncio.gather(*[kv.create(f"{at}", at) for at in range(20)], return_exceptions=True)
    assert {
        at: result.revision for at, result in enumerate(results) if isinstance(result, comet.RevisionMismatch)
    } == taken
    found = {entry.key: (entry.value, entry.revision) for entry in await kv.entries()}
    written = {at: (at, result) for at, result in enumerate(results) if isinstance(result, int)}
    assert found == {b"%d" % at: entry for at, entry in (written | {at: (-1, taken[at]) for at in taken}).items()}


async def test_a_write_beside_one_whose_key_is_undecided_does_not_wait(address: str) -> None:
    async with (
        comet.KV(address, "t", type=int) as kv,
        comet.TransactionalProducer(address, "writer") as producer,
    ):
        first, second = [f"{at}" for at in range(30) if partition_for(b"%d" % at, 3) == 0][:2]
        transaction = producer.transaction()
        await transaction.__aenter__()
        await (await transaction.send("t", 1, key=first))
        waiting, other = [asyncio.create_task(kv.create(key, 2)) for key in (first, second)]
        await other
        assert not waiting.done()
        await transaction.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
        assert await waiting > await other


async def test_deleted_records_are_gone_from_the_keys(kv: comet.KV[int], address: str) -> None:
    first = await kv.create("a", 1)
    assert await kv.get("a")
    async with comet.Admin(address) as ours:
        for at, partition in enumerate((await ours.describe_topic("t")).partitions):
            if partition.log_end:
                await ours.delete_records("t", at, first + 1)
    assert await kv.get("a") is None
    assert await kv.keys() == []
    assert await kv.history("a") == []
    assert await kv.get("a", revision=first) is None
    await kv.create("a", 2)


async def test_the_keys_are_read_from_the_log(kv: comet.KV[int], address: str) -> None:
    """More than is taken in at once, in batches of many records, before and after the keys are first asked for."""
    count = 60_000
    async with comet.Producer(address, compression="lz4") as producer:
        await (await producer.send_many("t", list(range(count)), keys=[f"key-{at % 20_000}" for at in range(count)]))
        found = [await kv.get(f"key-{at}") for at in range(0, 20_000, 3_001)]
        assert [one and one.value for one in found] == list(range(40_000, count, 3_001))
        await (await producer.send_many("t", list(range(count)), keys=[f"key-{at % 20_000}" for at in range(count)]))
        revision = (await kv.history("key-1", 2))[0].revision
        assert await kv.update("key-1", -1, revision) > revision
        assert len(await kv.keys("key-1", limit=1_000)) == 1_000


async def test_a_table_that_fails_is_made_again(kv: comet.KV[int], monkeypatch: pytest.MonkeyPatch) -> None:
    await kv.put("a", 1)
    assert await kv.get("a")
    failures = iter([sqlite3.OperationalError("database or disk is full")])
    real, made = KeyTable.put, KeyTable.__init__
    tables = 0

    def count(self: KeyTable) -> None:
        nonlocal tables
        tables += 1
        made(self)

    def put(self: KeyTable, *row: Any) -> None:
        for error in failures:
            raise error
        real(self, *row)

    monkeypatch.setattr(KeyTable, "put", put)
    monkeypatch.setattr(KeyTable, "__init__", count)
    await kv.put("a", 2)
    found = await kv.get("a")
    assert found is not None
    assert found.value == 2
    assert next(failures, None) is None
    assert tables == 1


async def test_a_view_takes_in_a_written_record_at_once_unless_it_holds_too_many_undecided_ones(
    kv: comet.KV[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    views = list[tuple[KeyView, bool]]()
    real = KeyView.appended

    def appended(self: KeyView, *batch: Any) -> None:
        real(self, *batch)
        views.append((self, self.read_end == self.partition.log.log_end))

    monkeypatch.setattr(KeyView, "appended", appended)
    first = await kv.create("a", 1)
    monkeypatch.setattr(limits, "KEY_PENDING_MAX", 0)
    await kv.update("a", 2, first)
    assert [taken for _, taken in views] == [True, False]
    monkeypatch.undo()
    found = await kv.get("a")
    assert found is not None
    assert found.value == 2


async def test_partitions_take_turns_beyond_the_limit(kv: comet.KV[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEY_VIEWS_MAX", 1)
    keys = [f"{at}" for at in range(12)]
    with pytest.raises(comet.LimitExceeded, match="keys of 1 partitions"):
        await _create_quickly(kv, keys)
    monkeypatch.setattr(limits, "KEY_VIEW_IDLE_S_MIN", 0.0)
    for at, key in enumerate(keys):
        await kv.put(key, at)
    assert [one.value for one in await asyncio.gather(*map(kv.get, keys)) if one] == list(range(12))


async def _create_quickly(kv: comet.KV[int], keys: list[str]) -> None:
    async with comet.KV(kv._addresses, kv.topic, type=int, timeout_ms=200) as hurried:
        for key in keys:
            await hurried.create(key, 0)


async def test_a_watch_has_the_last_value_of_each_key_and_every_change(kv: comet.KV[int]) -> None:
    for at in range(2_500):
        await kv.put(f"w{at:04}", at)
    await kv.delete("w0007")
    await kv.put("other", 1)
    seen: dict[bytes, int | None] = {}
    async with kv.watch("w") as changes:
        async for entry in changes:
            if entry is None:
                break
            assert entry.key not in seen
            seen[entry.key] = entry.value
        assert seen == {f"w{at:04}".encode(): at for at in range(2_500) if at != 7}
        assert changes.complete
        await kv.put("other", 2)
        await kv.put("w0001", -1)
        gone = await kv.delete("w0001")
        found = [await anext(changes), await anext(changes)]
        assert [one and (one.key, one.value) for one in found] == [(b"w0001", -1), (b"w0001", None)]
        assert found[1] is not None
        assert (found[1].revision, found[1].ended) == (gone, found[0] and found[0].revision)
    with pytest.raises(comet.Closed):
        await anext(changes)


async def test_entries_and_watches_say_when_a_value_expires(kv: comet.KV[int]) -> None:
    await kv.put("lasting", 1)
    await kv.put("lived", 1, ttl_ms=HOUR_MS)
    async with kv.watch() as changes:
        found = {entry.key: entry async for entry in _until_complete(changes)}
        await kv.put("lived", 2, ttl_ms=2 * HOUR_MS)
        await kv.put("lasting", 2)
        found |= {b"%b again" % entry.key: entry for entry in [await anext(changes), await anext(changes)] if entry}
    found[b"read"] = await kv.get("lived")  # type: ignore[assignment] # it has a value
    hours = {
        key: entry.expires_us and (entry.expires_us - entry.timestamp_us) / HOUR_MS for key, entry in found.items()
    }
    assert hours == {
        b"lasting": 0, b"lived": 1_000, b"lived again": 2_000, b"lasting again": 0, b"read": 2_000,
    }  # fmt: skip


async def _until_complete(changes: comet.KVWatch[int]) -> AsyncIterator[comet.KVEntry[int]]:
    async for entry in changes:
        if entry is None:
            return
        yield entry


async def test_a_watch_loses_and_repeats_nothing_while_keys_change(kv: comet.KV[int]) -> None:
    """Changes between the pages of what was there, and behind an open transaction, come once and in order."""
    for at in range(1_500):
        await kv.put(f"k{at}", 0)
    stop = asyncio.Event()
    last: dict[str, int] = {}

    async def write() -> None:
        at = 0
        while not stop.is_set():
            at += 1
            last[f"k{at % 1_500}"] = at
            await kv.put(f"k{at % 1_500}", at)

    writing = asyncio.create_task(write())
    values: dict[str, int] = {}
    revisions: dict[bytes, int] = {}
    async with asyncio.timeout(60), kv.watch() as changes:
        async for entry in changes:
            if entry is None:
                continue
            assert entry.revision > revisions.get(entry.key, -1), "a key's revisions rise"
            revisions[entry.key] = entry.revision
            assert entry.value is not None
            values[entry.key.decode()] = entry.value
            if changes.complete and not stop.is_set() and len(last) > 500:
                stop.set()
                await writing
            if stop.is_set() and last.items() <= values.items():
                break


async def test_a_watch_repeats_nothing_behind_an_open_transaction(address: str) -> None:
    """Changes are followed from the first record of the transaction on, and those behind it were shown already."""
    async with comet.Admin(address) as admin:
        await admin.create_topic("one")
    async with (
        comet.KV(address, "one", type=int) as kv,
        comet.TransactionalProducer(address, "writer") as producer,
    ):
        async with producer.transaction() as transaction:
            await (await transaction.send("one", 1, key="a"))
            for value in (2, 3):
                await kv.put("b", value)
            changes = kv.watch()
            found = [await anext(changes), await anext(changes)]
        await kv.put("b", 4)
        found += [await anext(changes), await anext(changes)]
        await changes.close()
    assert [one and (one.key, one.value) for one in found] == [(b"b", 3), None, (b"a", 1), (b"b", 4)]


async def test_entries_are_paged_over_all_partitions(kv: comet.KV[int]) -> None:
    names = sorted(f"{at}" for at in range(25))
    for name in names:
        await kv.put(name, int(name))
    found: list[str] = []
    while page := await kv.keys(limit=4, after=found[-1] if found else None):
        assert len(page) <= 4
        found += [key.decode() for key in page]
    assert found == names
    assert await kv.keys("1", limit=3) == [b"1", b"10", b"11"]


@pytest.mark.parametrize("key", ["", b""])
async def test_a_key_is_not_empty(kv: comet.KV[int], key: str | bytes) -> None:
    with pytest.raises(comet.InvalidArgument):
        await kv.put(key, 1)
    with pytest.raises(comet.InvalidArgument):
        await kv.get(key)
