"""Who may do what: one table, and tokens that are compared, reloaded, and cannot be guessed at leisure."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route, WebSocketRoute

from comet.errors import InvalidArgument
from comet_gateway import GatewayConfig, create_app
from comet_gateway.http.auth import ROLES, UNAUDITED, Gatekeeper, Role, bearer, new_token
from comet_gateway.http.problems import Problem
from comet_gateway.http.throttle import FAILURES_MAX, WINDOW_S

OWN = "http://127.0.0.1:8080"


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A tokens file, and the tokens by role."""
    made = {role: new_token(f"my-{role}", role) for role in ("viewer", "operator", "admin")}
    path = tmp_path / "tokens.toml"
    path.write_text("".join(row for _, row in made.values()))
    return path, {role: token for role, (token, _) in made.items()}


def client(path: Path, **settings: Any) -> httpx.AsyncClient:
    app = create_app(GatewayConfig(tokens_file=str(path), **settings))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=OWN)


def bears(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


# ---- the table


def _routes() -> Iterator[tuple[str, str]]:
    for route in create_app().router.routes:
        assert isinstance(route, (Route, WebSocketRoute)), route
        if isinstance(route, WebSocketRoute):
            yield "WS", route.path_format
        else:
            yield from ((method, route.path_format) for method in route.methods or () if method != "HEAD")


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    found = set(_routes())
    assert sorted(found - ROLES.keys()) == []
    assert sorted(ROLES.keys() - found) == []
    assert ROLES.keys() >= UNAUDITED


# What is read by admins alone: all that is known of a cluster, in one file; access; the audit log.
FOR_ADMINS = {
    *("/about/diagnostics.json", "/access", "/access.csv", "/audit", "/audit.csv"),
    *(path for _, path in ROLES if path.startswith(("/v1/rules", "/v1/roles", "/v1/access-keys", "/v1/quotas"))),
}


def test_nobody_changes_anything_by_reading() -> None:
    for (method, template), role in ROLES.items():
        if template in FOR_ADMINS:
            assert role is Role.ADMIN, template
        elif method == "GET":
            assert role <= Role.VIEWER, template
        elif method != "WS" and template not in ("/login", "/logout"):
            assert role >= Role.OPERATOR, template
        if role is Role.ANYONE:
            assert not template.startswith("/v1") or template == "/v1/ws/schema", template


async def test_each_role_may_do_what_its_row_says(tokens: tuple[Path, dict[str, str]]) -> None:
    path, token_of = tokens
    async with client(path) as calls:
        for (method, template), needed in ROLES.items():
            if method == "WS":
                continue
            address = template.replace("{", "").replace("}", "")
            nobody = await calls.request(method, address) if needed > Role.ANYONE else None
            if nobody is not None and nobody.status_code == 303:
                assert not template.startswith("/v1"), template  # a page
                assert nobody.headers["location"].startswith("/login"), template
            elif nobody is not None:
                assert (nobody.status_code, nobody.json()["code"]) == (401, "UNAUTHENTICATED"), template
                assert nobody.headers["www-authenticate"] == "Bearer"
            for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN):
                if role < needed:
                    answer = await calls.request(method, address, headers=bears(token_of[role.name.lower()]))
                    assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN"), template
                    assert needed.name.lower() in answer.json()["detail"]


async def test_what_watches_the_gateway_needs_no_token_and_metrics_a_viewers(
    tokens: tuple[Path, dict[str, str]],
) -> None:
    path, token_of = tokens
    async with client(path) as calls:
        assert (await calls.get("/livez")).status_code == 200
        assert (await calls.get("/livez", headers=bears("wrong"))).status_code == 200
        assert (await calls.get("/metrics")).status_code == 401
        assert (await calls.get("/metrics", headers=bears(token_of["viewer"]))).status_code == 200


# ---- tokens


async def test_a_token_comes_in_the_header_and_nowhere_else(tokens: tuple[Path, dict[str, str]]) -> None:
    path, token_of = tokens
    token = token_of["viewer"]
    async with client(path) as calls:
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert (await calls.get("/metrics", headers={"authorization": f"{scheme} {token}"})).status_code == 200
        for wrong in (f"Basic {token}", token, "Bearer", "Bearer ", f"Bearer {token}x", "Bearer " + "x" * 10_000):
            assert (await calls.get("/metrics", headers={"authorization": wrong})).status_code == 401, wrong
        for query in ("token", "access_token", "authorization", "bearer"):
            assert (await calls.get(f"/metrics?{query}={token}")).status_code == 401
        assert (await calls.get("/metrics", headers={"cookie": f"token={token}"})).status_code == 401
        both = [("authorization", f"Bearer {token}"), ("authorization", "Bearer other")]
        assert (await calls.get("/metrics", headers=both)).status_code == 400


def test_a_page_sends_it_as_a_subprotocol() -> None:
    encoded = base64.urlsafe_b64encode(b"comet_abc~\xc3\xa9").decode().rstrip("=")
    assert bearer({}, ["comet.v1", f"comet.bearer.{encoded}"]) == "comet_abc~é"
    assert bearer({}, ["comet.v1"]) is None
    for odd in ("!", "a", "_w"):
        with pytest.raises(Problem, match="base64url"):
            bearer({}, [f"comet.bearer.{odd}"])


def test_a_token_is_long_and_its_row_does_not_show_it() -> None:
    token, row = new_token("ci", "operator")
    assert len(token) > 40
    assert token not in row
    assert new_token("ci", "operator")[0] != token
    for name, role in [("", "viewer"), ("a b", "viewer"), ('x"\n', "viewer"), ("ci", "root")]:
        with pytest.raises((InvalidArgument, ValueError)):
            new_token(name, role)


DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "1 to 1000"),
        ("token = []", "1 to 1000"),
        ("[[token]]\nname = 'a'", "name, role and sha256"),
        (f"[[token]]\nname = 'a'\nrole = 'root'\nsha256 = '{DIGEST}'", "viewer, operator or admin"),
        ("[[token]]\nname = 'a'\nrole = 'admin'\nsha256 = 'comet_secret'", "64 lower-case hexadecimal"),
        (f"[[token]]\nname = ''\nrole = 'admin'\nsha256 = '{DIGEST}'", "up to 64"),
        (f"[[token]]\nname = 'a'\nrole = 'admin'\nsha256 = '{DIGEST}'\n" * 2, "same name"),
        (f"other = 1\n[[token]]\nname = 'a'\nrole = 'admin'\nsha256 = '{DIGEST}'", "must consist of"),
        ("[[token", "not valid TOML"),
    ],
)
def test_a_file_that_is_wrong_says_so_without_secrets(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=complaint) as caught:
        create_app(GatewayConfig(tokens_file=str(path)))
    assert "secret" not in caught.value.message


def test_no_file_is_no_open_door(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot read"):
        create_app(GatewayConfig(tokens_file=str(tmp_path / "none.toml")))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_tokens_file_that_others_may_write_is_refused(tokens: tuple[Path, dict[str, str]], mode: int) -> None:
    path, token_of = tokens
    keeper = Gatekeeper(str(path))
    path.chmod(mode)
    cure = re.escape(f"(mode {mode:o}): run chmod 600 {path}")
    with pytest.raises(InvalidArgument, match=cure):
        Gatekeeper(str(path))
    with pytest.raises(InvalidArgument, match=cure):
        keeper.reload()
    assert keeper.principal("a", token_of["admin"]).name == "my-admin", "the tokens stay"
    path.chmod(0o644)
    keeper.reload()


def test_a_reload_takes_effect_and_a_broken_file_none(tokens: tuple[Path, dict[str, str]]) -> None:
    path, token_of = tokens
    keeper = Gatekeeper(str(path))
    assert keeper.principal("a", token_of["admin"]).role is Role.ADMIN
    before = path.read_text()
    path.write_text("nonsense")
    with pytest.raises(InvalidArgument):
        keeper.reload()
    assert keeper.principal("a", token_of["admin"]).role is Role.ADMIN
    path.write_text("".join("[[token]]" + row for row in before.split("[[token]]")[1:3]))
    keeper.reload()
    assert keeper.principal("a", token_of["viewer"]).name == "my-viewer"
    with pytest.raises(Problem, match="unknown token"):
        keeper.principal("a", token_of["admin"])


def test_who_guesses_is_not_heard_for_a_while(tokens: tuple[Path, dict[str, str]]) -> None:
    path, token_of = tokens
    now = 1000.0
    keeper = Gatekeeper(str(path), lambda: now)
    assert keeper.principal("proxy", token_of["operator"]).role is Role.OPERATOR
    for address in ("guesser", "proxy"):
        for number in range(FAILURES_MAX):
            with pytest.raises(Problem) as caught:
                keeper.principal(address, f"guess {number}")
            assert caught.value.kind.status == 401
        with pytest.raises(Problem) as caught:
            keeper.principal(address, "one more")
        assert caught.value.kind.status == 429
        assert 0 < caught.value.retry_after_s <= WINDOW_S
    with pytest.raises(Problem):
        keeper.principal("guesser", token_of["admin"])  # not even a right one, or guessing would go on
    assert keeper.principal("proxy", token_of["operator"]).name == "my-operator"  # who was known is not locked out
    assert keeper.principal("elsewhere", token_of["admin"]).name == "my-admin"
    now += WINDOW_S
    assert keeper.principal("guesser", token_of["admin"]).name == "my-admin"


# ---- the audit log


async def test_a_change_is_written_down_with_who_and_what(
    tokens: tuple[Path, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    path, token_of = tokens
    caplog.set_level(logging.INFO, "comet_gateway.audit")
    async with client(path) as calls:
        await calls.get("/metrics", headers=bears(token_of["admin"]))
        headers = bears(token_of["admin"]) | {"x-request-id": "the-one"}
        # It fails, because there is no broker; that it was tried is of interest, too.
        answer = await calls.post("/v1/topics?dry_run=true", headers=headers, json={"nonsense": 1})
    (record,) = [record for record in caplog.records if record.name == "comet_gateway.audit"]
    assert json.loads(record.getMessage()) == {
        "principal": "my-admin",
        "role": "admin",
        "via": "token",
        "from": "127.0.0.1",
        "method": "POST",
        "path": "/v1/topics",
        "query": "dry_run=true",
        "status": answer.status_code,
        "request_id": "the-one",
    }
    assert token_of["admin"] not in caplog.text


def test_each_topic_in_a_path_has_the_name_that_the_guard_looks_at() -> None:
    for _, path in ROLES:
        before, _, rest = path.partition("{")
        if before.endswith(("/topics/", "/dead-letters/", "/schedules/")):
            assert rest.startswith("topic}"), path
