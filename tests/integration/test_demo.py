"""The demo as processes, without Spark, which `tests/browser/test_demo.py` has: it shows quotes, here and in the
dashboard, ends by itself or by Ctrl-C, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.descendants import alive, descendants

DEMO = [sys.executable, "-m", "comet.cli", "demo", "--rate", "2000", "--seed", "1", "--gateway-port", "0", "--no-spark"]
TIMEOUT_S = 60
GROUPS = {"matching", "audit", "settlement", "reports"}


def test_in_a_pipe_it_prints_lines_and_ends_by_itself() -> None:
    done = subprocess.run([*DEMO, "--duration", "3"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines
    assert all("symbols, delay p50" in line for line in lines)
    assert "Traceback" not in done.stderr
    assert "Prices:    http://localhost:" in done.stderr


def test_the_dashboard_has_life_in_it() -> None:
    with subprocess.Popen([*DEMO, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        assert demo.stderr is not None
        url = next(line for line in demo.stderr if line.startswith(b"Dashboard: ")).split()[-1].decode()
        try:
            with httpx.Client(base_url=url, timeout=TIMEOUT_S) as http:
                _until(lambda: {one["name"] for one in http.get("v1/groups").json().get("items", ())} >= GROUPS)
                _until(lambda: _records(http, "orders.dead") > 0)
                names = {one["name"] for one in http.get("v1/topics").json()["items"]}
                _until(lambda: "NVDA" in http.get("quotes").text)
                quotes = http.get("quotes")
        finally:
            demo.send_signal(signal.SIGTERM)
            assert demo.wait(TIMEOUT_S) == 0
    assert {"quotes", "trades", "orders", "orders.dead", "paper.fills", "quotes.bars.1s", "quotes.job"} <= names
    assert quotes.status_code == 200


def _records(http: httpx.Client, topic: str) -> int:
    partitions = http.get(f"v1/topics/{topic}").json()["partitions"]
    return sum(int(one["records"] or 0) for one in partitions)


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < deadline


def test_as_json_it_says_how_much_came_through_and_finds_another_port_for_the_dashboard() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [*DEMO, "--duration", "2", "--json", "--gateway-port", port]
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["events"] >= summary["symbols"] > 0
    assert b"Prices:    http://localhost:" in done.stderr
    assert f"Port {port} is in use".encode() in done.stderr and f":{port}".encode() not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_or_a_closed_terminal_ends_it_and_all_it_started(number: signal.Signals, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as demo:
        assert demo.stdout is not None and demo.stderr is not None
        assert b"events" in demo.stdout.readline()
        started = descendants(demo.pid)
        assert len(started) >= 2
        demo.send_signal(number)
        assert demo.wait(TIMEOUT_S) == 0
        assert b"Traceback" not in demo.stderr.read()
    assert not [pid for pid in started if alive(pid)]
    assert not any(tmp_path.iterdir())


def test_whoever_is_started_notices_that_the_launcher_is_gone_and_the_last_removes_its_folder(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as demo:
        assert demo.stdout is not None
        for _ in range(2):  # a line a second
            assert b"events" in demo.stdout.readline()
        started = descendants(demo.pid)
        assert len(started) >= 4
        demo.kill()
    _until(lambda: not [pid for pid in started if alive(pid)])
    assert not any(tmp_path.iterdir())


def test_a_feed_that_cannot_work_ends_the_demo_with_its_reason(tmp_path: Path) -> None:
    command = [*DEMO, "--provider", "replay", "--file", str(tmp_path / "nothing.csv")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode != 0
    assert ") ended with code 2: comet_demo.feed: " in done.stderr and "nothing.csv" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_java_it_says_what_to_install_and_runs_the_rest(tmp_path: Path) -> None:
    """The only thing that looks for one is told to look where there is none."""
    blind = "from comet.spark import local; local.FOLDERS = (); local._wheel = lambda: None"
    start = f"{blind}; from comet.cli import main; main()"
    command = [sys.executable, "-c", start, *DEMO[3:-1], "--duration", "1.5"]
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "No analytics. Spark needs Java 17 or later" in done.stderr
    assert "no analytics: Spark needs Java" in done.stdout.splitlines()[-1]
    assert "events of" in done.stderr


NO_PYSPARK = "import sys; sys.modules['pyspark'] = None"  # as if it was not installed


def test_without_pyspark_it_says_what_to_install_and_runs_the_rest() -> None:
    start = f"{NO_PYSPARK}; from comet.cli import main; main()"
    command = [sys.executable, "-c", start, *DEMO[3:-1], "--duration", "1.5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "No analytics. Spark is not installed (pyspark missing): " in done.stderr
    assert "no analytics: Spark is not installed" in done.stdout.splitlines()[-1]
    assert "events of" in done.stderr


@pytest.mark.parametrize("module", ["feed", "launcher", "paper_trading", "sample_workload", "terminal.consumer"])
def test_only_the_job_imports_spark(module: str) -> None:
    """It costs memory in each process, and need not be installed."""
    code = f"{NO_PYSPARK}; import comet_demo.{module}, comet_demo.providers.choose"
    subprocess.run([sys.executable, "-c", code], timeout=TIMEOUT_S, check=True)


def test_on_a_terminal_it_draws_a_table() -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen([*DEMO, "--duration", "3"], stdout=theirs, stderr=theirs, env=environment) as demo:
        os.close(theirs)
        shown = b""
        while True:
            try:
                chunk = os.read(ours, 1 << 16)
            except OSError:
                break  # how Linux says that the other end of a terminal has gone
            shown += chunk
        assert demo.wait(TIMEOUT_S) == 0, shown
    os.close(ours)
    assert all(word in shown for word in (b"symbol", b"trades/s", b"NVDA"))
