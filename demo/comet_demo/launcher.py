"""Starts the whole demo: a broker with its gateway, a feed, and groups that work, as processes of their own; the table
here. Ends all of it again."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import comet
from comet_demo.board import Board
from comet_demo.consumer import follow, show
from comet_demo.feed import ensure_topic

STOP_TIMEOUT_S: Final = 10
GATEWAY_PORT: Final = 8080
LOCALHOST: Final = "127.0.0.1"


class Started(NamedTuple):
    """Where the broker is, and where the dashboard, if there is one."""

    address: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    rate: float = 1000.0
    seed: int | None = None
    duration_s: float | None = None  # None: until Ctrl-C
    bootstrap: str | None = None  # None: a broker of its own, with a gateway and groups that work
    gateway_port: int = GATEWAY_PORT  # another where somebody has it; 0: any
    quiet: bool = False  # show nothing


def run(options: Options) -> Board:
    """Runs the demo and returns what the board showed last. Ctrl-C is the usual way to end it."""
    board = Board()
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal must not leave a broker behind
        signal.signal(number, signal.default_int_handler)
    with ExitStack() as stack, suppress(KeyboardInterrupt):  # how a person ends the demo; the processes end with it
        own = options.bootstrap is None
        at = stack.enter_context(_broker(options.gateway_port)) if own else Started(options.bootstrap or "")
        comet.run(ensure_topic(at.address))
        stack.enter_context(_process(_seeded(["comet_demo.feed", "--rate", str(options.rate)], at, options)))
        if own:
            stack.enter_context(_process(_seeded(["comet_demo.life"], at, options)))
        if at.url:
            print(f"The dashboard is at {at.url}", file=sys.stderr, flush=True)  # noqa: T201 - what a person looks for
        comet.run(_watch(board, at, options))
    return board


async def _watch(board: Board, at: Started, options: Options) -> None:
    """Whichever ends first ends both: the table with the time, the consumer with an error."""
    where = at.url or at.address
    title = f"Comet demo: synthetic quotes, {where} (Ctrl-C ends)"
    following = asyncio.ensure_future(follow(board, at.address))
    showing = asyncio.ensure_future(show(board, title=title, duration_s=options.duration_s, quiet=options.quiet))
    try:
        done, _ = await asyncio.wait({following, showing}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (following, showing):
            task.cancel()
        await asyncio.gather(following, showing, return_exceptions=True)


def _seeded(command: list[str], at: Started, options: Options) -> list[str]:
    command = [*command, "--bootstrap", at.address]
    return command if options.seed is None else [*command, "--seed", str(options.seed)]


@contextmanager
def _broker(gateway_port: int) -> Iterator[Started]:
    """A broker with its defaults on a temporary folder, and its gateway. Yields once they take requests."""
    port = gateway_port if gateway_port and _free(gateway_port) else 0
    command = ["comet.cli", "up", "--ephemeral", "--port", "0", "--gateway-port", str(port), "--json"]
    with _process(command) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise comet.Unavailable(f"the broker ended with code {process.wait()} before it was up")
        told = json.loads(line)
        url = (told["gateway"] or "").replace(LOCALHOST, "localhost")
        yield Started(told["address"], f"{url}/" if url else "")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True


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
