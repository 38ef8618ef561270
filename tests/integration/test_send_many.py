"""Many records at once, with headers and times of their own: each arrives with what is its."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

import comet
from tests.integration.local_cluster import LocalCluster

NOW = 1_700_000_000_000_000
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes]], int]


def rows(seed: int, count: int, *, headers: bool, times: bool) -> list[Row]:
    random = Random(seed)
    return [
        (
            random.choice([None, b"a", b"b", b"c"]),
            random.choice([None, b"", b"%d %d " % (seed, at) + b"v" * random.randint(1, 900)]),
            [("n", b"%d" % at), ("big", b"h" * random.randint(0, 400))][: random.randint(0, 2)] if headers else [],
            NOW + random.randint(1, 1_000) if times and random.random() < 0.8 else NOW,
        )
        for at in range(count)
    ]


async def send(producer: comet.Producer, sent: list[Row], *, headers: bool, times: bool, **where: Any) -> None:
    columns = [list(column) for column in zip(*sent, strict=True)]
    bulk = await producer.send_many(
        "t",
        columns[1],
        headers=[dict(pairs) if at % 2 else pairs for at, pairs in enumerate(columns[2])] if headers else None,
        timestamp_us=NOW,
        timestamps_us=[None if time == NOW else time for time in columns[3]] if times else None,
        **where,
    )
    assert sum(receipt.count for receipt in await bulk) == len(sent)


@pytest.mark.parametrize(("headers", "times"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("keyed", [True, False])
async def test_each_record_has_its_own(tmp_path: Path, *, headers: bool, times: bool, keyed: bool) -> None:
    async with LocalCluster(tmp_path, brokers=1) as cluster:
        connect = cluster.network.connect
        async with comet.Admin(cluster.addresses, connect=connect) as admin:
            await admin.create_topic("t", partitions=3)
        sent: list[list[Row]] = []
        async with comet.Producer(cluster.addresses, connect=connect, bulk_batch_bytes=3_000) as producer:
            for seed in range(4):
                part = rows(seed, 150, headers=headers, times=times)
                sent.append(part)
                keys = {"keys": [row[0] for row in part]} if keyed else {}
                where = {"partition": 1} if seed % 2 else {}
                await send(producer, part, headers=headers, times=times, **keys, **where)
        found: list[Row] = []
        async with comet.Reader(cluster.addresses, connect=connect) as reader:
            for index in range(3):
                part_of = await reader.fetch("t", index, records_max=1_000)
                for batch in part_of.batches:
                    found += [(one.key, one.value, one.headers, one.timestamp_us) for one in batch.records()]
        expected = [row if keyed else (None, *row[1:]) for part in sent for row in part]
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
        if keyed:
            for key in (b"a", b"b", b"c"):  # in order, of what went where the key says
                values = [row[1] for part in sent[::2] for row in part if row[0] == key and row[1]]
                assert [row[1] for row in found if row[1] in values] == values


async def test_columns_are_as_long_as_the_values(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, brokers=1) as cluster:
        async with comet.Admin(cluster.addresses, connect=cluster.network.connect) as admin:
            await admin.create_topic("t")
        async with comet.Producer(cluster.addresses, connect=cluster.network.connect) as producer:
            wrong: list[dict[str, Any]] = [
                {"headers": [None]}, {"timestamps_us": [1, 2, 3]}, {"keys": [b"k"]}, {"timestamps_us": [1, -1]},
                {"headers": [{"n": 5}, None]},
            ]  # fmt: skip
            for columns in wrong:
                with pytest.raises(comet.InvalidArgument):
                    await producer.send_many("t", [b"1", b"2"], **columns)
            with pytest.raises(comet.RecordTooLarge):
                await producer.send_many("t", [b"1"], headers=[{"n": b"x" * (8 << 20)}])
            assert (await producer.publish("t", b"fine")).offset == 0
