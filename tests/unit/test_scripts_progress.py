"""`scripts/progress.py`: how far pip is, on a terminal and in a log."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

SAID = """\
Collecting pyspark==4.0.1 (from -r requirements/development.txt (line 7))
  Downloading pyspark-4.0.1.tar.gz (434.2 MB)
  Preparing metadata (pyproject.toml): started
Collecting click==8.3.1
  Downloading click-8.3.1-py3-none-any.whl (108 kB)
Installing collected packages: pyspark, click
Successfully installed click-8.3.1 pyspark-4.0.1
"""


def command(folder: Path, code: int = 0) -> list[str]:
    """The script, with a pip that has said this."""
    said = folder / "said"
    said.write_text(SAID)
    pip = (
        f"import sys; print(open({str(said)!r}).read(), end=''); print('a warning', file=sys.stderr); sys.exit({code})"
    )
    return [sys.executable, str(ROOT / "scripts/progress.py"), "packages", "2", sys.executable, "-c", pip]


def test_a_log_has_a_line_for_what_takes_long(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=60, check=True)
    *steps, end = done.stdout.splitlines()
    assert steps == [
        "comet: packages: pyspark, 434 MB",
        "comet: packages: putting the files in place",
    ]
    assert end.startswith("comet: packages: ") and end.endswith(" s")
    assert done.stderr == "a warning\n"


def test_a_terminal_has_one_line_which_changes(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(command(tmp_path), stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = b""
        try:
            while more := os.read(ours, 65536):
                shown += more
        except OSError:
            pass  # the other end is closed
        assert process.wait(60) == 0
    os.close(ours)
    *looks, last = shown.decode().rstrip("\r\n").split("\r")
    assert any("1 of 2 packages, pyspark, 434 MB" in one for one in looks)
    assert any("2 of 2 packages, putting the files in place" in one for one in looks)
    assert last.rstrip().startswith("comet: packages: ") and shown.count(b"\n") == 1


@pytest.mark.parametrize("code", [0, 1, 2])
def test_it_ends_as_pip_does(tmp_path: Path, code: int) -> None:
    assert subprocess.run(command(tmp_path, code), capture_output=True, timeout=60, check=False).returncode == code
