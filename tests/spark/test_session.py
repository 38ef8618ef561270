"""A local session ends with its JVM, whatever ends its block."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import comet.sync
import comet.testing
from tests.descendants import alive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = """
from comet.spark import local
with local.session("tests", master="local[1]", parallelism=3, config={{"spark.test": "given"}}) as spark:
    conf = spark.conf
    values = [conf.get(name) for name in ("spark.sql.shuffle.partitions", "spark.test", "spark.sql.session.timeZone")]
    print(local.jvm(spark).pid, *values, spark.range(3).count(), flush=True)
    if {fails}:
        local.jvm(spark).kill()
        raise SystemExit(3)
print("over", flush=True)
"""


@pytest.mark.parametrize("fails", [False, True])
def test_a_session_ends_with_its_jvm(*, fails: bool) -> None:
    command = [sys.executable, "-c", PROGRAM.format(fails=fails)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == (3 if fails else 0), done.stderr
    first, *rest = done.stdout.splitlines()
    pid, *values = first.split()
    assert values == ["3", "given", "UTC", "3"] and rest == ([] if fails else ["over"])
    assert not alive(int(pid))


JOB = """
import sys
import comet.spark

with comet.spark.session("job", master="local[1]") as spark:
    rows = spark.read.format("comet").option("bootstrap", sys.argv[1]).option("subscribe", "quotes").load()
    print(rows.count(), flush=True)
"""


def test_a_job_of_an_environment_that_is_not_activated_finds_the_source(
    broker: comet.testing.TestBroker, tmp_path: Path
) -> None:
    with comet.sync.Producer(broker.address) as producer:
        producer.publish("quotes", "EURUSD 1.08")
    (tmp_path / "job.py").write_text(JOB)
    stranger = tmp_path / "bin" / "python3"  # one that has no Comet
    stranger.parent.mkdir()
    stranger.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    stranger.chmod(0o755)
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "VIRTUAL_ENV"))}
    outside["PATH"] = f"{stranger.parent}:/usr/bin:/bin"
    command = [sys.executable, str(tmp_path / "job.py"), broker.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=outside)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
