"""`python -m comet.cli._tied PARENT COMMAND...`: becomes COMMAND, tied to the life of the process PARENT.

When the parent is gone, however it went, the kernel sends SIGTERM. That is Linux's alone; elsewhere the command runs
untied, and a parent that is killed leaves it behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def tied(command: list[str]) -> list[str]:
    """The command line that runs `command` no longer than this process."""
    return [sys.executable, "-m", "comet.cli._tied", str(os.getpid()), *command]


def main() -> None:
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != int(parent):
            return  # it died before the kernel was told
    os.execvp(command[0], command)  # noqa: S606 - the caller's own command, as it is


if __name__ == "__main__":
    main()
