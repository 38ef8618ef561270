"""`make test` when a test takes its worker with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CONFTEST: Final = """
def pytest_xdist_make_scheduler(config, log):
    from tests.groups import Groups

    return Groups(config, log)
"""
TESTS: Final = """
import os
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_{name}(number):
    if number in {killing}:
        os._exit(1)
"""


def test_what_a_dead_worker_had_left_runs_once(tmp_path: Path) -> None:
    """Two tests of a group do, of which one is left then, and two of those that are handed out one by one."""
    files = {
        "conftest.py": CONFTEST,
        "integration/test_group.py": TESTS.format(name="grouped", count=6, killing=(2, 4)),
        "unit/test_others.py": TESTS.format(name="other", count=20, killing=(5, 6)),
    }
    for name, text in files.items():
        path = tmp_path / "suite" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    words = ["-n", "2", "-rA", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path), "suite"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "4 failed, 22 passed" in done.stdout, done.stdout
    killing = re.findall(r"^worker '\w+' crashed while running '\S+::test_(\S+)'", done.stdout, re.MULTILINE)
    assert sorted(killing) == ["grouped[2]", "grouped[4]", "other[5]", "other[6]"]
