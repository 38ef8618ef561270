"""The page of a topic's records: its parameters, and records as rows. Pure.

Its query parameters: `start` (newest, beginning, offset, time, live), `offset`, `time`, `partition`, `key`, `value`,
`header`, `filter`, `limit`, `fields` (of JSON values, as columns). An offset with a partition and without `start` is a
permalink: the page opens that record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from comet_web.components import numbers
from comet_web.document import DASH, Cell, Column, Document, Row, Table
from comet_web.facts import Progress, RecordPreview, TopicRecords
from comet_web.page_request import PageRequest, path
from comet_web.views.topic import header

STARTS: Final = (
    ("live", "Live"),
    ("newest", "Newest"),
    ("beginning", "Beginning"),
    ("offset", "Offset"),
    ("time", "Time"),
)
LIMITS: Final = (50, 200, 1000)
TIME: Final = "-15m"  # the default
FILTERS: Final = ("key", "value", "header", "filter")
TEXT_CHARACTERS: Final = 240  # of a key or value in one line
HEX_BYTES: Final = 32
COLUMNS: Final = (
    Column("time", "Time", unit="UTC", sortable=False, wide=False),
    Column("partition", "Partition", numeric=True, sortable=False),
    Column("offset", "Offset", numeric=True, sortable=False),
    Column("key", "Key", sortable=False),
    Column("value", "Value", sortable=False, wide=False),
    Column("size", "Size", numeric=True, sortable=False, title="Size of key and value"),
    Column("headers", "Headers", numeric=True, sortable=False),
)
BEFORE_FIELDS: Final = 4  # columns that stand before those of fields


def start_of(query: Mapping[str, str]) -> str:
    """The start of the page: as given, else the offset if given, else the newest."""
    given = query.get("start", "")
    if given in dict(STARTS):
        return given
    return "offset" if query.get("offset") and query.get("partition") else "newest"


def limit_of(query: Mapping[str, str]) -> int:
    given = query.get("limit", "")
    return int(given) if given in map(str, LIMITS) else LIMITS[0]


def view(facts: TopicRecords, request: PageRequest) -> Document:
    topic = facts.detail.topic.name
    rows = tuple(row(topic, record) for record in facts.records)
    columns = columns_of(facts.fields)
    start = start_of(request.query)
    return Document(
        time_us=facts.detail.cluster.time_us,
        title=topic,
        fields={
            **header(facts.detail),
            "start": Cell(start),
            "limit": Cell(str(limit_of(request.query))),
            "reason": Cell(facts.reason),
            "cursor": Cell(facts.cursor),
            "summary": summary(facts.progress, facts.reason, request.query),
            "nothing": Cell(nothing(request.query, facts.hint)),
            "wrong": Cell(facts.problem, tone="bad" if facts.problem else ""),
            "faulty": Cell(facts.faulty),
        },
        tables={
            "records": Table("records", columns, rows, total=facts.progress.of, matched=len(rows)),
            "export": _exported(request.query),
            "fields": _fields(facts),
        },
    )


def columns_of(fields: Sequence[str]) -> tuple[Column, ...]:
    """The columns with those of the fields, behind the key. A narrow screen shows the first of them."""
    more = (
        Column(f"field.{at}", name, sortable=False, wide=at > 0, title=f"Field {name} of JSON values")
        for at, name in enumerate(fields)
    )
    return (*COLUMNS[:BEFORE_FIELDS], *more, *COLUMNS[BEFORE_FIELDS:])


def row(topic: str, record: RecordPreview) -> Row:
    """A record as a row of the page or of a channel."""
    key = f"{record.partition}-{record.offset}"
    href = record_link(topic, record)
    names = ", ".join(f"{name}: {line(value, 60).text}" for name, value in record.headers[:8])
    return Row(
        key=key,
        href=href,
        label=f"record {record.offset} of partition {record.partition}",
        cells=(
            Cell(time_text(record.timestamp_us), record.timestamp_us, href=href),
            Cell(str(record.partition), record.partition),
            Cell(str(record.offset), record.offset),
            line(record.key, 80) if record.key is not None else Cell("none", tone="muted", title="no key"),
            *(_field(kind, text) for kind, text in record.fields),
            value_cell(record),
            numbers.size(record.size),
            Cell(str(len(record.headers)), len(record.headers), tone="" if record.headers else "muted", title=names),
        ),
    )


def record_link(topic: str, record: RecordPreview) -> str:
    """The permalink of a record."""
    return f"{path('topics', topic, 'records')}?{urlencode({'partition': record.partition, 'offset': record.offset})}"


def _field(kind: str, text: str) -> Cell:
    match kind:
        case "absent":
            return Cell(DASH, tone="muted", title="the value has no such field")
        case "text":
            return line(text.encode(errors="replace"), TEXT_CHARACTERS) if text else Cell('""', tone="muted")
        case "other":
            return Cell(text, tone="muted")
    return Cell(text)


def value_cell(record: RecordPreview) -> Cell:
    if record.value is None:
        return Cell("tombstone", tone="muted", title="no value: deletes the key")
    if record.encrypted:
        return Cell(f"encrypted with key {record.encrypted}", tone="muted", title="only clients have the key")
    return line(record.value, TEXT_CHARACTERS)


def wire(found: Row) -> list[Any]:
    """A row as JSON, for a channel."""
    return [found.key, [cell.wire() for cell in found.cells], found.label]


def time_text(time_us: int) -> str:
    return numbers.moment_text(time_us).removesuffix(" UTC")


def line(data: bytes, characters: int) -> Cell:
    """Bytes as one line of text, or as hex if they are not text."""
    if not data:
        return Cell("empty", tone="muted", title="0 bytes")
    try:
        text = _beginning(data, 4 * characters).decode()
    except UnicodeDecodeError:
        return Cell(data[:HEX_BYTES].hex(" ") + (" …" if len(data) > HEX_BYTES else ""), tone="muted", title="not text")
    shown = " ".join(text[: 2 * characters].split()) if any(one in text for one in "\n\r\t") else text
    shown = "".join(character if character.isprintable() else "\ufffd" for character in shown[:characters])
    return Cell(shown + "…" if len(text) > characters or len(data) > 4 * characters else shown)


def _beginning(data: bytes, size: int) -> bytes:
    """At most `size` bytes, cut at the end of a character."""
    cut = data[:size]
    if len(data) <= size:
        return data
    for back in range(1, min(4, len(cut)) + 1):
        lead = cut[-back]
        if lead & 0xC0 == 0x80:
            continue
        length = 1 if lead < 0x80 else 2 if lead >> 5 == 6 else 3 if lead >> 4 == 14 else 4
        return cut[:-back] if length > back else cut
    return cut


def nothing(query: Mapping[str, str], hint: str = "") -> str:
    """Why no record may be found, by the filters that are set; `hint`: by what the records hold."""
    parts = []
    if any(query.get(name) for name in ("key", "value", "header")):
        parts.append("Key, Value and Header match any part of the text and ignore case.")
    if query.get("filter"):
        why = "A missing field, or one of another type, does not match a filter."
        parts.append(hint or why)
    return " ".join(["No record matches.", *parts])


def summary(progress: Progress, reason: str, query: Mapping[str, str]) -> Cell:
    """The result of a search in one line."""
    if not reason:
        return Cell("")
    forwards = start_of(query) in ("beginning", "offset", "time")
    if any(query.get(name) for name in FILTERS):
        took = f"scanned in {numbers.duration_text(progress.seconds)}"
        match reason:
            case "end":
                text = f"{progress.matched:,} found · all records {took}"
            case "limit":
                which = "First" if forwards else "Newest"
                text = f"{which} {progress.matched:,} matches · {progress.scanned:,} {took}"
            case _:
                text = f"{progress.matched:,} found so far · {progress.scanned:,} of ~{progress.of:,} {took}"
    elif reason == "end":
        text = f"All {progress.matched:,}" if progress.matched else ""
    else:
        text = f"{'First' if forwards else 'Newest'} {progress.matched:,} of ~{progress.of:,}"
    if progress.unreadable:
        lost = f"{progress.unreadable:,} unreadable in corrupt batches"
        text = f"{text} · {lost}" if text else lost
    through = (
        ""
        if progress.through_us is None
        else f"{'up to' if forwards else 'back to'} {time_text(progress.through_us)} UTC"
    )
    return Cell(text, title=through)


def tail_summary(counts: Mapping[str, Any], *, filtered: bool) -> str:
    """The counts of the channel `tail` in one line."""
    parts = [f"{numbers.short(counts['rate'])} records/s", f"{counts['seen']:,} received"]
    if filtered:
        parts.append(f"{counts['matched']:,} match, {numbers.short(counts['matching'])}/s")
    if counts["one_in"] > 1:
        parts.append(f"sampled: 1 in {numbers.short(counts['one_in'])} checked")
    if counts["shown_in"] > 1:
        parts.append(f"1 in {numbers.short(counts['shown_in'])} shown")
    if counts["lost"]:
        parts.append(f"{counts['lost']:,} lost")
    return " · ".join(parts)


def exported(query: Mapping[str, str]) -> dict[str, str]:
    """The selection as parameters of an export; newest first if the page shows the newest."""
    start = start_of(query)
    params = {name: query[name] for name in FILTERS if query.get(name)}
    if query.get("partition"):
        params["partitions"] = query["partition"]
    if start in ("newest", "live"):
        params["order"] = "newest"
    elif start == "offset" and query.get("offset"):
        params["start"] = query["offset"]
    elif start == "time":
        params["start"] = utc(query.get("time", "").strip() or TIME)
    return params


def utc(time: str) -> str:
    """A time from the form, as UTC if it has no zone. Other text stays as it is."""
    with suppress(ValueError):
        if (at := datetime.fromisoformat(time)).tzinfo is None:
            return f"{at.isoformat()}Z"
    return time


def _fields(facts: TopicRecords) -> Table:
    """The fields to choose from; those that are columns first."""
    names = dict.fromkeys((*facts.fields, *facts.suggested))
    rows = tuple(Row(name, (Cell("yes" if name in facts.fields else ""),)) for name in names)
    return Table("fields", (Column("chosen", "Chosen"),), rows, total=len(rows), matched=len(facts.fields))


def _exported(query: Mapping[str, str]) -> Table:
    rows = tuple(Row(name, (Cell(text),)) for name, text in exported(query).items())
    return Table("export", (Column("value", "Value"),), rows, total=len(rows), matched=len(rows))
