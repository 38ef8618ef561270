"""Every shipped way to listen beyond loopback, tried from another network by strangers and by clients without rights:
exactly what SECURITY.md lists answers them, and none of the ways starts without TLS and authentication."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from starlette.routing import Route, WebSocketRoute

from comet.processes.child import Child
from comet.security.access_keys import add_access_key, brokers_file
from comet.security.certificates import Authority
from comet.wire.bearer import make_access_key, read_access_key
from comet_gateway.app import create_app
from comet_gateway.http.auth import ROLES, Role, new_token
from comet_gateway.oidc.client import CALLBACK
from comet_gateway.routes import documentation
from comet_web import render
from tests.robustness.machine import Networks, two_networks
from tests.robustness.stranger import CALLS, CONNECTED, FRAMES, HEALTH, REFLECTION, SECRET, Plan, encode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT: Final = Path(__file__).parents[2]
COMET: Final = [sys.executable, "-m", "comet.cli"]
START_S_MAX, STOP_S_MAX = 60.0, 60.0
METRICS_PORT: Final = 9095
TOPIC: Final = "secret-orders"  # its name shows in no answer to a stranger
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "WS")
MONITOR: Final = [(method, path) for path in ("/metrics", "/livez", "/readyz", "/healthz", "/") for method in METHODS]
TLS: Final = ["--clients-cert", "CERT", "--clients-key", "KEY"]
TOKENS: Final = ["--tokens-file", "TOKENS"]
BETWEEN_BROKERS: Final = {call for call in CALLS if "Replication" in call or "Coordination" in call}
REFLECTIONS: Final = {call for call in CALLS if "ServerReflection" in call}
REFUSED_CREDENTIALS: Final = "CREDENTIALS_REFUSED"
UNAUTHENTICATED: Final = f"UNAUTHENTICATED {REFUSED_CREDENTIALS}"
REFUSED: Final = (
    *("UNIMPLEMENTED", "UNSUPPORTED_VERSION", "FORBIDDEN"),
    *("TOPIC_NOT_FOUND", "GROUP_NOT_FOUND", "PARTITION_NOT_FOUND"),
)
# A client without a rule finds brokers and coordinators, lists of nothing, and that it may do nothing.
WITHOUT_RULES: Final = {
    f"/comet.v1.{call}"
    for call in (
        *("Comet/FetchMetadata", "Comet/FindCoordinator", "Comet/Stream"),
        *("Admin/ListTopics", "Admin/ListGroups", "Admin/ListSchedules", "Admin/CheckAccess"),
    )
}
# Frames that name nothing; those of transactions are refused as such, and metadata is what its call answers.
ALONE: Final = (
    *("acknowledge", "credit", "fetch_metadata", "hello", "ping", "subscribe", "unsubscribe"),
    *("end_transaction", "open_transactions"),
)


def documented(port: str) -> set[str]:
    """The calls and requests that SECURITY.md says a port answers without credentials."""
    _, _, text = (ROOT / "SECURITY.md").read_text().partition("## Answers without credentials")
    rows = [line.split("|")[1:4] for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    found = [re.findall(r"`([^`]+)`", answers) for name, answers, _ in rows if name.strip().startswith(port)]
    assert found, f"SECURITY.md has no row of {port}"
    return {one for answers in found for one in answers}


@pytest.fixture
def networks() -> Iterator[Networks]:
    with two_networks() as found:
        yield found


@contextmanager
def running(networks: Networks, folder: Path, *words: str, log: str = "log", **more: str) -> Iterator[dict[str, Any]]:
    """What the command prints as JSON once it is up; ended in order."""
    child = Child(
        "it", [*networks.inside, *words, "--json"], log=folder / log, piped=True, environment=os.environ | more
    )
    child.start()
    try:
        line = child.line(START_S_MAX)
        assert line, (folder / log).read_text()
        yield json.loads(line)
    finally:
        child.stop(within_s=STOP_S_MAX)


def comet(networks: Networks, *words: str, **environment: str) -> Any:
    """What a command inside prints as JSON."""
    command = [*networks.inside, *COMET, *words, "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tried(networks: Networks, plan: Plan) -> dict[str, str]:
    """What somebody outside was answered, by kind, without the ports that merely accept connections."""
    words = [*networks.outside, sys.executable, "-m", "tests.robustness.stranger", encode(plan)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    by_kind: dict[str, set[str]] = defaultdict(set)
    for what, answer in found.items():
        if answer != CONNECTED:
            by_kind[what.partition(" ")[2]].add(answer)
    return {what: " or ".join(sorted(answers)) for what, answers in by_kind.items()}


def image_command(data: Path) -> list[str]:
    """The command of the container image, with another folder for its data."""
    (command,) = re.findall(r"^CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    name, *words = json.loads(command)
    assert name == "comet"
    return [*COMET, *(str(data) if word == "/data" else word for word in words)]


def monitor_answers() -> dict[str, str]:
    """What the broker's HTTP port answers strangers."""
    shown = documented("broker's HTTP port")
    answers = {f"http {method} {path}": "405" for method, path in MONITOR if path in ("/livez", "/readyz")}
    answers |= {f"http {method} {path}": "404" for method, path in MONITOR if path in ("/healthz", "/")}
    answers |= {f"http {method} /metrics": "401" for method in METHODS}
    answers |= {f"http {one}": "200" for one in shown}
    answers |= {f"http {one.replace('GET', other)}": "200" for one in shown for other in ("HEAD", "WS")}
    return answers


def check_broker(networks: Networks, document: Mapping[str, Any]) -> None:
    """Strangers get nothing of its brokers; a client with a certificate is answered by all calls of clients."""
    ports = networks.listening()
    address = document["address"].replace("0.0.0.0", "localhost")
    comet(networks, "topic", "create", TOPIC, "-b", address, **document["environment"])
    ca, cert, key = (document["environment"][f"COMET_CLIENT_{name}"] for name in ("CA", "CERT", "KEY"))
    stranger = Plan(networks.address, ports, MONITOR, ca=ca, name="localhost", secret=TOPIC)
    assert not documented("listeners with certificates")
    assert tried(networks, stranger) == monitor_answers()
    client = tried(networks, replace(stranger, requests=(), cert=cert, key=key))
    # By one listener and the other, over gRPC and the wire.
    refused = {"UNIMPLEMENTED", "PERMISSION_DENIED FORBIDDEN", "UNSUPPORTED_VERSION", "FORBIDDEN"}
    answered = {what.split()[1] for what, answer in client.items() if not refused.issuperset(answer.split(" or "))}
    answered.remove("frame")
    assert answered == set(CALLS) - BETWEEN_BROKERS - (REFLECTIONS - {REFLECTION})
    assert f"OK {SECRET}" in client["grpcs /comet.v1.Admin/ListTopics"]
    assert "OK" in client["wires /comet.v1.Comet/Stream"] and "OK" in client["wires frame ping"]


def test_the_image_serves_no_stranger(networks: Networks, tmp_path: Path) -> None:
    with running(networks, tmp_path, *image_command(tmp_path / "data")) as document:
        check_broker(networks, document)
    assert "andshake" not in (tmp_path / "log").read_text()  # a line for each connection would fill the disk


def test_compose_runs_the_image_as_it_is() -> None:
    """With its own command, and published on loopback: what the tests of the image show holds for it."""
    text = (ROOT / "compose.yaml").read_text()
    assert not re.findall(r"^\s*(?:command|entrypoint|environment|network_mode):", text, re.MULTILINE)
    (published,) = re.findall(r"ports: (\[.*?\])", text)
    ports = {"9092", *(port for word, port in pairwise(image_command(Path("data"))) if word == "--wire-port")}
    assert json.loads(published) == [f"127.0.0.1:{port}:{port}" for port in sorted(ports)]
    (exposed,) = re.findall(r"^EXPOSE (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert set(exposed.split()) == ports


def test_a_secure_cluster_serves_no_stranger(networks: Networks, tmp_path: Path) -> None:
    words = [*COMET, "up", "--secure", "--brokers", "3", "--host", networks.address, "--data", str(tmp_path / "data")]
    with running(networks, tmp_path, *words) as document:
        check_broker(networks, document)


def forged(names: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Credentials that a stranger can make, as the metadata of calls."""
    claims = {"iss": "https://login.example", "aud": "comet", "sub": "admin", "exp": 4_000_000_000, "iat": 1}
    key = ec.generate_private_key(ec.SECP256R1())
    values = {
        "an unknown key": f"Bearer {make_access_key()}",
        "an unsigned token": f"Bearer {jwt.encode(claims, '', 'none', names)}",
        "a token of another issuer": f"Bearer {jwt.encode(claims, key, 'ES256', names)}",
        "an empty key": "Bearer ",
        "a password": f"Basic {base64.b64encode(b'admin:admin').decode()}",
    }
    return {name: [("authorization", value)] for name, value in values.items()}


def test_a_broker_with_keys_and_tokens_serves_no_stranger(networks: Networks, tmp_path: Path) -> None:
    """Everybody gets as far as TLS there; without a credential, its health is all that answers."""
    folder = tmp_path / "security"
    issued = Authority.create(folder, "comet").issue_broker(1, ["localhost"])
    admin_key = add_access_key(folder, "admin")
    public = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True)
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [{**public, "kid": "k"}]}))
    words = ["--host", "0.0.0.0", "--data", str(tmp_path / "data"), "--metrics-port", str(METRICS_PORT)]
    words += ["--clients-cert", str(issued.cert), "--clients-key", str(issued.key)]
    words += ["--access-keys", str(brokers_file(folder)), "--superusers", "client:admin"]
    words += ["--jwt-issuer", "https://login.example", "--jwt-audience", "comet"]
    words += ["--jwt-keys", str(tmp_path / "keys.json")]
    with running(networks, tmp_path, *COMET, "broker", *words) as document:
        ports, ca = networks.listening(), str(folder / "ca.pem")
        address = document["address"].replace("0.0.0.0", "localhost")
        variables = {"COMET_CLIENT_CA": ca, "COMET_CLIENT_ACCESS_KEY": str(admin_key), "COMET_BOOTSTRAP": address}
        comet(networks, "topic", "create", TOPIC, **variables)
        key = comet(networks, "key", "create", "client:nobody", **variables)
        stranger = Plan(networks.address, ports, MONITOR, ca=ca, name="localhost", secret=TOPIC)
        assert tried(networks, stranger) == monitor_answers() | refused_calls()
        for name, metadata in forged({"kid": "k"}).items():
            assert tried(networks, replace(stranger, requests=(), metadata=metadata)) == refused_calls(), name
        client = replace(stranger, requests=(), metadata=[("authorization", f"Bearer {key['text']}")])
        check_without_rules(tried(networks, client))
        superuser = replace(client, metadata=[("authorization", f"Bearer {read_access_key(admin_key)}")])
        assert f"OK {SECRET}" in tried(networks, superuser)["grpcs /comet.v1.Admin/ListTopics"]


def refused_calls() -> dict[str, str]:
    """What a broker's listener with keys or tokens answers without one."""
    health = documented("clients' listener with access keys or tokens")
    known = dict.fromkeys(CALLS, UNAUTHENTICATED) | dict.fromkeys(health, "OK")
    missing = BETWEEN_BROKERS | (REFLECTIONS - {REFLECTION})
    known |= dict.fromkeys(missing, "UNIMPLEMENTED") | {f"{REFLECTION} list": UNAUTHENTICATED}
    known |= {f"frame {kind}": UNAUTHENTICATED for kind in FRAMES}
    over_wire = dict.fromkeys(["/comet.v1.Comet/Stream", *(f"frame {kind}" for kind in FRAMES)], REFUSED_CREDENTIALS)
    over_wire["/comet.v1.Replication/Replicate"] = "UNSUPPORTED_VERSION"
    return {f"grpcs {call}": answer for call, answer in known.items()} | {
        f"wires {call}": answer for call, answer in over_wire.items()
    }


def check_without_rules(found: Mapping[str, str]) -> None:
    """What a client without a rule gets: a view of the cluster with nothing of others in it."""
    answered = {what.partition(" ")[2] for what, answer in found.items() if answer.split()[-1] not in REFUSED}
    assert answered == {*WITHOUT_RULES, *HEALTH, REFLECTION, f"{REFLECTION} list", *(f"frame {one}" for one in ALONE)}
    assert not [what for what, answer in found.items() if SECRET in answer]


def templates() -> dict[str, set[str]]:
    """The methods of each path of a gateway."""
    found: dict[str, set[str]] = defaultdict(set)
    for route in create_app().router.routes:
        assert isinstance(route, (Route, WebSocketRoute))
        found[route.path_format] |= {"WS"} if isinstance(route, WebSocketRoute) else set(route.methods or ())
    for template, methods in found.items():
        if "GET" in methods and not template.endswith("/stream"):
            methods.add("HEAD")
    return found


def address_of(template: str) -> str:
    """With files that exist, and 1 for other names."""
    static, page = next(iter(render.static())), next(iter(documentation.FILES))
    found = template.replace("{version}/{path}", f"{render.version()}/{static}").replace("{file}", page)
    return re.sub(r"{[^}]*}", "1", found)


def refusal(method: str, template: str, methods: set[str], role: Role) -> str:
    """The answer to a request that the role may not make; empty if it may."""
    needed = ROLES.get(("GET" if method == "HEAD" else method, template), Role.ADMIN)
    if method == "WS" and method not in methods:
        return "403"
    if method not in methods:
        return "404 NOT_FOUND" if methods == {"WS"} else "405 METHOD_NOT_ALLOWED"
    if role >= needed:
        return ""
    is_page = not template.startswith("/v1/") and template != "/metrics"
    if role is Role.ANYONE:
        return "303 /login" if is_page else "401 UNAUTHENTICATED"
    return "403 FORBIDDEN"


def test_a_gateway_serves_no_stranger_and_each_role_what_its_row_says(networks: Networks, tmp_path: Path) -> None:
    """The secured gateway of the guide, beside the image's broker."""
    tokens = {role: new_token(role.name, role.name.lower()) for role in (Role.VIEWER, Role.OPERATOR)}
    rows = tmp_path / "tokens.toml"
    rows.write_text("".join(row for _, row in tokens.values()))
    with running(networks, tmp_path, *image_command(tmp_path / "data"), "--no-gateway") as document:
        folder, variables = tmp_path / "data" / "security", document["environment"]
        comet(networks, "topic", "create", TOPIC, "-b", "localhost:9092", **variables)
        words = ["--bootstrap", "localhost:9092", "--host", "0.0.0.0", "--tokens-file", str(rows)]
        words += ["--tls-cert", str(folder / "broker-1.pem"), "--tls-key", str(folder / "broker-1.key")]
        with running(networks, tmp_path, *COMET, "gateway", *words, log="gateway.log", **variables) as gateway:
            port = int(gateway["url"].rpartition(":")[2])
            tries = [(method, address_of(template)) for template in templates() for method in METHODS]
            stranger = Plan(networks.address, [port], tries, ca=str(folder / "ca.pem"), name="localhost", secret=TOPIC)
            strangers = tried(networks, stranger)
            served = check_role(Role.ANYONE, strangers)
            for role, (token, _) in tokens.items():
                found = tried(networks, replace(stranger, headers={"Authorization": f"Bearer {token}"}))
                assert check_role(role, found).keys() > served.keys()
                assert found["https GET /v1/topics"] == f"200 {SECRET}"
    assert not [what for what, answer in strangers.items() if SECRET in answer]
    others = {("POST", "/login"): "403 FOREIGN_ORIGIN", ("POST", "/logout"): "403 FOREIGN_ORIGIN"}
    for path in ("/login/oidc", CALLBACK):  # it has no identity provider
        others |= {("GET", path): "404 NOT_FOUND", ("HEAD", path): "404"}
    assert {one: answer for one, answer in served.items() if answer != "200"} == others
    public = {f"{method} {template}" for method, template in served if method != "HEAD"}
    assert public == documented("gateway") == {f"{one} {path}" for (one, path), role in ROLES.items() if not role}


def check_role(role: Role, found: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """The table of roles decides each request. Returns the answers to those that the role may make."""
    served = {}
    assert len(found) == len(templates()) * len(METHODS), "in the clear, or without an answer"
    for template, methods in templates().items():
        for method in METHODS:
            answer, refused = found[f"https {method} {address_of(template)}"], refusal(method, template, methods, role)
            if method == "HEAD":
                refused = refused if refused.startswith("303") else refused.partition(" ")[0]
            if refused:
                assert answer == refused, (role, method, template)
            else:
                served[method, template] = answer
                assert answer.split()[0] not in ("303", "401", "405"), (role, method, template)
    return served


@pytest.mark.parametrize(
    ("words", "missing", "cure"),
    [
        (["broker"], "clients_cert, clients_key", "comet security init"),
        (["broker", *TLS], "clients_ca, access_keys or jwt_issuer", "comet security init"),
        (["up"], "clients_cert, clients_key", "comet up --secure"),
        (["up", "--brokers", "3"], "clients_cert, clients_key", "comet up --secure"),
        (["up", "THE IMAGE"], "clients_cert, clients_key", "comet up --secure"),
        (["gateway"], "set tokens_file", "comet gateway token NAME --role admin"),
        (["gateway", *TOKENS], "set tls_cert and tls_key", "proxies"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_none_starts_beyond_loopback_without_tls_and_authentication(
    words: list[str], missing: str, cure: str, networks: Networks, tmp_path: Path
) -> None:
    issued = Authority.create(tmp_path / "security", "comet").issue_broker(1, ["localhost"])
    (tmp_path / "tokens.toml").write_text(new_token("ann", "viewer")[1])
    files = {"CERT": issued.cert, "KEY": issued.key, "TOKENS": tmp_path / "tokens.toml"}
    command = [*COMET, *(str(files.get(word, word)) for word in words), "--host", "0.0.0.0"]
    if "THE IMAGE" in words:
        command = [word for word in image_command(tmp_path / "data") if word != "--secure"]
    elif words[0] != "gateway":
        command += ["--data", str(tmp_path / "data")]
    done = subprocess.run([*networks.inside, *command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and not done.stdout
    assert not (tmp_path / "data").exists(), "something was started"
    said = " ".join(done.stderr.split())
    assert missing in said and cure in said
    assert not networks.listening()
