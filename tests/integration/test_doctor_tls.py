"""What `comet doctor` finds out about TLS, by files and by handshakes with real brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comet.cli._commands import app
from comet.cli._finding import Finding
from comet.cli._tls_checks import check_broker_files, check_client_files, check_connection
from comet.security.access_keys import add_access_key
from comet.security.certificates import Authority, Issued
from comet.wire.bearer import read_access_key
from comet.wire.tls import TlsFiles
from comet_broker.config import BrokerConfig
from comet_broker.server import Server

LOCAL = ["127.0.0.1"]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "security", "comet")


def files(authority: Authority, issued: Issued | None) -> TlsFiles:
    return TlsFiles(authority.ca) if issued is None else TlsFiles(authority.ca, issued.cert, issued.key)


def settings(folder: Path, authority: Authority, issued: Issued) -> BrokerConfig:
    plain = BrokerConfig(data=folder / "data", port=0, drain_grace_ms=100)
    return replace(plain, clients_ca=authority.ca, clients_cert=issued.cert, clients_key=issued.key)


@asynccontextmanager
async def running(config: BrokerConfig) -> AsyncIterator[str]:
    async with Server(config) as server:
        yield server.address


async def found(address: str, tls: TlsFiles | None) -> Finding:
    finding = await asyncio.to_thread(check_connection, address, tls)
    assert finding is not None
    assert bool(finding.advice) == (finding.status != "ok")
    return finding


async def test_a_client_and_a_broker_that_fit_and_that_do_not(tmp_path: Path, authority: Authority) -> None:
    foreign = Authority.create(tmp_path / "foreign", "comet")
    client = authority.issue_client("app")
    async with running(settings(tmp_path, authority, authority.issue_broker(1, LOCAL))) as address:
        assert (await found(address, files(authority, client))).status == "ok"
        plain = await found(address, None)
        assert (plain.status, plain.detail) == ("fail", "the broker speaks TLS, this client does not")
        assert "COMET_CLIENT_CA" in plain.advice
        elsewhere = await found(address, files(foreign, foreign.issue_client("app")))
        assert "from another authority than those in" in elsewhere.detail
        nameless = await found(address, files(authority, None))
        assert nameless.status == "fail" and "demands a certificate of clients" in nameless.detail
        stranger = foreign.issue_client("stranger")
        refused = await found(address, TlsFiles(authority.ca, stranger.cert, stranger.key))
        assert refused.status == "fail" and f"refuses the certificate {stranger.cert}" in refused.detail
    assert await asyncio.to_thread(check_connection, address, None) is None, "the finding about the broker says it"


async def test_a_broker_without_tls(tmp_path: Path, authority: Authority) -> None:
    async with running(BrokerConfig(data=tmp_path / "data", port=0, drain_grace_ms=100)) as address:
        assert (await found(address, None)).status == "ok"
        finding = await found(address, files(authority, authority.issue_client("app")))
        assert finding.detail == "this client speaks TLS, the broker does not"
        assert finding.advice.startswith("unset COMET_CLIENT_CA, COMET_CLIENT_CERT and COMET_CLIENT_KEY")


@pytest.mark.parametrize(
    ("hosts", "days", "status", "says", "cure"),
    [
        (["broker-1.example"], 365, "fail", "not for 127.0.0.1", "comet security broker ID FOLDER --host 127.0.0.1"),
        (LOCAL, 0, "fail", "has expired", "comet security broker ID FOLDER"),
        (LOCAL, 5, "warn", "expires in 4 days", "comet security broker ID FOLDER"),
    ],
)
async def test_a_certificate_of_a_broker(
    tmp_path: Path, authority: Authority, hosts: list[str], days: int, status: str, says: str, cure: str
) -> None:
    config = settings(tmp_path, authority, authority.issue_broker(1, hosts, days))
    async with running(config) as address:
        finding = await found(address, files(authority, authority.issue_client("app")))
    assert finding.status == status and says in finding.detail and cure in finding.advice
    (of_file,) = check_broker_files(config)
    assert of_file.status == ("ok" if days == 365 else status)


@pytest.mark.parametrize(
    ("days", "status", "says"),
    [(365, "ok", "app.pem"), (9, "warn", "app.pem expires in 8 days"), (0, "fail", "app.pem expired on")],
)
def test_files_of_a_client(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, days: int, status: str, says: str
) -> None:
    assert [one.detail for one in check_client_files()] == ["none: connections are not encrypted"]
    app = authority.issue_client("app", days)
    for kind, path in (("CA", authority.ca), ("CERT", app.cert), ("KEY", app.key)):
        monkeypatch.setenv(f"COMET_CLIENT_{kind}", str(path))
    (finding,) = check_client_files()
    assert finding.status == status and says in finding.detail
    assert finding.advice == ("" if status == "ok" else "issue it again: comet security client NAME FOLDER")


def test_the_access_key_of_a_client(authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = add_access_key(tmp_path, "app")
    monkeypatch.setenv("COMET_CLIENT_ACCESS_KEY", str(key))
    tls, found = check_client_files()
    assert (tls.status, found.status) == ("ok", "ok") and str(key) in found.detail
    assert read_access_key(key) not in found.detail
    key.write_text("secret-0815")
    _, found = check_client_files()
    assert found.status == "fail" and "0815" not in found.detail and "COMET_CLIENT_ACCESS_KEY" in found.advice


def test_files_that_are_missing_or_do_not_fit_fail_the_command(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, two = authority.issue_client("one"), authority.issue_client("two")
    monkeypatch.setenv("COMET_CLIENT_CERT", str(one.cert))
    for key, says in ((two.key, "does not match the key"), (tmp_path / "no.key", "cannot read the TLS key file")):
        monkeypatch.setenv("COMET_CLIENT_KEY", str(key))
        (finding,) = check_client_files()
        assert finding.status == "fail" and says in finding.detail and "COMET_CLIENT_KEY" in finding.advice
    done = CliRunner().invoke(app, ["doctor", "--json", "--port", "9", "--data", str(tmp_path)])
    (finding_of_command,) = [one for one in json.loads(done.stdout) if one["name"] == "client TLS"]
    assert done.exit_code == 1 and finding_of_command["status"] == "fail"
