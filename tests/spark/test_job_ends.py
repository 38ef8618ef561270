"""The demo's job, when the Java that it runs in is gone: it says so and ends, as nothing of it will ever run again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import comet
from comet_demo.model import JOB

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_job_whose_java_is_gone_tells_of_it_and_ends(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    with comet.testing.broker({JOB: 1}) as broker, comet.sync.Consumer(broker.address, JOB, start="earliest") as told:
        command = [sys.executable, "-m", "comet_demo.analytics.spark_job", "--bootstrap", broker.address]
        arguments = ["--queries", "bars.1s", "--parallelism", "1", "--master", "local[1]"]
        with log.open("wb") as file:
            job = subprocess.Popen([*command, *arguments], stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            states = _until("running", told)
            (java,) = [one for one in psutil.Process(job.pid).children() if "java" in one.name()]
            java.kill()
            assert _until("failed", told) <= {"running", "failed"}
            # Spark waits ten seconds for a Python that it starts: on a slow machine the query begins once more.
            assert states <= {"starting", "failed", "running"}
            assert job.wait(100) == 1
        finally:
            job.kill()
            job.wait(60)
    lines = log.read_text().splitlines()
    assert lines[-1].startswith("comet_demo.analytics.spark_job: Spark's JVM does not answer"), lines[-1]
    # Spark's own workers, whose Python comes out of a zip, may have said that a connection of theirs ended.
    assert not [line for line in lines if line.lstrip().startswith('File "') and "pyspark.zip" not in line]


def _until(state: str, told: comet.sync.Consumer[bytes]) -> set[str]:
    """The states that were told on the way."""
    found: set[str] = set()
    for record in told:
        found.add(json.loads(record.value)["state"])
        if state in found:
            break
    return found
