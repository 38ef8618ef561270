"""What is read for the page of a topic's keys: how much at once, how often, and what it says where it cannot be read.

On virtual time (comet_testing.simulation.loop).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import TypeVar, cast

import pytest

import comet
from comet.errors import Unavailable
from comet.records import partition_for
from comet_gateway.dashboard import topic_keys
from comet_gateway.dashboard.build_facts import topic_with_leaders
from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.problems import Problem
from comet_testing.simulation import loop as sim
from comet_web.facts import Cluster, TopicDetail, TopicKeys
from comet_web.page_request import PageRequest
from comet_web.views.topic_keys import KEY_BYTES_MAX

T = TypeVar("T")
TOPIC = "prices"
INFO = comet.TopicInfo(TOPIC, bytes(16), (), comet.TopicConfig(), 0)


class Table:
    """As comet.KV of a topic with these values. `silent`: it never answers; `error`: it fails."""

    def __init__(self, values: Mapping[bytes, bytes]) -> None:
        self.values = dict(values)
        self.reads: list[int] = []  # limits of the lists
        self.expired: set[bytes] = set()  # keys whose last value has, over an older one
        self.silent = False
        self.error: Exception | None = None

    async def entries(
        self, prefix: bytes, *, after: bytes | None, limit: int, stale: bool
    ) -> list[comet.KVEntry[bytes]]:
        self.reads.append(limit)
        if self.silent:
            await asyncio.get_running_loop().create_future()
        if self.error is not None:
            raise self.error
        names = sorted(key for key in self.values if key.startswith(prefix) and (after is None or key > after))
        return [comet.KVEntry(key, self.values[key], 5, 1) for key in names[:limit]]

    async def history(self, key: bytes, *, stale: bool) -> list[comet.KVEntry[bytes]]:
        return [comet.KVEntry(key, self.values[key], 5, 1)] if key in self.values else []

    async def get(self, key: bytes, *, stale: bool) -> comet.KVEntry[bytes] | None:
        return None if key not in self.values or key in self.expired else comet.KVEntry(key, self.values[key], 5, 1)


class World:
    def __init__(self, values: Mapping[bytes, bytes], leaders: tuple[int | None, ...] = (1, 2)) -> None:
        self.table = Table(values)
        self.partitions = tuple(
            comet.PartitionInfo(index, leader, 1, (1, 2), (1, 2), log_start=0, high_watermark=10)
            for index, leader in enumerate(leaders)
        )
        pages = topic_keys.ReadPages(cast(Sources, None))
        backend = SimpleNamespace(key_tables=SimpleNamespace(of=self._of))
        self.sources = cast(Sources, SimpleNamespace(backend=backend, part=lambda kind: pages))

    @asynccontextmanager
    async def _of(self, topic: str) -> AsyncIterator[Table]:
        assert topic == TOPIC
        yield self.table

    async def load(self, query: Mapping[str, str] = MappingProxyType({}), *, first: bool = True) -> TopicKeys:
        request = PageRequest(path="/", params={"topic": TOPIC}, query=query, first=first)
        detail = TopicDetail(Cluster(time_us=0), topic_with_leaders(INFO).topic, self.partitions, ())
        return await topic_keys.load(self.sources, request, detail)


def run(work: Callable[[], Awaitable[T]]) -> tuple[T, float]:
    """The result, and the virtual seconds that it took."""

    async def main(loop: sim.SimLoop) -> tuple[T, float]:
        return await work(), loop.time()

    return sim.run(main)


def numbered(count: int, size: int = 10) -> dict[bytes, bytes]:
    return {b"k%05d" % number: bytes(size) for number in range(count)}


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 49, 50, 51, 200])
def test_pages_hold_each_key_once(count: int) -> None:
    world = World(numbered(count))

    async def pages() -> list[int]:
        found, sizes = [], []
        query: dict[str, str] = {}
        while True:
            page = await world.load(query)
            assert not page.problem
            found += [one.key for one in page.keys]
            sizes.append(len(page.keys))
            if not page.after:
                break
            query = {"after": page.after.hex()}
        assert found == sorted(world.table.values)
        return sizes

    sizes, _ = run(pages)
    assert all(size == topic_keys.KEYS_MAX for size in sizes[:-1])
    assert len(sizes) == max(-(-count // topic_keys.KEYS_MAX), 1)


@pytest.mark.parametrize("partitions", [1, 2, 16, 100])
def test_long_values_make_a_page_shorter_and_are_cut(partitions: int) -> None:
    size = 1 << 20
    world = World(numbered(30, size), (1,) * partitions)
    page, _ = run(world.load)
    # At each read every partition may send as many as are asked for.
    held = max(limit * size * partitions for limit in world.table.reads)
    assert held <= max(topic_keys.FIRST_KEYS, partitions) * size
    assert 0 < len(page.keys) <= topic_keys.FIRST_KEYS
    assert page.after == page.keys[-1].key
    assert {len(one.value or b"") for one in page.keys} == {topic_keys.SHOWN_BYTES}
    assert {one.size for one in page.keys} == {size + 6}


def test_a_key_that_is_too_long_for_an_address_is_cut() -> None:
    key = b"k" * 100_000
    page, _ = run(World({key: b"1"}, (1,) * 16).load)
    assert [(len(one.key or b""), one.size) for one in page.keys] == [(KEY_BYTES_MAX + 1, 100_001)]
    assert page.keys[0].partition == partition_for(key, 16)


def test_a_page_is_read_again_once_the_log_has_changed_or_after_a_while() -> None:
    world = World(numbered(3))

    async def work() -> list[int]:
        counts = []
        for change in ("first", "same", "written", "led", "later", "other"):
            if change == "written":
                world.partitions = (replace(world.partitions[0], high_watermark=11), world.partitions[1])
            if change == "led":
                world.partitions = (replace(world.partitions[0], leader_epoch=2), world.partitions[1])
            if change == "later":
                await asyncio.sleep(topic_keys.READ_AGAIN_S + 1)
            before = len(world.table.reads)
            await world.load({"prefix": "k"} if change == "other" else {}, first=change == "first")
            counts.append(len(world.table.reads) - before)
        return counts

    assert run(work)[0] == [1, 0, 1, 1, 1, 1]


def test_few_pages_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_keys, "PAGES_MAX", 2)
    world = World(numbered(3))

    async def work() -> list[int]:
        counts = []
        for prefix in ("a", "b", "c", "a", "c"):
            before = len(world.table.reads)
            await world.load({"prefix": prefix}, first=False)
            counts.append(len(world.table.reads) - before)
        return counts

    assert run(work)[0] == [1, 1, 1, 1, 0]


# ---- what cannot be read


def test_a_partition_without_a_leader_is_named_with_what_to_do() -> None:
    world = World(numbered(3), (1, None))
    page, took = run(world.load)
    assert took == 0
    assert page.problem.startswith("Partition 1 has no leader, so that keys cannot be read or written there.")
    assert "elect a leader on the tab Partitions" in page.problem
    assert (page.keys, world.table.reads) == ((), [])
    stale, _ = run(lambda: world.load({"stale": "yes"}))
    assert len(stale.keys) == 3


def test_an_update_fails_so_that_the_tab_keeps_its_rows() -> None:
    world = World(numbered(3), (None, 1, None))
    with pytest.raises(Problem, match="Partitions 0, 2 have no leader") as failed:
        run(lambda: world.load(first=False))
    assert failed.value.code == "NOT_LEADER"


def test_silent_leaders_are_not_waited_for_long() -> None:
    world = World(numbered(3))
    world.table.silent = True
    page, took = run(lambda: world.load({"key": "k00001"}))
    assert took == topic_keys.WAIT_S
    assert "did not answer within 5 s" in page.problem
    assert "tries again by itself" in page.problem
    assert (page.key, page.history) == (b"k00001", ())


def test_an_error_of_the_brokers_is_told() -> None:
    world = World(numbered(3))
    world.table.error = Unavailable("keys of partition 0 are being read: 40 %")
    page, _ = run(world.load)
    assert page.problem == "keys of partition 0 are being read: 40 %"


# ---- the address


def test_an_older_value_is_not_that_of_a_key_whose_last_one_has_expired() -> None:
    world = World({b"a": b"2", b"b": b"3"})
    world.table.expired.add(b"a")
    for key, expired in (("a", True), ("b", False), ("c", False)):
        page, _ = run(partial(world.load, {"key": key}))
        assert page.expired is expired


@pytest.mark.parametrize(("query", "key"), [({"key_base64": "//4="}, b"\xff\xfe"), ({"key": "a"}, b"a")])
def test_a_key_of_any_bytes_is_looked_up(query: dict[str, str], key: bytes) -> None:
    world = World({b"\xff\xfe": b"1", b"a": b"2"})
    page, _ = run(lambda: world.load(query))
    assert (page.key, [one.key for one in page.history]) == (key, [key])


@pytest.mark.parametrize(
    "query",
    [
        {"key_base64": "//4"},
        {"key_base64": "a!bc="},
        {"after": "xyz"},
        {"key": "k" * (KEY_BYTES_MAX + 1)},
        {"prefix": "é" * KEY_BYTES_MAX},
        {"after": "61" * (KEY_BYTES_MAX + 1)},
    ],
)
def test_a_damaged_address_says_so(query: dict[str, str]) -> None:
    world = World({})
    page, _ = run(lambda: world.load(query))
    assert "address is damaged" in page.problem or "limit of this page" in page.problem
    assert not world.table.reads
