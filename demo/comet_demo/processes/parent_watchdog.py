"""Runs a module as `python -m` does, and ends it when its parent is gone: when its standard input ends.

    python -m comet_demo.processes.parent_watchdog FOLDER comet_demo.feed --bootstrap …

The system closes the parent's end of the pipe however it dies. This is the only portable way to notice. FOLDER holds
the temporary files of all processes that were started together. Each holds a share of its lock; the last one to release
it removes the folder. That is the parent, unless it was killed.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import runpy
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

GRACE_S: Final = 15  # for an orderly end
LOCK: Final = "lock"
REMOVE_TRIES_MAX: Final = 20
LEAVE_TRIES_MAX: Final = 60
AGAIN_S: Final = 0.05


class Share:
    """A share of a folder's lock. The folder stays while any process has one."""

    def __init__(self, folder: Path, *, begins: bool = False) -> None:
        """Raises OSError if the folder is gone."""
        self._folder = folder
        self._lock = os.open(folder / LOCK, os.O_RDWR | (os.O_CREAT if begins else 0), 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def close(self) -> None:
        """Releases the lock without removing the folder; for the process that removes it itself."""
        os.close(self._lock)

    def leave(self, *, patient: bool = False) -> None:
        """Removes the folder if no other process has a share. The share is released before the exclusive lock is tried,
        so that of two processes that leave at once one gets it. `patient`: another process may be ending, and has its
        share for another moment."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        for _ in range(LEAVE_TRIES_MAX if patient else 1):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if patient:
                    time.sleep(AGAIN_S)
            else:
                remove(self._folder)
                return


def remove(folder: Path) -> None:
    """Removes a folder, with retries while a process that was just killed still ends."""
    for _ in range(REMOVE_TRIES_MAX):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(AGAIN_S)


def _end(number: int, _frame: FrameType | None) -> None:
    """Raises SystemExit, so that the program cleans up; most replace this handler."""
    raise SystemExit(128 + number)


def _watch(share: Share, alone: threading.Event) -> None:
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


def _leave(share: Share, alone: threading.Event) -> None:
    """Releases the share; without a parent also kills the process group, such as a Java whose Python ended while it was
    starting. With a parent that is the parent's task."""
    # The parent closes its end of our standard input before it releases its share, and may be stopped in between.
    share.leave(patient=alone.is_set())
    if alone.is_set() and os.getpgrp() == os.getpid():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # the reader has ended, or the disk is full
                stream.flush()
        os.killpg(0, signal.SIGKILL)


def main() -> None:
    signal.signal(signal.SIGTERM, _end)  # the default would leave temporary files behind
    folder = sys.argv[1]
    del sys.argv[:2]
    try:
        share = Share(Path(folder))
    except OSError as error:
        raise SystemExit(f"the folder {folder} was removed: {error}") from None
    alone = threading.Event()
    atexit.register(_leave, share, alone)  # runs after the program's own handlers
    threading.Thread(target=_watch, args=(share, alone), name="leash", daemon=True).start()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
