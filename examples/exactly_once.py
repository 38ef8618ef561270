"""Exactly once: the handler's records and its offset are committed together, or not at all.

A reader of "totals" sees each order counted once, also if processes were killed. The handler itself may be called
more than once for a record; only records that it sends through the app count once.

Start a broker with `comet up`, make the topics with `comet topic create orders` and `comet topic create totals`, then
run this file, in as many processes as you like. Ctrl-C ends it.
"""

from __future__ import annotations

import sys

import comet

TRY = """echo '{"customer": "c1", "pieces": 2, "price": 2.5}' | comet produce orders
comet consume totals --from earliest --count 1"""


@comet.model
class Order:
    customer: str
    pieces: int
    price: float


app = comet.App(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092")


@app.on("orders", group="billing", delivery="exactly_once", start="earliest")
async def total(record: comet.Record[Order]) -> None:
    order = record.value
    await app.send("totals", {"customer": order.customer, "total": order.pieces * order.price}, key=record.key)


if __name__ == "__main__":
    sys.stderr.write(f"waiting for records; write one in another terminal:\n{TRY}\n")
    app.run()
