"""The processes of the demo: each in a session of its own, so that Ctrl-C reaches the launcher alone; each on a leash,
so that none outlives it; each with a file for what it says, so that nothing runs over the table."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

STOP_S: Final = 12
LINE_MAX: Final = 300
TAIL_BYTES: Final = 16_384


class Member(NamedTuple):
    """One process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        """Its last line."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
            if lines:
                return lines[-1][:LINE_MAX]
        return "it said nothing"


class Crew:
    """Owned by one launcher. Its folder goes with it, unless `keep` was set."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="comet-demo-"))
        self.keep = False
        self._members: list[Member] = []

    def start(self, name: str, module: str, arguments: Sequence[str] = (), *, tells: bool = False) -> Member:
        """`tells`: what it prints is for us, and not for its file."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(  # noqa: S603 - our own modules
                [sys.executable, "-m", "comet_demo.leash", module, *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE if tells else file, stderr=file, start_new_session=True,
            )  # fmt: skip
        member = Member(name, process, log)
        self._members.append(member)
        return member

    def ended(self) -> list[Member]:
        return [member for member in self._members if member.process.poll() is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """All who need the first one, which is the broker, end before it does."""
        first, others = self._members[:1], self._members[1:]
        try:
            for members in (others, first):
                _stop(members)
        finally:
            for member in self._members:
                _sweep(member)
            if not self.keep:
                shutil.rmtree(self.folder, ignore_errors=True)


def _stop(members: list[Member]) -> None:
    for member in members:
        member.process.terminate()
    until = time.monotonic() + STOP_S
    for member in members:
        with suppress(subprocess.TimeoutExpired):
            member.process.wait(max(0.0, until - time.monotonic()))


def _sweep(member: Member) -> None:
    """Whatever it left behind, such as a Java that was still starting."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(member.process.pid, signal.SIGKILL)
    member.process.wait()
    for pipe in (member.process.stdin, member.process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
