"""How the SDK looks to a type checker. Nothing here runs: mypy must accept all of it as it is (see test_typing)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, assert_type

import comet
import comet.sync
import comet.testing


@comet.model
class Quote:
    symbol: str
    bid: float = 0.0


async def producing() -> None:
    async with comet.Producer("localhost:9092", acks="all", compression="zstd") as producer:
        assert_type(producer, comet.Producer)
        delivery = await producer.send("quotes", Quote("EURUSD"), key="EURUSD", headers={"a": b"b"})
        assert_type(delivery, comet.Delivery)
        assert_type(await delivery, comet.Receipt)
        assert_type(await producer.publish("quotes", b"x", headers=[("a", "b")]), comet.Receipt)
        assert_type(await (await producer.send_many("quotes", [b"1"])), list[comet.ReceiptRange])
        assert_type(delivery.exception(), comet.CometError | None)
        later = await producer.send("quotes", b"x", delay="5m", schedule_id="a")
        assert_type(later, comet.ScheduledDelivery)
        assert_type(await later, comet.ScheduledReceipt)
        due = datetime(2026, 12, 1, tzinfo=UTC)
        assert_type(await producer.publish("quotes", b"x", due=due), comet.ScheduledReceipt)


async def consuming() -> None:
    async with comet.Consumer("localhost:9092", "quotes", start="earliest") as plain:
        assert_type(plain, comet.Consumer[bytes])
        async for record in plain:
            assert_type(record, comet.Record[bytes])
            assert_type(record.value, bytes)
            assert_type(record.key, bytes | None)
            assert_type(record.headers, list[tuple[str, bytes]])
    async with comet.Consumer("localhost:9092", "quotes", type=Quote, start="-1h") as typed:
        assert_type(typed, comet.Consumer[Quote])
        async for event in typed:
            assert_type(event.value.bid, float)
        async for batch in typed.batches():
            assert_type(batch, comet.RecordBatch[Quote])
            assert_type(batch.models(), list[Quote])
        assert_type(await typed.get(timeout_s=1), comet.Record[Quote] | None)
        assert_type(typed.positions(), dict[int, int])
    assert_type(
        comet.Consumer("localhost:9092", "quotes", type=dict[str, int], start="earliest"),
        comet.Consumer[dict[str, int]],
    )
    comet.Consumer("localhost:9092", "quotes", read_from="nearest", rack="a", on_gap=lost, start="earliest")


async def frames() -> None:
    scan = comet.read("quotes", start="-1h", end={0: 5}, type=Quote, columns=["bid"], partitions=[0])
    assert_type(scan, comet.Scan)
    assert_type(comet.write_frame(scan, "copies", key="symbol", value=["bid"], acks="all"), int)
    async with comet.Consumer("localhost:9092", "quotes", start="earliest") as consumer:
        async for table in consumer.arrow(rows_max=10):
            print(table)


async def in_groups() -> None:
    async with comet.GroupConsumer("localhost:9092", "quotes", "trades", group="engine") as plain:
        assert_type(plain, comet.GroupConsumer[bytes])
    comet.GroupConsumer("localhost:9092", pattern="quotes-.*", group="engine", on_assigned=print, on_revoked=released)
    async with comet.GroupConsumer("localhost:9092", "quotes", group="engine", type=Quote, start="-1h") as typed:
        assert_type(typed, comet.GroupConsumer[Quote])
        async for record in typed:
            assert_type(record.value.bid, float)
            await typed.commit(record)
            await typed.commit([record])
            await typed.commit({("quotes", 0): 5})
        async for batch in typed.batches():
            assert_type(batch, comet.RecordBatch[Quote])
            await typed.commit(batch)
        await typed.commit(typed.positions())
        assert_type(typed.assignment(), list[comet.TopicPartition])
        assert_type(typed.committed(), dict[comet.TopicPartition, int])
    async with comet.ShareConsumer("localhost:9092", "orders", group="work", type=Quote, in_flight=100) as sharer:
        async for shared in sharer:
            assert_type(shared, comet.ShareRecord[Quote])
            assert_type(shared.delivery_count, int)
            await shared.ack()
            shared.nack(delay_ms=100)


async def released(partitions: list[comet.TopicPartition]) -> None:
    assert_type(partitions[0].topic, str)


def lost(gap: comet.Gap) -> None:
    assert_type(gap.end - gap.first, int)


def misunderstands(gap: int) -> None: ...


def spread_limit() -> float:
    return 0.5


app = comet.App("localhost:9092")


@app.on("quotes")
async def one(quote: Quote) -> None: ...


@app.on("quotes", start="-15m", on_error="skip")
async def with_key(record: comet.Record[Quote]) -> None:
    assert_type(record.value, Quote)


@app.on("quotes")
async def many(quotes: list[Quote]) -> None: ...


@app.on("quotes", read_from="any", on_gap=lost)
def columns(batch: comet.RecordBatch[Quote]) -> None: ...


@app.on("quotes", retries="three")  # type: ignore[arg-type]
async def counts(quote: Quote) -> None: ...


@app.on("quotes", retry=3)  # type: ignore[call-arg]
async def misspells(quote: Quote) -> None: ...


careful = comet.HandlerOptions(retries=5, dead_letter="quotes-failed")
near = comet.GroupOptions(read_from="nearest", rack="a")


@app.on("quotes", group="engine", options=careful, consumer=near, concurrency=8)
async def with_objects(quote: Quote) -> None: ...


async def options_are_typed() -> None:
    one = comet.Consumer("localhost:9092", "quotes", type=Quote, options=comet.ConsumerOptions(start="-1h"), rack="a")
    assert_type(one, comet.Consumer[Quote])
    comet.Consumer("localhost:9092", "quotes", options=near)  # type: ignore[call-overload]
    comet.Consumer("localhost:9092", "quotes", read_from="far", start="earliest")  # type: ignore[call-overload]
    comet.GroupConsumer("localhost:9092", "quotes", group="g", partitions=[0])  # type: ignore[call-overload]
    comet.ShareOptions(in_flight="ten")  # type: ignore[arg-type]
    near.rack = "b"  # type: ignore[misc]


async def handlers_keep_their_types() -> None:
    await one(Quote("EURUSD"))
    columns.__name__  # noqa: B018 - it is still the function
    await one("EURUSD")  # type: ignore[arg-type]


@app.on("quotes")  # type: ignore[type-var]
async def returns_something(quote: Quote) -> int:
    return 1


@app.on("quotes")
async def with_a_dependency(
    quote: Quote, message: comet.Message, limit: Annotated[float, comet.Depends(spread_limit)]
) -> None:
    assert_type(limit, float)
    assert_type(message.key_text, str | None)


async def counted(message: comet.Message, call_next: comet.CallNext) -> object:
    return await call_next(message.replaced(b"x"))


routed = comet.Router(prefix="eu.", middleware=[counted])


@routed.on("quotes", group="g", create=comet.NewTopic(partitions=3))
async def routed_handler(quote: Quote) -> None: ...


@routed.on("quotes")  # type: ignore[type-var]
def returns_text(quote: Quote) -> str:
    return quote.symbol


async def an_app_is_tested() -> None:
    app.include(routed, prefix="new.")
    async with app.test(dependencies={spread_limit: lambda: 1.0}) as test:
        assert_type(await test.publish("quotes", Quote("EURUSD")), comet.Receipt)
        assert_type(test.dead_letters(), list[comet.DeadLetter])
    assert_type(app.healthy(), bool)
    comet.App(middleware=[counted], create=True)
    comet.Producer(create="yes")  # type: ignore[arg-type]


def synchronously() -> None:
    with comet.sync.Producer("localhost:9092") as producer:
        assert_type(producer.publish("quotes", b"x"), comet.Receipt)
        assert_type(producer.send("quotes", b"x").result(), comet.Receipt)
        assert_type(producer.send("quotes", b"x", delay=timedelta(minutes=5)).result(), comet.ScheduledReceipt)
        assert_type(producer.publish("quotes", b"x", delay=5), comet.ScheduledReceipt)
    with comet.sync.Consumer("localhost:9092", "quotes", type=Quote, start="earliest") as consumer:
        for record in consumer:
            assert_type(record, comet.Record[Quote])
    with comet.sync.GroupConsumer("localhost:9092", "quotes", group="engine", type=Quote) as member:
        assert_type(member.get(), comet.Record[Quote] | None)
        assert_type(member.assignment(), list[comet.TopicPartition])
    with comet.sync.ShareConsumer("localhost:9092", "orders", group="work") as sharer:
        for shared in sharer:
            assert_type(shared.value, bytes)
            shared.ack()
    with comet.sync.Admin("localhost:9092") as admin:
        assert_type(admin.list_topics(), list[comet.TopicInfo])
        assert_type(admin.find_topics("q", limit=10), comet.TopicPage)
        assert_type(admin.group_offsets("engine"), list[comet.CommittedOffset])
        assert_type(admin.move_partition("quotes", 0, [2, 1]), comet.PartitionMove)
        assert_type(admin.elect_leader("quotes", 0, 2, accept_loss=True), comet.LeaderElection)
        assert_type(admin.drain_broker(1, undo=True), comet.BrokerDrain)
        assert_type(admin.resume(), comet.Resumed)
        assert_type(admin.delete_topic("quotes", dry_run=True), comet.TopicDeletion)


async def wrong() -> None:
    comet.Producer("localhost:9092", acks=2)  # type: ignore[arg-type]
    comet.Producer("localhost:9092", compression="gzip")  # type: ignore[arg-type]
    comet.Producer("localhost:9092", linger="5ms")  # type: ignore[call-arg]
    async with comet.Producer("localhost:9092") as producer:
        await producer.send("quotes", b"x", key=5)  # type: ignore[call-overload]
        await producer.send(b"quotes", b"x")  # type: ignore[call-overload]
        await producer.send("quotes", b"x", schedule_id="a", timestamp_us=5, delay=b"5m")  # type: ignore[call-overload]
    comet.Consumer("localhost:9092", "quotes", group="engine", start="earliest")  # type: ignore[call-overload]
    comet.GroupConsumer("localhost:9092", "quotes")  # type: ignore[call-overload]
    comet.GroupConsumer("localhost:9092", "quotes", group="g", on_lost=misunderstands)  # type: ignore[arg-type]
    comet.GroupConsumer("localhost:9092", "quotes", group="g", in_flight=5)  # type: ignore[call-overload]
    comet.ShareConsumer("localhost:9092", "quotes", group="g", auto_commit=True)  # type: ignore[call-overload]
    comet.Consumer("localhost:9092", "quotes", on_out_of_range="skip", start="earliest")  # type: ignore[call-overload]
    comet.Consumer("localhost:9092", "quotes", read_from="follower", start="earliest")  # type: ignore[call-overload]
    comet.Consumer("localhost:9092", "quotes", on_gap=misunderstands, start="earliest")  # type: ignore[arg-type]


async def in_a_test() -> None:
    async with comet.testing.broker(["quotes"], retention_records=10) as broker:
        assert_type(broker.address, str)


async def admin() -> None:
    async with comet.Admin("localhost:9092") as admin:
        assert_type(await admin.create_topic("quotes", partitions=3, flush="always"), comet.TopicInfo)
        altered = await admin.alter_topic("quotes", unset=["flush"])
        assert_type(altered, comet.TopicAlteration)
        assert_type(altered.after.source("flush"), comet.SettingSource)
        described = await admin.describe_topic("quotes")
        assert_type(described, comet.TopicDetails)
        assert_type(described.partitions[0].log_end, int | None)
        assert_type(await admin.describe_partition("quotes", 0), comet.PartitionDetails)
        assert_type(await admin.describe_broker(1), comet.BrokerDetails)
        assert_type(await admin.create_topic("trades", replicas=3, min_insync=2), comet.TopicInfo)
        assert_type(await admin.move_partition("quotes", 0, [2, 3, 1]), comet.PartitionMove)
        assert_type(await admin.elect_leader("quotes", 0, 2, accept_loss=True), comet.LeaderElection)
        assert_type(await admin.drain_broker(1), comet.BrokerDrain)
        assert_type(await admin.resume(1), comet.Resumed)
        assert_type(await admin.recover_cluster(accept="digest"), comet.ClusterRecovery)
        assert_type(await admin.offsets("quotes", "-1h"), dict[int, int])
        assert_type(await admin.commit_offsets("engine", {("quotes", 0): 4}), list[comet.CommitResult])
        at = {comet.TopicPartition("quotes", 0): 4}
        assert_type(await admin.reset_group("engine", offsets=at), list[comet.ResetPartition])
        await admin.commit_offsets("engine", {"quotes": 4})  # type: ignore[arg-type]
        statistics: dict[str, Any] = await admin.statistics(1)
        assert statistics


assert_type(comet.run(comet.Admin("localhost").describe_cluster()), comet.ClusterInfo)
