"""Lines of records over HTTP, answered by lines: each way to go wrong, back-pressure both ways, and the end."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from typing import Any

import httpx
import pytest
import zstandard

import comet
import comet.testing
from comet_gateway.config import MIB
from comet_gateway.records.ndjson import LinesAnswer
from tests.integration.gateway_http import NDJSON, Wire, gateway
from tests.integration.records_client import TOPIC, broker, http, lines_of, problem_of, stored

__all__ = ["broker", "http"]  # fixtures


async def test_lines_are_answered_by_lines(broker: comet.testing.TestBroker, http: httpx.AsyncClient) -> None:
    body = b'{"value":1}\r\n\n{"value":tru}\n{"text":"a","partition":7}\n{"value":2,"value":3}\n{"text":"last"}'
    answer = await http.post(TOPIC, content=body, headers={"content-type": NDJSON})
    assert answer.status_code == 200
    found = lines_of(answer)
    assert [line.get("offset", line.get("problem", {}).get("code")) for line in found] == [
        "0", "MALFORMED_BODY", "PARTITION_NOT_FOUND", "VALIDATION", "1",
    ]  # fmt: skip
    assert [line["problem"].get("line") for line in found if "problem" in line] == [3, None, 5]
    assert found[1]["problem"]["position"] == 10
    assert [record.value for record in await stored(broker)] == [b"1", b"last"]


async def test_many_lines_pass_through(broker: comet.testing.TestBroker, http: httpx.AsyncClient) -> None:
    count = 50_000
    lines = b"".join(b'{"key":"k%d","value":%d}\n' % (number % 100, number) for number in range(count))
    for body, headers in ((lines, {}), (gzip.compress(lines), {"content-encoding": "gzip"})):
        answer = await http.post("/v1/topics/wide/records", content=body, headers={"content-type": NDJSON} | headers)
        results = lines_of(answer)
        assert len(results) == count
        parts = [await stored(broker, "wide", partition) for partition in range(4)]
        for number in range(0, count, 997):
            result = results[number]
            assert parts[result["partition"]][int(result["offset"])].value == b"%d" % number


async def test_no_lines_are_no_answer(http: httpx.AsyncClient) -> None:
    for body in (b"", b"\n \r\n"):
        answer = await http.post(TOPIC, content=body, headers={"content-type": NDJSON})
        assert (answer.status_code, answer.content) == (200, b"")


async def test_lines_to_a_topic_that_is_not_there_are_a_problem(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/topics/none/records", content=b'{"value":1}\n', headers={"content-type": NDJSON})
    problem_of(answer, 404, "TOPIC_NOT_FOUND")


async def test_lines_to_a_topic_that_goes_away_are_problems(
    broker: comet.testing.TestBroker, http: httpx.AsyncClient
) -> None:
    wire = await Wire.open(http)
    await wire.begin(TOPIC, NDJSON)
    await wire.chunk(b'{"value":1}\n')
    assert (await wire.head())[0] == 200
    assert json.loads(await wire.line())["offset"] == "0"
    async with comet.Admin(broker.address) as admin:
        await admin.delete_topic("quotes")
    for _ in range(2):
        await wire.chunk(b'{"value":1}\n{"value":2}\n')
        assert [json.loads(await wire.line())["problem"]["code"] for _ in range(2)] == ["TOPIC_NOT_FOUND"] * 2
    await wire.chunk(b"")
    assert await wire.line() == b""
    wire.close()


async def test_a_line_that_is_too_long_is_one_problem(broker: comet.testing.TestBroker) -> None:
    async with gateway(broker.address, line_bytes_max=1000) as http:
        body = b'{"value":1}\n{"text":"' + b"x" * 5000 + b'"}\n{"value":2}\n'
        found = lines_of(await http.post(TOPIC, content=body, headers={"content-type": NDJSON}))
        assert [line.get("offset", line.get("problem", {}).get("code")) for line in found] == [
            "0",
            "BODY_TOO_LARGE",
            "1",
        ]
        assert found[1]["problem"]["line"] == 2


async def test_a_packed_stream_that_breaks_ends_with_a_problem(
    broker: comet.testing.TestBroker, http: httpx.AsyncClient
) -> None:
    packed = gzip.compress(b'{"value":1}\n' * 10)[:-8]
    headers = {"content-type": NDJSON, "content-encoding": "gzip"}
    found = lines_of(await http.post(TOPIC, content=packed, headers=headers))
    assert [line["offset"] for line in found[:-1]] == [str(offset) for offset in range(10)]
    assert found[-1]["problem"]["code"] == "MALFORMED_BODY"


async def test_a_line_is_answered_while_the_next_one_is_still_to_come(http: httpx.AsyncClient) -> None:
    wire = await Wire.open(http)
    await wire.begin(TOPIC, NDJSON)
    for number in range(5):
        await wire.chunk(b'{"value":%d}\n{"val' % number)
        if number == 0:
            status, headers = await wire.head()
            assert (status, headers["content-type"], headers["cache-control"]) == (200, NDJSON, "no-store")
        assert json.loads(await wire.line()) == {"partition": 0, "offset": str(2 * number)}
        await wire.chunk(b'ue":1}\n')
        assert json.loads(await wire.line()) == {"partition": 0, "offset": str(2 * number + 1)}
    await wire.chunk(b"")
    assert await wire.line() == b""
    wire.close()


async def test_who_does_not_read_the_answers_is_not_read_from(broker: comet.testing.TestBroker) -> None:
    async with gateway(broker.address, answer_bytes_max=50_000) as http:
        wire = await Wire.open(http)
        wire.writer.transport.set_write_buffer_limits(0)
        await wire.begin(TOPIC, NDJSON)
        chunk = b'{"value":1}\n' * 5000
        sent = 0
        try:
            while sent < 5_000_000:
                async with asyncio.timeout(1.5):
                    await wire.chunk(chunk)
                sent += 5000
        except TimeoutError:
            pass
        written = len(await stored(broker))
        assert written <= sent + 5000 < 5_000_000
        # Somebody else is not kept waiting.
        assert (await http.post(TOPIC, json={"value": 2})).status_code == 200
        # Once it reads, it goes on.
        await wire.head()
        for offset in range(written):
            line = json.loads(await wire.line())
            assert line == {"partition": 0, "offset": str(offset)}
        wire.close()


async def test_who_never_reads_is_given_up(broker: comet.testing.TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()
    answering = LinesAnswer.__call__

    async def noting(answer: LinesAnswer, send: Any) -> None:
        try:
            await answering(answer, send)
        finally:
            ended.set()

    monkeypatch.setattr(LinesAnswer, "__call__", noting)
    async with gateway(broker.address, idle_s=0.3, answer_bytes_max=50_000) as http:
        wire = await Wire.open(http)
        await wire.begin(TOPIC, NDJSON)
        flooding = asyncio.create_task(flood(wire, b'{"value":1}\n' * 5000))
        await asyncio.wait_for(ended.wait(), 60)
        flooding.cancel()
        await asyncio.wait([flooding])
        wire.close()


async def test_a_gateway_that_stops_answers_what_it_has_read(http: httpx.AsyncClient) -> None:
    wire = await Wire.open(http)
    await wire.begin(TOPIC, NDJSON)
    await wire.chunk(b'{"value":1}\n{"value":2}\n{"val')
    await wire.head()
    assert [json.loads(await wire.line())["offset"] for _ in range(2)] == ["0", "1"]
    http.gateway.app.state.draining.set()  # type: ignore[attr-defined]
    assert json.loads(await wire.line())["problem"]["code"] == "DRAINING"
    assert await wire.line() == b""
    wire.close()


async def test_a_flood_of_wrong_lines_takes_little_memory(broker: comet.testing.TestBroker) -> None:
    async with gateway(broker.address, answer_bytes_max=1_000_000) as http:
        wire = await Wire.open(http)
        packed = zstandard.compress(b"1\n" * 4_000_000)
        await wire.begin(TOPIC, NDJSON, "content-encoding: zstd", f"content-length: {len(packed)}")
        tracemalloc.start()
        try:
            await wire.send(packed)
            await wire.head()
            for number in range(1, 20_001):
                problem = json.loads(await wire.line())["problem"]
                assert (problem["code"], problem["line"]) == ("VALIDATION", number)
            assert (await http.post(TOPIC, json={"value": 1})).status_code == 200
            assert tracemalloc.get_traced_memory()[1] < 40 * MIB
        finally:
            tracemalloc.stop()
            wire.close()


async def flood(wire: Wire, chunk: bytes) -> None:
    while True:
        await wire.chunk(chunk)


async def test_whole_lines_before_the_client_went_are_written(
    broker: comet.testing.TestBroker, http: httpx.AsyncClient
) -> None:
    wire = await Wire.open(http)
    await wire.begin(TOPIC, NDJSON)
    await wire.chunk(b'{"value":1}\n{"value":2}\n{"value":3}')
    await wire.head()
    assert [json.loads(await wire.line())["offset"] for _ in range(2)] == ["0", "1"]
    wire.close()
    assert (await http.post(TOPIC, json={"value": 4})).json()["results"] == [{"partition": 0, "offset": "2"}]
    assert [record.value for record in await stored(broker)] == [b"1", b"2", b"4"]
