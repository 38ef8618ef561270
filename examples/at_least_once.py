"""At least once, the default: the offset is committed after the handler's success, so no record is missed.

For work that may be done twice without harm, such as setting a value. The handler is called again when it raises, three
times, and then the record goes to a dead-letter topic, as it was, with the reason in its headers. Four run at once, one
at a time for each account.

Start a broker with `comet up`, make the topics with `comet topic create balances` and
`comet topic create balances-failed`, then run this file, in as many processes as you like. Ctrl-C ends it.
"""

from __future__ import annotations

import sys

import comet

TRY = """echo 'a1|{"account": "a1", "amount": 10}' | comet produce balances --key-separator '|'"""


@comet.model
class Balance:
    account: str
    amount: float


app = comet.App(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092")
balances: dict[str, float] = {}


@app.on("balances", group="ledger", start="earliest", retries=3, dead_letter="balances-failed", concurrency=4)
async def store(balance: Balance) -> None:
    if balance.amount < 0:
        raise ValueError(f"{balance.account} is overdrawn")
    balances[balance.account] = balance.amount
    sys.stdout.write(f"{balance.account} has {balance.amount}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.stderr.write(f"waiting for records; write one in another terminal:\n{TRY}\n")
    app.run()
