"""The scripts under examples/ do what they say."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import comet.testing

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, address: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), address]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_examples_run() -> None:
    with comet.testing.broker(["quotes", "signals", "numbers"]) as broker:
        lines = run("quotes.py", broker.address).splitlines()
        assert [line.split()[0] for line in lines] == [str(n) for n in range(10)]
        assert "100000 rows" in run("columns.py", broker.address)
        command = [sys.executable, str(EXAMPLES / "app.py"), broker.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            seen = 0
            while seen < 10:
                seen += int(process.stdout.readline().split()[0])
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
