"""The demo's job as `spark-submit` runs it, with executors that are processes of their own, one of which is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import comet
import comet_demo.analytics.spark_job
from comet_demo.model import BARS, TOPIC, ensure_topics
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MASTER = "local-cluster[2,1,512]"
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
DRIVER = f"{sys.executable} {comet_demo.analytics.spark_job.__file__}"
SECOND_US = 1_000_000
SYMBOLS = ("ACME", "INIT", "MOON", "OMNI")


@contextmanager
def submitted(address: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    settings = [part for name, value in SETTINGS.items() for part in ("--conf", f"{name}={value}")]
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", MASTER, *settings]
    job = [comet_demo.analytics.spark_job.__file__, "--bootstrap", address, "--queries", "bars.1s"]
    job += ["--checkpoint", str(folder / "checkpoint"), "--back", "3600"]  # before it was started, however long ago
    log = folder / "submit.log"
    environment = os.environ | {"SPARK_LOCAL_DIRS": str(folder), "SPARK_WORKER_DIR": str(folder / "work")}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, *job], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
        )
    try:
        yield process
    finally:
        left = below(process)
        process.kill()
        for one in left:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait(60)


def below(process: subprocess.Popen[bytes], part: str = "", *, recursive: bool = True) -> list[psutil.Process]:
    """Those with that in their command line. Java starts some that live for a moment."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for one in psutil.Process(process.pid).children(recursive=recursive):
            with suppress(psutil.NoSuchProcess):
                if part in " ".join(one.cmdline()):
                    found.append(one)
    return found


def executors(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Not what they start in turn, each of which is its executor once more in the beginning."""
    return below(process, "CoarseGrainedExecutorBackend", recursive=False)


def write(address: str, second: int, each: int) -> None:
    with comet.sync.Producer(address) as producer:
        for symbol in SYMBOLS:
            for number in range(each):
                quote = {"symbol": symbol, "bid": 9.5, "ask": 9.75, "timestamp_us": second * SECOND_US + number}
                quote |= {"bid_size": 1, "ask_size": 1, "last": 9.5, "last_size": 0}
                producer.send(TOPIC, quote, key=symbol)


def bars_until(second: int, each: int, bars: comet.sync.Consumer[bytes], found: dict[tuple[str, int], Any]) -> None:
    """Takes what comes until the bars of that second have so many quotes."""
    for record in bars:
        bar = json.loads(record.value)
        found[bar["symbol"], bar["start_us"] // SECOND_US] = bar
        if all(found.get((symbol, second), {}).get("quotes") == each for symbol in SYMBOLS):
            return


def test_a_job_goes_on_where_an_executor_was_killed_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    first, later = int(time.time()), int(time.time()) + 3
    found: dict[tuple[str, int], Any] = {}
    with comet.testing.broker() as broker:
        comet.run(ensure_topics(broker.address))
        write(broker.address, first, 3)
        with (
            submitted(broker.address, tmp_path) as job,
            comet.sync.Consumer(broker.address, BARS["1s"], start="earliest") as bars,
        ):
            bars_until(first, 3, bars, found)
            assert comet.run(until(lambda: len(executors(job)) == 2, within_s=60))
            executors(job)[0].kill()
            write(broker.address, later, 5)
            bars_until(later, 5, bars, found)
            (driver,) = below(job, DRIVER)
            everything = below(job)
            driver.terminate()
            assert job.wait(100) == 0, (tmp_path / "submit.log").read_text()[-2000:]
            _gone, alive = psutil.wait_procs(everything, timeout=100)
    assert not alive, [one.cmdline() for one in alive]
    assert {key: bar["quotes"] for key, bar in found.items()} == {
        (symbol, second): count for symbol in SYMBOLS for second, count in ((first, 3), (later, 5))
    }
