"""The container image, built by buildah on a small Debian and run by runc: no daemon, no registry of images.

The base images of the Dockerfile cannot be had here, so it is built on one that mmdebstrap makes.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from tests.tidy.tree import ROOT
from tests.waiting import until

PROGRAMS: Final = ("buildah", "mmdebstrap", "runc", "podman", "nsenter")
USER: Final = 10001
BUILD_S_MAX: Final = 900.0
CONFIGURATION: Final = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_TRUSTED_HOST")
NO_DOCUMENTATION: Final = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale")]


def why_not() -> str:
    """Why no image can be built here; empty if it can."""
    if os.geteuid() != 0:
        return "building and running an image needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"install {', '.join(missing)}, which build and run the image" if missing else ""


def do(*words: str | Path, cwd: Path = ROOT, timeout_s: float = BUILD_S_MAX) -> str:
    """The output of a command that succeeds."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def copy_sources(folder: Path) -> None:
    """Copies the files that git has, or would have."""
    for name in do("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


@dataclass
class Images:
    """Images in a folder. `state` is another one, with a short path, as podman demands."""

    folder: Path
    state: Path

    def buildah(self, *words: str | Path) -> str:
        """The output of a command of buildah."""
        return do("env", "BUILDAH_ISOLATION=chroot", "buildah", *self.stores, *words)

    @property
    def stores(self) -> list[str]:
        """The options of buildah and podman for this folder."""
        return [f"--root={self.folder}/images", f"--runroot={self.state}"]

    def make_bases(self) -> None:
        """`localhost/runtime`, a Debian with Python, and `localhost/builder`, with pip and binutils too."""
        context = self.folder / "base"
        context.mkdir()
        smaller = ['--aptopt=APT::Install-Recommends "false"', *NO_DOCUMENTATION]
        merged = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"  # instead of a package that brings Perl
        packages = "--include=usr-is-merged,python3,ca-certificates"
        release = platform.freedesktop_os_release()["VERSION_CODENAME"]
        do("mmdebstrap", "--variant=apt", merged, *smaller, packages, release, context / "root.tar")
        (context / "Dockerfile").write_text("FROM scratch\nADD root.tar /\n")
        self.buildah("bud", "--tag", "localhost/runtime", context)
        settings = "".join(f"ENV {name}={os.environ[name]}\n" for name in CONFIGURATION if name in os.environ)
        if certificates := os.environ.get("PIP_CERT"):
            shutil.copy(certificates, context / "certificates")
            settings += f"COPY certificates {certificates}\n"
        install = "apt-get update && apt-get install -y --no-install-recommends python3-venv python3-pip binutils"
        (context / "Dockerfile").write_text(f"FROM localhost/runtime\n{settings}RUN {install}\n")
        self.buildah("bud", "--tag", "localhost/builder", context)

    def build(self) -> None:
        """`localhost/comet`, of the files that git has."""
        context = self.folder / "context"
        copy_sources(context)
        bases = ["--build-arg=PYTHON=localhost/runtime", "--build-arg=BUILDER=localhost/builder"]
        labels = ["--build-arg=VERSION=1.2.3", "--build-arg=REVISION=abc"]
        self.buildah("bud", "--format=docker", *bases, *labels, "--target=comet", "--tag=localhost/comet", context)

    def build_beside(self, tag: str, *lines: str, files: Sequence[Path] = ()) -> None:
        """An image of another program, for tests without a registry of images."""
        context = self.folder / f"context-{tag.replace('/', '-')}"
        context.mkdir()
        for file in files:
            shutil.copy2(file, context)
        (context / "Dockerfile").write_text("\n".join(["FROM localhost/runtime", *lines, ""]))
        self.buildah("bud", "--tag", tag, context)

    def inspected(self) -> dict[str, Any]:
        """The image's configuration."""
        document: dict[str, Any] = json.loads(self.buildah("inspect", "--type=image", "localhost/comet"))
        return document

    @contextmanager
    def files(self) -> Iterator[Path]:
        """The folder of the image's files."""
        container = self.buildah("from", "localhost/comet").strip()
        try:
            yield Path(self.buildah("mount", container).strip())
        finally:
            self.buildah("rm", container)


@dataclass
class Container:
    """A process of the image under runc: its own network, user 10001, no capabilities, and a root that it cannot write.
    A context manager; leaving it kills what still runs."""

    root: Path  # the files of the image
    folder: Path  # for this container
    data: Path
    environment: dict[str, str]
    command: Sequence[str]
    name: str
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self.folder.mkdir()
        if not self.data.exists():
            self.data.mkdir()
            os.chown(self.data, USER, USER)
        do("runc", "spec", cwd=self.folder)
        (self.folder / "config.json").write_text(json.dumps(self._specification()))
        with (self.folder / "log").open("wb") as log:
            words = [*self._runc, "run", "--bundle", str(self.folder), self.name]
            self._process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            subprocess.run([*self._runc, "kill", self.name, "KILL"], check=False)
            self._process.wait(30)
        subprocess.run([*self._runc, "delete", "--force", self.name], check=False, capture_output=True)

    def _specification(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        found["root"] = {"path": str(self.root), "readonly": True}
        process = found["process"]
        process |= {"terminal": False, "cwd": "/data", "args": list(self.command), "noNewPrivileges": True}
        process["user"] = {"uid": USER, "gid": USER}
        process["env"] = [f"{name}={value}" for name, value in self.environment.items()]
        process["capabilities"] = {}
        found["mounts"] = [one for one in found["mounts"] if one["type"] != "cgroup"]
        found["mounts"].append(
            {"destination": "/data", "type": "bind", "source": str(self.data), "options": ["rbind", "rw"]}
        )
        found["linux"]["namespaces"] = [one for one in found["linux"]["namespaces"] if one["type"] != "cgroup"]
        found["linux"].pop("resources", None)
        return found

    @property
    def _runc(self) -> list[str]:
        return ["runc", "--root", str(self.folder.parent / "runc")]

    @property
    def log(self) -> str:
        """What it has printed."""
        return (self.folder / "log").read_text()

    def inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command in the container, as by `docker exec`; as the administrator, if it is one of Comet."""
        names = {"CA": "ca.pem", "CERT": "admin.pem", "KEY": "admin.key"}
        settings = [f"--env=COMET_CLIENT_{name}=/data/security/{file}" for name, file in names.items()]
        command = [*self._runc, "exec", *settings, self.name, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    def beside(self, *words: str) -> list[str]:
        """A command of this machine, in the container's network."""
        state = json.loads(do(*self._runc, "state", self.name))
        return ["nsenter", f"--net=/proc/{state['pid']}/ns/net", *words]

    async def until_healthy(self) -> None:
        """Returns once its health check passes."""

        def healthy() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.log
            return self.inside("comet", "healthcheck").returncode == 0

        assert await until(healthy, within_s=60), self.log

    def stop(self) -> int:
        """SIGTERM, as an orchestrator sends it; the exit code."""
        assert self._process is not None
        do(*self._runc, "kill", self.name, "TERM")
        return self._process.wait(60)


PRODUCER: Final = """\
import asyncio, sys
import comet

async def main():
    acknowledged = 0
    where = comet.Bootstrap("localhost:9092", ca=sys.argv[1], cert=sys.argv[2], key=sys.argv[3])
    async with comet.Producer(where, timeout_ms=1_000) as producer:
        try:
            while True:
                await producer.publish("orders", b"x")
                acknowledged += 1
                if acknowledged == 100:
                    print("running", flush=True)
        except comet.CometError as error:
            print(acknowledged, error.code, flush=True)

asyncio.run(main())
"""


def producing(container: Container) -> subprocess.Popen[str]:
    """A producer that sends one record after the other, until it fails; it prints the number of acknowledged ones."""
    security = container.data / "security"
    files = [str(security / name) for name in ("ca.pem", "admin.pem", "admin.key")]
    words = container.beside(sys.executable, "-c", PRODUCER, *files)
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
