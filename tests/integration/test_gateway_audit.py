"""The audit log of secured brokers behind a gateway whose own credential may read it: for admins, by every way in."""

from __future__ import annotations

from typing import Any, Final

import httpx
import pytest

from comet.types import AUDIT_TOPIC
from tests.integration.live_gateway import Socket
from tests.integration.secured_gateway import Secured, stage
from tests.integration.test_access_keys import TOPIC

__all__ = ["stage"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

BROWSER: Final = {"accept": "text/html"}
REQUESTS: Final = (
    "/v1/topics/__audit/records?start=earliest",
    "/v1/topics/%5F%5Faudit/records?start=earliest",
    "/v1/topics/__audit/partitions/0/records?offset=0",
    "/v1/topics/__audit/partitions/0/records/0/value",
    "/v1/topics/__audit/search",
    "/v1/topics/__audit/export",
    "/v1/topics/__audit/offsets",
    "/v1/topics/__audit",
    "/v1/topics/__audit/partitions/0",
    "/v1/dead-letters/__audit",
    "/topics/__audit",
    "/topics/__audit/partitions.csv",
    "/topics/__audit/records",
    "/topics/__audit/config",
    "/topics/__audit/consumers",
    "/dead-letters/__audit",
    "/quotes?topic=__audit",
    "/quotes.csv?topic=__audit",
)
FRAMES: Final[tuple[dict[str, Any], ...]] = (
    {"topic": AUDIT_TOPIC, "start": "earliest"},
    {"topics": [TOPIC, AUDIT_TOPIC]},
    {"pattern": "__.*"},
    {"topic": AUDIT_TOPIC, "replay": {"from": "earliest", "speed": 0}},
    {"topic": AUDIT_TOPIC, "group": "consumers"},
    {"pattern": "__a.*", "group": "consumers"},
    {"topic": AUDIT_TOPIC, "group": {"name": "workers", "kind": "share"}},
    {"channel": "tail", "params": {"topic": AUDIT_TOPIC}},
    {"channel": "search", "params": {"topic": AUDIT_TOPIC}},
    {"page": "/topics/__audit/records"},
    {"page": "/topics/__audit"},
    {"page": "/quotes?topic=__audit"},
    {"page": "/dead-letters/__audit"},
)


@pytest.mark.parametrize("path", REQUESTS)
async def test_a_viewer_is_refused_by_every_request_and_an_admin_is_not(stage: Secured, path: str) -> None:
    for role in ("viewer", "operator"):
        async with stage.client(role) as http:
            answer = await http.get(path)
        assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN"), answer.text
        assert "needs the role admin" in answer.json()["detail"]
    async with stage.client("admin") as http:
        answer = await http.get(path)
        assert answer.status_code == 200, answer.text


async def test_server_sent_events_are_refused(stage: Secured) -> None:
    async with stage.gateway.stream(f"{AUDIT_TOPIC}/stream?start=earliest", **stage.headers("viewer")) as stream:
        assert stream.status == httpx.codes.FORBIDDEN
    async with stage.gateway.stream(f"{AUDIT_TOPIC}/stream?start=earliest", **stage.headers("admin")) as stream:
        assert (await stream.next())[0] == "subscribed"
        assert (await stream.next())[1]["value"]["event"] in ("admin", "first_use")


async def test_records_of_a_share_group_are_refused(stage: Secured) -> None:
    async with stage.client("operator") as http:
        answer = await http.post("/v1/groups/g/acquire", json={"topic": AUDIT_TOPIC, "start": "earliest"})
        assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")
        assert "needs the role admin" in answer.json()["detail"]
    async with stage.client("admin") as http:
        answer = await http.post("/v1/groups/g/acquire", json={"topic": AUDIT_TOPIC, "start": "earliest"})
        assert answer.json()["records"], answer.text


async def _told(socket: Socket, frame: dict[str, Any]) -> dict[str, Any]:
    await socket.say(type="subscribe", id="x", **frame)
    return await socket.until("subscribed", "page", "event", "error", id="x")


@pytest.mark.parametrize("frame", FRAMES, ids=str)
async def test_a_websocket_refuses_every_kind_of_subscription(stage: Secured, frame: dict[str, Any]) -> None:
    async with stage.gateway.socket(additional_headers=stage.headers("operator")) as socket:
        told = await _told(socket, frame)
        assert told["type"] == "error", told
        assert told["problem"]["code"] == "FORBIDDEN", told
        assert "needs the role admin" in told["problem"]["detail"]
    async with stage.gateway.socket(additional_headers=stage.headers("admin")) as socket:
        told = await _told(socket, frame)
        assert told["type"] != "error", told


async def test_a_pattern_of_other_topics_is_not_refused(stage: Secured) -> None:
    async with stage.gateway.socket(additional_headers=stage.headers("viewer")) as socket:
        told = await socket.ask(type="subscribe", id="x", pattern=".*")
        assert (told["type"], told["topic"]) == ("subscribed", TOPIC)
