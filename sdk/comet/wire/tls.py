"""The files of a TLS connection, in PEM: the authorities that a side trusts, and the certificate that it presents."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from comet.errors import InvalidArgument


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

    def _contents(self) -> Pem:
        return Pem(_read(self.ca, "CA"), _read(self.cert, "certificate"), _read(self.key, "key"))

    def _check(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca is not None:
            try:
                context.load_verify_locations(self.ca)
            except (ssl.SSLError, OSError) as error:
                raise InvalidArgument(f"the TLS CA file {self.ca} does not hold certificates in PEM: {error}") from None
        if self.cert is not None:
            assert self.key is not None
            try:
                # The password keeps OpenSSL from asking for one on the terminal.
                context.load_cert_chain(self.cert, self.key, password="")
            except (ssl.SSLError, OSError, ValueError) as error:
                reason = f"the TLS certificate {self.cert} does not match the key {self.key}"
                raise InvalidArgument(f"{reason}, or one is not PEM without a password: {error}") from None


def _read(path: Path | None, kind: str) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read the TLS {kind} file {path}: {error.strerror or error}") from None
