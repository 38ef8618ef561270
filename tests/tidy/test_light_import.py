"""`import comet` costs next to nothing: what is heavy comes when it is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "grpc",
    "google.protobuf",
    "typer",
    "rich",
    "numpy",
    "pyarrow",
    "pydantic",
    "uvloop",
    "comet_broker",
    "multiprocessing",
    "comet.processes",
    "http",
    "unittest",
)


@pytest.mark.parametrize("statement", ["import comet", "import comet.errors, comet.types, comet.records"])
def test_nothing_heavy_is_imported(statement: str) -> None:
    report = f"import sys; {statement}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", report], check=True, capture_output=True, text=True).stdout.split()
    assert "comet" in loaded
    assert not [name for name in loaded if name in HEAVY]
