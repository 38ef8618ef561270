"""What the store on etcd promises beyond the contract: its root, its locks and keys, races between brokers."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import time
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest
from aetcd import rpc
from hypothesis import given
from hypothesis import strategies as st

from comet.errors import LimitExceeded
from comet.processes.ports import HeldPorts
from comet_broker.metadata.etcd.calls import Access, StaleToken, is_sound, translate
from comet_broker.metadata.etcd.reconcile import Reconciler
from comet_broker.metadata.etcd.store import EtcdStore
from comet_broker.metadata.etcd.wire import ROOT_BYTES_MAX, Keys, revisions
from comet_broker.metadata.store import Compare, KeyValue, LeaseLost, Put, Reconnected, StoreUnavailable, WatchEvent
from comet_broker.system import SystemClock
from tests.contract.metadata_world import PausingClock
from tests.etcd import Etcd

PASSWORD = "a password for tests"


async def open_store(etcd: Etcd, root: str, **options: Any) -> EtcdStore:
    return await EtcdStore.open([etcd.endpoint], prefix=root, clock=SystemClock(), timeout_ms=10_000, **options)


# ---- one etcd, several clusters


async def test_clusters_share_an_etcd_and_do_not_see_each_other(etcd: Etcd) -> None:
    one, other = await open_store(etcd, "/comet/one/"), await open_store(etcd, "/comet/one2/")
    try:
        start = (await one.range("")).revision
        watch = one.watch("", start + 1)
        await other.transact([], [Put("a", b"other")])
        await one.transact([], [Put("b", b"one")])
        assert [item.key for item in (await one.range("")).items] == ["b"]
        assert [item.key for item in (await other.range("")).items] == ["a"]
        assert [event.key for event in await anext(watch)] == ["b"]
    finally:
        await one.close()
        await other.close()
        await etcd.empty("/comet/one/")
        await etcd.empty("/comet/one2/")


@pytest.mark.parametrize("root", ["", "/", "comet/", "/comet", "/" + "c" * ROOT_BYTES_MAX + "/"])
def test_a_root_is_a_folder_of_its_own(root: str) -> None:
    if root == "/":
        assert Keys(root).range("") == (b"/", b"0")
    else:
        with pytest.raises(ValueError, match="the root"):
            Keys(root)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)  # all but surrogates, which have no UTF-8


@given(TEXT, TEXT)
def test_a_range_holds_exactly_the_keys_of_its_prefix(prefix: str, key: str) -> None:
    keys = Keys("/comet/x/")
    first, end = keys.range(prefix)
    for candidate in [key, prefix + key]:
        assert (first <= keys.to_etcd(candidate) < end) == candidate.startswith(prefix)
        assert keys.from_etcd(keys.to_etcd(candidate)) == candidate


# ---- races


@pytest.mark.parametrize("seed", range(5))
async def test_of_brokers_that_swap_at_once_exactly_one_wins_each_revision(etcd: Etcd, seed: int) -> None:
    """Each key's history is one chain: every swap that applied names the one before it, and no two the same."""
    root = f"/comet/race{seed}/"
    stores = [await open_store(etcd, root) for _ in range(3)]
    won: dict[str, dict[int, int]] = {"a": {}, "b": {}}  # key -> the revision compared with -> the one it made

    async def racing(store: EtcdStore, random: Random) -> None:
        for _ in range(40):
            key = random.choice(["a", "b"])
            item = await store.get(key)
            before = item.mod_revision if item is not None else 0
            if random.random() < 0.5:
                await asyncio.sleep(0)
            result = await store.transact([Compare(key, before)], [Put(key, b"")])
            if result.applied:
                assert before not in won[key], "two swaps of one revision were applied"
                won[key][before] = result.revision

    try:
        await asyncio.gather(*(racing(store, Random(seed * 10 + n)) for n, store in enumerate(stores)))
        for key, swaps in won.items():
            at, steps = 0, 0
            while at in swaps:
                assert swaps[at] > at
                at, steps = swaps[at], steps + 1
            assert steps == len(swaps)
            last = await stores[0].get(key)
            assert (last.mod_revision if last is not None else 0) == at
    finally:
        for store in stores:
            await store.close()
        await etcd.empty(root)


# ---- leases


async def test_a_renewal_whose_answer_is_read_after_the_lease_could_have_ended_does_not_count(etcd: Etcd) -> None:
    clock = PausingClock(SystemClock())
    store = await EtcdStore.open([etcd.endpoint], prefix="/comet/late/", clock=clock, timeout_ms=10_000)
    try:
        lease = await store.grant_lease(5000)
        renewal = asyncio.create_task(store.keep_alive(lease))
        await asyncio.sleep(0)
        clock.paused_s = 5.0
        with pytest.raises(StoreUnavailable, match="too late"):
            await renewal
        assert await store.keep_alive(lease) == 5000
        await store.revoke_lease(lease)
    finally:
        await store.close()


async def test_etcd_times_leases_in_whole_seconds_and_the_store_says_so(etcd: Etcd) -> None:
    store = await open_store(etcd, "/comet/seconds/")
    try:
        # So long that none is over before it was asked about.
        for asked_ms, given_ms in [(59_001, 60_000), (60_000, 60_000), (60_001, 61_000), (62_500, 63_000)]:
            lease = await store.grant_lease(asked_ms)
            assert await store.keep_alive(lease) == given_ms
            await store.revoke_lease(lease)
    finally:
        await store.close()


# ---- being let in


async def test_a_store_that_nobody_answers_for_says_so_in_time() -> None:
    held = HeldPorts(1)
    (port,) = held.numbers
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match="not reachable"):
        await EtcdStore.open([f"127.0.0.1:{port}"], prefix="/comet/x/", clock=SystemClock(), timeout_ms=1000)
    assert time.monotonic() - start < 30


async def test_an_endpoint_of_another_etcd_is_not_used(
    etcd: Etcd, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Etcd.start(tmp_path / "stranger", "--initial-cluster-token=another")
    try:
        store = await EtcdStore.open(
            [etcd.endpoint, stranger.endpoint], prefix="/comet/x/", clock=SystemClock(), timeout_ms=10_000
        )
        store._connection.suspect(store._connection._members[0])  # as after a failure: the next one's turn
        with caplog.at_level(logging.ERROR):
            assert await store.get("a") is None
        assert "belongs to another etcd" in caplog.text
        await store.close()
    finally:
        stranger.remove()


async def test_a_password_is_asked_for_and_a_token_that_ran_out_is_renewed(tmp_path: Path) -> None:
    etcd = Etcd.start(tmp_path / "etcd")
    try:
        await protect(etcd)
        with pytest.raises(StoreUnavailable, match="user name is empty"):
            await open_store(etcd, "/comet/x/")
        with pytest.raises(StoreUnavailable, match="authentication failed"):
            await open_store(etcd, "/comet/x/", user="comet", password="wrong")
        store = await open_store(etcd, "/comet/x/", user="comet", password=PASSWORD)
        try:
            revision = (await store.transact([], [Put("a", b"1")])).revision
            lease = await store.grant_lease(60_000)
            assert await store.keep_alive(lease) == 60_000
            watch = store.watch("", revision)
            assert (await anext(watch))[0].key == "a"
            etcd.restart()  # tokens live in etcd's memory
            async with asyncio.timeout(60):
                while True:
                    try:
                        await store.transact([], [Put("b", b"2")])
                        break
                    except StoreUnavailable:
                        await asyncio.sleep(0)
                with pytest.raises(Reconnected):
                    await anext(watch)
                assert (await anext(store.watch("", revision + 1)))[0].key == "b"
            await store.revoke_lease(lease)
        finally:
            await store.close()
    finally:
        etcd.remove()


async def protect(etcd: Etcd) -> None:
    """A user `comet` who may do what a cluster of that root needs, and nothing else."""
    async with grpc.aio.insecure_channel(etcd.endpoint) as channel:
        auth: Any = rpc.AuthStub(channel)
        await auth.UserAdd(rpc.AuthUserAddRequest(name="root", password=PASSWORD))
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
        await auth.UserAdd(rpc.AuthUserAddRequest(name="comet", password=PASSWORD))
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="cluster"))
        permission = rpc.Permission(permType=rpc.Permission.READWRITE, key=b"/comet/x/", range_end=b"/comet/x0")
        await auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="cluster", perm=permission))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="comet", role="cluster"))
        await auth.AuthEnable(rpc.AuthEnableRequest())


async def test_tls_checks_both_sides(tmp_path: Path) -> None:
    certificates(tmp_path)
    ca, cert, key = tmp_path / "ca.pem", tmp_path / "one.pem", tmp_path / "one.key"
    etcd = Etcd.start(
        tmp_path / "etcd",
        f"--cert-file={cert}",
        f"--key-file={key}",
        f"--trusted-ca-file={ca}",
        "--client-cert-auth",
    )
    try:
        store = await open_store(etcd, "/comet/x/", ca=ca, cert=cert, key=key)
        await store.transact([], [Put("a", b"1")])
        assert await store.get("a") is not None
        await store.close()
        for options in [{}, {"ca": ca}, {"ca": tmp_path / "other.pem", "cert": cert, "key": key}]:
            with pytest.raises(StoreUnavailable):
                await open_store(etcd, "/comet/x/", **options)
    finally:
        etcd.remove()


def certificates(folder: Path) -> None:
    """An authority, what it signed for 127.0.0.1, and another authority that signed nothing."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for name in ["ca", "other"]:
        new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.pem")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=etcd", "-keyout", "one.key", "-out", "one.csr")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    sign = ["x509", "-req", "-in", "one.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
    openssl(*sign, "-extfile", "names", "-out", "one.pem")


@pytest.mark.parametrize(
    "wrong", [{"cert": Path("c")}, {"key": Path("k")}, {"cert": Path("c"), "key": Path("k")}, {"password": "p"}]
)
def test_half_an_access_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs"):
        Access(**wrong)


# ---- what etcd says


@pytest.mark.parametrize(
    ("version", "sound"),
    [
        ("3.4.23", False),
        ("3.4.99", False),
        ("3.5.1", False),
        ("3.5.29", False),
        ("3.5.30", True),
        ("3.6.10", False),
        ("3.6.11", True),
        ("3.7.0-rc.1", True),
        ("4.0.0", True),
        ("", False),
    ],
)
def test_versions_with_known_defects_are_known(version: str, sound: bool) -> None:
    assert is_sound(version) is sound


@pytest.mark.parametrize(
    ("code", "text", "meaning"),
    [
        (grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found", LeaseLost),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", LimitExceeded),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", StoreUnavailable),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", ValueError),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", StaleToken),
        (grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", StaleToken),
        (grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", StoreUnavailable),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader", StoreUnavailable),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out", StoreUnavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", StoreUnavailable),
        (grpc.StatusCode.INTERNAL, "anything", StoreUnavailable),
    ],
)
def test_each_refusal_has_a_meaning(code: grpc.StatusCode, text: str, meaning: type[Exception]) -> None:
    nothing = grpc.aio.Metadata()
    assert type(translate(grpc.aio.AioRpcError(code, nothing, nothing, text), "one:2379")) is meaning


async def test_an_etcd_without_space_refuses_writes_and_goes_on_reading(tmp_path: Path) -> None:
    etcd = Etcd.start(tmp_path / "etcd", f"--quota-backend-bytes={4 << 20}")
    store = await open_store(etcd, "/comet/x/")

    async def fill() -> None:
        for n in range(200):  # an old one looks at its size only every now and then
            await store.transact([], [Put(f"{n}", bytes(1 << 20))])

    try:
        with pytest.raises(LimitExceeded, match="full"):
            await fill()
        assert await store.get("0") is not None
    finally:
        await store.close()
        etcd.remove()


# ---- watches: what is pure in them


def test_what_a_watch_repeats_or_finds_in_the_past_is_dropped() -> None:
    keys = Keys("/comet/x/")

    def event(revision: int, name: str) -> Any:
        return rpc.Event(kv=rpc.KeyValue(key=keys.to_etcd(name), mod_revision=revision, create_revision=1))

    events = [
        event(4, "old"),
        event(5, "a"),
        event(5, "b"),
        event(5, "c"),
        event(7, "d"),
        event(6, "back"),
        event(7, "d"),
    ]
    assert [[(each.revision, each.key) for each in together] for together in revisions(keys, events, 5)] == [
        [(5, "a"), (5, "b"), (5, "c")],
        [(7, "d")],
    ]


def _event(key: str, revision: int, *, deleted: bool = False) -> WatchEvent:
    return WatchEvent(key, None if deleted else KeyValue(key, b"", revision, revision), revision)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1), st.data())
def test_reconciling_finds_what_is_lost_and_nothing_else(changes: list[tuple[str, bool]], data: st.DataObject) -> None:
    """Against the dumb way: replay all changes, and compare."""
    start = data.draw(st.integers(0, len(changes)))
    lost = data.draw(st.none() | st.integers(start, len(changes) - 1)) if start < len(changes) else None

    def state(upto: int) -> dict[str, int]:
        keys: dict[str, int] = {}
        for n, (key, deleted) in enumerate(changes[:upto]):
            keys.pop(key, None)
            if not deleted:
                keys[key] = n + 2
        return keys

    reconciler = Reconciler()
    assert not reconciler.lost(state(start), start + 1)
    for n, (key, deleted) in enumerate(changes):
        if n != lost:
            reconciler.seen([_event(key, n + 2, deleted=deleted)])
        if n >= start:
            # The watch may lag behind the listing: at the first sight nothing is called lost.
            assert not Reconciler().lost(state(len(changes)), len(changes) + 1)
    final = state(len(changes))
    assert not reconciler.lost(final, len(changes) + 1), "it may still be on its way"
    missed = reconciler.lost(final, len(changes) + 1)
    if lost is None:
        assert not missed
    else:
        key = changes[lost][0]
        repaired = any(later == key for later, _ in changes[lost + 1 :])
        was_there = key in state(lost)
        noticed = not repaired and (was_there or not changes[lost][1])
        assert missed == (frozenset({key}) if noticed else frozenset())


def test_a_change_on_its_way_is_not_lost() -> None:
    reconciler = Reconciler()
    reconciler.lost({"a": 2}, 2)
    assert not reconciler.lost({"a": 3}, 3)
    reconciler.seen([_event("a", 3)])
    assert not reconciler.lost({"a": 4}, 4)
    assert reconciler.lost({"a": 4}, 4) == {"a"}
