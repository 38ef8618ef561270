"""Topics, groups and brokers over HTTP, against one real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from math import lcm
from typing import Any

import pytest

import comet
import comet.testing
from comet.processes.ports import HeldPorts
from comet.records import partition_for
from tests.integration.resources_client import Api, api


@pytest.fixture
async def broker() -> AsyncIterator[comet.testing.TestBroker]:
    async with comet.testing.broker({"quotes": 3}) as one:
        yield one


@pytest.fixture
async def http(broker: comet.testing.TestBroker) -> AsyncIterator[Api]:
    async with api(broker.address) as one:
        yield one


@pytest.fixture
async def filled(broker: comet.testing.TestBroker, http: Api) -> Api:
    """Ten records in each partition; the time of each, in seconds since 1970, is its offset."""
    async with comet.Producer(broker.address) as producer:
        for index in range(3):
            for number in range(10):
                await producer.send("quotes", b"x", partition=index, timestamp_us=number * 1_000_000)
        await producer.flush()
    return http


# ---- topics


async def test_a_topic_is_made_looked_at_altered_and_deleted(http: Api) -> None:
    made = await http.client.post(
        "/v1/topics", json={"name": "trades", "partitions": 2, "config": {"retention_bytes": "1000", "flush": "os"}}
    )
    assert made.status_code == 201
    assert made.headers["location"] == "/v1/topics/trades"
    topic = made.json()
    assert (topic["name"], topic["partition_count"], topic["replicas"], topic["in_sync"]) == ("trades", 2, 1, 1)
    assert (topic["under_replicated"], topic["leaderless"], topic["internal"]) == (0, 0, False)
    assert (topic["config"]["retention_bytes"], topic["config"]["flush"]) == ("1000", "os")
    found = await http.get("/topics/trades")
    assert {name: found[name] for name in topic} == topic
    assert [one["partition"] for one in found["partitions"]] == [0, 1]
    first = found["partitions"][0]
    assert (first["leader"], first["replicas"], first["in_sync"]) == (1, [1], [1])
    assert (first["log_start"], first["log_end"], first["records"], first["segments"]) == ("0", "0", "0", 1)
    assert found["totals"]["complete"]
    changed = await http.ask("PATCH", "/topics/trades", {"retention_ms": 60_000, "min_insync": None})
    assert changed["changed"] == ["retention_ms"]
    assert (changed["before"]["retention_ms"], changed["after"]["retention_ms"]) == ("604800000", "60000")
    assert (await http.get("/topics/trades"))["config"] == changed["after"]
    gone = await http.delete("/topics/trades")
    assert (gone["dry_run"], gone["partitions"]) == (False, 2)
    for method in ("GET", "DELETE"):
        problem = await http.ask(method, "/topics/trades", status=404)
        assert (problem["code"], problem["type"]) == ("TOPIC_NOT_FOUND", "urn:comet:problem:TOPIC_NOT_FOUND")
    assert (await http.ask("PATCH", "/topics/trades", {}, status=404))["code"] == "TOPIC_NOT_FOUND"


async def test_a_topic_that_exists_is_a_conflict(http: Api) -> None:
    assert (await http.post("/topics", {"name": "quotes"}, status=409))["code"] == "TOPIC_EXISTS"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "no spaces"},
        {"name": "a", "partitions": 0},
        {"name": "a", "partitions": "2"},
        {"name": "a", "partitions": 1_001},
        {"name": "a", "replicas": 16},
        {"name": "a", "colour": "red"},
        {"name": "a", "config": {"flush": "sometimes"}},
        {"name": "a", "config": {"retention_ms": "soon"}},
        {"name": "a", "config": {"retention_ms": "9223372036854775808"}},
        {"name": "a", "config": {"retention_ms": "-2"}},
        {"name": "a", "config": {"segment_bytes": 1}},
        {"name": "a", "config": {"segment_bytes": -1}},
        [],
        None,
    ],
)
async def test_what_does_not_fit_the_schema_is_refused(http: Api, body: Any) -> None:
    assert (await http.post("/topics", body, status=422))["code"] == "VALIDATION"
    assert (await http.get("/topics"))["total"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {"name": "a", "replicas": 2},  # there is one broker
        {"name": "a", "config": {"min_insync": 2}},
    ],
)
async def test_what_fits_but_makes_no_sense_is_refused(http: Api, body: Any) -> None:
    assert (await http.post("/topics", body, status=400))["code"] == "INVALID_ARGUMENT"
    config = body.get("config")
    if config:
        await http.ask("PATCH", "/topics/quotes", config, status=400)
        await http.ask("PATCH", "/topics/quotes", config, dry_run=True, status=400)


async def test_pages_of_topics_hold_each_once(http: Api) -> None:
    names = [f"page-{number:02}" for number in range(12)]
    for name in [*names, "__store"]:
        await http.admin.create_topic(name)
    for limit in (1, 5, 12, 1000):
        found: list[str] = []
        after = ""
        while True:
            page = await http.get("/topics", filter="PAGE", limit=limit, after=after)
            assert page["total"] == 12 and 1 <= len(page["items"]) <= limit
            found += [one["name"] for one in page["items"]]
            if page["next"] is None:
                break
            after = page["next"]
        assert found == names
    assert [one["name"] for one in (await http.get("/topics", filter="store"))["items"] if one["internal"]] == [
        "__store"
    ]
    assert (await http.get("/topics", after="zzz"))["items"] == []
    for wrong in ({"limit": 0}, {"limit": 1_001}, {"limit": "1.0"}, {"limit": "x"}, {"after": "a" * 250}):
        await http.get("/topics", **wrong, status=422)


async def test_what_has_failed_on_a_broker_is_told_and_resumed(http: Api) -> None:
    (broker,) = (await http.get("/brokers"))["items"]
    assert (await http.get(f"/brokers/{broker['id']}"))["failed"] == []
    nothing = {"dry_run": True, "resumed": 0, "failed": []}
    assert await http.post(f"/brokers/{broker['id']}/resume", dry_run=True) == nothing
    assert await http.post(f"/brokers/{broker['id']}/resume") == {**nothing, "dry_run": False}
    await http.post("/brokers/99/resume", status=404)


async def test_a_dry_run_of_deleting_a_topic_says_what_goes(filled: Api) -> None:
    await filled.admin.reset_group("engine", "earliest", topics=["quotes"])
    effect = await filled.delete("/topics/quotes", dry_run=True)
    assert (effect["dry_run"], effect["records"], effect["partitions"], effect["complete"]) == (True, "30", 3, True)
    assert int(effect["bytes"]) > 0
    assert [(one["name"], one["state"], one["members"]) for one in effect["groups"]] == [("engine", "empty", 0)]
    assert (await filled.get("/topics/quotes"))["totals"]["records"] == "30"
    assert await filled.delete("/topics/quotes") == {**effect, "dry_run": False}


@pytest.mark.parametrize("query", [{"dryrun": "true"}, {"dry_run": ["true", "false"]}, {"dry_run": "True"}])
async def test_a_mistake_in_dry_run_deletes_nothing(http: Api, query: Any) -> None:
    problem = await http.delete("/topics/quotes", **query, status=422)
    assert problem["code"] == "VALIDATION" and "dry_run" in problem["detail"]
    assert (await http.get("/topics"))["total"] == 1


async def test_a_dry_run_of_altering_says_how_many_records_go(filled: Api) -> None:
    async def effect(**body: Any) -> Any:
        return (await filled.ask("PATCH", "/topics/quotes", body, dry_run=True))["records"]

    assert await effect(retention_records=4) == "0"  # they are in the newest segment
    assert await effect(retention_ms="3600000") == "0"  # the records say that they are of 1970, but were written now
    assert await effect(flush="always") == "0"
    assert (await filled.get("/topics/quotes"))["config"]["retention_records"] == "-1"


async def test_settings_say_where_they_come_from_and_can_be_unset() -> None:
    async with (
        comet.testing.broker(retention_ms=3_600_000, flush=comet.Flush.ALWAYS) as broker,
        api(broker.address) as http,
    ):
        listed = {one["name"]: one for one in (await http.get("/topic-settings"))["items"]}
        assert (listed["retention_ms"]["default"], listed["retention_ms"]["source"]) == ("3600000", "cluster")
        assert (listed["segment_ms"]["default"], listed["segment_ms"]["source"]) == ("86400000", "built-in")
        week = {"name": "weekly", "config": {"retention_ms": "604800000"}}
        assert (await http.client.post("/v1/topics", json=week)).json()["config"]["retention_ms"] == "604800000"
        found = await http.get("/topics/weekly")
        assert (found["sources"]["retention_ms"], found["defaults"]["retention_ms"]) == ("topic", "3600000")
        assert (found["sources"]["flush"], found["sources"]["segment_ms"]) == ("cluster", "built-in")
        change = {"unset": ["retention_ms"], "flush": "always"}
        effect = await http.ask("PATCH", "/topics/weekly", change, dry_run=True)
        same = await http.get("/topics/weekly")
        assert all(same[name] == found[name] for name in ("config", "sources", "defaults"))
        done = await http.ask("PATCH", "/topics/weekly", change)
        assert {**effect, "dry_run": False} == done
        assert done["changed"] == ["retention_ms", "flush"]  # the value is as before, but the topic's own now
        assert done["after"]["retention_ms"] == "3600000"
        assert (done["sources"]["retention_ms"], done["sources"]["flush"]) == ("cluster", "topic")
        both = {"unset": ["flush"], "flush": "os"}
        assert "both set and unset" in (await http.ask("PATCH", "/topics/weekly", both, status=422))["detail"]
        await http.ask("PATCH", "/topics/weekly", {"unset": ["retain"]}, status=422)
        info = await http.admin.describe_topic("weekly")
        assert info.source("flush") is comet.SettingSource.TOPIC
        with pytest.raises(comet.InvalidArgument, match="unknown topic setting: 'retain'"):
            await http.admin.alter_topic("weekly", unset=["retain"])


async def test_more_partitions_move_keys(http: Api) -> None:
    effect = await http.post("/topics/quotes/partitions", {"total": 6}, dry_run=True)
    assert (effect["before"], effect["after"], effect["keys_moved"]) == (3, 6, 0.5)
    assert (await http.get("/topics/quotes"))["partition_count"] == 3
    assert await http.post("/topics/quotes/partitions", {"total": 6}) == {**effect, "dry_run": False}
    assert (await http.get("/topics/quotes"))["partition_count"] == 6
    again = await http.post("/topics/quotes/partitions", {"total": 6})
    assert (again["before"], again["keys_moved"]) == (6, 0.0)
    for dry_run in (True, False):
        await http.post("/topics/quotes/partitions", {"total": 5}, dry_run=dry_run, status=400)
    await http.post("/topics/none/partitions", {"total": 5}, status=404)


def test_the_share_of_keys_that_move_is_the_one_that_does() -> None:
    keys = [b"key-%d" % number for number in range(20_000)]
    for before, after in ((3, 6), (4, 6), (3, 7)):
        moved = sum(partition_for(key, before) != partition_for(key, after) for key in keys) / len(keys)
        assert moved == pytest.approx(1 - before / lcm(before, after), abs=0.02)


# ---- records


async def test_records_are_deleted_before_an_offset_or_a_time(filled: Api) -> None:
    async def starts() -> list[str]:
        return [one["log_start"] for one in (await filled.get("/topics/quotes"))["partitions"]]

    body: Any = {"before": "1970-01-01T00:00:04Z"}
    effect = await filled.post("/topics/quotes/records/delete", body, dry_run=True)
    assert effect["records"] == "12"
    assert effect["partitions"][2] == {"partition": 2, "log_start": "4", "records": "4", "error": None}
    assert await starts() == ["0", "0", "0"]
    assert await filled.post("/topics/quotes/records/delete", body) == {**effect, "dry_run": False}
    assert await starts() == ["4", "4", "4"]
    some = await filled.post("/topics/quotes/records/delete", {"before": "latest", "partitions": [1]})
    assert some["records"] == "6" and await starts() == ["4", "10", "4"]
    body = {"offsets": [{"partition": 0, "before": "6"}, {"partition": 1, "before": 2}]}
    own = await filled.post("/topics/quotes/records/delete", body)
    assert [(one["log_start"], one["records"]) for one in own["partitions"]] == [("6", "2"), ("10", "0")]
    await filled.post("/topics/quotes/records/delete", {"before": "9", "partitions": [2]})
    assert await starts() == ["6", "10", "9"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"before": "5"}, 400),  # in which of the three?
        ({"before": "tomorrow"}, 400),
        ({"offsets": [{"partition": 0, "before": "11"}]}, 400),
        ({"offsets": [{"partition": 0, "before": "-1"}]}, 422),
        ({"offsets": [{"partition": 0, "before": "1"}, {"partition": 0, "before": "2"}]}, 400),
        ({"before": "latest", "partitions": [0, 0]}, 400),
        ({"before": "latest", "partitions": [3]}, 404),
        ({"before": str(2**63), "partitions": [0]}, 400),
        ({"before": "-99999999999999999999d"}, 400),
        ({}, 422),
        ({"before": "latest", "offsets": []}, 422),
        ({"offsets": [], "partitions": [0]}, 422),
    ],
)
async def test_a_deletion_that_makes_no_sense_deletes_nothing(filled: Api, body: Any, status: int) -> None:
    for dry_run in (True, False):
        await filled.post("/topics/quotes/records/delete", body, dry_run=dry_run, status=status)
    assert (await filled.get("/topics/quotes"))["totals"]["records"] == "30"


async def test_a_partition_tells_of_each_copy(filled: Api) -> None:
    found = await filled.get("/topics/quotes/partitions/1")
    assert (found["topic"], found["partition"], found["log_end"], found["failed"], found["lost"]) == (
        "quotes", 1, "10", False, []
    )  # fmt: skip
    (copy,) = found["copies"]
    assert (copy["broker"], copy["leader"], copy["in_sync"], copy["log_end"]) == (1, True, True, "10")
    assert (await filled.get("/topics/quotes/partitions/3", status=404))["code"] == "PARTITION_NOT_FOUND"
    assert (await filled.get("/topics/quotes/partitions/x", status=422))["code"] == "VALIDATION"
    assert (await filled.get(f"/topics/quotes/partitions/{2:050}"))["partition"] == 2
    assert (await filled.get(f"/topics/quotes/partitions/{10**100}", status=422))["code"] == "VALIDATION"


async def test_positions_stand_for_offsets(filled: Api) -> None:
    async def offsets(at: str) -> list[str]:
        found = (await filled.get("/topics/quotes/offsets", at=at))["partitions"]
        return [one["offset"] for one in found]

    assert await offsets("latest") == ["10", "10", "10"]
    assert await offsets("1970-01-01T00:00:03Z") == ["3", "3", "3"]
    for wrong in ("then", str(2**63), "-99999999999999999999d"):
        await filled.get("/topics/quotes/offsets", at=wrong, status=400)
    await filled.get("/topics/none/offsets", status=404)


# ---- groups


async def test_positions_are_committed_and_read(filled: Api) -> None:
    def position(partition: int, offset: int, topic: str = "quotes") -> dict[str, Any]:
        return {"topic": topic, "partition": partition, "offset": str(offset)}

    await filled.get("/groups/engine/offsets", status=404)
    done = await filled.ask("PUT", "/groups/engine/offsets", {"offsets": [position(0, 4), position(1, 7)]})
    assert done["offsets"] == [{**position(0, 4), "error": None}, {**position(1, 7), "error": None}]
    found = (await filled.get("/groups/engine/offsets"))["offsets"]
    assert found == [{**position(0, 4), "epoch": None}, {**position(1, 7), "epoch": None}]
    body = {"offsets": [position(0, 2), position(1, 99), position(7, 0), position(0, 0, "none")]}
    mixed = await filled.ask("PUT", "/groups/engine/offsets", body, status=207)
    assert [one["offset"] for one in mixed["offsets"]] == ["4", None, None, None]
    assert [one["error"] and one["error"]["code"] for one in mixed["offsets"]] == [
        None, "OFFSET_OUT_OF_RANGE", "PARTITION_NOT_FOUND", "TOPIC_NOT_FOUND"
    ]  # fmt: skip
    wrong: Any
    for wrong in ({"offsets": []}, {"offsets": [position(0, 1), position(0, 2)]}, {"offsets": [{}]}):
        await filled.ask("PUT", "/groups/engine/offsets", wrong, status=422)
    await filled.ask("PUT", "/groups/engine/offsets", {"offsets": [position(0, -1)]}, status=422)


async def test_a_group_is_described_reset_and_deleted(filled: Api) -> None:
    body = {"to": "latest", "topics": ["quotes"]}
    effect = await filled.post("/groups/engine/reset", body, dry_run=True)
    assert [(one["before"], one["after"]) for one in effect["partitions"]] == [(None, "10")] * 3
    await filled.get("/groups/engine", status=404)
    await filled.post("/groups/engine/reset", body)
    back = await filled.post("/groups/engine/reset", {"shift": "-3"})
    assert (back["repeated"], back["skipped"]) == ("9", "0")
    one = {"offsets": [{"topic": "quotes", "partition": 2, "offset": "9"}]}
    assert (await filled.post("/groups/engine/reset", one))["skipped"] == "2"
    part = {"to": "1970-01-01T00:00:01Z", "topics": [{"topic": "quotes", "partitions": [0]}]}
    assert (await filled.post("/groups/engine/reset", part))["partitions"][0]["after"] == "1"
    group = await filled.get("/groups/engine")
    assert (group["kind"], group["state"], group["members"], group["topics"]) == (
        "consumer",
        "empty",
        [],
        ["quotes"],
    )
    assert [(lag["committed"], lag["lag"]) for lag in group["partitions"]] == [("1", "9"), ("7", "3"), ("9", "1")]
    assert group["lag"] == "13" and group["age_s"] > 0
    lag = await filled.get("/groups/engine/lag", points=1)
    assert [one["lag"] for one in lag["now"]] == ["9", "3", "1"]
    gone = await filled.delete("/groups/engine", dry_run=True)
    assert (gone["offsets"], gone["lag"]) == (3, "13")
    assert await filled.delete("/groups/engine") == {**gone, "dry_run": False}
    for path in ("", "/lag", "/offsets"):
        assert (await filled.get(f"/groups/engine{path}", status=404))["code"] == "GROUP_NOT_FOUND"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"to": "latest", "shift": 1}, 422),
        ({"offsets": [{"topic": "quotes", "partition": 0, "offset": 0}], "topics": ["quotes"]}, 422),
        ({"to": "someday"}, 400),
        ({"to": str(2**63)}, 400),
        ({"to": "-99999999999999999999d"}, 400),
        ({"to": "latest", "topics": ["none"]}, 404),
        ({"to": "latest"}, 404),  # a new group, and no topics
        ({"to": "latest", "topics": [{"topic": "quotes", "partitions": [9]}]}, 400),
    ],
)
async def test_a_reset_that_makes_no_sense_is_refused(filled: Api, body: Any, status: int) -> None:
    await filled.post("/groups/engine/reset", body, status=status)


async def test_members_are_shown_and_keep_their_group(broker: comet.testing.TestBroker, filled: Api) -> None:
    async with comet.GroupConsumer(broker.address, "quotes", group="engine", name="engine-1") as member:
        await member.start()
        group = await filled.get("/groups/engine")
        assert [(one["client"], one["owned"]) for one in group["members"]] == [
            ("engine-1", [{"topic": "quotes", "partitions": [0, 1, 2]}])
        ]
        assert {lag["member"] for lag in group["partitions"]} == {group["members"][0]["id"]}
        for dry_run in (True, False):
            problem = await filled.delete("/groups/engine", dry_run=dry_run, status=409)
            assert (problem["code"], problem["hint"]) == ("GROUP_NOT_EMPTY", "Stop the members first.")
            body: Any = {"to": "earliest", "topics": ["quotes"]}
            await filled.post("/groups/engine/reset", body, dry_run=dry_run, status=409)
        body = {"offsets": [{"topic": "quotes", "partition": 0, "offset": 1}]}
        await filled.ask("PUT", "/groups/engine/offsets", body, status=409)
        (reading,) = (await filled.delete("/topics/quotes", dry_run=True))["groups"]
        assert (reading["name"], reading["state"], reading["members"]) == ("engine", "stable", 1)


async def test_pages_of_groups_hold_each_once(broker: comet.testing.TestBroker, http: Api) -> None:
    await http.admin.create_topic("trades")
    names = sorted([f"engine-{number}" for number in range(7)] + ["Other"])
    for name in names:
        await http.admin.commit_offsets(name, {("trades" if name == "Other" else "quotes", 0): 0})
    for limit in (1, 3, 8, 100):
        found: list[str] = []
        after = ""
        while True:
            page = await http.get("/groups", limit=limit, after=after)
            assert page["total"] == 8 and 1 <= len(page["items"]) <= limit
            found += [one["name"] for one in page["items"]]
            if page["next"] is None:
                break
            after = page["next"]
        assert found == names
    assert [one["name"] for one in (await http.get("/groups", filter="OTH"))["items"]] == ["Other"]
    assert [one["name"] for one in (await http.get("/groups", topic="trades"))["items"]] == ["Other"]
    assert (await http.get("/groups", state="stable"))["total"] == 0
    async with comet.GroupConsumer(broker.address, "quotes", group="live") as member:
        await member.start()
        assert [one["name"] for one in (await http.get("/groups", state="stable"))["items"]] == ["live"]
    await http.get("/groups", state="odd", status=422)


# ---- brokers


async def test_the_cluster_and_its_broker_are_described(filled: Api) -> None:
    cluster = await filled.get("/cluster")
    assert (cluster["controller"], cluster["topics"], cluster["partitions"]) == (1, 1, 3)
    (broker,) = cluster["brokers"]
    assert (broker["id"], broker["controller"], broker["draining"]) == (1, True, False)
    listed = await filled.get("/brokers")
    assert (listed["items"], listed["next"], listed["total"]) == ([broker], None, 1)
    assert (await filled.get("/brokers", filter="elsewhere"))["total"] == 0
    assert (await filled.get("/brokers", after=1))["items"] == []
    found = await filled.get("/brokers/1")
    assert {name: found[name] for name in broker} == broker
    assert (found["partitions"], found["leading"], found["problems"], found["failures"]) == (3, 3, [], 0)
    assert int(found["bytes"]) > 0 and int(found["free_bytes"]) > 0 and int(found["started_us"]) > 0
    numbers = await filled.get("/brokers/1/statistics")
    assert numbers["broker_id"] == 1 and len(numbers["partitions"]) == 3
    for path in ("/brokers/2", "/brokers/2/statistics"):
        assert (await filled.get(path, status=404))["code"] == "BROKER_NOT_FOUND"


async def test_a_broker_alone_can_pass_on_nothing(http: Api) -> None:
    effect = await http.post("/brokers/1/drain", dry_run=True)
    assert (effect["leading"], effect["staying"], effect["draining"]) == (3, 3, False)
    assert effect["partitions"][0] == {"topic": "quotes", "partition": 0, "to": None}
    await http.post("/brokers/2/drain", dry_run=True, status=404)
    await http.post("/brokers/1/drain", dry_run="yes", status=422)
    assert not (await http.get("/brokers/1"))["draining"]


async def test_nobody_there_is_503_with_a_time_to_wait() -> None:
    held = HeldPorts(1)
    async with api(f"127.0.0.1:{held.numbers[0]}", timeout_ms=300) as http:
        for path in ("/topics", "/topics/t", "/groups", "/groups/g/offsets", "/brokers", "/cluster", "/brokers/1"):
            answer = await http.client.get(f"/v1{path}")
            assert (answer.status_code, answer.json()["code"]) == (503, "UNAVAILABLE"), path
            assert int(answer.headers["retry-after"]) >= 1
