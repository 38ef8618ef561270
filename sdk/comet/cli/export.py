"""`comet export`: the records of a topic as a file, written in bounded memory. The formats are those of the gateway's
export, of whose writers it makes use.

    FILE  ◄─ renamed when complete ─  .FILE.xxxxxxxx.part, removed if the export fails
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from comet.cli._filter import FilterTexts, filters_of
from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Keyring, Topic, keyring_of
from comet.cli._output import note, print_json
from comet.cli._scan import From, HeaderPart, KeyPart, Partitions, ScanRange, TopicScan, Until, ValuePart
from comet.cli.consume import OnCorrupt
from comet.errors import InvalidArgument, pip_install
from comet.units import count, format_bytes

if TYPE_CHECKING:
    from comet_gateway.search.export import Writer

FORMATS: Final = {
    ".csv": "csv", ".json": "json", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet",
}  # fmt: skip
AT_ONCE: Final = 500  # records between two writes: memory is bounded by them, and a Parquet row group


@guarded
async def export(
    topic: Topic,
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="NAME.csv, .json, .ndjson or .parquet.")],
    filter_: FilterTexts = None,
    key: KeyPart = "",
    value: ValuePart = "",
    header: HeaderPart = "",
    from_: From = "earliest",
    until: Until = "latest",
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most this many records.")] = None,
    partition: Partitions = None,
    form: Annotated[
        str | None, typer.Option("--format", "-f", metavar="FORMAT", help="csv, json, ndjson or parquet. [by the name]")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    on_corrupt: Annotated[
        OnCorrupt, typer.Option("--on-corrupt", help="What to do at a stored batch that cannot be read.")
    ] = OnCorrupt.RAISE,
    keyring: Keyring = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Write the records of a topic to a file: CSV, JSON, NDJSON or Parquet, in order of timestamps."""
    import comet

    name = _format(file, form)
    filters = filters_of(filter_ or [], key=key, value=value, header=header)
    wanted = ScanRange.of(from_, until, partition)
    _check_free(file, overwrite)
    began = time.monotonic()
    async with comet.Admin(bootstrap) as admin:
        info = await admin.describe_topic(topic)
    async with comet.Reader(bootstrap, encryption=keyring_of(keyring)) as reader:
        skip = on_corrupt is OnCorrupt.SKIP
        scan = TopicScan(reader, info, wanted, filters=filters, skip_corrupt=skip, limit=limit)
        with replacing(file, overwrite) as out:
            await _write(scan, _writer(name), out)
            size = out.tell()
    seconds = time.monotonic() - began
    if json_output:
        document = {"file": str(file), "format": name, "records": scan.matched, "bytes": size}
        print_json(document | {"unreadable": scan.unreadable, "seconds": round(seconds, 3)})
        return
    skipped = f"; skipped {count(scan.unreadable, 'record')} in corrupt batches" if scan.unreadable else ""
    note(f"{count(scan.matched, 'record')}, {format_bytes(size)} in {file}, in {seconds:.2f} s{skipped}")


def _format(file: Path, given: str | None) -> str:
    """The format, by its name or that of the file. Raises InvalidArgument, also if a package for it is missing."""
    found = FORMATS.get(file.suffix.lower()) if given is None else given
    if found is None or found not in FORMATS.values():
        hint = "a file is NAME.csv, .json, .ndjson or .parquet; for other names give --format"
        wrong = f"unknown format of {file.name!r}" if given is None else f"unknown --format {given!r}"
        raise InvalidArgument(wrong, details={"hint": hint})
    if found == "parquet" and find_spec("pyarrow") is None:
        raise InvalidArgument("Parquet needs pyarrow", details={"hint": pip_install("arrow")})
    return found


def _writer(name: str) -> Writer:
    from comet_gateway.records.record_json import Values
    from comet_gateway.search.export import Format, writer

    return writer(Format(name), Values.AUTO)


async def _write(scan: TopicScan, into: Writer, out: BinaryIO) -> None:
    import asyncio

    out.write(into.begin())
    async for hits in scan.hits():
        for first in range(0, len(hits), AT_ONCE):
            out.write(await into.add(hits[first : first + AT_ONCE]))
            await asyncio.sleep(0)  # Ctrl-C
    out.write(await into.end())


def _check_free(file: Path, overwrite: bool) -> None:
    if not overwrite and file.exists():
        raise InvalidArgument(f"{file} exists already", details={"hint": "replace it with --overwrite"})


@contextmanager
def replacing(file: Path, overwrite: bool) -> Iterator[BinaryIO]:
    """A file that gets its name only once it is complete and on the disk. Otherwise nothing is left of it."""
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        _check_free(file, overwrite)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
