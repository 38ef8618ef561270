"""Starts and ends the demo: a broker with its gateway, a feed, a sample workload, a paper trader and the Spark job,
each a process; the table in this one."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import comet
from comet_demo import runtime
from comet_demo.feed import ensure_topics
from comet_demo.processes.crew import ENDINGS, Crew, Member
from comet_demo.processes.restart_policy import RestartPolicy
from comet_demo.terminal.consumer import follow, follow_job, show
from comet_demo.terminal.quote_table import QuoteTable

GATEWAY_PORT: Final = 8080
LOCALHOST: Final = "127.0.0.1"
BOTH: Final = (LOCALHOST, "::1")  # both addresses that a browser may resolve localhost to
ANSWER_S: Final = 0.5
CHECK_EVERY_S: Final = 0.5
AGAIN_S: Final = 1.0
NO_GATEWAY: Final = "no gateway: "  # so `comet up` begins the line with the reason
BROKER: Final = "broker"
SPARK: Final = "spark"
FEED: Final = "feed"


class Started(NamedTuple):
    """The broker's address and the dashboard's URL, or the reason why it is missing."""

    address: str
    url: str = ""
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    rate: float = 1000.0
    seed: int | None = None
    provider: str = "synthetic"
    symbols: str = ""  # separated by commas; empty: the provider's default
    file: str = ""  # to replay
    pace: float | None = None  # of the file
    duration_s: float | None = None  # None: until Ctrl-C
    bootstrap: str | None = None  # None: starts a broker, with a gateway and all processes
    gateway_port: int = GATEWAY_PORT  # another if it is in use; 0: any
    spark: bool | None = None  # None: if the demo starts the broker
    parquet: Path | None = None  # the folder for one-minute bars
    quiet: bool = False  # show nothing


def run(options: Options) -> QuoteTable:
    """Runs the demo and returns the last state of the table. Ctrl-C ends it."""
    quote_table = QuoteTable()
    for number in set(ENDINGS) - {signal.SIGINT}:  # a closed terminal must not leave a broker behind
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt), Crew() as crew:  # the normal end of the demo and its processes
        try:
            _start_and_watch(quote_table, crew, options)
        finally:
            for number in ENDINGS:  # once is enough
                signal.signal(number, signal.SIG_IGN)
    return quote_table


def _start_and_watch(quote_table: QuoteTable, crew: Crew, options: Options) -> None:
    own = options.bootstrap is None
    at = _broker(crew, options.gateway_port) if own else Started(options.bootstrap or "")
    comet.run(ensure_topics(at.address))
    to = ["--bootstrap", at.address]
    crew.start(FEED, "comet_demo.feed", [*to, *_market(options)])
    if own:
        _print(f"Quotes are at {at.url}quotes" if at.url else f"No dashboard. {at.lacks}")
    if own:
        crew.start("life", "comet_demo.sample_workload", [*to, *_seed(options)])
        crew.start("paper", "comet_demo.paper_trading", to)
    if options.spark or (own and options.spark is None):
        _spark(quote_table, crew, at, options)
    comet.run(_watch(quote_table, crew, at, options))


def _spark(quote_table: QuoteTable, crew: Crew, at: Started, options: Options) -> None:
    lacking = runtime.missing()
    if lacking is not None:
        quote_table.analytics.note = f"no analytics: {lacking}"
        _print(f"No analytics. {lacking}")
        return
    arguments = ["--bootstrap", at.address, "--checkpoint", str(crew.temporary / "checkpoint"), "--parallelism", "1"]
    if options.parquet is not None:
        arguments += ["--parquet", str(options.parquet.resolve())]
    member = crew.start(SPARK, "comet_demo.analytics.spark_job", arguments)
    _print(f"Spark is starting; its log is {member.log}")


def _market(options: Options) -> list[str]:
    """The arguments of the feed."""
    arguments = ["--provider", options.provider, "--rate", str(options.rate), *_seed(options)]
    for name, value in (("symbols", options.symbols), ("file", options.file), ("pace", options.pace)):
        if value not in ("", None):
            arguments += [f"--{name}", str(value)]
    return arguments


def _seed(options: Options) -> list[str]:
    return [] if options.seed is None else ["--seed", str(options.seed)]


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - what a terminal program does


async def _watch(quote_table: QuoteTable, crew: Crew, at: Started, options: Options) -> None:
    """Runs the table and the supervision of processes. The end of either ends both: the table at its end, the
    supervision with an error."""
    where = f"{at.url}quotes" if at.url else at.address
    title = f"Comet demo: {options.provider} quotes, {where} (Ctrl-C ends)"
    work: tuple[Coroutine[Any, Any, None], ...] = (
        _again_and_again(quote_table, at.address, follow),
        _again_and_again(quote_table, at.address, follow_job),
        _supervise(quote_table, crew),
        show(quote_table, title=title, duration_s=options.duration_s, quiet=options.quiet),
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


async def _again_and_again(
    quote_table: QuoteTable, address: str, work: Callable[[QuoteTable, str], Awaitable[None]]
) -> None:
    """Runs the work again after each error, and creates deleted topics again."""
    while True:
        try:
            await work(quote_table, address)
        except comet.CometError as error:
            quote_table.notes[work.__name__] = error.message
        await asyncio.sleep(AGAIN_S)
        with suppress(comet.CometError):
            await ensure_topics(address)
        quote_table.notes.pop(work.__name__, None)


async def _supervise(quote_table: QuoteTable, crew: Crew) -> None:
    """Restarts ended processes and notes under the table how they ended, since their logs are out of sight. The end of
    the broker, or a failure of the feed, ends the demo."""
    policy = RestartPolicy(quote_table.notes)
    quote_table.heard_us = time.time_ns() // 1000  # the wait for quotes begins
    while True:
        now = time.monotonic()
        for member in crew.ended():
            code = member.process.returncode
            if member.name == BROKER or (member.name == FEED and code):
                raise _over(f"{member.name} ended with code {code}: {member.last_words()}", member)
            if member.name == SPARK:
                crew.keep = True
            if member.name != FEED and policy.due(member.name, now, f"code {code}, {_reason(member)}"):
                crew.again(member)
        policy.update(now)
        feed = crew.named(FEED)
        quote_table.feed_line = (
            feed.last_line().removeprefix(f"{feed.module}: ") if quote_table.silent_us(time.time_ns() // 1000) else ""
        )
        await asyncio.sleep(CHECK_EVERY_S)


def _over(message: str, member: Member) -> comet.Unavailable:
    alone = "comet up" if member.name == BROKER else f"python -m {member.module} --help"
    return comet.Unavailable(message, details={"hint": f"run it alone to see the error: {alone}"})


def _reason(member: Member) -> str:
    return f"its log is {member.log}" if member.name == SPARK else member.last_words()


def _broker(crew: Crew, gateway_port: int) -> Started:
    """Starts a broker with its defaults on a temporary folder, and its gateway; returns once they take requests."""
    port = gateway_port if gateway_port and _free(gateway_port) else 0
    arguments = ["up", "--ephemeral", "--port", "0", "--gateway-port", str(port), "--json"]
    member = crew.start(BROKER, "comet.cli", arguments, piped=True)
    assert member.process.stdout is not None
    line = member.process.stdout.readline()
    if not line:
        code = member.process.wait()
        raise _over(f"the broker ended with code {code} before it was up: {member.last_words()}", member)
    answer = json.loads(line)
    if answer["gateway"] is None:
        return Started(answer["address"], lacks=member.last_line(NO_GATEWAY) or member.last_words())
    return Started(answer["address"], f"{answer['gateway'].replace(LOCALHOST, 'localhost')}/")


def _free(port: int) -> bool:
    """Whether localhost at this port is free in both address families. A bind alone does not tell: another program may
    answer in the other family, and on some systems a bind succeeds beside a socket on all addresses."""
    for host in BOTH:
        with suppress(OSError), socket.create_connection((host, port), timeout=ANSWER_S):
            return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True
