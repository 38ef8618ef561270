"""The limit of open files, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource, sys
from comet.processes.descriptors import raise_descriptor_limit
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def raised(soft: int, hard: int) -> str:
    command = [sys.executable, "-c", SCRIPT, str(soft), str(hard)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    assert raised(128, 512) == "512 (512, 512)"
    assert raised(512, 512) == "512 (512, 512)"
