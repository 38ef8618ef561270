"""Real clusters whose etcd is restored from an old snapshot, or emptied: nothing that all acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

import comet
from comet_broker.cluster.metadata_floor import read_floor
from comet_broker.storage.files import RealFiles
from tests.etcd import wait_a_moment
from tests.robustness.cluster import ClusterProcesses, cluster, wait_for
from tests.robustness.restoring import ready, recover, recover_command
from tests.waiting import until_answered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC: Final = "t"
GROUP: Final = "g"
BEHIND: Final = 3
OPTIONS: Final = ("--session-ms", "2s", "--replica-lag-ms", "1s")
WENT_BACK: Final = "the metadata store went back in time, was emptied or exchanged"


class Restored:
    """200 records, a snapshot of etcd, 300 records more while one broker is down. The position goes 100, 166."""

    def __init__(self, one: ClusterProcesses, snapshot: Path) -> None:
        self.one = one
        self.snapshot = snapshot
        self.acked: dict[int, bytes] = {}
        self.read: list[int | None] = []  # positions of the group, None: nothing committed

    async def write(self, count: int) -> None:
        async with comet.Producer(self.one.addresses, acks="all", timeout_ms=30_000) as producer:
            values = [b"%d" % (len(self.acked) + number) for number in range(count)]
            receipts = await asyncio.gather(*[producer.publish(TOPIC, value) for value in values])
        self.acked.update({receipt.offset: value for receipt, value in zip(receipts, values, strict=True)})

    async def prepare(self) -> None:
        one = self.one
        async with comet.Admin(one.addresses) as admin:
            await admin.create_topic(TOPIC, replicas=3, min_insync=2)
            await one.well(TOPIC)
            await self.write(200)
            await admin.commit_offsets(GROUP, {(TOPIC, 0): 100})
            await asyncio.to_thread(one.etcd.save, self.snapshot)
            one.brokers[BEHIND].kill()
            await self.write(300)
            await one.well(TOPIC, replicas=2)
            await admin.commit_offsets(GROUP, {(TOPIC, 0): 166})
        ahead = {number: broker for number, broker in one.brokers.items() if number != BEHIND}

        def knows(data: Path) -> bool:
            """Whether the folder knows of a change that the snapshot lacks."""
            floor = read_floor(RealFiles(data))
            return floor is not None and set(floor.changed.in_sync) == set(ahead)

        await wait_for(lambda: all(knows(broker.data) for broker in ahead.values()), "the floors have risen")

    @contextlib.asynccontextmanager
    async def reading_positions(self) -> AsyncIterator[None]:
        moment = asyncio.Event()

        async def read() -> None:
            async with comet.Admin(self.one.addresses, timeout_ms=1_000) as admin:
                while True:
                    try:
                        found = [one.offset for one in await admin.group_offsets(GROUP)]
                    except comet.GroupNotFound:
                        found = []
                    except comet.CometError:
                        await wait_a_moment(moment)
                        continue
                    self.read.append(found[0] if found else None)

        task = asyncio.create_task(read())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def said(self, number: int) -> str:
        return self.one.brokers[number].said()

    async def check(self) -> None:
        """All that was acknowledged is there, at its offset, on all replicas; and writes go on."""
        await self.one.well(TOPIC)
        await self.write(10)
        seen: dict[int, bytes | None] = {}
        async with comet.Consumer(self.one.addresses, TOPIC, start="earliest") as consumer:
            async with asyncio.timeout(60):
                async for record in consumer:
                    seen[record.offset] = record.value
                    if len(seen) >= len(self.acked):
                        break
        assert {offset: seen.get(offset) for offset in self.acked} == self.acked
        assert not self.one.complaints()


async def statistics(admin: comet.Admin) -> dict[str, Any]:
    """Of a broker that has started: it finds out that the store went back before it listens."""
    numbers: dict[str, Any] = {}

    async def answers() -> bool:
        with contextlib.suppress(comet.Unavailable):
            numbers.update(await admin.statistics(brief=True))
        return bool(numbers)

    assert await until_answered(answers, within_s=30)
    return numbers


@contextlib.asynccontextmanager
async def prepared(folder: Path) -> AsyncIterator[Restored]:
    async with cluster(folder, options=OPTIONS) as one:
        found = Restored(one, folder / "snapshot")
        await found.prepare()
        yield found


async def test_a_replica_that_was_behind_at_the_snapshot_and_starts_first_costs_nothing(tmp_path: Path) -> None:
    async with prepared(tmp_path) as found:
        one = found.one
        for number in (1, 2):
            await asyncio.to_thread(one.brokers[number].terminate)
        await asyncio.to_thread(one.etcd.restore, found.snapshot)
        one.brokers[BEHIND].launch()
        await ready(one, BEHIND)  # it knows no more than the snapshot, and is in sync by what that says
        for number in (1, 2):
            one.brokers[number].launch()
        for number in (1, 2):
            await wait_for(lambda number=number: WENT_BACK in found.said(number), f"broker {number} says so")  # type: ignore[misc]
        async with comet.Admin(one.brokers[1].address) as admin:
            numbers = await statistics(admin)
            assert not numbers["metadata"]["trusted"] and WENT_BACK in numbers["metadata"]["reason"]
            with pytest.raises(comet.Unavailable, match=WENT_BACK):
                await admin.describe_cluster()
        # What would be lost is shown, and nothing is done.
        shown = await asyncio.to_thread(recover_command, one)
        assert shown.returncode == 0, shown.stderr
        assert "nothing was changed" in shown.stderr
        rows = [line.split() for line in shown.stdout.splitlines() if line.startswith(f"{TOPIC} ")]
        assert {row[2]: int(row[7]) for row in rows} == {"1": 0, "2": 0, "3": 300}
        plan = await recover(one)
        assert plan["restart"] == [BEHIND], "those that refused it from the start go on by themselves"
        await ready(one, BEHIND)
        await ready(one, 1, 2)
        await found.check()
        assert "cuts t/0 back" not in found.said(1) + found.said(2)


async def test_a_restored_etcd_under_running_brokers_stops_them_all_and_positions_go_back_to_the_snapshot_at_most(
    tmp_path: Path,
) -> None:
    async with prepared(tmp_path) as found, found.reading_positions():
        one = found.one
        await asyncio.to_thread(one.etcd.restore, found.snapshot)
        for number in (1, 2):
            await wait_for(lambda number=number: WENT_BACK in found.said(number), f"broker {number} says so")  # type: ignore[misc]
        async with comet.Producer(one.addresses, acks="all", timeout_ms=1_000) as producer:
            with pytest.raises(comet.CometError):
                await producer.publish(TOPIC, b"refused")
        before = len(found.read)
        one.brokers[BEHIND].launch()  # it knows no more than the snapshot, until the others warn it
        plan = await recover(one)
        assert {1, 2} <= set(plan["restart"])
        await ready(one, 1, 2, BEHIND)
        await found.check()
        await wait_for(lambda: len(found.read) > before + 3, "positions are read again")
        assert set(found.read) <= {100, 166}
        assert found.read[-1] == 100


async def test_an_etcd_that_was_emptied_gives_no_positions_and_gets_its_topics_back_from_the_folders(
    tmp_path: Path,
) -> None:
    async with prepared(tmp_path) as found:
        one = found.one
        async with found.reading_positions():
            await asyncio.to_thread(one.etcd.restore, None)
            for number in (1, 2):
                await wait_for(lambda number=number: WENT_BACK in found.said(number), f"broker {number} says so")  # type: ignore[misc]
            one.brokers[BEHIND].launch()
            await wait_for(lambda: WENT_BACK in found.said(BEHIND), "the one that is started says so, too")
            shown = await asyncio.to_thread(recover_command, one, "--json")
            plan = json.loads(shown.stdout)
            assert plan["emptied"] and plan["put_back"] == [TOPIC] and not plan["done"]
            assert set(found.read) <= {166}, "nobody was told that nothing is committed"
        plan = await recover(one)
        assert [part["loses"] for part in plan["partitions"]] == [0]
        await ready(one, 1, 2, BEHIND)
        await found.check()


async def test_the_right_etcd_put_back_is_trusted_again_without_a_restart(tmp_path: Path) -> None:
    async with prepared(tmp_path) as found:
        one = found.one
        right = tmp_path / "right"
        await asyncio.to_thread(one.etcd.save, right)
        await found.write(1)
        await asyncio.to_thread(one.etcd.restore, found.snapshot)
        for number in (1, 2):
            await wait_for(lambda number=number: WENT_BACK in found.said(number), f"broker {number} says so")  # type: ignore[misc]
        await asyncio.to_thread(one.etcd.restore, right)
        await one.restart(BEHIND)
        await found.check()
