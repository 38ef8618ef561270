"""`scripts/audit`, with a stub for pip-audit: vulnerabilities fail it, and a service out of reach is never silent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tidy.tree import ROOT

GOOD = {"name": "lz4", "version": "4.4.5", "vulns": []}
BAD = {"name": "jinja2", "version": "3.1.6", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1.7"]}]}
UNKNOWN = {"name": "rich", "skip_reason": "not found"}
UNREACHABLE = "import sys; sys.exit('ConnectionError: no route')"


def audit(folder: Path, stub: str) -> tuple[int, str]:
    (folder / "pip_audit.py").write_text(stub)
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/audit")],
        env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, done.stdout


def reporting(*found: dict[str, Any]) -> str:
    return f"import sys; print({json.dumps({'dependencies': found})!r}); sys.exit({int(BAD in found)})"


@pytest.mark.parametrize(
    ("stub", "code", "said"),
    [
        (reporting(GOOD), 0, ["No known vulnerabilities in 1 dependencies"]),
        (reporting(GOOD, BAD), 1, ["jinja2 3.1.6 has PYSEC-1; fixed in 3.1.7"]),
        (
            reporting(GOOD, UNKNOWN),
            0,
            ["NOT looked for known vulnerabilities of rich", "No known vulnerabilities in 1"],
        ),
        (reporting(BAD, UNKNOWN), 1, ["NOT looked for known vulnerabilities of rich", "jinja2 3.1.6 has PYSEC-1"]),
        (reporting(UNKNOWN), 0, ["NOT looked for known vulnerabilities: this package index has no advisories"]),
        (UNREACHABLE, 0, ["NOT looked for known vulnerabilities: ", "ConnectionError: no route"]),
    ],
)
def test_one_line_says_what_was_found_or_not_looked_for(tmp_path: Path, stub: str, code: int, said: list[str]) -> None:
    ended, shown = audit(tmp_path, stub)
    assert ended == code, shown
    assert all(part in shown for part in said), shown
