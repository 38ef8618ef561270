"""Delivery of notices: hostile targets of webhooks, attempts and pauses, e-mail without foreign headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.errors import InvalidArgument, Unavailable
from comet_gateway.alerts.delivery import ATTEMPTS_MAX, PAUSES_S, Deliveries
from comet_gateway.alerts.journal import Delivered, Notice, Outstanding, Record
from comet_gateway.alerts.mail import Mailer, MailServer, mail_server_of, message_of
from comet_gateway.alerts.rule import Channel, EmailChannel, Rule, WebhookChannel
from comet_gateway.alerts.senders import Senders, senders_of
from comet_gateway.alerts.targets import ForbiddenTarget, addresses_of, is_public, networks_of
from comet_gateway.alerts.webhook import DeliveryFailed, WebhookClient
from comet_gateway.config import GatewayConfig
from tests.integration.alert_targets import OK, mail_receiver, receiver

ALLOWED = networks_of(["127.0.0.0/8"])


def notice(*channels: Channel, name: str = "test") -> Notice:
    rule = Rule("0123456789ab", name, "offline", 0.0, channels=channels)
    return Notice("0123456789ab-1-firing", "firing", 1_000_000, rule, 1.0, "seen", 1_000_000)


async def failure(client: WebhookClient, url: str) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as raised:
        await client.post(url, notice(), 1)
    return raised.value


# ---- addresses


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254",
        "ff02::1", "fec0::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::", "2001:0:7f00:1::", "::7f00:1", "2001:db8::1",
    ],
)  # fmt: skip
def test_an_address_that_is_not_of_the_internet_is_no_target(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("text", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_a_public_address_is_one(text: str) -> None:
    assert is_public(ip_address(text))


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_stays_what_it_is_inside_of_an_ipv6_one(address: Any) -> None:
    for inside in (
        f"::ffff:{address}",
        f"64:ff9b::{address}",
        f"2002:{int(address) >> 16:x}:{int(address) & 0xFFFF:x}::",
    ):
        assert is_public(ip_address(inside)) == is_public(address)


def answers(*texts: str) -> Callable[[str, int], Any]:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return texts

    return resolve


async def test_one_private_address_among_public_ones_refuses_the_name() -> None:
    assert await addresses_of("a.example", 443, (), answers("1.1.1.1", "1.1.1.1")) == ["1.1.1.1"]
    with pytest.raises(ForbiddenTarget, match="alert_networks"):
        await addresses_of("a.example", 443, (), answers("1.1.1.1", "10.1.2.3"))
    assert await addresses_of("a.example", 443, [ip_network("10.1.0.0/16")], answers("10.1.2.3")) == ["10.1.2.3"]
    with pytest.raises(ForbiddenTarget):
        await addresses_of("a.example", 443, [ip_network("10.1.0.0/16")], answers("10.2.2.3"))
    mapped = answers("::ffff:10.1.2.3")
    assert await addresses_of("a.example", 443, [ip_network("10.1.0.0/16")], mapped) == ["::ffff:10.1.2.3"]
    with pytest.raises(ForbiddenTarget):
        await addresses_of("a.example", 443, (), mapped)


# ---- webhooks


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0x7f000001", "2130706433", "127.1"])
async def test_a_private_target_is_not_connected_to(host: str) -> None:
    async with receiver() as hook:
        failed = await failure(WebhookClient(), f"http://{host}:{hook.port}/")
        assert not failed.again or "no connection" in str(failed)
        assert hook.connections == 0


async def test_a_name_that_changes_its_address_is_asked_once() -> None:
    """DNS rebinding: the address that was checked is the one that is called."""
    asked: list[str] = []

    async with receiver() as hook:

        async def resolve(host: str, port: int) -> Sequence[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["10.255.255.1"]

        await WebhookClient(ALLOWED, resolve=resolve).post(f"http://hooks.example:{hook.port}/a?b=c", notice(), 1)
        assert asked == ["hooks.example"]
        assert hook.calls[0].headers["host"] == f"hooks.example:{hook.port}"
        assert hook.calls[0].line == "POST /a?b=c HTTP/1.1"


async def test_a_redirect_is_not_followed() -> None:
    async with (
        receiver() as inside,
        receiver(lambda _: b"HTTP/1.1 307 Go\r\nLocation: %b\r\n\r\n" % inside.url.encode()) as hook,
    ):
        failed = await failure(WebhookClient(ALLOWED), hook.url)
        assert (str(failed), failed.again) == ("status 307: a redirect is not followed; give the final URL", False)
        assert inside.connections == 0


async def test_a_slow_target_ends_an_attempt() -> None:
    async with receiver(lambda _: None) as hook:
        failed = await failure(WebhookClient(ALLOWED, timeout_s=0.2), hook.url)
        assert (str(failed), failed.again) == ("no answer within 0.2 s", True)


async def test_of_a_huge_answer_only_the_head_is_read() -> None:
    async with receiver(lambda _: b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 10_000_000) as hook:
        await WebhookClient(ALLOWED).post(hook.url, notice(), 1)
    async with receiver(lambda _: b"HTTP/1.1 200 OK\r\nx: " + b"x" * 1_000_000 + b"\r\n\r\n") as hook:
        assert "larger than 16 kB" in str(await failure(WebhookClient(ALLOWED), hook.url))
    async with receiver(lambda _: b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10 + OK) as hook:
        assert "not HTTP" in str(await failure(WebhookClient(ALLOWED), hook.url))
    async with receiver(lambda _: b"SSH-2.0-x\r\n\r\n") as hook:
        assert "not HTTP" in str(await failure(WebhookClient(ALLOWED), hook.url))


@pytest.mark.parametrize(
    ("status", "again"), [(400, False), (410, False), (408, True), (429, True), (500, True), (503, True)]
)
async def test_a_status_says_whether_a_retry_may_help(status: int, again: bool) -> None:
    async with receiver(lambda _: b"HTTP/1.1 %d No\r\n\r\n" % status) as hook:
        assert (await failure(WebhookClient(ALLOWED), hook.url)).again is again


async def test_a_server_without_tls_is_told_and_retried() -> None:
    async with receiver(lambda _: OK) as hook:
        failed = await failure(WebhookClient(ALLOWED, timeout_s=0.5), hook.url.replace("http:", "https:"))
        assert failed.again
        assert not hook.calls


# ---- attempts


class Sender(Senders):
    """Answers as it is told, and keeps what it was to send."""

    def __init__(self, *failures: DeliveryFailed) -> None:
        super().__init__(WebhookClient(), Mailer(None))
        self.failures = list(failures)
        self.sent: list[str] = []

    async def send(self, channel: Channel, notice: Notice) -> None:
        self.sent.append(notice.id)
        if self.failures:
            raise self.failures.pop(0)


async def delivered(sender: Sender, write_fails: int = 0) -> tuple[list[Delivered], list[float]]:
    """The records of a delivery to the end, and its pauses."""
    written: list[Any] = []
    pauses: list[float] = []
    done = asyncio.Event()
    left = write_fails

    async def write(records: list[Record]) -> None:
        nonlocal left
        if left:
            left -= 1
            raise Unavailable("no broker")
        written.extend(records)
        done.set()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    deliveries = Deliveries(sender, write, lambda: 7, sleep)
    waiting = [Outstanding(notice(WebhookChannel("https://hooks.example.com/x")), [0])]
    deliveries.begin(waiting)
    deliveries.begin(waiting)  # the next tick: it is under way
    await done.wait()
    await deliveries.close()
    return written, pauses


async def test_attempts_are_bounded_and_their_pauses_grow() -> None:
    sender = Sender(*(DeliveryFailed("status 503", again=True) for _ in range(99)))
    written, pauses = await delivered(sender)
    assert (len(sender.sent), pauses) == (ATTEMPTS_MAX, list(PAUSES_S))
    assert len(set(sender.sent)) == 1
    assert [(one.outcome, one.attempts, one.error) for one in written] == [("failed", ATTEMPTS_MAX, "status 503")]


async def test_an_attempt_after_failures_that_pass_delivers() -> None:
    written, _ = await delivered(Sender(DeliveryFailed("status 503", again=True)))
    assert [(one.outcome, one.attempts, one.error) for one in written] == [("delivered", 2, "")]


async def test_a_failure_that_stays_is_not_tried_again() -> None:
    sender = Sender(DeliveryFailed("status 410", again=False))
    written, pauses = await delivered(sender)
    assert (len(sender.sent), pauses, written[0].outcome) == (1, [], "failed")


async def test_an_end_that_cannot_be_stored_does_not_send_twice() -> None:
    sender = Sender()
    written, _ = await delivered(sender, write_fails=3)
    assert (len(sender.sent), len(written)) == (1, 1)


# ---- e-mail


def test_a_name_of_a_rule_makes_no_header() -> None:
    message = message_of(notice(name="x\r\nBcc: evil@example.com\n\nbody"), "alerts@example.com", ["ops@example.com"])
    assert message["Subject"] == "[warning] x Bcc: evil@example.com body: firing"
    assert message["Bcc"] is None
    head = message.as_bytes().partition(b"\n\n")[0]
    assert b"\nBcc:" not in head
    with pytest.raises(ValueError, match="linefeed"):
        message_of(notice(), "alerts@example.com", ["ops@example.com\r\nBcc: evil@example.com"])


async def test_a_mail_server_gets_one_message_and_its_refusal_is_told() -> None:
    async with mail_receiver() as mail:
        mailer = Mailer(MailServer("127.0.0.1", mail.port, "none", "alerts@example.com", "", ""))
        await mailer.send(["ops@example.com", "dev@example.com"], notice(EmailChannel(("x@y.z",))))
        assert len(mail.messages) == 1
        assert "Subject: [warning] test: firing" in mail.messages[0]
        assert len(mail.recipients) == 2
        with pytest.raises(DeliveryFailed, match="550 no such mailbox") as raised:
            await mailer.send(["nobody@example.com"], notice())
        assert not raised.value.again
        mail.rejects = True
        with pytest.raises(DeliveryFailed, match="554 no such content") as raised:
            await mailer.send(["ops@example.com"], notice())
        assert not raised.value.again
        starttls = Mailer(MailServer("127.0.0.1", mail.port, "starttls", "alerts@example.com", "", ""))
        with pytest.raises(DeliveryFailed, match="smtp_security"):
            await starttls.send(["ops@example.com"], notice())
        assert len(mail.messages) == 1
        mailer.close()
        starttls.close()
    with pytest.raises(DeliveryFailed, match="cannot be used"):
        await Mailer(MailServer("127.0.0.1", mail.port, "none", "a@b.c", "", "")).send(["ops@example.com"], notice())
    with pytest.raises(DeliveryFailed, match="set smtp_server"):
        await Mailer(None).send(["ops@example.com"], notice())


# ---- settings


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"smtp_user": "x"}, "need smtp_server"),
        ({"smtp_server": "mail"}, "HOST:PORT"),
        ({"smtp_server": "mail:25", "smtp_security": "ssl", "smtp_from": "a@b.c"}, "must be one of"),
        ({"smtp_server": "mail:25"}, "smtp_from"),
        ({"smtp_server": "mail:25", "smtp_from": "a@b.c\r\nBcc: x@y.z"}, "smtp_from"),
        ({"smtp_server": "mail:25", "smtp_from": "a@b.c", "smtp_user": "x"}, "belong together"),
        (
            {"smtp_server": "mail:25", "smtp_from": "a@b.c", "smtp_user": "x", "smtp_password_file": "f",
             "smtp_security": "none"},
            "in the clear",
        ),
        ({"alert_networks": ("10.0.0.1/8",)}, "alert_networks"),
        ({"alert_secret_file": "/no/such/file"}, "cannot read"),
    ],
)  # fmt: skip
def test_a_wrong_setting_ends_the_start(given: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidArgument, match=part):
        senders_of(GatewayConfig(**given))


def test_a_secret_is_of_its_owner_alone_and_long(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(InvalidArgument, match="16 bytes"):
        senders_of(GatewayConfig(alert_secret_file=str(path)))
    path.write_text("long enough to be one")
    senders_of(GatewayConfig(alert_secret_file=str(path)))
    path.chmod(0o644)
    with pytest.raises(InvalidArgument, match="open to others"):
        senders_of(GatewayConfig(alert_secret_file=str(path)))
    assert mail_server_of(GatewayConfig()) is None
