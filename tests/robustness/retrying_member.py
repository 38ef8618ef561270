"""`python -m tests.robustness.retrying_member ADDRESS NOTES`: a handler with delayed retries, as a process.

It fails with each record until its third round, and then appends the record to NOTES, a line at a time and with
`os.write`, so that a kill -9 takes nothing of it.
"""

from __future__ import annotations

import os
import sys

import comet

TOPIC = "orders"
RETRIES = "orders-retry"
DELAYS = (0.2, 0.4)


def main(address: str, path: str) -> None:
    notes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    app = comet.App(address)

    @app.on(
        TOPIC, group="g", start="earliest", retry_topic=RETRIES, retry_delays=DELAYS, dead_letter="failed",
        session_timeout_ms=3_000,
    )  # fmt: skip
    async def handle(record: comet.Record[bytes]) -> None:
        if dict(record.headers).get("comet-retry-round") != b"2":
            raise ZeroDivisionError("not yet")
        os.write(notes, (record.value or b"") + b"\n")

    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
