"""The listeners of a broker, and what each requires of its callers.

    clients    host:port                    records, groups, administration, health, reflection
    brokers    brokers_host:brokers_port    replication, coordination, forwarded calls; with `brokers_cert`

A caller of the brokers' listener presents a certificate with the URI of a broker of this cluster, and speaks for that
broker alone. Without `brokers_cert` a plain broker on loopback serves all of it on the clients' port, for development.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final
from urllib.parse import quote

import grpc

from comet.errors import Forbidden, InvalidArgument
from comet.settings.hosts import is_loopback
from comet.wire.expiry import DAY_US, EXPIRES_SOON_DAYS, expiry_text
from comet.wire.tls import Pem, TlsFiles, expiry
from comet_broker.access.keys import keys_in
from comet_broker.access.tokens import issuer_of
from comet_broker.config import BrokerConfig
from comet_broker.core.rules import check_principal
from comet_broker.ports import Clock, Worker

log = logging.getLogger(__name__)

REREAD_S: Final = 1.0
WARNING_S: Final = 60.0
_NAMES: Final = "x509_subject_alternative_name"
_COMMON_NAME: Final = "x509_common_name"
_CURE: Final = "make certificates with `comet security init`, or start with `comet up --secure`"


def clients_tls(config: BrokerConfig) -> TlsFiles | None:
    """The files of the clients' listener; None if it is plain."""
    return TlsFiles(config.clients_ca, config.clients_cert, config.clients_key) if config.clients_cert else None


def brokers_tls(config: BrokerConfig) -> TlsFiles | None:
    """The files of the brokers' listener; None if there is none."""
    return TlsFiles(config.brokers_ca, config.brokers_cert, config.brokers_key) if config.brokers_cert else None


def serves_brokers(config: BrokerConfig) -> bool:
    """Whether the clients' listener serves other brokers, too."""
    plain_and_local = config.clients_cert is None and is_loopback(config.host)
    return config.brokers_cert is None and (config.insecure or plain_and_local)


def unusable(host: str, port: int) -> str:
    """Why no server can listen there now; empty if one can, at one address of the host at least. Blocks."""
    reason = ""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return error.strerror or str(error)
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as tried:
            try:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(address)
                tried.listen(1)
            except OSError as error:
                reason = error.strerror or str(error)
            else:
                return ""
    return reason


def check_listeners(config: BrokerConfig) -> None:
    """Raises InvalidArgument for a broker that strangers could reach as clients, or as brokers, and for files that do
    not belong together."""
    for name in ("clients", "brokers"):
        ca, cert, key = (getattr(config, f"{name}_{kind}") for kind in ("ca", "cert", "key"))
        if (cert is None) != (key is None) or (ca is not None and cert is None):
            raise InvalidArgument(f"{name}_cert, {name}_key and {name}_ca belong together: a certificate needs its key")
    if config.brokers_cert is not None and config.brokers_ca is None:
        raise InvalidArgument("brokers_cert needs brokers_ca, the CA that signs the certificates of all brokers")
    for tls in (clients_tls(config), brokers_tls(config)):
        if tls is not None:
            tls.read()
    if takes_credentials(config):
        _check_credentials(config)
    if config.gateways and not config.superusers:
        raise InvalidArgument("gateways act for users as rules allow, which hold with superusers only: set superusers")
    if config.superusers or config.audit:
        _check_callers_known(config)
    if config.insecure:
        return
    if not is_loopback(config.host):
        _refuse_strangers(config)
    if config.etcd and config.brokers_cert is None and not serves_brokers(config):
        raise InvalidArgument(
            f"brokers of a cluster with TLS need brokers_cert, brokers_key and brokers_ca; {_CURE}",
            details={"hint": "or write insecure = true in the file of --config, where strangers may be brokers"},
        )


def takes_credentials(config: BrokerConfig) -> bool:
    """Whether clients present access keys or tokens, in place of certificates."""
    return config.access_keys is not None or issuer_of(config) is not None


def _check_credentials(config: BrokerConfig) -> None:
    """Raises InvalidArgument for a file without keys, and if keys and tokens would cross the network in the clear, or
    stand beside certificates, which gRPC requires of all or does not ask for."""
    if config.clients_cert is None:
        raise InvalidArgument(f"keys and tokens are taken over TLS only: set clients_cert and clients_key; {_CURE}")
    if config.clients_ca is not None:
        raise InvalidArgument(
            "with access_keys or jwt_issuer clients present keys or tokens, with clients_ca certificates: remove one"
        )
    if config.access_keys is not None:
        keys_in(config.access_keys)


def _check_callers_known(config: BrokerConfig) -> None:
    """Raises InvalidArgument if callers could not be told apart, or could pose as brokers, which rules do not bind."""
    for principal in (*config.superusers, *config.gateways):
        check_principal(principal)
    if config.clients_ca is None and not takes_credentials(config):
        raise InvalidArgument(
            f"{'superusers are' if config.superusers else 'for the audit log, clients are'} recognised by their "
            "certificates, access keys or tokens: set clients_cert and "
            f"clients_key, and clients_ca, access_keys or jwt_issuer; {_CURE}"
        )
    if serves_brokers(config):
        raise InvalidArgument(
            "with insecure = true and no brokers_cert every client may act as a broker, and rules would hold for none, "
            f"nor an audit log: set brokers_cert, brokers_key and brokers_ca; {_CURE}"
        )


def _refuse_strangers(config: BrokerConfig) -> None:
    if config.clients_cert is None or (config.clients_ca is None and not takes_credentials(config)):
        what = "clients_ca, access_keys or jwt_issuer"
        missing = f"clients_cert, clients_key and {what}" if config.clients_cert is None else what
        raise InvalidArgument(
            f"{config.host} can be reached by others, and {missing} not set: strangers could read and write; {_CURE}",
            details={"hint": "or write insecure = true in the file of --config, where strangers may do everything"},
        )


class Certificates:
    """The files of a listener, read again once a second. While new ones do not fit together the earlier ones stay in
    use. Owned by the server; gRPC's threads take what has changed."""

    def __init__(self, listener: str, files: TlsFiles, worker: Worker, clock: Clock) -> None:
        self.listener = listener
        self.files = files
        self._worker = worker
        self._clock = clock
        self._pem = files.read()
        self._changed: deque[grpc.ServerCertificateConfiguration] = deque(maxlen=1)
        self._newest: ssl.SSLContext | None = None  # for listeners of our own
        self.expires_us = _expires_us(self._pem, files)
        self._warned_us: int | None = None
        self._problem = ""

    def credentials(self) -> grpc.ServerCredentials:
        """Asks for the certificates at each handshake, so that replaced ones need no restart."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._pem),
            self._take_changed,  # type: ignore[arg-type] # gRPC also takes None: nothing has changed
            require_client_authentication=self.files.ca is not None,
        )

    @cached_property
    def context(self) -> ssl.SSLContext:
        """For a listener of our own: each handshake uses the newest certificates, and the newest authorities."""

        def choose(connection: ssl.SSLObject, _name: str | None, context: ssl.SSLContext) -> None:
            connection.context = self._newest or context

        self._newest = self.files.server_context()
        context = self.files.server_context()
        context.sni_callback = choose  # called for callers that name no server, too
        return context

    def _take_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Those that gRPC does not have yet. It exchanges its own for each that it gets, while other handshakes may be
        using them: told the same ones each time, it crashed under some thousand handshakes at once."""
        try:
            return self._changed.popleft()
        except IndexError:
            return None

    async def follow(self) -> None:
        """Runs until it is cancelled."""
        while True:
            self.warn_of_expiry()
            await asyncio.sleep(REREAD_S)
            await self.reread()

    def warn_of_expiry(self) -> None:
        """Once a day from EXPIRES_SOON_DAYS before the certificate expires."""
        now_us = self._clock.wall_us()
        if self.expires_us is None or self.expires_us - now_us > EXPIRES_SOON_DAYS * DAY_US:
            return
        if self._warned_us is not None and now_us - self._warned_us < DAY_US:
            return
        self._warned_us = now_us
        log.warning(
            "certificate %s of the %s listener %s; issue it again: comet security broker",
            self.files.cert,
            self.listener,
            expiry_text(self.expires_us, now_us),
        )

    async def reread(self) -> None:
        try:
            found = await self._worker.run(self.files.read)
            if found != self._pem and self._newest is not None:
                self._newest = await self._worker.run(self.files.server_context)
        except InvalidArgument as error:
            if error.message != self._problem:
                log.warning("the earlier certificates stay in use: %s", error)
            self._problem = error.message
            return
        self._problem = ""
        if found != self._pem:
            self._pem = found
            self._changed.append(_configuration(found))
            self.expires_us, self._warned_us = _expires_us(found, self.files), None
            log.info("new certificates are in use: %s", self.files.cert)


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    assert pem.key is not None
    assert pem.cert is not None
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], root_certificates=pem.ca)


def _expires_us(pem: Pem, files: TlsFiles) -> int | None:
    """None if only OpenSSL can read the certificate."""
    assert pem.cert is not None
    try:
        return int(expiry(pem.cert).timestamp()) * 1_000_000
    except InvalidArgument as error:
        log.warning("unknown when the certificate %s expires: %s", files.cert, error)
        return None


def broker_uri(cluster: str, broker: int) -> str:
    """The name of a broker in its certificate.

    >>> broker_uri("comet", 2)
    'spiffe://comet/broker/2'
    """
    return f"spiffe://{quote(cluster, safe='')}/broker/{broker}"


def certified_broker(cluster: str, presented: Mapping[str, Iterable[bytes]]) -> int:
    """The broker that a caller of the brokers' listener is, by what gRPC knows of its certificate. Raises Forbidden.

    >>> certified_broker("comet", {"x509_subject_alternative_name": [b"broker-2", b"spiffe://comet/broker/2"]})
    2
    """
    prefix = broker_uri(cluster, 0)[:-1].encode()
    numbers = [name.removeprefix(prefix) for name in presented.get(_NAMES, ()) if name.startswith(prefix)]
    if len(numbers) != 1 or not numbers[0].isdigit():
        raise Forbidden(f"this listener is for brokers: the certificate must name one as {broker_uri(cluster, 1)} does")
    return int(numbers[0])


def certified_client(cluster: str, presented: Mapping[str, Iterable[bytes]]) -> str | None:
    """The name by which rules know a caller of the clients' listener: that of its certificate; None: it has none.

    >>> certified_client("comet", {"x509_subject_alternative_name": [b"spiffe://comet/client/billing"]})
    'client:billing'
    >>> certified_client("comet", {"x509_subject_alternative_name": [b"spiffe://other/client/billing"]})
    'uri:spiffe://other/client/billing'
    >>> certified_client("comet", {"x509_common_name": [b"billing"]})
    'name:billing'
    """
    uris = [name.decode(errors="replace") for name in presented.get(_NAMES, ()) if name.startswith(b"spiffe://")]
    if len(uris) == 1:
        own = f"spiffe://{quote(cluster, safe='')}/client/"
        return f"client:{uris[0].removeprefix(own)}" if uris[0].startswith(own) else f"uri:{uris[0]}"
    names = [] if uris else [name.decode(errors="replace") for name in presented.get(_COMMON_NAME, ())]
    return f"name:{names[0]}" if len(names) == 1 else None


async def warn_of_strangers(config: BrokerConfig) -> None:
    """Says once a minute that the broker is open to strangers. Runs until it is cancelled."""
    while True:
        log.warning("insecure = true: strangers that reach %s:%d may do everything", config.host, config.port)
        await asyncio.sleep(WARNING_S)
