"""When certificates expire, read from their PEM without the package cryptography.

Certificate ::= SEQUENCE { tbsCertificate SEQUENCE {
    [0] version, serialNumber, signature, issuer, validity SEQUENCE { notBefore, notAfter }, … } … }
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from typing import Final

from comet.errors import InvalidArgument

EXPIRES_SOON_DAYS: Final = 30
EXPIRES_NOW_DAYS: Final = 7  # so few days are shown as an error
DAY_S: Final = 86_400

_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18


def expiry(pem: bytes) -> datetime:
    """The earliest end of the certificates in a file. Raises InvalidArgument."""
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
