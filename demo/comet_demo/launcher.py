"""Starts and ends the demo: a broker with its gateway, a feed, a sample workload, a paper trader and the Spark job,
each a process; the table in this one. Where Spark is missing, a process installs it before its job starts."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import comet
from comet.processes.child import Child, ChildEnded
from comet.processes.crew import STOP_S, Crew
from comet.processes.keeper import Keeper, KeeperEvent
from comet.processes.ports import LOCALHOST, unused
from comet.processes.program import until_first_ends
from comet.processes.restart_policy import Schedule
from comet.processes.signals import STOP_SIGNALS, held_back
from comet_demo.model import ensure_topics, now_us
from comet_demo.spark_setup.start import SPARK, SparkStart
from comet_demo.terminal.consumer import follow, follow_job, show
from comet_demo.terminal.quote_table import QuoteTable

BROKER_S_MAX: Final = 120.0  # for the broker and its gateway to start
CHECK_EVERY_S: Final = 0.5
AGAIN_S: Final = 1.0
RESTARTS: Final = Schedule(pauses_s=(1.0, 2.0, 5.0, 10.0, 30.0), calm_s=60.0, endless=False)
NO_GATEWAY: Final = "no gateway: "  # so `comet up` begins the line with the reason
# For processes to end by themselves: Spark takes seconds, and what it would tidy up is deleted anyway.
HURRY_S: Final = 1.0
FEED: Final = "comet_demo.feed"


class Started(NamedTuple):
    """The broker's address and the dashboard's URL, or the reason why it is missing."""

    address: str
    url: str = ""
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    market: Mapping[str, Any]  # options of the feed, by name; None: its default
    duration_s: float | None  # None: until Ctrl-C
    bootstrap: str | None  # None: starts a broker, with a gateway and all processes
    gateway_port: int  # another if it is in use; 0: any
    spark: bool | None  # None: if the demo starts the broker
    install_spark: Sequence[str]  # the command that installs Spark if it is missing; empty: none
    parquet: Path | None  # the folder for one-minute bars
    quiet: bool  # show nothing


def run(options: Options) -> QuoteTable:
    """Runs the demo and returns the last state of the table. Ctrl-C ends it."""
    quote_table = QuoteTable()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's script ignores it for what it starts with &
    for number in set(STOP_SIGNALS) - {signal.SIGINT}:  # a closed terminal must not leave a broker behind
        signal.signal(number, _as_ctrl_c)
    stop_s = STOP_S if options.parquet else HURRY_S
    crew = Crew("comet-demo-", "SPARK_LOCAL_DIRS", stop_s=stop_s)
    with suppress(KeyboardInterrupt), crew:  # the normal end of the demo and its processes
        try:
            _start_and_watch(quote_table, crew, options)
        finally:
            for number in STOP_SIGNALS:  # once is enough
                signal.signal(number, signal.SIG_IGN)
    if quote_table.without_spark:  # the table that said so is gone
        _print(quote_table.without_spark)
    if not crew.keep:
        _print("Stopped. The data was in a temporary folder, which is deleted.")
    return quote_table


def _as_ctrl_c(number: int, frame: object) -> None:
    """Ctrl-C cancels what runs on an event loop. An exception would come out of the callback that runs just then, and
    uvloop takes one out of a transport for the end of its connection."""
    del number, frame
    signal.raise_signal(signal.SIGINT)


def _start_and_watch(quote_table: QuoteTable, crew: Crew, options: Options) -> None:
    own = options.bootstrap is None
    broker, at = _broker(crew, options.gateway_port) if own else (None, Started(options.bootstrap or ""))
    comet.run(ensure_topics(at.address))
    feed = crew.start("feed", FEED, *_flags(bootstrap=at.address, **options.market))
    others: list[Child] = []  # restarted when they end
    if own:
        _print(f"Dashboard: {at.url}\nPrices:    {at.url}quotes" if at.url else f"No dashboard. {at.lacks}")
        seeded = _flags(bootstrap=at.address, seed=options.market["seed"], gateway=at.url or None)
        others.append(crew.start("life", "comet_demo.sample_workload", *seeded))
        others.append(crew.start("paper", "comet_demo.paper_trading", *_flags(bootstrap=at.address)))
    spark = None
    if options.spark or (own and options.spark is None):
        parquet = options.parquet and options.parquet.resolve()
        flags = _flags(bootstrap=at.address, checkpoint=crew.temporary / "checkpoint", parallelism=1, parquet=parquet)
        spark = SparkStart(crew, quote_table, at.address, flags, options.install_spark, _print)
        spark.begin()
    comet.run(_watch(Supervision(quote_table, crew, broker, feed, others, spark), at, options))


def _flags(**values: object) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - what a terminal program does


async def _watch(supervision: Supervision, at: Started, options: Options) -> None:
    """Runs the table and the supervision of processes: the table ends in time, the supervision with an error."""
    quote_table = supervision.quote_table
    where = f"dashboard at {at.url}" if at.url else f"broker at {at.address}"
    title = f"Comet demo: {options.market['provider']} quotes, {where} (Ctrl-C ends)"
    await until_first_ends(
        _again_and_again(quote_table, at.address, follow),
        _again_and_again(quote_table, at.address, follow_job),
        supervision.run(),
        show(quote_table, title=title, duration_s=options.duration_s, quiet=options.quiet),
    )


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


class Supervision:
    """Restarts ended processes and notes under the table how they ended, since their logs are out of sight. The end of
    the broker, or a failure of the feed, ends the demo."""

    def __init__(
        self,
        quote_table: QuoteTable,
        crew: Crew,
        broker: Child | None,
        feed: Child,
        others: list[Child],
        spark: SparkStart | None,
    ) -> None:
        self.quote_table = quote_table
        self._crew = crew
        self._broker = broker
        self._feed = feed
        self._spark = spark
        self._keeper = Keeper(others, RESTARTS, self._note)

    async def run(self) -> None:
        self.quote_table.heard_us = now_us()  # the wait for quotes begins
        while True:
            self.check(time.monotonic(), now_us())
            await asyncio.sleep(CHECK_EVERY_S)

    def check(self, now: float, now_us: int) -> None:
        if self._broker is not None and self._broker.ended is not None:
            raise _over(self._broker.ended_early())
        if self._feed.ended:
            raise _over(self._feed.ended_early(), f"python -m {FEED} --help")
        if self._spark is not None and (job := self._spark.check()) is not None:
            self._keeper.children.append(job)
        with held_back():
            self._keeper.check(now)
        lines = self._feed.last_lines() if self.quote_table.silent_us(now_us) else []
        self.quote_table.feed_line = lines[-1].removeprefix(f"{FEED}: ") if lines else ""

    def _note(self, event: KeeperEvent) -> None:
        child, notes = event.child, self.quote_table.notes
        if event.kind == "recovered":
            notes.pop(child.name, None)
        if event.kind not in {"ended", "given up"}:
            return
        if child.name == SPARK:
            self._crew.keep = True
        how = "ended, restarting" if event.kind == "ended" else "keeps ending, not restarted"
        reason = f"its log is {child.log}" if child.name == SPARK else child.last_line()
        notes[child.name] = f"{child.name} {how}: code {child.ended}, {reason}"


def _over(error: comet.CometError, alone: str = "comet up") -> comet.Unavailable:
    return comet.Unavailable(error.message, details={"hint": f"run it alone to see the error: {alone}"})


def _broker(crew: Crew, gateway_port: int) -> tuple[Child, Started]:
    """Starts a broker with its defaults on a temporary folder, and its gateway; returns once they take requests."""
    port = gateway_port if gateway_port and unused(gateway_port) else 0
    _print("Starting a broker with its gateway")
    if port != gateway_port:
        _print(f"Port {gateway_port} is in use, so the dashboard gets another; --gateway-port chooses one")
    arguments = ("up", "--ephemeral", "--port", "0", "--gateway-port", str(port), "--json")
    broker = crew.start("broker", "comet.cli", *arguments, piped=True, tier=0)  # the others need it until they end
    try:
        answer = json.loads(broker.line(BROKER_S_MAX))
    except ChildEnded as error:
        raise _over(error) from None
    if answer["gateway"] is None:
        return broker, Started(answer["address"], lacks=[*broker.last_lines(NO_GATEWAY), broker.last_line()][0])
    return broker, Started(answer["address"], f"{answer['gateway'].replace(LOCALHOST, 'localhost')}/")
