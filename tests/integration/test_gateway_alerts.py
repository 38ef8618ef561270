"""Alerts with a real broker: rules by the API, notices to a webhook and by e-mail, another gateway that takes over."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import comet
import comet.testing
from comet.types import ALERTS_TOPIC, APPLIED_TOPIC
from comet_gateway import GatewayConfig, create_app
from comet_gateway.alerts import journal, log, service
from comet_gateway.alerts.webhook import signature
from comet_gateway.http.auth import new_token
from tests.integration.alert_targets import OK, Receiver, mail_receiver, receiver
from tests.waiting import until, until_answered

SECRET = b"a secret of many bytes"
PATIENCE_S = 60


class Api:
    """A gateway in this process, before a broker."""

    def __init__(self, client: httpx.AsyncClient, app: Any) -> None:
        self.client = client
        self.alerts: service.Alerts = app.state.alerts

    async def call(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        answer = await self.client.request(method, f"/v1/{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def create(self, **rule: Any) -> str:
        found: str = (await self.call("POST", "alerts", {"name": "test", **rule}, status=201))["id"]
        return found

    async def state(self, id_: str) -> str:
        found: str = (await self.call("GET", f"alerts/{id_}"))["state"]
        return found

    async def until_state(self, id_: str, state: str) -> None:
        async def is_so() -> bool:
            return await self.state(id_) == state

        assert await until_answered(is_so, within_s=PATIENCE_S), await self.call("GET", f"alerts/{id_}")


@asynccontextmanager
async def gateway(broker: str, **settings: Any) -> AsyncIterator[Api]:
    app = create_app(GatewayConfig(bootstrap=broker, alert_networks=("127.0.0.0/8",), **settings))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client,
    ):
        api = Api(client, app)
        assert await until(lambda: api.alerts.log.ready, within_s=PATIENCE_S)
        yield api


@pytest.fixture
async def broker() -> AsyncIterator[str]:
    async with comet.testing.broker({"quotes": 1, "quiet": 1}) as found:
        yield found.address


def secret_file(folder: Path) -> str:
    path = folder / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return str(path)


async def events(hook: Receiver, count: int) -> list[str]:
    assert await until(lambda: len(hook.calls) >= count, within_s=PATIENCE_S), hook.calls
    return [call.document["event"] for call in hook.calls]


async def test_a_price_above_its_threshold_fires_once_and_its_end_is_told(broker: str, tmp_path: Path) -> None:
    async with (
        gateway(broker, alert_secret_file=secret_file(tmp_path)) as api,
        receiver() as hook,
        comet.Producer(broker) as producer,
    ):
        id_ = await api.create(
            kind="value", topic="quotes", key="ACME", filter="side=buy", field="price", threshold=150,
            channels=[{"type": "webhook", "url": hook.url}],
        )  # fmt: skip
        assert await api.state(id_) == "ok"
        assert await until(lambda: api.alerts.evaluates and not api.alerts.state(id_).problem, within_s=PATIENCE_S)

        async def quote(price: float, *, key: str = "ACME", side: str = "buy") -> None:
            await producer.publish("quotes", json.dumps({"price": price, "side": side}).encode(), key=key)

        await quote(200, key="OTHER")
        await quote(200, side="sell")
        await quote(100)
        await quote(151.5)
        await api.until_state(id_, "firing")
        await quote(120)
        await api.until_state(id_, "resolved")
        assert await events(hook, 2) == ["firing", "resolved"]

        fired = hook.calls[0]
        assert fired.line == "POST /hook?token=s3cret HTTP/1.1"
        assert fired.document["value"] == 151.5
        assert fired.document["id"] == fired.headers["webhook-id"] == f"{id_}-1-firing"
        signed = signature(SECRET, fired.headers["webhook-id"], int(fired.headers["webhook-timestamp"]), fired.body)
        assert fired.headers["webhook-signature"] == signed
        history = await api.call("GET", "alert-history")
        assert [one["event"] for one in history["events"]] == ["resolved", "firing", "stored"]
        assert [one["outcome"] for one in history["deliveries"]] == ["delivered", "delivered"]
        assert "s3cret" not in json.dumps(history)


async def test_another_gateway_takes_over_with_the_states_and_what_is_not_delivered(broker: str) -> None:
    """Both know the rules. The notice that the first one could not deliver comes from the second, with the same id."""
    answer = b"HTTP/1.1 503 Later\r\n\r\n"
    async with receiver(lambda _: answer) as hook:
        async with gateway(broker) as first:
            id_ = await first.create(
                kind="stale", topic="quiet", threshold=0, for_s=1, channels=[{"type": "webhook", "url": hook.url}]
            )
            await first.until_state(id_, "firing")
            assert await until(lambda: first.alerts.evaluates, within_s=PATIENCE_S)
            async with gateway(broker) as second:
                assert await second.state(id_) == "firing"
                assert [one.alerts.evaluates for one in (first, second)] == [True, False]
                assert await until(lambda: bool(hook.calls), within_s=PATIENCE_S)
                await second.call("POST", f"alerts/{id_}/acknowledge")
                await first.alerts.__aexit__(None, None, None)  # it leaves; its deliveries end in the middle
                answer = OK
                assert await until(lambda: not second.alerts.log.book.outstanding, within_s=PATIENCE_S)
                assert second.alerts.evaluates
                told = (await second.call("GET", f"alerts/{id_}"))["acknowledged_by"]
                assert (told, await second.state(id_)) == ("anyone", "firing")
                outcomes = (await second.call("GET", "alert-history"))["deliveries"]
        assert {call.headers["webhook-id"] for call in hook.calls} == {f"{id_}-2-firing"}
        assert [one["outcome"] for one in outcomes] == ["delivered"]


async def test_e_mail_and_a_test_of_all_channels(broker: str) -> None:
    async with mail_receiver() as mail, receiver() as hook:
        settings = {"smtp_server": f"127.0.0.1:{mail.port}", "smtp_security": "none", "smtp_from": "alerts@example.com"}
        async with gateway(broker, **settings) as api:
            id_ = await api.create(
                name="quiet is silent",
                kind="stale",
                topic="quiet",
                threshold=0,
                severity="critical",
                channels=[
                    {"type": "email", "to": ["ops@example.com"]},
                    {"type": "webhook", "url": hook.url},
                    {"type": "browser"},
                ],
            )
            tested = (await api.call("POST", f"alerts/{id_}/test"))["deliveries"]
            assert [(one["outcome"], one["error"]) for one in tested] == [
                ("delivered", ""), ("delivered", ""), ("failed", "no page is open that shows notifications"),
            ]  # fmt: skip
            assert hook.calls[0].document["event"] == "test"
            await api.until_state(id_, "firing")
            assert await until(lambda: len(mail.messages) >= 2, within_s=PATIENCE_S)
            subjects = [line for text in mail.messages for line in text.split("\r\n") if line.startswith("Subject")]
            assert subjects == [f"Subject: [critical] quiet is silent: {event}" for event in ("test", "firing")]
            assert mail.recipients == ["rcpt TO:<ops@example.com>"] * 2


async def test_what_people_do_is_checked_and_kept(broker: str) -> None:
    async with gateway(broker) as api:
        assert await api.call("GET", "alerts") == {"items": []}
        assert await api.call("GET", "alert-history") == {"events": [], "deliveries": []}
        assert (await api.call("GET", "alerts/0123456789ab", status=404))["code"] == "ALERT_NOT_FOUND"
        rule = {"name": "offline", "kind": "offline", "threshold": 0}
        id_ = await api.create(**rule)
        assert (await api.call("POST", f"alerts/{id_}/acknowledge", status=409))["code"] == "ALERT_NOT_FIRING"
        muted = await api.call("POST", f"alerts/{id_}/mute", {"seconds": 60})
        assert muted["muted_until_us"] is not None
        assert (await api.call("POST", f"alerts/{id_}/mute", {"seconds": 0}))["muted_until_us"] is None
        changed = await api.call("PUT", f"alerts/{id_}", {**rule, "name": "renamed", "enabled": False})
        assert (changed["rule"]["name"], changed["rule"]["enabled"]) == ("renamed", False)
        wrong = {**rule, "channels": [{"type": "webhook", "url": "http://u:p@hooks.example.com/"}]}
        assert (await api.call("POST", "alerts", wrong, status=422))["code"] == "VALIDATION"
        await api.call("POST", "alerts", {**rule, "threshold": "1"}, status=422)
        await api.call("DELETE", f"alerts/{id_}", status=204)
        assert await api.call("GET", "alerts") == {"items": []}
        events = [one["event"] for one in (await api.call("GET", "alert-history"))["events"]]
        assert events == ["deleted", "stored", "unmuted", "muted", "stored"]
        assert api.alerts.statistics()["rules"] == 0


async def test_a_checkpoint_replaces_the_records_before_it(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "CHECKPOINT_RECORDS", 5)
    async with comet.Admin(broker) as admin:
        async with gateway(broker) as api:
            ids = [await api.create(kind="offline", threshold=number, name=f"rule {number}") for number in range(6)]

            async def is_cut() -> bool:
                return bool((await admin.describe_topic(ALERTS_TOPIC)).partitions[0].log_start)

            assert await until_answered(is_cut, within_s=PATIENCE_S)
            before = await api.call("GET", "alerts")
        async with gateway(broker) as api:
            assert await api.call("GET", "alerts") == before
            assert {one["id"] for one in before["items"]} == set(ids)


async def test_the_journal_is_for_admins_and_foreign_records_do_no_harm(broker: str, tmp_path: Path) -> None:
    async with gateway(broker) as api, comet.Producer(broker) as producer:
        id_ = await api.create(kind="offline", threshold=0)
        for value in (b"no json", b'{"type":"rule","rule":{"id":"x"}}', journal.encode(journal.Unable("none", "", 0))):
            await producer.publish(ALERTS_TOPIC, value)
        assert await until(lambda: api.alerts.log.book.unread == 2, within_s=PATIENCE_S)
        assert await api.state(id_) == "ok"
    operator, operator_row = new_token("ann", "operator")
    viewer, viewer_row = new_token("bob", "viewer")
    tokens = tmp_path / "tokens"
    tokens.write_text(operator_row + viewer_row)
    tokens.chmod(0o600)
    async with gateway(broker, tokens_file=str(tokens)) as api:

        async def status(token: str, method: str, path: str, body: Any = None) -> int:
            headers = {"authorization": f"Bearer {token}"}
            return (await api.client.request(method, f"/v1/{path}", json=body, headers=headers)).status_code

        hook = {"type": "webhook", "url": "https://hooks.example.com/s3cret"}
        rule = {"name": "a", "kind": "offline", "threshold": 0, "channels": [hook]}
        assert await status(viewer, "POST", "alerts", rule) == 403
        assert await status(viewer, "POST", f"alerts/{id_}/test") == 403
        assert await status(operator, "POST", "alerts", rule) == 201
        assert await status(operator, "GET", f"topics/{ALERTS_TOPIC}/records") == 403
        assert await status(operator, "POST", f"topics/{ALERTS_TOPIC}/records", {"value": {}}) == 403
        for path in (f"topics/{APPLIED_TOPIC}/records", f"kv/{APPLIED_TOPIC}/trading"):
            assert await status(operator, "GET", path) == 403
        audit = {"name": "a", "kind": "offline", "threshold": 0, "topic": "__audit"}
        assert await status(operator, "POST", "alerts", audit) == 403
        for token, url in ((viewer, "https://hooks.example.com/…"), (operator, hook["url"])):
            listed = await api.client.get("/v1/alerts", headers={"authorization": f"Bearer {token}"})
            urls = [one["url"] for alert in listed.json()["items"] for one in alert["rule"]["channels"]]
            assert urls == [url]


async def test_alerts_can_be_switched_off(broker: str) -> None:
    app = create_app(GatewayConfig(bootstrap=broker, alerts=False))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        assert (await client.get("/v1/alerts")).json()["code"] == "ALERTS_OFF"
        assert "Alerts are off" in (await client.get("/alerts")).text
