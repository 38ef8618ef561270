"""A certificate authority in a folder, for clusters without one of their own.

    ca.pem        the authority's certificate, which everyone trusts      ca.key        its key, only needed to issue
    broker-1.pem  a broker's certificate                                  broker-1.key
    app.pem       the certificate of a client called app                  app.key

A broker's certificate is valid for its host names, and its URI spiffe://CLUSTER/broker/ID names the one broker that it
may be; a client's has spiffe://CLUSTER/client/NAME, and host names if it is a gateway's. Keys are ECDSA P-256, readable
by their owner alone. Issuing again replaces the files; running brokers use the new ones within two seconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote

from comet.errors import InvalidArgument, pip_install
from comet.security.files import write_file
from comet.wire.expiry import EXPIRES_SOON_DAYS

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_DAYS: Final = 3650
DAYS: Final = 365
_CLOCK_SKEW: Final = timedelta(hours=1)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Issued:
    """The files of one certificate."""

    name: str
    cert: Path
    key: Path
    expires: datetime

    @property
    def expires_soon(self) -> bool:
        return self.expires - datetime.now(UTC) < timedelta(days=EXPIRES_SOON_DAYS)


def check_client_name(name: str) -> None:
    """Raises InvalidArgument for a name whose files would not be those of a client."""
    if not _NAME.fullmatch(name) or name == "ca" or name.startswith("broker-"):
        raise InvalidArgument(f"{name!r} cannot name a client: use letters, digits, '.', '_' and '-', not broker-…")


class Authority:
    """The authority of a folder. Its methods block; they raise InvalidArgument, naming the file."""

    def __init__(self, folder: Path, cert: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
        self.folder = folder
        self._cert = cert
        self._key = key

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def cluster(self) -> str:
        """The cluster that it was made for."""
        from cryptography.x509.oid import NameOID

        (found,) = self._cert.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        return str(found.value)

    @classmethod
    def create(cls, folder: Path, cluster: str) -> Self:
        """Makes a new authority in a folder that has none."""
        require_cryptography()
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        if (folder / "ca.key").exists() or (folder / "ca.pem").exists():
            raise InvalidArgument(f"{folder} holds an authority already: issue from it, or choose another folder")
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("Comet CA", cluster)
        builder = (
            _builder(name, name, key, CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        cert = _signed(builder, key)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(folder / "ca.key", _pem_of_key(key), secret=True)
        write_file(folder / "ca.pem", _pem(cert))
        return cls(folder, cert, key)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The authority that was made there."""
        require_cryptography()
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            cert = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
            key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        except OSError as error:
            reason = f"{folder} holds no authority to issue from: {error.strerror or error}"
            raise InvalidArgument(reason, details={"hint": f"make one: comet security init {folder}"}) from None
        except (ValueError, TypeError) as error:
            raise InvalidArgument(f"ca.pem or ca.key in {folder} is damaged: {error}") from None
        if not isinstance(key, EllipticCurvePrivateKey):
            raise InvalidArgument(f"{folder / 'ca.key'} is not an ECDSA key, as `comet security init` makes it")
        return cls(folder, cert, key)

    def issue_broker(self, broker: int, hosts: Sequence[str], days: int = DAYS) -> Issued:
        """For connections from clients and from other brokers, to any of the host names and addresses."""
        if not hosts:
            raise InvalidArgument("a broker's certificate needs the host names that others connect to")
        return self._issue(f"broker-{broker}", f"broker/{broker}", hosts, days)

    def issue_client(self, name: str, days: int = DAYS, *, hosts: Sequence[str] = ()) -> Issued:
        """For a client, gateway or operator. With `hosts` it is a server's certificate too: a gateway shows it to
        browsers."""
        check_client_name(name)
        return self._issue(name, f"client/{name}", hosts, days)

    def _issue(self, name: str, path: str, hosts: Sequence[str], days: int) -> Issued:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID as Usage

        key = ec.generate_private_key(ec.SECP256R1())
        uri = x509.UniformResourceIdentifier(f"spiffe://{quote(self.cluster, safe='')}/{path}")
        usages = [Usage.CLIENT_AUTH, *([Usage.SERVER_AUTH] if hosts else [])]
        builder = (
            _builder(_name(name, self.cluster), self._cert.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName([uri, *map(_general_name, hosts)]), critical=False)
        )
        cert = _signed(builder, self._key)
        found = Issued(name, self.folder / f"{name}.pem", self.folder / f"{name}.key", cert.not_valid_after_utc)
        write_file(found.key, _pem_of_key(key), secret=True)
        write_file(found.cert, _pem(cert))
        return found


def certificates_in(folder: Path) -> list[Issued]:
    """The certificates in a folder, those that expire first in front."""
    require_cryptography()
    from cryptography import x509

    found = []
    for path in sorted(folder.glob("*.pem")):
        try:
            cert = x509.load_pem_x509_certificate(path.read_bytes())
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{path} does not hold a certificate in PEM: {error}") from None
        found.append(Issued(path.stem, path, path.with_suffix(".key"), cert.not_valid_after_utc))
    return sorted(found, key=lambda one: one.expires)


def require_cryptography(purpose: str = "making certificates") -> None:
    """Raises InvalidArgument if the package cryptography is not installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        how = {"hint": pip_install("security")}
        raise InvalidArgument(f"{purpose} needs the package cryptography", details=how) from None


def _builder(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return builder.add_extension(authority, critical=False).sign(key, hashes.SHA256())


def _name(common: str, cluster: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        return x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster), x509.NameAttribute(NameOID.COMMON_NAME, common)]
        )
    except ValueError:
        raise InvalidArgument(f"{cluster!r} cannot name a cluster: use at most 64 characters") from None


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    with suppress(ValueError):
        return x509.IPAddress(ip_address(host.strip("[]")))
    try:
        return x509.DNSName(host)
    except ValueError:
        raise InvalidArgument(f"{host!r} is not a host name or IP address") from None


def _pem(cert: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return cert.public_bytes(Encoding.PEM)


def _pem_of_key(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
