"""What the demo leaves behind, however and whenever it ends: no process, and nothing of what was temporary. And what it
does when one of its processes ends while it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from comet.processes import shared_folder
from comet.processes.crew import Crew
from comet.processes.ports import unused
from comet.processes.shared_folder import Share
from comet.processes.signals import held_back
from comet_demo import launcher
from comet_demo.launcher import _broker
from tests.descendants import alive, descendants
from tests.waiting import until

DEMO = ["demo", "--rate", "500", "--seed", "1", "--gateway-port", "0", "--no-spark"]
WITHIN_S = 60.0


@contextmanager
def started(folder: Path, command: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """It runs, with whatever is temporary in `folder`, and what it says in a file."""
    said = folder.parent / f"{folder.name}.said"
    folder.mkdir()
    with (
        said.open("wb") as file,
        subprocess.Popen(
            [sys.executable, *command], stdout=file, stderr=file, env=os.environ | {"TMPDIR": str(folder)}
        ) as process,
    ):
        try:
            yield process, said
        finally:
            if process.poll() is None:
                process.kill()


@contextmanager
def demo(folder: Path, *arguments: str, first: str = "pass") -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`first` is done before."""
    start = f"{first}; from comet.cli import main; main()"
    with started(folder, ["-c", start, *DEMO, *arguments]) as found:
        yield found


def left(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


def running(pid: int, module: str) -> list[int]:
    """Those of its processes that run this module."""
    return [one for one in descendants(pid) if module.encode() in _command(one)]


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _another(pid: int, module: str, before: list[int]) -> bool:
    return running(pid, module) not in ([], before)


def _events(said: Path) -> bool:
    return " events, " in said.read_text()


@pytest.mark.parametrize(("there", "number"), [
    ("", signal.SIGINT),  # as soon as this is there in its folder
    ("broker.log", signal.SIGINT),
    ("tmp/comet-*", signal.SIGINT),
    ("tmp/comet-*/gateway.log", signal.SIGINT),
    ("feed.log", signal.SIGINT),
    ("broker.log", signal.SIGKILL),
    ("tmp/comet-*/gateway.log", signal.SIGKILL),
])  # fmt: skip
async def test_nothing_is_left_however_early_it_ends(tmp_path: Path, there: str, number: signal.Signals) -> None:
    folder = tmp_path / "tmp"

    def begun(pid: int) -> bool:
        # Of one that is killed while it is alone, nobody is left to tidy up.
        return any(folder.glob(f"comet-demo-*/{there}")) and (number != signal.SIGKILL or descendants(pid) != [])

    with demo(folder) as (process, said):
        assert await until(lambda: begun(process.pid), within_s=WITHIN_S, every_s=0.002)
        others = descendants(process.pid)
        process.send_signal(number)
        assert process.wait(WITHIN_S) == (0 if number == signal.SIGINT else -number)
        assert "Traceback" not in said.read_text()
    assert await until(lambda: not any(map(alive, others)), within_s=WITHIN_S)
    assert await until(lambda: not left(folder), within_s=WITHIN_S), left(folder)


async def test_one_in_the_background_of_a_script_ends_too(tmp_path: Path) -> None:
    """There the shell makes its programs ignore Ctrl-C."""
    folder = tmp_path / "tmp"
    with demo(folder, first="import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)") as (process, said):
        assert await until(lambda: _events(said), within_s=WITHIN_S)
        process.terminate()
        assert process.wait(WITHIN_S) == 0
    assert left(folder) == []


@pytest.mark.parametrize("files", ["comet-*", "comet-*/gateway.log"])
async def test_a_broker_by_itself_leaves_nothing_either(tmp_path: Path, files: str) -> None:
    folder = tmp_path / "tmp"
    with started(folder, ["-m", "comet.cli", "up", "--ephemeral", "--port", "0"]) as (process, _):
        assert await until(lambda: any(folder.glob(files)), within_s=WITHIN_S, every_s=0.002)
        process.terminate()
        process.wait(WITHIN_S)
    assert left(folder) == []


async def test_one_that_ends_is_started_again_but_not_the_feed(tmp_path: Path) -> None:
    with demo(tmp_path / "tmp") as (process, said):
        assert await until(
            lambda: _events(said) and running(process.pid, "comet_demo.sample_workload") != [], within_s=WITHIN_S
        )
        for module in ("comet_demo.sample_workload", "comet_demo.paper_trading"):
            assert await until(lambda: len(running(process.pid, module)) == 1, within_s=WITHIN_S)  # noqa: B023
            before = running(process.pid, module)
            os.kill(before[0], signal.SIGKILL)
            assert await until(partial(_another, process.pid, module, before), within_s=WITHIN_S)
        assert "; life ended, restarting: code -9" in said.read_text()
        os.kill(running(process.pid, "comet_demo.feed")[0], signal.SIGKILL)
        assert process.wait(WITHIN_S) != 0
    assert "error: feed (pid " in (words := said.read_text().splitlines()[-2]) and "was killed by SIGKILL" in words


async def test_a_market_that_says_nothing_is_no_riddle(tmp_path: Path) -> None:
    quotes = tmp_path / "quotes.csv"
    quotes.write_text("time,symbol,bid,ask\n1700000000,A,1,2\n")
    market = ("--provider", "replay", "--file", str(quotes))
    first = "from comet_demo.terminal import quote_table; quote_table.SILENT_US = 1"
    with demo(tmp_path / "tmp", *market, first=first) as (_, said):
        reason = "; last line of the feed: 1 events sent"
        assert await until(lambda: reason in said.read_text(), within_s=WITHIN_S), said.read_text()


@contextmanager
def listening(host: str) -> Iterator[int]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        try:
            one.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        one.listen()
        yield one.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_port_is_free_where_nobody_answers_on_localhost_whatever_that_is(host: str) -> None:
    with listening(host) as port:
        assert not unused(port)
    assert unused(port)


def test_without_a_gateway_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "unused", lambda port: True)  # somebody was faster
    with listening("127.0.0.1") as port, Crew("comet-demo-") as crew:
        _, started = _broker(crew, port)
    assert started.url == ""
    assert started.lacks.startswith(f"no gateway: 127.0.0.1:{port} is in use")


def test_a_signal_in_the_middle_is_heard_afterwards() -> None:
    done: list[bool] = []

    def work() -> None:
        with held_back():
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_the_last_one_to_leave_removes_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    shares = [Share(folder, begins=True), Share(folder), Share(folder)]
    (folder / "some" / "where").mkdir(parents=True)
    shares[1].leave()
    shares[0].leave()
    assert folder.exists()
    shares[2].leave()
    assert not folder.exists()
    with pytest.raises(FileNotFoundError):
        Share(folder)


def test_who_leaves_as_another_dies_waits_for_its_share_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    dying, last = Share(folder, begins=True), Share(folder)
    monkeypatch.setattr(shared_folder, "time", SimpleNamespace(sleep=lambda _: dying.close()))
    last.leave(patient=True)
    assert not folder.exists()


STRAY = """
import subprocess, sys
stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(stray.pid, flush=True)
stray.wait()
"""


def test_whoever_is_alone_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    Share(folder, begins=True).close()
    (tmp_path / "stray.py").write_text(STRAY)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with subprocess.Popen(
        [sys.executable, "-m", "comet.processes.tied", "stdin", str(folder), "stray"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        stray = int(process.stdout.readline())
        assert alive(stray)
        process.stdin.close()
        assert process.wait(WITHIN_S) == -signal.SIGKILL
    assert asyncio.run(until(lambda: not alive(stray), within_s=WITHIN_S))
    assert not folder.exists()


def test_a_crew_keeps_what_was_said_where_it_is_to_be_kept() -> None:
    with Crew("comet-demo-") as crew:
        child = crew.start("runtime", "comet_demo.nothing")
        child.wait(WITHIN_S)
        crew.keep = True
        folder = crew.folder
    try:
        assert "No module named comet_demo.nothing" in child.last_line()
        assert [path.name for path in folder.iterdir()] == ["runtime.log"]
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
