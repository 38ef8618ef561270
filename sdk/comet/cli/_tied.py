"""`python -m comet.cli._tied PARENT COMMAND...`: becomes COMMAND, which ends with the process PARENT.

When the parent ends for any reason, the kernel sends SIGTERM. Only on Linux; elsewhere the command outlives a parent
that is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def tied(command: list[str]) -> list[str]:
    """A command line that runs `command` and ends it with this process."""
    return [sys.executable, "-m", "comet.cli._tied", str(os.getpid()), *command]


def main() -> None:
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != int(parent):
            return  # the parent died before prctl
    os.execvp(command[0], command)  # noqa: S606 - the caller's own command


if __name__ == "__main__":
    main()
