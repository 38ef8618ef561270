"""What is done about a process that does not answer."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from comet.processes.hang_watchdog import HangWatchdog
from tests.pausing import stand_still

ECHO = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"


@pytest.fixture
def echo() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def ask(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"there?\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def test_one_that_neither_answers_nor_ends_is_ended(echo: subprocess.Popen[bytes]) -> None:
    ask(echo)
    assert answer(echo) == b"there?\n"
    # Looked at only from now on: on a busy machine one that starts is silent for longer than this lasts, too.
    stand_still(echo.pid)
    ask(echo)
    with HangWatchdog(echo.kill, checks=3, every_s=0.05):
        assert answer(echo) == b""
    assert echo.wait(60) == -signal.SIGKILL


class Counted:
    def __init__(self) -> None:
        self.kills = 0

    def kill(self) -> None:
        self.kills += 1


def test_one_that_answers_is_left_alone_however_long_it_takes() -> None:
    process = Counted()
    silence = HangWatchdog(process.kill, checks=3)
    for _ in range(10):
        assert [silence.check() for _ in range(3)] == [False] * 3
        silence.answered()
    assert process.kills == 0
    assert [silence.check() for _ in range(4)] == [False, False, False, True]
    assert process.kills == 1


def test_a_process_of_somebody_else_is_not_ended() -> None:
    silence = HangWatchdog(None, checks=0)
    assert not silence.check()
