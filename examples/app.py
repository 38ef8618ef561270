"""Handlers for topics: one decodes quotes and publishes a signal, one counts whole batches.

Start a broker with `comet up`, make the topics with `comet topic create quotes` and `comet topic create signals`,
then run this file, and examples/quotes.py beside it. Ctrl-C ends it in good order.
"""

from __future__ import annotations

import sys

import comet


@comet.model
class Quote:
    symbol: str
    bid: float
    ask: float


@comet.model
class Signal:
    symbol: str
    spread: float


app = comet.App(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092")


@app.on("quotes", start="earliest")
async def watch(record: comet.Record[Quote]) -> None:
    quote = record.value
    await app.publish("signals", Signal(quote.symbol, quote.ask - quote.bid), key=record.key)


@app.on("signals", start="earliest")
async def count(signals: list[Signal]) -> None:
    sys.stdout.write(f"{len(signals)} signals, the last for {signals[-1].symbol}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    app.run()
