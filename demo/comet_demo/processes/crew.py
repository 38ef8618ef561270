"""The processes of the demo. Each has a session of its own, so that Ctrl-C reaches the launcher alone; a parent
watchdog, so that it does not outlive the launcher; and a file for its output, to keep it off the table.

    FOLDER/NAME.log    the output of a process
    FOLDER/tmp         temporary files: the broker's data, Spark's files; removed at the end, also after a kill
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, NamedTuple, Self

from comet_demo.processes.parent_watchdog import LOCK, Share, remove

STOP_S: Final = 12
LINE_MAX: Final = 300
TAIL_BYTES: Final = 16_384
ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Member(NamedTuple):
    """One process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    module: str
    arguments: tuple[str, ...]

    def last_line(self, beginning: str = "") -> str:
        """The last line of its output, or the last that begins with `beginning`; empty if there is none."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
            return next((line[:LINE_MAX] for line in reversed(lines) if line.startswith(beginning)), "")
        return ""

    def last_words(self) -> str:
        return self.last_line() or "its log is empty"


class Crew:
    """The launcher's processes. Owned by one launcher, and used by its main thread. Its folder is removed at the end;
    with `keep`, the logs stay."""

    def __init__(self) -> None:
        self.keep = False
        self._folder: Path | None = None
        self._share: Share | None = None
        self._members: list[Member] = []

    @property
    def folder(self) -> Path:
        """The folder of the processes; usable within the block."""
        assert self._folder is not None
        return self._folder

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    def start(self, name: str, module: str, arguments: Sequence[str] = (), *, piped: bool = False) -> Member:
        """Starts a process. `piped`: its standard output is a pipe to us instead of its file."""
        log = self.folder / f"{name}.log"
        folders = {"TMPDIR": str(self.temporary), "SPARK_LOCAL_DIRS": str(self.temporary)}
        with log.open("ab") as file, held_back():
            process = subprocess.Popen(  # noqa: S603 - our own modules
                [sys.executable, "-m", "comet_demo.processes.parent_watchdog", str(self.folder), module, *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE if piped else file, stderr=file,
                env=os.environ | folders, start_new_session=True,
            )  # fmt: skip
            member = Member(name, process, log, module, tuple(arguments))
            self._members.append(member)
        return member

    def again(self, member: Member) -> Member:
        """Starts an ended process again."""
        assert member.process.poll() is not None
        _sweep(member)
        self._members.remove(member)
        return self.start(member.name, member.module, member.arguments)

    def named(self, name: str) -> Member:
        return next(member for member in self._members if member.name == name)

    def ended(self) -> list[Member]:
        return [member for member in self._members if member.process.poll() is not None]

    def __enter__(self) -> Self:
        try:
            with held_back():
                self._folder = Path(tempfile.mkdtemp(prefix="comet-demo-"))
                self.temporary.mkdir()
                self._share = Share(self.folder, begins=True)
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends all processes; the first one, the broker, after the others, which need it."""
        first, others = self._members[:1], self._members[1:]
        try:
            for members in (others, first):
                _stop(members)
        finally:
            for member in self._members:
                _sweep(member)
            self._clear()

    def _clear(self) -> None:
        if self._share is not None:
            self._share.close()
        if self._folder is None:
            return
        if self.keep:
            remove(self.temporary)
            (self.folder / LOCK).unlink(missing_ok=True)
        else:
            remove(self.folder)


@contextmanager
def held_back() -> Iterator[None]:
    """Delays signals until the end of the block: in the middle of it, a process that is started but not yet recorded
    would be left behind."""
    delayed: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        delayed.append(number)

    before = {number: signal.signal(number, note) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for one in delayed:
            signal.raise_signal(one)


def _stop(members: list[Member]) -> None:
    for member in members:
        member.process.terminate()
    until = time.monotonic() + STOP_S
    for member in members:
        with suppress(subprocess.TimeoutExpired):
            member.process.wait(max(0.0, until - time.monotonic()))


def _sweep(member: Member) -> None:
    """Kills its remaining child processes, such as a JVM that was still starting."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(member.process.pid, signal.SIGKILL)
    member.process.wait()
    for pipe in (member.process.stdin, member.process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
