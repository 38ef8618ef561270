"""Shared work: any number of workers take single jobs from one topic, also more workers than partitions.

Each job is acquired by one worker, and acknowledged when its handler returns. A worker that dies leaves its jobs to the
others. A job that fails three times goes to the dead-letter topic.

Start a broker with `comet up`, make the topics with `comet topic create jobs` and `comet topic create jobs-failed`,
then run this file, in as many processes as you like. Ctrl-C ends it.
"""

from __future__ import annotations

import asyncio
import os
import sys

import comet

TRY = """echo '{"number": 1, "takes_ms": 20}' | comet produce jobs"""


@comet.model
class Job:
    number: int
    takes_ms: int


app = comet.App(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092")


@app.on("jobs", group="workers", shared=True, start="earliest", retries=2, dead_letter="jobs-failed", concurrency=8)
async def work(job: Job) -> None:
    await asyncio.sleep(job.takes_ms / 1000)
    if job.takes_ms < 0:
        raise ValueError("nothing takes less than no time")
    sys.stdout.write(f"job {job.number} done by {os.getpid()}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.stderr.write(f"waiting for records; write one in another terminal:\n{TRY}\n")
    app.run()
