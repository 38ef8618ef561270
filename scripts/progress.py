"""Runs pip, and shows how far it is; scripts/venv calls it.

usage: python scripts/progress.py WHAT PACKAGES PYTHON -m pip install ...      PACKAGES: how many there will be, about

On a terminal one line changes every second. Elsewhere there is a line for each download of more than 10 MB, and for
each further step. Warnings and errors of pip are shown as they come.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from typing import TextIO

LARGE_MB = 10.0
TICK_S = 1.0
COLLECTING = re.compile(r"\s*Collecting ([A-Za-z0-9._-]+)")
DOWNLOADING = re.compile(r"\s*(?:Downloading|Using cached) \S*?([A-Za-z0-9._-]+?)-\d\S* \(([0-9.]+) (kB|MB|GB)\)")
BUILDING = re.compile(r"\s*(?:Building|Preparing|Getting|Installing build)\b")
MB = {"kB": 0.001, "MB": 1.0, "GB": 1000.0}


class Progress:
    """What pip has said so far."""

    def __init__(self, what: str, total: int, shown: TextIO) -> None:
        self._what, self._total, self._shown = what, total, shown
        self._began_s = time.monotonic()
        self._found = 0
        self._step = "looking at what there is"
        self._width = 0
        self._lock = threading.Lock()

    def line(self, text: str) -> None:
        if COLLECTING.match(text):
            self._found += 1
        elif match := DOWNLOADING.match(text):
            size = float(match[2]) * MB[match[3]]
            self._say(f"{match[1]}, {size:.0f} MB" if size >= 1 else match[1], large=size >= LARGE_MB)
        elif text.startswith("Installing collected packages"):
            self._say("putting the files in place", large=True)
        elif BUILDING.match(text):
            self._say(text.strip().rstrip(".").split(":")[0].lower(), large=False)

    def _say(self, step: str, *, large: bool) -> None:
        self._step = step
        if self._shown.isatty():
            self.show()
        elif large:
            self._write(f"comet: {self._what}: {step}\n")

    def show(self) -> None:
        """On a terminal: the line again."""
        if not self._shown.isatty():
            return
        seconds = int(time.monotonic() - self._began_s)
        packages = f"{self._found} of {self._total} packages, " if self._total > 1 and self._found else ""
        text = f"comet: {self._what}: {seconds} s, {packages}{self._step}"
        self._write("\r" + text.ljust(self._width))
        self._width = len(text)

    def end(self) -> None:
        seconds = time.monotonic() - self._began_s
        text = f"comet: {self._what}: {seconds:.0f} s"
        self._write("\r" + text.ljust(self._width) + "\n" if self._shown.isatty() else text + "\n")

    def _write(self, text: str) -> None:
        with self._lock:
            self._shown.write(text)
            self._shown.flush()


def main() -> int:
    what, total, *command = sys.argv[1:]
    progress = Progress(what, int(total), sys.stdout)
    over = threading.Event()

    def tick() -> None:
        while not over.wait(TICK_S):
            progress.show()

    threading.Thread(target=tick, daemon=True).start()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        try:
            for text in process.stdout:
                progress.line(text)
            code = process.wait()
        except KeyboardInterrupt:  # pip has it as well, and ends
            process.wait()
            return 130
        finally:
            over.set()
    progress.end()
    return code


if __name__ == "__main__":
    sys.exit(main())
