"""What the command line makes of a cluster: its health, processes that die and come back, the gaps of a failover."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

import comet
from comet.cli import _etcd_checks, up
from comet.cli._checks import check_spark
from comet.cli._cluster_checks import _about_broker, _about_calendars, _about_conflicts, _about_leaders
from comet.cli._commands import app
from comet.cli._etcd_checks import MemberCheck, check_members
from comet.cli._gateway_process import RESTARTS, GatewayProcess, restarting
from comet.cli._local_cluster import LocalCluster
from comet.cli._up_cluster import _announce
from comet.cli.cluster import Health, failures, show_failed
from comet.entities import BrokerInfo, ClusterInfo, PartitionInfo, ReplicaConflict, TopicInfo
from comet.errors import InvalidArgument, Unavailable
from comet.settings.topic import TopicConfig
from comet_bench.cluster.failover_load import Load
from comet_bench.report import combine, table_row
from tests.unit.fake_child import FakeChild


def topic(*partitions: PartitionInfo, min_insync: int = 2) -> TopicInfo:
    return TopicInfo("t", bytes(16), partitions, TopicConfig(min_insync=min_insync), 0)


WELL = PartitionInfo(0, 1, 1, (1, 2, 3), (1, 2, 3))
BEHIND = PartitionInfo(1, 2, 1, (1, 2, 3), (1, 2))
BELOW = PartitionInfo(2, 2, 1, (1, 2, 3), (2,))
OFFLINE = PartitionInfo(3, None, 5, (1, 2, 3), (3,))


def test_what_is_not_well_is_told_apart() -> None:
    health = Health.of([topic(WELL, BEHIND, BELOW, OFFLINE)])
    assert [one.partition for _, one in health.offline] == [3]
    assert [one.partition for _, one in health.under_replicated] == [1, 2, 3]
    assert [one.partition for _, one in health.below_min_insync] == [2, 3]


class FakeAdmin:
    """comet.Admin, of two brokers; the second one does not answer."""

    async def statistics(self, broker: int, *, brief: bool) -> dict[str, Any]:
        assert brief
        if broker == 2:
            raise Unavailable("it does not answer")
        one = {"name": "n", "step": "s", "reason": "AssertionError()", "since_us": 1, "count": 1}
        passing = {**one, "kind": "task", "stopped": False}
        return {"failed": [passing, {**one, "kind": "group", "name": "engine", "count": 3, "stopped": True}]}


async def test_what_has_failed_is_shown_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = tuple(BrokerInfo(number, "h", 9092, "1") for number in (1, 2))
    found = ClusterInfo("c", controller=1, brokers=brokers, topics=0, partitions=0)
    failed = await failures(FakeAdmin(), found)  # type: ignore[arg-type]
    assert [(one.broker, one.kind, one.stopped) for one in failed] == [(1, "group", True), (1, "task", False)]
    show_failed(failed)
    said = capsys.readouterr()
    assert "engine" in said.out and "stopped" in said.out and "AssertionError()" in said.out
    assert "comet cluster resume" in said.err + said.out
    show_failed([])
    assert not capsys.readouterr().out


def test_a_dry_run_of_resume_counts_the_failures() -> None:
    failure = comet.BrokerFailure(1, "group", "engine", "writing", "KeyError(3)", since_us=0, count=1)
    assert str(comet.Resumed(True, resumed=0, failed=(failure,))) == "1 would be resumed"
    assert str(comet.Resumed(False, resumed=2, failed=(failure,))) == "2 resumed; 1 failed again"
    assert str(comet.Resumed(False, resumed=0, failed=())) == "nothing to resume"


# ---- processes that die


def test_an_ended_process_restarts_after_growing_pauses(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = FakeChild("broker-1"), FakeChild("etcd")
    keeper = restarting([one, other])
    now = 0.0
    delays = []
    for _ in range(8):
        one.code, one.started = -9, now
        delays.append(wait := keeper.check(now))
        assert keeper.check(now + wait / 2) == pytest.approx(wait / 2), "it waits, and reports the death once"
        now += wait
        keeper.check(now)
    assert delays == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0]
    assert (one.starts, other.starts) == (8, 0)
    said = capsys.readouterr().err
    assert said.count("was killed by SIGKILL; restarting it in") == 8
    assert said.count("broker-1 restarted (pid 0)") == 8


def test_a_process_that_ran_well_for_long_restarts_quickly(capsys: pytest.CaptureFixture[str]) -> None:
    one = FakeChild("broker-1")
    keeper = restarting([one])
    well_s, longest_s = RESTARTS.calm_s, RESTARTS.pauses_s[-1]
    restarted = 0.0
    for ran_s, delay_s in ((0.0, 1.0), (well_s - 1, 2.0), (well_s + 1, 1.0)):
        one.code = 1
        died_at = restarted + ran_s
        assert keeper.check(died_at) == delay_s
        restarted = died_at + longest_s
        keeper.check(restarted)
    assert one.starts == 3
    assert capsys.readouterr().err.count("ended with code 1: its last words; restarting it in") == 3


def test_the_way_it_ended_is_reported() -> None:
    one = FakeChild("broker-2")
    one.code = -signal.SIGSEGV
    assert one.ending() == "broker-2 (pid 0) was killed by SIGSEGV"
    one.code = 1
    assert one.ending() == "broker-2 (pid 0) ended with code 1"


def test_a_broker_that_gave_up_while_etcd_stood_still_is_started_again(tmp_path: Path) -> None:
    cluster, one = LocalCluster(tmp_path, 1), FakeChild("broker-1")
    cluster.etcd, cluster.brokers = FakeChild("etcd"), [one]
    one.code, one.words = 1, "error: etcd does not answer: 127.0.0.1:2379: not reachable [UNAVAILABLE]"
    cluster._wait(lambda: one.starts == 1, cluster.members)
    one.code, one.words = 1, "error: its disk is full [DISK_FULL]"
    with pytest.raises(Unavailable, match="disk is full"):
        cluster._wait(lambda: False, cluster.members)


# ---- before anything starts


def test_the_folder_of_a_single_broker_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").touch()
    with pytest.raises(InvalidArgument, match="holds the data of a single broker"):
        LocalCluster(tmp_path, 3).start()
    assert [path.name for path in tmp_path.iterdir()] == ["metadata.db"]


def test_ports_that_are_taken_or_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="the last port is 65535"):
        LocalCluster(tmp_path, 3, port=65534)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port} is in use"):
            LocalCluster(tmp_path, 1, port=port).start()
    assert list(tmp_path.iterdir()) == []


def test_the_commands_to_paste_reach_a_cluster_whose_first_broker_is_dead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = LocalCluster(tmp_path, 3)
    addresses = ",".join(broker.address for broker in cluster.brokers)
    _announce(cluster, "http://localhost:8080", {}, ephemeral=True, as_json=False)
    printed = capsys.readouterr().out
    assert f"\n  export COMET_BOOTSTRAP={addresses}\n" in printed
    assert "\n  comet cluster  " in printed
    assert printed.startswith("Comet is up: dashboard at http://localhost:8080\n3 brokers at ")


def test_an_origin_that_the_gateway_would_refuse_starts_nothing(tmp_path: Path) -> None:
    for wrong in (["--origins", "localhost:8000"], ["--origins", "http://localhost:8000", "--no-gateway"]):
        done = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "data"), *wrong])
        assert done.exit_code == 2
        assert "origin" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a port cannot be held for somebody else")
def test_a_port_that_was_picked_is_for_whom_it_was_picked(tmp_path: Path) -> None:
    """Others may want any port while a process is on its way to its own, or is started again."""
    gateway, cluster = GatewayProcess("localhost:9092", 0, tmp_path), LocalCluster(tmp_path, 3)
    for member in (gateway.child, *cluster.members):
        address = ("127.0.0.1", int(member.address.rpartition(":")[2]))
        for _ in range(2):
            with socket.socket() as somebody, pytest.raises(OSError, match="in use"):
                somebody.bind(address)  # as the system does for whoever says 0
            socket.create_server(address).close()


def test_a_signal_while_the_temporary_folder_is_made_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def interrupted(*arguments: Any) -> None:
        mkdir(*arguments)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "mkdir", interrupted)
    with pytest.raises(SystemExit), up._data_folder(Path("data"), ephemeral=True):
        raise AssertionError("it goes no further")
    assert list(tmp_path.iterdir()) == []


# ---- the benchmark's figures


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_longest_gap_since_the_mark_counts_also_while_it_is_open() -> None:
    clock = FakeClock()
    load = Load(clock)
    clock.now = 105.0  # before the mark: not counted
    load.acknowledge(1)
    load.mark()
    clock.now = 105.25
    assert load.report() == {"gap_s": 0.25, "calm_s": 0.0}
    load.acknowledge(2)
    clock.now = 106.25
    load.acknowledge(3)
    clock.now = 106.75
    load.acknowledge(4)
    clock.now = 107.0
    assert load.report() == {"gap_s": 1.0, "calm_s": 0.75}
    assert load.acknowledged == {1, 2, 3, 4}


def test_what_was_acknowledged_and_is_not_there_is_lost() -> None:
    load = Load(FakeClock())
    for number in (1, 2, 3):
        load.acknowledge(number)
    assert load.verdict([1, 2, 3, 4]) == {"lost": 0, "duplicated": 0}, "4 may be there: nobody said that it is not"
    assert load.verdict([3, 1, 1, 1]) == {"lost": 1, "duplicated": 2}


def test_runs_with_kills_are_added_up_and_their_worst_is_kept() -> None:
    one = {"median_ms": 100.0, "max_ms": 300.0, "kills": 10.0, "lost": 0.0, "duplicated": 1.0}
    found = combine([one, one | {"median_ms": 200.0, "max_ms": 900.0}, one | {"median_ms": 120.0}])
    assert found == {"median_ms": 120.0, "max_ms": 900.0, "kills": 30, "lost": 0, "duplicated": 3, "runs": 3}
    assert "30 kills, 0 lost, 3 duplicated" in table_row("failover", found)[-1]


# ---- a cluster, as doctor sees it


@pytest.mark.parametrize(
    ("found", "status", "says"),
    [
        ({"version": "1", "topics": 2}, "ok", "version 1, 2 topics"),
        ("connection refused", "fail", "connection refused"),
        ({"metadata": {"trusted": False, "reason": "it went back"}}, "fail", "it went back"),
        ({"failed": [{"kind": "slot", "name": "3", "reason": "boom"}]}, "fail", "failed: slot 3 (boom)"),
        ({"problems": {"quotes": "disk full"}}, "fail", "quotes: disk full"),
    ],
)
def test_doctor_says_what_is_wrong_with_a_broker(found: Any, status: str, says: str) -> None:
    finding = _about_broker("h:1", found)
    assert (finding.name, finding.status, finding.detail) == ("broker h:1", status, says)
    assert bool(finding.advice) == (status != "ok")


def test_doctor_says_which_replicas_are_in_conflict_and_which_partitions_have_no_leader() -> None:
    parted = replace(BEHIND, conflicts=(ReplicaConflict(3, 2, 8, 600, 1050, 1050),))
    assert _about_conflicts([topic(WELL)]).status == "ok"
    finding = _about_conflicts([topic(WELL, parted)])
    assert finding.status == "fail"
    assert finding.detail == "t/1: broker 3 has committed records up to 1050, its leader 2 agrees up to 600"
    assert [_about_leaders([topic(*one)]).status for one in ([WELL], [BEHIND], [WELL, OFFLINE])] == [
        "ok",
        "warn",
        "fail",
    ]


def test_doctor_warns_of_calendars_that_end_soon() -> None:
    now_us = 1_795_780_800_000_000  # 2026-11-27T12:00Z
    known = [
        comet.CalendarInfo(name, "UTC", "2026-01-02", day, 9)
        for name, day in (("A", "2026-12-28"), ("B", "2026-12-27"))
    ]
    assert _about_calendars(known[:1], now_us).status == "ok"
    finding = _about_calendars(known, now_us)
    assert (finding.status, finding.detail) == ("warn", "known for 30 days at most: B until 2026-12-27")
    assert "comet calendar import" in finding.advice


# ---- etcd, as doctor sees it


class FakeEtcd(BaseHTTPRequestHandler):
    """Answers what the class says."""

    answers: ClassVar[dict[str, bytes]]

    def do_GET(self) -> None:
        body = self.answers[self.path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class names it so
        """Nothing: a test is quiet."""


@pytest.mark.parametrize(
    ("version", "health", "fsync_s", "status"),
    [
        ("3.5.30", "true", 0.002, "ok"),
        ("3.5.9", "true", 0.002, "warn"),
        ("3.5.9", "false", 0.002, "fail"),
        ("3.3.1", "true", 0.002, "fail"),
        ("3.6.0", "true", 0.1, "warn"),
    ],
)
def test_a_member_of_etcd_is_judged(
    version: str, health: str, fsync_s: float, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How soon a thread of this process answers says how busy the machine is, and nothing of the judgement.
    monkeypatch.setattr(_etcd_checks, "ANSWER_MS_GOOD", 60_000.0)
    monkeypatch.setattr(_etcd_checks, "TIMEOUT_S", 60.0)

    class Answers(FakeEtcd):
        answers: ClassVar[dict[str, bytes]] = {
            "/version": json.dumps({"etcdserver": version}).encode(),
            "/health": json.dumps({"health": health}).encode(),
            "/metrics": b"# HELP x\netcd_disk_wal_fsync_duration_seconds_sum %f\n"
            b"etcd_disk_wal_fsync_duration_seconds_count 1\n" % fsync_s,
        }

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        finding = MemberCheck(f"127.0.0.1:{server.server_port}", None, None, None).run()
        server.shutdown()
    assert finding.status == status, finding
    assert version in finding.detail


def test_a_member_that_is_not_there_fails_and_one_alone_is_warned_of() -> None:
    assert MemberCheck("127.0.0.1:1", None, None, None).run().status == "fail"
    assert check_members(("a:1",)).status == "warn"
    assert check_members(("a:1", "b:1", "c:1")).status == "ok"


@pytest.mark.parametrize(
    ("environment", "status"),
    [
        ({"PATH": str(Path(sys.executable).parent)}, "ok"),
        ({"PATH": "/usr/bin:/bin"}, "warn"),
        ({"PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": sys.executable}, "ok"),
        ({"PATH": "/nowhere"}, "warn"),
    ],
)
def test_doctor_says_which_python_spark_asks(environment: dict[str, str], status: str) -> None:
    found = check_spark(environment)
    assert found.status == status
    assert ("comet.spark.session" in found.advice) is (status == "warn")
