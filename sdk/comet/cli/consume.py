"""`comet consume`: prints records to stdout, between two positions or without end."""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from contextlib import suppress
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from comet.cli._filter import FilterTexts, filters_of
from comet.cli._guard import drop_nones, guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, Keyring, Topic, keyring_of
from comet.cli._output import note
from comet.cli._records import FORMATS, render, shows_values
from comet.encryption.envelope import key_id_of
from comet.errors import DecryptionError, InvalidArgument
from comet.types import AtOffset, AtTime, Position, position

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from comet import Admin, Consumer, GroupConsumer, RecordBatch
    from comet.filters.search_filters import Filters


class OnCorrupt(Enum):
    """What to do at a stored batch that cannot be read."""

    RAISE = "raise"
    SKIP = "skip"


FORMAT_HELP: Final = f"{', '.join(FORMATS)}, or a template as kcat has them, e.g. '%k %o %v\\n'."
NEVER: Final = 1 << 62  # an offset that no log reaches
POLL_S: Final = 0.05
Offsets = dict[int, int]  # by partition


@guarded
async def consume(
    topic: Topic,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="POSITION", help="earliest, latest, an offset, -1h, or 2026-01-31T12:00:00Z."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="POSITION", help="Stop there; latest: the end as of now.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")] = None,
    follow: Annotated[
        bool | None, typer.Option("--follow/--no-follow", help="Wait for more at the end, or stop.")
    ] = None,
    form: Annotated[str, typer.Option("--format", "-f", metavar="FORMAT", help=FORMAT_HELP)] = "value",
    filter_: FilterTexts = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may repeat.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", help="Read as a member of this group, from its committed offsets; commits printed records."
        ),
    ] = None,
    on_corrupt: Annotated[
        OnCorrupt, typer.Option("--on-corrupt", help="What to do at a stored batch that cannot be read.")
    ] = OnCorrupt.RAISE,
    keyring: Keyring = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON object a line; the same as --format json.")
    ] = False,
) -> None:
    """Print records. Without --from: new ones only, or all with --until or --no-follow."""
    import asyncio

    import comet

    if until is not None and follow:
        raise InvalidArgument("--until and --follow exclude each other: give one of them")
    if group is not None and (until is not None or follow is False or partition):
        raise InvalidArgument("--group excludes --until, --no-follow and --partition: the group assigns the partitions")
    bounded = until is not None or follow is False
    now_us = time.time_ns() // 1000
    start = position(from_ or ("earliest" if bounded else "latest"), now_us=now_us)
    printer = Printer("json" if json_output else form, count, filters_of(filter_) if filter_ else None)
    encryption = keyring_of(keyring)
    if not bounded and count is None and sys.stdout.isatty():
        note("Ctrl-C ends")
    bounds = ConsumeBounds()
    async with comet.Admin(bootstrap) as admin:
        await admin.describe_topic(topic)  # fails at once if no broker answers; a consumer would wait
        if group is not None:
            member = comet.GroupConsumer(
                bootstrap, topic, group=group, start=start, auto_commit=count is None, on_corrupt=on_corrupt.value,
                encryption=encryption,
            )  # fmt: skip
            await _print_as_member(member, printer)
            return
        if bounded:
            stop = position(until or "latest", now_us=now_us)
            wait_s = max(stop.timestamp_us - now_us, 0) / 1e6 if isinstance(stop, AtTime) else 0.0
            starts = await _offsets(admin, topic, start)
            bounds.positions = {at: offset for at, offset in starts.items() if not partition or at in partition}
            if wait_s == 0:
                bounds.ends = await _offsets(admin, topic, stop)
            if bounds.done():
                return
        async with comet.Consumer(
            bootstrap,
            topic,
            start=start,
            on_corrupt=on_corrupt.value,
            encryption=encryption,
            **drop_nones(partitions=partition),
        ) as consumer:
            if bounded and wait_s > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await _print(consumer, printer, bounds)
                bounds.ends = await _offsets(admin, topic, stop)
            await _print(consumer, printer, bounds)


class ConsumeBounds:
    """The position of each partition, and its end once that is known; without an end reading goes on."""

    def __init__(self) -> None:
        self.positions: Offsets = {}
        self.ends: Offsets | None = None

    def end(self, partition: int) -> int:
        """The first offset after the requested ones."""
        return NEVER if self.ends is None else self.ends.get(partition, 0)

    def done(self) -> bool:
        return self.ends is not None and all(self.end(at) <= offset for at, offset in self.positions.items())


async def _offsets(admin: Admin, topic: str, where: Position) -> Offsets:
    if isinstance(where, AtOffset):  # it may be in the future
        return dict.fromkeys(await admin.offsets(topic, "latest"), where.offset)
    return await admin.offsets(topic, where)


async def _print(consumer: Consumer[bytes], printer: Printer, bounds: ConsumeBounds) -> None:
    """Prints records until the bounds or the count are reached."""
    # The last entry before an end may be a transaction marker, which moves the position without a record.
    patience_s = None if bounds.ends is None else POLL_S
    while not (printer.full() or bounds.done()):
        batch = await consumer.get_batch(timeout_s=patience_s)
        if batch is not None:
            printer.print(batch, bounds.end(batch.partition))
        bounds.positions.update(consumer.positions())


async def _print_as_member(member: GroupConsumer[bytes], printer: Printer) -> None:
    """Prints a member's records. With --count it commits after each batch, of which only a part may be printed; else
    the member commits by itself, as it asks for the next batch or leaves."""
    async with member:
        async for batch in member.batches():
            printed = printer.print(batch, NEVER)
            if not member.auto_commit:
                await member.commit({(batch.topic, batch.partition): batch.offsets[printed - 1] + 1})
            if printer.full():
                return


class Printer:
    """Writes records to stdout, a batch at a time. Blocks while stdout is full, as back-pressure."""

    def __init__(self, form: str, count: int | None, filters: Filters | None = None) -> None:
        render(form, "", 0)  # raises for an unknown format
        self._form = form
        self._filters = filters
        self._left = count if count is not None else NEVER

    def full(self) -> bool:
        """Whether the requested number of records is printed."""
        return self._left == 0

    def print(self, batch: RecordBatch[bytes], end: int) -> int:
        """Prints the records before offset `end` that match; returns the number of records that are done with, of the
        batch's. Raises DecryptionError at the first that is encrypted and not decrypted, after those before it."""
        stop = bisect_left(batch.offsets, end)
        if not stop or self.full():
            return 0
        values, errors = _values(batch, self._form, self._filters)
        upto = min(min(errors, default=stop), stop)
        chosen: Sequence[int] = range(upto)
        if self._filters is not None:
            chosen = self._filters.found(batch, 0, upto)
        chosen = chosen[: self._left]
        row = render(self._form, batch.topic, batch.partition)
        columns = (batch.offsets, batch.timestamps, batch.keys, values, batch.headers)
        rows = zip(*columns, strict=True) if len(chosen) == upto else zip(*_picked(columns, chosen), strict=True)
        sys.stdout.buffer.write(b"".join(map(row, islice(rows, len(chosen)))))
        sys.stdout.buffer.flush()
        self._left -= len(chosen)
        if self.full():
            return chosen[-1] + 1
        if upto < stop:
            raise batch.at(errors[upto], batch.offsets[upto])
        return stop


def _picked(columns: Sequence[Sequence[Any]], chosen: Sequence[int]) -> list[list[Any]]:
    return [[column[at] for at in chosen] for column in columns]


def _values(
    batch: RecordBatch[bytes], form: str, filters: Filters | None
) -> tuple[Sequence[bytes | None], Mapping[int, DecryptionError]]:
    """The values of a batch, and the errors of those that cannot be shown, by index."""
    if batch.encrypted is not None:
        return batch.encrypted.values, {at: _undecrypted(error) for at, error in batch.encrypted.errors.items()}
    if not shows_values(form) and filters is None:
        return batch.values, {}
    ids = {at: key_id_of(value) for at, value in enumerate(batch.values)}
    return batch.values, {at: encrypted_error(key_id) for at, key_id in ids.items() if key_id is not None}


def _undecrypted(error: DecryptionError) -> DecryptionError:
    hint = "give a file that has its key" if error.details.get("key_id") else "read it without --keyring"
    return DecryptionError(error.message, details=error.details | {"hint": f"{hint}; or go on behind it with --from"})


def encrypted_error(key_id: str) -> DecryptionError:
    """The error of a value that is encrypted and cannot be shown."""
    hint = "decrypt it with --keyring FILE, or show the other fields with --json and without --filter"
    return DecryptionError(f"its value is encrypted with key {key_id!r}", details={"key_id": key_id, "hint": hint})
