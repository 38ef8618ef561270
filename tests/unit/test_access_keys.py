"""Access keys: their texts, their table, and which of them a broker takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from comet.errors import CredentialsRefused, InvalidArgument, LimitExceeded, Unavailable
from comet.security.access_keys import add_access_key, brokers_file
from comet.wire.bearer import digest_of, id_of, make_access_key, read_access_key
from comet_broker.access.credentials import WARNING_US, Credentials
from comet_broker.access.keys import AccessKeys, keys_in
from comet_broker.core import access_keys
from comet_broker.core.access_keys import AccessKey, AccessKeyTable
from comet_broker.core.cluster import ClusterState, Versioned
from comet_testing.simulation.worker import SimWorker, WorkerPace
from tests.unit.storage_world import HandClock

BILLING, ADMIN = "client:billing", "client:admin"


def key_of(text: str, principal: str = BILLING, *, expires_us: int = 0) -> AccessKey:
    return AccessKey(id_of(text) or "", principal, digest_of(text).hex(), expires_us=expires_us)


def state_of(*keys: AccessKey, revision: int) -> ClusterState:
    state = ClusterState(revision=revision)
    state.access_keys = Versioned(AccessKeyTable(keys).encode(), revision, revision)
    return state


def presented(text: str) -> Iterable[tuple[str, str | bytes]]:
    return [("user-agent", "grpc"), ("authorization", f"Bearer {text}")]


class Broker:
    """Its keys, with the admin's in a file, and those whose streams it has ended."""

    def __init__(self, folder: Path) -> None:
        self.admin_file = add_access_key(folder, "admin")
        self.admin = read_access_key(self.admin_file)
        self.file = brokers_file(folder)
        self.clock = HandClock()
        self.keys = AccessKeys(self.file, self.clock)
        self.keys.moved(ClusterState(revision=1))
        self.ended: list[str] = []
        self.keys.on_ended.append(self.ended.extend)
        self.credentials = Credentials(self.keys, None, self.clock)

    async def reread(self) -> None:
        await self.keys.reread(SimWorker(Random(0), WorkerPace(seconds_max=0.0)))


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def test_a_key_is_made_and_read_back(tmp_path: Path) -> None:
    made = {make_access_key() for _ in range(100)}
    assert len(made) == len({id_of(text) for text in made}) == 100
    for text in made:
        (tmp_path / "key").write_text(f"{text}\n")
        assert read_access_key(tmp_path / "key") == text


@pytest.mark.parametrize(
    "text", ["", "comet_", "secret-0815", "comet_3F9A51C07D42_" + 43 * "x", "comet_3f9a51c07d42_" + 42 * "x", "é" * 62]
)
def test_a_file_without_a_key_is_refused_and_not_shown(text: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(InvalidArgument, match="does not hold an access key") as refused:
        read_access_key(tmp_path / "key")
    assert "0815" not in str(refused.value) and "xxx" not in str(refused.value)
    with pytest.raises(InvalidArgument, match="No such file"):
        read_access_key(tmp_path / "none")


def test_a_principal_has_two_keys_and_not_more() -> None:
    first, second, third = (key_of(make_access_key()) for _ in range(3))
    table = AccessKeyTable().with_key(first, 0).with_key(second, 0)
    with pytest.raises(InvalidArgument, match=f"has the keys {first.id} and {second.id}") as refused:
        table.with_key(third, 0)
    assert refused.value.details["hint"] == f"comet key revoke {first.id}"
    assert table.without_key(first.id).with_key(third, 0).keys == (second, third)
    assert table.with_key(key_of(make_access_key(), "client:other"), 0).keys[:2] == (first, second)


def test_an_expired_key_does_not_count_and_is_dropped() -> None:
    old, kept = key_of(make_access_key(), expires_us=100), key_of(make_access_key())
    new = key_of(make_access_key())
    table = AccessKeyTable((old, kept))
    with pytest.raises(InvalidArgument):
        table.with_key(new, 99)
    assert table.with_key(new, 100).keys == (kept, new)


def test_a_repeated_creation_changes_nothing_and_an_id_has_one_key() -> None:
    key = key_of(make_access_key())
    table = AccessKeyTable().with_key(key, 0)
    assert table.with_key(AccessKey(key.id, key.principal, key.sha256, "client:admin", 7), 0) is table
    assert table.without_key("000000000000") is table
    for other in (AccessKey(key.id, "client:other", key.sha256), AccessKey(key.id, key.principal, "0" * 64)):
        with pytest.raises(InvalidArgument, match="another key has the id"):
            table.with_key(other, 0)
    with pytest.raises(InvalidArgument, match="not a principal"):
        table.with_key(key_of(make_access_key(), "*"), 0)


def test_the_table_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_keys, "TABLE_BYTES_MAX", 200)
    table = AccessKeyTable().with_key(key_of(make_access_key()), 0)
    with pytest.raises(LimitExceeded, match="2 access keys take"):
        table.with_key(key_of(make_access_key(), "client:other"), 0)


def test_the_holder_of_a_key_is_its_principal(broker: Broker) -> None:
    text = make_access_key()
    broker.keys.moved(state_of(key_of(text), revision=2))
    assert broker.credentials.holder(presented(text)).principal == BILLING
    assert broker.credentials.holder(presented(broker.admin)).principal == ADMIN
    assert broker.credentials.holder([("authorization", f"Bearer {text}".encode())]).principal == BILLING
    assert broker.credentials.refused == 0


def test_anything_else_is_refused_without_being_shown(broker: Broker) -> None:
    text = make_access_key()
    broker.keys.moved(state_of(key_of(text), revision=2))
    secret = text.rpartition("_")[2] if text.count("_") == 2 else text[19:]
    for metadata, why in (
        (None, "has none"),
        ([], "has none"),
        ([("authorization", text)], "not an access key"),
        ([("authorization", f"Basic {text}")], "not an access key"),
        (presented(text + "x"), "not an access key"),
        (presented(text[:19] + make_access_key()[19:]), "not known"),
        (presented(make_access_key()), "not known"),
        ([("authorization", b"\xff\xfe")], "not an access key"),
    ):
        with pytest.raises(CredentialsRefused, match=why) as refused:
            broker.credentials.holder(metadata)
        assert secret not in str(refused.value)
    assert broker.credentials.refused == 8


def test_before_the_cluster_is_known_an_unknown_key_may_come_again(broker: Broker) -> None:
    starting = AccessKeys(broker.file, broker.clock)
    assert starting.holder(broker.admin).principal == ADMIN
    with pytest.raises(Unavailable, match="not loaded yet"):
        starting.holder(make_access_key())
    starting.moved(ClusterState(revision=1))
    with pytest.raises(CredentialsRefused):
        starting.holder(make_access_key())


def test_refused_calls_are_reported_with_the_peer_also_those_that_may_come_again(broker: Broker) -> None:
    reported: list[tuple[str, str]] = []
    starting = Credentials(AccessKeys(broker.file, broker.clock), None, broker.clock)
    for credentials in (broker.credentials, starting):
        credentials.on_refused.append(lambda peer, error: reported.append((peer, error.code)))
        with pytest.raises((CredentialsRefused, Unavailable)):
            credentials.holder([("authorization", f"Bearer {make_access_key()}")], "ipv4:10.0.0.7:1")
        credentials.holder([("authorization", f"Bearer {broker.admin}")], "ipv4:10.0.0.7:1")
    assert reported == [("ipv4:10.0.0.7:1", "CREDENTIALS_REFUSED"), ("ipv4:10.0.0.7:1", "UNAVAILABLE")]
    assert (broker.credentials.refused, starting.refused) == (1, 0)


def test_a_revoked_key_is_refused_and_its_streams_end(broker: Broker) -> None:
    first, second = make_access_key(), make_access_key()
    broker.keys.moved(state_of(key_of(first), key_of(second), revision=2))
    broker.keys.moved(state_of(key_of(second), revision=3))
    assert broker.ended == [id_of(first)]
    with pytest.raises(CredentialsRefused):
        broker.credentials.holder(presented(first))
    broker.keys.moved(state_of(key_of(second, "client:other"), revision=4))
    assert broker.ended == [id_of(first), id_of(second)], "it proves another principal now"
    broker.keys.moved(ClusterState(revision=5))
    assert broker.ended == [id_of(first), id_of(second), id_of(second)]


def test_an_expired_key_is_refused(broker: Broker) -> None:
    text = make_access_key()
    end = broker.clock.now_us + 1_000_000
    broker.keys.moved(state_of(key_of(text, expires_us=end), revision=2))
    broker.clock.now_us = end - 1
    assert broker.credentials.holder(presented(text)) == (BILLING, id_of(text), end, ())
    broker.clock.now_us = end
    with pytest.raises(CredentialsRefused, match="has expired"):
        broker.credentials.holder(presented(text))


def test_stored_keys_that_cannot_be_read_are_not_taken(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    text = make_access_key()
    broker.keys.moved(state_of(key_of(text), revision=2))
    state = ClusterState(revision=3)
    state.access_keys = Versioned(b'{"keys": 7}', 3, 3)
    broker.keys.moved(state)
    assert broker.ended == [id_of(text)] and "none of them is taken" in caplog.text
    assert broker.credentials.holder(presented(broker.admin)).principal == ADMIN


async def test_the_file_is_followed(broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gateway = read_access_key(add_access_key(tmp_path, "gateway"))
    with pytest.raises(CredentialsRefused):
        broker.credentials.holder(presented(gateway))
    await broker.reread()
    assert broker.credentials.holder(presented(gateway)).principal == "client:gateway"
    for broken in ("", "[[key]", "[[key]]\nid = 7"):
        broker.file.write_text(broken)
        await broker.reread()
        await broker.reread()
        assert broker.credentials.holder(presented(broker.admin)).principal == ADMIN
    assert [line.startswith("the earlier access keys") for line in caplog.messages] == 3 * [True]
    assert not broker.ended
    broker.file.unlink()
    add_access_key(tmp_path, "other")
    await broker.reread()
    assert sorted(broker.ended) == sorted(filter(None, (id_of(broker.admin), id_of(gateway))))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no access key: `comet security init --access-keys`"),
        ("key = 7", "has no list"),
        ("[key]\nid = 'x'", "has no list"),
        ("[[key]]\nprincipal = 'client:a'", "12 hex digits"),
        ("[[key]]\nid = 7", "has no list"),
        ("[[key]]\nid = '3f9a51c07d42'\nprincipal = 'client:a'", "64 hex digits"),
        (f"[[key]]\nid = '3f9a51c07d42'\nprincipal = '*'\nsha256 = '{'0' * 64}'", "not a principal"),
        (f"[[key]]\nid = '3f9a51c07d42'\nsecret = '{'0' * 64}'", "not secret"),
        (2 * f"[[key]]\nid = '3f9a51c07d42'\nprincipal = 'client:a'\nsha256 = '{'0' * 64}'\n", "the same id"),
        ("#" * (1 << 20) + "#", "larger than"),
    ],
)
def test_a_file_of_the_brokers_is_checked(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(InvalidArgument, match=why):
        keys_in(tmp_path / "keys")
    with pytest.raises(InvalidArgument, match="cannot read"):
        keys_in(tmp_path)


def test_refused_calls_are_logged_once_a_minute(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> None:
        with pytest.raises(CredentialsRefused):
            broker.credentials.holder([])

    broker.credentials.warn_of_refusals()
    assert not caplog.messages
    for _ in range(3):
        refuse()
    broker.credentials.warn_of_refusals()
    refuse()
    broker.credentials.warn_of_refusals()
    assert caplog.messages == [
        "3 calls were refused, the last: this broker requires an access key, and the call has none"
    ]
    broker.clock.now_us += WARNING_US
    broker.credentials.warn_of_refusals()
    broker.credentials.warn_of_refusals()
    assert len(caplog.messages) == 2 and caplog.messages[-1].startswith("1 calls were refused")


def test_a_first_key_is_not_made_twice(tmp_path: Path) -> None:
    file = add_access_key(tmp_path, "admin")
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidArgument, match="exists"):
        add_access_key(tmp_path, "admin")
    with pytest.raises(InvalidArgument, match="cannot name a client"):
        add_access_key(tmp_path, "../admin")
    add_access_key(tmp_path, "gateway")
    assert [one.principal for one in keys_in(brokers_file(tmp_path))] == [ADMIN, "client:gateway"]
