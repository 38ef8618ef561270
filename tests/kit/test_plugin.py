"""The pytest plugin in projects of all kinds: each runs in a pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PASSES = """
import asyncio, time
import pytest

@pytest.mark.comet(brokers=1, seed=7)
async def test_virtual(comet, tmp_path):
    await comet.topic("orders")
    await asyncio.sleep(3600)
    assert (await comet.publish("orders", b"1")).offset == 0
    assert tmp_path.exists() and comet.seed == 7

class TestMethods:
    @pytest.mark.parametrize("number", [1, 2])
    async def test_method(self, comet, number):
        assert len(comet.addresses) == 3 and number in (1, 2)
"""
OTHERS = """
import asyncio
import pytest

@pytest.mark.{mark}
async def test_real(tmp_path):
    await asyncio.sleep(0)
    assert type(asyncio.get_running_loop()).__name__ != "VirtualLoop"
"""
FAILS = """
import pytest

async def test_fails(comet):
    await comet.topic("orders")
    await comet.kill(leader_of="orders/0")
    assert False, comet.seed
"""


def _pytest(folder: Path, text: str, *options: str, plugins: bool = True) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(text)
    alone = {} if plugins else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "comet_testing.plugin", *options, "test_it.py"],
        cwd=folder, env={**os.environ, **alone}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_it_needs_no_other_plugin(tmp_path: Path) -> None:
    done = _pytest(tmp_path, PASSES, plugins=False)
    assert "3 passed" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("mark", "options"),
    [("asyncio", ("-o", "asyncio_mode=strict")), ("asyncio", ("-o", "asyncio_mode=auto")), ("anyio", ())],
)
def test_it_works_beside_others(mark: str, options: tuple[str, ...], tmp_path: Path) -> None:
    done = _pytest(tmp_path, PASSES + OTHERS.format(mark=mark), *options)
    assert re.search(r"\b[45] passed", done.stdout), done.stdout
    assert "failed" not in done.stdout and "warning" not in done.stdout, done.stdout


def test_a_failure_says_how_to_repeat_it(tmp_path: Path) -> None:
    done = _pytest(tmp_path, FAILS)
    found = re.search(r"pytest (test_it.py::test_fails) --comet-seed=(\d+)", done.stdout)
    assert found, done.stdout
    assert "kill broker" in done.stdout, "the acts before it are shown"
    again = _pytest(tmp_path, FAILS, f"--comet-seed={int(found[2]) + 1}")
    assert f"--comet-seed={int(found[2]) + 1}" in again.stdout


def test_a_test_that_is_no_coroutine_is_told_so(tmp_path: Path) -> None:
    done = _pytest(tmp_path, "def test_it(comet): pass")
    assert "write `async def`" in done.stdout


def test_a_pytest_without_its_tests_imports_nothing_of_it(tmp_path: Path) -> None:
    text = "import sys\ndef test_it():\n    assert not {'comet', 'comet_broker', 'google.protobuf'} & set(sys.modules)"
    done = _pytest(tmp_path, text, plugins=False)
    assert "1 passed" in done.stdout, done.stdout
