"""At most once: the offset is committed before the handler is called, so no record is handled twice.

For effects that are worse twice than not at all, such as a text message. Records under way when the process dies are
lost: up to 100, which were committed ahead.

Start a broker with `comet up`, make the topic with `comet topic create alerts`, then run this file. Ctrl-C ends it.
"""

from __future__ import annotations

import sys

import comet

TRY = """echo '{"phone": "555-1", "text": "hello"}' | comet produce alerts"""


@comet.model
class Alert:
    phone: str
    text: str


app = comet.App(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092")


@app.on("alerts", group="texting", delivery="at_most_once", start="earliest", on_error="skip")
async def text(alert: Alert) -> None:
    sys.stdout.write(f"to {alert.phone}: {alert.text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.stderr.write(f"waiting for records; write one in another terminal:\n{TRY}\n")
    app.run()
