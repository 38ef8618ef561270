"""HTTPS at a gateway: its own, and that of nginx, HAProxy and Envoy with the files of docs/proxies; brokers behind
Envoy.

A client of "own" talks to a gateway with a certificate, those of a proxy to two gateways behind it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
import websockets

import comet
from comet.processes.child import Child
from comet.processes.ports import HeldPorts
from comet.security.certificates import Authority, Issued
from comet_broker.config import BrokerConfig
from comet_broker.server import Server as Broker
from comet_gateway.config import GatewayConfig
from comet_gateway.http.auth import new_token
from comet_gateway.server import Server
from tests.identity_provider import CLIENT, identity_provider
from tests.integration.gateway_http import NDJSON, Wire
from tests.integration.live_gateway import Socket, Stream, serving
from tests.integration.proxies import envoy, haproxy, nginx
from tests.integration.test_gateway_oidc import ANSWERED, CALLBACK, TYPED
from tests.robustness.http2 import Flood, Next, references, resets
from tests.waiting import pace, until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
WAYS = ("own", "nginx", "haproxy", "envoy")
PROXIES = WAYS[1:]
LOAD: Final = b"x-load"  # a header with the way of the load that a request is of
PROXY = "127.0.0.1"  # their address; clients have others of this machine
RECORDS = "/v1/topics/quotes/records"
NOTICE_S = 1.5  # longer than Envoy takes to notice


@dataclass
class World:
    """A broker, gateways, and proxies in front of them."""

    broker: str
    urls: dict[str, str]
    gateways: list[Restartable]
    envoy: Child
    ca: Path
    token: str
    last_host: int = 1

    def address(self) -> str:
        """An address of this machine that no client has had: limits of one test leave those of another alone."""
        self.last_host += 1
        return f"127.0.1.{self.last_host}"

    def tls(self) -> ssl.SSLContext:
        """For one client, which puts into it whether it speaks HTTP/2."""
        return ssl.create_default_context(cafile=self.ca)

    @asynccontextmanager
    async def client(self, way: str, address: str = "", *, token: bool = True) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.AsyncHTTPTransport(verify=self.tls(), http2=True, local_address=address or self.address())
        headers = {"authorization": f"Bearer {self.token}"} if token else {}
        async with httpx.AsyncClient(
            base_url=self.urls[way], transport=transport, headers=headers, timeout=30
        ) as client:
            yield client


class Restartable:
    """A gateway that keeps its port, and counts the requests of each load."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._stack = AsyncExitStack()
        self._counts = Counter[str]()
        self._server: Server

    async def start(self) -> None:
        self._server = await self._stack.enter_async_context(serving(self._config))
        app = self._server.config.loaded_app

        async def counting(scope: Any, receive: Any, send: Any) -> None:
            self._counts[dict(scope.get("headers", ())).get(LOAD, b"").decode()] += 1
            await app(scope, receive, send)

        self._server.config.loaded_app = counting  # of connections from now on

    async def stop(self) -> None:
        await self._stack.aclose()

    async def cut(self) -> None:
        """Ends it with all that it was about to answer."""
        for _ in range(2):
            self._server.stop()
        await self.stop()

    async def more_requests(self, *loads: Load) -> None:
        """Until some more have come by the way of each: its proxy takes this gateway for one that is up."""
        wanted = Counter({load.way: self._counts[load.way] + 5 for load in loads})
        assert await until(lambda: self._counts >= wanted, within_s=60)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("proxies")
    authority = Authority.create(folder / "security", "comet")
    issued = authority.issue_broker(1, [PROXY, "localhost"])
    token, row = new_token("ann", "admin")
    tokens = folder / "tokens.toml"
    tokens.write_text(row)
    tokens.chmod(0o600)
    held = HeldPorts(5)
    first, second, *ports = held.numbers
    files = {"chain.pem": str(issued.cert), "key.pem": str(issued.key)}
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(comet.testing.broker({"quotes": 1}))

        def config(port: int, *, cert: str = "", key: str = "") -> GatewayConfig:
            return GatewayConfig(
                bootstrap=broker.address, port=port, proxies=(PROXY,), tokens_file=str(tokens), drain_s=5,
                drain_notice_s=0 if cert else NOTICE_S, tls_cert=cert, tls_key=key,
            )  # fmt: skip

        own = await stack.enter_async_context(serving(config(0, cert=str(issued.cert), key=str(issued.key))))
        gateways = [Restartable(config(port)) for port in (first, second)]
        for gateway in gateways:
            await gateway.start()
        certificate = {f"/etc/nginx/tls/{name}": path for name, path in files.items()}
        replaced = {"gw-1:8080": f"{PROXY}:{first}", "gw-2:8080": f"{PROXY}:{second}"}
        by_nginx = await stack.enter_async_context(nginx(folder, ports[0], certificate | replaced))
        certificate = {"/etc/haproxy/tls/gateway.pem": with_key(issued, folder)}
        by_haproxy = await stack.enter_async_context(haproxy(folder, ports[2], certificate | replaced))
        certificate = {f"/etc/envoy/tls/{name}": path for name, path in files.items()}
        replaced = {
            f"address: gw-{number}, port_value: 8080": f"address: {PROXY}, port_value: {port}"
            for number, port in ((1, first), (2, second))
        }
        by_envoy = await stack.enter_async_context(envoy("envoy.yaml", folder, ports[1], certificate | replaced))
        yield World(
            broker.address,
            {
                "own": own.url,
                "nginx": f"https://{by_nginx.address}",
                "haproxy": f"https://{by_haproxy.address}",
                "envoy": f"https://{by_envoy.address}",
            },
            gateways,
            by_envoy,
            authority.ca,
            token,
        )
        for gateway in gateways:
            await gateway.cut()


def with_key(issued: Issued, folder: Path) -> str:
    """The path of a file with a certificate and its key."""
    file = folder / "gateway.pem"
    file.write_text(issued.cert.read_text() + issued.key.read_text())
    return str(file)


@contextmanager
def audited() -> Iterator[list[dict[str, object]]]:
    """The rows that the audit log gets."""
    rows: list[dict[str, object]] = []
    log = logging.getLogger("comet_gateway.audit")
    handler = logging.Handler()
    handler.emit = lambda record: rows.append(json.loads(record.getMessage()))  # type: ignore[method-assign]
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.INFO)
    try:
        yield rows
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


async def test_envoy_warns_of_no_field(world: World) -> None:
    """As it would of one that a later version will not have."""
    assert world.envoy.last_lines() == []


@pytest.mark.parametrize("way", WAYS)
async def test_records_are_written_and_read(world: World, way: str) -> None:
    async with world.client(way) as client:
        wrote = await client.post(RECORDS, json={"key": way, "value": {"bid": 1}})
        assert (wrote.status_code, wrote.http_version) == (200, "HTTP/1.1" if way == "own" else "HTTP/2"), wrote.text
        offset = wrote.json()["results"][0]["offset"]
        read = await client.get(f"/v1/topics/quotes/partitions/0/records?offset={offset}&wait_ms=5000")
        assert read.json()["records"][0]["key"] == way
        assert read.headers.get_list("strict-transport-security") == ["max-age=31536000"]
        refused = await client.get("/v1/topics/none")
        assert (refused.status_code, refused.json()["code"]) == (404, "TOPIC_NOT_FOUND")
        assert "strict-transport-security" in refused.headers


@pytest.mark.parametrize("way", WAYS)
async def test_each_line_is_answered_while_the_next_one_is_still_to_come(world: World, way: str) -> None:
    where = urlsplit(world.urls[way])
    wire = Wire(*await asyncio.open_connection(where.hostname, where.port, ssl=world.tls()))
    await wire.begin(RECORDS, NDJSON, f"authorization: Bearer {world.token}")
    for number in range(3):
        await wire.chunk(b'{"value":%d}\n' % number)
        if number == 0:
            assert (await wire.head())[0] == 200
        async with asyncio.timeout(10):
            assert "offset" in json.loads(await wire.line())
    await wire.chunk(b"")
    wire.close()


@pytest.mark.parametrize("way", WAYS)
async def test_events_leave_at_once(world: World, way: str) -> None:
    async with (
        comet.Producer(world.broker) as producer,
        world.client(way) as client,
        client.stream("GET", "/v1/topics/quotes/stream") as answer,
    ):
        stream = Stream(answer)
        assert (await stream.next())[0] == "subscribed"
        for number in range(3):  # the stream goes on, so that nothing but this record makes the event leave
            await producer.publish("quotes", f"event {number}")
            ((_, record),) = await stream.records(1)
            assert record["text"] == f"event {number}"


@pytest.mark.parametrize("way", WAYS)
async def test_a_websocket_gets_records(world: World, way: str) -> None:
    url = world.urls[way].replace("http", "ws", 1) + "/v1/ws"
    headers = {"authorization": f"Bearer {world.token}"}
    async with (
        comet.Producer(world.broker) as producer,
        websockets.connect(url, ssl=world.tls(), additional_headers=headers) as connection,
    ):
        socket = Socket(connection)
        assert (await socket.hear())["type"] == "welcome"
        await socket.subscribe("s", "quotes")
        for number in range(3):
            await producer.publish("quotes", f"frame {number}")
            (record,) = await socket.records("s", 1)
            assert record["text"] == f"frame {number}"


@pytest.mark.parametrize("way", WAYS)
async def test_a_browser_logs_in(world: World, way: str) -> None:
    """The cookies are those of HTTPS, and the Origin of the form is the gateway's own, with its port."""
    async with world.client(way, token=False) as client:
        typed = {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}
        page = await client.get("/login", headers=typed)
        (form,) = re.findall(r'name="form" value="([^"]+)"', page.text)
        fields = {"form": form, "token": world.token, "next": "/topics"}
        answer = await client.post("/login", headers={"origin": world.urls[way]}, data=fields)
        assert (answer.status_code, answer.headers["location"]) == (303, "/topics"), answer.text
        cookie = next(one for one in answer.headers.get_list("set-cookie") if "comet_session" in one)
        assert cookie.startswith("__Host-comet_session=") and "; Secure" in cookie
        shown = await client.get("/topics", headers=typed)
        assert (shown.status_code, "quotes" in shown.text) == (200, True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("address", ["", PROXY], ids=["elsewhere", "beside the proxy"])
async def test_the_client_has_the_address_of_its_connection(world: World, way: str, address: str) -> None:
    """Whatever it says itself, if it does not come from the proxy's address to the gateway."""
    if (way, address) == ("own", PROXY):
        address = world.address()  # from the proxy's address, the gateway believes it
    address = address or world.address()
    forged = {"x-forwarded-for": "192.0.2.1", "x-forwarded-proto": "http"}
    async with world.client(way, address) as client:
        with audited() as rows:
            answer = await client.post("/v1/topics", json={"name": "-"}, headers=forged)
        assert answer.status_code == 422, answer.text
        assert [row["from"] for row in rows] == [address]
        assert "__Host-" in (await client.get("/login", headers=forged | {"authorization": ""})).headers["set-cookie"]


@pytest.mark.parametrize("way", WAYS)
async def test_wrong_tokens_count_for_the_address_of_the_connection(world: World, way: str) -> None:
    async with world.client(way) as guessing, world.client(way) as other:
        found = Counter[int]()
        for number in range(40):
            headers = {"authorization": "Bearer comet_wrong", "x-forwarded-for": f"192.0.2.{number}"}
            found[(await guessing.get("/v1/topics", headers=headers)).status_code] += 1
        assert set(found) == {401, 429}
        assert 10 <= found[401] <= (10 if way == "own" else 20)  # each gateway takes ten
        assert (await other.get("/v1/topics", headers={"authorization": "Bearer comet_wrong"})).status_code == 401


@pytest.mark.parametrize("way", PROXIES)
async def test_logins_of_an_address_are_limited(world: World, way: str) -> None:
    async with world.client(way) as one, world.client(way) as other:
        form = {"origin": world.urls[way]}
        with audited() as rows:
            found = [await one.post("/login", headers=form, data={"token": "x"}) for _ in range(9)]
            # Another spelling of the path, and another address that the client names, are no other login.
            found += [await one.post("/%6Cogin", headers=form, data={"token": "x"}) for _ in range(2)]
            found += [await one.post("/login?next=/", headers=form | {"x-forwarded-for": "192.0.2.9"}, data={})]
        assert [answer.status_code for answer in found] == [403] * 10 + [429] * 2
        assert len(rows) == 10
        assert int(found[-1].headers["retry-after"]) > 0
        assert (await one.get("/login")).status_code == 200
        assert (await other.post("/login", headers=form, data={"token": "x"})).status_code == 403


@pytest.mark.parametrize("way", PROXIES)
async def test_logins_by_openid_connect_of_an_address_are_limited(world: World, way: str) -> None:
    """By their answers. The way to the provider is not limited."""
    async with world.client(way, token=False) as one, world.client(way, token=False) as other:
        with audited() as rows:
            found = [await one.get(f"{CALLBACK}?code=x&state={number}") for number in range(9)]
            found += [await one.get(f"/login/%6Fidc/callback?code=x&state={number}") for number in range(2)]
            found += [await one.get(CALLBACK, headers={"x-forwarded-for": "192.0.2.9"})]
        assert [answer.status_code == 429 for answer in found] == [False] * 10 + [True] * 2
        assert len(rows) == 10
        assert int(found[-1].headers["retry-after"]) > 0
        assert (await one.get("/login/oidc")).status_code != 429
        assert (await other.get(f"{CALLBACK}?code=x&state=y")).status_code != 429


@pytest.mark.parametrize("way", PROXIES)
async def test_the_longest_session_passes(tmp_path: Path, way: str) -> None:
    """A cookie of 3.5 kB, in the head of the answer to a login and in those of requests."""
    authority = Authority.create(tmp_path / "security", "comet")
    issued = authority.issue_broker(1, [PROXY])
    held = HeldPorts(1)
    (port,) = held.numbers
    groups = [f"{number}-{'x' * 100}" for number in range(10, 31)]
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(comet.testing.broker())
        provider = stack.enter_context(identity_provider())
        provider.secret, provider.claims = "", {"sub": "x" * 128, "groups": groups}
        config = GatewayConfig(
            bootstrap=broker.address, port=0, proxies=(PROXY,), user_rules=True, drain_s=0.2,
            oidc_issuer=provider.url, oidc_client_id=CLIENT, oidc_roles=("viewer=*",),
        )  # fmt: skip
        gateway = urlsplit((await stack.enter_async_context(serving(config))).url).port
        files = {
            f"/etc/{way}/tls/{name}": str(path) for name, path in (("chain.pem", issued.cert), ("key.pem", issued.key))
        }
        if way in {"nginx", "haproxy"}:
            backends = {f"gw-{number}:8080": f"{PROXY}:{gateway}" for number in (1, 2)}
            if way == "haproxy":
                files = {"/etc/haproxy/tls/gateway.pem": with_key(issued, tmp_path)}
            running = nginx if way == "nginx" else haproxy
            await stack.enter_async_context(running(tmp_path, port, files | backends))
        else:
            backends = {f"gw-{number}, port_value: 8080": f"{PROXY}, port_value: {gateway}" for number in (1, 2)}
            await stack.enter_async_context(envoy("envoy.yaml", tmp_path, port, files | backends))
        tls = ssl.create_default_context(cafile=authority.ca)
        client = httpx.AsyncClient(base_url=f"https://{PROXY}:{port}", verify=tls, timeout=30)
        browser = await stack.enter_async_context(client)
        begun = await browser.get("/login/oidc", headers=TYPED)
        answer = await browser.get(provider.authorize(begun.headers["location"]), headers=ANSWERED)
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), answer.text
        assert len(browser.cookies["__Host-comet_session"]) > 3_300
        assert (await browser.get("/login?next=/topics", headers=TYPED)).headers["location"] == "/topics"


@pytest.mark.parametrize("way", PROXIES)
async def test_requests_of_an_address_are_limited(world: World, way: str) -> None:
    where, count, answers = urlsplit(world.urls[way]), 990, ""
    reader, writer = await asyncio.open_connection(
        where.hostname, where.port, ssl=world.tls(), local_addr=(world.address(), 0)
    )
    writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n" * count)  # faster than any client waits for answers
    async with asyncio.timeout(30):
        while answers.count("HTTP/1.1 ") < count and (more := await reader.read(65536)):  # Envoy closes the connection
            answers += more.decode()
    writer.transport.abort()
    statuses = Counter(re.findall(r"HTTP/1.1 (\d+)", answers))
    assert set(statuses) == {"200", "429"} and statuses["200"] >= 200
    assert len(re.findall(r"(?i)\r\nretry-after: [1-9]", answers)) == statuses["429"]
    async with world.client(way) as other:
        assert (await other.get("/livez")).status_code == 200


class Load:
    """Requests through a proxy until it is ended. Each goes on after the last one has been answered."""

    def __init__(self, world: World, way: str) -> None:
        self.failed: list[str] = []
        self.answered = Counter[str]()
        self.way = way
        self._world = world
        self._ended = asyncio.Event()

    async def run(self, kind: str) -> None:
        async with self._world.client(self.way) as client:
            client.headers[LOAD.decode()] = self.way
            while not self._ended.is_set():
                try:
                    answer = await self._send(client, kind)
                except httpx.HTTPError as error:
                    self.failed.append(f"{self.way} {kind}: {error!r}")
                    continue
                if self.way == "nginx" and kind == "write once" and answer.status_code == 502:
                    continue  # nginx does not know that it may send it again; the client does
                if answer.status_code != 200:
                    self.failed.append(f"{self.way} {kind}: {answer.status_code} {answer.text}")
                self.answered[kind] += 1
                await pace(0.02)  # below the limit of requests of an address

    async def _send(self, client: httpx.AsyncClient, kind: str) -> httpx.Response:
        if kind == "read":
            return await client.get("/v1/topics/quotes/partitions/0/records?offset=0&limit=1")
        headers = {"idempotency-key": f"{self.way}-{self.answered[kind]}"} if kind == "write once" else {}
        return await client.post(RECORDS, json={"value": 1}, headers=headers)

    async def more_answers(self) -> None:
        """Until each kind of request was answered some more times."""
        wanted = {kind: count + 10 for kind, count in self.answered.items()}
        assert await until(lambda: self.answered >= Counter(wanted), within_s=60)

    def end(self) -> None:
        self._ended.set()


@asynccontextmanager
async def loaded(world: World, way: str, *kinds: str) -> AsyncIterator[Load]:
    """When the block ends, the last requests are answered, and none of all has failed."""
    load = Load(world, way)
    async with asyncio.TaskGroup() as group:
        for kind in kinds:
            group.create_task(load.run(kind))
        try:
            yield load
        finally:
            load.end()
    assert not load.failed


async def test_no_request_fails_while_gateways_restart(world: World) -> None:
    kinds = "read", "write once"
    async with (
        loaded(world, "nginx", *kinds) as one,
        loaded(world, "envoy", *kinds, "write") as other,
    ):
        for gateway in world.gateways:
            await gateway.more_requests(one, other)
            await gateway.stop()
            for load in (one, other):
                await load.more_answers()
            await gateway.start()
            await gateway.more_requests(one, other)


@pytest.mark.parametrize(("way", "kinds"), [("nginx", ["read", "write once"]), ("envoy", ["read", "write once"])])
async def test_what_may_be_repeated_does_not_fail_when_a_gateway_dies(world: World, way: str, kinds: list[str]) -> None:
    """Requests that it was answering are cut off."""
    async with loaded(world, way, *kinds) as load:
        for gateway in world.gateways:
            await gateway.more_requests(load)
        for gateway in world.gateways:
            await gateway.cut()
            await load.more_answers()
            await gateway.start()
            await gateway.more_requests(load)


async def round_trip(bootstrap: str | comet.Bootstrap) -> None:
    """All connections are to the address that the broker advertises."""
    async with comet.Admin(bootstrap) as admin, comet.Producer(bootstrap, acks="all") as producer:
        await admin.create_topic("t")
        for number in range(5):
            await producer.publish("t", f"{number}")
    async with comet.Consumer(bootstrap, "t", start="earliest") as consumer:
        assert [(await anext(consumer)).offset for _ in range(5)] == list(range(5))


@asynccontextmanager
async def behind(file: str, folder: Path, **settings: Path) -> AsyncIterator[Child]:
    """Envoy in front of a broker of its own."""
    held = HeldPorts(2)
    at, advertised = held.numbers
    config = BrokerConfig(data=folder / "data", port=at, advertised_port=advertised, drain_grace_ms=100, **settings)  # type: ignore[arg-type]
    replaced = {"port_value: 9192": f"port_value: {at}"}
    async with Broker(config), envoy(file, folder, advertised, replaced) as proxy:
        yield proxy


async def test_clients_of_a_broker_behind_envoy(tmp_path: Path) -> None:
    async with behind("envoy-brokers.yaml", tmp_path) as proxy:
        await round_trip(proxy.address)
        port = int(proxy.address.rpartition(":")[2])
        async with comet.Producer(proxy.address, acks="all") as producer:
            for abuse in (resets, many_references):
                for _ in range(3):  # it comes back when it was thrown out
                    with Flood(port, abuse("/comet.v1.Comet/Publish")) as flood:
                        async with comet.Admin(proxy.address) as other:
                            await other.list_topics()
                        await producer.publish("t", "meanwhile")
                        assert await until(lambda: flood.closed, within_s=30)


def many_references(path: str) -> Next:
    return references(path, 110)


async def test_clients_of_a_broker_with_tls_behind_envoy(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "security", "comet")
    broker, app = authority.issue_broker(1, [PROXY]), authority.issue_client("app")
    settings = {"clients_ca": authority.ca, "clients_cert": broker.cert, "clients_key": broker.key}
    async with behind("envoy-brokers-tls.yaml", tmp_path, **settings) as proxy:
        await round_trip(comet.Bootstrap(proxy.address, ca=authority.ca, cert=app.cert, key=app.key))
        with pytest.raises(comet.Unavailable):
            async with comet.Admin(comet.Bootstrap(proxy.address, ca=authority.ca), timeout_ms=1000) as admin:
                await admin.list_topics()
