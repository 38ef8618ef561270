"""`scripts/venv`, with stubs for interpreters: which one it takes, what it says, what it adds to an environment that is
there, when it begins anew, one at a time; and what is left of one that was killed or interrupted."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT
from tests.waiting import until

SCRIPT = ROOT / "scripts/venv"
VENV, DEMO, COMET, ALL = "venv 3.12.1", "demo", "Comet", "development"
WHEELS, SPARK = "wheels", "Spark"
WITHIN_S = 60.0


class Machine:
    """What is on PATH, and what became of it."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.venv = folder / ".venv"
        self.lock = folder / ".venv.lock"
        self.bin.mkdir()
        for name in ("bash", "cat", "rm", "touch", "mkdir", "cp", "grep", "mv", "sleep"):
            (self.bin / name).symlink_to(shutil.which(name) or "")

    def python(self, name: str, version: str = "3.12.1") -> None:
        """It makes an environment of itself; its pip installs nothing. What pip is to do is a file of that name: `hang`
        as a download does, `change` files and hang, or `fail`."""
        old = version.startswith("3.9")
        path = self.bin / name
        path.write_text(
            f"""#!/bin/sh
            pip() {{
                echo "$1" >>"{self.bin}/asked"
                case "$(cat "{self.bin}/$1" 2>/dev/null)" in
                hang) exec sleep 1000 ;;
                change) echo "Installing collected packages: one"; exec sleep 1000 ;;
                fail) echo "no network" >&2; exit 1 ;;
                esac
            }}
            case "$*" in
            -V) echo "Python {version}" ;;
            *version_info*) exit {int(old)} ;;
            *base_prefix*) echo "{version}" ;;
            "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo "venv {version}" >>"{self.bin}/asked" ;;
            "-m pip --version") ;;
            "-m pip wheel "*requirements/spark.txt*)
                pip {WHEELS}
                mkdir "{self.venv}/wheels"
                touch "{self.venv}/wheels/spark.whl" ;;
            "-m pip install "*spark.whl*) pip {SPARK} ;;
            "-m pip install "*"-e ."*) pip {COMET} ;;
            "-m pip install "*requirements/demo.txt*) pip {DEMO} ;;
            "-m pip install "*requirements/development.txt*) pip {ALL} ;;
            "-m pip install "*requirements/build.txt*) ;;
            *) exec "{sys.executable}" "$@" ;;
            esac
            """
        )
        path.chmod(0o755)

    def does(self, what: str, how: str) -> None:
        """What pip does from now on when it is to install that."""
        (self.bin / what).write_text(how)

    def works(self, what: str) -> None:
        (self.bin / what).unlink()

    def heard(self, what: str) -> bool:
        """Whether pip was asked for it since the last look."""
        path = self.bin / "asked"
        return path.exists() and what in path.read_text().split()

    def asked(self) -> list[str]:
        """Since the last look."""
        path = self.bin / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def stamps(self) -> list[str]:
        return sorted(path.name for path in self.venv.glob(".ready*"))

    def start(self, python: str = "python3", level: str = "development") -> subprocess.Popen[str]:
        """In a process group of its own, as from a terminal."""
        return subprocess.Popen(
            [str(SCRIPT), python, str(self.venv), level], cwd=ROOT, env={**os.environ, "PATH": str(self.bin)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, python: str = "python3", level: str = "development") -> tuple[int, str]:
        with self.start(python, level) as process:
            said, _ = process.communicate(timeout=60)
            return process.returncode, said

    def make(self, level: str) -> list[str]:
        """What pip was asked for."""
        code, said = self.run(level=level)
        assert code == 0, said
        return self.asked()

    async def stopped(self, level: str, at: str, how: str, number: signal.Signals) -> None:
        """Begins, and gets a signal, with all it has started, while pip `hang`s or `change`s files."""
        self.does(at, how)
        with self.start(level=level) as process:
            assert await until(lambda: self.heard(at), within_s=WITHIN_S)
            if how == "change":  # it is said after it was asked
                assert process.stdout is not None
                while "putting the files in place" not in (line := process.stdout.readline()):
                    assert line
            os.killpg(process.pid, number)
            assert process.wait(WITHIN_S) != 0
        self.works(at)
        self.asked()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_takes_minutes_says_what_it_is_and_how_much(machine: Machine) -> None:
    machine.python("python3")
    code, said = machine.run()
    assert code == 0, said
    assert "Python 3.12.1" in said and "MB to download" in said and "minutes" in said
    assert machine.asked() == [VENV, ALL, COMET]
    assert (machine.venv / ".ready").exists()


@pytest.mark.parametrize("usual", ["", "3.9.2"])
def test_where_python3_is_missing_or_too_old_another_is_looked_for(machine: Machine, usual: str) -> None:
    if usual:
        machine.python("python3", usual)
    code, said = machine.run()
    assert code == 1 and "make demo PYTHON=" in said
    for name in ("python3.11", "python3.13"):
        machine.python(name, f"{name[6:]}.0")
    code, said = machine.run()
    assert code == 0 and "Python 3.13.0" in said


def test_one_that_somebody_asked_for_is_not_replaced(machine: Machine) -> None:
    machine.python("python3.9", "3.9.2")
    machine.python("python3.13", "3.13.0")
    code, said = machine.run("python3.9")
    assert code == 1 and "'python3.9' is Python 3.9.2" in said
    assert machine.asked() == []


def test_an_environment_is_kept_unless_it_does_not_run_or_is_of_another_python(machine: Machine) -> None:
    machine.python("python3")
    machine.run()
    assert machine.asked() == [VENV, ALL, COMET]
    machine.run()
    assert machine.asked() == []
    (machine.venv / ".ready").touch()
    os.utime(machine.venv / ".ready", (1, 1))  # older than the locked files
    machine.run()
    assert machine.asked() == [ALL, COMET]
    os.utime(machine.venv / ".ready", (1, 1))
    (machine.venv / "bin/python").write_text("#!/nowhere/python")
    machine.run()
    assert machine.asked() == [VENV, ALL, COMET]
    machine.python("python3", "3.14.0")
    os.utime(machine.venv / ".ready", (1, 1))
    machine.run()
    assert machine.asked() == ["venv 3.14.0", ALL, COMET]


@pytest.mark.parametrize("made", [True, False])
def test_a_second_one_waits_for_the_first(machine: Machine, made: bool) -> None:
    machine.python("python3")
    with machine.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("4711")
        held.flush()
        with machine.start() as second:
            assert second.stdout is not None
            assert "process 4711" in second.stdout.readline()
            assert machine.asked() == []
            if made:
                machine.venv.mkdir()
                (machine.venv / ".ready").touch()
            fcntl.flock(held, fcntl.LOCK_UN)
            assert second.wait(60) == 0
    assert machine.asked() == ([] if made else [VENV, ALL, COMET])


def test_one_that_was_killed_holds_nobody_up(machine: Machine) -> None:
    machine.python("python3")
    machine.lock.write_text("4711")
    code, said = machine.run()
    assert code == 0 and "4711" not in said


def test_the_demo_needs_little_and_the_rest_is_added_to_it(machine: Machine) -> None:
    machine.python("python3")
    code, said = machine.run(level="demo")
    assert code == 0 and "some 30 MB to download" in said
    assert (machine.asked(), machine.stamps()) == ([VENV, DEMO, COMET], [".ready-demo"])
    assert machine.make("demo") == []
    assert machine.make("spark") == [WHEELS, SPARK]
    assert machine.stamps() == [".ready-demo", ".ready-spark"]
    assert machine.make("development") == [ALL, COMET]
    assert machine.stamps() == [".ready", ".ready-demo", ".ready-spark"]
    assert machine.make("spark") == machine.make("demo") == []


def test_an_environment_for_development_has_all_that_the_demo_needs(machine: Machine) -> None:
    machine.python("python3")
    machine.make("development")
    for stamp in (".ready-demo", ".ready-spark"):
        (machine.venv / stamp).unlink()
    assert machine.make("demo") == machine.make("spark") == []


def test_spark_is_not_the_first_thing_in_an_environment(machine: Machine) -> None:
    machine.python("python3")
    code, said = machine.run(level="spark")
    assert code == 1 and said.endswith("make demo\n") and not machine.venv.exists()


@pytest.mark.parametrize(("level", "what", "again"), [
    ("demo", DEMO, "make demo"), ("spark", WHEELS, "make spark"), ("spark", SPARK, "make spark"),
    ("development", ALL, "make install"),
])  # fmt: skip
def test_without_a_network_it_says_so_and_what_is_there_stays(
    machine: Machine, level: str, what: str, again: str
) -> None:
    machine.python("python3")
    if level != "demo":
        machine.make("demo")
    before = machine.stamps()
    machine.does(what, "fail")
    code, said = machine.run(level=level)
    assert code == 1 and "no network" in said
    assert "could not get" in (last := said.splitlines()[-1]) and "network" in last and last.endswith(again)
    assert machine.stamps() == before
    machine.works(what)
    machine.asked()
    assert VENV not in machine.make(level) or level == "demo"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("how", ["hang", "change"])
async def test_a_first_one_that_was_stopped_is_made_afresh(machine: Machine, how: str, number: signal.Signals) -> None:
    machine.python("python3")
    await machine.stopped("demo", DEMO, how, number)
    assert machine.stamps() == []
    assert machine.make("demo") == [VENV, DEMO, COMET]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_while_spark_is_downloaded_the_environment_can_be_used(machine: Machine, number: signal.Signals) -> None:
    machine.python("python3")
    machine.make("demo")
    await machine.stopped("spark", WHEELS, "hang", number)
    assert machine.make("demo") == []
    assert machine.make("spark") == [WHEELS, SPARK]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_spark_left_half_made_is_repaired_by_the_next_command(machine: Machine, number: signal.Signals) -> None:
    machine.python("python3")
    machine.make("demo")
    await machine.stopped("spark", SPARK, "change", number)
    assert machine.make("demo") == [VENV, DEMO, COMET]
    assert machine.make("spark") == [WHEELS, SPARK]


async def test_ctrl_c_while_development_is_downloaded_costs_the_demo_nothing(machine: Machine) -> None:
    machine.python("python3")
    machine.make("demo")
    await machine.stopped("development", ALL, "hang", signal.SIGINT)
    assert machine.make("demo") == []
    await machine.stopped("development", ALL, "change", signal.SIGINT)
    assert machine.make("demo") == [VENV, DEMO, COMET]
