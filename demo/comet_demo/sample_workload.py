"""A sample workload beside the quotes, so that every page of the dashboard has data.

    python -m comet_demo.sample_workload

orders ──► matching       two members, which keep up
       ├─► audit          slower than the orders come: it falls behind
       └─► settlement     a share group; orders that it cannot settle become dead letters in orders.dead
quotes ──► reports        works in bursts: its lag goes up and down
orders ──► an alert       at the gateway: more large purchases than usual
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from itertools import count
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import comet
from comet.processes.program import run, until_stopped
from comet_demo.model import DEAD_ORDERS, INSTRUMENTS, ORDERS, TOPIC, Order, ensure_topics, now_us

ORDERS_PER_S: Final = 20.0
AUDIT_SHARE: Final = 0.85  # of the orders' rate
NAP_S: Final = 30.0
KEEP_S: Final = 10.0
ATTEMPTS_MAX: Final = 3
AGAIN_MS: Final = 400
EMPTY_SHARE: Final = 0.01  # of all orders, with size 0
LARGE_SHARE: Final = 0.005  # too large to settle
LARGE: Final = 1_000_000
# Three large purchases a minute are usual, so it fires now and then.
ALERT: Final[dict[str, Any]] = {
    "name": "many large purchases",
    "kind": "count",
    "topic": ORDERS,
    "filter": f"side = buy && quantity >= {LARGE}",
    "threshold": 3,
    "window_s": 60,
    "severity": "warning",
    "channels": [{"type": "browser"}],
}
GATEWAY_S: Final = 3.0  # for an answer

log = logging.getLogger("comet_demo.sample_workload")


class Trader:
    """Makes random orders. Pure but for the random numbers it is given.

    >>> trader = Trader(Random(1))
    >>> [order.id for order in (trader.order(0), trader.order(0))]
    [1, 2]
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ids = count(1)

    def order(self, now_us: int) -> Order:
        random = self._random
        instrument = random.choice(INSTRUMENTS)
        kind = random.random()
        usual = 10 * random.randint(1, 50)
        return Order(
            id=next(self._ids),
            symbol=instrument.symbol,
            side=random.choice(("buy", "sell")),
            quantity=0 if kind < EMPTY_SHARE else LARGE if kind < EMPTY_SHARE + LARGE_SHARE else usual,
            limit=round(instrument.price * random.uniform(0.98, 1.02), 2),
            trader=random.choice(("ada", "grace", "linus", "barbara")),
            timestamp_us=now_us,
        )


async def trade(bootstrap: str, random: Random) -> None:
    trader = Trader(random)
    async with comet.Producer(bootstrap, name="orders") as producer:
        while True:
            order = trader.order(now_us())
            headers = {"source": "demo", "trader": order.trader}
            await producer.send(ORDERS, order, key=order.symbol.encode(), headers=headers)
            await asyncio.sleep(random.expovariate(ORDERS_PER_S))


async def match(bootstrap: str, number: int) -> None:
    async with comet.GroupConsumer(
        bootstrap, ORDERS, group="matching", start="earliest", on_out_of_range="earliest", name=f"matching-{number}"
    ) as orders:
        async for _ in orders.batches():
            pass  # asking for the next batch marks this one as processed


async def audit(bootstrap: str) -> None:
    """Reads records one by one, more slowly than they are written."""
    async with comet.GroupConsumer(
        bootstrap, ORDERS, group="audit", start="earliest", on_out_of_range="earliest", name="audit"
    ) as orders:  # its lag grows while the demo runs, until retention deletes records that it has not read
        async for _ in orders:
            await asyncio.sleep(1 / (ORDERS_PER_S * AUDIT_SHARE))


async def settle(bootstrap: str) -> None:
    async with comet.ShareConsumer(
        bootstrap, ORDERS, group="settlement", type=Order, start="earliest", name="settlement",
        deliveries_max=ATTEMPTS_MAX, dead_letter=DEAD_ORDERS,
    ) as orders:  # fmt: skip
        while True:
            try:
                record = await anext(orders)
            except comet.SerdeError:
                continue  # not an order: rejected, with the reason
            order: Order | None = record.value
            with suppress(comet.LockExpired):  # it was purged meanwhile, or another member has acquired it
                if order is None or order.quantity == 0:
                    await record.reject("an order of size 0")
                elif order.quantity >= LARGE:
                    await record.nack(AGAIN_MS)  # too large: delivered a few times
                else:
                    await record.ack()


async def report(bootstrap: str) -> None:
    """Reads all records, then sleeps, as nightly jobs do."""
    async with comet.GroupConsumer(
        bootstrap, TOPIC, group="reports", start="latest", on_out_of_range="latest", name="reports"
    ) as quotes:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(NAP_S / 3):
                    async for _ in quotes.batches():
                        pass
            await quotes.commit()
            await asyncio.sleep(NAP_S)


async def keep(bootstrap: str) -> None:
    """Creates the dead-letter topic again if it is deleted: without it, dead letters wait at the broker unnoticed."""
    while True:
        await asyncio.sleep(KEEP_S)
        with suppress(comet.CometError):
            await ensure_topics(bootstrap, [DEAD_ORDERS])


async def set_alert(gateway: str) -> None:
    """Creates the alert once the gateway takes it."""
    while True:
        try:
            await asyncio.to_thread(create_alert, gateway)
        except (OSError, HTTPException, ValueError) as error:
            log.warning("the alert cannot be created, retrying: %s", error)
            await asyncio.sleep(KEEP_S)
        else:
            return


def create_alert(gateway: str) -> None:
    """Creates the alert unless one has its name, as `comet alert create` does. Raises OSError, HTTPException,
    ValueError."""
    names = [alert["rule"]["name"] for alert in _answer(gateway, "GET")["items"]]
    if ALERT["name"] not in names:
        _answer(gateway, "POST", json.dumps(ALERT))


def _answer(gateway: str, method: str, body: str | None = None) -> Any:
    with closing(HTTPConnection(urlsplit(gateway).netloc, timeout=GATEWAY_S)) as connection:
        connection.request(method, "/v1/alerts", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    if answer.status not in (200, 201):
        raise ValueError(f"status {answer.status}: {text[:200]!r}")
    return json.loads(text)


async def live(bootstrap: str, random: Random, gateway: str | None = None) -> None:
    """Runs the whole workload until it is cancelled."""
    await ensure_topics(bootstrap, [TOPIC, ORDERS, DEAD_ORDERS])
    async with asyncio.TaskGroup() as group:
        group.create_task(trade(bootstrap, random))
        group.create_task(match(bootstrap, 1))
        group.create_task(match(bootstrap, 2))
        group.create_task(audit(bootstrap))
        group.create_task(settle(bootstrap))
        group.create_task(report(bootstrap))
        group.create_task(keep(bootstrap))
        if gateway is not None:
            group.create_task(set_alert(gateway))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="comet_demo.sample_workload", description="Orders, and groups that work on them."
    )
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--gateway", metavar="URL", help="where the alert is created, such as http://localhost:8080")
    options = parser.parse_args()
    comet.run(until_stopped(live(options.bootstrap, Random(options.seed), options.gateway)))


if __name__ == "__main__":
    run("comet_demo.sample_workload", main)
