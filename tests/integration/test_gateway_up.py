"""`comet up` with the gateway that it starts beside its broker."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import comet
from tests.waiting import until

TIMEOUT_S = 90
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@contextmanager
def up(*words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any], Callable[[], str]]]:
    """`comet up --json` with its document, and what it has said since by lines of stderr."""
    with subprocess.Popen(
        [sys.executable, "-m", "comet.cli", "up", "--port", "0", "--json", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        watchdog = threading.Timer(TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line), process.stderr.readline
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0
        finally:
            watchdog.cancel()
            if process.poll() is None:
                process.kill()


def test_comet_up_starts_a_gateway_and_keeps_it(tmp_path: Path) -> None:
    with up("--data", str(tmp_path / "data")) as (process, document, says):
        url = document["gateway"]
        _until_ready(url)
        (child,) = [one for one in psutil.Process(process.pid).children() if "gateway" in one.cmdline()]
        child.kill()
        assert "was killed by SIGKILL" in says()
        assert "gateway restarted" in says()
        _until_ready(url)
        (child,) = [one for one in psutil.Process(process.pid).children() if "gateway" in one.cmdline()]
    assert not child.is_running()


def _until_ready(url: str) -> None:
    """Or until the watchdog ends `up`."""
    with httpx.Client(transport=httpx.HTTPTransport(retries=8), timeout=TIMEOUT_S) as client:
        while client.get(f"{url}/readyz").status_code != httpx.codes.OK:
            pass


def test_a_gateway_that_cannot_start_leaves_the_broker_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with up("--ephemeral", "--gateway-port", port) as (_, document, says):
            assert document["gateway"] is None
            assert port in says()
            comet.run(_list_topics(document["address"]))


async def _list_topics(address: str) -> None:
    async with comet.Admin(address) as admin:
        assert await admin.list_topics() == []


def test_comet_up_without_a_gateway() -> None:
    with up("--ephemeral", "--no-gateway") as (_, document, _says):
        assert document["gateway"] is None


@contextmanager
def up_with_a_gateway_that_never_listens(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The folder that `up` is started in comes before that of the real one."""
    (folder / "comet_gateway.py").write_text("import signal\nprint('here', flush=True)\nsignal.pause()\n")
    with subprocess.Popen(
        [sys.executable, "-m", "comet.cli", "up", "--port", "0", "--json", "--data", str(folder / "data")],
        cwd=folder,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_comet_up_ends_while_its_gateway_is_starting(tmp_path: Path) -> None:
    said = tmp_path / "data" / "gateway.log"
    with up_with_a_gateway_that_never_listens(tmp_path) as process:
        assert process.stdout is not None
        assert await until(lambda: said.exists() and said.read_text() == "here\n", within_s=TIMEOUT_S)
        (gateway,) = psutil.Process(process.pid).children()
        process.terminate()
        assert await until(lambda: process.poll() is not None, within_s=TIMEOUT_S / 3)
        assert process.returncode == 0
        assert process.stdout.read() == b""
        assert not gateway.is_running()
