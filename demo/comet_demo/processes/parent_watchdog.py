"""Runs a module as `python -m` does, and ends it when whoever started it is gone: when its standard input ends.

    python -m comet_demo.processes.parent_watchdog FOLDER comet_demo.feed --bootstrap …

However the one who holds the other end dies, the system closes it. No other way to notice works everywhere. FOLDER is
where all who were started together keep what is temporary. Each holds a share of its lock; the last one to let go of it
removes the folder. That is whoever started them, unless it was killed.
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

GRACE_S: Final = 15  # for ending in order
LOCK: Final = "lock"
REMOVE_TRIES_MAX: Final = 20
LEAVE_TRIES_MAX: Final = 60
AGAIN_S: Final = 0.05


class Share:
    """Of a folder that is there for as long as somebody has one."""

    def __init__(self, folder: Path, *, begins: bool = False) -> None:
        """Raises OSError where the folder is gone."""
        self._folder = folder
        self._lock = os.open(folder / LOCK, os.O_RDWR | (os.O_CREAT if begins else 0), 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def close(self) -> None:
        """By who takes care of the folder."""
        os.close(self._lock)

    def leave(self, *, patient: bool = False) -> None:
        """Removes the folder, if nobody else has a share. Let go of before it is asked for alone, so that of two who
        leave at once one has it. `patient`: somebody else may be dying, who has a share for a moment yet."""
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
    """All of it, also while one who was killed just now still ends."""
    for _ in range(REMOVE_TRIES_MAX):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(AGAIN_S)


def _end(number: int, _frame: FrameType | None) -> None:
    """What the program has begun it takes back; most set something better in place of this."""
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
    """With whatever it has started and is still there, such as a Java whose Python has gone while it was starting. Who
    started us sees to that, if there still is somebody."""
    # Its end of our standard input is closed before its share is let go of, and it may stand still in between.
    share.leave(patient=alone.is_set())
    if alone.is_set() and os.getpgrp() == os.getpid():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # nobody reads it any more, or the disk is full
                stream.flush()
        os.killpg(0, signal.SIGKILL)


def main() -> None:
    signal.signal(signal.SIGTERM, _end)  # by default nothing that is temporary would be removed
    folder = sys.argv[1]
    del sys.argv[:2]
    try:
        share = Share(Path(folder))
    except OSError as error:
        raise SystemExit(f"{folder} has gone: {error}") from None
    alone = threading.Event()
    atexit.register(_leave, share, alone)  # after all that the program has registered
    threading.Thread(target=_watch, args=(share, alone), name="leash", daemon=True).start()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
