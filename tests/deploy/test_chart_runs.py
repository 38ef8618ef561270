"""The programs of the rendered chart, run as processes here: etcd, a broker and the pod of `helm test`, with their
commands, settings, environment and certificates. Only paths, ports and host names are those of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from comet.processes.child import Child, started
from comet_broker.metadata.etcd_binary import find_etcd
from tests.deploy import chart
from tests.etcd import free_ports
from tests.unit.test_scripts import stub

WITHIN_S: Final = 60.0
BIN: Final = Path(sys.executable).parent
ONE_OF_EACH: Final = "brokers.replicas=1,etcd.replicas=1,gateway.enabled=false"

pytestmark = pytest.mark.timeout(180)


@dataclass
class Machine:
    """A folder with certificates, and what stands for the paths and addresses of pods."""

    folder: Path
    objects: list[chart.Object]
    here: dict[str, str]

    def container(self, kind: str, ending: str) -> chart.Object:
        (one,) = (it for it in self.objects if it["kind"] == kind and it["metadata"]["name"].endswith(ending))
        spec = one["spec"] if kind == "Pod" else one["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        return {**container, "pod": one["metadata"]["name"]}

    def local(self, text: str) -> str:
        for there, here in self.here.items():
            text = text.replace(there, here)
        return text

    def environment(self, container: chart.Object, number: int = 1) -> dict[str, str]:
        made = chart.environment(container, chart.pod_fields(f"{container['pod']}-{number}", number), {})
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("COMET_", "ETCD_"))}
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return {**kept, "PATH": path, **{name: self.local(value) for name, value in made.items()}}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    run = chart.template("secrets", "--set", ONE_OF_EACH)
    assert run.returncode == 0, run.stderr
    tls = tmp_path / "tls"
    subprocess.run(
        [BIN / "comet", "security", "init", tls, "--host", "localhost", "--host", "127.0.0.1"],
        check=True,
        capture_output=True,
    )
    for kind, ending in (("cert", "pem"), ("key", "key")):
        shutil.copy(tls / f"broker-1.{ending}", tls / ("tls.crt" if kind == "cert" else "tls.key"))
    shutil.copy(tls / "ca.pem", tls / "ca.crt")
    clients, peers, metrics = free_ports(3)
    domain = f"comet-etcd-0.comet-etcd.{chart.NAMESPACE}.svc.cluster.local"
    here = {
        f"{domain}:2379": f"localhost:{clients}",
        "https://0.0.0.0:2379": f"https://127.0.0.1:{clients}",
        f"{domain}:2380": f"localhost:{peers}",
        "https://0.0.0.0:2380": f"https://127.0.0.1:{peers}",
        "http://0.0.0.0:2381": f"http://127.0.0.1:{metrics}",
        "/data/etcd": str(tmp_path / "etcd"),
        "/data/comet": str(tmp_path / "broker"),
        "/etc/etcd/tls": str(tls),
        "/etc/comet/etcd": str(tls),
        "/etc/comet/tls": str(tls),
        "$(POD_NAME)": "comet-etcd-0",
    }
    return Machine(tmp_path, chart.parsed(run.stdout), here)


@pytest.fixture
def etcd(machine: Machine) -> Iterator[None]:
    container = machine.container("StatefulSet", "-etcd")
    # The pod's name stands in the arguments, and within an address.
    machine.here = {
        there.replace("comet-etcd-0", "$(POD_NAME)"): here for there, here in machine.here.items()
    } | machine.here
    command = [str(find_etcd()), *map(machine.local, container["command"][1:])]
    child = Child("etcd", command, log=machine.folder / "etcd.log", environment=machine.environment(container))
    metrics = machine.local("http://0.0.0.0:2381")

    def healthy() -> bool:
        try:
            answer = httpx.get(f"{metrics}/health")
        except httpx.TransportError:
            return False
        return str(answer.json().get("health")) == "true"

    with started(child):
        assert child.wait_ready(WITHIN_S, healthy), child.last_lines()
        yield


@pytest.fixture
def broker(machine: Machine, etcd: None) -> Iterator[dict[str, Any]]:
    """The broker's container, with its address."""
    container = machine.container("StatefulSet", "-broker")
    (text,) = (one["data"]["comet.toml"] for one in machine.objects if "comet.toml" in one.get("data", ()))
    file = machine.folder / "comet.toml"
    file.write_text(machine.local(text))
    port, brokers, metrics = free_ports(3)
    own = {
        "COMET_CONFIG": str(file),
        "COMET_HOST": "127.0.0.1",
        "COMET_ADVERTISED_HOST": "localhost",
        "COMET_PORT": str(port),
        "COMET_BROKERS_PORT": str(brokers),
        "COMET_WIRE_PORT": "0",
        "COMET_BROKERS_WIRE_PORT": "0",
        "COMET_METRICS_PORT": str(metrics),
    }
    command = [str(BIN / container["command"][0]), *container["command"][1:]]
    environment = machine.environment(container) | own
    child = Child("broker", command, log=machine.folder / "broker.log", piped=True, environment=environment)
    with started(child):
        assert "broker 1 is up" in child.line(WITHIN_S)

        def ready() -> bool:
            path = container["readinessProbe"]["httpGet"]["path"]
            return httpx.get(f"http://127.0.0.1:{metrics}{path}").status_code == 200

        assert child.wait_ready(WITHIN_S, ready), child.last_lines()
        yield {**container, "address": f"localhost:{port}", "metrics": f"http://127.0.0.1:{metrics}"}


def helm_test(machine: Machine, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs the command of the pod of `helm test`."""
    container = machine.container("Pod", "-test")
    folder = machine.folder / "tmp"
    folder.mkdir()
    machine.here["cd /tmp"] = f"cd {folder}"
    command = [machine.local(word) for word in container["command"]]
    environment = machine.environment(container) | environ
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=WITHIN_S)


def test_helm_test_passes_against_the_broker_of_the_chart(machine: Machine, broker: dict[str, Any]) -> None:
    assert httpx.get(broker["metrics"] + broker["livenessProbe"]["httpGet"]["path"]).status_code == 200
    run = helm_test(machine, COMET_BOOTSTRAP=broker["address"])
    assert run.returncode == 0, run.stderr
    assert "1000 records were written and read" in run.stdout
    listed = subprocess.run(
        [BIN / "comet", "topic", "list", "--json"],
        check=True,
        capture_output=True,
        text=True,
        env=machine.environment(machine.container("Pod", "-test")) | {"COMET_BOOTSTRAP": broker["address"]},
    )
    assert "helm-test" not in listed.stdout


@pytest.mark.parametrize("loses", ["consume) seq 999", "consume) exit 3", "produce) exit 4", "topic) exit 5"])
def test_helm_test_fails_when_a_record_or_a_command_does(machine: Machine, loses: str) -> None:
    command = stub(machine.folder / "bin/comet", f'case "$1" in {loses};; consume) seq 1000;; esac')
    run = helm_test(machine, PATH=f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    assert run.returncode != 0


def test_helm_test_passes_when_all_come_back(machine: Machine) -> None:
    command = stub(machine.folder / "bin/comet", 'case "$1" in consume) seq 1000;; esac')
    assert helm_test(machine, PATH=f"{command.parent}{os.pathsep}{os.environ['PATH']}").returncode == 0
