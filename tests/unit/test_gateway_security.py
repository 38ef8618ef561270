"""Which requests are heard at all: by the name they call, and by the page they come from."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Message

from comet.errors import InvalidArgument, TopicNotFound
from comet.processes.logs import JsonLines
from comet.settings.hosts import is_loopback
from comet_gateway import GatewayConfig, create_app
from comet_gateway.config import Limits
from comet_gateway.http.auth import new_token
from comet_gateway.http.compression import chosen
from comet_gateway.http.guard import Admission
from comet_gateway.http.origins import Security, checked_origin, origin_allowed
from comet_gateway.http.problems import Problem
from comet_gateway.http.shares import Holder
from comet_gateway.schemas.common import Model

OWN = "http://127.0.0.1:8080"
LISTED = "https://app.example.com"
CONFIG = GatewayConfig(origins=(LISTED,), hosts=("comet.example.com",))


def security(**settings: Any) -> Security:
    return Security(GatewayConfig(**settings))


# ---- names


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "LOCALHOST", "127.0.0.1:1", "[::1]:8080", "[::1]", "10.1.2.3", "comet.localhost"],
)
def test_what_no_name_server_can_point_here_is_heard(host: str) -> None:
    security().check_host(host.encode())


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "a:b", "[::1"],
)
def test_a_foreign_name_is_refused(host: str | None) -> None:
    with pytest.raises(Problem, match="not a name of this gateway") as caught:
        security().check_host(None if host is None else host.encode())
    assert caught.value.kind.status == 421


def test_names_can_be_listed() -> None:
    listed = security(hosts=("comet.example.com",))
    listed.check_host(b"comet.example.com:443")
    listed.check_host(b"Comet.Example.com.")
    with pytest.raises(Problem):
        listed.check_host(b"other.example.com")
    security(hosts=("*",)).check_host(b"other.example.com")


# ---- pages

FOREIGN = "https://evil.example"
HEADERS: list[tuple[str, dict[str, str], bool, bool]] = [
    # what it is, its headers, whether an unsafe method is heard, whether a GET is
    ("no browser", {}, True, True),
    ("our own page", {"sec-fetch-site": "same-origin", "origin": OWN}, True, True),
    ("our own page in an old browser", {"origin": OWN}, True, True),
    ("a listed page", {"sec-fetch-site": "cross-site", "origin": LISTED, "sec-fetch-mode": "cors"}, True, True),
    ("a listed page in an old browser", {"origin": LISTED}, True, True),
    ("a foreign script", {"sec-fetch-site": "cross-site", "origin": FOREIGN, "sec-fetch-mode": "cors"}, False, False),
    ("a foreign image", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, False, False),
    ("another port here", {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:9999"}, False, False),
    ("a foreign form", {"sec-fetch-site": "cross-site", "origin": FOREIGN, "sec-fetch-mode": "navigate"}, False, True),
    ("a foreign page in an old browser", {"origin": FOREIGN}, False, True),
    ("a page without an origin", {"origin": "null"}, False, True),
    ("the address bar", {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, False, True),
    ("our host on http, called on https", {"origin": "http://127.0.0.1:8080", "x": "tls"}, False, True),
]


@pytest.mark.parametrize(("headers", "unsafe", "safe"), [row[1:] for row in HEADERS], ids=[row[0] for row in HEADERS])
def test_who_may_call_from_a_page(headers: dict[str, str], unsafe: bool, safe: bool) -> None:
    guard = Security(CONFIG)
    raw = {name.encode(): value.encode() for name, value in headers.items()} | {b"host": b"127.0.0.1:8080"}
    scheme = "https" if "x" in headers else "http"
    for method, heard in [("POST", unsafe), ("DELETE", unsafe), ("PATCH", unsafe), ("GET", safe)]:
        if heard:
            guard.check_origin(method, raw, scheme)
        else:
            with pytest.raises(Problem) as caught:
                guard.check_origin(method, raw, scheme)
            assert caught.value.kind.status == 403


OURS: list[tuple[str, dict[str, str], bool, bool]] = [
    # what it is, its headers, whether a cookie is heard with a POST, whether with a GET
    ("our own page", {"sec-fetch-site": "same-origin", "origin": OWN}, True, True),
    ("our own form", {"sec-fetch-site": "same-origin", "origin": "null"}, True, True),
    ("the address bar", {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, False, True),
    ("a link elsewhere", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False, False),
    ("a link on another port here", {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}, False, False),
    ("another port here", {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:9999"}, False, False),
    ("a listed page", {"sec-fetch-site": "cross-site", "origin": LISTED, "sec-fetch-mode": "cors"}, False, False),
    ("a listed page in an old browser", {"origin": LISTED}, False, False),
    ("our own page in an old browser", {"origin": OWN}, True, True),
    ("a page without an origin", {"origin": "null"}, False, False),
    ("a link, where the network is not trusted", {}, False, True),
]


@pytest.mark.parametrize(("headers", "unsafe", "safe"), [row[1:] for row in OURS], ids=[row[0] for row in OURS])
def test_whose_cookies_are_heard(headers: dict[str, str], unsafe: bool, safe: bool) -> None:
    raw = {name.encode(): value.encode() for name, value in headers.items()} | {b"host": b"127.0.0.1:8080"}
    guard = Security(CONFIG)
    for method, heard in [("POST", unsafe), ("DELETE", unsafe), ("WS", unsafe), ("GET", safe), ("HEAD", safe)]:
        assert guard.own(method, raw, "http") is heard, method


@pytest.mark.parametrize(
    ("origin", "heard"), [(None, True), (OWN, True), (LISTED, True), (FOREIGN, False), ("http://127.0.0.1:1", False)]
)
def test_a_web_socket_is_asked_where_it_comes_from(origin: str | None, heard: bool) -> None:
    headers = [(b"host", b"127.0.0.1:8080")] + ([(b"origin", origin.encode())] if origin else [])
    assert origin_allowed({"app": create_app(CONFIG), "headers": headers, "scheme": "ws"}) is heard


def test_behind_a_proxy_that_ends_tls_its_own_pages_are_its_own() -> None:
    assert Security(CONFIG).allowed("https://comet.example.com", "comet.example.com", "http")
    assert not Security(CONFIG).allowed("http://comet.example.com", "comet.example.com", "https")


@pytest.mark.parametrize("origin", ["*", "app.example.com", "https://app.example.com/", "ftp://x", "https://", "null"])
def test_a_listed_origin_is_written_as_browsers_do(origin: str) -> None:
    with pytest.raises(InvalidArgument, match="scheme://host"):
        checked_origin(origin)


def test_only_loopback_needs_no_tokens() -> None:
    assert [is_loopback(host) for host in ("localhost", "127.0.0.1", "127.8.8.8", "::1")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "::", "comet.example.com")] == [False] * 4
    with pytest.raises(InvalidArgument, match="tokens_file"):
        create_app(GatewayConfig(host="0.0.0.0"))


def test_tokens_cross_no_network_in_the_clear(tmp_path: Path) -> None:
    rows = tmp_path / "tokens.toml"
    rows.write_text(new_token("ann", "viewer")[1])
    open_to_all = GatewayConfig(host="0.0.0.0", tokens_file=str(rows))
    with pytest.raises(InvalidArgument, match="in the clear: set tls_cert and tls_key") as refused:
        create_app(open_to_all)
    assert "set proxies to its address" in refused.value.details["hint"]
    create_app(replace(open_to_all, tls_cert="chain.pem", tls_key="key.pem"))
    create_app(replace(open_to_all, proxies=("192.0.2.9",)))


# ---- all of it, around routes of a test


class Body(Model):
    name: str
    count: int = 1


router = APIRouter(prefix="/v1")


@router.post("/test/document")
async def document(body: Body) -> Body:
    return body


@router.post("/test/raw")
async def raw(request: Request) -> Response:
    return Response(str(len(await request.body())), media_type="text/plain")


@router.get("/test/large")
async def large(size: int) -> Response:
    return Response(b"x" * size, media_type="application/json")


@router.get("/test/broken")
async def broken() -> Response:
    raise ZeroDivisionError("a secret of the inside")


@router.get("/test/refused")
async def refused() -> Response:
    raise TopicNotFound("topic 'q' does not exist", retry_after_ms=1500, details={"topic": "q"})


@router.get("/test/breaks-off")
async def breaks_off() -> Response:
    async def parts() -> AsyncIterator[bytes]:
        yield b"one\n"
        raise TopicNotFound("it was deleted meanwhile")

    return StreamingResponse(parts(), media_type="application/x-ndjson")


@router.get("/test/waits")
async def waits(request: Request) -> Response:
    if request.app.state.traffic.requests == 2:
        request.app.state.two_wait.set()
    await request.app.state.go_on.wait()
    return Response("done")


@contextmanager
def serving(config: GatewayConfig = CONFIG) -> Iterator[httpx.AsyncClient]:
    app = create_app(config)
    state = app.state
    state.go_on, state.two_wait = asyncio.Event(), asyncio.Event()
    door = Admission(state.gatekeeper, state.security, state.traffic, config.limits)
    app.router.routes += [door.guard(route) for route in router.routes]
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    client = httpx.AsyncClient(transport=transport, base_url=OWN)
    client.app = app  # type: ignore[attr-defined] # for tests that look inside
    yield client


async def test_every_answer_has_what_keeps_browsers_in_check() -> None:
    with serving() as client:
        for path in ("/livez", "/nothing", "/v1/test/broken"):
            headers = (await client.get(path)).headers
            assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "same-origin"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert "permissions-policy" in headers
            assert headers["cache-control"] == "no-store"
            assert "strict-transport-security" not in headers
            assert "server" not in headers


async def test_https_says_that_it_stays_so() -> None:
    with serving(GatewayConfig(tls_cert="c", tls_key="k")) as client:
        assert "max-age" in (await client.get("/livez")).headers["strict-transport-security"]


async def test_a_request_has_an_id_which_may_be_the_clients() -> None:
    with serving() as client:
        made = [(await client.get("/livez")).headers["x-request-id"] for _ in range(3)]
        assert len(set(made)) == 3
        assert (await client.get("/livez", headers={"x-request-id": "a.b-c_1"})).headers["x-request-id"] == "a.b-c_1"
        for odd in ("", "a b", "x" * 200, "a/b"):
            found = (await client.get("/nothing", headers={"x-request-id": odd})).headers["x-request-id"]
            assert found.split("-")[0] == made[0].split("-")[0]
        problem = await client.get("/nothing", headers={"x-request-id": "mine"})
        assert problem.json()["request_id"] == "mine"


async def test_two_hosts_in_one_request_are_none() -> None:
    with serving() as client:
        answer = await client.get("/livez", headers=[("host", "localhost"), ("host", "evil.example")])
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


async def test_a_listed_page_reads_answers_and_no_other_does() -> None:
    with serving() as client:
        listed = await client.get("/livez", headers={"origin": LISTED})
        assert listed.headers["access-control-allow-origin"] == LISTED
        assert "comet-cursor" in listed.headers["access-control-expose-headers"]
        assert "origin" in listed.headers["vary"]
        assert "access-control-allow-credentials" not in listed.headers
        foreign = await client.get("/livez", headers={"origin": FOREIGN})
        assert "access-control-allow-origin" not in foreign.headers
        asks = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
        told = await client.options("/v1/test/document", headers=asks | {"origin": LISTED})
        assert (told.status_code, told.content) == (204, b"")
        assert "POST" in told.headers["access-control-allow-methods"]
        assert "idempotency-key" in told.headers["access-control-allow-headers"]
        assert "if-match, if-none-match" in told.headers["access-control-allow-headers"]
        assert told.headers["access-control-allow-origin"] == LISTED
        assert len(told.headers.get_list("vary")) == 1
        refused = await client.options("/v1/test/document", headers=asks | {"origin": FOREIGN})
        assert (refused.status_code, refused.json()["code"]) == (403, "FOREIGN_ORIGIN")
        problem = await client.get("/nothing", headers={"origin": LISTED})
        assert problem.headers["access-control-allow-origin"] == LISTED  # a page can read what went wrong


async def test_what_goes_wrong_is_a_problem() -> None:
    with serving() as client:
        cases: list[tuple[httpx.Response, int, str]] = [
            (await client.get("/nothing"), 404, "NOT_FOUND"),
            (await client.delete("/v1/test/large"), 405, "METHOD_NOT_ALLOWED"),
            (await client.get("/v1/test/large"), 422, "VALIDATION"),
            (await client.get("/v1/test/refused"), 404, "TOPIC_NOT_FOUND"),
            (await client.post("/v1/test/document", json={"count": "x"}), 422, "VALIDATION"),
            (await client.post("/v1/test/document", json={"name": "a", "odd": 1}), 422, "VALIDATION"),
            (await client.post("/v1/test/document"), 422, "VALIDATION"),
            (await client.post("/v1/test/document", content=b'{"name"'), 415, "UNSUPPORTED_MEDIA_TYPE"),
            (await client.post("/v1/test/document", data={"name": "a"}), 415, "UNSUPPORTED_MEDIA_TYPE"),
            (await client.get("/livez", headers={"host": "evil.example"}), 421, "FOREIGN_HOST"),
        ]
        json = {"content-type": "application/json"}
        malformed = await client.post("/v1/test/document", content=b'{"name"', headers=json)
        cases.append((malformed, 400, "MALFORMED_BODY"))
        deep = await client.post("/v1/test/document", content=b"[" * 200_000, headers=json)
        cases.append((deep, 400, "MALFORMED_BODY"))
        zipped = await client.post("/v1/test/document", content=b"x", headers=json | {"content-encoding": "gzip"})
        cases.append((zipped, 415, "UNSUPPORTED_MEDIA_TYPE"))
        for answer, status, code in cases:
            found = answer.json()
            assert (answer.status_code, found["status"], found["code"]) == (status, status, code), found
            assert answer.headers["content-type"] == "application/problem+json"
            assert found["type"] == f"urn:comet:problem:{code}"
            assert found["request_id"] == answer.headers["x-request-id"]
        assert cases[1][0].headers["allow"] == "GET, HEAD"
        assert {row["field"] for row in cases[4][0].json()["errors"]} == {"body.name", "body.count"}
        assert cases[3][0].headers["retry-after"] == "2"


async def test_a_bug_is_logged_once_and_shown_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as client:
        answer = await client.get("/v1/test/broken", headers={"x-request-id": "find-me"})
    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL")
    assert "secret" not in answer.text
    (record,) = caplog.records
    assert "find-me" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


class Lines(logging.Handler):
    """What a process would write in JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(self.format(record)))


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [
        (f"00-{TRACE}-{PARENT}-01", TRACE),
        (f"00-{TRACE}-{PARENT}-00", TRACE),
        (f"cc-{TRACE}-{PARENT}-01-what-is-to-come", TRACE),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        (f"00-{TRACE}x-{PARENT}-01", None),
        ("", None),
        ('x"}', None),
    ],
)
async def test_what_is_logged_for_a_request_names_it_and_its_trace(traceparent: str, trace_id: str | None) -> None:
    lines = Lines()
    logging.getLogger("comet_gateway").addHandler(lines)
    try:
        with serving() as client:
            headers = {"x-request-id": "find-me", "traceparent": traceparent}
            await client.get("/v1/test/broken", headers=headers)
            await client.get("/v1/test/broken", headers={"x-request-id": "bad id"})
    finally:
        logging.getLogger("comet_gateway").removeHandler(lines)
    line, other = lines.found
    assert (line["request_id"], line.get("trace_id"), line["level"]) == ("find-me", trace_id, "error")
    assert (line["method"], line["path"]) == ("GET", "/v1/test/broken")
    assert "ZeroDivisionError" in line["exception"]
    assert other["request_id"] not in {"find-me", "bad id"} and "trace_id" not in other


async def test_a_stream_that_breaks_off_is_left_unfinished(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as client:
        app = client.app  # type: ignore[attr-defined]
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    scope = _scope("GET", "/v1/test/breaks-off")
    await app(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[-1]["more_body"]
    (record,) = caplog.records
    assert "deleted meanwhile" in record.getMessage()
    assert record.exc_info is None


def _scope(method: str, path: str, headers: list[tuple[bytes, bytes]] | None = None) -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "client": ("127.0.0.1", 5),
        "headers": [(b"host", b"localhost"), *(headers or [])],
    }


# ---- limits


async def test_so_many_requests_at_once_and_no_more() -> None:
    with serving(GatewayConfig(limits=Limits(requests_max=2))) as client:
        state = client.app.state  # type: ignore[attr-defined]
        waiting = [asyncio.create_task(client.get("/v1/test/waits")) for _ in range(2)]
        async with asyncio.timeout(60):
            await state.two_wait.wait()
        answer = await client.get("/v1/test/refused")
        assert (answer.status_code, answer.json()["code"]) == (503, "OVERLOADED")
        assert (await client.get("/livez")).status_code == 200  # it is busy, not dead
        assert int(answer.headers["retry-after"]) >= 1
        state.go_on.set()
        assert [task.status_code for task in await asyncio.gather(*waiting)] == [200, 200]
        assert (await client.get("/livez")).status_code == 200
        assert state.traffic.statistics()["requests"] == 0
        assert state.traffic.statistics()["turned_away"] == {"requests": 1}


async def test_a_request_is_counted_only_after_its_token_is_known(tmp_path: Path) -> None:
    token, row = new_token("ann", "admin")
    (tmp_path / "tokens.toml").write_text(row)
    with serving(GatewayConfig(tokens_file=str(tmp_path / "tokens.toml"), limits=Limits(requests_max=2))) as client:
        state = client.app.state  # type: ignore[attr-defined]
        own = {"authorization": f"Bearer {token}"}
        waiting = [asyncio.create_task(client.get("/v1/test/waits", headers=own)) for _ in range(2)]
        async with asyncio.timeout(60):
            await state.two_wait.wait()
        assert (await client.get("/v1/test/waits")).status_code == 401
        assert (await client.get("/v1/test/waits", headers=own)).status_code == 503
        state.go_on.set()
        await asyncio.gather(*waiting)
        assert state.traffic.statistics()["turned_away"] == {"requests": 1}


async def test_bodies_are_bounded_one_by_one_and_together() -> None:
    limits = Limits(document_bytes_max=2_000, request_bytes_max=100_000)
    with serving(GatewayConfig(limits=limits)) as client:
        state = client.app.state  # type: ignore[attr-defined]
        answer = await client.post("/v1/test/document", json={"name": "x" * 3_000})
        assert (answer.status_code, answer.json()["code"]) == (413, "BODY_TOO_LARGE")
        assert (await client.post("/v1/test/document", json={"name": "x" * 1_000})).status_code == 200

        async def parts(count: int) -> AsyncIterator[bytes]:
            for _ in range(count):
                yield b"x" * 10_000

        assert (await client.post("/v1/test/raw", content=parts(9))).text == "90000"
        answer = await client.post("/v1/test/raw", content=parts(11))
        assert (answer.status_code, answer.json()["code"]) == (503, "OVERLOADED")
        assert (await client.post("/v1/test/raw", content=b"x" * 70_000)).text == "70000"
        assert state.traffic.body_bytes == 0


async def test_documents_are_bounded_together_with_all_other_bodies() -> None:
    with serving(GatewayConfig(limits=Limits(request_bytes_max=100_000))) as client:
        traffic = client.app.state.traffic  # type: ignore[attr-defined]
        assert (await client.post("/v1/test/document", json={"name": "x" * 70_000})).status_code == 200
        traffic.hold(50_000)
        answer = await client.post("/v1/test/document", json={"name": "x" * 70_000})
        assert (answer.status_code, answer.json()["code"]) == (503, "OVERLOADED")
        assert traffic.body_bytes == 50_000


@pytest.mark.parametrize("path", ["/v1/test/raw", "/v1/test/document"])
async def test_a_client_that_goes_in_the_middle_of_its_body_leaves_nothing(path: str) -> None:
    with serving() as client:
        app = client.app  # type: ignore[attr-defined]
    messages: list[Message] = [
        {"type": "http.request", "body": b"x" * 70_000, "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        """Nobody hears it."""

    await app(_scope("POST", path), receive, send)
    assert app.state.traffic.statistics()["requests"] == app.state.traffic.body_bytes == 0


def test_connections_are_bounded_in_all_and_by_address() -> None:
    traffic = create_app(GatewayConfig(limits=Limits(connections_max=3, client_connections_max=1))).state.traffic
    a, b, c, d = (Holder(name, name, is_admin=True) for name in "abcd")
    traffic.connect(a, socket=True)
    with pytest.raises(Problem) as caught:
        traffic.connect(a, socket=False)
    assert caught.value.kind.status == 429
    traffic.connect(b, socket=True)
    traffic.connect(c, socket=False)
    with pytest.raises(Problem) as caught:
        traffic.connect(d, socket=True)
    assert caught.value.kind.status == 503
    traffic.disconnect(a, socket=True)
    traffic.connect(d, socket=True)
    assert traffic.statistics()["sockets"] == 2


# ---- compression


async def test_large_answers_are_compressed_for_who_can_read_them() -> None:
    with serving() as client:
        for encoding in ("gzip", "zstd"):
            answer = await client.get("/v1/test/large?size=50000", headers={"accept-encoding": encoding})
            assert answer.headers["content-encoding"] == encoding
            assert int(answer.headers["content-length"]) < 5_000
            assert answer.headers["vary"] == "accept-encoding"
            assert answer.text == "x" * 50_000
            huge = await client.get("/v1/test/large?size=500000", headers={"accept-encoding": encoding})
            assert huge.text == "x" * 500_000
        for accept, size in [("gzip", 1_000), ("identity", 50_000), ("gzip;q=0", 50_000)]:
            answer = await client.get(f"/v1/test/large?size={size}", headers={"accept-encoding": accept})
            assert "content-encoding" not in answer.headers
            assert answer.text == "x" * size


@pytest.mark.parametrize(
    ("accepts", "expected"),
    [
        ("gzip, deflate, br, zstd", b"zstd"),
        ("gzip;q=1.0, zstd;q=0.5", b"gzip"),
        ("*", b"zstd"),
        ("*;q=0", None),
        ("br", None),
        ("", None),
        ("gzip;q=nonsense, zstd;q=.", None),
    ],
)
def test_the_client_chooses_how(accepts: str, expected: bytes | None) -> None:
    assert chosen(accepts.encode()) == expected
