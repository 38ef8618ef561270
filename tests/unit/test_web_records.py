"""The page of a topic's records: what an address asks for, how a record stands in one line."""

from __future__ import annotations

import pytest

from comet_web.facts import Cluster, Progress, RecordPreview, Topic, TopicDetail, TopicRecords
from comet_web.page_request import PageRequest
from comet_web.views import records

TOPIC = Topic("orders", False, 3, 1, 1, 0, 0, {"ms": 1000})
DETAIL = TopicDetail(Cluster(5), TOPIC, (), ())


def preview(key: bytes | None = b"k", value: bytes | None = b"v", **more: object) -> RecordPreview:
    size = len(key or b"") + len(value or b"")
    return RecordPreview(0, 42, 1_700_000_000_123_456, key, value, size, **more)  # type: ignore[arg-type]


def cells(shown: RecordPreview) -> dict[str, str]:
    row = records.row("orders", shown)
    return {column.key: cell.text for column, cell in zip(records.COLUMNS, row.cells, strict=True)}


@pytest.mark.parametrize(
    ("query", "start"),
    [
        ({}, "newest"),
        ({"start": "live"}, "live"),
        ({"start": "sideways"}, "newest"),
        ({"offset": "4"}, "newest"),
        ({"offset": "4", "partition": "0"}, "offset"),
        ({"offset": "4", "partition": "0", "start": "beginning"}, "beginning"),
    ],
)
def test_the_address_says_where_it_begins(query: dict[str, str], start: str) -> None:
    assert records.start_of(query) == start


def test_an_encrypted_value_is_named_so_with_its_key() -> None:
    assert cells(preview(value=b"\xffCE\x01 and more", encrypted="2026-11"))["value"] == "encrypted with key 2026-11"


def test_a_record_stands_in_one_line() -> None:
    found = cells(preview(b"EURUSD", b'{"bid":\n  1.08}', headers=(("source", b"desk"), ("raw", b"\xff"))))
    assert found == {
        "time": "2023-11-14 22:13:20.123",
        "partition": "0",
        "offset": "42",
        "key": "EURUSD",
        "value": '{"bid": 1.08}',
        "size": "21 B",
        "headers": "2",
    }
    row = records.row("a/b?", preview())
    assert row.href == "/topics/a%2Fb%3F/records?partition=0&offset=42"
    assert (row.key, row.cells[0].href) == ("0-42", row.href)


@pytest.mark.parametrize(
    ("value", "shown", "tone"),
    [
        (None, "tombstone", "muted"),
        (b"", "empty", "muted"),
        (b"\xff\x00\x01", "ff 00 01", "muted"),
        (bytes(range(200, 256)), bytes(range(200, 232)).hex(" ") + " …", "muted"),
        ("é".encode() * 600, "é" * 240 + "…", ""),
        (b"x" * 240, "x" * 240, ""),
        (b"a\x1b[31m\xe2\x80\xaeb", "a\ufffd[31m\ufffdb", ""),
        (("a" * 959 + "é").encode(), "a" * 240 + "…", ""),
    ],
)
def test_a_value_is_text_where_it_is_text_and_never_more_than_a_line(
    value: bytes | None, shown: str, tone: str
) -> None:
    cell = records.row("orders", preview(value=value)).cells[4]
    assert (cell.text, cell.tone) == (shown, tone)


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    assert cells(RecordPreview(0, 1, 2**62, None, None, 0))["time"] == f"{2**62} µs"


def test_the_page_says_what_was_found_and_how_to_go_on() -> None:
    progress = Progress(scanned=5_000, matched=1, of=12_000, left=7_000, seconds=0.3, through_us=1_700_000_000_000_000)
    facts = TopicRecords(DETAIL, (preview(),), progress, "budget", "c1.x")
    asked = PageRequest("/topics/orders/records", {"topic": "orders"}, {"key": "a", "partition": "1", "limit": "200"})
    shown = records.view(facts, asked)
    assert shown.fields["summary"].text == "1 found so far · 5,000 of ~12,000 scanned in 300 ms"
    assert shown.fields["summary"].title == "back to 2023-11-14 22:13:20.000 UTC"
    assert (shown.fields["cursor"].text, shown.fields["limit"].text) == ("c1.x", "200")
    assert records.exported(asked.query) == {"key": "a", "partitions": "1", "order": "newest"}


@pytest.mark.parametrize(
    ("time", "start"),
    [
        ("2026-01-31T12:00", "2026-01-31T12:00:00Z"),
        ("2026-01-31", "2026-01-31T00:00:00Z"),
        ("2026-01-31T12:00:00-03:00", "2026-01-31T12:00:00-03:00"),
        ("-2h", "-2h"),
        ("", "-15m"),
    ],
)
def test_what_is_exported_begins_where_the_page_does(time: str, start: str) -> None:
    assert records.exported({"start": "time", "time": time}) == {"start": start}
    unfiltered = records.summary(Progress(matched=50, of=12_000), "limit", {"start": "beginning"})
    assert unfiltered.text == "First 50 of ~12,000"


def test_an_empty_result_explains_the_filters_that_are_set() -> None:
    def told(**query: str) -> str:
        asked = PageRequest("/topics/orders/records", {"topic": "orders"}, query)
        return records.view(TopicRecords(DETAIL, (), Progress(), "end", ""), asked).fields["nothing"].text

    assert told(filter="price>3").startswith("No record matches. A missing field")
    assert told(key="a") == "No record matches. Key, Value and Header match any part of the text and ignore case."
    assert told(partition="1") == "No record matches."


def test_what_cannot_be_read_is_counted() -> None:
    corrupt = records.summary(Progress(matched=50, of=12_000, unreadable=5), "limit", {"start": "beginning"})
    assert corrupt.text == "First 50 of ~12,000 · 5 unreadable in corrupt batches"
    assert records.summary(Progress(unreadable=5), "end", {}).text == "5 unreadable in corrupt batches"


def test_a_tail_says_that_it_samples() -> None:
    told = {"rate": 50_000.0, "seen": 1_204_331, "matched": 9_000, "matching": 400.0, "one_in": 8.0, "shown_in": 20.0,
            "lost": 12}  # fmt: skip
    assert records.tail_summary(told, filtered=True) == (
        "50.0 k records/s · 1,204,331 received · 9,000 match, 400/s · sampled: 1 in 8 checked · 1 in 20 shown · 12 lost"
    )
    quiet = {**told, "rate": 0.0, "one_in": 1, "shown_in": 1, "lost": 0}
    assert records.tail_summary(quiet, filtered=False) == "0 records/s · 1,204,331 received"
