"""`scripts/progress.py`: how far pip is, on a terminal and in a log."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

SAID = """\
Collecting pyspark==4.0.1 (from -r requirements/development.txt (line 7))
  Downloading pyspark-4.0.1.tar.gz (434.2 MB)
  Preparing metadata (pyproject.toml): started
Collecting click==8.3.1
  Downloading click-8.3.1-py3-none-any.whl.metadata (2.6 kB)
  Downloading click-8.3.1-py3-none-any.whl (108 kB)
Installing collected packages: pyspark, click
Successfully installed click-8.3.1 pyspark-4.0.1
"""


PROGRESS = [sys.executable, str(ROOT / "scripts/progress.py"), "packages", "2"]
# Has a part of a download, as pip has it, and goes on once it is asked to.
DOWNLOADS = """
import os, pathlib, sys, time
print("Collecting pyspark==4.0.1", flush=True)
folder = pathlib.Path(os.environ["TMPDIR"], "pip-unpack-1")
folder.mkdir()
with (folder / "pyspark-4.0.1.tar.gz").open("wb") as file:
    file.truncate(120_000_000)
print("  Downloading pyspark-4.0.1.tar.gz (434.2 MB)", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os.truncate(folder / "pyspark-4.0.1.tar.gz", 434_200_000)
print("  Building wheel for pyspark (pyproject.toml): started", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
"""


def command(folder: Path, code: int = 0) -> list[str]:
    """The script, with a pip that has said this."""
    said = folder / "said"
    said.write_text(SAID)
    pip = (
        f"import sys; print(open({str(said)!r}).read(), end=''); print('a warning', file=sys.stderr); sys.exit({code})"
    )
    return [*PROGRESS, sys.executable, "-c", pip]


def test_a_log_has_a_line_for_what_takes_long(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=60, check=True)
    *steps, end = done.stdout.splitlines()
    assert steps == [
        "comet: packages: pyspark, 434 MB",
        "comet: packages: putting the files in place",
    ]
    assert end.startswith("comet: packages: 434 MB, ") and end.endswith(" s")
    assert done.stderr == "a warning\n"


def test_a_log_says_now_and_then_how_far_a_download_is(tmp_path: Path) -> None:
    downloaded, built = tmp_path / "downloaded", tmp_path / "built"
    with subprocess.Popen(
        [*PROGRESS, sys.executable, "-c", DOWNLOADS, str(downloaded), str(built)],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"COMET_PROGRESS_S": "0"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines = iter(process.stdout)
        assert any("pyspark, 120 of 434 MB, " in line for line in lines)
        downloaded.touch()
        assert any("building wheel for pyspark, " in line for line in lines)
        built.touch()
        assert process.wait(60) == 0


def test_a_terminal_has_one_line_with_a_bar_which_changes(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
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
    assert any("[------------------------] pyspark, 0 of 434 MB, 0 s" in one for one in looks)
    assert any("[########################] 2 of 2 packages, 434 MB, click, 0 s" in one for one in looks)
    assert any("[------------------------] putting the files in place, 0 of 2, 0 s" in one for one in looks)
    assert last.rstrip().startswith("comet: packages: 434 MB, ") and shown.count(b"\n") == 1


@pytest.mark.parametrize("code", [0, 1, 2])
def test_it_ends_as_pip_does(tmp_path: Path, code: int) -> None:
    assert subprocess.run(command(tmp_path, code), capture_output=True, timeout=60, check=False).returncode == code


@pytest.mark.parametrize(("said", "code"), [("Collecting one", 130), ("Installing collected packages: one", 131)])
def test_interrupted_it_tells_whether_files_were_changed(said: str, code: int) -> None:
    """Of what pip has said until its end, which may be more than was read when Ctrl-C came."""
    pip = (
        "import signal, sys, time\n"
        "try:\n    print('  Downloading x-1.tar.gz (20 MB)', flush=True); time.sleep(1000)\n"
        f"except KeyboardInterrupt:\n    print({said!r}); sys.exit(2)\n"
    )
    with subprocess.Popen(
        [*PROGRESS, sys.executable, "-c", pip], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert "x, 20 MB" in process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == code
