"""README's "One minute": its commands and programs, as a reader runs them against a `comet up`.

A line of a `console` block that begins with `$ ` is a command; the lines behind it are what the command prints.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.integration.gateway_tour import Up

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
        # `python` and `comet` are the ones that run this test.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
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
