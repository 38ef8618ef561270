"""Runs a module as `python -m` does, and ends it when whoever started it is gone: when its standard input ends.

    python -m comet_demo.leash comet_demo.feed --bootstrap …

However the one who holds the other end dies, the system closes it. No other way to notice works everywhere.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final

GRACE_S: Final = 15  # for ending in order


def _watch() -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    signal.raise_signal(signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


def main() -> None:
    threading.Thread(target=_watch, name="leash", daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
