"""The metadata store on an etcd that is paused, killed, compacted, and reached over a link that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import grpc
import pytest
from aetcd import rpc

from comet_broker.metadata.etcd.calls import CONNECT_MS_MIN
from comet_broker.metadata.etcd.store import EtcdStore
from comet_broker.metadata.etcd.watch import IDLE_S, EtcdWatch
from comet_broker.metadata.store import (
    Compacted,
    Compare,
    Delete,
    LeaseLost,
    Put,
    Reconnected,
    StoreUnavailable,
    WatchEvent,
)
from comet_broker.system import SystemClock
from tests.etcd import Etcd, wait_a_moment
from tests.link import Link

T = TypeVar("T")

TIMEOUT_MS = 500
PATIENT_MS = 10_000  # where no call is to end because nobody answers
ENDED_S = 10.0  # far less than a call takes that waits for the answer itself
NOTICED_S = IDLE_S + 20.0  # the stream is asked, is given up, and another one is opened; two cores are shared


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    server = Etcd.start(tmp_path / "etcd")
    yield server
    server.remove()


@asynccontextmanager
async def opened(*endpoints: str, reconcile_s: float = 30.0, timeout_ms: int = TIMEOUT_MS) -> AsyncIterator[EtcdStore]:
    store = await answered(
        lambda: EtcdStore.open(
            endpoints, prefix="/comet/test/", clock=SystemClock(), timeout_ms=timeout_ms, reconcile_s=reconcile_s
        )
    )
    try:
        yield store
    finally:
        await store.close()


async def put(store: EtcdStore, key: str, value: bytes = b"", lease: int = 0) -> int:
    return (await store.transact([], [Put(key, value, lease)])).revision


async def create(store: EtcdStore, key: str) -> None:
    """Makes the key, once, however often etcd goes away meanwhile: read again, then decide."""
    while True:
        try:
            if await store.get(key) is not None:
                return
            await store.transact([Compare(key, 0)], [Put(key, b"")])
        except StoreUnavailable:
            await asyncio.sleep(0)


async def answered(call: Callable[[], Awaitable[T]]) -> T:
    """Asks again as long as etcd does not answer in time."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(0)


async def refused(call: Any) -> float:
    """How long the call took to say that etcd does not answer."""
    start = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await call
    return time.monotonic() - start


@pytest.mark.parametrize("gone", ["paused", "killed"])
async def test_every_call_ends_in_its_time_when_etcd_does_not_answer(etcd: Etcd, gone: str) -> None:
    async with opened(etcd.endpoint) as store:
        lease = await answered(lambda: store.grant_lease(60_000))
        await answered(lambda: put(store, "a", b"1"))
        etcd.pause() if gone == "paused" else etcd.kill()
        calls = [
            store.get("a"),
            store.range(""),
            store.transact([Compare("a", 0)], [Put("a", b"")]),
            store.transact([Compare("a", 0)], []),
            store.grant_lease(1000),
            store.keep_alive(lease),
            store.revoke_lease(lease),
        ]
        took_s = await asyncio.gather(*map(refused, calls))
        assert max(took_s) < ENDED_S
        etcd.resume() if gone == "paused" else etcd.launch()
        async with asyncio.timeout(20):
            await create(store, "b")
        assert await answered(lambda: store.get("a")) is not None


async def test_connecting_may_take_as_long_as_the_call_has(etcd: Etcd) -> None:
    """Over a slow way, or on busy machines: otherwise no attempt ever comes to its end there."""
    async with Link("127.0.0.1", etcd.port) as link:
        link.hold(up=True, down=True)
        calls = EtcdStore.open([link.address], prefix="/comet/test/", clock=SystemClock(), timeout_ms=PATIENT_MS)
        opening = asyncio.create_task(calls)
        given_up, _ = await asyncio.wait([opening], timeout=1.5 * CONNECT_MS_MIN / 1000)
        assert not given_up
        link.release()
        await (await opening).close()


class Resumed(AsyncIterator[Sequence[WatchEvent]]):
    """A reader that watches again from where its watch broke off, as long as the history is there."""

    def __init__(self, store: EtcdStore, prefix: str, from_revision: int) -> None:
        self.breaks = 0
        self._store = store
        self._prefix = prefix
        self._next_revision = from_revision
        self._watch = store.watch(prefix, from_revision)

    async def __anext__(self) -> Sequence[WatchEvent]:
        moment = asyncio.Event()
        while True:
            try:
                events = await anext(self._watch)
            except Reconnected:
                self.breaks += 1
                await wait_a_moment(moment)
                self._watch = self._store.watch(self._prefix, self._next_revision)
            else:
                self._next_revision = events[-1].revision + 1
                return events


async def test_a_watch_that_breaks_off_says_so_whatever_answers_next(etcd: Etcd) -> None:
    async with opened(etcd.endpoint) as store:
        watch = store.watch("", 2)
        await create(store, "a")
        assert (await anext(watch))[0].key == "a"
        etcd.restart()
        with pytest.raises(Reconnected):
            await asyncio.wait_for(anext(watch), 30)


async def test_a_lease_survives_a_restart_of_etcd(etcd: Etcd) -> None:
    async with opened(etcd.endpoint, timeout_ms=10_000) as store:
        lease = await store.grant_lease(60_000)
        await put(store, "a", b"", lease)
        etcd.restart()
        async with asyncio.timeout(20):
            await create(store, "b")
        assert await store.keep_alive(lease) == 60_000
        assert (await store.range("")).items[0].lease == lease


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_watch_over_restarts_sees_everything_once(etcd: Etcd, how: str) -> None:
    async with opened(etcd.endpoint) as store:
        watch = Resumed(store, "k/", 2)
        keys = [f"k/{n:03}" for n in range(90)]

        async def watching() -> list[Sequence[WatchEvent]]:
            return [await anext(watch) for _ in keys]

        seen = asyncio.create_task(watching())
        async with asyncio.timeout(60):
            for number, key in enumerate(keys):
                if number in {30, 60}:
                    etcd.stop() if how == "stop" else etcd.kill()
                    etcd.launch()
                await create(store, key)
            revisions = await seen
    events = [event for together in revisions for event in together]
    assert [event.key for event in events] == keys
    assert [event.revision for event in events] == sorted({event.revision for event in events})


async def test_a_pause_of_etcd_loses_a_watch_nothing(etcd: Etcd) -> None:
    async with opened(etcd.endpoint) as store:
        watch = Resumed(store, "", 2)
        await create(store, "a")
        assert (await anext(watch))[0].key == "a"
        etcd.pause()
        for _ in range(3):
            await refused(store.get("a"))
        etcd.resume()
        async with asyncio.timeout(30):
            await create(store, "b")
            assert (await anext(watch))[0].key == "b"


async def test_a_watch_whose_next_revision_is_compacted_while_it_is_away_says_so(etcd: Etcd) -> None:
    async with (
        Link("127.0.0.1", etcd.port) as link,
        opened(link.address, timeout_ms=PATIENT_MS) as away,
        opened(etcd.endpoint, timeout_ms=PATIENT_MS) as store,
    ):
        watch = Resumed(away, "", 2)
        await put(store, "a")
        assert (await anext(watch))[0].key == "a"
        link.hold(up=True, down=True)
        last = [await put(store, "b", b"%d" % n) for n in range(10)][-1]
        compacted = await etcd.compact(last)
        link.cut()
        link.release()

        async def read_on() -> None:
            async for events in watch:
                assert events[0].revision <= last, "only what was under way when the link broke"

        with pytest.raises(Compacted) as caught:
            await asyncio.wait_for(read_on(), 30)
        assert caught.value.compact_revision == compacted + 1
        listing = await away.range("")
        assert [(item.key, item.value) for item in listing.items] == [("a", b""), ("b", b"9")]
        again = away.watch("", max(listing.revision + 1, caught.value.compact_revision))
        await put(store, "c")
        assert (await anext(again))[0].key == "c"


async def test_a_deletion_at_the_compacted_revision_is_not_passed_over(etcd: Etcd) -> None:
    """Etcd would let a watch start there and show nothing of it."""
    async with opened(etcd.endpoint, timeout_ms=PATIENT_MS) as store:
        await put(store, "a")
        deleted = (await store.transact([], [Delete("a")])).revision
        await put(store, "b")
        await etcd.compact(deleted)
        with pytest.raises(Compacted):
            await anext(store.watch("", deleted))
        assert (await anext(store.watch("", deleted + 1)))[0].key == "b"


async def test_a_stream_that_is_silently_dead_is_noticed(etcd: Etcd) -> None:
    async with (
        Link("127.0.0.1", etcd.port) as link,
        opened(link.address, etcd.endpoint, timeout_ms=3_000) as store,
    ):
        watch = Resumed(store, "", 2)
        await create(store, "a")
        assert (await anext(watch))[0].key == "a"
        link.hold(up=True, down=True)
        async with opened(etcd.endpoint, timeout_ms=PATIENT_MS) as other:
            await put(other, "b")
        async with asyncio.timeout(NOTICED_S):
            assert (await anext(watch))[0].key == "b"


async def test_a_member_that_does_not_answer_is_left_for_another(etcd: Etcd) -> None:
    async with (
        Link("127.0.0.1", etcd.port) as link,
        opened(link.address, etcd.endpoint, timeout_ms=6_000) as store,
    ):
        await put(store, "a")
        link.hold(down=True)
        assert await store.get("a") is not None, "half of the time is for the other one"
        await put(store, "b")  # which is sent to one of them alone: from then on the other one is asked first


@pytest.mark.parametrize("how", ["silence", "reset"])
async def test_a_transaction_whose_answer_is_lost_has_been_applied_and_is_not_sent_twice(etcd: Etcd, how: str) -> None:
    async with (
        Link("127.0.0.1", etcd.port) as link,
        opened(link.address, etcd.endpoint, timeout_ms=4_000) as store,
        opened(etcd.endpoint, timeout_ms=PATIENT_MS) as witness,
    ):
        await put(store, "a", b"0")
        before = await witness.range("")
        seen = witness.watch("a", before.revision + 1)
        link.hold(down=True)
        swap = store.transact([Compare("a", before.items[0].mod_revision)], [Put("a", b"1")])
        answer = asyncio.create_task(refused(swap))
        assert (await anext(seen))[0].revision == before.revision + 1, "it was applied all the same"
        if how == "reset":
            link.cut()
        assert await answer < ENDED_S
        link.release()
        # Its owner reads again, finds its own value, and knows.
        item = await answered(lambda: store.get("a"))
        assert item is not None
        assert (item.value, item.mod_revision) == (b"1", before.revision + 1)
        assert (await witness.range("")).revision == before.revision + 1, "it was applied once"


async def test_a_transaction_that_was_never_sent_is_not_applied(etcd: Etcd) -> None:
    async with (
        opened(etcd.endpoint, timeout_ms=PATIENT_MS) as witness,
        Link("127.0.0.1", etcd.port) as link,
        opened(link.address) as store,
    ):
        link.hold(up=True)
        await refused(put(store, "a"))
        link.cut()  # what was held never arrives
        assert await witness.get("a") is None


async def test_a_lease_that_ran_out_while_this_process_stood_still_is_lost(etcd: Etcd) -> None:
    async with opened(etcd.endpoint, timeout_ms=10_000) as store:
        lease = await store.grant_lease(1000)
        await put(store, "a", b"", lease)
        renewal = asyncio.create_task(store.keep_alive(lease))
        await asyncio.sleep(0)
        stand_still_until_over(etcd, lease)
        with pytest.raises((LeaseLost, StoreUnavailable)):  # its answer, if it came, is older than the lease
            await renewal
        with pytest.raises(LeaseLost):
            await store.keep_alive(lease)
        with pytest.raises(LeaseLost):
            await put(store, "b", b"", lease)
        assert (await store.range("")).items == ()


def stand_still_until_over(etcd: Etcd, lease: int) -> None:
    """Blocks the loop, as a long garbage collection does, until etcd has ended the lease."""
    with grpc.insecure_channel(etcd.endpoint) as channel:
        leases: Any = rpc.LeaseStub(channel)
        start = time.monotonic()
        while leases.LeaseTimeToLive(rpc.LeaseTimeToLiveRequest(ID=lease)).TTL != -1:
            Event().wait(0.05)
            assert time.monotonic() - start < 20


async def test_a_watch_that_has_lost_a_change_says_so(etcd: Etcd) -> None:
    async with opened(etcd.endpoint, reconcile_s=0.0, timeout_ms=PATIENT_MS) as store:
        watch = store.watch("", 2)
        assert isinstance(watch, EtcdWatch)
        for n in range(3):
            await put(store, f"{n}")
            await anext(watch)
        known = watch._reconciler._known
        assert known is not None
        del known["1"]  # as if etcd had never told of it

        async def go_on() -> None:
            for n in range(100):
                await put(store, "more", b"%d" % n)
                await anext(watch)

        with pytest.raises(Compacted) as caught:
            await asyncio.wait_for(go_on(), 60)
        assert 2 < caught.value.compact_revision <= (await store.range("")).revision + 1


async def test_a_watcher_that_does_not_read_costs_no_memory(etcd: Etcd) -> None:
    async with opened(etcd.endpoint, timeout_ms=10_000) as store:
        watch = store.watch("", 2)
        assert isinstance(watch, EtcdWatch)
        await put(store, "first")
        await anext(watch)
        for n in range(600):
            await put(store, "k", b"%d" % n)
        assert len(watch._queue) <= 256
        async with asyncio.timeout(30):
            seen = [(await anext(watch))[0] for _ in range(600)]
        assert [event.item.value for event in seen if event.item] == [b"%d" % n for n in range(600)]
