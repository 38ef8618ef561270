"""Processes that stand still."""

from __future__ import annotations

import os
import signal
from typing import Final

_STOPPED: Final = os.WSTOPPED | os.WEXITED | os.WNOWAIT


def stand_still(pid: int) -> None:
    """SIGSTOP to a child of this process. Returns when it has stopped: the signal takes effect only once the system
    gives a turn to the thread that is to handle it, and until then all others go on."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, _STOPPED)
