"""The cluster of deploy/compose, run by podman-compose, with stand-ins for images of others.

No registry of images is needed: etcd comes from Debian, Envoy from PyPI. Grafana and Prometheus are not run.
The test runs the health checks and starts services in their order, since podman leaves both to systemd.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.containers import Images, do
from tests.integration.proxies import find_proxy
from tests.tidy.tree import ROOT
from tests.waiting import until

FOLDER: Final = ROOT / "deploy/compose"
START_S_MAX: Final = 120.0
SETTINGS: Final = """\
[containers]
default_ulimits = []
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""


def services() -> dict[str, Any]:
    """The services of compose.yaml."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    return found


@dataclass(frozen=True)
class Composed:
    """A cluster that podman-compose runs."""

    images: Images
    project: str

    def podman(self, *words: str) -> str:
        """The output of a command of podman that succeeds."""
        return do(*self._around, "podman", *self.images.stores, *words)

    def compose(self, *words: str) -> str:
        """The output of a command of podman-compose that succeeds."""
        program = str(Path(sys.executable).with_name("podman-compose"))
        podman = ["--podman-path", str(self.images.folder / "podman"), "--podman-run-args=--ulimit=host"]
        return do(*self._around, program, "-p", self.project, *podman, *words, cwd=FOLDER)

    def container(self, service: str) -> str:
        """The name of a service's container."""
        return f"{self.project}_{service}_1"

    def inside(self, service: str, *words: str) -> str:
        """The output of a command in a service's container, as the administrator."""
        names = {"CA": "ca.pem", "CERT": "admin.pem", "KEY": "admin.key"}
        settings = [f"--env=COMET_CLIENT_{name}=/secrets/{file}" for name, file in names.items()]
        return self.podman("exec", *settings, self.container(service), *words)

    def secret(self, name: str) -> Path:
        """A file of the volume `secrets`."""
        folder = self.podman("volume", "inspect", f"{self.project}_secrets", "--format={{.Mountpoint}}").strip()
        return Path(folder) / name

    async def start(self, *names: str) -> None:
        """Starts services together and waits for what those that depend on them wait for."""
        self.compose("up", "-d", "--no-deps", *names)
        for name in names:
            if name == "secrets":
                assert self.podman("wait", self.container(name)).strip() == "0"
            elif "healthcheck" in services()[name]:
                assert await until(partial(self._healthy, name), within_s=START_S_MAX), self._log(name)

    def _healthy(self, service: str) -> bool:
        words = ["podman", *self.images.stores, "healthcheck", "run", self.container(service)]
        return subprocess.run([*self._around, *words], capture_output=True, check=False).returncode == 0

    def _log(self, service: str) -> str:
        return self.podman("logs", self.container(service))

    @property
    def _around(self) -> list[str]:
        return ["env", f"CONTAINERS_CONF={self.images.folder / 'containers.conf'}"]


@contextmanager
def composed(images: Images) -> Iterator[Composed]:
    """The cluster before any of its services has started; afterwards nothing of it is left."""
    images.build_beside(
        "gcr.io/etcd-development/etcd:v3.6.11",
        "RUN apt-get update && apt-get install -y --no-install-recommends etcd-server etcd-client",
        "ENV ETCDCTL_API=3",
        "CMD etcd",
    )
    envoy = Path(find_proxy("envoy"))
    images.build_beside("docker.io/envoyproxy/envoy:v1.40.0", "COPY envoy /usr/local/bin/envoy", files=[program(envoy)])
    (images.folder / "containers.conf").write_text(SETTINGS)
    script = images.folder / "podman"
    script.write_text(f'#!/bin/sh\nexec podman {" ".join(images.stores)} "$@"\n')
    script.chmod(0o755)
    found = Composed(images, f"c{os.getpid()}")
    try:
        yield found
    finally:
        found.compose("down", "--volumes", "--timeout", "5")


def program(script: Path) -> Path:
    """The program that a wheel's script starts, or the program itself."""
    if script.read_bytes()[:2] != b"#!":
        return script
    import envoy

    (found,) = Path(envoy.__file__).parent.glob("_bin/envoy")
    return found


def published(service: Mapping[str, Any]) -> list[str]:
    """The addresses on which a service is published."""
    return [str(one) for one in service.get("ports", ())]
