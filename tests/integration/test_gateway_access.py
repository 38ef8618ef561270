"""The pages of access and of the audit log before a broker with rules: their content, and who may see them."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

import comet
from comet.types import AUDIT_TOPIC
from comet_gateway.dashboard import audit_trail
from tests.integration.live_gateway import PATIENCE_S, live_gateway
from tests.integration.secured_gateway import Secured, secured, stage
from tests.integration.test_access_keys import ME, TOPIC
from tests.waiting import until_answered

__all__ = ["stage"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

HTML = {"accept": "text/html"}
PAGES = ("/access", "/audit", "/access.csv", "/audit.csv")


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_is_for_admins(stage: Secured, path: str) -> None:
    for role in ("viewer", "operator"):
        async with stage.client(role) as http:
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")
            seen = (await http.get("/topics", headers=HTML)).text
            assert 'href="/access"' not in seen and 'href="/audit"' not in seen
    async with stage.client("admin") as http:
        assert (await http.get(path)).status_code == 200
        seen = (await http.get("/topics", headers=HTML)).text
        assert 'href="/access"' in seen and 'href="/audit"' in seen


@pytest.mark.parametrize("name", ["rules", "rules/explain", "roles", "access-keys", "quotas"])
async def test_the_api_tells_access_to_admins(stage: Secured, name: str) -> None:
    """As the page does."""
    question = {"principal": ME, "operation": "read", "kind": "topic", "name": TOPIC} if "explain" in name else {}
    for role, status in (("viewer", 403), ("operator", 403), ("admin", 200)):
        async with stage.client(role) as http:
            answer = await http.get(f"/v1/{name}", params=question)
            assert answer.status_code == status, answer.text


@pytest.mark.parametrize("page", ["/access", "/audit"])
async def test_a_websocket_shows_a_page_to_admins(stage: Secured, page: str) -> None:
    async with stage.gateway.socket(additional_headers=stage.headers("operator")) as socket:
        assert (await socket.ask(type="subscribe", id="x", page=page))["problem"]["code"] == "FORBIDDEN"
    async with stage.gateway.socket(additional_headers=stage.headers("admin")) as socket:
        await socket.say(type="subscribe", id="x", page=page)
        await socket.until("page", id="x")


async def test_the_page_of_access_has_rules_roles_keys_and_quotas(stage: Secured) -> None:
    admin = stage.broker.admin
    await admin.access.add_rule(ME, ["read"], comet.ResourceKind.TOPIC, TOPIC)
    made = await admin.access.create_access_key(ME, days=3)
    await admin.access.set_quota(ME, requests=321)
    await admin.access.grant_role("role:finance", "user:granted")
    async with stage.client("admin") as http:

        async def shown() -> str:
            return (await http.get("/access", headers=HTML)).text

        assert await until_answered(
            lambda: _holds(shown, made.key.id, "321", TOPIC, "user:granted"), within_s=PATIENCE_S
        )
        text = await shown()
        assert "Rules are enforced. Superusers may do everything: client:admin." in text
        assert "expires in 2 days" in text
        assert made.text not in text and made.text.removeprefix(f"comet_{made.key.id}_") not in text, "no secret"
        rows = list(csv.reader(StringIO((await http.get("/access.csv?filter=orders")).text)))
        assert [row[:5] for row in rows[1:]] == [[ME, "allow", "read", "topic", TOPIC]]
        overview = (await http.get("/", headers=HTML)).text
        assert f"Access key {made.key.id} of {ME}" in overview
    async with stage.client("viewer") as http:
        assert made.key.id not in (await http.get("/", headers=HTML)).text


async def _holds(shown: Any, *parts: str) -> bool:
    text = await shown()
    return all(part in text for part in parts)


async def test_a_question_is_answered_with_the_rule_that_decides(stage: Secured) -> None:
    await stage.broker.admin.access.add_rule("client:ann", ["read"], comet.ResourceKind.TOPIC, "quo*")
    await stage.broker.admin.access.add_rule("role:ops", ["write"], comet.ResourceKind.TOPIC, "quotes")
    async with stage.client("admin") as http:
        ask = "/access?operation={}&kind={}&name={}&principal={}"
        for given, answer in (
            (("read", "topic", "quotes", "ann"), "Yes: client:ann may read topic quotes"),
            (("read", "topic", "quotes", "client:ann"), "Deciding rule: allow client:ann read topic quo*"),
            (("write", "topic", "quotes", "ann"), "No: client:ann may not write topic quotes"),
            (("alter", "cluster", "", "ann"), "No: client:ann may not alter the cluster"),
            (("read", "topic", "", "ann"), "Name the topic"),
            (("fly", "topic", "x", "ann"), "not a valid RuleOperation"),
            (("read", "topic", "x", "a%20b:c"), ""),
            (("write", "topic", "quotes", "ann&roles=ops"), "Yes: client:ann with role:ops may write topic quotes"),
            (("write", "topic", "quotes", "ann&roles=a,role:ops%20"), "Deciding rule: allow role:ops write"),
            (("write", "topic", "quotes", "ann&roles=a*"), "is not a role"),
        ):
            found = await http.get(ask.format(*given), headers=HTML)
            assert found.status_code == 200
            assert answer in found.text, found.text


async def test_new_events_come_to_an_open_page(stage: Secured) -> None:
    async with stage.gateway.socket(additional_headers=stage.headers("admin")) as socket:
        await socket.say(type="subscribe", id="x", page="/audit?event=admin&outcome=failed")
        page = await socket.until("page", id="x")
        before = set(page["document"]["tables"]["events"]["rows"])
        with pytest.raises(comet.TopicExists):
            await stage.broker.admin.create_topic(TOPIC)
        while True:
            delta = (await socket.until("delta", id="x"))["delta"]
            rows = delta.get("tables", {}).get("events", {}).get("rows", {})
            if new := set(rows) - before:
                assert "TOPIC_EXISTS" in json.dumps([rows[key] for key in new])
                return


async def test_a_page_follows_the_log_once_and_reads_no_record_twice(stage: Secured) -> None:
    async with stage.client("admin") as http:
        for _ in range(3):
            assert (await http.get("/audit", headers=HTML)).status_code == 200
        hub = stage.gateway.server.app.state.hub.statistics()
        assert hub["feeds"][AUDIT_TOPIC]
        assert hub["subscriptions"] == 1, "all requests share it"


async def test_the_page_has_the_newest_events_and_counts_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_trail, "EVENTS_MAX", 5)
    async with secured(tmp_path) as stage, stage.client("admin") as http:
        admin = stage.broker.admin

        async def acted(number: int) -> None:
            for index in range(8):
                await admin.access.add_rule(f"client:n{number}-{index}", ["read"], comet.ResourceKind.TOPIC, TOPIC)

        async def shown() -> str:
            return (await http.get("/audit", headers=HTML)).text

        async def written() -> int:
            return sum((await admin.offsets(AUDIT_TOPIC)).values())

        async def all_written() -> bool:
            return await written() > 8

        async def counted(last: str) -> bool:
            """Whether the page shows the last act, and counts all before the newest five."""
            text, total = await shown(), await written()
            return all(part in text for part in (last, "Newest 5 events", f">{total - 5} older</a>"))

        await acted(1)  # before the page is open, and while it is
        assert await until_answered(all_written, within_s=PATIENCE_S)
        assert await until_answered(lambda: counted("client:n1-7"), within_s=PATIENCE_S), await shown()
        await acted(2)
        assert await until_answered(lambda: counted("client:n2-7"), within_s=PATIENCE_S), await shown()
        rows = list(csv.reader(StringIO((await http.get("/audit.csv")).text)))
        assert len(rows) == 6


# ---- where events are missing


async def test_the_page_says_that_brokers_keep_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMET_CLIENT_CA", "COMET_CLIENT_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)  # of the other broker
    async with live_gateway({TOPIC: 1}) as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S) as http:
        assert "The brokers keep no audit log." in (await http.get("/audit", headers=HTML)).text
        loose = (await http.get("/access", headers=HTML)).text
        assert "Rules are not enforced" in loose


async def test_the_page_says_how_the_gateway_gets_to_see_events(tmp_path: Path) -> None:
    async with secured(tmp_path, key="client:gateway") as stage:
        admin = stage.broker.admin
        await admin.access.add_rule("client:gateway", ["describe"], comet.ResourceKind.CLUSTER, "*")
        async with stage.client("admin") as http:

            async def shown() -> str:
                return (await http.get("/audit", headers=HTML)).text

            assert await until_answered(lambda: _holds(shown, "this gateway sees no event"), within_s=PATIENCE_S)
            assert "comet acl add client:gateway read topic __audit" in await shown()
            await admin.access.add_rule("client:gateway", ["describe"], comet.ResourceKind.TOPIC, AUDIT_TOPIC)
            denied = "This gateway may not read the audit log of the brokers: client:gateway may not read topic"
            assert await until_answered(lambda: _holds(shown, denied), within_s=20), await shown()
            await admin.access.add_rule("client:gateway", ["read"], comet.ResourceKind.TOPIC, AUDIT_TOPIC)
            assert await until_answered(lambda: _holds(shown, "CreateTopic", "AddRule"), within_s=PATIENCE_S)
            assert "may not read the audit log" not in await shown()
            await admin.access.remove_rule("client:gateway", ["read"], comet.ResourceKind.TOPIC, AUDIT_TOPIC)
            assert await until_answered(lambda: _holds(shown, denied), within_s=30), await shown()
            assert "AddRule" not in await shown(), "what it had read is gone, too"


async def test_a_gateway_that_may_not_describe_the_cluster_says_so(tmp_path: Path) -> None:
    async with secured(tmp_path, key="client:gateway") as stage, stage.client("admin") as http:
        found = await http.get("/access")
        assert (found.status_code, found.json()["code"]) == (403, "FORBIDDEN")
        assert "client:gateway may not describe the cluster" in found.json()["detail"]
