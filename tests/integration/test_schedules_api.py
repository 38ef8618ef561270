"""Schedules for users: the SDK, REST and the command line, with a real broker that fires them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

import comet
import comet.testing
from comet_gateway import create_app
from comet_gateway.schemas.schedules_api import ScheduleDocument
from tests.integration.resources_client import Api, api
from tests.integration.secured_gateway import secured
from tests.integration.test_access_keys import TOPIC
from tests.integration.test_cli_flows import Up, serving
from tests.waiting import until_answered

DOCUMENT: Any = create_app().openapi()
NEVER = "at 2199-12-31T00:00Z"  # in this test


@pytest.fixture
async def broker() -> AsyncIterator[comet.testing.TestBroker]:
    async with comet.testing.broker({"orders": 2, "quotes": 1}) as one:
        yield one


@pytest.fixture
async def admin(broker: comet.testing.TestBroker) -> AsyncIterator[comet.Admin]:
    async with comet.Admin(broker.address) as one:
        yield one


async def records_of(address: str, topic: str, count: int) -> list[comet.Record[bytes]]:
    """The first records, as soon as they are there."""
    async with comet.Consumer(address, topic, start="earliest") as consumer:
        return [await anext(consumer) for _ in range(count)]


def headers_of(record: comet.Record[bytes]) -> dict[str, str]:
    return {name: value.decode() for name, value in record.headers}


async def is_over(admin: comet.Admin, topic: str, id_: str) -> bool:
    try:
        await admin.schedules.get_schedule(topic, id_)
    except comet.ScheduleNotFound:
        return True
    return False


# ---- SDK


async def test_a_schedule_that_is_due_writes_its_record_and_is_over(
    broker: comet.testing.TestBroker, admin: comet.Admin
) -> None:
    done = await admin.schedules.put_schedule(
        "orders", "open", "at 2026-01-01T00:00Z", value={"bid": 1.5}, key="ACME", headers={"own": "h"}, partition=1
    )
    assert (done.created, done.schedule.next_us, done.schedule.author) == (True, 1_767_225_600_000_000, "anonymous")
    (record,) = await records_of(broker.address, "orders", 1)
    assert (record.partition, record.key, record.value) == (1, b"ACME", b'{"bid":1.5}')
    assert record.timestamp_us == 1_767_225_600_000_000
    assert record.headers == [
        ("own", b"h"),
        ("comet-schedule-id", b"open"),
        ("comet-schedule-due", b"1767225600000000"),
        ("comet-schedule-count", b"1"),
    ]
    assert await until_answered(lambda: is_over(admin, "orders", "open"), within_s=30)


async def test_a_put_compares_the_revision_that_it_replaces(admin: comet.Admin) -> None:
    async def put(value: bytes, revision: int | None = None, *, dry_run: bool = False) -> comet.SchedulePut:
        return await admin.schedules.put_schedule(
            "orders", "report", NEVER, value=value, revision=revision, dry_run=dry_run
        )

    assert (await put(b"0", dry_run=True)).created
    assert await is_over(admin, "orders", "report")
    first = await put(b"1", -1)
    with pytest.raises(comet.RevisionMismatch) as caught:
        await put(b"2", -1)
    assert caught.value.revision == first.schedule.revision
    second = await put(b"2", first.schedule.revision)
    assert not second.created and second.schedule.revision != first.schedule.revision
    with pytest.raises(comet.RevisionMismatch):
        await put(b"3", first.schedule.revision)
    assert not (await put(b"4", dry_run=True)).created
    found = await admin.schedules.get_schedule("orders", "report")
    assert (found.value, found.schedule) == (b"2", second.schedule)
    for change in (
        admin.schedules.pause_schedule,
        admin.schedules.resume_schedule,
        admin.schedules.run_schedule,
        admin.schedules.cancel_schedule,
    ):
        with pytest.raises(comet.RevisionMismatch):
            await change("orders", "report", revision=first.schedule.revision)
    with pytest.raises(comet.RevisionMismatch):
        await admin.schedules.move_schedule("orders", "report", "every 1h", revision=first.schedule.revision)
    done = await admin.schedules.cancel_schedule("orders", "report", revision=second.schedule.revision, dry_run=True)
    assert (done.dry_run, done.schedule) == (True, second.schedule)
    assert not await is_over(admin, "orders", "report")
    await admin.schedules.cancel_schedule("orders", "report", revision=second.schedule.revision)
    assert await is_over(admin, "orders", "report")
    with pytest.raises(comet.RevisionMismatch) as gone:
        await put(b"5", second.schedule.revision)
    assert gone.value.revision == -1


async def test_pages_have_every_schedule_once_by_topic_and_id(admin: comet.Admin) -> None:
    names = [("orders", f"{letter}{number}") for letter in "ab" for number in range(4)] + [("quotes", "a0")]
    assert await admin.schedules.list_schedules() == comet.ScheduleList((), None)  # before there is any
    await asyncio.gather(*(admin.schedules.put_schedule(topic, id_, NEVER, value=b"v") for topic, id_ in names))
    await admin.schedules.pause_schedule("orders", "b2")
    listed = admin.schedules.list_schedules

    async def all_of(*topic: str, limit: int, **options: Any) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        after: str | None = ""
        while after is not None:
            page = await listed(*topic, after=after, limit=limit, **options)
            assert len(page.schedules) <= limit
            found += [(one.topic, one.id) for one in page.schedules]
            after = page.after
        return found

    for limit in (1, 3, 1_000):
        assert await all_of(limit=limit) == names
        assert await all_of("orders", limit=limit) == names[:8]
        assert await all_of("orders", limit=limit, prefix="b") == names[4:8]
        assert await all_of(limit=limit, paused=True) == [("orders", "b2")]
        assert await all_of("orders", limit=limit, prefix="b", paused=False) == [
            ("orders", id_) for id_ in ("b0", "b1", "b3")
        ]
    assert await all_of("orders", limit=5, prefix="c") == []


async def test_a_paused_schedule_neither_fires_nor_runs_until_it_is_resumed(
    broker: comet.testing.TestBroker, admin: comet.Admin
) -> None:
    schedules = admin.schedules
    await schedules.put_schedule("quotes", "hourly", "cron 0 0 1 1 * UTC", value=b"v")
    paused = (await schedules.pause_schedule("quotes", "hourly")).schedule
    assert (paused.paused, paused.reason) == (True, "")
    with pytest.raises(comet.InvalidArgument, match="is paused: resume it first"):
        await schedules.run_schedule("quotes", "hourly")
    moved = (await schedules.move_schedule("quotes", "hourly", "cron 0 0 2 1 * UTC")).schedule
    assert (moved.paused, moved.spec) == (True, "cron 0 0 2 1 * UTC")
    assert (await schedules.get_schedule("quotes", "hourly")).value == b"v"
    resumed = (await schedules.resume_schedule("quotes", "hourly", dry_run=True)).schedule
    assert not resumed.paused and (await schedules.get_schedule("quotes", "hourly")).schedule == moved
    await schedules.resume_schedule("quotes", "hourly")
    for count in (1, 2):
        await schedules.run_schedule("quotes", "hourly")
        record = (await records_of(broker.address, "quotes", count))[-1]
        assert headers_of(record)["comet-schedule-count"] == str(count)

        async def has_fired(count: int = count) -> bool:
            return (await schedules.get_schedule("quotes", "hourly")).schedule.fired == count

        assert await until_answered(has_fired, within_s=30)
    after = (await schedules.get_schedule("quotes", "hourly")).schedule
    assert after.next_us == moved.next_us  # a run is beside its times
    assert after.fired_us == record.timestamp_us


async def test_errors_are_those_of_the_schedule(admin: comet.Admin) -> None:
    schedules = admin.schedules
    with pytest.raises(comet.ScheduleNotFound):
        await schedules.pause_schedule("orders", "missing")  # before there is any schedule
    await schedules.put_schedule("orders", "a", NEVER, value=b"v")
    for call in (
        schedules.get_schedule("orders", "missing"),
        schedules.cancel_schedule("orders", "missing"),
        schedules.pause_schedule("orders", "missing"),
        schedules.resume_schedule("orders", "missing"),
        schedules.run_schedule("orders", "missing"),
        schedules.move_schedule("orders", "missing", "every 1h"),
    ):
        with pytest.raises(comet.ScheduleNotFound, match="topic 'orders' has no schedule 'missing'"):
            await call
    wrong: list[tuple[type[comet.CometError], str, dict[str, Any]]] = [
        (comet.TopicNotFound, "topic 'nope' does not exist", {"topic": "nope"}),
        (comet.CalendarNotFound, "calendar 'XNYS' does not exist", {"spec": "calendar:XNYS open"}),
        (comet.InvalidArgument, "not a valid id", {"id": "a b"}),
        (comet.InvalidArgument, "has 2 partitions, and no 7", {"partition": 7}),
        (comet.InvalidArgument, "late is fire", {"late": "never"}),
        (comet.InvalidArgument, "late=skip needs", {"late": "skip"}),
        (comet.InvalidArgument, "at most 86400000, a day", {"jitter_ms": 86_400_001}),
        (comet.InvalidArgument, "neither end nor fires_max", {"fires_max": 1}),
        (comet.InvalidArgument, "no time before its end", {"spec": "every 1h", "end": 1}),
        (comet.RecordTooLarge, "has .* bytes, and at most", {"value": bytes(2 << 20)}),
    ]
    for error, message, change in wrong:
        given: dict[str, Any] = {"topic": "orders", "id": "b", "spec": NEVER, "value": b"v"} | change
        with pytest.raises(error, match=message):
            await schedules.put_schedule(**given)
    assert [one.id for one in (await schedules.list_schedules()).schedules] == ["a"]


async def test_without_an_id_the_broker_makes_one(admin: comet.Admin) -> None:
    made = [await admin.schedules.put_schedule("orders", "", NEVER, value=b"v") for _ in range(2)]
    assert len({one.schedule.id for one in made}) == 2
    for one in made:
        assert (await admin.schedules.get_schedule("orders", one.schedule.id)).schedule == one.schedule


def test_the_synchronous_client_has_the_same() -> None:
    with comet.testing.broker({"orders": 1}) as broker, comet.sync.Admin(broker.address) as admin:
        assert admin.schedules.put_schedule("orders", "a", NEVER, value=b"v").created
        assert admin.schedules.get_schedule("orders", "a").value == b"v"
        assert admin.schedules.cancel_schedule("orders", "a").change == "cancelled"
        assert admin.schedules.list_schedules("orders").schedules == ()


# ---- REST

BODY: dict[str, Any] = {"spec": NEVER, "record": {"key": "ACME", "value": {"bid": 1}}}
PATH = "/v1/schedules/orders/report"


@pytest.fixture
async def http(broker: comet.testing.TestBroker) -> AsyncIterator[Api]:
    async with api(broker.address) as one:
        yield one


async def put(http: Api, body: dict[str, Any] = BODY, path: str = PATH, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await http.client.put(path, json=body, headers=named)


def check_answer(operation: str, answer: httpx.Response) -> None:
    """The document is one that the OpenAPI describes."""
    found = next(one for path in DOCUMENT["paths"].values() for one in path.values() if one["operationId"] == operation)
    schema = found["responses"]["200"]["content"]["application/json"]["schema"]
    whole = {**schema, "components": DOCUMENT["components"]}
    jsonschema_rs.validator_for(whole).validate(answer.json())


async def test_a_schedule_over_rest_has_an_etag(http: Api) -> None:
    assert (await http.client.get(PATH)).json()["code"] == "SCHEDULE_NOT_FOUND"
    made = await put(http, if_none_match="*")
    assert made.status_code == 200, made.text
    check_answer("putSchedule", made)
    tag = made.headers["etag"]
    assert made.json()["created"] and tag == f'"{made.json()["schedule"]["revision"]}"'
    found = await http.client.get(PATH)
    check_answer("getSchedule", found)
    ScheduleDocument.model_validate(found.json())
    assert (found.headers["etag"], found.json()["record"]) == (tag, BODY["record"])
    again = await put(http, if_none_match="*")
    assert (again.status_code, again.json()["code"]) == (412, "REVISION_MISMATCH")
    assert f'"{again.json()["revision"]}"' == tag
    changed = await put(http, BODY | {"record": {"tombstone": True, "key_base64": "/w=="}}, if_match=tag)
    assert (changed.status_code, changed.json()["created"]) == (200, False)
    assert (await put(http, if_match=tag)).status_code == 412
    assert (await http.client.get(PATH)).json()["record"] == {"key_base64": "/w==", "tombstone": True}
    assert (await put(http, if_match=tag, if_none_match="*")).status_code == 422
    assert (await put(http, if_match="1")).status_code == 422
    old = await http.client.delete(PATH, headers={"if-match": tag})
    assert old.status_code == 412
    tried = await http.client.delete(PATH, params={"dry_run": "true"})
    assert (tried.status_code, tried.json()["dry_run"]) == (200, True)
    gone = await http.client.delete(PATH, headers={"if-match": changed.headers["etag"]})
    check_answer("cancelSchedule", gone)
    assert gone.json()["change"] == "cancelled"
    assert (await http.client.delete(PATH)).json()["code"] == "SCHEDULE_NOT_FOUND"


async def test_a_value_keeps_its_digits(http: Api) -> None:
    text = b'{"spec": "every 1h", "record": {"value": {"price": 1.10, "big": 9007199254740993}}}'
    stored = await http.client.put(PATH, content=text, headers={"content-type": "application/json"})
    assert stored.status_code == 200, stored.text
    assert b'"record":{"value":{"price": 1.10, "big": 9007199254740993}}' in (await http.client.get(PATH)).content
    assert (await http.admin.schedules.get_schedule("orders", "report")).value == (
        b'{"price": 1.10, "big": 9007199254740993}'
    )


async def test_changes_over_rest(http: Api, broker: comet.testing.TestBroker) -> None:
    body = BODY | {"spec": "cron 0 0 1 1 * UTC", "late": "skip", "late_max_ms": "5000", "jitter_ms": 0}
    await put(http, body)
    for change, state in (("pause", True), ("resume", False)):
        refused = await http.client.post(f"{PATH}/{change}", headers={"if-match": '"999"'})
        assert (refused.status_code, refused.json()["code"]) == (412, "REVISION_MISMATCH")
        assert not (await http.post(f"/schedules/orders/report/{change}", dry_run=True))["schedule"]["paused"] ^ state
        done = await http.client.post(f"{PATH}/{change}")
        check_answer(f"{change}Schedule", done)
        assert done.json()["schedule"]["paused"] is state
        assert done.headers["etag"] == f'"{done.json()["schedule"]["revision"]}"'
        assert (await http.get("/schedules", topic="orders", paused=state))["schedules"] == [done.json()["schedule"]]
        assert (await http.get("/schedules", paused=not state))["schedules"] == []
    moved = await http.client.post(f"{PATH}/move", json={"spec": "cron 0 0 2 1 * UTC"})
    check_answer("moveSchedule", moved)
    assert moved.json()["schedule"]["spec"] == "cron 0 0 2 1 * UTC"
    ran = await http.client.post(f"{PATH}/run", headers={"if-match": moved.headers["etag"]})
    check_answer("runSchedule", ran)
    (record,) = await records_of(broker.address, "orders", 1)
    assert (record.key, record.value, headers_of(record)["comet-schedule-id"]) == (b"ACME", b'{"bid":1}', "report")
    listed = await http.client.get("/v1/schedules", params={"topic": "orders", "prefix": "rep", "limit": "1"})
    check_answer("listSchedules", listed)


async def test_pages_over_rest(http: Api) -> None:
    for id_ in ("a", "b", "c"):
        await put(http, path=f"/v1/schedules/orders/{id_}")
    found: list[str] = []
    query: dict[str, str] = {}
    for _ in range(10):  # a page may have fewer than the limit, while more follow
        page = await http.get("/schedules", limit=1, **query)
        found += [one["id"] for one in page["schedules"]]
        if page["after"] is None:
            break
        query = {"after": page["after"]}
    assert (found, page["after"]) == (["a", "b", "c"], None)


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "text"),
    [
        (PATH, {"spec": "cron 30 25 * * *"}, 400, "INVALID_ARGUMENT", "at character 8: hour '25'"),
        (PATH, {"spec": "calendar:XNYS open"}, 404, "CALENDAR_NOT_FOUND", "XNYS"),
        (PATH, {"record": {"value": 1, "timestamp_us": 5}}, 422, "VALIDATION", "spec"),
        (PATH, {"record": {"value": 1, "partition": 7}}, 400, "INVALID_ARGUMENT", "and no 7"),
        (PATH, {"late": "skip"}, 400, "INVALID_ARGUMENT", "late_max_ms"),
        (PATH, {"paused": True}, 422, "VALIDATION", "paused"),
        (PATH, {"record": {"text": "x" * (2 << 20)}}, 413, "RECORD_TOO_LARGE", "at most"),
        ("/v1/schedules/nope/report", {}, 404, "TOPIC_NOT_FOUND", "nope"),
        ("/v1/schedules/orders/a%20b", {}, 422, "VALIDATION", "path.schedule"),
    ],
)
async def test_a_wrong_schedule_is_a_problem(
    http: Api, path: str, body: dict[str, Any], status: int, code: str, text: str
) -> None:
    answer = await put(http, BODY | body, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert text in answer.text
    assert (await http.get("/schedules"))["schedules"] == []


async def test_a_wrong_request_is_a_problem(http: Api) -> None:
    for query in ({"paused": "maybe"}, {"limit": 0}, {"limit": 1_001}, {"prefix": "a b", "topic": "orders"}):
        assert (await http.ask("GET", "/schedules", status=422, **query))["code"] == "VALIDATION"
    await http.ask("GET", "/schedules", status=400, prefix="a")
    plain = await http.client.put(PATH, content=b"x", headers={"content-type": "text/plain"})
    assert (plain.status_code, plain.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    broken = await http.client.put(PATH, content=b'{"spec": ', headers={"content-type": "application/json"})
    assert (broken.status_code, broken.json()["code"]) == (400, "MALFORMED_BODY")
    assert (await http.ask("PUT", "/schedules/orders/report", BODY, status=422, dryrun=True))["code"] == "VALIDATION"
    for change in ("pause", "resume", "run"):
        assert (await http.ask("POST", f"/schedules/orders/missing/{change}", status=404))["code"] == (
            "SCHEDULE_NOT_FOUND"
        )
    await http.ask("POST", "/schedules/orders/report/move", {"spec": "hourly"}, status=400)
    await http.ask("POST", "/schedules/orders/report/move", {}, status=422)


@pytest.mark.slow
async def test_a_viewer_sees_schedules_and_an_operator_changes_them(tmp_path: Path) -> None:
    path = f"/v1/schedules/{TOPIC}/report"
    async with secured(tmp_path) as stage, stage.client("viewer") as viewer, stage.client("operator") as operator:
        changes = [
            ("PUT", path, BODY),
            ("POST", f"{path}/pause", None),
            ("POST", f"{path}/resume", None),
            ("POST", f"{path}/move", {"spec": "every 1h"}),
            ("POST", f"{path}/run", None),
            ("DELETE", path, None),
        ]
        for method, where, body in changes:
            refused = await viewer.request(method, where, json=body)
            assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN"), (method, where)
        for method, where, body in changes[:-1]:
            done = await operator.request(method, where, json=body)
            assert done.status_code == 200, (method, where, done.text)
        assert (await viewer.get(path)).json()["spec"] == "every 1h"
        assert len((await viewer.get("/v1/schedules")).json()["schedules"]) == 1
        assert (await operator.request(*changes[-1][:2])).status_code == 200


# ---- the command line


@pytest.mark.slow
def test_schedules_on_the_command_line(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data")) as (_, told):
        up = Up(told["address"], tmp_path)
        up.run("topic", "create", "orders", "--partitions", "2")
        add = ("schedule", "add", "orders", "report", "cron 30 9 * * 1-5 America/New_York")
        tried = up.run(*add, "v", "--dry-run").stdout
        assert tried.startswith(b"would create orders/report: cron 30 9 * * 1-5 America/New_York, next at ")
        assert b"SCHEDULE_NOT_FOUND" in up.run("schedule", "show", "orders", "report", code=3).stderr
        options = ("-k", "ACME", "-H", "a=b", "--ttl", "1h", "--jitter", "5s", "--fires-max", "2", "--revision", "-1")
        made = up.run(*add, "-", *options, feed=b'{"bid": 1.10}')
        assert made.stdout.startswith(b"created orders/report: ")
        again = up.run(*add, "v", "--revision", "-1", code=1).stderr
        assert b"REVISION_MISMATCH" in again and b"comet schedule show" in again
        shown = up.run("schedule", "show", "orders", "report")
        for text in (
            b"orders/report", b"active", b"fire_last", b"2 records",
            b'{"key": "ACME", "value": {"bid": 1.10}, "headers": [{"name": "a", "value": "b"}], "ttl_ms": "3600000"}',
        ):  # fmt: skip
            assert text in shown.stdout, text
        assert shown.stdout.count(b"T09:30:00-0") == 2, "its two times"
        assert b"no more times: the schedule ends after 2 records" in shown.stderr
        document: Any = up.json("schedule", "show", "orders", "report")
        assert (document["fires_max"], document["record"]["value"]) == ("2", {"bid": 1.1})
        up.run("schedule", "add", "orders", "skips", "every 1d", "v", "--late", "skip", "--late-max", "5s")
        up.run("schedule", "pause", "orders", "skips")
        listed = up.run("schedule", "list").stdout.split()
        assert [listed.count(word) for word in (b"report", b"skips", b"active", b"paused")] == [1, 1, 1, 1]
        paused: Any = up.json("schedule", "list", "orders", "--paused")
        assert [one["id"] for one in paused["schedules"]] == ["skips"]
        one: Any = up.json("schedule", "list", "-n", "1")
        more = up.run("schedule", "list", "-n", "1", "--after", one["after"])
        assert b"skips" in more.stdout and b"report" not in more.stdout
        assert b"paused: resume it first" in up.run("schedule", "run", "orders", "skips", code=2).stderr
        assert b"would be resumed" in up.run("schedule", "resume", "orders", "skips", "--dry-run").stdout
        assert up.run("schedule", "resume", "orders", "skips").stdout.startswith(
            b"resumed orders/skips: every 1d, next"
        )
        assert b"orders/skips is due now" in up.run("schedule", "run", "orders", "skips").stdout
        fired = json.loads(up.run("consume", "orders", "--from", "earliest", "-n", "1", "--format", "json").stdout)
        assert {"name": "comet-schedule-id", "value": "skips"} in fired["headers"]
        moved = up.run("schedule", "move", "orders", "skips", "every 2d").stdout
        assert moved.startswith(b"moved orders/skips: every 2d, next at ")
        wrong = up.run("schedule", "move", "orders", "skips", "cron 30 25 * * *", code=2).stderr
        assert b"at character 8" in wrong and b"hours are 0-23" in wrong
        asked = up.run("schedule", "cancel", "orders", "skips", feed=b"n\n", code=1).stderr
        assert (
            b"Cancel schedule skips of orders? Its times are every 2d, next at " in asked
            and b"It never fires again." in asked
        )
        assert up.run("schedule", "cancel", "orders", "skips", "--dry-run").stdout.startswith(b"its times are every 2d")
        assert up.run("schedule", "cancel", "orders", "skips", "--yes").stdout == b"cancelled orders/skips\n"
        assert b"comet schedule list" in up.run("schedule", "cancel", "orders", "skips", "--yes", code=3).stderr
