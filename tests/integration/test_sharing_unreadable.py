"""Share groups and records that cannot be read, or break whoever writes them elsewhere: they hold up no others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from crc32c import crc32c

from comet import records
from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as groups
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire.frames import produce_frame
from comet_broker.broker import Broker
from comet_broker.core.shares import Dead
from comet_broker.sharing.dead_letters import DeadLetters
from tests.integration.share_client import Member
from tests.integration.stream_client import Call, Client
from tests.poison import unchecked
from tests.waiting import until

REJECT = groups.ACKNOWLEDGE_TYPE_REJECT


@pytest.fixture
async def handle(broker: Broker, topic: types.Topic) -> int:
    return await Client(broker).attach()


@pytest.fixture
async def letters(call: Call) -> None:
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="dead", partitions=1))


async def send(broker: Broker, handle: int, data: bytes) -> None:
    client = Client(broker)
    client.session.receive(produce_frame(1, handle, 1, [data], len(data)))
    await client.answer()
    client.session.close()


async def produce(broker: Broker, handle: int, *values: bytes, **columns: Any) -> None:
    """One batch."""
    await send(broker, handle, b"".join(records.encode(list(values), timestamps=1_000, **columns)))


async def produce_spoiled(broker: Broker, handle: int, *values: bytes, **columns: Any) -> None:
    """One batch whose first column cannot be read, though its checksums hold, in a log of when leaders took such."""
    data = bytearray(b"".join(records.encode(list(values), timestamps=1_000, **columns)))
    second_offset = records.HEADER_BYTES + 4
    data[second_offset : second_offset + 4] = b"\xff\xff\xff\x7f"
    data[28:32] = crc32c(data[32:]).to_bytes(4, "little")
    with unchecked():
        await send(broker, handle, bytes(data))


@pytest.mark.usefixtures("letters")
async def test_a_dead_record_that_nobody_can_read_holds_up_no_other(broker: Broker, handle: int, call: Call) -> None:
    await produce_spoiled(broker, handle, b"a", b"b")
    await produce(broker, handle, b"bad")
    member = Member(broker)
    await member.share(handle, dead_letter="dead")
    while not await until(lambda: broker.shares.describe("g")[0].in_flight == 3, within_s=0):
        await member.shared()
    await member.acknowledge(handle, 0, 1, 2, kind=REJECT)
    assert await until(lambda: broker.shares.describe("g")[0].dead == 0, within_s=30), "none is left"
    fetched = await call("comet.v1.Comet/Fetch", pb.FetchRequest(topic="dead"))
    assert [record.value for record in fetched.records if record.HasField("value")] == [b"bad"]
    notes = [record for record in fetched.records if not record.HasField("value")]
    said = [{header.name: header.value for header in note.headers} for note in notes]
    ranges = [(one["comet-dead-letter-offset"], one["comet-dead-letter-end"]) for one in said]
    assert sorted(ranges) == [(b"0", b"1"), (b"1", b"2")], "of those that cannot be read there are notes"


@pytest.mark.usefixtures("letters")
async def test_what_breaks_while_one_is_written_has_no_other_written_twice(
    broker: Broker, handle: int, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    await produce(broker, handle, b"a", b"b")
    publish, may_write = DeadLetters._publish, asyncio.Event()
    tries: list[int] = []

    async def slow(self: DeadLetters, record: pb.Record, offset: int, dead: Dead) -> None:
        tries.append(offset)
        if tries.count(0) == 1 and offset == 0:
            raise RuntimeError("an unexpected error")
        await may_write.wait()
        await publish(self, record, offset, dead)

    monkeypatch.setattr(DeadLetters, "_publish", slow)
    member = Member(broker)
    await member.share(handle, dead_letter="dead")
    await member.take(2)
    await member.acknowledge(handle, 0, 1, kind=REJECT)
    state = broker.shares.state("g", broker.topics.by_handle[handle].topic_id, 0)
    assert state is not None
    assert await until(lambda: set(tries) == {0, 1} and bool(broker.env.tasks.failed), within_s=30)
    state.dead_letters.start()  # as the clock does, once a second
    await asyncio.sleep(0)
    may_write.set()
    assert await until(lambda: not state.shares.window.dead, within_s=30)
    fetched = await call("comet.v1.Comet/Fetch", pb.FetchRequest(topic="dead"))
    assert sorted(record.value for record in fetched.records) == [b"a", b"b"]
    broker.env.tasks.failed.clear()


async def test_keys_that_nobody_can_read_keep_nobody_from_what_is_behind_them(broker: Broker, handle: int) -> None:
    await produce_spoiled(broker, handle, b"a", b"b", keys=[b"k", b"l"])
    await produce(broker, handle, b"c", keys=[b"k"])
    member = Member(broker)
    await member.share(handle, by_key=True)
    firsts: list[int] = []
    while len(firsts) < 3:
        for lock in (await member.shared()).acquired:
            firsts += range(lock.first, lock.end)
        assert not member.ended
    assert firsts == [0, 1, 2]
