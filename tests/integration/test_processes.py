"""Real child processes that crash, hang, ignore SIGTERM, fork, and lose their parent."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from comet.errors import Timeout
from comet.processes.child import Child, ChildEnded, python_module, stop_all, stop_in_order
from comet.processes.hang_watchdog import HangWatchdog
from comet.processes.keeper import Keeper, KeeperEvent
from comet.processes.output import RELAYED_BYTES_MAX
from comet.processes.ports import HeldPorts, listening
from comet.processes.restart_policy import Schedule
from comet.processes.tied import Tie, tied
from tests.descendants import alive
from tests.pausing import stand_still
from tests.waiting import until

WITHIN_S = 60.0
SLEEPS = "import time; print('up', flush=True); time.sleep(1000)"
IGNORES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPS
FORKS = """
import subprocess, sys
one = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(1000)"], stdout=subprocess.PIPE)
one.stdout.readline()
print(one.pid, flush=True)
one.wait()
"""
Make = Callable[..., Child]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes children that run a text of Python, and kills them at the end."""
    made: list[Child] = []

    def child(text: str, name: str = "child", **options: object) -> Child:
        made.append(Child(name, [sys.executable, "-c", text], **options))  # type: ignore[arg-type]
        return made[-1]

    yield child
    for one in made:
        one.kill()


# ---- until it is ready


def test_a_line_is_the_answer_of_a_child(make: Make) -> None:
    child = make("print('127.0.0.1:9092', flush=True); input(); print('bye')", piped=True, takes_input=True)
    child.start()
    assert child.line(WITHIN_S) == "127.0.0.1:9092"
    with pytest.raises(Timeout, match=rf"child \(pid {child.pid}\) was silent for 0 s"):
        child.line(0.01)
    child.send(b"go on")
    assert child.line(WITHIN_S) == "bye"
    assert child.wait(WITHIN_S) == 0


def test_a_child_that_crashes_is_reported_with_the_end_of_its_log(make: Make, tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    log.write_text("an earlier run\n")
    child = make("import sys; print('first'); sys.exit('no luck')", log=log, address="127.0.0.1:1")
    child.start()
    with pytest.raises(ChildEnded) as caught:
        child.wait_ready(WITHIN_S)
    assert caught.value.message == f"child (pid {child.pid}) ended with code 1 before it was ready: no luck"
    assert caught.value.details == {"hint": f"see its log: {log}", "last_lines": "first\nno luck"}
    assert child.last_lines("fir") == ["first"]


def test_the_reason_of_a_command_is_its_error_and_not_the_hint_after_it(make: Make, tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    child = make("import sys; sys.exit('error: no luck [X]\\nhint: try again')", log=log, address="127.0.0.1:1")
    child.start()
    with pytest.raises(ChildEnded, match=r"before it was ready: error: no luck \[X\]$"):
        child.wait_ready(WITHIN_S)


def test_without_a_log_each_line_goes_to_stderr_after_the_name(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    child = make("import sys; print('warned', file=sys.stderr); sys.exit('no luck')", name="worker", piped=True)
    child.start()
    with pytest.raises(ChildEnded, match=r"worker \(pid \d+\) ended with code 1: no luck") as caught:
        child.line(WITHIN_S)
    assert caught.value.details["hint"] == "see its output above"
    assert capfd.readouterr().err == "worker: warned\nworker: no luck\n"


def test_an_endless_line_is_passed_on_in_parts(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    child = make(f"import sys; sys.stderr.write('x' * {RELAYED_BYTES_MAX + 1}); sys.exit()", name="worker", piped=True)
    child.start()
    with pytest.raises(ChildEnded):
        child.line(WITHIN_S)
    assert capfd.readouterr().err.split() == ["worker:", "x" * RELAYED_BYTES_MAX, "worker:", "x"]


def test_a_line_that_comes_in_pieces_is_one(make: Make) -> None:
    child = make("print('x' * 1_000_000); print('y')", piped=True)
    child.start()
    assert child.line(WITHIN_S) == "x" * 1_000_000
    assert child.line(WITHIN_S) == "y"


def test_a_child_is_ready_when_it_listens(make: Make) -> None:
    held = HeldPorts(1)
    port = held.numbers[0]
    child = make(
        f"import socket; one = socket.create_server(('127.0.0.1', {port})); {SLEEPS}", address=f"127.0.0.1:{port}"
    )
    assert not listening(child.address)
    child.start()
    assert child.wait_ready(WITHIN_S)
    assert not child.wait_ready(WITHIN_S, lambda: False, enough=lambda: True), "the caller has had enough"
    assert not child.wait_ready(0.0, lambda: False), "not in time"


def test_a_program_that_cannot_run_is_named(tmp_path: Path) -> None:
    child = Child("etcd", [str(tmp_path / "nothing")], log=tmp_path / "etcd.log")
    child.start()
    assert child.wait(WITHIN_S) == 1
    assert child.last_line() == f"cannot run {tmp_path / 'nothing'}: No such file or directory"


# ---- end


def test_a_child_that_ignores_sigterm_is_killed_after_the_deadline(make: Make) -> None:
    one, other = make(IGNORES, piped=True), make(SLEEPS, piped=True)
    for child in (one, other):
        child.start()
        assert child.line(WITHIN_S) == "up"
    began = time.monotonic()
    stop_all([one, other], within_s=0.3)
    assert (one.ended, other.ended) == (-signal.SIGKILL, -signal.SIGTERM)
    assert time.monotonic() - began >= 0.3
    assert one.ending() == f"child (pid {one.pid}) was killed by SIGKILL"


def test_a_hurry_kills_at_once(make: Make) -> None:
    child = make(IGNORES, piped=True)
    child.start()
    child.line(WITHIN_S)
    child.stop(hurry=lambda: True)
    assert child.ended == -signal.SIGKILL


def test_a_paused_child_ends_in_order(make: Make) -> None:
    child = make(SLEEPS, piped=True)
    child.start()
    child.line(WITHIN_S)
    stand_still(child.pid)
    child.stop()
    assert child.ended == -signal.SIGTERM


async def test_the_end_of_a_child_takes_its_own_children_with_it(make: Make) -> None:
    for end in ("stop", "kill", "by itself"):
        child = make(FORKS, piped=True)
        child.start()
        grandchild = int(child.line(WITHIN_S))
        assert alive(grandchild)
        if end == "by itself":
            os.kill(child.pid, signal.SIGKILL)
            assert child.wait(WITHIN_S) == -signal.SIGKILL
        else:
            getattr(child, end)()
        assert await until(lambda: not alive(grandchild), within_s=WITHIN_S), end  # noqa: B023


NOTES = """
import signal, sys
def end(*_):
    with open({notes!r}, "a") as notes:
        notes.write({name!r} + " ")
    sys.exit()
signal.signal(signal.SIGTERM, end)
"""


def test_children_end_tier_by_tier(make: Make, tmp_path: Path) -> None:
    tiers = {}
    for name, tier in (("broker", 0), ("feed", 1)):
        child = make(NOTES.format(notes=str(tmp_path / "ended"), name=name) + SLEEPS, name, piped=True)
        child.start()
        child.line(WITHIN_S)
        tiers[child] = tier
    stop_in_order(tiers)
    assert (tmp_path / "ended").read_text() == "feed broker "


def test_a_child_that_neither_answers_nor_ends_is_killed(make: Make) -> None:
    child = make(SLEEPS, piped=True)
    child.start()
    child.line(WITHIN_S)
    stand_still(child.pid)
    with (
        HangWatchdog(lambda: child.signal(signal.SIGKILL), checks=3, every_s=0.02),
        pytest.raises(ChildEnded, match="was killed by SIGKILL"),
    ):
        child.line(WITHIN_S)


# ---- restart


def test_a_child_that_crashes_restarts_until_it_is_given_up(make: Make, tmp_path: Path) -> None:
    events: list[KeeperEvent] = []
    child = make("import sys; sys.exit('no luck')", log=tmp_path / "log")
    keeper = Keeper([child], Schedule((0.1, 0.2), calm_s=1000.0, endless=False), events.append)
    child.start()
    now = child.started
    for pause_s in (0.1, 0.2):
        assert child.wait(WITHIN_S) == 1
        assert keeper.check(now) == pytest.approx(pause_s)
        assert keeper.check(now + pause_s - 0.01) == pytest.approx(0.01)
        now += pause_s
        keeper.check(now)
    assert child.wait(WITHIN_S) == 1
    keeper.check(now)
    keeper.check(now + 1000)
    assert [event.kind for event in events] == ["ended", "restarted", "ended", "restarted", "given up"]
    assert (tmp_path / "log").read_text() == "no luck\n" * 3


def test_a_restarted_child_that_runs_on_has_recovered(make: Make, tmp_path: Path) -> None:
    events: list[KeeperEvent] = []
    child = make(SLEEPS, log=tmp_path / "log")
    keeper = Keeper([child], Schedule((0.1, 5.0), calm_s=10.0), events.append)
    child.start()
    os.kill(child.pid, signal.SIGKILL)
    child.wait(WITHIN_S)
    keeper.check(now := child.started)
    keeper.check(now := now + 0.1)
    keeper.check(now + 4.9)
    assert [event.kind for event in events] == ["ended", "restarted"]
    keeper.check(now + 5.1)
    keeper.check(now + 50.0)
    assert [event.kind for event in events] == ["ended", "restarted", "recovered"]


def test_a_child_that_cannot_be_started_is_tried_again(make: Make, tmp_path: Path) -> None:
    events: list[KeeperEvent] = []
    folder = tmp_path / "there"
    folder.mkdir()
    child = make("", log=folder / "log")
    keeper = Keeper([child], Schedule((0.1,), calm_s=10.0), events.append)
    child.start()
    child.wait(WITHIN_S)
    (folder / "log").unlink()
    folder.rmdir()
    keeper.check(100.0)
    keeper.check(100.1)
    assert (events[-1].kind, events[-1].pause_s) == ("not started", 1.0) and "No such file" in events[-1].reason
    folder.mkdir()
    keeper.check(101.2)
    assert [event.kind for event in events] == ["ended", "not started", "restarted"]


# ---- the parent is gone

PARENT = """
import json, sys, time
from pathlib import Path
from comet.processes.child import Child, python_module
from comet.processes.tied import Tie
children = [
    Child("program", [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(1000)"], piped=True),
    Child("module", python_module("forks"), piped=True, tie=Tie.STDIN),
]
for child in children:
    child.start()
lines = [child.line(60) for child in children]
print(json.dumps([child.pid for child in children] + [int(lines[1])]), flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a tied program outlives a parent that is killed")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_children_end_with_a_parent_that_is_killed(make: Make, tmp_path: Path, number: int) -> None:
    (tmp_path / "forks.py").write_text(FORKS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    parent = make(PARENT, "parent", piped=True, environment=environment, tie=Tie.NONE)
    parent.start()
    pids = json.loads(parent.line(WITHIN_S))
    assert all(map(alive, pids))
    parent.signal(number)
    assert await until(lambda: not any(map(alive, pids)), within_s=WITHIN_S), [pid for pid in pids if alive(pid)]


async def test_a_child_outlives_the_thread_that_has_started_it(make: Make) -> None:
    """The kernel knows threads, not processes: a child is tied to the whole program."""
    child = make("print('up', flush=True); print(input())", piped=True, takes_input=True)
    lines: list[str] = []

    def start() -> None:
        child.start()
        lines.append(child.line(WITHIN_S))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert lines == ["up"]
    task = Path("/proc/self/task", str(thread.native_id))  # on Linux, while the kernel has the thread
    assert await until(lambda: not task.exists(), within_s=WITHIN_S)
    child.send(b"still here")
    assert child.line(WITHIN_S) == "still here"


def test_a_command_line_says_how_it_is_tied(tmp_path: Path) -> None:
    command = python_module("comet_demo.feed", "--rate", "1")
    runner = [sys.executable, "-m", "comet.processes.tied"]
    assert tied(command, Tie.KERNEL) == [*runner, "kernel", str(os.getpid()), *command]
    assert tied(command, Tie.STDIN, tmp_path) == [*runner, "stdin", str(tmp_path), "comet_demo.feed", "--rate", "1"]
    assert tied(command, Tie.STDIN)[4] == "-"
    assert tied(command, Tie.NONE) == command
