"""Starts the whole demo: a broker with its gateway, a feed, groups that work, a paper trader and the Spark job, as
processes of their own; the table here. Ends all of it again."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import comet
from comet_demo import runtime
from comet_demo.board import Board
from comet_demo.consumer import follow, follow_job, show
from comet_demo.crew import Crew, Member
from comet_demo.feed import ensure_topics

GATEWAY_PORT: Final = 8080
LOCALHOST: Final = "127.0.0.1"
LOOK_S: Final = 0.5
SPARK: Final = "spark"
FEED: Final = "feed"


class Started(NamedTuple):
    """Where the broker is, and where the dashboard, if there is one."""

    address: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    rate: float = 1000.0
    seed: int | None = None
    provider: str = "synthetic"
    symbols: str = ""  # with commas between; the provider's usual ones
    file: str = ""  # to replay
    pace: float | None = None  # of the file
    duration_s: float | None = None  # None: until Ctrl-C
    bootstrap: str | None = None  # None: a broker of its own, with a gateway and all that works on the quotes
    gateway_port: int = GATEWAY_PORT  # another where somebody has it; 0: any
    spark: bool | None = None  # None: with a broker of its own
    parquet: Path | None = None  # where bars of a minute are kept
    quiet: bool = False  # show nothing


def run(options: Options) -> Board:
    """Runs the demo and returns what the board showed last. Ctrl-C is the usual way to end it."""
    board = Board()
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal must not leave a broker behind
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt), Crew() as crew:  # how a person ends the demo; the processes end with it
        try:
            _start_and_watch(board, crew, options)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # once is enough
                signal.signal(number, signal.SIG_IGN)
    return board


def _start_and_watch(board: Board, crew: Crew, options: Options) -> None:
    own = options.bootstrap is None
    at = _broker(crew, options.gateway_port) if own else Started(options.bootstrap or "")
    comet.run(ensure_topics(at.address))
    to = ["--bootstrap", at.address]
    crew.start(FEED, "comet_demo.feed", [*to, *_market(options)])
    if at.url:
        _say(f"Quotes are at {at.url}quotes")
    if own:
        crew.start("life", "comet_demo.life", [*to, *_seed(options)])
        crew.start("paper", "comet_demo.paper", to)
    if options.spark or (own and options.spark is None):
        _spark(board, crew, at, options)
    comet.run(_watch(board, crew, at, options))


def _spark(board: Board, crew: Crew, at: Started, options: Options) -> None:
    lacking = runtime.missing()
    if lacking is not None:
        board.analytics.note = f"no analytics: {lacking}"
        _say(f"There are no analytics. {lacking}")
        return
    arguments = ["--bootstrap", at.address, "--checkpoint", str(crew.folder / "checkpoint"), "--parallelism", "1"]
    if options.parquet is not None:
        arguments += ["--parquet", str(options.parquet.resolve())]
    member = crew.start(SPARK, "comet_demo.spark_job", arguments)
    _say(f"Spark is starting; its log is {member.log}")


def _market(options: Options) -> list[str]:
    """What the feed is told."""
    told = ["--provider", options.provider, "--rate", str(options.rate), *_seed(options)]
    for name, value in (("symbols", options.symbols), ("file", options.file), ("pace", options.pace)):
        if value not in ("", None):
            told += [f"--{name}", str(value)]
    return told


def _seed(options: Options) -> list[str]:
    return [] if options.seed is None else ["--seed", str(options.seed)]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - what a terminal program does


async def _watch(board: Board, crew: Crew, at: Started, options: Options) -> None:
    """Whichever ends first ends all: the table with the time, what follows with an error."""
    where = f"{at.url}quotes" if at.url else at.address
    title = f"Comet demo: {options.provider} quotes, {where} (Ctrl-C ends)"
    work: tuple[Coroutine[Any, Any, None], ...] = (
        follow(board, at.address),
        follow_job(board, at.address),
        _look_after(board, crew),
        show(board, title=title, duration_s=options.duration_s, quiet=options.quiet),
    )
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _look_after(board: Board, crew: Crew) -> None:
    """Nobody sees what is in the files of processes: that one has ended is told with its last words."""
    told: set[str] = set()
    while True:
        for member in crew.ended():
            if member.name not in told:
                told.add(member.name)
                _note(board, crew, member)
        await asyncio.sleep(LOOK_S)


def _note(board: Board, crew: Crew, member: Member) -> None:
    code = member.process.returncode
    if member.name == SPARK:
        crew.keep = True
        board.analytics.note = f"no analytics: the Spark job ended with code {code}, its log is {member.log}"
    elif code or member.name != FEED:  # a file may come to its end
        raise comet.Unavailable(f"{member.name} ended with code {code}: {member.said()}")


def _broker(crew: Crew, gateway_port: int) -> Started:
    """A broker with its defaults on a temporary folder, and its gateway; once they take requests."""
    port = gateway_port if gateway_port and _free(gateway_port) else 0
    arguments = ["up", "--ephemeral", "--port", "0", "--gateway-port", str(port), "--json"]
    member = crew.start("broker", "comet.cli", arguments, tells=True)
    assert member.process.stdout is not None
    line = member.process.stdout.readline()
    if not line:
        raise comet.Unavailable(f"the broker ended with code {member.process.wait()} before it was up: {member.said()}")
    told = json.loads(line)
    url = (told["gateway"] or "").replace(LOCALHOST, "localhost")
    return Started(told["address"], f"{url}/" if url else "")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True
