"""The committed code that is generated, of the protocol and of comet.sync, is what its sources generate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.tidy.tree import GENERATED, ROOT


def test_generating_the_protocol_again_changes_nothing(tmp_path: Path) -> None:
    protos = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "proto").rglob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-Iproto", *outputs, *protos], check=True, cwd=ROOT)
    fresh = {path.name: path.read_text() for path in (tmp_path / "comet/v1").iterdir()}
    kept = {path.name: path.read_text() for path in GENERATED.glob("*_pb2*")}
    assert sorted(fresh) == sorted(kept)
    drifted = [name for name in fresh if fresh[name] != kept[name]]
    assert not drifted, "run `make proto` and commit what it writes"


def test_generating_the_synchronous_classes_again_changes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"run `make generate` and commit what it writes:\n{done.stdout}{done.stderr}"
