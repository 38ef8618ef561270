"""Runs in a child process and ties it to its parent: the child ends when the parent does, however the parent dies.

    python -m comet.processes.tied kernel PARENT COMMAND...          becomes COMMAND, any program
    python -m comet.processes.tied stdin FOLDER MODULE ARGUMENTS...  runs MODULE as `python -m` does

`kernel`: the kernel sends SIGTERM when the parent ends. Only on Linux; elsewhere the command outlives a parent that is
killed. The process is then COMMAND alone.

`stdin`: the system closes the parent's end of the child's standard input, on any system. The child then gets SIGTERM,
has 15 seconds to end, and takes its own children with it. FOLDER is a shared temporary folder (shared_folder.py), or -.
"""

from __future__ import annotations

import os
import signal
import sys
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from pathlib import Path
    from types import FrameType

    from comet.processes.shared_folder import Share

GRACE_S: Final = 15  # for an orderly end
NO_FOLDER: Final = "-"
PR_SET_PDEATHSIG: Final = 1


class Tie(Enum):
    """How a child is tied to its parent."""

    KERNEL = "kernel"
    STDIN = "stdin"
    NONE = "none"


def tied(command: Sequence[str], tie: Tie, folder: Path | None = None) -> list[str]:
    """The command line that runs `command` tied to this process. By STDIN only `python -m MODULE ...` can be."""
    runner = [sys.executable, "-m", "comet.processes.tied", tie.value]
    match tie:
        case Tie.KERNEL:
            return [*runner, str(os.getpid()), *command]
        case Tie.STDIN:
            assert list(command[:2]) == [sys.executable, "-m"], command
            return [*runner, NO_FOLDER if folder is None else str(folder), *command[2:]]
        case Tie.NONE:
            return list(command)


def main() -> None:
    _, kind, first, *command = sys.argv
    if kind == Tie.KERNEL.value:
        _by_kernel(int(first), command)
    else:
        _by_stdin(first)


def _by_kernel(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            return  # the parent died before prctl
    try:
        os.execvp(command[0], command)  # noqa: S606 - the caller's own command
    except OSError as error:
        raise SystemExit(f"cannot run {command[0]}: {error.strerror}") from None


def _by_stdin(folder: str) -> None:
    import atexit
    import runpy
    import threading
    from pathlib import Path

    from comet.processes.shared_folder import Share

    signal.signal(signal.SIGTERM, _end)  # the default would leave temporary files behind
    try:
        share = None if folder == NO_FOLDER else Share(Path(folder))
    except OSError as error:
        raise SystemExit(f"the folder {folder} was removed: {error}") from None
    alone = threading.Event()
    atexit.register(_leave, share, alone)  # runs after the program's own handlers
    threading.Thread(target=_watch, args=(share, alone), name="parent watchdog", daemon=True).start()
    del sys.argv[:3]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end(number: int, _frame: FrameType | None) -> None:
    """Raises SystemExit, so that the program cleans up; most replace this handler."""
    raise SystemExit(128 + number)


def _watch(share: Share | None, alone: threading.Event) -> None:
    import threading
    import time
    from contextlib import suppress

    with suppress(OSError):
        while os.read(0, 4096):
            pass
    alone.set()
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGTERM)
    time.sleep(GRACE_S)
    try:
        _leave(share, alone)
    finally:
        os._exit(1)


def _leave(share: Share | None, alone: threading.Event) -> None:
    """Releases the share; without a parent also kills the process group, such as a Java whose Python ended while it was
    starting. With a parent that is the parent's task."""
    from contextlib import suppress

    # The parent closes its end of our standard input before it releases its share, and may be stopped in between.
    if share is not None:
        share.leave(patient=alone.is_set())
    if alone.is_set() and os.getpgrp() == os.getpid():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # the reader has ended, or the disk is full
                stream.flush()
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
