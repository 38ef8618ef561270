"""The gateway as a process: it starts, it refuses, it says how it is, and it ends so that clients hear of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

import comet
from comet.cli._exit import UNAVAILABLE, USAGE
from comet.processes.ports import HeldPorts
from comet.security.certificates import Authority
from comet_gateway import GatewayConfig
from comet_gateway.brokers.readiness import NO_BROKER
from comet_gateway.config import MIB
from comet_gateway.http import uvicorn_http
from comet_gateway.http.auth import new_token
from comet_gateway.server import Server
from tests.waiting import until_answered

TIMEOUT_S = 60
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
HERE = "http://127.0.0.1"


@dataclass
class Gateway:
    process: subprocess.Popen[str]
    url: str

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.partition("://")[2].rpartition(":")
        return host.strip("[]"), int(port)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code and what it said."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, said


@contextmanager
def gateway(*words: str, **environ: str) -> Iterator[Gateway]:
    with subprocess.Popen(
        [sys.executable, "-m", "comet.cli", "gateway", "--json", "--port", "0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield Gateway(process, json.loads(line)["url"])
        finally:
            if process.poll() is None:
                process.kill()


def refused(*words: str, code: int = USAGE, **environ: str) -> str:
    """What it says when it does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "comet.cli", "gateway", "--port", "0", *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | environ,
        check=False,
    )
    assert done.returncode == code, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


@asynccontextmanager
async def both(*words: str, topics: tuple[str, ...] = ("quotes",)) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway with its broker, and a client."""
    async with comet.testing.broker(topics) as broker:
        starting = gateway("--bootstrap", broker.address, *words)
        started = await asyncio.to_thread(starting.__enter__)  # the broker, which is on this loop, must not stand still
        with ExitStack() as stack:
            stack.push(starting)
            async with httpx.AsyncClient(base_url=started.url, timeout=TIMEOUT_S) as client:
                yield started, client


def get(url: str, **more: Any) -> httpx.Response:
    return httpx.get(url, timeout=TIMEOUT_S, **more)


def request(path: str, **headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


# ---- starting


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--host", "0.0.0.0"], "tokens_file"),
        (["--host", "::"], "tokens_file"),
        (["--tokens-file", "/nowhere/tokens.toml"], "cannot read the tokens file"),
        (["--tls-cert", "/nowhere.pem"], "belong together"),
        (["--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.pem"], "certificate"),
        (["--origins", "app.example.com"], "not an origin"),
        (["--requests-max", "0"], "between 1 and"),
        (["--drain-s", "soon"], "invalid duration 'soon'"),
    ],
)
def test_what_makes_no_sense_does_not_start(words: list[str], complaint: str) -> None:
    assert complaint in refused(*words)


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "cannot listen" in refused("--port", str(taken.getsockname()[1]), code=UNAVAILABLE)


def test_wider_than_loopback_with_tokens_behind_a_proxy(tmp_path: Path) -> None:
    token, row = new_token("me", "viewer")
    path = tmp_path / "tokens.toml"
    path.write_text(row)
    with gateway("--host", "0.0.0.0", "--tokens-file", str(path), "--proxies", "192.0.2.9") as started:
        assert started.url.startswith(HERE)
        assert get(f"{started.url}/metrics").status_code == 401
        assert get(f"{started.url}/metrics", headers={"authorization": f"Bearer {token}"}).status_code == 200
        other, another = new_token("other", "viewer")
        path.write_text(another)
        started.process.send_signal(signal.SIGHUP)
        assert started.process.stderr is not None
        said = iter(started.process.stderr.readline, "")
        assert any("reloaded" in line for line in said)  # before it, it may have said that there is no broker
        assert get(f"{started.url}/metrics", headers={"authorization": f"Bearer {token}"}).status_code == 401
        assert get(f"{started.url}/metrics", headers={"authorization": f"Bearer {other}"}).status_code == 200


def test_settings_come_from_flags_environment_and_file(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text('hosts = ["of.the.file", "b.example"]\ndocs = false\n')
    environ = {"COMET_GATEWAY_CONFIG": str(path), "COMET_GATEWAY_HOSTS": "of.the.environment"}
    with gateway(**environ) as started:
        assert get(f"{started.url}/docs").status_code == 404
        for name, status in [("of.the.environment", 200), ("of.the.file", 421)]:
            assert get(f"{started.url}/livez", headers={"host": name}).status_code == status


def test_https(tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    with gateway("--tls-cert", str(certificate), "--tls-key", str(key)) as started:
        assert started.url.startswith("https://")
        answer = get(f"{started.url}/livez", verify=ssl.create_default_context(cafile=str(certificate)))
        assert answer.status_code == 200
        assert "strict-transport-security" in answer.headers


async def test_a_replaced_certificate_needs_no_restart_and_fails_no_request(tmp_path: Path) -> None:
    first, second = (Authority.create(tmp_path / name, name) for name in ("first", "second"))
    cert, key = tmp_path / "gateway.pem", tmp_path / "gateway.key"

    def put(authority: Authority) -> None:
        issued = authority.issue_broker(1, ["127.0.0.1"])
        key.write_bytes(issued.key.read_bytes())
        cert.write_bytes(issued.cert.read_bytes())

    def trusting(*authorities: Authority) -> httpx.AsyncClient:
        context = ssl.create_default_context(cadata="".join(one.ca.read_text() for one in authorities))
        return httpx.AsyncClient(base_url=started.url, timeout=TIMEOUT_S, verify=context)

    async def admitted(authority: Authority) -> bool:
        """By a new connection."""
        try:
            async with trusting(authority) as client:
                return (await client.get("/livez")).status_code == 200
        except httpx.ConnectError:
            return False

    put(first)
    with gateway("--tls-cert", str(cert), "--tls-key", str(key)) as started:
        async with trusting(first) as kept:
            assert (await kept.get("/livez")).status_code == 200
            assert not await admitted(second)
            put(second)
            stopped = asyncio.Event()

            async def load() -> None:
                while not stopped.is_set():
                    async with trusting(first, second) as each:
                        assert (await each.get("/livez")).status_code == 200

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(load())
                assert await until_answered(lambda: admitted(second), within_s=TIMEOUT_S)
                stopped.set()
            assert not await admitted(first)
            assert (await kept.get("/livez")).status_code == 200  # on the connection of before
        key.write_text("half a key")
        assert started.process.stderr is not None
        said = iter(started.process.stderr.readline, "")
        assert await asyncio.to_thread(lambda: any("the earlier certificate stays in use" in line for line in said))
        assert await admitted(second)
        put(first)
        assert await until_answered(lambda: admitted(first), within_s=TIMEOUT_S)


# ---- running


async def test_it_says_how_it_is() -> None:
    async with both() as (_, client):
        assert (await client.get("/livez")).json() == {"status": "alive"}
        assert (await client.get("/readyz")).json() == {"status": "ready", "reasons": []}
        head = await client.head("/readyz")
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "31")
        assert (await client.head("/v1/topics/quotes/stream")).status_code == 405
        await client.post("/v1/topics/quotes/records", json={"value": {"bid": 1}})
        await client.get("/v1/topics/none")
        await client.get("/made/up/by/a/stranger")
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        openmetrics = await client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
        assert openmetrics.text.endswith("# EOF\n")
        families = {family.name: family for family in text_string_to_metric_families(answer.text)}
        requests = {
            (one.labels["method"], one.labels["route"], one.labels["status"]): one.value
            for one in families["comet_gateway_requests"].samples
        }
        assert requests["GET", "/readyz", "200"] == 2
        assert requests["POST", "/v1/topics/{topic}/records", "200"] == 1
        assert requests["GET", "/v1/topics/{topic}", "404"] == 1
        assert requests["other", "none", "404"] == 1
        latency = families["comet_gateway_request_seconds"].samples
        counts = {one.labels["route"]: one.value for one in latency if one.name.endswith("_count")}
        buckets = {one.labels["route"]: one.value for one in latency if one.labels.get("le") == "+Inf"}
        assert counts == buckets
        assert counts["/v1/topics/{topic}"] == 1
        assert families["comet_gateway_requests_running"].samples[0].value == 0
        assert all(family.documentation for family in families.values())
        async with client.stream("GET", "/v1/topics/quotes/stream?start=earliest") as stream:
            lines = stream.aiter_lines()
            while "bid" not in await anext(lines):
                pass
            text = (await client.get("/metrics")).text
        shown = {
            (one.name, *one.labels.values()): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }
        assert shown["comet_gateway_connections", "sse"] == 1
        assert shown["comet_gateway_subscriptions",] == 1
        assert shown["comet_gateway_feed_subscribers", "quotes"] == 1
        assert shown["comet_gateway_push_delivered_total",] == 1
        assert shown["comet_gateway_records_total", "in"] == 1
        assert shown["comet_gateway_received_bytes_total",] > 10
        assert shown["comet_gateway_push_replays",] == 0


def test_with_tokens_the_reasons_of_readyz_name_no_broker(tmp_path: Path) -> None:
    """Strangers read /readyz; the address and the error are in the log."""
    held = HeldPorts(1)
    gone = f"127.0.0.1:{held.numbers[0]}"
    rows = tmp_path / "tokens.toml"
    rows.write_text(new_token("me", "viewer")[1])
    with gateway("--bootstrap", gone, "--tokens-file", str(rows)) as started:
        answer = get(f"{started.url}/readyz")
        assert (answer.status_code, answer.json()["reasons"]) == (503, [NO_BROKER])
        assert started.process.stderr is not None
        assert f"no broker can be reached at {gone}" in started.process.stderr.readline()


async def test_without_a_broker_it_is_alive_and_not_ready() -> None:
    held = HeldPorts(1)
    gone = f"127.0.0.1:{held.numbers[0]}"
    with gateway("--bootstrap", gone) as started:
        async with httpx.AsyncClient(base_url=started.url, timeout=TIMEOUT_S) as client:
            assert (await client.get("/livez")).status_code == 200
            answers = await asyncio.gather(*(client.get("/readyz") for _ in range(5)))
            for answer in answers:
                assert answer.status_code == 503
                assert gone in answer.json()["reasons"][0]
            problem = await client.get("/v1/topics")
            assert (problem.status_code, problem.json()["code"]) == (503, "UNAVAILABLE")
            assert "retry-after" in problem.headers
        assert started.process.stderr is not None
        line = await asyncio.to_thread(started.process.stderr.readline)
        assert f"no broker can be reached at {gone}" in line
        assert "retrying" in line


@pytest.fixture(scope="module")
def bare() -> Iterator[Gateway]:
    """A gateway with the settings as they are, for tests that leave it as it was."""
    with gateway() as started:
        yield started
        code, said = started.end()
        assert code == 0
        assert "Traceback" not in said


def test_a_head_without_end_is_cut_off(bare: Gateway) -> None:
    with socket.create_connection(bare.address, TIMEOUT_S) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(b"x-more: " + b"x" * 4_000 + b"\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1000).startswith(b"HTTP/1.1 431")
        assert get(f"{bare.url}/livez").status_code == 200


@pytest.mark.parametrize("before", [b"", b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"], ids=["first", "pipelined"])
def test_a_head_that_is_too_large_is_refused_also_when_it_comes_at_once(bare: Gateway, before: bytes) -> None:
    with socket.create_connection(bare.address, TIMEOUT_S) as connection:
        large = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n" + b"x-more: " + b"x" * 70_000 + b"\r\n\r\n"
        connection.sendall(before + large)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(4_000):
                answer += part
        if before:  # the request before it is answered first, and ends the connection
            assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 200 ") == 1
            assert b"\r\nconnection: close\r\n" in answer
        else:
            assert answer.startswith(b"HTTP/1.1 431 ")
        assert get(f"{bare.url}/livez").status_code == 200


@pytest.mark.parametrize("with_token", [True, False], ids=["before the answer", "after it"])
def test_trailers_without_end_are_cut_off_and_take_no_memory(tmp_path: Path, with_token: bool) -> None:
    token, row = new_token("me", "operator")
    path = tmp_path / "tokens.toml"
    path.write_text(row)
    with (
        gateway("--tokens-file", str(path)) as started,
        socket.create_connection(started.address, TIMEOUT_S) as connection,
    ):
        before = memory_bytes(started)
        head = ["POST /v1/topics HTTP/1.1", "host: localhost", "transfer-encoding: chunked"]
        if with_token:
            head.append(f"authorization: Bearer {token}")
        connection.sendall("\r\n".join([*head, "", "2", "{}", "0", ""]).encode())
        answer = b""
        if not with_token:
            answer = connection.recv(10_000)
        fields = b"".join(b"x-%03d: %b\r\n" % (number, b"y" * 50) for number in range(1000))
        with contextlib.suppress(ConnectionError):
            for _ in range(96 * MIB // len(fields)):
                connection.sendall(fields)
        with contextlib.suppress(ConnectionResetError):
            while more := connection.recv(10_000):
                answer += more
        assert answer.startswith(b"HTTP/1.1 431" if with_token else b"HTTP/1.1 401")
        assert b"\r\nconnection: close\r\n" in answer
        assert memory_bytes(started) - before < 64 * MIB


def memory_bytes(started: Gateway) -> int:
    """The most that the process has held."""
    (line,) = [
        line
        for line in Path(f"/proc/{started.process.pid}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    return int(line.split()[1]) * 1024


def test_slow_bodies_disturb_no_other_client(tmp_path: Path) -> None:
    """Forms that never end, of one address, more than there are places for requests and bodies."""
    token, row = new_token("me", "operator")
    path = tmp_path / "tokens.toml"
    path.write_text(row)
    limits = ("--bodies-max", "32", "--requests-max", "16", "--body-grace-s", "1s")
    form = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
    with gateway("--tokens-file", str(path), *limits) as started, ExitStack() as stack:
        head = "\r\n".join(f"{name}: {value}" for name, value in form.items())
        begun = f"POST /login HTTP/1.1\r\nhost: localhost\r\n{head}\r\ncontent-length: 100\r\n\r\nx".encode()
        slow = []
        for _ in range(40):
            slow.append(stack.enter_context(socket.create_connection(started.address, TIMEOUT_S)))
            slow[-1].sendall(begun)
        elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(base_url=started.url, timeout=TIMEOUT_S, transport=elsewhere) as client:
            assert client.get("/v1/ws/schema").status_code == 200
            assert client.post("/login", data={"token": "x"}, headers=form).status_code == 403  # it was read
            bearer = {"authorization": f"Bearer {token}"}
            answer = client.post("/v1/topics/quotes/records", headers=bearer, json=[])
            assert answer.json()["code"] == "VALIDATION"
            answers = [one.recv(10_000) for one in slow]
            statuses = [answer.split(b" ", 2)[1] for answer in answers]
            assert set(statuses) == {b"408", b"429"}
            assert statuses.count(b"408") >= 4  # an eighth of the places
            assert all(b"\r\nconnection: close\r\n" in answer for answer in answers)
            assert "comet_gateway_bodies_waiting 0.0" in client.get("/metrics", headers=bearer).text


@pytest.mark.parametrize(
    ("bounds", "sent"),
    [
        ("HEAD_S_MAX", b""),
        ("HEAD_S_MAX", b"GET /livez HTTP/1.1\r\nhost: local"),
        ("SILENCE_S_MAX", b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"),
    ],
    ids=["no request", "half a head", "half a body"],
)
async def test_a_client_that_dawdles_is_let_go(bounds: str, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, where the bounds can be short."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = Server(GatewayConfig(port=0), ready.set_result)
    serving = asyncio.create_task(server.run_until_stopped())
    try:
        host, _, port = (await ready).removeprefix("http://").rpartition(":")
        with monkeypatch.context() as hasty:
            hasty.setattr(uvicorn_http, bounds, 0.05)
            hasty.setattr(uvicorn_http, "CHECK_S", 0.02)
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            async with asyncio.timeout(TIMEOUT_S):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
        async with asyncio.timeout(TIMEOUT_S), httpx.AsyncClient(timeout=TIMEOUT_S) as client:
            assert (await client.get(f"http://{host}:{port}/livez")).status_code == 200
        assert server.app.state.traffic.requests == 0
    finally:
        server.stop()
        await serving


async def test_a_token_that_is_taken_back_ends_what_stays_connected(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    kept, kept_row = new_token("kept", "viewer")
    lost, lost_row = new_token("lost", "viewer")
    path.write_text(kept_row + lost_row)
    async with both("--tokens-file", str(path)) as (started, _):
        address = f"ws{started.url.removeprefix('http')}/v1/ws"
        with pytest.raises(InvalidStatus) as refused_:
            await connect(address)
        assert refused_.value.response.status_code == 401
        sockets = [
            await connect(address, additional_headers={"authorization": f"Bearer {kept}"}),
            await connect(address, subprotocols=[Subprotocol("comet.v1"), _subprotocol(lost)]),
        ]
        async with (
            httpx.AsyncClient(
                base_url=started.url, headers={"authorization": f"Bearer {lost}"}, timeout=TIMEOUT_S
            ) as client,
            client.stream("GET", "/v1/topics/quotes/stream") as stream,
        ):
            assert stream.status_code == 200
            path.write_text(kept_row)
            started.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(TIMEOUT_S):
                with pytest.raises(httpx.RemoteProtocolError):
                    await stream.aread()
        async with asyncio.timeout(TIMEOUT_S):
            await sockets[1].wait_closed()
        assert sockets[1].close_code == 1008
        await (await sockets[0].ping())
        for one in sockets:
            await one.close()


async def test_a_socket_of_a_foreign_page_or_one_too_many_gets_an_answer_in_its_place() -> None:
    listed = "https://app.example.com"
    async with both("--connections-max", "2", "--client-connections-max", "1", "--origins", listed) as (
        started,
        client,
    ):
        address = f"ws{started.url.removeprefix('http')}/v1/ws"
        for headers, status, code in [
            ({"origin": "https://evil.example"}, 403, "FOREIGN_ORIGIN"),
            ({"origin": "http://127.0.0.1:1"}, 403, "FOREIGN_ORIGIN"),
            ({"host": "evil.example"}, 400, "INVALID_ARGUMENT"),  # beside the right one
        ]:
            with pytest.raises(InvalidStatus) as refused_:
                await connect(address, additional_headers=headers)
            answer = refused_.value.response
            assert answer.status_code == status
            assert json.loads(answer.body or b"")["code"] == code
            assert "x-request-id" in answer.headers
        for origin in (listed, started.url, None):
            async with connect(address, additional_headers={"origin": origin} if origin else {}):
                with pytest.raises(InvalidStatus) as refused_:
                    await connect(address)
                answer = refused_.value.response
                assert answer.status_code == 429
                assert "x-request-id" in answer.headers
                assert int(answer.headers["retry-after"]) >= 1
            async with asyncio.timeout(TIMEOUT_S):  # until it has noticed that this one has gone
                while 'connections{kind="websocket"} 0.0' not in (await client.get("/metrics")).text:
                    pass


def _subprotocol(token: str) -> Subprotocol:
    return Subprotocol("comet.bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("="))


def test_nonsense_on_the_wire_disturbs_nobody(bare: Gateway) -> None:
    for nonsense in (b"\x16\x03\x01\x02", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 1000, b"{}\r\n\r\n"):
        with socket.create_connection(bare.address, TIMEOUT_S) as connection:
            connection.sendall(nonsense)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while connection.recv(1000):
                    pass
    assert get(f"{bare.url}/livez").status_code == 200


# ---- ending


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(number: int) -> None:
    with gateway() as started:
        assert get(f"{started.url}/livez").status_code == 200
        code, said = started.end(number)
        assert code == 0
        assert all("no broker" in line for line in said.splitlines()), said


def test_an_idle_connection_does_not_hold_it_up() -> None:
    with gateway("--drain-s", "25s") as started, socket.create_connection(started.address, TIMEOUT_S) as idle:
        idle.sendall(request("/livez"))
        answer = b""
        while b"alive" not in answer:
            answer += (received := idle.recv(10_000))
            assert received, answer
        assert started.end()[0] == 0
        assert idle.recv(1000) == b""


def test_load_balancers_have_time_to_notice() -> None:
    with gateway("--drain-notice-s", "60s") as started:
        with httpx.Client(base_url=started.url, timeout=TIMEOUT_S) as client:
            assert client.get("/readyz").status_code == 503  # no broker; what matters is why
            started.process.send_signal(signal.SIGTERM)
            answer = client.get("/livez")
            while "connection" not in answer.headers:  # the signal is on its way
                answer = client.get("/livez")
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
            reasons = client.get("/readyz").json()["reasons"]
            assert reasons == ["the gateway is about to stop"]
        started.process.send_signal(signal.SIGTERM)  # who says it twice is in a hurry
        assert started.process.wait(TIMEOUT_S) == 0


async def test_no_request_is_lost_while_it_drains_under_load() -> None:
    """Whoever sends a request has an answer, and is told by one of them to go elsewhere."""
    # Until all are told: it closes what has been idle for a moment, which whoever stood still for that long looks like.
    async with both("--drain-notice-s", "60s") as (started, client):
        well_under_way, counts = asyncio.Event(), {"answers": 0}

        async def load() -> None:
            closing = False
            while not closing:
                answer = await client.post("/v1/topics/quotes/records?acks=1", json={"value": 1})
                assert answer.status_code == 200, answer.text
                counts["answers"] += 1
                if counts["answers"] == 200:
                    well_under_way.set()
                closing = answer.headers.get("connection") == "close"

        users = [asyncio.create_task(load()) for _ in range(20)]
        async with asyncio.timeout(TIMEOUT_S):
            await well_under_way.wait()
        started.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*users)
        started.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(started.process.wait, TIMEOUT_S) == 0
        async with comet.Admin(started_bootstrap(started)) as admin:
            (end,) = (await admin.offsets("quotes", "latest")).values()
        assert end == counts["answers"]


def started_bootstrap(started: Gateway) -> str:
    words = started.process.args
    assert isinstance(words, list)
    return str(words[words.index("--bootstrap") + 1])


async def test_a_request_that_takes_longer_than_the_drain_is_cut_off() -> None:
    async with both("--drain-s", "300ms") as (started, client):
        path = "/v1/topics/quotes/partitions/0/records?offset=0&wait_ms=20000"
        waiting = asyncio.create_task(client.get(path))
        metrics = ""
        async with asyncio.timeout(TIMEOUT_S):
            while "comet_gateway_requests_running 1.0" not in metrics:  # the one that looks is not counted
                metrics = (await client.get("/metrics")).text
        code, said = await asyncio.to_thread(started.end)
        assert code == 0, said
        with pytest.raises(httpx.HTTPError):
            (await waiting).raise_for_status()
