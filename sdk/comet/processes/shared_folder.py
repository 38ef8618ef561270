"""A temporary folder of several processes: the last one to end removes it, even if the first one was killed.

Each process holds a share of the folder's lock, which the system releases when the process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import Final

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
