"""Runs pip, or another program that takes long, and shows how far it is; scripts/venv and scripts/java call it.

usage: python scripts/progress.py WHAT PACKAGES COMMAND...        PACKAGES: how many there will be, about

On a terminal one line with a bar changes every second. Elsewhere there is a line when a download of more than 10 MB
begins, for each further step, and every COMET_PROGRESS_S seconds (10) for what goes on. Warnings and errors are shown
as they come. The exit code is that of the command; 130 if it was interrupted while it had changed nothing, 131 if
it was interrupted while it put files in place.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

LARGE_MB: Final = 10.0
TICK_S: Final = 1.0
LINE_EVERY_S: Final = float(os.environ.get("COMET_PROGRESS_S", "10"))
BAR_CELLS: Final = 24
COMPLETE: Final = 0.995  # of a size that is rounded
INTERRUPTED, INTERRUPTED_HALF_WAY = 130, 131
COLLECTING = re.compile(r"\s*(?:Collecting|Requirement already satisfied:) ([A-Za-z0-9._-]+)")
# The file, the package, and the size; what is only read for its dependencies (.metadata) is not counted.
FETCHING = re.compile(
    r"\s*(Downloading|Using cached) (?:\S*/)?(([A-Za-z0-9._-]+?)-\d\S*) \(([0-9.]+) (kB|MB|GB|bytes)\)"
)
PUTTING = re.compile(r"\s*Installing collected packages: (.+)")
BUILDING = re.compile(r"\s*((?:Building|Preparing|Getting|Installing build)\b[^(:]*[^(:\s])")
# apt-get's.
NEEDED = re.compile(r"Need to get ([0-9.,]+) (kB|MB|GB)")
SETTING_UP = re.compile(r"(?:Unpacking|Setting up) ([a-z0-9.+-]+)")
MB: Final = {"bytes": 1e-6, "kB": 0.001, "MB": 1.0, "GB": 1000.0}


class Progress:
    """What the command has said so far, and what its files show in between."""

    def __init__(self, what: str, total: int, shown: TextIO, temporary: Path, site: Path | None = None) -> None:
        """`temporary` is where pip keeps the file that it downloads, `site` where it puts the packages."""
        self._what, self._total, self._shown = what, total, shown
        self._temporary, self._site = temporary, site
        self._began_s = self._line_s = time.monotonic()
        self._found = self._fetched = 0
        self._mb = 0.0
        self._file, self._name, self._file_mb = "", "", 0.0  # the large one that is being downloaded
        self._size_mb = 0.0  # of it is there
        self._to_place: set[str] = set()
        self._before: set[str] = set()  # versions of them that are replaced
        self._step = ""
        self._width = 0
        self._lock = threading.Lock()

    @property
    def putting(self) -> bool:
        """Whether files of packages were changed."""
        return bool(self._to_place)

    def line(self, text: str) -> None:
        if COLLECTING.match(text):
            self._found += 1
        elif match := FETCHING.match(text):
            self._fetch(match)
        elif match := PUTTING.match(text):
            self._to_place = {_normal(name) for name in match[1].split(", ")}
            self._before = self._placed()
            self._say("putting the files in place", large=True)
        elif match := BUILDING.match(text):
            self._file = ""
            self._say(match[1].lower(), large=False)
        elif match := NEEDED.search(text):
            self._mb = float(match[1].replace(",", "")) * MB[match[2]]
            self._say(f"downloading {self._mb:.0f} MB", large=True)
        elif match := SETTING_UP.match(text):
            self._say(f"unpacking {match[1]}", large=False)

    def _fetch(self, match: re.Match[str]) -> None:
        how, file, name, size, unit = match.groups()
        if file.endswith(".metadata"):
            return
        size_mb = float(size) * MB[unit]
        self._fetched += 1
        if how == "Downloading":
            self._mb += size_mb
        large = size_mb >= LARGE_MB
        self._size_mb = 0.0
        self._file, self._name, self._file_mb = (file if large and how == "Downloading" else ""), name, size_mb
        self._say(f"{name}, {size_mb:.0f} MB" if size_mb >= 1 else name, large=large)

    def _say(self, step: str, *, large: bool) -> None:
        self._step = step
        if self._shown.isatty():
            self.show()
        elif large:
            self._log(step)

    def show(self) -> None:
        """On a terminal: the line again; elsewhere a line, if the last one is long ago."""
        share, step = self._how_far()
        text = ", ".join(filter(None, (step, f"{time.monotonic() - self._began_s:.0f} s")))
        if self._shown.isatty():
            done = round(share * BAR_CELLS)
            bar = f"[{'#' * done}{'-' * (BAR_CELLS - done)}] " if self._total > 1 or share else ""
            self._replace(f"comet: {self._what}: {bar}{text}")
        elif time.monotonic() - self._line_s >= LINE_EVERY_S:
            self._log(text)

    def _how_far(self) -> tuple[float, str]:
        """The share that is done of the step at hand, and the step in words."""
        if self._to_place:
            placed = len(self._placed() - self._before)
            return placed / len(self._to_place), f"{self._step}, {placed} of {len(self._to_place)}"
        if self._file:
            self._size_mb = max(self._size_mb, self._size_now_mb())
            if self._size_mb < self._file_mb * COMPLETE:
                return self._size_mb / self._file_mb, f"{self._name}, {self._size_mb:.0f} of {self._file_mb:.0f} MB"
            return 1.0, f"{self._name}, {self._file_mb:.0f} MB, unpacking"
        if self._total <= 1:
            return 0.0, self._step
        # Each package is found, and then fetched.
        share = min((self._found + self._fetched) / (2 * self._total), 1.0)
        count = f"{self._fetched or self._found} of {max(self._total, self._fetched)} packages"
        size = f"{self._mb:.0f} MB" if self._mb >= 1 else ""
        return share, ", ".join(filter(None, (count, size, self._step)))

    def _size_now_mb(self) -> float:
        """Of the part of the large file that is there."""
        sizes = [0]
        for path in self._temporary.glob(f"*/{self._file}"):
            with suppress(OSError):
                sizes.append(path.stat().st_size)
        return max(sizes) / 1e6

    def _placed(self) -> set[str]:
        """The versions of those packages that are in place, each with the name of its folder."""
        found = self._site.glob("*.dist-info") if self._site is not None else ()
        return {path.name for path in found if _normal(path.name.partition("-")[0]) in self._to_place}

    def end(self) -> None:
        parts = [f"{self._mb:.0f} MB"] if self._mb >= 1 else []
        text = ", ".join([*parts, f"{time.monotonic() - self._began_s:.0f} s"])
        if self._shown.isatty():
            self._replace(f"comet: {self._what}: {text}")
            self._write("\n")
        else:
            self._log(text)

    def _log(self, text: str) -> None:
        self._line_s = time.monotonic()
        self._write(f"comet: {self._what}: {text}\n")

    def _replace(self, text: str) -> None:
        text = text[: _columns() - 1]  # a line that wraps cannot be replaced
        self._write("\r" + text.ljust(self._width))
        self._width = len(text)

    def _write(self, text: str) -> None:
        with self._lock:
            self._shown.write(text)
            self._shown.flush()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80


def site_packages(program: str) -> Path | None:
    """Where the environment of this Python has its packages."""
    return next(iter(Path(program).absolute().parent.parent.glob("lib/python*/site-packages")), None)


def main() -> int:
    what, total, *command = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="comet-pip-", ignore_cleanup_errors=True) as temporary:
        progress = Progress(what, int(total), sys.stdout, Path(temporary), site_packages(command[0]))
        return run(progress, command, os.environ | {"TMPDIR": temporary})


def run(progress: Progress, command: list[str], environment: dict[str, str]) -> int:
    over = threading.Event()

    def tick() -> None:
        while not over.wait(TICK_S):
            progress.show()

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True  # the command has the signal as well, and ends: all that it says until then is read

    threading.Thread(target=tick, daemon=True).start()
    interrupted = False
    signal.signal(signal.SIGINT, interrupt)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace", env=environment
    ) as process:
        assert process.stdout is not None
        for text in process.stdout:
            progress.line(text)
        code = process.wait()
    over.set()
    if interrupted:
        return INTERRUPTED_HALF_WAY if progress.putting else INTERRUPTED
    progress.end()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
