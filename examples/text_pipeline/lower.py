"""The transformer: lines in lower case, exactly once.

Run it in as many processes as you like. With a name as its second argument it may be killed and started again within
ten seconds without losing its partitions.

    python lower.py [BROKER] [NAME]
"""

from __future__ import annotations

import sys

import topics

import comet

address, name = (*sys.argv[1:], *("localhost:9092", "")[len(sys.argv) - 1 :])
app = comet.App(address, name=name)


@app.on("lines", group="lower", delivery="exactly_once", start="earliest", instance=name)
async def lower(line: comet.Record[str]) -> None:
    await app.send("lowered", line.value.lower(), key=line.key, headers=line.headers)


if __name__ == "__main__":
    comet.run(topics.make(address, "lines", "lowered"))
    app.run()
