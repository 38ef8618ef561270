"""Certificates that `comet security` makes, and the files of TLS connections."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import comet
from comet.errors import InvalidArgument
from comet.security.access_keys import add_access_key
from comet.security.certificates import Authority, Issued, certificates_in
from comet.wire.bearer import FileBearer
from comet.wire.tls import TlsFiles, expiry


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "security", "prod")


def test_only_the_owner_reads_keys(authority: Authority) -> None:
    authority.issue_broker(1, ["localhost"])
    authority.issue_client("app")
    keys = list(authority.folder.glob("*.key"))
    assert len(keys) == 3
    assert all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in keys)
    assert not list(authority.folder.glob("*.new"))


def test_a_certificate_names_one_broker_or_client(authority: Authority) -> None:
    from cryptography import x509

    def names(issued: Issued) -> list[str]:
        cert = x509.load_pem_x509_certificate(issued.cert.read_bytes())
        found = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(one.value) for one in found]

    hosts = ["broker-2.example", "192.0.2.7", "::1"]
    assert names(authority.issue_broker(2, hosts)) == ["spiffe://prod/broker/2", *hosts]
    assert names(authority.issue_client("app")) == ["spiffe://prod/client/app"]
    gateway = authority.issue_client("gateway", hosts=["gw-1.example", "192.0.2.1"])
    assert names(gateway) == ["spiffe://prod/client/gateway", "gw-1.example", "192.0.2.1"]


def test_an_authority_is_opened_again(authority: Authority) -> None:
    again = Authority.open(authority.folder)
    again.issue_client("app")
    assert [one.name for one in certificates_in(authority.folder)] == ["app", "ca"]
    assert again.cluster == "prod"
    with pytest.raises(InvalidArgument, match="holds an authority already"):
        Authority.create(authority.folder, "prod")
    with pytest.raises(InvalidArgument, match="holds no authority"):
        Authority.open(authority.folder / "other")
    (authority.folder / "ca.key").write_text("nonsense")
    with pytest.raises(InvalidArgument, match="damaged"):
        Authority.open(authority.folder)


@pytest.mark.parametrize("name", ["", "ca", "broker-1", "../app", "a b", "x" * 64])
def test_names_of_clients_are_names_of_files(authority: Authority, name: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot name a client"):
        authority.issue_client(name)


def test_a_broker_needs_hosts_that_are_names(authority: Authority) -> None:
    with pytest.raises(InvalidArgument, match="needs the host names"):
        authority.issue_broker(1, [])
    with pytest.raises(InvalidArgument, match="is not a host name"):
        authority.issue_broker(1, ["bröker"])


def test_those_that_expire_soon_are_known(authority: Authority) -> None:
    assert authority.issue_client("old", days=29).expires_soon
    assert not authority.issue_client("new", days=31).expires_soon
    first, *_ = certificates_in(authority.folder)
    assert first.name == "old"
    assert timedelta(days=28) < first.expires - datetime.now(UTC) < timedelta(days=29)


def test_files_must_belong_together(authority: Authority, tmp_path: Path) -> None:
    one, other = authority.issue_client("one"), authority.issue_client("other")
    assert TlsFiles(authority.ca, one.cert, one.key).read().cert == one.cert.read_bytes()
    with pytest.raises(InvalidArgument, match="does not match the key"):
        TlsFiles(authority.ca, one.cert, other.key).read()
    with pytest.raises(InvalidArgument, match="without its key"):
        TlsFiles(authority.ca, one.cert).read()
    with pytest.raises(InvalidArgument, match="without its certificate"):
        TlsFiles(key=one.key).read()
    with pytest.raises(InvalidArgument, match=r"cannot read the TLS CA file .*missing"):
        TlsFiles(tmp_path / "missing").read()
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(InvalidArgument, match="does not hold certificates"):
        TlsFiles(tmp_path / "text").read()


def test_a_bootstrap_names_files_or_takes_those_of_the_environment(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = authority.issue_client("app")
    files = TlsFiles(authority.ca, app.cert, app.key)
    given = comet.Bootstrap("a:1,b:2", ca=authority.ca, cert=str(app.cert), key=app.key)
    assert (given.addresses, given.tls, str(given)) == (("a:1", "b:2"), files, "a:1,b:2")
    assert comet.Bootstrap.of("a:1").tls is None
    monkeypatch.setenv("COMET_CLIENT_CA", str(authority.ca))
    monkeypatch.setenv("COMET_CLIENT_CERT", str(app.cert))
    with pytest.raises(InvalidArgument, match="without its key"):
        comet.Producer("a:1")
    monkeypatch.setenv("COMET_CLIENT_KEY", str(app.key))
    assert comet.Bootstrap.of("a:1").tls == files
    assert comet.Bootstrap.of(comet.Bootstrap("a:1")).tls is None, "an object says all"


def test_a_bootstrap_with_an_access_key_speaks_tls(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = add_access_key(tmp_path, "app")
    given = comet.Bootstrap("a:1", access_key=str(key))
    assert (given.tls, given.bearer) == (TlsFiles(), FileBearer(key)), "the authorities of the system"
    monkeypatch.setenv("COMET_CLIENT_ACCESS_KEY", str(key))
    monkeypatch.setenv("COMET_CLIENT_CA", str(authority.ca))
    assert comet.Bootstrap.of("a:1") == comet.Bootstrap("a:1", ca=authority.ca, access_key=key)
    key.write_text("not a key")
    with pytest.raises(InvalidArgument, match="does not hold an access key"):
        comet.Producer("a:1")


def test_files_that_are_replaced_while_they_are_read_are_read_again(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = authority.issue_client("one")
    checks: list[TlsFiles] = []
    check = TlsFiles._check

    def replaced_before_the_check(files: TlsFiles) -> None:
        if not checks:
            authority.issue_client("one")
        checks.append(files)
        check(files)

    monkeypatch.setattr(TlsFiles, "_check", replaced_before_the_check)
    pem = TlsFiles(authority.ca, one.cert, one.key).read()
    assert (pem.cert, pem.key) == (one.cert.read_bytes(), one.key.read_bytes())
    assert len(checks) == 2


@pytest.mark.parametrize("days", [1, 365, 12_000])  # before 2050 and after it, which are written in two ways
def test_the_end_of_a_certificate_is_read_without_the_package(authority: Authority, days: int) -> None:
    issued = authority.issue_client("app", days)
    assert expiry(issued.cert.read_bytes()) == issued.expires
    both = authority.ca.read_bytes() + issued.cert.read_bytes()
    assert expiry(both) == min(issued.expires, expiry(authority.ca.read_bytes())), "the first to end"


@pytest.mark.parametrize("cut", [0, 40, 200])
def test_what_is_no_certificate_has_no_end(authority: Authority, cut: int) -> None:
    lines = authority.ca.read_bytes().splitlines(keepends=True)
    broken = lines[0] + b"".join(lines[1:-1])[:cut] + b"\n" + lines[-1]
    with pytest.raises(InvalidArgument, match="certificate in PEM"):
        expiry(broken)
