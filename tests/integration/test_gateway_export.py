"""Exports, read back by what reads such files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

import comet
import comet.testing
from comet_gateway.search import export
from tests.integration.gateway_http import gateway
from tests.integration.records_client import http, lines_of, problem_of

__all__ = ["http"]  # a fixture

EXPORT = "/v1/topics/quotes/export"
ODD: list[tuple[bytes | None, bytes | None]] = [
    (b'{"bid": 1.10, "n": 12345678901234567890}', b"EURUSD"),
    (b'a,"b"\nc \xc3\xa9', b"=1+1"),
    (b"\xff\x00", b"\xff"),
    (None, b""),
    (b"@SUM(A1)", None),
]


@pytest.fixture
async def broker() -> AsyncIterator[comet.testing.TestBroker]:
    async with comet.testing.broker({"quotes": 1, "empty": 1}) as one:
        yield one


@pytest.fixture
async def odd(broker: comet.testing.TestBroker) -> None:
    async with comet.Producer(broker.address) as producer:
        for value, key in ODD:
            await producer.publish(
                "quotes", value, key=key, headers=[("a", b"1"), ("a", b"\xff")], timestamp_us=1_700_000_000_000_001
            )


async def exported(http: httpx.AsyncClient, form: str, path: str = EXPORT, **query: Any) -> httpx.Response:
    answer = await http.get(path, params={"format": form, **query})
    assert answer.status_code == 200, answer.text
    topic = path.split("/")[3]
    assert answer.headers["content-disposition"] == f'attachment; filename="{topic}.{form}"'
    return answer


async def test_lines_and_arrays_hold_what_the_api_gives(http: httpx.AsyncClient, odd: None) -> None:
    expected = (await http.get("/v1/topics/quotes/records")).json()["records"]
    assert lines_of(await exported(http, "ndjson")) == expected
    answer = await exported(http, "json")
    assert json.loads(answer.content) == expected
    assert b"12345678901234567890" in answer.content


async def test_csv_holds_all_and_no_formula(http: httpx.AsyncClient, odd: None) -> None:
    answer = await exported(http, "csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [row["offset"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert {row["timestamp"] for row in rows} == {"2023-11-14T22:13:20.000001Z"}
    assert [row["key"] for row in rows] == ["EURUSD", "'=1+1", "base64:/w==", "", ""]
    assert [row["value"] for row in rows] == [ODD[0][0].decode(), 'a,"b"\nc é', "base64:/wA=", "", "'@SUM(A1)"]  # type: ignore[union-attr]
    assert json.loads(rows[0]["headers"]) == [["a", "1"], ["a", "base64:/w=="]]


async def test_parquet_is_read_back_as_it_was(
    http: httpx.AsyncClient, odd: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "GROUP_ROWS", 2)
    monkeypatch.setattr(export, "AT_ONCE", 2)
    table = pq.read_table(io.BytesIO((await exported(http, "parquet")).content))
    assert table.column("offset").to_pylist() == [0, 1, 2, 3, 4]
    assert table.column("value").to_pylist() == [value for value, _ in ODD]
    assert table.column("key").to_pylist() == [key for _, key in ODD]
    assert table.column("headers").to_pylist()[0] == [{"name": "a", "value": b"1"}, {"name": "a", "value": b"\xff"}]
    assert table.column("timestamp").to_pylist()[0].microsecond == 1


@pytest.mark.parametrize(("form", "size"), [("json", 3), ("ndjson", 0), ("csv", 1), ("parquet", 1)])
async def test_of_nothing_it_is_an_empty_file_of_its_kind(http: httpx.AsyncClient, form: str, size: int) -> None:
    answer = await exported(http, form, "/v1/topics/empty/export")
    if form == "parquet":
        assert pq.read_table(io.BytesIO(answer.content)).num_rows == 0
    elif form == "json":
        assert answer.json() == []
    else:
        assert len(answer.content.splitlines()) == size


@pytest.mark.parametrize("form", ["json", "ndjson", "csv", "parquet"])
async def test_one_that_is_not_done_in_time_breaks_off_and_is_no_whole_answer(
    broker: comet.testing.TestBroker, form: str
) -> None:
    async with comet.Producer(broker.address) as producer:
        await (await producer.send_many("quotes", [b"1"] * 5_000, partition=0))  # more than one read
    async with gateway(broker.address, export_s=1e-6) as http:
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            await http.get(EXPORT, params={"format": form})


async def test_it_takes_what_a_search_takes(http: httpx.AsyncClient, odd: None) -> None:
    found = lines_of(await exported(http, "ndjson", key="eur", filter="bid>1", order="newest"))
    assert [one["offset"] for one in found] == ["0"]
    assert len(lines_of(await exported(http, "ndjson", limit=2))) == 2
    problem_of(await http.get(EXPORT, params={"format": "xlsx"}), 422, "VALIDATION")
    problem_of(await http.get(EXPORT, params={"filter": "bid"}), 400, "MALFORMED_FILTER")


async def test_without_pyarrow_parquet_is_refused_with_a_hint(
    http: httpx.AsyncClient, odd: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    answer = await http.get(EXPORT, params={"format": "parquet"})
    assert ".[arrow]" in problem_of(answer, 406, "NOT_ACCEPTABLE")["hint"]
