"""The demo where Spark is missing: quotes come first, Spark is installed meanwhile, and without it the demo goes on.
Real processes; the installer is a script of the test."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import comet
from comet_demo.model import JOB, ensure_topics
from comet_demo.spark_setup import installer
from tests.descendants import alive, descendants
from tests.waiting import until

WITHIN_S = 60.0
BEGINS = "the installation of Spark: it begins"  # until the command says something
JOB_MODULE = b"comet_demo.analytics.spark_job"
# Says how far it is, and ends once there is the file `end`, which has its exit code. Installs the file `spark`.
INSTALLER = """
echo "comet: Spark: pyspark, 120 of 456 MB"
echo $$ >"{folder}/installer"
until [ -s "{folder}/end" ]; do sleep 0.02; done
code=$(cat "{folder}/end")
[ "$code" = 0 ] && touch "{folder}/spark"
[ "$code" = 0 ] || echo "comet: could not get Spark: it takes a network; once there is one: make spark" >&2
exit "$code"
"""


class Demo:
    """The demo, where Spark counts as missing until its installer has made a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said = folder / "said"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        (self.folder / "installer").unlink(missing_ok=True)
        script = self.folder / "install"
        script.write_text(INSTALLER.format(folder=self.folder))
        missing = f"None if Path({str(self.folder / 'spark')!r}).exists() else 'Spark is not installed'"
        start = (
            "from pathlib import Path; from comet.spark import local; "
            f"local.missing = lambda: {missing}; from comet.cli import main; main()"
        )
        command = [
            sys.executable, "-c", start, "demo", "--seed", "1", "--gateway-port", "0", "--install-spark",
            shlex.join(["sh", str(script)]), *arguments,
        ]  # fmt: skip
        with (
            self.said.open("wb") as file,
            subprocess.Popen(
                command, stdout=file, stderr=file, env=os.environ | {"TMPDIR": str(self.temporary)}
            ) as process,
        ):
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def shows(self, pattern: str) -> bool:
        """Whether a line of the table has this; it has the events so far, too."""
        return re.search(pattern, self.said.read_text()) is not None

    def installer_ends(self, code: int) -> None:
        part = self.folder / "end.part"
        part.write_text(str(code))
        part.rename(self.folder / "end")

    def page(self) -> str:
        """The page of quotes."""
        url = self.said.read_text().partition("Prices:")[2].split()[0]
        return httpx.get(url, timeout=WITHIN_S).raise_for_status().text


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    return Demo(tmp_path)


def jobs(pid: int) -> list[int]:
    """The processes of the Spark job."""
    found = []
    for one in descendants(pid):
        try:
            if JOB_MODULE in Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0"):
                found.append(one)
        except OSError:
            pass  # it has ended
    return found


MOVING = r"[1-9][0-9,]* events, .*"
INSTALLING = MOVING + "Spark is being installed: pyspark, 120 of 456 MB"


async def test_quotes_move_first_then_spark_is_installed_and_its_job_starts(demo: Demo) -> None:
    with demo.running() as process:
        assert await until(lambda: demo.shows(INSTALLING), within_s=WITHIN_S), demo.said.read_text()
        assert jobs(process.pid) == []
        assert "it is being installed while quotes move; --no-spark" in demo.said.read_text()
        assert await until(
            lambda: "waits for the installation of Spark: pyspark, 120 of 456 MB" in demo.page(),
            within_s=WITHIN_S,
        )
        demo.installer_ends(0)
        assert await until(lambda: len(jobs(process.pid)) == 1, within_s=WITHIN_S)
        assert await until(lambda: demo.shows(MOVING + "Spark: starting"), within_s=WITHIN_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 0
    assert "Traceback" not in demo.said.read_text()


async def test_an_installer_that_fails_stops_nothing_and_its_reason_stays(demo: Demo) -> None:
    demo.installer_ends(1)
    reason = "could not get Spark: it takes a network; once there is one: make spark"
    with demo.running() as process:
        assert await until(lambda: demo.shows(MOVING + f"no analytics: {reason}"), within_s=WITHIN_S)
        shown = len(re.findall(reason, demo.said.read_text()))
        assert await until(lambda: len(re.findall(reason, demo.said.read_text())) > shown + 1, within_s=WITHIN_S)
        assert await until(
            lambda: f"Spark could not be installed: {reason}" in demo.page(),
            within_s=WITHIN_S,
        )
        assert jobs(process.pid) == []
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 0
    said = demo.said.read_text()
    assert f"\nno analytics: {reason}\n" in said and "Traceback" not in said


async def test_a_killed_installer_stops_nothing_either(demo: Demo) -> None:
    with demo.running() as process:
        assert await until(lambda: demo.shows(INSTALLING), within_s=WITHIN_S)
        os.kill(int((demo.folder / "installer").read_text()), signal.SIGKILL)
        assert await until(lambda: demo.shows(MOVING + "no analytics: pyspark, 120 of 456 MB"), within_s=WITHIN_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
async def test_interrupted_in_the_middle_nothing_is_left_and_it_can_be_started_again(
    demo: Demo, number: signal.Signals
) -> None:
    with demo.running() as process:
        assert await until(lambda: demo.shows(INSTALLING), within_s=WITHIN_S)
        others = descendants(process.pid)
        assert int((demo.folder / "installer").read_text()) in others
        process.send_signal(number)
        assert process.wait(WITHIN_S) == (0 if number == signal.SIGINT else -number)
    assert await until(lambda: not any(map(alive, others)), within_s=WITHIN_S)
    assert await until(lambda: not any(demo.temporary.iterdir()), within_s=WITHIN_S)
    with demo.running("--duration", "1"):
        assert await until(lambda: demo.shows(INSTALLING), within_s=WITHIN_S)


async def test_declined_spark_is_not_installed(demo: Demo) -> None:
    with demo.running("--no-spark", "--duration", "1") as process:
        assert process.wait(WITHIN_S) == 0
    assert demo.shows(MOVING) and not (demo.folder / "installer").exists()
    assert "nstalled" not in demo.said.read_text()


async def test_the_installer_reports_where_the_job_will() -> None:
    """Every line is a report, and so is the end."""
    command = ["sh", "-c", "echo 'comet: Spark: one'; echo; printf 'two \\033[1m\\n' >&2; exit 3"]
    with comet.testing.broker() as broker:
        await ensure_topics(broker.address)
        assert await installer.install(broker.address, command) == 3
        assert await installer.install(broker.address, ["true"]) == 0
        async with comet.Consumer(broker.address, JOB, start="earliest", type=dict[str, Any]) as consumer:
            reports = [(await anext(consumer)).value]
            while reports[-1].get("doing") != "Java and Spark":
                reports.append((await anext(consumer)).value)
    assert {report["query"] for report in reports} == {"bars.1s"}
    told = dict.fromkeys(report.get("doing") or report["error"] for report in reports)  # a step is told again
    assert [text for text in told if text != BEGINS] == [
        "the installation of Spark: one", "the installation of Spark: two  [1m",
        "Spark could not be installed: two  [1m", "Java and Spark",
    ]  # fmt: skip


async def test_without_a_broker_it_installs_all_the_same() -> None:
    assert await installer.install("127.0.0.1:1", ["sh", "-c", "echo one; exit 0"]) == 0
