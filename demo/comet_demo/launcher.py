"""Starts the whole demo: a broker and a feed as processes of their own, the table here. Ends all of it again."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import comet
from comet_demo.board import Board
from comet_demo.consumer import follow, show
from comet_demo.feed import ensure_topic

STOP_TIMEOUT_S: Final = 10


@dataclass(frozen=True, slots=True)
class Options:
    rate: float = 1000.0
    seed: int | None = None
    duration_s: float | None = None  # None: until Ctrl-C
    bootstrap: str | None = None  # None: a broker of its own
    quiet: bool = False  # show nothing


def run(options: Options) -> Board:
    """Runs the demo and returns what the board showed last. Ctrl-C is the usual way to end it."""
    board = Board()
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal must not leave a broker behind
        signal.signal(number, signal.default_int_handler)
    with ExitStack() as stack:
        address = options.bootstrap or stack.enter_context(_broker())
        comet.run(ensure_topic(address))
        stack.enter_context(_process(_feed_command(address, options)))
        with suppress(KeyboardInterrupt):  # how a person ends the demo; the processes end with the block
            comet.run(_watch(board, address, options))
    return board


async def _watch(board: Board, address: str, options: Options) -> None:
    """Whichever ends first ends both: the table with the time, the consumer with an error."""
    title = f"Comet demo: synthetic quotes through {address} (Ctrl-C ends)"
    following = asyncio.ensure_future(follow(board, address))
    showing = asyncio.ensure_future(show(board, title=title, duration_s=options.duration_s, quiet=options.quiet))
    try:
        done, _ = await asyncio.wait({following, showing}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (following, showing):
            task.cancel()
        await asyncio.gather(following, showing, return_exceptions=True)


def _feed_command(address: str, options: Options) -> list[str]:
    command = ["comet_demo.feed", "--bootstrap", address, "--rate", str(options.rate)]
    return command if options.seed is None else [*command, "--seed", str(options.seed)]


@contextmanager
def _broker() -> Iterator[str]:
    """A broker with its defaults on a temporary folder. Yields its address once it takes requests."""
    with _process(["comet.cli", "up", "--ephemeral", "--port", "0", "--no-gateway", "--json"]) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise comet.Unavailable(f"the broker ended with code {process.wait()} before it was up")
        yield json.loads(line)["address"]


@contextmanager
def _process(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """In a session of its own, so that Ctrl-C reaches us alone and we end the others in order."""
    with subprocess.Popen(  # noqa: S603 - our own modules
        [sys.executable, "-m", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
