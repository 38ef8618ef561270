"""Runs a command that installs Spark, and reports how far it is where the Spark job will report:

    python -m comet_demo.spark_setup.installer --bootstrap HOST:PORT -- scripts/spark python3 .venv

    COMMAND ─► each line it prints ─► standard output, which is the demo's terminal
                                  └─► `quotes.job`: bars.1s is starting, and waits for this    the page of quotes

The exit code is that of the command. At a signal, or when the demo has ended, the command is ended with all it started.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from contextlib import suppress
from typing import Final

import comet
from comet.processes.program import run, until_stopped
from comet.units import one_line
from comet_demo.model import JOB, now_us

PREFIXES: Final = ("comet: ", "Spark: ")  # so the scripts of the repository begin their lines
FIRST_QUERY: Final = "bars.1s"
LINE_BYTES_MAX: Final = 1 << 20
NICE: Final = 10  # quotes have precedence
AGAIN_S: Final = 2.0  # a job without reports counts as lost
STOP_S: Final = 5.0
SEND_S_MAX: Final = 2.0  # a broker that is away holds nothing up


class Reports:
    """Reports of the query that waits for Spark. A report that cannot be written is dropped: another one follows."""

    def __init__(self, producer: comet.Producer) -> None:
        self._producer = producer

    async def starting(self, doing: str) -> None:
        await self._send({"state": "starting", "doing": doing})

    async def failed(self, reason: str) -> None:
        await self._send({"state": "failed", "error": f"Spark could not be installed: {reason}"})

    async def _send(self, fields: dict[str, str]) -> None:
        report = {"query": FIRST_QUERY, "at_us": now_us(), **fields}
        with suppress(comet.CometError, TimeoutError):
            async with asyncio.timeout(SEND_S_MAX):
                await self._producer.publish(JOB, report, key=FIRST_QUERY)


async def install(bootstrap: str, command: list[str]) -> int:
    """Runs the command and returns its exit code."""
    async with comet.Producer(bootstrap, name="spark installer") as producer:
        reports = Reports(producer)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, limit=LINE_BYTES_MAX,
            env=os.environ | {"COMET_PROGRESS_S": "1"},
        )  # fmt: skip
        last = "it begins"
        try:
            assert process.stdout is not None
            while True:
                try:
                    raw = await asyncio.wait_for(process.stdout.readline(), AGAIN_S)
                except TimeoutError:
                    raw = None  # the last step goes on
                if raw == b"":
                    break
                if raw and (step := _step(raw)):
                    print(step, flush=True)  # noqa: T201 - the demo shows the last one
                    last = step
                await reports.starting(f"the installation of Spark: {last}")
            code = await process.wait()
        finally:
            await _end(process)
        if code:
            await reports.failed(last)
        else:
            await reports.starting("Java and Spark")
        return code


def _step(line: bytes) -> str:
    text = one_line(line.decode(errors="replace")).strip()
    for prefix in PREFIXES:
        text = text.removeprefix(prefix)
    return text


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), STOP_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    os.nice(NICE)
    code = 128 + signal.SIGTERM

    async def work() -> None:
        nonlocal code
        code = await install(options.bootstrap, options.command)

    comet.run(until_stopped(work()))
    raise SystemExit(code)


if __name__ == "__main__":
    run("comet_demo.spark_setup.installer", main)
