"""A run in processes that differ in the order of sets and in the addresses of objects."""

from __future__ import annotations

import os
import subprocess
import sys


def prints(program: str) -> set[str]:
    """What a program prints, in one process and in another."""
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "136")
    }
