"""A topic with a batch whose columns do not add up, through the gateway: what lies before and behind it is given, and
what is not is said, by offsets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import comet
from tests import poison
from tests.integration.gateway_http import NDJSON
from tests.integration.live_gateway import Gateway, live_gateway
from tests.integration.records_client import lines_of, problem_of

RECORDS = "/v1/topics/one/records"
SEARCH = "/v1/topics/one/search"
EXPORT = "/v1/topics/one/export"
MISSING = [{"partition": 0, "first": "2", "end": "7", "reason": "damaged"}]
READABLE = ["0", "1", "7", "8"]


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    """Offsets 2 to 6 of one/0 cannot be read."""
    async with live_gateway({"one": 1, "dead": 1}) as running:
        await poison.poison(running.broker, "one")
        yield running


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as client:
        yield client


def offsets(records: list[Any]) -> list[str]:
    return [record["offset"] for record in records]


async def test_a_partition_is_read_up_to_it_and_on_behind_it(http: httpx.AsyncClient) -> None:
    path = "/v1/topics/one/partitions/0/records"
    answer = (await http.get(path)).json()
    assert (offsets(answer["records"]), answer["next_offset"]) == (["0", "1"], "2")
    problem = problem_of(await http.get(path, params={"cursor": answer["cursor"]}), 410, "DATA_LOSS")
    assert (problem["partition"], problem["first"], problem["end"]) == (0, "2", "7")
    assert "the offsets of the values" in problem["reason"]
    for where in ({"cursor": problem["cursor"]}, {"offset": problem["end"]}):
        answer = (await http.get(path, params=where)).json()
        assert (offsets(answer["records"]), answer["next_offset"]) == (["7", "8"], "9")


@pytest.mark.parametrize("order", ["oldest", "newest"])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_a_topic_is_read_past_it(http: httpx.AsyncClient, order: str, limit: int) -> None:
    found: list[str] = []
    skipped: set[tuple[str, str]] = set()
    query: dict[str, Any] = {"order": order, "limit": limit}
    for _ in range(30):
        answer = (await http.get(RECORDS, params=query)).json()
        found += offsets(answer["records"])
        [lane] = answer["partitions"]
        skipped |= {(one["first"], one["end"]) for one in lane.get("unreadable", [])}
        query["cursor"] = answer["cursor"]
        if not answer["more"]:
            break
    assert found == (READABLE if order == "oldest" else READABLE[::-1])
    assert skipped
    assert {end for _, end in skipped} == {"7"} and min(first for first, _ in skipped) == "2"
    lines = await http.get(RECORDS, headers={"accept": NDJSON})
    assert offsets(lines_of(lines)) == READABLE
    assert lines.headers["comet-unreadable"] == "0/2-7"


@pytest.mark.parametrize("order", ["oldest", "newest"])
@pytest.mark.parametrize("value", ["", "7"])
async def test_a_search_counts_what_it_cannot_read(http: httpx.AsyncClient, order: str, value: str) -> None:
    query = {"order": order} | ({"value": value} if value else {})
    lines = lines_of(await http.get(SEARCH, params=query))
    end = lines[-1]["end"]
    expected = [offset for offset in READABLE if value in offset]
    found = offsets([line["record"] for line in lines if "record" in line])
    assert found == (expected if order == "oldest" else expected[::-1])
    assert (end["reason"], end["unreadable"]) == ("end", "5")


@pytest.mark.parametrize("form", ["ndjson", "json", "csv", "parquet"])
async def test_an_export_is_whole_or_says_that_it_is_not(http: httpx.AsyncClient, form: str) -> None:
    problem = problem_of(await http.get(EXPORT, params={"format": form, "start": "2"}), 410, "DATA_LOSS")
    assert (problem["first"], problem["end"]) == ("2", "7")
    with pytest.raises(httpx.RemoteProtocolError):
        await http.get(EXPORT, params={"format": form})
    answer = await http.get(EXPORT, params={"format": form, "corrupt": "skip"})
    assert answer.status_code == 200
    if form == "ndjson":
        assert offsets([json.loads(line) for line in answer.text.splitlines()]) == READABLE


async def test_a_value_in_it_is_a_problem(http: httpx.AsyncClient) -> None:
    problem_of(await http.get("/v1/topics/one/partitions/0/records/4/value"), 410, "DATA_LOSS")
    assert (await http.get("/v1/topics/one/partitions/0/records/7/value")).content == b"7"


async def test_an_event_stream_says_what_is_lost_and_goes_on(gateway: Gateway) -> None:
    async with gateway.stream("one/stream?start=earliest") as stream:
        got: list[Any] = []
        while len(got) < 3 or got[-1] != "8":
            name, event = await stream.next()
            if name == "lost":
                got.append((event["count"], event["missing"]))
            elif name != "subscribed":
                got.append(event["offset"])
    assert got == ["0", "1", (5, MISSING), "7", "8"]


async def test_a_stream_that_is_at_the_end_says_it_and_goes_on(gateway: Gateway) -> None:
    async with gateway.stream("one/stream") as stream:
        await stream.next()
        await poison.poison(gateway.broker, "one")
        got: list[Any] = []
        while len(got) < 3 or got[-1] != "17":
            name, event = await stream.next()
            got.append(event["missing"] if name == "lost" else event["offset"])
    assert got == ["9", "10", [{"partition": 0, "first": "11", "end": "16", "reason": "damaged"}], "16", "17"]


async def test_sockets_groups_and_replays_go_on(gateway: Gateway) -> None:
    async with gateway.socket() as socket:
        await socket.subscribe("a", "one", start="earliest")
        assert offsets(await socket.records("a", 4)) == READABLE
        assert (await socket.until("lost", id="a"))["missing"] == MISSING
        told = await socket.ask(
            type="subscribe", id="g", topic="one", start="earliest", group={"name": "g", "auto": True}
        )
        assert told["type"] == "subscribed", told
        assert offsets(await socket.records("g", 4)) == READABLE
        assert (await socket.until("lost", id="g"))["missing"] == MISSING
        told = await socket.ask(
            type="subscribe", id="s", topic="one", start="earliest",
            group={"name": "s", "kind": "share", "dead_letter": "dead"},
        )  # fmt: skip
        assert told["type"] == "subscribed", told
        assert sorted(offsets(await socket.records("s", 4))) == READABLE
        assert (await socket.until("lost", id="s"))["missing"] == MISSING
        window = {"from": "1970-01-01T00:00:01Z", "to": "1970-01-01T00:00:02Z", "speed": 0}
        await socket.subscribe("r", "one", replay=window)
        assert offsets(await socket.records("r", 4)) == READABLE
        assert (await socket.until("lost", id="r"))["missing"] == MISSING
    async with comet.Consumer(gateway.broker, "dead", start="earliest") as letters:
        assert [(await letters.__anext__()).value for _ in range(5)] == [None] * 5


async def test_a_note_of_it_is_shown_and_cannot_be_redriven(gateway: Gateway, http: httpx.AsyncClient) -> None:
    app = comet.App(gateway.broker)

    @app.on("one", group="g", start="earliest", dead_letter="dead")
    async def handle(record: comet.Record[bytes]) -> None:
        if record.offset == 8:
            app.stop()

    await app.serve()
    [letter] = (await http.get("/v1/dead-letters/dead")).json()["items"]
    assert (letter["topic"], letter["source_offset"], letter["group"]) == ("one", "2", "g")
    lines = lines_of(await http.post("/v1/dead-letters/dead/redrive", json={"filter": {"group": "g"}}))
    assert (lines[-1]["end"]["done"], lines[-1]["end"]["failed"]) == (0, 1)
    lines = lines_of(await http.post("/v1/dead-letters/dead/discard", json={"filter": {"group": "g"}}))
    assert (lines[-1]["end"]["done"], lines[-1]["end"]["failed"]) == (1, 0)
