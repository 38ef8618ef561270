"""The terminal consumer: reads quotes as they arrive and draws the table, or prints a line a second in a pipe."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final

import comet
from comet_demo.model import JOB, TOPIC, Quote, now_us, quotes_of
from comet_demo.terminal.quote_table import QuoteRow, QuoteTable

if TYPE_CHECKING:
    from rich.table import Table

MEASURE_EVERY_S: Final = 1.0
DRAWS_PER_S: Final = 8
FIRST_QUOTE_S: Final = 30.0  # that the first quote may take to arrive
COLUMNS: Final = ("last", "change", "bid", "ask", "spread bp", "volume", "trades/s", "events/s")


async def follow(quote_table: QuoteTable, bootstrap: str) -> None:
    """Feeds the table with all quotes from now on, until it is cancelled."""
    # Records that retention or a purge deletes do not matter for a table of the latest quotes.
    async with comet.Consumer(bootstrap, TOPIC, start="latest", type=Quote, on_out_of_range="latest") as consumer:
        async for batch in consumer.batches():
            arrived_us = now_us()
            for quote in quotes_of(batch):
                quote_table.apply(quote, arrived_us)


async def follow_job(quote_table: QuoteTable, bootstrap: str) -> None:
    """Feeds the table with the status records of the Spark job."""
    async with comet.Consumer(bootstrap, JOB, start="latest", type=dict, on_out_of_range="earliest") as consumer:
        while True:
            with suppress(comet.SerdeError):  # not a status record; reading continues after it
                quote_table.analytics.apply((await anext(consumer)).value)


async def show(quote_table: QuoteTable, *, title: str, duration_s: float | None, quiet: bool = False) -> None:
    """Shows the table for the given time from the first quote on, or until it is cancelled."""
    from rich.live import Live

    loop = asyncio.get_running_loop()
    began = started = measured = loop.time()
    drawn = not quiet and sys.stdout.isatty()
    with Live(auto_refresh=False, screen=True) if drawn else nullcontext() as live:
        while duration_s is None or loop.time() - started < duration_s:
            await asyncio.sleep(1 / DRAWS_PER_S)
            if not quote_table.events and loop.time() - began < FIRST_QUOTE_S:
                started = loop.time()
            if (now := loop.time()) - measured >= MEASURE_EVERY_S:
                quote_table.measure(now - measured)
                measured = now
                if not drawn and not quiet:
                    print(quote_table.summary(now_us()), flush=True)  # noqa: T201 - what a terminal program does
            if live is not None:
                live.update(draw(quote_table, title), refresh=True)


def draw(quote_table: QuoteTable, title: str) -> Table:
    """The quotes as a table of rich."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # As Text: symbols and texts of other programs must not be read as markup.
    heading, caption = Text(title, "table.title"), Text(quote_table.summary(now_us()), "table.caption")
    table = Table(box=box.SIMPLE_HEAD, title=heading, title_justify="left", caption=caption)
    table.add_column("symbol", style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for symbol in sorted(quote_table.lines):
        table.add_row(Text(symbol), *_cells(quote_table.lines[symbol]))
    return table


def _cells(line: QuoteRow) -> list[str]:
    quote = line.quote
    colour = {1: "green", -1: "red", 0: "default"}[line.direction]
    change = "green" if line.change > 0 else "red" if line.change < 0 else "default"
    return [
        f"[{colour}]{quote.last:,.2f}[/]",
        f"[{change}]{line.change:+.2%}[/]",
        f"{quote.bid:,.2f}",
        f"{quote.ask:,.2f}",
        f"{(quote.ask - quote.bid) / quote.ask * 1e4:.1f}",
        f"{line.volume:,}",
        f"{line.trades_per_s:,.0f}",
        f"{line.events_per_s:,.0f}",
    ]
