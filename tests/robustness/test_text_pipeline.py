"""examples/text_pipeline with every part killed: each line that was acknowledged is in the file once, in order."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from comet.processes.child import Child
from tests.robustness.process import BrokerProcess, free_port

PIPELINE = Path(__file__).parents[2] / "examples" / "text_pipeline"
WRITERS = 3
AGAIN = {404, 503, 504}  # not there yet, not now, not known; all of them to be sent again under the same key


class Part:
    """One process of the pipeline, which is killed and started again."""

    def __init__(self, name: str, log: Path, *arguments: str) -> None:
        self.name = name
        self.log = log
        self._child = Child(name, [sys.executable, *arguments], log=log)

    def start(self) -> None:
        self._child.start()

    def kill(self) -> None:
        self._child.kill()

    def said(self) -> str:
        return f"--- {self.name}\n{self.log.read_text(errors='replace')[-3000:]}"


class Pipeline:
    def __init__(self, folder: Path) -> None:
        self.broker = BrokerProcess(folder / "data")
        self.lines = folder / "lines.txt"
        self.port = free_port()
        address = self.broker.address
        gateway = ("-m", "comet.cli", "gateway", "--bootstrap", address, "--port", str(self.port))
        self.parts = [
            Part("gateway", folder / "gateway.log", *gateway),
            Part("lower.py", folder / "lower.log", str(PIPELINE / "lower.py"), address, "lower-1"),
            Part("sink.py", folder / "sink.log", str(PIPELINE / "sink.py"), address, str(self.lines)),
        ]

    async def kill_one(self, random: Random) -> str:
        """Kills a part, or the broker, and starts it again."""
        chosen = random.randrange(len(self.parts) + 1)
        if chosen == len(self.parts):
            await asyncio.to_thread(self.broker.kill)
            await asyncio.to_thread(self.broker.start)
            return "broker"
        part = self.parts[chosen]
        await asyncio.to_thread(part.kill)
        part.start()
        return part.name

    def grown(self) -> int:
        """How many lines the file has."""
        return self.lines.read_bytes().count(b"\n") if self.lines.exists() else 0

    def said(self) -> str:
        return "\n".join(part.said() for part in self.parts)


@contextmanager
def pipeline(folder: Path) -> Iterator[Pipeline]:
    """A running pipeline, that is gone afterwards."""
    one = Pipeline(folder)
    one.broker.start()
    try:
        for part in one.parts:
            part.start()
        yield one
    finally:
        for part in one.parts:
            part.kill()
        if one.broker.running:
            one.broker.kill()


def post(port: int, key: str, body: dict[str, Any]) -> bool:
    """True when the line is acknowledged."""
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    address = f"http://127.0.0.1:{port}/v1/topics/lines/records?acks=all"
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        with error:
            if error.code not in AGAIN:
                raise AssertionError(error.read()) from None
        return False
    except OSError:
        return False


async def write(port: int, writer: str, written: list[str], stop: asyncio.Event, random: Random) -> None:
    """One line after the other, each under its key until it is acknowledged, and now and then once more."""
    while not stop.is_set():
        await write_one(port, writer, written, random)


async def write_one(port: int, writer: str, written: list[str], random: Random) -> None:
    text = f"{writer} Writes Line {len(written)}"
    key = f"{writer}-{len(written)}"
    body = {"text": text, "key": writer}
    while not await asyncio.to_thread(post, port, key, body):
        await pause()
    if random.random() < 0.1:
        await asyncio.to_thread(post, port, key, body)
    written.append(text.lower())


async def pause() -> None:
    """As a client does before it asks again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.Event().wait()


async def grown(one: Pipeline, lines: int) -> None:
    """Returns when the file has so many lines."""
    async with asyncio.timeout(60):
        while one.grown() < lines:
            await pause()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "kills"), [(1, 12), (2, 12)])
async def test_lines_are_in_the_file_once_whatever_is_killed(tmp_path: Path, seed: int, kills: int) -> None:
    random = Random(seed)
    with pipeline(tmp_path) as one:
        stop = asyncio.Event()
        written: dict[str, list[str]] = {f"w{number}": [] for number in range(WRITERS)}
        writing = [asyncio.create_task(write(one.port, name, lines, stop, random)) for name, lines in written.items()]
        killed: list[str] = []
        try:
            await grown(one, 10)
            for _ in range(kills):
                killed.append(await one.kill_one(random))
                if random.random() < 0.7:  # else the next is killed while this one comes back
                    await grown(one, one.grown() + random.randint(1, 30))
            stop.set()
            await asyncio.gather(*writing)
            total = sum(map(len, written.values()))
            await grown(one, total)
            # What was sent twice would have come by the time that another line of each writer has.
            for name, lines in written.items():
                await write_one(one.port, name, lines, random)
            total += WRITERS
            await grown(one, total)
            found = one.lines.read_text().splitlines()
            for name, lines in written.items():
                assert [line for line in found if line.startswith(f"{name} ")] == lines, f"{killed}\n{one.said()}"
            assert len(found) == total > kills
        except TimeoutError:
            raise AssertionError(f"the pipeline stands still after {killed}\n{one.said()}") from None
        finally:
            stop.set()
            for task in writing:
                task.cancel()
            await asyncio.wait(writing)
