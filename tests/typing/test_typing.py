"""The types of the public API are part of it: mypy checks how they look from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def mypy(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.timeout(300)
def test_the_public_api_has_the_types_it_promises() -> None:
    result = mypy(Path(__file__).with_name("api.py"))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(300)
def test_a_wrong_type_would_be_noticed(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import comet\nvalue: str = comet.Consumer('localhost', 'quotes')\n")
    result = mypy(wrong)
    assert "Incompatible types in assignment" in result.stdout, result.stdout + result.stderr
