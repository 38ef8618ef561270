"""Every shipped way to listen beyond loopback, tried from another network by somebody without credentials: only health,
liveness and readiness answer, and the page to log in."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route, WebSocketRoute

from comet.processes.child import Child
from comet.security.access_keys import add_access_key, brokers_file
from comet.security.certificates import Authority
from comet.wire.bearer import make_access_key, read_access_key
from comet_gateway.app import create_app
from tests.robustness.machine import Networks, two_networks
from tests.robustness.stranger import CALLS, CONNECTED, Plan, encode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
COMET = [sys.executable, "-m", "comet.cli"]
START_S_MAX, STOP_S_MAX = 60.0, 60.0
METRICS_PORT = 9095
MONITOR = [("GET", path) for path in ("/metrics", "/livez", "/readyz", "/healthz", "/")]
PUBLIC = ("/openapi.json", "/docs", "/v1/ws/schema")  # the same of every gateway of a version
REFUSED = ("401", "403", "404", "UNIMPLEMENTED", "PERMISSION_DENIED", "UNAUTHENTICATED", "303 /login")


@pytest.fixture
def networks() -> Iterator[Networks]:
    with two_networks() as found:
        yield found


@contextmanager
def running(networks: Networks, folder: Path, *words: str) -> Iterator[dict[str, Any]]:
    """What the command prints as JSON once it is up; ended in order."""
    child = Child("it", [*networks.inside, *words, "--json"], log=folder / "log", piped=True)
    child.start()
    try:
        line = child.line(START_S_MAX)
        assert line, (folder / "log").read_text()
        yield json.loads(line)
    finally:
        child.stop(within_s=STOP_S_MAX)


def answered(found: dict[str, str]) -> set[str]:
    """What was not refused, without the ports."""
    return {what.partition(" ")[2] for what, answer in found.items() if answer not in REFUSED and answer != CONNECTED}


def tried(networks: Networks, plan: Plan) -> dict[str, str]:
    """What somebody outside was answered."""
    words = [*networks.outside, sys.executable, "-m", "tests.robustness.stranger", encode(plan)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def image_command(data: Path) -> list[str]:
    """The command of the container image, with another folder for its data."""
    (command,) = re.findall(r"^CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    name, *words = json.loads(command)
    assert name == "comet"
    return [*COMET, *(str(data) if word == "/data" else word for word in words)]


def check_broker(networks: Networks, document: dict[str, Any], brokers: int) -> None:
    """Strangers get nothing of its brokers; a client with a certificate is answered by all calls of clients."""
    ports = networks.listening()
    ca, cert, key = (document["environment"][f"COMET_CLIENT_{name}"] for name in ("CA", "CERT", "KEY"))
    found = tried(networks, Plan(networks.address, ports, MONITOR, ca=ca, name="localhost"))
    assert len([what for what, answer in found.items() if answer == CONNECTED]) >= brokers
    assert answered(found) == {"http GET /livez", "http GET /readyz"}
    client = tried(networks, Plan(networks.address, ports, ca=ca, cert=cert, key=key, name="localhost"))
    between_brokers = {call for call in CALLS if "Replication" in call or "Coordination" in call}
    assert {what.split()[-1] for what in answered(client)} == set(CALLS) - between_brokers


def test_the_image_serves_no_stranger(networks: Networks, tmp_path: Path) -> None:
    words = image_command(tmp_path / "data")
    with running(networks, tmp_path, *words) as document:
        check_broker(networks, document, 1)
    assert "andshake" not in (tmp_path / "log").read_text()  # a line for each connection would fill the disk


def test_a_secure_cluster_serves_no_stranger(networks: Networks, tmp_path: Path) -> None:
    words = [*COMET, "up", "--secure", "--brokers", "3", "--host", networks.address, "--data", str(tmp_path / "data")]
    with running(networks, tmp_path, *words) as document:
        check_broker(networks, document, 3)


def test_a_broker_with_access_keys_serves_no_stranger(networks: Networks, tmp_path: Path) -> None:
    """Everybody gets as far as TLS there; without a key, its health is all that answers."""
    folder = tmp_path / "security"
    issued = Authority.create(folder, "comet").issue_broker(1, ["localhost"])
    key = read_access_key(add_access_key(folder, "admin"))
    words = ["--host", "0.0.0.0", "--data", str(tmp_path / "data"), "--metrics-port", str(METRICS_PORT)]
    words += ["--clients-cert", str(issued.cert), "--clients-key", str(issued.key)]
    words += ["--access-keys", str(brokers_file(folder)), "--superusers", "client:admin"]
    with running(networks, tmp_path, *COMET, "broker", *words):
        ports, ca = networks.listening(), str(folder / "ca.pem")
        plan = Plan(networks.address, ports, MONITOR, ca=ca, name="localhost")
        forged = replace(plan, requests=(), metadata=[("authorization", f"Bearer {make_access_key()}")])
        ours = replace(plan, requests=(), metadata=[("authorization", f"Bearer {key}")])
        strangers, forgers, clients = (answered(tried(networks, one)) for one in (plan, forged, ours))
    health = {call for call in CALLS if "Health" in call}
    between_brokers = {call for call in CALLS if "Replication" in call or "Coordination" in call}
    assert strangers == {"http GET /livez", "http GET /readyz", *(f"grpcs {call}" for call in health)}
    assert {what.split()[-1] for what in forgers} == health
    assert {what.split()[-1] for what in clients} == set(CALLS) - between_brokers


def routes() -> Iterator[tuple[str, str]]:
    """All routes of a gateway, with 1 for each name in their paths."""
    for route in create_app().router.routes:
        assert isinstance(route, (Route, WebSocketRoute))
        methods = ["WS"] if isinstance(route, WebSocketRoute) else sorted(route.methods or ())
        yield from ((method, re.sub(r"{[^}]*}", "1", route.path)) for method in methods)


def test_a_gateway_serves_no_stranger(networks: Networks, tmp_path: Path) -> None:
    """With TLS and tokens, beside a broker on loopback."""
    words = [*COMET, "gateway", "token", "ann", "--role", "admin", "--json"]
    token = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(token["row"])
    authority = Authority.create(tmp_path / "security", "comet")
    issued = authority.issue_broker(1, ["localhost"])
    tls = ["--tls-cert", str(issued.cert), "--tls-key", str(issued.key)]
    gateway = [*COMET, "gateway", "--host", "0.0.0.0", "--tokens-file", str(tokens), *tls]
    with (
        running(networks, tmp_path, *COMET, "up", "--no-gateway", "--data", str(tmp_path / "data")),
        running(networks, tmp_path, *gateway),
    ):
        ports, ca = networks.listening(), str(authority.ca)
        found = tried(networks, Plan(networks.address, ports, list(routes()), ca=ca, name="localhost"))
        bearer = {"Authorization": f"Bearer {token['token']}"}
        plan = Plan(
            networks.address, ports, [("GET", "/v1/topics"), ("GET", "/")], ca=ca, name="localhost", headers=bearer
        )
        ours = tried(networks, plan)
    assert answered(found) == {f"https GET {path}" for path in ("/livez", "/readyz", "/login", *PUBLIC)}
    assert answered(ours) == {"https GET /v1/topics", "https GET /"}
