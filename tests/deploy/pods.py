"""Pods of a rendered chart as processes: each in a network of its own, with its address, its ports and the names of the
others. What is as in the chart: commands, environment, settings, ports, names, probes, periods. What is not: the paths
of volumes, and the program, which is this environment's.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy import chart
from tests.waiting import pace, until_answered

BIN: Final = Path(sys.executable).parent
NODE: Final = "10.77.0.1"  # from where probes are sent, and clients call


@dataclass
class Networks:
    """Network namespaces on one bridge, and the names that are known in all of them."""

    prefix: str
    made: list[str] = field(default_factory=list)
    hosts: dict[str, str] = field(default_factory=dict)  # name -> address

    def add(self, name: str) -> str:
        """Makes a network for a pod; returns its address."""
        address = f"10.77.0.{len(self.made) + 10}"
        namespace, end = f"{self.prefix}-{name}", f"v{len(self.made)}"
        _ip("netns", "add", namespace)
        self.made.append(namespace)
        _ip("link", "add", end, "netns", self.node, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("-n", self.node, "link", "set", end, "master", "bridge", "up")
        for device in ("lo", "eth0"):
            _ip("-n", namespace, "link", "set", device, "up")
        _ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        return address

    @property
    def node(self) -> str:
        """The namespace with the bridge."""
        return f"{self.prefix}-node"

    def inside(self, name: str) -> list[str]:
        """What comes before a command that is run there."""
        namespace = self.node if name == "node" else f"{self.prefix}-{name}"
        folder = Path("/etc/netns") / namespace  # `ip netns exec` shows its files as those of /etc
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{address} {host}\n" for host, address in self.hosts.items())
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{lines}")
        return ["ip", "netns", "exec", namespace]


@contextmanager
def networks() -> Iterator[Networks]:
    """A bridge for pods; skips the test where none can be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("networks of their own need root and ip(8)")
    found = Networks(f"comet{os.getpid()}")
    try:
        try:
            _ip("netns", "add", found.node)
            _ip("-n", found.node, "link", "set", "lo", "up")
            _ip("-n", found.node, "link", "add", "bridge", "type", "bridge")
            _ip("-n", found.node, "link", "set", "bridge", "up")
            _ip("-n", found.node, "address", "add", f"{NODE}/24", "dev", "bridge")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no networks can be made here: {error.stderr}")
        yield found
    finally:
        for namespace in (*found.made, found.node):
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns") / namespace, ignore_errors=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass
class Pod:
    """A pod of a StatefulSet with one container."""

    networks: Networks
    folder: Path  # its volumes
    number: int
    workload: chart.Object
    local: Callable[[str, int], str]  # puts paths of this machine in place of the pod's
    address: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """As Kubernetes names it."""
        return f"{self.workload['metadata']['name']}-{self.number}"

    @property
    def spec(self) -> chart.Object:
        """Of the pod."""
        found: chart.Object = self.workload["spec"]["template"]["spec"]
        return found

    @property
    def container(self) -> chart.Object:
        """The only one."""
        (found,) = self.spec["containers"]
        assert isinstance(found, dict)
        return found

    @property
    def log(self) -> str:
        """What it has printed, over all its starts."""
        return (self.folder / f"{self.name}.log").read_text()

    @property
    def environment(self) -> dict[str, str]:
        """Of its container, with what this machine's programs need."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("COMET_", "ETCD_"))}
        own = {name: self.local(value, self.number) for name, value in self._declared.items()}
        return kept | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"} | own

    @property
    def _declared(self) -> dict[str, str]:
        return chart.environment(self.container, chart.pod_fields(self.name, self.number), {})

    def start(self, program: Mapping[str, str] | None = None) -> None:
        """Starts the container's command. `program` has the paths of programs that are elsewhere here."""
        first, *rest = self.container["command"]
        command = [(program or {}).get(first, first), *(self.local(word, self.number) for word in rest)]
        for name, value in self._declared.items():
            command = [word.replace(f"$({name})", self.local(value, self.number)) for word in command]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            words = [*self.networks.inside(self.name), *command]
            self.process = subprocess.Popen(
                words, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def exec(self, *command: str) -> str:
        """The output of a command in the pod, as by `kubectl exec`."""
        words = [*self.networks.inside(self.name), *command]
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=self.environment, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def probe(self, kind: str) -> bool:
        """One request of a probe, from the node."""
        probe = self.container[kind]
        (port,) = (one["containerPort"] for one in self.container["ports"] if one["name"] == probe["httpGet"]["port"])
        words = ["curl", "--silent", "--fail", "--output", "/dev/null", "--max-time", str(probe["timeoutSeconds"])]
        url = f"http://{self.address}:{port}{probe['httpGet']['path']}"
        asked = await asyncio.create_subprocess_exec(*self.networks.inside("node"), *words, url)
        return await asked.wait() == 0

    async def until_ready(self) -> None:
        """Waits as the kubelet does: for its start within its limit, then for readiness; fails if its process ends."""
        startup = self.container["startupProbe"]
        started = await until_answered(
            self._running("startupProbe"),
            within_s=startup["periodSeconds"] * startup["failureThreshold"],
            every_s=0.2,
        )
        assert started, self.log
        assert await until_answered(self._running("readinessProbe"), within_s=120, every_s=0.2), self.log
        assert await self.probe("livenessProbe"), self.log

    def _running(self, kind: str) -> Any:
        async def answered() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log
            return await self.probe(kind)

        return answered

    async def stop(self) -> None:
        """As the kubelet stops it: preStop, SIGTERM, and SIGKILL after the grace period, which counts as a failure."""
        assert self.process is not None
        assert "lifecycle" not in self.container, "run its preStop here"
        self.process.send_signal(signal.SIGTERM)
        grace_s = self.spec["terminationGracePeriodSeconds"]
        try:
            code = await asyncio.to_thread(self.process.wait, grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"{self.name} was killed after {grace_s} s: {self.log}") from None
        assert code == 0, self.log

    def kill(self) -> None:
        """Ends what still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)


async def roll(pods: list[Pod], changed: chart.Object, when_ready: Callable[[], None]) -> None:
    """A rolling update by the rules of a StatefulSet: from the highest number down, one pod at a time, the next one
    once the last is ready and has stayed so for `minReadySeconds`. Calls `when_ready` as soon as a pod is."""
    assert changed["spec"]["updateStrategy"] == {"type": "RollingUpdate"}
    for pod in sorted(pods, key=lambda one: one.number, reverse=True):
        await pod.stop()
        pod.workload = changed
        pod.start()
        await pod.until_ready()
        when_ready()
        await pace(changed["spec"]["minReadySeconds"])
        assert await pod.probe("readinessProbe"), pod.log
