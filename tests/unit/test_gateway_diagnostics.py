"""What is told of a gateway: enough to help, and no secret, wherever one was put."""

from __future__ import annotations

import json
from dataclasses import fields, replace

from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.dashboard.diagnostics import ENTRIES_MAX, LEFT_OUT, SHOWN, packages, redacted, settings
from comet_gateway.settings import SETTINGS

SECRET = "planted-4711"


def test_every_setting_is_told_of_and_secrets_are_not_told() -> None:
    config = GatewayConfig(
        bootstrap="b1:9092,b2:9092",
        hosts=("events.example.com", "other.example.com"),
        tokens_file=f"/etc/{SECRET}/tokens.toml",
        tls_cert=f"/etc/{SECRET}.pem",
        tls_key=f"/etc/{SECRET}.key",
        limits=replace(Limits(), page_max=10, handshake_s=2.5),
    )
    found = {one.name: one for one in settings(config)}
    assert found.keys() == {row.name for row in SETTINGS}
    assert SECRET not in repr(found)
    assert [found[name].value for name in ("tokens_file", "tls_cert", "tls_key")] == ["set"] * 3
    assert (found["bootstrap"].value, found["hosts"].value) == (
        "b1:9092,b2:9092",
        "events.example.com, other.example.com",
    )
    assert (found["page_max"].value, found["page_max"].default, found["page_max"].source) == ("10", "1000", "set")
    assert found["handshake_s"].value == "2.5s"
    assert found["docs"].value == "yes"
    assert (found["port"].value, found["port"].source) == ("8080", "default")
    assert found["proxies"].value == ""


def test_a_setting_that_is_new_is_not_told_until_somebody_thought_of_it() -> None:
    secret = {
        "tokens_file", "tls_cert", "tls_key", "oidc_client_id", "oidc_client_secret_file", "oidc_roles",
        "alert_secret_file", "smtp_server", "smtp_user", "smtp_password_file", "smtp_from",
    }  # fmt: skip
    known = {field.name for field in (*fields(GatewayConfig), *fields(Limits))} - {"limits"}
    assert known == set(SHOWN) | secret


def test_of_statistics_numbers_are_told_and_the_texts_that_are_known() -> None:
    told = redacted({
        "password": SECRET,
        "nested": {"token": SECRET, "count": 3, "rate": 0.5, "up": True, "nothing": None, "list": [SECRET, 1]},
        "topic": "quotes",
        "topics": ["a", "b"],
        "versions": {"grpcio": "1.85"},
        "settings": {"tls_key": {"setting": "set"}},
        "odd": object(),
        "unknown": float("nan"),
    })  # fmt: skip
    assert SECRET not in json.dumps(told, allow_nan=False)
    assert told == {
        "password": LEFT_OUT,
        "nested": {"token": LEFT_OUT, "count": 3, "rate": 0.5, "up": True, "nothing": None, "list": [LEFT_OUT, 1]},
        "topic": "quotes",
        "topics": ["a", "b"],
        "versions": {"grpcio": "1.85"},
        "settings": {"tls_key": {"setting": "set"}},
        "odd": LEFT_OUT,
        "unknown": None,
    }


def test_the_file_is_bounded() -> None:
    assert len(redacted(list(range(5 * ENTRIES_MAX)))) == ENTRIES_MAX


def test_what_is_installed_has_a_version_and_a_licence() -> None:
    found = {one.name: one for one in packages()}
    assert {"comet-stream", "grpcio", "jinja2", "uvicorn"} <= found.keys()
    for one in found.values():
        assert one.version and one.about, one
        assert one.licence or one.name == "comet-stream", one
