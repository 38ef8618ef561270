"""The chart as a program: its etcd and three brokers in networks of their own are rolled by the rules of a StatefulSet,
while a client writes. No send fails, and no record is lost."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from comet_broker.metadata.etcd_binary import find_etcd
from tests.deploy import chart
from tests.deploy.pods import BIN, Networks, Pod, networks, roll
from tests.tidy.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]
DOMAIN: Final = f"{chart.NAMESPACE}.svc.cluster.local"
ETCD: Final = f"comet-etcd-0.comet-etcd.{DOMAIN}"
BROKERS: Final = [f"comet-broker-{number}.comet-brokers.{DOMAIN}" for number in (1, 2, 3)]
ADDRESSES: Final = ",".join(f"{name}:9092" for name in BROKERS)


def comet(*words: str | Path) -> None:
    subprocess.run([BIN / "comet", *words], check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """Of the brokers, an administrator and the member of etcd, each for its name in the cluster."""
    comet("security", "init", folder, "--host", BROKERS[0], "--host", "localhost")
    for number, name in enumerate(BROKERS[1:], 2):
        comet("security", "broker", str(number), folder, "--host", name, "--host", "localhost")
    comet("security", "client", "etcd", folder, "--host", ETCD, "--host", "localhost", "--host", "127.0.0.1")
    for theirs, ours in (("tls.crt", "etcd.pem"), ("tls.key", "etcd.key"), ("ca.crt", "ca.pem")):
        shutil.copy(folder / ours, folder / theirs)


@contextmanager
def pods(folder: Path, made: Networks) -> Iterator[list[Pod]]:
    """The pods of etcd and of the brokers, in this order, with their names known to all."""
    run = chart.template("secrets", "--set", "etcd.replicas=1,gateway.enabled=false")
    assert run.returncode == 0, run.stderr
    objects = chart.parsed(run.stdout)
    (text,) = (one["data"]["comet.toml"] for one in objects if "comet.toml" in one.get("data", ()))

    def local(text: str, number: int) -> str:
        own = {"/data/etcd": "etcd", "/data/comet": f"broker-{number}", "/etc/comet/config": f"config-{number}"}
        tls = dict.fromkeys(("/etc/etcd/tls", "/etc/comet/etcd", "/etc/comet/tls"), "tls")
        for there, here in (own | tls).items():
            text = text.replace(there, str(folder / here))
        return text

    found = []
    for kind, numbers, names in (("-etcd", (0,), [ETCD]), ("-broker", (1, 2, 3), BROKERS)):
        (workload,) = (
            one for one in objects if one["kind"] == "StatefulSet" and one["metadata"]["name"].endswith(kind)
        )
        for number, name in zip(numbers, names, strict=True):
            pod = Pod(made, folder, number, workload, local)
            pod.address = made.hosts[name] = made.add(pod.name)
            found.append(pod)
            if kind == "-broker":
                (folder / f"config-{number}").mkdir()
                (folder / f"config-{number}/comet.toml").write_text(local(text, number))
    try:
        yield found
    finally:
        for pod in reversed(found):
            pod.kill()


def client(made: Networks, tls: Path) -> subprocess.Popen[str]:
    """The client, as the administrator."""
    names = {"CA": "ca.pem", "CERT": "admin.pem", "KEY": "admin.key"}
    environment = os.environ | {f"COMET_CLIENT_{name}": str(tls / file) for name, file in names.items()}
    words = [*made.inside("node"), sys.executable, "-m", "tests.deploy.rollout_client", ADDRESSES]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


async def test_a_rolled_cluster_loses_nothing(tmp_path: Path) -> None:
    make_certificates(tmp_path / "tls")
    with networks() as made, pods(tmp_path, made) as (etcd, *brokers):
        etcd.start({"/usr/local/bin/etcd": str(find_etcd())})
        for broker in brokers:
            broker.start()
        await asyncio.gather(*(broker.until_ready() for broker in brokers))
        with client(made, tmp_path / "tls") as load:
            try:
                assert load.stdout is not None and load.stdin is not None
                assert await asyncio.to_thread(load.stdout.readline) == "running\n"
                changed = copy.deepcopy(brokers[0].workload)
                changed["spec"]["template"]["spec"]["containers"][0]["env"].append(
                    {"name": "COMET_LOG_LEVEL", "value": "info"}
                )

                def when_ready() -> None:
                    shown = json.loads(brokers[0].exec("comet", "cluster", "--json"))
                    assert shown["under_replicated"] == [], "a broker was ready before its replicas"

                await roll(brokers, changed, when_ready)
                assert load.poll() is None
                load.stdin.write("\n")
                load.stdin.flush()
                result = json.loads(await asyncio.to_thread(load.stdout.readline))
            finally:
                load.kill()
        assert result["failed"] == [] and result["missing"] == [] and result["twice"] == 0
        assert result["acknowledged"] > 1_000
        assert all("comet_broker" in broker.log for broker in brokers), "each runs with the changed template"
        assert etcd.process is not None and etcd.process.poll() is None
