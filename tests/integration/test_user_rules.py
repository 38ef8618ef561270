"""A gateway with `user_rules`: brokers decide for each of its users, on every way in."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

import comet
from comet.admin.acts import ACTS, OPERATIONS
from comet.security.certificates import Authority
from comet_broker.audit.log import LOGGER
from comet_broker.config import BrokerConfig
from comet_broker.server import Server as BrokerServer
from comet_gateway.brokers import user_access
from comet_gateway.brokers.user_access import UserAccess
from comet_gateway.config import GatewayConfig
from comet_gateway.http.auth import ROLES, Role, new_token
from comet_gateway.http.needs import NEEDS
from comet_gateway.server import Server
from tests.identity_provider import CLIENT, identity_provider
from tests.integration.gateway_http import NDJSON, Wire
from tests.integration.live_gateway import Gateway, serving
from tests.integration.test_gateway_dead_letters import dead
from tests.integration.test_gateway_oidc import ANSWERED, PAGE, TYPED
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOPIC, SECRET, GROUP = "orders-1", "secret", "billing"
DENIED: Final = {"FORBIDDEN", "TOPIC_NOT_FOUND", "GROUP_NOT_FOUND"}
PARAMETERS: Final = {
    "topic": TOPIC, "group": GROUP, "partition": "0", "offset": "0", "broker": "1", "version": "v", "path": "p",
    "file": "f", "principal": "user:bob", "id": "0123456789ab",
    "alert": "0123456789ab", "calendar": "XNYS", "key": "k", "schedule": "report",
}  # fmt: skip
BODIES: Final[dict[tuple[str, str], Any]] = {
    ("POST", "/v1/topics/{topic}/records"): {"value": 1},
    ("PUT", "/v1/groups/{group}/offsets"): {"offsets": [{"topic": TOPIC, "partition": 0, "offset": "0"}]},
    ("POST", "/v1/groups/{group}/acquire"): {"topic": TOPIC},
    ("POST", "/v1/groups/{group}/ack"): {"tokens": ["x"]},
    ("POST", "/v1/groups/{group}/nack"): {"tokens": ["x"]},
    ("POST", "/v1/groups/{group}/reject"): {"tokens": ["x"], "reason": "r"},
    ("POST", "/v1/groups/{group}/extend"): {"tokens": ["x"]},
    ("POST", "/v1/dead-letters/{topic}/redrive"): {"filter": {}},
    ("POST", "/v1/dead-letters/{topic}/discard"): {"filter": {}},
    ("POST", "/v1/alerts"): {"name": "a", "kind": "stale", "topic": TOPIC, "threshold": 9},
    ("PUT", "/v1/alerts/{alert}"): {"name": "a", "kind": "offline", "threshold": 0},
    ("POST", "/v1/alerts/{alert}/mute"): {"seconds": 0},
    ("PUT", "/v1/calendars/{calendar}"): {
        "zone": "UTC",
        "sessions": [{"date": "2026-11-27", "open": "2026-11-27T08:00", "close": "2026-11-27T16:00"}],
    },
    ("PUT", "/v1/kv/{topic}/{key}"): {"bid": 1},
    ("PUT", "/v1/schedules/{topic}/{schedule}"): {"spec": "every 1h", "record": {"value": 1}},
    ("POST", "/v1/schedules/{topic}/{schedule}/move"): {"spec": "every 2h"},
    ("POST", "/v1/leaders/move"): {},
    ("POST", "/v1/roles/grant"): {"role": "role:a", "principal": "user:bob"},
    ("POST", "/v1/roles/revoke"): {"role": "role:a", "principal": "user:bob"},
}
QUERIES: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("POST", "/v1/dead-letters/{topic}/redrive"): {"dry_run": "true"},
    ("POST", "/v1/dead-letters/{topic}/discard"): {"dry_run": "true"},
    ("GET", "/v1/kv-history/{topic}"): {"key": "k"},
    ("GET", "/v1/rules/explain"): {"principal": "user:a", "operation": "read", "kind": "topic", "name": "t"},
}
ALSO: Final[dict[tuple[str, str], tuple[str, ...]]] = {  # by the body
    ("PUT", "/v1/groups/{group}/offsets"): (f"read topic {TOPIC}",),
    ("POST", "/v1/groups/{group}/acquire"): (f"read topic {TOPIC}",),
}


@dataclass
class Ruled:
    """A broker with rules, and a gateway whose users ann and bob have its role admin."""

    superuser: comet.Bootstrap
    admin: comet.Admin
    gateway: Gateway
    users: UserAccess
    tokens: dict[str, str]

    def http(self, name: str = "ann") -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.tokens[name]}", "accept": "*/*"}
        return httpx.AsyncClient(base_url=self.gateway.url, headers=headers, timeout=30)

    async def allow(self, *needs: str, name: str = "token:ann") -> None:
        """The user has these rights and no others, and the gateway knows it."""
        access = self.admin.access
        before = (await access.list_rules(principal=name)).rules
        wanted = [tuple(need.split(" ")) for need in needs]
        for operation, kind, resource in wanted:  # first, so that what stays allowed is never denied
            await access.add_rule(name, [operation], comet.ResourceKind(kind), resource)
        for rule in before:
            if (*rule.operations, rule.kind, rule.name) not in wanted:
                await access.remove_rule(name, rule.operations, rule.kind, rule.name)
        await self.known()

    async def known(self) -> None:
        """Waits until the gateway has heard of the last change of rules."""
        revision = (await self.admin.access.check([])).revision
        assert await until(lambda: self.users._revision == revision, within_s=30)


@pytest.fixture
async def ruled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ruled]:
    monkeypatch.setattr(user_access, "POLL_S", 0.02)
    authority = Authority.create(tmp_path / "security", "comet")
    broker = authority.issue_broker(1, ["127.0.0.1"])
    config = BrokerConfig(
        data=tmp_path / "data",
        port=0,
        clients_ca=authority.ca,
        clients_cert=broker.cert,
        clients_key=broker.key,
        superusers=("client:admin", "client:gateway"),
        gateways=("client:gateway",),
        drain_grace_ms=100,
    )
    made = {name: new_token(name, "admin") for name in ("ann", "bob")}
    tokens = tmp_path / "tokens.toml"
    tokens.touch(0o600)
    tokens.write_text("".join(row for _, row in made.values()))
    admin, ours = authority.issue_client("admin"), authority.issue_client("gateway")
    for kind, path in (("CA", authority.ca), ("CERT", ours.cert), ("KEY", ours.key)):
        monkeypatch.setenv(f"COMET_CLIENT_{kind}", str(path))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(BrokerServer(config))
        files: dict[str, Any] = {"ca": authority.ca, "cert": admin.cert, "key": admin.key}
        superuser = comet.Bootstrap(server.address, **files)
        client = await stack.enter_async_context(comet.Admin(superuser))
        for name in (TOPIC, "orders-2", SECRET):
            await client.create_topic(name)
        await client.commit_offsets(GROUP, {(TOPIC, 0): 0})
        settings = GatewayConfig(
            bootstrap=server.address, port=0, tokens_file=str(tokens), user_rules=True, drain_s=0.2
        )
        running = await stack.enter_async_context(serving(settings))
        gateway = Gateway(server.address, running.url, running)
        yield Ruled(
            superuser, client, gateway, running.app.state.users, {name: token for name, (token, _) in made.items()}
        )


def path_of(template: str) -> str:
    return re.sub(r"{(\w+)(?::path)?}", lambda found: PARAMETERS[found[1]], template)


async def code_of(http: httpx.AsyncClient, method: str, template: str) -> str:
    """The code of the problem; empty: it was answered."""
    route, body = (method, template), BODIES.get((method, template))
    async with http.stream(method, path_of(template), json=body, params=QUERIES.get(route, {})) as answer:
        if answer.status_code < 400:
            return ""
        text = await answer.aread()
    if "json" not in answer.headers["content-type"]:  # a page of an error
        return "FORBIDDEN" if answer.status_code == 403 else str(answer.status_code)
    return str(json.loads(text)["code"])


def test_each_route_has_a_row() -> None:
    assert set(NEEDS) == set(ROLES)


def test_no_route_for_which_a_role_is_needed_is_without_needs_but_these() -> None:
    acts = {(route.method, route.path) for _, route in OPERATIONS.values()}
    free = {route for route, needs in NEEDS.items() if not needs and ROLES[route] is not Role.ANYONE}
    assert free - acts == {("WS", "/v1/ws"), ("GET", "/v1/topic-settings"), ("GET", "/v1/schedules/next")}


async def test_next_times_read_a_calendar_by_the_rules_of_the_user(ruled: Ruled) -> None:
    sessions = (comet.CalendarSession("2099-11-27", 4_099_449_600_000_000, 4_099_478_400_000_000),)
    await ruled.admin.calendars.put_calendar(comet.Calendar("XNYS", "UTC", sessions, "2099-12-31"))
    async with ruled.http() as http:
        for rules, spec, status in (
            ((), "every 15m", 200),
            ((), "calendar:XNYS open", 403),
            (("describe cluster *",), "calendar:XNYS open", 200),
        ):
            await ruled.allow(*rules)
            assert (await http.get("/v1/schedules/next", params={"spec": spec})).status_code == status


async def test_users_see_and_change_schedules_by_their_rules(ruled: Ruled) -> None:
    path, body = f"/v1/schedules/{TOPIC}/report", {"spec": "at 2199-12-31T00:00Z", "record": {"value": 1}}
    for topic in (TOPIC, SECRET):
        await ruled.admin.schedules.put_schedule(topic, "other", "at 2199-12-31T00:00Z", value=b"v")
    async with ruled.http() as http:

        async def listed() -> list[str]:
            found = (await http.get("/v1/schedules")).json()["schedules"]
            return [f"{one['topic']}/{one['id']}" for one in found]

        await ruled.allow()
        assert await listed() == []
        assert (await http.get(f"/v1/schedules/{TOPIC}/other")).json()["code"] in DENIED
        await ruled.allow(f"read topic {TOPIC}")
        assert await listed() == [f"{TOPIC}/other"]
        assert (await http.get(f"/v1/schedules/{TOPIC}/other")).status_code == 200
        assert (await http.get(f"/v1/schedules/{SECRET}/other")).json()["code"] in DENIED
        for method, act in (("PUT", ""), ("DELETE", ""), *(("POST", f"/{act}") for act in ("pause", "resume", "run"))):
            refused = await http.request(method, path + act, json=body if method == "PUT" else None)
            assert refused.json()["code"] in DENIED, (method, act)
        assert (await http.post(f"{path}/move", json={"spec": "every 1h"})).json()["code"] in DENIED
        await ruled.allow(f"write topic {TOPIC}")
        made = await http.put(path, json=body)
        assert (made.status_code, made.json()["schedule"]["author"]) == (200, "token:ann")
        assert (await http.post(f"{path}/pause")).status_code == 200
        assert (await http.delete(path)).status_code == 200
        assert await listed() == []


async def test_each_route_needs_what_the_table_says(ruled: Ruled) -> None:
    async with ruled.http() as http:
        for (method, template), needs in NEEDS.items():
            if not needs:
                continue
            wanted = [need.format(**PARAMETERS) for need in (*needs, *ALSO.get((method, template), ()))]
            for missing in wanted:
                if missing.replace("describe", "read") in wanted and missing.startswith("describe"):
                    continue  # reading implies it
                await ruled.allow(*(need for need in wanted if need != missing))
                assert await code_of(http, method, template) in DENIED, (method, template, missing)
            await ruled.allow(*wanted)
            assert await code_of(http, method, template) not in DENIED, (method, template)


async def test_acts_are_those_of_the_user(ruled: Ruled, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER)
    async with ruled.http() as http:
        assert (await http.get("/v1/topics")).json()["items"] == []
        assert (await http.get("/v1/groups")).json()["items"] == []
        refused = await http.post("/v1/rules", json=rule_of("token:ann"))
        assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
        assert "token:ann may not alter the cluster" in refused.json()["detail"]
        await ruled.allow("describe topic orders-*", "describe group billing", "alter cluster *")
        assert [topic["name"] for topic in (await http.get("/v1/topics")).json()["items"]] == [TOPIC, "orders-2"]
        assert [group["name"] for group in (await http.get("/v1/groups")).json()["items"]] == [GROUP]
        assert (await http.get(f"/v1/topics/{SECRET}")).status_code == 404
        assert (await http.delete(f"/v1/topics/{TOPIC}")).json()["code"] == "FORBIDDEN"
        assert (await http.post("/v1/rules", json=rule_of("user:bob"))).json()["changed"]
        (rule,) = (await ruled.admin.access.list_rules(principal="user:bob")).rules
        assert rule.author == "token:ann"
    events = [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]
    done = [event for event in events if event["event"] == "admin" and event["principal"] == "token:ann"]
    assert [(event["via"], event["request"]["rule"]["principal"]) for event in done] == [("client:gateway", "user:bob")]


def rule_of(principal: str) -> dict[str, Any]:
    return {"principal": principal, "operations": ["read"], "kind": "topic", "name": SECRET}


async def test_every_act_of_the_table_is_denied_without_its_rule(ruled: Ruled) -> None:
    """Those whose answer is filtered excepted."""
    async with ruled.http() as http:
        for act, route in OPERATIONS.values():
            told = route.method != "POST" or (route.method, route.path) in BODIES or "{schedule}" in route.path
            if act.needs and told and act.name not in {"AlterTopic", "SetQuota"}:
                assert await code_of(http, route.method, route.path) in DENIED, route
    assert {act.name for act in ACTS.values() if not act.needs} == {
        "ListTopics", "ListGroups", "ListSchedules", "CheckAccess",
    }  # fmt: skip


async def test_a_stream_of_events_ends_with_its_right(ruled: Ruled) -> None:
    headers = {"authorization": f"Bearer {ruled.tokens['ann']}"}
    async with ruled.gateway.stream(f"{TOPIC}/stream", **headers) as refused:
        assert refused.status == 404
    await ruled.allow(f"read topic {TOPIC}", f"write topic {TOPIC}")
    async with ruled.http() as http, ruled.gateway.stream(f"{TOPIC}/stream", **headers) as stream:
        assert (await stream.next())[0] == "subscribed"
        await http.post(f"/v1/topics/{TOPIC}/records", json={"value": 1})
        assert (await stream.next())[1]["value"] == 1
        await ruled.allow(f"write topic {TOPIC}")
        name, problem = await stream.next()
        assert (name, problem["code"]) == ("error", "FORBIDDEN")
        with pytest.raises(StopAsyncIteration):
            await stream.next()


async def test_frames_of_a_socket_need_their_rights(ruled: Ruled) -> None:
    subscriptions: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"topic": TOPIC}, (f"read topic {TOPIC}",)),
        ({"topics": [TOPIC, "orders-2"]}, (f"read topic {TOPIC}", "read topic orders-2")),
        ({"pattern": "orders-.*"}, ("read topic orders-*",)),
        ({"topic": TOPIC, "replay": {"from": "earliest"}}, (f"read topic {TOPIC}",)),
        ({"topic": TOPIC, "group": {"name": "g"}}, (f"read topic {TOPIC}", "read group g")),
        (
            {"topic": TOPIC, "group": {"name": "s", "kind": "share", "dead_letter": "orders-2"}},
            (f"read topic {TOPIC}", "read group s", "write topic orders-2"),
        ),
        ({"page": "/topics"}, ("describe topic *", "describe group *", "describe cluster *")),
        ({"page": "/schedules"}, ("read topic *", "describe group *", "describe cluster *")),  # it implies describe
        (
            {"page": f"/topics/{TOPIC}/keys"},
            ("describe topic *", "describe group *", "describe cluster *", f"read topic {TOPIC}"),
        ),
        (
            {"channel": "tail", "params": {"topic": TOPIC}},
            ("describe topic *", "describe group *", "describe cluster *", f"read topic {TOPIC}"),
        ),
    ]
    headers = {"Authorization": f"Bearer {ruled.tokens['ann']}"}
    async with ruled.gateway.socket(additional_headers=headers) as socket:
        for number, (members, needs) in enumerate(subscriptions):
            for missing in needs:
                await ruled.allow(*(need for need in needs if need != missing))
                id_ = f"{number}-{missing}"[:60]
                told = await socket.ask(type="subscribe", id=id_, **members)
                assert told["type"] == "error" and told["problem"]["code"] in DENIED, (members, missing, told)
                assert (await socket.until("end", id=id_))["reason"] == "failed"
            await ruled.allow(*needs)
            await socket.say(type="subscribe", id=str(number), **members)
            if "channel" not in members:  # its first event is a record
                told = await socket.until("subscribed", "page", "error", "end", id=str(number))
                assert told["type"] in {"subscribed", "page"}, (members, told)
            await ruled.allow()  # taken away under the open subscription
            told = await socket.until("error", "end", id=str(number))
            assert told["type"] == "end" or told["problem"]["code"] in DENIED, (members, told)
        write = {"type": "produce", "topic": TOPIC, "record": {"value": 1}}
        assert (await socket.ask(id="w", **write))["problem"]["code"] in DENIED
        await ruled.allow(f"write topic {TOPIC}")
        assert (await socket.ask(id="w", **write))["type"] == "receipt"


async def test_lines_of_records_are_refused_from_the_moment_that_the_right_is_gone(ruled: Ruled) -> None:
    await ruled.allow(f"write topic {TOPIC}")
    async with ruled.http() as http:
        wire = await Wire.open(http)
        path, bearer = f"/v1/topics/{TOPIC}/records", f"authorization: Bearer {ruled.tokens['ann']}"
        await wire.begin(path, NDJSON, bearer)
        await wire.chunk(b'{"value":1}\n')
        assert (await wire.head())[0] == 200
        assert json.loads(await wire.line())["offset"] == "0"
        await ruled.allow()
        await wire.chunk(b'{"value":2}\n')
        assert json.loads(await wire.line())["problem"]["code"] in DENIED
        wire.close()


async def test_tokens_of_a_share_group_need_the_right_to_read_their_topics(ruled: Ruled) -> None:
    await ruled.allow(f"read topic {TOPIC}", f"write topic {TOPIC}", "read group jobs")
    async with ruled.http() as http:
        await http.post(f"/v1/topics/{TOPIC}/records", json={"value": 1})
        body = {"topic": TOPIC, "start": "earliest", "dead_letter": SECRET}
        assert (await http.post("/v1/groups/jobs/acquire", json=body)).json()["code"] in DENIED
        found = await http.post("/v1/groups/jobs/acquire", json={"topic": TOPIC, "start": "earliest"})
        tokens = [found.json()["records"][0]["token"]]
        await ruled.allow("read group jobs")
        for act in ("ack", "nack", "reject", "extend"):
            refused = await http.post(f"/v1/groups/jobs/{act}", json={"tokens": tokens})
            assert refused.json()["code"] in DENIED, (act, refused.text)
        await ruled.allow("read group jobs", f"read topic {TOPIC}")
        assert (await http.post("/v1/groups/jobs/ack", json={"tokens": tokens})).status_code == 200


async def test_a_redrive_needs_the_right_to_write_where_the_dead_letters_came_from(ruled: Ruled) -> None:
    await ruled.admin.create_topic("orders")
    await dead(ruled.superuser, 1, topic="orders-2")
    await ruled.allow("read topic orders-2", "write topic orders-2")
    async with ruled.http() as http:
        path, body = "/v1/dead-letters/orders-2/redrive", {"filter": {"group": "work"}}
        assert (await http.post(path, json=body, params={"dry_run": "true"})).json()["code"] in DENIED
        assert (await http.post(path, json=body)).json()["code"] in DENIED
        await ruled.allow("read topic orders-2", "write topic orders-2", "write topic orders")
        done = await http.post(path, json=body)
        assert json.loads(done.text.splitlines()[-1])["end"]["done"] == 1, done.text


async def test_users_are_told_apart_and_roles_count(ruled: Ruled) -> None:
    await ruled.admin.access.add_rule("role:readers", ["read"], comet.ResourceKind.TOPIC, TOPIC)
    await ruled.admin.access.grant_role("role:readers", "token:ann")
    await ruled.known()
    path = f"/v1/topics/{TOPIC}/records"
    async with ruled.http("ann") as ann, ruled.http("bob") as bob:
        assert [(await one.get(path)).status_code for one in (ann, bob, ann)] == [200, 404, 200]
        await ruled.admin.access.revoke_role("role:readers", "token:ann")
        await ruled.known()
        assert (await ann.get(path)).status_code == 404


async def test_groups_of_the_provider_are_roles_at_the_brokers(ruled: Ruled) -> None:
    await ruled.admin.access.add_rule("role:/finance", ["read"], comet.ResourceKind.TOPIC, TOPIC)
    await ruled.admin.access.add_rule("user:ann", ["read"], comet.ResourceKind.TOPIC, "orders-2")
    await ruled.admin.access.add_rule("role:contractors", ["read"], comet.ResourceKind.TOPIC, "*", deny=True)
    with identity_provider() as provider:
        settings = GatewayConfig(
            bootstrap=ruled.gateway.broker, port=0, user_rules=True, drain_s=0.2, oidc_issuer=provider.url,
            oidc_client_id=CLIENT, oidc_roles=("viewer=*",), oidc_name_claim="preferred_username", oidc_audience="api",
        )  # fmt: skip
        provider.secret = ""
        async with serving(settings) as running:
            for groups, statuses in (
                (["/finance"], [200, 200, 404]),
                ([], [404, 200, 404]),
                (["/finance", "contractors"], [403, 403, 404]),
            ):
                provider.claims = {"sub": "1", "preferred_username": "ann", "groups": groups}
                paths = [f"/v1/topics/{topic}/records" for topic in (TOPIC, "orders-2", SECRET)]
                async with httpx.AsyncClient(base_url=running.url, timeout=30) as browser:
                    begun = await browser.get("/login/oidc", headers=TYPED)
                    await browser.get(provider.authorize(begun.headers["location"]), headers=ANSWERED)
                    found = [(await browser.get(path, headers=PAGE)).status_code for path in paths]
                assert found == statuses, (groups, found)
                bearer = {"authorization": f"Bearer {provider.api_token('api')}"}
                async with httpx.AsyncClient(base_url=running.url, timeout=30, headers=bearer) as program:
                    assert [(await program.get(path)).status_code for path in paths] == statuses, groups
                    assert [topic["name"] for topic in (await program.get("/v1/topics")).json()["items"]] == [
                        topic for topic, status in zip((TOPIC, "orders-2"), statuses, strict=False) if status != 404
                    ]


async def test_a_gateway_that_may_not_act_for_users_serves_none(ruled: Ruled) -> None:
    ruled.users._admin = lambda: ruled.admin  # that of client:admin, which is not in the brokers' setting gateways
    ruled.users._answers.clear()
    async with ruled.http() as http:
        refused = await http.get(f"/v1/topics/{TOPIC}/records")
        assert refused.status_code == 403 and "client:admin may not act for others" in refused.json()["detail"]
        assert (await http.get("/v1/topics")).status_code == 403


def test_user_rules_need_users(tmp_path: Path) -> None:
    with pytest.raises(comet.InvalidArgument, match="user_rules needs users"):
        Server(GatewayConfig(user_rules=True))


async def test_a_delayed_record_has_the_user_as_its_author(ruled: Ruled) -> None:
    await ruled.allow(f"write topic {TOPIC}")
    headers = {"Authorization": f"Bearer {ruled.tokens['ann']}"}
    record = {"value": 1, "delay_ms": 3_600_000}
    async with ruled.http() as http, ruled.gateway.socket(additional_headers=headers) as socket:
        url = f"/v1/topics/{TOPIC}/records"
        answers = [
            await http.post(url, json=record),
            await http.post(url, content=json.dumps(record) + "\n", headers={"Content-Type": NDJSON}),
        ]
        assert all("schedule_id" in answer.text for answer in answers), [answer.text for answer in answers]
        receipt = await socket.ask(type="produce", id="p", topic=TOPIC, record=record)
        assert "schedule_id" in receipt["results"][0], receipt
    found = (await ruled.admin.schedules.list_schedules(TOPIC)).schedules
    assert [one.author for one in found] == ["token:ann"] * 3
