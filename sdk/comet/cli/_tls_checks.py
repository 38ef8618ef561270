"""The checks of `comet doctor` on TLS: the files of this client and of the broker that will run here, and whether they
fit the brokers that run. Each problem comes with the line that cures it."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from comet.cli._finding import Finding
from comet.client.bootstrap import environment_credentials, environment_files
from comet.errors import CometError, InvalidArgument
from comet.security.token_source import expiry_of
from comet.settings.client import (
    ACCESS_KEY_VARIABLE,
    CA_VARIABLE,
    CERT_VARIABLE,
    KEY_VARIABLE,
    OAUTH_VARIABLES,
    TOKEN_VARIABLE,
)
from comet.wire.bearer import id_of, read_access_key, read_token
from comet.wire.expiry import DAY_US, EXPIRES_SOON_DAYS, expiry_text
from comet.wire.tls import Pem, TlsFiles, expiry

if TYPE_CHECKING:
    from comet_broker.config import BrokerConfig

ANSWER_S_MAX: Final = 5.0
VARIABLES: Final = f"{CA_VARIABLE}, {CERT_VARIABLE} and {KEY_VARIABLE}"
# OpenSSL's codes of a certificate that is not valid.
_EXPIRED: Final = 10
_OTHER_NAME: Final = frozenset({62, 64})  # host name, IP address
_NEW_BROKER: Final = "issue it again: comet security broker ID FOLDER"
_NEW_CLIENT: Final = "issue it again: comet security client NAME FOLDER"
_NEW_CA: Final = "make an authority, and let all sides trust both: docs/operating.md, Rotation"
# HTTP/2 begins with this line and an empty frame of settings.
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def client_files() -> TlsFiles | None:
    """The files that the environment names; None: connections are plain."""
    paths = _client_paths()
    if not any(paths.values()) and not os.environ.get(OAUTH_VARIABLES["token_url"]):
        return None
    return TlsFiles(paths["ca"], paths["cert"], paths["key"])


def _client_paths() -> dict[str, Path | None]:
    return {kind: Path(path).expanduser() if path else None for kind, path in environment_files().items()}


def check_client_files() -> list[Finding]:
    tls = client_files()
    if tls is None:
        return [Finding("client TLS", "ok", "none: connections are not encrypted")]
    return [*check_files("client TLS", tls, f"correct {VARIABLES}", _NEW_CLIENT), *_check_bearer(), *_check_issuer()]


def _check_issuer() -> Iterator[Finding]:
    """Whether the issuer that the environment names gives this client a token."""
    try:
        issuer = environment_credentials()
        if issuer is None:
            return
        expires_s = expiry_of(issuer())
    except CometError as error:
        yield Finding("token", "fail", error.message, f"correct {OAUTH_VARIABLES['token_url']} and its like")
        return
    if expires_s is None:
        yield Finding("token", "fail", f"{issuer.token_url} gave no JWT that has `exp`", "ask the issuer for JWTs")
    else:
        yield Finding("token", "ok", f"a JWT for {expires_s - time.time():.0f} s, from {issuer.token_url}")


def _check_bearer() -> Iterator[Finding]:
    """Whether the files of this client's access key and token hold them."""
    paths = _client_paths()
    for name, path, read, variable in (
        ("access key", paths["access_key"], read_access_key, ACCESS_KEY_VARIABLE),
        ("token", paths["token"], read_token, TOKEN_VARIABLE),
    ):
        if path is None:
            continue
        try:
            yield Finding(name, "ok", f"{id_of(read(path)) or 'a JWT'}, in {path}")
        except InvalidArgument as error:
            yield Finding(name, "fail", error.message, f"correct {variable}")


def check_broker_files(config: BrokerConfig) -> list[Finding]:
    """The files of the listeners of a broker with these settings."""
    found: list[Finding] = []
    for listener in ("clients", "brokers"):
        ca, cert, key = (getattr(config, f"{listener}_{kind}") for kind in ("ca", "cert", "key"))
        if ca or cert or key:
            cure = f"correct {listener}_ca, {listener}_cert and {listener}_key"
            found += check_files(f"{listener} TLS", TlsFiles(ca, cert, key), cure, _NEW_BROKER)
    return found


def check_files(name: str, tls: TlsFiles, cure: str, issue: str) -> list[Finding]:
    """Whether the files are there, fit together and are valid."""
    try:
        pem = tls.read()
    except InvalidArgument as error:
        return [Finding(name, "fail", error.message, cure)]
    problems = [one for one in _expiries(name, tls, pem, issue) if one.status != "ok"]
    if problems:
        return problems
    shown = ", ".join(f"{kind} {path}" for kind in ("ca", "cert", "key") if (path := getattr(tls, kind)) is not None)
    return [Finding(name, "ok", shown)]


def _expiries(name: str, tls: TlsFiles, pem: Pem, issue: str) -> Iterator[Finding]:
    for path, data, advice in ((tls.ca, pem.ca, _NEW_CA), (tls.cert, pem.cert, issue)):
        if data is None:
            continue
        try:
            yield _about_end(name, str(path), expiry(data), advice)
        except InvalidArgument as error:
            yield Finding(name, "fail", f"{path}: {error.message}", advice)


def _about_end(name: str, certificate: str, end: datetime, advice: str) -> Finding:
    end_us, now_us = (int(one.timestamp() * 1e6) for one in (end, datetime.now(UTC)))
    if end_us - now_us <= EXPIRES_SOON_DAYS * DAY_US:
        status = "fail" if end_us <= now_us else "warn"
        return Finding(name, status, f"{certificate} {expiry_text(end_us, now_us)}", advice)
    return Finding(name, "ok", f"{certificate} is valid until {end:%Y-%m-%d}")


def check_connections(addresses: Sequence[str]) -> list[Finding]:
    """Those of brokers that can be reached."""
    tls = client_files()
    found = [check_connection(address, tls) for address in addresses]
    return [one for one in found if one is not None]


def check_connection(address: str, tls: TlsFiles | None) -> Finding | None:
    """Whether a running broker and the files of this client fit. None: it cannot be reached, or the files are unusable,
    which other findings say."""
    name = f"TLS of {address}"
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        speaks_tls = _speaks_tls(host, int(port))
    except (OSError, ValueError):
        return None
    if tls is None:
        if not speaks_tls:
            return Finding(name, "ok", "none, on both sides")
        advice = f"export {VARIABLES}; comet security client NAME FOLDER makes the files"
        return Finding(name, "fail", "the broker speaks TLS, this client does not", advice)
    if not speaks_tls:
        advice = f"unset {VARIABLES}, or give the broker clients_cert, clients_key and clients_ca"
        return Finding(name, "fail", "this client speaks TLS, the broker does not", advice)
    try:
        tls.read()
        return _handshake(name, host, int(port), tls)
    except InvalidArgument:
        return None


def _speaks_tls(host: str, port: int) -> bool:
    """Raises OSError without a connection or an answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the question is whether it speaks TLS; nothing is sent
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, port), ANSWER_S_MAX) as plain:
        try:
            with context.wrap_socket(plain):
                return True
        except (ssl.SSLError, ConnectionResetError):
            return False


def _handshake(name: str, host: str, port: int, tls: TlsFiles) -> Finding:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if tls.ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(tls.ca)
    if tls.cert is not None and tls.key is not None:
        context.load_cert_chain(tls.cert, tls.key)
    try:
        with (
            socket.create_connection((host, port), ANSWER_S_MAX) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            certificate = secure.getpeercert() or {}
            secure.sendall(_PREFACE)
            if not secure.recv(1):  # TLS 1.3 refuses a client's certificate after the handshake
                return _refused(name, tls, "it closed the connection")
    except ssl.SSLCertVerificationError as error:
        return _not_valid(name, host, tls, error)
    except (ssl.SSLError, ConnectionError) as error:
        return _refused(name, tls, getattr(error, "reason", None) or str(error))
    except OSError as error:
        return Finding(name, "fail", f"no answer: {error}", "start it again, or look at its log")
    end = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC)
    return _about_end(name, "the broker's certificate", end, _NEW_BROKER)


def _not_valid(name: str, host: str, tls: TlsFiles, error: ssl.SSLCertVerificationError) -> Finding:
    if error.verify_code == _EXPIRED:
        return Finding(name, "fail", "a certificate of the broker has expired", _NEW_BROKER)
    if error.verify_code in _OTHER_NAME:
        advice = f"issue it for this name too: comet security broker ID FOLDER --host {host}"
        return Finding(name, "fail", f"the broker's certificate is not for {host}", advice)
    trusted = f"those in {tls.ca}" if tls.ca else "those of this system"
    detail = f"the broker's certificate is from another authority than {trusted}: {error.verify_message}"
    return Finding(name, "fail", detail, f"export {CA_VARIABLE}=FILE, the ca.pem of the authority of the brokers")


def _refused(name: str, tls: TlsFiles, reason: str) -> Finding:
    if tls.cert is None:
        advice = f"export {CERT_VARIABLE} and {KEY_VARIABLE}; comet security client NAME FOLDER makes the files"
        return Finding(name, "fail", f"the broker demands a certificate of clients: {reason}", advice)
    advice = "issue it by the broker's authority: comet security client NAME FOLDER"
    return Finding(name, "fail", f"the broker refuses the certificate {tls.cert}: {reason}", advice)
