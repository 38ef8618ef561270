"""Dead letters over HTTP: found, counted, read, redriven once, discarded; with a share group that fails for real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

import comet
import comet.testing
from comet.client.bootstrap import Addresses
from comet.errors import Unavailable
from comet_gateway import GatewayConfig, create_app
from comet_gateway.config import Limits
from comet_gateway.dead_letters import redrive
from comet_gateway.dead_letters.dead_letter import PREFIX, SETTLED
from comet_gateway.dead_letters.registry import DeadLetterIndexes
from tests.integration.live_gateway import PATIENCE_S, live_gateway


class Api:
    """A gateway in this process, before a broker."""

    def __init__(self, client: httpx.AsyncClient, broker: str, app: Any) -> None:
        self.client = client
        self.broker = broker
        self.app = app

    async def get(self, path: str = "", *, status: int = 200, **query: Any) -> Any:
        answer = await self.client.get(f"/v1/dead-letters{path}", params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def post(self, path: str, body: Any, *, status: int = 200, **query: Any) -> Any:
        """The document of a dry run or a problem, else the last line."""
        answer = await self.client.post(f"/v1/dead-letters/{path}", json=body, params=query)
        assert answer.status_code == status, answer.text
        if answer.headers["content-type"] == "application/x-ndjson":
            return lines(answer.text)[-1]["end"]
        return answer.json()

    async def dead_letters(self, topic: str = "failed", **query: Any) -> list[Any]:
        found: list[Any] = (await self.get(f"/{topic}", **query))["items"]
        return found


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    topics = {"orders": 2, "failed": 1, "other": 1, "empty": 1}
    async with comet.testing.broker(topics) as broker, gateway(broker.address) as one:
        yield one


@asynccontextmanager
async def gateway(broker: str, **limits: Any) -> AsyncIterator[Api]:
    app = create_app(GatewayConfig(bootstrap=broker, limits=Limits(**limits)))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client,
    ):
        yield Api(client, broker, app)


def said(number: int, **more: Any) -> dict[str, str]:
    """Headers of a dead letter of orders."""
    told = {
        "topic": "orders", "partition": str(number % 2), "offset": str(number), "group": "work", "attempts": "5",
        "reason": f"ValueError: order {number} is late", **more,
    }  # fmt: skip
    return {PREFIX + name: str(value) for name, value in told.items()}


async def dead(broker: Addresses, count: int, *, topic: str = "failed", **more: Any) -> None:
    async with comet.Producer(broker, acks="all") as producer:
        for number in range(count):
            await producer.send(
                topic, f"order {number}", key=f"k{number % 3}", headers={"trace": str(number), **said(number, **more)},
                timestamp_us=1_000_000 * (number + 1), partition=0,
            )  # fmt: skip


async def read(broker: str, topic: str, partitions: int = 1) -> list[comet.Record[bytes]]:
    found: list[comet.Record[bytes]] = []
    async with comet.Reader(broker) as reader:
        for partition in range(partitions):
            part = await reader.fetch(topic, partition, records_max=10_000)
            found += [record for batch in part.batches for record in batch.records()]
    return found


async def test_what_a_shared_group_gives_up_is_found_redriven_and_done(api: Api) -> None:
    """The whole way, with a real group whose handler fails."""
    async with comet.Producer(api.broker) as producer:
        for number in range(4):
            await producer.publish("orders", f"order {number}", key="k", partition=1)
    async with comet.ShareConsumer(
        api.broker, "orders", group="work", start="earliest", dead_letter="failed"
    ) as consumer:
        for _ in range(4):
            record = await consumer.get(timeout_s=10)
            assert record is not None
            await (record.reject("no such symbol") if record.offset % 2 else record.ack())
        async with comet.Consumer(api.broker, "failed", start="earliest") as failed:
            for _ in range(2):
                assert await failed.get(timeout_s=10) is not None
        (topic,) = (await api.get())["items"]
        assert (topic["topic"], topic["pending"], topic["scanned"]["complete"]) == ("failed", 2, True)
        (cause,) = topic["causes"]
        assert (cause["group"], cause["cause"], cause["topics"]) == ("work", "no such symbol", ["orders"])
        plan = await api.post("failed/redrive", {"filter": {"group": "work"}}, dry_run="true")
        assert plan["targets"] == [{"topic": "orders", "dead_letters": 2, "exists": True, "groups": ["work"]}]
        assert await api.post("failed/redrive", {"filter": {"group": "work"}}) == {
            "dead_letters": 2, "done": 2, "already": 0, "failed": 0, "stopped": False
        }  # fmt: skip
        for _ in range(2):
            record = await consumer.get(timeout_s=10)
            assert record is not None
            headers = dict(record.headers)
            assert record.partition == 1, "where it was"
            assert headers["comet-redriven-from"].decode().startswith("failed/0/")
            assert (headers["comet-redriven-group"], headers["comet-redriven-times"]) == (b"work", b"1")
            assert not any(name.startswith(PREFIX) for name in headers)
            await record.ack()
    (topic,) = (await api.get())["items"]
    assert (topic["pending"], topic["redriven"]) == (0, 2)
    assert {one["to"].rpartition("/")[0] for one in await api.dead_letters()} == {"orders/1"}


async def test_only_topics_that_hold_letters_are_found_and_all_were_looked_at(api: Api) -> None:
    async with comet.Producer(api.broker) as producer:
        await producer.publish("orders", b"1", headers={"comet-redriven-from": "failed/0/1"})
        await producer.publish("other", b"1", headers={PREFIX + "reason": "half a letter is none"})
    await dead(api.broker, 1)
    found = await api.get()
    assert ([one["topic"] for one in found["items"]], found["scanned"], found["topics"]) == (["failed"], 4, 4)


async def test_letters_are_counted_by_group_and_cause(api: Api) -> None:
    await dead(api.broker, 5)
    await dead(api.broker, 2, group="audit", reason="TypeError: no key")
    (topic,) = (await api.get())["items"]
    assert [(one["group"], one["cause"], one["pending"]) for one in topic["causes"]] == [
        ("work", "ValueError: order # is late", 5), ("audit", "TypeError: no key", 2)
    ]  # fmt: skip
    async with comet.Producer(api.broker, acks="all") as producer:  # what comes later is counted later
        await producer.publish("failed", b"x", headers=said(9), partition=0)
    assert (await api.get())["items"][0]["pending"] == 8


async def test_letters_are_read_newest_first_page_by_page_and_filtered(api: Api) -> None:
    await dead(api.broker, 7)
    page = await api.get("/failed", limit=3)
    assert [one["offset"] for one in page["items"]] == ["6", "5", "4"]
    assert page["matched"] == 7
    rest = await api.get("/failed", limit=9, cursor=page["next"])
    assert ([one["offset"] for one in rest["items"]], rest["next"]) == (["3", "2", "1", "0"], None)
    first = rest["items"][-1]
    assert first == {
        "partition": 0, "offset": "0", "timestamp_us": "1000000", "state": "pending", "topic": "orders",
        "source_partition": 0, "source_offset": "0", "group": "work", "attempts": 5,
        "reason": "ValueError: order 0 is late", "cause": "ValueError: order # is late", "times": 0, "key": "k0",
        "bytes": "7", "to": None, "by": None,
    }  # fmt: skip
    for query, offsets in (
        ({"reason": "ORDER 3"}, ["3"]),
        ({"from_us": "3000000", "to_us": "5000000"}, ["3", "2"]),
        ({"cause": "ValueError: order # is late", "group": "work", "limit": "1"}, ["6"]),
        ({"group": "nobody"}, []),
        ({"from_topic": "other"}, []),
        ({"state": "redriven"}, []),
    ):
        assert [one["offset"] for one in await api.dead_letters(**query)] == offsets, query
    assert (await api.get("/failed", status=400, cursor="c1.x"))["code"] == "MALFORMED_CURSOR"
    assert (await api.get("/nothing", status=404))["code"] == "TOPIC_NOT_FOUND"
    assert await api.dead_letters("empty") == []


async def test_one_letter_is_edited_and_redriven_elsewhere(api: Api) -> None:
    await dead(api.broker, 2)
    body = {
        "dead_letters": [{"partition": 0, "offset": "1"}],
        "to": "other",
        "record": {"text": '{"bid": 1.10}', "key": "fixed"},
    }
    assert (await api.post("failed/redrive", body))["done"] == 1
    (record,) = await read(api.broker, "other")
    assert record.value == b'{"bid": 1.10}'
    assert (record.key, record.timestamp_us) == (b"fixed", 2_000_000)
    assert dict(record.headers)["trace"] == b"1", "what is left out stays"
    assert (await api.post("failed/redrive", body, dry_run="true"))["settled"] == 1, "it is redriven only once"
    assert await read(api.broker, "orders", 2) == []


async def test_only_what_the_filter_means_is_redriven_and_everything_else_stays(api: Api) -> None:
    await dead(api.broker, 6)
    done = await api.post("failed/redrive", {"filter": {"from_us": "2000000", "to_us": "5000000"}, "rate": 1000})
    assert done["done"] == 3
    assert sorted(record.value for record in await read(api.broker, "orders", 2)) == [
        b"order 1",
        b"order 2",
        b"order 3",
    ]
    assert [one["offset"] for one in await api.dead_letters(state="pending")] == ["5", "4", "0"]


async def test_discarding_writes_a_note_and_nothing_else(api: Api) -> None:
    await dead(api.broker, 3)
    plan = await api.post("failed/discard", {"filter": {}}, dry_run="true")
    assert (plan["dry_run"], plan["dead_letters"], plan["targets"]) == (True, 3, [])
    assert len(await read(api.broker, "failed")) == 3, "a dry run does nothing"
    assert (await api.post("failed/discard", {"dead_letters": [{"partition": 0, "offset": "1"}]}))["done"] == 1
    note = (await read(api.broker, "failed"))[-1]
    assert (note.key, dict(note.headers)[SETTLED]) == (b"0/1", b"discarded")
    assert not note.value
    assert await read(api.broker, "orders", 2) == []
    (found,) = await api.dead_letters(state="discarded")
    assert (found["offset"], found["by"]) == ("1", "anyone")
    async with gateway(api.broker) as other:
        assert [one["offset"] for one in await other.dead_letters(state="pending")] == ["2", "0"], (
            "every gateway knows it"
        )


async def test_a_crash_between_the_write_and_its_note_writes_it_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first gateway dies with ten records written and no note of any; another one is asked again."""
    await dead(api.broker, 10)
    written = asyncio.Event()
    publish = comet.Producer.publish

    async def dying(self: comet.Producer, topic: str, *rest: Any, **more: Any) -> Any:
        if topic != "failed":
            return await publish(self, topic, *rest, **more)
        written.set()
        raise Unavailable("the gateway is no more")

    monkeypatch.setattr(comet.Producer, "publish", dying)
    assert (await api.post("failed/redrive", {"filter": {}, "rate": 1000}))["failed"] == 10
    assert written.is_set()
    assert len(await read(api.broker, "orders", 2)) == 10
    monkeypatch.undo()
    async with gateway(api.broker) as other:
        assert len(await other.dead_letters(state="pending")) == 10, "nobody wrote that they were redriven"
        done = await other.post("failed/redrive", {"filter": {}, "rate": 1000})
        assert (done["done"], done["already"], done["failed"]) == (0, 10, 0)
        assert await other.dead_letters(state="pending") == []
    assert sorted(record.value or b"" for record in await read(api.broker, "orders", 2)) == sorted(
        f"order {number}".encode() for number in range(10)
    )


async def test_an_edit_after_such_a_crash_does_not_write_it_a_second_time(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await dead(api.broker, 1)
    publish = comet.Producer.publish

    async def dying(self: comet.Producer, topic: str, *rest: Any, **more: Any) -> Any:
        if topic != "failed":
            return await publish(self, topic, *rest, **more)
        raise Unavailable("the gateway is no more")

    monkeypatch.setattr(comet.Producer, "publish", dying)
    one = {"dead_letters": [{"partition": 0, "offset": "0"}]}
    assert (await api.post("failed/redrive", one))["failed"] == 1
    monkeypatch.undo()
    # The same key in the same partition, or the broker could not tell.
    done = await api.post("failed/redrive", {**one, "record": {"text": "another", "partition": 0}})
    assert (done["done"], done["already"]) == (0, 1)
    assert [record.value for record in await read(api.broker, "orders", 2)] == [b"order 0"]


async def test_two_who_redrive_the_same_at_once_write_it_once(api: Api) -> None:
    await dead(api.broker, 40)
    async with gateway(api.broker) as other:
        body = {"filter": {}, "rate": 10_000}
        await asyncio.gather(*(one.post("failed/redrive", body) for one in (api, other)))
        assert len(await read(api.broker, "orders", 2)) == 40
        assert await other.dead_letters(state="pending") == []


async def test_letters_of_one_key_keep_their_order(api: Api) -> None:
    await dead(api.broker, 60, partition=0)
    await api.post("failed/redrive", {"filter": {}, "rate": 10_000})
    numbers = [int((record.value or b"").split()[1]) for record in await read(api.broker, "orders", 2)]
    assert sorted(numbers) == list(range(60))
    for key in range(3):
        own = [number for number in numbers if number % 3 == key]
        assert own == sorted(own)


async def test_more_than_are_read_at_once_are_all_redriven(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "READ_MAX", 7)
    await dead(api.broker, 40)
    await api.post(
        "failed/discard", {"dead_letters": [{"partition": 0, "offset": str(number)} for number in (0, 6, 7, 39)]}
    )
    assert (await api.post("failed/redrive", {"filter": {}, "rate": 10_000}))["done"] == 36
    numbers = {int((record.value or b"").split()[1]) for record in await read(api.broker, "orders", 2)}
    assert numbers == set(range(40)) - {0, 6, 7, 39}


async def test_what_cannot_be_written_stays_pending_and_says_why(api: Api) -> None:
    await dead(api.broker, 2, topic="failed")
    await dead(api.broker, 1, topic="failed", reason="r")
    async with comet.Producer(api.broker, acks="all") as producer:
        await producer.publish("failed", b"x", headers=said(1, topic="gone"), partition=0)
        await producer.publish("failed", b"x", headers=said(1, topic="failed"), partition=0)
        await producer.publish("failed", b"x", headers=said(1, topic="__offsets"), partition=0)
    answer = await api.client.post("/v1/dead-letters/failed/redrive", json={"filter": {}})
    told = lines(answer.text)
    failures = {one["failure"]["problem"]["code"] for one in told if "failure" in one}
    assert failures == {"TOPIC_NOT_FOUND", "INVALID_ARGUMENT"}
    assert told[0]["plan"]["dead_letters"] == 6
    assert {one["topic"]: one["exists"] for one in told[0]["plan"]["targets"]}["gone"] is False
    assert (told[-1]["end"]["done"], told[-1]["end"]["failed"]) == (3, 3)
    assert len(await api.dead_letters(state="pending")) == 3


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "VALIDATION"),
        ({"filter": {}, "dead_letters": [{"partition": 0, "offset": "0"}]}, "VALIDATION"),
        ({"dead_letters": []}, "VALIDATION"),
        ({"filter": {}, "rate": 0}, "VALIDATION"),
        ({"filter": {}, "rate": 1e5}, "VALIDATION"),
        ({"filter": {}, "record": {"text": "x"}}, "VALIDATION"),
        ({"filter": {"groups": "work"}}, "VALIDATION"),
        ({"dead_letters": [{"partition": 0, "offset": "0"}], "record": {"text": "x", "value": 1}}, "VALIDATION"),
        ({"filter": {}, "to": "no such topic"}, "VALIDATION"),
    ],
)
async def test_what_makes_no_sense_is_refused_before_anything_is_written(api: Api, body: Any, code: str) -> None:
    await dead(api.broker, 1)
    assert (await api.post("failed/redrive", body, status=422))["code"] == code
    assert len(await read(api.broker, "failed")) == 1


@pytest.mark.parametrize("value", ['"\\ud800"', "1e999", "NaN"])
async def test_an_edit_that_cannot_be_written_is_refused(api: Api, value: str) -> None:
    await dead(api.broker, 1)
    answer = await api.client.post(
        "/v1/dead-letters/failed/redrive",
        content=f'{{"dead_letters": [{{"partition": 0, "offset": "0"}}], "record": {{"value": {value}}}}}',
        headers={"content-type": "application/json"},
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "VALIDATION")


async def test_another_topic_that_is_not_there_is_refused_as_a_whole(api: Api) -> None:
    await dead(api.broker, 1)
    body = {"filter": {}, "to": "nothing"}
    assert (await api.post("failed/redrive", body, status=404))["code"] == "TOPIC_NOT_FOUND"
    plan = await api.post("failed/redrive", body, dry_run="true")
    assert plan["targets"] == [{"topic": "nothing", "dead_letters": 1, "exists": False, "groups": []}]
    assert (await api.post("failed/redrive", {"dead_letters": [{"partition": 0, "offset": "7"}]}, dry_run="true"))[
        "unknown"
    ] == [{"partition": 0, "offset": "7"}]


async def test_it_can_be_stopped_and_what_was_begun_has_its_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client goes while three records, of three keys, are written and their notes are not."""
    publish, begin = comet.Producer.publish, redrive.Settling.__init__
    gone = asyncio.Event()
    runs: list[redrive.Settling] = []

    async def slow(self: comet.Producer, topic: str, *rest: Any, **more: Any) -> Any:
        if topic == "failed":
            await gone.wait()
        return await publish(self, topic, *rest, **more)

    def begun(self: redrive.Settling, *rest: Any) -> None:
        begin(self, *rest)
        runs.append(self)

    async with (
        live_gateway({"orders": 2, "failed": 1}) as gate,
        httpx.AsyncClient(base_url=gate.url, timeout=PATIENCE_S) as http,
    ):
        await dead(gate.broker, 100)
        monkeypatch.setattr(comet.Producer, "publish", slow)
        monkeypatch.setattr(redrive.Settling, "__init__", begun)
        body = {"filter": {}, "rate": 10_000}
        async with http.stream("POST", "/v1/dead-letters/failed/redrive", json=body) as answer:
            assert answer.status_code == httpx.codes.OK
            while len(await read(gate.broker, "orders", 2)) < 3:
                pass
        await runs[0]._stop.wait()
        gone.set()
        async with asyncio.timeout(PATIENCE_S):
            while (await redriven(http)) < 3:
                pass
        assert (await redriven(http), len(await read(gate.broker, "orders", 2))) == (3, 3), "and no more was begun"


async def redriven(http: httpx.AsyncClient) -> int:
    found: int = (await http.get("/v1/dead-letters/failed", params={"state": "redriven"})).json()["matched"]
    return found


async def test_the_rate_is_a_bound(api: Api) -> None:
    await dead(api.broker, 20)
    began = asyncio.get_running_loop().time()
    await api.post("failed/redrive", {"filter": {}, "rate": 50})
    assert asyncio.get_running_loop().time() - began >= 20 / 50 - 0.15


async def test_only_so_many_settle_at_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, go_on = comet.Producer.publish, asyncio.Event()

    async def slow(self: comet.Producer, topic: str, *rest: Any, **more: Any) -> Any:
        if topic == "failed":
            await go_on.wait()
        return await publish(self, topic, *rest, **more)

    await dead(api.broker, 30)
    monkeypatch.setattr(comet.Producer, "publish", slow)
    async with gateway(api.broker, redrives_max=1) as one:
        under_way = asyncio.create_task(one.post("failed/redrive", {"filter": {}, "rate": 10_000}))
        while not any(record for record in await read(api.broker, "orders", 2)):
            pass
        refused = await one.post("failed/discard", {"filter": {}}, status=429)
        assert refused["code"] == "TOO_MANY_REQUESTS"
        go_on.set()
        assert (await under_way)["done"] == 30


async def test_a_topic_made_anew_has_none_of_the_old_letters(api: Api) -> None:
    await dead(api.broker, 2)
    assert (await api.get())["items"][0]["pending"] == 2
    async with comet.Admin(api.broker) as admin:
        await admin.delete_topic("failed")
        await admin.create_topic("failed", partitions=1)
    assert (await api.get())["items"] == []
    assert await api.dead_letters() == []


async def test_what_retention_deletes_is_no_letter_any_more(api: Api) -> None:
    await dead(api.broker, 6)
    assert (await api.get())["items"][0]["pending"] == 6
    async with comet.Admin(api.broker) as admin:
        await admin.delete_records("failed", 0, 4)
    assert [one["offset"] for one in await api.dead_letters()] == ["5", "4"]


async def test_only_so_many_letters_are_known_and_it_says_so(api: Api) -> None:
    await dead(api.broker, 20)
    async with gateway(api.broker, dead_letters_max=5) as one:
        page = await one.get("/failed")
        assert [letter["offset"] for letter in page["items"]] == ["19", "18", "17", "16", "15"]
        assert page["scanned"]["older"] == "15"


async def test_a_bounded_look_goes_on_where_it_stopped() -> None:
    async with comet.testing.broker({"failed": 1}) as broker:
        async with comet.Producer(broker.address) as producer:
            await (await producer.send_many("failed", [b"x"] * 5_000, partition=0))
        await dead(broker.address, 3)
        async with comet.Admin(broker.address) as admin, comet.Reader(broker.address) as reader:
            topic_indexes = DeadLetterIndexes(admin, reader, Limits())
            topic_index = await topic_indexes.topic_index("failed", 0)
            assert 0 < topic_index.scanned < topic_index.records == 5_003
            looks = 1
            while not (await topic_indexes.topic_index("failed", 0)).complete:
                looks += 1
            assert looks >= 3
            assert len(list(topic_index.dead_letters())) == 3
