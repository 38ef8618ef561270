"""The programs of docs/guides/testing-your-app.md run as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.tidy.tree import ROOT

APP = """
import comet

app = comet.App("localhost:9092")

@app.on("orders", group="reminders", start="earliest")
async def remind(order: dict) -> None:
    await app.publish("reminders", order["id"], delay="2d")
"""


def test_its_first_two_programs_run(tmp_path: Path) -> None:
    guide = (ROOT / "docs/guides/testing-your-app.md").read_text()
    with_pytest, without, *_ = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "myapp.py").write_text(APP)
    (tmp_path / "test_reminders.py").write_text(with_pytest)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / "program.py").write_text(f"import comet\nimport comet.testing\n\n{without}")
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert "1 passed" in tested.stdout, tested.stdout + tested.stderr
    subprocess.run([sys.executable, "program.py"], cwd=tmp_path, check=True, timeout=60)
