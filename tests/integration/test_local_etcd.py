"""The etcd of `comet up --brokers` serves none without the password in the data folder."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
import pytest
from aetcd import rpc

import comet
from comet import sync
from comet.cli._local_cluster import LocalCluster
from comet.cli._local_etcd import _call, password_of, password_required, password_steps
from tests.etcd import START_S_MAX, Etcd
from tests.integration.test_cli_flows import Up
from tests.integration.test_cluster_cli import TIMEOUT_S, started
from tests.waiting import until, until_answered

ROOT: Final = {"key": b"/comet/", "range_end": b"/comet0"}
SERVED: Final = ("range", "put", "delete", "transaction", "watch", "snapshot", "user")  # by an etcd without a password


def served(endpoint: str, metadata: tuple[tuple[str, str], ...] = ()) -> tuple[str, ...]:
    """The calls that etcd answers. Raises if it refuses one for another reason than the caller."""
    put = rpc.PutRequest(key=b"/stranger", value=b"x")
    with grpc.insecure_channel(endpoint) as channel:
        kv: Any = rpc.KVStub(channel)
        watches: Any = rpc.WatchStub(channel)
        maintenance: Any = rpc.MaintenanceStub(channel)
        auth: Any = rpc.AuthStub(channel)

        def watched(**options: Any) -> bool:
            request = rpc.WatchRequest(create_request=rpc.WatchCreateRequest(**ROOT))
            return not next(watches.Watch(iter([request]), **options)).canceled

        calls: dict[str, Callable[..., Any]] = {
            "range": lambda **options: kv.Range(rpc.RangeRequest(**ROOT), **options),
            "put": lambda **options: kv.Put(put, **options),
            "delete": lambda **options: kv.DeleteRange(rpc.DeleteRangeRequest(key=b"/stranger"), **options),
            "transaction": lambda **options: kv.Txn(
                rpc.TxnRequest(success=[rpc.RequestOp(request_put=put)]), **options
            ),
            "watch": watched,
            "snapshot": lambda **options: next(maintenance.Snapshot(rpc.SnapshotRequest(), **options)),
            "user": lambda **options: auth.UserList(rpc.AuthUserListRequest(), **options),
        }

        def answers(name: str) -> bool:
            try:
                return bool(calls[name](timeout=TIMEOUT_S, wait_for_ready=True, metadata=metadata))
            except grpc.RpcError as error:
                if re.search("user name is empty|permission denied", str(error)):
                    return False
                raise

        return tuple(name for name in SERVED if answers(name))


def as_root(endpoint: str, password: str) -> tuple[tuple[str, str], ...]:
    """The metadata of calls by etcd's user root."""
    with grpc.insecure_channel(endpoint) as channel:
        auth: Any = rpc.AuthStub(channel)
        request = rpc.AuthenticateRequest(name="root", password=password)
        return (("token", auth.Authenticate(request, timeout=TIMEOUT_S, wait_for_ready=True).token),)


def without_password(endpoint: str, file: Path) -> None:
    """Makes etcd and its folder as they were before it had a password."""
    metadata = as_root(endpoint, password_of(file))
    with grpc.insecure_channel(endpoint) as channel:
        auth: Any = rpc.AuthStub(channel)
        auth.AuthDisable(rpc.AuthDisableRequest(), metadata=metadata)
        auth.UserDelete(rpc.AuthUserDeleteRequest(name="root"))
        auth.RoleDelete(rpc.AuthRoleDeleteRequest(role="root"))
    file.unlink()


async def created(topic: str, addresses: str) -> bool:
    """Whether there is such a topic; creates it if the brokers reach etcd."""
    async with comet.Admin(addresses) as admin:
        try:
            await admin.create_topic(topic)
        except comet.CometError as error:
            return isinstance(error, comet.TopicExists)
        return True


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_only_the_brokers_and_the_owner_of_the_folder_have_the_password(tmp_path: Path) -> None:
    data = tmp_path / "data"
    words = ("up", "--no-gateway", "--brokers", "3", "--data", str(data), "--port", "0", "--log-level", "debug")
    with started(*words) as (process, document):
        etcd, password = document["etcd"]["address"], password_of(data / "etcd.password")
        assert len(password) > 40
        assert served(etcd) == ()
        assert served(etcd, as_root(etcd, password)) == SERVED

        up = Up(",".join(broker["address"] for broker in document["brokers"]), data)
        up.run("topic", "create", "held")
        up.run("produce", "held", "--acks", "all", feed=b"one\n")
        found: Any = up.json("cluster")
        assert len(found["brokers"]) == 3
        checked = json.loads(up.run("doctor", "--etcd", etcd, "--json", "--port", "9").stdout)
        assert [one["status"] for one in checked if one["name"] == f"etcd {etcd}"] in (["ok"], ["warn"])

        os.kill(document["etcd"]["pid"], signal.SIGKILL)
        assert process.stderr is not None
        said = [process.stderr.readline()]
        while said[-1] and "etcd restarted" not in said[-1]:
            said.append(process.stderr.readline())
        assert said[-1], said
        assert await until_answered(lambda: created("after", up.address), within_s=TIMEOUT_S)
        assert served(etcd) == ()

        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        assert {broker["pid"] for broker in document["brokers"]} < {one.pid for one in family}
        assert not [one for one in family if any(password in word for word in one.cmdline())]
        process.terminate()
        output, rest = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
    assert password not in json.dumps(document) + output + rest + "".join(said)
    files = [path for path in data.rglob("*") if path.is_file() and path.relative_to(data).parts[0] != "etcd"]
    assert {"etcd.log", "broker-1.log"} < {path.name for path in files}
    assert [path.name for path in files if password.encode() in path.read_bytes()] == ["etcd.password"]
    assert [mode(data / name) for name in ("etcd.password", "etcd.log", "etcd")] == [0o600, 0o600, 0o700]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_cluster_of_before_gets_a_password_and_keeps_its_topics(tmp_path: Path) -> None:
    file = tmp_path / "etcd.password"
    with LocalCluster(tmp_path, 2) as cluster:
        with sync.Admin(cluster.addresses) as admin:
            admin.create_topic("kept")
        without_password(cluster.etcd.address, file)
        assert served(cluster.etcd.address) == SERVED
    (tmp_path / "etcd.log").chmod(0o644)
    with LocalCluster(tmp_path, 2) as cluster:
        assert served(cluster.etcd.address) == ()
        with sync.Admin(cluster.addresses) as admin:
            assert admin.describe_topic("kept").name == "kept"
    assert [mode(file), mode(tmp_path / "etcd.log")] == [0o600, 0o600]


@pytest.mark.parametrize("done", range(6))
async def test_a_start_completes_the_one_that_was_killed(done: int, tmp_path: Path) -> None:
    """Whatever steps the killed one has made, and also if its password is lost."""
    etcd = Etcd.start(tmp_path / "etcd")
    try:
        file = tmp_path / "etcd.password"
        interrupt(etcd.endpoint, password_of(file), done)
        etcd.kill()
        etcd.launch()
        if 0 < done < 5:
            file.unlink()
        password = password_of(file)
        assert await until(lambda: password_required(etcd.endpoint, password), within_s=START_S_MAX)
        assert served(etcd.endpoint) == ()
        assert served(etcd.endpoint, as_root(etcd.endpoint, password)) == SERVED
        assert password_of(file) == password and password_required(etcd.endpoint, password)
        with pytest.raises(comet.InvalidArgument, match="requires another password"):
            password_required(etcd.endpoint, "another")
    finally:
        etcd.remove()


def interrupt(endpoint: str, password: str, done: int) -> None:
    """Makes the first steps of a start."""
    for path, request in password_steps(password)[:done]:
        assert not _call(endpoint, path, request)


def test_an_etcd_that_does_not_answer_is_tried_again() -> None:
    assert not password_required("127.0.0.1:1", "password")


def test_a_file_without_a_password_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "etcd.password"
    file.touch(0o600)
    with pytest.raises(comet.InvalidArgument, match="holds no password"):
        password_of(file)
    file.chmod(0o644)
    with pytest.raises(comet.InvalidArgument, match="open to others"):
        password_of(file)
