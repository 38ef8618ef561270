"""One child process: start, readiness, exit code with the last lines of its log, end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from comet.errors import Timeout, Unavailable
from comet.processes.output import PipeLines, Relay, log_lines
from comet.processes.ports import listening
from comet.processes.restart_policy import WITHIN_S, end_order, stop_step
from comet.processes.tied import Tie, tied

POLL_S: Final = 0.02
RELAY_S: Final = 1.0  # for the last lines of an ended child
SHOWN_LINES: Final = 5  # of the log, in an error's details
# The kernel ends a child when the thread that has started it ends. This one ends with the program.
_STARTER: Final = ThreadPoolExecutor(1, thread_name_prefix="process starter")


class ChildEnded(Unavailable):
    """A child process has ended before it was ready, or instead of an answer. `details` has its last lines."""


def python_module(module: str, *arguments: str) -> list[str]:
    """The command line of a module."""
    return [sys.executable, "-m", module, *arguments]


class Child:
    """A process over all its starts. Used by one thread at a time.

    Its output is appended to the file `log`, across starts; without a file, each line goes to our stderr after the
    child's name. With `piped`, `line` reads its standard output instead. It has a session of its own: Ctrl-C reaches
    the owner alone, which then ends its children in order, each with its whole process group.

    >>> child = Child("hello", python_module("this"), piped=True)
    >>> child.start()
    >>> child.line(30.0), child.stop()
    ('The Zen of Python, by Tim Peters', None)
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path | None = None,
        address: str = "",
        piped: bool = False,
        takes_input: bool = False,
        environment: Mapping[str, str] | None = None,
        tie: Tie = Tie.KERNEL,
        folder: Path | None = None,
    ) -> None:
        """`address` is where it listens, if it does; `folder` a shared one, for Tie.STDIN. Each start reads
        `environment`."""
        assert not (takes_input and tie is Tie.STDIN), "its input is the tie"
        self.name = name
        self.command = list(command)
        self.log = log
        self.address = address
        self.started = 0.0  # monotonic
        self._piped = piped
        self._has_input = takes_input or tie is Tie.STDIN
        self._environment = environment
        self._tie = tie
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: PipeLines | None = None
        self._relay: Relay | None = None
        self._log_start = 0
        self._swept = True  # its process group is gone

    # ---- start

    def start(self) -> None:
        """Starts the process; it must not be running."""
        assert self._process is None or self.ended is not None
        self._close_pipes()
        with ExitStack() as stack:
            log: IO[bytes] | None = None
            if self.log is not None:
                log = stack.enter_context(self.log.open("ab"))
                self._log_start = log.tell()
            self._process = _STARTER.submit(
                subprocess.Popen,  # our own modules, and programs that the caller has found
                tied(self.command, self._tie, self._folder),
                stdin=subprocess.PIPE if self._has_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self._piped or log is None else log,
                stderr=log or (subprocess.PIPE if self._piped else subprocess.STDOUT),
                env=self._environment,
                start_new_session=True,
            ).result()
        self._swept = False
        self.started = time.monotonic()
        if self._piped:
            assert self._process.stdout is not None
            self._lines = PipeLines(self._process.stdout.fileno())
        if log is None:
            passed_on = self._process.stderr if self._piped else self._process.stdout
            assert passed_on is not None
            self._relay = Relay(passed_on, self.name)

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def ended(self) -> int | None:
        """The exit code of a process that has ended (negative: the signal); None while it runs."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._sweep()
        return code

    # ---- until it is ready

    def line(self, within_s: float) -> str:
        """The next line of its standard output. Raises ChildEnded, or Timeout if none comes in time."""
        assert self._lines is not None, "it was started with piped=True"
        try:
            line = self._lines.next(within_s)
        except Timeout:
            raise Timeout(f"{self.name} (pid {self.pid}) was silent for {within_s:.0f} s") from None
        if line is None:
            raise self.ended_early()
        return line.decode(errors="replace")

    def send(self, line: bytes) -> None:
        """Writes a line to its standard input. Raises ChildEnded."""
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self.ended_early() from None

    def wait_ready(
        self, within_s: float, ready: Callable[[], bool] | None = None, *, enough: Callable[[], bool] = lambda: False
    ) -> bool:
        """Waits until `ready` is true, or until it listens at its address. False: not in time, or `enough` became true.
        Raises ChildEnded.

        A port sends no signal when a process begins to listen at it, so the wait is for the child's end, and looks at
        the port in between."""
        deadline = time.monotonic() + within_s
        while not (listening(self.address) if ready is None else ready()):
            if self.ended is not None:
                raise self.ended_early(" before it was ready")
            if enough() or time.monotonic() > deadline:
                return False
            _wait_for_one([self])
        return True

    # ---- how it ended

    def ending(self) -> str:
        """A text that says how the process ended."""
        code = self.ended
        assert code is not None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"{self.name} (pid {self.pid}) {how}"

    def last_lines(self, beginning: str = "") -> list[str]:
        """The last lines of its output since it started, or those that begin with `beginning`."""
        if self.log is not None:
            lines = log_lines(self.log, self._log_start)
        else:
            lines = list(self._relay.tail) if self._relay is not None else []
        return [line for line in lines if line.startswith(beginning)]

    def last_line(self) -> str:
        """The last line of its output, without the hint that `comet` prints after an error."""
        lines = (line for line in reversed(self.last_lines()) if not line.startswith("hint: "))
        return next(lines, "its log is empty" if self.log is not None else "no output")

    def ended_early(self, when: str = "") -> ChildEnded:
        """The error of a child that has ended too early, `when`."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(WITHIN_S)  # it has closed its output, and is about to end
        if self._relay is not None:
            self._relay.wait(RELAY_S)
        how = f"{self.name} (pid {self.pid}) has closed its output" if self.ended is None else self.ending()
        hint = "see its output above" if self.log is None else f"see its log: {self.log}"
        details = {"hint": hint, "last_lines": "\n".join(self.last_lines()[-SHOWN_LINES:])}
        return ChildEnded(f"{how}{when}: {self.last_line()}", details=details)

    # ---- end

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, within_s: float) -> int:
        """The exit code. Raises Timeout."""
        assert self._process is not None
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise Timeout(f"{self.name} (pid {self.pid}) did not end within {within_s:.0f} s") from None
        self._sweep()
        return code

    def kill(self) -> None:
        """Kills it and its process group as `kill -9` does; returns when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._sweep()
            self._close_pipes()

    def stop(self, hurry: Callable[[], bool] = lambda: False, *, within_s: float = WITHIN_S) -> None:
        """Stops it with SIGTERM; kills it if that takes too long, or if `hurry()` is true."""
        stop_all([self], hurry, within_s=within_s)

    def _sweep(self) -> None:
        """Kills the rest of its process group, such as a JVM that was still starting; once, before the system can
        give the number to another process."""
        if self._process is not None and not self._swept:
            self._swept = True
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _close_pipes(self) -> None:
        if self._process is None:
            return
        if self._relay is not None:
            self._relay.wait(RELAY_S)
        for pipe in (self._process.stdin, self._process.stdout if self._lines is not None else None):
            if pipe is not None:
                with suppress(OSError):  # it needs no unread input any more
                    pipe.close()


@contextmanager
def started(child: Child, *, within_s: float = WITHIN_S) -> Iterator[Child]:
    """The child, from its start to the end of the block."""
    child.start()
    try:
        yield child
    finally:
        child.stop(within_s=within_s)


def stop_all(
    children: Sequence[Child], hurry: Callable[[], bool] = lambda: False, *, within_s: float = WITHIN_S
) -> None:
    """Ends children at once: SIGTERM, and SIGKILL for those that still run at the deadline, or when `hurry()` is
    true."""
    running = [child for child in children if child.pid and child.ended is None]
    for child in running:
        child.signal(signal.SIGTERM)
        child.signal(signal.SIGCONT)  # a paused process ends only then
    began = time.monotonic()
    while (
        step := stop_step((child.ended is None for child in running), time.monotonic() - began, within_s, hurry=hurry())
    ) != "done":
        if step == "kill":
            for child in running:
                child.kill()
        else:
            _wait_for_one(running)
    for child in children:
        child._close_pipes()


def _wait_for_one(children: Sequence[Child]) -> None:
    """Returns when a running child has ended, or after a moment."""
    for child in children:
        if child.ended is None:
            with suppress(Timeout):
                child.wait(POLL_S)
            return


def stop_in_order(
    tiers: Mapping[Child, int], hurry: Callable[[], bool] = lambda: False, *, within_s: float = WITHIN_S
) -> None:
    """Ends children tier by tier, the highest first; those of one tier at once."""
    for children in end_order(tiers):
        stop_all(children, hurry, within_s=within_s)
