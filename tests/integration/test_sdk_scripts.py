"""The scripts under examples/ do what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import comet.sync
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
            assert process.wait(60) == 0


@contextmanager
def running(name: str, address: str) -> Iterator[Iterator[str]]:
    """An example that runs until it is interrupted, by the lines that it prints."""
    command = [sys.executable, str(EXAMPLES / name), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield (line.strip() for line in process.stdout)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("at_most_once.py", "to 555-1: hello"),
        ("at_least_once.py", "a1 has 10.0"),
        ("exactly_once.py", '{"customer":"c1","total":5.0}'),
        ("share_group.py", "job 1 done by"),
    ],
)
def test_an_example_that_waits_tells_what_to_write(name: str, printed: str) -> None:
    topics = ["alerts", "balances", "balances-failed", "orders", "totals", "jobs", "jobs-failed"]
    with comet.testing.broker(topics) as broker:
        command = [sys.executable, str(EXAMPLES / name), broker.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stderr is not None
            try:
                assert process.stderr.readline().startswith("waiting for records")
                pasted = process.stderr.readline()
                pasted += process.stderr.readline() if name == "exactly_once.py" else ""
                path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
                environ = {**os.environ, "PATH": path, "COMET_BOOTSTRAP": broker.address}
                shell = ["bash", "-e", "-o", "pipefail", "-c", pasted]
                said = subprocess.run(shell, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout
                assert printed in (said or process.stdout.readline())
            finally:
                process.kill()


def test_there_is_an_example_of_each_delivery() -> None:
    topics = ["alerts", "balances", "balances-failed", "orders", "totals", "jobs", "jobs-failed"]
    with comet.testing.broker(topics) as broker, comet.sync.Producer(broker.address) as producer:
        for n in range(3):
            producer.publish("alerts", {"phone": f"555-{n}", "text": "hello"})
            producer.publish("balances", {"account": f"a{n}", "amount": 10.0 * (n - 1)}, key=f"a{n}")
            producer.publish("orders", {"customer": f"c{n}", "pieces": n, "price": 2.5}, key=f"c{n}")
            producer.publish("jobs", {"number": n, "takes_ms": n - 1})
        with running("at_most_once.py", broker.address) as lines:
            assert [next(lines) for _ in range(3)] == [f"to 555-{n}: hello" for n in range(3)]
        with running("at_least_once.py", broker.address) as lines:
            assert {next(lines), next(lines)} == {"a1 has 0.0", "a2 has 10.0"}
            with comet.sync.Consumer(broker.address, "balances-failed", type=dict, start="earliest") as failed:
                record = failed.get(60)
                assert record is not None
                assert record.value["account"] == "a0"
        with (
            running("exactly_once.py", broker.address),
            comet.sync.Consumer(broker.address, "totals", type=dict, start="earliest") as totals,
        ):
            for n in range(3):
                record = totals.get(60)
                assert record is not None
                assert record.value == {"customer": f"c{n}", "total": n * 2.5}
        with running("share_group.py", broker.address) as lines:
            assert {next(lines).split(" done")[0] for _ in range(2)} == {"job 1", "job 2"}
            with comet.sync.Consumer(broker.address, "jobs-failed", type=dict, start="earliest") as failed:
                record = failed.get(60)
                assert record is not None
                assert record.value["number"] == 0
