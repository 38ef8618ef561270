"""`comet bench traces`: the same work without OpenTelemetry, without a provider, and with 1 % of the traces sampled.

    absent      OpenTelemetry cannot be imported
    off         it was imported, and no tracer provider is set
    program     a provider that samples 1 % of the traces: the program makes spans, Comet none
    sampled     the same, and Comet makes spans

Each round measures all in turn at one broker, on topics of their own. What is read was written by the same variant.
`share` is of the processor's time, which other load on the machine changes less than it does rates. The figures are
explained in docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from comet_bench.broker.broker_bench import RECORD_BYTES, create_topics, delete_topics
from comet_bench.harness import Progress, Report, Subject, Subjects, Suite, compared, run_compared
from comet_bench.processes import Broker, Worker, given_broker, own_broker
from comet_bench.report import Result

VARIANTS: Final = ("absent", "off", "program", "sampled")

ROWS: Final = {
    "absent": "without OpenTelemetry",
    "off": "no tracer provider",
    "program": "spans of the program alone",
    "sampled": "spans of Comet as well, 1 % sampled",
}


@dataclass(frozen=True, slots=True)
class TraceSizes:
    """The amount of work of a run."""

    sent: int
    sent_many: int
    consumed: int
    handled: int
    pairs: int


FULL: Final = TraceSizes(2_000_000, 10_000_000, consumed=5_000_000, handled=1_000_000, pairs=7)
QUICK: Final = TraceSizes(500_000, 2_000_000, consumed=1_000_000, handled=200_000, pairs=3)


@dataclass(frozen=True, slots=True)
class TracesBench:
    """One broker. Every run has a topic of its own."""

    broker: Broker
    sizes: TraceSizes

    def measured(self, work: str, records: int, variant: str, *, filled: bool) -> Result:
        topic = f"traced-{uuid.uuid4().hex[:12]}"
        asyncio.run(create_topics(self.broker.address, [topic]))
        try:
            if filled:  # the first record is read before the clock starts
                self._done("traced_send_many", topic, records, variant)
            return self._done(work, topic, records, variant)
        finally:
            asyncio.run(delete_topics(self.broker.address, [topic]))

    def _done(self, work: str, topic: str, records: int, variant: str) -> Result:
        config = {"topic": topic, "records": records, "variant": variant, "record_bytes": RECORD_BYTES}
        with Worker(work, address=self.broker.address, **config) as worker:
            worker.ready()
            worker.go()
            return worker.done()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of work."""

    about: str
    size: str  # the field of TraceSizes
    filled: bool = False


KINDS: Final = {
    "send": Kind("send, one by one", "sent"),
    "send_many": Kind("send_many of 1,000 records", "sent_many"),
    "consume": Kind("async for", "consumed", filled=True),
    "handle": Kind("a handler of a group", "handled", filled=True),
}


def _compared(name: str, kind: Kind) -> Subject[TracesBench]:
    def subject(bench: TracesBench, report: Report) -> list[list[Result]]:
        found: list[list[Result]] = [[] for _ in VARIANTS]
        records = getattr(bench.sizes, kind.size)
        for number in range(1, bench.sizes.pairs + 1):
            for which, variant in _turned(number):
                run = partial(bench.measured, f"traced_{name}", records, variant, filled=kind.filled)
                found[which].append(report(which, number, run))
            for before, runs in pairwise(found):
                runs[-1] |= {"share": before[-1]["client_cpu_s"] / runs[-1]["client_cpu_s"]}
        return found

    return subject


def _turned(number: int) -> list[tuple[int, str]]:
    """The variants in another order each round, so that none always comes after the same one."""
    order = list(enumerate(VARIANTS))
    return order[number % len(order) :] + order[: number % len(order)]


SUBJECTS: Final[Subjects[TracesBench]] = {
    tuple(f"{name}_{variant}" for variant in VARIANTS): _compared(name, kind) for name, kind in KINDS.items()
}
ABOUT: Final = {
    f"{name}_{variant}": f"{kind.about}: {ROWS[variant]}" for name, kind in KINDS.items() for variant in VARIANTS
}


def run_traces(
    names: Sequence[str], sizes: TraceSizes, *, address: str | None, folder: Path | None, progress: Progress
) -> dict[str, Result]:
    """Results by name. One broker serves all."""
    with own_broker(folder) if address is None else given_broker(address) as broker:

        def surroundings(_: str) -> AbstractContextManager[TracesBench]:
            return nullcontext(TracesBench(broker, sizes))

        return run_compared(SUBJECTS, names, surroundings, progress)


SUITE: Final = Suite(ABOUT, FULL, QUICK, run_traces, compared=compared(SUBJECTS))
