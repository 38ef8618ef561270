"""README's "One minute": its commands and programs, as a reader runs them against a `comet up`.

A line of a `console` block that begins with `$ ` is a command; the lines behind it are what the command prints.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import httpx

import comet.sync
from tests import waiting
from tests.integration.gateway_tour import Up

BID, ASK = 9.5, 9.75
QUOTE: Final = {"symbol": "ACME", "bid": BID, "ask": ASK}
PARTITIONS: Final = 4
WAIT_S_MAX: Final = 60
HEADING: Final = "## One minute\n"
BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
COMMAND: Final = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


class Block(NamedTuple):
    """A block of code and its language."""

    language: str
    code: str

    def commands(self) -> list[Command]:
        assert self.language == "console"
        found = [Command(line, printed.splitlines()) for line, printed in COMMAND.findall(self.code)]
        lines = sum(1 + len(command.printed) for command in found)
        assert lines == len(self.code.splitlines()), "a line of the block belongs to no command"
        return found


class Command(NamedTuple):
    """A command and the lines that README shows as its output."""

    line: str
    printed: list[str]

    @property
    def bare(self) -> str:
        """Without the comment."""
        return re.sub(r"\s+# .*", "", self.line)


def blocks(text: str) -> list[Block]:
    """All blocks of the section, in their order."""
    _, heading, rest = text.partition(HEADING)
    assert heading
    return [Block(*found) for found in BLOCK.findall(rest.partition("\n## ")[0])]


class Terminal(NamedTuple):
    """A reader's terminal in a folder, with the addresses of a running `comet up` in place of the usual ones."""

    there: Up
    folder: Path
    programs: Path = Path(sys.executable).parent  # where `python` and `comet` are

    def python(self, name: str, code: str) -> Command:
        """The command that runs the program, which is saved under this name."""
        (self.folder / name).write_text(self._here(code))
        return Command(f"python {name}", [])

    def run(self, command: Command) -> list[str]:
        """The lines that a command prints until it ends, which it does with success."""
        with self.running(command) as process:
            printed, _ = process.communicate(timeout=60)
            assert process.returncode == 0, command.line
        return str(printed).splitlines()

    @contextmanager
    def running(self, command: Command) -> Iterator[subprocess.Popen[str]]:
        """A command, killed at the end if it still runs."""
        path = os.pathsep.join([str(self.programs), os.environ.get("PATH", "")])
        environ = {**os.environ, "PATH": path, "COMET_BOOTSTRAP": self.there.broker, "PYTHONUNBUFFERED": "1"}
        line = ["bash", "-o", "pipefail", "-c", self._here(command.line)]
        with subprocess.Popen(
            line, stdout=subprocess.PIPE, text=True, env=environ, cwd=self.folder, start_new_session=True
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def _here(self, code: str) -> str:
        usual = {"localhost:8080": self.there.gateway.removeprefix("http://"), "localhost:9092": self.there.broker}
        for address, actual in usual.items():
            code = code.replace(address, actual)
        return code


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """The lines that a running command prints, as it prints them."""
    assert process.stdout is not None
    return (line.removesuffix("\n") for line in process.stdout)


def interrupt(process: subprocess.Popen[str]) -> int:
    """Ctrl-C: the exit code of the command."""
    os.killpg(process.pid, signal.SIGINT)
    return process.wait(60)


def one_minute(terminal: Terminal, section: list[Block]) -> None:
    """Runs the section's commands and programs beside the running `comet up`; they print what README says."""
    _, shell, reading, writing, http = section
    spread = f"ACME {ASK - BID}"
    assert f"# {spread}\n" in reading.code
    there = terminal.there
    with comet.sync.Admin(there.broker) as admin:

        def subscriptions() -> int:
            return int(admin.statistics(brief=True)["totals"]["readers"])

        assert httpx.get(there.gateway, follow_redirects=True, timeout=WAIT_S_MAX).status_code == 200

        create, produce, consume = shell.commands()
        for command in (create, produce):
            assert terminal.run(command) == command.printed, command.line
        assert consume.printed
        with terminal.running(consume) as following:
            printed = lines(following)
            assert [next(printed) for _ in consume.printed] == consume.printed
            assert interrupt(following) == 128 + signal.SIGINT
            assert list(printed) == []
        assert asyncio.run(waiting.until(lambda: subscriptions() == 0, within_s=WAIT_S_MAX))

        with terminal.running(terminal.python("reading.py", reading.code)) as app:
            printed = lines(app)
            assert asyncio.run(waiting.until(lambda: subscriptions() == PARTITIONS, within_s=WAIT_S_MAX))
            assert terminal.run(terminal.python("writing.py", writing.code)) == []
            assert next(printed) == spread
            post, stream = http.commands()
            receipt = json.loads("".join(terminal.run(post)))
            assert [set(result) for result in receipt["results"]] == [{"partition", "offset"}]
            assert next(printed) == spread
            assert interrupt(app) == 0
            assert list(printed) == []

        with terminal.running(stream) as events:
            data = (json.loads(line.removeprefix("data: ")) for line in lines(events) if line.startswith("data: "))
            assert next(data)["topic"] == "quotes"
            records = [next(data) for _ in range(3)]
            assert [record["value"] for record in records] == [QUOTE] * 3
            assert sorted(record.get("key", "") for record in records) == ["", "ACME", "ACME"]
