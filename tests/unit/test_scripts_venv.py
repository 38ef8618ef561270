"""`scripts/venv`, with stubs for interpreters: which one it takes, what it says, when it begins anew, one at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

SCRIPT = ROOT / "scripts/venv"


class Machine:
    """What is on PATH, and what became of it."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.venv = folder / ".venv"
        self.lock = folder / ".venv.lock"
        self.bin.mkdir()
        for name in ("bash", "cat", "rm", "touch", "mkdir", "cp", "grep"):
            (self.bin / name).symlink_to(shutil.which(name) or "")

    def python(self, name: str, version: str = "3.12.1") -> None:
        """It makes an environment of itself, and installs nothing."""
        old = version.startswith("3.9")
        path = self.bin / name
        path.write_text(
            f"""#!/bin/sh
            case "$*" in
            -V) echo "Python {version}" ;;
            *version_info*) exit {int(old)} ;;
            *base_prefix*) echo "{version}" ;;
            "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo "venv {version}" >>"{self.bin}/asked" ;;
            "-m pip --version") ;;
            "-m pip install "*-e\\ .*) echo pip >>"{self.bin}/asked" ;;
            "-m pip install "*--require-hashes*) ;;
            *) exec "{sys.executable}" "$@" ;;
            esac
            """
        )
        path.chmod(0o755)

    def asked(self) -> list[str]:
        """Since the last look."""
        path = self.bin / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def start(self, python: str = "python3") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(SCRIPT), python, str(self.venv)], cwd=ROOT, env={**os.environ, "PATH": str(self.bin)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, python: str = "python3") -> tuple[int, str]:
        with self.start(python) as process:
            said, _ = process.communicate(timeout=60)
            return process.returncode, said


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_takes_minutes_says_what_it_is_and_how_much(machine: Machine) -> None:
    machine.python("python3")
    code, said = machine.run()
    assert code == 0, said
    assert "Python 3.12.1" in said and "MB to download" in said and "minutes" in said
    assert machine.asked() == ["venv 3.12.1", "pip"]
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
    assert machine.asked() == ["venv 3.12.1", "pip"]
    machine.run()
    assert machine.asked() == ["pip"]
    (machine.venv / "bin/python").write_text("#!/nowhere/python")
    machine.run()
    assert machine.asked() == ["venv 3.12.1", "pip"]
    machine.python("python3", "3.14.0")
    machine.run()
    assert machine.asked() == ["venv 3.14.0", "pip"]


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
    assert machine.asked() == ([] if made else ["venv 3.12.1", "pip"])


def test_one_that_was_killed_holds_nobody_up(machine: Machine) -> None:
    machine.python("python3")
    machine.lock.write_text("4711")
    code, said = machine.run()
    assert code == 0 and "4711" not in said
