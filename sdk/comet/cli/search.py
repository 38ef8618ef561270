"""`comet search`: the records of a topic that match conditions, among those that are there now."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from comet.cli._filter import filters_of
from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, Keyring, Topic, keyring_of
from comet.cli._output import note
from comet.cli._records import render, shows_values
from comet.cli._scan import From, HeaderPart, KeyPart, Partitions, ScanRange, TopicScan, Until, ValuePart
from comet.cli.consume import FORMAT_HELP, encrypted_error
from comet.encryption.envelope import key_id_of
from comet.units import count, format_bytes

if TYPE_CHECKING:
    from comet import MergedRecord

LIMIT: Final = 100


class Order(Enum):
    """The order of matches, by timestamp."""

    OLDEST = "oldest"
    NEWEST = "newest"


@guarded
async def search(
    topic: Topic,
    conditions: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONDITION", help="On the JSON value, e.g. 'price > 150 and symbol = \"A\"'."),
    ] = None,
    key: KeyPart = "",
    value: ValuePart = "",
    header: HeaderPart = "",
    from_: From = "earliest",
    until: Until = "latest",
    order: Annotated[
        Order, typer.Option("--order", help="By timestamp: the first matches, or the last.")
    ] = Order.OLDEST,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Stop after this many matches.")] = LIMIT,
    scan_max: Annotated[
        int | None, typer.Option("--scan-max", min=1, metavar="RECORDS", help="Stop after about this many records.")
    ] = None,
    partition: Partitions = None,
    form: Annotated[str, typer.Option("--format", "-f", metavar="FORMAT", help=FORMAT_HELP)] = "value",
    keyring: Keyring = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON object a line; the report on stderr, too.")
    ] = False,
) -> None:
    """Print the records that match conditions, oldest or newest first, and how many were looked at."""
    import asyncio

    import comet

    writer = HitWriter("json" if json_output else form)
    filters = filters_of(conditions or [], key=key, value=value, header=header)
    wanted = ScanRange.of(from_, until, partition)
    began = time.monotonic()
    async with comet.Admin(bootstrap) as admin:
        info = await admin.describe_topic(topic)
    async with comet.Reader(bootstrap, encryption=keyring_of(keyring)) as reader:
        scan = TopicScan(
            reader, info, wanted, backward=order is Order.NEWEST, filters=filters, limit=limit, records_max=scan_max
        )

        def report() -> None:
            seconds = time.monotonic() - began
            note(json.dumps(report_document(scan, seconds)) if json_output else report_text(scan, seconds))

        try:
            async for hits in scan.hits():
                writer.write(hits)
        except asyncio.CancelledError:
            report()
            raise
    report()


class HitWriter:
    """Writes matches to stdout in the formats of `comet consume`."""

    def __init__(self, form: str) -> None:
        render(form, "", 0)  # raises for an unknown format
        self._shows_values = shows_values(form)
        self._row: Callable[[str, int], Callable[[Any], bytes]] = cache(lambda topic, at: render(form, topic, at))

    def write(self, hits: list[MergedRecord]) -> None:
        """Raises DecryptionError at the first that is encrypted, after those before it."""
        lines: list[bytes] = []
        try:
            for hit in hits:
                one = hit.record
                key_id = key_id_of(one.value) if self._shows_values and hit.batch.encrypted is None else None
                if key_id is not None:
                    raise hit.batch.at(encrypted_error(key_id), one.offset)
                row = (one.offset, one.timestamp_us, one.key, one.value, one.headers)
                lines.append(self._row(one.topic, one.partition)(row))
        finally:
            sys.stdout.buffer.write(b"".join(lines))
            sys.stdout.buffer.flush()


def report_document(scan: TopicScan, seconds: float) -> dict[str, object]:
    """What a search looked at, and why it ended: the last line of the gateway's search."""
    counts = {name: str(getattr(scan, name)) for name in ("matched", "unreadable", "bytes")}
    return {"end": {"reason": _reason(scan), "scanned": str(scan.records), **counts, "seconds": round(seconds, 3)}}


def report_text(scan: TopicScan, seconds: float) -> str:
    """The same in one line for people."""
    looked = f"{scan.records:,} looked at ({format_bytes(scan.bytes)}) in {seconds:.2f} s"
    ended = {
        "end": "",
        "limit": f"; stopped at --limit {scan.limit}, there may be more",
        "budget": "; stopped before the end of the range",
    }[_reason(scan)]
    skipped = f"; skipped {count(scan.unreadable, 'record')} in corrupt batches" if scan.unreadable else ""
    return f"{count(scan.matched, 'record')} found, {looked}{ended}{skipped}"


def _reason(scan: TopicScan) -> str:
    if scan.done:
        return "end"
    return "limit" if scan.full else "budget"
