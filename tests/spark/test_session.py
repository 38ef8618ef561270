"""A local session ends with its JVM, whatever ends its block."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
