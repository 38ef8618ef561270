"""`comet consume`: records to stdout, from any position to any other, or for as long as they come."""

from __future__ import annotations

import asyncio
import sys
import time
from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from comet.cli._guard import drop_nones, guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, Topic
from comet.cli._records import FORMATS, render
from comet.errors import InvalidArgument
from comet.types import AtOffset, AtTime, Position, position

if TYPE_CHECKING:
    from comet import Admin, Consumer, RecordBatch

NEVER: Final = 1 << 62  # an offset that no log reaches
Ends = dict[int, int]  # partition -> first offset that is not wanted


@guarded
async def consume(
    topic: Topic,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="POSITION", help="earliest, latest, an offset, -1h, or 2026-01-31T12:00:00Z."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="POSITION", help="Stop there; latest is what is there now.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")] = None,
    follow: Annotated[
        bool | None, typer.Option("--follow/--no-follow", help="Wait for more at the end, or stop there.")
    ] = None,
    form: Annotated[str, typer.Option("--format", "-f", metavar="FORMAT", help=", ".join(FORMATS))] = "value",
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one; may repeat.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON object a line; the same as --format json.")
    ] = False,
) -> None:
    """Print records. Without --from: only new ones, or all if --until or --no-follow say where to stop."""
    import comet

    if until is not None and follow:
        raise InvalidArgument("--until says where to stop and --follow not to: give one of them")
    bounded = until is not None or follow is False
    now_us = time.time_ns() // 1000
    start = position(from_ or ("earliest" if bounded else "latest"), now_us=now_us)
    printer = Printer("json" if json_output else form, count)
    async with comet.Admin(bootstrap) as admin:
        stop = await Stop.at(admin, topic, position(until or "latest", now_us=now_us), now_us) if bounded else None
        if stop is not None and not await stop.limit(start, partition):
            return
        async with comet.Consumer(bootstrap, topic, start=start, **drop_nones(partitions=partition)) as consumer:
            await _print_all(consumer, printer, stop)


class Stop:
    """Where each partition ends. `--until` a time that is still to come is only known when it has come."""

    def __init__(self, admin: Admin, topic: str, until: Position, wait_s: float) -> None:
        self._admin = admin
        self._topic = topic
        self._until = until
        self._starts: Ends = {}
        self.wait_s = wait_s
        self.ends: Ends = {}

    @classmethod
    async def at(cls, admin: Admin, topic: str, until: Position, now_us: int) -> Stop:
        wait_s = (until.timestamp_us - now_us) / 1e6 if isinstance(until, AtTime) else 0.0
        stop = cls(admin, topic, until, max(wait_s, 0.0))
        if stop.wait_s == 0:
            await stop.find()
        return stop

    async def find(self) -> None:
        """Asks where the end is, now that it is in the past. Partitions that were read beyond it are done."""
        self.ends = await self._offsets(self._until)
        self.wait_s = 0.0
        self.limit_to(self._starts)

    async def _offsets(self, where: Position) -> Ends:
        found = await self._admin.offsets(self._topic, where)
        # An offset may lie beyond the end: then there is nothing to wait for but that record, which --follow is for.
        high = await self._admin.offsets(self._topic, "latest") if isinstance(where, AtOffset) else found
        return {partition: min(offset, high[partition]) for partition, offset in found.items()}

    async def limit(self, start: Position, partitions: list[int] | None) -> bool:
        """Leaves only what lies between start and end; false when that is nothing."""
        self._starts = {at: o for at, o in (await self._offsets(start)).items() if not partitions or at in partitions}
        self.limit_to(self._starts)
        return bool(self.ends) or self.wait_s > 0

    def limit_to(self, starts: Ends) -> None:
        if starts:
            self.ends = {at: end for at, end in self.ends.items() if at in starts and starts[at] < end}

    def passed(self, partition: int, next_offset: int) -> None:
        """Everything before `next_offset` was printed."""
        self._starts[partition] = next_offset
        if next_offset >= self.ends.get(partition, NEVER):
            del self.ends[partition]

    @property
    def done(self) -> bool:
        return self.wait_s == 0 and not self.ends


async def _print_all(consumer: Consumer[bytes], printer: Printer, stop: Stop | None) -> None:
    if stop is not None and stop.wait_s > 0:
        try:
            async with asyncio.timeout(stop.wait_s):
                await _print_batches(consumer, printer, None)
                return
        except TimeoutError:
            await stop.find()
    if stop is None or not stop.done:
        await _print_batches(consumer, printer, stop)


async def _print_batches(consumer: Consumer[bytes], printer: Printer, stop: Stop | None) -> None:
    async for batch in consumer.batches():
        end = NEVER if stop is None else stop.ends.get(batch.partition, 0)
        if printer.print(batch, end):
            return
        if stop is not None:
            stop.passed(batch.partition, batch.next_offset)
            if stop.done:
                return


class Printer:
    """Writes records to stdout, a batch at a time. Blocks while stdout is full: that is the back-pressure."""

    def __init__(self, form: str, count: int | None) -> None:
        render(form, "", 0)  # refuses a format that there is not
        self._form = form
        self._left = count if count is not None else NEVER

    def print(self, batch: RecordBatch[bytes], end: int) -> bool:
        """Prints the records before offset `end`; true when that was all that was asked for."""
        stop = min(bisect_left(batch.offsets, end), self._left)
        if stop:
            row = render(self._form, batch.topic, batch.partition)
            columns = (batch.offsets, batch.timestamps, batch.keys, batch.values, batch.headers)
            rows = islice(zip(*columns, strict=True), stop)
            sys.stdout.buffer.write(b"".join(map(row, rows)))
            sys.stdout.buffer.flush()
        self._left -= stop
        return self._left == 0
