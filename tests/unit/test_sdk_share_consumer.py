"""Members of share groups: what is acquired, acknowledged, lost and given again. On virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from comet.app import App
from comet.errors import Closed, InvalidArgument, LimitExceeded, LockExpired, MemberUnknown, SerdeError, Timeout
from comet.share.acknowledgements import ranges_of
from comet.share.share_consumer import ShareConsumer, ShareRecord
from comet.v1 import groups_pb2 as groups_pb
from comet_testing.simulation.loop import run
from tests.unit.sdk_fake import ADDRESS
from tests.unit.sdk_fake_shares import ShareBroker
from tests.unit.test_sdk_consumer import fill as write

Scenario = Callable[[ShareBroker], Awaitable[None]]


def scenario(topics: dict[str, int] | None = None) -> Callable[[Scenario], Callable[[], None]]:
    def make(function: Scenario) -> Callable[[], None]:
        def test() -> None:
            run(lambda loop: function(ShareBroker(topics)))  # type: ignore[arg-type,return-value]

        test.__doc__ = function.__doc__
        return test

    return make


def sharer(broker: ShareBroker, **settings: Any) -> ShareConsumer[Any]:
    chosen = {"group": "work", "connect": broker.connect, "random": Random(5), "start": "earliest", **settings}
    return ShareConsumer(ADDRESS, "quotes", **chosen)


def fill(broker: ShareBroker, count: int, partition: int = 0, per_batch: int = 1) -> None:
    write(broker, [b"%d" % n for n in range(count)], partition, per_batch)
    broker.acquire()


async def take(consumer: ShareConsumer[Any], count: int) -> list[ShareRecord[Any]]:
    found: list[ShareRecord[Any]] = []
    for _ in range(count):
        record = await consumer.get(timeout_s=20)
        assert record is not None, f"nothing came after {found}"
        found.append(record)
    return found


def said(broker: ShareBroker) -> list[tuple[int, list[tuple[int, int]]]]:
    return [(one.kind, list(zip(one.firsts, one.ends, strict=True))) for one in broker.acknowledgements]


@scenario({"quotes": 2})
async def test_members_share_the_records_of_all_partitions(broker: ShareBroker) -> None:
    async with sharer(broker, in_flight=3) as a, sharer(broker, in_flight=3) as b:
        fill(broker, 6, 0, per_batch=6)
        fill(broker, 4, 1)
        seen: list[tuple[int, int]] = []
        for consumer in (a, b) * 3:
            for record in await take(consumer, 1):
                assert record.value == b"%d" % record.offset
                assert record.delivery_count == 1
                seen.append((record.partition, record.offset))
                await record.ack()
        assert len(set(seen)) == 6
        while len(seen) < 10:
            for consumer in (a, b):
                found = await consumer.get(timeout_s=0.1)
                if found is not None:
                    seen.append((found.partition, found.offset))
                    await found.ack()
        assert sorted(seen) == [(0, n) for n in range(6)] + [(1, n) for n in range(4)]


@scenario()
async def test_what_is_said_in_one_turn_goes_out_as_ranges(broker: ShareBroker) -> None:
    fill(broker, 10, per_batch=10)
    async with sharer(broker) as c:
        records = await take(c, 10)
        acknowledging = [record.ack() for record in records if record.offset not in {3, 7}]
        acknowledging += [records[3].nack(), records[7].reject("it is broken")]
        for one in acknowledging:
            await one
        accept, release, reject = (
            groups_pb.ACKNOWLEDGE_TYPE_ACCEPT, groups_pb.ACKNOWLEDGE_TYPE_RELEASE, groups_pb.ACKNOWLEDGE_TYPE_REJECT,
        )  # fmt: skip
        assert said(broker) == [(accept, [(0, 3), (4, 7), (8, 10)]), (release, [(3, 4)]), (reject, [(7, 8)])]
        assert broker.acknowledgements[2].reason == "it is broken"
        again = await take(c, 1)
        assert (again[0].offset, again[0].delivery_count) == (3, 2)
        assert c.statistics()["acquired"] == 1


@scenario()
async def test_a_record_may_be_given_back_for_a_while(broker: ShareBroker) -> None:
    fill(broker, 1)
    async with sharer(broker) as c:
        (record,) = await take(c, 1)
        await record.nack(delay_ms=5_000)
        assert await c.get(timeout_s=4.9) is None
        assert (await take(c, 1))[0].delivery_count == 2


@scenario()
async def test_whoever_waits_hears_that_the_lock_was_lost_and_nobody_else(broker: ShareBroker) -> None:
    fill(broker, 3, per_batch=3)
    async with sharer(broker) as c:
        records = await take(c, 3)
        broker.expire(1)
        acknowledging = [record.ack() for record in records]
        await acknowledging[0]
        with pytest.raises(LockExpired):
            await acknowledging[1]
        await acknowledging[2]


def test_what_nobody_waits_for_is_logged_where_it_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    @scenario()
    async def check(broker: ShareBroker) -> None:
        fill(broker, 1)
        async with sharer(broker) as c:
            (record,) = await take(c, 1)
            broker.expire(0)
            record.ack()
            await asyncio.sleep(0.1)

    with caplog.at_level(logging.WARNING, "comet"):
        check()
    assert "accept of 1 records" in caplog.text


@scenario()
async def test_a_lost_connection_ends_its_locks_and_sharing_goes_on(broker: ShareBroker) -> None:
    fill(broker, 4, per_batch=4)
    async with sharer(broker) as c:
        first, second = await take(c, 2)
        await first.ack()
        broker.cut()
        with pytest.raises(LockExpired):
            await second.ack()
        again = await take(c, 3)
        assert [(record.offset, record.delivery_count) for record in again] == [(1, 2), (2, 2), (3, 2)]
        for record in again:
            await record.ack()


@scenario({"quotes": 1, "orders": 1})
async def test_what_its_topics_have_become_is_shared_after_it_has_joined_anew(broker: ShareBroker) -> None:
    async with sharer(broker) as c:
        broker.give("member-1", [("quotes", 0), ("orders", 0)])
        await asyncio.sleep(0.1)
        assert len(c.assignment()) == 2
        broker.evict("member-1", MemberUnknown("its session has ended"))
        await asyncio.sleep(1)
        assert [tuple(tp) for tp in c.assignment()] == [("quotes", 0)]
        assert len(broker.shares_asked) == 2


@scenario()
async def test_what_was_not_taken_when_the_connection_was_lost_is_not_kept(broker: ShareBroker) -> None:
    fill(broker, 50, per_batch=50)
    async with sharer(broker) as c:
        await asyncio.sleep(0.1)
        for _ in range(5):
            broker.cut()
            await asyncio.sleep(2)
        assert c.statistics()["acquired"] == 50
        assert len(c._fetcher._shared) == 1
        records = await take(c, 50)
        assert {record.delivery_count for record in records} == {6}


@scenario()
async def test_a_connection_lost_with_the_answer_leaves_it_unknown(broker: ShareBroker) -> None:
    fill(broker, 1)
    async with sharer(broker) as c:
        (record,) = await take(c, 1)
        broker.refuse = lambda kind, frame: broker.cut() if kind == "acknowledge" else None
        with pytest.raises(Timeout):
            await record.ack()


@scenario()
async def test_locks_are_extended_where_that_was_asked_for(broker: ShareBroker) -> None:
    fill(broker, 2, per_batch=2)
    async with sharer(broker, lock_ms=4_000, renew=True) as c:
        (record,) = await take(c, 1)
        await asyncio.sleep(20)
        extended = [one for one in said(broker) if one[0] == groups_pb.ACKNOWLEDGE_TYPE_EXTEND]
        assert len(extended) >= 5
        assert extended[0][1] == [(0, 2)], "also what waits to be taken"
        await record.ack()
        await (await take(c, 1))[0].ack()
    async with sharer(broker, lock_ms=4_000) as c:
        fill(broker, 1)
        broker.acknowledgements.clear()
        await asyncio.sleep(5)
        assert await c.get(timeout_s=1) is None, "its lock had ended before it was taken"
        assert c.statistics()["expired"] == 1
        assert broker.acknowledgements == []


@scenario()
async def test_what_was_said_is_kept_before_it_closes(broker: ShareBroker) -> None:
    fill(broker, 5, per_batch=5)
    full = iter([LimitExceeded("wait", retry_after_ms=500)])
    broker.refuse = lambda kind, frame: next(full, None) if kind == "acknowledge" else None
    async with sharer(broker) as c:
        for record in await take(c, 3):
            record.ack()
    assert said(broker) == [(groups_pb.ACKNOWLEDGE_TYPE_ACCEPT, [(0, 3)])]
    assert broker.left == ["member-1"]


@scenario()
async def test_a_value_that_cannot_be_decoded_is_rejected_and_raised(broker: ShareBroker) -> None:
    write(broker, [b"1", b"x", b"3"], per_batch=3)
    async with sharer(broker, type=int) as c:
        assert (await take(c, 1))[0].value == 1
        with pytest.raises(SerdeError) as caught:
            await c.get(timeout_s=1)
        assert caught.value.details["offset"] == "1"
        assert (await take(c, 1))[0].value == 3
        await asyncio.sleep(0.1)
        assert said(broker) == [(groups_pb.ACKNOWLEDGE_TYPE_REJECT, [(1, 2)])]


@scenario({"quotes": 2})
async def test_in_flight_and_the_groups_settings_are_said_to_the_leader(broker: ShareBroker) -> None:
    settings = {"in_flight": 7, "deliveries_max": 3, "dead_letter": "dead", "by_key": True, "lock_ms": 1_000}
    async with sharer(broker, **settings):
        (share,) = broker.shares_asked
        assert (share.in_flight_max, len(share.partitions), share.member) == (7, 2, "member-1")
        options = share.options
        assert (options.deliveries_max, options.dead_letter, options.by_key, options.lock_ms) == (
            3,
            "dead",
            True,
            1_000,
        )
        assert options.start.earliest


@scenario()
async def test_a_member_that_is_put_out_joins_again_and_goes_on_with_its_locks(broker: ShareBroker) -> None:
    fill(broker, 2, per_batch=2)
    async with sharer(broker) as c:
        first, second = await take(c, 2)
        broker.evict("member-1", MemberUnknown("its session has ended"))
        await asyncio.sleep(1)
        assert c.member == "member-2"
        await first.ack()
        await second.ack()
        assert len(broker.shares_asked) == 1


@scenario()
async def test_what_the_leader_refuses_is_raised(broker: ShareBroker) -> None:
    refusal = InvalidArgument("the group has other settings")
    broker.refuse = lambda kind, frame: refusal if kind == "share" else None
    async with sharer(broker) as c:
        with pytest.raises(InvalidArgument):
            await c.get(timeout_s=5)


@scenario()
async def test_a_leader_that_has_too_much_to_keep_is_told_again(broker: ShareBroker) -> None:
    fill(broker, 1)
    full = iter([LimitExceeded("wait", retry_after_ms=50)] * 3)
    broker.refuse = lambda kind, frame: next(full, None) if kind == "acknowledge" else None
    async with sharer(broker) as c:
        await (await take(c, 1))[0].ack()
        assert said(broker) == [(groups_pb.ACKNOWLEDGE_TYPE_ACCEPT, [(0, 1)])]


@scenario()
async def test_who_waits_for_what_was_said_hears_that_it_is_closed(broker: ShareBroker) -> None:
    fill(broker, 1)
    full = LimitExceeded("wait", retry_after_ms=500)
    broker.refuse = lambda kind, frame: full if kind == "acknowledge" else None

    async def ack(record: ShareRecord[Any]) -> None:
        await record.ack()

    async with sharer(broker) as c:
        acking = asyncio.ensure_future(ack((await take(c, 1))[0]))
        await asyncio.sleep(0.1)
    async with asyncio.timeout(1):
        with pytest.raises(Closed):
            await acking


@scenario()
async def test_a_handler_that_fails_ends_its_app_though_nothing_more_comes(broker: ShareBroker) -> None:
    fill(broker, 1)
    app = App(ADDRESS, connect=broker.connect, random=Random(4))

    @app.on("quotes", group="work", shared=True, start="earliest", retries=0)
    async def handle(_: ShareRecord[bytes]) -> None:
        raise KeyError

    async with asyncio.timeout(60):
        with pytest.raises(KeyError):
            await app.serve()
    assert broker.left == ["member-1"]


@pytest.mark.parametrize(
    ("offsets", "ranges"), [([], []), ([0], [(0, 1)]), ([4, 2, 3], [(2, 5)]), ([9, 1, 2, 1], [(1, 3), (9, 10)])]
)
def test_offsets_become_ranges(offsets: list[int], ranges: list[tuple[int, int]]) -> None:
    assert ranges_of(offsets) == ranges


@pytest.mark.parametrize("settings", [{"in_flight": 0}, {"lock_ms": 0}, {"deliveries_max": -1}, {"dead_letter": "/"}])
def test_what_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        sharer(ShareBroker(), **settings)
