"""`comet produce`: sends lines as records, in bounded memory for any length of input."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from comet.cli._guard import drop_nones, guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Keyring, Topic, Ttl, keyring_of, ttl_ms_of
from comet.cli._output import note, print_json
from comet.cli._records import parse_headers
from comet.cli._values import format_rate
from comet.errors import InvalidArgument
from comet.types import ScheduledReceipt
from comet.units import count, format_bytes, time_text

if TYPE_CHECKING:
    from comet import Producer
    from comet.cli._input_records import LineReader

# Chunks (at most 1 MiB of lines each) that may wait for their acknowledgement.
CHUNKS_IN_FLIGHT_MAX: Final = 16
PROGRESS_EVERY_S: Final = 0.25


@dataclass(slots=True)
class Sent:
    """Totals of the sent records; `bytes` counts values and keys, `taken` the input."""

    records: int = 0
    bytes: int = 0
    taken: int = 0
    started: float = 0.0

    def seconds(self) -> float:
        return max(time.monotonic() - self.started, 1e-9)


@dataclass(frozen=True, slots=True)
class How:
    """The reader that makes records of lines, and what all of them have."""

    topic: str
    reader: LineReader
    partition: int | None
    headers: list[tuple[str, bytes]]
    ttl_ms: int | None
    delay_ms: int | None = None
    due: datetime | None = None

    @property
    def delayed(self) -> bool:
        return self.delay_ms is not None or self.due is not None


@guarded
async def produce(
    topic: Topic,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", exists=True, dir_okay=False, help="Read this file instead of stdin.")
    ] = None,
    key_separator: Annotated[
        str, typer.Option("--key-separator", "-k", metavar="TEXT", help="A line is KEY TEXT VALUE; \\t is a tab.")
    ] = "",
    json_lines: Annotated[bool, typer.Option("--json-lines", help="Refuse a value that is not JSON.")] = False,
    csv: Annotated[
        bool,
        typer.Option("--csv", help="Read CSV; its first row names the fields. A row is sent as a JSON object."),
    ] = False,
    key_field: Annotated[
        str,
        typer.Option("--key-field", metavar="NAME", help="Take the key from this field of the JSON or CSV."),
    ] = "",
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            "-t",
            metavar="TEXT",
            help="Generate records: %d counts, %{A|B} is a choice; see docs/cli.md.",
        ),
    ] = None,
    count_: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="With --template: the number of records. [1]")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="With --template: the same records again.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Send all records here.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header for every record; may repeat."),
    ] = None,
    ttl: Ttl = "",
    delay: Annotated[
        str, typer.Option("--delay", metavar="TIME", help="Write the records after this time: 30s, 5m, 1d.")
    ] = "",
    due: Annotated[
        str, typer.Option("--due", metavar="TIME", help="Write them at this time: 2026-12-01T09:30:00-05:00.")
    ] = "",
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all: replicas that must have a record.")] = "1",
    compression: Annotated[str | None, typer.Option("--compression", help="lz4 or zstd.")] = None,
    keyring: Keyring = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No report on stderr.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Send each line of stdin, or of a file, as one record; or rows of CSV, or generated records."""
    import comet
    from comet.cli._input_records import CsvLines, PlainLines

    if acks not in ("0", "1", "all"):
        raise InvalidArgument(f"invalid --acks {acks!r}: use 0, 1 or all")
    separator = key_separator.replace("\\t", "\t").encode()
    _check_together(template, count_, seed, file=file, csv=csv, separator=separator, key_field=key_field)
    generated = None if template is None else _generated(template, count_ or 1, seed)
    reader = CsvLines(key_field) if csv else PlainLines(separator, json_lines=json_lines, key_field=key_field)
    how = How(topic, reader, partition, parse_headers(header or []), ttl_ms_of(ttl), *_due_of(delay, due))
    sent = Sent()
    if file is None and generated is None and sys.stdin.isatty() and not quiet:
        note("one line is one record; Ctrl-D ends")
    options = drop_nones(acks="all" if acks == "all" else int(acks), compression=compression)
    options |= drop_nones(encryption=keyring_of(keyring))
    async with comet.Admin(bootstrap) as admin:
        await admin.describe_topic(topic)  # fails at once if no broker answers; a producer would wait
    with closing(_Input(file)) as source:
        async with comet.Producer(bootstrap, **options) as producer:
            sent.started = time.monotonic()
            lines = _lines(source, generated)
            shown = _shown_receipt(quiet, json_output)
            await _send_lines(producer, lines, how, sent, _progress(source, quiet), shown)
    _report(sent, quiet, json_output and not how.delayed)


def _due_of(delay: str, due: str) -> tuple[int | None, datetime | None]:
    """The delay in milliseconds, or the time when the records are due. Raises InvalidArgument."""
    if not delay and not due:
        return None, None
    from comet.producer.delayed_record import due_time

    at: datetime | None = None
    if due:
        from comet.schedules.spec import parse_time
        from comet.schedules.zones import EPOCH

        at = EPOCH + timedelta(microseconds=parse_time(due))
    return due_time(delay or None, at)


def _shown_receipt(quiet: bool, json_output: bool) -> Callable[[ScheduledReceipt], None]:
    """Prints the receipt of a delayed record, whose id is needed to cancel it."""

    def shown(receipt: ScheduledReceipt) -> None:
        if json_output:
            due = {} if receipt.next_us is None else {"next_us": str(receipt.next_us)}
            print(json.dumps({"topic": receipt.topic, "id": receipt.id, **due}))
        elif not quiet:
            print(receipt.id, time_text(receipt.next_us, "milliseconds") if receipt.next_us else "")

    return shown


def _check_together(
    template: str | None,
    count_: int | None,
    seed: int | None,
    *,
    file: Path | None,
    csv: bool,
    separator: bytes,
    key_field: str,
) -> None:
    """Raises InvalidArgument for options that exclude each other."""
    if template is None and (count_ is not None or seed is not None):
        raise InvalidArgument("--count and --seed are for --template TEXT, which generates records")
    if template is not None and (file is not None or csv or separator):
        raise InvalidArgument("--template generates records: leave --file, --csv and --key-separator out")
    if separator and (csv or key_field):
        raise InvalidArgument("--key-separator excludes --csv and --key-field: give one way to find the key")


def _generated(template: str, number: int, seed: int | None) -> Iterator[list[bytes]]:
    from random import Random

    from comet.cli._generated import RecordTemplate

    return RecordTemplate(template, Random(seed), lambda: time.time_ns() // 1_000_000).records(number)


async def _lines(source: _Input, generated: Iterator[list[bytes]] | None) -> AsyncIterator[list[bytes]]:
    """The lines of the input, or the generated records."""
    import asyncio

    from comet.cli._stdin import line_chunks

    if generated is None:
        async for lines in line_chunks(source.descriptor):
            yield lines
        return
    for lines in generated:
        yield lines
        await asyncio.sleep(0)


class _Input:
    """The input's descriptor and size; 0 if unknown."""

    def __init__(self, file: Path | None) -> None:
        self._owned = file is not None
        self.descriptor = os.open(file, os.O_RDONLY) if file is not None else sys.stdin.fileno()
        self.size = file.stat().st_size if file is not None else 0

    def close(self) -> None:
        if self._owned:
            os.close(self.descriptor)


async def _send_lines(
    producer: Producer,
    chunks: AsyncIterator[list[bytes]],
    how: How,
    sent: Sent,
    progress: _Progress,
    shown: Callable[[ScheduledReceipt], None],
) -> None:
    """Sends each chunk of lines in one call; waits for acknowledgements a window behind."""
    waiting: deque[list[Awaitable[Any]]] = deque()
    with progress:
        async for lines in chunks:
            waiting.append(await _send_chunk(producer, lines, how, sent))
            if len(waiting) >= CHUNKS_IN_FLIGHT_MAX:
                await _all(waiting.popleft(), shown)
            progress.update(sent)
        for deliveries in waiting:
            await _all(deliveries, shown)
        how.reader.finish()


async def _all(deliveries: list[Awaitable[Any]], shown: Callable[[ScheduledReceipt], None]) -> None:
    for delivery in deliveries:
        receipt = await delivery
        if isinstance(receipt, ScheduledReceipt):
            shown(receipt)


async def _send_chunk(producer: Producer, lines: list[bytes], how: How, sent: Sent) -> list[Awaitable[Any]]:
    keys, values = how.reader.read(lines)
    sent.records += len(values)
    sent.bytes += sum(map(len, values)) + sum(map(len, keys or ()))
    sent.taken += sum(map(len, lines)) + len(lines)
    if not values:
        return []
    if not how.headers and not how.delayed:
        return [await producer.send_many(how.topic, values, keys=keys, partition=how.partition, ttl_ms=how.ttl_ms)]
    return [
        await producer.send(
            how.topic,
            value,
            key=keys[at] if keys else None,
            headers=how.headers,
            partition=how.partition,
            ttl_ms=how.ttl_ms,
            delay=None if how.delay_ms is None else how.delay_ms / 1000,
            due=how.due,
        )
        for at, value in enumerate(values)
    ]


class _Progress:
    """A progress bar, on a terminal and for a file of known size."""

    def __init__(self, size: int, shown: bool) -> None:
        self._size = size
        self._shown = shown
        self._bar: Any = None
        self._next = 0.0

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

            console = Console(stderr=True)
            self._bar = Progress(
                BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), console=console
            )
            self._task = self._bar.add_task("", total=self._size)
            self._bar.start()
        return self

    def update(self, sent: Sent) -> None:
        if self._bar is not None and (now := time.monotonic()) >= self._next:
            self._next = now + PROGRESS_EVERY_S
            self._bar.update(self._task, completed=sent.taken)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._size)
            self._bar.stop()


def _progress(source: _Input, quiet: bool) -> _Progress:
    return _Progress(source.size, shown=bool(source.size) and sys.stderr.isatty() and not quiet)


def _report(sent: Sent, quiet: bool, json_output: bool) -> None:
    seconds = sent.seconds()
    if json_output:
        document = {"records": sent.records, "bytes": sent.bytes, "seconds": round(seconds, 6)}
        print_json(document | {"records_per_s": round(sent.records / seconds, 1)})
    elif not quiet:
        rates = f"{format_rate(sent.records / seconds)}, {format_bytes(sent.bytes / seconds)}/s"
        note(f"{count(sent.records, 'record')}, {format_bytes(sent.bytes)} in {seconds:.2f} s ({rates})")
