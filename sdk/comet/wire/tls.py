"""The files of a TLS connection, in PEM: the authorities that a side trusts, and the certificate that it presents."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from comet.errors import InvalidArgument, Unavailable
from comet.wire.pasted import check_path

# Elements of a certificate.
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18


@dataclass(frozen=True, slots=True)
class Pem:
    """What the files hold; None: no such file was named."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths, or None. They are read for every new connection, so a replaced file takes effect without a restart."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        for path, what in ((self.ca, "CA certificate"), (self.cert, "certificate"), (self.key, "private key")):
            check_path(path, what)

    def read(self) -> Pem:
        """Reads the files and checks that they fit together. Raises InvalidArgument, naming the file."""
        if (self.cert is None) != (self.key is None):
            present, missing = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise InvalidArgument(f"the TLS {present} {self.cert or self.key} was given without its {missing}")
        while True:
            pem = self._contents()
            self._check()
            if self._contents() == pem:  # else a file was replaced meanwhile, and other contents were checked
                return pem

    def client_context(self) -> ssl.SSLContext:
        """For a connection of our own to a server. Raises Unavailable if the files do not fit together: a replacement
        may be under way."""
        try:
            return self._context(ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.ca))
        except (InvalidArgument, OSError) as error:
            raise Unavailable(str(error)) from None

    def server_context(self) -> ssl.SSLContext:
        """For a listener of our own; with `ca` it requires a certificate of its callers. Raises InvalidArgument."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            _load_ca(context, self.ca)
        return self._context(context)

    def _context(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert is not None:
            assert self.key is not None
            _load_cert(context, self.cert, self.key)
        return context

    def _contents(self) -> Pem:
        return Pem(_read(self.ca, "CA"), _read(self.cert, "certificate"), _read(self.key, "key"))

    def _check(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca is not None:
            _load_ca(context, self.ca)
        self._context(context)


def _load_ca(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError) as error:
        raise InvalidArgument(f"the TLS CA file {ca} does not hold certificates in PEM: {error}") from None


def _load_cert(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    try:
        # The password keeps OpenSSL from asking for one on the terminal.
        context.load_cert_chain(cert, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = f"the TLS certificate {cert} does not match the key {key}"
        raise InvalidArgument(f"{reason}, or one is not PEM without a password: {error}") from None


def _read(path: Path | None, kind: str) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read the TLS {kind} file {path}: {error.strerror or error}") from None


def expiry(pem: bytes) -> datetime:
    """The earliest end of the certificates in a file. Raises InvalidArgument.

    Read from the DER, because the package cryptography is optional:

        Certificate ::= SEQUENCE { tbsCertificate SEQUENCE {
            [0] version, serialNumber, signature, issuer, validity SEQUENCE { notBefore, notAfter }, … } … }
    """
    try:
        found = [_not_after(ssl.PEM_cert_to_DER_cert(one)) for one in _CERTIFICATE.findall(pem.decode("latin-1"))]
    except (ValueError, IndexError) as error:
        raise InvalidArgument(f"not a certificate in PEM: {error}") from None
    if not found:
        raise InvalidArgument("it holds no certificate in PEM")
    return min(found)


def _not_after(der: bytes) -> datetime:
    tbs, _ = _content(_content(der, _SEQUENCE)[0], _SEQUENCE)
    if tbs[0] == _VERSION:
        tbs = _content(tbs, _VERSION)[1]
    for _ in ("serial number", "signature", "issuer"):
        tbs = _content(tbs, tbs[0])[1]
    validity, _ = _content(tbs, _SEQUENCE)
    _, after = _content(validity, validity[0])
    text = _content(after, after[0])[0].decode("ascii")
    if after[0] == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif after[0] != _GENERALIZED_TIME:
        raise ValueError("its end is not a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _content(der: bytes, tag: int) -> tuple[bytes, bytes]:
    """The content of the element in front, and what follows it."""
    if der[0] != tag:
        raise ValueError(f"expected element {tag:#x}, found {der[0]:#x}")
    length, begin = der[1], 2
    if length & 0x80:
        begin += length & 0x7F
        length = int.from_bytes(der[2:begin])
    if begin + length > len(der):
        raise ValueError("it is cut short")
    return der[begin : begin + length], der[begin + length :]
